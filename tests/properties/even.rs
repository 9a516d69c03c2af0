//! A client that spends at exactly the rate is never rejected.

use proptest::prelude::*;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::Rate;

use crate::history::{Client, START};

/// Quotas with as many a period as the limit, as some algorithms have by definition.
fn quotas() -> impl Strategy<Value = Quota> {
    let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
    (algorithms, 1..=200_u64, 1_000..=100_000_000_u64).prop_map(|(algorithm, count, period)| {
        Quota::new(algorithm, Rate::new(count, period).unwrap(), count).unwrap()
    })
}

proptest! {
    /// But for one whose every request comes at the very µs at which `sliding_window` has room for
    /// it a µs later: it starts at any time but that of its turn in an aligned period.
    #[test]
    fn even_spending_passes(quota in quotas(), share in 0.0..1.0) {
        let (period, count) = (quota.rate().period(), quota.rate().count());
        let interval = period / count;
        let start = START.next_multiple_of(period) + 1 + (share * (interval - 1) as f64) as u64;
        let mut client = Client::new(quota);
        for number in 0..3 * count {
            client.now = start + (number * period).div_ceil(count);
            let verdict = client.request(1);
            prop_assert!(verdict.allowed, "{number} {client:?} {verdict:?}");
        }
    }

    /// Nor does one that comes too early, and comes back when it may, get less than the rate.
    #[test]
    fn a_patient_client_gets_the_rate(quota in quotas(), start in 0..100_000_000_u64) {
        let (period, count) = (quota.rate().period(), quota.rate().count());
        let mut client = Client::new(quota);
        client.now += start;
        let (begin, rounds) = (client.now, 4);
        let mut spent = 0;
        while client.now < begin + rounds * period {
            match client.request(1).retry {
                Retry::After(micros) => client.now += micros,
                _ => spent += 1,
            }
        }
        prop_assert!(spent >= rounds * count, "{spent} of {count} a period {client:?}");
    }
}
