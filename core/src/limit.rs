//! A limit as an algorithm needs it: the algorithm, and numbers that it can count exactly; or why it cannot.

pub use crate::algorithm::Algorithm;
use crate::rate::{Interval, MAX_TIME, Rate};

/// The longest name of a limit, in bytes.
const MAX_NAME: usize = 64;

/// Whether `name` may name a limit: 1 to 64 of `A-Z a-z 0-9 _ - .`.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// The quota of a client: it may spend at most `limit` units at once, and in the long run `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    algorithm: Algorithm,
    rate: Rate,
    terms: (u64, u64),
    limit: u64,
    block: u64,
    is_settled: bool,
    has_override: bool,
    /// See [`fingerprint`](Self::fingerprint).
    fingerprint: u64,
}

/// The largest debt of a client, as a multiple of the limit.
pub(crate) const MAX_DEBT: u64 = 10;

impl Quota {
    /// A quota in the terms of its algorithm, which can count it exactly.
    pub(crate) fn from_terms(
        algorithm: Algorithm,
        rate: Rate,
        terms: (u64, u64),
        limit: u64,
    ) -> Self {
        let (block, is_settled, has_override, fingerprint) = Default::default();
        Self { algorithm, rate, terms, limit, block, is_settled, has_override, fingerprint }
            .hashed()
    }

    /// This quota, but a client that exceeds it is blocked for `block` µs.
    pub fn with_block(self, block: u64) -> Self {
        Self { block, ..self }.hashed()
    }

    /// This quota, of which charges may be corrected when it is known what requests have really cost; unchanged where the
    /// algorithm needs nothing for that, or cannot count its debts.
    pub fn with_settle(self) -> Self {
        let is_settled = self.algorithm.keeps_minima() && self.check_settle().is_ok();
        Self { is_settled, ..self }
    }

    /// Whether charges may be corrected: what was [missing](crate::algorithm::Minima) since is kept for that.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// This quota, in place of which a client may have one of its own.
    pub fn with_override(self) -> Self {
        Self { has_override: true, ..self }
    }

    /// Whether a client may have a quota of its own: see [`overrides`](crate::overrides).
    pub fn has_override(&self) -> bool {
        self.has_override
    }

    /// This quota with the rate and limit of another one; `None` if that is counted in another way, or its debts
    /// cannot be counted exactly.
    pub(crate) fn with_terms_of(&self, other: &Self) -> Option<Self> {
        let Self { algorithm, rate, terms, limit, .. } = *other;
        let is_alike = algorithm == self.algorithm && other.check_settle().is_ok();
        is_alike.then(|| Self { rate, terms, limit, ..*self }.hashed())
    }

    /// How long a client is blocked at most, in µs. Where clients may be given quotas of their own, one may also be
    /// blocked for longer than the line says.
    pub(crate) fn longest_block(&self) -> u64 {
        if self.block > 0 && !self.has_override { self.block } else { MAX_TIME }
    }

    /// The algorithm that counts it.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The rate as it was configured.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The two numbers that stand for the rate in the algorithm and its script, which calls them
    /// `period` and `count`. Each algorithm defines what they mean.
    pub fn terms(&self) -> (u64, u64) {
        self.terms
    }

    /// The terms of an algorithm that counts in emission intervals.
    pub(crate) fn interval(&self) -> Interval {
        Interval::from_terms(self.terms)
    }

    /// The most that can be spent at once.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a client that exceeds the limit is blocked, in µs; 0: not at all.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// The most that a client may owe.
    pub fn max_debt(&self) -> u64 {
        self.limit.saturating_mul(MAX_DEBT)
    }

    /// The most that can be spent and not yet regained: the limit and the largest debt.
    pub(crate) fn max_spent(&self) -> u64 {
        self.limit.saturating_add(self.max_debt())
    }

    /// The units left and the debt, if `missing` units of the limit are missing.
    pub(crate) fn split(&self, missing: u64) -> (u64, u64) {
        (self.limit.saturating_sub(missing), missing.saturating_sub(self.limit))
    }

    /// How many units of the limit are missing, given what is left and what is owed.
    pub(crate) fn missing(&self, left: u64, debt: u64) -> u64 {
        let missing = self.limit.saturating_sub(left.saturating_sub(debt));
        missing.saturating_add(debt.saturating_sub(left))
    }

    /// A hash of the quota: different quotas have different ones, almost certainly.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// This quota with the hash of it.
    fn hashed(self) -> Self {
        let (period, count) = self.terms;
        let mix = |hash: u64, number: u64| {
            (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        };
        let numbers = [period, count, self.limit, self.block];
        Self { fingerprint: numbers.into_iter().fold(self.algorithm as u64, mix), ..self }
    }
}

/// The longest log, in entries: see `sliding_log.rs` for what it costs.
pub const MAX_LOG: u64 = 100_000;

/// Why a rate and a limit make no quota.
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
    /// The algorithm cannot count months of the calendar.
    #[error("is by the month of the calendar, which is for algorithm=fixed_window only")]
    Monthly,
    /// The largest debt would take over a hundred years to regain.
    #[error("would take more than a hundred years to regain a debt of ten times as much")]
    DebtTooSlow,
    /// With debts, the numbers would leave the range in which Redis counts exactly.
    #[error("is too large for a debt of ten times as much to be counted exactly")]
    DebtTooLarge,
    /// A log of so many entries would take too long to keep.
    #[error("is more than the {MAX_LOG} entries that a sliding_log may have")]
    TooLong,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words() {
        assert!(is_name("default") && is_name("per_ip-v6.2") && is_name(&"x".repeat(64)));
        assert!(!is_name("") && !is_name("a b") && !is_name("a:b") && !is_name(&"x".repeat(65)));
        assert!(!is_name("ä") && !is_name("{a}"));
    }

    #[test]
    fn fingerprints_of_quotas_differ() {
        let quota = |algorithm, rate: &str, limit| {
            Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap()
        };
        let of = |algorithm, rate, limit| quota(algorithm, rate, limit).fingerprint();
        let all = [
            of(Algorithm::TokenBucket, "10r/s", 10),
            quota(Algorithm::TokenBucket, "10r/s", 10).with_block(1).fingerprint(),
            of(Algorithm::TokenBucket, "10r/s", 11),
            of(Algorithm::TokenBucket, "11r/s", 10),
            of(Algorithm::Gcra, "10r/s", 10),
            of(Algorithm::FixedWindow, "10r/s", 10),
            of(Algorithm::FixedWindow, "10r/month", 10),
        ];
        let different: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
