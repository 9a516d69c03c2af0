//! Times as NGINX reads them, in `ngx_parse_time`.

/// The longest time, in ms.
const MAX: u64 = i64::MAX as u64;

/// A unit that may follow a number.
struct Unit {
    name: &'static str,
    /// In ms.
    length: u64,
    /// The unit cannot follow one of this rank, or of a higher one.
    bound: u8,
    /// Longer units have lower ranks.
    rank: u8,
}

const SECOND: u64 = 1_000;

/// The units of times in ms, where years and months are none. A space makes a number one of seconds.
const UNITS: [Unit; 7] = [
    Unit { name: "w", length: 7 * 24 * 3_600 * SECOND, bound: 1, rank: 1 },
    Unit { name: "d", length: 24 * 3_600 * SECOND, bound: 2, rank: 2 },
    Unit { name: "h", length: 3_600 * SECOND, bound: 3, rank: 3 },
    Unit { name: "ms", length: 1, bound: 6, rank: 6 },
    Unit { name: "m", length: 60 * SECOND, bound: 4, rank: 4 },
    Unit { name: "s", length: SECOND, bound: 5, rank: 5 },
    Unit { name: " ", length: SECOND, bound: 5, rank: 7 },
];

/// Reads a time in ms, such as `20ms`, `90` (seconds) or `1h 30m`: numbers with units from the longest to the
/// shortest. `None` if it is none, or too long.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    if !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (mut rest, mut total, mut rank) = (text, 0, 0);
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        // A unit without a number is one of 0.
        let number = if number.is_empty() { 0 } else { number.parse().ok()? };
        if after.is_empty() {
            return sum(total, number, SECOND);
        }
        let unit = UNITS.iter().find(|unit| after.starts_with(unit.name))?;
        if rank >= unit.bound {
            return None;
        }
        total = sum(total, number, unit.length)?;
        rank = unit.rank;
        rest = after.strip_prefix(unit.name)?.trim_start_matches(' ');
    }
}

fn sum(total: u64, number: u64, length: u64) -> Option<u64> {
    let time = number.checked_mul(length).filter(|time| *time <= MAX)?;
    total.checked_add(time).filter(|total| *total <= MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        for (text, time) in [
            ("0", 0),
            ("20", 20_000),
            ("20ms", 20),
            ("20s", 20_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1w", 604_800_000),
            ("007s", 7_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text}");
        }
    }

    #[test]
    fn several_numbers_from_the_longest_unit_to_the_shortest() {
        for (text, time) in [
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1h   30m", 5_400_000),
            ("1d 12h", 129_600_000),
            ("1w1d1h1m1s1ms", 694_861_001),
            // A last number without a unit is one of seconds, whatever was before.
            ("1h30", 3_630_000),
            ("1ms2", 2_001),
            ("1s2", 3_000),
            ("5 6", 11_000),
            ("90 ", 90_000),
            (" 5", 5_000),
            ("5s ", 5_000),
            // A unit without a number counts nothing.
            ("m5", 5_000),
            ("1hm", 3_600_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text:?}");
        }
        for text in ["30m1h", "1s1m", "1ms1s", "1m1m", "1s 1s", "1ms1ms", "1 s", "5 6 7", "1 2m"] {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_time() {
        for text in
            ["", " ", "s", "ms", "-1", "-1s", "+1s", "1.5s", "0.5s", "20us", "soon", "1H", "1S"]
        {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
        // Years and months are not for times in ms.
        for text in ["1y", "1M", "$arg_a", "10r/s", "1\u{e4}", "1s\t2s"] {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn times_that_are_too_long() {
        for (text, time) in [
            ("9223372036854775807ms", i64::MAX as u64),
            ("9223372036854775s807ms", i64::MAX as u64),
            ("9223372036854775", 9_223_372_036_854_775_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text}");
        }
        for text in [
            "9223372036854775808ms",
            "9223372036854775s808ms",
            "9223372036854776",
            "9223372036854776s",
            "15250284453w",
            "18446744073709551616ms",
            "99999999999999999999s",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }
}
