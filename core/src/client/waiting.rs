//! The requests and commands that wait, and until when. Times are in µs.
//!
//! | what | for | at most until |
//! |---|---|---|
//! | a request | its decision | its deadline |
//! | a held command | the reply to the command about the same key before it | a part of its requests' timeouts is over |
//! | a command that is tried again | the slot to be where it goes, after TRYAGAIN or ASK | a pause is over |
//! | a parked command | a topology | the next round of queries has ended |
//!
//! Requests with the same timeout expire in the order in which they came, and there are few timeouts. So there is a queue
//! for each timeout; a heap would cost more for each request.
//!
//! Requests of one turn that are charged the same for the same key are coalesced: they become one command. While a
//! command for several requests is in flight its key is busy: requests that come meanwhile share the next command, which
//! is held until that reply. So a busy key takes one command in a round trip, however many requests there are. A held
//! command is sent after a small part of its requests' timeout in any case, so that a long path does not cost a request
//! two round trips.
//!
//! Commands that can be sent wait in the queue of a connection. Nothing is removed when it waits no longer: a
//! key that names nothing, or nothing that still waits, is skipped.

use std::collections::VecDeque;

use super::PREALLOCATED;
use super::command::{Command, Stage};
use super::commands::Commands;
use super::fault::doubled;
use super::in_flight::rewinding_pop;
use super::requests::{Error, Requests};
use super::slab::{CommandKey, RequestKey};
use crate::rate::MILLISECOND;

/// How long a command waits after TRYAGAIN, or an ASK that names no node; twice as long each time.
const RETRY_DELAY: u64 = 2 * MILLISECOND;

/// It waits no longer than this.
const MAX_RETRY_DELAY: u64 = 50 * MILLISECOND;

/// The commands that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) deadlines: Deadlines,
    /// Commands that were held; some were sent since.
    held: Vec<CommandKey>,
    /// Commands that are to be sent again, and when; the first one first.
    retries: VecDeque<(CommandKey, u64)>,
    /// Commands that wait for a topology, and what becomes of them without one.
    parked: Vec<(CommandKey, Error)>,
}

impl Waiting {
    /// When the first thing is due.
    pub(super) fn earliest(&self, commands: &Commands) -> Option<u64> {
        let held = self.held.iter().filter_map(|key| held_until(*key, commands)).min();
        let retry = self.retries.front().map(|(_, at)| *at);
        [self.deadlines.earliest(), held, retry].into_iter().flatten().min()
    }

    /// Forgets the deadlines of requests that are decided, as far as none before them waits.
    pub(super) fn forget_deadlines(&mut self, requests: &Requests) {
        self.deadlines.forget(|key| requests.is_waiting(key));
    }

    /// A command is held: its time is in it.
    pub(super) fn hold(&mut self, key: CommandKey) {
        self.held.push(key);
    }

    /// Takes the commands that were held for long enough.
    pub(super) fn take_held(&mut self, commands: &Commands, now: u64) -> Vec<CommandKey> {
        self.held.retain(|key| held_until(*key, commands).is_some());
        let is_due = |key: &mut CommandKey| held_until(*key, commands).is_some_and(|at| at <= now);
        self.held.extract_if(.., is_due).collect()
    }

    /// A command is to be tried again after a pause, which is longer each time. Returns when.
    pub(super) fn retry_later(&mut self, key: CommandKey, command: &mut Command, now: u64) -> u64 {
        let delay = doubled(RETRY_DELAY, command.retries.into(), MAX_RETRY_DELAY);
        let at = now.saturating_add(delay);
        command.stage = Stage::Waiting;
        command.retries = command.retries.saturating_add(1);
        let index = self.retries.partition_point(|(_, other)| *other <= at);
        self.retries.insert(index, (key, at));
        at
    }

    /// Takes a command that is to be tried again now.
    pub(super) fn next_retry(&mut self, now: u64) -> Option<CommandKey> {
        self.retries.pop_front_if(|(_, at)| *at <= now).map(|(key, _)| key)
    }

    /// A command waits for a topology. Without one it fails with this error.
    pub(super) fn park(&mut self, key: CommandKey, command: &mut Command, error: Error) {
        command.stage = Stage::Waiting;
        self.parked.push((key, error));
    }

    /// Whether one more parked command needs more memory.
    pub(super) fn is_full(&self) -> bool {
        self.parked.len() == self.parked.capacity()
    }

    /// Takes the commands that wait for a topology.
    pub(super) fn take_parked(&mut self) -> Vec<(CommandKey, Error)> {
        std::mem::take(&mut self.parked)
    }

    /// Takes those of them that are not needed any more.
    pub(super) fn take_unneeded(
        &mut self,
        mut is_unneeded: impl FnMut(CommandKey) -> bool,
    ) -> Vec<CommandKey> {
        self.parked.extract_if(.., |(key, _)| is_unneeded(*key)).map(|(key, _)| key).collect()
    }
}

