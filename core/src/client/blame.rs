//! What counts as a failure of a server, and what follows from it.
//!
//! A deadline ends the wait of a request, and is no failure of the server. A failure of the server
//! is a command that was sent and not answered within the store's patience, which is the longest
//! timeout of any of its locations, within bounds. What was never sent is no failure of the server,
//! and the time for which the worker itself was away is taken off. While a server owes a reply for
//! longer, it is slow.

use super::connection::{Connection, ConnectionState, Fault, SILENCE};
use super::health::Failure;
use super::in_flight::Owner;
use super::key::{ConnectionKey, NodeKey, RequestKey};
use super::timers::Due;
use super::{Action, Client};
use crate::rate::MILLISECOND;

/// Blame.
impl Client {
    /// The worker was away for this long: that time does not count as silence of any server.
    pub(super) fn excuse_all(&mut self, away: u64, now: u64) {
        for key in self.connections.keys().collect::<Vec<_>>() {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.excuse(away, self.patience, now);
            }
        }
    }

    /// Does what is due at each connection.
    pub(super) fn check_connections(&mut self, now: u64) {
        for key in self.connections.keys().collect::<Vec<_>>() {
            self.blame(key, now);
            self.check_silence_of(key, now);
            self.check_attempt_of(key, now);
        }
    }

    /// Ends an attempt to connect that takes too long, or begins the next one.
    fn check_attempt_of(&mut self, key: ConnectionKey, now: u64) {
        let is_leaving = self.is_leaving;
        let Some(mut link) = self.link(key) else { return };
        if link.connection.timer.is_none_or(|at| at > now) {
            return;
        }
        match link.connection.state {
            // The next command connects.
            ConnectionState::Down if is_leaving => link.close(),
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
        while let Some(connection) = self.connections.get_mut(key)
            && connection.overdue_at(self.patience).is_some_and(|at| at <= now)
            && let Some(oldest) = connection.queue.oldest()
        {
            connection.queue.mark_overdue();
            let node = connection.node;
            let Owner::Command(command) = oldest.owner else { continue };
            let members = self.commands.get(command).map(|command| &command.members);
            let request = members.and_then(|members| members.first()).map(|it| it.request);
            self.on_overdue(node, request, now);
        }
    }

    /// A server has not answered a command of a request in time.
    fn on_overdue(&mut self, key: NodeKey, request: Option<RequestKey>, now: u64) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        let was_up = node.health.is_up();
        match node.health.on_overdue(request, now) {
            Failure::Known => {}
            Failure::Counted if node.is_available() => self.on_slow(key),
            Failure::Counted => {}
            Failure::Opened => self.on_opened(key, was_up, now),
        }
    }

    /// The breaker of a server has opened.
    fn on_opened(&mut self, key: NodeKey, was_up: bool, now: u64) {
        self.agenda.push(Action::View(key));
        if was_up {
            let reason = format!("no reply within {} ms", self.patience / MILLISECOND);
            self.agenda.push(Action::Down(key, reason));
        }
        if self.topology.query().is_some() {
            self.want_refresh(now);
        }
        self.probe(key, now);
    }

    /// A server that is up owes a reply for longer than the patience.
    fn on_slow(&mut self, key: NodeKey) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        if node.health.on_slow() {
            self.agenda.push(Action::View(key));
        }
        self.agenda.push(Action::Slow(key, self.patience));
    }

    /// A server has sent an overdue reply, or none will come any more.
    pub(super) fn check_slowness(&mut self, key: NodeKey) {
        let is_overdue = |key: &ConnectionKey| {
            self.connections.get(*key).is_some_and(|connection| connection.queue.is_overdue())
        };
        let Some(node) = self.nodes.get(key).filter(|node| node.health.is_slow()) else { return };
        if node.connections.iter().any(is_overdue) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(key) {
            node.health.on_prompt();
            self.agenda.push(Action::View(key));
            self.agenda.push(Action::Prompt(key));
        }
    }

    /// The next reply on some connection may be waited for less than the one before.
    pub(super) fn on_patience_changed(&mut self) {
        self.agenda.timers.set(Due::Connections, self.next_due(Due::Connections));
    }

    /// Ends the connections on which a node owes replies for too long.
    pub(super) fn check_silence(&mut self, node: NodeKey, now: u64) {
        for key in self.connections_of(node) {
            self.check_silence_of(key, now);
        }
    }

    fn check_silence_of(&mut self, key: ConnectionKey, now: u64) {
        let Some(connection) = self.connections.get(key) else { return };
        if self.silent_at(connection).is_some_and(|at| at <= now) {
            let fault = Fault::Silent(self.silence(connection));
            self.on_lost(key, &fault, now);
        }
    }

    /// When the server of a connection will be considered dead, if it owes a reply.
    pub(super) fn silent_at(&self, connection: &Connection) -> Option<u64> {
        connection.silent_at(self.silence(connection))
    }

    /// How long the server of a connection may owe replies and send nothing: longer where the server is busy with the
    /// handshakes of a fleet, which is not helped by more of them.
    fn silence(&self, connection: &Connection) -> u64 {
        let more = match connection.queue.owes_topology() {
            true => self.rounds.patience(),
            false => SILENCE << self.nodes.get(connection.node).map_or(0, |node| node.silences),
        };
        connection.silence(self.patience.max(more), self.longest_timeout)
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
    }
}

