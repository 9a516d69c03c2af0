//! Leases: units of a quota that a machine takes ahead of its requests, and spends without Redis.
//!
//! A command that charges a request can set more units aside for its machine. Redis counts them as
//! spent at once, and the machine spends them until the lease ends, and never after that. So nothing
//! passes that was not charged before, and what is not spent is lost to the client, or given back
//! with the next command.
//!
//! A quota that regains what is spent needs more care: while units are set aside they could be
//! regained, and be spent twice in a moment. So Redis remembers how many are, and regains no more
//! than the limit without them: see [`Hold`]. In a window nothing is
//! regained, and a lease ends with its window.
//!
//! # How large a lease is
//!
//! Units that lie with one machine while the client turns to another one are missing there. Three
//! bounds keep that small:
//!
//! - The demand. A machine wants as many units as the client has spent there in the last time of a
//!   lease, without the request that brings the lease: the next time is likely to need as many. A
//!   client that makes less than one request in that time gets none. Half as many more where the last lease
//!   was spent before its end: the demand may be growing.
//! - What Redis keeps: a third of a bucket, and in a window a third of what the limit allows for the rest of it.
//!   So a client always gets what it would get from a bucket of a third of the capacity: that one, too,
//!   regains at the rate, loses what is spent, and is never fuller than Redis's bucket after leases. A lease
//!   takes a quarter of what is above that, and half if no other machine holds any, so that there is some for
//!   each. In a sliding window the last window counts, so that little remains of a limit that is in use:
//!   there Redis keeps nothing more.
//! - Rejections. A lease is at most a two-hundredth of what the client was allowed on the machine since
//!   a request of it was rejected there. When a client has reached its limit, only what machines hold
//!   at that moment is missing, and that is half a percent of what has passed since then. So also a client
//!   for which the first two bounds do not suffice, as one that comes in bursts, loses little.

use crate::algorithm::{Extra, Hold, Holds, Stored};
use crate::decision::Verdict;
use crate::limit::Quota;
use crate::rate::SECOND;
use crate::word::{pack, unpack};

pub mod table;

/// No lease lasts longer, in µs.
pub const MAX_SPAN: u64 = 60 * SECOND;

/// The lease arguments of a command, for one limit and client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// How long the machine is going to spend the units, in µs.
    pub span: u64,
    /// How many units are to be set aside at most; 0: no lease is wanted.
    pub want: u64,
    /// How many units are to remain for the other machines at least.
    pub keep: u64,
    /// The report on the machine's last lease.
    pub report: Report,
}

/// A report on a machine's last lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many units were set aside; 0: there is nothing to report.
    pub of: u64,
    /// How many of them were not spent, and never will be.
    pub unused: u64,
    /// The end that is in [`Granted`].
    pub ends: u64,
    /// The state as it would be without leases, if nothing was spent since the lease began but by the machine.
    pub plain: [u64; 3],
    /// The units charged before the lease began, as in [`Granted`], and those that the machine's commands have charged
    /// since then, which are in `plain` as well.
    pub charged: u64,
}

/// The lease that a command has set aside.
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
    /// The state after the request, without the units set aside. Those that were held before count as missing.
    pub plain: [u64; 3],
    /// How many units were held before.
    pub held: u64,
    /// How many units were charged since the first of the holds began: see [`Holds`].
    pub charged: u64,
}

/// Redis keeps one part of so many.
const KEPT: u64 = 3;

/// Redis keeps so many units of a window at least: what is left of a lease is lost with the window.
const KEPT_OF_WINDOW: u64 = 4;

/// So many units must have been allowed since the last rejection for each unit of a lease.
const ALLOWED_FOR_UNIT: u64 = 200;

/// The demand is counted in parts of a unit: one of so many.
const PARTS: u64 = 256;

/// Redis remembers a lease for longer than its machine spends it: by one part of so many. So a
/// machine is never late, even if its clock is that much slower than the clock of Redis.
const MARGIN: u64 = 16;

/// A lease that ends with a window cannot be remembered for longer: its machine spends it for less long, by
/// one part of so many. NTP changes the rate of a clock by half of that at most.
const WINDOW_MARGIN: u64 = 1_024;

