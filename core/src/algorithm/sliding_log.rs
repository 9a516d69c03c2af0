//! Sliding log: an exact log of the last period.
//!
//! Each request that passes is written down with its time and cost, and forgotten a period later.
//! What is in the log is what was spent in the last period.
//!
//! Stored is a list of "time total cost" in order of time, where the total counts all that was
//! ever written to this log, the entry included. So what was spent between two entries is a
//! difference, and neither a decision nor the forgetting of a thousand entries walks the log: both
//! search it by halves. A request passes only if the log holds no more than `limit`, so there are
//! never more than `limit` entries, and those of cost 0 are not written.
//!
//! Of any window of one period at most `limit` passes. This is the exact one, and the one that
//! takes memory for each request: see docs/algorithms.md for how much.

use std::collections::VecDeque;

use super::{State, Stored, Terms};
use crate::decision::{Retry, Verdict};
use crate::limit::{MAX_LOG, Quota, QuotaError};
use crate::rate::Rate;

/// See [`Algorithm::state`](super::Algorithm::state).
pub(super) const STATE: &[&str] = &[];

/// The terms: the period in µs, and nothing else.
pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    if limit > MAX_LOG { Err(QuotaError::TooLong) } else { Ok((rate.period(), 1)) }
}

/// Nothing: the log is a list, and only the script reads it.
pub(super) fn read(_numbers: [u64; 3]) -> Option<State> {
    None
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let (mut log, stepped_back) = match &stored.state {
        Some(State::Log(log)) => recall(log, now, period),
        _ => (VecDeque::new(), false),
    };
    let spent: u64 = log.iter().map(|(_, cost)| cost).sum();
    let remaining = limit.saturating_sub(spent);
    let allowed = cost <= remaining;
    let retry = match allowed {
        true => Retry::No,
        false if cost > limit => Retry::Never,
        false => Retry::After(until(&log, spent + cost - limit, now, period)),
    };
    let spends = allowed && cost > 0;
    if spends {
        log.push_back((now, cost));
    }
    let remaining = if allowed { remaining - cost } else { remaining };
    let reset = log.back().map_or(0, |(time, _)| (time + period).saturating_sub(now));
    if spends || stepped_back {
        stored.write(now, State::Log(log), 0);
    }
    Verdict { allowed, remaining, reset, retry }
}

pub(super) fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let remaining = decide(&mut stored.clone(), now, quota, 0).remaining;
    decide(stored, now, quota, amount.min(remaining));
}

pub(super) fn give_back(
    stored: &mut Stored,
    now: u64,
    quota: &Quota,
    amount: u64,
    _since: Option<u64>,
) {
    let (period, _) = quota.terms();
    let Some(State::Log(log)) = &stored.state else { return };
    let (mut log, stepped_back) = recall(log, now, period);
    let mut left = amount;
    // Off the newest entries; the last of those that stay may keep a part of what it was.
    while left > 0
        && let Some((_, cost)) = log.back_mut()
    {
        let given = left.min(*cost);
        *cost -= given;
        left -= given;
        if *cost == 0 {
            log.pop_back();
        }
    }
    if left < amount || stepped_back {
        stored.write(now, State::Log(log), 0);
    }
}

/// What is not to be forgotten of a log, and whether the clock stepped back.
///
/// If it did, nothing would be forgotten until it has caught up: all that is in the log counts as
/// spent now. That is written down even if nothing is spent.
fn recall(log: &VecDeque<(u64, u64)>, now: u64, period: u64) -> (VecDeque<(u64, u64)>, bool) {
    if log.back().is_some_and(|(time, _)| *time > now) {
        let spent = log.iter().map(|(_, cost)| cost).sum();
        return (VecDeque::from([(now, spent)]), true);
    }
    (log.iter().filter(|(time, _)| time + period > now).copied().collect(), false)
}

/// µs until entries worth `needed` have been forgotten.
fn until(log: &VecDeque<(u64, u64)>, needed: u64, now: u64, period: u64) -> u64 {
    let mut freed = 0;
    for (time, cost) in log {
        freed += cost;
        if freed >= needed {
            return (time + period).saturating_sub(now);
        }
    }
    period
}
