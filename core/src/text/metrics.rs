//! The metrics page: all counters, in three forms.

use crate::decision::{Source, Status};
use crate::metrics::{
    AttemptResult, BUCKETS, CommandKind, ErrorKind, LeaseUnits, QueryResult, SettlementResult,
};
use crate::text::number::seconds;

mod family;
mod form;
mod json;
mod prometheus;

pub use form::PageForm;

/// The page for a browser. It shows the JSON of the same address.
pub const HTML: &str = page!("metrics");

/// The metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The version of this module.
    pub version: &'static str,
    /// The version of NGINX.
    pub nginx: &'static str,
    /// Every limit.
    pub limits: Vec<LimitMetrics>,
    /// Every server.
    pub nodes: Vec<NodeMetrics>,
    /// How long requests waited for their decision.
    pub waits: Histogram,
    /// How long replies and deadlines waited for a worker that was busy with other events.
    pub lags: Histogram,
    /// The memory that the workers share.
    pub memory: MemoryMetrics,
}

/// The metrics of a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitMetrics {
    /// Its name.
    pub name: String,
    /// Requests, for each of [`Status::COUNTED`].
    pub requests: [u64; Status::COUNTED.len()],
    /// Its verdicts, for each of [`Source::DECIDING`].
    pub decisions: [u64; Source::DECIDING.len()],
    /// Units of its leases, for each of [`LeaseUnits::ALL`].
    pub lease_units: [u64; LeaseUnits::ALL.len()],
    /// Units that were set aside for its leases.
    pub lease_units_granted: u64,
    /// Its settlements, for each of [`SettlementResult::ALL`].
    pub settlements: [u64; SettlementResult::ALL.len()],
}

/// The metrics of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetrics {
    /// Its address.
    pub name: String,
    /// Commands that were sent to it, for each of [`CommandKind::ALL`].
    pub commands: [u64; CommandKind::ALL.len()],
    /// Errors, for each of [`ErrorKind::ALL`].
    pub errors: [u64; ErrorKind::ALL.len()],
    /// Attempts to connect to it, for each of [`AttemptResult::ALL`].
    pub attempts: [u64; AttemptResult::ALL.len()],
    /// Queries for the topology, for each of [`QueryResult::ALL`].
    pub queries: [u64; QueryResult::ALL.len()],
    /// How many requests it decided, alone or with other servers.
    pub decided: u64,
    /// How long they waited together, in µs.
    pub waited: u64,
    /// Connections that can be used.
    pub ready: u64,
    /// Connections that cannot.
    pub connecting: u64,
    /// Whether a worker sends it no requests.
    pub is_open: bool,
    /// Whether it owes replies to a worker for too long, which sends it requests.
    pub is_slow: bool,
}

impl NodeMetrics {
    /// Adds the counters of the same server in another store.
    pub fn add(&mut self, other: &Self) {
        let sum = |own: &mut u64, other: &u64| *own = own.saturating_add(*other);
        self.commands.iter_mut().zip(&other.commands).for_each(|(own, other)| sum(own, other));
        self.errors.iter_mut().zip(&other.errors).for_each(|(own, other)| sum(own, other));
        self.attempts.iter_mut().zip(&other.attempts).for_each(|(own, other)| sum(own, other));
        self.queries.iter_mut().zip(&other.queries).for_each(|(own, other)| sum(own, other));
        sum(&mut self.decided, &other.decided);
        sum(&mut self.waited, &other.waited);
        sum(&mut self.ready, &other.ready);
        sum(&mut self.connecting, &other.connecting);
        self.is_open |= other.is_open;
        self.is_slow |= other.is_slow;
    }
}

/// A histogram of spans of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many spans fall into each of [`BUCKETS`], and how many are longer than the last.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// All of them together, in µs.
    pub sum: u64,
}

