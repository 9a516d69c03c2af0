//! Script and reference decide the same.

use std::ops::RangeInclusive;

use fastrand::Rng;
use rate_limit_core::algorithm::Algorithm;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::Quota;
use rate_limit_core::rate::MAX_EXACT;

use crate::lab::{Asked, Lab, Outcome, Step, Write};
use crate::model::{Expected, Kept, Model};
use crate::traffic::{self, Traffic, magnitude};

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
const NOW: u64 = 1_700_000_000_000_000;

/// Spends all at once, then, so that what is left is no whole µs, one more as soon as it comes
/// back; then looks at some of the moments at which more does, and just before; and again after
/// some of it is given back.
fn edges(rng: &mut Rng, model: &mut Model, quota: Quota) -> Vec<(Step, Expected)> {
    let (limit, mut now) = (quota.limit(), NOW);
    let mut history = Vec::new();
    let mut take = |step: Step| {
        let expected = model.decide(&step);
        let retry = expected.verdicts[0].retry;
        history.push((step, expected));
        if let Retry::After(micros) = retry { micros } else { 0 }
    };
    let asked = |cost| vec![asked(quota, cost)];
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

/// Likewise for what is asked so often that the last one just passes, or just does not.
#[test]
fn edges_of_many_at_once() {
    let mut rng = Rng::with_seed(seed());
    for algorithm in of_strings() {
        let (mut lab, mut model) = (Lab::new(), Model::default());
        for round in 0..length() / 20 {
            let quota = match round % 2 {
                0 => traffic::large_quota(&mut rng, algorithm),
                _ => traffic::quota(&mut rng, algorithm),
            };
            check(&mut lab, many_at_once(&mut rng, &mut model, quota));
            model.forget(KEY);
            redis::cmd("DEL").arg(KEY).exec(lab.connection()).unwrap();
        }
    }
}

/// Spends all at once, then asks at the very moment at which some cost can be paid so often, or
/// just before it, for one more than that.
fn many_at_once(rng: &mut Rng, model: &mut Model, quota: Quota) -> Vec<(Step, Expected)> {
    let limit = quota.limit();
    let times = magnitude(rng, limit.min(1_000));
    let cost = rng.u64(1..=limit / times);
    let mut history = Vec::new();
    let mut take = |step: Step| {
        let expected = model.decide(&step);
        let retry = expected.verdicts[0].retry;
        history.push((step, expected));
        if let Retry::After(micros) = retry { NOW + micros } else { NOW }
    };
    take(Step::ask(NOW, vec![asked(quota, limit)]));
    let due = take(Step::ask(NOW, vec![asked(quota, cost * times)]));
    take(Step::ask_times(due - rng.u64(0..=1), asked(quota, cost), times as u32 + 1));
    history
}

/// Whatever lies under a key, the reference takes for what the script takes it for.
#[test]
fn foreign_contents() {
    let mut rng = Rng::with_seed(seed());
    for algorithm in of_strings() {
        let (mut lab, mut model) = (Lab::new(), Model::default());
        for _ in 0..length() / 20 {
            let text = foreign(&mut rng);
            redis::cmd("SET").arg(KEY).arg(&text).exec(lab.connection()).unwrap();
            model.store(KEY, algorithm.read(text.as_bytes()));
            let quota = traffic::quota(&mut rng, algorithm);
            let asked = asked(quota, rng.u64(0..=quota.limit()));
            let step = match rng.u32(0..3) {
                0 => Step::ask(NOW, vec![asked]),
                1 => Step::give_back(NOW, vec![asked]),
                _ => Step::ask_times(NOW, asked, rng.u32(1..4)),
            };
            let expected = model.decide(&step);
            check(&mut lab, vec![(step, expected)]);
        }
    }
}

/// A few numbers, or what looks like some.
fn foreign(rng: &mut Rng) -> String {
    let word = |rng: &mut Rng| match rng.u32(0..12) {
        0 => String::new(),
        1 => "x".to_owned(),
        2 => "1e9".to_owned(),
        3 => "9".repeat(rng.usize(16..30)),
        4 => "9".repeat(400),
        5 => "0".repeat(rng.usize(1..30)) + "7",
        6 => (MAX_EXACT + rng.u64(0..4)).to_string(),
        7 => (u64::MAX - rng.u64(0..4)).to_string(),
        8 => (NOW - magnitude(rng, NOW / 2)).to_string(),
        9 => (NOW + magnitude(rng, NOW)).to_string(),
        10 => (NOW / magnitude(rng, NOW)).to_string(),
        _ => rng.u64(0..100).to_string(),
    };
    let words: Vec<String> = (0..rng.usize(1..=4)).map(|_| word(rng)).collect();
    words.join(" ") + ["", "", "", " ", "\n"][rng.usize(0..5)]
}

/// The algorithms that keep a string.
fn of_strings() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.stores_itself())
}

fn asked(quota: Quota, cost: u64) -> Asked {
    Asked { key: KEY.to_owned(), quota, cost }
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
    let told = outcome.verdicts.iter().zip(&expected.verdicts);
    if outcome.verdicts.len() != expected.verdicts.len()
        || told.filter_map(|(told, verdict)| Some((told.as_ref()?, verdict))).any(|(a, b)| a != b)
    {
        return Err("the script decides otherwise");
    }
    let ttls = outcome.writes.iter().map(|(key, write)| (key, write.ttl));
    if !ttls.eq(expected.writes.iter().map(|(key, kept)| (key, kept.ttl))) {
        return Err("the script writes other keys, or for another time");
    }
    let mut writes = outcome.writes.values().zip(expected.writes.values());
    if !writes.all(|(write, kept)| is_same(write, kept)) {
        return Err("the script writes another state");
    }
    if outcome.lengths != expected.lengths {
        return Err("the script forgets other entries");
    }
    if !outcome.writes.values().all(is_right) {
        return Err("the script writes what it should not");
    }
    Ok(())
}

/// Whether the state that was written is the expected one, as far as one can tell: a log is known
/// by its length.
fn is_same(write: &Write, kept: &Kept) -> bool {
    let state = || kept.algorithm.read(write.state.as_bytes());
    kept.algorithm.stores_itself() || state() == kept.state
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
