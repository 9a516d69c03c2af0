//! Which quotas an algorithm can count exactly.

use super::{Regain, Terms};
use crate::limit::{Algorithm, Quota, QuotaError};
use crate::rate::{MAX_EXACT, MAX_TIME, Rate};

impl Quota {
    /// A quota of `limit` units at `rate`. Fails if the algorithm cannot count it exactly.
    pub fn new(algorithm: Algorithm, rate: Rate, limit: u64) -> Result<Self, QuotaError> {
        if limit == 0 {
            return Err(QuotaError::Zero);
        }
        if limit > MAX_EXACT {
            return Err(QuotaError::TooLarge);
        }
        algorithm.check_rate(rate)?;
        let terms = algorithm.terms(rate, limit)?;
        Ok(Self::from_terms(algorithm, rate, terms, limit))
    }

    /// The quota that `quota` makes of the values of variables, a rate and a capacity or burst. If it cannot be counted
    /// exactly, the largest power of ten with which it can stands in place of numbers of 2^53 and more.
    pub(crate) fn saturating<E>(
        rate: Rate,
        burst: Option<u64>,
        quota: impl Fn(Rate, Option<u64>) -> Result<Self, E>,
    ) -> Result<Self, E> {
        let at_most = |most| {
            let burst = burst.map(|it| if it < MAX_EXACT { it } else { most });
            quota(rate.at_most(most), burst).ok()
        };
        let mut powers = (0..=MAX_EXACT.ilog10()).rev().map(|power| 10_u64.pow(power));
        quota(rate, burst).or_else(|error| powers.find_map(at_most).ok_or(error))
    }

    /// Fails if debts of this quota cannot be counted exactly.
    pub fn check_settle(&self) -> Result<(), QuotaError> {
        let most = self.limit().checked_add(self.max_debt()).ok_or(QuotaError::DebtTooLarge)?;
        match self.algorithm().check_debt(self.rate(), self.limit(), most) {
            Err(QuotaError::TooSlow) => Err(QuotaError::DebtTooSlow),
            Err(_) => Err(QuotaError::DebtTooLarge),
            Ok(()) => Ok(()),
        }
    }
}

impl Algorithm {
    /// Whether a period can be a month of the calendar.
    pub fn counts_months(self) -> bool {
        self.row().counts_months
    }

    /// Fails if it cannot count at this rate, whatever the limit is.
    pub(crate) fn check_rate(self, rate: Rate) -> Result<(), QuotaError> {
        match rate.is_monthly() && !self.counts_months() {
            true => Err(QuotaError::Monthly),
            false => Ok(()),
        }
    }

    /// The numbers that stand for the rate: see [`Quota::terms`].
    fn terms(self, rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
        (self.row().terms)(rate, limit)
    }

    /// Fails if the numbers of a client that has spent `most`, more than `limit`, are not exact,
    /// quotients included.
    fn check_debt(self, rate: Rate, limit: u64, most: u64) -> Result<(), QuotaError> {
        if most > MAX_EXACT / 4 {
            return Err(QuotaError::TooLarge);
        }
        match self.regain() {
            Regain::Continuous | Regain::AtRefills => self.terms(rate, most).map(drop),
            Regain::AtOnce => {
                let periods = u128::from(most.div_ceil(limit)).saturating_add(1);
                let is_too_slow = periods * u128::from(rate.period()) > u128::from(MAX_TIME);
                if is_too_slow { Err(QuotaError::TooSlow) } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stored;
    use super::*;
    use crate::decision::Retry;
    use crate::rate::{RateError, SATURATED};

    fn quota(rate: &str, limit: u64) -> Result<(), QuotaError> {
        try_quota(Algorithm::TokenBucket, rate, limit)
    }

    #[test]
    fn no_quota_holds_a_saturated_cost() {
        for algorithm in Algorithm::ALL {
            for (rate, limit) in [("3r/d", 3), ("9007199254740992r/d", MAX_EXACT)] {
                let quota = Quota::new(algorithm, rate.parse().unwrap(), limit);
                let Ok(quota) = quota else { continue };
                let verdict =
                    quota.algorithm().decide(&mut Stored::default(), 1, &quota, SATURATED);
                assert_eq!(verdict.retry, Retry::Never, "{algorithm:?} {limit}");
            }
        }
    }

    fn try_quota(algorithm: Algorithm, rate: &str, limit: u64) -> Result<(), QuotaError> {
        Quota::new(algorithm, rate.parse().unwrap(), limit).map(|_| ())
    }

    /// The errors name the algorithms that can.
    #[test]
    fn not_every_algorithm_counts_months() {
        let errors = [QuotaError::Monthly.to_string(), RateError::Period.to_string()];
        for algorithm in Algorithm::ALL {
            let counts = algorithm.counts_months();
            let expected = if counts { Ok(()) } else { Err(QuotaError::Monthly) };
            assert_eq!(try_quota(algorithm, "10r/month", 10), expected, "{algorithm:?}");
            assert_eq!(try_quota(algorithm, "10r/4w", 10), Ok(()), "{algorithm:?}");
            for error in &errors {
                let names = error.split([' ', ',', '=']).any(|word| word == algorithm.name());
                assert_eq!(names, counts, "{algorithm:?}: {error}");
            }
        }
    }

    #[test]
    fn quotas_out_of_bounds_are_refused() {
        assert_eq!(quota("1r/365d", 100), Ok(()));
        assert_eq!(quota("1r/365d", 101), Err(QuotaError::TooSlow));
        assert_eq!(quota("1000000r/s", 1_000_000), Ok(()));
        assert_eq!(quota("1234567r/1d", 1_234_567), Ok(()));
        assert_eq!(quota("10r/s", 0), Err(QuotaError::Zero));
        assert_eq!(quota("999999937r/s", 999_999_937), Err(QuotaError::TooLarge));
        assert_eq!(try_quota(Algorithm::SlidingLog, "100000r/s", 100_000), Ok(()));
        assert_eq!(
            try_quota(Algorithm::SlidingLog, "100001r/s", 100_001),
            Err(QuotaError::TooLong)
        );
        assert_eq!(try_quota(Algorithm::SlidingWindow, "50000000r/d", 50_000_000), Ok(()));
        assert_eq!(
            try_quota(Algorithm::SlidingWindow, "90000000000000r/d", 90_000_000_000_000),
            Err(QuotaError::TooLarge)
        );
        assert_eq!(try_quota(Algorithm::IntervalBucket, "1r/365d", 101), Err(QuotaError::TooSlow));
        let most = |limit| try_quota(Algorithm::IntervalBucket, "9007199254740992r/s", limit);
        assert_eq!(most(MAX_EXACT), Ok(()));
        assert_eq!(most(MAX_EXACT + 1), Err(QuotaError::TooLarge));
    }
}
