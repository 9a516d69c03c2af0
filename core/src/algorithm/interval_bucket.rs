//! Token bucket that is refilled at intervals.
//!
//! The bucket starts with `limit` tokens and gains the n of the rate at each whole period since its
//! last refill, as far as they fit. This is the bucket of the classic Redis guides.
//!
//! Stored are the tokens, and the time of the last refill in µs. A debt is a bucket below empty.
//!
//! Of any window of time t at most `limit + n × (t / period + 1)` passes, the division rounded
//! down.

use super::moment::Moment;
use super::{State, Stored, Terms};
use crate::decision::{Retry, Verdict};
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
    let (limit, (period, count)) = (quota.limit(), quota.terms());
    let bucket = refill(stored, now, quota);
    let allowed = cost <= bucket.tokens(quota) || cost == 0;
    let missing = if allowed { bucket.missing + cost } else { bucket.missing };

    // Until no more than `most` is missing.
    let until = |most: u64| {
        let regained =
            |at: u64, units: u64| at.saturating_add(units.div_ceil(count).saturating_mul(period));
        let held = stored.extra.holds.until(now, limit, most, regained);
        regained(bucket.last, missing.saturating_sub(most)).max(held).saturating_sub(now)
    };
    let reset = if missing == 0 { 0 } else { until(0) };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(until(limit - cost)),
    };

    if allowed && cost > 0 || bucket.stepped_back && reset > 0 {
        bucket.write(stored, now, quota, missing);
    }
    Verdict { allowed, remaining: limit.saturating_sub(missing), reset, retry }
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let bucket = refill(stored, now, quota);
    let missing = bucket.missing.saturating_add(amount).min(quota.max_spent());
    if missing > bucket.missing || bucket.stepped_back && missing > 0 {
        bucket.write(stored, now, quota, missing);
    }
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    _since: Option<u64>,
) {
    let bucket = refill(stored, now, quota);
    let held = stored.extra.holds.shared(now).units(quota.limit());
    let missing = bucket.missing.saturating_sub(amount).max(held);
    if missing < bucket.missing || bucket.stepped_back && missing > 0 {
        bucket.write(stored, now, quota, missing);
    }
}

/// Writes the bucket down as it is at `now`.
pub(super) fn touch(stored: &mut Stored, now: u64, quota: &Quota) {
    let bucket = refill(stored, now, quota);
    bucket.write(stored, now, quota, bucket.missing);
}

/// The bucket at `now`.
struct Bucket {
    /// The tokens that it is short of a full one; more than it can hold, where there is a debt.
    missing: u64,
    /// Of the last refill, in µs.
    last: u64,
    /// The clock did: that is written down even if nothing is spent, or else the bucket would not
    /// refill until the clock has caught up.
    stepped_back: bool,
}

impl Bucket {
    /// Refills the bucket at a moment, as far as so many tokens are missing at least.
    fn advance(&mut self, at: u64, quota: &Quota, held: u64) {
        let (period, count) = quota.terms();
        let refills = at.saturating_sub(self.last) / period;
        match self.missing.saturating_sub(refills.saturating_mul(count)) {
            missing if missing > held => {
                self.missing = missing;
                self.last = self.last.saturating_add(refills.saturating_mul(period));
            }
            _ => (self.missing, self.last) = (held, at),
        }
    }

    fn tokens(&self, quota: &Quota) -> u64 {
        quota.limit().saturating_sub(self.missing)
    }

    fn write(&self, stored: &mut Stored, now: u64, quota: &Quota, missing: u64) {
        let (tokens, debt) = quota.split(missing);
        stored.write(now, State::Bucket(tokens, Moment::at(self.last)), debt);
    }
}

fn refill(stored: &Stored, now: u64, quota: &Quota) -> Bucket {
    let full = Bucket { missing: 0, last: now, stepped_back: false };
    let Some(State::Bucket(tokens, Moment { micros: last, .. })) = stored.state else {
        return full;
    };

    let missing = quota.missing(tokens, stored.debt(quota));
    let (holds, limit) = (stored.extra.holds, quota.limit());
    if last > now {
        let missing = missing.max(holds.shared(now).units(limit));
        return Bucket { missing, stepped_back: true, ..full };
    }
    let mut bucket = Bucket { missing, last, stepped_back: false };
    holds.each_floor(now, limit, |at, held| bucket.advance(at, quota, held));
    bucket.advance(now, quota, 0);
    bucket
}
