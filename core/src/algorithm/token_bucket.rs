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

use super::State;
use super::moment::Moment;
use crate::decision::{Retry, Verdict};
use crate::limit::Quota;

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let bucket = refill(*state, now, quota);
    let allowed = cost <= bucket.tokens;
    let tokens = if allowed { bucket.tokens - cost } else { bucket.tokens };

    let until = |more: u64| bucket.moment.plus(interval, more).ceil().saturating_sub(now);
    let reset = if tokens == limit { 0 } else { until(limit - tokens) };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(until(cost - tokens)),
    };

    if allowed && cost > 0 {
        *state = Some(State { tokens, ..bucket });
    }
    Verdict { allowed, remaining: tokens, reset, retry }
}

/// The bucket at `now`.
fn refill(state: Option<State>, now: u64, quota: &Quota) -> State {
    let (limit, interval) = (quota.limit(), quota.interval());
    let full = State { tokens: limit, moment: Moment::at(now) };
    let Some(State { tokens, moment }) = state else { return full };

    // A clock that stepped back must not keep the bucket waiting until it has caught up.
    if moment.micros >= now {
        return State { tokens: tokens.min(limit), moment: Moment::at(now) };
    }
    let moment = moment.clamped(interval);
    let gained = moment.intervals_until(Moment::at(now), interval);
    if tokens.saturating_add(gained) >= limit {
        return full;
    }
    State { tokens: tokens + gained, moment: moment.plus(interval, gained) }
}
