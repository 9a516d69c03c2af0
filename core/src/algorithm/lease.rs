//! What a lease changes in a state: the references of `script/lease.lua`.

use super::{Algorithm, Holds, State, Stored, gcra, interval_bucket, token_bucket};
use crate::lease::{Granted, Lease, Report, SHARE};
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
        if self.window_end(now, quota).is_some() {
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
        let units = lease.want.min(remaining / SHARE);
        let plain = stored.state.as_ref().and_then(State::numbers);
        let (Some(plain), 1.., true) = (plain, units, self.has_leases()) else { return none };

        let held = stored.extra.holds.set_aside(now, lease.hold(), units);
        let ends = match (self.window_end(now, quota), held) {
            (Some(end), _) => end,
            (None, Some((_, ends))) => ends,
            (None, None) => return none,
        };
        self.decide(stored, now, quota, units);
        if let (None, Some((holds, _))) = (self.window_end(now, quota), held) {
            stored.extra.holds = holds;
        }
        Granted { units, returned: 0, now, ends, plain }
    }

    /// When the window ends, of an algorithm that counts in windows.
    fn window_end(self, now: u64, quota: &Quota) -> Option<u64> {
        match self {
            Self::FixedWindow | Self::SlidingWindow => {
                Some(Window::aligned(now, quota.rate().period()).ends)
            }
            Self::CalendarWindow => Some(Window::month(now).ends),
            _ => None,
        }
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
