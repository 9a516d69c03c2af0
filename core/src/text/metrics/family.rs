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

/// Makes the tables, each of the families of one type.
macro_rules! families {
    ($($table:ident of $type:ident {$($name:literal, $help:literal, $samples:expr;)+})+) => {$(
        pub(super) const $table: [Family<$type>; [$($name),+].len()] =
            [$(Family { name: $name, help: $help, samples: $samples }),+];
    )+};
}

families! {
    LIMITS of LimitMetrics {
        "requests_total", "Requests for which a limit was checked, by result.",
            |it| each("result", Status::COUNTED.map(Status::name), it.requests);
        "decisions_total", "Verdicts of a limit, by source.",
            |it| each("source", Source::DECIDING.map(Source::name), it.decisions);
        "lease_units_total", "Units of leases, by what became of them.",
            |it| each("result", LeaseUnits::ALL.map(LeaseUnits::name), it.lease_units);
        "lease_units_held", "Units of leases that this machine has left.",
            |it| Samples::One(it.lease_units_held());
        "settlements_total", "Settlements of a limit, by result.",
            |it| each("result", SettlementResult::ALL.map(SettlementResult::name), it.settlements);
    }

    NODES of NodeMetrics {
        "commands_total", "Commands sent to a Redis server.",
            |it| each("command", CommandKind::ALL.map(CommandKind::name), it.commands);
        "errors_total", "What went wrong with a Redis server.",
            |it| each("kind", ErrorKind::ALL.map(ErrorKind::name), it.errors);
        "connections", "Connections of the workers to a Redis server.",
            |it| each("state", ["ready", "connecting"], [it.ready, it.connecting]);
        "connection_attempts_total", "Attempts of the workers to connect to a Redis server, by result.",
            |it| each("result", AttemptResult::ALL.map(AttemptResult::name), it.attempts);
        "topology_queries_total", "Queries of the workers for the topology to a Redis server, by result.",
            |it| each("result", QueryResult::ALL.map(QueryResult::name), it.queries);
        "breaker_open", "1 if a worker sends a Redis server no requests, else 0.",
            |it| Samples::One(it.is_open.into());
        "node_slow", "1 if a Redis server owes replies to a worker for too long, else 0.",
            |it| Samples::One(it.is_slow.into());
    }

    MEMORY of MemoryMetrics {
        "shared_memory_bytes", "The memory that the workers share.",
            |it| each("state", ["used", "free"], [it.used, it.free]);
        "local_state_bytes", "The used part of the shared memory that holds states of clients that were decided locally.",
            |it| Samples::One(it.local);
        "shared_memory_evictions_total", "Clients that were evicted, because the shared memory was full.",
            |it| Samples::One(it.evictions);
        "shared_memory_no_room_total", "Requests that could not be decided locally, because the shared memory was too small.",
            |it| Samples::One(it.no_room);
    }
}
