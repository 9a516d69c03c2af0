//! Connections: made, used and lost.

use std::rc::Rc;

use super::agenda::Due;
use super::connection::{Connection, ConnectionState, Next, PATIENCE_WHEN_ACCEPTED};
use super::fault::Fault;
use super::handshake::PING;
use super::in_flight::Owner;
use super::link::Lost;
use super::node::Target;
use super::requests::Error;
use super::slab::{CommandKey, ConnectionKey, NodeKey};
use super::{Action, Client, Level};
use crate::metrics::{CommandKind, ErrorKind, QueryResult};

/// Connecting.
impl Client {
    /// Connects to a node, unless it is connected.
    pub(super) fn open_node(&mut self, node: NodeKey, now: u64) {
        for key in self.pool.connections_of(node) {
            self.connect_if_idle(key, now);
        }
    }

    fn connect_if_idle(&mut self, key: ConnectionKey, now: u64) {
        if self.pool.connections.get(key).is_some_and(Connection::is_idle) {
            self.connect(key, now);
        }
    }

    #[cold]
    pub(super) fn connect(&mut self, key: ConnectionKey, now: u64) {
        if let Some(mut link) = self.link(key) {
            let result = link.connect(now);
            self.check_attempt(key, result, now);
        }
    }

    /// An attempt to connect may have failed at once.
    fn check_attempt(&mut self, key: ConnectionKey, result: Result<(), Fault>, now: u64) {
        if let Err(fault) = result {
            self.on_lost(key, &fault, now);
        }
    }

    /// The host name of a connection's node was resolved to `targets`; they are empty if that
    /// failed. Their order may differ each time, but connections try them in turn: the same ones keep
    /// the order that they have.
    pub fn on_resolved(&mut self, key: ConnectionKey, targets: Vec<Target>, now: u64) {
        let Some(mut link) = self.link(key) else { return };
        if link.connection.state != ConnectionState::Resolving {
            return;
        }
        if !targets.is_empty() && !link.node.has_targets(&targets) {
            link.node.targets = targets;
        }
        let result = link.dial();
        self.check_attempt(key, result, now);
    }

    /// A connection is made, and the TLS handshake begins.
    pub fn on_securing(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.pool.connections.get_mut(key)
            && connection.state == ConnectionState::Connecting
        {
            connection.state = ConnectionState::Securing;
        }
    }

    /// A connection is made, and its TLS handshake, if any, is complete.
    pub fn on_connected(&mut self, key: ConnectionKey) {
        if let Some(link) = self.link(key)
            && matches!(
                link.connection.state,
                ConnectionState::Connecting | ConnectionState::Securing
            )
        {
            link.connection.on_connected(Rc::clone(&link.node.handshake), link.node.abilities);
            self.agenda.push(Action::Send(key));
        }
    }

    /// Whether bytes can be exchanged over a connection.
    pub fn is_open(&self, key: ConnectionKey) -> bool {
        self.pool.connections.get(key).is_some_and(Connection::is_open)
    }
}

/// Sending.
impl Client {
    /// The bytes to send now: the rest of the last batch, else all commands that wait, encoded.
    /// Empty if there is nothing.
    pub fn output(&mut self, key: ConnectionKey, now: u64) -> &[u8] {
        self.encode_batch(key, now);
        self.pool.connections.get(key).map_or(&[], Connection::output)
    }

    /// `count` bytes of the output were sent.
    pub fn on_sent(&mut self, key: ConnectionKey, count: usize) {
        if let Some(connection) = self.pool.connections.get_mut(key) {
            connection.on_sent(count);
        }
    }

    /// Encodes the commands that wait, unless some of the last batch are not sent yet.
    pub(super) fn encode_batch(&mut self, key: ConnectionKey, now: u64) {
        let Some(connection) = self.pool.connections.get_mut(key) else { return };
        if !connection.is_flushed() || !connection.has_room() {
            return;
        }
        connection.begin_batch(now);
        while let Some(connection) = self.pool.connections.get_mut(key)
            && connection.has_room()
            && let Some(owner) = connection.queue.next_unsent()
        {
            self.encode(key, owner, now);
        }
        if let Some(blame) =
            self.pool.connections.get(key).and_then(|it| it.overdue_at(self.pool.patience))
        {
            self.agenda.advance_to(Due::Connections, blame);
        }
    }

    fn encode(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        if let Owner::Command(command) = owner {
            return self.encode_command(key, command, now);
        }
        let Some(mut link) = self.pool.link(key, &mut self.agenda) else { return };
        match (owner, &self.discovery.query) {
            (Owner::Probe, _) => link.encode(owner, PING, CommandKind::Ping, now),
            (Owner::Topology(_), Some(query)) => link.encode_query(owner, query, now),
            (Owner::Login, _) => link.encode_login(now),
            (Owner::Topology(_), None) => {}
            (Owner::Command(_) | Owner::Asking | Owner::Subscription, _) => {}
        }
    }

