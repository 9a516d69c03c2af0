//! Whether a server is up, as one worker knows it. Times are in µs of any monotonic clock.
//!
//! ```text
//!    ┌────────────────── a connection is sound ─────────────────┐
//!    ▼                                                          │
//!   Up ───────────────── no connection can be made ──────▶ Unreachable
//!    │                                                       │  ▲
//!    │ many failures                           many failures │  │ a command is answered
//!    │                                                       │  │
//!    └────────▶ Open ◀───────────────────────────────────────┘  │
//!               │  ▲                                            │
//!               │  └───────────────── one failure ────────── HalfOpen
//!               │                                               ▲
//!               └── a probe is answered in time ────────────────┘
//! ```
//!
//! The breaker is open, half-open, or else closed. A server may answer probes and be too slow for commands: while the
//! breaker is half-open one failure is enough, as for a peer of an `upstream` that is tried again. A connection shows that a server is there, and not that it
//! answers: from `Open` it takes a probe and a command. The command may have been in flight when the breaker
//! opened: then the probe leads to `Unreachable` at once, which is left as soon as a connection is sound.

use std::collections::VecDeque;

use super::fault::{Backoff, Pace};
use super::slab::RequestKey;

/// Whether a server is up. Only its own methods change it.
#[derive(Debug)]
pub(super) struct Health {
    condition: Condition,
    failures: Failures,
    /// The latest request whose commands were not answered in time.
    blamed_by: Option<RequestKey>,
    /// Between probes. It starts over when a command is answered, and not when the breaker closes.
    backoff: Backoff,
    /// Whether a reply is owed for longer than the patience. It is a fact about replies: one may be owed in
    /// any condition, and before the breaker opens as well as after it has closed.
    is_slow: bool,
}

/// The condition of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// It is not known to be down.
    Up,
    /// It had no connection that could be used, and no sound one since.
    Unreachable,
    /// It has not answered in time. It is sent no command, but probes.
    Open(Probing),
    /// It has answered a probe. It is sent commands, and has answered none yet.
    HalfOpen,
}

/// The probes while the breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probing {
    /// When the next one is due, unless it is sent with the next request.
    at: Option<u64>,
    /// Whether one is to be answered.
    is_in_flight: bool,
    /// Whether a command was answered since the breaker opened.
    has_answered: bool,
}

/// The latest failures: so many within a span of time open the breaker.
#[derive(Debug)]
struct Failures {
    /// How many open it; 0: it never opens.
    most: usize,
    span: u64,
    /// When they were, oldest first; at most `most`.
    times: VecDeque<u64>,
}

/// The meaning of a command that was not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// One of the same request was counted.
    Known,
    /// It is counted.
    Counted,
    /// It has opened the breaker.
    Opened,
}

impl Health {
    /// A server that is not known to be down. So many failures within `fail_timeout` µs open its breaker; 0:
    /// it never opens.
    pub(super) fn new(max_fails: usize, fail_timeout: u64) -> Self {
        Self {
            condition: Condition::Up,
            failures: Failures { most: max_fails, span: fail_timeout, times: VecDeque::new() },
            blamed_by: None,
            backoff: Backoff::default(),
            is_slow: false,
        }
    }

    /// Whether it is not known to be down.
    pub(super) fn is_up(&self) -> bool {
        self.condition == Condition::Up
    }

    /// Whether it may be sent no command.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.condition, Condition::Open(_))
    }

    /// Whether a command has to be answered before it is up.
    pub(super) fn needs_answer(&self) -> bool {
        match self.condition {
            Condition::Open(probing) => !probing.has_answered,
            Condition::HalfOpen => true,
            Condition::Up | Condition::Unreachable => false,
        }
    }

    /// Whether it owes a reply for longer than the patience.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// When the next probe is due, if one is.
    pub(super) fn probe_at(&self) -> Option<u64> {
        let Condition::Open(probing) = self.condition else { return None };
        probing.at
    }

    fn probing_mut(&mut self) -> Option<&mut Probing> {
        match &mut self.condition {
            Condition::Open(probing) => Some(probing),
            Condition::Up | Condition::Unreachable | Condition::HalfOpen => None,
        }
    }
}

