//! All counters at one moment.

use std::sync::atomic::Ordering;

use rate_limit_core::decision::Source;
use rate_limit_core::text::metrics::{Histogram, MemoryMetrics, NodeMetrics, Snapshot};

use super::Shared;
use super::record::{self, LimitRecord};

impl Shared {
    /// All counters; the versions of the module and of NGINX are left out.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (limits, nodes) =
            self.zone.locked(|| (record::taken(self.limits), record::taken(self.nodes)));
        let living = self.header.workers.living();
        self.count_lost();
        Snapshot {
            waits: self.waits(limits),
            lags: self.header.lags.read(),
            limits: limits.iter().map(LimitRecord::read).collect(),
            nodes: by_name(nodes.iter().map(|node| node.read(&living))),
            memory: self.memory(),
            ..Snapshot::default()
        }
    }

    /// How long requests waited. Those that the deny cache decided did not wait; such a request has one
    /// limit, so it is one decision.
    fn waits(&self, limits: &[LimitRecord]) -> Histogram {
        let mut waits = self.header.waits.read();
        let [shortest, ..] = &mut waits.buckets;
        *shortest += limits.iter().map(|limit| limit.decisions(Source::Cache)).sum::<u64>();
        waits
    }

    fn memory(&self) -> MemoryMetrics {
        let usage = self.with_table(|table| table.usage());
        let free = usage.free_bytes();
        MemoryMetrics {
            used: (self.zone.size() as u64).saturating_sub(free),
            free,
            local: usage.used_bytes(),
            evictions: usage.evictions,
            no_room: self.header.no_room.load(Ordering::Relaxed),
        }
    }
}

/// Nodes by name: those of the same name in several stores are added up.
fn by_name(nodes: impl Iterator<Item = NodeMetrics>) -> Vec<NodeMetrics> {
    nodes.fold(Vec::new(), |mut named: Vec<NodeMetrics>, node| {
        match named.iter_mut().find(|other| other.name == node.name) {
            Some(other) => other.add(&node),
            None => named.push(node),
        }
        named
    })
}
