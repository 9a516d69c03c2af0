//! Changes of a state by an operator, and a state of one quota as one of another: the reference of `script/manage.lua` and
//! `script/override.lua`.

use super::{Algorithm, Extra, State, Stored, sliding_log};
use crate::limit::Quota;

impl Algorithm {
    /// Gives so many units back, or as many as are missing. What was missing before is no longer known, so that no earlier
    /// charge can be corrected to less any more; and a machine that holds units does not take over a state without these.
    pub(crate) fn grant_back(self, stored: &mut Stored, now: u64, quota: &Quota, units: u64) {
        let units = match stored.state {
            Some(State::Log(..)) => sliding_log::pay(stored, now, quota, units),
            Some(_) | None => units,
        };
        self.add_back(stored, now, quota, units, None);
        stored.minima.clear();
        stored.extra.holds = stored.extra.holds.lasting(now);
        stored.extra.holds.count(units);
    }

    /// The state of a client that has a whole quota.
    pub(crate) fn whole(self) -> Stored {
        Stored { state: (self.row().read)([0; 3]), ..Stored::default() }
    }

    /// Blocks a client for `span` µs from now on; 0: no longer.
    pub(crate) fn set_block(self, stored: &mut Stored, now: u64, quota: &Quota, span: u64) {
        if span == 0 {
            stored.extra.blocked_until = 0;
            return;
        }
        stored.state = stored.state.take().or_else(|| self.whole().state);
        stored.extra.blocked_until = now.saturating_add(span.min(quota.longest_block()));
    }

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
        stored.correct(at, from);
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
