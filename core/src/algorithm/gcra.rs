//! The generic cell rate algorithm (ITU-T I.371, as virtual scheduling), with the numbers of
//! redis-cell's `CL.THROTTLE`.
//!
//! Stored is one theoretical arrival time, TAT: the moment at which all that was spent will have
//! come back. A request that costs c moves it c emission intervals on, and passes unless that
//! would take it further than `limit` intervals, the delay variation tolerance and one more, past
//! the present.
//!
//! Of any window of time t at most `limit + t × rate` passes, with `limit = burst + 1`.

use super::State;
use super::moment::Moment;
use crate::decision::{Retry, Verdict};
use crate::limit::Quota;

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let latest = Moment::at(now).plus(interval, limit);
    // Not before now: an idle client saves nothing up. Not after the latest: a clock that stepped
    // back, or a limit that was lowered, must not lock a client out for longer than a refill.
    let tat = state.map_or(Moment::at(now), |state| {
        state.moment.clamped(interval).clamp(Moment::at(now), latest)
    });

    let next = tat.plus(interval, cost);
    let allowed = next <= latest;
    let tat = if allowed { next } else { tat };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(span(latest, next)),
    };

    if allowed && cost > 0 {
        *state = Some(State { tokens: 0, moment: tat });
    }
    Verdict {
        allowed,
        remaining: tat.intervals_until(latest, interval),
        reset: tat.ceil().saturating_sub(now),
        retry,
    }
}

/// µs from `from` to `to`, rounded up.
fn span(from: Moment, to: Moment) -> u64 {
    let micros = to.micros.saturating_sub(from.micros);
    if to.part > from.part { micros.saturating_add(1) } else { micros }
}
