//! A line `rate_limit_redis`: what is accepted is within its bounds, and means the same when it is written again.

use rate_limit_core::conf::limit::{LimitError, LimitLine, LimitWords, is_off};
use rate_limit_core::limit::{Quota, is_name};
use rate_limit_core::rate::{MAX_EXACT, MAX_TIME, Rate, SATURATED};

use crate::words::{directive, lines, words};

/// The first line of an input is the directive, without its name; the second one is what variables yield.
pub fn run(data: &[u8]) {
    let lines = lines(data);
    let mut all = vec![b"rate_limit_redis".to_vec()];
    all.extend(lines[0].iter().cloned());
    let line = directive(&all);
    if matches!(is_off(&line), Ok(true)) {
        assert_eq!(all.len(), 2);
    }
    let Ok(words) = LimitWords::read(&line) else { return };
    let compiled = words.compile(|text| Ok::<_, LimitError>(text.to_owned()));
    let Ok(limit) = compiled else { return };
    check_line(&limit);
    // A space in a value is not told from one between words when they are written in a row.
    if !data.contains(&0) {
        check_written(&limit);
    }
    if let Some(doubts) = words.doubts(&limit, |name| name == "remote_addr") {
        assert!(!doubts.is_empty());
    }
    for text in lines.get(1).into_iter().flatten() {
        check_values(&limit, &String::from_utf8_lossy(text));
    }
}

fn check_line(limit: &LimitLine<'_, String>) {
    assert!(is_name(limit.definition.name) && limit.definition.block <= MAX_TIME);
    if let Some(rate) = limit.rate.literal() {
        check_rate(rate);
    }
    let literals = [limit.cost.literal(), limit.burst.as_ref().and_then(|burst| burst.literal())];
    assert!(literals.iter().flatten().all(|number| *number <= MAX_EXACT));
    if let Some(quota) = &limit.known_quota {
        check_quota(quota);
        assert_eq!(quota.block(), limit.definition.block);
    }
}

/// A line of nothing but what stands for the definition of the name has the same definition.
fn check_written(limit: &LimitLine<'_, String>) {
    let mut again =
        words(format!("rate_limit_redis $key name={}", limit.definition.name).as_bytes());
    again.extend(words(limit.definition.written.as_bytes()));
    let line = directive(&again);
    let words = LimitWords::read(&line).expect("the words of a line that was accepted");
    let again = words.compile(|text| Ok::<_, LimitError>(text.to_owned())).expect("the same line");
    assert_eq!(
        (&again.definition.written, again.definition.algorithm),
        (&limit.definition.written, limit.definition.algorithm)
    );
    assert_eq!(
        (again.known_quota, again.definition.block),
        (limit.known_quota, limit.definition.block)
    );
}

/// The value of a variable is refused or within bounds.
fn check_values(limit: &LimitLine<'_, String>, text: &str) {
    let numbers = [limit.read_burst(text), limit.read_cost(text), limit.read_settle(text)];
    assert!(numbers.into_iter().flatten().all(|number| number <= SATURATED));
    let burst = limit.read_burst(text).ok();
    let rate = limit.read_rate(text).ok().or_else(|| limit.rate.literal());
    if let Some(rate) = rate {
        check_rate(rate);
        if let Ok(quota) = limit.quota(rate, burst) {
            check_quota(&quota);
        }
    }
}

fn check_rate(rate: Rate) {
    assert!((1..=MAX_EXACT).contains(&rate.count()) && (1..=MAX_TIME).contains(&rate.period()));
    assert_eq!(rate.to_string().parse(), Ok(rate));
}

fn check_quota(quota: &Quota) {
    assert!((1..=MAX_EXACT).contains(&quota.limit()));
    let algorithm = quota.algorithm();
    let verdict = algorithm.decide(&mut Default::default(), MAX_EXACT, quota, SATURATED);
    assert!(!verdict.allowed && verdict.remaining <= quota.limit());
}
