//! Local decisions, in the shared memory.

use std::sync::atomic::Ordering;

use rate_limit_core::key;
use rate_limit_core::local::{self, LocalAnswer, LocalCharge, LocalCharges, Mode};
use rate_limit_core::request::{Evaluated, LocalTable, NoRoom};

use super::Shared;
use crate::clock::{monotonic_micros, unix_micros};
use crate::conf::LimitConf;

impl LocalTable<LimitConf> for Shared {
    fn has_charges(&self) -> bool {
        monotonic_micros() < self.header.whole.load(Ordering::Relaxed)
    }

    fn decide(
        &self,
        mode: Mode,
        limits: &[Evaluated<'_, LimitConf>],
    ) -> Result<LocalCharges, NoRoom> {
        let charge = |limit: &Evaluated<'_, LimitConf>| {
            let check = &limit.check;
            let digest = self.local_digest(limit.limit.fingerprint(), check.key);
            LocalCharge::new(digest, *check.quota, check.cost).dry_run(check.dry_run)
        };
        let mut charges: LocalCharges = limits.iter().map(charge).collect();
        let now = unix_micros();
        let reset = self.with_table(|table| local::decide(table, now, mode, &mut charges));
        self.regains_in(reset);
        if charges.iter().any(|charge| charge.answer() == LocalAnswer::NoRoom) {
            self.header.no_room.fetch_add(1, Ordering::Relaxed);
            self.give_back(&mut charges);
            return Err(NoRoom);
        }
        Ok(charges)
    }

    fn give_back(&self, charges: &mut LocalCharges) {
        let now = unix_micros();
        self.with_table(|table| local::give_back(table, now, charges));
    }
}

impl Shared {
    /// Settles what the limit of this index has charged a request locally, if it has.
    pub(crate) fn settle(&self, charges: &LocalCharges, index: usize, change: i64) {
        let Some(charge) = charges.get(index) else { return };
        let now = unix_micros();
        if let Some(reset) = self.with_table(|table| local::settle(table, now, charge, change)) {
            self.regains_in(reset);
        }
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
