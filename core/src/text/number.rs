//! Numbers as text, without the cost of `std::fmt`.

use crate::rate::SECOND;

/// `micros` as seconds, exactly.
pub(crate) fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / SECOND, micros % SECOND);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Appends a number in decimal.
#[inline]
pub fn push(out: &mut Vec<u8>, number: u64) {
    // Most numbers are short.
    match number {
        0..10 => out.push(b'0' + number as u8),
        10..100 => out.extend_from_slice(&[b'0' + (number / 10) as u8, b'0' + (number % 10) as u8]),
        _ => push_long(out, number),
    }
}

#[inline(never)]
fn push_long(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// How many digits the longest number has.
const MAX_DIGITS: usize = 20;

/// A number and its digits, for a number that often is the same as the last time.
#[derive(Clone, Copy, Debug)]
pub struct Digits {
    number: u64,
    length: usize,
    digits: [u8; MAX_DIGITS],
}

impl Digits {
    /// Zero.
    pub(super) const ZERO: Self = Self { number: 0, length: 1, digits: [b'0'; MAX_DIGITS] };

    /// The digits of this number.
    #[inline]
    pub fn of(&mut self, number: u64) -> &Self {
        if self.number != number {
            self.set(number);
        }
        self
    }

    /// The text of a number below ten, such as what remains after a rejection: it is there already, and needs no copy.
    #[inline]
    pub fn single(&self) -> Option<&'static [u8]> {
        let digit = usize::try_from(self.number).ok()?;
        b"0123456789".get(digit..=digit)
    }

    /// The text of the number, and behind it anything: to copy a fixed length takes a few instructions, any other length a call.
    pub fn padded(&self) -> &[u8; MAX_DIGITS] {
        &self.digits
    }

    /// How long the text is.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The text of the number.
    pub fn text(&self) -> &[u8] {
        self.digits.get(..self.length).unwrap_or_default()
    }

    #[inline(never)]
    fn set(&mut self, number: u64) {
        let mut buffer = itoa::Buffer::new();
        let text = buffer.format(number).as_bytes();
        (self.number, self.length) = (number, text.len());
        if let Some(places) = self.digits.get_mut(..text.len()) {
            places.copy_from_slice(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Digits, seconds};

    fn text(number: u64) -> String {
        let mut out = Vec::new();
        super::push(&mut out, number);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn times_are_exact() {
        let written = [0, 1, 250_000, 10_000_000, u64::MAX].map(seconds);
        assert_eq!(written, ["0", "0.000001", "0.25", "10", "18446744073709.551615"]);
    }

    #[test]
    fn the_edges_are_written() {
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(text(number), number.to_string());
        }
    }

    proptest! {
        #[test]
        fn numbers_are_written_as_they_are_formatted(number: u64) {
            prop_assert_eq!(text(number), number.to_string());
        }

        #[test]
        fn digits_are_those_of_the_number(numbers in proptest::collection::vec(0..3_u64, 0..20), most: u64) {
            let (mut digits, mut out, mut expected) = (Digits::ZERO, Vec::new(), String::new());
            for number in numbers.into_iter().flat_map(|number| [number, number, most]) {
                let digits = digits.of(number);
                prop_assert!(digits.single().is_none_or(|single| single == digits.text()));
                prop_assert_eq!(digits.single().is_some(), number < 10);
                out.extend_from_slice(digits.text());
                expected += &number.to_string();
            }
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
