//! The agenda of a client: actions for its owner, connections that are flushed at the end of the turn, and what is due
//! later; and the order of a turn, in which its owner drives it.
//!
//! There is a time for each kind of thing, so that what is not due is not looked at. A time may be too early, as what it
//! was set for may be over; then the things of that kind are looked at for nothing. It is never too late: whatever makes
//! something due earlier moves it.
//!
//! In a turn all sockets are read before the timer, so that no reply that has come counts as late. The turn ends after
//! both, so that what they lead to is sent with what the turn's requests lead to, in one write for each connection.

use std::collections::VecDeque;

use super::in_flight::rewinding_pop;
use super::node::{Node, Target};
use super::slab::{ConnectionKey, NodeKey, RequestKey};
use super::{Client, PREALLOCATED};
use crate::metrics::{AttemptResult, QueryResult};

/// The actions, timers and connections to flush that are next.
#[derive(Debug)]
pub(super) struct Agenda {
    actions: VecDeque<Action>,
    /// Connections to be flushed at the end of this turn.
    to_flush: Vec<ConnectionKey>,
    pub(super) is_turn_end_due: bool,
    pub(super) timers: Timers,
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            actions: VecDeque::with_capacity(PREALLOCATED),
            to_flush: Vec::new(),
            is_turn_end_due: false,
            timers: Timers::default(),
        }
    }
}

impl Agenda {
    pub(super) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub(super) fn poll(&mut self) -> Option<Action> {
        rewinding_pop(&mut self.actions)
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Something of a kind is due at `at`, or before.
    pub(super) fn advance_to(&mut self, kind: Due, at: u64) {
        self.timers.advance_to(kind, at);
    }

    /// Has [`on_turn_end`](super::Client::on_turn_end) called.
    pub(super) fn end_turn(&mut self) {
        if !std::mem::replace(&mut self.is_turn_end_due, true) {
            self.push(Action::EndTurn);
        }
    }

    /// Has a connection flushed at the end of this turn.
    pub(super) fn flush_later(&mut self, connection: ConnectionKey) {
        self.to_flush.push(connection);
        self.end_turn();
    }

    /// Changes what is counted at a node.
    pub(super) fn count(&mut self, key: NodeKey, node: &mut Node, change: impl FnOnce(&mut Node)) {
        change(node);
        if !std::mem::replace(&mut node.is_count_due, true) {
            self.push(Action::Count(key));
        }
    }

    /// Takes a connection that is to be flushed now.
    pub(super) fn next_flush(&mut self) -> Option<ConnectionKey> {
        self.to_flush.pop()
    }
}

/// An action for the owner of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call [`Client::on_turn_end`](super::Client::on_turn_end) after the events of this turn.
    EndTurn,
    /// Find the addresses of a host, and call [`Client::on_resolved`](super::Client::on_resolved).
    Resolve {
        /// The connection that needs them.
        connection: ConnectionKey,
        /// The host name.
        host: String,
        /// The port.
        port: u16,
    },
    /// Connect, and call [`Client::on_connected`](super::Client::on_connected) or
    /// [`Client::on_lost`](super::Client::on_lost).
    Connect(ConnectionKey, Target),
    /// Send the [output](super::Client::output).
    Send(ConnectionKey),
    /// Close the connection, or give up connecting or resolving. There may be none.
    Close(ConnectionKey),
    /// The request has an [outcome](super::Client::outcome).
    Complete(RequestKey),
    /// A [settlement](super::Client::settle) with this `tag` has ended.
    Settled {
        /// The tag of the settlement.
        tag: u64,
        /// Whether it was settled; otherwise it may be lost.
        is_settled: bool,
    },
    /// Connections are to log in again: read the password of the store again if it is in a file, call
    /// [`Client::set_password`](super::Client::set_password) if that could be read, and
    /// [`Client::login`](super::Client::login) in any case.
    Login,
    /// Take the [counts](super::Client::take_counts) of the node.
    Count(NodeKey),
    /// An attempt to connect to the node has ended: count it.
    Attempted(NodeKey, AttemptResult),
    /// A query of the node for the topology has ended: count it.
    Queried(NodeKey, QueryResult),
    /// The [view](super::Node::view) of the node has changed.
    View(NodeKey),
    /// The node was removed, and its key names nothing any more.
    Remove(NodeKey),
    /// The client has found the node down, for this reason.
    Down(NodeKey, String),
    /// The node is down once more, for this reason: an attempt to reach it has failed, or it has not answered again.
    StillDown(NodeKey, String),
    /// The client has found the node up again.
    Up(NodeKey),
    /// The node is up, but has not answered a command for so long, in µs.
    Slow(NodeKey, u64),
    /// The node owes no reply for so long any more.
    Prompt(NodeKey),
    /// A fault of a node that is up. It is to be logged, but not for each request.
    Warn(NodeKey, String),
    /// Log a line.
    Log(Level, String),
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something is wrong.
    Error,
    /// Nothing is wrong, but something has changed.
    Notice,
}

