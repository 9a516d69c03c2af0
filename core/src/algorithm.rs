//! The algorithms: each is a Lua script and its Rust reference, side by side.
//!
//! Both are the same function: from what is stored for a client, the time, the quota and the cost
//! to what is to be stored. A negative cost gives back. The script runs in Redis, and replies with
//! the time and what was stored; the verdict follows from that by the reference. A test drives both
//! through the same random histories and requires the same states. To add an algorithm, add its two files and
//! its line in the table below: what its file lacks of the `AlgorithmRow` does not compile.

mod bucket;
mod bytes;
mod fixed_window;
mod gcra;
mod hold;
mod interval_bucket;
mod leaky_bucket;
mod lease;
mod lua;
mod managed;
mod minima;
mod moment;
mod quota;
mod settled;
mod sliding_log;
mod sliding_window;
mod state;
#[cfg(test)]
mod tests;
mod token_bucket;
mod words;

pub use hold::{Hold, Holds};
pub use leaky_bucket::Undelayed;
pub use minima::{Minima, Minimum};
pub use state::{Extra, State, Stored};

use lua::Lua;
use settled::Settled;

use crate::charge::Charged;
use crate::decision::{Retry, Verdict};
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;

/// The table of algorithms: the name of each, and the module that holds its [`AlgorithmRow`].
macro_rules! algorithms {
    ($($(#[$about:meta])* $name:ident: $module:ident,)+) => {
        /// How a limit counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub enum Algorithm {
            $($(#[$about])* $name,)+
        }

        impl Algorithm {
            /// Every algorithm.
            pub const ALL: [Self; [$(stringify!($name)),+].len()] = [$(Self::$name),+];

            fn row(self) -> &'static AlgorithmRow {
                match self {
                    $(Self::$name => &const { $module::ROW },)+
                }
            }
        }
    };
}

algorithms! {
    /// A bucket that starts full and refills continuously.
    #[default]
    TokenBucket: token_bucket,
    /// A bucket that starts full and gets n tokens at each whole period since its last refill.
    IntervalBucket: interval_bucket,
    /// The generic cell rate algorithm, with the numbers of redis-cell's `CL.THROTTLE`.
    Gcra: gcra,
    /// The bucket of `limit_req`: a request that comes too early is delayed.
    LeakyBucket: leaky_bucket,
    /// The counters of this and the previous window, the previous one weighted by its overlap.
    SlidingWindow: sliding_window,
    /// An exact log of the last period.
    SlidingLog: sliding_log,
    /// A counter for each aligned period, or for each month of the calendar.
    FixedWindow: fixed_window,
}

/// How the configuration gives the most that can be spent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstParameter {
    /// `capacity=n`; by default the n of the rate.
    Capacity,
    /// `burst=n`, what can be spent at once beyond the first unit; by default 0.
    Burst,
    /// None: it is the n of the rate.
    None,
}

/// The properties and functions of an algorithm. Where a field has no text, the method of [`Algorithm`] that returns or calls
/// it has.
struct AlgorithmRow {
    name: &'static str,
    burst: BurstParameter,
    own_parameters: &'static str,
    counts_months: bool,
    /// The terms in which it counts: see [`Quota::terms`].
    terms: fn(Rate, u64) -> Result<Terms, QuotaError>,
    function: &'static str,
    /// The parts of the Lua source.
    lua: Lua,
    state: &'static [&'static str],
    stores_itself: bool,
    /// The state of these numbers.
    read: fn([u64; 3]) -> Option<State>,
    /// Stored, now, quota, cost.
    decide: fn(&mut Stored, u64, &Quota, u64) -> Verdict,
    /// Decides on so many equal requests faster than one by one, if nothing is kept beside the state.
    decide_each: Option<DecideEach>,
    /// Charges an amount, whatever is left: stored, now, quota, amount.
    charge: fn(&mut Stored, u64, &Quota, u64),
    /// Stored, now, quota, amount, and since when it can have been regained, if that is known.
    give_back: fn(&mut Stored, u64, &Quota, u64, Option<u64>),
    regained_from: fn(&Quota, Charged, u64) -> u64,
    is_one_refund: fn(&Quota, u64, u64) -> bool,
    regain: Regain,
    /// How long a request is delayed; `None` if none is.
    delay: Option<DelayOf>,
    /// How machines take units of a quota ahead; `None` if they do not.
    leases: Option<fn(&Quota) -> Leases>,
    /// How charges are corrected with what was missing since; `None` if a charge counts as a whole until it is forgotten.
    settled: Option<Settled>,
}

