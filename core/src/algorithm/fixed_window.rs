//! Fixed window: a counter for each period.
//!
//! Periods are aligned to the Unix epoch: minutes to the clock, days to midnight UTC. In each of
//! them `limit` units, the n of the rate, can be spent.
//!
//! Stored are the number of the period and what was spent in it.
//!
//! Of any window of one period at most `2 × limit` passes: all at the end of one, and all at the
//! start of the next.

use super::{State, Terms, stored};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &["window", "spent"];

/// The terms: the period in µs, and nothing else.
pub(super) fn terms(rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((rate.period(), 1))
}

pub(super) fn read(bytes: &[u8]) -> Option<State> {
    let [window, spent, _] = stored::numbers(bytes)?;
    Some(State::Window(window, spent, 0))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let Counter { window, spent, stepped_back } = counter(state.as_ref(), now, quota);
    let rest = period - now % period;
    let allowed = cost <= limit - spent;
    let spent = if allowed { spent + cost } else { spent };
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(rest),
    };

    let reset = if spent == 0 { 0 } else { rest };
    if allowed && cost > 0 || stepped_back && reset > 0 {
        *state = Some(State::Window(window, spent, 0));
    }
    Verdict { allowed, remaining: limit - spent, reset, retry }
}

/// Nobody knows in which window it was spent: where that one has ended, what others have spent in
/// the next is taken for it.
pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    let Counter { window, spent, stepped_back } = counter(state.as_ref(), now, quota);
    let left = spent.saturating_sub(amount);
    if left < spent || stepped_back && left > 0 {
        *state = Some(State::Window(window, left, 0));
    }
}

/// The window at `now`.
struct Counter {
    window: u64,
    spent: u64,
    /// The clock did: that is written down even if nothing is spent, or else the window would go
    /// on to be this one.
    stepped_back: bool,
}

fn counter(state: Option<&State>, now: u64, quota: &Quota) -> Counter {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let window = now / period;
    match state {
        // A window of the future is this one, after a clock that stepped back.
        Some(&State::Window(stored, spent, _)) if stored >= window => {
            Counter { window, spent: spent.min(limit), stepped_back: stored > window }
        }
        _ => Counter { window, spent: 0, stepped_back: false },
    }
}
