//! The keys of a limit that were rejected most in the last minutes, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data
//! streams", 2005): a key that is not among the n takes the place of the one with the lowest count, goes on from that
//! count, and remembers it as its error. So a key that was rejected often is among them, and `rejected - error` is
//! never more than the number of its rejections.
//!
//! All counts are halved every minute: what was rejected m minutes ago counts as 2^-m. Counts are rounded down and
//! errors up, so the bound holds for the number that has faded in the same way.
//!
//! The entries are kept in the order of their counts. One more rejection moves an entry before all of the same count,
//! which a binary search finds; the last one has the lowest count. A key that is not among them is mostly known by a
//! filter of bits, and where all places are taken only one in sixteen rejections of such keys, at random, takes a place. So
//! a flood of distinct keys costs little, and a key that is rejected often is among them after a few rejections, which do
//! not count. (Ben Basat et al., "Randomized admission policy for efficient top-k and frequency estimation", 2017, admit
//! far fewer.)

use crate::key;
use crate::rate::SECOND;

/// After this time, in µs, counts are worth half.
const HALF_LIFE: u64 = 60 * SECOND;

/// How much of a key is kept, in bytes: longer ones are replaced by digests before.
const KEY_BYTES: usize = 512;
const WORD: usize = size_of::<u64>();
/// The length of a key, and the key.
const KEY_WORDS: usize = 1 + KEY_BYTES / WORD;

/// How many entries share a word of the filter: sixteen bits for each.
const ENTRIES_A_WORD: usize = 4;

/// When counts were last halved, how many keys have come since the filter was made, and a pseudo-random number.
const HEAD: usize = 3;

/// One in two to the power of this.
const ADMITTED: u32 = 4;

/// A key and how often it was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The key, as it stands in Redis behind the head.
    pub key: Vec<u8>,
    /// How often it was rejected at most, faded.
    pub rejected: u64,
    /// By how much that may be too high.
    pub error: u64,
}

/// The parts of a key's entry besides its count: its digest, the error of its count, and the place of the key.
type Ranked = [u64; 3];

/// The keys of one limit that were rejected most, in words that processes may share. All zeroes is an empty one. A
/// process may have died in the middle of a change: words of any value are safe, and lead to nothing but wrong counts.
#[derive(Debug)]
pub struct Top<'a> {
    faded_at: &'a mut u64,
    /// How many keys were added to the filter since it was made.
    added: &'a mut u64,
    random: &'a mut u64,
    filter: &'a mut [u64],
    /// The counts, the highest first.
    rejected: &'a mut [u64],
    /// In the same order.
    entries: &'a mut [Ranked],
    /// A length, and the bytes.
    keys: &'a mut [[u64; KEY_WORDS]],
}

impl<'a> Top<'a> {
    /// How many words `n` keys take.
    pub fn words(n: usize) -> usize {
        let of_key = 1usize.saturating_add(size_of::<Ranked>() / WORD).saturating_add(KEY_WORDS);
        let before = HEAD.saturating_add(n.div_ceil(ENTRIES_A_WORD));
        before.saturating_add(n.saturating_mul(of_key))
    }

    /// The `n` keys in these [words](Self::words); `None` if they are too few.
    pub fn new(words: &'a mut [u64], n: usize) -> Option<Self> {
        let (faded_at, words) = words.split_first_mut()?;
        let (added, words) = words.split_first_mut()?;
        let (random, words) = words.split_first_mut()?;
        let (filter, words) = words.split_at_mut_checked(n.div_ceil(ENTRIES_A_WORD))?;
        let (rejected, words) = words.split_at_mut_checked(n)?;
        let (entries, words) = words.split_at_mut_checked(n.checked_mul(3)?)?;
        let keys = words.as_chunks_mut().0.get_mut(..n)?;
        let entries = entries.as_chunks_mut().0;
        Some(Self { faded_at, added, random, filter, rejected, entries, keys })
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        (*self.faded_at, *self.added) = (0, 0);
        self.filter.fill(0);
        self.rejected.fill(0);
        self.entries.fill([0; 3]);
    }

    /// The key of this digest was rejected at the monotonic time `now`, in µs. Two keys of one digest count as one.
    pub fn add(&mut self, digest: u64, key: &[u8], now: u64) {
        self.fade(now);
        // Zero is none.
        let digest = digest.max(1);
        match self.find(digest) {
            Some(index) => self.increment(index),
            None if self.admits(digest) => self.replace_last(digest, key),
            None => {}
        }
    }

    /// The keys, the one that was rejected most first.
    pub fn list(&mut self, now: u64) -> Vec<TopKey> {
        self.fade(now);
        let counted = self.rejected.iter().zip(&*self.entries).take_while(|(count, _)| **count > 0);
        let key = |(rejected, [_, error, place]): (&u64, &Ranked)| TopKey {
            key: self.key(*place),
            rejected: *rejected,
            error: *error,
        };
        counted.map(key).collect()
    }

