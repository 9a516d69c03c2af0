//! Fixed window: a counter for each period.
//!
//! Periods are aligned to the Unix epoch: minutes to the clock, days to midnight UTC; whole weeks
//! begin on Mondays. A period can also be a month of the calendar, in UTC. In each of them `limit` units, the n of the
//! rate, can be spent.
//!
//! The state is the number of the window and what was spent in it. A debt is what was spent beyond
//! the limit: the next windows begin with as much of it as fits.
//!
//! In any window of one period at most `2 × limit` passes: all at the end of one period, and all at
//! the start of the next.

use super::lua::Lua;
use super::{
    AlgorithmRow, BurstParameter, Leases, Regain, State, Stored, Terms, at_the_charge,
    in_one_window, window_end,
};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use crate::window::Window;

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "fixed_window",
    burst: BurstParameter::None,
    own_parameters: "none of its own",
    counts_months: true,
    terms,
    function: "fixed_window",
    lua: Lua(&[include_str!("fixed_window.lua"), include_str!("window.lua")]),
    state: &["window", "spent"],
    stores_itself: false,
    read,
    decide,
    decide_each: None,
    charge,
    give_back,
    regained_from: at_the_charge,
    is_one_refund: in_one_window,
    regain: Regain::AtOnce,
    delay: None,
    leases: Some(|_| Leases::EndWithWindows { end: window_end, keeps_share: true }),
    settled: None,
};

/// The terms: the period in µs, or 0 if it is a month, and nothing else.
fn terms(rate: Rate, _limit: u64) -> Result<Terms, QuotaError> {
    Ok((if rate.is_monthly() { 0 } else { rate.period() }, 1))
}

fn read([window, spent, _]: [u64; 3]) -> Option<State> {
    Some(State::Window(window, spent, 0))
}

fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, rate) = (quota.limit(), quota.rate());
    let counter = counter(stored, rate.window(now), quota);
    let allowed = cost <= limit.saturating_sub(counter.spent) || cost == 0;
    let spent = if allowed { counter.spent + cost } else { counter.spent };

    // Until no more than `most` is spent.
    let until = |most: u64| {
        let more = (spent - most).div_ceil(limit).saturating_sub(1);
        rate.end_after(counter.window, more).saturating_sub(now)
    };
    let reset = if spent == 0 { 0 } else { until(0) };
    let retry = Retry::of(allowed, cost, limit, || until(limit - cost));

    if allowed && cost > 0 || counter.stepped_back && reset > 0 {
        counter.write(stored, now, quota, spent);
    }
    Verdict { allowed, blocked: 0, remaining: limit.saturating_sub(spent), reset, retry }
}

fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let counter = counter(stored, quota.rate().window(now), quota);
    let spent = counter.spent.saturating_add(amount).min(quota.max_spent());
    if spent > counter.spent || counter.stepped_back && spent > 0 {
        counter.write(stored, now, quota, spent);
    }
}

/// Gives back to the window in which it was spent. If that is not known, it is given back to the
/// present window.
fn give_back(stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: Option<u64>) {
    let rate = quota.rate();
    let counter = counter(stored, rate.window(now), quota);
    let is_over = since.is_some_and(|since| rate.window(since).number < counter.window.number);
    let amount = if is_over { 0 } else { amount };
    let spent = counter.spent.saturating_sub(amount);
    if spent < counter.spent || counter.stepped_back && spent > 0 {
        counter.write(stored, now, quota, spent);
    }
}

/// The counter of the present window.
struct Counter {
    window: Window,
    /// More than the limit, where there is a debt.
    spent: u64,
    /// The clock stepped back. The counter is stored even if nothing is spent: otherwise it would
    /// count as that of the present window until the clock has caught up.
    stepped_back: bool,
}

impl Counter {
    fn write(&self, stored: &mut Stored, now: u64, quota: &Quota, spent: u64) {
        let (left, debt) = quota.split(spent);
        stored.write(now, State::Window(self.window.number, quota.limit() - left, 0), debt);
    }
}

fn counter(stored: &Stored, window: Window, quota: &Quota) -> Counter {
    let limit = quota.limit();
    let Some(State::Window(number, spent, _)) = stored.state else {
        return Counter { window, spent: 0, stepped_back: false };
    };
    // If the clock has stepped back, a window of the future counts as this one.
    let over = window.number.saturating_sub(number);
    let spent = spent.min(limit).saturating_add(stored.debt(quota));
    let spent = spent.saturating_sub(over.saturating_mul(limit));
    Counter { window, spent, stepped_back: number > window.number }
}
