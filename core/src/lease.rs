//! Leases: units of a quota that a machine takes ahead of its requests, and spends without Redis.
//!
//! A command that charges a request can set more units aside for its machine. Redis counts them as
//! spent at once, and the machine spends them until the lease ends, and never after that. So nothing
//! passes that was not charged before, and what is not spent is lost to the client, or given back
//! with the next command.
//!
//! A quota that regains what is spent needs more care: while units are set aside they could be
//! regained, and be spent twice in a moment. So Redis remembers how many are, and regains no more
//! than the limit without them: see [`Hold`](crate::algorithm::Hold). In a window nothing is
//! regained, and a lease ends with its window.

use crate::algorithm::{Extra, Stored};
use crate::decision::Verdict;
use crate::limit::{Algorithm, Quota};

pub mod table;

/// The lease arguments of a command, for one limit and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How long the machine is going to spend the units, in µs.
    pub span: u64,
    /// How many units are to be set aside at most; 0: no lease is wanted.
    pub want: u64,
    /// The share of what remains that may be set aside: one part of so many, at least 1.
    pub share: u64,
    /// What became of the machine's last lease.
    pub report: Report,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many units were set aside; 0: there is nothing to report.
    pub of: u64,
    /// How many of them were not spent, and never will be.
    pub unused: u64,
    /// As in [`Granted`].
    pub ends: u64,
    /// The state as it would be without leases, if no other machine has spent anything.
    pub plain: [u64; 3],
}

/// What a command has set aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// How many units; 0: there is no lease.
    pub units: u64,
    /// How many units of the last lease were given back.
    pub returned: u64,
    /// The time of Redis, in µs.
    pub now: u64,
    /// Until when Redis remembers the lease, or when its window ends. It also names the hold.
    pub ends: u64,
    /// The state after the request, without the units set aside.
    pub plain: [u64; 3],
}

/// The share of what remains that a lease may take: one part of so many.
const SHARE: u64 = 3;

/// The same for the first lease of a window, which is as large as the demand of a window, and for those
/// that follow it.
const FIRST_SHARE: u64 = 2;
const LATER_SHARE: u64 = 4;

/// The demand in the last window counts for one part of so many in the mean of all.
const WEIGHT: u64 = 4;

/// The mean is counted in parts of a unit: one of so many.
const PARTS: u64 = 16;

/// Redis remembers a lease for longer than its machine spends it: by one part of so many. So a
/// machine is never late, even if its clock is that much slower than the clock of Redis.
const MARGIN: u64 = 16;

/// What ends with a window cannot be remembered for longer: its machine spends it for less long, by one
/// part of so many. NTP changes the rate of a clock by half of that at most.
const WINDOW_MARGIN: u64 = 1_024;

impl Lease {
    /// That of a command without leases.
    pub const NONE: Self = Self {
        span: 0,
        want: 0,
        share: 1,
        report: Report { of: 0, unused: 0, ends: 0, plain: [0; 3] },
    };

    /// Whether nothing is wanted and nothing is reported.
    pub fn is_none(&self) -> bool {
        self.want == 0 && self.report.of == 0
    }

    /// How long Redis is to remember the lease at least, in µs, unless it ends with a window.
    pub(crate) fn hold(&self) -> u64 {
        self.span.saturating_add(self.span / MARGIN)
    }
}

impl Granted {
    /// That of a command which has set nothing aside, at this time of Redis.
    pub fn nothing(now: u64) -> Self {
        Self { now, ..Self::default() }
    }
}

/// What a machine keeps for a limit and a client: the lease, and how much of it is in demand. There
/// is one after each request that Redis has allowed; the next lease is as large as its demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// How many units are left.
    units: u64,
    /// How many units were set aside.
    of: u64,
    ends: u64,
    /// The times at which the units were set aside: that of Redis, and the monotonic time of the
    /// machine, which is somewhat earlier.
    taken: u64,
    submitted: u64,
    /// How long they may be spent from then on.
    span: u64,
    /// How many units were spent since, with those of the request that brought the lease; or in this
    /// window, where it ends with that.
    demand: u64,
    /// The mean demand of the windows before, in parts of a unit.
    mean: u64,
    plain: [u64; 3],
}

