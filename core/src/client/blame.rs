//! Failures that count against a server, and their consequences.
//!
//! A deadline ends the wait of a request, and is no failure of the server. A failure of the server
//! is a command that was sent and not answered within the store's patience, which is the longest
//! timeout of any of its locations, within bounds. What was never sent is no failure of the server,
//! and the time for which the worker itself was away is taken off. While a server owes a reply for
//! longer, it is slow.

use super::agenda::{Agenda, Due};
use super::connection::{Connection, ConnectionState, SILENCE};
use super::fault::Fault;
use super::health::Failure;
use super::in_flight::Owner;
use super::pool::Pool;
use super::slab::{ConnectionKey, NodeKey, RequestKey};
use super::{Action, Client};
use crate::rate::MILLISECOND;

/// Blame.
impl Client {
    /// Does what is due at each connection.
    pub(super) fn check_connections(&mut self, now: u64) {
        for key in self.pool.connections.keys().collect::<Vec<_>>() {
            self.blame(key, now);
            self.check_silence_of(key, now);
            self.check_attempt_of(key, now);
        }
    }

    /// Ends an attempt to connect that takes too long, or begins the next one.
    fn check_attempt_of(&mut self, key: ConnectionKey, now: u64) {
        let is_done = self.is_done();
        let Some(mut link) = self.link(key) else { return };
        if link.connection.timer.is_none_or(|at| at > now) {
            return;
        }
        match link.connection.state {
            // The next command connects.
            ConnectionState::Down if is_done => link.close(),
            ConnectionState::Down => self.connect(key, now),
            ConnectionState::Resolving | ConnectionState::Connecting => {
                self.on_lost(key, &Fault::ConnectTimeout, now);
            }
            ConnectionState::Securing => self.on_late(key, &Fault::SecureTimeout, now),
            ConnectionState::Handshake => self.on_late(key, &Fault::ConnectTimeout, now),
            ConnectionState::Idle | ConnectionState::Ready { .. } => {}
        }
    }

    /// Counts the commands that a server has not answered in time as its failures; those of one
    /// request as one.
    fn blame(&mut self, key: ConnectionKey, now: u64) {
        while let Some(connection) = self.pool.connections.get_mut(key)
            && connection.overdue_at(self.pool.patience).is_some_and(|at| at <= now)
            && let Some(oldest) = connection.queue.oldest()
        {
            connection.queue.mark_overdue();
            let node = connection.node;
            let Owner::Command(command) = oldest.owner else { continue };
            let request = self.commands.first_request(command);
            self.on_overdue(node, request, now);
        }
    }

    /// A server has not answered a command of a request in time.
    fn on_overdue(&mut self, key: NodeKey, request: Option<RequestKey>, now: u64) {
        let Some(node) = self.pool.nodes.get_mut(key) else { return };
        let was_up = node.health.is_up();
        match node.health.on_overdue(request, now) {
            Failure::Known => {}
            Failure::Counted if node.is_available() => self.pool.on_slow(key, &mut self.agenda),
            Failure::Counted => {}
            Failure::Opened => self.on_opened(key, was_up, now),
        }
    }

    /// The breaker of a server has opened.
    fn on_opened(&mut self, key: NodeKey, was_up: bool, now: u64) {
        self.agenda.push(Action::View(key));
        let reason = format!("no reply within {} ms", self.pool.patience / MILLISECOND);
        self.agenda.push(match was_up {
            true => Action::Down(key, reason),
            false => Action::StillDown(key, reason),
        });
        if self.discovery.can_change() {
            self.discovery.want(now, &mut self.agenda);
        }
        self.probe(key, now);
    }

    /// The next reply on some connection may be waited for less than the one before.
    pub(super) fn on_patience_changed(&mut self) {
        self.set_timer(Due::Connections);
    }

