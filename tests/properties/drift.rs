//! No history, however long, adds up a rounding error.

use fastrand::Rng;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, START, YEAR, refill};

/// Rates whose emission interval is no whole number of µs, and one of a round one.
const RATES: [&str; 6] = ["3r/s", "7r/10s", "999983r/h", "999983r/s", "1234567r/1d", "10r/s"];

fn each_quota(limit: u64, mut check: impl FnMut(Quota)) {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_continuous()) {
        for rate in RATES {
            check(Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap());
        }
    }
}

/// How much comes back in so many µs, rounded down.
fn returned(quota: Quota, micros: u64) -> u64 {
    let parts = u128::from(micros) * u128::from(quota.rate().count());
    (parts / u128::from(quota.rate().period())) as u64
}

/// A client that takes all there is, and never lets the quota become whole, gets in a year just
/// what the rate gives.
#[test]
fn a_year_is_counted_exactly() {
    each_quota(100_000_000, |quota| {
        let mut rng = Rng::with_seed(1);
        let mut client = Client::new(quota);
        let (mut spent, end) = (0, START + YEAR);
        // Some ten thousand requests, however fast the quota comes back.
        let longest = refill(quota).min(2 * YEAR / 10_000);
        while client.now < end {
            let all = client.request(0).remaining;
            assert!(client.request(all).allowed);
            spent += all;
            let expected = quota.limit() + returned(quota, client.now - START);
            assert_eq!(spent, expected, "{quota:?} after {} µs", client.now - START);
            client.now += rng.u64(1..longest);
        }
    });
}

/// A client that comes back exactly after `Retry-After`, a hundred thousand times, passes each time
/// at the first µs at which it may.
#[test]
fn every_retry_is_on_time() {
    // With a limit of one the quota would be whole each time, and time that goes by then is lost.
    each_quota(2, |quota| {
        let mut client = Client::new(quota);
        assert!(client.request(2).allowed);
        for number in 1..=100_000_u32 {
            if let Retry::After(micros) = client.request(1).retry {
                client.now += micros;
                assert!(client.request(1).allowed);
            }
            let exact = u128::from(number) * u128::from(quota.rate().period());
            let due = START + exact.div_ceil(u128::from(quota.rate().count())) as u64;
            assert_eq!(client.now, due, "{quota:?} request {number}");
        }
    });
}
