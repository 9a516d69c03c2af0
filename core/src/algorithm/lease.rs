//! What a lease changes in a state: the references of `script/lease.lua`.

use super::{Algorithm, Holds, State, Stored, gcra, interval_bucket, token_bucket};
use crate::lease::{Granted, Lease, Report};
use crate::limit::Quota;
use crate::window::Window;

impl Algorithm {
    /// Whether a machine can take units ahead: see [`lease`](crate::lease).
    pub fn has_leases(self) -> bool {
        !matches!(self, Self::LeakyBucket | Self::SlidingLog)
    }

    /// The state of these numbers, as they are stored.
    pub(crate) fn state_of(self, numbers: [u64; 3]) -> Option<State> {
        (self.description().read)(numbers)
    }

    /// Takes note of what became of a lease, and answers how many units come back: none, if Redis has
    /// given them up.
    ///
    /// The machine that alone has spent anything knows what there is now, and that is what is there
    /// from now on. Else what was held is counted as spent now, but for the units that were not.
    pub fn report(self, stored: &mut Stored, now: u64, quota: &Quota, report: &Report) -> u64 {
        let Report { of, unused, ends, plain } = *report;
        if of == 0 || !self.has_leases() {
            return 0;
        }
        stored.extra.holds.correct(now);
        if self.leases_end_with_windows(quota) {
            let (before, since) = (stored.clone(), Some(ends.saturating_sub(1).max(1)));
            (self.description().give_back)(stored, now, quota, unused, since);
            return if *stored == before { 0 } else { unused };
        }
        let [_, is_past, _] = plain.map(|number| number < now);
        if stored.extra.holds.are_sole(of, ends) && is_past {
            stored.state = self.state_of(plain);
            stored.extra.holds = Holds::default();
            self.touch(stored, now, quota);
            return unused;
        }
        let mut holds = stored.extra.holds.shared(now);
        if !holds.release(of, ends) {
            return 0;
        }
        // Until now all of it was held.
        self.touch(stored, now, quota);
        stored.extra.holds = holds;
        (self.description().give_back)(stored, now, quota, unused, None);
        unused
    }

    /// Sets units aside after a request that was allowed and has spent something, where so many
    /// remain.
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
        let units = lease.want.min(remaining / lease.share.max(1));
        let plain = stored.state.as_ref().and_then(State::numbers);
        let (Some(plain), 1.., true) = (plain, units, self.has_leases()) else { return none };

        let ends = match self.window_end(stored.state.as_ref(), now, quota) {
            Some(ends) => {
                self.decide(stored, now, quota, units);
                ends
            }
            None => {
                let held = stored.extra.holds.set_aside(now, lease.hold(), units);
                let Some((holds, ends)) = held else { return none };
                self.decide(stored, now, quota, units);
                stored.extra.holds = holds;
                ends
            }
        };
        Granted { units, returned: 0, now, ends, plain }
    }

    /// Whether nothing is regained of what is spent but at the end of a window, and then everything: so
    /// Redis need not remember leases, which end with it. A bucket that is filled by each refill is such.
    pub(crate) fn leases_end_with_windows(self, quota: &Quota) -> bool {
        match self {
            Self::FixedWindow | Self::SlidingWindow | Self::CalendarWindow => true,
            Self::IntervalBucket => quota.limit() <= quota.rate().count(),
            _ => false,
        }
    }

    /// When the window ends in which leases end. That of a bucket begins with the state, or, if there is
    /// none, at this moment.
    pub(crate) fn window_end(self, state: Option<&State>, now: u64, quota: &Quota) -> Option<u64> {
        if !self.leases_end_with_windows(quota) {
            return None;
        }
        let period = quota.rate().period();
        Some(match (self, state) {
            (Self::CalendarWindow, _) => Window::month(now).ends,
            (Self::IntervalBucket, Some(State::Bucket(_, last))) => {
                last.micros.saturating_add(period)
            }
            (Self::IntervalBucket, _) => now.saturating_add(period),
            _ => Window::aligned(now, period).ends,
        })
    }

    /// Writes the state down as it is at `now`.
    fn touch(self, stored: &mut Stored, now: u64, quota: &Quota) {
        match self {
            Self::TokenBucket => token_bucket::touch(stored, now, quota),
            Self::IntervalBucket => interval_bucket::touch(stored, now, quota),
            Self::Gcra => gcra::touch(stored, now, quota),
            _ => {}
        }
    }
}
