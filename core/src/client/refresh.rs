//! Keeping the topology up to date.
//!
//! It is queried when an error reply shows that it has changed (MOVED, CLUSTERDOWN, READONLY), when
//! a connection is lost or a breaker opens, often while a master is missing, and at regular
//! intervals. In a round one node of a cluster after the other is queried until a reply contains the
//! topology, most often the first one. All sentinels are queried at once, and the master is the one that most
//! of them report. Between rounds sentinels announce a new master. Commands that have no node wait for the end of
//! a round, once.

use super::in_flight::Owner;
use super::key::{CommandKey, ConnectionKey, NodeKey};
use super::node::Role;
use super::request::Error;
use super::timers::Due;
use super::topology::Layout;
use super::topology::rounds::RoundStep;
use super::{Action, Client};
use crate::metrics::{ErrorKind, QueryResult};
use crate::rate::{MILLISECOND, SECOND};
use crate::redis::reply::Reply;

/// How many nodes of a cluster are queried in a round. The next round goes on with the others.
const MOST_QUERIES: usize = 5;

/// How long a retired node may take to answer what it was sent.
const RETIREMENT: u64 = SECOND;

/// Waiting for a topology.
impl Client {
    /// Keeps a command until the topology was refreshed. If that was done for it before, or there
    /// is nothing to refresh, it fails.
    pub(super) fn park(&mut self, key: CommandKey, error: Error, now: u64) {
        let can_refresh = self.topology.query().is_some();
        let Some(command) = self.commands.get_mut(key) else { return };
        if !can_refresh || std::mem::replace(&mut command.has_waited, true) {
            return self.fail(key, error, now);
        }
        if self.waiting.is_full() {
            self.drop_unneeded();
        }
        if let Some(command) = self.commands.get_mut(key) {
            self.waiting.park(key, command, error);
        }
        self.want_refresh(now);
    }

    /// Drops the commands that wait for a topology, and for which no request waits any more.
    fn drop_unneeded(&mut self) {
        let mut parked = self.waiting.take_parked();
        parked.retain(|(key, _)| {
            let is_unneeded = self.drop_gone(*key);
            if is_unneeded {
                self.commands.remove(*key);
            }
            !is_unneeded
        });
        self.waiting.put_back(parked);
    }

    /// Sends the commands that waited for a topology.
    fn route_parked(&mut self, now: u64) {
        for (key, _) in self.waiting.take_parked() {
            self.route(key, now);
        }
    }

    /// There is no new topology for the commands that wait for one.
    fn fail_parked(&mut self, now: u64) {
        for (key, error) in self.waiting.take_parked() {
            self.fail(key, error, now);
        }
    }
}

/// Refreshing.
impl Client {
    /// The topology may have changed.
    pub(super) fn want_refresh(&mut self, now: u64) {
        self.rounds.want();
        self.rounds.begin_at(now);
        self.agenda.advance_to(Due::Topology, now);
    }

    /// Does what is due.
    pub(super) fn check_refresh(&mut self, now: u64) {
        self.remove_retired(now);
        match self.rounds.take_step(now) {
            Some(RoundStep::GoOn) => {
                self.on_late_queries(now);
                self.query_next(now);
            }
            Some(RoundStep::Begin { is_wanted }) if is_wanted || !self.is_leaving => {
                self.refresh_topology(now);
            }
            Some(RoundStep::Begin { .. }) | None => {}
        }
    }

    /// Queries the topology, unless that is being done, or was done just now.
    pub(super) fn refresh_topology(&mut self, now: u64) {
        self.rounds.want();
        if self.rounds.is_under_way() {
            return;
        }
        if !self.rounds.may_begin(now) {
            // Commands would wait for long.
            self.fail_parked(now);
            return self.pause_rounds();
        }
        self.begin_round();
        self.query_next(now);
    }

    fn pause_rounds(&mut self) {
        let at = self.rounds.pause();
        self.agenda.advance_to(Due::Topology, at);
    }

    /// Nodes are queried in turn, then those that are not connected, and at last those that the cluster has cut
    /// off, which go on to list themselves as the masters of their slots.
    fn begin_round(&mut self) {
        let nodes = match self.topology.seed_role() {
            Role::Sentinel => self.nodes.seeds().to_vec(),
            Role::Data => self.nodes.current().to_vec(),
        };
        let rank =
            |key: &NodeKey| self.nodes.get(*key).map(|node| (node.is_cut_off, node.ready == 0));
        self.rounds.begin(nodes, rank);
    }