/// Transitions.
impl Health {
    /// No connection to it can be used, and one could not be made. Returns whether it was up.
    pub(super) fn on_unreachable(&mut self) -> bool {
        let was_up = self.is_up();
        if was_up {
            self.condition = Condition::Unreachable;
        }
        was_up
    }

    /// A command was not answered in time. It was sent for `request`, if that is still known: those of one
    /// request are one failure.
    pub(super) fn on_overdue(&mut self, request: Option<RequestKey>, now: u64) -> Failure {
        let blamed_by = std::mem::replace(&mut self.blamed_by, request);
        if request.is_some() && request == blamed_by {
            return Failure::Known;
        }
        let is_enough = match self.condition {
            Condition::Up | Condition::Unreachable => self.failures.count(now),
            Condition::HalfOpen => true,
            Condition::Open(_) => false,
        };
        if !is_enough {
            return Failure::Counted;
        }
        let probing = Probing { at: None, is_in_flight: false, has_answered: false };
        self.condition = Condition::Open(probing);
        Failure::Opened
    }

    /// A command was answered in time.
    pub(super) fn on_answered(&mut self) {
        if !self.needs_answer() {
            return;
        }
        self.backoff.succeeded();
        match self.probing_mut() {
            Some(probing) => probing.has_answered = true,
            None => self.condition = Condition::Unreachable,
        }
    }

    /// One of its connections is sound. Returns whether it is up.
    pub(super) fn on_sound(&mut self) -> bool {
        if self.condition == Condition::Unreachable {
            self.condition = Condition::Up;
        }
        self.is_up()
    }

    /// Sets when the next probe is due, and returns that; `None` if there is nothing to probe.
    pub(super) fn schedule_probe(&mut self, random: u64, now: u64) -> Option<u64> {
        let Condition::Open(probing) = &mut self.condition else { return None };
        probing.at = Some(now.saturating_add(self.backoff.failed(Pace::Soon, random)));
        probing.at
    }

    /// The next probe is sent with the next request, and not before.
    pub(super) fn unschedule_probe(&mut self) {
        if let Some(probing) = self.probing_mut() {
            probing.at = None;
        }
    }

    /// A probe can be sent. Returns whether it is to be: not while another one is in flight.
    pub(super) fn begin_probe(&mut self) -> bool {
        self.probing_mut().is_some_and(|it| !std::mem::replace(&mut it.is_in_flight, true))
    }

    /// The probe in flight gets no reply, or one too late for requests.
    pub(super) fn on_probe_failed(&mut self) {
        if let Some(probing) = self.probing_mut() {
            probing.is_in_flight = false;
        }
    }

    /// The probe in flight was answered in time: the breaker closes.
    pub(super) fn on_probe_answered(&mut self) {
        if let Condition::Open(probing) = self.condition {
            self.failures.times.clear();
            self.condition = match probing.has_answered {
                true => Condition::Unreachable,
                false => Condition::HalfOpen,
            };
        }
    }

    /// A reply is owed for longer than the patience. Returns whether none was before.
    pub(super) fn on_slow(&mut self) -> bool {
        !std::mem::replace(&mut self.is_slow, true)
    }

    /// No reply is owed for longer than the patience any more.
    pub(super) fn on_prompt(&mut self) {
        self.is_slow = false;
    }
}

