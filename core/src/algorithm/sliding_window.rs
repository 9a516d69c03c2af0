//! Sliding window counter: the counters of this and the previous window, the previous one weighted
//! by its overlap.
//!
//! A window is a period aligned to the Unix epoch, or to a Monday if it has whole weeks. What was
//! spent in the last period is estimated: all of this window, and of the previous one the share
//! that the last period still covers, rounded down. If it were rounded up, a client that spends at
//! exactly the rate would not get the last unit of each window, and with a limit of 1 only half of
//! all units.
//!
//! The state is the number of this window and the two counters. A debt is what was spent in this
//! window beyond the limit: the next windows begin with as much of it as fits.
//!
//! In any window of one period at most `2 × limit` passes, as it touches two aligned ones. A client
//! that spends evenly gets exactly the rate.

use super::lua::Lua;
use super::{
    AlgorithmRow, BurstParameter, Leases, Regain, State, Stored, Terms, at_the_charge,
    in_one_window, window_end,
};
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::{MAX_EXACT, Rate};
use crate::window::alignment;

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "sliding_window",
    burst: BurstParameter::None,
    own_parameters: "none of its own",
    counts_months: false,
    terms,
    function: "sliding_window",
    lua: Lua(&[include_str!("sliding_window.lua"), include_str!("window.lua")]),
    state: &["window", "current", "previous"],
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
    leases: Some(|_| Leases::EndWithWindows { end: window_end, keeps_share: false }),
    settled: None,
};

/// The terms: the period, and the unit of time in µs in which it is counted.
///
/// The unit is the finest power of ten that divides the period and with which limit × period is
/// exact in a double, quotients included: 1 µs up to 75,000,000 a minute.
fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
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

fn read([window, current, previous]: [u64; 3]) -> Option<State> {
    Some(State::Window(window, current, previous))
}

fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, unit)) = (quota.limit(), quota.terms());
    let counters = counters(stored, now, quota);
    let (rest, beyond) = (counters.rest, now % unit);

    let weighted = counters.previous * rest / period;
    let previous = if weighted == 0 { 0 } else { counters.previous };
    let remaining = limit.saturating_sub(counters.current).saturating_sub(weighted);
    let allowed = cost <= remaining;
    let (current, remaining) = match allowed {
        true => (counters.current + cost, remaining - cost),
        false => (counters.current, remaining),
    };

    // Until no more than `most` is spent, `later` windows on: what that window begins with, and the
    // share of the one before it.
    let until = |most: u64| {
        let later = current.saturating_sub(most).div_ceil(limit);
        let spent = |windows: u64| current.saturating_sub(windows * limit);
        let before = match later {
            0 => previous,
            1.. => spent(later - 1).min(limit),
        };
        let left = left(before, most - spent(later), period);
        ((rest + later * period - left) * unit).saturating_sub(beyond)
    };
    let reset = if current + previous == 0 { 0 } else { until(0) };
    let retry = Retry::of(allowed, cost, limit, || until(limit - cost));

    if allowed && cost > 0 || counters.stepped_back && reset > 0 {
        counters.write(stored, now, quota, current, previous);
    }
    Verdict { allowed, blocked: 0, remaining, reset, retry }
}

/// The most that may be left of a window if no more than `most` of what was spent in the previous
/// one is to count.
fn left(spent: u64, most: u64, period: u64) -> u64 {
    match spent {
        0 => period,
        1.. => (((most + 1) * period).div_ceil(spent) - 1).min(period),
    }
}

fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let counters = counters(stored, now, quota);
    let previous = counters.counting(counters.previous, quota);
    let current = counters.current.saturating_add(amount).min(quota.max_spent());
    if current > counters.current || counters.stepped_back && current + previous > 0 {
        counters.write(stored, now, quota, current, previous);
    }
}

/// Gives back to this window first, then so much to the previous one that as much less of it counts; or only to the one in
/// which it was spent, if that is known.
fn give_back(stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: Option<u64>) {
    let counters = counters(stored, now, quota);
    let previous = counters.counting(counters.previous, quota);

    let age = since.map(|since| counters.window.saturating_sub(window(since, quota).0));
    let newer = if age.is_none_or(|age| age == 0) { amount.min(counters.current) } else { 0 };
    let older = match age {
        None => previous - counters.keeping(previous, amount - newer, quota),
        Some(1) => amount.min(previous),
        Some(_) => 0,
    };
    let (current, previous) =
        (counters.current - newer, counters.counting(previous - older, quota));
    if newer + older > 0 || counters.stepped_back && current + previous > 0 {
        counters.write(stored, now, quota, current, previous);
    }
}

struct Counters {
    window: u64,
    /// The time that is left of the window.
    rest: u64,
    /// More than the limit, where there is a debt.
    current: u64,
    previous: u64,
    /// The clock stepped back. The counters are stored even if nothing is spent: otherwise they
    /// would count as those of the present window until the clock has caught up.
    stepped_back: bool,
}

impl Counters {
    /// The units `spent` in the previous window, or 0 if none of them counts any more: then they are not kept.
    fn counting(&self, spent: u64, quota: &Quota) -> u64 {
        let (period, _) = quota.terms();
        if spent * self.rest < period { 0 } else { spent }
    }

    /// The most of the units `spent` in the previous window of which `amount` less count now.
    fn keeping(&self, spent: u64, amount: u64, quota: &Quota) -> u64 {
        if amount == 0 {
            return spent;
        }
        let (period, _) = quota.terms();
        match (spent * self.rest / period).saturating_sub(amount) {
            0 => 0,
            counting => (((counting + 1) * period - 1) / self.rest).min(spent),
        }
    }

    fn write(&self, stored: &mut Stored, now: u64, quota: &Quota, current: u64, previous: u64) {
        let (left, debt) = quota.split(current);
        let current = quota.limit() - left;
        stored.write(now, State::Window(self.window, current, previous), debt);
    }
}

/// The number of the window at `now`, and how much is left of it, in units of time.
fn window(now: u64, quota: &Quota) -> (u64, u64) {
    let (period, unit) = quota.terms();
    let aligned = (now + alignment(period * unit)) / unit;
    (aligned / period, period - aligned % period)
}

/// The counters of this window and of the one before.
fn counters(stored: &Stored, now: u64, quota: &Quota) -> Counters {
    let (limit, (window, rest)) = (quota.limit(), window(now, quota));
    let counters = Counters { window, rest, current: 0, previous: 0, stepped_back: false };
    let Some(State::Window(begun, current, previous)) = stored.state else { return counters };
    // The limit may have been lowered.
    let (current, previous) =
        (current.min(limit).saturating_add(stored.debt(quota)), previous.min(limit));
    match window.checked_sub(begun) {
        // If the clock has stepped back, a window of the future counts as this one.
        None => Counters { current, previous, stepped_back: true, ..counters },
        Some(0) => Counters { current, previous, ..counters },
        Some(over) => {
            let before = current.saturating_sub((over - 1).saturating_mul(limit));
            let current = before.saturating_sub(limit);
            Counters { current, previous: before.min(limit), ..counters }
        }
    }
}
