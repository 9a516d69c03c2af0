//! Units that machines have set aside, and may spend at any moment: see [`lease`](crate::lease).
//!
//! A bucket that has set units aside is not refilled as if they were spent: else they could come back
//! while a machine still has them, and be spent twice at once. So what is held counts as missing all
//! the time, and what is spent of it begins to come back when the hold ends, or when the machine
//! reports them.
//!
//! A hold begins with a lease, takes the leases that follow for a while, and ends as a whole: so what a
//! machine that died has set aside is not held for ever, however many others go on. There are two, an
//! older one that takes no leases any more, and a newer one.
//!
//! A hold lasts for as long as what is missing of the bucket takes to come back, and at most for twice that; or
//! once or twice for as long as a lease, if that is longer. A machine that reports a lease while it is held gets
//! back all that it has not spent. Afterwards some of it may have been regained, and is lost. So a hold ends when
//! without it there would be no key any more.
//!
//! A hold is named by its end.
//!
//! Units that are charged while others are held are counted. A machine that reports its lease knows what it has spent
//! itself, and when; all that others have spent since its lease began is counted. So the state is at most as if
//! they had spent that just now, and there is no more to lose: see `Algorithm::report`.

use crate::limit::Quota;
use crate::rate::{DAY, MAX_EXACT};

/// Units that may be spent or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// How many.
    pub units: u64,
    /// When they are given up as spent, in µs.
    pub until: u64,
}

/// The holds of a client. Leases join the newer one, which ends after the older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// It takes no more leases.
    pub older: Hold,
    /// It takes leases that end before it does.
    pub newer: Hold,
    /// How many units were charged or given back since the first of the holds began, but for those that are held;
    /// of a hold that is over, all. At most [`MAX_EXACT`].
    pub charged: u64,
}

impl Hold {
    /// Where the whole quota comes back soon no hold lasts longer, in µs: more than twice the longest lease.
    pub(crate) const SHORT: u64 = 128_000_000;

    /// A hold begins for so long at most, in µs: 30 days.
    pub(crate) const LONG: u64 = 30 * DAY;

    /// How long so many units of a bucket take to come back, in µs, or somewhat longer.
    pub(super) fn refill(units: u64, quota: &Quota) -> u64 {
        let (period, count) = quota.terms();
        units.div_ceil(count).saturating_mul(period).min(Self::LONG)
    }

    /// No hold of this quota lasts longer, in µs.
    fn longest(quota: &Quota) -> u64 {
        Self::refill(quota.limit(), quota).saturating_mul(2).saturating_add(2).max(Self::SHORT)
    }

    fn is(self, name: u64) -> bool {
        self.units > 0 && self.until == name
    }

    /// The hold as long as it lasts.
    fn lasting(self, now: u64) -> Self {
        if self.units > 0 && self.until > now { self } else { Self::default() }
    }
}

impl Holds {
    /// Whether nothing is held.
    pub(super) fn is_none(self) -> bool {
        self.older.units == 0 && self.newer.units == 0
    }

    /// After a clock that stepped back no hold lasts longer than one that begins now. It loses its
    /// name then: that of a hold is even. It does not end at once: it may also be of a slower rate, and its machine about to
    /// spend it.
    pub(super) fn correct(&mut self, now: u64, quota: &Quota) {
        let latest = now.saturating_add(Hold::longest(quota)) | 1;
        for hold in [&mut self.older, &mut self.newer] {
            hold.until = hold.until.min(latest);
        }
    }

    /// The holds that last.
    pub(crate) fn lasting(self, now: u64) -> Self {
        let (older, newer) = (self.older.lasting(now), self.newer.lasting(now));
        let mut holds = Self { older, newer, charged: self.charged.min(MAX_EXACT) };
        for (before, after) in [(self.older, older), (self.newer, newer)] {
            holds.count(before.units.saturating_sub(after.units));
        }
        if holds.is_none() { Self::default() } else { holds }
    }

    /// Counts units that are charged while others are held.
    pub(super) fn count(&mut self, units: u64) {
        if units > 0 && !self.is_none() {
            self.charged = self.charged.saturating_add(units).min(MAX_EXACT);
        }
    }

    /// When the last of them ends, in µs; 0 if nothing is held.
    pub(crate) fn ends(self) -> u64 {
        self.older.until.max(self.newer.until)
    }

    /// How many units are held in all.
    pub(crate) fn units(self, limit: u64) -> u64 {
        self.older.units.saturating_add(self.newer.units).min(limit)
    }

    /// How many units were missing at least at which moments: at the ends of holds, and now.
    pub(super) fn each_floor(self, now: u64, limit: u64, mut floor: impl FnMut(u64, u64)) {
        if self.is_none() {
            return;
        }
        let mut holds = self;
        if holds.older.units > 0 && holds.older.until <= now {
            floor(holds.older.until, holds.units(limit));
            holds.older = Hold::default();
        }
        if holds.newer.units > 0 && holds.newer.until <= now {
            floor(holds.newer.until, holds.units(limit));
            holds.newer = Hold::default();
        }
        if holds.units(limit) > 0 {
            floor(now, holds.units(limit));
        }
    }

    /// When no more than `most` units are held or come back, where `regained` returns when so many are
    /// that come back from a moment on. 0 if that is so now.
    #[inline(always)]
    pub(super) fn until(
        self,
        now: u64,
        limit: u64,
        most: u64,
        regained: impl Fn(u64, u64) -> u64,
    ) -> u64 {
        if self.is_none() {
            return 0;
        }
        let newer = Self { older: Hold::default(), ..self };
        [(self.older.until, self.units(limit)), (self.newer.until, newer.units(limit))]
            .into_iter()
            .filter(|(at, units)| *at > now && *units > most)
            .map(|(at, units)| regained(at, units.saturating_sub(most)))
            .max()
            .unwrap_or(0)
    }

    /// Ends the hold of so many units, of which so many were spent, if it still lasts. Returns whether it did.
    pub(super) fn release(&mut self, units: u64, spent: u64, name: u64) -> bool {
        let hold = if self.newer.is(name) {
            &mut self.newer
        } else if self.older.is(name) {
            &mut self.older
        } else {
            return false;
        };
        hold.units = hold.units.saturating_sub(units);
        if hold.units == 0 {
            *hold = Hold::default();
        }
        match self.is_none() {
            true => *self = Self::default(),
            false => self.count(spent),
        }
        true
    }

    /// The holds with so many units more, for a lease of at least `span` µs, in the newer one. `None` if no
    /// more hold can begin.
    pub(super) fn set_aside(self, now: u64, span: u64, units: u64) -> Option<Self> {
        let Self { older, newer, .. } = self;
        if newer.units > 0 && now.saturating_add(span) <= newer.until {
            let units = newer.units.saturating_add(units);
            return Some(Self { newer: Hold { units, ..newer }, ..self });
        }
        if newer.units > 0 && older.units > 0 {
            return None;
        }
        let older = if newer.units > 0 { newer } else { older };
        let latest = now.saturating_add(span.saturating_mul(2)).max(older.until);
        let until = latest.saturating_add(2) & !1;
        Some(Self { older, newer: Hold { units, until }, ..self })
    }
}
