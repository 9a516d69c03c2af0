use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;
use std::thread;

use NodeState::{Open, Slow, Up};

use super::*;

/// Any time but 0, which stands for none.
const START: u64 = 1_000_000;

const DOWN: &str = "connect() failed (111: Connection refused)";
const AUTH: &str = "CLIENT SETNAME was refused: \"NOAUTH Authentication required.\"";

/// A server, the clock, and how two workers see the server.
struct Machine {
    trouble: Trouble,
    now: Cell<u64>,
    views: RefCell<Vec<NodeState>>,
}

impl Machine {
    fn new() -> Self {
        let views = RefCell::new(vec![Up; 2]);
        Self { trouble: Trouble::default(), now: Cell::new(START), views }
    }

    fn wait(&self, span: u64) {
        self.now.set(self.now.get() + span);
    }

    fn is_seen(&self, state: NodeState) -> bool {
        self.views.borrow().contains(&state)
    }

    /// A worker finds it down.
    fn fail(&self, worker: usize, reason: &str, again: bool) -> Option<String> {
        self.views.borrow_mut()[worker] = Open;
        let finding = if again { Found::Again } else { Found::First };
        self.trouble.on_down(self.now.get(), reason, finding, false)
    }

    /// A worker can use it, and publishes that.
    fn show(&self, worker: usize) -> Option<String> {
        self.views.borrow_mut()[worker] = Up;
        self.trouble.end(self.now.get(), &|state| self.is_seen(state))
    }

    /// A worker can use it, which it had found down.
    fn recover(&self, worker: usize) -> Option<String> {
        self.views.borrow_mut()[worker] = Up;
        let ends = self.trouble.find_up();
        ends.then(|| self.show(worker)).flatten()
    }

    fn slow(&self, worker: usize) -> Option<String> {
        self.views.borrow_mut()[worker] = Slow;
        self.trouble.on_slow(self.now.get(), 1_000_000)
    }

    fn prompt(&self, worker: usize) -> Option<String> {
        self.views.borrow_mut()[worker] = Up;
        self.trouble.on_prompt(self.now.get(), &|state| self.is_seen(state))
    }

    fn warn(&self) -> Option<String> {
        self.trouble.warn(self.now.get(), "refused to decide".to_owned())
    }

    fn count(&self, undecided: u32, has_answered: bool, is_leaving: bool) -> bool {
        let counts = Counts { undecided, has_answered, ..Counts::default() };
        self.trouble.on_counts(&counts, is_leaving)
    }
}

