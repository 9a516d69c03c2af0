//! Entries that are named by generational keys.
//!
//! A key names one entry for ever. When the entry is removed its place is used again, but under
//! another generation, so that an old key finds nothing. Lists of keys need no clean-up for that
//! reason: what was cancelled is skipped when its turn comes.

use std::fmt;
use std::marker::PhantomData;

/// The name of an entry of a [`Slab`].
pub struct Key<T> {
    index: u32,
    /// Odd.
    generation: u32,
    marker: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The place of the entry: different for all that exist at one time.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// An entry whose memory is used again.
pub(super) trait Recycle {
    /// Makes the entry as good as new, but keeps the memory that it has on the heap.
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

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.places.len().saturating_sub(self.free.len())
    }

    pub(super) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        (place.generation == key.generation).then_some(&place.entry)
    }

    pub(super) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        (place.generation == key.generation).then_some(&mut place.entry)
    }

    /// The keys of all entries, in the order of their places.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key<T>> {
        (0..)
            .zip(&self.places)
            .filter(|(_, place)| place.generation % 2 == 1)
            .map(|(index, place)| Key { index, generation: place.generation, marker: PhantomData })
    }
}

impl<T: Recycle> Slab<T> {
    /// Adds an entry.
    pub(super) fn insert(&mut self, entry: T) -> Key<T> {
        let key = self.take_place(entry);
        key.unwrap_or_else(|entry| {
            let index = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
            self.places.push(Place { generation: 1, entry });
            Key { index, generation: 1, marker: PhantomData }
        })
    }

    fn take_place(&mut self, entry: T) -> Result<Key<T>, T> {
        let Some(index) = self.free.pop() else { return Err(entry) };
        let Some(place) = self.places.get_mut(index as usize) else { return Err(entry) };
        place.generation = place.generation.wrapping_add(1);
        place.entry = entry;
        Ok(Key { index, generation: place.generation, marker: PhantomData })
    }

    /// Adds an entry in the state in which [`Recycle`] leaves it, with the memory of an earlier one.
    pub(super) fn reuse(&mut self) -> Key<T>
    where
        T: Default,
    {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.places.get_mut(index as usize)
        {
            place.generation = place.generation.wrapping_add(1);
            return Key { index, generation: place.generation, marker: PhantomData };
        }
        self.insert(T::default())
    }

    /// Removes an entry; nothing happens if it is gone.
    pub(super) fn remove(&mut self, key: Key<T>) {
        if let Some(place) = self.places.get_mut(key.index as usize)
            && place.generation == key.generation
        {
            place.generation = place.generation.wrapping_add(1);
            place.entry.recycle();
            self.free.push(key.index);
        }
    }
}

// Not derived: that would ask the same of the entry.
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
        let mut slab = Slab::new();
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
    fn memory_is_used_again() {
        let mut slab: Slab<Vec<u8>> = Slab::new();
        let first = slab.insert(Vec::with_capacity(1_000));
        slab.remove(first);
        let second = slab.reuse();
        let entry = slab.get_mut(second).unwrap();
        assert!(entry.is_empty() && entry.capacity() >= 1_000);
    }
}
