//! Values for a few of many places; most often there are none.

/// Each value with its place.
#[derive(Debug, Default)]
pub(super) struct Sparse<T>(Vec<(usize, T)>);

impl<T> Sparse<T> {
    pub(super) fn get(&self, place: usize) -> Option<&T> {
        self.0.iter().find(|(other, _)| *other == place).map(|(_, value)| value)
    }

    /// Sets the value of a place, instead of any that it has.
    pub(super) fn set(&mut self, place: usize, value: T) {
        self.0.retain(|(other, _)| *other != place);
        self.0.push((place, value));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