/// The kinds of things that are due at some time, in the order in which they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Requests and commands that wait.
    Waiting,
    /// Connections: attempts to connect, failures of servers, and silence.
    Connections,
    /// Probes of nodes.
    Probes,
    /// Nodes that are retired, and were to answer what they were sent.
    Retirement,
    /// Queries for the topology.
    Topology,
    /// The grace of a worker that is leaving.
    Leaving,
    /// Logging in again on connections that are open.
    Login,
}

impl Due {
    pub(super) const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Connections,
        Self::Probes,
        Self::Retirement,
        Self::Topology,
        Self::Leaving,
        Self::Login,
    ];
}

/// When something is due, in µs; [`NEVER`] if nothing is.
#[derive(Debug)]
pub(super) struct Timers {
    /// In the order of [`Due::ALL`].
    at: [u64; Due::ALL.len()],
    earliest: u64,
}

const NEVER: u64 = u64::MAX;

impl Default for Timers {
    fn default() -> Self {
        Self { at: [NEVER; Due::ALL.len()], earliest: NEVER }
    }
}

impl Timers {
    /// When the first thing of any kind is due.
    pub(super) fn earliest(&self) -> Option<u64> {
        (self.earliest != NEVER).then_some(self.earliest)
    }

    /// Whether something of a kind may be due.
    pub(super) fn is_due(&self, kind: Due, now: u64) -> bool {
        self.at.get(kind as usize).is_some_and(|at| *at <= now)
    }

    /// Something of a kind is due at `at`; the time is kept if it is earlier.
    pub(super) fn advance_to(&mut self, kind: Due, at: u64) {
        if let Some(own) = self.at.get_mut(kind as usize) {
            *own = at.min(*own);
        }
        self.earliest = at.min(self.earliest);
    }

    /// The things of a kind were looked at: the next one is due at `at`, if there is one.
    pub(super) fn set(&mut self, kind: Due, at: Option<u64>) {
        if let Some(own) = self.at.get_mut(kind as usize) {
            *own = at.unwrap_or(NEVER);
        }
        self.earliest = self.at.iter().copied().fold(NEVER, u64::min);
    }
}

/// A driver of a client, as far as the order of a turn needs it.
pub trait Turn {
    /// The client that is driven.
    fn client(&mut self) -> &mut Client;

    /// The monotonic time in µs.
    fn now(&self) -> u64;

    /// Passes all that has happened to any socket to the client.
    fn read_sockets(&mut self);

    /// A whole turn, in an event loop that has nothing else to do in it.
    fn turn(&mut self) {
        self.read_sockets();
        let now = self.now();
        self.client().on_timer(now);
        let now = self.now();
        self.client().on_turn_end(now);
    }

    /// The [timer](Client::timer) has expired. Reads the sockets, if anything is due, and has the client do it: a busy
    /// worker may not have read yet what came before.
    fn check_timer(&mut self) {
        let now = self.now();
        if self.client().find_due(now) {
            self.read_sockets();
            let now = self.now();
            self.client().on_timer(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_turn_is_wanted_once_a_turn() {
        let mut agenda = Agenda::default();
        let keys = [0, 1].map(|index| ConnectionKey::new(index, 1));
        for _ in 0..2 {
            keys.iter().for_each(|key| agenda.flush_later(*key));
            assert_eq!([agenda.poll(), agenda.poll()], [Some(Action::EndTurn), None]);
            agenda.is_turn_end_due = false;
            let mut flushed = [(); 2].map(|()| agenda.next_flush().unwrap());
            flushed.sort_by_key(|key| key.index());
            assert_eq!((flushed, agenda.next_flush()), (keys, None));
        }
    }

    #[test]
    fn each_kind_has_a_time_which_is_only_moved_forward() {
        let mut timers = Timers::default();
        assert_eq!(timers.earliest(), None);
        timers.advance_to(Due::Probes, 20);
        timers.advance_to(Due::Waiting, 30);
        timers.advance_to(Due::Probes, 25);
        assert_eq!(timers.earliest(), Some(20));
        let due = |timers: &Timers, now| Due::ALL.map(|kind| timers.is_due(kind, now));
        assert_eq!(due(&timers, 19), [false; 7]);
        assert_eq!(due(&timers, 20), [false, false, true, false, false, false, false]);
        assert_eq!(due(&timers, 30), [true, false, true, false, false, false, false]);
        timers.set(Due::Probes, None);
        assert_eq!((timers.earliest(), due(&timers, 29)), (Some(30), [false; 7]));
        timers.set(Due::Waiting, Some(40));
        assert_eq!(timers.earliest(), Some(40));
    }

    #[test]
    fn all_kinds_are_listed_in_their_order() {
        assert!(Due::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
    }
}
