//! Decisions of this machine alone, in the shared memory.

use std::sync::atomic::Ordering;

use rate_limit_core::key;
use rate_limit_core::local::{self, Answer, Charge, Charges, Mode};

use super::Shared;
use crate::clock::{monotonic_micros, unix_micros};
use crate::request::Asked;

/// What a request has spent here of all that it asks.
pub(crate) struct Local {
    charges: Charges,
}

/// There is no room to write down what the request would spend.
pub(crate) struct NoRoom;

impl Shared {
    /// Whether anything that was spent here may not have been regained yet.
    pub(crate) fn is_remembered(&self) -> bool {
        monotonic_micros() < self.header.whole.load(Ordering::Relaxed)
    }

    /// Decides about a request, and writes the verdicts of the limits that were asked here.
    pub(crate) fn decide(&self, mode: Mode, asked: &[Asked]) -> Result<Local, NoRoom> {
        let seed = self.header.seed.load(Ordering::Relaxed);
        let charge = |asked: &Asked| {
            let question = &asked.question;
            let digest = key::memory_digest(seed ^ asked.limit.fingerprint(), question.key);
            Charge::new(digest, question.quota, question.cost)
        };
        let mut charges: Charges = asked.iter().map(charge).collect();
        let now = unix_micros();
        let reset = self.with_table(|table| local::decide(table, now, mode, &mut charges));
        // A clock that was far ahead for a while must not make this last for as long.
        let whole = monotonic_micros().saturating_add(reset);
        self.header.whole.fetch_max(whole, Ordering::Relaxed);
        for (asked, charge) in asked.iter().zip(charges.iter()) {
            match charge.answer() {
                Answer::Unasked => {}
                Answer::Verdict(verdict) => asked.verdict.set(Some(verdict)),
                Answer::NoRoom => {
                    self.header.no_room.fetch_add(1, Ordering::Relaxed);
                    self.give_back(Local { charges });
                    return Err(NoRoom);
                }
            }
        }
        Ok(Local { charges })
    }

    /// Gives back what a request has spent here.
    pub(crate) fn give_back(&self, mut local: Local) {
        let now = unix_micros();
        self.with_table(|table| local::give_back(table, now, &mut local.charges));
    }
}
