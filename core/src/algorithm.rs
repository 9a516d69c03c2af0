//! The algorithms: each a room of its own, a Lua script and its Rust reference side by side.
//!
//! Both are the same function, of what is stored for a client, the time, the quota and the cost, to
//! what to store; and where a request must not spend after all, back. The script runs inside Redis
//! and only tells what it found and when; what that means, the verdict, follows from the reference.
//! A test drives both through the same random histories and demands the same states. To add an
//! algorithm, add its two files and its lines to the tables below.

mod calendar_window;
mod fixed_window;
mod gcra;
mod interval_bucket;
pub mod leaky_bucket;
mod moment;
mod sliding_log;
mod sliding_window;
mod stored;
mod token_bucket;
mod window_counter;
mod words;

use std::collections::VecDeque;

use crate::decision::Verdict;
use crate::limit::{Quota, QuotaError};
use crate::rate::Rate;
use moment::Moment;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// A bucket that starts full and refills continuously.
    #[default]
    TokenBucket,
    /// A bucket that starts full and gets n tokens at each whole period since its last refill.
    IntervalBucket,
    /// The generic cell rate algorithm, with the numbers of redis-cell's `CL.THROTTLE`.
    Gcra,
    /// As `limit_req`: what comes too early waits for its turn.
    LeakyBucket,
    /// The counters of this and the previous window, the previous one weighted by its overlap.
    SlidingWindow,
    /// An exact log of the last period.
    SlidingLog,
    /// A counter for each aligned period.
    FixedWindow,
    /// A counter for each month of the calendar: a `fixed_window` at a rate by the month.
    CalendarWindow,
}

/// How the configuration gives the most that can be spent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstParameter {
    /// `capacity=n`; by default the n of the rate.
    Capacity,
    /// `burst=n`, what can be spent at once beyond the first unit; by default 0.
    Burst,
    /// Not at all: it is the n of the rate.
    None,
}

/// What tells one algorithm from another, its decisions aside.
struct Description {
    /// The name in the configuration.
    name: &'static str,
    burst: BurstParameter,
    /// The Lua function, and the source of its body.
    function: &'static str,
    source: &'static str,
    /// The numbers of a state, as the source calls them.
    state: &'static [&'static str],
    /// The terms in which it counts: see [`Quota::terms`].
    terms: fn(Rate, u64) -> Result<Terms, QuotaError>,
    read: fn(&[u8]) -> Option<State>,
    decide: fn(&mut Option<State>, u64, &Quota, u64) -> Verdict,
    give_back: fn(&mut Option<State>, u64, &Quota, u64),
}

/// The two numbers that stand for the rate in an algorithm: see [`Quota::terms`].
pub(crate) type Terms = (u64, u64);

