//! An input, read piece by piece.

use rate_limit_core::rate::{MAX_EXACT, MAX_TIME, SATURATED, SECOND};

/// Numbers at which something changes, or may overflow.
const EDGES: [u64; 12] = [
    MAX_EXACT - 1,
    MAX_EXACT,
    MAX_EXACT + 1,
    SATURATED,
    MAX_TIME,
    SECOND,
    1_763_683_200_123_456,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];

/// The rest of an input. Behind its end are zeros.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// A number of up to eight bytes, or one of the [`EDGES`]; the first byte says which.
    pub fn number(&mut self) -> u64 {
        let kind = self.below(9 + EDGES.len());
        match kind.checked_sub(9) {
            Some(edge) => EDGES[edge],
            None => (0..kind).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    /// A digest: two numbers of eight bytes, so that the places of few can be chosen.
    pub fn digest(&mut self) -> u128 {
        u128::from(self.byte()) << 56 | u128::from(self.byte()) << 120 | 1
    }

    /// Bytes, of which the first one says how many.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }

    /// The text of some bytes, whatever they are.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.take(self.0.len())
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
