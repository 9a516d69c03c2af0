//! The deny cache: until when clients cannot pass, so that they can be rejected without Redis.
//!
//! A lock-free table of buckets of a few entries. A digest belongs to one bucket, and may be in any
//! entry of it; if the bucket is full, the entry that expires first is replaced. An entry is a few
//! words, written and read without a lock, and its first two are the digest combined with all others:
//! if an entry is read while it is written, the digest does not match. (Hyatt and Mann, "A lock-less
//! transposition table implementation", 2002.)

use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::key;

use super::Shared;

/// The longest that an entry is used, in µs, even if the client cannot pass for longer: a change in
/// Redis, such as a deleted key, takes effect within this time.
const LONGEST: u64 = 1_000_000;

/// Entries in a bucket. With one entry each, clients of the same bucket would evict each other, and
/// their requests would go to Redis every time: a few of a hundred clients in a table for
/// thousands.
const WAYS: usize = 4;

/// Entries side by side.
pub(super) type Bucket = [Entry; WAYS];

/// An entry, as large as a line of the processor's cache.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Entry([AtomicU64; 5]);

/// A denial, in µs of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Denial {
    /// When the entry expires.
    until: u64,
    /// When the client can pass.
    passes: u64,
    /// When the quota is whole.
    whole: u64,
}

impl Shared {
    /// The verdict of a request of this digest, if the cache holds that it cannot pass at `now`.
    pub(crate) fn denied(&self, digest: u128, now: u64) -> Option<Verdict> {
        if now >= self.header.denied_until.load(Ordering::Relaxed) {
            return None;
        }
        let mut entries = self.bucket(digest)?.iter().filter_map(|entry| entry.read(digest));
        let Denial { passes, whole, .. } = entries.find(|denial| now < denial.until)?;
        Some(Verdict {
            allowed: false,
            remaining: 0,
            reset: whole.saturating_sub(now),
            retry: Retry::After(passes.saturating_sub(now).max(1)),
        })
    }

    /// Caches that Redis has rejected a request of this digest in a reply received at `now`. Its times
    /// are counted from then: Redis has counted from no later than that.
    pub(crate) fn deny(&self, digest: u128, verdict: &Verdict, now: u64) {
        let Retry::After(retry) = verdict.retry else { return };
        let passes = now.saturating_add(retry);
        let until = passes.min(now.saturating_add(LONGEST));
        let whole = now.saturating_add(verdict.reset);
        if let Some(entry) = self.bucket(digest).and_then(|bucket| place(bucket, digest)) {
            entry.write(digest, Denial { until, passes, whole });
            self.header.denied_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    fn bucket(&self, digest: u128) -> Option<&'static Bucket> {
        self.deny_cache.get(key::place(digest, self.deny_cache.len()))
    }
}

/// The entry for a digest: its own if there is one, else the one that expires first, which is an
/// expired one if there is any.
fn place(bucket: &Bucket, digest: u128) -> Option<&Entry> {
    let own = bucket.iter().find(|entry| entry.read(digest).is_some());
    own.or_else(|| bucket.iter().min_by_key(|entry| entry.until()))
}

impl Entry {
    /// When the entry expires, whatever its digest is.
    fn until(&self) -> u64 {
        let [_, _, until, _, _] = &self.0;
        until.load(Ordering::Relaxed)
    }

    fn read(&self, digest: u128) -> Option<Denial> {
        let [low, high, until, passes, whole] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let denial = Denial { until, passes, whole };
        (denial.combined(digest) == [low, high]).then_some(denial)
    }

    fn write(&self, digest: u128, denial: Denial) {
        let [low, high] = denial.combined(digest);
        let words = [low, high, denial.until, denial.passes, denial.whole];
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

impl Denial {
    /// The digest, combined with all words of the denial.
    fn combined(self, digest: u128) -> [u64; 2] {
        let Self { until, passes, whole } = self;
        [
            digest as u64 ^ until ^ passes.rotate_left(21) ^ whole.rotate_left(42),
            (digest >> 64) as u64 ^ until.rotate_left(32) ^ passes ^ whole.rotate_left(11),
        ]
    }
}
