//! Months and weeks as one counts them by hand.

use std::sync::LazyLock;

use rate_limit_core::algorithm::State;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::Client;

const DAY: u64 = 86_400_000_000;

/// When the months from January of 1970 to December of 2200 begin.
static MONTHS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let (mut begins, mut months) = (0, Vec::new());
    for year in 1970..=2200_u64 {
        let is_leap =
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        for days in [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            months.push(begins);
            begins += days * DAY;
        }
    }
    months
});

/// The number of the month that `now` is in.
pub fn month(now: u64) -> u64 {
    MONTHS.partition_point(|begins| *begins <= now) as u64
}

fn spent(rate: &str, now: u64) -> Client {
    let quota = Quota::new(Algorithm::FixedWindow, rate.parse().unwrap(), 3).unwrap();
    let mut client = Client { now, ..Client::new(quota) };
    assert!(client.request(3).allowed);
    client
}

/// At its first µs, at its last one, and in each of its days.
#[test]
fn a_month_is_one_budget() {
    for window in MONTHS.windows(2) {
        let (begins, ends) = (window[0], window[1]);
        let days = (begins..ends).step_by(DAY as usize);
        for now in days.flat_map(|day| [day, day + 1, day + DAY - 1]) {
            let client = spent("3r/month", now);
            let verdict = client.request_in(0, 1);
            assert_eq!((verdict.retry, verdict.reset), (Retry::After(ends - now), ends - now));
            assert_eq!(client.request_in(ends - now - 1, 1).retry, Retry::After(1));
            assert_eq!(client.request_in(ends - now, 0).remaining, 3);
        }
    }
}

/// The year 2026 began on a Thursday.
#[test]
fn weeks_begin_on_mondays() {
    const MONDAY: u64 = 1_767_225_600_000_000 + 4 * DAY;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        for weeks in 1..=5 {
            let quota = Quota::new(algorithm, format!("3r/{weeks}w").parse().unwrap(), 3).unwrap();
            let days = (0..weeks * 7).map(|day| MONDAY + day * DAY);
            let begins: Vec<_> =
                days.filter(|day| window(quota, *day) != window(quota, day - 1)).collect();
            assert_eq!(begins.len(), 1, "{quota:?}");
            assert_eq!((begins[0] - MONDAY) % (7 * DAY), 0, "{quota:?}");
        }
    }
}

/// The number of the window that `now` is in.
fn window(quota: Quota, now: u64) -> u64 {
    let mut client = Client { now, ..Client::new(quota) };
    client.request(1);
    match client.stored.state {
        Some(State::Window(number, ..)) => number,
        other => panic!("{other:?}"),
    }
}
