//! A bounded map in flat memory that forgets what was least recently used.
//!
//! It lies in memory that processes share, at a different address in each, so blocks are linked by
//! numbers, not by pointers. A process may have died in the middle of a change, so nothing that is
//! read is trusted: every link is checked, every walk ends, and a corrupt table is emptied.
//!
//! All blocks have one size, and a value is a chain of blocks, so memory is never fragmented. The
//! values are kept in the order of their use. If no block is free, the least recently used value is
//! evicted.

mod memory;

use std::ops::Range;
use std::slice;

use memory::{
    Block, Cell, Checked, Corrupt, ENTRIES, EVICTIONS, FREE, Mark, Memory, NEWEST, OLDEST, UNUSED,
    USED, blocks_for,
};

/// No value may take more than this part of all blocks, so that one client cannot evict all others.
const LARGEST_PART: u32 = 4;

/// A map from digests to sequences of words. The digests must be uniformly distributed: their lower
/// half selects the hash head.
pub struct Table<'a> {
    memory: Memory<'a>,
}

/// How much of a table is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Values.
    pub entries: u64,
    /// Blocks in use, of 64 bytes each.
    pub used: u64,
    /// All blocks.
    pub blocks: u64,
    /// Values that were evicted, since the memory was first formatted.
    pub evictions: u64,
}

impl Usage {
    /// Bytes in blocks that are in use.
    pub fn used_bytes(&self) -> u64 {
        self.used.saturating_mul(memory::BLOCK_BYTES)
    }

    /// Bytes in blocks that are not in use.
    pub fn free_bytes(&self) -> u64 {
        self.blocks.saturating_sub(self.used).saturating_mul(memory::BLOCK_BYTES)
    }
}

impl<'a> Table<'a> {
    /// The table in this memory, or a new one if the memory holds none of this layout and size.
    /// Memory that begins with zeroes must be all zeroes: the rest of it is not written.
    pub fn open(words: &'a mut [u64]) -> Self {
        let mut memory = Memory::new(words);
        match memory.is_formatted() {
            true => {}
            false if memory.is_blank() => memory.begin(0),
            false => memory.format(0),
        }
        Self { memory }
    }

    /// Removes all values. The count of evictions stays.
    pub fn clear(&mut self) {
        self.memory.format(self.memory.word(EVICTIONS).unwrap_or(0));
    }

    /// How much is in use.
    pub fn usage(&self) -> Usage {
        let blocks = u64::from(self.memory.blocks());
        if blocks == 0 {
            return Usage::default();
        }
        let count = |at| self.memory.word(at).unwrap_or(0);
        Usage { entries: count(ENTRIES), used: count(USED), blocks, evictions: count(EVICTIONS) }
    }

    /// Whether a value of so many words may be stored.
    fn fits(&self, length: usize) -> bool {
        let blocks = self.memory.blocks();
        let largest = (blocks / LARGEST_PART).max(1).min(blocks);
        blocks_for(length) <= largest as usize
    }

