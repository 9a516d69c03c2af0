//! Units that are charged beyond what there is are owed, and paid before anything passes.

use proptest::prelude::*;
use rate_limit_core::algorithm::Regain;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, START, clients, events, histories, quotas, refill};
use crate::window::exceeds_in;

/// The most of a quota that can be spent and owed, in limits.
const MOST: u64 = 11;

/// A client that has lived a little, of a quota that can be settled.
fn solvent() -> impl Strategy<Value = Client> {
    clients().prop_filter("no debts", |client| client.quota.check_settle().is_ok())
}

/// A client that owes something, perhaps all it may.
fn debtors() -> impl Strategy<Value = Client> {
    (solvent(), 0.0..12.0, events()).prop_map(|(mut client, share, later)| {
        let remaining = client.request_in(0, 0).remaining;
        let change = (share * client.quota.limit() as f64) as u64;
        client.settle(client.now, (remaining + change) as i64);
        client.wait(later.gap(client.quota));
        client
    })
}

/// Whether `spent` is more than there can have been of a quota from its first charge on.
fn exceeds_total(quota: Quota, from: u64, to: u64, spent: u64) -> bool {
    let period = quota.rate().period();
    match quota.algorithm() {
        Algorithm::SlidingLog => spent > quota.limit() * ((to - from) / period + 1),
        Algorithm::TokenBucket
        | Algorithm::IntervalBucket
        | Algorithm::Gcra
        | Algorithm::LeakyBucket
        | Algorithm::SlidingWindow
        | Algorithm::FixedWindow => exceeds_in(quota, from, to, spent),
    }
}

