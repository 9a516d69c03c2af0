//! The delays between attempts to connect.

use crate::rate::MILLISECOND;

/// The first delay, in µs.
const FIRST: u64 = 20 * MILLISECOND;
/// The longest delay, in µs: it takes less than a second to find that Redis is back.
const LONGEST: u64 = 500 * MILLISECOND;
/// So many doublings lead from the first delay to the longest.
const DOUBLINGS: u32 = 5;

/// Exponential backoff with jitter: each failure in a row doubles the delay, and each delay is
/// drawn from its upper half, so that a fleet does not reconnect in step.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay before the next attempt, in µs, after one more failure. `random` is any number
    /// that differs between processes.
    pub(super) fn failed(&mut self, random: u64) -> u64 {
        let doublings = self.failures.min(DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        let ceiling = (FIRST << doublings).min(LONGEST);
        let half = ceiling / 2;
        half.saturating_add(random % half.saturating_add(1))
    }

    /// An attempt has succeeded: the next failure starts from the first delay.
    pub(super) fn succeeded(&mut self) {
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
        let expected = [10, 20, 40, 80, 160, 250, 250, 250, 250].map(|ms| ms * MILLISECOND);
        assert_eq!(delays, expected);
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..90).map(|i| backoff.failed(u64::MAX - i)).collect();
        assert!(delays.iter().all(|delay| (10 * MILLISECOND..=LONGEST).contains(delay)));
        backoff.succeeded();
        assert!(backoff.failed(10) <= FIRST);
    }
}
