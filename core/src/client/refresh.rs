//! Keeping the topology up to date.
//!
//! It is queried when an error reply shows that it has changed (MOVED, CLUSTERDOWN, READONLY), when
//! a connection is lost or a breaker opens, often while a master is missing, and at regular
//! intervals. In a round one node of a cluster after the other is queried until a reply contains the
//! topology, most often the first one. All sentinels are queried at once, and the master is the one that most
//! of them report. Between rounds sentinels announce a new master. Commands that have no node wait for the end of
//! a round, once.

use super::agenda::Due;
use super::in_flight::Owner;
use super::requests::Error;
use super::slab::{CommandKey, ConnectionKey, NodeKey};
use super::topology::Layout;
use super::{Action, Client};
use crate::metrics::{ErrorKind, QueryResult};
use crate::rate::MILLISECOND;
use crate::redis::reply::Reply;

/// Waiting for a topology.
impl Client {
    /// Keeps a command until the topology was refreshed. If that was done for it before, or there
    /// is nothing to refresh, it fails.
    pub(super) fn park(&mut self, key: CommandKey, error: Error, now: u64) {
        if !self.discovery.can_change() || !self.commands.begin_wait(key) {
            return self.fail_unsent(key, error, now);
        }
        if self.waiting.is_full() {
            self.drop_unneeded_parked(now);
        }
        if let Some(command) = self.commands.get_mut(key) {
            self.waiting.park(key, command, error);
        }
        self.discovery.want(now, &mut self.agenda);
    }

    /// Drops the commands that wait for a topology, and for which no request waits any more.
    fn drop_unneeded_parked(&mut self, now: u64) {
        let Self { waiting, commands, requests, agenda, .. } = self;
        let unneeded = waiting.take_unneeded(|key| commands.drop_gone(key, requests, agenda));
        unneeded.into_iter().for_each(|key| self.fail(key, Error::Lost, now));
    }

    /// There is no new topology for the commands that wait for one.
    fn fail_parked(&mut self, now: u64) {
        for (key, error) in self.waiting.take_parked() {
            self.fail_unsent(key, error, now);
        }
    }

    /// No node takes a command now.
    fn fail_unsent(&mut self, key: CommandKey, error: Error, now: u64) {
        match self.is_patient(key) {
            true => self.retry_later(key, now),
            false => self.fail(key, error, now),
        }
    }
}

/// Refreshing.
impl Client {
    /// Does what is due.
    pub(super) fn check_refresh(&mut self, now: u64) {
        let rounds = &mut self.discovery.rounds;
        if !rounds.take_due(now) {
            return;
        }
        if rounds.is_under_way() {
            self.on_late_queries(now);
            self.query_next(now);
        } else if rounds.is_wanted() || !self.leaving.has_begun() {
            self.refresh_topology(now);
        }
    }

    /// Queries the topology, unless that is being done, or was done just now.
    pub(super) fn refresh_topology(&mut self, now: u64) {
        self.discovery.rounds.want();
        if self.discovery.rounds.is_under_way() {
            return;
        }
        if !self.discovery.rounds.may_begin(now) {
            // Commands would wait for long.
            self.fail_parked(now);
            return self.discovery.pause(&mut self.agenda);
        }
        self.discovery.begin_round(&self.pool.nodes);
        self.query_next(now);
    }

    /// Queries the next nodes that can be queried. A query may fail at once, and end the round.
    fn query_next(&mut self, now: u64) {
        while let Some(node) = self.discovery.next_node() {
            if let Some(connection) = self.discovery.connection_for_query(node, &self.pool, now) {
                let number = self.discovery.open(node, now, &mut self.agenda);
                self.push(connection, Owner::Topology(number), now);
            }
        }
        if self.discovery.rounds.is_over() {
            self.conclude_round(now);
        }
    }

    /// The queries that are open have timed out. Should a reply come after all, it counts; until then the node
    /// is not queried again. A connection that is silent as well ends first.
    fn on_late_queries(&mut self, now: u64) {
        let patience = self.discovery.rounds.patience() / MILLISECOND;
        let mut is_late = false;
        for key in self.discovery.rounds.take_open() {
            self.check_silence(key, now);
            if let Some(node) = self.pool.nodes.get_mut(key).filter(|node| node.ready > 0) {
                node.owes_topology = true;
                is_late = true;
                self.warn(key, format!("topology query timed out: no reply within {patience} ms"));
            }
        }
        if is_late {
            self.discovery.rounds.on_timeout();
        }
    }

    /// All nodes of the round were queried.
    fn conclude_round(&mut self, now: u64) {
        if let Some(layout) = self.discovery.conclude(&self.pool.nodes) {
            return self.end_round(layout, now);
        }
        self.discovery.rounds.end(true, self.random.next(), now);
        self.discovery.rounds.turn_nodes();
        self.fail_parked(now);
        self.discovery.pause(&mut self.agenda);
    }

