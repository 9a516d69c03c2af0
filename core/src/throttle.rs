//! A bound on the lines of a log in a second.

use std::collections::BTreeMap;

/// For how long lines are counted together, in ms.
pub const PERIOD: u64 = 1_000;

/// Bounds the lines that clients can cause. Lines beyond the bound are counted, for each kind.
#[derive(Clone, Debug)]
pub struct Throttle<K> {
    /// When the period began, in ms.
    began: Option<u64>,
    lines: u64,
    held_back: BTreeMap<K, u64>,
}

impl<K: Ord> Throttle<K> {
    /// A throttle that has held nothing back.
    pub const fn new() -> Self {
        Self { began: None, lines: 0, held_back: BTreeMap::new() }
    }

    /// Whether one more line may be written at `now`, in ms, if a period may have `most`. A line
    /// that may not is counted.
    pub fn admits(&mut self, now: u64, most: u64, kind: K) -> bool {
        if self.began.is_none_or(|began| now.wrapping_sub(began) >= PERIOD) {
            (self.began, self.lines) = (Some(now), 0);
        }
        let admits = self.lines < most;
        match admits {
            true => self.lines += 1,
            false => *self.held_back.entry(kind).or_default() += 1,
        }
        admits
    }

    /// How many lines of each kind have been held back since the last call.
    pub fn take_held_back(&mut self) -> BTreeMap<K, u64> {
        std::mem::take(&mut self.held_back)
    }
}

impl<K: Ord> Default for Throttle<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_period() {
        let mut throttle = Throttle::new();
        let mut written =
            |now, lines| (0..lines).filter(|_| throttle.admits(now, 100, "a")).count();
        assert_eq!([written(7, 60), written(1_006, 60), written(1_006, 60)], [60, 40, 0]);
        assert_eq!([written(1_007, 90), written(9_000, 1)], [90, 1]);
        assert_eq!(throttle.take_held_back(), BTreeMap::from([("a", 80)]));
        assert!(throttle.take_held_back().is_empty());
    }

    #[test]
    fn who_may_write_less_leaves_more_to_others() {
        let mut throttle = Throttle::new();
        assert!(throttle.admits(0, 1, "a") && !throttle.admits(0, 1, "a"));
        assert!(throttle.admits(0, 2, "b") && !throttle.admits(0, 2, "b"));
        assert_eq!(throttle.take_held_back(), BTreeMap::from([("a", 1), ("b", 1)]));
    }
}
