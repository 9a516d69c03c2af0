//! When something is due: a time for each kind of thing, so that what is not due is not looked at.
//!
//! A time may be too early, as what it was set for may be over; then the things of that kind are looked at for
//! nothing. It is never too late: whatever makes something due earlier moves it.

/// The kinds of things that are due at some time, in the order in which they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Requests and commands that wait.
    Waiting,
    /// Connections: attempts to connect, failures of servers, and silence.
    Connections,
    /// Probes of nodes.
    Probes,
    /// Nodes that are retired, and were to answer what they were sent.
    Retirement,
    /// Queries for the topology.
    Topology,
    /// The grace of a worker that is leaving.
    Leaving,
    /// Logging in again on connections that are open.
    Login,
}

impl Due {
    pub(super) const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Connections,
        Self::Probes,
        Self::Retirement,
        Self::Topology,
        Self::Leaving,
        Self::Login,
    ];
}

/// When something is due, in µs; [`NEVER`] if nothing is.
#[derive(Debug)]
pub(super) struct Timers {
    /// In the order of [`Due::ALL`].
    at: [u64; Due::ALL.len()],
    earliest: u64,
}

const NEVER: u64 = u64::MAX;

impl Default for Timers {
    fn default() -> Self {
        Self { at: [NEVER; Due::ALL.len()], earliest: NEVER }
    }
}

impl Timers {
    /// When the first thing of any kind is due.
    pub(super) fn earliest(&self) -> Option<u64> {
        (self.earliest != NEVER).then_some(self.earliest)
    }

    /// Whether something of a kind may be due.
    pub(super) fn is_due(&self, kind: Due, now: u64) -> bool {
        self.at.get(kind as usize).is_some_and(|at| *at <= now)
    }

    /// Something of a kind is due at `at`; the time is kept if it is earlier.
    pub(super) fn advance_to(&mut self, kind: Due, at: u64) {
        if let Some(own) = self.at.get_mut(kind as usize) {
            *own = at.min(*own);
        }
        self.earliest = at.min(self.earliest);
    }

    /// The things of a kind were looked at: the next one is due at `at`, if there is one.
    pub(super) fn set(&mut self, kind: Due, at: Option<u64>) {
        if let Some(own) = self.at.get_mut(kind as usize) {
            *own = at.unwrap_or(NEVER);
        }
        self.earliest = self.at.iter().copied().fold(NEVER, u64::min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_time_which_is_only_moved_forward() {
        let mut timers = Timers::default();
        assert_eq!(timers.earliest(), None);
        timers.advance_to(Due::Probes, 20);
        timers.advance_to(Due::Waiting, 30);
        timers.advance_to(Due::Probes, 25);
        assert_eq!(timers.earliest(), Some(20));
        let due = |timers: &Timers, now| Due::ALL.map(|kind| timers.is_due(kind, now));
        assert_eq!(due(&timers, 19), [false; 7]);
        assert_eq!(due(&timers, 20), [false, false, true, false, false, false, false]);
        assert_eq!(due(&timers, 30), [true, false, true, false, false, false, false]);
        timers.set(Due::Probes, None);
        assert_eq!((timers.earliest(), due(&timers, 29)), (Some(30), [false; 7]));
        timers.set(Due::Waiting, Some(40));
        assert_eq!(timers.earliest(), Some(40));
    }

    #[test]
    fn all_kinds_are_listed_in_their_order() {
        assert!(Due::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
    }
}