impl Lease {
    /// Whether nothing is wanted and nothing is reported.
    pub fn is_none(&self) -> bool {
        self.want == 0 && self.report.of == 0
    }

    /// How long Redis is to remember the lease of a bucket at least, in µs.
    pub(crate) fn hold(&self) -> u64 {
        remembered(self.span)
    }
}

impl Granted {
    /// The grant of a command which has set nothing aside, at this time of Redis.
    pub fn nothing(now: u64) -> Self {
        Self { now, ..Self::default() }
    }
}

/// The record that a machine keeps for a limit and a client: the lease, how much is in demand, and for how long
/// nothing was rejected. There is one after each request that Redis has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// How many units are left.
    units: u32,
    /// How many units were set aside.
    of: u32,
    /// How many units others held when the lease began, or as many as can be counted: they are missing all the time.
    held: u32,
    /// How many units were charged before the lease began since the first of the holds, or as many as can be
    /// counted; and how many of the machine's other commands have charged since. See [`Report`].
    charged: u32,
    ends: u64,
    /// The times at which the units were set aside: that of Redis, and the monotonic time of the
    /// machine, which is somewhat earlier.
    taken: u64,
    submitted: u64,
    /// How long they may be spent from then on; 0: nothing is known.
    span: u32,
    /// How many units the client was allowed until `submitted` since the last rejection; as many as can be
    /// counted: there was none.
    allowed: u32,
    /// How many units were spent since, with those of the request that brought the lease.
    spent: u64,
    /// How many were spent in a time of `span` before that, on average, in parts of a unit.
    demand: u64,
    plain: [u64; 3],
}

impl Holding {
    /// How many words it takes.
    const WORDS: usize = 11;

    /// A holding of which nothing is known.
    const UNKNOWN: Self = Self {
        units: 0,
        of: 0,
        held: 0,
        charged: 0,
        ends: 0,
        taken: 0,
        submitted: 0,
        span: 0,
        allowed: u32::MAX,
        spent: 0,
        demand: 0,
        plain: [0; 3],
    };

    /// The record after a command that has charged `cost` units in all, where leases last `span` µs.
    /// `submitted` is the monotonic time at which it was handed to the client: before Redis has seen it,
    /// so that the lease ends early rather than late.
    pub fn new(quota: &Quota, span: u64, granted: &Granted, cost: u64, submitted: u64) -> Self {
        let Granted { units, now, plain, .. } = *granted;
        let (held, charged) = (narrow(granted.held), narrow(granted.charged));
        let ends = match units {
            0 => quota.algorithm().window_end(None, now, quota).unwrap_or(0),
            _ => granted.ends,
        };
        let (of, taken, spent, span) = (narrow(units), now, cost, narrow(span));
        let lease = Self { units: of, of, held, charged, ends, plain, ..Self::UNKNOWN };
        Self { taken, submitted, span, spent, ..lease }
    }

    /// This holding, with the demand that was known before. A command of cost 0 leaves that as it was.
    pub fn after(self, before: &Self) -> Self {
        match self.spent {
            0 => before.reported(),
            _ => Self { demand: before.demand(self.submitted), allowed: before.allowed(), ..self },
        }
    }

    /// The holding after a command that was to renew the lease, and has charged nothing.
    pub fn reported(&self) -> Self {
        Self { units: 0, of: 0, ..*self }
    }

    /// This holding, after a request that the limit has rejected.
    pub fn after_rejection(self, before: &Self) -> Self {
        Self { demand: before.demand(self.submitted), allowed: 0, ..self }
    }

    /// How many units were spent in a time of `span` until the monotonic time `now`, in parts of a unit. What
    /// was spent before the lease counts less and less.
    fn demand(&self, now: u64) -> u64 {
        let (elapsed, span) = (now.saturating_sub(self.submitted), u64::from(self.span));
        let spent = self.spent.saturating_mul(PARTS);
        match span.saturating_sub(elapsed) {
            0 => part(spent, span, elapsed.max(1)),
            rest => part(self.demand, rest, span).saturating_add(spent),
        }
    }

