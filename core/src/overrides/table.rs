//! The overrides that a machine knows of, in memory that its workers share.
//!
//! Redis decides by what it has stored. The table is for what a machine decides by itself: leases, the deny cache and local
//! decisions. It learns of an override from a reply, and forgets those of other clients if there are too many. As in the
//! [table of denials](crate::deny_cache::table) nothing is locked: the first two words of an entry are the digest
//! combined with all others, so that an entry which is read while it is written is none.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Override;
use crate::key;

/// Entries in a bucket.
const WAYS: usize = 4;

/// Entries side by side.
pub type OverrideBucket = [OverrideEntry; WAYS];

/// A place for an override, as large as a line of the processor's cache. All zeroes is an empty one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct OverrideEntry([AtomicU64; 6]);

/// A table of overrides. Clients are given by their digests.
#[derive(Clone, Copy, Debug)]
pub struct OverrideTable<'a>(&'a [OverrideBucket]);

impl<'a> OverrideTable<'a> {
    /// The table in these buckets.
    pub fn new(buckets: &'a [OverrideBucket]) -> Self {
        Self(buckets)
    }

    /// The override of a client, as far as it is known.
    pub fn get(&self, client: u128) -> Option<Override> {
        self.bucket(client)?.iter().find_map(|entry| entry.read(client))
    }

    /// Takes note of the override of a client, or that it has none.
    pub fn set(&self, client: u128, own: Option<Override>) {
        let Some(bucket) = self.bucket(client) else { return };
        let known = bucket.iter().find(|entry| entry.read(client).is_some());
        match (known, own) {
            (None, None) => {}
            (Some(entry), None) => entry.set([0; 6]),
            (Some(entry), Some(own)) => entry.write(client, own),
            (None, Some(own)) => place(bucket, client).write(client, own),
        }
    }

    fn bucket(&self, client: u128) -> Option<&'a OverrideBucket> {
        self.0.get(key::place(client, self.0.len()))
    }
}

/// The entry for another client: an empty one, or else any, as the digest falls.
fn place(bucket: &OverrideBucket, client: u128) -> &OverrideEntry {
    let [first, second, third, fourth] = bucket;
    let empty = bucket.iter().find(|entry| entry.is_empty());
    empty.unwrap_or(match (client >> u64::BITS) % WAYS as u128 {
        0 => first,
        1 => second,
        2 => third,
        _ => fourth,
    })
}

impl OverrideEntry {
    fn is_empty(&self) -> bool {
        let [_, _, limit, ..] = &self.0;
        limit.load(Ordering::Relaxed) == 0
    }

    fn read(&self, client: u128) -> Option<Override> {
        let [low, high, limit, ends, n, period] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let is_its_own = combined(client, [limit, ends, n, period]) == [low, high];
        let own = || Override::from_parts(limit, ends, [n, period]);
        if is_its_own && limit > 0 { own() } else { None }
    }

    fn write(&self, client: u128, own: Override) {
        let words @ [limit, ends, n, period] = own.to_parts();
        let [low, high] = combined(client, words);
        self.set([low, high, limit, ends, n, period]);
    }

    fn set(&self, words: [u64; 6]) {
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

/// The digest of a client, combined with all words of its override.
fn combined(client: u128, [limit, ends, n, period]: [u64; 4]) -> [u64; 2] {
    [
        client as u64 ^ limit ^ ends.rotate_left(21) ^ n.rotate_left(42) ^ period,
        (client >> 64) as u64
            ^ limit.rotate_left(32)
            ^ ends
            ^ n.rotate_left(11)
            ^ period.rotate_left(50),
    ]
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn own(limit: u64) -> Override {
        Override { rate: "3r/s".parse().unwrap(), limit, ends: NonZeroU64::new(limit % 2) }
    }

    #[test]
    fn what_was_noted_last_counts() {
        let buckets: [OverrideBucket; 2] = Default::default();
        let table = OverrideTable::new(&buckets);
        assert_eq!(table.get(7), None);
        table.set(7, Some(own(1)));
        assert_eq!((table.get(7), table.get(8)), (Some(own(1)), None));
        table.set(7, Some(own(2)));
        assert_eq!(table.get(7), Some(own(2)));
        table.set(7, None);
        assert_eq!(table.get(7), None);
    }

    #[test]
    fn others_are_forgotten_where_there_are_too_many() {
        let buckets: [OverrideBucket; 1] = Default::default();
        let table = OverrideTable::new(&buckets);
        for client in 0..100 {
            table.set(client << u64::BITS, Some(own(5)));
            assert_eq!(table.get(client << u64::BITS), Some(own(5)));
        }
        let known = (0..100_u128).filter(|client| table.get(client << u64::BITS).is_some());
        assert_eq!(known.count(), WAYS);
    }

    #[test]
    fn torn_entries_are_none() {
        let buckets: [OverrideBucket; 1] = Default::default();
        let table = OverrideTable::new(&buckets);
        table.set(7, Some(own(5)));
        for word in 0..6 {
            let [entry, ..] = &buckets[0];
            entry.0[word].fetch_add(1, Ordering::Relaxed);
            assert_eq!(table.get(7), None, "{word}");
            entry.0[word].fetch_sub(1, Ordering::Relaxed);
        }
        assert_eq!(table.get(7), Some(own(5)));
    }
}
