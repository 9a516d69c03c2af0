//! The lines that the log has about a server, once for all workers of a machine. They pass what they find, each with a Unix
//! time in ms, and write the line that follows, if any, behind the name of the server. A clock that was set back delays none
//! for long.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::client::{Counts, NodeState};
use crate::key;
use crate::outage::{Outages, Unlogged};
use crate::rate::MILLISECOND;

/// The shortest time between two lines about faults of a server that is up, in ms.
const WARN_EVERY: u64 = 10_000;

/// How long another reason has to be the only one before it is logged, in ms. A server that is restarted closes
/// connections, refuses them, and then reads its data: that is one outage.
const LASTING: u64 = 2_000;

/// The trouble that workers have had with a server, and how much of it is logged, in memory that they share; all zeroes of
/// a new one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Trouble {
    /// Its outages.
    pub outages: Outages,
    /// 1 if a worker has found it up again since the latest outage began, else 0.
    is_found_up: AtomicU64,
    /// The number of the reason that was logged, if it is down.
    cause: AtomicU64,
    /// The number of the reason for which the latest attempt to reach it failed.
    latest_cause: AtomicU64,
    /// The time since which all attempts have failed for that reason.
    latest_cause_since: AtomicU64,
    /// The time since which it is slow, and a line says so; else 0.
    slow_since: AtomicU64,
    /// The time of the last warning.
    warned: AtomicU64,
}

/// How a worker has found a server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was up.
    First,
    /// It was down, and another worker may have found it up meanwhile.
    Again,
    /// It was found so before, and the line [was to come later](Outages::awaits_line).
    Before,
}

impl Trouble {
    /// A worker, which may be leaving, has counted. Returns whether it has found the server up: see [`find_up`](Self::find_up).
    pub fn on_counts(&self, counts: &Counts, is_leaving: bool) -> bool {
        // A failure of one that leaves begins no outage.
        if counts.undecided > 0 && (!is_leaving || self.outages.is_down()) {
            self.outages.count_undecided(counts.undecided.into());
        }
        if counts.has_answered {
            self.outages.on_answered();
        }
        // Another worker has found it down, and may have gone since.
        counts.has_answered && self.find_up()
    }

    /// A worker, which may be leaving, has found it down. The line that it is, for this reason; or still is, where another one
    /// was logged last, and for long there was none but this.
    pub fn on_down(&self, now: u64, reason: &str, how: Found, is_leaving: bool) -> Option<String> {
        let is_before = how == Found::Before;
        // It is no measure: the others may have what it lacks, as a connection to a server that takes no more, or a new password.
        if is_leaving && !is_before && !self.outages.is_down() {
            let what = format!("is out of reach of a worker that shuts down: {reason}");
            return self.warn(now, what);
        }
        let cause = number(reason);
        let is_new = !is_before && self.begin(now, cause, how == Found::Again);
        if self.outages.admits_line(now, is_new) {
            self.cause.store(cause, Ordering::Relaxed);
            return Some(format!("is down: {reason}"));
        }
        if self.latest_cause.swap(cause, Ordering::Relaxed) != cause {
            self.latest_cause_since.store(now, Ordering::Relaxed);
            return None;
        }
        let is_changed = self.outages.is_logged()
            && now.abs_diff(self.latest_cause_since.load(Ordering::Relaxed)) >= LASTING
            && self.cause.swap(cause, Ordering::Relaxed) != cause;
        is_changed.then(|| format!("is still down: {reason}"))
    }

    fn begin(&self, now: u64, cause: u64, again: bool) -> bool {
        self.slow_since.store(0, Ordering::Relaxed);
        let is_new = self.outages.begin(now, again);
        if is_new {
            self.is_found_up.store(0, Ordering::Relaxed);
            self.cause.store(cause, Ordering::Relaxed);
            self.latest_cause.store(cause, Ordering::Relaxed);
        }
        is_new
    }

    /// A worker has found it up. Returns whether it was down, and may be [up again](Self::end).
    pub fn find_up(&self) -> bool {
        let was_down = self.outages.is_down();
        if was_down {
            self.is_found_up.store(1, Ordering::Relaxed);
        }
        was_down
    }

    /// Ends an outage if a worker has found it up, and all living ones send it requests: a server that has no room for all of
    /// them is not up. The caller has published its view, and says whether any sees it in a state. The line that it is up again,
    /// if one says that it was down.
    pub fn end(&self, now: u64, is_seen: &dyn Fn(NodeState) -> bool) -> Option<String> {
        take(&self.is_found_up, NodeState::Open, is_seen)?;
        let (since, undecided) = self.outages.end()?;
        let span = now.saturating_sub(since) as f64 / 1_000.0;
        Some(format!("is up again after {span:.3} s, {undecided} requests were not decided by it"))
    }

    /// The line about the outages that had none of their own, if it is time for that, or `at_once`.
    pub fn take_unlogged(&self, now: u64, at_once: bool) -> Option<String> {
        let Unlogged { number, span, undecided } = self.outages.take_unlogged(now, at_once)?;
        let span = span as f64 / 1_000.0;
        Some(format!(
            "was briefly down {number} times in {span:.3} s, {undecided} requests were not decided by it"
        ))
    }

    /// A worker has waited for a reply for its patience, in µs. The line that the server is slow, but not for every such reply.
    pub fn on_slow(&self, now: u64, patience: u64) -> Option<String> {
        if self.slow_since.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let what = format!("is slow: no reply within {} ms", patience / MILLISECOND);
        self.warn(now, what).filter(|_| self.slow_since.swap(now, Ordering::Relaxed) == 0)
    }

    /// A worker does not see it slow any more. The line that no living one does, if one says that it is slow. Otherwise as for
    /// [`end`](Self::end).
    pub fn on_prompt(&self, now: u64, is_seen: &dyn Fn(NodeState) -> bool) -> Option<String> {
        let since = take(&self.slow_since, NodeState::Slow, is_seen)?;
        let span = now.saturating_sub(since) as f64 / 1_000.0;
        Some(format!("is no longer slow, after {span:.3} s"))
    }

    /// The line about another fault, but not for every request.
    pub fn warn(&self, now: u64, what: String) -> Option<String> {
        let last = self.warned.load(Ordering::Relaxed);
        // A clock that was set back does not suppress warnings.
        let is_due = now.abs_diff(last) >= WARN_EVERY;
        let replace =
            || self.warned.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        (is_due && replace().is_ok()).then_some(what)
    }

    /// Forgets all.
    pub fn clear(&self) {
        let causes = [&self.cause, &self.latest_cause, &self.latest_cause_since];
        let words = causes.into_iter().chain([&self.is_found_up, &self.slow_since, &self.warned]);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        self.outages.clear();
    }
}

/// Takes a word that is not zero, unless a living worker sees the server in this state.
fn take(word: &AtomicU64, state: NodeState, is_seen: &dyn Fn(NodeState) -> bool) -> Option<u64> {
    // Each worker publishes its view, and what it has found, before it looks at those of others: of the last two, one sees all.
    fence(Ordering::SeqCst);
    let is_over = word.load(Ordering::Relaxed) != 0 && !is_seen(state);
    is_over.then(|| word.swap(0, Ordering::Relaxed)).filter(|old| *old != 0)
}

/// A number that stands for a reason. Reasons that differ in figures alone, as in "no reply for 2000 ms", have the same.
fn number(reason: &str) -> u64 {
    key::fingerprint(reason.replace(|c: char| c.is_ascii_digit(), "").as_bytes())
}

#[cfg(test)]
mod tests;
