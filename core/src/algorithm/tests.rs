//! No numbers make an algorithm panic, or give more than all.

use proptest::prelude::*;

use super::moment::Moment;
use super::*;
use crate::charge::Charged;
use crate::lease::{Lease, Report};
use crate::rate::{MAX_EXACT, MAX_TIME, Rate};

fn numbers(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 0..=most, most - 1..=most]
}

fn quotas() -> impl Strategy<Value = Quota> {
    let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
    let numbers = (numbers(1 << 24), numbers(MAX_TIME), numbers(1 << 40));
    let all = (algorithms, any::<bool>(), numbers);
    let quotas = all.prop_filter_map("no quota", |(algorithm, is_monthly, numbers)| {
        let (count, period, limit) = numbers;
        let rate = match is_monthly && algorithm.row().counts_months {
            true => Rate::monthly(count),
            false => Rate::new(count, period),
        };
        Quota::new(algorithm, rate.ok()?, limit).ok()
    });
    (quotas, any::<bool>()).prop_map(
        |(quota, is_settled)| {
            if is_settled { quota.with_settle() } else { quota }
        },
    )
}

fn stored() -> impl Strategy<Value = Stored> {
    let any = || numbers(u64::MAX);
    let hold = || (any(), any()).prop_map(|(units, until)| Hold { units, until });
    let extra = (hold(), hold(), any(), any()).prop_map(|(older, newer, debt, blocked_until)| {
        Extra { holds: Holds { older, newer, charged: 0 }, debt, blocked_until }
    });
    let extra = prop_oneof![Just(Extra::default()), extra];
    let step = (any(), any()).prop_map(|(at, missing)| Minimum { at, missing });
    let minima = proptest::collection::vec(step, 0..=Minima::MOST).prop_map(Minima::new);
    (states(), extra, minima).prop_map(|(state, extra, minima)| Stored { state, extra, minima })
}

fn states() -> impl Strategy<Value = Option<State>> {
    let any = || numbers(u64::MAX);
    let moments = || (any(), any()).prop_map(|(micros, part)| Moment { micros, part });
    let entries = (numbers(MAX_EXACT), numbers(MAX_EXACT));
    prop_oneof![
        Just(None),
        (any(), moments()).prop_map(|(tokens, moment)| Some(State::Bucket(tokens, moment))),
        moments().prop_map(|moment| Some(State::Arrival(moment))),
        (any(), any(), any()).prop_map(|(w, c, p)| Some(State::Window(w, c, p))),
        (proptest::collection::vec(entries, 0..9), numbers(MAX_EXACT))
            .prop_map(|(log, since)| Some(State::Log(log.into(), since))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 4_000 }))]

    #[test]
    fn no_numbers_panic_or_give_more_than_all(
        quota in quotas(),
        stored in stored(),
        now in numbers(MAX_EXACT),
        amount in numbers(u64::MAX),
        change in any::<i64>(),
        since in numbers(MAX_EXACT),
    ) {
        let algorithm = quota.algorithm();
        let decide = |mut stored, cost| algorithm.decide(&mut stored, now, &quota, cost);
        prop_assert!(decide(stored.clone(), amount).remaining <= quota.limit());
        for times in 1..4 {
            let (mut one, mut all, mut verdicts) = (stored.clone(), stored.clone(), Vec::new());
            algorithm.decide_each(&mut all, now, &quota, amount, times, |it| verdicts.push(it));
            let mut expected = (0..times).map(|_| algorithm.decide(&mut one, now, &quota, amount));
            prop_assert!(verdicts.into_iter().eq(&mut expected));
            prop_assert_eq!(one, all);
        }
        let mut settled = stored.clone();
        algorithm.settle(&mut settled, now, &quota, since, change);
        prop_assert!(decide(settled, 0).remaining <= quota.limit());
        let mut given = stored.clone();
        algorithm.give_back(&mut given, now, &quota, amount, since);
        prop_assert!(decide(given, 0).remaining <= quota.limit());
        let plain = [amount, since, amount];
        let report = Report { of: amount, unused: amount, ends: since, plain, charged: since };
        let lease = Lease { span: since, want: amount, keep: since, report };
        let mut leased = stored;
        algorithm.report(&mut leased, now, &quota, &report);
        algorithm.grant(&mut leased, now, &quota, &lease, 0);
        prop_assert!(decide(leased, 0).remaining <= quota.limit());
    }
}

/// A script without a part of its algorithm is none.
#[test]
fn every_part_of_a_source_is_there() {
    for algorithm in Algorithm::ALL {
        let parts = ["correct", "missing"].into_iter().filter(|_| algorithm.keeps_minima());
        for part in parts.chain(["decide"]) {
            assert!(algorithm.row().lua.part(part).is_some(), "{algorithm:?} {part}");
        }
    }
}

