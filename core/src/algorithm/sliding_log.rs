//! Sliding log: an exact log of the last period.
//!
//! Each request that passes is logged with its time and cost, and removed a period later. The log
//! holds what was spent in the last period.
//!
//! The state is a list of "time total cost" in order of time, where the total counts all that was
//! ever logged under this key, the entry included. So what was spent between two entries is a
//! difference, and both a decision and the removal of a thousand entries take a binary search, not
//! a walk. A request passes only if the log then holds at most `limit`, so it has at most `limit`
//! entries; those of cost 0 are not logged.
//!
//! A debt counts as entries of the future, `limit` in each period, the first a period after the
//! debt was made or last grew: until then the log may be full of entries. It counts at once. It is
//! stored before the entries of the list, as a block is.
//!
//! In any window of one period at most `limit` passes. This algorithm is exact, and takes memory
//! for each request: see docs/algorithms.md for how much.

use std::collections::VecDeque;

use super::lua::Lua;
use super::{AlgorithmRow, BurstParameter, Regain, State, Stored, Terms, at_the_charge};
use crate::decision::{Retry, Verdict};
use crate::limit::{MAX_LOG, Quota, QuotaError};
use crate::rate::Rate;

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "sliding_log",
    burst: BurstParameter::None,
    own_parameters: "none of its own",
    counts_months: false,
    terms,
    function: "sliding_log",
    lua: Lua(&[include_str!("sliding_log.lua")]),
    state: &[],
    stores_itself: true,
    read,
    decide,
    decide_each: None,
    charge,
    give_back,
    regained_from: at_the_charge,
    // An entry that is later than the given time stays.
    is_one_refund: |_, _, _| false,
    regain: Regain::AtOnce,
    delay: None,
    leases: None,
    settled: None,
};

/// The terms: the period in µs, and nothing else.
fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    if limit > MAX_LOG { Err(QuotaError::TooLong) } else { Ok((rate.period(), 1)) }
}

/// An empty log: it is a list, and only the script reads it.
fn read(_numbers: [u64; 3]) -> Option<State> {
    Some(State::Log(VecDeque::new(), 0))
}

fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let limit = quota.limit();
    let mut log = recall(stored, now, quota);
    let remaining = log.remaining(quota);
    let allowed = cost <= remaining;
    let retry = Retry::of(allowed, cost, limit, || {
        log.until(log.spent() + log.debt + cost - limit, now, quota)
    });
    let spends = allowed && cost > 0;
    if spends {
        log.entries.push_back((now, cost));
    }
    let verdict = Verdict {
        allowed,
        blocked: 0,
        remaining: log.remaining(quota),
        reset: log.reset(now, quota),
        retry,
    };
    if spends || log.stepped_back {
        log.write(stored, now);
    }
    verdict
}

fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let mut log = recall(stored, now, quota);
    let spends = amount.min(log.remaining(quota));
    let owes = (amount - spends).min(quota.max_debt() - log.debt);
    if spends > 0 {
        log.entries.push_back((now, spends));
    }
    if owes > 0 {
        log.since = now;
    }
    log.debt += owes;
    if spends + owes > 0 || log.stepped_back {
        log.write(stored, now);
    }
}

/// So many entries may be later than those that are given back: their totals are written anew.
const MAX_LATER: usize = 16;

/// Gives back from the entries of that time, or from those before it. If many entries are later, as much comes off the
/// oldest ones, which costs less: what is left is then removed later, and no more passes. Where Redis has lost the entry,
/// nothing comes off those of others.
///
/// A debt stays: what was charged is an entry.
fn give_back(stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: Option<u64>) {
    let (period, _) = quota.terms();
    let mut log = recall(stored, now, quota);
    let since = since.unwrap_or(now);
    let is_forgotten = since.saturating_add(period) <= now;
    let amount = if is_forgotten { 0 } else { amount };
    if log.remove(since, amount) || log.stepped_back {
        log.write(stored, now);
    }
}

/// The debt at `now`.
pub(super) fn debt_at(stored: &Stored, now: u64, quota: &Quota) -> u64 {
    recall(stored, now, quota).debt
}

/// Forgets of the debt what is over at `now`.
pub(super) fn forget_debt(stored: &mut Stored, now: u64, quota: &Quota) {
    let Log { debt, since: debt_since, .. } = recall(stored, now, quota);
    if let Some(State::Log(_, since)) = &mut stored.state {
        (stored.extra.debt, *since) = (debt, debt_since);
    }
}

