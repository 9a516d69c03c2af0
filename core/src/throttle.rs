//! So many lines of a log a second.

/// For how long lines are counted together, in ms.
pub const PERIOD: u64 = 1_000;

/// How many lines a period may have.
const LINES: u32 = 100;

/// Bounds how much of what clients do wrong is logged. What is beyond that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// When the period began, in ms.
    began: Option<u64>,
    lines: u32,
    held_back: u64,
}

impl Throttle {
    /// One that has held nothing back.
    pub const fn new() -> Self {
        Self { began: None, lines: 0, held_back: 0 }
    }

    /// Whether one more line may be written at `now`, in ms. If not, it is counted.
    pub fn admits(&mut self, now: u64) -> bool {
        if self.began.is_none_or(|began| now.wrapping_sub(began) >= PERIOD) {
            (self.began, self.lines) = (Some(now), 0);
        }
        let admits = self.lines < LINES;
        match admits {
            true => self.lines += 1,
            false => self.held_back += 1,
        }
        admits
    }

    /// How many lines have been held back since this was asked last.
    pub fn take_held_back(&mut self) -> u64 {
        std::mem::take(&mut self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_period() {
        let mut throttle = Throttle::new();
        let mut written = |now, lines| (0..lines).filter(|_| throttle.admits(now)).count();
        assert_eq!([written(7, 60), written(1_006, 60), written(1_006, 60)], [60, 40, 0]);
        assert_eq!([written(1_007, 90), written(9_000, 1)], [90, 1]);
        assert_eq!((throttle.take_held_back(), throttle.take_held_back()), (80, 0));
    }
}