/// Units that an operator gives back count in full, also in a window of which only a part counts any more.
#[test]
fn what_is_given_back_at_no_given_time_counts_in_full() {
    let start = 1_763_683_230_000_000;
    for algorithm in Algorithm::ALL {
        let quota = Quota::new(algorithm, "100r/m".parse().unwrap(), 100).unwrap();
        let mut stored = Stored::default();
        assert!(algorithm.decide(&mut stored, start, &quota, 97).allowed);
        for now in (0..100).map(|second| start + second * 1_000_000) {
            let left = algorithm.decide(&mut stored.clone(), now, &quota, 0).remaining;
            for amount in [1, 2, 5, 50, 100] {
                let mut stored = stored.clone();
                algorithm.give_back(&mut stored, now, &quota, amount, 0);
                let remaining = algorithm.decide(&mut stored, now, &quota, 0).remaining;
                let all = (left + amount).min(100);
                assert_eq!(remaining, all, "{algorithm:?}: {left} + {amount} at {now}");
            }
        }
    }
}

/// A quota that takes a century to become whole again has been spent a second ago.
#[test]
fn what_takes_longer_than_the_time_since_1970_is_given_back_in_full() {
    let (now, year) = (1_763_683_230_000_000, 365 * 86_400 * 1_000_000);
    let rate = Rate::new(10, year).unwrap();
    let has_burst = |it: &Algorithm| it.burst_parameter() != BurstParameter::None;
    for algorithm in Algorithm::ALL.into_iter().filter(has_burst) {
        let (quota, mut stored) = (Quota::new(algorithm, rate, 1_000).unwrap(), Stored::default());
        let verdict = algorithm.decide(&mut stored, now, &quota, 999);
        let since = algorithm.regained_from(&quota, Charged::new(now, &verdict), 999);
        algorithm.give_back(&mut stored, now + 1_000_000, &quota, 999, since);
        let remaining = algorithm.decide(&mut stored, now + 1_000_000, &quota, 0).remaining;
        assert_eq!(remaining, 1_000, "{algorithm:?}");
    }
}

/// Two charges come back by one command, if they are one refund. What is lost by that, a bucket regains between the two.
#[test]
fn what_is_given_back_as_one_refund_is_not_spent() {
    let rate = Rate::new(100, 60_000_000).unwrap();
    let begin = 1_763_683_200_000_000 + 30_000_000;
    let quotas = Algorithm::ALL.map(|algorithm| Quota::new(algorithm, rate, 100).unwrap());
    for quota in quotas.into_iter().chain(quotas.map(Quota::with_settle)) {
        let algorithm = quota.algorithm();
        for later in [1, 29_000_000, 30_000_000, 60_000_000] {
            let mut stored = Stored::default();
            let mut charged = |at, cost| {
                let verdict = algorithm.decide(&mut stored, at, &quota, cost);
                algorithm.regained_from(&quota, Charged::new(at, &verdict), cost)
            };
            let (first, second) = (charged(begin, 10), charged(begin + later, 90));
            let mut give_back = |amount, since| {
                algorithm.give_back(&mut stored, begin + later, &quota, amount, since);
            };
            if algorithm.is_one_refund(&quota, first, second) {
                give_back(100, first.min(second));
            } else {
                give_back(10, first);
                give_back(90, second);
            }
            let remaining = algorithm.decide(&mut stored, begin + later, &quota, 0).remaining;
            let regained = later * 100 / 60_000_000;
            let lost = if algorithm.regain() == Regain::AtOnce { 0 } else { regained };
            assert!(remaining >= 100 - lost, "{algorithm:?}, {later} µs later: {remaining}");
        }
    }
}

/// A client's own quota may have other windows than the line, which is all that is known where charges are joined.
#[test]
fn what_was_charged_in_two_windows_of_an_override_comes_back_in_full() {
    let begin = 1_763_683_200_000_000;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let quota = |rate: &str| Quota::new(algorithm, rate.parse().unwrap(), 100).unwrap();
        let (line, own) = (quota("100r/m").with_override(), quota("100r/s"));
        let (first, second) = (begin, begin + 5_000_000);
        let mut stored = Stored::default();
        algorithm.decide(&mut stored, second, &own, 90);
        let since = if algorithm.is_one_refund(&line, first, second) { first } else { second };
        algorithm.give_back(&mut stored, second, &own, 90, since);
        assert_eq!(algorithm.decide(&mut stored, second, &own, 0).remaining, 100, "{algorithm:?}");
    }
}
