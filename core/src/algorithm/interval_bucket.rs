//! Token bucket that is refilled at intervals.
//!
//! The bucket starts with `limit` tokens and gains the n of the rate at each whole period since its
//! last refill, as far as they fit. This is the bucket of the classic Redis guides.
//!
//! In any window of time t at most `limit + n × (t / period + 1)` passes, the division rounded down.

use super::bucket::{self, Refill};
use super::moment::Moment;
use super::{State, Stored, Terms};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::{MAX_TIME, Rate};

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tokens", "last"];

/// The terms: the period in µs, and the tokens that come in it.
pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    let refills = limit.div_ceil(rate.count());
    if u128::from(refills) * u128::from(rate.period()) > u128::from(MAX_TIME) {
        return Err(QuotaError::TooSlow);
    }
    Ok((rate.period(), rate.count()))
}

pub(super) fn read([tokens, last, _]: [u64; 3]) -> Option<State> {
    Some(State::Bucket(tokens, Moment::at(last)))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    bucket::decide(stored, portions(quota), now, quota, cost)
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    bucket::charge(stored, portions(quota), now, quota, amount);
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    since: Option<u64>,
) {
    let last = last_refill(stored, now, quota);
    // A refill that fills the bucket has brought back what was spent before it.
    let is_over = quota.limit() <= quota.rate().count()
        && since.is_some_and(|since| Moment::at(since) < last);
    let amount = if is_over { 0 } else { amount };
    bucket::give_back(stored, portions(quota), now, quota, amount);
}

/// The moment of the last refill, or a later one at which the bucket was full.
pub(super) fn last_refill(stored: &Stored, now: u64, quota: &Quota) -> Moment {
    bucket::last_refill(stored, portions(quota), now, quota)
}

pub(super) fn touch(stored: &mut Stored, now: u64, quota: &Quota) {
    bucket::touch(stored, portions(quota), now, quota);
}

/// `count` tokens come each `period` µs.
#[derive(Clone, Copy)]
struct Portions {
    period: u64,
    count: u64,
}

fn portions(quota: &Quota) -> Portions {
    let (period, count) = quota.terms();
    Portions { period, count }
}

impl Refill for Portions {
    fn moment(self, stored: Moment) -> Moment {
        Moment::at(stored.micros)
    }

    fn gained(self, last: Moment, at: u64) -> u64 {
        let refills = at.saturating_sub(last.micros) / self.period;
        refills.saturating_mul(self.count)
    }

    fn after(self, last: Moment, tokens: u64) -> Moment {
        let time = tokens.div_ceil(self.count).saturating_mul(self.period);
        Moment::at(last.micros.saturating_add(time))
    }
}