    /// A node has replied to the query of this number.
    pub(super) fn on_query_reply(
        &mut self,
        number: u32,
        reply: &Reply<'_>,
        key: NodeKey,
        now: u64,
    ) -> QueryResult {
        let was_open = self.discovery.rounds.on_reply(number);
        self.on_patience_changed();
        let Some(node) = self.pool.nodes.get_mut(key) else { return QueryResult::Failed };
        let has_timed_out = std::mem::take(&mut node.owes_topology);
        let changes = self.discovery.topology.changes();
        match self.discovery.topology.read(reply, node) {
            Ok(layout) => {
                let is_late = self.discovery.rounds.is_late(number);
                match self.discovery.topology.weigh(layout, key, is_late) {
                    Some(layout) if self.discovery.rounds.is_under_way() => {
                        self.end_round(layout, now)
                    }
                    Some(layout) => drop(self.apply(layout, now)),
                    None if was_open => self.query_next(now),
                    None if self.discovery.rounds.is_under_way() => {}
                    // It is too late to be compared with others.
                    None => drop(self.discovery.conclude(&self.pool.nodes)),
                }
                match is_late || has_timed_out {
                    _ if self.discovery.topology.changes() != changes => QueryResult::Used,
                    true => QueryResult::Late,
                    false => QueryResult::Unchanged,
                }
            }
            Err(reason) => {
                let is_auth = matches!(reply, Reply::Error(refusal) if refusal.is_auth());
                self.count_error(key, if is_auth { ErrorKind::Auth } else { ErrorKind::Unfit });
                self.discovery.topology.forget(key);
                self.warn(key, format!("topology query failed: {reason}"));
                if was_open {
                    self.query_next(now);
                }
                QueryResult::Failed
            }
        }
    }

    /// The nodes that were queried have replied with this layout.
    fn end_round(&mut self, layout: Layout, now: u64) {
        self.discovery.rounds.turn_nodes();
        let has_changed = self.apply(layout, now);
        let (nodes, random) = (&self.pool.nodes, &mut self.random);
        if self.discovery.on_applied(has_changed, nodes, random, now, &mut self.agenda) {
            self.refresh_topology(now);
        }
    }

    /// No reply to the query of this number will come from a node.
    pub(super) fn on_query_failed(&mut self, number: u32, key: NodeKey, now: u64) {
        if let Some(node) = self.pool.nodes.get_mut(key) {
            node.owes_topology = false;
        }
        if self.discovery.rounds.close(number) {
            self.query_next(now);
        }
    }

    /// A sentinel is connected: what it has announced meanwhile was missed, unless it is to be queried
    /// anyway.
    pub(super) fn on_sentinel_connected(&mut self, key: ConnectionKey, now: u64) {
        if self.pool.connections.get(key).is_some_and(super::connection::Connection::is_quiet) {
            let number = self.discovery.rounds.next_number(now);
            self.push(key, Owner::Topology(number), now);
        }
    }

    /// A node has sent a message of a channel. What one sentinel announces the others may not know yet, and one that
    /// announces ever others is not followed each time.
    pub(super) fn on_message(&mut self, reply: &Reply<'_>, from: NodeKey, now: u64) {
        if let Reply::Other(message) = reply
            && let Some(layout) = self.discovery.topology.on_message(*message)
        {
            match self.discovery.topology.weigh(layout, from, false) {
                Some(layout) if self.discovery.rounds.on_announced(now) => {
                    self.apply(layout, now);
                }
                None if self.discovery.master_serves(&self.pool.nodes) => {}
                _ => self.discovery.want(now, &mut self.agenda),
            }
        }
    }
}

/// A new topology.
impl Client {
    /// Applies a layout. Returns whether that has changed something of note.
    fn apply(&mut self, layout: Layout, now: u64) -> bool {
        self.discovery.rounds.on_applied();
        let before = self.pool.nodes.current().to_vec();
        let (masters, line) = self.discovery.topology.apply(layout, &mut self.pool.nodes);
        let is_logged = line.is_some();
        if let Some((level, line)) = line {
            self.agenda.push(Action::Log(level, line));
        }
        for master in &masters {
            self.pool.complete_node(*master, &mut self.agenda);
        }
        self.pool.nodes.retire_others(&masters, now);
        self.pool.close_unneeded_seeds(&masters, &mut self.agenda);
        self.remove_retired(now);
        if let Some(at) = self.pool.next_retirement() {
            self.agenda.advance_to(Due::Retirement, at);
        }
        masters.into_iter().for_each(|master| self.open_node(master, now));
        for (key, _) in self.waiting.take_parked() {
            self.route(key, now);
        }
        is_logged || before != self.pool.nodes.current()
    }

    /// Removes the retired nodes that owe no reply, or have owed it for too long.
    pub(super) fn remove_retired(&mut self, now: u64) {
        for key in self.pool.nodes.retired().to_vec() {
            self.remove_if_done(key, now);
        }
    }

    /// Removes a node, if it is retired and owes no reply. Returns whether that was so.
    pub(super) fn remove_if_done(&mut self, key: NodeKey, now: u64) -> bool {
        let is_done = self.pool.is_done(key, now);
        if is_done {
            for connection in self.pool.connections_of(key) {
                self.abandon(connection, key, now);
            }
            self.pool.nodes.remove(key);
            self.agenda.push(Action::Remove(key));
        }
        is_done
    }
}
