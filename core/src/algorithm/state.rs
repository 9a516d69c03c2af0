//! The state of one client.

use std::collections::VecDeque;

use super::hold::Holds;
use super::minima::Minima;
use super::moment::Moment;
use crate::limit::Quota;

/// The record of one client: the state of the algorithm, and the numbers and minima beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// `None` for a client that has spent nothing.
    pub state: Option<State>,
    /// Zeros for most clients.
    pub extra: Extra,
    /// Without steps but for clients whose charges may be corrected.
    pub minima: Minima,
}

/// The state of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// A bucket: the tokens, and the moment of the last refill.
    Bucket(u64, Moment),
    /// The theoretical arrival time of gcra.
    Arrival(Moment),
    /// The number of a window, what was spent in it, and in the previous one.
    Window(u64, u64, u64),
    /// A log: when and how much, in order of time; and since when there is a debt, else 0.
    Log(VecDeque<(u64, u64)>, u64),
}

/// The numbers that are kept beside the state of an algorithm. They are stored only while one of them has
/// an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// The units that machines have set aside.
    pub holds: Holds,
    /// The units that were charged beyond what there was.
    pub debt: u64,
    /// Until when the client is blocked, in µs.
    pub blocked_until: u64,
}

impl Stored {
    /// Replaces the state. What was missing before is no longer known; a quota that is settled keeps it elsewhere.
    #[inline(always)]
    pub(super) fn write(&mut self, now: u64, state: State, debt: u64) {
        self.state = Some(state);
        self.minima.clear();
        if debt == 0 && self.extra.is_none() {
            return;
        }
        let blocked_until = self.extra.block_at(now);
        self.extra = Extra { holds: self.extra.holds.lasting(now), debt, blocked_until };
    }

    /// Runs `act`, which charges `amount` or gives it back. If that changes anything it is counted while units are held.
    pub(super) fn counting(&mut self, amount: u64, act: impl FnOnce(&mut Self)) {
        let before = (!self.extra.holds.is_none()).then(|| self.clone());
        act(self);
        if before.is_some_and(|before| *self != before) {
            self.extra.holds.count(amount);
        }
    }

    /// Whether more remains than of another state of the same algorithm, where both are as they are at the same moment.
    pub(super) fn has_more_than(&self, other: &Self) -> bool {
        match (&self.state, &other.state) {
            (Some(State::Bucket(tokens, last)), Some(State::Bucket(others, other_last))) => {
                let tokens = tokens.saturating_add(other.extra.debt);
                let others = others.saturating_add(self.extra.debt);
                tokens > others || tokens == others && last < other_last
            }
            (Some(State::Arrival(tat)), Some(State::Arrival(other_tat))) => tat < other_tat,
            (Some(State::Arrival(_) | State::Bucket(..)) | None, _) => false,
            // No units of these are held.
            (Some(State::Window(..) | State::Log(..)), _) => false,
        }
    }

    /// This state of a client that is not blocked.
    pub(crate) fn unblocked(mut self) -> Self {
        self.extra.blocked_until = 0;
        self
    }

    /// The debt, at most that of this quota.
    pub(super) fn debt(&self, quota: &Quota) -> u64 {
        self.extra.debt.min(quota.max_debt())
    }

    /// Corrects what no clock that has not stepped back could have stored: no hold and no block lasts longer than one
    /// that begins now. Returns how long the client is still blocked, in µs.
    pub(crate) fn correct(&mut self, now: u64, quota: &Quota) -> u64 {
        let (before, longest) = (self.extra.holds, quota.longest_block());
        self.extra.holds.correct(now, quota);
        if self.extra.holds != before {
            self.forget(quota);
        }
        if self.blocked_for(now) > longest {
            self.block(now, quota, longest);
        }
        self.blocked_for(now)
    }

    /// How long the client is still blocked, in µs.
    fn blocked_for(&self, now: u64) -> u64 {
        self.extra.blocked_until.saturating_sub(now)
    }

    /// A quota that is not settled keeps nothing of what was missing before.
    fn forget(&mut self, quota: &Quota) {
        if !quota.is_settled() {
            self.minima.clear();
        }
    }

    /// Blocks the client for `time` µs.
    pub(super) fn block(&mut self, now: u64, quota: &Quota, time: u64) {
        self.forget(quota);
        self.extra.blocked_until = now.saturating_add(time);
    }
}

impl Extra {
    /// Whether none of the numbers has an effect.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Until when the client is blocked, if it still is.
    fn block_at(&self, now: u64) -> u64 {
        if self.blocked_until > now { self.blocked_until } else { 0 }
    }
}

impl State {
    /// The numbers that are stored; `None` for the log, which is a list.
    pub(crate) fn numbers(&self) -> Option<[u64; 3]> {
        match *self {
            Self::Bucket(tokens, Moment { micros, part }) => Some([tokens, micros, part]),
            Self::Arrival(Moment { micros, part }) => Some([micros, part, 0]),
            Self::Window(window, current, previous) => Some([window, current, previous]),
            Self::Log(..) => None,
        }
    }
}
