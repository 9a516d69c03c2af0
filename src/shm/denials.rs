//! Until when clients cannot pass, so that Redis need not be asked again.
//!
//! A lock-free table of buckets of a few entries. A client has one bucket, in any entry of which it
//! may be; where all are taken the one goes that ends first. An entry is a few words, written and
//! read without a lock, and its first two are the digest combined with all others: whoever reads an
//! entry that is being written gets a digest that fits nothing. (Hyatt and Mann, "A lock-less
//! transposition table implementation", 2002.)

use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::decision::{Retry, Verdict};

use super::Shared;

/// For how long Redis is not asked about a client, in µs, even if it cannot pass for longer. So
/// long it may take until a change in Redis, such as a deleted key, is noticed.
const LONGEST: u64 = 1_000_000;

/// How many clients find room in a bucket. Clients that had one place each would push one another
/// out of it in turns, and so ask Redis again and again: a few of a hundred where the table has room
/// for thousands.
const WAYS: usize = 4;

/// Entries side by side.
pub(super) type Bucket = [Denial; WAYS];

/// An entry: a line of the processor's cache.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Denial([AtomicU64; 5]);

/// What an entry says, in µs of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// Redis is not asked before.
    until: u64,
    /// When the client can pass.
    passes: u64,
    /// When its quota is whole.
    whole: u64,
}

impl Shared {
    /// What Redis would say, if it is known that it would reject a request of this digest now.
    pub(crate) fn denied(&self, digest: u128, now: u64) -> Option<Verdict> {
        if now >= self.header.denied.load(Ordering::Relaxed) {
            return None;
        }
        let mut entries = self.bucket(digest)?.iter().filter_map(|denial| denial.read(digest));
        let Known { passes, whole, .. } = entries.find(|known| now < known.until)?;
        Some(Verdict {
            allowed: false,
            remaining: 0,
            reset: whole.saturating_sub(now),
            retry: Retry::After(passes.saturating_sub(now).max(1)),
        })
    }

    /// Remembers that Redis has rejected a request of this digest, as a reply at `now` says. What it
    /// promises is counted from the reply: Redis has counted from no later than that.
    pub(crate) fn remember_denial(&self, digest: u128, verdict: &Verdict, now: u64) {
        let Retry::After(retry) = verdict.retry else { return };
        let passes = now.saturating_add(retry);
        let until = passes.min(now.saturating_add(LONGEST));
        let whole = now.saturating_add(verdict.reset);
        if let Some(denial) = self.bucket(digest).and_then(|bucket| place(bucket, digest)) {
            denial.write(digest, Known { until, passes, whole });
            self.header.denied.fetch_max(until, Ordering::Relaxed);
        }
    }

    fn bucket(&self, digest: u128) -> Option<&'static Bucket> {
        // The digest as a fraction of all digests, as far along the buckets.
        let index = (u128::from(digest as u64) * self.denials.len() as u128) >> u64::BITS;
        self.denials.get(index as usize)
    }
}

/// Where a client is to be remembered: where it is already, else instead of who ends first, which
/// is one whose time has passed if there is one.
fn place(bucket: &Bucket, digest: u128) -> Option<&Denial> {
    let own = bucket.iter().find(|denial| denial.read(digest).is_some());
    own.or_else(|| bucket.iter().min_by_key(|denial| denial.until()))
}

impl Denial {
    /// When the entry ends, whosever it is.
    fn until(&self) -> u64 {
        let [_, _, until, _, _] = &self.0;
        until.load(Ordering::Relaxed)
    }

    fn read(&self, digest: u128) -> Option<Known> {
        let [low, high, until, passes, whole] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let known = Known { until, passes, whole };
        (known.combined(digest) == [low, high]).then_some(known)
    }

    fn write(&self, digest: u128, known: Known) {
        let [low, high] = known.combined(digest);
        let words = [low, high, known.until, known.passes, known.whole];
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

impl Known {
    /// The digest, combined with all that is known.
    fn combined(self, digest: u128) -> [u64; 2] {
        let Self { until, passes, whole } = self;
        [
            digest as u64 ^ until ^ passes.rotate_left(21) ^ whole.rotate_left(42),
            (digest >> 64) as u64 ^ until.rotate_left(32) ^ passes ^ whole.rotate_left(11),
        ]
    }
}