/// The arguments are those of [`Algorithm::decide_each`].
type DecideEach = fn(&mut Stored, u64, &Quota, u64, u32, &mut dyn FnMut(Verdict));

/// The arguments are those of [`Algorithm::delay`].
type DelayOf = fn(&Verdict, &Quota, u64, Undelayed) -> u64;

/// How what was spent comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regain {
    /// Bit by bit.
    Continuous,
    /// In part, at each refill.
    AtRefills,
    /// When a window is over, or a period since it was spent.
    AtOnce,
}

/// How machines take units ahead: see [`lease`](crate::lease).
enum Leases {
    /// Units that are spent in a window are missing at least until its end: so Redis need not remember leases, which end
    /// with it, and what comes back of one counts as spent in its last µs.
    EndWithWindows {
        /// The end of the window: for a state, or for none, at a moment in µs.
        end: fn(Option<&State>, u64, &Quota) -> u64,
        /// Whether a share of what is left of the limit is kept from leases. It is not where what the window before has
        /// spent is still to come back.
        keeps_share: bool,
    },
    /// Units that are set aside are held.
    AreHeld(Held),
}

/// The functions that an algorithm needs where units are held.
struct Held {
    /// Writes a state down as it is at a moment in µs.
    touch: fn(&mut Stored, u64, &Quota),
    /// The state that a machine has computed, at a moment in µs of Redis's clock; `None` if it is of no use. The
    /// machine's clock is ahead of Redis's by the time that its command has taken, and so may be what it has computed,
    /// if this command has taken less.
    computed: fn([u64; 3], u64, &Quota) -> Option<State>,
}

/// In windows what is charged counts in the window of its time.
fn at_the_charge(_quota: &Quota, charged: Charged, _amount: u64) -> u64 {
    charged.at
}

/// A window forgets all that was charged in it at once.
fn in_one_window(quota: &Quota, since: u64, other: u64) -> bool {
    quota.rate().window(since) == quota.rate().window(other)
}

/// A bucket, and gcra, lose no more by that than they regain between the two moments.
fn at_any_time(_quota: &Quota, _since: u64, _other: u64) -> bool {
    true
}

/// The first µs after the window of the rate that a moment is in.
fn window_end(_state: Option<&State>, now: u64, quota: &Quota) -> u64 {
    quota.rate().window(now).ends
}

/// The two numbers that stand for the rate in an algorithm: see [`Quota::terms`].
pub(crate) type Terms = (u64, u64);

impl Algorithm {
    /// The name in the configuration. The two buckets share one.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The algorithm that the configuration calls `name`; of the two buckets the continuous one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// How the configuration gives the most that can be spent at once.
    pub fn burst_parameter(self) -> BurstParameter {
        self.row().burst
    }

