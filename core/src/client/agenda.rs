//! The agenda of a client: actions for the owner of the client, connections that are flushed at the end of the
//! turn, and what is due later.

use std::collections::VecDeque;

use super::ROOM;
use super::action::Action;
use super::in_flight::rewinding_pop;
use super::key::ConnectionKey;
use super::timers::{Due, Timers};

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
            actions: VecDeque::with_capacity(ROOM),
            to_flush: Vec::new(),
            is_turn_end_due: false,
            timers: Timers::default(),
        }
    }
}

impl Agenda {
    /// Adds an action.
    pub(super) fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Takes the next action.
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

    /// The turn ends.
    pub(super) fn on_turn_end(&mut self) {
        self.is_turn_end_due = false;
    }

    /// Takes a connection that is to be flushed now.
    pub(super) fn next_flush(&mut self) -> Option<ConnectionKey> {
        self.to_flush.pop()
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
            agenda.on_turn_end();
            let mut flushed = [(); 2].map(|()| agenda.next_flush().unwrap());
            flushed.sort_by_key(|key| key.index());
            assert_eq!((flushed, agenda.next_flush()), (keys, None));
        }
    }
}
