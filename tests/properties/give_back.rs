//! What is given back is as if it had never been spent, and no client gets more than that by it.

use proptest::prelude::*;
use rate_limit_core::algorithm::Stored;
use rate_limit_core::decision::{Since, Verdict};
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, Event, clients, events, histories, quotas, refill, troubled_clients};
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

/// What a client spent and was given back at a time.
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
fn is_missing_until(quota: Quota, now: u64, since: Since) -> bool {
    match quota.algorithm() {
        Algorithm::TokenBucket
        | Algorithm::IntervalBucket
        | Algorithm::Gcra
        | Algorithm::LeakyBucket => now + 2 <= since.micros,
        Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::FixedWindow
        | Algorithm::CalendarWindow => true,
    }
}

/// Events, some of which give back what others would spend.
fn exchanges() -> impl Strategy<Value = Vec<(Event, bool)>> {
    proptest::collection::vec((events(), proptest::bool::weighted(0.3)), 0..150)
}

/// What happens to a client of which several charges are corrected.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Requests come that take all that is left.
    TakeAll,
    /// A request comes that costs this share of the limit, of which a share is given back later.
    Charge(f64),
    /// This share is given back of the charge that waits for so many others.
    Correct(f64, usize),
}

/// Each after a part of the time in which an empty quota becomes whole.
fn acts() -> impl Strategy<Value = Vec<(f64, Act)>> {
    let share = || prop_oneof![Just(1.0), 0.0..1.0];
    let act = prop_oneof![
        1 => Just(Act::TakeAll),
        2 => (0.0..0.6).prop_map(Act::Charge),
        2 => (share(), 0..3_usize).prop_map(|(share, which)| Act::Correct(share, which)),
    ];
    proptest::collection::vec((prop_oneof![Just(0.0), 0.0..0.5], act), 0..20)
}

/// How long what was given back takes to be regained, in µs.
fn time_of(quota: Quota, given_back: u64) -> u64 {
    let (period, count) = quota.terms();
    match quota.algorithm() {
        Algorithm::IntervalBucket => given_back.div_ceil(count) * period,
        _ => given_back,
    }
}

/// A charge that may be corrected: its place among all that has passed, its cost, and what its verdict has shown.
struct Charge {
    place: usize,
    cost: u64,
    verdict: Verdict,
    charged: Client,
}

/// A history in which charges are corrected.
struct Corrected {
    client: Client,
    /// When and how much has passed, without what was given back of it, and how many corrections came before.
    passed: Vec<(u64, u64, u64)>,
    pending: Vec<Charge>,
    corrections: u64,
    /// Whether nothing that was given back can have been regained.
    is_exact: bool,
}

impl Corrected {
    fn act(&mut self, gap: f64, act: Act) {
        let quota = self.client.quota;
        self.client.wait((gap * refill(quota) as f64) as u64);
        match act {
            Act::TakeAll => drop(self.request(self.client.request_in(0, 0).remaining)),
            Act::Charge(share) => {
                let charge = self.request((share * quota.limit() as f64).ceil() as u64);
                self.pending.extend(charge);
            }
            Act::Correct(share, which) if which < self.pending.len() => {
                let Charge { place, cost, verdict, charged } = self.pending.remove(which);
                let amount = (share * cost as f64).floor() as u64;
                let since = charged.regained_from(&verdict, cost, amount);
                let given_back = self.client.stored.given_back(self.client.now);
                let sooner = time_of(quota, given_back.saturating_sub(since.given_back));
                let earliest = Since::at(since.micros.saturating_sub(sooner).max(since.alone));
                self.is_exact &= is_missing_until(quota, self.client.now, earliest);
                self.client.give_back(amount, since);
                self.passed[place].1 -= amount;
                self.corrections += 1;
            }
            Act::Correct(..) => {}
        }
    }

