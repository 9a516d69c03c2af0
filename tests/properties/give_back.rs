//! Units that are given back are as if they had never been spent, and no client gets more than that by it.

use proptest::prelude::*;
use rate_limit_core::algorithm::{Regain, Stored};
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, Event, clients, events, histories, quotas, troubled_clients};
use crate::window::exceeds_in;

/// Any amount: some share of the limit, or out of all proportion.
fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        4 => (0.0..1.2).prop_map(Amount::Share),
        1 => Just(Amount::Units(1)),
        1 => any::<u64>().prop_map(Amount::Units),
        1 => Just(Amount::Units(u64::MAX)),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Amount {
    Share(f64),
    Units(u64),
}

impl Amount {
    fn of(self, all: u64) -> u64 {
        match self {
            Self::Share(share) => (share * all as f64).ceil() as u64,
            Self::Units(units) => units,
        }
    }
}

/// The time of an exchange, and what a client spent and was given back.
type Exchange = (u64, u64, u64);

/// Whether any window spends more than the algorithm's bound and what is given back in it.
fn exceeds(quota: Quota, exchanges: &[Exchange]) -> bool {
    (0..exchanges.len()).any(|first| {
        let (mut spent, mut given) = (0, 0);
        exchanges[first..].iter().any(|(now, cost, back)| {
            spent += cost;
            given += back;
            exceeds_in(quota, exchanges[first].0, *now, spent.saturating_sub(given))
        })
    })
}

/// Whether all that is regained from `since` on is still missing at `now`. A window forgets a charge as a whole.
fn is_missing_until(quota: Quota, now: u64, since: u64) -> bool {
    quota.algorithm().regain() == Regain::AtOnce || now + 2 <= since
}

/// Events, some of which give back what others would spend.
fn exchanges() -> impl Strategy<Value = Vec<(Event, bool)>> {
    proptest::collection::vec((events(), proptest::bool::weighted(0.3)), 0..150)
}

