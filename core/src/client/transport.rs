//! Connections: made, used and lost.

use super::connection::{Connection, ConnectionState, Fault, Next, PATIENCE_WHEN_ACCEPTED};
use super::in_flight::Owner;
use super::key::{CommandKey, ConnectionKey, NodeKey};
use super::link::Lost;
use super::node::{Role, Target};
use super::request::{Error, Request};
use super::timers::Due;
use super::{Action, Client, Level};
use crate::metrics::{self, ErrorKind, QueryResult};
use crate::redis::command::pack;
use crate::redis::script::By;

/// Connecting.
impl Client {
    /// Adds the connections of a node. None is made yet.
    pub(super) fn add_connections(&mut self, key: NodeKey) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        let count = if node.role == Role::Sentinel { 1 } else { self.connections_a_node };
        for _ in 0..count {
            let connection = Connection::new(key, node.handshake.clone());
            node.connections.push(self.connections.insert(connection));
        }
        self.agenda.push(Action::View(key));
    }

    pub(super) fn open_all(&mut self, now: u64) {
        for node in self.nodes.current().to_vec() {
            self.open_node(node, now);
        }
    }

    /// Connects to a node, unless it is connected.
    pub(super) fn open_node(&mut self, node: NodeKey, now: u64) {
        for key in self.connections_of(node) {
            self.connect_if_idle(key, now);
        }
    }

    pub(super) fn connections_of(&self, node: NodeKey) -> Vec<ConnectionKey> {
        self.nodes.get(node).map_or_else(Vec::new, |node| node.connections.clone())
    }

    fn connect_if_idle(&mut self, key: ConnectionKey, now: u64) {
        if let Some(mut link) = self.link(key).filter(|link| link.connection.is_idle()) {
            let result = link.connect(now);
            self.check_attempt(key, result, now);
        }
    }

    /// Starts to connect.
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
        if let Some(connection) = self.connections.get_mut(key)
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
            link.connection.on_connected(link.node.abilities);
            self.agenda.push(Action::Send(key));
        }
    }

    /// Whether bytes can be exchanged over a connection.
    pub fn is_open(&self, key: ConnectionKey) -> bool {
        self.connections.get(key).is_some_and(Connection::is_open)
    }
}

/// Sending.
impl Client {
    /// What is to be sent now: the rest of the last batch, else all commands that wait, encoded.
    /// Empty if there is nothing.
    pub fn output(&mut self, key: ConnectionKey, now: u64) -> &[u8] {
        self.encode_batch(key, now);
        self.connections.get(key).map_or(&[], Connection::output)
    }

