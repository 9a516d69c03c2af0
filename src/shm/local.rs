//! Local decisions, in the shared memory.

use std::sync::atomic::Ordering;

use rate_limit_core::local::{self, LocalAnswer, LocalCharges, Mode};
use rate_limit_core::request::{Evaluated, LocalTable, NoRoom};

use super::Shared;
use crate::clock::{monotonic_micros, unix_micros};
use crate::conf::LimitConf;

impl LocalTable<LimitConf> for Shared {
    fn has_charges(&self) -> bool {
        monotonic_micros() < self.header.whole.load(Ordering::Relaxed)
    }

    fn decide<'a>(
        &self,
        mode: Mode,
        limits: &[Evaluated<'a, LimitConf>],
    ) -> Result<LocalCharges<'a>, NoRoom> {
        let blocked_for = |limit: &Evaluated<'_, LimitConf>| match mode {
            Mode::Outage => self.blocked_for(limit.charge.client()),
            // Redis, which knows better, decides as well.
            Mode::Return => 0,
        };
        let mut charges: LocalCharges<'_> =
            limits.iter().map(|limit| (limit.charge, blocked_for(limit))).collect();
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

    fn give_back(&self, charges: &mut LocalCharges<'_>) {
        let now = unix_micros();
        self.with_table(|table| local::give_back(table, now, charges));
    }
}

impl Shared {
    /// Settles what the limit of this index has charged a request locally, if it has.
    pub(crate) fn settle(&self, charges: &LocalCharges<'_>, index: usize, change: i64) {
        let Some(charge) = charges.get(index) else { return };
        let now = unix_micros();
        if let Some(reset) = self.with_table(|table| local::settle(table, now, charge, change)) {
            self.regains_in(reset);
        }
    }

    /// Something was spent that is regained in so many µs. On the monotonic clock: a wall clock that was
    /// far ahead must not prolong this.
    fn regains_in(&self, reset: u64) {
        let whole = monotonic_micros().saturating_add(reset);
        self.header.whole.fetch_max(whole, Ordering::Relaxed);
    }
}