proptest! {
    /// Exactly and in every algorithm, at once or however much later: whatever is asked
    /// thereafter.
    #[test]
    fn what_was_given_back_was_never_spent(
        mut never in troubled_clients(),
        cost in amounts(),
        delay in prop_oneof![Just(None), events().prop_map(Some)],
        history in histories(),
    ) {
        let mut once = never.clone();
        let held = never.request(0).remaining;
        let cost = cost.of(held).min(held);
        let verdict = once.request(cost);
        prop_assert!(verdict.allowed);
        let since = once.regained_from(&verdict, cost);
        let delay = delay.map_or(0, |event| event.gap(never.quota));
        never.wait(delay);
        once.wait(delay);
        once.give_back(cost, since);
        for event in history {
            let (gap, cost) = (event.gap(never.quota), event.cost(never.quota));
            prop_assert_eq!(once.request_in(0, cost), never.request_in(0, cost), "{:?} {:?}", once, never);
            never.wait(gap);
            once.wait(gap);
            prop_assert_eq!(once.request(cost), never.request(cost), "{:?} {:?}", once, never);
        }
    }

    /// Whatever others have spent of the same key meanwhile: no more passes than if the charge had not been
    /// made, and just as much where the quota cannot have become whole in between.
    #[test]
    fn what_was_given_back_takes_nothing_from_what_others_have_spent(
        client in clients(),
        cost in amounts(),
        between in proptest::collection::vec(events(), 0..16),
        delay in events(),
        after in proptest::collection::vec(events(), 0..20),
    ) {
        let (quota, mut once, mut never) = (client.quota, client.clone(), client);
        let held = once.request_in(0, 0).remaining;
        let cost = cost.of(held).min(held);
        let verdict = once.request(cost);
        let since = once.regained_from(&verdict, cost);
        let mut passed = Vec::new();
        let mut request = |once: &mut Client, event: Event, is_exact: bool, rounding: u64| {
            once.wait(event.gap(quota));
            never.now = once.now + rounding;
            let cost = event.cost(quota);
            let verdict = once.request(cost);
            if verdict.allowed {
                passed.push((once.now, cost, 0));
            }
            if is_exact {
                prop_assert_eq!(verdict, never.request(cost), "{:?} {:?}", once, never);
            } else if verdict.allowed {
                let is_allowed = never.request(cost).allowed;
                // It refills at other moments if it was full in between.
                let has_moved = quota.algorithm().regain() == Regain::AtRefills;
                prop_assert!(is_allowed || has_moved, "{:?} {:?}", once, never);
            }
            Ok(())
        };
        for event in between {
            request(&mut once, event, false, 0)?;
        }
        once.wait(delay.gap(quota));
        once.give_back(cost, since);
        let is_exact = is_missing_until(quota, once.now, since);
        // The verdict, from which it is known since when, is in whole µs.
        let rounding = if is_exact { 0 } else { 2 };
        for event in after {
            request(&mut once, event, is_exact, rounding)?;
        }
        if quota.algorithm().regain() == Regain::AtRefills {
            prop_assert!(!exceeds(quota, &passed), "{passed:?}");
        }
    }

    /// The units that are given back can be spent, as far as they fit. In `sliding_window` fewer, where they were
    /// spent in the previous window and count no longer in full.
    #[test]
    fn no_more_comes_back_than_is_given(mut client in clients(), amount in amounts()) {
        let (limit, before) = (client.quota.limit(), client.request_in(0, 0));
        let amount = amount.of(limit);
        client.give_back(amount, client.now);
        let after = client.request_in(0, 0);
        let all = before.remaining.saturating_add(amount).min(limit);
        match client.quota.algorithm() {
            Algorithm::SlidingWindow => {
                prop_assert!((before.remaining..=all).contains(&after.remaining));
            }
            Algorithm::TokenBucket
            | Algorithm::IntervalBucket
            | Algorithm::Gcra
            | Algorithm::LeakyBucket
            | Algorithm::SlidingLog
            | Algorithm::FixedWindow => prop_assert_eq!(after.remaining, all),
        }
        prop_assert!(after.reset <= before.reset);
        prop_assert!(client.request_in(0, after.remaining).allowed);
        prop_assert!(!client.request_in(0, after.remaining + 1).allowed);
    }

    /// Nor if the clock stepped back or the limit was changed.
    #[test]
    fn no_more_comes_back_in_trouble(mut client in troubled_clients(), amount in amounts()) {
        let (limit, before) = (client.quota.limit(), client.request(0));
        let amount = amount.of(limit);
        client.give_back(amount, client.now);
        let after = client.request_in(0, 0);
        let all = before.remaining.saturating_add(amount).min(limit);
        prop_assert!((before.remaining..=all).contains(&after.remaining));
        prop_assert!(after.reset <= before.reset);
    }

    /// The clock that stepped back, and the limit that was lowered, are put right as by a request.
    #[test]
    fn to_give_back_nothing_is_to_charge_nothing(client in troubled_clients()) {
        let (mut asking, mut giving) = (client.clone(), client);
        asking.request(0);
        giving.give_back(0, giving.now);
        prop_assert_eq!(asking.stored, giving.stored);
    }

    #[test]
    fn who_has_spent_nothing_gets_nothing(mut client in clients(), amount in amounts()) {
        let amount = amount.of(client.quota.limit());
        let mut new = Client::new(client.quota);
        new.give_back(amount, new.now);
        prop_assert_eq!(new.stored, Stored::default());

        client.now += client.request_in(0, 0).reset;
        let before = client.stored.clone();
        client.give_back(amount, client.now);
        prop_assert_eq!(client.stored, before);
    }

    #[test]
    fn no_window_exceeds_the_limit_and_what_is_given_back(
        quota in quotas(),
        history in exchanges(),
        greedy in any::<bool>(),
    ) {
        let mut client = Client::new(quota);
        let mut exchanges = Vec::new();
        for (event, gives_back) in history {
            client.wait(event.gap(quota));
            let cost = if greedy { client.request_in(0, 0).remaining } else { event.cost(quota) };
            if gives_back {
                client.give_back(event.cost(quota), client.now);
                exchanges.push((client.now, 0, event.cost(quota)));
            } else if client.request(cost).allowed {
                exchanges.push((client.now, cost, 0));
            }
        }
        prop_assert!(!exceeds(quota, &exchanges), "{exchanges:?}");
    }
}

/// A refill has brought half of it back, and the rest is given back.
#[test]
fn a_refill_brings_back_no_more_than_itself() {
    let rate = "5r/10s".parse().expect("a rate");
    let quota = Quota::new(Algorithm::IntervalBucket, rate, 10).expect("a quota");
    let mut client = Client::new(quota);
    let verdict = client.request(10);
    let since = client.regained_from(&verdict, 10);
    client.wait(12_000_000);
    client.give_back(10, since);
    assert_eq!(client.request_in(0, 0).remaining, 10);
}

/// Requests at once reserve 20 each and use 5, and are settled one after the other.
fn left_after(quota: Quota, requests: usize, order: &[usize], gap: u64) -> u64 {
    let mut client = Client::new(quota);
    let since: Vec<_> = (0..requests)
        .map(|_| {
            let verdict = client.request(20);
            client.regained_from(&verdict, 15)
        })
        .collect();
    for index in order {
        client.wait(gap);
        client.give_back(15, since[*index]);
    }
    client.request_in(0, 0).remaining
}

#[test]
fn what_requests_at_once_have_reserved_too_much_comes_back_in_any_order() {
    const SECOND: u64 = 1_000_000;
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::IntervalBucket] {
        let quota = |rate: &str, limit| {
            Quota::new(algorithm, rate.parse().expect("a rate"), limit).expect("a quota")
        };
        for order in orders {
            // 3 of the 15 that are used are regained.
            assert_eq!(left_after(quota("1r/s", 100), 3, &order, SECOND), 88, "{algorithm:?}");
            let left = left_after(quota("100r/h", 200), 3, &order, SECOND);
            assert_eq!(left, 185, "{algorithm:?} {order:?}");
        }
        let order: Vec<_> = (0..6).collect();
        assert_eq!(left_after(quota("100r/h", 200), 6, &order, SECOND), 170, "{algorithm:?}");
    }
}
