//! Values that may be found under a key, though this algorithm did not write them.

use rate_limit_core::algorithm::Stored;
use rate_limit_core::decision::Verdict;
use rate_limit_core::limit::{Algorithm, Quota};
use redis::RedisResult;

use crate::lab::{Charge, Lab, Step};

const NOW: u64 = 1_700_000_000_000_000;

/// The algorithms that keep a string.
fn of_strings() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.stores_itself())
}

/// A quota of 5 at most, at 3 a second.
fn quota(algorithm: Algorithm) -> Quota {
    quota_at("3r/s", algorithm, 5)
}

fn quota_at(rate: &str, algorithm: Algorithm, limit: u64) -> Quota {
    Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap()
}

/// Quotas of all algorithms that store a string, at this rate, and of a month.
fn quotas_at(rate: &str, limit: u64) -> impl Iterator<Item = Quota> + Clone {
    let quotas: Vec<_> = of_strings().map(|algorithm| quota_at(rate, algorithm, limit)).collect();
    quotas.into_iter().chain([quota_at("3r/month", Algorithm::FixedWindow, limit)])
}

/// The longest that any algorithm takes to become whole: `sliding_window`, two periods.
fn longest(quota: Quota) -> u64 {
    2 * quota.rate().period()
}

const KEY: &str = "rl:default:k";

/// Charges `cost` at `now`.
fn charge(lab: &mut Lab, now: u64, quota: Quota, cost: u64) -> RedisResult<Verdict> {
    let step = Step::charge(now, vec![Charge::new(KEY.to_owned(), quota, cost)]);
    lab.try_run(&[step]).map(|outcomes| outcomes[0].verdicts[0].expect("a verdict"))
}

/// Gives `cost` back at `now`, and queries what is left then.
fn give_back(lab: &mut Lab, now: u64, quota: Quota, cost: u64) -> RedisResult<Verdict> {
    lab.try_run(&[Step::give_back(now, Charge::new(KEY.to_owned(), quota, cost), now)])?;
    charge(lab, now, quota, 0)
}

/// Charges `cost` where `value` is stored.
fn charge_of(lab: &mut Lab, value: &[u8], quota: Quota, cost: u64) -> RedisResult<Verdict> {
    redis::cmd("SET").arg(KEY).arg(value).exec(lab.connection()).unwrap();
    charge(lab, NOW, quota, cost)
}

/// Values that no algorithm writes.
const NONSENSE: [&[u8]; 10] = [
    b"",
    b" ",
    b"x",
    b"57 1763683200123456",
    b"\xff",
    &[0; 8],
    &[0; 15],
    &[0; 17],
    &[0; 25],
    &[0; 1_000],
];

