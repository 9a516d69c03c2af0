//! A slab: entries with generational keys, in places that are used again.
//!
//! A key never names another entry. When the entry is removed its place is used again, with the next generation, so that
//! an old key finds nothing. So lists of keys need no clean-up: a key whose entry is gone is skipped when its turn comes.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::{fmt, iter};

use super::command::Command;
use super::connection::Connection;
use super::node::Node;
use super::requests::Request;

/// An entry whose memory is used again.
pub(super) trait Recycle {
    /// Resets the entry, but keeps its memory on the heap.
    fn recycle(&mut self);
}

/// Entries in places that are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    /// Odd while the place is taken.
    generation: u32,
    entry: T,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len().saturating_sub(self.free.len())
    }

    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.index())?;
        (place.generation == key.generation()).then_some(&place.entry)
    }

    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        (place.generation == key.generation()).then_some(&mut place.entry)
    }

    /// The keys of all entries, in the order of their places.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key<T>> {
        (0..)
            .zip(&self.places)
            .filter(|(_, place)| place.generation % 2 == 1)
            .map(|(index, place)| Key::new(index, place.generation))
    }
}

impl<T: Recycle> Slab<T> {
    pub(super) fn insert(&mut self, entry: T) -> Key<T> {
        if let Some((key, place)) = self.take_place() {
            *place = entry;
            return key;
        }
        let index = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.places.push(Place { generation: 1, entry });
        Key::new(index, 1)
    }

    /// Takes a place that is free, with what is left of its last entry.
    #[inline]
    fn take_place(&mut self) -> Option<(Key<T>, &mut T)> {
        let index = self.free.pop()?;
        let place = self.places.get_mut(index as usize)?;
        place.generation = place.generation.wrapping_add(1);
        Some((Key::new(index, place.generation), &mut place.entry))
    }

    /// Removes an entry; nothing happens if it is gone.
    pub(super) fn remove(&mut self, key: Key<T>) {
        if let Some(place) = self.places.get_mut(key.index())
            && place.generation == key.generation()
        {
            place.generation = place.generation.wrapping_add(1);
            place.entry.recycle();
            self.free.push(u32::try_from(key.index()).unwrap_or(u32::MAX));
        }
    }
}

impl<T: Recycle + Default> Slab<T> {
    /// A slab with room for so many entries, whose memory lies together.
    pub(super) fn with_room(entries: usize) -> Self {
        let place = || Place { generation: 0, entry: T::default() };
        let places = iter::repeat_with(place).take(entries).collect();
        let free = (0..).take(entries).collect();
        Self { places, free }
    }

    /// Adds an entry in the state in which [`Recycle`] leaves it, with the memory of an earlier one.
    #[inline]
    pub(super) fn reuse(&mut self) -> Key<T> {
        match self.take_place() {
            Some((key, _)) => key,
            None => self.insert_new(),
        }
    }

    #[cold]
    fn insert_new(&mut self) -> Key<T> {
        self.insert(T::default())
    }
}

/// The name of a request.
pub type RequestKey = Key<Request>;
/// The name of a connection.
pub type ConnectionKey = Key<Connection>;
/// The name of a node.
pub type NodeKey = Key<Node>;
/// The name of a command.
pub(super) type CommandKey = Key<Command>;

/// The name of an entry.
pub struct Key<T> {
    index: u32,
    /// Odd, so that an `Option` of a key takes no more room.
    generation: NonZeroU32,
    marker: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
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

// Not derived: that would require the same of the entry.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

impl<T> Eq for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Each value with its place.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "where there are none it takes one word instead of three"
)]
pub(super) struct Sparse<T>(Option<Box<Vec<(usize, T)>>>);

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Sparse<T> {
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        let all = self.0.as_ref()?;
        all.iter().find(|(other, _)| *other == place).map(|(_, value)| value)
    }

    /// Changes the value of a place, from the default if it has none.
    pub(super) fn update(&mut self, place: usize, change: impl FnOnce(&mut T))
    where
        T: Default,
    {
        let all = self.0.get_or_insert_default();
        let index = all.iter().position(|(other, _)| *other == place);
        let mut value = index.map_or_else(T::default, |index| all.swap_remove(index).1);
        change(&mut value);
        all.push((place, value));
    }

    pub(super) fn clear(&mut self) {
        if let Some(all) = &mut self.0 {
            all.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recycle for Vec<u8> {
        fn recycle(&mut self) {
            self.clear();
        }
    }

    #[test]
    fn a_key_names_one_entry_for_ever() {
        let mut slab: Slab<Vec<u8>> = Slab::new();
        let first = slab.insert(vec![1]);
        slab.remove(first);
        assert_eq!((slab.get(first), slab.len()), (None, 0));
        let second = slab.insert(vec![2]);
        assert_ne!(first, second);
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&vec![2])));
        slab.remove(first);
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.keys().collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn there_may_be_more_entries_than_there_was_room_for() {
        let mut slab: Slab<Vec<u8>> = Slab::with_room(2);
        let keys = [(); 3].map(|()| slab.reuse());
        assert_eq!((slab.len(), slab.keys().collect::<Vec<_>>().len()), (3, 3));
        for key in keys {
            slab.remove(key);
            assert_eq!(slab.get(key), None);
        }
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn memory_is_used_again() {
        let mut slab: Slab<Vec<u8>> = Slab::new();
        let first = slab.insert(Vec::with_capacity(1_000));
        slab.remove(first);
        let second = slab.reuse();
        let entry = slab.get_mut(second).unwrap();
        assert!(entry.is_empty() && entry.capacity() >= 1_000);
    }
}
