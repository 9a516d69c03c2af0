//! States as they are stored in Redis: decimal numbers with a space between them.
//!
//! What is found there may be anybody's. It is read just as the patterns of the scripts do, and a
//! number of more digits than a word holds counts as the largest one: like the scripts' doubles it
//! is then above every bound that it is compared with.

use super::moment::Moment;

/// What is not read yet of a text.
pub(super) struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    pub(super) fn of(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// `%d+`.
    pub(super) fn number(&mut self) -> Option<u64> {
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at_checked(length).filter(|_| length > 0)?;
        self.rest = rest;
        let append = |number: u64, digit: &u8| {
            number.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
        };
        Some(digits.iter().fold(0, append))
    }

    /// One space.
    pub(super) fn space(&mut self) -> Option<()> {
        self.rest = self.rest.strip_prefix(b" ")?;
        Some(())
    }

    /// `%d+ ?%d*`: whole µs, and the part of one if there is any.
    pub(super) fn moment(&mut self) -> Option<Moment> {
        let micros = self.number()?;
        // Without a space there is no digit to come.
        let _ = self.space();
        Some(Moment { micros, part: self.number().unwrap_or(0) })
    }

    /// Whether all is read.
    pub(super) fn end(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, State};

    fn bucket(tokens: u64, micros: u64, part: u64) -> Option<State> {
        Some(State::Bucket(tokens, Moment { micros, part }))
    }

    fn arrival(micros: u64, part: u64) -> Option<State> {
        Some(State::Arrival(Moment { micros, part }))
    }

    #[test]
    fn states() {
        use Algorithm::{
            FixedWindow, Gcra, IntervalBucket, SlidingLog, SlidingWindow, TokenBucket,
        };
        for (algorithm, text, state) in [
            (TokenBucket, "99 1763683200000000", bucket(99, 1_763_683_200_000_000, 0)),
            (TokenBucket, "0 5 2", bucket(0, 5, 2)),
            (TokenBucket, "0 5 ", bucket(0, 5, 0)),
            (TokenBucket, "0 5 2 ", None),
            (TokenBucket, "0 5  2", None),
            (TokenBucket, "5", None),
            (IntervalBucket, "7 8", bucket(7, 8, 0)),
            (IntervalBucket, "7 8 9 x", bucket(7, 8, 0)),
            (IntervalBucket, "7 x", None),
            (Gcra, "123", arrival(123, 0)),
            (Gcra, "123 4", arrival(123, 4)),
            (Gcra, "123 ", arrival(123, 0)),
            (Gcra, "123 4 5", None),
            (Gcra, "0x12", None),
            (SlidingWindow, "1 2 3", Some(State::Window(1, 2, 3))),
            (SlidingWindow, "1 2 ", None),
            (SlidingWindow, "1 2 3\n", None),
            (FixedWindow, "1 2", Some(State::Window(1, 2, 0))),
            (FixedWindow, "1 2\n", Some(State::Window(1, 2, 0))),
            (FixedWindow, "-1 2", None),
            (SlidingLog, "1 2 3", None),
        ] {
            assert_eq!(algorithm.read(text.as_bytes()), state, "{algorithm:?} {text:?}");
        }
    }

    #[test]
    fn what_is_too_large_is_as_large_as_can_be() {
        for digits in [20, 30, 62] {
            let text = "9".repeat(digits) + " 1";
            assert_eq!(Algorithm::Gcra.read(text.as_bytes()), arrival(u64::MAX, 1));
            assert_eq!(Algorithm::Gcra.read(("0".repeat(62) + &text).as_bytes()), None);
        }
        assert_eq!(Algorithm::Gcra.read(b"00000000000000000000000000012"), arrival(12, 0));
    }
}
