//! Fixed window: a counter for each period.
//!
//! Periods are aligned to the Unix epoch: minutes to the clock, days to midnight UTC; whole weeks
//! begin on Mondays. In each of them `limit` units, the n of the rate, can be spent.
//!
//! Of any window of one period at most `2 × limit` passes: all at the end of one, and all at the
//! start of the next.

pub(super) use super::window_counter::{STATE, read};
use super::{State, Terms, window_counter};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use crate::window::Window;

/// The terms: the period in µs, and nothing else.
pub(super) fn terms(rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((rate.period(), 1))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    window_counter::decide(state, window(now, quota), now, quota.limit(), cost)
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    window_counter::give_back(state, window(now, quota), quota.limit(), amount);
}

fn window(now: u64, quota: &Quota) -> Window {
    Window::aligned(now, quota.terms().0)
}