/// The units spent by the entries that count at `now`.
pub(super) fn spent_at(stored: &Stored, now: u64, quota: &Quota) -> u64 {
    recall(stored, now, quota).spent()
}

/// Pays `units` of the debt, or all of it. Returns how many are left of the units.
pub(super) fn pay(stored: &mut Stored, now: u64, quota: &Quota, units: u64) -> u64 {
    let mut log = recall(stored, now, quota);
    let paid = units.min(log.debt);
    if paid > 0 {
        log.debt -= paid;
        log.write(stored, now);
    }
    units - paid
}

/// The entries of the last period, and the debt.
struct Log {
    entries: VecDeque<(u64, u64)>,
    debt: u64,
    since: u64,
    /// The clock stepped back. Entries that are later than now count as spent now, and are stored so even if
    /// nothing is spent: otherwise they would be of now, and not be removed, until the clock has caught up.
    stepped_back: bool,
}

impl Log {
    fn spent(&self) -> u64 {
        spent(self.entries.iter())
    }

    fn remaining(&self, quota: &Quota) -> u64 {
        quota.limit().saturating_sub(self.spent()).saturating_sub(self.debt)
    }

    /// Removes as much of the entries that are not later than `since`. Returns whether any was removed.
    fn remove(&mut self, since: u64, amount: u64) -> bool {
        let later = self.entries.iter().rev().take_while(|(time, _)| *time > since).count();
        let earlier = self.entries.len() - later;
        let removed = if later <= MAX_LATER {
            let kept = self.entries.split_off(earlier);
            let removed =
                remove(&mut self.entries, amount, VecDeque::pop_back, VecDeque::push_back);
            self.entries.extend(kept);
            removed
        } else {
            let amount = amount.min(spent(self.entries.iter().take(earlier)));
            remove(&mut self.entries, amount, VecDeque::pop_front, VecDeque::push_front)
        };
        removed > 0
    }

    /// When so many times the limit of the debt is removed: the first time a period after it counts
    /// as spent, which is a period after the debt last grew.
    fn debt_forgotten(&self, times: u64, quota: &Quota) -> u64 {
        let (period, _) = quota.terms();
        self.since.saturating_add(times.saturating_add(1).saturating_mul(period))
    }

    /// µs until all of it is removed.
    fn reset(&self, now: u64, quota: &Quota) -> u64 {
        let (period, _) = quota.terms();
        let entries = self.entries.back().map_or(0, |(time, _)| time.saturating_add(period));
        let debt = match self.debt.div_ceil(quota.limit()) {
            0 => 0,
            times => self.debt_forgotten(times, quota),
        };
        entries.max(debt).saturating_sub(now)
    }

    /// µs until `needed` of it is removed.
    fn until(&self, needed: u64, now: u64, quota: &Quota) -> u64 {
        let limit = quota.limit();
        let times = 0..=self.debt.div_ceil(limit);
        let at = times.filter_map(|times| {
            let debt = self.debt.min(times.saturating_mul(limit));
            let entries = self.entries_forgotten(needed.saturating_sub(debt), quota)?;
            Some(if times > 0 { entries.max(self.debt_forgotten(times, quota)) } else { entries })
        });
        at.min().unwrap_or(now).saturating_sub(now)
    }

    /// When entries worth `needed` are removed; `None` if there are not so many.
    fn entries_forgotten(&self, needed: u64, quota: &Quota) -> Option<u64> {
        let (period, _) = quota.terms();
        let mut freed = 0_u64;
        if needed == 0 {
            return Some(0);
        }
        self.entries.iter().find_map(|(time, cost)| {
            freed = cost.saturating_add(freed);
            (freed >= needed).then_some(time.saturating_add(period))
        })
    }

    fn write(self, stored: &mut Stored, now: u64) {
        let since = if self.debt > 0 { self.since } else { 0 };
        stored.write(now, State::Log(self.entries, since), self.debt);
    }
}

type LogEntries = VecDeque<(u64, u64)>;

fn spent<'a>(entries: impl Iterator<Item = &'a (u64, u64)>) -> u64 {
    entries.fold(0, |spent, (_, cost)| cost.saturating_add(spent))
}

