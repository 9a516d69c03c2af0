//! Refunds of requests that Redis had not decided in time: those that were rejected for that, and those with `settle`.
//!
//! They go to a server that is slow. Were each of them sent at once, a server at more than half of its capacity would get
//! twice as many commands, stay slow, and cause as many refunds again. So one of them is in flight at a time: the slower the
//! server is, the fewer it gets. The others wait, up to a bound, and those of one client are joined. They wait as well while
//! the breaker is open, as it often is when late replies come.

use std::collections::VecDeque;

use super::Client;
use super::command::Command;
use super::slab::CommandKey;

/// How many refunds may wait. What is beyond stays charged.
const MAX_REFUNDS: usize = 1_000;

/// How many of those that wait are compared with one more: the requests of a busy client come one after the other.
const COMPARED: usize = 16;

/// The refunds that wait for each other.
#[derive(Debug, Default)]
pub(super) struct LateRefunds {
    waiting: VecDeque<Command>,
    /// The one that was sent last.
    sent: Option<CommandKey>,
}

impl LateRefunds {
    /// Whether any waits.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn push(&mut self, refund: Command) {
        let mut latest = self.waiting.iter_mut().rev().take(COMPARED);
        if !latest.any(|other| other.join_refund(&refund)) && self.waiting.len() < MAX_REFUNDS {
            self.waiting.push_back(refund);
        }
    }

    /// Takes the first, if the node of its slot takes commands. Else it waits behind the others, which may be for other
    /// nodes.
    fn next(&mut self, is_taken: impl Fn(u16) -> bool) -> Option<Command> {
        let first = self.waiting.pop_front()?;
        if is_taken(first.slot) {
            return Some(first);
        }
        self.waiting.push_back(first);
        None
    }
}

impl Client {
    /// Has these refunds sent, each when the one before it has ended.
    pub(super) fn refund_late(&mut self, refunds: Vec<Command>, now: u64) {
        refunds.into_iter().for_each(|refund| self.late.push(refund));
        self.send_late(now);
    }

    /// Sends the next refund that waits, if none is in flight. Called whenever something was received, as from then on a
    /// node may take commands again.
    pub(super) fn send_late(&mut self, now: u64) {
        let Self { discovery, pool, late, commands, .. } = self;
        let is_taken = |slot| {
            let node = discovery.route(slot);
            node.is_some_and(|node| pool.connection_for(node, slot).is_ok())
        };
        if late.sent.is_none_or(|sent| commands.get(sent).is_none())
            && let Some(refund) = late.next(is_taken)
        {
            let key = self.commands.insert(refund);
            self.late.sent = Some(key);
            self.route(key, now);
        }
    }
}