    /// How many units were allowed since the last rejection, as far as that can be counted.
    fn allowed(&self) -> u32 {
        self.allowed.saturating_add(narrow(self.spent))
    }

    /// Both as one, where commands in flight at once have brought two: what is left of both, and the demand of both.
    ///
    /// The later one has found the units of the other one held, which they would not be without leases. A report names
    /// one hold only: if Redis has the two in different ones, what is left of the earlier lease lapses.
    pub fn join(self, other: Self, quota: &Quota, now: u64) -> Self {
        let allowed = self.allowed.min(other.allowed);
        match (self.span, other.span) {
            (0, _) => return Self { allowed, ..other },
            (_, 0) => return Self { allowed, ..self },
            _ => {}
        }
        let (first, last) = if self.taken > other.taken { (other, self) } else { (self, other) };
        let spent = self.spent.saturating_add(other.spent);
        let demand = self.demand.max(other.demand);
        let kept = match (first.is_living(now), last.is_living(now)) {
            (true, true) if first.ends == last.ends => last.with(&first, quota, now),
            (true, false) => first,
            _ => last,
        };
        Self { allowed, spent, demand, ..kept }
    }

    /// This lease with an earlier one of the same hold, which lasts for as long as the later one is spent.
    fn with(self, first: &Self, quota: &Quota, now: u64) -> Self {
        let lease = Self { held: self.held.saturating_sub(first.of), ..self };
        let plain = lease.plain_with(first.units, quota, now);
        let (of, units) =
            (self.of.saturating_add(first.of), self.units.saturating_add(first.units));
        Self { of, units, plain, ..lease }
    }

    /// Both as one, where a command has brought this one, and `kept` is what there is.
    fn join_to(self, mut kept: Self, quota: &Quota, now: u64) -> Self {
        if self.of == 0 {
            kept.charge(quota, self.spent, self.taken, now);
        }
        self.join(kept, quota, now)
    }

    /// The mark that stays in the table while a command renews the lease.
    fn taken(&self, now: u64) -> Self {
        let brings_units = self.units > 0 || self.want(self.span.into(), now) > 0;
        Self { demand: brings_units.into(), ..Self::UNKNOWN }
    }

    /// Whether a command renews it that gives units back, or may bring some.
    fn awaits_units(&self) -> bool {
        self.span == 0 && self.demand > 0
    }

    /// A command of the machine has charged `cost` beside the lease, at the time `at` of Redis. It is spent by the
    /// machine, if Redis counts it as charged since the lease began.
    fn charge(&mut self, quota: &Quota, cost: u64, at: u64, now: u64) {
        if self.of == 0 || at <= self.taken {
            return;
        }
        let mut stored = self.stored(quota);
        let verdict = quota.algorithm().decide(&mut stored, self.redis_time(now), quota, cost);
        let state = stored.state.filter(|_| verdict.allowed);
        if let Some(plain) = state.and_then(|state| state.numbers()) {
            self.plain = plain;
            self.charged = self.charged.saturating_add(narrow(cost));
        }
    }

    /// The plain state as what is stored, with the units that others held when the lease began.
    fn stored(&self, quota: &Quota) -> Stored {
        let newer = Hold { units: self.held.into(), until: self.ends };
        let holds = Holds { newer, ..Holds::default() };
        let extra =
            if self.held > 0 { Extra { holds, ..Extra::default() } } else { Extra::default() };
        Stored { state: quota.algorithm().state_of(self.plain), extra, ..Stored::default() }
    }

    /// The plain state at the monotonic time `now`, with so many units more.
    fn plain_with(&self, units: u32, quota: &Quota, now: u64) -> [u64; 3] {
        let mut stored = self.stored(quota);
        let (algorithm, units) = (quota.algorithm(), units.into());
        algorithm.add_back(&mut stored, self.redis_time(now), quota, units, None);
        stored.state.and_then(|state| state.numbers()).unwrap_or(self.plain)
    }

