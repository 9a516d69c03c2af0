//! Any bytes under a key in Redis, and any words in the table of local decisions, as the state of a client: verdicts
//! stay within the quota, nothing is spent by a rejection, and what is charged is at most what there was.

use std::rc::Rc;

use rate_limit_core::algorithm::Stored;
use rate_limit_core::charge::{Charge, Charged, Template};
use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::key::{Digest, Head};
use rate_limit_core::lease::{Lease, Report};
use rate_limit_core::limit::Quota;
use rate_limit_core::local::{self, LocalAnswer, LocalCharges, Mode};
use rate_limit_core::rate::MAX_EXACT;
use rate_limit_core::table::Table;

use crate::input::Input;
use crate::quota::quota;

/// The most operations of a run.
const MOST: usize = 64;

const DIGEST: u128 = 7;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(quota) = quota(&mut input) else { return };
    let mut now = time(&mut input);
    match input.flag() {
        true => check_local(&mut input, &quota, now),
        false => {
            let mut stored = quota.algorithm().read(input.bytes());
            for _ in 0..MOST {
                if input.is_empty() {
                    break;
                }
                change(&mut input, &mut stored, &quota, &mut now);
            }
        }
    }
}

/// A time of Redis.
fn time(input: &mut Input<'_>) -> u64 {
    input.number().min(MAX_EXACT)
}

fn look(stored: &Stored, quota: &Quota, now: u64) -> Verdict {
    quota.algorithm().decide(&mut stored.clone(), now, quota, 0)
}

fn change(input: &mut Input<'_>, stored: &mut Stored, quota: &Quota, now: &mut u64) {
    let algorithm = quota.algorithm();
    match input.below(7) {
        0 => *now = time(input),
        1 => *now = now.saturating_add(input.number()).min(MAX_EXACT),
        2 => decide(stored, quota, *now, input.number()),
        3 => algorithm.give_back(stored, *now, quota, input.number(), time(input)),
        4 => algorithm.settle(stored, *now, quota, time(input), input.number() as i64),
        5 => {
            let rejects = input.flag();
            let verdict = algorithm.decline(stored, *now, quota, rejects);
            check(&verdict, quota, 0);
        }
        _ => lease(input, stored, quota, *now),
    }
    check(&look(stored, quota, *now), quota, 0);
}

fn decide(stored: &mut Stored, quota: &Quota, now: u64, cost: u64) {
    let algorithm = quota.algorithm();
    let before = look(stored, quota, now);
    let verdict = algorithm.decide(stored, now, quota, cost);
    check(&verdict, quota, cost);
    let after = look(stored, quota, now);
    assert_eq!(after.remaining, verdict.remaining, "the verdict shows what is left");
    if verdict.allowed {
        assert!(before.remaining >= cost, "{before:?} allows {cost}: {verdict:?}");
        assert!(after.remaining <= before.remaining - cost, "{before:?} {after:?}");
    } else if quota.block() == 0 {
        assert_eq!(after.remaining, before.remaining, "a rejection spends nothing");
    }
    let charged = Charged::new(now, &verdict);
    algorithm.regained_from(quota, charged, cost);
}

/// Any lease arguments: no more is set aside than is left.
fn lease(input: &mut Input<'_>, stored: &mut Stored, quota: &Quota, now: u64) {
    let algorithm = quota.algorithm();
    let plain = [(); 3].map(|()| input.number());
    let (of, unused, charged) = (input.number(), input.number(), input.number());
    let report = Report { of, unused: unused.min(of), ends: time(input), plain, charged };
    let returned = algorithm.report(stored, now, quota, &report);
    assert!(returned <= report.unused, "{returned} of {report:?}");
    let (span, want, keep) = (time(input), input.number(), input.number());
    let lease = Lease { span, want, keep, report };
    // Units are set aside after a request that has spent some.
    let verdict = algorithm.decide(stored, now, quota, 1);
    if !verdict.allowed {
        return;
    }
    let left = verdict.remaining;
    let granted = algorithm.grant(stored, now, quota, &lease, left);
    assert!(granted.units <= want && granted.units <= left, "{granted:?} of {left}");
    assert!(look(stored, quota, now).remaining <= left);
}

fn check(verdict: &Verdict, quota: &Quota, cost: u64) {
    assert!(verdict.remaining <= quota.limit(), "{verdict:?} of {quota:?}");
    assert!(!verdict.allowed || cost <= quota.limit(), "{verdict:?} of {quota:?} for {cost}");
    match verdict.retry {
        Retry::No => assert!(verdict.allowed),
        Retry::After(micros) => assert!(!verdict.allowed && micros > 0 && cost > 0),
        Retry::Never => assert!(!verdict.allowed && cost > quota.limit()),
    }
}

/// Words in the table, which are read, decided and written again.
fn check_local(input: &mut Input<'_>, quota: &Quota, mut now: u64) {
    let mut memory = vec![0; 8_192];
    let mut table = Table::open(&mut memory);
    let words: Vec<_> = (0..input.below(16)).map(|_| word(input)).collect();
    // A log may be long.
    let words = words.repeat(input.below(64) + 1);
    assert!(table.set(DIGEST, &words));
    let answer = |charges: &LocalCharges<'_>| match charges[0].answer() {
        LocalAnswer::Verdict(verdict) => Some(verdict),
        LocalAnswer::Unchecked | LocalAnswer::NoRoom => None,
    };
    let template = Rc::new(Template::new(Head::new("rl:", "a").expect("a name"), None));
    let digest = Digest::new(DIGEST, quota);
    let charge = |table: &mut Table<'_>, now, cost| {
        let charge = Charge { digest, ..Charge::new(&template, b"", quota, cost) };
        let mut charges: LocalCharges<'_> = std::iter::once((charge, 0)).collect();
        local::decide(table, now, Mode::Outage, &mut charges);
        let verdict = answer(&charges);
        verdict.inspect(|verdict| check(verdict, quota, cost));
        (charges, verdict)
    };
    for _ in 0..MOST {
        if input.is_empty() {
            break;
        }
        now = now.saturating_add(input.number()).min(MAX_EXACT);
        let cost = input.number();
        let (_, before) = charge(&mut table, now, 0);
        let (mut charges, verdict) = charge(&mut table, now, cost);
        if let (Some(before), Some(verdict)) = (before, verdict) {
            let left = before.remaining.checked_sub(if verdict.allowed { cost } else { 0 });
            assert!(left.is_some_and(|left| verdict.remaining <= left), "{before:?} {verdict:?}");
        }
        match input.below(4) {
            0 => local::give_back(&mut table, now, &mut charges),
            1 => drop(local::settle(&mut table, now, &charges[0], input.number() as i64)),
            _ => {}
        }
    }
}

/// A word of a state: its kind in the top byte, and a number.
fn word(input: &mut Input<'_>) -> u64 {
    u64::from(input.byte() % 8) << 56 | (input.number() & ((1 << 56) - 1))
}
