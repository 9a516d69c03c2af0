//! Which reply belongs to whom.

use std::collections::VecDeque;

/// Names an entry of a [`Queue`]; never used twice.
pub type Ticket = u64;

/// Those who wait for replies, in the order of their commands.
///
/// Redis answers in order, so the first entry that was sent owns the next reply. An entry can be
/// cancelled at any time: if its command was sent, it stays as a tombstone that swallows the
/// reply; if not, the command is never sent.
#[derive(Debug)]
pub struct Queue<W> {
    entries: VecDeque<Entry<W>>,
    /// The ticket of the first entry.
    first: Ticket,
    /// How many entries, from the first, have been taken to be sent.
    sent: usize,
}

#[derive(Debug)]
enum Entry<W> {
    Waiting(W),
    /// Cancelled.
    Gone,
    /// Cancelled before it was sent: no reply will come.
    Never,
}

impl<W: Copy> Queue<W> {
    /// An empty queue.
    pub fn new() -> Self {
        Self { entries: VecDeque::new(), first: 0, sent: 0 }
    }

    /// How many entries there are, tombstones included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a reply is owed.
    pub fn is_owed(&self) -> bool {
        self.sent > 0
    }

    /// Whether something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.entries.len()
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, waiter: W) -> Ticket {
        self.entries.push_back(Entry::Waiting(waiter));
        self.first.wrapping_add(self.entries.len() as u64).wrapping_sub(1)
    }

    /// Forgets the waiter of `ticket`. Nothing happens if its reply has come already.
    pub fn cancel(&mut self, ticket: Ticket) {
        let Ok(index) = usize::try_from(ticket.wrapping_sub(self.first)) else { return };
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Entry::Gone;
        }
    }

    /// Puts another waiter in the place of the one of `ticket`. Nothing happens if its reply has come
    /// already.
    pub fn replace(&mut self, ticket: Ticket, waiter: W) {
        let Ok(index) = usize::try_from(ticket.wrapping_sub(self.first)) else { return };
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Entry::Waiting(waiter);
        }
    }

    /// The next entry to send, which counts as sent from here on.
    pub fn send_next(&mut self) -> Option<W> {
        while let Some(entry) = self.entries.get_mut(self.sent) {
            self.sent = self.sent.saturating_add(1);
            match entry {
                Entry::Waiting(waiter) => return Some(*waiter),
                _ => *entry = Entry::Never,
            }
        }
        self.drop_never();
        None
    }

    /// Takes the owner of the next reply: `None` if no reply is owed, `Some(None)` if its owner
    /// has gone.
    pub fn receive(&mut self) -> Option<Option<W>> {
        self.drop_never();
        if self.sent == 0 {
            return None;
        }
        let owner = match self.pop()? {
            Entry::Waiting(waiter) => Some(waiter),
            _ => None,
        };
        self.drop_never();
        Some(owner)
    }

    /// Removes every entry that was sent, and returns those who still wait: their commands may
    /// have run.
    pub fn drain_sent(&mut self) -> impl Iterator<Item = W> {
        let sent = std::mem::take(&mut self.sent);
        self.first = self.first.wrapping_add(sent as u64);
        self.entries.drain(..sent).filter_map(Entry::waiter)
    }

    /// Removes every entry, and returns those who still wait.
    pub fn drain(&mut self) -> impl Iterator<Item = W> {
        self.sent = 0;
        self.first = self.first.wrapping_add(self.entries.len() as u64);
        self.entries.drain(..).filter_map(Entry::waiter)
    }

    fn drop_never(&mut self) {
        while self.sent > 0 && matches!(self.entries.front(), Some(Entry::Never)) {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Entry<W>> {
        self.sent = self.sent.saturating_sub(1);
        self.first = self.first.wrapping_add(1);
        self.entries.pop_front()
    }
}

impl<W: Copy> Default for Queue<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> Entry<W> {
    fn waiter(self) -> Option<W> {
        match self {
            Self::Waiting(waiter) => Some(waiter),
            Self::Gone | Self::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn replies_come_in_order() {
        let mut queue = Queue::new();
        let tickets: Vec<_> = "abcd".chars().map(|waiter| queue.push(waiter)).collect();
        assert_eq!(queue.receive(), None);
        queue.cancel(tickets[1]);
        assert_eq!([queue.send_next(), queue.send_next()], [Some('a'), Some('c')]);
        queue.cancel(tickets[2]);
        assert_eq!([queue.receive(), queue.receive()], [Some(Some('a')), Some(None)]);
        assert_eq!(queue.receive(), None);
        assert_eq!([queue.send_next(), queue.send_next()], [Some('d'), None]);
        assert_eq!(queue.receive(), Some(Some('d')));
        assert!(queue.is_empty());
        queue.cancel(tickets[3]);
    }

    #[test]
    fn a_cancelled_command_is_never_sent() {
        let mut queue = Queue::new();
        let ticket = queue.push('a');
        queue.cancel(ticket);
        assert_eq!(queue.send_next(), None);
        assert!(queue.is_empty() && !queue.is_owed());
    }

    proptest! {
        /// Against a model: the server answers each command that was sent with its own number.
        #[test]
        fn every_reply_finds_its_owner(steps in prop::collection::vec(0..6u8, 0..400)) {
            let mut queue = Queue::new();
            let mut server = VecDeque::new();
            let (mut next, mut open) = (0u32, Vec::new());
            for (step, choice) in steps.into_iter().enumerate() {
                match choice {
                    0 | 1 => {
                        open.push((queue.push(next), next));
                        next += 1;
                    }
                    2 => server.extend(queue.send_next()),
                    3 if !open.is_empty() => {
                        let (ticket, _) = open.swap_remove(step % open.len());
                        queue.cancel(ticket);
                    }
                    3 | 4 => match server.pop_front() {
                        None => prop_assert_eq!(queue.receive(), None),
                        Some(reply) => {
                            let waits = open.iter().position(|(_, waiter)| *waiter == reply);
                            waits.map(|index| open.swap_remove(index));
                            prop_assert_eq!(queue.receive(), Some(waits.map(|_| reply)));
                        }
                    },
                    _ => {
                        let lost: Vec<_> = queue.drain_sent().collect();
                        for waiter in &lost {
                            prop_assert!(server.contains(waiter));
                        }
                        for reply in server.drain(..) {
                            let waits = open.iter().position(|(_, waiter)| *waiter == reply);
                            waits.map(|index| open.swap_remove(index));
                            prop_assert_eq!(waits.is_some(), lost.contains(&reply));
                        }
                    }
                }
                prop_assert_eq!(queue.is_owed(), !server.is_empty());
            }
            let left: Vec<_> = queue.drain().collect();
            prop_assert_eq!(left.len(), open.len());
        }
    }
}
