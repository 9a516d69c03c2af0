//! A token bucket, whichever way it is refilled.
//!
//! The state is the whole tokens and the moment of the last refill, the one at which the newest token
//! came. A debt is a bucket below empty.

use super::hold::Holds;
use super::moment::Moment;
use super::{State, Stored};
use crate::decision::{Retry, Verdict};
use crate::limit::Quota;

/// How tokens come.
pub(super) trait Refill: Copy {
    /// How they come to a client of this quota.
    fn of(quota: &Quota) -> Self;

    /// A stored moment, which may be of another rate, as one of this rate.
    fn moment(self, stored: Moment) -> Moment;

    /// How many tokens come after the refill at `last`, until `at`.
    fn gained(self, last: Moment, at: u64) -> u64;

    /// The moment at which the last of so many `tokens` comes after the refill at `last`.
    fn after(self, last: Moment, tokens: u64) -> Moment;

    /// Gives `amount` tokens back at `now`, but for those that may have been regained since an earlier
    /// moment.
    fn give_back_late(self, bucket: &mut Bucket, amount: u64, since: u64, now: u64);
}

pub(super) fn decide<R: Refill>(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    cost: u64,
) -> Verdict {
    let refill = R::of(quota);
    let mut bucket = bucket(stored, refill, now, quota);
    let before = bucket.missing;
    let verdict = bucket.spend(stored.extra.holds, refill, now, quota, cost);
    bucket.keep(before, stored, now, quota);
    verdict
}

/// Decides on so many equal requests, one after the other. Nothing is kept beside the state.
pub(super) fn decide_each<R: Refill>(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    cost: u64,
    times: u32,
    each: &mut dyn FnMut(Verdict),
) {
    let refill = R::of(quota);
    let mut bucket = bucket(stored, refill, now, quota);
    let before = bucket.missing;
    for _ in 0..times {
        each(bucket.spend(Holds::default(), refill, now, quota, cost));
    }
    bucket.keep(before, stored, now, quota);
}

pub(super) fn charge<R: Refill>(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let refill = R::of(quota);
    let bucket = bucket(stored, refill, now, quota);
    let missing = bucket.missing.saturating_add(amount).min(quota.max_spent());
    if missing > bucket.missing || bucket.stepped_back && missing > 0 {
        bucket.write(stored, now, quota, missing);
    }
}

pub(super) fn give_back<R: Refill>(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    since: Option<u64>,
) {
    let refill = R::of(quota);
    let before = bucket(stored, refill, now, quota);
    let held = stored.extra.holds.lasting(now).units(quota.limit());
    let mut after = before;
    match since {
        _ if before.missing <= held => {}
        Some(since) if since < now => {
            // A charge is not more than that.
            refill.give_back_late(&mut after, amount.min(quota.limit()), since, now);
            after.withhold(refill, now, held);
        }
        Some(_) | None => after.missing = before.missing.saturating_sub(amount),
    }
    after.missing = after.missing.max(held);
    if after != before || before.stepped_back && after.missing > 0 {
        after.write(stored, now, quota, after.missing);
    }
}

/// The tokens that are missing at `now`.
pub(super) fn missing<R: Refill>(stored: &Stored, now: u64, quota: &Quota) -> u64 {
    let refill = R::of(quota);
    bucket(stored, refill, now, quota).missing
}

/// When the bucket is full without `spent` tokens less, in µs, rounded down.
pub(super) fn full_without<R: Refill>(stored: &Stored, now: u64, quota: &Quota, spent: u64) -> u64 {
    let refill = R::of(quota);
    let Bucket { missing, last, .. } = bucket(stored, refill, now, quota);
    refill.after(last, missing.saturating_sub(spent)).micros
}

/// Stores the bucket as it is at `now`.
pub(super) fn touch<R: Refill>(stored: &mut Stored, now: u64, quota: &Quota) {
    let refill = R::of(quota);
    let bucket = bucket(stored, refill, now, quota);
    bucket.write(stored, now, quota, bucket.missing);
}