    /// Queries the next nodes that can be queried: of a cluster one at a time, and all sentinels at once. A query
    /// may fail at once, and end the round.
    fn query_next(&mut self, now: u64) {
        let (at_once, most) = match self.has_slots {
            true => (1, MOST_QUERIES),
            false => (usize::MAX, usize::MAX),
        };
        while let Some(node) = self.rounds.next_node(at_once, most) {
            if let Some(connection) = self.connection_for_query(node, now) {
                let (number, at) = self.rounds.open(node, now);
                self.agenda.advance_to(Due::Topology, at);
                self.push(connection, Owner::Topology(number), now);
            }
        }
        if self.rounds.is_over() {
            self.conclude_round(now);
        }
    }

    /// The queries that are open have timed out. Should a reply come after all, it counts; until then the node
    /// is not queried again. A connection that is silent as well ends first.
    fn on_late_queries(&mut self, now: u64) {
        let patience = self.rounds.patience() / MILLISECOND;
        let mut is_late = false;
        for key in self.rounds.take_open() {
            self.check_silence(key, now);
            if let Some(node) = self.nodes.get_mut(key).filter(|node| node.ready > 0) {
                node.owes_topology = true;
                is_late = true;
                self.warn(key, format!("topology query timed out: no reply within {patience} ms"));
            }
        }
        if is_late {
            self.rounds.on_timeout();
        }
    }

    /// All nodes of the round were queried.
    fn conclude_round(&mut self, now: u64) {
        if let Some(layout) = self.topology.conclude(self.master_serves()) {
            return self.end_round(layout, now);
        }
        let random = self.random.next();
        self.rounds.end(true, random, now);
        self.rounds.turn_nodes();
        self.fail_parked(now);
        self.pause_rounds();
    }

    /// The connection over which a node is queried, if it can be: not if it owes a reply for too
    /// long, or one to an earlier query, or if its breaker is open. That it is silent is for the timer to say: until then the reply may
    /// lie unread.
    fn connection_for_query(&self, node: NodeKey, now: u64) -> Option<ConnectionKey> {
        let node = self.nodes.get(node)?;
        if node.health.is_open() || node.owes_topology {
            return None;
        }
        let key = *node.connections.first()?;
        let connection = self.connections.get(key).filter(|connection| connection.accepts())?;
        let is_silent = self.silent_at(connection).is_some_and(|at| at <= now);
        (!is_silent).then_some(key)
    }

    /// A node has replied to the query of this number.
    pub(super) fn on_query_reply(
        &mut self,
        number: u32,
        reply: &Reply<'_>,
        key: NodeKey,
        now: u64,
    ) -> QueryResult {
        let was_open = self.rounds.on_reply(number);
        self.on_patience_changed();
        let Some(node) = self.nodes.get_mut(key) else { return QueryResult::Failed };
        let has_timed_out = std::mem::take(&mut node.owes_topology);
        let changes = self.topology.changes();
        match self.topology.read(reply, node) {
            Ok(layout) => {
                let is_late = self.rounds.is_late(number);
                match self.topology.weigh(layout, key, is_late) {
                    Some(layout) if self.rounds.is_under_way() => self.end_round(layout, now),
                    Some(layout) => drop(self.apply(layout, now)),
                    None if was_open => self.query_next(now),
                    None if self.rounds.is_under_way() => {}
                    // It is too late to be compared with others.
                    None => drop(self.topology.conclude(self.master_serves())),
                }
                match is_late || has_timed_out {
                    _ if self.topology.changes() != changes => QueryResult::Used,
                    true => QueryResult::Late,
                    false => QueryResult::Unchanged,
                }
            }
            Err(reason) => {
                let is_auth = matches!(reply, Reply::Error(refusal) if refusal.is_auth());
                self.count_error(key, if is_auth { ErrorKind::Auth } else { ErrorKind::Unfit });
                self.warn(key, format!("topology query failed: {reason}"));
                if was_open {
                    self.query_next(now);
                }
                QueryResult::Failed
            }
        }
    }

    /// Whether the master serves, where there is but one.
    fn master_serves(&self) -> bool {
        let master = self.topology.route(0).and_then(|key| self.nodes.get(key));
        master.is_some_and(super::Node::serves)
    }

    /// The nodes that were queried have replied with this layout.
    fn end_round(&mut self, layout: Layout, now: u64) {
        self.rounds.turn_nodes();
        let has_changed = self.apply(layout, now);
        let is_urgent = self.is_urgent();
        let random = self.random.next();
        self.rounds.end(is_urgent && !has_changed, random, now);
        match self.rounds.set_next(is_urgent, || self.random.next(), now) {
            Some(at) => self.agenda.advance_to(Due::Topology, at),
            None => self.refresh_topology(now),
        }
    }