fn line(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn an_outage_ends_when_a_worker_has_found_it_up_and_all_can_use_it() {
    let machine = Machine::new();
    assert!(!machine.trouble.find_up(), "it was not down");
    machine.count(9, true, false);
    assert_eq!(machine.fail(0, DOWN, false), line(&format!("is down: {DOWN}")));
    assert_eq!(machine.fail(1, DOWN, false), None, "once for all workers");
    machine.count(3, false, false);
    machine.wait(1_500);
    assert_eq!(machine.recover(0), None, "the other one cannot use it");
    machine.wait(558);
    let up = "is up again after 2.058 s, 3 requests were not decided by it";
    assert_eq!(machine.show(1), line(up));
    assert_eq!((machine.show(0), machine.recover(1)), (None, None), "once for all workers");
}

#[test]
fn an_outage_does_not_end_unless_a_worker_has_found_it_up() {
    let machine = Machine::new();
    assert!(machine.fail(0, DOWN, false).is_some());
    assert!(machine.recover(0).is_some());
    assert!(machine.fail(0, DOWN, false).is_some());
    assert_eq!(machine.show(0), None, "that was before");
    // Nobody looks at the views of others.
    assert_eq!(machine.trouble.end(START, &|_| unreachable!()), None);
    // Another worker has found it down, and is gone.
    assert!(!machine.count(0, false, false));
    assert!(machine.count(0, true, false) && machine.show(1).is_some());
    assert!(!machine.count(0, true, false), "it is up");
    assert_eq!(machine.trouble.end(START, &|_| unreachable!()), None);
    // A worker is late, and another outage begins.
    machine.trouble.is_found_up.store(1, Ordering::Relaxed);
    assert!(machine.fail(0, DOWN, false).is_some() && machine.show(0).is_none());
}

#[test]
fn another_reason_is_logged_once_it_has_lasted() {
    let machine = Machine::new();
    assert!(machine.fail(0, DOWN, false).is_some());
    let after = |span, worker, reason| {
        machine.wait(span);
        machine.fail(worker, reason, true)
    };
    assert_eq!(after(5_000, 0, DOWN), None, "it was logged");
    assert_eq!((after(0, 0, AUTH), after(1_999, 1, AUTH)), (None, None));
    // Attempts that fail for the reason before begin the time again.
    assert_eq!((after(0, 0, DOWN), after(1, 0, AUTH), after(1_999, 0, AUTH)), (None, None, None));
    assert_eq!(after(1, 1, AUTH), line(&format!("is still down: {AUTH}")));
    assert_eq!((after(9_000, 0, AUTH), after(0, 0, DOWN)), (None, None));
    assert_eq!(after(2_000, 0, DOWN), line(&format!("is still down: {DOWN}")));
    assert_eq!((after(0, 0, AUTH), machine.recover(0)), (None, None));
    assert!(machine.recover(1).is_some());
    assert!(after(2_000, 0, DOWN).is_some());
    assert_eq!(
        (after(0, 0, AUTH), after(1_999, 0, AUTH)),
        (None, None),
        "it was of another outage"
    );
}

#[test]
fn reasons_that_differ_in_figures_are_one() {
    let machine = Machine::new();
    assert!(machine.fail(0, "no reply for 1000 ms", false).is_some());
    for reason in ["no reply for 2000 ms", "no reply for 4000 ms", "no reply for 8 ms"] {
        machine.wait(LASTING);
        assert_eq!(machine.fail(0, reason, true), None);
    }
    machine.fail(0, "no reply for 1 s", true);
    machine.wait(LASTING);
    assert!(machine.fail(0, "no reply for 2 s", true).is_some(), "another one");
}

#[test]
fn it_begins_again_when_another_worker_has_ended_it() {
    let machine = Machine::new();
    let down = line(&format!("is down: {DOWN}"));
    let outage = |again| {
        let begins = machine.fail(0, DOWN, again);
        let is_known = machine.fail(0, DOWN, true).is_none();
        (begins, is_known, machine.recover(1).or(machine.recover(0)).is_some())
    };
    assert_eq!(outage(false), (down.clone(), true, true));
    for _ in 0..4 {
        assert_eq!(outage(true), (down.clone(), true, true));
    }
    assert_eq!(outage(true), (None, true, false), "workers disagree");
    assert!(
        !machine.trouble.outages.awaits_line() && !machine.trouble.outages.has_unlogged(),
        "none began"
    );
    assert_eq!(machine.fail(0, AUTH, true), None);
    machine.wait(LASTING);
    assert_eq!(machine.fail(0, AUTH, true), None, "it is up");
    machine.wait(10_000);
    assert_eq!(outage(true), (down, true, true));
}

#[test]
fn an_outage_that_is_not_logged_at_once_is_logged_once_it_lasts_or_with_others() {
    let machine = Machine::new();
    let outage = || {
        let line = machine.fail(0, DOWN, false);
        machine.count(2, false, false);
        (line.is_some(), machine.recover(0).is_some())
    };
    assert_eq!([(); 5].map(|()| outage()), [(true, true); 5]);
    assert_eq!((outage(), machine.trouble.outages.has_unlogged()), ((false, false), true));
    assert_eq!((machine.fail(0, DOWN, false), machine.trouble.outages.awaits_line()), (None, true));
    machine.wait(1_004);
    let report = || machine.trouble.on_down(machine.now.get(), AUTH, Found::Before, true);
    assert_eq!(report(), line(&format!("is down: {AUTH}")));
    machine.wait(LASTING);
    assert_eq!((report(), machine.wait(LASTING), report()), (None, (), None), "it was logged");
    assert!(!machine.trouble.outages.awaits_line());
    assert_eq!(
        machine.recover(0),
        line("is up again after 5.004 s, 0 requests were not decided by it")
    );
    let unlogged = |at_once| machine.trouble.take_unlogged(machine.now.get(), at_once);
    assert_eq!(unlogged(false), None);
    let briefly = "was briefly down 1 times in 5.004 s, 2 requests were not decided by it";
    assert_eq!((unlogged(true), unlogged(true)), (line(briefly), None));
    assert!(!machine.trouble.outages.has_unlogged());
}

#[test]
fn what_a_worker_that_leaves_cannot_reach_is_no_outage() {
    let machine = Machine::new();
    let leave =
        |reason: &str| machine.trouble.on_down(machine.now.get(), reason, Found::First, true);
    machine.count(7, false, true);
    let what = format!("is out of reach of a worker that shuts down: {DOWN}");
    assert_eq!((leave(DOWN), leave(DOWN)), (line(&what), None), "one line for all requests");
    assert!(!machine.trouble.find_up());
    // A worker that shuts down has the others' line for an outage that they have found.
    assert!(machine.fail(0, DOWN, false).is_some());
    machine.count(4, false, true);
    assert_eq!(leave(AUTH), None);
    machine.wait(LASTING);
    assert_eq!(leave(AUTH), line(&format!("is still down: {AUTH}")));
    let up = "is up again after 2.000 s, 4 requests were not decided by it";
    assert_eq!(machine.recover(0), line(up));
}

#[test]
fn it_is_slow_once_for_all_workers_and_again_after_a_pause() {
    let machine = Machine::new();
    assert_eq!(machine.slow(0), line("is slow: no reply within 1000 ms"));
    assert_eq!((machine.slow(1), machine.prompt(0)), (None, None), "one sees it slow");
    machine.wait(2_058);
    assert_eq!(machine.prompt(1), line("is no longer slow, after 2.058 s"));
    assert_eq!(machine.prompt(0), None, "once for all workers");
    machine.wait(WARN_EVERY - 2_058 - 1);
    assert_eq!((machine.slow(0), machine.warn(), machine.prompt(0)), (None, None, None));
    machine.wait(1);
    assert!(machine.slow(0).is_some() && machine.prompt(0).is_some());
}

#[test]
fn one_that_stays_slow_takes_the_place_of_no_warning() {
    let machine = Machine::new();
    assert!(machine.slow(0).is_some());
    machine.wait(WARN_EVERY);
    assert!(machine.slow(0).is_none() && machine.warn().is_some());
}

#[test]
fn a_reason_that_was_kept_is_no_outage_of_its_own() {
    let machine = Machine::new();
    for is_leaving in [false, true] {
        let line = machine.trouble.on_down(START, DOWN, Found::Before, is_leaving);
        assert!(line.is_none() && !machine.trouble.outages.is_down());
    }
}

#[test]
fn what_is_down_is_not_slow() {
    let machine = Machine::new();
    assert!(machine.slow(0).is_some() && machine.fail(0, DOWN, false).is_some());
    assert_eq!(machine.prompt(0), None);
}

#[test]
fn warnings_are_few_whatever_they_are_of_and_whatever_the_clock_is_set_to() {
    let machine = Machine::new();
    assert_eq!(
        (machine.warn(), machine.warn(), machine.slow(0)),
        (line("refused to decide"), None, None)
    );
    machine.wait(WARN_EVERY);
    assert!(machine.slow(0).is_some() && machine.warn().is_none());
    machine.now.set(START / 2);
    assert!(machine.warn().is_some() && machine.warn().is_none());
}

#[test]
fn nothing_is_left_of_a_server_that_is_forgotten() {
    let machine = Machine::new();
    assert!(machine.slow(1).is_some() && machine.fail(0, DOWN, false).is_some());
    machine.trouble.find_up();
    machine.trouble.clear();
    assert_eq!((machine.show(0), machine.prompt(1)), (None, None));
    assert!(machine.slow(1).is_some() && machine.fail(0, DOWN, false).is_some());
}

/// Two workers publish at once that they can use it, and the last one sees both.
#[test]
fn the_last_of_two_workers_ends_it() {
    const ROUNDS: u64 = if cfg!(miri) { 100 } else { 20_000 };
    let (trouble, arrivals) = (Trouble::default(), AtomicU64::new(0));
    let is_up = [const { AtomicBool::new(false) }; 2];
    let is_seen = |_| is_up.iter().any(|is_up| !is_up.load(Ordering::Relaxed));
    // A barrier of the library would wake one long before the other.
    let meet = |number: u64| {
        arrivals.fetch_add(1, Ordering::SeqCst);
        let is_alone = || arrivals.load(Ordering::SeqCst) < 2 * number;
        while (0..1_000).all(|_| is_alone()) {
            thread::yield_now();
        }
    };
    let work = |worker: usize| {
        let mut lines = 0;
        for round in 0..ROUNDS {
            let now = START + round * WARN_EVERY;
            is_up[worker].store(false, Ordering::Relaxed);
            meet(3 * round + 1);
            if worker == 0 {
                trouble.on_down(now, DOWN, Found::First, false);
                trouble.on_slow(now, 0);
                trouble.find_up();
            }
            meet(3 * round + 2);
            is_up[worker].store(true, Ordering::Relaxed);
            let line = match round % 2 {
                0 => trouble.on_prompt(now, &is_seen),
                _ => trouble.end(now, &is_seen),
            };
            lines += line.into_iter().count();
            meet(3 * round + 3);
            // The outages that this round has not ended.
            if worker == 0 {
                trouble.clear();
            }
        }
        lines
    };
    let lines = thread::scope(|scope| {
        let workers = [0, 1].map(|worker| scope.spawn(move || work(worker)));
        workers.map(|worker| worker.join().unwrap())
    });
    assert_eq!(lines.iter().sum::<usize>() as u64, ROUNDS);
}
