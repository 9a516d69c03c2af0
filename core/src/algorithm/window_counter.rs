//! The counter of a window: of a fixed period, or of the calendar.
//!
//! Stored are the number of the window and what was spent in it.

use super::{State, stored};
use crate::decision::{Retry, Verdict};
use crate::window::Window;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["window", "spent"];

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [window, spent, _] = stored::numbers(bytes)?;
    Some(State::Window(window, spent, 0))
}

/// `window` is the one at `now`.
pub(super) fn decide(
    state: &mut Option<State>,
    window: Window,
    now: u64,
    limit: u64,
    cost: u64,
) -> Verdict {
    let Counter { spent, stepped_back } = counter(state.as_ref(), window, limit);
    let rest = window.ends.saturating_sub(now);
    let allowed = cost <= limit - spent;
    let spent = if allowed { spent + cost } else { spent };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(rest),
    };

    let reset = if spent == 0 { 0 } else { rest };
    if allowed && cost > 0 || stepped_back && reset > 0 {
        *state = Some(State::Window(window.number, spent, 0));
    }
    Verdict { allowed, remaining: limit - spent, reset, retry }
}

/// Nobody knows in which window it was spent: where that one has ended, what others have spent in
/// the next is taken for it.
pub(super) fn give_back(state: &mut Option<State>, window: Window, limit: u64, amount: u64) {
    let Counter { spent, stepped_back } = counter(state.as_ref(), window, limit);
    let left = spent.saturating_sub(amount);
    if left < spent || stepped_back && left > 0 {
        *state = Some(State::Window(window.number, left, 0));
    }
}

/// What was spent in the present window.
struct Counter {
    spent: u64,
    /// The clock did: that is written down even if nothing is spent, or else the window would go
    /// on to be this one.
    stepped_back: bool,
}

fn counter(state: Option<&State>, window: Window, limit: u64) -> Counter {
    match state {
        // A window of the future is this one, after a clock that stepped back.
        Some(&State::Window(stored, spent, _)) if stored >= window.number => {
            Counter { spent: spent.min(limit), stepped_back: stored > window.number }
        }
        _ => Counter { spent: 0, stepped_back: false },
    }
}
