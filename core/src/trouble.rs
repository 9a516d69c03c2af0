//! What the log says of a server, once for all workers of a machine: that it is down, and why, or slow, the end of that, and
//! other faults.
//!
//! Workers pass what they find, each with a Unix time in ms, and write the line that follows, if any. The line lacks the name of
//! the server. A clock that was set back delays none for long.

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

/// What workers have found of a server, and what of that is logged, in memory that they share; all zeroes of a new one.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Trouble {
    outages: Outages,
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

/// What it means that a worker has found a server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An outage begins.
    New,
    /// It is part of an outage, if there is one.
    Known,
    /// It is no measure, as the worker shuts down: the others may have what it lacks, as a connection to a server that takes no
    /// more, or a new password.
    Leaving,
}

/// Outages.
impl Trouble {
    /// A worker, which may be leaving, has counted. Returns whether it has found the server up, which was down: see
    /// [`find_up`](Self::find_up).
    pub fn on_counts(&self, counts: &Counts, is_leaving: bool) -> bool {
        // What one that leaves lacks begins no outage.
        if counts.undecided > 0 && (!is_leaving || self.outages.is_down()) {
            self.outages.count_undecided(counts.undecided.into());
        }
        if counts.has_answered {
            self.outages.on_answered();
        }
        // Another worker has found it down, and may have gone since.
        counts.has_answered && self.find_up()
    }

    /// A worker, which may be leaving, has found it down, perhaps `again`: see [`Outages::begin`]. It passes the reason
    /// on with what that means: see [`on_reason`](Self::on_reason).
    pub fn on_down(&self, now: u64, reason: &str, again: bool, is_leaving: bool) -> Finding {
        if is_leaving && !self.outages.is_down() {
            return Finding::Leaving;
        }
        self.slow_since.store(0, Ordering::Relaxed);
        if !self.outages.begin(now, again) {
            return Finding::Known;
        }
        self.is_found_up.store(0, Ordering::Relaxed);
        let cause = number(reason);
        self.cause.store(cause, Ordering::Relaxed);
        self.latest_cause.store(cause, Ordering::Relaxed);
        Finding::New
    }

    /// The line that it is down for this reason; or still is, where another one was logged last, and for long there was none
    /// but this.
    pub fn on_reason(&self, now: u64, reason: &str, finding: Finding) -> Option<String> {
        if finding == Finding::Leaving {
            let what = format!("is out of reach of a worker that shuts down: {reason}");
            return self.warn(now, what);
        }
        let cause = number(reason);
        if self.outages.admits_line(now, finding == Finding::New) {
            self.cause.store(cause, Ordering::Relaxed);
            return Some(format!("is down: {reason}"));
        }
        if self.latest_cause.swap(cause, Ordering::Relaxed) != cause {
            self.latest_cause_since.store(now, Ordering::Relaxed);
            return None;
        }
        let is_new = self.outages.is_logged()
            && now.abs_diff(self.latest_cause_since.load(Ordering::Relaxed)) >= LASTING
            && self.cause.swap(cause, Ordering::Relaxed) != cause;
        is_new.then(|| format!("is still down: {reason}"))
    }

    /// Whether it is down, and no line says so yet. A worker that has a reason passes it once more after
    /// [`outage::LASTING`](crate::outage::LASTING).
    pub fn awaits_line(&self) -> bool {
        self.outages.awaits_line()
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
        // Each worker publishes its view, and what it has found, before it looks at those of others: of the last two, one
        // sees all.
        fence(Ordering::SeqCst);
        if self.is_found_up.load(Ordering::Relaxed) == 0 || is_seen(NodeState::Open) {
            return None;
        }
        self.is_found_up.store(0, Ordering::Relaxed);
        let (since, undecided) = self.outages.end()?;
        let span = seconds(now.saturating_sub(since));
        Some(format!("is up again after {span} s, {undecided} requests were not decided by it"))
    }

    /// The line about the outages that had none of their own, if it is time for that, or `at_once`.
    pub fn take_unlogged(&self, now: u64, at_once: bool) -> Option<String> {
        let Unlogged { number, span, undecided } = self.outages.take_unlogged(now, at_once)?;
        let span = seconds(span);
        Some(format!(
            "was briefly down {number} times in {span} s, {undecided} requests were not decided by it"
        ))
    }

    /// Whether there are outages that have had none yet.
    pub fn has_unlogged(&self) -> bool {
        self.outages.has_unlogged()
    }

    /// Forgets all.
    pub fn clear(&self) {
        let causes = [&self.cause, &self.latest_cause, &self.latest_cause_since];
        let words = causes.into_iter().chain([&self.is_found_up, &self.slow_since, &self.warned]);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        self.outages.clear();
    }
}

/// Faults of a server that is up.
impl Trouble {
    /// A worker has waited for a reply for its patience, in µs. The line that the server is slow, but not for every such reply.
    pub fn on_slow(&self, now: u64, patience: u64) -> Option<String> {
        let is_new = self.slow_since.load(Ordering::Relaxed) == 0
            && self.admits_warning(now)
            && self.slow_since.swap(now, Ordering::Relaxed) == 0;
        is_new.then(|| format!("is slow: no reply within {} ms", patience / MILLISECOND))
    }

    /// A worker does not see it slow any more. The line that no living one does, if one says that it is slow. Otherwise as for
    /// [`end`](Self::end).
    pub fn on_prompt(&self, now: u64, is_seen: &dyn Fn(NodeState) -> bool) -> Option<String> {
        // Each worker publishes its view before it looks at those of others.
        fence(Ordering::SeqCst);
        if self.slow_since.load(Ordering::Relaxed) == 0 || is_seen(NodeState::Slow) {
            return None;
        }
        let since = self.slow_since.swap(0, Ordering::Relaxed);
        let span = seconds(now.saturating_sub(since));
        (since != 0).then(|| format!("is no longer slow, after {span} s"))
    }

    /// The line about another fault, but not for every request.
    pub fn warn(&self, now: u64, what: String) -> Option<String> {
        self.admits_warning(now).then_some(what)
    }

    fn admits_warning(&self, now: u64) -> bool {
        let last = self.warned.load(Ordering::Relaxed);
        // A clock that was set back does not suppress warnings.
        (now.abs_diff(last) >= WARN_EVERY)
            && self.warned.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A span in ms as it is logged.
fn seconds(span: u64) -> String {
    format!("{:.3}", span as f64 / 1_000.0)
}

/// A number that stands for a reason. Reasons that differ in figures alone, as in "no reply for 2000 ms", have the same.
fn number(reason: &str) -> u64 {
    key::fingerprint(reason.replace(|c: char| c.is_ascii_digit(), "").as_bytes())
}

#[cfg(test)]
mod tests;