    /// Halves all counts as often as it is due.
    fn fade(&mut self, now: u64) {
        if now.saturating_sub(*self.faded_at) >= HALF_LIFE {
            self.halve(now);
        }
    }

    #[cold]
    fn halve(&mut self, now: u64) {
        let halvings = now.saturating_sub(*self.faded_at) / HALF_LIFE;
        let at = self.faded_at.saturating_add(halvings.saturating_mul(HALF_LIFE));
        *self.faded_at = if *self.faded_at == 0 { now } else { at };
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        for (rejected, [_, error, _]) in self.rejected.iter_mut().zip(&mut *self.entries) {
            *rejected = rejected.checked_shr(halvings).unwrap_or(0);
            let rounded_down = error.checked_shr(halvings).unwrap_or(0);
            let is_rounded = rounded_down.checked_shl(halvings) != Some(*error);
            *error = rounded_down.saturating_add(is_rounded.into()).min(*rejected);
        }
    }

    /// The index of the entry of a digest.
    fn find(&self, digest: u64) -> Option<usize> {
        let (word, bit) = self.bit(digest);
        let may_be_there = self.filter.get(word).is_some_and(|word| word & bit != 0);
        if may_be_there { self.entries.iter().position(|[own, ..]| *own == digest) } else { None }
    }

    /// Whether a key that is not there takes a place: a free one always. The digests of other keys, which clients do not
    /// know, make the choice random.
    fn admits(&mut self, digest: u64) -> bool {
        *self.random = (*self.random ^ digest).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.rejected.last() == Some(&0) || *self.random >> (u64::BITS - ADMITTED) == 0
    }

    /// The word and the bit of a digest in the filter.
    fn bit(&self, digest: u64) -> (usize, u64) {
        (key::place(digest.into(), self.filter.len()), 1 << (digest % u64::from(u64::BITS)))
    }

    /// An entry counts one more, and moves before all others of its count.
    fn increment(&mut self, index: usize) {
        let Some(count) = self.rejected.get(index).copied() else { return };
        // The place is not behind the entry itself, unless they are in no order.
        let first = self.rejected.partition_point(|other| *other > count).min(index);
        if first != index {
            self.entries.swap(first, index);
        }
        if let Some(rejected) = self.rejected.get_mut(first) {
            *rejected = count.saturating_add(1);
        }
    }

    /// A new key takes the place of the one with the lowest count.
    fn replace_last(&mut self, digest: u64, key: &[u8]) {
        // Where no key has been yet, the places are not numbered.
        if matches!(self.entries.first(), Some([0, ..])) {
            self.entries.iter_mut().zip(0..).for_each(|([.., place], number)| *place = number);
        }
        let (Some([own, error, place]), Some(count)) =
            (self.entries.last_mut(), self.rejected.last())
        else {
            return;
        };
        (*own, *error) = (digest, *count);
        if let Some(kept) = self.keys.get_mut(*place as usize) {
            keep(key, kept);
        }
        self.add_to_filter(digest);
        self.increment(self.entries.len().saturating_sub(1));
    }

    /// The filter is made anew before many bits in it are those of keys that are gone.
    fn add_to_filter(&mut self, digest: u64) {
        *self.added = self.added.saturating_add(1);
        if *self.added > self.entries.len() as u64 {
            *self.added = 0;
            self.filter.fill(0);
            for index in 0..self.entries.len() {
                let own = self.entries.get(index).map_or(0, |[own, ..]| *own);
                self.set_bit(own);
            }
        }
        self.set_bit(digest);
    }

    fn set_bit(&mut self, digest: u64) {
        let (word, bit) = self.bit(digest);
        if let Some(word) = self.filter.get_mut(word) {
            *word |= bit;
        }
    }

    fn key(&self, place: u64) -> Vec<u8> {
        let Some([length, words @ ..]) = self.keys.get(place as usize) else { return Vec::new() };
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take((*length).min(KEY_BYTES as u64) as usize).collect()
    }
}