impl Holding {
    /// How many words it takes.
    const WORDS: usize = 11;

    /// What came of a command that has charged `cost` units in all, where leases last `span` µs.
    /// `submitted` is the monotonic time at which it was handed to the client: before Redis has seen it,
    /// so that the lease ends early rather than late.
    pub fn new(quota: &Quota, span: u64, granted: &Granted, cost: u64, submitted: u64) -> Self {
        let Granted { units, now, plain, .. } = *granted;
        let ends = match units {
            0 => quota.algorithm().window_end(None, now, quota).unwrap_or(0),
            _ => granted.ends,
        };
        let (of, taken, demand) = (units, now, cost);
        Self { units, of, ends, taken, submitted, span, demand, mean: 0, plain }
    }

    /// The same, with the demand of the time before. A command of cost 0 leaves that as it was.
    pub fn after(self, before: &Self, quota: &Quota) -> Self {
        match self.counts_windows(quota) {
            _ if self.demand == 0 => Self { units: 0, of: 0, plain: self.plain, ..*before },
            true if self.taken < before.ends => {
                let demand = self.demand.saturating_add(before.demand);
                Self { demand, mean: before.mean, ..self }
            }
            true => Self { mean: before.mean(), ..self },
            false => self,
        }
    }

    /// Whether leases end with windows rather than after their time, so that it is the demand of a window
    /// that counts.
    fn counts_windows(&self, quota: &Quota) -> bool {
        quota.algorithm().leases_end_with_windows(quota) && quota.rate().period() <= self.span
    }

    /// The mean demand of a window, with the last one, in parts of a unit.
    fn mean(&self) -> u64 {
        let last = self.demand.saturating_mul(PARTS);
        self.mean.saturating_mul(WEIGHT - 1).saturating_add(last) / WEIGHT
    }

    /// Both as one, where commands in flight at once have brought two: what is left of both, until the
    /// earlier end, and the demand of both.
    ///
    /// The later one has found the units of the other one spent, which they would not be without leases.
    /// A report names one hold only. If Redis has the two in different ones, the older hold lasts until
    /// it ends, and its units are those that are spent first.
    pub fn join(self, other: Self, quota: &Quota, now: u64) -> Self {
        let (demand, mean) = (self.demand.saturating_add(other.demand), self.mean.max(other.mean));
        let (first, last) = if self.taken > other.taken { (other, self) } else { (self, other) };
        match (first.is_living(now), last.is_living(now)) {
            (true, true) => {
                let Self { taken, submitted, span, .. } =
                    if first.end() < last.end() { first } else { last };
                let of = if first.ends == last.ends { first.of } else { 0 };
                let (of, units) =
                    (last.of.saturating_add(of), last.units.saturating_add(first.units));
                let plain = last.plain_with(first.units, quota, now);
                Self { units, of, ends: last.ends, taken, submitted, span, demand, mean, plain }
            }
            (true, false) => Self { demand, mean, ..first },
            _ => Self { demand, mean, ..last },
        }
    }

    /// The plain state at the monotonic time `now`, with so many units more.
    fn plain_with(&self, units: u64, quota: &Quota, now: u64) -> [u64; 3] {
        let algorithm = quota.algorithm();
        let mut stored = Stored { state: algorithm.state_of(self.plain), extra: Extra::default() };
        algorithm.add_back(&mut stored, self.redis_time(now), quota, units, None);
        stored.state.and_then(|state| state.numbers()).unwrap_or(self.plain)
    }

    /// Spends `cost` units of the lease at the monotonic time `now`, in µs. `None` if there are not
    /// so many left, or the lease has ended.
    pub fn spend(&mut self, quota: &Quota, cost: u64, now: u64) -> Option<Verdict> {
        if !self.is_living(now) || cost > self.units {
            return None;
        }
        let algorithm = quota.algorithm();
        let mut stored = Stored { state: algorithm.state_of(self.plain), extra: Extra::default() };
        let verdict = algorithm.decide(&mut stored, self.redis_time(now), quota, cost);
        if !verdict.allowed {
            return None;
        }
        self.plain = stored.state?.numbers()?;
        self.units = self.units.saturating_sub(cost);
        self.demand = self.demand.saturating_add(cost);
        Some(verdict)
    }