proptest! {
    #[test]
    fn what_is_charged_is_missing(mut client in solvent(), share in 0.0..20.0) {
        let before = client.request_in(0, 0).remaining;
        let change = (share * client.quota.limit() as f64) as u64;
        client.settle(client.now, change as i64);
        prop_assert_eq!(client.request_in(0, 0).remaining, before.saturating_sub(change));
    }

    #[test]
    fn a_debtor_passes_after_the_retry(mut client in debtors(), share in 0.0..1.0) {
        let limit = client.quota.limit();
        let cost = 1 + (share * (limit - 1) as f64) as u64;
        if let Retry::After(micros) = client.request(cost).retry {
            prop_assert!(micros <= MOST * refill(client.quota));
            prop_assert!(client.request_in(micros, cost).allowed);
            let early = client.request_in(micros - 1, cost);
            prop_assert_eq!((early.allowed, early.retry), (false, Retry::After(1)));
        }
        prop_assert!(client.request_in(0, 0).allowed);
    }

    #[test]
    fn what_was_owed_is_forgotten_when_all_is_paid(client in debtors(), share in 0.0..=1.0) {
        let reset = client.request_in(0, 0).reset;
        prop_assert!(reset <= (MOST + 1) * refill(client.quota));
        if reset > 0 {
            prop_assert!(client.request_in(reset - 1, 0).remaining < client.quota.limit());
        }
        let mut old = Client { now: client.now + reset, ..client };
        let mut new = Client { stored: Default::default(), ..old.clone() };
        let cost = (share * old.quota.limit() as f64) as u64;
        prop_assert_eq!(old.request(cost), new.request(cost));
    }

    /// Whenever a request passes, all that was settled before has been regained.
    #[test]
    fn debts_are_paid_before_anything_passes(
        quota in quotas().prop_filter("no debts", |quota| quota.check_settle().is_ok()),
        history in proptest::collection::vec((events(), proptest::bool::weighted(0.2)), 0..150),
    ) {
        let (mut client, mut spent) = (Client::new(quota), 0);
        let mut may_owe = quota.max_debt();
        for (event, settles) in history {
            client.wait(event.gap(quota));
            let cost = event.cost(quota);
            if settles {
                let change = cost.min(may_owe);
                may_owe -= change;
                client.settle(client.now, change as i64);
                spent += change;
            } else if client.request(cost).allowed && cost > 0 {
                spent += cost;
                prop_assert!(!exceeds_total(quota, START, client.now, spent), "{:?}", client);
            }
        }
    }

    /// At the moment of the charge it is as if only that had been charged.
    #[test]
    fn a_reservation_is_worth_what_was_used(
        mut reserved in solvent(),
        shares in (0.0..=1.0, 0.0..=1.0),
    ) {
        let mut exact = reserved.clone();
        let held = reserved.request(0).remaining;
        exact.request(0);
        let reservation = (shares.0 * held as f64) as u64;
        let used = (shares.1 * reservation as f64) as u64;
        prop_assert!(reserved.request(reservation).allowed && exact.request(used).allowed);
        reserved.settle(reserved.now, -((reservation - used) as i64));
        prop_assert_eq!(reserved.request_in(0, 0).remaining, exact.request_in(0, 0).remaining);
    }

    /// Later it is never worth more than that.
    #[test]
    fn no_more_comes_back_than_was_not_used(
        reserved in solvent(),
        shares in (0.0..=1.0, 0.0..=1.0),
        delay in events(),
        history in histories(),
    ) {
        let mut reserved = reserved;
        let held = reserved.request(0).remaining;
        let mut exact = reserved.clone();
        let reservation = (shares.0 * held as f64) as u64;
        let used = (shares.1 * reservation as f64) as u64;
        prop_assert!(reserved.request(reservation).allowed && exact.request(used).allowed);
        let since = reserved.now;
        reserved.wait(delay.gap(reserved.quota));
        reserved.settle(since, -((reservation - used) as i64));
        exact.wait(delay.gap(exact.quota));
        let mut gap = 0;
        for event in history.into_iter().take(20) {
            gap += event.gap(reserved.quota);
            let (left, most) = (reserved.request_in(gap, 0).remaining, exact.request_in(gap, 0).remaining);
            prop_assert!(left <= most, "{} {}", left, most);
        }
    }

    /// A limit that is counted by windows gives nothing back into a later one.
    #[test]
    fn nothing_comes_back_into_a_later_window(mut client in solvent(), later in 2..5_u64) {
        if client.quota.algorithm().regain() != Regain::AtOnce {
            return Ok(());
        }
        let since = client.now;
        client.now += later * client.quota.rate().period();
        client.request(client.request_in(0, 0).remaining);
        let before = client.request_in(0, 0);
        client.settle(since, -(client.quota.limit() as i64));
        prop_assert_eq!(client.request_in(0, 0), before);
    }

    #[test]
    fn no_debt_is_larger_than_ten_times_the_limit(
        mut client in solvent(),
        changes in proptest::collection::vec(any::<u32>(), 1..10),
    ) {
        for change in changes {
            client.settle(client.now, i64::from(change));
        }
        client.settle(client.now, i64::MAX);
        let retry = client.request_in(0, 1).retry;
        let Retry::After(micros) = retry else { panic!("{retry:?}") };
        prop_assert!(micros <= MOST * refill(client.quota));
    }
}

#[test]
fn a_window_begins_with_what_is_owed() {
    let quota = Quota::new(Algorithm::FixedWindow, "5r/m".parse().unwrap(), 5).unwrap();
    let mut client = Client::new(quota);
    client.now = client.now.next_multiple_of(60_000_000);
    client.settle(client.now, 13);
    let remaining = |minutes: u64| client.request_in(minutes * 60_000_000, 0).remaining;
    assert_eq!([0, 1, 2, 3].map(remaining), [0, 0, 2, 5]);
}

/// A later charge is not regained with what was owed before.
#[test]
fn a_debt_of_a_log_that_grows_is_regained_later() {
    let quota = Quota::new(Algorithm::SlidingLog, "5r/m".parse().unwrap(), 5).unwrap();
    let mut client = Client::new(quota);
    client.settle(client.now, 6);
    client.wait(110_000_000);
    assert!(client.request(4).allowed);
    client.settle(client.now, 3);
    let remaining = |seconds: u64| client.request_in(seconds * 1_000_000, 0).remaining;
    assert_eq!([0, 59, 60, 119, 120].map(remaining), [0, 0, 1, 1, 5]);
}
