//! Changes of a state by a lease: the references of `script/lease.lua`.

use super::{Algorithm, Held, Hold, Leases, State, Stored};
use crate::lease::{Granted, Lease, Report};
use crate::limit::Quota;

impl Algorithm {
    /// Whether a machine can take units ahead: see [`lease`](crate::lease).
    pub fn has_leases(self) -> bool {
        self.row().leases.is_some()
    }

    /// The Lua functions for states of which machines hold units, beside those of `Held`: `computed`, of the numbers of a
    /// state, `now`, `period` and `count`, and `has_more`, of the numbers of two states, each with its debt. `None` where none are held.
    pub(crate) fn held_sources(self) -> Option<[String; 2]> {
        self.row().leases?;
        let sources = ["computed", "has_more"].map(|part| self.lua(part));
        sources.iter().all(|source| !source.is_empty()).then_some(sources)
    }

    /// The state of these numbers, as they are stored.
    pub(crate) fn state_of(self, numbers: [u64; 3]) -> Option<State> {
        (self.row().read)(numbers)
    }

    /// These numbers of a state, with `held` units that are missing in it given back.
    pub(crate) fn without_held(self, numbers: [u64; 3], quota: &Quota, held: u64) -> [u64; 3] {
        let state = self.state_of(numbers).filter(|_| held > 0).map(|state| match state {
            State::Bucket(tokens, last) => {
                State::Bucket(tokens.saturating_add(held).min(quota.limit()), last)
            }
            State::Arrival(tat) => State::Arrival(tat.minus(quota.interval(), held)),
            State::Window(..) | State::Log(..) => state,
        });
        state.and_then(|state| state.numbers()).unwrap_or(numbers)
    }

    /// Takes note of what became of a lease, and returns how many units come back.
    ///
    /// The held units, but for those that were not spent, are counted as spent now; or, where that is less, as the
    /// machine has spent them, and the units that others have spent since the lease began, as spent now. If the hold
    /// has ended, its units were counted as spent then: of those that were not spent, only those come back that cannot
    /// have been regained since.
    pub fn report(self, stored: &mut Stored, now: u64, quota: &Quota, report: &Report) -> u64 {
        let Report { of, unused, ends, .. } = *report;
        if of == 0 || !self.has_leases() {
            return 0;
        }
        stored.correct(now, quota);
        if self.leases_end_with_windows(quota) {
            let (before, since) = (stored.clone(), ends.saturating_sub(1).max(1));
            self.correct(stored, now, quota, unused, since);
            return if *stored == before { 0 } else { unused };
        }
        let mut holds = stored.extra.holds.lasting(now);
        let others = holds.charged.saturating_sub(report.charged);
        if holds.release(of, of.saturating_sub(unused), ends) {
            let state = self.held(quota).and_then(|held| (held.computed)(report.plain, now, quota));
            let others = others.saturating_add(holds.units(quota.limit()));
            if others == 0 && state.is_some() {
                stored.state = state;
                stored.extra.holds = holds;
                self.touch(stored, now, quota);
                return unused;
            }
            // Until now all of it was held.
            self.touch(stored, now, quota);
            stored.extra.holds = holds;
            (self.row().give_back)(stored, now, quota, unused, None);
            if let Some(state) = state {
                self.take_over(stored, state, now, quota, others);
            }
            return unused;
        }
        if ends > now {
            return 0;
        }
        let remaining = |mut stored: Stored| self.decide(&mut stored, now, quota, 0).remaining;
        let before = remaining(stored.clone());
        self.correct(stored, now, quota, unused, ends.max(1));
        remaining(stored.clone()).saturating_sub(before)
    }

    /// Takes over the state that a machine has computed, less what `others` have spent and hold, if more remains
    /// then.
    ///
    /// Either way no more remains than without leases: what is stored counts all that the machine has spent as
    /// spent now, and what it has computed, all that the others have. Wherever a request stood among those of the
    /// others, none of them came later than now.
    fn take_over(self, stored: &mut Stored, state: State, now: u64, quota: &Quota, others: u64) {
        let mut computed = Stored { state: Some(state), ..Stored::default() };
        (self.row().charge)(&mut computed, now, quota, others);
        self.touch(&mut computed, now, quota);
        if computed.has_more_than(stored) {
            (stored.state, stored.extra.debt) = (computed.state, computed.extra.debt);
        }
    }

