//! The cost for Redis of a log, which keeps more than a few numbers for a client.

use fastrand::Rng;
use rate_limit_core::limit::{Algorithm, MAX_LOG, Quota};
use redis::{RedisResult, Value};

use crate::lab::{Charge, Lab, Step};

/// A key as it may be found in the field.
const KEY: &str = "rl:default:203.0.113.195";
const NOW: u64 = 1_700_000_000_000_000;
const MINUTE: u64 = 60_000_000;

/// `limit` a minute, at most `limit` at once.
fn quota(algorithm: Algorithm, limit: u64) -> Quota {
    Quota::new(algorithm, format!("{limit}r/m").parse().unwrap(), limit).unwrap()
}

fn step(algorithm: Algorithm, limit: u64, now: u64, cost: u64) -> Step {
    Step::charge(now, vec![Charge::new(KEY.to_owned(), quota(algorithm, limit), cost)])
}

/// Spends all of the limit, one by one and evenly over the minute before `NOW`.
fn fill(lab: &mut Lab, algorithm: Algorithm, limit: u64) {
    let steps = (0..limit).rev().map(|left| step(algorithm, limit, NOW - left * MINUTE / limit, 1));
    for batch in steps.collect::<Vec<_>>().chunks(5_000) {
        lab.run_unseen(batch);
    }
}

#[test]
fn a_log_never_has_more_entries_than_its_limit() {
    let mut rng = Rng::new();
    for limit in [1, 2, 7, 100] {
        let (mut lab, mut now) = (Lab::new(), NOW);
        for _ in 0..10 {
            let mut next = || {
                let gap = rng.u64(0..2 * MINUTE / limit);
                now = if rng.u32(0..50) == 0 { now - gap } else { now + gap };
                step(Algorithm::SlidingLog, limit, now, rng.u64(0..=2))
            };
            let steps: Vec<Step> = (0..200).map(|_| next()).collect();
            for outcome in lab.run(&steps) {
                assert!(outcome.lengths[0] as u64 <= limit, "{limit}: {outcome:?}");
            }
        }
    }
}

/// If many entries are later, it comes off the oldest ones, and is no more than was spent until then.
#[test]
fn what_is_given_back_late_is_no_more_than_was_spent_by_then() {
    for (since, remaining) in [(MINUTE * 9 / 10, 10), (MINUTE / 2, 50), (MINUTE, 0)] {
        let mut lab = Lab::new();
        fill(&mut lab, Algorithm::SlidingLog, 100);
        let charge = Charge::new(KEY.to_owned(), quota(Algorithm::SlidingLog, 100), 60);
        let step = Step::give_back(NOW, charge, NOW - since);
        let left = lab.run(&[step])[0].verdicts[0].map(|verdict| verdict.remaining);
        assert_eq!(left, Some(remaining), "{since} µs ago");
    }
}

/// A decision must not stall Redis, however long the log is. The numbers, which are printed, are in
/// docs/algorithms.md; what is asserted holds on any machine.
#[test]
fn a_decision_on_the_longest_log_is_no_stall() {
    let mut lab = Lab::new();
    fill(&mut lab, Algorithm::SlidingLog, MAX_LOG);
    report_memory(&mut lab, MAX_LOG);
    command(&mut lab, &["COPY", KEY, "full"]).expect("a copy");

    let interval = MINUTE / MAX_LOG;
    let charge = |now, cost| step(Algorithm::SlidingLog, MAX_LOG, now, cost);
    let give_back = |since, cost| Step { gives_back: true, since, ..charge(NOW, cost) };
    let mut now = NOW;
    time(&mut lab, "one forgotten and one written", |_| {
        now += interval;
        charge(now, 1)
    });
    let costs = [1, MAX_LOG / 3, MAX_LOG / 2, MAX_LOG];
    time(&mut lab, "rejected", |n| charge(NOW, costs[n % costs.len()]));
    time(&mut lab, "half of the log forgotten", |_| charge(NOW + MINUTE / 2, 1));
    time(&mut lab, "cost 0 where half of it is to be", |_| charge(NOW + MINUTE / 2, 0));
    time(&mut lab, "all of it forgotten", |_| charge(NOW + 2 * MINUTE, 1));
    time(&mut lab, "the clock stepped back", |_| charge(NOW - MINUTE / 2, 0));
    time(&mut lab, "given back", |n| give_back(NOW, costs[n % costs.len()]));
    time(&mut lab, "given back, many are later", |n| {
        give_back(NOW - MINUTE / 2, costs[n % costs.len()])
    });
}

/// Takes the time of some steps, each on a full log.
fn time(lab: &mut Lab, what: &str, mut next: impl FnMut(usize) -> Step) {
    let mut times: Vec<u64> = (0..100)
        .map(|n| {
            command(lab, &["COPY", "full", KEY, "REPLACE"]).expect("a full log");
            measure(lab, next(n))
        })
        .collect();
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: median {median} µs, most {most} µs");
    assert!(median < 50_000, "{what}: {times:?}");
}

/// The time that Redis takes for one step, in µs: by its own clock, without what the network
/// takes, but with what the test's notes do.
fn measure(lab: &mut Lab, step: Step) -> u64 {
    command(lab, &["CONFIG", "RESETSTAT"]).expect("an OK");
    lab.run(&[step]);
    let stats = command(lab, &["INFO", "commandstats"]).expect("statistics");
    let stats: String = redis::from_redis_value(stats).expect("a text");
    let usec = stats.split_once("cmdstat_evalsha:").and_then(|(_, rest)| rest.split_once("usec="));
    let (usec, _) = usec.and_then(|(_, rest)| rest.split_once(',')).expect("the time of EVALSHA");
    usec.parse().expect("a number of µs")
}

/// The memory in Redis of a client that spends at the rate, its key included.
#[test]
fn a_client_takes_little_memory() {
    for algorithm in Algorithm::ALL {
        let mut lab = Lab::new();
        fill(&mut lab, algorithm, 100);
        println!("{algorithm:?}: {} bytes", memory(&mut lab));
        assert!(algorithm.stores_itself() || memory(&mut lab) <= 150, "{algorithm:?}");
    }
    for limit in [100, 1_000, 10_000] {
        let mut lab = Lab::new();
        fill(&mut lab, Algorithm::SlidingLog, limit);
        report_memory(&mut lab, limit);
    }
}

fn report_memory(lab: &mut Lab, limit: u64) {
    assert_eq!(command(lab, &["LLEN", KEY]), Ok(Value::Int(limit as i64)));
    let bytes = memory(lab);
    println!("a log of {limit}: {bytes} bytes, {} an entry", bytes / limit);
    assert!(bytes / limit < 100, "{limit} {bytes}");
}

/// The memory of the key, in bytes.
fn memory(lab: &mut Lab) -> u64 {
    let usage = command(lab, &["MEMORY", "USAGE", KEY, "SAMPLES", "0"]).expect("a usage");
    redis::from_redis_value(usage).expect("a number")
}

fn command(lab: &mut Lab, words: &[&str]) -> RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(lab.connection())
}
