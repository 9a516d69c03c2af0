//! Corrections of charges that overlap: what passes is what would pass if each charge had been corrected when it
//! was made. The model keeps the whole history, and plays it again with each correction.

use proptest::prelude::*;
use rate_limit_core::algorithm::Regain;
use rate_limit_core::charge::Charged;
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, START};

/// The events after so many hundredths of a second.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request with this share of the limit as its cost, in percent.
    Charge { after: u64, share: u64 },
    /// The charge with this index of those under way, from the oldest on, is corrected to a share of what it reserved.
    Correct { after: u64, index: usize, share: u64 },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let after = || prop_oneof![2 => Just(0), 6 => 0..300_u64, 1 => 0..6_000_u64];
    let charge = (after(), 0..60_u64).prop_map(|(after, share)| Event::Charge { after, share });
    let correct = (after(), 0..8_usize, 0..100_u64)
        .prop_map(|(after, index, share)| Event::Correct { after, index, share });
    proptest::collection::vec(prop_oneof![charge, correct], 1..60)
}

/// A charge: its time, what it has really cost so far as is known, what it has reserved, and whether it is under way.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    charged: Charged,
    cost: u64,
    reserved: u64,
    is_under_way: bool,
}

/// A client whose requests reserve, and the whole history.
struct Exact {
    client: Client,
    charges: Vec<Reserved>,
    /// µs of the client's clock for a hundredth of a second.
    unit: u64,
}

impl Exact {
    fn new(quota: Quota, unit: u64) -> Self {
        Self { client: Client::new(quota), charges: Vec::new(), unit }
    }

    /// The units that the bucket would have left now, if each charge had been what it is known to be.
    fn left(&self) -> u64 {
        let (quota, now) = (self.client.quota, self.client.now);
        let (period, count) = quota.terms();
        let charges = self.charges.iter().map(|charge| (charge.charged.at, charge.cost));
        if quota.algorithm().regain() == Regain::AtRefills {
            let refilled = |(missing, last): (u64, u64), at| {
                let refills = (at - last) / period;
                match missing.saturating_sub(refills * count) {
                    0 => (0, at),
                    missing => (missing, last + refills * period),
                }
            };
            let spent = |bucket, (at, cost)| {
                let (missing, last) = refilled(bucket, at);
                (missing + cost, last)
            };
            return quota.limit().saturating_sub(refilled(charges.fold((0, START), spent), now).0);
        }
        // In µs × count.
        let regained = |missing: u64, micros: u64| missing.saturating_sub(micros * count);
        let spent = |(missing, last), (at, cost): (u64, u64)| {
            (regained(missing, at - last) + cost * period, at)
        };
        let (missing, last) = charges.fold((0, START), spent);
        (quota.limit() * period).saturating_sub(regained(missing, now - last)) / period
    }

    fn charge(&mut self, cost: u64) -> bool {
        let verdict = self.client.request(cost);
        if verdict.allowed {
            self.note(Charged::new(self.client.now, &verdict), cost);
        }
        verdict.allowed
    }

    fn note(&mut self, charged: Charged, cost: u64) {
        self.charges.push(Reserved { charged, cost, reserved: cost, is_under_way: true });
    }

    /// Corrects a charge that is under way to this share of what it has reserved, in percent.
    fn correct(&mut self, index: usize, share: u64) {
        let mut under_way = self.charges.iter_mut().filter(|charge| charge.is_under_way);
        let Some(charge) = under_way.nth(index) else { return };
        charge.is_under_way = false;
        charge.cost = charge.reserved * share / 100;
        let (quota, less) = (self.client.quota, charge.reserved - charge.cost);
        let since = quota.algorithm().regained_from(&quota, charge.charged, less);
        self.client.give_back(less, since);
    }

    fn live(&mut self, event: Event) {
        let limit = self.client.quota.limit();
        match event {
            Event::Charge { after, share } => {
                self.client.wait(after * self.unit);
                self.charge(limit * share / 100);
            }
            Event::Correct { after, index, share } => {
                self.client.wait(after * self.unit);
                self.correct(index, share);
            }
        }
    }
}

fn quota(algorithm: Algorithm, rate: &str, limit: u64) -> Quota {
    let quota = Quota::new(algorithm, rate.parse().expect("a rate"), limit).expect("a quota");
    quota.with_settle()
}

/// The algorithms whose quota comes back bit by bit.
fn continuous() -> Vec<Algorithm> {
    let is_continuous = |algorithm: &Algorithm| algorithm.regain() == Regain::Continuous;
    Algorithm::ALL.into_iter().filter(is_continuous).collect()
}

