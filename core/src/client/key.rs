//! Generational keys: the names of entries in a slab.
//!
//! A key never names another entry. When the entry is removed its place is used again, with the
//! next generation, so that an old key finds nothing. So lists of keys need no clean-up: a key
//! whose entry is gone is skipped when its turn comes.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// The name of a request.
pub type RequestKey = Key<RequestEntries>;
/// The name of a connection.
pub type ConnectionKey = Key<ConnectionEntries>;
/// The name of a node.
pub type NodeKey = Key<NodeEntries>;
/// The name of a command.
pub(super) type CommandKey = Key<CommandEntries>;

/// The kind of entries that are requests.
#[derive(Debug)]
pub enum RequestEntries {}
/// The kind of entries that are connections.
#[derive(Debug)]
pub enum ConnectionEntries {}
/// The kind of entries that are nodes.
#[derive(Debug)]
pub enum NodeEntries {}
/// The kind of entries that are commands.
#[derive(Debug)]
pub enum CommandEntries {}

/// The name of an entry of a kind.
pub struct Key<K> {
    index: u32,
    /// Odd, so that an `Option` of a key takes no more room.
    generation: NonZeroU32,
    marker: PhantomData<fn() -> K>,
}

impl<K> Key<K> {
    /// The key of a place in a generation, which is odd.
    pub(super) fn new(index: u32, generation: u32) -> Self {
        let generation = NonZeroU32::new(generation).unwrap_or(NonZeroU32::MIN);
        Self { index, generation, marker: PhantomData }
    }

    pub(super) fn generation(self) -> u32 {
        self.generation.get()
    }

    /// The place of the entry: different for all that exist at one time.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

// Not derived: that would require the same of the kind.
impl<K> Clone for Key<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Key<K> {}

impl<K> PartialEq for Key<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

impl<K> Eq for Key<K> {}

impl<K> fmt::Debug for Key<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}
