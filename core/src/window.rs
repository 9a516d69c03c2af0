//! The windows of the calendar, in UTC: aligned periods, weeks and months.

use crate::rate::{DAY, Rate, WEEK};

/// From a Monday to the Unix epoch, which was a Thursday, in µs.
const MONDAY: u64 = 3 * DAY;

/// From 1 March of the year 0 to the Unix epoch, in days. Months are counted from there, so that
/// the leap day is the last day of a year of twelve months.
const EPOCH: u64 = 719_468;

/// A window of time, one of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number in the sequence.
    pub number: u64,
    /// The first µs after it.
    pub ends: u64,
}

impl Window {
    /// The aligned window of `period` µs that `now` is in.
    pub fn aligned(now: u64, period: u64) -> Self {
        let aligned = now.saturating_add(alignment(period));
        let number = aligned / period;
        Self { number, ends: now.saturating_add(period - aligned % period) }
    }

    /// The month that `now` is in.
    pub fn month(now: u64) -> Self {
        let number = month(now);
        Self { number, ends: begin_of_month(number + 1) }
    }
}

/// How long before the Unix epoch, in µs, a window of `period` µs began. Windows of whole weeks
/// begin on Mondays, all others at the epoch.
pub fn alignment(period: u64) -> u64 {
    if period.is_multiple_of(WEEK) { MONDAY } else { 0 }
}

/// The periods of a rate are windows without gaps.
impl Rate {
    /// The period that `now` is in.
    pub fn window(self, now: u64) -> Window {
        if self.is_monthly() { Window::month(now) } else { Window::aligned(now, self.period()) }
    }

    /// The first µs after the period that is `windows` after this one.
    pub fn end_after(self, window: Window, windows: u64) -> u64 {
        match self.is_monthly() {
            true => begin_of_month(window.number + 1 + windows),
            false => window.ends.saturating_add(windows.saturating_mul(self.period())),
        }
    }

    /// The period in µs; that of a month is the one at `now`.
    pub fn period_at(self, now: u64) -> u64 {
        if self.is_monthly() { length_of_month(now) } else { self.period() }
    }
}

/// The length of the month that `now` is in, in µs.
fn length_of_month(now: u64) -> u64 {
    let number = month(now);
    begin_of_month(number + 1) - begin_of_month(number)
}

/// The number of the month that `now` is in.
fn month(now: u64) -> u64 {
    let day = now / DAY + EPOCH;
    // The mean month has 146,097 / 4,800 days. Counted with it, half a month later is in this month
    // or in the next one.
    let month = (day + 15) * 4_800 / 146_097;
    if first_day(month) > day { month - 1 } else { month }
}

/// When a month begins, in µs since the Unix epoch, or at the end of all time that can be counted.
fn begin_of_month(number: u64) -> u64 {
    (first_day(number) - EPOCH).saturating_mul(DAY)
}

/// The first day of a month. From March on the months have 31, 30, 31, 30 and 31 days, and again.
fn first_day(month: u64) -> u64 {
    let (year, month) = (month / 12, month % 12);
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{MAX_EXACT, SECOND};

    /// The lengths of the months of a year, as one learns them.
    fn lengths(year: u64) -> [u64; 12] {
        let is_leap =
            year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    }

    /// Memory that holds any words may hold any time.
    #[test]
    fn the_last_month_ends_with_time() {
        assert_eq!(Window::month(u64::MAX).ends, u64::MAX);
        assert!((1..31 * DAY).contains(&length_of_month(u64::MAX)));
    }

    /// The months of all that a script can count, which is until the year 2255.
    #[test]
    fn months_are_those_of_the_calendar() {
        let (mut begins, mut number) = (0, Window::month(0).number);
        for days in (1970..2255).flat_map(lengths) {
            let ends = begins + days * DAY;
            for day in 0..days {
                let now = begins + day * DAY;
                for now in [now, now + 1, now + DAY / 2, now + DAY - 1] {
                    assert_eq!(Window::month(now), Window { number, ends }, "{now}");
                    assert_eq!(length_of_month(now), days * DAY, "{now}");
                }
            }
            (begins, number) = (ends, number + 1);
        }
        assert!(begins < MAX_EXACT && MAX_EXACT < begins + 366 * DAY);
    }

    #[test]
    fn a_month_is_as_long_as_it_is() {
        let rate = Rate::monthly(7).unwrap();
        // In January and February of 1970.
        assert_eq!([0, 31 * DAY].map(|now| rate.period_at(now)), [31 * DAY, 28 * DAY]);
        assert_eq!(Rate::new(7, WEEK).unwrap().period_at(0), WEEK);
    }

    #[test]
    fn months_end_with_their_last_day() {
        let ends = |seconds: u64| Window::month(seconds * SECOND).ends / SECOND;
        // 29 February 2024, 28 February 2025, 31 December 2025, 28 February 2100.
        assert_eq!(ends(1_709_164_800), 1_709_251_200);
        assert_eq!(ends(1_740_787_199), 1_740_787_200);
        assert_eq!(ends(1_767_225_599), 1_767_225_600);
        assert_eq!(ends(4_107_456_000), 4_107_542_400);
    }

    #[test]
    fn weeks_begin_on_mondays() {
        // 20 July 2026, a Monday.
        let monday = 1_784_505_600 * SECOND;
        for weeks in [1, 2, 3, 52] {
            let window = Window::aligned(monday, weeks * WEEK);
            assert_eq!((window.ends - monday) % WEEK, 0, "{weeks}");
        }
        let ends = |now| Window::aligned(now, WEEK).ends;
        assert_eq!(ends(monday - 1), monday);
        assert_eq!(ends(monday), monday + WEEK);
        assert_eq!(ends(monday + WEEK - 1), monday + WEEK);
        assert_eq!(
            Window::aligned(monday, WEEK).number,
            Window::aligned(monday - 1, WEEK).number + 1
        );
    }

    /// Whatever is no number of weeks.
    #[test]
    fn other_windows_are_aligned_to_the_epoch() {
        for period in [1, 7, SECOND, 3 * SECOND, DAY, 6 * DAY, 8 * DAY, WEEK + SECOND] {
            let now = 1_784_505_600 * SECOND + 7;
            let window = Window { number: now / period, ends: (now / period + 1) * period };
            assert_eq!(Window::aligned(now, period), window);
        }
    }
}
