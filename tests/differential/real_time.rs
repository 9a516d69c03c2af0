//! The scripts as they are, under the clock of Redis.

use std::time::{Duration, Instant};

use harness::{PATIENCE, Redis};
use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::MAX_EXACT;
use rate_limit_core::redis::script::{By, Scripts};
use redis::Value;

use crate::lab::{Charge, Step, read, words};

/// A charge of `quota`, whose key is of its own.
fn charge_of(quota: Quota, cost: u64) -> Charge {
    let (algorithm, rate) = (quota.algorithm(), quota.rate());
    Charge::new(format!("rl:default:{algorithm:?} {rate}"), quota, cost)
}

/// So many a `period`, and no more than so many.
fn quota(algorithm: Algorithm, count: u64, period: &str) -> Quota {
    Quota::new(algorithm, format!("{count}r/{period}").parse().unwrap(), count).unwrap()
}

/// So many a year, of all algorithms, and so many a month.
fn long_quotas(count: u64) -> Vec<Quota> {
    let month = quota(Algorithm::FixedWindow, count, "month");
    Algorithm::ALL
        .map(|algorithm| quota(algorithm, count, "52w"))
        .into_iter()
        .chain([month])
        .collect()
}

fn charge(redis: &Redis, scripts: &Scripts, by: By, charges: &[Charge]) -> Vec<Verdict> {
    let step = Step::charge(0, charges.to_vec());
    let verdicts = read(&step, &run(redis, scripts, by, &step));
    verdicts.into_iter().map(|verdict| verdict.expect("a verdict")).collect()
}

/// Gives back, and queries what is left then.
fn give_back(redis: &Redis, scripts: &Scripts, charges: &[Charge]) -> Vec<Verdict> {
    for charge in charges {
        run(redis, scripts, By::Source, &Step::give_back(0, charge.clone(), MAX_EXACT));
    }
    let held: Vec<_> = charges.iter().map(|charge| Charge { cost: 0, ..charge.clone() }).collect();
    charge(redis, scripts, By::Source, &held)
}

fn run(redis: &Redis, scripts: &Scripts, by: By, step: &Step) -> Value {
    let words = words(scripts, by, step);
    redis::Cmd::new().arg(words).query(&mut redis.client()).expect("an answer")
}

/// Each algorithm on a thread of its own, as this is all waiting.
#[test]
fn a_client_that_waits_is_served_and_one_that_is_gone_is_forgotten() {
    let (redis, scripts) = (Redis::start(), Scripts::new());
    std::thread::scope(|scope| {
        for algorithm in Algorithm::ALL {
            let (redis, scripts) = (&redis, &scripts);
            scope.spawn(move || wait_and_be_served(redis, scripts, algorithm));
        }
    });
}

fn wait_and_be_served(redis: &Redis, scripts: &Scripts, algorithm: Algorithm) {
    let charges = [charge_of(quota(algorithm, 1, "500ms"), 1)];
    // No later than at the end of the next window it is rejected, and the server knows the script.
    let verdict = charge(redis, scripts, By::Source, &charges)[0];
    assert!(verdict.allowed, "{algorithm:?} {verdict:?}");
    let (start, mut rejected) = (Instant::now(), None);
    while rejected.is_none() {
        assert!(start.elapsed() < PATIENCE, "{algorithm:?} passes all the time");
        rejected = reject(redis, scripts, &charges);
    }
    std::thread::sleep(rejected.expect("a time to wait for"));
    let verdict = charge(redis, scripts, By::Sha, &charges)[0];
    assert!(verdict.allowed, "{algorithm:?} {verdict:?}");
    std::thread::sleep(Duration::from_micros(verdict.reset) + Duration::from_millis(2));
    assert_eq!(redis.command::<i64>(&["EXISTS", &charges[0].key]), 0, "{algorithm:?}");
}

