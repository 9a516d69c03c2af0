//! The generic cell rate algorithm (ITU-T I.371, as virtual scheduling), with the numbers of
//! redis-cell's `CL.THROTTLE`.
//!
//! Stored is one theoretical arrival time, TAT: the moment at which all that was spent will have
//! come back. A request that costs c moves it c emission intervals on, and passes unless that
//! would take it further than `limit` intervals, the delay variation tolerance and one more, past
//! the present.
//!
//! Of any window of time t at most `limit + t × rate` passes, with `limit = burst + 1`.

use super::moment::{self, Moment};
use super::{State, Terms, stored};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["tat", "part"];

pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    moment::terms(rate, limit)
}

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [micros, part, _] = stored::numbers(bytes)?;
    Some(State::Arrival(Moment { micros, part }))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let Arrival { tat, latest, corrected } = arrival(state.as_ref(), now, quota);
    let next = tat.plus(interval, cost);
    let allowed = next <= latest;
    let tat = if allowed { next } else { tat };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(span(latest, next)),
    };

    if allowed && cost > 0 || corrected {
        *state = Some(State::Arrival(tat));
    }
    Verdict {
        allowed,
        remaining: tat.intervals_until(latest, interval),
        reset: tat.ceil().saturating_sub(now),
        retry,
    }
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    let Arrival { tat, corrected, .. } = arrival(state.as_ref(), now, quota);
    let earlier = tat.minus(quota.interval(), amount).max(Moment::at(now));
    if earlier < tat || corrected {
        *state = Some(State::Arrival(earlier));
    }
}

/// The arrival time at `now`.
struct Arrival {
    tat: Moment,
    /// The latest that it may be.
    latest: Moment,
    /// What is stored is later. That is written down even if nothing is spent, or else nothing
    /// would ever pass.
    corrected: bool,
}

/// Not before now: an idle client saves nothing up. Not after the latest: a clock that stepped
/// back, or a limit that was lowered, must not lock a client out for longer than a refill.
fn arrival(state: Option<&State>, now: u64, quota: &Quota) -> Arrival {
    let interval = quota.interval();
    let latest = Moment::at(now).plus(interval, quota.limit());
    let stored = match state {
        Some(State::Arrival(tat)) => tat.clamped(interval),
        _ => Moment::at(now),
    };
    Arrival { tat: stored.clamp(Moment::at(now), latest), latest, corrected: stored > latest }
}

/// µs from `from` to `to`, rounded up.
fn span(from: Moment, to: Moment) -> u64 {
    let micros = to.micros.saturating_sub(from.micros);
    if to.part > from.part { micros.saturating_add(1) } else { micros }
}
