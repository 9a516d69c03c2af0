//! A connection and its node, as one event finds them: their keys are looked up once.

use super::Action;
use super::agenda::Agenda;
use super::command::Command;
use super::connection::{Connection, ConnectionState, Fault, Next};
use super::handshake::Step;
use super::in_flight::Owner;
use super::key::{CommandKey, ConnectionKey, NodeKey};
use super::node::Node;
use super::timers::Due;
use super::topology::Query;
use crate::metrics::{AttemptResult, CommandKind, ErrorKind};
use crate::redis::command::pack;
use crate::redis::reply::{Refusal, RefusalKind};
use crate::redis::script::{By, Scripts};

/// A connection and its node.
#[derive(Debug)]
pub(super) struct Link<'a> {
    pub(super) key: ConnectionKey,
    pub(super) connection: &'a mut Connection,
    pub(super) node: &'a mut Node,
    pub(super) agenda: &'a mut Agenda,
    pub(super) connect_timeout: u64,
}

/// What a connection was lost from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) node: NodeKey,
    pub(super) next: Next,
    /// Whether it could be used.
    pub(super) was_ready: bool,
    /// Whether the server was silent about a topology query.
    pub(super) was_silent_about_topology: bool,
}

/// Connecting.
impl Link<'_> {
    /// Starts to connect, if need be by resolving the node's host name first.
    pub(super) fn connect(&mut self, now: u64) -> Result<(), Fault> {
        self.begin_attempt(now);
        let name = self.node.next_name().map(|(host, port)| (host.to_owned(), port));
        let Some((host, port)) = name else { return self.dial() };
        self.set_state(ConnectionState::Resolving);
        self.agenda.push(Action::Resolve { connection: self.key, host, port });
        Ok(())
    }

    /// Connects to one of the addresses that are known.
    pub(super) fn dial(&mut self) -> Result<(), Fault> {
        let Some(target) = self.node.target(self.connection.address).cloned() else {
            return Err(Fault::Connect("its host name cannot be resolved".to_owned()));
        };
        self.set_state(ConnectionState::Connecting);
        self.agenda.push(Action::Connect(self.key, target));
        Ok(())
    }

    fn begin_attempt(&mut self, now: u64) {
        let end = self.connection.begin_attempt(self.connect_timeout, now);
        self.agenda.advance_to(Due::Connections, end);
    }

    /// Tries the next address of the node's host, unless all were tried: a host is not down because
    /// one of its addresses is.
    fn try_next_target(&mut self, now: u64) -> bool {
        let count = self.turn_address();
        self.connection.tried = self.connection.tried.saturating_add(1);
        if self.connection.tried >= count {
            self.connection.tried = 0;
            return false;
        }
        self.begin_attempt(now);
        self.dial().is_ok()
    }

    /// The next attempt is to connect to the next address of the node's host. Returns how many there are.
    fn turn_address(&mut self) -> usize {
        let count = self.node.addresses().count();
        let next = self.connection.address.wrapping_add(1);
        self.connection.address = next.checked_rem(count).unwrap_or(0);
        count
    }

    /// A server has accepted the connection, and takes long. Returns whether it is waited for: if it has
    /// another address, that is tried instead. Where many clients connect at once, a new attempt would go to
    /// the end of the server's queue, and the old one would be work for it nevertheless.
    pub(super) fn on_late(&mut self) -> bool {
        let tried = self.connection.tried.saturating_add(1);
        tried >= self.node.addresses().count() && self.connection.on_late()
    }
}

