//! The metrics of limits, of servers and of the memory: a row for each name, which both forms are written from.

use super::{LimitMetrics, MemoryMetrics, NodeMetrics};
use crate::decision::{Source, Status};
use crate::metrics::{
    AttemptResult, CommandKind, ErrorKind, LeaseUnits, QueryResult, SettlementResult,
};

/// The metrics of one name, of a `T`.
pub(super) struct Family<T> {
    /// The name without the prefix. That of counters, and of nothing else, ends with `_total`, which JSON leaves out.
    pub(super) name: &'static str,
    /// The help, which needs no escaping.
    pub(super) help: &'static str,
    /// The numbers.
    pub(super) samples: fn(&T) -> Samples,
}

/// The numbers of one name.
pub(super) enum Samples {
    /// The only number.
    One(u64),
    /// A label, and a number for each of its values.
    Each(&'static str, Vec<(String, u64)>),
}

/// A count for each of these values of a label.
fn each<const N: usize>(label: &'static str, values: [&str; N], counts: [u64; N]) -> Samples {
    let values = values.map(str::to_ascii_lowercase);
    Samples::Each(label, values.into_iter().zip(counts).collect())
}

pub(super) const LIMITS: [Family<LimitMetrics>; 5] = [
    Family {
        name: "requests_total",
        help: "Requests for which a limit was checked, by result.",
        samples: |it| each("result", Status::COUNTED.map(Status::name), it.requests),
    },
    Family {
        name: "decisions_total",
        help: "Verdicts of a limit, by source.",
        samples: |it| each("source", Source::DECIDING.map(Source::name), it.decisions),
    },
    Family {
        name: "lease_units_total",
        help: "Units of leases, by what became of them.",
        samples: |it| each("result", LeaseUnits::ALL.map(LeaseUnits::name), it.lease_units),
    },
    Family {
        name: "lease_units_held",
        help: "Units of leases that this machine has left.",
        samples: |it| Samples::One(it.lease_units_held()),
    },
    Family {
        name: "settlements_total",
        help: "Settlements of a limit, by result.",
        samples: |it| {
            each("result", SettlementResult::ALL.map(SettlementResult::name), it.settlements)
        },
    },
];

pub(super) const NODES: [Family<NodeMetrics>; 7] = [
    Family {
        name: "commands_total",
        help: "Commands sent to a Redis server.",
        samples: |it| each("command", CommandKind::ALL.map(CommandKind::name), it.commands),
    },
    Family {
        name: "errors_total",
        help: "What went wrong with a Redis server.",
        samples: |it| each("kind", ErrorKind::ALL.map(ErrorKind::name), it.errors),
    },
    Family {
        name: "connections",
        help: "Connections of the workers to a Redis server.",
        samples: |it| each("state", ["ready", "connecting"], [it.ready, it.connecting]),
    },
    Family {
        name: "connection_attempts_total",
        help: "Attempts of the workers to connect to a Redis server, by result.",
        samples: |it| each("result", AttemptResult::ALL.map(AttemptResult::name), it.attempts),
    },
    Family {
        name: "topology_queries_total",
        help: "Queries of the workers for the topology to a Redis server, by result.",
        samples: |it| each("result", QueryResult::ALL.map(QueryResult::name), it.queries),
    },
    Family {
        name: "breaker_open",
        help: "1 if a worker sends a Redis server no requests, else 0.",
        samples: |it| Samples::One(it.is_open.into()),
    },
    Family {
        name: "node_slow",
        help: "1 if a Redis server owes replies to a worker for too long, else 0.",
        samples: |it| Samples::One(it.is_slow.into()),
    },
];

pub(super) const MEMORY: [Family<MemoryMetrics>; 4] = [
    Family {
        name: "shared_memory_bytes",
        help: "The memory that the workers share.",
        samples: |it| each("state", ["used", "free"], [it.used, it.free]),
    },
    Family {
        name: "local_state_bytes",
        help: "The used part of the shared memory that holds states of clients that were decided locally.",
        samples: |it| Samples::One(it.local),
    },
    Family {
        name: "shared_memory_evictions_total",
        help: "Clients that were evicted, because the shared memory was full.",
        samples: |it| Samples::One(it.evictions),
    },
    Family {
        name: "shared_memory_no_room_total",
        help: "Requests that could not be decided locally, because the shared memory was too small.",
        samples: |it| Samples::One(it.no_room),
    },
];
