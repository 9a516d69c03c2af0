//! Reservations that are not settled yet, of each worker: those of a worker that is gone are counted as
//! lost.

use std::sync::atomic::{AtomicU64, Ordering};

use rate_limit_core::metrics::SettlementResult;

use super::Shared;
use super::record::LimitRecord;
use super::worker::{may_be_living, process_id};

/// How many pairs of a worker and a limit there is room for. Reservations of any more are not known to be
/// lost.
const PAIRS: usize = 512;

/// For each pair of a worker and a limit the number of its reservations.
#[repr(transparent)]
pub(super) struct Reserved([Pair; PAIRS]);

#[repr(C)]
struct Pair {
    /// The worker's process in the upper half, the number of the limit from 1 on in the lower; 0 if it is
    /// free.
    owner: AtomicU64,
    reservations: AtomicU64,
}

/// Where a worker counts the reservations of a limit, and what becomes of them.
#[derive(Clone, Copy)]
pub(crate) struct Reservations {
    limit: &'static LimitRecord,
    pair: Option<&'static Pair>,
}

impl Reservations {
    /// Counts a reservation.
    pub(crate) fn add(self) {
        if let Some(pair) = self.pair {
            pair.reservations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A reservation has ended with this result.
    pub(crate) fn end(self, result: SettlementResult) {
        self.stand();
        self.limit.count_settlements(result, 1);
    }

    /// A reservation stays as it was charged.
    pub(crate) fn stand(self) {
        if let Some(pair) = self.pair {
            // Another worker may have counted it as lost.
            let less = |count: u64| count.checked_sub(1);
            pair.reservations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok();
        }
    }

    /// Whether these are of the same limit.
    pub(crate) fn is_same(self, other: Self) -> bool {
        std::ptr::eq(self.limit, other.limit)
    }
}

impl Shared {
    /// Where this worker counts the reservations of the limit of this record.
    pub(crate) fn reservations(&self, limit: &'static LimitRecord) -> Reservations {
        let pair = self.number(limit).and_then(|number| {
            let owner = owner(process_id(), number);
            let pairs = &self.header.reserved.0;
            let own = pairs.iter().find(|pair| pair.owner.load(Ordering::Relaxed) == owner);
            own.or_else(|| pairs.iter().find(|pair| pair.take(owner)))
        });
        Reservations { limit, pair }
    }

    /// Counts what workers that are gone have not settled.
    pub(crate) fn count_lost(&self) {
        self.lose(|process| !may_be_living(process));
    }

    /// Counts what nobody will settle any more of this worker's process: when it ends, and when it begins, as a process
    /// that was killed may have had the same number.
    pub(crate) fn give_up(&self) {
        self.lose(|process| process == process_id());
    }

    fn lose(&self, is_gone: impl Fn(u32) -> bool) {
        for pair in &self.header.reserved.0 {
            let owner = pair.owner.load(Ordering::Relaxed);
            let (process, number) = ((owner >> u32::BITS) as u32, owner as u32 as usize);
            if owner == 0 || !is_gone(process) {
                continue;
            }
            // Another worker may do the same: only one of them gets the number.
            let lost = pair.reservations.swap(0, Ordering::Relaxed);
            if let Some(limit) = number.checked_sub(1).and_then(|index| self.limits.get(index)) {
                limit.count_settlements(SettlementResult::Lost, lost);
            }
            // If this fails another worker has freed it, and perhaps a third one taken it.
            pair.owner.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }
}

impl Pair {
    /// Takes it if it is free.
    fn take(&self, owner: u64) -> bool {
        self.owner.compare_exchange(0, owner, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

fn owner(process: u32, number: usize) -> u64 {
    (u64::from(process) << u32::BITS) | (number as u64).saturating_add(1)
}
