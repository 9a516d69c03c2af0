//! The nodes of a store in the shared memory: their counters, and how this worker sees them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ngx::ffi::{NGX_LOG_ERR, ngx_worker};
use rate_limit_core::client::{Answer, Node, NodeKey, RequestKey, View};
use rate_limit_core::metrics::{AttemptResult, QueryResult};
use rate_limit_core::outage::{self, Unlogged};
use rate_limit_core::rate::MILLISECOND;

use super::{KnownNode, State, WARN_EVERY, place};
use crate::clock::{monotonic_micros, unix_ms};
use crate::log::{cycle_log, log};
use crate::shm::NodeRecord;

/// How long another reason has to be the only one before it is logged, in ms. A server that is restarted closes
/// connections, refuses them, and then reads its data: that is one outage.
const LASTING: u64 = 2_000;

impl State {
    /// Publishes this worker's view of all nodes.
    pub(super) fn show_all(&mut self) {
        let nodes: Vec<_> = self.client.nodes().collect();
        nodes.into_iter().for_each(|node| self.show(node));
    }

    /// Withdraws this worker's view of all nodes.
    pub(super) fn hide_all(&mut self) {
        for key in self.known_keys() {
            self.set_view(key, None, false);
            self.log_unlogged(key, true);
        }
    }

    fn known_keys(&self) -> Vec<NodeKey> {
        self.nodes.iter().flatten().map(|known| known.key).collect()
    }

    /// Counts how long a reply or a deadline waited for the worker, in µs, where that is known.
    pub(super) fn count_lag(&self, lag: u64) {
        if !self.has_timer_resolution {
            self.shared.count_lag(lag);
        }
    }

    pub(super) fn known(&mut self, key: NodeKey) -> Option<&mut KnownNode> {
        let is_known = self
            .nodes
            .get(key.index())
            .is_some_and(|known| known.as_ref().is_some_and(|known| known.key == key));
        if !is_known {
            let record = self.shared.node(self.client.node(key)?.name(), &self.store);
            place(
                &mut self.nodes,
                key.index(),
                KnownNode { key, record, reason: None, peer: None },
            );
            self.set_view(key, Some(View::default()), true);
        }
        self.nodes.get_mut(key.index())?.as_mut()
    }

    pub(super) fn count_wait(&self, key: RequestKey, wait: u64) {
        let answers = self.client.answers(key);
        for (index, answer) in answers.iter().enumerate() {
            // A node that has decided several limits is counted once.
            let is_same = |other: &Answer| other.verdict.is_some() && other.node == answer.node;
            if answer.verdict.is_some()
                && !answers.iter().take(index).any(is_same)
                && let Some(record) = answer.node.and_then(|node| self.record(node))
            {
                record.count_wait(wait);
            }
        }
    }

    fn record(&self, key: NodeKey) -> Option<&NodeRecord> {
        let known = self.nodes.get(key.index())?.as_ref()?;
        (known.key == key).then_some(&known.record)
    }

    pub(super) fn count(&mut self, key: NodeKey) {
        let is_leaving = self.is_leaving;
        if let (Some(mut counts), Some(known)) = (self.client.take_counts(key), self.known(key)) {
            // It begins no outage.
            if is_leaving && !known.record.outages.is_down() {
                counts.undecided = 0;
            }
            known.record.add(&counts);
            // Another worker has found it down, and may have gone since.
            if counts.has_answered && known.record.find_up() {
                self.log_up(key);
            }
        }
    }

    pub(super) fn count_attempt(&mut self, key: NodeKey, result: AttemptResult) {
        if let Some(known) = self.known(key) {
            known.record.count_attempt(result);
        }
    }

    pub(super) fn count_query(&mut self, key: NodeKey, result: QueryResult) {
        if let Some(known) = self.known(key) {
            known.record.count_query(result);
        }
    }

    /// Publishes this worker's view of a node.
    pub(super) fn show(&mut self, key: NodeKey) {
        let Some(view) = self.client.node(key).map(Node::view) else { return };
        if self.known(key).is_some() {
            // A worker that shuts down closes its connections: that is no sign of a failure.
            self.set_view(key, Some(view).filter(|_| !self.is_leaving), false);
        }
    }

    pub(super) fn set_view(&mut self, key: NodeKey, view: Option<View>, is_first: bool) {
        if let Some(record) = self.record(key) {
            // SAFETY: set before any worker runs.
            record.set_view(unsafe { ngx_worker }, view, is_first);
            if is_first || view.is_none() {
                // A worker that is gone does not say that the node is slow no more, and nobody knows since when it is not.
                record.mark_prompt(|| self.shared.living());
            }
            self.log_up(key);
        }
    }

    pub(super) fn forget(&mut self, key: NodeKey) {
        self.set_view(key, None, false);
        self.log_unlogged(key, true);
        if self.record(key).is_some()
            && let Some(known) = self.nodes.get_mut(key.index())
        {
            *known = None;
        }
    }

    /// The record of a node, and its name, if it is not gone.
    fn named(&mut self, key: NodeKey) -> Option<(&NodeRecord, &str)> {
        self.known(key)?;
        Some((self.record(key)?, self.client.node(key)?.name()))
    }