    /// Sets units aside after a request that was allowed and has spent something, where so many
    /// remain: a quarter of what Redis need not keep, or half where no other machine holds any of a bucket.
    pub fn grant(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        lease: &Lease,
        remaining: u64,
    ) -> Granted {
        let none = Granted::nothing(now);
        if lease.want == 0 {
            return none;
        }
        let is_first = !self.leases_end_with_windows(quota) && stored.extra.holds.is_none();
        let surplus = remaining.saturating_sub(lease.keep);
        let units = lease.want.min(surplus / if is_first { 2 } else { 4 });
        let plain = stored.state.as_ref().and_then(State::numbers);
        let (Some(plain), 1.., true) = (plain, units, self.has_leases()) else { return none };

        let (held, charged) = (stored.extra.holds.units(quota.limit()), stored.extra.holds.charged);
        let ends = match self.window_end(stored.state.as_ref(), now, quota) {
            Some(ends) => {
                self.decide(stored, now, quota, units);
                ends
            }
            None => {
                let missing = quota.limit().saturating_sub(remaining).saturating_add(units);
                let hold = lease.hold().max(Hold::refill(missing, quota));
                let holds = stored.extra.holds.set_aside(now, hold, units);
                let Some(holds) = holds else { return none };
                self.decide(stored, now, quota, units);
                stored.extra.holds = holds;
                holds.newer.until
            }
        };
        Granted { units, returned: 0, now, ends, plain, held, charged }
    }

    /// Whether leases of this quota end with windows.
    pub(crate) fn leases_end_with_windows(self, quota: &Quota) -> bool {
        matches!(self.leases(quota), Some(Leases::EndWithWindows { .. }))
    }

    /// When the window ends in which leases end. That of a bucket begins with the state, or, if there is
    /// none, at this moment.
    pub(crate) fn window_end(self, state: Option<&State>, now: u64, quota: &Quota) -> Option<u64> {
        match self.leases(quota)? {
            Leases::EndWithWindows { end, .. } => Some(end(state, now, quota)),
            Leases::AreHeld(_) => None,
        }
    }

    /// Whether Redis keeps a share of what is left of this quota from leases.
    pub(crate) fn keeps_share(self, quota: &Quota) -> bool {
        match self.leases(quota) {
            Some(Leases::EndWithWindows { keeps_share, .. }) => keeps_share,
            Some(Leases::AreHeld(_)) | None => true,
        }
    }

    /// Writes the state down as it is at `now`, if units of it are held.
    fn touch(self, stored: &mut Stored, now: u64, quota: &Quota) {
        if let Some(held) = self.held(quota) {
            (held.touch)(stored, now, quota);
        }
    }

    fn held(self, quota: &Quota) -> Option<Held> {
        match self.leases(quota)? {
            Leases::AreHeld(held) => Some(held),
            Leases::EndWithWindows { .. } => None,
        }
    }

