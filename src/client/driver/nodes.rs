//! The nodes of a store in the shared memory: their counters, and how this worker sees them.

use ngx::ffi::NGX_LOG_ERR;
use rate_limit_core::client::{Answer, Node, NodeKey, NodeState, RequestKey, View};
use rate_limit_core::outage;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::trouble::{Found, Trouble};

use super::{KnownNode, State, place};
use crate::clock::{monotonic_micros, unix_ms};
use crate::log::{cycle_log, log};
use crate::shm::NodeRecord;

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
        if self.record(key).is_none() {
            let record = self.shared.node(self.client.node(key)?.name(), &self.store);
            let known = KnownNode { key, record, reason: None, peer: None };
            place(&mut self.nodes, key.index(), known);
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
        if let (Some(counts), Some(known)) = (self.client.take_counts(key), self.known(key))
            && known.record.add(&counts, is_leaving)
        {
            self.log_up(key);
        }
    }

    pub(super) fn count_in(&mut self, key: NodeKey, count: impl FnOnce(&NodeRecord)) {
        if let Some(known) = self.known(key) {
            count(&known.record);
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
            record.set_view(view, is_first);
            if is_first || view.is_none() {
                // A worker that is gone does not say that the node is slow no more, and nobody knows since when it is not.
                let is_seen = |state| record.is_seen(state, &self.shared.living());
                record.trouble.on_prompt(unix_ms(), &is_seen);
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

    /// This worker has found a node down. If a line is still to come the reason is kept for it.
    pub(super) fn log_down(&mut self, key: NodeKey, reason: String, how: Found) {
        let is_leaving = self.is_leaving;
        self.log_line(key, |it, now, _| it.on_down(now, &reason, how, is_leaving));
        if let Some(known) = self.known(key)
            && known.record.trouble.outages.awaits_line()
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
                self.log_down(key, reason, Found::Before);
            }
            self.log_unlogged(key, false);
        }
    }

    fn report_later(&mut self) {
        let at = || monotonic_micros().saturating_add(outage::LASTING * MILLISECOND);
        self.report_at.get_or_insert_with(at);
    }

    /// Logs the outages of a node that had no lines of their own, if it is time for that, or `at_once`.
    fn log_unlogged(&mut self, key: NodeKey, at_once: bool) {
        let Some(record) = self.record(key) else { return };
        if let Some(line) = record.trouble.take_unlogged(unix_ms(), at_once) {
            // The client may have forgotten the node.
            log!(NGX_LOG_ERR, cycle_log(), "redis {} {line}", record.text());
        } else if record.trouble.outages.has_unlogged() {
            self.report_later();
        }
    }

    /// This worker has found a node up.
    pub(super) fn find_up(&mut self, key: NodeKey) {
        let Some(known) = self.known(key) else { return };
        known.reason = None;
        if known.record.trouble.find_up() {
            self.log_up(key);
        }
    }

    /// Logs that a node is up again, if it is.
    fn log_up(&mut self, key: NodeKey) {
        if self.client.node(key).is_some() {
            self.log_line(key, Trouble::end);
            self.log_unlogged(key, false);
        }
    }

    /// Passes an event on, with the time, and with what tells whether a living worker sees the node in a state; logs the line
    /// that follows, if any.
    pub(super) fn log_line(
        &mut self,
        key: NodeKey,
        event: impl FnOnce(&Trouble, u64, &dyn Fn(NodeState) -> bool) -> Option<String>,
    ) {
        self.known(key);
        let Some((record, node)) = self.record(key).zip(self.client.node(key)) else { return };
        let is_seen = |state| record.is_seen(state, &self.shared.living());
        if let Some(line) = event(&record.trouble, unix_ms(), &is_seen) {
            log!(NGX_LOG_ERR, cycle_log(), "redis {} {line}", node.name());
        }
    }
}
