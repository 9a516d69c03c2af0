//! With the deny cache the same requests pass as without it.

use proptest::prelude::*;
use rate_limit_core::algorithm::{BurstParameter, Stored};
use rate_limit_core::deny_cache::{Denial, is_cacheable};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::SECOND;

use crate::history::{START, rate};

/// One client in Redis, and what the deny caches of two machines hold of it.
struct World {
    now: u64,
    stored: Stored,
    denials: [Option<Denial>; 2],
    /// How many requests a cache has rejected.
    rejected: u64,
}

/// A request, so many µs after the reply to the one before. Redis decides so many µs after it was
/// submitted, and the reply comes so many µs later.
#[derive(Clone, Copy, Debug)]
struct Request {
    gap: u64,
    machine: usize,
    quota: Quota,
    cost: u64,
    there: u64,
    back: u64,
    /// The settlement afterwards.
    change: i64,
}

impl World {
    fn new(now: u64) -> Self {
        Self { now, stored: Stored::default(), denials: [None; 2], rejected: 0 }
    }

    /// Whether the request passes. What the cache rejects, Redis would reject as well, and it would be left
    /// as it is.
    fn request(&mut self, request: Request, is_refundable: bool) -> bool {
        let Request { gap, machine, quota, cost, there, back, change } = request;
        let algorithm = quota.algorithm();
        self.now += gap;
        let is_cached = is_cacheable(&quota, cost, is_refundable);
        let denial =
            self.denials[machine].filter(|it| is_cached && it.quota == quota.fingerprint());
        if let Some(verdict) = denial.and_then(|denial| denial.verdict(self.now)) {
            let mut stored = self.stored.clone();
            let real = algorithm.decide(&mut stored, self.now, &quota, cost);
            assert_eq!((verdict.allowed, verdict.remaining), (real.allowed, real.remaining));
            assert_eq!(stored, self.stored);
            assert!(is_refundable || verdict.retry >= real.retry && verdict.reset >= real.reset);
            self.rejected += 1;
            return false;
        }
        let submitted = self.now;
        self.now += there;
        let verdict = algorithm.decide(&mut self.stored, self.now, &quota, cost);
        if change != 0 {
            algorithm.settle(&mut self.stored, self.now, &quota, self.now, change);
        }
        self.now += back;
        // A reply to a request of another quota ends the denial.
        self.denials[machine] =
            self.denials[machine].filter(|denial| denial.quota == quota.fingerprint());
        if is_cached && let Some(new) = Denial::new(&verdict, &quota, submitted, self.now) {
            self.denials[machine] = Some(new);
        }
        verdict.allowed
    }
}

/// Two quotas of one algorithm that are soon exhausted.
fn quotas() -> impl Strategy<Value = [Quota; 2]> {
    let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
    let numbers = || (1..4_u64, 1_000..20 * SECOND, 1..4_u64);
    let blocks = prop_oneof![Just(0), 1..1_000_u64, 1..30 * SECOND];
    let all = (algorithms, any::<bool>(), numbers(), numbers(), blocks);
    all.prop_map(|(algorithm, is_monthly, one, other, block)| {
        [one, other].map(|(count, period, limit)| {
            let rate = rate(algorithm, is_monthly, count, period);
            let own = algorithm.burst_parameter() == BurstParameter::None;
            let limit = if own { count } else { limit };
            Quota::new(algorithm, rate.unwrap(), limit).unwrap().with_block(block)
        })
    })
}

/// Requests to so many machines, of so many of the quotas, which are settled if `settles`.
fn requests(
    quotas: [Quota; 2],
    machines: usize,
    number: usize,
    settles: bool,
) -> impl Strategy<Value = Vec<Request>> {
    let gaps = prop_oneof![Just(0), 0..1_000_u64, 0..SECOND, 0..5 * SECOND];
    let costs = prop_oneof![1 => Just(0), 8 => Just(1), 1 => 2..4_u64];
    let latencies = || prop_oneof![Just(0), 0..500_u64, 0..100_000_u64];
    let changes = if settles { -3..4_i64 } else { 0..1 };
    let request = (gaps, 0..machines, 0..number, costs, latencies(), latencies(), changes);
    let request = request.prop_map(move |(gap, machine, quota, cost, there, back, change)| {
        Request { gap, machine, quota: quotas[quota], cost, there, back, change }
    });
    proptest::collection::vec(request, 0..80)
}

type History = (u64, Vec<Request>);

fn histories(machines: usize, number: usize, settles: bool) -> impl Strategy<Value = History> {
    let requests = quotas().prop_flat_map(move |it| requests(it, machines, number, settles));
    (START..START + 20 * SECOND, requests)
}

proptest! {
    #[test]
    fn a_cached_rejection_is_one_of_redis((start, requests) in histories(2, 1, false)) {
        let mut world = World::new(start);
        requests.into_iter().for_each(|request| _ = world.request(request, false));
    }

    #[test]
    fn the_same_pass_where_the_rate_changes((start, requests) in histories(1, 2, false)) {
        let mut world = World::new(start);
        requests.into_iter().for_each(|request| _ = world.request(request, false));
    }

    /// Only those of a limit with a block are cached then.
    #[test]
    fn the_same_pass_where_requests_are_settled((start, requests) in histories(2, 1, true)) {
        let mut world = World::new(start);
        requests.into_iter().for_each(|request| _ = world.request(request, true));
    }
}

/// A rejection after the end of a block begins another one.
#[test]
fn a_denial_ends_with_the_block() {
    let rate = "1r/10s".parse().unwrap();
    let quota = Quota::new(Algorithm::FixedWindow, rate, 1).unwrap().with_block(1_500_000);
    let mut world = World::new(START / (10 * SECOND) * (10 * SECOND));
    let mut at = 0;
    let mut passes = |ms: u64| {
        let gap = (ms - std::mem::replace(&mut at, ms)) * 1_000;
        let (machine, cost, there, back, change) = (0, 1, 0, 0, 0);
        let request = Request { gap, machine, quota, cost, there, back, change };
        world.request(request, false)
    };
    assert!(passes(8_000));
    assert!(!passes(8_100) && !passes(8_500) && !passes(9_200) && !passes(9_700));
    assert!(!passes(10_050) && !passes(11_199));
    assert!(passes(11_200));
    assert!(world.rejected > 0, "nothing was cached");
}
