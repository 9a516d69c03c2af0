//! Token bucket with continuous refill.
//!
//! The bucket starts with `limit` tokens and gains one each emission interval while it is not full. A
//! request takes as many tokens as it costs, or none if there are too few.
//!
//! A refill moves the moment of the last one on by whole emission intervals, so the rest of the time
//! is never lost and never rounded.
//!
//! In any window of time t at most `limit + t × rate` passes.

use super::bucket::{self, Bucket, Refill};
pub(super) use super::moment::regained_from;
use super::moment::{self, Moment};
use super::settled::{self, Settled};
use super::{DecideEach, Leases, Regain, State, Stored, Terms};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::{Interval, Rate};

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tokens", "last", "part"];

pub(super) const REGAIN: Regain = Regain::Continuous;
pub(super) const STORES_ITSELF: bool = false;
pub(super) const LEASES: Option<fn(&Quota) -> Leases> = Some(|_| Leases::AreHeld(touch));
pub(super) const SETTLED: Option<Settled> = Some(Settled {
    correct: include_str!("settled_continuous.lua"),
    missing: include_str!("token_bucket_missing.lua"),
    missing_without,
    returned: settled::returned_continuously,
});
/// The bucket is refilled once.
pub(super) const DECIDE_EACH: Option<DecideEach> = Some(decide_each);

pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    moment::terms(rate, limit)
}

pub(super) fn read([tokens, micros, part]: [u64; 3]) -> Option<State> {
    Some(State::Bucket(tokens, Moment { micros, part }))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    bucket::decide(stored, quota.interval(), now, quota, cost)
}

fn decide_each(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    cost: u64,
    times: u32,
    each: &mut dyn FnMut(Verdict),
) {
    bucket::decide_each(stored, quota.interval(), now, quota, cost, times, each);
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    bucket::charge(stored, quota.interval(), now, quota, amount);
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    since: Option<u64>,
) {
    bucket::give_back(stored, quota.interval(), now, quota, amount, since);
}

/// How long the bucket takes to be full, without `spent`.
fn missing_without(stored: &Stored, now: u64, quota: &Quota, spent: u64) -> u64 {
    bucket::full_without(stored, quota.interval(), now, quota, spent).saturating_sub(now)
}

fn touch(stored: &mut Stored, now: u64, quota: &Quota) {
    bucket::touch(stored, quota.interval(), now, quota);
}

/// A token comes each emission interval.
impl Refill for Interval {
    fn moment(self, stored: Moment) -> Moment {
        stored.clamped(self)
    }

    fn gained(self, last: Moment, at: u64) -> u64 {
        last.intervals_until(Moment::at(at), self)
    }

    fn after(self, last: Moment, tokens: u64) -> Moment {
        last.plus(self, tokens)
    }

    /// The last refill was as much earlier, so that the next tokens are due as much sooner, less the time
    /// since.
    fn give_back_late(self, bucket: &mut Bucket, amount: u64, since: u64, now: u64) {
        let late = now.saturating_sub(since);
        bucket.last = bucket.last.minus(self, amount).later(late).min(bucket.last);
    }
}