    /// `count` bytes of the output were sent.
    pub fn on_sent(&mut self, key: ConnectionKey, count: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.on_sent(count);
        }
    }

    /// Encodes the commands that wait, unless some of the last batch are not sent yet.
    pub(super) fn encode_batch(&mut self, key: ConnectionKey, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.is_flushed() || !connection.has_room() {
            return;
        }
        connection.begin_batch(now);
        while let Some(connection) = self.connections.get_mut(key)
            && connection.has_room()
            && let Some(owner) = connection.queue.next_unsent()
        {
            self.encode(key, owner, now);
        }
        if let Some(blame) = self.connections.get(key).and_then(|it| it.overdue_at(self.patience)) {
            self.agenda.advance_to(Due::Connections, blame);
        }
    }

    fn encode(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        match owner {
            Owner::Command(command) => self.encode_command(key, command, now),
            Owner::Probe => {
                if let Some(mut link) = self.link(key) {
                    link.encode(owner, &["PING"], metrics::CommandKind::Ping, now);
                }
            }
            Owner::Topology(_) => {
                if let Some(query) = self.topology.query()
                    && let Some(mut link) = self.link(key)
                {
                    link.encode_query(owner, &query, now);
                }
            }
            Owner::Asking | Owner::Subscription => {}
        }
    }

    fn encode_command(&mut self, key: ConnectionKey, command_key: CommandKey, now: u64) {
        if self.drop_gone(command_key) {
            return self.commands.remove(command_key);
        }
        let Some(command) = self.commands.get_mut(command_key) else { return };
        let Some(connection) = self.connections.get_mut(key) else { return };
        let node = connection.node;
        if command.is_asking {
            pack(connection.buffer(), &["ASKING"]);
            connection.queue.on_sent(Owner::Asking, now);
        }
        command.encode(&self.scripts, connection.buffer());
        let timeouts = command.members.iter().map(|member| member.timeout);
        let shortest = timeouts.clone().min().unwrap_or(0);
        connection.queue.on_command_sent(command_key, now, shortest);
        connection.await_until(now.saturating_add(timeouts.max().unwrap_or(0)));
        let counted = match command.by {
            By::Sha => metrics::CommandKind::Evalsha,
            By::Source => metrics::CommandKind::Eval,
        };
        let is_asking = command.is_asking;
        command.on_sent();
        for member in &command.members {
            if let Some(request) = self.requests.get_mut(member.request) {
                request.on_sent(member.first, command.len(), node);
            }
        }
        self.count(node, |node| {
            node.count_command(counted);
            if is_asking {
                node.count_command(metrics::CommandKind::Asking);
            }
        });
    }

    /// Removes released requests from a command that was not sent. Returns whether none is left.
    pub(super) fn drop_gone(&mut self, key: CommandKey) -> bool {
        let requests = &self.requests;
        let is_gone = |request| !requests.get(request).is_some_and(Request::is_waiting);
        let Some(command) = self.commands.get_mut(key) else { return true };
        let gone = command.take_gone(is_gone);
        let is_unneeded = !gone.is_empty() && command.members.is_empty();
        gone.into_iter().for_each(|member| self.conclude(member, Err(Error::Lost)));
        is_unneeded
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
            self.rounds.on_timeout();
        }
        self.topology.forget(node);
        if was_ready && self.topology.query().is_some() {
            self.want_refresh(now);
        }
        self.lose_in_flight(key, node, now);
        self.check_slowness(node);
        match next {
            Next::Connect { is_first } => self.replace(key, fault, is_first, now),
            Next::Wait(delay) => self.on_unreachable(key, fault, delay, now),
        }
    }

    /// Connects again at once. If several connections of a node are lost together, only the first loss is
    /// logged.
    fn replace(&mut self, key: ConnectionKey, fault: &Fault, is_first: bool, now: u64) {
        let Some(mut link) = self.link(key) else { return };
        link.count_error(ErrorKind::Lost);
        if is_first && link.node.lacks_one() {
            let line = format!("redis {}: {fault}, reconnecting", link.node.name());
            link.agenda.push(Action::Log(Level::Notice, line));
        }
        self.connect_if_idle(key, now);
    }

    /// A server has accepted a connection, and takes long.
    pub(super) fn on_late(&mut self, key: ConnectionKey, fault: &Fault, now: u64) {
        let is_leaving = self.is_leaving;
        match self.link(key).is_some_and(|mut link| !is_leaving && link.on_late()) {
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
        while let Some(owner) = self.connections.get_mut(key).and_then(|it| it.queue.next_lost()) {
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
        while let Some(owner) = self.connections.get_mut(key).and_then(|it| it.queue.next_unsent())
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
        self.connections.remove(key);
        self.check_slowness(node);
    }

    fn lose_other(&mut self, owner: Owner, node: NodeKey, now: u64) {
        match owner {
            Owner::Probe => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.health.on_probe_failed();
                }
            }
            Owner::Topology(number) => {
                self.agenda.push(Action::Queried(node, QueryResult::Failed));
                self.on_query_failed(number, node, now);
            }
            Owner::Command(_) | Owner::Asking | Owner::Subscription => {}
        }
    }
}