    /// The value of `key`, which is then the most recently used.
    pub fn get(&mut self, key: u128) -> Option<Value<'_>> {
        let (first, left) = self.checked(|table| table.look_up(key))??;
        let data = self.memory.first_data(first);
        Some(Value { memory: &self.memory, block: first, data, left })
    }

    /// Stores a value, which is then the most recently used; the least recently used are evicted if
    /// there is no room. `false` if the value is too long: the table does not change then.
    pub fn set(&mut self, key: u128, value: &[u64]) -> bool {
        let fits = self.fits(value.len());
        if fits && self.checked(|table| table.store(key, value)).is_none() {
            // The table was corrupt, and is empty now.
            return self.checked(|table| table.store(key, value)).is_some();
        }
        fits
    }

    /// Runs `operation`, and empties the table if it finds the table corrupt.
    fn checked<T>(&mut self, operation: impl FnOnce(&mut Self) -> Checked<T>) -> Option<T> {
        let result = operation(self);
        if result.is_err() {
            self.clear();
        }
        result.ok()
    }

    /// The first block and the length of a value, all of whose blocks are there.
    fn look_up(&mut self, key: u128) -> Checked<Option<(Block, usize)>> {
        let Some((_, first)) = self.seek(key)? else { return Ok(None) };
        let length = self.memory.cell(self.memory.at(first, Cell::Length))? as usize;
        if !self.fits(length) {
            return Err(Corrupt);
        }
        let mut last = first;
        for _ in 1..blocks_for(length) {
            last = self.next(last)?.ok_or(Corrupt)?;
        }
        self.touch(first)?;
        Ok(Some((first, length)))
    }

    fn store(&mut self, key: u128, value: &[u64]) -> Checked<()> {
        let first = match self.seek(key)? {
            Some((_, first)) => {
                self.touch(first)?;
                first
            }
            None => self.insert(key)?,
        };
        self.write(first, value)
    }

    /// An empty value for a key that has none.
    fn insert(&mut self, key: u128) -> Checked<Block> {
        let first = self.allocate(Mark::First, None)?;
        let head = self.memory.head(key);
        let sibling = self.memory.link(head)?;
        self.memory.set_key(first, key)?;
        self.memory.set_link(self.memory.at(first, Cell::Sibling), sibling)?;
        self.memory.set_link(head, Some(first))?;
        self.push_newest(first)?;
        self.count(ENTRIES, 1)?;
        Ok(first)
    }

    /// Writes a value over the one that starts in `first`: into its blocks, and into new ones if
    /// they do not suffice. Blocks that it no longer needs are freed.
    fn write(&mut self, first: Block, value: &[u64]) -> Checked<()> {
        let (length, mut words) = (value.len(), value.iter());
        let cell = u32::try_from(length).map_err(|_| Corrupt)?;
        self.memory.set_cell(self.memory.at(first, Cell::Length), cell)?;

        let mut last = first;
        self.fill(self.memory.first_data(first), &mut words)?;
        for _ in 1..blocks_for(length) {
            last = match self.next(last)? {
                Some(next) => next,
                None => self.extend(last, first)?,
            };
            self.fill(self.memory.rest_data(last), &mut words)?;
        }
        self.cut(last)
    }

    fn fill(&mut self, data: Range<usize>, words: &mut slice::Iter<'_, u64>) -> Checked<()> {
        data.zip(words).try_for_each(|(at, word)| self.memory.set_word(at, *word))
    }

    /// Adds a block to the chain of the value that starts in `first`.
    fn extend(&mut self, last: Block, first: Block) -> Checked<Block> {
        let block = self.allocate(Mark::Rest, Some(first))?;
        self.memory.set_link(self.memory.at(last, Cell::Next), Some(block))?;
        Ok(block)
    }

    /// Frees what comes after this block of a chain.
    fn cut(&mut self, last: Block) -> Checked<()> {
        let mut surplus = self.next(last)?;
        self.memory.set_link(self.memory.at(last, Cell::Next), None)?;
        // This ends: a block that is met again is free by then.
        while let Some(block) = surplus {
            surplus = self.next(block)?;
            self.release(block, Mark::Rest)?;
        }
        Ok(())
    }

    /// The next block of a value.
    fn next(&self, block: Block) -> Checked<Option<Block>> {
        let next = self.memory.link(self.memory.at(block, Cell::Next))?;
        next.map(|next| self.memory.expect(next, Mark::Rest)).transpose()
    }

    /// The first block of the value of `key`, and where the link to it is.
    fn seek(&self, key: u128) -> Checked<Option<(usize, Block)>> {
        let mut at = self.memory.head(key);
        for _ in 0..=self.memory.blocks() {
            let Some(first) = self.memory.link(at)? else { return Ok(None) };
            self.memory.expect(first, Mark::First)?;
            if self.memory.key(first)? == key {
                return Ok(Some((at, first)));
            }
            at = self.memory.at(first, Cell::Sibling);
        }
        Err(Corrupt)
    }

    /// Removes a value.
    fn discard(&mut self, first: Block) -> Checked<()> {
        let (at, _) = self.seek(self.memory.key(first)?)?.ok_or(Corrupt)?;
        let sibling = self.memory.link(self.memory.at(first, Cell::Sibling))?;
        self.relink(at, Some(first), sibling)?;
        self.unlink(first)?;
        self.cut(first)?;
        self.release(first, Mark::First)?;
        self.count(ENTRIES, -1)
    }

    /// Allocates a block; if none is free, evicts the least recently used value, which must not be
    /// the one that the block is for.
    fn allocate(&mut self, mark: Mark, wants: Option<Block>) -> Checked<Block> {
        let block = match self.unused()? {
            Some(block) => block,
            None => {
                self.evict(wants)?;
                self.unused()?.ok_or(Corrupt)?
            }
        };
        self.memory.mark(block, mark)?;
        self.memory.set_link(self.memory.at(block, Cell::Next), None)?;
        self.count(USED, 1)?;
        Ok(block)
    }

    /// A block that is not in use: one that was freed, else one that never was in use.
    fn unused(&mut self) -> Checked<Option<Block>> {
        if let Some(block) = self.memory.link(FREE)? {
            self.memory.expect(block, Mark::Free)?;
            let next = self.memory.link(self.memory.at(block, Cell::Next))?;
            self.memory.set_link(FREE, next)?;
            return Ok(Some(block));
        }
        let block = self.memory.link(UNUSED)?;
        if let Some(block) = block {
            self.memory.set_link(UNUSED, self.memory.after(block))?;
        }
        Ok(block)
    }

    /// Frees a block, which must have the mark `was`.
    fn release(&mut self, block: Block, was: Mark) -> Checked<()> {
        self.memory.expect(block, was)?;
        let next = self.memory.link(FREE)?;
        self.memory.mark(block, Mark::Free)?;
        self.memory.set_link(self.memory.at(block, Cell::Next), next)?;
        self.memory.set_link(FREE, Some(block))?;
        self.count(USED, -1)
    }

    fn evict(&mut self, wants: Option<Block>) -> Checked<()> {
        let oldest = self.memory.link(OLDEST)?.ok_or(Corrupt)?;
        if wants == Some(oldest) {
            return Err(Corrupt);
        }
        self.discard(oldest)?;
        let evictions = self.memory.word(EVICTIONS)?.saturating_add(1);
        self.memory.set_word(EVICTIONS, evictions)
    }

    /// Makes a value the most recently used.
    fn touch(&mut self, first: Block) -> Checked<()> {
        if self.memory.link(NEWEST)? == Some(first) {
            return Ok(());
        }
        self.unlink(first)?;
        self.push_newest(first)
    }

    fn push_newest(&mut self, first: Block) -> Checked<()> {
        let older = self.memory.link(NEWEST)?;
        self.memory.set_link(self.memory.at(first, Cell::Newer), None)?;
        self.memory.set_link(self.memory.at(first, Cell::Older), older)?;
        let end = older.map_or(OLDEST, |older| self.memory.at(older, Cell::Newer));
        self.relink(end, None, Some(first))?;
        self.memory.set_link(NEWEST, Some(first))
    }

    /// Removes a value from the order of use.
    fn unlink(&mut self, first: Block) -> Checked<()> {
        let newer = self.memory.link(self.memory.at(first, Cell::Newer))?;
        let older = self.memory.link(self.memory.at(first, Cell::Older))?;
        let from_newer = newer.map_or(NEWEST, |newer| self.memory.at(newer, Cell::Older));
        let from_older = older.map_or(OLDEST, |older| self.memory.at(older, Cell::Newer));
        self.relink(from_newer, Some(first), older)?;
        self.relink(from_older, Some(first), newer)
    }

    /// Changes a link, which must have led to `from`.
    fn relink(&mut self, at: usize, from: Option<Block>, to: Option<Block>) -> Checked<()> {
        if self.memory.link(at)? != from {
            return Err(Corrupt);
        }
        self.memory.set_link(at, to)
    }

    /// Counts values or blocks, of which there are never more than blocks.
    fn count(&mut self, at: usize, change: i64) -> Checked<()> {
        let count = self.memory.word(at)?.checked_add_signed(change).ok_or(Corrupt)?;
        if count > u64::from(self.memory.blocks()) {
            return Err(Corrupt);
        }
        self.memory.set_word(at, count)
    }
}

