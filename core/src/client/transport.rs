//! Connections: made, used and lost.

use super::connection::{Connection, Fault, Next, PATIENCE_WHEN_ACCEPTED, State};
use super::handshake::Step;
use super::in_flight::Owner;
use super::key::{CommandKey, ConnectionKey, NodeKey};
use super::node::{Role, Target};
use super::request::{Error, Request};
use super::{Action, Client, Level};
use crate::metrics::{self, AttemptResult, ErrorKind, QueryResult};
use crate::redis::command::pack;
use crate::redis::reply::{Refusal, RefusalKind};
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
        self.actions.push_back(Action::View(key));
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

    fn connect_if_idle(&mut self, key: ConnectionKey, now: u64) {
        if self.connections.get(key).is_some_and(Connection::is_idle) {
            self.connect(key, now);
        }
    }

    pub(super) fn connections_of(&self, node: NodeKey) -> Vec<ConnectionKey> {
        self.nodes.get(node).map_or_else(Vec::new, |node| node.connections.clone())
    }

    /// Starts to connect, if need be by resolving the node's host name first.
    pub(super) fn connect(&mut self, key: ConnectionKey, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let end = connection.begin_attempt(self.connect_timeout, now);
        let name = self
            .nodes
            .get_mut(connection.node)
            .and_then(|node| node.next_name().map(|(host, port)| (host.to_owned(), port)));
        self.schedule(end);
        match name {
            Some((host, port)) => {
                self.set_state(key, State::Resolving);
                self.actions.push_back(Action::Resolve { connection: key, host, port });
            }
            None => self.dial(key, now),
        }
    }

    /// The host name of a connection's node was resolved to `targets`; they are empty if that
    /// failed. Their order may differ each time, but connections try them in turn: the same ones keep
    /// the order that they have.
    pub fn on_resolved(&mut self, key: ConnectionKey, targets: Vec<Target>, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.state != State::Resolving {
            return;
        }
        if let Some(node) = self.nodes.get_mut(connection.node)
            && !targets.is_empty()
            && !node.has_targets(&targets)
        {
            node.targets = targets;
        }
        self.dial(key, now);
    }

    /// Connects to one of the addresses that are known.
    fn dial(&mut self, key: ConnectionKey, now: u64) {
        let Some(connection) = self.connections.get(key) else { return };
        let node = self.nodes.get(connection.node);
        match node.and_then(|node| node.target(connection.address)).cloned() {
            Some(target) => {
                self.set_state(key, State::Connecting);
                self.actions.push_back(Action::Connect(key, target));
            }
            None => {
                let fault = Fault::Connect("its host name cannot be resolved".to_owned());
                self.on_lost(key, &fault, now);
            }
        }
    }

    /// A connection is made, and the TLS handshake begins.
    pub fn on_securing(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key)
            && connection.state == State::Connecting
        {
            connection.state = State::Securing;
        }
    }

    /// A connection is made, and its TLS handshake, if any, is complete.
    pub fn on_connected(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connections.get_mut(key)
            && matches!(connection.state, State::Connecting | State::Securing)
        {
            let node = self.nodes.get(connection.node);
            connection.on_connected(node.map(|node| node.abilities).unwrap_or_default());
            self.actions.push_back(Action::Send(key));
        }
    }

    /// Whether bytes can be exchanged over a connection.
    pub fn is_open(&self, key: ConnectionKey) -> bool {
        self.connections.get(key).is_some_and(Connection::is_open)
    }

    fn set_state(&mut self, key: ConnectionKey, state: State) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.state = state;
        }
        self.recount(key);
    }

    /// Updates the node's counts of connections.
    pub(super) fn recount(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let after = connection.usable();
        let before = std::mem::replace(&mut connection.counted, after);
        let node_key = connection.node;
        if before == after {
            return;
        }
        let Some(node) = self.nodes.get_mut(node_key) else { return };
        node.recount(before, after);
        self.actions.push_back(Action::View(node_key));
        self.check_recovery(node_key);
    }

    /// Closes a connection that nothing waits for, if the worker is leaving.
    pub(super) fn close_if_unneeded(&mut self, key: ConnectionKey) {
        if self.is_leaving && self.connections.get(key).is_some_and(Connection::is_quiet) {
            self.close(key);
        }
    }

    /// Closes a connection that nothing waits for; the next command opens it again.
    pub(super) fn close(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.on_closed();
        self.actions.push_back(Action::Close(key));
        self.recount(key);
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
            self.schedule(blame);
        }
    }

    fn encode(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        match owner {
            Owner::Command(command) => self.encode_command(key, command, now),
            Owner::Probe => self.encode_words(key, owner, &["PING"], metrics::Command::Ping, now),
            Owner::Topology(_) => self.encode_query(key, owner, now),
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
            By::Sha => metrics::Command::Evalsha,
            By::Source => metrics::Command::Eval,
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
                node.count_command(metrics::Command::Asking);
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

    fn encode_words(
        &mut self,
        key: ConnectionKey,
        owner: Owner,
        words: &[&str],
        counted: metrics::Command,
        now: u64,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        pack(connection.buffer(), words);
        connection.queue.on_sent(owner, now);
        let node = connection.node;
        self.count(node, |node| node.count_command(counted));
    }

    fn encode_query(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        let Some(query) = self.topology.query() else { return };
        let words: Vec<_> = query.words.iter().map(String::as_str).collect();
        if let Some(channel) = query.channel {
            self.encode_subscription(key, &["UNSUBSCRIBE", channel], now);
            self.encode_words(key, owner, &words, query.command, now);
            self.encode_subscription(key, &["SUBSCRIBE", channel], now);
        } else {
            self.encode_words(key, owner, &words, query.command, now);
        }
    }

    fn encode_subscription(&mut self, key: ConnectionKey, words: &[&str], now: u64) {
        if let Some(connection) = self.connections.get_mut(key) {
            pack(connection.buffer(), words);
            connection.queue.on_sent(Owner::Subscription, now);
        }
    }
}

/// Losing.
impl Client {
    /// A connection was lost, or could not be made.
    pub fn on_lost(&mut self, key: ConnectionKey, fault: &Fault, now: u64) {
        self.note_hang_up(key, fault);
        let random = self.random.next();
        let Some(connection) = self.connections.get_mut(key) else { return };
        if matches!(connection.state, State::Idle | State::Down) {
            return;
        }
        self.actions.push_back(Action::Close(key));
        let (node, was_ready) = (connection.node, connection.is_ready());
        if !was_ready {
            self.actions.push_back(Action::Attempted(node, attempt_result(fault)));
            if self.try_next_target(key, now) {
                return;
            }
        }
        // Another server of this host may be fit.
        if was_ready && matches!(fault, Fault::Unfit(_) | Fault::Misplaced) {
            self.turn_address(key);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        if matches!(fault, Fault::Silent(_)) {
            match connection.queue.owes_topology() {
                true => self.refresh.on_timeout(),
                false => drop(self.nodes.get_mut(node).map(super::Node::on_silence)),
            }
        }
        let next = connection.on_lost(fault, now, random);
        self.recount(key);
        self.topology.forget(node);
        if was_ready && self.topology.query().is_some() {
            self.want_refresh(now);
        }
        self.lose_in_flight(key, node, now);
        self.check_slowness(node);
        match next {
            Next::Connect { is_first } => {
                self.count_error(node, ErrorKind::Lost);
                // If several connections of a node are lost together, only the first loss is logged.
                let node = self.nodes.get(node).filter(|node| node.lacks_one());
                if let Some(node) = node.filter(|_| is_first) {
                    let line = format!("redis {}: {fault}, reconnecting", node.name());
                    self.actions.push_back(Action::Log(Level::Notice, line));
                }
                self.connect_if_idle(key, now);
            }
            Next::Wait(delay) => self.on_unreachable(key, node, fault, delay, now),
        }
    }

    /// Notes the step of the handshake instead of whose reply a server has closed the connection.
    fn note_hang_up(&mut self, key: ConnectionKey, fault: &Fault) {
        if let Some(connection) = self.connections.get(key)
            && let (Some(step), Fault::Closed(_)) = (connection.unanswered_step(), fault)
            && let Some(node) = self.nodes.get_mut(connection.node)
        {
            node.abilities.on_closed(step);
        }
    }

    /// Tries the next address of the node's host, unless all were tried: a host is not down because
    /// one of its addresses is.
    fn try_next_target(&mut self, key: ConnectionKey, now: u64) -> bool {
        let count = self.turn_address(key);
        let Some(connection) = self.connections.get_mut(key) else { return false };
        connection.tried = connection.tried.saturating_add(1);
        if connection.tried >= count {
            connection.tried = 0;
            return false;
        }
        let end = connection.begin_attempt(self.connect_timeout, now);
        self.schedule(end);
        self.dial(key, now);
        true
    }

    /// The next attempt is to connect to the next address of the node's host. Returns how many there are.
    fn turn_address(&mut self, key: ConnectionKey) -> usize {
        let count = self.count_addresses(key);
        let Some(connection) = self.connections.get_mut(key) else { return 0 };
        connection.address = connection.address.wrapping_add(1).checked_rem(count).unwrap_or(0);
        count
    }

    fn count_addresses(&self, key: ConnectionKey) -> usize {
        let node = self.connections.get(key).and_then(|it| self.nodes.get(it.node));
        node.map_or(0, |node| node.addresses().count())
    }

    /// A server has accepted a connection, and takes long. If it has another address, that is tried. Else
    /// it is waited for: where many clients connect at once, a new attempt would go to the end of the
    /// server's queue, and the old one would be work for it nevertheless.
    pub(super) fn on_late(&mut self, key: ConnectionKey, fault: &Fault, now: u64) {
        let addresses = self.count_addresses(key);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let is_last = connection.tried.saturating_add(1) >= addresses;
        if self.is_leaving || !is_last || !connection.on_late() {
            return self.on_lost(key, fault, now);
        }
        let node = connection.node;
        self.on_unreachable(key, node, fault, PATIENCE_WHEN_ACCEPTED, now);
    }

    /// No other attempt to connect is made before `delay` has passed: what was not sent goes elsewhere.
    fn on_unreachable(
        &mut self,
        key: ConnectionKey,
        node_key: NodeKey,
        fault: &Fault,
        delay: u64,
        now: u64,
    ) {
        let at = now.saturating_add(delay);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.timer = Some(at);
        }
        self.schedule(at);
        self.count_error(node_key, error_kind(fault));
        if let Some(node) = self.nodes.get_mut(node_key)
            && node.ready == 0
            && node.health.on_unreachable()
        {
            self.actions.push_back(Action::Down(node_key, fault.to_string()));
        }
        self.lose_unsent(key, node_key, now);
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
        self.actions.push_back(Action::Close(key));
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
                self.actions.push_back(Action::Queried(node, QueryResult::Failed));
                self.on_query_failed(number, node, now);
            }
            Owner::Command(_) | Owner::Asking | Owner::Subscription => {}
        }
    }
}

