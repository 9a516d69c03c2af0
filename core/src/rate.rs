//! Rates: units per period.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// Microseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000;
/// Microseconds in a second.
pub const SECOND: u64 = 1_000_000;

const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Microseconds in a day.
pub(crate) const DAY: u64 = 24 * HOUR;
/// Microseconds in a week.
pub(crate) const WEEK: u64 = 7 * DAY;

/// The longest time span, in µs: a hundred years. Added to a date of this century it stays below
/// 2^53, so that Lua's numbers hold it exactly.
pub const MAX_TIME: u64 = 36_500 * DAY;

/// Whole numbers up to this one are exact in the doubles that Redis scripts count with.
pub const MAX_EXACT: u64 = 1 << 53;

/// A number above [`MAX_EXACT`], whichever it was: more than any quota can hold, and exact in a double, too.
pub const SATURATED: u64 = 2 * MAX_EXACT;

/// `count` units of quota per period; neither is ever zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    /// In µs; `None`: a month of the calendar.
    period: Option<NonZeroU64>,
}

/// The longest month.
const LONGEST_MONTH: u64 = 31 * DAY;

/// Why a text is no [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not of the form `<n>r/<period>`.
    #[error("a rate is <n>r/<period>, such as 10r/s, 100r/m or 5r/10s")]
    Syntax,
    /// Another period.
    #[error(
        "a rate is <n>r/<period>, where the period is s, m, h or d, or a number and one of ms s m h d w, such \
         as 10s, or, of fixed_window, month"
    )]
    Period,
    /// A rate of nothing, or per nothing.
    #[error("the number of requests and the period must be at least 1")]
    Zero,
    /// A number of requests over 2^53, or a period over a hundred years.
    #[error("the number of requests is above 9007199254740992, or the period above 36500d")]
    TooLarge,
}

impl Rate {
    /// A rate of `count` per `period` µs.
    pub fn new(count: u64, period: u64) -> Result<Self, RateError> {
        let period = NonZeroU64::new(period).filter(|_| count > 0).ok_or(RateError::Zero)?;
        if count > MAX_EXACT || period.get() > MAX_TIME {
            return Err(RateError::TooLarge);
        }
        Ok(Self { count, period: Some(period) })
    }

    /// A rate of `count` per month of the calendar, in UTC.
    pub fn monthly(count: u64) -> Result<Self, RateError> {
        match count {
            0 => Err(RateError::Zero),
            1..=MAX_EXACT => Ok(Self { count, period: None }),
            _ => Err(RateError::TooLarge),
        }
    }

    /// Reads a rate as [`str::parse`] does, but one that is too large has the largest n, or the longest period.
    pub fn saturating(text: &str) -> Result<Self, RateError> {
        match Self::read(text, saturated)? {
            (count, None) => Self::monthly(count.min(MAX_EXACT)),
            (count, Some(period)) => Self::new(count.min(MAX_EXACT), period.min(MAX_TIME)),
        }
    }

    /// The n, and the period in µs; `None`: a month.
    fn read(text: &str, digits: ReadDigits) -> Result<(u64, Option<u64>), RateError> {
        let (count, period) = text.split_once("r/").ok_or(RateError::Syntax)?;
        if period == "month" {
            return Ok((digits(count)?, None));
        }
        let length = period.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = period.split_at_checked(length).ok_or(RateError::Syntax)?;
        let unit = match unit {
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            "d" => DAY,
            "ms" if !number.is_empty() => MILLISECOND,
            "w" if !number.is_empty() => WEEK,
            _ => return Err(RateError::Period),
        };
        let number = if number.is_empty() { 1 } else { digits(number)? };
        Ok((digits(count)?, Some(number.saturating_mul(unit))))
    }

    /// This rate, but `most` in place of an n that is as large as it can be.
    pub(crate) fn at_most(self, most: u64) -> Self {
        Self { count: if self.count < MAX_EXACT { self.count } else { most }, ..self }
    }

    /// The n of "n per period".
    pub fn count(self) -> u64 {
        self.count
    }

    /// The period in µs; that of a month is the longest one.
    pub fn period(self) -> u64 {
        self.period.map_or(LONGEST_MONTH, NonZeroU64::get)
    }

    /// The n and the period in µs, 0 for a month, as they are stored.
    pub(crate) fn to_numbers(self) -> [u64; 2] {
        [self.count, self.period.map_or(0, NonZeroU64::get)]
    }

    /// The rate of these numbers; `None` if there is no such rate.
    pub(crate) fn from_numbers([count, period]: [u64; 2]) -> Option<Self> {
        match period {
            0 => Self::monthly(count).ok(),
            _ => Self::new(count, period).ok(),
        }
    }

