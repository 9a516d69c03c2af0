//! The changes to clients that a machine knows of: their overrides, and until when they are blocked. They lie in memory that
//! the workers share.
//!
//! Redis decides by what it has stored. The table is for what a machine decides by itself: leases, the deny cache and local
//! decisions. It learns of an override or a block from a reply. If there are too many of them some are forgotten, blocks
//! before overrides. They are [entries](crate::entry) without a lock.

use crate::entry::{self, ClientBucket, ClientEntry, WAYS, WORDS};
use crate::overrides::Override;

/// The changes to a client that a machine knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedClient {
    /// The override, if it has one. Its end is by the monotonic clock.
    pub own: Option<Override>,
    /// Until when it is blocked, in µs of the monotonic clock; a time that is over if it is not.
    pub blocked_until: u64,
}

/// A table of clients that were changed. They are given by their digests.
#[derive(Clone, Copy, Debug)]
pub struct ManagedTable<'a>(&'a [ClientBucket]);

impl<'a> ManagedTable<'a> {
    /// The table in these buckets.
    pub fn new(buckets: &'a [ClientBucket]) -> Self {
        Self(buckets)
    }

    /// The changes to a client that are known.
    pub fn get(&self, client: u128) -> ManagedClient {
        let known = entry::bucket(self.0, client).and_then(|bucket| entry::find(bucket, client));
        known.map(|(_, words)| ManagedClient::of(words)).unwrap_or_default()
    }

    /// Takes note at `now` of the override of a client, with its end by the monotonic clock as well, or that it has none.
    pub fn set_override(&self, client: u128, own: Option<Override>, now: u64) {
        self.change(client, |known| {
            // Nothing is written for each reply: they take different times.
            let living = known.own.filter(|own| !own.is_over(now));
            let is_known = living.zip(own).is_some_and(|(known, own)| known.is_like(&own));
            if is_known { known } else { ManagedClient { own, ..known } }
        });
    }

    /// Takes note of the time until which a client is blocked, in µs of the monotonic clock; 0: it is not.
    pub fn set_block(&self, client: u128, blocked_until: u64) {
        self.change(client, |known| ManagedClient { blocked_until, ..known });
    }

    fn change(&self, client: u128, change: impl FnOnce(ManagedClient) -> ManagedClient) {
        let Some(bucket) = entry::bucket(self.0, client) else { return };
        let found = entry::find(bucket, client);
        let before = found.map(|(_, words)| ManagedClient::of(words)).unwrap_or_default();
        let after = change(before);
        if after == before {
            return;
        }
        let entry = found.map(|(entry, _)| entry);
        if let Some(entry) = entry.or_else(|| place(bucket, client, after.own.is_some())) {
            entry.write(client, after.words());
        }
    }
}

/// The entry for another client: an empty one, else one without an override, else any, as the digest falls, for a client
/// that has an override itself.
fn place(bucket: &ClientBucket, client: u128, has_override: bool) -> Option<&ClientEntry> {
    let first = (client >> u64::BITS) as usize % WAYS;
    let from_first = || bucket.iter().cycle().skip(first).take(WAYS);
    let empty = from_first().find(|entry| entry.words() == [0; WORDS]);
    let other =
        empty.or_else(|| from_first().find(|entry| ManagedClient::of(entry.words()).own.is_none()));
    other.or_else(|| from_first().next().filter(|_| has_override))
}

impl ManagedClient {
    fn of([limit, ends, n, period, blocked_until]: [u64; WORDS]) -> Self {
        let own = (limit > 0).then(|| Override::from_parts(limit, ends, [n, period])).flatten();
        Self { own, blocked_until }
    }

    fn words(self) -> [u64; WORDS] {
        let [limit, ends, n, period] = self.own.map_or([0; 4], Override::to_parts);
        [limit, ends, n, period, self.blocked_until]
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use std::sync::atomic::Ordering;

    use super::*;

    fn own(limit: u64) -> Override {
        Override { rate: "3r/s".parse().unwrap(), limit, ends: NonZeroU64::new(limit % 2) }
    }

    #[test]
    fn what_was_noted_last_counts() {
        let buckets: [ClientBucket; 2] = Default::default();
        let table = ManagedTable::new(&buckets);
        assert_eq!(table.get(7), ManagedClient::default());
        table.set_override(7, Some(own(1)), 0);
        assert_eq!((table.get(7).own, table.get(8).own), (Some(own(1)), None));
        table.set_override(7, Some(own(2)), 0);
        table.set_block(7, 99);
        assert_eq!(table.get(7), ManagedClient { own: Some(own(2)), blocked_until: 99 });
        table.set_override(7, None, 0);
        assert_eq!(table.get(7), ManagedClient { own: None, blocked_until: 99 });
        table.set_block(7, 0);
        assert_eq!(table.get(7), ManagedClient::default());
        assert!(buckets.iter().flatten().all(|entry| entry.words() == [0; WORDS]));
    }

    /// The end of an override that has ended is that of another one.
    #[test]
    fn an_override_is_renewed_a_moment_before_its_end() {
        let buckets: [ClientBucket; 1] = Default::default();
        let table = ManagedTable::new(&buckets);
        let until = |ends| Some(Override { ends: NonZeroU64::new(ends), ..own(5) });
        for (now, ends, known) in [(0, 3_000, 3_000), (2_999, 3_900, 3_000), (3_000, 3_900, 3_900)]
        {
            table.set_override(7, until(ends), now);
            assert_eq!(table.get(7).own, until(known), "{now}");
        }
    }

    #[test]
    fn others_are_forgotten_where_there_are_too_many() {
        let buckets: [ClientBucket; 1] = Default::default();
        let table = ManagedTable::new(&buckets);
        for client in 0..100 {
            table.set_override(client << u64::BITS, Some(own(5)), 0);
            assert_eq!(table.get(client << u64::BITS).own, Some(own(5)));
        }
        let known = (0..100_u128).filter(|client| table.get(client << u64::BITS).own.is_some());
        assert_eq!(known.count(), WAYS);
    }

    #[test]
    fn blocks_are_forgotten_before_overrides() {
        let buckets: [ClientBucket; 1] = Default::default();
        let table = ManagedTable::new(&buckets);
        let client = |number: u128| number << u64::BITS;
        for number in 0..3 {
            table.set_override(client(number), Some(own(5)), 0);
        }
        for number in 3..20 {
            table.set_block(client(number), 99);
            assert_eq!(table.get(client(number)).blocked_until, 99);
        }
        table.set_override(client(20), Some(own(5)), 0);
        table.set_block(client(21), 99);
        let known = (0..22).filter(|number| table.get(client(*number)) != ManagedClient::default());
        assert_eq!(known.collect::<Vec<_>>(), [0, 1, 2, 20]);
    }

    #[test]
    fn torn_entries_are_none() {
        let buckets: [ClientBucket; 1] = Default::default();
        let table = ManagedTable::new(&buckets);
        table.set_override(7, Some(own(5)), 0);
        table.set_block(7, 99);
        for word in 0..2 + WORDS {
            let entry = buckets[0]
                .iter()
                .find(|entry| ManagedClient::of(entry.words()).own.is_some())
                .unwrap();
            entry.0[word].fetch_add(1, Ordering::Relaxed);
            assert_eq!(table.get(7), ManagedClient::default(), "{word}");
            entry.0[word].fetch_sub(1, Ordering::Relaxed);
        }
        assert_eq!(table.get(7).own, Some(own(5)));
    }
}