    /// The parameters that not every algorithm has, as an error message lists them.
    pub(crate) fn own_parameters(self) -> &'static str {
        self.row().own_parameters
    }

    /// The name of the Lua function.
    pub fn function(self) -> &'static str {
        self.row().function
    }

    /// The Lua source of its body. It reads the numbers of the [`state`](Self::state), nil if
    /// nothing is stored, `debt`, `now, cost, limit, period, count, n, since`, and `floors, most`. It sets
    /// `allowed`, `cost` to what is spent in all, and `remaining` to what is left then. If there is something to store, it sets
    /// `changed`, the new state and debt, and `expiry`, the µs at which the quota is whole again;
    /// `expiry` also if there is a `block`. A negative cost is given back. With n, which is nil for
    /// 1, it spends for as many of n requests as fit; with `since`, which is nil or 0 for none, it
    /// charges more than is left. Where machines hold units, `most` is what can be left now, and `floors`, which is nil where
    /// none do, has pairs of a moment and of the most that was left then. Another line may have had leases at the same key:
    /// an algorithm whose quota comes back continuously obeys them, whether it has leases or not.
    ///
    /// Tests compare what it sets with what the reference stores, so both also agree on this:
    ///
    /// - A number that has no effect any more is 0, as what was spent in the window before when none of it counts.
    /// - A charge beyond the limit spends at most `$max_spent * limit` in all, which is `Quota::max_spent`.
    /// - `debt`, at most `$max_debt * limit`, is what was spent beyond the limit. `fixed_window` and `sliding_window`
    ///   add it to what is spent and set it to 0 before they decide, and split it off again where they store, as
    ///   `Quota::split` does: so what is paid of it is paid, and no number of their state is more than the limit.
    /// - A state of the future, after a clock that stepped back, is one of now. In windows that is a change by itself
    ///   if anything is spent (`stepped_back`): or else the state would be one of now until the clock has caught up.
    /// - What is given back with `since` cannot have been regained since then, and comes off what was spent at that
    ///   time, if that still counts. Without it, any that is missing comes back.
    pub fn source(self) -> String {
        self.lua("decide")
    }

    /// A part of the Lua source; empty if there is none.
    fn lua(self, part: &str) -> String {
        self.row().lua.part(part).unwrap_or_default()
    }

    /// The two or three numbers of a stored state, in their order, as the [`source`](Self::source)
    /// calls them.
    pub fn state(self) -> &'static [&'static str] {
        self.row().state
    }

    /// Whether its script reads and writes Redis itself and replies with the verdict, not with what
    /// was stored. The source is then a whole function, from `(key, now, cost, limit, period,
    /// block, since)` to `allowed, remaining, reset, retry, store`, where `store` is a function
    /// that writes.
    pub fn stores_itself(self) -> bool {
        self.row().stores_itself
    }

    /// How what was spent comes back.
    pub fn regain(self) -> Regain {
        self.row().regain
    }

    /// Whether a request that it allows may be delayed.
    pub fn delays(self) -> bool {
        self.row().delay.is_some()
    }

    /// How long a request of `cost` with this verdict is delayed, in µs.
    pub fn delay(self, verdict: &Verdict, quota: &Quota, cost: u64, undelayed: Undelayed) -> u64 {
        self.row().delay.map_or(0, |delay| delay(verdict, quota, cost, undelayed))
    }

    /// Whether quota comes back bit by bit, rather than at the end of a window.
    pub fn is_continuous(self) -> bool {
        self.regain() == Regain::Continuous
    }

    /// Reads what is stored. Bytes that the script does not take for a state read as nothing.
    pub fn read(self, bytes: &[u8]) -> Stored {
        let Some((numbers, extra, minima)) = bytes::numbers(bytes) else {
            return Stored::default();
        };
        let state = (self.row().read)(numbers);
        if state.is_none() {
            return Stored::default();
        }
        let minima = if self.keeps_minima() { minima } else { Minima::default() };
        Stored { state, extra, minima }
    }

    /// Decides as the script does. `now` is in µs, at most 2^53; `stored` is what the last decision
    /// for the client has left, the default for a new client.
    pub fn decide(self, stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
        match quota.is_settled() {
            true => self.decide_settled(stored, now, quota, cost),
            false => self.decide_alone(stored, now, quota, cost),
        }
    }

    /// Decides without regard to what was missing before.
    fn decide_alone(self, stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
        let decide = self.row().decide;
        if quota.block() == 0 && stored.extra.is_none() {
            return decide(stored, now, quota, cost);
        }
        let blocked = stored.correct(now, quota);
        if blocked > 0 && cost > 0 {
            let retry = decide(&mut stored.clone(), now, quota, cost).retry;
            let verdict = decide(stored, now, quota, 0);
            return Verdict { allowed: false, retry, ..verdict }.blocked_for(blocked);
        }
        let verdict = decide(stored, now, quota, cost);
        if verdict.allowed {
            stored.extra.holds.count(cost);
        }
        if quota.block() > 0 && matches!(verdict.retry, Retry::After(_)) {
            self.block(stored, now, quota);
            return verdict.blocked_for(quota.block());
        }
        verdict.blocked_for(blocked)
    }

    /// Decides on so many equal requests, one after the other, and calls `each` with their verdicts.
    pub(crate) fn decide_each(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        cost: u64,
        times: u32,
        mut each: impl FnMut(Verdict),
    ) {
        let is_plain = quota.block() == 0 && stored.extra.is_none() && !quota.is_settled();
        match self.row().decide_each {
            Some(decide_each) if is_plain => {
                decide_each(stored, now, quota, cost, times, &mut each);
            }
            Some(_) | None => {
                (0..times).for_each(|_| each(self.decide(stored, now, quota, cost)));
            }
        }
    }

    /// Decides on a request that another limit rejects, as the script does: nothing is spent. If
    /// this limit rejects it too, `rejects` is true, and a block may begin.
    pub fn decline(self, stored: &mut Stored, now: u64, quota: &Quota, rejects: bool) -> Verdict {
        if rejects && quota.block() > 0 && stored.correct(now, quota) == 0 {
            self.block(stored, now, quota);
        }
        self.decide(stored, now, quota, 0)
    }

    /// Begins a block. There may be no state, if another limit of the transaction spends from the
    /// same key: then a state of zeros, in the distant past, takes its place.
    fn block(self, stored: &mut Stored, now: u64, quota: &Quota) {
        stored.state = stored.state.take().or_else(|| (self.row().read)([0; 3]));
        stored.block(now, quota, quota.block());
    }

    /// Gives back `amount` of what was charged, or as much of it as cannot have been regained since, as the
    /// script does. `since` is that of [`regained_from`](Self::regained_from); the other arguments are
    /// those of [`decide`](Self::decide). If the client is alone on its key, the state is then as if the
    /// amount had never been spent. If others have spent from it, no more passes than if it had not.
    pub fn give_back(self, stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: u64) {
        self.add_back(stored, now, quota, amount, Some(since));
    }

    /// Gives back `amount`, or as much of it as is missing; nothing of it can have been regained before.
    pub(crate) fn add_back(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        amount: u64,
        since: Option<u64>,
    ) {
        match since {
            Some(charged_at @ 1..) if quota.is_settled() => {
                self.give_back_settled(stored, now, quota, amount, charged_at);
            }
            Some(0..) | None => self.give_back_alone(stored, now, quota, amount, since),
        }
    }

    /// Gives back without regard to what was missing since.
    fn give_back_alone(
        self,
        stored: &mut Stored,
        now: u64,
        quota: &Quota,
        amount: u64,
        since: Option<u64>,
    ) {
        stored.correct(now, quota);
        match since {
            Some(since @ 1..) => self.correct(stored, now, quota, amount, since),
            Some(0) | None => (self.row().give_back)(stored, now, quota, amount, None),
        }
    }

    /// Gives back `amount` of a charge, which machines that hold units do not know: it is counted as charged, so
    /// that none of them takes over a state without it.
    fn correct(self, stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: u64) {
        let give_back = self.row().give_back;
        stored.counting(amount, |stored| give_back(stored, now, quota, amount, Some(since)));
    }

    /// Whether two charges, which can have been regained since these moments, are given back as well by one command, with
    /// the earlier of the moments.
    pub fn is_one_refund(self, quota: &Quota, since: u64, other: u64) -> bool {
        // Where a quota is settled, it comes back as it was missing since. The windows of an override are not known here.
        let depends = quota.is_settled() || quota.has_override();
        since == other || !depends && (self.row().is_one_refund)(quota, since, other)
    }

    /// The moment from which on `amount` of a charge can have been regained. In windows, and in a log, that is
    /// the charge itself: it counts until its window ends. In a bucket, and with gcra, it is when the quota
    /// would have been whole without that amount: until then it is missing, whatever others spend. Where a quota
    /// [is settled](Quota::is_settled) it is the charge too, as it is known what was missing since.
    pub fn regained_from(self, quota: &Quota, charged: Charged, amount: u64) -> u64 {
        match quota.is_settled() {
            true => charged.at,
            false => (self.row().regained_from)(quota, charged, amount),
        }
    }

    /// Settles what was charged, with the `since` of [`give_back`](Self::give_back): charges `change` more,
    /// whatever is left, or gives it back if it is negative. What is charged beyond what is left becomes a
    /// debt of at most [`Quota::max_debt`]; the rest is dropped.
    pub fn settle(self, stored: &mut Stored, now: u64, quota: &Quota, since: u64, change: i64) {
        if change < 0 {
            return self.give_back(stored, now, quota, change.unsigned_abs(), since);
        }
        let amount = change.unsigned_abs();
        let charge = |stored: &mut Stored| {
            stored.correct(now, quota);
            let before = (stored.state.clone(), stored.extra.debt);
            self.charge(stored, now, quota, amount);
            let is_charged = before != (stored.state.clone(), stored.extra.debt);
            ((), if is_charged { amount } else { 0 })
        };
        match quota.is_settled() {
            true => self.noting(stored, now, quota, charge),
            false => charge(stored).0,
        }
    }

    /// Charges `amount`, whatever is left.
    fn charge(self, stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
        let charge = self.row().charge;
        // A debt that has its full size takes nothing more.
        stored.counting(amount, |stored| charge(stored, now, quota, amount));
    }
}

impl BurstParameter {
    /// The most that can be spent at once at this rate, given the value of the parameter, if there is one.
    pub(crate) fn limit(self, rate: Rate, value: Option<u64>) -> u64 {
        match self {
            Self::Capacity | Self::None => value.unwrap_or(rate.count()),
            Self::Burst => value.unwrap_or(0).saturating_add(1),
        }
    }

    /// The value with which so much can be spent at once.
    pub(crate) fn value(self, limit: u64) -> Option<u64> {
        match self {
            Self::Capacity => Some(limit),
            Self::Burst => Some(limit.saturating_sub(1)),
            Self::None => None,
        }
    }

    /// The parameter's name.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Capacity => Some("capacity"),
            Self::Burst => Some("burst"),
            Self::None => None,
        }
    }
}