    /// Whether the period is a month of the calendar.
    pub fn is_monthly(self) -> bool {
        self.period.is_none()
    }

    /// The time that one unit of quota takes to come back.
    pub fn interval(self) -> Interval {
        let (count, period) = (self.count, self.period());
        let divisor = greatest_common_divisor(count, period);
        Interval { period: period / divisor, count: count / divisor }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads `10r/s`, `100r/m`, `5r/10s`, `1000r/1d`: the period is one of `s m h d`, a number and
    /// one of `ms s m h d w`, or `month`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        match Self::read(text, whole)? {
            (count, None) => Self::monthly(count),
            (count, Some(period)) => Self::new(count, period),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [(WEEK, "w"), (DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s"), (1_000, "ms")];
        let (count, period) = (self.count, self.period());
        if self.is_monthly() {
            return write!(f, "{count}r/month");
        }
        let largest = units.into_iter().find(|(unit, _)| period.is_multiple_of(*unit));
        match largest.map(|(unit, name)| (period / unit, name)) {
            // A period of one has no number, but that of weeks and milliseconds.
            Some((1, name @ ("d" | "h" | "m" | "s"))) => write!(f, "{count}r/{name}"),
            Some((number, name)) => write!(f, "{count}r/{number}{name}"),
            None => write!(f, "{count}r/{period}us"),
        }
    }
}

/// The emission interval as an exact fraction in lowest terms: `period / count` µs a unit.
///
/// A point in time that is a multiple of it is kept as whole µs and a part of `count`, so that no
/// history, however long, adds up a rounding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    period: u64,
    count: u64,
}

impl Interval {
    /// The interval of `count` units in `period` µs.
    pub(crate) fn from_terms((period, count): (u64, u64)) -> Self {
        Self { period, count }
    }

    /// The numerator: µs that [`count`](Self::count) units take.
    pub fn period(self) -> u64 {
        self.period
    }

    /// The denominator: units that come in [`period`](Self::period) µs.
    pub fn count(self) -> u64 {
        self.count
    }
}

/// How digits are read: those of a literal by [`whole`], those of a variable by [`saturated`].
pub type ReadDigits = fn(&str) -> Result<u64, RateError>;

/// Reads a decimal number without sign, perhaps with a fraction, and rounds it up; above 2^53 it is
/// [`SATURATED`].
pub fn rounded_up(text: &str) -> Result<u64, RateError> {
    let Some((number, fraction)) = text.split_once('.') else { return saturated(text) };
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RateError::Syntax);
    }
    match (saturated(number)?, fraction.bytes().all(|byte| byte == b'0')) {
        (number, true) => Ok(number),
        (MAX_EXACT.., false) => Ok(SATURATED),
        (number, false) => Ok(number + 1),
    }
}

/// Reads a decimal number without sign; above 2^53 it is [`SATURATED`].
pub fn saturated(text: &str) -> Result<u64, RateError> {
    match whole(text) {
        Err(RateError::TooLarge) => Ok(SATURATED),
        read => read,
    }
}

