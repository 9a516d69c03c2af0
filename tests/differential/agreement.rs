//! Script and reference decide the same.

use std::ops::RangeInclusive;

use fastrand::Rng;
use rate_limit_core::algorithm::Algorithm;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::Quota;

use crate::lab::{Asked, Lab, Outcome, Step, Write};
use crate::model::{Expected, Model};
use crate::traffic::{self, Traffic};

/// How many steps go to Redis at once.
const BATCH: usize = 500;

/// The longest value that is stored for a client.
const MAX_STATE: usize = 50;

#[test]
fn one_limit() {
    for algorithm in Algorithm::ALL {
        agree(&[algorithm], 1..=1, length());
    }
}

/// With a client for each algorithm, of some two, some of the up to four limits share a key.
#[test]
fn several_limits() {
    let mut algorithms = Algorithm::ALL.to_vec();
    algorithms.extend([Algorithm::TokenBucket, Algorithm::SlidingLog]);
    agree(&algorithms, 2..=4, length());
    for algorithm in Algorithm::ALL {
        agree(&[algorithm], 2..=3, length() / 10);
    }
}

/// Where the numbers are so large that a double rounds their products, a decision at the very
/// µs at which something comes back is where it would show.
#[test]
fn edges_of_large_numbers() {
    let mut rng = Rng::with_seed(seed());
    for algorithm in Algorithm::ALL {
        let (mut lab, mut model) = (Lab::new(), Model::default());
        for _ in 0..length() / 40 {
            let quota = traffic::large_quota(&mut rng, algorithm);
            check(&mut lab, edges(&mut rng, &mut model, quota));
            model.forget(KEY);
            redis::cmd("DEL").arg(KEY).exec(lab.connection()).unwrap();
        }
    }
}

const KEY: &str = "rl:name:key";

/// Spends all at once, then, so that what is left is no whole µs, one more as soon as it comes
/// back; then looks at some of the moments at which more does, and just before; and again after
/// some of it is given back.
fn edges(rng: &mut Rng, model: &mut Model, quota: Quota) -> Vec<(Step, Expected)> {
    let (limit, mut now) = (quota.limit(), 1_700_000_000_000_000);
    let mut history = Vec::new();
    let mut take = |step: Step| {
        let expected = model.decide(&step);
        let retry = expected.verdicts[0].retry;
        history.push((step, expected));
        if let Retry::After(micros) = retry { micros } else { 0 }
    };
    let asked = |cost| vec![Asked { key: KEY.to_owned(), quota, cost }];
    take(Step::ask(now, asked(limit)));
    now += take(Step::ask(now, asked(1)));
    take(Step::ask(now, asked(1)));
    for round in 0..8 {
        if round >= 4 {
            take(Step::give_back(now, asked(rng.u64(1..=limit / 8 + 1))));
        }
        let due = now + take(Step::ask(now, asked(rng.u64(1..=limit))));
        take(Step::ask(due - 1, asked(0)));
        take(Step::ask(due, asked(0)));
    }
    history
}

fn agree(algorithms: &[Algorithm], limits: RangeInclusive<usize>, length: usize) {
    let mut rng = Rng::with_seed(seed());
    let (mut lab, mut model) = (Lab::new(), Model::default());
    let mut traffic = Traffic::new(rng.fork(), algorithms);
    for _ in 0..length / BATCH {
        let mut next = |_| {
            let step = traffic.step(rng.usize(limits.clone()), &mut model);
            let expected = model.decide(&step);
            traffic.learn(&step, &expected.verdicts);
            (step, expected)
        };
        check(&mut lab, (0..BATCH).map(&mut next).collect());
    }
}

/// Runs a history, and panics with what led to it where the script does not do as expected.
fn check(lab: &mut Lab, history: Vec<(Step, Expected)>) {
    let (steps, expected): (Vec<Step>, Vec<Expected>) = history.into_iter().unzip();
    let outcomes = lab.run(&steps);
    for (index, (outcome, expected)) in outcomes.iter().zip(&expected).enumerate() {
        if let Err(what) = compare(outcome, expected) {
            let before = &steps[index.saturating_sub(5)..=index];
            panic!("{what}:\n{outcome:#?}\n{expected:#?}\nafter these steps:\n{before:#?}");
        }
    }
}

fn compare(outcome: &Outcome, expected: &Expected) -> Result<(), &'static str> {
    if !outcome.verdicts.iter().map(Option::as_ref).eq(expected.verdicts.iter().map(Some)) {
        return Err("the script decides otherwise");
    }
    let ttls = outcome.writes.iter().map(|(key, write)| (key, write.ttl));
    if !ttls.eq(expected.writes.iter().map(|(key, ttl)| (key, *ttl))) {
        return Err("the script writes other keys, or for another time");
    }
    if outcome.lengths != expected.lengths {
        return Err("the script forgets other entries");
    }
    if !outcome.writes.values().all(is_right) {
        return Err("the script writes what it should not");
    }
    Ok(())
}

/// Whether a write is one that Redis takes, or deletes a log.
fn is_right(write: &Write) -> bool {
    if write.ttl == 0 { write.state.is_empty() } else { is_readable(&write.state) }
}

/// Whether a stored value is a few plain numbers.
fn is_readable(state: &str) -> bool {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    state.len() <= MAX_STATE && state.split(' ').all(number)
}

/// The seed of a test, shown if it fails.
fn seed() -> u64 {
    let seed = env("RATE_LIMIT_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("RATE_LIMIT_SEED={seed} RATE_LIMIT_STEPS={}", length());
    seed
}

/// About how many steps a history has.
fn length() -> usize {
    env("RATE_LIMIT_STEPS").map_or(10_000, |steps| steps as usize)
}

fn env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