    /// The lease arguments of the next command at the monotonic time `now`, if leases are to last `span`
    /// µs: what became of this one, and that another one is wanted which is as large as the demand was,
    /// or twice that if the lease was spent before it ended. If that is long ago, none is.
    pub fn lease(&self, quota: &Quota, span: u64, now: u64) -> Lease {
        let Self { units, of, ends, demand, plain, .. } = *self;
        let elapsed = now.saturating_sub(self.submitted);
        let (want, share) = match elapsed {
            _ if elapsed >= span.saturating_mul(2) => (0, SHARE),
            _ if self.counts_windows(quota) => self.want_in_window(quota, now),
            _ if !self.has_ended(now) => (demand.saturating_mul(2), SHARE),
            _ => (demand, SHARE),
        };
        Lease { span, want, share, report: Report { of, unused: units.min(of), ends, plain } }
    }

    /// How many units are wanted where the demand of windows counts, and the share of what remains.
    ///
    /// In a new window they are to last until its end: as many as are spent in a window on average, and
    /// what that varies by. In the same window they are as many as were spent in it until now, or fewer
    /// near its end. A request that Redis rejects makes the machine forget the average: so under
    /// pressure leases are small, and little is left of them when the window ends.
    fn want_in_window(&self, quota: &Quota, now: u64) -> (u64, u64) {
        let (period, now) = (quota.rate().period(), self.redis_time(now));
        if now >= self.ends {
            let rest = period - (now - self.ends) % period;
            let mean = part(self.mean(), rest, period) / PARTS;
            let share = match quota.algorithm() {
                // What the last window has spent is not there yet.
                Algorithm::SlidingWindow => 1,
                _ => FIRST_SHARE,
            };
            return (mean.saturating_add(mean.saturating_mul(2).isqrt()), share);
        }
        let rest = self.ends - now;
        let elapsed = period.saturating_sub(rest).max(1);
        (part(self.demand, rest.min(elapsed), elapsed), LATER_SHARE)
    }

    /// Whether the lease has ended: nothing of it is spent any more.
    pub fn has_ended(&self, now: u64) -> bool {
        now >= self.end()
    }

    /// Whether there is a lease that has not ended, though it may be spent.
    pub fn is_living(&self, now: u64) -> bool {
        self.of > 0 && !self.has_ended(now)
    }

    /// Whether a lease has ended that was not reported.
    fn is_left_over(&self, now: u64) -> bool {
        self.of > 0 && self.has_ended(now)
    }

    /// The monotonic time at which the lease ends.
    fn end(&self) -> u64 {
        let whole = self.ends.saturating_sub(self.taken);
        let left = match self.of {
            0 => self.span,
            _ => self.span.min(whole - whole / WINDOW_MARGIN),
        };
        self.submitted.saturating_add(left)
    }

    /// When its command was submitted, by the monotonic clock.
    fn submitted(&self) -> u64 {
        self.submitted
    }

    /// How many units are left, whether or not the lease has ended.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// How many units can still be spent at the monotonic time `now`.
    pub fn left(&self, now: u64) -> u64 {
        if self.has_ended(now) { 0 } else { self.units }
    }

    /// The time of Redis at the monotonic time `now`, or somewhat later: what is spent later than it
    /// was is regained later.
    fn redis_time(&self, now: u64) -> u64 {
        self.taken.saturating_add(now.saturating_sub(self.submitted))
    }

    /// The holding as words, for memory that knows no types.
    fn to_words(self) -> [u64; Self::WORDS] {
        let [first, second, third] = self.plain;
        [
            self.units,
            self.of,
            self.ends,
            self.taken,
            self.submitted,
            self.span,
            self.demand,
            self.mean,
            first,
            second,
            third,
        ]
    }

    /// The holding of these words. Any words are one, and do no harm.
    fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [units, of, ends, taken, submitted, span, demand, mean, plain @ ..] = words;
        Self { units, of, ends, taken, submitted, span, demand, mean, plain }
    }
}

/// So large a part of `value`, which is at most all of it.
fn part(value: u64, numerator: u64, denominator: u64) -> u64 {
    (u128::from(value) * u128::from(numerator) / u128::from(denominator)) as u64
}
