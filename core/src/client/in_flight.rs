//! The queues of a connection: commands to be sent, and commands in flight.
//!
//! Redis answers in order, so the oldest command in flight owns the next reply. Nothing is ever
//! removed from the middle: the key of a command that was dropped finds nothing any more, and its
//! entry consumes the reply.

use std::collections::VecDeque;

use super::PREALLOCATED;
use super::slab::CommandKey;

/// The owner of a reply, and so what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A command about limits.
    Command(CommandKey),
    /// None: `ASKING`, before a command for a slot that the node is importing.
    Asking,
    /// The node: `PING`, a probe. Any reply shows that the server is alive.
    Probe,
    /// The topology query of this number.
    Topology(u32),
    /// None: a sentinel confirms a subscription, or its end.
    Subscription,
    /// The account: `AUTH`, on a connection that is open.
    Login,
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) owner: Owner,
    /// When it was handed to the socket, in µs.
    pub(super) at: u64,
    /// The shortest timeout of the requests that it was sent for, in µs; 0 if there is none.
    pub(super) timeout: u32,
}

/// Takes the first entry. An empty queue starts at the beginning of its memory again: one that has few entries at a time
/// needs a part of it only.
pub(super) fn rewinding_pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    first
}

/// A connection's queues.
#[derive(Debug)]
pub(super) struct InFlight {
    unsent: VecDeque<Owner>,
    sent: VecDeque<Sent>,
    /// How many of the oldest in flight are counted as overdue.
    overdue: usize,
}

impl Default for InFlight {
    fn default() -> Self {
        let (unsent, sent) =
            (VecDeque::with_capacity(PREALLOCATED), VecDeque::with_capacity(PREALLOCATED));
        Self { unsent, sent, overdue: 0 }
    }
}

impl InFlight {
    /// How many entries there are, those of dropped commands included.
    pub(super) fn len(&self) -> usize {
        self.unsent.len().saturating_add(self.sent.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.sent.is_empty()
    }

    /// Whether a reply is owed.
    pub(super) fn is_owed(&self) -> bool {
        !self.sent.is_empty()
    }

    pub(super) fn owes_topology(&self) -> bool {
        self.sent.front().is_some_and(|sent| matches!(sent.owner, Owner::Topology(_)))
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Adds to the end of what is to be sent.
    pub(super) fn push(&mut self, owner: Owner) {
        self.unsent.push_back(owner);
    }

    /// Takes what is to be sent next.
    pub(super) fn next_unsent(&mut self) -> Option<Owner> {
        rewinding_pop(&mut self.unsent)
    }

    /// `owner` was sent at `at`, for requests whose shortest timeout is `timeout`; 0 if for none.
    pub(super) fn on_sent(&mut self, owner: Owner, at: u64, timeout: u64) {
        let timeout = u32::try_from(timeout).unwrap_or(u32::MAX);
        self.sent.push_back(Sent { owner, at, timeout });
    }

    /// Takes the owner of the reply that has come, and whether it was overdue. `None` if no reply
    /// was owed.
    pub(super) fn next_reply(&mut self) -> Option<(Sent, bool)> {
        let sent = rewinding_pop(&mut self.sent)?;
        let was_overdue = self.overdue > 0;
        self.overdue = self.overdue.saturating_sub(1);
        Some((sent, was_overdue))
    }

    /// The oldest in flight that is not counted as overdue.
    pub(super) fn oldest(&self) -> Option<Sent> {
        self.sent.get(self.overdue).copied()
    }

    /// The [`oldest`](Self::oldest) is overdue.
    pub(super) fn mark_overdue(&mut self) {
        self.overdue = self.overdue.saturating_add(1).min(self.sent.len());
    }

    /// Whether the next reply is overdue.
    pub(super) fn is_overdue(&self) -> bool {
        self.overdue > 0
    }

    /// Takes one of those in flight: none of their replies will come.
    pub(super) fn next_lost(&mut self) -> Option<Owner> {
        self.next_reply().map(|(sent, _)| sent.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_in_order_and_overdue_is_remembered() {
        let mut queue = InFlight::default();
        for number in 0..3 {
            queue.push(Owner::Topology(number));
        }
        let mut at = 10;
        while let Some(owner) = queue.next_unsent() {
            queue.on_sent(owner, at, 0);
            at += 1;
        }
        assert_eq!(queue.oldest().map(|sent| sent.at), Some(10));
        queue.mark_overdue();
        assert_eq!(queue.oldest().map(|sent| sent.at), Some(11));
        let mut next = || queue.next_reply().map(|(sent, overdue)| (sent.owner, overdue));
        assert_eq!(next(), Some((Owner::Topology(0), true)));
        assert_eq!(next(), Some((Owner::Topology(1), false)));
        assert_eq!(next(), Some((Owner::Topology(2), false)));
        assert_eq!(next(), None);
        assert!(queue.is_empty() && !queue.is_owed());
    }
}
