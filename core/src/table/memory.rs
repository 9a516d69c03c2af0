//! The layout of a table in memory, and checked access to it.
//!
//! The memory consists of words of 64 bits. A half of a word is a cell, which holds a link or a
//! short number. The header comes first, then a cell for each hash head, then the blocks, all of
//! one size. A block has a link to the next one of its chain, a mark of its kind, and data. The
//! first block of a value has more links and the key before its data.

use crate::key::place;
use crate::word::{join, pack, split, unpack};

/// Words of the header.
pub(super) const HEADER: usize = 8;

/// Words of a block: a cache line.
const BLOCK: usize = 8;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: u64 = (BLOCK * size_of::<u64>()) as u64;

/// Words of a first block that are not data: three of cells, two of the key.
const FIRST_HEAD: usize = 5;

/// Words of any other block that are not data.
const REST_HEAD: usize = 1;

/// Words of data in a first block, and in any other.
const FIRST_DATA: usize = BLOCK - FIRST_HEAD;
const REST_DATA: usize = BLOCK - REST_HEAD;

/// Identifies this layout; the last byte is its version.
const MAGIC: u64 = u64::from_be_bytes(*b"rl-tabl\x02");

/// The words of the header: the magic number and the length of the memory identify a table.
const MAGIC_WORD: usize = 0;
const LENGTH_WORD: usize = 1;
/// Values in the table.
pub(super) const ENTRIES: usize = 4;
/// Blocks in use.
pub(super) const USED: usize = 5;
/// Values that were evicted.
pub(super) const EVICTIONS: usize = 6;

/// The cells of the header, links: the first free block, and the first that was never used.
pub(super) const FREE: usize = 4;
pub(super) const UNUSED: usize = 5;
/// Both ends of the order of use.
pub(super) const NEWEST: usize = 6;
pub(super) const OLDEST: usize = 7;

/// A cell that links to nothing; any other cell n links to block n - 1. So zeroes are an empty
/// table, except for its header.
const NIL: u32 = 0;

/// The table is corrupt.
#[derive(Debug)]
pub(super) struct Corrupt;

pub(super) type Checked<T> = Result<T, Corrupt>;

/// The number of a block; the block lies within the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block(u32);

impl Block {
    /// A cell that links to it.
    fn link(self) -> u32 {
        self.0.saturating_add(1)
    }
}

/// A cell of a block.
#[derive(Clone, Copy)]
pub(super) enum Cell {
    /// The next block of a chain: of a value, or of the free ones.
    Next = 0,
    Mark = 1,
    /// In the first block of a value: the next value under the same hash head.
    Sibling = 2,
    /// How many words the value has.
    Length = 3,
    /// The next value that was used later, and the one that was used earlier.
    Newer = 4,
    Older = 5,
}

/// The kind of a block. Other data rarely has these numbers.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Free = 0x4652_4545,
    First = 0x4649_5253,
    Rest = 0x5245_5354,
}

/// The memory of a table.
pub(super) struct Memory<'a> {
    words: &'a mut [u64],
    blocks: u32,
}

