//! Fixed window: a counter for each period.
//!
//! Periods are aligned to the Unix epoch: minutes to the clock, days to midnight UTC; whole weeks
//! begin on Mondays. In each of them `limit` units, the n of the rate, can be spent.
//!
//! In any window of one period at most `2 × limit` passes: all at the end of one period, and all at
//! the start of the next.

pub(super) use super::at_the_charge as regained_from;
pub(super) use super::window_counter::{STATE, read};
use super::{DecideEach, Leases, Regain, Settled, Stored, Terms, window_counter};
use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use crate::window::{Window, Windows};

pub(super) const REGAIN: Regain = Regain::AtOnce;
pub(super) const STORES_ITSELF: bool = false;
pub(super) const LEASES: Option<fn(&Quota) -> Leases> = Some(|_| {
    Leases::EndWithWindows(|_, now, quota| Window::aligned(now, quota.rate().period()).ends)
});
/// A charge is forgotten as a whole.
pub(super) const SETTLED: Option<Settled> = None;
pub(super) const DECIDE_EACH: Option<DecideEach> = None;

/// The terms: the period in µs, and nothing else.
pub(super) fn terms(rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((rate.period(), 1))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    window_counter::decide(stored, windows(quota), now, quota, cost)
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    window_counter::charge(stored, windows(quota), now, quota, amount);
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    since: Option<u64>,
) {
    window_counter::give_back(stored, windows(quota), now, quota, amount, since);
}

fn windows(quota: &Quota) -> Windows {
    Windows::Aligned(quota.terms().0)
}