/// Removes as much from one end, and returns how much that was.
fn remove(
    entries: &mut LogEntries,
    amount: u64,
    pop: fn(&mut LogEntries) -> Option<(u64, u64)>,
    push: fn(&mut LogEntries, (u64, u64)),
) -> u64 {
    let mut left = amount;
    while left > 0
        && let Some((time, cost)) = pop(entries)
    {
        if cost > left {
            push(entries, (time, cost - left));
        }
        left = left.saturating_sub(cost);
    }
    amount - left
}

fn recall(stored: &Stored, now: u64, quota: &Quota) -> Log {
    let (limit, (period, _)) = (quota.limit(), quota.terms());
    let mut log = Log { entries: VecDeque::new(), debt: 0, since: 0, stepped_back: false };
    let Some(State::Log(entries, since)) = &stored.state else { return log };
    (log.debt, log.since) = (stored.debt(quota), *since);
    let later = entries.partition_point(|(time, _)| *time <= now);
    log.entries.extend(entries.range(..later).filter(|(time, _)| time + period > now));
    let ahead = entries.range(later..).fold(0_u64, |ahead, (_, cost)| cost.saturating_add(ahead));
    log.entries.extend((ahead > 0).then_some((now, ahead)));
    log.stepped_back = ahead > 0 || log.debt > 0 && log.since > now;
    log.since = log.since.min(now);
    // A limit of the debt each period.
    let times = (now.saturating_sub(log.since) / period).saturating_sub(1);
    log.debt = log.debt.saturating_sub(times.saturating_mul(limit));
    log.since = log.since.saturating_add(times.saturating_mul(period));
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    #[test]
    fn a_debt_is_forgotten_by_the_quota_that_counts_meanwhile() {
        let quota = |limit| Quota::new(Algorithm::SlidingLog, "100r/m".parse().unwrap(), limit);
        let (large, small) = (quota(22).unwrap(), quota(3).unwrap());
        let mut stored = Stored::default();
        let minute = large.terms().0;
        Algorithm::SlidingLog.settle(&mut stored, minute, &large, 1, 52);
        assert_eq!(debt_at(&stored, minute, &large), 30);
        let at = 5 * minute;
        let stored = Algorithm::SlidingLog.carry_over(stored, at, &large, &small);
        assert_eq!(debt_at(&stored, at, &small), 0);
    }

    #[test]
    fn a_clock_that_steps_back_a_little_makes_no_older_entry_last_longer() {
        let quota = Quota::new(Algorithm::SlidingLog, "10r/10s".parse().unwrap(), 10).unwrap();
        let mut stored = Stored::default();
        let mut request = |at_ms: u64| decide(&mut stored, at_ms * 1_000, &quota, 1).retry;
        for second in 1..=10 {
            assert_eq!(request(1_000 * second), Retry::No);
        }
        assert_eq!(request(9_995), Retry::After(1_005_000), "until the first entry is removed");
        assert_eq!(request(11_000), Retry::No);
        assert_eq!(request(11_001), Retry::After(999_000));
    }

    /// A machine may find such entries in shared memory that is corrupt.
    #[test]
    fn the_latest_entries_do_not_overflow() {
        let quota = Quota::new(Algorithm::SlidingLog, "10r/s".parse().unwrap(), 10).unwrap();
        let entries = [(u64::MAX, u64::MAX), (u64::MAX, 1)].into();
        let log = Log { entries, debt: u64::MAX, since: u64::MAX, stepped_back: false };
        assert_eq!((log.spent(), log.remaining(&quota)), (u64::MAX, 0));
        assert_eq!(log.reset(1, &quota), u64::MAX - 1);
        assert_eq!(log.entries_forgotten(u64::MAX, &quota), Some(u64::MAX));
    }
    /// Redis has lost the charge: what others have spent since stays spent.
    #[test]
    fn later_entries_stay_however_many_they_are() {
        let quota = Quota::new(Algorithm::SlidingLog, "100r/m".parse().unwrap(), 100).unwrap();
        let since = 60 * 1_000_000;
        for later in [MAX_LATER as u64, MAX_LATER as u64 + 1, 90] {
            let mut stored = Stored::default();
            charge(&mut stored, since - 1, &quota, 3);
            for at in 1..=later {
                decide(&mut stored, since + at, &quota, 1);
            }
            give_back(&mut stored, since + later, &quota, 50, Some(since));
            assert_eq!(spent_at(&stored, since + later, &quota), later, "{later} entries");
        }
    }
}
