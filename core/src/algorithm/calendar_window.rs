//! Calendar window: a counter for each month of the calendar, in UTC.
//!
//! It is [`fixed_window`](super::fixed_window) for a period that is no fixed time. In each month
//! `limit` units, the n of the rate, can be spent.

pub(super) use super::at_the_charge as regained_from;
pub(super) use super::window_counter::{STATE, read};
use super::{DecideEach, Leases, Regain, Settled, Stored, Terms, window_counter};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use crate::window::{Window, Windows};

pub(super) const REGAIN: Regain = Regain::AtOnce;
pub(super) const STORES_ITSELF: bool = false;
pub(super) const LEASES: Option<fn(&Quota) -> Leases> =
    Some(|_| Leases::EndWithWindows(|_, now, _| Window::month(now).ends));
/// A charge is forgotten as a whole.
pub(super) const SETTLED: Option<Settled> = None;
pub(super) const DECIDE_EACH: Option<DecideEach> = None;

/// The terms: the period in months, and nothing else.
pub(super) fn terms(_rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((1, 1))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    window_counter::decide(stored, Windows::Months, now, quota, cost)
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    window_counter::charge(stored, Windows::Months, now, quota, amount);
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    since: Option<u64>,
) {
    window_counter::give_back(stored, Windows::Months, now, quota, amount, since);
}
