//! Values for a few of many places; most often there are none.

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

    /// Sets the value of a place, instead of any that it has.
    pub(super) fn set(&mut self, place: usize, value: T) {
        let all = self.0.get_or_insert_default();
        all.retain(|(other, _)| *other != place);
        all.push((place, value));
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
