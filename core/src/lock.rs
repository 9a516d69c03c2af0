//! A lock in memory that processes share, held for less than a microsecond.
//!
//! No process waits for it: one that does not get it does without. A process that dies leaves it locked, until another one finds
//! that the owner is gone, and takes the lock over: what it protects may be torn then.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often it is tried: another process has it for a moment only.
const ATTEMPTS: usize = 16;

/// A lock: the process that holds it, or 0.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ProcessLock(AtomicU64);

/// A lock that is held; released when this is dropped.
#[derive(Debug)]
pub struct ProcessGuard<'a> {
    lock: &'a ProcessLock,
    was_left: bool,
}

impl ProcessLock {
    /// Locks it for the process with the ID `own`, which is not 0. That process does not hold the lock: if its ID is there, an
    /// earlier process had the same ID, and died. `None` if another process holds it, which lives as `is_living` says.
    pub fn lock(&self, own: u32, is_living: fn(u32) -> bool) -> Option<ProcessGuard<'_>> {
        let own = u64::from(own);
        let take =
            |from| self.0.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed).err();
        let mut owner = 0;
        for _ in 0..ATTEMPTS {
            match take(0) {
                None => return Some(ProcessGuard { lock: self, was_left: false }),
                Some(other) => owner = other,
            }
            spin_loop();
        }
        let is_gone = owner == own || !u32::try_from(owner).is_ok_and(is_living);
        (is_gone && take(owner).is_none()).then(|| ProcessGuard { lock: self, was_left: true })
    }
}

impl ProcessGuard<'_> {
    /// Whether a process that had locked it has died, so that what it protects may be torn.
    pub fn was_left(&self) -> bool {
        self.was_left
    }
}

impl Drop for ProcessGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_it_at_a_time() {
        let lock = ProcessLock::default();
        let held = lock.lock(1, |_| true);
        assert!(held.as_ref().is_some_and(|guard| !guard.was_left()));
        assert!(lock.lock(2, |_| true).is_none());
        drop(held);
        assert!(lock.lock(2, |_| true).is_some_and(|guard| !guard.was_left()));
    }

    /// An owner is gone, its number is another process's, or it never was one.
    #[test]
    fn what_nobody_holds_is_taken() {
        for (owner, own) in [(2, 1), (1, 1), (u64::MAX, 1)] {
            let lock = ProcessLock(owner.into());
            let living: fn(u32) -> bool = |process| process != 2;
            assert!(lock.lock(own, living).is_some_and(|guard| guard.was_left()), "{owner}");
            assert!(lock.lock(own, living).is_some_and(|guard| !guard.was_left()), "{owner}");
        }
    }
}