/// Numbers as they are stored.
fn packed(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn what_is_not_a_state_is_as_good_as_nothing() {
    let mut lab = Lab::new();
    for quota in quotas_at("3r/s", 5) {
        let fresh = quota.algorithm().decide(&mut Stored::default(), NOW, &quota, 2);
        for value in NONSENSE {
            let verdict = charge_of(&mut lab, value, quota, 2);
            assert_eq!(verdict, Ok(fresh), "{quota:?} {value:?}");
        }
    }
}

#[test]
fn nothing_is_given_back_to_what_is_not_a_state() {
    let mut lab = Lab::new();
    let whole = |quota: Quota| Ok(quota.algorithm().decide(&mut Stored::default(), NOW, &quota, 0));
    for quota in quotas_at("3r/s", 5) {
        for value in NONSENSE {
            redis::cmd("SET").arg(KEY).arg(value).exec(lab.connection()).unwrap();
            let verdict = give_back(&mut lab, NOW, quota, 2);
            assert_eq!(verdict, whole(quota), "{quota:?} {value:?}");
            let left: Vec<u8> = redis::cmd("GET").arg(KEY).query(lab.connection()).unwrap();
            assert_eq!(left, value, "{quota:?}");
        }
    }
    redis::cmd("DEL").arg(KEY).exec(lab.connection()).unwrap();
    redis::cmd("RPUSH").arg(KEY).arg("x").exec(lab.connection()).unwrap();
    let log = quota(Algorithm::SlidingLog);
    assert_eq!(give_back(&mut lab, NOW, log, 2), whole(log));
    let left: Vec<String> =
        redis::cmd("LRANGE").arg(KEY).arg(0).arg(-1).query(lab.connection()).unwrap();
    assert_eq!(left, ["x"]);
}

#[test]
fn no_number_gives_more_than_all_or_locks_out_for_longer_than_a_refill() {
    let mut lab = Lab::new();
    let (huge, year) = (u64::MAX, NOW + 31_536_000_000_000);
    for quota in quotas_at("3r/s", 5) {
        let longest = longest(quota);
        for first in [0, 3, huge, year, NOW] {
            for rest in [&[][..], &[0], &[3], &[3, 3], &[huge], &[huge, 3], &[NOW, huge]] {
                let value = packed(&[&[first], rest].concat());
                let verdict = charge_of(&mut lab, &value, quota, 0).unwrap();
                let context = format!("{quota:?} {value:?} {verdict:?}");
                assert!(verdict.remaining <= 5 && verdict.reset <= longest, "{context}");
                redis::cmd("SET").arg(KEY).arg(&value).exec(lab.connection()).unwrap();
                let verdict = give_back(&mut lab, NOW, quota, 2).unwrap();
                let context = format!("given back to {quota:?} {value:?} {verdict:?}");
                assert!(verdict.remaining <= 5 && verdict.reset <= longest, "{context}");
            }
        }
    }
}

/// After a change of the configuration an algorithm finds what another one has left. Between
/// strings and lists that is an error, until the key is gone; else it is as good as nothing, or at
/// the worst a quota that is spent.
#[test]
fn what_another_algorithm_left_does_no_harm() {
    let mut lab = Lab::new();
    let rates = ["3r/s", "7r/10s", "100r/m", "5r/1d"];
    let pairs = rates.into_iter().flat_map(|rate| {
        let quotas = quotas_at(rate, 100_000);
        quotas.clone().flat_map(move |left| quotas.clone().map(move |found| (left, found)))
    });
    for (left, found) in pairs {
        for spent in [1, 42, 30_000, 99_999] {
            redis::cmd("DEL").arg(KEY).exec(lab.connection()).unwrap();
            assert!(charge(&mut lab, NOW, left, spent).unwrap().allowed);
            let context = format!("{left:?} {found:?} {spent}");
            let verdict = charge(&mut lab, NOW + 1_000, found, 0).unwrap();
            let fresh = &mut Stored::default();
            let longest = found.algorithm().decide(fresh, NOW, &found, 100_000).reset;
            let longest = longest.max(self::longest(found));
            assert!(verdict.remaining <= 100_000, "{context} {verdict:?}");
            assert!(verdict.reset <= longest, "{context} {verdict:?}");
            let whole = charge(&mut lab, NOW + 1_000 + verdict.reset, found, 100_000).unwrap();
            assert!(whole.allowed, "{context} {whole:?}");
        }
    }
}

#[test]
fn a_list_is_no_string_and_a_string_no_list() {
    let mut lab = Lab::new();
    let wrong = |answer: RedisResult<Verdict>| {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("WRONGTYPE"), "{error}");
    };
    wrong(charge_of(&mut lab, b"3 3", quota(Algorithm::SlidingLog), 1));
    wrong(give_back(&mut lab, NOW, quota(Algorithm::SlidingLog), 1));
    redis::cmd("DEL").arg(KEY).exec(lab.connection()).unwrap();
    assert!(charge(&mut lab, NOW, quota(Algorithm::SlidingLog), 1).unwrap().allowed);
    for algorithm in of_strings() {
        wrong(charge(&mut lab, NOW, quota(algorithm), 1));
        wrong(give_back(&mut lab, NOW, quota(algorithm), 1));
    }
    // The log is as it was.
    let verdict = charge(&mut lab, NOW, quota(Algorithm::SlidingLog), 0).unwrap();
    assert_eq!(verdict.remaining, 4);
}
