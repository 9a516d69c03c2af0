//! The keys of each limit that were rejected most, in a zone of their own: without the directive it takes no memory, and
//! another number of keys changes nothing but this.
//!
//! ```text
//! a sketch for each limit: its lock | its limit | the words of a Top
//! ```
//!
//! Where another worker has the lock, a rejection is not counted. What a worker that dies leaves locked, another one empties.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use ngx::ffi::{ngx_int_t, ngx_pagesize, ngx_shm_zone_t};
use rate_limit_core::charge::Effect;
use rate_limit_core::conf::MOST_TOP_KEYS;
use rate_limit_core::key;
use rate_limit_core::lock::ProcessLock;
use rate_limit_core::top::{Top, TopKey};

use super::worker::{may_be_living, process_id};
use super::zone::{self, Zone};
use crate::clock::turn_start;
use crate::machine::LimitedRequest;
use crate::nginx::Conf;

/// The name of the zone.
static NAME: [u8; 20] = *b"rate_limit_redis_top";

/// The tag of the zone is the address of one of these, by the number of keys: so memory with another number of them is
/// not used again after a reload.
static TAGS: [u8; MOST_TOP_KEYS + 1] = [0; MOST_TOP_KEYS + 1];

/// The first words of a sketch.
#[repr(C)]
struct Head {
    lock: ProcessLock,
    /// A hash of the name of its limit; 0: it is free. It is changed under both locks.
    limit: AtomicU64,
}

/// The zone, mapped.
#[derive(Clone, Copy)]
pub(crate) struct TopZone {
    zone: Zone,
    start: NonNull<u64>,
    /// How many sketches there are.
    sketches: usize,
    /// How many keys each of them has.
    n: usize,
}

/// Adds the zone for `limits` limits of `n` keys each to the configuration that is being read, which gets it once it is
/// mapped. `None` if NGINX cannot add it.
pub(crate) fn add_zone(cf: &mut Conf, n: usize, limits: usize) -> Option<()> {
    let bytes = sketch_words(n).checked_mul(limits)?.checked_mul(size_of::<u64>())?;
    // SAFETY: NGINX sets the size of a page before it reads a configuration.
    let page = unsafe { ngx_pagesize };
    // NGINX keeps some words for each page, and some pages.
    let size = bytes.checked_add(bytes / 64)?.checked_add(page.checked_mul(16)?)?;
    zone::add(cf, &NAME, TAGS.get(n)?, size.next_multiple_of(page), Some(on_mapped))
}

unsafe extern "C" fn on_mapped(zone: *mut ngx_shm_zone_t, _old: *mut c_void) -> ngx_int_t {
    // SAFETY: NGINX passes a zone that was added with this function, and for this number of keys: else it would have another
    // tag. It stays mapped.
    unsafe {
        Zone::on_mapped(zone, |conf, zone| {
            let top = TopZone::open(zone, conf.top_keys.unwrap_or(0));
            top.is_some_and(|top| conf.top.set(top).is_ok())
        })
    }
}

fn sketch_words(n: usize) -> usize {
    (size_of::<Head>() / size_of::<u64>()).saturating_add(Top::words(n))
}

impl TopZone {
    /// The memory of a zone of `n` keys a limit.
    ///
    /// # Safety
    /// The zone must have been made for `n` keys. If it is new nobody else must use it yet.
    unsafe fn open(zone: Zone, n: usize) -> Option<Self> {
        // SAFETY: if the zone is new, nobody else uses it, by contract.
        let (start, size) = unsafe { zone.block()? };
        let sketches = size / size_of::<u64>() / sketch_words(n);
        Some(Self { zone, start: start.cast(), sketches, n })
    }

    /// Gives each of these limits a sketch: its own, a free one, or that of a limit which is gone. An old worker may count in
    /// the latter at this moment: then it is the next one.
    pub(crate) fn register<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let limits: Vec<_> = names.map(identity).collect();
        let register = |limit| {
            let is_free = |other| other == 0 || !limits.contains(&other);
            let take = |index| {
                self.with(index, |head, top| {
                    top.clear();
                    head.limit.store(limit, Ordering::Relaxed);
                })
            };
            if self.find(limit).is_none() {
                self.positions(is_free).find_map(take);
            }
        };
        self.zone.locked(|| limits.iter().copied().for_each(register));
    }

    /// Counts the limits that have rejected the request.
    pub(crate) fn count(&self, request: &LimitedRequest<'_>) {
        let now = turn_start();
        for limit in request.group(Effect::Enforced).filter(|limit| limit.is_violated()) {
            let own = limit.line.sketch(self);
            if let Some(index) = own.index {
                self.with(index, |head, top| {
                    // A sketch may have been given to another limit, by a later configuration.
                    if head.limit.load(Ordering::Relaxed) == own.limit {
                        top.add(limit.charge.client() as u64, limit.charge.key, now);
                    }
                });
            }
        }
    }

    /// The keys of the limit of this name that were rejected most, the first one most often; none while another
    /// process has locked them.
    pub(crate) fn list(&self, name: &str) -> Vec<TopKey> {
        let list = |index| self.with(index, |_, top| top.list(turn_start()));
        self.find(identity(name)).and_then(list).unwrap_or_default()
    }

    /// The sketch of the limit of this name.
    pub(crate) fn sketch(&self, name: &str) -> Sketch {
        let limit = identity(name);
        Sketch { limit, index: self.find(limit) }
    }

    fn find(&self, limit: u64) -> Option<usize> {
        self.positions(|other| other == limit).next()
    }

    fn positions(&self, is_it: impl Fn(u64) -> bool) -> impl Iterator<Item = usize> {
        let limit =
            |index: &usize| self.head(*index).map(|head| head.limit.load(Ordering::Relaxed));
        (0..self.sketches).filter(move |index| limit(index).is_some_and(&is_it))
    }

    /// Where a sketch begins.
    fn at(&self, index: usize) -> Option<NonNull<u64>> {
        let offset = sketch_words(self.n).checked_mul(index).filter(|_| index < self.sketches)?;
        // SAFETY: so many sketches fit into the block.
        Some(unsafe { self.start.add(offset) })
    }

    fn head(&self, index: usize) -> Option<&'static Head> {
        // SAFETY: a sketch begins with it, stays mapped, and its bits are only used as atomics.
        Some(unsafe { self.at(index)?.cast::<Head>().as_ref() })
    }

    /// Runs `act` with a sketch, locked. `None` if there is none, or another process has it.
    fn with<T>(&self, index: usize, act: impl FnOnce(&Head, &mut Top<'_>) -> T) -> Option<T> {
        let head = self.head(index)?;
        let guard = head.lock.lock(process_id(), may_be_living)?;
        // SAFETY: the words behind the head are those of this sketch, and only used by the process that has locked it.
        let words = unsafe {
            let first = self.at(index)?.add(size_of::<Head>() / size_of::<u64>());
            std::slice::from_raw_parts_mut(first.as_ptr(), Top::words(self.n))
        };
        let mut top = Top::new(words, self.n)?;
        if guard.was_left() {
            top.clear();
        }
        Some(act(head, &mut top))
    }
}

/// The sketch of a limit, if there was room for one.
#[derive(Clone, Copy)]
pub(crate) struct Sketch {
    limit: u64,
    index: Option<usize>,
}

/// Stands for the limit of this name.
fn identity(name: &str) -> u64 {
    key::fingerprint(name.as_bytes()).max(1)
}
