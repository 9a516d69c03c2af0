//! Why a connection was lost, and how long until the next attempt.
//!
//! Each connection has a backoff, and each node another one for its probes. One for both would be wrong: a server
//! that accepts connections and answers nothing starts the backoff of a connection over, and must not be probed as
//! often again; and probes that are not answered must not keep a connection that was lost from being made.

use super::handshake::Step;
use crate::rate::{MILLISECOND, SECOND};
use crate::redis::refusal::Refusal;
use crate::redis::reply::ProtocolError;
use crate::text::log::Escaped;

/// Why a connection was lost or never made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The system could not connect, or the TLS handshake failed: the reason, as text.
    #[error("{0}")]
    Connect(String),
    /// Neither connected nor ready in time.
    #[error("timed out while connecting")]
    ConnectTimeout,
    /// The TLS handshake was not complete in time.
    #[error("timed out while SSL handshaking")]
    SecureTimeout,
    /// Reading or writing failed, or the server closed the connection.
    #[error("{0}")]
    Closed(String),
    /// The server owed replies for too long: how long that is, in µs.
    #[error("no reply for {} ms", .0 / MILLISECOND)]
    Silent(u64),
    /// The server does not speak the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The server refused a step of the handshake.
    #[error("{} was refused: \"{}\"", .0.command(), .1.shown())]
    Handshake(Step, Refusal),
    /// The server answers, but cannot run scripts for now: it is loading, or a replica, or wants the client to
    /// log in again.
    #[error("it cannot decide: \"{}\"", Escaped(.0.as_bytes()))]
    Unfit(String),
    /// The server names its own address as that of another one (MOVED): behind the address is not the
    /// server that was meant, or not only that one.
    #[error("the node redirects to itself")]
    Misplaced,
}

/// How soon an attempt is worth while after one that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// An attempt that fails costs the server nothing: it takes a second at most to find that Redis is
    /// back.
    Soon,
    /// The server takes part in an attempt that fails.
    Later,
    /// The cause does not pass by itself.
    Rarely,
}

/// Exponential backoff with jitter: each failure in a row doubles the delay, and each delay is
/// drawn from its upper half, so that a fleet does not reconnect in step.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Pace {
    /// The first delay and the longest, in µs.
    fn delays(self) -> (u64, u64) {
        match self {
            Self::Soon => (20 * MILLISECOND, SECOND),
            Self::Later => (20 * MILLISECOND, 2 * SECOND),
            Self::Rarely => (SECOND, 8 * SECOND),
        }
    }
}

impl Backoff {
    /// The delay before the next attempt, in µs, after one more failure. `random` is any number
    /// that differs between processes.
    pub(super) fn failed(&mut self, pace: Pace, random: u64) -> u64 {
        let (first, longest) = pace.delays();
        let half = doubled(first, self.failures, longest) / 2;
        self.failures = self.failures.saturating_add(1);
        half.saturating_add(random % half.saturating_add(1))
    }

    /// An attempt has succeeded: the next failure starts from the first delay.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// A time that is doubled so often, but is no longer than the longest one.
pub(in crate::client) fn doubled(first: u64, doublings: u32, longest: u64) -> u64 {
    first.saturating_mul(2_u64.saturating_pow(doublings)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_ceiling_and_starts_over() {
        for (pace, expected) in [
            (Pace::Soon, [10, 20, 40, 80, 160, 320, 500, 500, 500]),
            (Pace::Later, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]),
            (Pace::Rarely, [500, 1_000, 2_000, 4_000, 4_000, 4_000, 4_000, 4_000, 4_000]),
        ] {
            let (first, longest) = pace.delays();
            let mut backoff = Backoff::default();
            let delays = [(); 9].map(|()| backoff.failed(pace, 0));
            assert_eq!(delays, expected.map(|ms| ms * MILLISECOND));
            let mut backoff = Backoff::default();
            let delays: Vec<_> = (0..90).map(|i| backoff.failed(pace, u64::MAX - i)).collect();
            assert!(delays.iter().all(|delay| (first / 2..=longest).contains(delay)));
            backoff.succeeded();
            assert!(backoff.failed(pace, 10) <= first);
        }
    }
}
