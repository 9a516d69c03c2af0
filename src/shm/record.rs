//! The counters of a limit or a node, of all workers together.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::client::{Counts, NodeState, View};
use rate_limit_core::decision::{Source, Status};
use rate_limit_core::key;
use rate_limit_core::metrics::{
    AttemptResult, BUCKETS, CommandKind, ErrorKind, LeaseUnits, QueryResult, SettlementResult,
};
use rate_limit_core::text::metrics;
use rate_limit_core::trouble::Trouble;

use super::worker::{self, PerWorker, process_id, worker_number};

/// The longest name of a record with its scope, in words; longer ones are [shortened].
const NAME_WORDS: usize = 16;

/// The longest name of a record, in bytes.
const MAX_NAME: usize = (NAME_WORDS - 1) * size_of::<u64>();

/// How many bytes of a name that is shortened are left at each end.
const KEPT: usize = 50;

/// The name of a record, and in the last word the scope of the name; all zeroes if the record is free.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Name([AtomicU64; NAME_WORDS]);

/// Something with a name.
pub(super) trait Named {
    fn name(&self) -> &Name;
}

/// The counters of a limit.
#[derive(Default)]
#[repr(C)]
pub(crate) struct LimitRecord {
    name: Name,
    /// One for each of [`Status::COUNTED`].
    results: [AtomicU64; Status::COUNTED.len()],
    /// One for each of [`Source::DECIDING`].
    sources: [AtomicU64; Source::DECIDING.len()],
    /// Units of leases, for each of [`LeaseUnits::ALL`].
    lease_units: [AtomicU64; LeaseUnits::ALL.len()],
    /// All units that were set aside.
    granted: AtomicU64,
    /// One for each of [`SettlementResult::ALL`].
    settlements: [AtomicU64; SettlementResult::ALL.len()],
    /// The monotonic time in µs at which all that was spent of it locally is regained.
    whole: AtomicU64,
}

/// The record of a node: one of the zone, or where the zone has none left, one of this worker alone.
pub(crate) enum NodeEntry {
    Shared(&'static NodeRecord),
    Own(Box<NodeRecord>),
}

/// The counters and the state of a node.
#[derive(Default)]
#[repr(C)]
pub(crate) struct NodeRecord {
    name: Name,
    /// The lines about it in the log.
    pub(crate) trouble: Trouble,
    /// One for each of [`CommandKind::ALL`].
    commands: [AtomicU64; CommandKind::ALL.len()],
    /// One for each of [`ErrorKind::ALL`].
    errors: [AtomicU64; ErrorKind::ALL.len()],
    /// One for each of [`AttemptResult::ALL`].
    attempts: [AtomicU64; AttemptResult::ALL.len()],
    /// One for each of [`QueryResult::ALL`].
    queries: [AtomicU64; QueryResult::ALL.len()],
    /// Requests that it decided.
    decided: AtomicU64,
    /// How long they waited together, in µs.
    waited: AtomicU64,
    /// How each worker sees it, as [`worker::to_word`] writes it.
    views: PerWorker,
}

impl LimitRecord {
    /// One of this worker alone. Others may charge the limit locally and do not say so here.
    pub(super) fn of_worker() -> Self {
        Self { whole: AtomicU64::new(u64::MAX), ..Self::default() }
    }

    /// Whether anything that was spent of the limit locally may not be regained yet at `now`.
    pub(super) fn may_have_charges(&self, now: u64) -> bool {
        now < self.whole.load(Ordering::Relaxed)
    }

    /// Something of the limit was spent locally, and is regained at this time.
    pub(super) fn charge_until(&self, whole: u64) {
        self.whole.fetch_max(whole, Ordering::Relaxed);
    }

    /// Counts a request that this limit was evaluated for.
    pub(crate) fn count_request(&self, status: Status) {
        add(&self.results, status as usize, 1);
    }

    /// Counts a verdict of this limit.
    pub(crate) fn count_decision(&self, source: Source) {
        add(&self.sources, source as usize, 1);
    }

    /// Counts units of a lease by result.
    pub(crate) fn count_units(&self, result: LeaseUnits, units: u64) {
        add(&self.lease_units, result as usize, units);
    }

    /// Counts units that were set aside for a lease.
    pub(crate) fn count_granted(&self, units: u64) {
        self.granted.fetch_add(units, Ordering::Relaxed);
    }