/// Keeps a key in these words.
fn keep(key: &[u8], [length, words @ ..]: &mut [u64; KEY_WORDS]) {
    let key = key.get(..KEY_BYTES).unwrap_or(key);
    *length = key.len() as u64;
    let (whole, rest) = key.as_chunks();
    let last = rest.iter().rev().fold(0, |word, byte| (word << u8::BITS) | u64::from(*byte));
    let whole = whole.iter().map(|bytes| u64::from_le_bytes(*bytes));
    words.iter_mut().zip(whole.chain([last])).for_each(|(word, new)| *word = new);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::key::memory_digest;

    /// The words of `n` keys, and how often each key was really rejected, faded, in millionths.
    struct Model {
        words: Vec<u64>,
        n: usize,
        exact: BTreeMap<Vec<u8>, f64>,
        now: u64,
    }

    impl Model {
        fn new(n: usize) -> Self {
            Self { words: vec![0; Top::words(n)], n, exact: BTreeMap::new(), now: 7 * SECOND }
        }

        fn top(&mut self) -> Top<'_> {
            Top::new(&mut self.words, self.n).expect("enough words")
        }

        fn add(&mut self, key: &[u8]) {
            let now = self.now;
            self.top().add(memory_digest(1, key) as u64, key, now);
            *self.exact.entry(key.to_vec()).or_default() += 1.0;
        }

        /// A minute passes.
        fn fade(&mut self) {
            self.now += HALF_LIFE;
            self.exact.values_mut().for_each(|count| *count /= 2.0);
        }

        /// Adds a key until it is kept.
        fn admit(&mut self, key: &[u8]) {
            let is_kept = |list: &[TopKey]| list.iter().any(|it| it.key == key);
            while !is_kept(&self.list()) {
                self.add(key);
            }
        }

        fn list(&mut self) -> Vec<TopKey> {
            let now = self.now;
            self.top().list(now)
        }

        /// No key has more for sure than it really has, and the counts are in order.
        fn check(&mut self) {
            let list = self.list();
            assert!(list.len() <= self.n && list.is_sorted_by_key(|it| u64::MAX - it.rejected));
            for TopKey { key, rejected, error } in list {
                let exact = self.exact[&key];
                assert!(error <= rejected && (rejected - error) as f64 <= exact, "{rejected}");
            }
        }
    }

    /// Each key with its count and its error.
    fn shown(list: Vec<TopKey>) -> String {
        let entry = |it: TopKey| format!("{} {}-{}", it.key.escape_ascii(), it.rejected, it.error);
        list.into_iter().map(entry).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut model = Model::new(3);
        assert_eq!(model.list(), []);
        for key in ["a", "b", "c", "b", "c", "c"] {
            model.add(key.as_bytes());
        }
        assert_eq!(shown(model.list()), "c 3-0, b 2-0, a 1-0");
        model.admit(b"d");
        assert_eq!(shown(model.list()), "c 3-0, b 2-0, d 2-1", "it has taken the place of a");
    }

    #[test]
    fn counts_are_halved_each_minute() {
        let mut model = Model::new(2);
        (0..9).for_each(|_| model.add(b"a"));
        model.add(b"b");
        model.admit(b"c");
        assert_eq!(shown(model.list()), "a 9-0, c 2-1");
        model.fade();
        assert_eq!(shown(model.list()), "a 4-0, c 1-1");
        model.fade();
        assert_eq!(shown(model.list()), "a 2-0");
        model.now += 1_000 * HALF_LIFE;
        assert_eq!(model.list(), []);
        model.add(b"d");
        assert_eq!(shown(model.list()), "d 1-0");
    }

    #[test]
    fn a_flood_of_distinct_keys_hides_no_frequent_one() {
        let mut model = Model::new(10);
        for number in 0..20_000 {
            model.add(format!("flood{number}").as_bytes());
            if number % 4 == 0 {
                model.add(b"often");
            }
        }
        let list = model.list();
        let often = list.iter().find(|it| it.key == b"often").expect("it is there");
        // The key has a fifth of all rejections, and few of them came before it was kept.
        assert!((4_900..=5_100).contains(&often.rejected) && often.error <= 100, "{often:?}");
        assert_eq!(list.len(), 10);
        model.check();
    }

    #[test]
    fn keys_are_kept_as_they_are() {
        let mut model = Model::new(4);
        let keys = [&b""[..], b"1234567", b"12345678", &[0xff; KEY_BYTES]];
        keys.iter().for_each(|key| model.add(key));
        let mut found: Vec<_> = model.list().into_iter().map(|it| it.key).collect();
        found.sort();
        assert_eq!(found, keys.map(<[u8]>::to_vec));
        model.top().clear();
        assert_eq!(model.list(), []);
    }

    #[test]
    fn too_few_words_are_refused() {
        let mut words = vec![0; Top::words(3)];
        assert!(Top::new(&mut words, 3).is_some() && Top::new(&mut words, 4).is_none());
        let mut none = Top::new(&mut words, 0).expect("no keys");
        none.add(1, b"a", 1);
        assert_eq!(none.list(1), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 200 }))]

        #[test]
        fn no_key_is_overestimated_for_sure(
            n in 1usize..12,
            keys in proptest::collection::vec((0u8..40, 0u8..30), 0..600),
        ) {
            let mut model = Model::new(n);
            for (key, event) in keys {
                // Some keys come far more often than others.
                model.add(&[key.min(key % 7)]);
                if event == 0 {
                    model.fade();
                }
                model.check();
            }
        }

        /// The memory as a process that died has left it.
        #[test]
        fn no_words_panic(seed in any::<u64>(), n in 0usize..20) {
            let mut random = seed | 1;
            let mut words: Vec<_> = (0..Top::words(n)).map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random >> (random % 64)
            }).collect();
            let mut top = Top::new(&mut words, n).expect("enough words");
            for digest in 0..30 {
                top.add(digest, b"key", digest << 40);
            }
            prop_assert!(top.list(0).len() <= n);
        }
    }
}
