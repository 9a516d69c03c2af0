//! A deterministic simulation: servers, a network and a clock, all of which follow from a seed.

mod cost;
mod queue;
mod resp;

mod database;
mod lua;
mod script;

mod journal;
mod server;
mod slots;

mod cluster;
mod deployment;
mod replication;
mod sentinel;

mod fault;
mod network;
mod world;

mod lease;
mod ledger;
mod traffic;
mod watch;
mod worker;

mod simulation;

mod fleet;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So many steps are run each time.
const STEPS: u64 = 1_000_000;

/// How many threads run histories.
const THREADS: usize = 2;

/// Which seeds are run, and for how long.
#[derive(Clone, Copy)]
struct Plan {
    first: u64,
    /// Ends after so many steps, or after this time.
    steps: u64,
    time: Duration,
    is_traced: bool,
}

impl Plan {
    /// The variables that `scripts/simulate` puts into the environment.
    fn from_environment() -> Self {
        let number = |name: &str| {
            let text = std::env::var(format!("RATE_LIMIT_SIMULATION_{name}")).ok()?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number")))
        };
        let long = Duration::from_secs(1 << 30);
        let (first, seconds) = (number("SEED"), number("SECONDS"));
        let is_traced = number("TRACE").is_some();
        match seconds.map(Duration::from_secs) {
            Some(time) => Self { first: first.unwrap_or(1), steps: u64::MAX, time, is_traced },
            // One history.
            None if first.is_some() => {
                Self { first: first.unwrap_or(1), steps: 1, time: long, is_traced }
            }
            None => Self { first: 1, steps: STEPS, time: long, is_traced },
        }
    }
}

/// Runs one seed after the other; each thread takes the next one.
#[test]
fn histories_keep_all_promises() {
    let plan = Plan::from_environment();
    let (next, steps, failed) = (AtomicU64::new(plan.first), AtomicU64::new(0), AtomicU64::new(0));
    let (decided, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let hits = AtomicU64::new(0);
    let started = Instant::now();
    let threads = if plan.steps == 1 { 1 } else { THREADS };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failed.load(Ordering::Relaxed) == 0
                    && steps.load(Ordering::Relaxed) < plan.steps
                    && started.elapsed() < plan.time
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match catch_unwind(AssertUnwindSafe(|| simulation::run(seed, plan.is_traced))) {
                        Ok(report) => {
                            steps.fetch_add(report.steps, Ordering::Relaxed);
                            decided.fetch_add(report.decided, Ordering::Relaxed);
                            lost.fetch_add(report.lost_replies, Ordering::Relaxed);
                            hits.fetch_add(report.hits, Ordering::Relaxed);
                        }
                        Err(_) => {
                            eprintln!("To replay it: scripts/simulate --seed {seed}");
                            failed.store(seed, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    println!(
        "{} histories, {} steps, {} requests decided, {} by leases, {} replies lost, {:?}",
        next.into_inner() - plan.first,
        steps.into_inner(),
        decided.into_inner(),
        hits.into_inner(),
        lost.into_inner(),
        started.elapsed(),
    );
    assert_eq!(failed.into_inner(), 0, "the seed of a history that failed");
}