/// How long to wait if the request is rejected. `None` if it passes, and if so much time passes until the
/// key is looked at that it may be gone.
fn reject(redis: &Redis, scripts: &Scripts, charges: &[Charge]) -> Option<Duration> {
    let before = Instant::now();
    let verdict = charge(redis, scripts, By::Sha, charges)[0];
    let ttl: i64 = redis.command(&["PTTL", &charges[0].key]);
    if verdict.allowed {
        return None;
    }
    let Retry::After(retry) = verdict.retry else { panic!("{charges:?} {verdict:?}") };
    assert!((1..=1_000).contains(&retry.div_ceil(1_000)), "{charges:?} {verdict:?}");
    let retry = Duration::from_micros(retry);
    if ttl <= 0 && before.elapsed() >= retry {
        return None;
    }
    // In whole ms, rounded up, counted from the ms that has begun.
    assert!((1..=1_001).contains(&ttl), "{charges:?} {ttl}");
    Some(retry)
}

#[test]
fn several_limits_spend_all_or_nothing() {
    let (redis, scripts) = (Redis::start(), Scripts::new());
    let charges: Vec<_> = long_quotas(1).into_iter().map(|quota| charge_of(quota, 1)).collect();
    let passed = |verdict: &Verdict| verdict.allowed && verdict.remaining == 0;
    assert!(charge(&redis, &scripts, By::Source, &charges).iter().all(passed));
    assert_eq!(redis.command::<usize>(&["DBSIZE"]), charges.len());

    redis.command::<()>(&["DEL", &charges[1].key]);
    let verdicts = charge(&redis, &scripts, By::Sha, &charges);
    assert!(!verdicts[0].allowed && verdicts[1].allowed, "{verdicts:?}");
    assert_eq!(verdicts[1].remaining, 1);
    assert_eq!(redis.command::<i64>(&["EXISTS", &charges[1].key]), 0);
}

/// One by one, and all at once.
#[test]
fn what_is_given_back_is_as_never_spent() {
    let (redis, scripts) = (Redis::start(), Scripts::new());
    let charges: Vec<_> = long_quotas(1).into_iter().map(|quota| charge_of(quota, 1)).collect();
    let whole = Verdict { allowed: true, blocked: 0, remaining: 1, reset: 0, retry: Retry::No };
    for several in charges.chunks(1).chain([&charges[..]]) {
        for _ in 0..2 {
            let spent = charge(&redis, &scripts, By::Source, several);
            assert!(spent.iter().all(|verdict| verdict.allowed), "{several:?} {spent:?}");
            let given_back = give_back(&redis, &scripts, several);
            assert_eq!(given_back, vec![whole; several.len()], "{several:?}");
        }
        std::thread::sleep(Duration::from_millis(3));
        let left = several.iter().map(|charge| redis.command::<i64>(&["EXISTS", &charge.key]));
        assert_eq!(left.sum::<i64>(), 0, "{several:?}");
        give_back(&redis, &scripts, several);
        assert_eq!(redis.command::<usize>(&["DBSIZE"]), 0, "{several:?}");
    }
}

/// A state lives for as long as it takes to come back.
#[test]
fn what_is_given_back_in_part_keeps_its_time() {
    let (redis, scripts) = (Redis::start(), Scripts::new());
    for quota in long_quotas(9) {
        let of = |cost| [charge_of(quota, cost)];
        charge(&redis, &scripts, By::Source, &of(7));
        let verdict = give_back(&redis, &scripts, &of(3))[0];
        assert_eq!(verdict.remaining, 5, "{quota:?}");
        let ttl: u64 = redis.command(&["PTTL", &of(0)[0].key]);
        // The server keeps the end in whole ms, rounded up, and PTTL counts from the ms that has begun. For a log it counts
        // from the ms in which the script sets the end, which may be the next one.
        let whole =
            verdict.reset.div_ceil(1_000) + 1 + u64::from(quota.algorithm().stores_itself());
        assert!((whole.saturating_sub(5_000)..=whole).contains(&ttl), "{quota:?} {ttl} {whole}");
    }
}
