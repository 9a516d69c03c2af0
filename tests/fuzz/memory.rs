//! Counts what a run allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, counted.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

thread_local! {
    /// Bytes that are allocated, and the most that ever were, since the count began.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The most bytes that were allocated at one time during `act`, beyond those before it.
pub fn most_allocated(act: impl FnOnce()) -> usize {
    ALLOCATED.set((0, 0));
    act();
    ALLOCATED.get().1
}

fn count(allocated: usize, freed: usize) {
    let (now, most) = ALLOCATED.get();
    // Memory that was allocated before the count began may be freed.
    let now = now.saturating_add(allocated).saturating_sub(freed);
    ALLOCATED.set((now, most.max(now)));
}

// SAFETY: the system's allocator does everything; a count allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, size) }
    }
}