impl Failures {
    /// Counts one more. Returns whether they are enough to open the breaker.
    fn count(&mut self, now: u64) -> bool {
        if self.most == 0 {
            return false;
        }
        if self.times.len() == self.most {
            self.times.pop_front();
        }
        self.times.push_back(now);
        let first = self.times.front().copied().unwrap_or(now);
        self.times.len() == self.most && now.saturating_sub(first) <= self.span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Health {
        let mut health = Health::new(1, 0);
        assert_eq!(health.on_overdue(None, 0), Failure::Opened);
        health
    }

    fn half_open() -> Health {
        let mut health = open();
        health.on_probe_answered();
        assert_eq!(health.condition, Condition::HalfOpen);
        health
    }

    fn fails(health: &mut Health, now: u64) -> bool {
        health.on_overdue(None, now) == Failure::Opened
    }

    #[test]
    fn so_many_failures_within_so_long_open_it() {
        let mut health = Health::new(3, 1_000);
        assert!(!fails(&mut health, 0) && !fails(&mut health, 900));
        // The first is too long ago by now.
        assert!(!fails(&mut health, 1_001) && !health.is_open());
        assert!(fails(&mut health, 1_900) && health.is_open());
        assert!(!fails(&mut health, 1_900), "it is open already");
        health.on_probe_answered();
        assert!(fails(&mut health, 9_000), "no command was answered since");
        health.on_probe_answered();
        health.on_answered();
        assert_eq!([(); 3].map(|()| fails(&mut health, 9_000)), [false, false, true]);
    }

    #[test]
    fn one_failure_is_enough_where_one_is_allowed_and_none_never() {
        assert!(fails(&mut Health::new(1, 0), 5));
        let mut never = Health::new(0, 1_000);
        assert!((0..100).all(|now| !fails(&mut never, now)) && !never.is_open());
    }

    #[test]
    fn the_commands_of_one_request_are_one_failure() {
        let mut health = Health::new(2, 1_000);
        let [first, second] = [0, 1].map(|index| Some(RequestKey::new(index, 1)));
        let failures = [first, first, second].map(|request| health.on_overdue(request, 0));
        assert_eq!(failures, [Failure::Counted, Failure::Known, Failure::Opened]);
        let mut health = Health::new(2, 1_000);
        let failures = [None, None].map(|request| health.on_overdue(request, 0));
        assert_eq!(failures, [Failure::Counted, Failure::Opened]);
    }

    #[test]
    fn a_sound_connection_is_enough_for_one_that_could_not_be_reached() {
        let mut health = Health::new(1, 0);
        assert!(health.is_up() && health.on_sound());
        assert!(health.on_unreachable() && !health.is_up() && !health.is_open());
        assert!(!health.on_unreachable(), "that is known");
        assert!(health.on_sound() && health.is_up());
    }

    #[test]
    fn a_probe_and_a_command_are_needed_once_it_was_open() {
        let mut health = open();
        assert!(!health.on_sound() && !health.on_unreachable());
        health.on_probe_answered();
        assert!(!health.is_open() && !health.on_sound() && !health.is_up());
        health.on_answered();
        assert!(!health.is_up(), "the connection may have been lost");
        assert!(health.on_sound());
    }

    #[test]
    fn a_command_may_be_answered_before_the_probe() {
        let mut health = open();
        health.on_answered();
        assert!(health.is_open() && !health.on_sound());
        health.on_probe_answered();
        assert!(health.on_sound());
    }

    #[test]
    fn it_opens_again_from_everywhere() {
        let mut unreachable = Health::new(1, 0);
        unreachable.on_unreachable();
        for mut health in [Health::new(1, 0), unreachable, half_open()] {
            assert!(fails(&mut health, 0) && health.is_open() && health.needs_answer());
        }
    }

    #[test]
    fn there_is_one_probe_at_a_time_and_only_while_it_is_open() {
        let mut health = Health::new(1, 0);
        assert!(!health.begin_probe() && health.schedule_probe(0, 0).is_none());
        assert!(fails(&mut health, 0));
        assert!(health.begin_probe() && !health.begin_probe());
        health.on_probe_failed();
        assert!(health.is_open() && health.begin_probe());
        health.on_probe_answered();
        assert!(!health.begin_probe() && health.schedule_probe(0, 0).is_none());
    }

    #[test]
    fn probes_are_ever_rarer_until_a_command_is_answered() {
        let mut health = open();
        let distance = |health: &mut Health| health.schedule_probe(0, 0).unwrap();
        let first = distance(&mut health);
        assert_eq!((distance(&mut health), health.probe_at()), (2 * first, Some(2 * first)));
        health.unschedule_probe();
        assert_eq!(health.probe_at(), None);
        health.on_probe_answered();
        assert_eq!(health.probe_at(), None);
        assert!(fails(&mut health, 0));
        assert_eq!(distance(&mut health), 4 * first, "only a probe was answered");
        health.on_answered();
        assert_eq!(distance(&mut health), first);
    }

    #[test]
    fn it_may_be_slow_in_any_condition() {
        let mut health = Health::new(1, 0);
        assert!(health.on_slow() && !health.on_slow());
        assert!(fails(&mut health, 0) && health.is_slow());
        health.on_prompt();
        assert!(!health.is_slow() && health.is_open() && health.on_slow());
    }
}
