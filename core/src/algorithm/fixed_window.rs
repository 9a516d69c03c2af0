//! Fixed window: a counter for each period.
//!
//! Periods are aligned to the Unix epoch: minutes to the clock, days to midnight UTC. In each of
//! them `limit` units, the n of the rate, can be spent.
//!
//! Stored are the number of the period and what was spent in it.
//!
//! Of any window of one period at most `2 × limit` passes: all at the end of one, and all at the
//! start of the next.

use super::{State, Terms};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;

/// The terms: the period in µs, and nothing else.
pub(super) fn terms(rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((rate.period(), 1))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let window = now / period;
    let (spent, stepped_back) = match state {
        // A window of the future is this one, after a clock that stepped back; that is written
        // down even if nothing is spent, or else it would go on to be this one.
        Some(State::Window(stored, spent, _)) if *stored >= window => {
            ((*spent).min(limit), *stored > window)
        }
        _ => (0, false),
    };
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
