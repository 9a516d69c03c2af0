//! A limit as an algorithm needs it: numbers that can be counted exactly.

use crate::algorithm::Algorithm;
use crate::rate::{Interval, MAX_EXACT, MAX_TIME, Rate};

/// The longest name of a limit, in bytes.
pub const MAX_NAME: usize = 64;

/// Whether `name` may name a limit: 1 to 64 of `A-Z a-z 0-9 _ - .`.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// What a client may spend: at most `limit` units at once, coming back one each
/// [`interval`](Quota::interval).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    algorithm: Algorithm,
    rate: Rate,
    interval: Interval,
    limit: u64,
}

/// Why no quota can be made of a rate and a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// A limit of nothing.
    #[error("must be at least 1")]
    Zero,
    /// An empty quota would take over a hundred years to become whole.
    #[error("would take more than a hundred years to refill at this rate")]
    TooSlow,
    /// The numbers would leave the range in which Redis counts exactly.
    #[error("is too large to be counted exactly at this rate")]
    TooLarge,
}

impl Quota {
    /// A quota of `limit` units at `rate`.
    ///
    /// The bounds keep every number of the scripts, which count in doubles, exact: the points in
    /// time, limit × emission interval, stay below 2^53 µs, and so do their fractions.
    pub fn new(algorithm: Algorithm, rate: Rate, limit: u64) -> Result<Self, QuotaError> {
        if limit == 0 {
            return Err(QuotaError::Zero);
        }
        let interval = rate.interval();
        let scaled = |number: u64| u128::from(limit) * u128::from(number);
        if scaled(interval.count()) > u128::from(MAX_EXACT) {
            return Err(QuotaError::TooLarge);
        }
        if scaled(interval.period()) > u128::from(MAX_TIME) * u128::from(interval.count()) {
            return Err(QuotaError::TooSlow);
        }
        Ok(Self { algorithm, rate, interval, limit })
    }

    /// Who decides.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The rate as it was configured.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The time that one unit takes to come back.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// The most that can be spent at once.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(rate: &str, limit: u64) -> Result<(), QuotaError> {
        Quota::new(Algorithm::TokenBucket, rate.parse().unwrap(), limit).map(|_| ())
    }

    #[test]
    fn names() {
        assert!(is_name("default") && is_name("per_ip-v6.2") && is_name(&"x".repeat(64)));
        assert!(!is_name("") && !is_name("a b") && !is_name("a:b") && !is_name(&"x".repeat(65)));
        assert!(!is_name("ä") && !is_name("{a}"));
    }

    #[test]
    fn bounds() {
        assert_eq!(quota("1r/365d", 100), Ok(()));
        assert_eq!(quota("1r/365d", 101), Err(QuotaError::TooSlow));
        assert_eq!(quota("1000000r/s", 1_000_000), Ok(()));
        assert_eq!(quota("1234567r/1d", 1_234_567), Ok(()));
        assert_eq!(quota("10r/s", 0), Err(QuotaError::Zero));
        assert_eq!(quota("999999937r/s", 999_999_937), Err(QuotaError::TooLarge));
    }
}