    /// No reply to the query of this number will come from a node.
    pub(super) fn on_query_failed(&mut self, number: u32, key: NodeKey, now: u64) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.owes_topology = false;
        }
        if self.rounds.close(number) {
            self.query_next(now);
        }
    }

    /// A sentinel is connected: what it has announced meanwhile was missed, unless it is to be queried
    /// anyway.
    pub(super) fn on_sentinel_connected(&mut self, key: ConnectionKey, now: u64) {
        if self.connections.get(key).is_some_and(super::Connection::is_quiet) {
            let number = self.rounds.next_number();
            self.push(key, Owner::Topology(number), now);
        }
    }

    /// A node has sent a message of a channel. What one sentinel announces the others may not know yet.
    pub(super) fn on_message(&mut self, reply: &Reply<'_>, from: NodeKey, now: u64) {
        if let Reply::Other(message) = reply
            && let Some(layout) = self.topology.on_message(*message)
        {
            match self.topology.weigh(layout, from, false) {
                Some(layout) => drop(self.apply(layout, now)),
                None if self.master_serves() => {}
                None => self.want_refresh(now),
            }
        }
    }

    /// Whether something is missing in the topology.
    fn is_urgent(&self) -> bool {
        let seeds = self.nodes.seeds();
        let is_missing = |key: &NodeKey| {
            let is_needed = !seeds.contains(key) || self.topology.is_master(*key);
            is_needed && self.nodes.get(*key).is_some_and(|node| !node.is_available())
        };
        self.topology.is_incomplete()
            || !self.nodes.retired().is_empty()
            || self.nodes.current().iter().any(is_missing)
    }
}

/// A new topology.
impl Client {
    /// Applies a layout. Returns whether that has changed something of note.
    fn apply(&mut self, layout: Layout, now: u64) -> bool {
        self.rounds.on_applied();
        let before = self.nodes.current().to_vec();
        let (masters, line) = self.topology.apply(layout, &mut self.nodes);
        let is_news = line.is_some();
        if let Some((level, line)) = line {
            self.agenda.push(Action::Log(level, line));
        }
        for master in &masters {
            self.complete_node(*master);
        }
        self.nodes.retire_others(&masters, now);
        self.close_unneeded_seeds(&masters);
        self.remove_retired(now);
        masters.into_iter().for_each(|master| self.open_node(master, now));
        self.route_parked(now);
        is_news || before != self.nodes.current()
    }

    /// The node at this address, which is added if it is new.
    pub(super) fn find_or_add_node(&mut self, host: &str, port: u16) -> NodeKey {
        let node = self.nodes.find_or_add(host, port);
        self.complete_node(node);
        node
    }

    /// Gives a new node its connections.
    fn complete_node(&mut self, key: NodeKey) {
        if self.nodes.get(key).is_some_and(|node| node.connections.is_empty()) {
            self.add_connections(key);
        }
    }

    /// Closes the connections to nodes of the configuration that are no masters, and does not try to make
    /// them: whether such a node is up makes no difference. They may know the topology when no other node
    /// does, so they stay. Sentinels are kept connected.
    fn close_unneeded_seeds(&mut self, masters: &[NodeKey]) {
        if self.topology.seed_role() == Role::Sentinel {
            return;
        }
        let unneeded = self.nodes.seeds().iter().filter(|key| !masters.contains(key));
        for node in unneeded.copied().collect::<Vec<_>>() {
            for key in self.connections_of(node) {
                if let Some(mut link) = self.link(key).filter(|link| !link.connection.is_idle()) {
                    link.close_if_quiet();
                }
            }
        }
    }

    /// Removes the retired nodes that owe no reply, or are retired for too long.
    fn remove_retired(&mut self, now: u64) {
        for node in self.nodes.retired().to_vec() {
            let since = self.nodes.get(node).and_then(|node| node.retired_at).unwrap_or(0);
            let is_quiet = |key: &ConnectionKey| {
                self.connections.get(*key).is_none_or(super::Connection::is_quiet)
            };
            let is_done = self.connections_of(node).iter().all(is_quiet)
                || now.saturating_sub(since) >= RETIREMENT;
            if is_done {
                self.remove_node(node, now);
            }
        }
    }

    fn remove_node(&mut self, node: NodeKey, now: u64) {
        for key in self.connections_of(node) {
            self.abandon(key, node, now);
        }
        self.nodes.remove(node);
        self.agenda.push(Action::Remove(node));
    }
}
