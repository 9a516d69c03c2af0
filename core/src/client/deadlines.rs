//! The deadlines of requests.
//!
//! Requests with the same timeout expire in the order in which they came, and there are few
//! timeouts. So there is a queue for each timeout; a heap would cost more for each request.

use super::key::RequestKey;
use std::collections::VecDeque;

use super::ROOM;
use super::in_flight::rewinding_pop;

/// The deadlines of requests.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    queues: Vec<Queue>,
    /// Whether deadlines are to be set at the end of the turn.
    has_new: bool,
}

/// The deadlines of requests with one timeout.
#[derive(Debug)]
struct Queue {
    timeout: u64,
    entries: VecDeque<(RequestKey, u64)>,
}

/// The deadline of a request that came in this turn.
const NOT_SET: u64 = u64::MAX;

impl Deadlines {
    /// Adds a request. Its time runs from the end of the turn, when its commands are sent.
    #[inline]
    pub(super) fn push(&mut self, request: RequestKey, timeout: u64) {
        self.has_new = true;
        let entry = (request, NOT_SET);
        match self.queues.iter_mut().find(|queue| queue.timeout == timeout) {
            Some(queue) => queue.entries.push_back(entry),
            None => {
                let mut entries = VecDeque::with_capacity(ROOM);
                entries.push_back(entry);
                self.queues.push(Queue { timeout, entries });
            }
        }
    }

    /// The turn ends at `now`. Sets the deadlines of its requests, and returns the earliest.
    pub(super) fn on_turn_end(&mut self, now: u64) -> Option<u64> {
        if !std::mem::take(&mut self.has_new) {
            return None;
        }
        let mut earliest = None;
        for queue in &mut self.queues {
            let deadline = now.saturating_add(queue.timeout);
            for (_, at) in queue.entries.iter_mut().rev().take_while(|(_, at)| *at == NOT_SET) {
                *at = deadline;
                earliest = Some(earliest.map_or(deadline, |other: u64| other.min(deadline)));
            }
        }
        earliest
    }

    /// Removes a request whose deadline is not after `now`.
    pub(super) fn next_expired(&mut self, now: u64) -> Option<RequestKey> {
        self.queues.iter_mut().find_map(|queue| {
            let is_expired = queue.entries.front().is_some_and(|(_, deadline)| *deadline <= now);
            if is_expired { queue.entries.pop_front().map(|(request, _)| request) } else { None }
        })
    }

    /// Removes the deadlines at the front of each queue whose requests are released.
    pub(super) fn forget(&mut self, is_waiting: impl Fn(RequestKey) -> bool) {
        for queue in &mut self.queues {
            while queue.entries.front().is_some_and(|(request, _)| !is_waiting(*request)) {
                rewinding_pop(&mut queue.entries);
            }
        }
    }

    /// The earliest deadline.
    pub(super) fn earliest(&self) -> Option<u64> {
        let fronts = self.queues.iter().filter_map(|queue| queue.entries.front());
        fronts.map(|(_, deadline)| *deadline).min().filter(|deadline| *deadline != NOT_SET)
    }
}