/// The description of an algorithm from the names of its Lua and its Rust room, and of the Lua that it
/// ends with, if it has that in common with another one.
macro_rules! describe {
    ($name:literal, $burst:ident, $lua:literal, $rust:ident $(, $end:literal)?) => {
        Description {
            name: $name,
            burst: BurstParameter::$burst,
            function: $lua,
            source: concat!(
                include_str!(concat!("algorithm/", $lua, ".lua")),
                $(include_str!(concat!("algorithm/", $end, ".lua")))?
            ),
            state: $rust::STATE,
            terms: $rust::terms,
            read: $rust::read,
            decide: $rust::decide,
            give_back: $rust::give_back,
        }
    };
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 8] = [
        Self::TokenBucket,
        Self::IntervalBucket,
        Self::Gcra,
        Self::LeakyBucket,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::FixedWindow,
        Self::CalendarWindow,
    ];

    fn description(self) -> &'static Description {
        match self {
            Self::TokenBucket => {
                &const { describe!("token_bucket", Capacity, "token_bucket", token_bucket) }
            }
            Self::IntervalBucket => {
                &const { describe!("token_bucket", Capacity, "interval_bucket", interval_bucket) }
            }
            Self::Gcra => &const { describe!("gcra", Burst, "gcra", gcra) },
            // It differs from gcra only in what is made of the verdict.
            Self::LeakyBucket => &const { describe!("leaky_bucket", Burst, "gcra", gcra) },
            Self::SlidingWindow => {
                &const { describe!("sliding_window", None, "sliding_window", sliding_window) }
            }
            Self::SlidingLog => {
                &const { describe!("sliding_log", None, "sliding_log", sliding_log) }
            }
            Self::FixedWindow => {
                &const { describe!("fixed_window", None, "fixed_window", fixed_window, "window_counter") }
            }
            Self::CalendarWindow => {
                &const {
                    describe!(
                        "fixed_window",
                        None,
                        "calendar_window",
                        calendar_window,
                        "window_counter"
                    )
                }
            }
        }
    }

    /// The name in the configuration. The two buckets share one, and the two windows of one counter.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// The algorithm that the configuration calls `name`; of the two buckets the continuous one, of
    /// the two windows that of a fixed period.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The algorithm that counts at this rate: of the two windows of one counter the rate says which
    /// one it is.
    pub fn at(self, rate: Rate) -> Result<Self, QuotaError> {
        match (self, rate.is_monthly()) {
            (Self::FixedWindow | Self::CalendarWindow, true) => Ok(Self::CalendarWindow),
            (Self::FixedWindow | Self::CalendarWindow, false) => Ok(Self::FixedWindow),
            (_, true) => Err(QuotaError::Monthly),
            (other, false) => Ok(other),
        }
    }

    /// How the configuration gives the most that can be spent at once.
    pub fn burst_parameter(self) -> BurstParameter {
        self.description().burst
    }

    /// The name of the Lua function.
    pub fn function(self) -> &'static str {
        self.description().function
    }

    /// The Lua source of its body: of the numbers of the [`state`](Self::state), which are nil if
    /// nothing is stored, and of `now, cost, limit, period, count, n` it makes `allowed`; and, only
    /// if there is something to store, `expiry`, the µs at which the quota is whole again, and the
    /// new state. A cost below zero is given back. With n, which is nil for 1, it spends for as
    /// many of n requests as fit.
    pub fn source(self) -> &'static str {
        self.description().source
    }

    /// The two or three numbers of a stored state, in their order, as the [`source`](Self::source)
    /// calls them.
    pub fn state(self) -> &'static [&'static str] {
        self.description().state
    }

    /// Whether it reads and writes Redis itself, so that nobody can tell what it found. The source
    /// then is that of the whole function, `(key, now, cost, limit, period)` to
    /// `allowed, remaining, reset, retry, store`, where the last is a function that writes.
    pub fn stores_itself(self) -> bool {
        self == Self::SlidingLog
    }

    /// Whether equal questions at one moment can be asked as one: see `Scripts::encode_repeated`.
    pub fn is_repeatable(self) -> bool {
        !self.stores_itself()
    }

    /// Whether quota comes back bit by bit, rather than at the end of a window.
    pub fn is_continuous(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra | Self::LeakyBucket)
    }

    /// The numbers that stand for the rate: see [`Quota::terms`].
    pub(crate) fn terms(self, rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
        (self.description().terms)(rate, limit)
    }

    /// The state that is stored as these bytes; `None` for what the script would not take for one.
    pub fn read(self, bytes: &[u8]) -> Option<State> {
        (self.description().read)(bytes)
    }

    /// Decides as the script does. `now` is in µs, at most 2^53; `state` is what an earlier
    /// decision for the same client left, `None` for a client not seen before.
    pub fn decide(self, state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
        (self.description().decide)(state, now, quota, cost)
    }

    /// Gives back `amount` of what was spent, as the script does: as much of it as is still spent,
    /// the rest has come back by itself. The other arguments are those of [`decide`](Self::decide).
    ///
    /// For a client that is alone on its key it is then as if it had never spent it.
    pub fn give_back(self, state: &mut Option<State>, now: u64, quota: &Quota, amount: u64) {
        (self.description().give_back)(state, now, quota, amount);
    }
}

impl BurstParameter {
    /// The parameter's name.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Capacity => Some("capacity"),
            Self::Burst => Some("burst"),
            Self::None => None,
        }
    }
}

/// What is kept for one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Of the buckets: the tokens, and the moment of the last refill.
    Bucket(u64, Moment),
    /// Of gcra: the theoretical arrival time.
    Arrival(Moment),
    /// Of the windows: the number of a window, what was spent in it, and in the one before.
    Window(u64, u64, u64),
    /// Of the log: when and how much, in order of time.
    Log(VecDeque<(u64, u64)>),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rate::{MAX_EXACT, MAX_TIME};

    fn numbers(most: u64) -> impl Strategy<Value = u64> {
        prop_oneof![0..100_u64, 0..=most, most - 1..=most]
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
        let numbers = (numbers(1 << 24), numbers(MAX_TIME), numbers(1 << 40));
        (algorithms, numbers).prop_filter_map("no quota", |(algorithm, (count, period, limit))| {
            Quota::new(algorithm, Rate::new(count, period).ok()?, limit).ok()
        })
    }

    fn states() -> impl Strategy<Value = Option<State>> {
        let any = || numbers(u64::MAX);
        let moments = || (any(), any()).prop_map(|(micros, part)| Moment { micros, part });
        let entries = (numbers(MAX_EXACT), numbers(MAX_EXACT));
        prop_oneof![
            Just(None),
            (any(), moments()).prop_map(|(tokens, moment)| Some(State::Bucket(tokens, moment))),
            moments().prop_map(|moment| Some(State::Arrival(moment))),
            (any(), any(), any()).prop_map(|(w, c, p)| Some(State::Window(w, c, p))),
            proptest::collection::vec(entries, 0..9).prop_map(|log| Some(State::Log(log.into()))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn no_numbers_panic_or_give_more_than_all(
            quota in quotas(),
            state in states(),
            now in numbers(MAX_EXACT),
            amount in numbers(u64::MAX),
        ) {
            let algorithm = quota.algorithm();
            let decide = |mut state, cost| algorithm.decide(&mut state, now, &quota, cost);
            prop_assert!(decide(state.clone(), amount).remaining <= quota.limit());
            let mut given = state;
            algorithm.give_back(&mut given, now, &quota, amount);
            prop_assert!(decide(given, 0).remaining <= quota.limit());
        }
    }
}