proptest! {
    /// Never more than in the exact history, and less by no more than the steps are apart.
    #[test]
    fn corrections_that_overlap_give_back_what_was_missing_since(
        algorithm in proptest::sample::select(continuous()),
        rate in proptest::sample::select(&["1r/s", "3r/s", "7r/3s", "100r/m"][..]),
        limit in 1..200_u64,
        events in events(),
    ) {
        let mut exact = Exact::new(quota(algorithm, rate, limit), 10_000);
        for event in events {
            exact.live(event);
            let (left, exactly) = (exact.client.request_in(0, 0).remaining, exact.left());
            prop_assert!(left <= exactly, "{left} instead of {exactly}: {:?}", exact.client);
            let most = limit.div_ceil(16);
            prop_assert!(left + most >= exactly, "{left} instead of {exactly}: {:?}", exact.client);
        }
    }
}

proptest! {
    /// Where the bucket would have been full in between it would be refilled at other moments: by a refill at most it is
    /// ahead.
    #[test]
    fn corrections_between_refills_are_no_more_than_a_refill_ahead(
        count in 1..40_u64,
        limit in 1..200_u64,
        events in events(),
    ) {
        let rate = format!("{count}r/7s");
        let mut exact = Exact::new(quota(Algorithm::IntervalBucket, &rate, limit), 10_000);
        for event in events {
            exact.live(event);
            let (left, exactly) = (exact.client.request_in(0, 0).remaining, exact.left());
            prop_assert!(left <= exactly + count, "{left} instead of {exactly}: {:?}", exact.client);
        }
    }
}

/// Ten streams reserve four times what they use, and use 0.8 of the rate. Returns how many of so many requests are
/// rejected, in per mille.
fn rejected(quota: Quota, requests: u64, is_exact: bool) -> u64 {
    const SECOND: u64 = 1_000_000;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut exact = Exact::new(quota, 1);
    // When each stream goes on, and the time of its charge, if it has one under way.
    let mut streams: [(u64, Option<u64>); 10] = std::array::from_fn(|_| (START, None));
    let (mut begun, mut rejected) = (0, 0);
    while begun < requests {
        let Some(stream) = streams.iter_mut().min_by_key(|stream| stream.0) else { break };
        exact.client.now = exact.client.now.max(stream.0) + 1;
        let now = exact.client.now;
        if let Some(at) = stream.1.take() {
            let of = |charge: &Reserved| charge.is_under_way && charge.charged.at == at;
            let mut under_way = exact.charges.iter().filter(|charge| charge.is_under_way);
            let index = under_way.position(of).expect("a charge");
            exact.correct(index, 25);
        }
        begun += 1;
        let is_allowed = match is_exact {
            true => exact.left() >= 20,
            false => exact.charge(20),
        };
        if is_exact && is_allowed {
            exact.note(Charged { at: now, remaining: 0, reset: 0 }, 20);
        }
        rejected += u64::from(!is_allowed);
        stream.0 = now + rng.u64(SECOND..=23 * SECOND / 2);
        stream.1 = is_allowed.then_some(now);
    }
    rejected * 1_000 / begun
}

/// A bucket whose charges can all be corrected rejects as many as the exact one, or somewhat more where less comes back.
#[test]
fn many_streams_get_back_what_they_have_reserved_too_much() {
    for (algorithm, more) in
        [(Algorithm::TokenBucket, 15), (Algorithm::Gcra, 15), (Algorithm::IntervalBucket, 40)]
    {
        for limit in [100, 140, 160, 180] {
            let quota = quota(algorithm, "10r/s", limit);
            let [found, exactly] = [false, true].map(|is_exact| rejected(quota, 2_000, is_exact));
            let bounds = exactly..=exactly + more;
            assert!(bounds.contains(&found), "{algorithm:?} {limit}: {found}, not {exactly}");
        }
    }
}

/// A gives back at 10 s what it has reserved too much, and B at 50 s, when what had come back is spent. Where nothing is
/// known of A, all of B comes back once more.
#[test]
fn what_others_got_back_is_not_given_back_again() {
    for algorithm in continuous() {
        let settled = quota(algorithm, "1r/s", 100);
        let plain = Quota::new(algorithm, settled.rate(), 100).expect("a quota");
        for (quota, left) in [(settled, 0), (plain, 40)] {
            let mut exact = Exact::new(quota, 10_000);
            assert!(exact.charge(50) && exact.charge(40), "{algorithm:?}");
            exact.client.wait(10_000_000);
            exact.correct(0, 0);
            exact.client.wait(40_000_000);
            assert!(exact.charge(100), "{algorithm:?}");
            exact.correct(0, 0);
            assert_eq!(exact.client.request_in(0, 0).remaining, left, "{algorithm:?}");
            assert_eq!(exact.left(), 0, "{algorithm:?}");
        }
    }
}