    /// Ends the connections on which a node owes replies for too long.
    pub(super) fn check_silence(&mut self, node: NodeKey, now: u64) {
        for key in self.pool.connections_of(node) {
            self.check_silence_of(key, now);
        }
    }

    fn check_silence_of(&mut self, key: ConnectionKey, now: u64) {
        let query_patience = self.discovery.rounds.patience();
        let Some(connection) = self.pool.connections.get(key) else { return };
        if self.pool.silent_at(connection, query_patience).is_some_and(|at| at <= now) {
            let fault = Fault::Silent(self.pool.silence(connection, query_patience));
            self.on_lost(key, &fault, now);
        }
    }
}

/// The knowledge of all servers. A server may take the `query_patience` to reply to a query for the topology.
impl Pool {
    /// The worker was away for this long: that time does not count as silence of any server.
    pub(super) fn excuse_all(&mut self, away: u64, now: u64) {
        for key in self.connections.keys().collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.excuse(away, self.patience, now);
            }
        }
    }

    /// When something is due at the first of the connections.
    pub(super) fn next_due(&self, query_patience: u64) -> Option<u64> {
        let due = |connection: &Connection| {
            let blame = connection.overdue_at(self.patience);
            let silent = self.silent_at(connection, query_patience);
            [connection.timer, blame, silent].into_iter().flatten().min()
        };
        self.connections.keys().filter_map(|key| due(self.connections.get(key)?)).min()
    }

    /// When the server of a connection will be considered dead, if it owes a reply.
    pub(super) fn silent_at(&self, connection: &Connection, query_patience: u64) -> Option<u64> {
        connection.silent_at(self.silence(connection, query_patience))
    }

    /// How long the server of a connection may owe replies and send nothing: longer where the server is busy
    /// with the handshakes of a fleet, which is not helped by more of them.
    fn silence(&self, connection: &Connection, query_patience: u64) -> u64 {
        let more = match connection.queue.owes_topology() {
            true => query_patience,
            false => SILENCE << self.nodes.get(connection.node).map_or(0, |node| node.silences),
        };
        connection.silence(self.patience.max(more), self.nodes.config.longest_timeout)
    }

    /// A server that is up owes a reply for longer than the patience.
    fn on_slow(&mut self, key: NodeKey, agenda: &mut Agenda) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        if node.health.on_slow() {
            agenda.push(Action::View(key));
        }
        agenda.push(Action::Slow(key, self.patience));
    }

    /// A server has sent an overdue reply, or none will come any more.
    pub(super) fn check_slowness(&mut self, key: NodeKey, agenda: &mut Agenda) {
        let is_overdue = |key: &ConnectionKey| {
            self.connections.get(*key).is_some_and(|connection| connection.queue.is_overdue())
        };
        if let Some(node) = self.nodes.get_mut(key)
            && node.health.is_slow()
            && !node.connections.iter().any(is_overdue)
        {
            node.health.on_prompt();
            agenda.push(Action::View(key));
            agenda.push(Action::Prompt(key));
        }
    }

    /// Reports that a node is up, if it is. Another worker may have found it down.
    fn check_recovery(&mut self, key: NodeKey, agenda: &mut Agenda) {
        if let Some(node) = self.nodes.get_mut(key)
            && node.recover()
        {
            agenda.push(Action::Up(key));
        }
    }

    /// The connection over which a node is probed, if it can be now.
    fn begin_probe(&mut self, key: NodeKey) -> Option<ConnectionKey> {
        let can_probe = |key: &&ConnectionKey| {
            self.connections.get(**key).is_some_and(|it| it.is_ready() || it.is_idle())
        };
        let node = self.nodes.get_mut(key)?;
        let connection = node.connections.iter().find(can_probe).copied()?;
        node.health.begin_probe().then_some(connection)
    }
}

/// So many doublings of the time for which a server may be silent count: 8 s.
const SILENCE_DOUBLINGS: u32 = 3;