/// Sending.
impl Link<'_> {
    /// Encodes a command about limits, behind an `ASKING` if need be.
    pub(super) fn encode_command(
        &mut self,
        key: CommandKey,
        command: &Command,
        scripts: &Scripts,
        now: u64,
    ) {
        let connection = &mut *self.connection;
        if command.is_asking {
            pack(connection.buffer(), &["ASKING"]);
            connection.queue.on_sent(Owner::Asking, now);
        }
        command.encode(scripts, connection.buffer());
        let timeouts = command.members.iter().map(|member| member.timeout);
        let shortest = timeouts.clone().min().unwrap_or(0);
        connection.queue.on_command_sent(key, now, shortest);
        connection.await_until(now.saturating_add(timeouts.max().unwrap_or(0)));
        let counted = match command.by {
            By::Sha => CommandKind::Evalsha,
            By::Source => CommandKind::Eval,
        };
        self.count(|node| {
            node.count_command(counted);
            if command.is_asking {
                node.count_command(CommandKind::Asking);
            }
        });
    }

    /// Encodes a command that is none about limits.
    pub(super) fn encode(&mut self, owner: Owner, words: &[&str], counted: CommandKind, now: u64) {
        pack(self.connection.buffer(), words);
        self.connection.queue.on_sent(owner, now);
        self.count(|node| node.count_command(counted));
    }

    /// Encodes a query for the topology. A connection that is subscribed to a channel takes no other command:
    /// the subscription ends before it, and begins anew after it.
    pub(super) fn encode_query(&mut self, owner: Owner, query: &Query, now: u64) {
        let words: Vec<_> = query.words.iter().map(String::as_str).collect();
        if let Some(channel) = query.channel {
            self.encode_subscription(&["UNSUBSCRIBE", channel], now);
        }
        self.encode(owner, &words, query.command, now);
        if let Some(channel) = query.channel {
            self.encode_subscription(&["SUBSCRIBE", channel], now);
        }
    }

    fn encode_subscription(&mut self, words: &[&str], now: u64) {
        pack(self.connection.buffer(), words);
        self.connection.queue.on_sent(Owner::Subscription, now);
    }
}

/// Changes.
impl Link<'_> {
    fn set_state(&mut self, state: ConnectionState) {
        self.connection.state = state;
        self.recount();
    }

    /// Updates the node's counts of connections.
    pub(super) fn recount(&mut self) {
        let after = self.connection.usable();
        let before = std::mem::replace(&mut self.connection.counted, after);
        if before == after {
            return;
        }
        self.node.recount(before, after);
        let key = self.connection.node;
        self.agenda.push(Action::View(key));
        if self.node.recover() {
            self.agenda.push(Action::Up(key));
        }
    }

    /// Closes the connection if nothing waits for it; the next command opens it again.
    pub(super) fn close_if_quiet(&mut self) {
        if self.connection.is_quiet() {
            self.close();
        }
    }

    /// Closes the connection, for which nothing waits.
    pub(super) fn close(&mut self) {
        self.connection.on_closed();
        self.agenda.push(Action::Close(self.key));
        self.recount();
    }

    /// The connection was lost, or could not be made. Returns what follows, unless it is not there, or another
    /// address is tried.
    pub(super) fn lose(&mut self, fault: &Fault, random: u64, now: u64) -> Option<Lost> {
        self.note_hang_up(fault);
        if matches!(self.connection.state, ConnectionState::Idle | ConnectionState::Down) {
            return None;
        }
        self.agenda.push(Action::Close(self.key));
        let (node, was_ready) = (self.connection.node, self.connection.is_ready());
        if !was_ready {
            self.agenda.push(Action::Attempted(node, attempt_result(fault)));
            if self.try_next_target(now) {
                return None;
            }
        }
        // Another server of this host may be fit.
        if was_ready && matches!(fault, Fault::Unfit(_) | Fault::Misplaced) {
            self.turn_address();
        }
        let is_silent = matches!(fault, Fault::Silent(_));
        let was_silent_about_topology = is_silent && self.connection.queue.owes_topology();
        if is_silent && !was_silent_about_topology {
            self.node.on_silence();
        }
        let next = self.connection.on_lost(fault, now, random);
        self.recount();
        Some(Lost { node, next, was_ready, was_silent_about_topology })
    }

    /// Notes the step of the handshake instead of whose reply a server has closed the connection.
    fn note_hang_up(&mut self, fault: &Fault) {
        if let (Some(step), Fault::Closed(_)) = (self.connection.unanswered_step(), fault) {
            self.node.abilities.on_closed(step);
        }
    }

    /// Changes what is counted at the node.
    fn count(&mut self, change: impl FnOnce(&mut Node)) {
        change(self.node);
        if self.node.begin_counts() {
            self.agenda.push(Action::Count(self.connection.node));
        }
    }

    pub(super) fn count_error(&mut self, kind: ErrorKind) {
        self.count(|node| node.count_error(kind));
    }

    /// No other attempt to connect is made before `delay` has passed.
    pub(super) fn pause(&mut self, fault: &Fault, delay: u64, now: u64) {
        let (node, at) = (self.connection.node, now.saturating_add(delay));
        self.connection.timer = Some(at);
        self.agenda.advance_to(Due::Connections, at);
        self.count_error(error_kind(fault));
        if self.node.ready == 0 && self.node.health.on_unreachable() {
            self.agenda.push(Action::Down(node, fault.to_string()));
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
