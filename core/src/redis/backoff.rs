//! When to try again.

/// The first delay, in ms.
const FIRST: u64 = 20;
/// The longest delay, in ms: a Redis that is back is found within a second.
const LONGEST: u64 = 500;

/// Exponential backoff with jitter: each failure in a row doubles the delay, and each delay is
/// drawn from its upper half, so that a fleet does not come back in step.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay before the next attempt, in ms, after one more failure. `random` is any number
    /// that differs between processes.
    pub fn failed(&mut self, random: u64) -> u64 {
        let doublings = self.failures.min(LONGEST.ilog2());
        self.failures = self.failures.saturating_add(1);
        let ceiling = (FIRST << doublings).min(LONGEST);
        let half = ceiling / 2;
        half.saturating_add(random % half.saturating_add(1))
    }

    /// An attempt has succeeded: the next failure starts from the first delay.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_ceiling_and_starts_over() {
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..9).map(|_| backoff.failed(0)).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 250, 250, 250, 250]);
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..90).map(|i| backoff.failed(u64::MAX - i)).collect();
        assert!(delays.iter().all(|delay| (10..=500).contains(delay)));
        backoff.succeeded();
        assert!(backoff.failed(10) <= 20);
    }
}
