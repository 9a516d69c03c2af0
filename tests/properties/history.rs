//! Random histories of one client.

use proptest::prelude::*;
use rate_limit_core::algorithm::{BurstParameter, Stored};
use rate_limit_core::charge::Charged;
use rate_limit_core::decision::Verdict;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{Rate, RateError};

/// When every history starts.
pub const START: u64 = 1_700_000_000_000_000;

/// A year in µs.
pub const YEAR: u64 = 365 * 86_400 * 1_000_000;

/// The last moment of any history: then time stands still.
const END: u64 = 5_000_000_000_000_000;

/// A client: its quota and state, and the time.
#[derive(Clone, Debug)]
pub struct Client {
    pub quota: Quota,
    pub now: u64,
    pub stored: Stored,
}

impl Client {
    /// One that has spent nothing.
    pub fn new(quota: Quota) -> Self {
        Self { quota, now: START, stored: Stored::default() }
    }

    pub fn request(&mut self, cost: u64) -> Verdict {
        self.quota.algorithm().decide(&mut self.stored, self.now, &self.quota, cost)
    }

    /// Gives back what can have been regained since `since`.
    pub fn give_back(&mut self, amount: u64, since: u64) {
        let (quota, now) = (&self.quota, self.now);
        quota.algorithm().give_back(&mut self.stored, now, quota, amount, since);
    }

    /// Since when a charge of this cost and verdict, made now, can have been regained.
    pub fn regained_from(&self, verdict: &Verdict, cost: u64) -> u64 {
        self.quota.algorithm().regained_from(&self.quota, Charged::new(self.now, verdict), cost)
    }

    /// Settles what was charged at `since`.
    pub fn settle(&mut self, since: u64, change: i64) {
        self.quota.algorithm().settle(&mut self.stored, self.now, &self.quota, since, change);
    }

    /// Lets time go by.
    pub fn wait(&mut self, micros: u64) {
        self.now = self.now.saturating_add(micros).min(END);
    }

    /// The verdict on a request of this cost, so many µs from now and with none before it.
    pub fn request_in(&self, micros: u64, cost: u64) -> Verdict {
        let now = self.now + micros;
        Self { now, ..self.clone() }.request(cost)
    }

    /// Lives through a history of monotonic time.
    pub fn live(&mut self, history: &[Event]) {
        for event in history {
            self.wait(event.gap(self.quota));
            self.request(event.cost(self.quota));
        }
    }
}

/// Something that happens: time goes by, then a request comes. Its numbers are shares of the quota,
/// so that they make sense for any.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The gap, in emission intervals, and some µs beside that.
    intervals: f64,
    micros: i64,
    /// The cost, as a share of the limit; rounded up.
    cost: f64,
}

impl Event {
    pub fn gap(self, quota: Quota) -> u64 {
        let gap = self.intervals * quota.rate().period() as f64 / quota.rate().count() as f64;
        (gap.round() as u64).saturating_add_signed(self.micros)
    }

    pub fn cost(self, quota: Quota) -> u64 {
        (self.cost * quota.limit() as f64).ceil() as u64
    }
}

/// The longest time in which an empty quota becomes whole, in µs.
pub fn refill(quota: Quota) -> u64 {
    let (period, count) = (quota.rate().period(), quota.rate().count());
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
            (u128::from(quota.limit()) * u128::from(period)).div_ceil(u128::from(count)) as u64
        }
        Algorithm::IntervalBucket => quota.limit().div_ceil(count) * period,
        Algorithm::SlidingWindow => 2 * period,
        Algorithm::SlidingLog | Algorithm::FixedWindow => period,
    }
}

/// Any number from 1 to 2^`bits`, of any length.
fn magnitude(bits: u32) -> impl Strategy<Value = u64> {
    (0..bits).prop_flat_map(|bits| 1_u64 << bits..=2 << bits)
}

pub fn quotas() -> impl Strategy<Value = Quota> {
    quotas_of(&Algorithm::ALL)
}

pub fn quotas_of(algorithms: &'static [Algorithm]) -> impl Strategy<Value = Quota> {
    let algorithms = proptest::sample::select(algorithms);
    (algorithms, any::<bool>(), magnitude(21), magnitude(45), magnitude(17)).prop_filter_map(
        "no quota of these numbers",
        |(algorithm, is_monthly, count, period, limit)| {
            let rate = rate(algorithm, is_monthly, count, period).ok()?;
            Quota::new(algorithm, rate, own_limit(algorithm, rate).unwrap_or(limit)).ok()
        },
    )
}

/// A rate of so many a period, or a month if that is wanted and the algorithm counts months.
pub fn rate(
    algorithm: Algorithm,
    is_monthly: bool,
    count: u64,
    period: u64,
) -> Result<Rate, RateError> {
    match is_monthly && algorithm.counts_months() {
        true => Rate::monthly(count),
        false => Rate::new(count, period),
    }
}

/// The limit that follows from the rate, for an algorithm that has no other.
pub fn own_limit(algorithm: Algorithm, rate: Rate) -> Option<u64> {
    (algorithm.burst_parameter() == BurstParameter::None).then_some(rate.count())
}

pub fn events() -> impl Strategy<Value = Event> {
    let few = (0..4_u32).prop_map(f64::from);
    let intervals = prop_oneof![Just(0.0), few, 0.0..3.0, 0.0..300.0, 0.0..1e5];
    let cost = prop_oneof![Just(0.0), Just(1e-9), 0.0..0.2, 0.0..1.1];
    (intervals, -2..=2_i64, cost).prop_map(|(intervals, micros, cost)| Event {
        intervals,
        micros,
        cost,
    })
}

pub fn histories() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(events(), 0..150)
}

/// A client that has lived a little.
pub fn clients() -> impl Strategy<Value = Client> {
    (quotas(), histories()).prop_map(|(quota, history)| {
        let mut client = Client::new(quota);
        client.live(&history);
        client
    })
}

/// A client that has lived a little, and then, perhaps, the clock stepped back or its limit was
/// changed.
pub fn troubled_clients() -> impl Strategy<Value = Client> {
    let steps = prop_oneof![Just(0), 1..1_000_u64, 1..3 * YEAR];
    (prop_oneof![clients(), changed_clients()], steps).prop_map(|(mut client, step)| {
        client.now -= step;
        client
    })
}

/// A client that has lived a little, and then its limit was changed.
pub fn changed_clients() -> impl Strategy<Value = Client> {
    (clients(), quotas()).prop_filter_map("no quota of these numbers", |(mut client, other)| {
        let (algorithm, rate) = (client.quota.algorithm(), other.rate());
        let limit = own_limit(algorithm, rate).unwrap_or(other.limit());
        client.quota = Quota::new(algorithm, rate, limit).ok()?;
        Some(client)
    })
}
