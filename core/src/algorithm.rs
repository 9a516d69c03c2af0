//! The algorithms: each a room of its own, a Lua script and its Rust reference side by side.
//!
//! Both are the same pure function, of the state that is stored for a client, the time, the quota
//! and the cost, to a verdict and the state to store. The script runs inside Redis; the reference
//! says what it means, and a test drives both through the same random histories and demands the
//! same decisions. To add an algorithm, add its two files and a line to [`Algorithm::ALL`].

mod gcra;
mod moment;
mod token_bucket;

use crate::decision::Verdict;
use crate::limit::Quota;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// A bucket that starts full and refills continuously.
    #[default]
    TokenBucket,
    /// The generic cell rate algorithm, with the numbers of redis-cell's `CL.THROTTLE`.
    Gcra,
}

/// What the configuration calls the size of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstParameter {
    /// `capacity=n`, all that can be spent at once; by default the n of the rate.
    Capacity,
    /// `burst=n`, what can be spent at once beyond the first unit; by default 0.
    Burst,
}

impl BurstParameter {
    /// The parameter's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Burst => "burst",
        }
    }
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 2] = [Self::TokenBucket, Self::Gcra];

    /// The name in the configuration, and that of the Lua function.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::Gcra => "gcra",
        }
    }

    /// The algorithm that the configuration calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// How the configuration gives the size of a burst.
    pub fn burst_parameter(self) -> BurstParameter {
        match self {
            Self::TokenBucket => BurstParameter::Capacity,
            Self::Gcra => BurstParameter::Burst,
        }
    }

    /// The Lua source: the definition of a local function of this algorithm's name,
    /// `(state, now, cost, limit, period, count)` to
    /// `allowed, remaining, reset, retry, new_state, ttl`.
    pub fn lua(self) -> &'static str {
        match self {
            Self::TokenBucket => include_str!("algorithm/token_bucket.lua"),
            Self::Gcra => include_str!("algorithm/gcra.lua"),
        }
    }

    /// Decides as the script does. `now` is in µs, at most 2^53; `state` is what an earlier
    /// decision for the same client left, `None` for a client not seen before.
    pub fn decide(self, state: &mut Option<State>, now: u64, quota: &Quota, cost: u64) -> Verdict {
        match self {
            Self::TokenBucket => token_bucket::decide(state, now, quota, cost),
            Self::Gcra => gcra::decide(state, now, quota, cost),
        }
    }
}

/// What is kept for one client, whatever the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    tokens: u64,
    moment: moment::Moment,
}
