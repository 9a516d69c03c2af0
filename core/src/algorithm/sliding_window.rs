//! Sliding window counter: the counters of this and the previous window, the previous one weighted
//! by its overlap.
//!
//! A window is a period aligned to the Unix epoch, one of whole weeks to a Monday. What a client has spent in the last period is
//! estimated as what it spent in this window, and of what it spent in the previous one the share
//! that the last period still covers, rounded down: rounded up, who spends at just the rate would
//! be kept from the last unit of each window, and with a limit of 1 from half of them all.
//!
//! Stored are the number of this window and the two counters.
//!
//! Of any window of one period at most `2 × limit` passes, as it touches two aligned ones; a
//! client that spends evenly gets exactly the rate.

use super::{State, Terms, stored};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::{MAX_EXACT, Rate};
use crate::window::alignment;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["window", "current", "previous"];

/// The terms: the period, and the unit of time in µs in which it is counted.
///
/// The unit is the finest power of ten that divides the period and with which limit × period is
/// exact in a double, quotients included: 1 µs up to 75,000,000 a minute.
pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    let mut unit = 1;
    loop {
        let period = rate.period() / unit;
        if ![rate.period(), alignment(rate.period())].iter().all(|time| time.is_multiple_of(unit)) {
            return Err(QuotaError::TooLarge);
        }
        if u128::from(limit) * u128::from(period) <= u128::from(MAX_EXACT / 2) {
            return Ok((period, unit));
        }
        unit *= 10;
    }
}

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [window, current, previous] = stored::numbers(bytes)?;
    Some(State::Window(window, current, previous))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, unit)) = (quota.limit(), quota.terms());
    let beyond = now % unit;
    let (window, rest) = window(now, quota);
    let Counters { current, previous, stepped_back } = counters(state.as_ref(), window, limit);

    let weighted = previous * rest / period;
    let previous = if weighted == 0 { 0 } else { previous };
    let remaining = limit.saturating_sub(current).saturating_sub(weighted);
    let allowed = cost <= remaining;
    let (current, remaining) =
        if allowed { (current + cost, remaining - cost) } else { (current, remaining) };

    // The most that may be left of a window for no more than `most` of what was spent in the one
    // before to count.
    let left = |spent: u64, most: u64| ((most + 1) * period).div_ceil(spent) - 1;
    let micros = |units: u64| (units * unit).saturating_sub(beyond);
    let reset = match (current, previous) {
        (0, 0) => 0,
        (0, _) => micros(rest - left(previous, 0)),
        _ => micros(rest + period - left(current, 0)),
    };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        // Later in this window, when less of the previous one counts.
        false if cost + current <= limit => {
            Retry::After(micros(rest - left(previous, limit - current - cost)))
        }
        // In the next window, of which this one is the previous.
        false => Retry::After(micros(rest + period - left(current, limit - cost))),
    };

    if allowed && cost > 0 || stepped_back && reset > 0 {
        *state = Some(State::Window(window, current, previous));
    }
    Verdict { allowed, remaining, reset, retry }
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let (window, rest) = window(now, quota);
    let Counters { current, previous, stepped_back } = counters(state.as_ref(), window, limit);
    // Where nothing of the previous window counts, it is not kept.
    let counting = |spent| if spent * rest < period { 0 } else { spent };
    let previous = counting(previous);

    // Of this window first, then of the previous one.
    let given = amount.min(current + previous);
    let older = given.saturating_sub(current);
    let (current, previous) = (current + older - given, counting(previous - older));
    if given > 0 || stepped_back && current + previous > 0 {
        *state = Some(State::Window(window, current, previous));
    }
}

/// The number of the window at `now`, and how much is left of it, in units of time.
fn window(now: u64, quota: &Quota) -> (u64, u64) {
    let (period, unit) = quota.terms();
    let aligned = (now + alignment(period * unit)) / unit;
    (aligned / period, period - aligned % period)
}

struct Counters {
    current: u64,
    previous: u64,
    /// The clock did: that is written down even if nothing is spent, or else the counters would
    /// go on to be those of the present.
    stepped_back: bool,
}

/// What was spent in `window` and in the one before.
fn counters(state: Option<&State>, window: u64, limit: u64) -> Counters {
    let none = Counters { current: 0, previous: 0, stepped_back: false };
    let Some(&State::Window(stored, current, previous)) = state else { return none };
    // A limit may have been lowered since.
    let (current, previous) = (current.min(limit), previous.min(limit));
    match window.checked_sub(stored) {
        // A window of the future is this one, after a clock that stepped back.
        None => Counters { current, previous, stepped_back: true },
        Some(0) => Counters { current, previous, ..none },
        Some(1) => Counters { previous: current, ..none },
        Some(_) => none,
    }
}