    fn encode_command(&mut self, key: ConnectionKey, command_key: CommandKey, now: u64) {
        if self.commands.drop_gone(command_key, &mut self.requests, &mut self.agenda) {
            return self.fail(command_key, Error::Lost, now);
        }
        let Some(command) = self.commands.get_mut(command_key) else { return };
        let Some(mut link) = self.pool.link(key, &mut self.agenda) else { return };
        link.encode_command(command_key, command, &self.scripts, now);
        command.on_sent();
        self.requests.on_sent(command, link.connection.node);
    }
}

/// Losing.
impl Client {
    /// A connection was lost, or could not be made.
    pub fn on_lost(&mut self, key: ConnectionKey, fault: &Fault, now: u64) {
        let random = self.random.next();
        let lost = self.link(key).and_then(|mut link| link.lose(fault, random, now));
        let Some(Lost { node, next, was_ready, was_silent_about_topology }) = lost else { return };
        if was_silent_about_topology {
            self.discovery.rounds.on_timeout();
        }
        self.discovery.topology.forget(node);
        if was_ready && self.discovery.can_change() {
            self.discovery.want(now, &mut self.agenda);
        }
        self.lose_in_flight(key, node, now);
        if self.remove_if_done(node, now) {
            return;
        }
        match next {
            Next::Connect { is_first } => self.replace(key, fault, is_first, now),
            Next::Wait(delay) => self.on_unreachable(key, fault, delay, now),
        }
        // Last, so that a server that is down now is not said to be slow no more.
        self.pool.check_slowness(node, &mut self.agenda);
    }

    /// Connects again at once. If several connections of a node are lost together, only the first loss is
    /// logged.
    fn replace(&mut self, key: ConnectionKey, fault: &Fault, is_first: bool, now: u64) {
        let Some(mut link) = self.link(key) else { return };
        link.count(|node| node.count_error(ErrorKind::Lost));
        if is_first && link.node.lacks_one() {
            let line = format!("redis {}: {fault}, reconnecting", link.node.name());
            link.agenda.push(Action::Log(Level::Notice, line));
        }
        self.connect_if_idle(key, now);
    }

    /// A server has accepted a connection, and takes long.
    pub(super) fn on_late(&mut self, key: ConnectionKey, fault: &Fault, now: u64) {
        let is_done = self.is_done();
        match self.link(key).is_some_and(|mut link| !is_done && link.on_late()) {
            true => self.on_unreachable(key, fault, PATIENCE_WHEN_ACCEPTED, now),
            false => self.on_lost(key, fault, now),
        }
    }

    /// No other attempt to connect is made before `delay` has passed: what was not sent goes elsewhere.
    fn on_unreachable(&mut self, key: ConnectionKey, fault: &Fault, delay: u64, now: u64) {
        if let Some(mut link) = self.link(key) {
            link.pause(fault, delay, now);
            let node = link.connection.node;
            self.lose_unsent(key, node, now);
        }
    }

    /// The commands in flight get no reply. They may have run.
    fn lose_in_flight(&mut self, key: ConnectionKey, node: NodeKey, now: u64) {
        while let Some(owner) =
            self.pool.connections.get_mut(key).and_then(|it| it.queue.next_lost())
        {
            match owner {
                Owner::Command(command) => {
                    self.count_undecided(command, node);
                    self.fail(command, Error::Lost, now);
                }
                owner => self.lose_other(owner, node, now),
            }
        }
    }

    fn lose_unsent(&mut self, key: ConnectionKey, node: NodeKey, now: u64) {
        while let Some(owner) =
            self.pool.connections.get_mut(key).and_then(|it| it.queue.next_unsent())
        {
            match owner {
                Owner::Command(command) => {
                    self.count_undecided(command, node);
                    self.park(command, Error::Lost, now);
                }
                owner => self.lose_other(owner, node, now),
            }
        }
    }

    /// Ends the connection of a node that is removed.
    pub(super) fn abandon(&mut self, key: ConnectionKey, node: NodeKey, now: u64) {
        self.agenda.push(Action::Close(key));
        self.lose_in_flight(key, node, now);
        self.lose_unsent(key, node, now);
        self.pool.connections.remove(key);
        self.pool.check_slowness(node, &mut self.agenda);
    }

    fn lose_other(&mut self, owner: Owner, node: NodeKey, now: u64) {
        match owner {
            Owner::Probe => {
                if let Some(node) = self.pool.nodes.get_mut(node) {
                    node.health.on_probe_failed();
                }
            }
            Owner::Topology(number) => {
                self.agenda.push(Action::Queried(node, QueryResult::Failed));
                self.on_query_failed(number, node, now);
            }
            Owner::Command(_) | Owner::Asking | Owner::Subscription | Owner::Login => {}
        }
    }
}
