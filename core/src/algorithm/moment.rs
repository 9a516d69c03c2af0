//! Exact points in time that are multiples of an emission interval.

use super::Terms;
use crate::charge::Charged;
use crate::limit::{Quota, QuotaError};
use crate::rate::{Interval, MAX_EXACT, MAX_TIME, Rate};

/// The terms of algorithms that count in emission intervals: the interval as a fraction.
///
/// The scripts count in doubles. The bounds keep their numbers exact: limit × emission interval
/// stays below 2^53 µs, and so do the fractions.
pub(super) fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    let interval = rate.interval();
    let scaled = |number: u64| u128::from(limit) * u128::from(number);
    if scaled(interval.count()) > u128::from(MAX_EXACT) {
        return Err(QuotaError::TooLarge);
    }
    if scaled(interval.period()) > u128::from(MAX_TIME) * u128::from(interval.count()) {
        return Err(QuotaError::TooSlow);
    }
    Ok((interval.period(), interval.count()))
}

/// When the quota would have been whole without `amount` of a charge. Until then nothing of that can have been
/// lost; from then on it is regained.
pub(super) fn regained_from(quota: &Quota, charged: Charged, amount: u64) -> u64 {
    let (interval, missing) = (quota.interval(), quota.limit().saturating_sub(charged.remaining));
    // The reset counts units that machines have set aside, which are not missing for longer.
    let whole_in = charged.reset.min(Moment::at(0).plus(interval, missing).ceil());
    let whole = Moment::at(charged.at.saturating_add(whole_in));
    whole.minus(interval, amount).ceil().max(charged.at)
}

/// `micros + part / count` µs, where `count` is that of an [`Interval`], and `part < count`.
/// Moments of the same interval are ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Whole µs.
    pub micros: u64,
    /// The numerator of the rest.
    pub part: u64,
}

impl Moment {
    /// A whole number of µs.
    pub fn at(micros: u64) -> Self {
        Self { micros, part: 0 }
    }

    /// The moment `times` emission intervals later.
    pub fn plus(self, interval: Interval, times: u64) -> Self {
        let parts = u128::from(times) * u128::from(interval.period()) + u128::from(self.part);
        let (micros, part) = divide(parts, interval.count());
        Self { micros: self.micros.saturating_add(micros), part }
    }

    /// The moment `times` emission intervals earlier, or 0 if there is none.
    pub fn minus(self, interval: Interval, times: u64) -> Self {
        let span = u128::from(times) * u128::from(interval.period());
        let (micros, part) = divide(self.parts(interval).saturating_sub(span), interval.count());
        Self { micros, part }
    }

    /// The moment so many µs later.
    pub fn later(self, micros: u64) -> Self {
        Self { micros: self.micros.saturating_add(micros), ..self }
    }

    /// How many whole emission intervals fit between this moment and `later`, 0 if it is past it.
    pub fn intervals_until(self, later: Self, interval: Interval) -> u64 {
        let Some(micros) = later.micros.checked_sub(self.micros) else { return 0 };
        let parts = u128::from(micros) * u128::from(interval.count()) + u128::from(later.part);
        divide(parts.saturating_sub(self.part.into()), interval.period()).0
    }

    /// The moment in parts: µs × count.
    fn parts(self, interval: Interval) -> u128 {
        u128::from(self.micros) * u128::from(interval.count()) + u128::from(self.part)
    }

    /// The first whole µs that is not before this moment.
    pub fn ceil(self) -> u64 {
        self.micros.saturating_add(u64::from(self.part > 0))
    }

    /// This moment for another interval, whose parts may be coarser: at most 1 µs earlier.
    pub fn clamped(self, interval: Interval) -> Self {
        Self { micros: self.micros, part: self.part.min(interval.count().saturating_sub(1)) }
    }
}

/// Quotient and remainder. A division of 64 bits is many times faster, and nearly always enough.
fn divide(number: u128, by: u64) -> (u64, u64) {
    match u64::try_from(number) {
        Ok(number) => (number / by, number % by),
        Err(_) => divide_long(number, by),
    }
}

#[cold]
fn divide_long(number: u128, by: u64) -> (u64, u64) {
    let by = u128::from(by);
    let narrow = |number| u64::try_from(number).unwrap_or(u64::MAX);
    (narrow(number / by), narrow(number % by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirds_add_up_to_wholes() {
        let interval = "3r/s".parse::<crate::rate::Rate>().unwrap().interval();
        let third = Moment::at(5).plus(interval, 1);
        assert_eq!(third, Moment { micros: 333_338, part: 1 });
        assert_eq!(third.ceil(), 333_339);
        assert_eq!(third.plus(interval, 2), Moment::at(1_000_005));
        assert_eq!(Moment::at(5).plus(interval, 3_000_000), Moment::at(1_000_000_000_005));
        assert_eq!(Moment::at(1_000_005).minus(interval, 2), third);
        assert_eq!(third.minus(interval, 1), Moment::at(5));
        assert_eq!(third.minus(interval, 2), Moment::at(0));
        assert_eq!(third.minus(interval, u64::MAX), Moment::at(0));
        assert_eq!(third.intervals_until(Moment::at(1_000_005), interval), 2);
        assert_eq!(third.intervals_until(Moment::at(1_000_004), interval), 1);
        assert_eq!(third.intervals_until(Moment::at(5), interval), 0);
    }
}
