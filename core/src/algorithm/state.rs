//! What is kept for one client.

use std::collections::VecDeque;

use super::hold::Holds;
use super::moment::Moment;
use crate::limit::Quota;
use crate::rate::{MAX_EXACT, MAX_TIME};

/// What is kept for one client: the state of the algorithm, and what is kept beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// `None` for a client that has spent nothing.
    pub state: Option<State>,
    /// Zeros for most clients.
    pub extra: Extra,
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

/// What is kept beside the state of an algorithm. It is stored only while one of the numbers has an
/// effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// The units that machines have set aside.
    pub holds: Holds,
    /// The units that were charged beyond what there was.
    pub debt: u64,
    /// Until when the client is blocked, in µs.
    pub blocked_until: u64,
    /// What was given back of a bucket.
    pub given_back: GivenBack,
}

/// How much was given back of a bucket, while charges may still be corrected that were made before: these
/// were missing for less time then than their verdicts have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// How much in all: the time in µs that it takes to be regained, or tokens where these come at intervals. It
    /// only grows, so the difference between two moments is what was given back in between.
    pub amount: u64,
    /// When all that was charged so far would be regained if nothing had been given back, or later, in µs.
    /// Then no charge can be corrected any more for which it matters.
    pub until: u64,
}

impl GivenBack {
    /// What counts at `now`. A clock that stepped back by a century has left nothing that counts.
    pub(super) fn at(self, now: u64) -> Self {
        match self.amount > 0 && self.until > now && self.until - now <= MAX_TIME {
            true => Self { amount: self.amount.min(MAX_EXACT), ..self },
            false => Self::default(),
        }
    }

    /// How much was given back until `now` since it was so much.
    pub(super) fn since(self, before: u64, now: u64) -> u64 {
        self.at(now).amount.saturating_sub(before)
    }

    /// So much more was given back, and until `whole` all that was charged can have been missing.
    pub(super) fn add(&mut self, amount: u64, whole: u64) {
        self.amount = self.amount.saturating_add(amount).min(MAX_EXACT);
        if self.amount > 0 {
            self.until = self.until.max(whole.min(MAX_EXACT));
        }
    }
}

impl Stored {
    /// Replaces the state.
    pub(super) fn write(&mut self, now: u64, state: State, debt: u64) {
        self.state = Some(state);
        if debt == 0 && self.extra.is_none() {
            return;
        }
        self.extra = Extra {
            holds: self.extra.holds.shared(now),
            debt,
            blocked_until: self.extra.block_at(now),
            given_back: self.extra.given_back.at(now),
        };
    }

    /// How much was given back of it, as far as that counts at `now`: see [`GivenBack::amount`].
    pub fn given_back(&self, now: u64) -> u64 {
        self.extra.given_back.at(now).amount
    }

    /// The debt, at most that of this quota.
    pub(super) fn debt(&self, quota: &Quota) -> u64 {
        self.extra.debt.min(quota.max_debt())
    }

    /// How long the client is still blocked, in µs. If the clock has stepped back, that is at most
    /// a block of this quota.
    pub(super) fn blocked_for(&mut self, now: u64, quota: &Quota) -> u64 {
        let longest = if quota.block() > 0 { quota.block() } else { MAX_TIME };
        let left = self.extra.blocked_until.saturating_sub(now);
        if left > longest {
            self.block(now, longest);
        }
        left.min(longest)
    }

    /// Blocks the client for `time` µs.
    pub(super) fn block(&mut self, now: u64, time: u64) {
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
