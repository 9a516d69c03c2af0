//! No window of time lets through more than the algorithm's bound.

use proptest::prelude::*;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::calendar::month;
use crate::history::{Client, histories, quotas};

/// A request that passed: when, and what it spent.
type Passed = (u64, u64);

/// Whether any window of `passed` spends more than the algorithm's bound, in exact numbers.
pub fn exceeds(quota: Quota, passed: &[Passed]) -> bool {
    (0..passed.len()).any(|first| {
        let mut spent = 0;
        passed[first..].iter().any(|(now, cost)| {
            spent += cost;
            exceeds_in(quota, passed[first].0, *now, spent)
        })
    })
}

/// Whether `spent` is more than may be spent between two moments, both included.
pub fn exceeds_in(quota: Quota, from: u64, to: u64, spent: u64) -> bool {
    let (period, count, limit) = (quota.rate().period(), quota.rate().count(), quota.limit());
    let time = to - from;
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            let beyond = u128::from(spent.saturating_sub(limit));
            beyond * u128::from(period) > u128::from(time) * u128::from(count)
        }
        Algorithm::IntervalBucket => spent > limit + count * (time / period + 1),
        Algorithm::SlidingLog => time < period && spent > limit,
        Algorithm::FixedWindow if quota.rate().is_monthly() => {
            spent > limit * (month(to) - month(from) + 1)
        }
        // An aligned window lets the limit through, and so any other twice that.
        Algorithm::SlidingWindow | Algorithm::FixedWindow => {
            spent > limit * (to / period - from / period + 1)
        }
    }
}

proptest! {
    #[test]
    fn no_window_exceeds_the_limit(quota in quotas(), history in histories()) {
        let mut client = Client::new(quota);
        let mut passed = Vec::new();
        for event in history {
            client.wait(event.gap(quota));
            let cost = event.cost(quota);
            if client.request(cost).allowed {
                passed.push((client.now, cost));
            }
        }
        prop_assert!(!exceeds(quota, &passed), "{passed:?}");
    }

    /// Nor one of a client that takes all it can get.
    #[test]
    fn greed_does_not_exceed_the_limit(quota in quotas(), history in histories()) {
        let mut client = Client::new(quota);
        let mut passed = Vec::new();
        for event in history {
            client.wait(event.gap(quota));
            let all = client.request(0).remaining;
            prop_assert!(client.request(all).allowed);
            passed.push((client.now, all));
        }
        prop_assert!(!exceeds(quota, &passed), "{passed:?}");
    }
}