/// Silence.
impl super::Node {
    /// A connection has ended because the server owed replies for too long.
    pub(super) fn on_silence(&mut self) {
        self.silences = self.silences.saturating_add(1).min(SILENCE_DOUBLINGS);
    }

    /// A connection is ready, for which the server has taken so long: it may take as long for a reply.
    pub(super) fn on_ready(&mut self, took: u64) {
        let is_enough = |doublings: &u32| SILENCE << doublings >= took;
        let doublings = (0..SILENCE_DOUBLINGS).find(is_enough).unwrap_or(SILENCE_DOUBLINGS);
        self.silences = self.silences.max(doublings);
        self.is_permission_missing = false;
    }
}

/// Probes.
impl Client {
    /// Sends the probes that are due. A worker that is leaving sends them with the next request.
    pub(super) fn probe_nodes(&mut self, now: u64) {
        for key in self.pool.nodes.all().collect::<Vec<_>>() {
            let Some(node) = self.pool.nodes.get_mut(key) else { continue };
            if node.health.probe_at().is_none_or(|at| at > now) {
                continue;
            }
            match self.leaving.has_begun() {
                true => node.health.unschedule_probe(),
                false => self.probe(key, now),
            }
        }
    }

    /// A node has taken no command. A worker that is leaving probes it then.
    pub(super) fn probe_refused(&mut self, key: NodeKey, now: u64) {
        let is_due = |node: &super::Node| node.health.is_open() && node.health.probe_at().is_none();
        if self.leaving.has_begun() && self.pool.nodes.get(key).is_some_and(is_due) {
            self.probe(key, now);
        }
    }

    /// Probes a node whose breaker is open, and sets the time of the next probe.
    fn probe(&mut self, key: NodeKey, now: u64) {
        self.check_silence(key, now);
        let random = self.random.next();
        let Some(node) = self.pool.nodes.get_mut(key) else { return };
        let Some(at) = node.health.schedule_probe(random, now) else { return };
        if let Some(connection) = self.pool.begin_probe(key) {
            self.push(connection, Owner::Probe, now);
        }
        self.agenda.advance_to(Due::Probes, at);
    }

    /// A server has replied to a probe. A reply that comes too late for requests closes no breaker.
    pub(super) fn on_probe_reply(&mut self, key: NodeKey, was_overdue: bool) {
        let Some(node) = self.pool.nodes.get_mut(key) else { return };
        if was_overdue {
            return node.health.on_probe_failed();
        }
        node.health.on_probe_answered();
        self.agenda.push(Action::View(key));
        self.pool.check_recovery(key, &mut self.agenda);
    }
}

/// Up and down.
impl Client {
    /// A server has answered a command in time.
    pub(super) fn on_answered(&mut self, key: NodeKey) {
        let Some(node) = self.pool.nodes.get_mut(key) else { return };
        node.is_cut_off = false;
        let (was_patient, is_unfit) = (node.silences > 0, node.is_unfit);
        node.silences = node.silences.saturating_sub(1);
        let ends_failures = node.health.needs_answer() || node.has_undecided;
        if ends_failures {
            node.health.on_answered();
        }
        if was_patient {
            self.on_patience_changed();
        }
        if ends_failures {
            // A server that refuses to write answers whatever charges nothing: that is no end of an outage.
            if !is_unfit {
                self.pool.count(key, &mut self.agenda, super::Node::count_answered);
            }
            self.pool.check_recovery(key, &mut self.agenda);
        }
    }

    /// A server that was unfit has charged a request. That it rejects others shows nothing: it writes nothing for them.
    pub(super) fn on_fit_again(&mut self, key: NodeKey) {
        if let Some(node) = self.pool.nodes.get_mut(key) {
            node.is_unfit = false;
            self.pool.count(key, &mut self.agenda, super::Node::count_answered);
            self.pool.check_recovery(key, &mut self.agenda);
        }
    }
}