impl<'a> Memory<'a> {
    pub fn new(words: &'a mut [u64]) -> Self {
        // For each block its words, and half of one for a hash head.
        let blocks = words.len().saturating_sub(HEADER) * 2 / (2 * BLOCK + 1);
        Self { words, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Whether the memory holds a table.
    pub fn is_formatted(&self) -> bool {
        let holds = |at, expected| self.word(at).is_ok_and(|word| word == expected);
        holds(MAGIC_WORD, MAGIC) && holds(LENGTH_WORD, self.words.len() as u64)
    }

    /// Whether the memory is new. New memory is all zeroes; only the header is read.
    pub fn is_blank(&self) -> bool {
        self.words.iter().take(HEADER).all(|word| *word == 0)
    }

    /// Makes it an empty table. Blocks are not touched: pages never used cost no memory.
    pub fn format(&mut self, evictions: u64) {
        let heads = self.heads();
        if let Some(heads) = self.words.get_mut(HEADER..).and_then(|rest| rest.get_mut(..heads)) {
            heads.fill(pack(NIL, NIL));
        }
        self.begin(evictions);
    }

    /// Makes it an empty table; all heads must be zero.
    pub fn begin(&mut self, evictions: u64) {
        let length = self.words.len() as u64;
        let first = if self.blocks > 0 { Block(0).link() } else { NIL };
        if let Some(header) = self.words.first_chunk_mut::<HEADER>() {
            *header = [MAGIC, length, pack(NIL, first), pack(NIL, NIL), 0, 0, evictions, 0];
        }
    }

    pub fn word(&self, at: usize) -> Checked<u64> {
        self.words.get(at).copied().ok_or(Corrupt)
    }

    pub fn set_word(&mut self, at: usize, word: u64) -> Checked<()> {
        *self.words.get_mut(at).ok_or(Corrupt)? = word;
        Ok(())
    }

    pub fn cell(&self, at: usize) -> Checked<u32> {
        let (low, high) = unpack(self.word(at / 2)?);
        Ok(if at.is_multiple_of(2) { low } else { high })
    }

    pub fn set_cell(&mut self, at: usize, cell: u32) -> Checked<()> {
        let (low, high) = unpack(self.word(at / 2)?);
        let word = if at.is_multiple_of(2) { pack(cell, high) } else { pack(low, cell) };
        self.set_word(at / 2, word)
    }

    /// The block that a cell links to.
    pub fn link(&self, at: usize) -> Checked<Option<Block>> {
        match self.cell(at)?.checked_sub(1) {
            None => Ok(None),
            Some(number) if number < self.blocks => Ok(Some(Block(number))),
            Some(_) => Err(Corrupt),
        }
    }

    pub fn set_link(&mut self, at: usize, to: Option<Block>) -> Checked<()> {
        self.set_cell(at, to.map_or(NIL, Block::link))
    }

    /// The cell of the hash head for a key.
    pub fn head(&self, key: u128) -> usize {
        2 * HEADER + place(key, self.blocks as usize)
    }

    /// A cell of a block.
    pub fn at(&self, block: Block, cell: Cell) -> usize {
        2 * self.start(block) + cell as usize
    }

    /// The block after this one in the memory.
    pub fn after(&self, block: Block) -> Option<Block> {
        let number = block.0.saturating_add(1);
        (number < self.blocks).then_some(Block(number))
    }

    pub fn mark(&mut self, block: Block, mark: Mark) -> Checked<()> {
        self.set_cell(self.at(block, Cell::Mark), mark as u32)
    }

    /// Fails unless the block is what it should be.
    pub fn expect(&self, block: Block, mark: Mark) -> Checked<Block> {
        let is = self.cell(self.at(block, Cell::Mark))?;
        if is == mark as u32 { Ok(block) } else { Err(Corrupt) }
    }

    /// The key in the first block of a value.
    pub fn key(&self, first: Block) -> Checked<u128> {
        let at = self.start(first) + FIRST_HEAD;
        Ok(join([self.word(at - 2)?, self.word(at - 1)?]))
    }

    pub fn set_key(&mut self, first: Block, key: u128) -> Checked<()> {
        let at = self.start(first) + FIRST_HEAD;
        let [low, high] = split(key);
        self.set_word(at - 2, low)?;
        self.set_word(at - 1, high)
    }

    /// The words of data in the first block of a value.
    pub fn first_data(&self, first: Block) -> std::ops::Range<usize> {
        self.start(first) + FIRST_HEAD..self.start(first) + BLOCK
    }

    /// The words of data in any other block.
    pub fn rest_data(&self, block: Block) -> std::ops::Range<usize> {
        self.start(block) + REST_HEAD..self.start(block) + BLOCK
    }

    /// Where a block starts, in words.
    fn start(&self, block: Block) -> usize {
        HEADER + self.heads() + block.0 as usize * BLOCK
    }

    /// Words that the hash heads take.
    fn heads(&self) -> usize {
        (self.blocks as usize).div_ceil(2)
    }
}

/// How many blocks a value of so many words takes.
pub(super) fn blocks_for(length: usize) -> usize {
    1 + length.saturating_sub(FIRST_DATA).div_ceil(REST_DATA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_blocks_as_fit() {
        let needed = |blocks: usize| HEADER + blocks.div_ceil(2) + blocks * BLOCK;
        for length in HEADER..2_000 {
            let mut words = vec![0; length];
            let blocks = Memory::new(&mut words).blocks as usize;
            assert!(needed(blocks) <= length && length < needed(blocks + 1), "{length}");
        }
    }

    /// New memory is a table at once; of any other only what would be taken for links is changed.
    #[test]
    fn blocks_are_not_touched() {
        let mut words = vec![0; 1_000];
        let mut memory = Memory::new(&mut words);
        assert!(memory.is_blank());
        memory.begin(0);
        assert!(memory.is_formatted() && !memory.is_blank());
        assert!(memory.words[HEADER..].iter().all(|word| *word == 0));

        let mut words = vec![7; 1_000];
        let mut memory = Memory::new(&mut words);
        assert!(!memory.is_blank());
        memory.format(0);
        let (heads, blocks) = memory.words[HEADER..].split_at(memory.heads());
        assert!(heads.iter().all(|word| *word == 0) && blocks.iter().all(|word| *word == 7));
    }

    #[test]
    fn heads_are_all_used_and_no_more() {
        let mut words = vec![0; 1_000];
        let memory = Memory::new(&mut words);
        assert_eq!(memory.head(0), 2 * HEADER);
        assert_eq!(memory.head(u128::MAX), 2 * HEADER + memory.blocks as usize - 1);
    }

    #[test]
    fn values_take_blocks() {
        let blocks = [0, 1, 3, 4, 10, 11].map(blocks_for);
        assert_eq!(blocks, [1, 1, 1, 2, 2, 3]);
    }
}
