//! Token bucket with continuous refill.
//!
//! The bucket starts with `limit` tokens and gains one each emission interval while it is not
//! full. A request takes as many tokens as it costs, or, where there are too few, none.
//!
//! Stored are the whole tokens and the moment of the last refill, the one at which the newest
//! token came. A refill moves that moment on by whole emission intervals, so what is left over of
//! the time since is never lost and never rounded.
//!
//! Of any window of time t at most `limit + t × rate` passes.

use super::moment::{self, Moment};
use super::{State, Terms, stored};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tokens", "last", "part"];

pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    moment::terms(rate, limit)
}

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [tokens, micros, part] = stored::numbers(bytes)?;
    Some(State::Bucket(tokens, Moment { micros, part }))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let Refilled { held, moment, stepped_back } = refill(state.as_ref(), now, quota);
    let allowed = cost <= held;
    let tokens = if allowed { held - cost } else { held };

    let until = |more: u64| moment.plus(interval, more).ceil().saturating_sub(now);
    let reset = if tokens == limit { 0 } else { until(limit - tokens) };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(until(cost - tokens)),
    };

    if allowed && cost > 0 || stepped_back && reset > 0 {
        *state = Some(State::Bucket(tokens, moment));
    }
    Verdict { allowed, remaining: tokens, reset, retry }
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    let Refilled { held, moment, stepped_back } = refill(state.as_ref(), now, quota);
    let tokens = held.saturating_add(amount).min(quota.limit());
    if tokens > held || stepped_back && tokens < quota.limit() {
        *state = Some(State::Bucket(tokens, moment));
    }
}

/// The bucket at `now`.
struct Refilled {
    held: u64,
    /// Of the last refill.
    moment: Moment,
    /// The clock did: that is written down even if nothing is spent, or else the bucket would not
    /// refill until the clock has caught up.
    stepped_back: bool,
}

fn refill(state: Option<&State>, now: u64, quota: &Quota) -> Refilled {
    let (limit, interval) = (quota.limit(), quota.interval());
    let full = Refilled { held: limit, moment: Moment::at(now), stepped_back: false };
    let Some(&State::Bucket(tokens, moment)) = state else { return full };

    let moment = moment.clamped(interval);
    if moment > Moment::at(now) {
        return Refilled { held: tokens.min(limit), stepped_back: true, ..full };
    }
    let gained = moment.intervals_until(Moment::at(now), interval);
    if tokens.saturating_add(gained) >= limit {
        return full;
    }
    let moment = moment.plus(interval, gained);
    Refilled { held: tokens + gained, moment, stepped_back: false }
}
