//! How a quota counts of which charges are corrected later: as any other, beside the [`Minima`](super::Minima) of what was
//! missing.
//! The reference of `script/settled.lua`.

use super::minima::Correction;
use super::moment::Moment;
use super::{Algorithm, Stored};
use crate::decision::Verdict;
use crate::limit::Quota;

/// The part of an algorithm that corrects charges with minima: see [`Algorithm::settled_sources`] for that in Lua.
pub(super) struct Settled {
    /// The shortage at a moment in µs without so many units, as [`Minimum::missing`](super::Minimum::missing) counts
    /// it.
    pub(super) missing_without: fn(&Stored, u64, &Quota, u64) -> u64,
    /// How to give back so many units of a charge at a moment in µs.
    pub(super) returned: fn(&Stored, u64, &Quota, u64, Correction) -> Returned,
}

/// How a charge is given back in the terms of one that nothing is known of.
pub(super) struct Returned {
    /// So many units.
    pub(super) units: u64,
    /// From this moment on they can have been regained.
    pub(super) since: u64,
    /// How much of what is missing they are at most.
    pub(super) back: u64,
}

impl Algorithm {
    /// Whether what was missing matters to the correction of a charge: windows forget a charge as a whole.
    pub(crate) fn keeps_minima(self) -> bool {
        self.settled().is_some()
    }

    /// The two parts of the Lua source that stand in `script/settled.lua`.
    ///
    /// The first one, `correct`, corrects a charge: it reads `cost`, what is given back, and `first`, the index of the
    /// step in `minima` whose number is `lowest`, both nil if there is none. It changes `cost` and `since`, and makes
    /// `back`, how much of what is missing comes back at most. The second one, `missing`, makes `shortfall`, what is
    /// missing without the units `spent`, rounded down.
    pub(crate) fn settled_sources(self) -> Option<[String; 2]> {
        self.settled().map(|_| ["correct", "missing"].map(|part| self.lua(part)))
    }

    fn settled(self) -> Option<&'static Settled> {
        self.row().settled.as_ref()
    }

    /// See [`decide`](Self::decide).
    pub(super) fn decide_settled(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        cost: u64,
    ) -> Verdict {
        self.noting(stored, now, quota, |stored| {
            let verdict = self.decide_alone(stored, now, quota, cost);
            (verdict, if verdict.allowed { cost } else { 0 })
        })
    }

    /// Charges, and takes note of what was missing before. `charge` also returns how many units it has spent.
    pub(super) fn noting<T>(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        charge: impl FnOnce(&mut Stored) -> (T, u64),
    ) -> T {
        let mut minima = std::mem::take(&mut stored.minima);
        let (result, spent) = charge(stored);
        if let (Some(settled), 1..) = (self.settled(), spent) {
            let missing = match minima.is_empty() {
                true => 0,
                false => (settled.missing_without)(stored, now, quota, spent),
            };
            minima.note(now, missing);
        }
        stored.minima = minima;
        result
    }

    /// Gives back `amount` of what was charged at `charged_at`, or as much of it as was missing all the time since.
    pub(super) fn give_back_settled(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        amount: u64,
        charged_at: u64,
    ) {
        let mut minima = std::mem::take(&mut stored.minima);
        match (self.settled(), minima.correction(charged_at, now)) {
            (Some(settled), Some(correction)) => {
                // A charge is not more than that.
                let amount = amount.min(quota.limit());
                let Returned { units, since, back } =
                    (settled.returned)(stored, now, quota, amount, correction);
                let state = (stored.state.clone(), stored.extra.debt);
                self.give_back_alone(stored, now, quota, units, Some(since));
                if state != (stored.state.clone(), stored.extra.debt) {
                    let missing = (settled.missing_without)(stored, now, quota, 0);
                    minima.sink(correction, back, missing);
                }
            }
            (None, _) | (Some(_), None) => self.give_back_alone(stored, now, quota, 0, Some(now)),
        }
        stored.minima = minima;
    }
}

/// The refund of an algorithm that regains bit by bit: more than the lowest shortage can have been regained in some time.
pub(super) fn returned_continuously(
    _stored: &Stored,
    now: u64,
    quota: &Quota,
    units: u64,
    correction: Correction,
) -> Returned {
    let all = Moment::at(0).plus(quota.interval(), units).ceil();
    match correction.lowest {
        Some(lowest) => {
            let back = all.min(lowest.missing);
            Returned { units, since: now.saturating_sub(all - back).max(1), back }
        }
        None => Returned { units, since: now.max(1), back: all },
    }
}
