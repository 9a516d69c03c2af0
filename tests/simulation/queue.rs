//! Events in the order of their time, and at one time in that in which they were added.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    pub fn push(&mut self, at: u64, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at, number: self.added, event }));
    }

    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            queue.push(at, event);
        }
        assert_eq!(queue.next_at(), Some(1));
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, "abcde");
    }
}
