//! Commands that requests for the same charge can share.
//!
//! Requests of one turn that are charged the same for the same key become one command. While a
//! command for several requests is in flight its key is busy: requests that come meanwhile share
//! the next command, which is held until that reply. So a busy key takes one command in a round
//! trip, however many requests there are. A held command is sent after a small part of its
//! requests' timeout in any case, so that a long path does not cost a request two round trips.

use super::key::CommandKey;
use crate::rate::MILLISECOND;

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

    #[test]
    fn a_command_is_held_for_a_moment_only() {
        for (timeout, hold) in [(0, 0), (20, 2_500), (400, 50_000), (401, 50_000), (5_000, 50_000)]
        {
            assert_eq!(longest_hold(timeout * MILLISECOND), hold, "{timeout} ms");
        }
    }
}
