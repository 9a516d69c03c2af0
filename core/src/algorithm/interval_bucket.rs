//! Token bucket that is refilled at intervals.
//!
//! The bucket starts with `limit` tokens and gains the n of the rate at each whole period since its
//! last refill, as far as they fit. This is the bucket of the classic Redis guides.
//!
//! Stored are the tokens, and the time of the last refill in µs.
//!
//! Of any window of time t at most `limit + n × (t / period + 1)` passes, the division rounded
//! down.

use super::moment::Moment;
use super::{State, Terms, stored};
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

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [tokens, last, _] = stored::numbers(bytes)?;
    Some(State::Bucket(tokens, Moment::at(last)))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, count)) = (quota.limit(), quota.terms());
    let Refilled { held, last, stepped_back } = refill(state.as_ref(), now, quota);
    let allowed = cost <= held;
    let tokens = if allowed { held - cost } else { held };

    let until = |more: u64| {
        let refills = more.div_ceil(count);
        last.saturating_add(refills.saturating_mul(period)).saturating_sub(now)
    };
    let reset = if tokens == limit { 0 } else { until(limit - tokens) };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(until(cost - tokens)),
    };

    if allowed && cost > 0 || stepped_back && reset > 0 {
        *state = Some(State::Bucket(tokens, Moment::at(last)));
    }
    Verdict { allowed, remaining: tokens, reset, retry }
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    let Refilled { held, last, stepped_back } = refill(state.as_ref(), now, quota);
    let tokens = held.saturating_add(amount).min(quota.limit());
    if tokens > held || stepped_back && tokens < quota.limit() {
        *state = Some(State::Bucket(tokens, Moment::at(last)));
    }
}

/// The bucket at `now`.
struct Refilled {
    held: u64,
    /// Of the last refill, in µs.
    last: u64,
    /// The clock did: that is written down even if nothing is spent, or else the bucket would not
    /// refill until the clock has caught up.
    stepped_back: bool,
}

fn refill(state: Option<&State>, now: u64, quota: &Quota) -> Refilled {
    let (limit, (period, count)) = (quota.limit(), quota.terms());
    let full = Refilled { held: limit, last: now, stepped_back: false };
    let Some(&State::Bucket(tokens, Moment { micros: last, .. })) = state else { return full };

    let Some(elapsed) = now.checked_sub(last) else {
        return Refilled { held: tokens.min(limit), stepped_back: true, ..full };
    };
    let refills = elapsed / period;
    let held = tokens.saturating_add(refills.saturating_mul(count));
    if held >= limit {
        return full;
    }
    Refilled { held, last: last.saturating_add(refills.saturating_mul(period)), ..full }
}
