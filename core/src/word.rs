//! Words of 64 bits, of which the memory that processes share consists.

/// Two numbers as one word.
pub(crate) fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << u32::BITS
}

/// The two numbers of a word.
pub(crate) fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> u32::BITS) as u32)
}

/// A digest as two words, the lower one first.
pub(crate) fn split(digest: u128) -> [u64; 2] {
    [digest as u64, (digest >> u64::BITS) as u64]
}

/// The digest of two words.
pub(crate) fn join([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << u64::BITS
}
