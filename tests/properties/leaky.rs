//! `leaky_bucket` lets requests through evenly, and in their order.

use proptest::prelude::*;
use rate_limit_core::algorithm::Undelayed;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, Event, histories, quotas_of};

fn quotas() -> impl Strategy<Value = Quota> {
    quotas_of(&[Algorithm::LeakyBucket])
}

/// When each request of a history that is not rejected gets through, and what it costs.
fn through(quota: Quota, history: &[Event], cost: impl Fn(&Event) -> u64) -> Vec<(u64, u64)> {
    let mut client = Client::new(quota);
    let mut through = Vec::new();
    for event in history {
        client.wait(event.gap(quota));
        let cost = cost(event);
        let verdict = client.request(cost);
        if verdict.allowed && cost > 0 {
            through.push((
                client.now + quota.algorithm().delay(&verdict, &quota, cost, Undelayed::UpTo(0)),
                cost,
            ));
        }
    }
    through
}

/// By how much, in µs, two delays may be off against each other: both ends of each are rounded.
const ROUNDING: u64 = 2;

/// Whether what gets through before the last of any window takes longer to come back than that
/// window.
fn is_too_fast(quota: Quota, through: &[(u64, u64)]) -> bool {
    let (period, count) = (u128::from(quota.rate().period()), u128::from(quota.rate().count()));
    (0..through.len()).any(|first| {
        let mut before = 0;
        through[first..].iter().any(|(time, cost)| {
            let window = u128::from(time - through[first].0 + ROUNDING);
            let too_fast = before * period >= window * count;
            before += u128::from(*cost);
            too_fast
        })
    })
}

proptest! {
    #[test]
    fn no_window_lets_through_more_than_one_and_the_rate(
        quota in quotas(),
        history in histories(),
    ) {
        let through = through(quota, &history, |_| 1);
        prop_assert!(through.is_sorted(), "{through:?}");
        prop_assert!(!is_too_fast(quota, &through), "{through:?}");
    }

    #[test]
    fn no_window_lets_through_more_than_the_last_of_any_cost_and_the_rate(
        quota in quotas(),
        history in histories(),
    ) {
        let through = through(quota, &history, |event| event.cost(quota));
        prop_assert!(through.is_sorted_by_key(|(time, _)| time), "{through:?}");
        prop_assert!(!is_too_fast(quota, &through), "{through:?}");
    }

    /// A request with nothing to wait for is not delayed, by however little.
    #[test]
    fn who_comes_alone_is_not_delayed(quota in quotas(), share in 0.0..=1.0) {
        let cost = (share * quota.limit() as f64) as u64;
        let verdict = Client::new(quota).request(cost);
        prop_assert_eq!(quota.algorithm().delay(&verdict, &quota, cost, Undelayed::UpTo(0)), 0);
    }

    /// A request that is delayed would, after that delay, have found nothing before it.
    #[test]
    fn a_delay_is_as_long_as_it_takes(quota in quotas(), history in histories()) {
        let mut client = Client::new(quota);
        client.live(&history);
        let before = client.request_in(0, 0).reset;
        let verdict = client.request(1);
        if verdict.allowed {
            let delay = quota.algorithm().delay(&verdict, &quota, 1, Undelayed::UpTo(0));
            prop_assert!((before.saturating_sub(1)..=before).contains(&delay), "{delay} {before}");
        }
    }
}
