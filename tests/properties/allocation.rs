//! Nothing is allocated while other workers wait for the table of local decisions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;

use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::key::{Digest, Head};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::local::{self, LocalAnswer, LocalCharges, Mode};
use rate_limit_core::table::Table;

const NOW: u64 = 1_700_000_000_000_000;

/// Counts for each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all of it is done by the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

fn allocations(act: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    act();
    COUNT.get() - before
}

/// A charge of a client whose digest is of its own.
fn charge<'a>(template: &'a Rc<Template>, key: &'a [u8; 1], quota: &'a Quota) -> Charge<'a> {
    let number = u128::from(key[0]);
    let digest = Digest::new(number << 120 | number << 56, quota);
    Charge { digest, ..Charge::new(template, key, quota, 1) }
}

#[test]
fn a_decision_allocates_nothing_but_logs() {
    let mut words = vec![0; 10_000];
    let mut table = Table::open(&mut words);
    let of = |algorithm| Quota::new(algorithm, "2r/s".parse().unwrap(), 2).unwrap();
    let few = Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.stores_itself());
    let limits: Vec<_> =
        few.cycle().take(40).map(of).zip((1_u8..).map(|number| [number])).collect();
    let template = Rc::new(Template::new(Head::new("rl:", "a").unwrap(), None));
    let charges = || -> LocalCharges<'_> {
        limits.iter().map(|(quota, key)| (charge(&template, key, quota), 0)).collect()
    };
    // The second checks what the first has charged, and gives it back.
    for mode in [Mode::Outage, Mode::Return] {
        let mut charges = charges();
        let made = allocations(|| {
            local::decide(&mut table, NOW, mode, &mut charges);
        });
        assert_eq!(made, 0, "{mode:?}");
        let checked = charges.iter().filter(|charge| charge.answer() != LocalAnswer::Unchecked);
        assert_eq!(checked.count(), limits.len(), "{mode:?}");
        if mode == Mode::Return {
            assert_eq!(allocations(|| local::give_back(&mut table, NOW, &mut charges)), 0);
        }
    }
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1, "the allocator counts");
}