/// The result to count for an attempt that has failed.
fn attempt_result(fault: &Fault) -> AttemptResult {
    match fault {
        Fault::Connect(_) => AttemptResult::Refused,
        Fault::ConnectTimeout | Fault::SecureTimeout => AttemptResult::Timeout,
        Fault::Closed(_)
        | Fault::Silent(_)
        | Fault::Protocol(_)
        | Fault::Handshake(..)
        | Fault::Unfit(_)
        | Fault::Misplaced => AttemptResult::Rejected,
    }
}

/// The error to count for a lost connection.
fn error_kind(fault: &Fault) -> ErrorKind {
    match fault {
        Fault::Connect(_) | Fault::ConnectTimeout | Fault::SecureTimeout => ErrorKind::Connect,
        Fault::Closed(_) | Fault::Silent(_) => ErrorKind::Lost,
        Fault::Protocol(_) => ErrorKind::Protocol,
        Fault::Handshake(_, refusal) if refusal.is_auth() => ErrorKind::Auth,
        // A password where the server has none is refused with the code of any failure.
        Fault::Handshake(Step::Auth, Refusal { kind: RefusalKind::Failed, .. }) => ErrorKind::Auth,
        Fault::Handshake(..) => ErrorKind::Unfit,
        Fault::Unfit(_) | Fault::Misplaced => ErrorKind::Unfit,
    }
}