/// The metrics of the memory that the workers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMetrics {
    /// Bytes that are in use, or kept for counters.
    pub used: u64,
    /// Bytes that are not.
    pub free: u64,
    /// Bytes of [`used`](Self::used) that hold the states of clients that were decided locally.
    pub local: u64,
    /// Clients that were evicted.
    pub evictions: u64,
    /// Requests whose state did not fit.
    pub no_room: u64,
}

impl Histogram {
    /// The bounds, as they are written, and how many requests waited no longer.
    fn cumulative(&self) -> impl Iterator<Item = (String, u64)> {
        let bounds = BUCKETS.iter().map(|micros| seconds(*micros));
        let sums = self.buckets.iter().scan(0_u64, |sum, count| {
            *sum = sum.saturating_add(*count);
            Some(*sum)
        });
        bounds.chain([INFINITE.to_owned()]).zip(sums)
    }

    /// How many requests there were.
    fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The bound of the last bucket.
const INFINITE: &str = "+Inf";

impl LimitMetrics {
    /// The units of its leases that machines still hold.
    fn lease_units_held(&self) -> u64 {
        let gone = self.lease_units.iter().fold(0, |sum: u64, units| sum.saturating_add(*units));
        self.lease_units_granted.saturating_sub(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot in which all numbers differ.
    pub(super) fn snapshot() -> Snapshot {
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        let limit = |name: &str, next: &mut dyn FnMut() -> u64| LimitMetrics {
            name: name.to_owned(),
            settlements: [1_000, 2_000].map(|number| number + name.len() as u64),
            requests: std::array::from_fn(|_| next()),
            decisions: std::array::from_fn(|_| next()),
            lease_units: std::array::from_fn(|_| next()),
            lease_units_granted: 100 + next(),
        };
        Snapshot {
            version: "1.2.3",
            nginx: "1.22.1",
            limits: vec![limit("default", &mut next), limit("per_ip", &mut next)],
            nodes: vec![NodeMetrics {
                name: "127.0.0.1:6379".to_owned(),
                commands: std::array::from_fn(|_| next()),
                errors: std::array::from_fn(|_| next()),
                attempts: std::array::from_fn(|index| 3_000 + index as u64),
                queries: std::array::from_fn(|index| 4_000 + index as u64),
                decided: next(),
                waited: 1_234_567,
                ready: next(),
                connecting: next(),
                is_open: true,
                is_slow: true,
            }],
            waits: Histogram { buckets: std::array::from_fn(|_| next()), sum: 50 },
            lags: Histogram { buckets: std::array::from_fn(|_| 2), sum: 70 },
            memory: MemoryMetrics {
                used: next(),
                free: next(),
                local: 5_000,
                evictions: next(),
                no_room: next(),
            },
        }
    }

    #[test]
    fn units_that_cannot_be_counted_are_held_by_nobody() {
        let units = [u64::MAX, 1, 1];
        let limit =
            LimitMetrics { lease_units_granted: 5, lease_units: units, ..LimitMetrics::default() };
        assert_eq!(limit.lease_units_held(), 0);
    }

    #[test]
    fn times_are_exact() {
        let written = BUCKETS.map(seconds);
        let expected = [
            "0.00005", "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025",
            "0.05", "0.1", "0.25", "1",
        ];
        assert_eq!(written, expected);
    }

    #[test]
    fn buckets_add_up() {
        let mut buckets = [0; BUCKETS.len() + 1];
        (buckets[0], buckets[1], buckets[BUCKETS.len()]) = (3, 4, 5);
        let waits = Histogram { buckets, sum: 0 };
        let sums: Vec<_> = waits.cumulative().collect();
        assert_eq!(sums.len(), BUCKETS.len() + 1);
        assert_eq!(sums[0], ("0.00005".to_owned(), 3));
        assert_eq!(sums[1], ("0.0001".to_owned(), 7));
        assert_eq!(sums[BUCKETS.len() - 1], ("1".to_owned(), 7));
        assert_eq!(sums[BUCKETS.len()], ("+Inf".to_owned(), 12));
        assert_eq!(waits.count(), 12);
    }
}