    /// Counts so many settlements of this limit.
    pub(super) fn count_settlements(&self, result: SettlementResult, number: u64) {
        add(&self.settlements, result as usize, number);
    }

    /// How many verdicts of this limit came from this source.
    pub(super) fn decisions(&self, source: Source) -> u64 {
        self.sources.get(source as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// All counters.
    pub(super) fn read(&self) -> metrics::LimitMetrics {
        metrics::LimitMetrics {
            name: self.name.text(),
            requests: read(&self.results),
            decisions: read(&self.sources),
            lease_units: read(&self.lease_units),
            lease_units_granted: self.granted.load(Ordering::Relaxed),
            settlements: read(&self.settlements),
        }
    }
}

/// Adds to the counter of this index, if there is one.
fn add(counters: &[AtomicU64], index: usize, number: u64) {
    if let Some(counter) = counters.get(index) {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

/// Adds to each counter the count of the same index.
fn add_all(counters: &[AtomicU64], counts: &[u32]) {
    for (counter, count) in counters.iter().zip(counts).filter(|(_, count)| **count > 0) {
        counter.fetch_add(u64::from(*count), Ordering::Relaxed);
    }
}

/// The values of counters.
pub(super) fn read<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
    counters.each_ref().map(|counter| counter.load(Ordering::Relaxed))
}

impl Deref for NodeEntry {
    type Target = NodeRecord;

    fn deref(&self) -> &NodeRecord {
        match self {
            Self::Shared(record) => record,
            Self::Own(record) => record,
        }
    }
}

impl Named for LimitRecord {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Named for NodeRecord {
    fn name(&self) -> &Name {
        &self.name
    }
}

/// A histogram of spans of time: a count for each of [`BUCKETS`], and for longer ones. In cache lines of its own, as each
/// request of each worker writes to it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    /// All of them together, in µs.
    sum: AtomicU64,
}

impl Histogram {
    /// Adds a span in µs.
    pub(super) fn add(&self, span: u64) {
        let bucket = BUCKETS.partition_point(|bound| *bound < span);
        add(&self.buckets, bucket, 1);
        if span > 0 {
            self.sum.fetch_add(span, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> metrics::Histogram {
        metrics::Histogram { buckets: read(&self.buckets), sum: self.sum.load(Ordering::Relaxed) }
    }
}

impl NodeRecord {
    /// The name of the node.
    pub(crate) fn text(&self) -> String {
        self.name.text()
    }

    /// Adds the counts of a client. Otherwise as [`Trouble::on_counts`].
    pub(crate) fn add(&self, counts: &Counts, is_leaving: bool) -> bool {
        add_all(&self.commands, &counts.commands);
        add_all(&self.errors, &counts.errors);
        self.trouble.on_counts(counts, is_leaving)
    }

    /// Counts an attempt to connect to it.
    pub(crate) fn count_attempt(&self, result: AttemptResult) {
        add(&self.attempts, result as usize, 1);
    }

    /// Counts a query for the topology.
    pub(crate) fn count_query(&self, result: QueryResult) {
        add(&self.queries, result as usize, 1);
    }

    /// Counts a request that it decided, after a wait in µs.
    pub(crate) fn count_wait(&self, wait: u64) {
        self.decided.fetch_add(1, Ordering::Relaxed);
        self.waited.fetch_add(wait, Ordering::Relaxed);
    }

    /// Sets the view of this worker; `None` if the node is none of its store. If the worker has been replaced, as by a
    /// reload, only that of the newer process is kept.
    pub(crate) fn set_view(&self, view: Option<View>, is_first: bool) {
        let (Some(slot), pid) = (self.views.of(worker_number()), process_id()) else { return };
        if is_first || worker::is_of(slot.load(Ordering::Relaxed), pid) {
            slot.store(worker::to_word(pid, view), Ordering::Relaxed);
        }
    }

    /// All counters, and the views of the living workers, by number and process.
    pub(super) fn read(&self, living: &[(usize, u32)]) -> metrics::NodeMetrics {
        let views = || self.views_of(living);
        metrics::NodeMetrics {
            name: self.text(),
            commands: read(&self.commands),
            errors: read(&self.errors),
            attempts: read(&self.attempts),
            queries: read(&self.queries),
            decided: self.decided.load(Ordering::Relaxed),
            waited: self.waited.load(Ordering::Relaxed),
            ready: views().map(|view| view.ready as u64).sum(),
            connecting: views().map(|view| view.connecting as u64).sum(),
            is_open: self.is_seen(NodeState::Open, living),
            is_slow: self.is_seen(NodeState::Slow, living),
        }
    }

    /// Whether no living worker knows the node.
    fn is_unused(&self, living: &[(usize, u32)]) -> bool {
        self.views_of(living).next().is_none()
    }

    /// The views of those of these workers, by number and process, that know the node.
    fn views_of(&self, workers: &[(usize, u32)]) -> impl Iterator<Item = View> + Clone {
        workers.iter().filter_map(|&(worker, pid)| {
            worker::of_word(self.views.of(worker)?.load(Ordering::Relaxed), pid)
        })
    }

    /// Whether any of these workers, by number and process, sees the node in a state.
    pub(crate) fn is_seen(&self, state: NodeState, workers: &[(usize, u32)]) -> bool {
        self.views_of(workers).any(|view| view.state == state)
    }

    /// Resets all counters.
    fn clear(&self) {
        let counters = self.commands.iter().chain(&self.errors).chain(&self.attempts);
        let counters = counters.chain(&self.queries).chain([&self.decided, &self.waited]);
        counters.for_each(|counter| counter.store(0, Ordering::Relaxed));
        self.trouble.clear();
    }
}

/// The record of this name in this scope, which takes the first free one if there is none yet.
/// `None` if there is none free. The caller has the lock.
pub(super) fn find<R: Named>(records: &'static [R], name: &str, scope: u64) -> Option<&'static R> {
    let wanted = Name::words(name, scope);
    let record = records.iter().find(|record| {
        let own = read(&record.name().0);
        own == wanted || own == [0; NAME_WORDS]
    })?;
    record.name().write(wanted);
    Some(record)
}

/// The record of the node of this name in this scope. If there is no free one, it takes that of a node
/// that no living worker knows: in a cluster whose addresses change nodes come and go.
/// `None` if there is none either. The caller has the lock.
pub(super) fn find_node(
    records: &'static [NodeRecord],
    name: &str,
    scope: u64,
    living: &PerWorker,
) -> Option<&'static NodeRecord> {
    find(records, name, scope).or_else(|| {
        let living = living.living();
        let unused = records.iter().find(|record| record.is_unused(&living))?;
        unused.clear();
        unused.name.write(Name::words(name, scope));
        Some(unused)
    })
}

/// The records that are taken. The caller has the lock. A record is never freed.
pub(super) fn taken<R: Named>(records: &'static [R]) -> &'static [R] {
    let count = records.partition_point(|record| read(&record.name().0) != [0; NAME_WORDS]);
    records.split_at(count).0
}

impl Name {
    fn words(name: &str, scope: u64) -> [u64; NAME_WORDS] {
        let mut words = [0; NAME_WORDS];
        for (word, bytes) in words.iter_mut().zip(shortened(name).chunks(8)) {
            let mut padded = [0; 8];
            padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_ne_bytes(padded);
        }
        if let Some(last) = words.last_mut() {
            *last = scope;
        }
        words
    }

    /// The name as text; a character that was cut is replaced.
    fn text(&self) -> String {
        let words = read(&self.0).map(u64::to_ne_bytes);
        let bytes = words.split_last().map_or(&[][..], |(_, name)| name.as_flattened());
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(bytes.split_at(end).0).into_owned()
    }

    fn write(&self, words: [u64; NAME_WORDS]) {
        self.0.iter().zip(words).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
    }
}

/// A name that fits into a record. In the middle of one that is too long is a digest of it: long names may begin alike, and
/// end alike.
fn shortened(name: &str) -> Cow<'_, [u8]> {
    let bytes = name.as_bytes();
    let (Some(start), Some(end)) = (bytes.first_chunk::<KEPT>(), bytes.last_chunk::<KEPT>()) else {
        return bytes.into();
    };
    if bytes.len() <= MAX_NAME {
        return bytes.into();
    }
    let digest = format!("~{:016x}~", key::fingerprint(bytes));
    [start.as_slice(), digest.as_bytes(), end].concat().into()
}
