//! Calendar window: a counter for each month of the calendar, in UTC.
//!
//! It is [`fixed_window`](super::fixed_window) for a period that is no fixed time. In each month
//! `limit` units, the n of the rate, can be spent.

pub(super) use super::window_counter::{STATE, read};
use super::{State, Terms, window_counter};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use crate::window::Window;

/// The terms: the period in months, and nothing else.
pub(super) fn terms(_rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((1, 1))
}

pub(super) fn decide(state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
    window_counter::decide(state, Window::month(now), now, quota.limit(), cost)
}

pub(super) fn give_back(state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
    window_counter::give_back(state, Window::month(now), quota.limit(), amount);
}
