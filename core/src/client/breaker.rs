//! The circuit breaker of a server that does not answer.

use std::collections::VecDeque;

/// A circuit breaker: so many failures within a span of time open it, and while it is open no
/// request is sent. Only a probe in the background closes it. Times are in µs of any monotonic
/// clock.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    max_fails: usize,
    fail_timeout: u64,
    /// When the latest failures were, oldest first; at most `max_fails`.
    fails: VecDeque<u64>,
    open: bool,
}

impl Breaker {
    /// A closed breaker that `max_fails` failures within `fail_timeout` µs open; 0: never.
    pub(super) fn new(max_fails: usize, fail_timeout: u64) -> Self {
        Self { max_fails, fail_timeout, fails: VecDeque::new(), open: false }
    }

    /// Whether no request may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Counts a failure. Returns whether it has opened the breaker.
    pub(super) fn failed(&mut self, now: u64) -> bool {
        if self.open || self.max_fails == 0 {
            return false;
        }
        if self.fails.len() == self.max_fails {
            self.fails.pop_front();
        }
        self.fails.push_back(now);
        let first = self.fails.front().copied().unwrap_or(now);
        self.open =
            self.fails.len() == self.max_fails && now.saturating_sub(first) <= self.fail_timeout;
        self.open
    }

    /// A probe was answered.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.fails.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_failures_within_so_long_open_it() {
        let mut breaker = Breaker::new(3, 1_000);
        assert!(!breaker.failed(0) && !breaker.failed(900));
        // The first is too long ago by now.
        assert!(!breaker.failed(1_001) && !breaker.is_open());
        assert!(breaker.failed(1_900) && breaker.is_open());
        assert!(!breaker.failed(1_900), "it is open already");
        breaker.close();
        assert!(!breaker.failed(1_900) && !breaker.failed(1_900) && breaker.failed(1_900));
    }

    #[test]
    fn one_is_enough_where_one_is_allowed_and_none_never() {
        assert!(Breaker::new(1, 0).failed(5));
        let mut never = Breaker::new(0, 1_000);
        assert!((0..100).all(|now| !never.failed(now)) && !never.is_open());
    }
}
