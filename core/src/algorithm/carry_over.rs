//! A state of one quota as one of another: the reference of `script/override.lua`.

use super::{Algorithm, Stored};
use crate::limit::Quota;

impl Algorithm {
    /// The state from which on `to` counts, where `from` has counted until `at`, in µs: as many units are missing, at
    /// most all of them, and as many are owed. A block goes on. What machines have set aside is spent.
    pub(crate) fn carry_over(
        self,
        mut stored: Stored,
        at: u64,
        from: &Quota,
        to: &Quota,
    ) -> Stored {
        stored.blocked_for(at, from);
        stored.correct_holds(at, from);
        let debt = self.debt_at(&mut stored, at, from);
        let remaining = (self.description().decide)(&mut stored.clone(), at, from, 0).remaining;
        let missing = from.limit().saturating_sub(remaining).min(to.limit());
        let blocked = stored.extra.blocked_until.saturating_sub(at);
        let mut carried = Stored::default();
        if blocked > 0 {
            carried.state = (self.description().read)([0; 3]);
            carried.block(at, to, blocked);
        }
        for units in [missing, debt].into_iter().filter(|units| *units > 0) {
            self.settle(&mut carried, at, to, 1, i64::try_from(units).unwrap_or(i64::MAX));
        }
        carried
    }

    /// What is owed at `at`: a unit that is given back and charged again writes the state down as it is then.
    pub(crate) fn debt_at(self, stored: &mut Stored, at: u64, quota: &Quota) -> u64 {
        if stored.extra.debt > 0 {
            (self.description().give_back)(stored, at, quota, 1, None);
            (self.description().charge)(stored, at, quota, 1);
        }
        stored.extra.debt
    }
}
