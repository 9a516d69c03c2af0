//! The memory that the workers of a machine share: a zone that survives reloads.
//!
//! ```text
//! Header | a record for each limit | for each node | the deny cache | leases | changes to clients | the table of local decisions
//! ```
//!
//! All but the table are atomics, which need no lock. The table is used, and records are taken, under
//! the lock of the zone, which is released if a worker dies while it holds it.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ngx::ffi::{ngx_int_t, ngx_shm_zone_t};
use rate_limit_core::decision::Source;
use rate_limit_core::entry::ClientBucket;
use rate_limit_core::key;
use rate_limit_core::lease::table::LeaseBucket;
use rate_limit_core::table::Table;
use rate_limit_core::text::metrics::{self, MemoryMetrics, NodeMetrics, Snapshot};

use crate::clock::unix_micros;
use crate::nginx::Conf;

mod machine;
mod record;
mod reserved;
pub(crate) mod top;
mod worker;
mod zone;

pub(crate) use record::{LimitRecord, NodeEntry, NodeRecord};
pub(crate) use reserved::Reservations;
pub(crate) use top::{Sketch, TopZone};
pub(crate) use worker::worker_number;

use record::Histogram;
use reserved::Reserved;
use worker::{PerWorker, process_id};
use zone::Zone;

/// The name of the zone. Its address is the tag, which no zone of another module has.
static NAME: [u8; 16] = *b"rate_limit_redis";

/// Marks memory that has the layout of this version.
const LAYOUT: u64 = 0x7261_7465_6c69_0010;

/// The memory is divided into parts, and so many of them are for records of limits and
/// nodes, for the deny cache, for leases, and for changes to clients.
const PARTS: usize = 32;
const FOR_LIMITS: usize = 1;
const FOR_NODES: usize = 3;
const FOR_DENY_CACHE: usize = 8;
const FOR_LEASES: usize = 8;
const FOR_MANAGED: usize = 1;

/// The start of the memory.
#[repr(C)]
struct Header {
    layout: AtomicU64,
    /// The seed of this zone's digests: it is secret, so that nobody can choose keys that share one.
    seed: AtomicU64,
    /// The monotonic time in µs at which all that was spent locally of any limit is regained.
    whole: AtomicU64,
    /// The monotonic time in µs at which all entries of the deny cache have expired.
    denied_until: AtomicU64,
    /// The monotonic time in µs at which all blocks that are known have ended.
    blocked_until: AtomicU64,
    /// Whether a worker is changing the table.
    changing: AtomicU64,
    /// Local decisions whose states did not fit.
    no_room: AtomicU64,
    /// How long requests waited for their decision.
    waits: Histogram,
    /// How long replies and deadlines waited for a worker.
    lags: Histogram,
    /// The process of each worker; 0 where there never was one.
    workers: PerWorker,
    reserved: Reserved,
}

/// The shared memory, mapped.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    zone: Zone,
    header: &'static Header,
    limits: &'static [LimitRecord],
    nodes: &'static [NodeRecord],
    deny_cache: &'static [ClientBucket],
    leases: &'static [LeaseBucket],
    managed: &'static [ClientBucket],
    table: NonNull<u64>,
    table_words: usize,
}

/// Adds the zone to the configuration that is being read, which gets it once it is mapped. `None` if NGINX cannot add
/// it.
pub(crate) fn add_zone(cf: &mut Conf, size: usize) -> Option<()> {
    let [tag, ..] = &NAME;
    zone::add(cf, &NAME, tag, size, Some(on_mapped))
}

unsafe extern "C" fn on_mapped(zone: *mut ngx_shm_zone_t, _old: *mut c_void) -> ngx_int_t {
    // SAFETY: NGINX passes a zone that was added with this function, and stays mapped.
    unsafe {
        Zone::on_mapped(zone, |conf, zone| {
            Shared::open(zone).is_some_and(|shared| conf.shared.set(shared).is_ok())
        })
    }
}

impl Shared {
    /// The memory of a zone: as it was left by the configuration before, or a new one.
    ///
    /// # Safety
    /// If the zone is new nobody else must use it yet.
    unsafe fn open(zone: Zone) -> Option<Self> {
        // SAFETY: if the zone is new nobody else uses it, by contract. Else workers of the configuration before do, but
        // of the pool only what is read here, which does not change, and of the block only by atomics, or under the
        // lock. The header and the parts lie in the block one after the other, and all bits of them are valid for
        // atomics.
        unsafe {
            let (start, size) = zone.block()?;
            let start = start.as_ptr();
            format(start, size);
            let mut at = size_of::<Header>();
            Some(Self {
                zone,
                header: &*start.cast::<Header>(),
                limits: part(start, size, &mut at, FOR_LIMITS),
                nodes: part(start, size, &mut at, FOR_NODES),
                deny_cache: part(start, size, &mut at, FOR_DENY_CACHE),
                leases: part(start, size, &mut at, FOR_LEASES),
                managed: part(start, size, &mut at, FOR_MANAGED),
                table: NonNull::new(start.add(at).cast())?,
                table_words: size.checked_sub(at)? / size_of::<u64>(),
            })
        }
    }

