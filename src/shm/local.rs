//! Local decisions, in the shared memory.

use std::sync::atomic::Ordering;

use rate_limit_core::decision::Verdict;
use rate_limit_core::key;
use rate_limit_core::local::{self, LocalAnswer, LocalCharge, LocalCharges, Mode};
use rate_limit_core::redis::script::Check;

use super::Shared;
use crate::clock::{monotonic_micros, unix_micros};

/// What a request was charged locally.
pub(crate) struct Local {
    charges: LocalCharges,
}

/// The new states of the limits do not fit into the table.
pub(crate) struct NoRoom;

impl Local {
    /// The verdict of each limit, in their order; `None` for a limit that was not checked.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = Option<Verdict>> {
        self.charges.iter().map(|charge| match charge.answer() {
            LocalAnswer::Verdict(verdict) => Some(verdict),
            LocalAnswer::Unchecked | LocalAnswer::NoRoom => None,
        })
    }
}

impl Shared {
    /// Whether any local charge may not be regained yet.
    pub(crate) fn has_local_charges(&self) -> bool {
        monotonic_micros() < self.header.whole.load(Ordering::Relaxed)
    }

    /// Decides about a request and charges it, given the fingerprint of each limit and what the limit
    /// charges.
    pub(crate) fn decide<'a>(
        &self,
        mode: Mode,
        limits: impl Iterator<Item = (u64, &'a Check<'a>)>,
    ) -> Result<Local, NoRoom> {
        let charge = |(fingerprint, check): (u64, &Check<'_>)| {
            let digest = self.local_digest(fingerprint, check.key);
            LocalCharge::new(digest, *check.quota, check.cost).dry_run(check.dry_run)
        };
        let mut charges: LocalCharges = limits.map(charge).collect();
        let now = unix_micros();
        let reset = self.with_table(|table| local::decide(table, now, mode, &mut charges));
        self.regains_in(reset);
        let mut local = Local { charges };
        if local.charges.iter().any(|charge| charge.answer() == LocalAnswer::NoRoom) {
            self.header.no_room.fetch_add(1, Ordering::Relaxed);
            self.give_back(&mut local);
            return Err(NoRoom);
        }
        Ok(local)
    }

    /// Settles what the limit of this index has charged a request locally, if it has.
    pub(crate) fn settle(&self, local: &Local, index: usize, change: i64) {
        let Some(charge) = local.charges.get(index) else { return };
        let now = unix_micros();
        if let Some(reset) = self.with_table(|table| local::settle(table, now, charge, change)) {
            self.regains_in(reset);
        }
    }

    /// Gives back what a request was charged locally. Its verdicts then show what the limits hold without it.
    pub(crate) fn give_back(&self, local: &mut Local) {
        let now = unix_micros();
        self.with_table(|table| local::give_back(table, now, &mut local.charges));
    }

    /// Identifies a client and a limit in the table. The quota is no part of it: a client keeps its state
    /// when the rate changes, as it does in Redis.
    fn local_digest(&self, fingerprint: u64, key: &[u8]) -> u128 {
        let seed = self.header.seed.load(Ordering::Relaxed);
        key::memory_digest(seed ^ fingerprint, key)
    }

    /// Something was spent that is regained in so many µs. On the monotonic clock: a wall clock that was
    /// far ahead must not prolong this.
    fn regains_in(&self, reset: u64) {
        let whole = monotonic_micros().saturating_add(reset);
        self.header.whole.fetch_max(whole, Ordering::Relaxed);
    }
}