/// The bucket at `now`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Bucket {
    /// The tokens that it is short of a full one; more than it can hold, if there is a debt.
    pub(super) missing: u64,
    /// The moment of the last refill.
    pub(super) last: Moment,
    /// The clock stepped back. The bucket is stored even if nothing is spent: otherwise it would not
    /// refill until the clock has caught up.
    stepped_back: bool,
}

impl Bucket {
    /// Refills the bucket at `at`, while more than `held` tokens are missing.
    #[inline(always)]
    fn advance(&mut self, refill: impl Refill, at: u64, held: u64) {
        let gained = refill.gained(self.last, at);
        if gained == 0 && self.missing > held {
            return;
        }
        let missing = self.missing.saturating_sub(gained);
        (self.missing, self.last) = match missing > held {
            true => (missing, refill.after(self.last, gained)),
            false => (held, Moment::at(at)),
        };
    }

    /// Refills the bucket no further than to what machines have set aside.
    fn withhold(&mut self, refill: impl Refill, now: u64, held: u64) {
        let beyond = self.missing.saturating_sub(held);
        if held > 0 && refill.after(self.last, beyond).ceil() <= now {
            (self.missing, self.last) = (held, Moment::at(now));
        }
    }

    /// Decides on a request, and takes what it spends.
    #[inline(always)]
    fn spend(
        &mut self,
        holds: Holds,
        refill: impl Refill,
        now: u64,
        quota: &Quota,
        cost: u64,
    ) -> Verdict {
        let limit = quota.limit();
        let allowed = cost <= limit.saturating_sub(self.missing) || cost == 0;
        if allowed {
            self.missing += cost;
        }
        let reset = if self.missing == 0 { 0 } else { self.until(0, holds, refill, now, limit) };
        let retry =
            Retry::of(allowed, cost, limit, || self.until(limit - cost, holds, refill, now, limit));
        Verdict { allowed, blocked: 0, remaining: limit.saturating_sub(self.missing), reset, retry }
    }

    /// µs until no more than `most` tokens are missing.
    #[inline(always)]
    fn until(&self, most: u64, holds: Holds, refill: impl Refill, now: u64, limit: u64) -> u64 {
        let regained = |last, tokens| refill.after(last, tokens).ceil();
        let held = holds.until(now, limit, most, |at, units| regained(Moment::at(at), units));
        let missing = self.missing.saturating_sub(most);
        regained(self.last, missing).max(held).saturating_sub(now)
    }

    /// Stores the bucket, if any tokens were taken since so many were missing.
    #[inline(always)]
    fn keep(&self, before: u64, stored: &mut Stored, now: u64, quota: &Quota) {
        if self.missing > before || self.stepped_back && self.missing > 0 {
            self.write(stored, now, quota, self.missing);
        }
    }

    #[inline(always)]
    fn write(&self, stored: &mut Stored, now: u64, quota: &Quota, missing: u64) {
        let (tokens, debt) = quota.split(missing);
        stored.write(now, State::Bucket(tokens, self.last), debt);
    }
}

#[inline(always)]
fn bucket(stored: &Stored, refill: impl Refill, now: u64, quota: &Quota) -> Bucket {
    let full = Bucket { missing: 0, last: Moment::at(now), stepped_back: false };
    let Some(State::Bucket(tokens, last)) = stored.state else { return full };

    let missing = quota.missing(tokens, stored.debt(quota));
    let last = refill.moment(last);
    let (holds, limit) = (stored.extra.holds, quota.limit());
    if last > Moment::at(now) {
        let missing = missing.max(holds.lasting(now).units(limit));
        return Bucket { missing, stepped_back: true, ..full };
    }
    let mut bucket = Bucket { missing, last, stepped_back: false };
    holds.each_floor(now, limit, |at, held| bucket.advance(refill, at, held));
    bucket.advance(refill, now, 0);
    bucket
}
