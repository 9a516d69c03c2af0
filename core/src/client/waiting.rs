//! The commands that wait, and until when. Times are in µs.
//!
//! | what | for | at most until |
//! |---|---|---|
//! | a request | its decision | its deadline |
//! | a held command | the reply to the command about the same key before it | a part of its requests' timeouts is over |
//! | a command that is tried again | the slot to be where it goes, after TRYAGAIN or ASK | a pause is over |
//! | a parked command | a topology | the next round of queries has ended |
//!
//! Commands that can be sent wait in the queue of a connection. Nothing is removed when it waits no longer: a
//! key that names nothing, or nothing that still waits, is skipped.

use std::collections::VecDeque;

use super::command::{Command, Stage};
use super::commands::Commands;
use super::deadlines::Deadlines;
use super::key::CommandKey;
use super::request::Error;
use super::requests::Requests;
use crate::rate::MILLISECOND;

/// How long a command waits after TRYAGAIN, or an ASK that names no node; twice as long each time.
const RETRY_DELAY: u64 = 2 * MILLISECOND;

/// It waits no longer than this.
const MAX_RETRY_DELAY: u64 = 50 * MILLISECOND;

/// So many doublings lead from the first delay to the longest.
const RETRY_DOUBLINGS: u8 = 5;

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
        let mut due = Vec::new();
        self.held.retain(|key| match held_until(*key, commands) {
            Some(at) if at <= now => {
                due.push(*key);
                false
            }
            until => until.is_some(),
        });
        due
    }

    /// A command is to be tried again after a pause, which is longer each time. Returns when.
    pub(super) fn retry_later(&mut self, key: CommandKey, command: &mut Command, now: u64) -> u64 {
        let doublings = command.retries.min(RETRY_DOUBLINGS);
        let at = now.saturating_add((RETRY_DELAY << doublings).min(MAX_RETRY_DELAY));
        command.stage = Stage::Waiting;
        command.retries = command.retries.saturating_add(1);
        let index = self.retries.partition_point(|(_, other)| *other <= at);
        self.retries.insert(index, (key, at));
        at
    }

    /// Takes a command that is to be tried again now.
    pub(super) fn next_retry(&mut self, now: u64) -> Option<CommandKey> {
        let is_due = self.retries.front().is_some_and(|(_, at)| *at <= now);
        if is_due { self.retries.pop_front().map(|(key, _)| key) } else { None }
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

    /// Puts back those that still wait for a topology.
    pub(super) fn put_back(&mut self, parked: Vec<(CommandKey, Error)>) {
        self.parked = parked;
    }
}

/// When a command is to be sent in any case, if it is held.
fn held_until(key: CommandKey, commands: &Commands) -> Option<u64> {
    let command = commands.get(key).filter(|command| command.stage == Stage::Held)?;
    Some(command.send_at)
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
}