    /// The record of the limit of this name. If no record is free it is one of this worker alone, which
    /// lives as long as the worker does.
    pub(crate) fn limit(&self, name: &str) -> &'static LimitRecord {
        self.find_limit(name).unwrap_or_else(|| Box::leak(Box::new(LimitRecord::of_worker())))
    }

    fn find_limit(&self, name: &str) -> Option<&'static LimitRecord> {
        self.zone.locked(|| record::find(self.limits, name, 0))
    }

    /// Takes records for the limits of these names, so that their counters are shown from the start, and
    /// returns those for which none is free.
    pub(crate) fn register<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        names.filter(|name| self.find_limit(name).is_none()).collect()
    }

    /// The number of the record of a limit; none of one that is of this worker alone.
    fn number(&self, limit: &LimitRecord) -> Option<usize> {
        let offset = ptr::from_ref(limit).addr().checked_sub(self.limits.as_ptr().addr())?;
        let number = offset / size_of::<LimitRecord>();
        (number < self.limits.len()).then_some(number)
    }

    /// The digest of a client and a limit (by its fingerprint) in the memory of this machine: see
    /// [`Charge::client`](rate_limit_core::charge::Charge::client).
    pub(crate) fn client_digest(&self, limit: u64, key: &[u8]) -> u128 {
        key::memory_digest(self.header.seed.load(Ordering::Relaxed) ^ limit, key)
    }

    /// Counts how long a reply or a deadline waited for the worker, in µs.
    pub(crate) fn count_lag(&self, lag: u64) {
        self.header.lags.add(lag);
    }

    /// Records the process of this worker.
    pub(crate) fn set_worker(&self) {
        if let Some(slot) = self.header.workers.of(worker_number()) {
            slot.store(process_id(), Ordering::Relaxed);
        }
    }

    /// The record of the node of this name in a store. Two stores may use one server, which may refuse
    /// one of them.
    pub(crate) fn node(&self, name: &str, store: &str) -> NodeEntry {
        let scope = key::fingerprint(store.as_bytes());
        self.zone
            .locked(|| record::find_node(self.nodes, name, scope, &self.header.workers))
            .map_or_else(|| NodeEntry::Own(Box::default()), NodeEntry::Shared)
    }

    /// Runs `act` with the table, under the lock, and with the Unix time in µs. That is taken under the lock too: a worker
    /// that waits for it would otherwise take the table back to a time before the one at which another has changed it. If a
    /// worker has died while it changed the table, the table is emptied first: its content may be torn.
    fn with_table<T>(&self, act: impl FnOnce(&mut Table<'_>, u64) -> T) -> T {
        self.zone.locked(|| {
            // SAFETY: these words are in the zone, and they are only used under the lock.
            let words =
                unsafe { std::slice::from_raw_parts_mut(self.table.as_ptr(), self.table_words) };
            let mut table = Table::open(words);
            if self.header.changing.swap(1, Ordering::SeqCst) != 0 {
                table.clear();
            }
            // Other processes must see the writes in this order, even if this one dies in between.
            fence(Ordering::SeqCst);
            let result = act(&mut table, unix_micros());
            fence(Ordering::SeqCst);
            self.header.changing.store(0, Ordering::SeqCst);
            result
        })
    }
}

/// Empties memory that has not the layout of this version. NGINX passes the memory of a zone on only where its tag, the
/// address of [`NAME`], is the same: so to no other build of this module, which is mapped beside this one.
///
/// # Safety
/// `start` must be that of a block of this size, which nobody else uses if it has not this layout.
unsafe fn format(start: *mut u8, size: usize) {
    // SAFETY: the start and the size are those of a block, by contract. A block of the least size is larger than the header.
    unsafe {
        let header = &*start.cast::<Header>();
        let layout = header.layout.load(Ordering::Relaxed);
        if layout == LAYOUT {
            return;
        }
        // New memory is all zeroes. To write them again would make the system allocate all of it,
        // however little is used.
        if layout != 0 {
            ptr::write_bytes(start, 0, size);
        }
        header.seed.store(random_seed(), Ordering::Relaxed);
        header.layout.store(LAYOUT, Ordering::Relaxed);
    }
}

/// The next part of a block: the first place from `at` on that is aligned for `T`, and as many as fit into
/// `share` of [`PARTS`] of the block. `at` is moved behind it.
///
/// # Safety
/// `start` must be that of a block of this size, which is aligned for a page. The shares of all parts must be
/// less than [`PARTS`] together, and any bits be a valid `T`.
unsafe fn part<T>(start: *mut u8, size: usize, at: &mut usize, share: usize) -> &'static [T] {
    let (first, number) =
        (at.next_multiple_of(align_of::<T>()), size / PARTS * share / size_of::<T>());
    *at = first + number * size_of::<T>();
    // SAFETY: by contract the block has the size and the alignment: the part begins where the one before has ended, and
    // is aligned, as the block is. The rest of the block is far more than what alignment takes.
    unsafe { std::slice::from_raw_parts(start.add(first).cast(), number) }
}

/// A number that is hard to guess.
fn random_seed() -> u64 {
    let mut seed = [0u8; 8];
    // SAFETY: the buffer has this length. If the call fails the seed is zero, which works too.
    unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), libc::GRND_NONBLOCK) };
    u64::from_ne_bytes(seed)
}

impl Shared {
    /// All counters; the versions of the module and of NGINX are left out.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (limits, nodes) =
            self.zone.locked(|| (record::taken(self.limits), record::taken(self.nodes)));
        let living = self.living();
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

    /// The workers that run, by number and process.
    pub(crate) fn living(&self) -> Vec<(usize, u32)> {
        self.header.workers.living()
    }

    /// How long requests waited. Those that the deny cache decided did not wait; such a request has one
    /// limit, so it is one decision.
    fn waits(&self, limits: &[LimitRecord]) -> metrics::Histogram {
        let mut waits = self.header.waits.read();
        let [shortest, ..] = &mut waits.buckets;
        *shortest += limits.iter().map(|limit| limit.decisions(Source::Cache)).sum::<u64>();
        waits
    }

    fn memory(&self) -> MemoryMetrics {
        let usage = self.with_table(|table, _| table.usage());
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