/// Probes.
impl Client {
    /// Sends the probes that are due. A worker that is leaving sends them with the next request.
    pub(super) fn probe_nodes(&mut self, now: u64) {
        for key in self.nodes.all().collect::<Vec<_>>() {
            let Some(node) = self.nodes.get_mut(key) else { continue };
            if node.health.probe_at().is_none_or(|at| at > now) {
                continue;
            }
            match self.is_leaving {
                true => node.health.unschedule_probe(),
                false => self.probe(key, now),
            }
        }
    }

    /// A node has taken no command. A worker that is leaving probes it then.
    pub(super) fn probe_refused(&mut self, key: NodeKey, now: u64) {
        let is_due = |node: &super::Node| node.health.is_open() && node.health.probe_at().is_none();
        if self.is_leaving && self.nodes.get(key).is_some_and(is_due) {
            self.probe(key, now);
        }
    }

    /// Probes a node whose breaker is open, and sets the time of the next probe.
    fn probe(&mut self, key: NodeKey, now: u64) {
        self.check_silence(key, now);
        let random = self.random.next();
        let Some(node) = self.nodes.get_mut(key) else { return };
        let Some(at) = node.health.schedule_probe(random, now) else { return };
        let can_probe = |key: &&ConnectionKey| {
            self.connections.get(**key).is_some_and(|it| it.is_ready() || it.is_idle())
        };
        if let Some(connection) = node.connections.iter().find(can_probe).copied()
            && node.health.begin_probe()
        {
            self.push(connection, Owner::Probe, now);
        }
        self.agenda.advance_to(Due::Probes, at);
    }

    /// A server has replied to a probe. A reply that comes too late for requests closes no breaker.
    pub(super) fn on_probe_reply(&mut self, key: NodeKey, was_overdue: bool) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        if was_overdue {
            return node.health.on_probe_failed();
        }
        node.health.on_probe_answered();
        self.agenda.push(Action::View(key));
        self.check_recovery(key);
    }
}

/// Up and down.
impl Client {
    /// A server has answered a command in time.
    pub(super) fn on_answered(&mut self, key: NodeKey) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        node.is_cut_off = false;
        let was_patient = node.silences > 0;
        node.silences = node.silences.saturating_sub(1);
        let is_news = node.health.is_mute() || node.has_undecided;
        if is_news {
            node.health.on_answered();
        }
        if was_patient {
            self.on_patience_changed();
        }
        if is_news {
            self.count(key, super::Node::count_answered);
            self.check_recovery(key);
        }
    }

    /// Reports that a node is up, if it is. Another worker may have found it down.
    pub(super) fn check_recovery(&mut self, key: NodeKey) {
        if let Some(node) = self.nodes.get_mut(key)
            && node.recover()
        {
            self.agenda.push(Action::Up(key));
        }
    }
}