/// The words of a value, in order.
#[derive(Clone)]
pub struct Value<'a> {
    memory: &'a Memory<'a>,
    block: Block,
    /// Where the rest of this block's data is.
    data: Range<usize>,
    /// How many words are left, in this block and the next ones.
    left: usize,
}

impl Iterator for Value<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        if self.data.is_empty() {
            self.block = self.memory.link(self.memory.at(self.block, Cell::Next)).ok()??;
            self.data = self.memory.rest_data(self.block);
        }
        self.memory.word(self.data.next()?).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Value<'_> {}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A model of the table, in plain collections.
    struct TableModel {
        values: BTreeMap<u128, Vec<u64>>,
        /// The keys, the least recently used first.
        order: VecDeque<u128>,
        blocks: usize,
        evictions: u64,
    }

    impl TableModel {
        fn new(blocks: u64) -> Self {
            let blocks = blocks as usize;
            Self { values: BTreeMap::new(), order: VecDeque::new(), blocks, evictions: 0 }
        }

        fn used(&self) -> usize {
            self.values.values().map(|value| blocks_for(value.len())).sum()
        }

        fn usage(&self) -> Usage {
            Usage {
                entries: self.values.len() as u64,
                used: self.used() as u64,
                blocks: self.blocks as u64,
                evictions: self.evictions,
            }
        }

        fn get(&mut self, key: u128) -> Option<Vec<u64>> {
            let value = self.values.get(&key)?.clone();
            self.order.retain(|other| *other != key);
            self.order.push_back(key);
            Some(value)
        }

        fn set(&mut self, key: u128, value: Vec<u64>) -> bool {
            let needed = blocks_for(value.len());
            if needed > (self.blocks / 4).max(1).min(self.blocks) {
                return false;
            }
            self.remove(key);
            while self.used() + needed > self.blocks {
                let oldest = self.order.pop_front().unwrap();
                self.values.remove(&oldest);
                self.evictions += 1;
            }
            self.values.insert(key, value);
            self.order.push_back(key);
            true
        }

        fn remove(&mut self, key: u128) -> bool {
            self.order.retain(|other| *other != key);
            self.values.remove(&key).is_some()
        }
    }

    #[derive(Clone, Debug)]
    enum Use {
        Get(u128),
        Set(u128, Vec<u64>),
        Clear,
        /// Another process maps the memory.
        Reopen,
    }

    /// Digests, of which some fall under the same hash head, or even share the half that identifies it.
    fn keys() -> impl Strategy<Value = u128> {
        (0..12_u64, 0..3_u64).prop_map(|(low, high)| {
            let low = low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            u128::from(low) | u128::from(high) << 64
        })
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![
            8 => vec(any::<u64>(), 0..=3),
            4 => vec(any::<u64>(), 0..=40),
            1 => vec(any::<u64>(), 0..=400),
        ]
    }

    fn steps(length: usize) -> impl Strategy<Value = Vec<Use>> {
        let step = prop_oneof![
            30 => keys().prop_map(Use::Get),
            30 => (keys(), values()).prop_map(|(key, value)| Use::Set(key, value)),
            1 => Just(Use::Clear),
            2 => Just(Use::Reopen),
        ];
        vec(step, 0..length)
    }

    /// Memory for some blocks, and as much more as makes no difference.
    fn memories() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![0..30_usize, 0..300_usize, 300..3_000_usize]
            .prop_flat_map(|length| vec(any::<u64>(), length))
    }

    fn get(table: &mut Table<'_>, key: u128) -> Option<Vec<u64>> {
        let value = table.get(key)?;
        let length = value.len();
        let words: Vec<u64> = value.collect();
        assert_eq!(words.len(), length);
        Some(words)
    }

    fn key(number: u128) -> u128 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    /// A value of so many words.
    fn numbers(length: u32) -> Vec<u64> {
        (0..length).map(u64::from).collect()
    }

    /// Memory for so many blocks.
    fn memory(blocks: usize) -> Vec<u64> {
        vec![0; memory::HEADER + blocks * 8 + blocks.div_ceil(2)]
    }

    fn run(table: &mut Table<'_>, step: Use) {
        match step {
            Use::Get(key) => drop(get(table, key)),
            Use::Set(key, value) => drop(table.set(key, &value)),
            Use::Clear => table.clear(),
            Use::Reopen => (),
        }
    }

    /// Where the memory is overwritten, how, and with what.
    type Hit = (prop::sample::Index, u8, u64);

    fn strike(words: &mut [u64], (index, kind, random): Hit) {
        if words.is_empty() {
            return;
        }
        let at = index.index(words.len());
        words[at] = match kind % 4 {
            0 => random,
            // Two links that look well.
            1 => (((random >> 32) % 40) << 32) | (random % 40),
            2 => words[random as usize % words.len()],
            _ => words[at] ^ 1 << (random % 64),
        };
    }

    proptest! {
        #[test]
        fn does_as_the_model(mut words in memories(), steps in steps(200)) {
            let mut model = TableModel::new(Table::open(&mut words).usage().blocks);
            for step in steps {
                let mut table = Table::open(&mut words);
                match step {
                    Use::Get(key) => prop_assert_eq!(get(&mut table, key), model.get(key)),
                    Use::Set(key, value) => {
                        let stored = table.set(key, &value);
                        prop_assert_eq!(stored, table.fits(value.len()));
                        prop_assert_eq!(stored, model.set(key, value));
                    }
                    Use::Clear => {
                        table.clear();
                        model = TableModel { evictions: model.evictions, ..TableModel::new(model.blocks as u64) };
                    }
                    Use::Reopen => (),
                }
                prop_assert_eq!(table.usage(), model.usage());
            }
            let mut table = Table::open(&mut words);
            for (key, value) in model.values {
                prop_assert_eq!(get(&mut table, key), Some(value));
            }
        }

        /// Whatever becomes of the memory: nothing panics or goes on forever, and emptied it is as
        /// new.
        #[test]
        fn corruption_does_no_harm(
            mut words in memories(),
            before in steps(100),
            hits in vec(any::<Hit>(), 1..20),
            after in steps(100),
        ) {
            let mut table = Table::open(&mut words);
            before.into_iter().for_each(|step| run(&mut table, step));
            hits.into_iter().for_each(|hit| strike(&mut words, hit));
            let mut table = Table::open(&mut words);
            after.into_iter().for_each(|step| run(&mut table, step));

            table.clear();
            let usage = table.usage();
            prop_assert_eq!((usage.entries, usage.used), (0, 0));
            if usage.blocks > 0 {
                prop_assert!(table.set(7, &numbers(3)));
                prop_assert_eq!(get(&mut table, 7), Some(vec![0, 1, 2]));
            }
        }
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut words = memory(4);
        let mut table = Table::open(&mut words);
        for number in 0..4 {
            assert!(table.set(key(number), &[number as u64]));
        }
        assert!(get(&mut table, key(0)).is_some());
        assert!(table.set(key(1), &[9]));
        assert!(table.set(key(4), &[4]));
        assert!(table.set(key(5), &[5]));
        let there: Vec<bool> =
            (0..6).map(|number| get(&mut table, key(number)).is_some()).collect();
        assert_eq!(there, [true, true, false, false, true, true]);
        assert_eq!(table.usage(), Usage { entries: 4, used: 4, blocks: 4, evictions: 2 });
    }

    #[test]
    fn a_long_value_drives_out_as_few_as_it_can() {
        let mut words = memory(16);
        let mut table = Table::open(&mut words);
        for number in 0..16 {
            assert!(table.set(key(number), &[0]));
        }
        // Four blocks.
        assert!(table.set(key(99), &numbers(24)));
        assert!((0..4).all(|number| table.get(key(number)).is_none()));
        assert!((4..16).all(|number| table.get(key(number)).is_some()));
        assert_eq!(get(&mut table, key(99)), Some(numbers(24)));
        assert_eq!(table.usage().evictions, 4);
        // Five are more than a quarter of all: nothing changes.
        assert!(!table.set(key(99), &numbers(25)));
        assert_eq!(get(&mut table, key(99)), Some(numbers(24)));
        assert_eq!(table.usage().evictions, 4);
    }

    #[test]
    fn too_little_memory_is_a_table_of_nothing() {
        for length in 0..memory(1).len() {
            let mut words = vec![0; length];
            let mut table = Table::open(&mut words);
            assert!(!table.set(1, &[1]));
            assert!(table.get(1).is_none());
            assert_eq!(table.usage(), Usage::default());
        }
    }

    #[test]
    fn memory_of_another_size_is_another_table() {
        let mut words = memory(20);
        assert!(Table::open(&mut words).set(1, &numbers(1)));
        assert_eq!(Table::open(&mut words).usage().entries, 1);
        assert_eq!(Table::open(&mut words[..100]).usage().entries, 0);
        assert_eq!(Table::open(&mut words).usage().entries, 0);
    }

    /// A full table in which one word was overwritten, with each kind of link that leads nowhere.
    #[test]
    fn a_corrupt_table_is_emptied() {
        let blocks = 8;
        for at in 1..memory(blocks).len() {
            let mut words = memory(blocks);
            let mut table = Table::open(&mut words);
            (0..6).for_each(|number| assert!(table.set(key(number), &[0, 1, 2])));
            assert!(table.set(key(6), &numbers(10)));
            words[at] = 0x7fff_fff0_7fff_fff0;
            let mut table = Table::open(&mut words);
            // Enough to evict everything, and to use every block again.
            (10..30).for_each(|number| assert!(table.set(key(number), &numbers(10))));
            let usage = table.usage();
            assert_eq!((usage.entries, usage.used), (4, 8), "word {at}");
            assert!((26..30).all(|number| get(&mut table, key(number)).is_some()), "word {at}");
        }
    }

    /// Cells, and what is written into them.
    type Changes<'a> = &'a [(usize, u32)];

    fn same_head(number: u64) -> u128 {
        u128::from(number) << 64
    }

    /// In a full table of eight blocks: under one hash head the values 0 to 5, each in the block of
    /// that number, and the value 6 in the last two. When something does not lead where it should,
    /// the step that meets it empties the table.
    #[test]
    fn what_links_wrongly_is_found() {
        const NIL: u32 = 0;
        let to = |block: u32| block + 1;
        let mut words = memory(8);
        let mut table = Table::open(&mut words);
        (0..6).for_each(|number| assert!(table.set(same_head(number), &numbers(3))));
        assert!(table.set(same_head(6), &numbers(10)));
        let (_, zero) = table.seek(same_head(0)).unwrap().unwrap();
        let start = table.memory.at(zero, Cell::Next);
        let at = |block: usize, cell: Cell| start + 16 * block + cell as usize;
        let full = words.clone();

        let get = |number| Use::Get(same_head(number));
        let set = |number, length| Use::Set(same_head(number), numbers(length));
        let (next, sibling) = (Cell::Next, Cell::Sibling);
        let cases: [(&str, Changes, Use); 13] = [
            ("siblings in a circle", &[(at(0, sibling), to(6))], get(7)),
            ("a sibling out of the memory", &[(at(0, sibling), to(8))], get(7)),
            (
                "a sibling that starts no value",
                &[(at(0, sibling), to(7)), (at(7, sibling), NIL)],
                get(7),
            ),
            ("a chain in a circle", &[(at(7, next), to(7))], set(6, 3)),
            ("a chain into another value", &[(at(6, next), to(2))], get(6)),
            ("a chain that is too short", &[(at(6, next), NIL)], get(6)),
            ("too long a value", &[(at(6, Cell::Length), u32::MAX), (at(7, next), to(7))], get(6)),
            ("a wrong order of use", &[(at(3, Cell::Newer), to(5))], get(3)),
            ("another value as the oldest", &[(OLDEST, to(5))], set(5, 10)),
            ("no oldest value", &[(OLDEST, NIL)], set(7, 3)),
            ("a free block that is none", &[(FREE, to(3)), (2 * USED, 6)], set(7, 3)),
            ("an unused block where there is none", &[(UNUSED, to(8))], set(7, 3)),
            ("more values than blocks", &[(2 * ENTRIES, 10)], set(7, 3)),
        ];
        for (what, changes, step) in cases {
            words.clone_from(&full);
            let mut table = Table::open(&mut words);
            for (cell, value) in changes {
                table.memory.set_cell(*cell, *value).unwrap();
            }
            let stored = u64::from(matches!(step, Use::Set(..)));
            run(&mut table, step);
            assert_eq!(table.usage().entries, stored, "{what}");
        }
    }
}
