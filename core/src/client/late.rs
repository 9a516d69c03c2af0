//! Refunds of requests that Redis had not decided in time: those that were rejected for that, and those with `settle`.
//!
//! They go to a server that is slow. Were each of them sent at once, a server at more than half of its capacity would get
//! twice as many commands, stay slow, and cause as many refunds again. So one of them is in flight at a time: the slower the
//! server is, the fewer it gets. The others wait, up to a bound, and those of one client are joined, where that comes to the
//! same. They wait as well while the breaker is open, as it often is when late replies come.

use std::collections::VecDeque;

use super::Client;
use super::command::Command;
use super::commands::Commands;
use super::slab::CommandKey;

/// How many refunds may wait. One more takes the place of the one that has waited longest, whose charge then stands.
const MAX_REFUNDS: usize = 1_000;

/// How many of those that wait are compared with one more: the requests of a busy client come one after the other.
const COMPARED: usize = 16;

/// How many are looked at to find one that can be sent.
const LOOKED_AT: usize = 64;

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

    /// Whether one is in flight, which the next ones follow.
    pub(super) fn is_sending(&self, commands: &Commands) -> bool {
        self.sent.is_some_and(|sent| commands.get(sent).is_some())
    }

    fn push(&mut self, refund: Command) {
        let mut latest = self.waiting.iter_mut().rev().take(COMPARED);
        if latest.any(|other| other.join_refund(&refund)) {
            return;
        }
        if self.waiting.len() >= MAX_REFUNDS {
            self.waiting.pop_front();
        }
        self.waiting.push_back(refund);
    }

    /// Takes the next one whose node takes commands. Those whose node takes none are moved behind the others.
    fn next(&mut self, is_taken: impl Fn(u16) -> bool) -> Option<Command> {
        for _ in 0..self.waiting.len().min(LOOKED_AT) {
            let first = self.waiting.pop_front()?;
            if is_taken(first.slot) {
                return Some(first);
            }
            self.waiting.push_back(first);
        }
        None
    }
}

impl Client {
    /// Has these refunds sent, each when the one before it has ended.
    pub(super) fn refund_late(&mut self, refunds: Vec<Command>, now: u64) {
        refunds.into_iter().for_each(|refund| self.late.push(refund));
        self.send_late(now);
    }

    /// Whether refunds are sent, one after the other.
    pub(super) fn sends_late(&self) -> bool {
        self.late.are_waiting() && self.late.is_sending(&self.commands)
    }

    /// Sends the next refund that waits, if none is in flight. Called whenever something was received, as from then on a
    /// node may take commands again.
    pub(super) fn send_late(&mut self, now: u64) {
        let Self { discovery, pool, late, commands, .. } = self;
        let is_taken = |slot| {
            discovery.route(slot).is_some_and(|key| {
                let is_fit = pool.nodes.get(key).is_some_and(|node| !node.is_unfit);
                is_fit && pool.connection_for(key, slot).is_ok()
            })
        };
        if !late.is_sending(commands)
            && let Some(refund) = late.next(is_taken)
        {
            let key = self.commands.insert(refund);
            self.late.sent = Some(key);
            self.route(key, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_node_that_is_away_leave_the_others_room() {
        let mut late = LateRefunds::default();
        let refund = |slot| {
            let mut refund = Command::default();
            refund.slot = slot;
            refund
        };
        (0..2 * MAX_REFUNDS).for_each(|_| late.push(refund(1)));
        late.push(refund(2));
        assert_eq!(late.waiting.len(), MAX_REFUNDS);
        let mut looks = (0..).map(|_| late.next(|slot| slot == 2));
        let found = looks.position(|next| next.is_some_and(|it| it.slot == 2));
        assert_eq!(found, Some(MAX_REFUNDS / LOOKED_AT), "it is the last");
        assert_eq!(late.waiting.len(), MAX_REFUNDS - 1);
    }
}