    /// This worker has found a node down, perhaps `again`. One that shuts down is no measure: the others may have what it
    /// lacks, as a connection to a server that takes no more, or a new password.
    pub(super) fn log_down(&mut self, key: NodeKey, reason: String, again: bool) {
        let is_leaving = self.is_leaving;
        let Some(known) = self.known(key) else { return };
        if is_leaving && !known.record.outages.is_down() {
            return self.log_warning(
                key,
                &format!("is out of reach of a worker that shuts down: {reason}"),
            );
        }
        let is_new = known.record.mark_down(unix_ms(), cause(&reason), again);
        self.log_reason(key, reason, is_new);
    }

    /// Logs, once for all workers, that a node is down, or that it is down for another reason than was logged last. If the
    /// line is not to come yet the reason is kept for it.
    fn log_reason(&mut self, key: NodeKey, reason: String, is_new: bool) {
        let Some((record, name)) = self.named(key) else { return };
        let (now, number) = (unix_ms(), cause(&reason));
        if record.admits_down(now, number, is_new) {
            log!(NGX_LOG_ERR, cycle_log(), "redis {name} is down: {reason}");
        } else if record.mark_cause(now, number, LASTING) {
            log!(NGX_LOG_ERR, cycle_log(), "redis {name} is still down: {reason}");
        } else if record.outages.awaits_line()
            && let Some(known) = self.known(key)
        {
            known.reason = Some(reason);
            self.report_later();
        }
    }

    /// Logs what of all nodes was not to be logged before.
    pub(super) fn report(&mut self) {
        self.report_at = None;
        for key in self.known_keys() {
            if let Some(reason) = self.known(key).and_then(|known| known.reason.take()) {
                self.log_reason(key, reason, false);
            }
            self.log_unlogged(key, false);
        }
    }

    fn report_later(&mut self) {
        let at = || monotonic_micros().saturating_add(outage::LASTING * MILLISECOND);
        self.report_at.get_or_insert_with(at);
    }

    /// Logs, once for all workers, the outages of a node that had no lines of their own, if it is time for that, or `at_once`.
    fn log_unlogged(&mut self, key: NodeKey, at_once: bool) {
        let Some(record) = self.record(key) else { return };
        if let Some(unlogged) = record.outages.take_unlogged(unix_ms(), at_once) {
            let Unlogged { number, span, undecided } = unlogged;
            // The client may have forgotten the node.
            let (name, seconds) = (record.text(), span as f64 / 1_000.0);
            log!(
                NGX_LOG_ERR,
                cycle_log(),
                "redis {name} was briefly down {number} times in {seconds:.3} s, {undecided} requests were not decided by it"
            );
        } else if record.outages.has_unlogged() {
            self.report_later();
        }
    }

    /// This worker has found a node up.
    pub(super) fn find_up(&mut self, key: NodeKey) {
        let Some(known) = self.known(key) else { return };
        known.reason = None;
        if known.record.find_up() {
            self.log_up(key);
        }
    }

    /// Logs, once for all workers, that a node is up again, if one has found it so and none sends it no requests: a server
    /// that has no room for all of them is not up.
    fn log_up(&mut self, key: NodeKey) {
        let Some((record, node)) = self.record(key).zip(self.client.node(key)) else { return };
        if let Some((since, undecided)) = record.mark_up(|| self.shared.living()) {
            let (name, seconds) = (node.name(), unix_ms().saturating_sub(since) as f64 / 1_000.0);
            log!(
                NGX_LOG_ERR,
                cycle_log(),
                "redis {name} is up again after {seconds:.3} s, {undecided} requests were not decided by it"
            );
        }
        self.log_unlogged(key, false);
    }

    /// Logs, once for all workers, that a node is slow, but not for every reply that takes long.
    pub(super) fn log_slow(&mut self, key: NodeKey, patience: u64) {
        if let Some((record, name)) = self.named(key)
            && record.mark_slow(unix_ms(), WARN_EVERY)
        {
            let patience = patience / MILLISECOND;
            log!(NGX_LOG_ERR, cycle_log(), "redis {name} is slow: no reply within {patience} ms");
        }
    }

    /// Logs, once for all workers, that a node is slow no more, if it was logged that it is.
    pub(super) fn log_prompt(&mut self, key: NodeKey) {
        let shared = self.shared;
        if let Some((record, name)) = self.named(key)
            && let Some(since) = record.mark_prompt(|| shared.living())
        {
            let seconds = unix_ms().saturating_sub(since) as f64 / 1_000.0;
            log!(NGX_LOG_ERR, cycle_log(), "redis {name} is no longer slow, after {seconds:.3} s");
        }
    }

    /// Logs a fault of a node that is up, but not for every request.
    pub(super) fn log_warning(&mut self, key: NodeKey, what: &str) {
        if let Some((record, name)) = self.named(key)
            && record.admit_warning(unix_ms(), WARN_EVERY)
        {
            log!(NGX_LOG_ERR, cycle_log(), "redis {name} {what}");
        }
    }
}

/// A number that stands for a reason. Reasons that differ in figures alone, as in "no reply for 2000 ms", have the same.
fn cause(reason: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    reason.bytes().filter(|byte| !byte.is_ascii_digit()).for_each(|byte| byte.hash(&mut hasher));
    hasher.finish()
}
