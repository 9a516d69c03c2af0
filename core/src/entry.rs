//! Entries about clients in memory that processes share, written and read without a lock.
//!
//! They lie in buckets of a few. A digest belongs to one bucket, and may be in any entry of it. The first two words of an
//! entry are the digest combined with all others: an entry that is read while it is written has no valid digest. (Hyatt and Mann, "A
//! lock-less transposition table implementation", 2002.)

use std::sync::atomic::{AtomicU64, Ordering};

use crate::key;
use crate::word::split;

/// Entries in a bucket. With one entry each, clients of the same bucket would evict each other.
pub(crate) const WAYS: usize = 4;

/// The words of an entry behind the digest.
pub(crate) const WORDS: usize = 5;

/// Entries side by side.
pub type ClientBucket = [ClientEntry; WAYS];

/// A place for a client, as large as a line of the processor's cache. All zeroes is an empty one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ClientEntry(pub(crate) [AtomicU64; 2 + WORDS]);

pub(crate) fn bucket(buckets: &[ClientBucket], client: u128) -> Option<&ClientBucket> {
    buckets.get(key::place(client, buckets.len()))
}

/// The entry of a client in its bucket, and the words in it.
pub(crate) fn find(bucket: &ClientBucket, client: u128) -> Option<(&ClientEntry, [u64; WORDS])> {
    bucket.iter().find_map(|entry| Some((entry, entry.read(client)?)))
}

impl ClientEntry {
    /// The words, whatever the digest is.
    pub(crate) fn words(&self) -> [u64; WORDS] {
        let [_, _, words @ ..] = &self.0;
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    /// The words of a client, if the entry is its.
    pub(crate) fn read(&self, client: u128) -> Option<[u64; WORDS]> {
        let [low, high, words @ ..] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        (words.iter().any(|word| *word != 0) && combined(client, words) == [low, high])
            .then_some(words)
    }

    /// Writes the words of a client; zeroes empty the entry.
    pub(crate) fn write(&self, client: u128, words: [u64; WORDS]) {
        let digest = if words == [0; WORDS] { [0; 2] } else { combined(client, words) };
        let all = digest.into_iter().chain(words);
        self.0.iter().zip(all).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

/// The digest of a client, combined with all words of its entry.
fn combined(client: u128, [first, second, third, fourth, fifth]: [u64; WORDS]) -> [u64; 2] {
    let low = first ^ second.rotate_left(21) ^ third.rotate_left(42) ^ fourth;
    let high = first.rotate_left(32) ^ second ^ third.rotate_left(11) ^ fourth.rotate_left(50);
    let [client_low, client_high] = split(client);
    [client_low ^ low ^ fifth.rotate_left(9), client_high ^ high ^ fifth.rotate_left(27)]
}