/// Reads a decimal number without sign, at most 2^53.
pub fn whole(text: &str) -> Result<u64, RateError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(RateError::Syntax);
    }
    match text.parse() {
        Ok(number) if number <= MAX_EXACT => Ok(number),
        _ => Err(RateError::TooLarge),
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Result<(u64, u64), RateError> {
        text.parse::<Rate>().map(|rate| (rate.count, rate.period()))
    }

    #[test]
    fn fractions_are_rounded_up() {
        for (text, number) in
            [("0", 0), ("37", 37), ("0.000", 0), ("0.003", 1), ("2.000", 2), ("2.001", 3)]
        {
            assert_eq!(rounded_up(text), Ok(number), "{text}");
        }
        for text in
            ["", "-", "-1", "+1", "1.", ".5", "1.2.3", "1e3", " 1", "0x1", "1,5", "0.1, 0.2"]
        {
            assert_eq!(rounded_up(text), Err(RateError::Syntax), "{text}");
        }
        assert_eq!(rounded_up("9007199254740991.1"), Ok(MAX_EXACT));
        assert_eq!(rounded_up("9007199254740992.0"), Ok(MAX_EXACT));
        for text in ["9007199254740992.1", "9007199254740993", "9007199254740993.0"] {
            assert_eq!(rounded_up(text), Ok(SATURATED), "{text}");
        }
    }

    #[test]
    fn large_rates_are_saturated() {
        let most = "9".repeat(30);
        let saturated = |text: &str| Rate::saturating(&text.replace('#', &most));
        for text in ["10r/s", "5r/10s", "3r/month"] {
            assert_eq!(saturated(text), text.parse());
        }
        assert_eq!(saturated("#r/m"), Rate::new(MAX_EXACT, MINUTE));
        assert_eq!(saturated("#r/month"), Rate::monthly(MAX_EXACT));
        for text in ["1r/#w", "1r/36501d", "1r/18446744073709551615w"] {
            assert_eq!(saturated(text), Rate::new(1, MAX_TIME), "{text}");
        }
        assert_eq!(saturated("#r/0s"), Err(RateError::Zero));
        assert_eq!(saturated("-#r/s"), Err(RateError::Syntax));
    }

    #[test]
    fn large_numbers_are_saturated() {
        let zeros = "0".repeat(100);
        assert_eq!(saturated("9007199254740992"), Ok(MAX_EXACT));
        assert_eq!(saturated(&format!("{zeros}7")), Ok(7));
        for text in
            ["9007199254740993", "18446744073709551616", &format!("1{zeros}"), &"9".repeat(100)]
        {
            assert_eq!(saturated(text), Ok(SATURATED), "{text}");
            assert_eq!(whole(text), Err(RateError::TooLarge), "{text}");
        }
        for text in ["", "-1", "+1", "1 ", "1e30", "99999999999999999999x", "٣"] {
            assert_eq!(saturated(text), Err(RateError::Syntax), "{text}");
        }
    }

    #[test]
    fn reads_every_unit() {
        assert_eq!(rate("10r/s"), Ok((10, SECOND)));
        assert_eq!(rate("100r/m"), Ok((100, 60 * SECOND)));
        assert_eq!(rate("1r/h"), Ok((1, 3600 * SECOND)));
        assert_eq!(rate("1000r/1d"), Ok((1000, 86_400 * SECOND)));
        assert_eq!(rate("5r/10s"), Ok((5, 10 * SECOND)));
        assert_eq!(rate("7r/250ms"), Ok((7, 250_000)));
        assert_eq!(rate("1r/52w"), Ok((1, 52 * 7 * 86_400 * SECOND)));
        assert_eq!(rate("1000000r/s"), Ok((1_000_000, SECOND)));
        assert_eq!("7r/month".parse(), Rate::monthly(7));
    }

    #[test]
    fn a_month_is_no_number_of_days() {
        assert!(Rate::monthly(7).unwrap().is_monthly());
        assert!(!Rate::new(7, 31 * DAY).unwrap().is_monthly());
    }

    #[test]
    fn refuses_what_is_not_a_rate() {
        for text in [
            "", "r/s", "10", "10r", "10/s", "10rs", "-1r/s", "+1r/s", "1.5r/s", " 10r/s", "r/10s",
            "r/month",
        ] {
            assert_eq!(rate(text), Err(RateError::Syntax), "{text:?}");
        }
        for text in [
            "10r/",
            "10r/x",
            "10r/w",
            "10r/ms",
            "10r/s ",
            "10r/1",
            "10r/1.5s",
            "10r/ss",
            "1r/µs",
            "1r/1month",
            "1r/2month",
            "1r/months",
            "1r/Month",
        ] {
            assert_eq!(rate(text), Err(RateError::Period), "{text:?}");
        }
        assert_eq!(rate("0r/s"), Err(RateError::Zero));
        assert_eq!(rate("1r/0s"), Err(RateError::Zero));
        assert_eq!(rate("0r/month"), Err(RateError::Zero));
        assert_eq!(rate("9007199254740993r/month"), Err(RateError::TooLarge));
        assert_eq!(rate("99999999999999999999r/s"), Err(RateError::TooLarge));
        assert_eq!(rate("1r/99999999d"), Err(RateError::TooLarge));
        assert_eq!(rate("1r/18446744073709551615w"), Err(RateError::TooLarge));
    }

    #[test]
    fn interval_is_in_lowest_terms() {
        let interval = |text: &str| {
            let interval = text.parse::<Rate>().unwrap().interval();
            (interval.period(), interval.count())
        };
        assert_eq!(interval("100r/m"), (600_000, 1));
        assert_eq!(interval("3r/s"), (1_000_000, 3));
        assert_eq!(interval("1000000r/s"), (1, 1));
        assert_eq!(interval("4000000r/s"), (1, 4));
    }

    #[test]
    fn shows_itself_in_the_largest_unit() {
        for text in
            ["10r/s", "5r/90s", "1000r/d", "7r/250ms", "3r/1ms", "8r/1w", "1r/52w", "9r/month"]
        {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }
}
