//! A state of one quota as one of another: the reference of `script/override.lua`.

use super::{Algorithm, Extra, State, Stored, sliding_log};
use crate::limit::Quota;

impl Algorithm {
    /// The state from which on `to` counts, where `from` has counted until `at`, in µs: as many units are missing, at
    /// most all of them, and as many are owed. A block goes on. What machines have set aside is spent. The entries of a
    /// log of the same period stay as they are, and so does any state under the same quota.
    pub(crate) fn carry_over(
        self,
        mut stored: Stored,
        at: u64,
        from: &Quota,
        to: &Quota,
    ) -> Stored {
        let is_log = matches!(stored.state, Some(State::Log(..)));
        if from.terms() == to.terms() && (is_log || from.limit() == to.limit()) {
            if is_log {
                // It is forgotten by the limit that has counted, not by the next one.
                sliding_log::forget_debt(&mut stored, at, from);
            }
            return stored;
        }
        stored.blocked_for(at, from);
        stored.correct_holds(at, from);
        let debt = self.debt_at(&stored, at, from);
        let missing = match is_log {
            // It may be more than the limit, which was lowered.
            true => sliding_log::spent_at(&stored, at, from),
            false => {
                let verdict = (self.row().decide)(&mut stored, at, from, 0);
                from.limit().saturating_sub(verdict.remaining)
            }
        };
        let blocked = stored.extra.blocked_until.saturating_sub(at);
        let mut carried = Stored::default();
        if blocked > 0 {
            carried.state = (self.row().read)([0; 3]);
            carried.block(at, to, blocked);
        }
        for units in [missing, debt].into_iter().filter(|units| *units > 0) {
            self.settle(&mut carried, at, to, 1, i64::try_from(units).unwrap_or(i64::MAX));
        }
        carried
    }

    /// The debt at `at`: the least number of units that has to be given back for nothing to be owed. A state may hold a
    /// larger number, as that of gcra does.
    pub(crate) fn debt_at(self, stored: &Stored, at: u64, quota: &Quota) -> u64 {
        if let Some(State::Log(..)) = stored.state {
            return sliding_log::debt_at(stored, at, quota);
        }
        let most = stored.debt(quota);
        let without = |units: u64, spent: u64| {
            let extra = Extra { debt: most, ..Extra::default() };
            let mut stored = Stored { extra, ..stored.clone() };
            (self.row().give_back)(&mut stored, at, quota, units, None);
            (self.row().charge)(&mut stored, at, quota, spent);
            stored.extra.debt == 0
        };
        if most == 0 || without(1, 1) {
            return 0;
        }
        let (mut low, mut high) = (1, most);
        while low < high {
            let middle = low.midpoint(high);
            (low, high) = if without(middle, 0) { (low, middle) } else { (middle + 1, high) };
        }
        low
    }
}