    fn request(&mut self, cost: u64) -> Option<Charge> {
        let verdict = self.client.request(cost);
        let place = self.passed.len();
        verdict.allowed.then(|| {
            self.passed.push((self.client.now, cost, self.corrections));
            Charge { place, cost, verdict, charged: self.client.clone() }
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Of however many charges something is given back, in any order: no more passes than if they had been that much
    /// smaller, and just as much where nothing of it can have been regained.
    #[test]
    fn corrections_that_overlap_give_no_more_than_was_charged(quota in quotas(), acts in acts()) {
        let client = Client::new(quota);
        let mut never = client.clone();
        let (passed, pending) = (Vec::new(), Vec::new());
        let mut once = Corrected { client, passed, pending, corrections: 0, is_exact: true };
        acts.into_iter().for_each(|(gap, act)| once.act(gap, act));
        if quota.algorithm() == Algorithm::IntervalBucket && !once.is_exact {
            // It refills at other moments if it was full in between.
            let passed: Vec<_> = once.passed.iter().map(|(at, cost, _)| (*at, *cost, 0)).collect();
            prop_assert!(!exceeds(quota, &passed), "{passed:?}");
            return Ok(());
        }
        for (at, cost, corrections) in &once.passed {
            // A verdict, from which it is known since when, is in whole µs.
            never.now = at + if once.is_exact { 0 } else { 2 * corrections };
            let verdict = never.request(*cost);
            prop_assert!(verdict.allowed, "{:?} {:?}", never, once.passed);
        }
        never.now = once.client.now;
        if once.is_exact {
            prop_assert_eq!(once.client.request_in(0, 0), never.request_in(0, 0), "{:?} {:?}", once.client, never);
        }
    }

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
        let since = once.regained_from(&verdict, cost, cost);
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
        let since = once.regained_from(&verdict, cost, cost);
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
                let has_moved = quota.algorithm() == Algorithm::IntervalBucket;
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
        if quota.algorithm() == Algorithm::IntervalBucket {
            prop_assert!(!exceeds(quota, &passed), "{passed:?}");
        }
    }

    /// As much as is given back can be spent, as far as it fits. In `sliding_window` less, where
    /// it was spent in the previous window and counts no longer in full.
    #[test]
    fn no_more_comes_back_than_is_given(mut client in clients(), amount in amounts()) {
        let (limit, before) = (client.quota.limit(), client.request_in(0, 0));
        let amount = amount.of(limit);
        client.give_back(amount, Since::at(client.now));
        let after = client.request_in(0, 0);
        let all = before.remaining.saturating_add(amount).min(limit);
        match client.quota.algorithm() {
            Algorithm::SlidingWindow => {
                prop_assert!((before.remaining..=all).contains(&after.remaining));
            }
            _ => prop_assert_eq!(after.remaining, all),
        }
        prop_assert!(after.reset <= before.reset);
        prop_assert!(client.request_in(0, after.remaining).allowed);
        prop_assert!(!client.request_in(0, after.remaining + 1).allowed);
    }

    /// Nor if the clock stepped back or the limit was changed.
    #[test]
    fn nor_in_trouble(mut client in troubled_clients(), amount in amounts()) {
        let (limit, before) = (client.quota.limit(), client.request(0));
        let amount = amount.of(limit);
        client.give_back(amount, Since::at(client.now));
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
        giving.give_back(0, Since::at(giving.now));
        prop_assert_eq!(asking.stored, giving.stored);
    }

    #[test]
    fn who_has_spent_nothing_gets_nothing(mut client in clients(), amount in amounts()) {
        let amount = amount.of(client.quota.limit());
        let mut new = Client::new(client.quota);
        new.give_back(amount, Since::at(new.now));
        prop_assert_eq!(new.stored, Stored::default());

        client.now += client.request_in(0, 0).reset;
        let before = client.stored.clone();
        client.give_back(amount, Since::at(client.now));
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
                client.give_back(event.cost(quota), Since::at(client.now));
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
    let since = client.regained_from(&verdict, 10, 10);
    client.wait(12_000_000);
    client.give_back(10, since);
    assert_eq!(client.request_in(0, 0).remaining, 10);
}

/// Of a charge of 50 and one of 40 the first is given back when `first` seconds have gone by, and a request comes of
/// each of these costs, at its second. All that is left then passes, and the second charge is given back.
fn passes_twice(algorithm: Algorithm, first: u64, requests: &[(u64, u64)]) -> bool {
    let quota = Quota::new(algorithm, "1r/s".parse().expect("a rate"), 100).expect("a quota");
    let mut client = Client::new(quota);
    let [one, other] = [50, 40].map(|cost| {
        let verdict = client.request(cost);
        client.regained_from(&verdict, cost, cost)
    });
    let second = |second: u64| Client::new(quota).now + second * 1_000_000;
    client.now = second(first);
    client.give_back(50, one);
    for (at, cost) in requests {
        client.now = second(*at);
        assert!(client.request(*cost).allowed, "{algorithm:?} {requests:?}");
    }
    let left = client.request_in(0, 0).remaining;
    assert!(client.request(left).allowed);
    client.give_back(40, other);
    client.request(1).allowed
}

#[test]
fn a_charge_that_was_regained_sooner_as_another_was_given_back_does_not_come_back() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::IntervalBucket] {
        assert!(!passes_twice(algorithm, 10, &[(50, 0)]), "{algorithm:?}");
        // Nor after a request of which all is regained before.
        assert!(!passes_twice(algorithm, 0, &[(2, 1), (45, 0)]), "{algorithm:?}");
        assert!(!passes_twice(algorithm, 0, &[(2, 1), (45, 50)]), "{algorithm:?}");
    }
}

/// Three requests at once reserve 20 each and use 5, and are settled in any order a second later, or ten. Each gets back
/// at least what it would if it were alone.
#[test]
fn what_requests_at_once_have_reserved_too_much_comes_back_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::IntervalBucket] {
        let quota = Quota::new(algorithm, "1r/s".parse().expect("a rate"), 100).expect("a quota");
        for (order, seconds, left) in
            orders.iter().flat_map(|it| [(it, 1, 86..=86), (it, 10, 80..=95)])
        {
            let mut client = Client::new(quota);
            let since = [(); 3].map(|()| {
                let verdict = client.request(20);
                client.regained_from(&verdict, 20, 15)
            });
            client.wait(seconds * 1_000_000);
            order.iter().for_each(|index| client.give_back(15, since[*index]));
            let remaining = client.request_in(0, 0).remaining;
            assert!(left.contains(&remaining), "{remaining}: {algorithm:?} {order:?} {seconds}");
        }
    }
}