    /// Spends `cost` units of the lease at the monotonic time `now`, in µs. `None` if there are not
    /// so many left, or the lease has ended.
    pub fn spend(&mut self, quota: &Quota, cost: u64, now: u64) -> Option<Verdict> {
        if !self.is_living(now) || cost > self.units.into() {
            return None;
        }
        let (mut stored, algorithm) = (self.stored(quota), quota.algorithm());
        let verdict = algorithm.decide(&mut stored, self.redis_time(now), quota, cost);
        if !verdict.allowed {
            return None;
        }
        self.plain = stored.state?.numbers()?;
        self.units = self.units.saturating_sub(narrow(cost));
        self.spent = self.spent.saturating_add(cost);
        Some(verdict)
    }

    /// The lease arguments of the next command at the monotonic time `now`, if leases are to last `span`
    /// µs: what became of this one, and how large another one may be.
    pub fn lease(&self, quota: &Quota, span: u64, now: u64) -> Lease {
        let Self { units, of, ends, .. } = *self;
        let plain = quota.algorithm().without_held(self.plain, quota, self.held.into());
        let (unused, charged) = (units.min(of).into(), self.charged.into());
        let report = Report { of: of.into(), unused, ends, plain, charged };
        let rest = self.rest_of_window(quota, self.redis_time(now));
        let want = self.want(rest.map_or(span, |rest| rest.min(span)), now);
        Lease { span, want, keep: keep(quota, rest), report }
    }

    /// How many units are wanted at the monotonic time `now`, for `time` µs.
    fn want(&self, time: u64, now: u64) -> u64 {
        let demand = part(self.demand(now), time, u64::from(self.span).max(1)) / PARTS;
        let grows = self.is_living(now) && self.units == 0;
        let demand = if grows { demand.saturating_add(demand.div_ceil(2)) } else { demand };
        let most = u64::from(u32::MAX);
        match self.allowed() {
            u32::MAX => demand.min(most),
            allowed => demand.min(u64::from(allowed) / ALLOWED_FOR_UNIT),
        }
    }

    /// How long the window that leases end with lasts at the time `now` of Redis, if they do.
    fn rest_of_window(&self, quota: &Quota, now: u64) -> Option<u64> {
        let (algorithm, period) = (quota.algorithm(), quota.rate().period());
        let ends = algorithm.window_end(None, now, quota)?;
        // The window of a bucket begins with a request.
        let ends = if now < self.ends { self.ends } else { ends };
        Some(ends.saturating_sub(now).min(period))
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
            0 => self.span.into(),
            _ => u64::from(self.span).min(whole - whole / WINDOW_MARGIN),
        };
        self.submitted.saturating_add(left)
    }

    /// How many units are left, whether or not the lease has ended.
    pub fn units(&self) -> u64 {
        self.units.into()
    }

    /// How many units can still be spent at the monotonic time `now`.
    pub fn left(&self, now: u64) -> u64 {
        if self.has_ended(now) { 0 } else { self.units.into() }
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
            pack(self.units, self.of),
            pack(self.held, self.charged),
            self.ends,
            self.taken,
            self.submitted,
            pack(self.span, self.allowed),
            self.spent,
            self.demand,
            first,
            second,
            third,
        ]
    }

    /// The holding of these words. Any words are one, and do no harm.
    fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [units, held, ends, taken, submitted, span, spent, demand, plain @ ..] = words;
        let [(units, of), (held, charged), (span, allowed)] = [units, held, span].map(unpack);
        let lease = Self { units, of, held, charged, ends, plain, ..Self::UNKNOWN };
        Self { taken, submitted, span, allowed, spent, demand, ..lease }
    }
}

/// How long by the clock of Redis a machine may spend a lease of `span` µs at most, in µs.
pub(crate) fn remembered(span: u64) -> u64 {
    span.saturating_add(span / MARGIN)
}

/// How many units Redis is to keep, where so much is left of a window that leases end with.
fn keep(quota: &Quota, rest: Option<u64>) -> u64 {
    let kept = quota.limit().div_ceil(KEPT);
    match rest {
        _ if !quota.algorithm().keeps_share(quota) => 0,
        Some(rest) => part(kept, rest, quota.rate().period()).max(KEPT_OF_WINDOW),
        None => kept,
    }
}

/// So large a part of `value`.
fn part(value: u64, numerator: u64, denominator: u64) -> u64 {
    let part = u128::from(value) * u128::from(numerator) / u128::from(denominator);
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
