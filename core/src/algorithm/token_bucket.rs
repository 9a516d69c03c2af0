//! Token bucket with continuous refill.
//!
//! The bucket starts with `limit` tokens and gains one each emission interval while it is not
//! full. A request takes as many tokens as it costs, or, where there are too few, none.
//!
//! Stored are the whole tokens and the moment of the last refill, the one at which the newest
//! token came. A refill moves that moment on by whole emission intervals, so what is left over of
//! the time since is never lost and never rounded. A debt is a bucket below empty.
//!
//! Of any window of time t at most `limit + t × rate` passes.

use super::moment::{self, Moment};
use super::{State, Stored, Terms};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::{Interval, Rate};

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tokens", "last", "part"];

pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    moment::terms(rate, limit)
}

pub(super) fn read([tokens, micros, part]: [u64; 3]) -> Option<State> {
    Some(State::Bucket(tokens, Moment { micros, part }))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let bucket = refill(stored, now, quota);
    let allowed = cost <= bucket.tokens(quota) || cost == 0;
    let missing = if allowed { bucket.missing + cost } else { bucket.missing };

    // Until no more than `most` is missing.
    let until = |most: u64| {
        let regained = |at: Moment, units| at.plus(interval, units).ceil();
        let held =
            stored.extra.holds.until(now, limit, most, |at, units| regained(Moment::at(at), units));
        regained(bucket.moment, missing.saturating_sub(most)).max(held).saturating_sub(now)
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
    /// Of the last refill.
    moment: Moment,
    /// The clock did: that is written down even if nothing is spent, or else the bucket would not
    /// refill until the clock has caught up.
    stepped_back: bool,
}

impl Bucket {
    /// Refills the bucket at a moment, as far as so many tokens are missing at least.
    fn advance(&mut self, at: u64, interval: Interval, held: u64) {
        let gained = self.moment.intervals_until(Moment::at(at), interval);
        match self.missing.saturating_sub(gained) {
            missing if missing > held => {
                (self.missing, self.moment) = (missing, self.moment.plus(interval, gained));
            }
            _ => (self.missing, self.moment) = (held, Moment::at(at)),
        }
    }

    fn tokens(&self, quota: &Quota) -> u64 {
        quota.limit().saturating_sub(self.missing)
    }

    fn write(&self, stored: &mut Stored, now: u64, quota: &Quota, missing: u64) {
        let (tokens, debt) = quota.split(missing);
        stored.write(now, State::Bucket(tokens, self.moment), debt);
    }
}

fn refill(stored: &Stored, now: u64, quota: &Quota) -> Bucket {
    let interval = quota.interval();
    let full = Bucket { missing: 0, moment: Moment::at(now), stepped_back: false };
    let Some(State::Bucket(tokens, moment)) = stored.state else { return full };

    let missing = quota.missing(tokens, stored.debt(quota));
    let moment = moment.clamped(interval);
    let (holds, limit) = (stored.extra.holds, quota.limit());
    if moment > Moment::at(now) {
        let missing = missing.max(holds.shared(now).units(limit));
        return Bucket { missing, stepped_back: true, ..full };
    }
    let mut bucket = Bucket { missing, moment, stepped_back: false };
    holds.each_floor(now, limit, |at, held| bucket.advance(at, interval, held));
    bucket.advance(now, interval, 0);
    bucket
}