    fn leases(self, quota: &Quota) -> Option<Leases> {
        self.row().leases.map(|leases| leases(quota))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::SECOND;

    const START: u64 = 1_700_000_000 * SECOND;

    /// How many of 5 units that are not spent come back at these times after the end of the hold.
    fn come_back(algorithm: Algorithm, rate: &str, limit: u64) -> [u64; 6] {
        let quota = Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap();
        let mut stored = Stored::default();
        algorithm.decide(&mut stored, START, &quota, 1);
        let lease = Lease { span: SECOND, want: 5, ..Lease::default() };
        let granted = algorithm.grant(&mut stored, START, &quota, &lease, 10);
        assert_eq!(granted.units, 5);
        // Another machine's request.
        algorithm.decide(&mut stored, START + 1, &quota, 1);
        let Granted { ends, plain, .. } = granted;
        let report = Report { of: 5, unused: 5, ends, plain, charged: 0 };
        [0, 1, SECOND - 1, SECOND, 3 * SECOND, 5 * SECOND].map(|late| {
            let mut stored = stored.clone();
            let remaining = |stored: &Stored| {
                algorithm.decide(&mut stored.clone(), ends + late, &quota, 0).remaining
            };
            let before = remaining(&stored);
            let back = algorithm.report(&mut stored, ends + late, &quota, &report);
            assert_eq!(remaining(&stored) - before, back, "{algorithm:?} {late}");
            back
        })
    }

    /// The functions that lease.lua calls are in the Lua of an algorithm, or in that of another that it shares.
    #[test]
    fn each_algorithm_whose_units_can_be_held_has_the_lua_for_it() {
        for algorithm in Algorithm::ALL {
            let quota = Quota::new(algorithm, "2r/m".parse().unwrap(), 11).unwrap();
            let is_held = algorithm.held(&quota).is_some();
            assert_eq!(algorithm.held_sources().is_some(), is_held, "{algorithm:?}");
        }
    }

    /// Another limit has rejected the request that brought the lease: its charge is given back before the machine
    /// reports, with a state that still has it.
    #[test]
    fn what_is_given_back_while_units_are_held_is_not_lost() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::IntervalBucket] {
            let quota = Quota::new(algorithm, "1r/h".parse().unwrap(), 11).unwrap();
            let mut stored = Stored::default();
            algorithm.decide(&mut stored, START, &quota, 1);
            let lease = Lease { span: SECOND, want: 5, ..Lease::default() };
            let Granted { units, ends, plain, .. } =
                algorithm.grant(&mut stored, START, &quota, &lease, 10);
            algorithm.give_back(&mut stored, START + 1, &quota, 1, START + SECOND);
            let report = Report { of: units, unused: units, ends, plain, charged: 0 };
            algorithm.report(&mut stored, START + 2, &quota, &report);
            let remaining = algorithm.decide(&mut stored, START + 2, &quota, 0).remaining;
            assert_eq!(remaining, 11, "{algorithm:?}");
        }
    }

    #[test]
    fn what_is_left_of_a_hold_comes_back_but_for_what_may_be_regained() {
        assert_eq!(come_back(Algorithm::TokenBucket, "1r/s", 11), [5, 5, 5, 4, 2, 0]);
        assert_eq!(come_back(Algorithm::Gcra, "1r/s", 11), [5, 5, 5, 4, 2, 0]);
        assert_eq!(come_back(Algorithm::IntervalBucket, "2r/s", 11), [5, 5, 5, 3, 0, 0]);
        assert_eq!(come_back(Algorithm::IntervalBucket, "1r/h", 11), [5, 5, 5, 5, 5, 5]);
    }

    /// Tokens that the machine's clock has counted too early are taken off, and no more comes back for them.
    #[test]
    fn a_machine_whose_clock_is_ahead_gains_nothing() {
        let quota = Quota::new(Algorithm::TokenBucket, "999r/s".parse().unwrap(), 10).unwrap();
        let left = |plain: [u64; 3], now| {
            let mut stored = Stored::default();
            Algorithm::TokenBucket.decide(&mut stored, START, &quota, 1);
            let lease = Lease { span: SECOND, want: 2, ..Lease::default() };
            let granted = Algorithm::TokenBucket.grant(&mut stored, START, &quota, &lease, 9);
            let (of, ends) = (granted.units, granted.ends);
            let report = Report { of, unused: 0, ends, plain, charged: 0 };
            Algorithm::TokenBucket.report(&mut stored, now, &quota, &report);
            Algorithm::TokenBucket.decide(&mut stored, now, &quota, 0).remaining
        };
        // One token takes 1001 and 1/999 us.
        assert_eq!(left([6, START + 2_500, 0], START + 2_600), 6);
        assert_eq!(left([6, START + 2_500, 0], START + 2_500), 6);
        assert_eq!(left([6, START + 2_500, 0], START + 2_400), 5);
        assert_eq!(left([6, START + 2_500, 0], START + 1_499), 5);
        assert_eq!(left([6, START + 2_500, 0], START + 1_497), 4);
        // It has spent tokens that are still to come: its state is of no use.
        assert!(left([0, START + 100, 0], START + 90) <= 7);
    }
}
