//! Histories, one seed after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::simulation::{self, Report};

/// So many steps are run each time.
pub const STEPS: u64 = 1_000_000;

/// How many threads run histories.
const THREADS: usize = 2;

/// Which histories are run.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first seed.
    pub first: u64,
    pub end: End,
    /// Whether each event of a worker is shown.
    pub is_traced: bool,
}

/// When no other history begins.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// After the first one.
    First,
    /// After so many steps.
    Steps(u64),
    /// After this time.
    Time(Duration),
}

/// How far the histories have come.
struct Course {
    started: Instant,
    next: u64,
    histories: u64,
    sum: Report,
    failed: Vec<u64>,
}

impl Course {
    /// The seed of the next history, if there is one.
    fn next(&mut self, end: &End) -> Option<u64> {
        let is_over = match *end {
            End::First => self.histories == 1,
            End::Steps(steps) => self.sum.steps >= steps,
            End::Time(time) => self.started.elapsed() >= time,
        };
        if is_over || !self.failed.is_empty() {
            return None;
        }
        let seed = self.next;
        self.next = seed.wrapping_add(1);
        self.histories += 1;
        Some(seed)
    }
}

/// Runs one seed after the other; each thread takes the next one. The error is a message.
pub fn run(plan: &Plan) -> Result<(), String> {
    let (started, next) = (Instant::now(), plan.first);
    let (sum, failed) = (Report::default(), Vec::new());
    let course = Mutex::new(Course { started, next, histories: 0, sum, failed });
    let lock = || course.lock().expect("no panic while it is locked");
    let take_turns = || {
        loop {
            // Not in the condition of a loop, which would keep the lock.
            let Some(seed) = lock().next(&plan.end) else { return };
            match catch_unwind(AssertUnwindSafe(|| simulation::run(seed, plan.is_traced))) {
                Ok(report) => lock().sum.add(&report),
                Err(_) => lock().failed.push(seed),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(take_turns);
        }
    });
    let Course { histories, sum, failed, .. } = &*lock();
    println!(
        "{histories} histories, {} steps, {} requests decided, {} by leases, {} replies lost, {:?}",
        sum.steps,
        sum.decided,
        sum.hits,
        sum.lost_replies,
        started.elapsed(),
    );
    if failed.is_empty() {
        return Ok(());
    }
    let lines = failed.iter().map(|seed| format!("scripts/simulate --seed {seed}"));
    Err(format!("a history failed; to replay it: {}", lines.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_keep_all_promises() {
        run(&Plan { first: 1, end: End::Steps(STEPS), is_traced: false }).expect("no failure");
    }
}