/// When a command is to be sent in any case, if it is held.
fn held_until(key: CommandKey, commands: &Commands) -> Option<u64> {
    let command = commands.get(key).filter(|command| command.stage == Stage::Held)?;
    Some(command.send_at)
}

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
                let mut entries = VecDeque::with_capacity(PREALLOCATED);
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
        let pop = |queue: &mut Queue| queue.entries.pop_front_if(|(_, deadline)| *deadline <= now);
        self.queues.iter_mut().find_map(pop).map(|(request, _)| request)
    }

    /// Removes the deadlines at the front of each queue whose requests are released.
    pub(super) fn forget(&mut self, is_waiting: impl Fn(RequestKey) -> bool) {
        for queue in &mut self.queues {
            while queue.entries.front().is_some_and(|(request, _)| !is_waiting(*request)) {
                rewinding_pop(&mut queue.entries);
            }
        }
    }

    pub(super) fn earliest(&self) -> Option<u64> {
        let fronts = self.queues.iter().filter_map(|queue| queue.entries.front());
        fronts.map(|(_, deadline)| *deadline).min().filter(|deadline| *deadline != NOT_SET)
    }
}

/// How many keys are remembered.
const PLACES: usize = 1_024;

/// A command is held for at most this part of a request's timeout.
const PART_OF_TIMEOUT: u64 = 8;

/// The latest command about each key. Keys may have the same place, where the latest one replaces
/// any other: requests for the other key then share no command.
#[derive(Debug)]
pub(super) struct Coalescer {
    latest: Box<[Option<CommandKey>]>,
}

impl Coalescer {
    pub(super) fn new() -> Self {
        Self { latest: vec![None; PLACES].into() }
    }

    /// The latest command in the place of this digest. It may be about another key, or gone.
    pub(super) fn latest(&self, digest: u64) -> Option<CommandKey> {
        self.latest.get(digest as usize % PLACES).copied().flatten()
    }

    /// Makes this the latest command.
    pub(super) fn set_latest(&mut self, digest: u64, command: CommandKey) {
        if let Some(place) = self.latest.get_mut(digest as usize % PLACES) {
            *place = Some(command);
        }
    }
}

/// How long a command may be held for a request with this timeout, both in µs.
pub(super) fn longest_hold(timeout: u64) -> u64 {
    (timeout / PART_OF_TIMEOUT).min(50 * MILLISECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(commands: &mut Commands, send_at: u64) -> CommandKey {
        let key = commands.insert(Command::default());
        let command = commands.get_mut(key).unwrap();
        (command.stage, command.send_at) = (Stage::Held, send_at);
        key
    }

    #[test]
    fn held_commands_are_due_in_time_unless_they_were_sent() {
        let (mut commands, mut waiting) = (Commands::new(), Waiting::default());
        let keys = [30, 10, 20].map(|at| held(&mut commands, at));
        keys.iter().for_each(|key| waiting.hold(*key));
        assert_eq!(waiting.earliest(&commands), Some(10));
        commands.get_mut(keys[1]).unwrap().stage = Stage::Unsent;
        assert_eq!(waiting.earliest(&commands), Some(20));
        assert_eq!(waiting.take_held(&commands, 19), []);
        assert_eq!(waiting.take_held(&commands, 20), [keys[2]]);
        commands.remove(keys[0]);
        assert_eq!((waiting.take_held(&commands, 99), waiting.earliest(&commands)), (vec![], None));
        assert!(waiting.held.is_empty());
    }

    #[test]
    fn commands_are_tried_again_in_the_order_of_their_times_and_ever_more_rarely() {
        let (mut commands, mut waiting) = (Commands::new(), Waiting::default());
        let [often, once] = [0, 0].map(|_: i32| commands.insert(Command::default()));
        let mut retry = |waiting: &mut Waiting, key, now| {
            let command: &mut Command = commands.get_mut(key).unwrap();
            waiting.retry_later(key, command, now)
        };
        let delays = [(); 8].map(|()| {
            let at = retry(&mut waiting, often, 0);
            assert_eq!(waiting.next_retry(at), Some(often));
            at / MILLISECOND
        });
        assert_eq!(delays, [2, 4, 8, 16, 32, 50, 50, 50]);
        let later = retry(&mut waiting, often, 0);
        let sooner = retry(&mut waiting, once, 0);
        assert!(sooner < later && waiting.earliest(&Commands::new()) == Some(sooner));
        assert_eq!(waiting.next_retry(sooner - 1), None);
        assert_eq!([(); 3].map(|()| waiting.next_retry(later)), [Some(once), Some(often), None]);
    }

    #[test]
    fn parked_commands_wait_for_no_time() {
        let mut waiting = Waiting::default();
        let mut command = Command::default();
        waiting.park(CommandKey::new(0, 1), &mut command, Error::Down);
        assert_eq!((command.stage, waiting.earliest(&Commands::new())), (Stage::Waiting, None));
        assert_eq!(waiting.take_parked(), [(CommandKey::new(0, 1), Error::Down)]);
        assert_eq!(waiting.take_parked(), []);
    }

    #[test]
    fn a_command_is_held_for_a_moment_only() {
        for (timeout, hold) in [(0, 0), (20, 2_500), (400, 50_000), (401, 50_000), (5_000, 50_000)]
        {
            assert_eq!(longest_hold(timeout * MILLISECOND), hold, "{timeout} ms");
        }
    }
}
