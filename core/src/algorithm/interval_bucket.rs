//! Token bucket that is refilled at intervals.
//!
//! The bucket starts with `limit` tokens and gains the n of the rate at each whole period since its
//! last refill, as far as they fit. This is the bucket of the classic Redis guides.
//!
//! In any window of time t at most `limit + n × (t / period + 1)` passes, the division rounded down.

use super::bucket::{self, Bucket, Refill};
use super::moment::Moment;
use super::{DecideEach, Leases, Regain, State, Stored, Terms};
use crate::decision::{Charged, Since, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::{MAX_TIME, Rate};

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tokens", "last"];

pub(super) const REGAIN: Regain = Regain::AtRefills;
pub(super) const STORES_ITSELF: bool = false;
pub(super) const LEASES: Option<fn(&Quota) -> Leases> = Some(leases);
pub(super) const DECIDE_EACH: Option<DecideEach> = None;

/// Where each refill fills the bucket, leases end with it.
fn leases(quota: &Quota) -> Leases {
    match portions(quota).is_window() {
        true => Leases::EndWithWindows(window_end),
        false => Leases::AreHeld(touch),
    }
}

/// When the next refill comes. A bucket without a state begins at this moment.
fn window_end(state: Option<&State>, now: u64, quota: &Quota) -> u64 {
    let last = match state {
        Some(State::Bucket(_, last)) => last.micros,
        Some(_) | None => now,
    };
    last.saturating_add(portions(quota).period)
}

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
    since: Option<Since>,
) {
    bucket::give_back(stored, portions(quota), now, quota, amount, since);
}

/// When the bucket would have been full without `amount` of a charge.
pub(super) fn regained_from(quota: &Quota, charged: Charged, amount: u64) -> u64 {
    let Portions { period, count, .. } = portions(quota);
    let missing = quota.limit().saturating_sub(charged.remaining);
    let time = |tokens: u64| tokens.div_ceil(count).saturating_mul(period);
    // The reset counts units that machines have set aside, which are not missing for longer.
    let whole_in = charged.reset.min(time(missing));
    let sooner = time(missing) - time(missing.saturating_sub(amount));
    charged.at.saturating_add(whole_in.saturating_sub(sooner))
}

/// See [`Algorithm::regained_from`](super::Algorithm::regained_from).
pub(super) fn span(quota: &Quota, units: u64) -> u64 {
    let Portions { period, count, .. } = portions(quota);
    (units / count).saturating_mul(period)
}

fn touch(stored: &mut Stored, now: u64, quota: &Quota) {
    bucket::touch(stored, portions(quota), now, quota);
}

/// `count` tokens come each `period` µs.
#[derive(Clone, Copy)]
struct Portions {
    period: u64,
    count: u64,
    /// The most that the bucket holds.
    limit: u64,
}

fn portions(quota: &Quota) -> Portions {
    let (period, count) = quota.terms();
    Portions { period, count, limit: quota.limit() }
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

    fn given_back(self, tokens: u64) -> u64 {
        tokens
    }

    fn span(self, tokens: u64) -> u64 {
        tokens.div_ceil(self.count).saturating_mul(self.period)
    }

    fn is_window(self) -> bool {
        self.limit <= self.count
    }

    fn is_late(self, since: Since, given_back: u64, now: u64) -> bool {
        since.micros.saturating_sub(self.span(given_back)).max(since.alone) < now
    }

    /// Units that refills may have brought back do not come back. They are a period apart at least. If the
    /// bucket was full in between, the next refill comes a period after the next request.
    fn give_back_late(
        self,
        bucket: &mut Bucket,
        amount: u64,
        since: Since,
        given_back: u64,
        now: u64,
    ) -> u64 {
        // Tokens that are still to come before a moment; below zero, those that have come after it.
        let to_come = |moment: u64| {
            let time = i128::from(moment) - i128::from(bucket.last.micros);
            time.div_euclid(i128::from(self.period)) * i128::from(self.count)
        };
        let more = to_come(since.micros) - i128::from(given_back);
        let left = i128::from(amount) + more.max(to_come(since.alone));
        let amount = amount.min(u64::try_from(left.max(0)).unwrap_or(u64::MAX));
        if amount > 0 {
            bucket.missing = bucket.missing.saturating_sub(amount);
            bucket.last = Moment::at(now);
        }
        amount
    }
}
