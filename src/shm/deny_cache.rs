//! The deny cache: until when clients cannot pass, so that they can be rejected without Redis.
//!
//! A lock-free table of buckets of a few entries. A digest belongs to one bucket, and may be in any
//! entry of it; if the bucket is full, the entry that expires first is replaced. An entry is a few
//! words, written and read without a lock, and its first two are the digest combined with all others:
//! if an entry is read while it is written, the digest does not match. (Hyatt and Mann, "A lock-less
//! transposition table implementation", 2002.)

use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::decision::Verdict;
use rate_limit_core::deny_cache::Denial;
use rate_limit_core::key;
use rate_limit_core::request::{DenyCache, Evaluated};

use super::Shared;
use crate::conf::LimitConf;

/// Entries in a bucket. With one entry each, clients of the same bucket would evict each other, and
/// their requests would go to Redis every time: a few of a hundred clients in a table for
/// thousands.
const WAYS: usize = 4;

/// Entries side by side.
pub(super) type Bucket = [Entry; WAYS];

/// An entry, as large as a line of the processor's cache.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Entry([AtomicU64; 6]);

impl DenyCache<LimitConf> for Shared {
    fn denied(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> Option<Verdict> {
        if now >= self.header.denied_until.load(Ordering::Relaxed) {
            return None;
        }
        let (quota, client) = (limit.check.quota.fingerprint(), limit.client());
        let mut denials = self.bucket(client)?.iter().filter_map(|entry| entry.read(client));
        denials.find_map(|denial| denial.verdict(now).filter(|_| denial.quota == quota))
    }

    fn deny(&self, limit: &Evaluated<'_, LimitConf>, denial: Denial) {
        let client = limit.client();
        if let Some(entry) = self.bucket(client).and_then(|bucket| place(bucket, client)) {
            entry.write(client, denial);
            self.header.denied_until.fetch_max(denial.until, Ordering::Relaxed);
        }
    }

    fn end_denials_of_others(&self, limit: &Evaluated<'_, LimitConf>, now: u64) {
        if now >= self.header.denied_until.load(Ordering::Relaxed) {
            return;
        }
        let (quota, client) = (limit.check.quota.fingerprint(), limit.client());
        let other = |entry: &&Entry| entry.read(client).is_some_and(|it| it.quota != quota);
        self.bucket(client).into_iter().flatten().filter(other).for_each(Entry::clear);
    }
}

impl Shared {
    fn bucket(&self, client: u128) -> Option<&'static Bucket> {
        self.deny_cache.get(key::place(client, self.deny_cache.len()))
    }
}

/// The entry for a client: its own if there is one, else the one that expires first, which is an
/// expired one if there is any.
fn place(bucket: &Bucket, client: u128) -> Option<&Entry> {
    let own = bucket.iter().find(|entry| entry.read(client).is_some());
    own.or_else(|| bucket.iter().min_by_key(|entry| entry.until()))
}

impl Entry {
    /// When the entry expires, whatever its digest is.
    fn until(&self) -> u64 {
        let [_, _, until, ..] = &self.0;
        until.load(Ordering::Relaxed)
    }

    fn read(&self, client: u128) -> Option<Denial> {
        let [low, high, until, quota, passes, whole] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let denial = Denial { quota, until, passes, whole };
        (combined(client, denial) == [low, high]).then_some(denial)
    }

    fn write(&self, client: u128, denial: Denial) {
        let [low, high] = combined(client, denial);
        let Denial { quota, until, passes, whole } = denial;
        self.set([low, high, until, quota, passes, whole]);
    }

    fn clear(&self) {
        self.set([0; 6]);
    }

    fn set(&self, words: [u64; 6]) {
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

/// The digest of a client, combined with all words of a denial.
fn combined(client: u128, denial: Denial) -> [u64; 2] {
    let Denial { quota, until, passes, whole } = denial;
    [
        client as u64 ^ until ^ passes.rotate_left(21) ^ whole.rotate_left(42) ^ quota,
        (client >> 64) as u64 ^ until.rotate_left(32) ^ passes ^ whole.rotate_left(11) ^ quota,
    ]
}
