//! All other directives: the policy of what is accepted is within its bounds, and nothing is set twice.

use rate_limit_core::conf::{Directive, DirectiveError, Policy, PolicyLevel, Row, Sets, variable};

use crate::words::{directive, lines};

pub fn run(data: &[u8]) {
    let lines = lines(data);
    let (mut level, mut above) = (PolicyLevel::default(), PolicyLevel::default());
    for words in &lines {
        read(&mut level, &directive(words));
        for word in words {
            check_variable(&String::from_utf8_lossy(word));
        }
    }
    check(&level.policy());
    above.inherit(&level);
    assert_eq!(above, level, "a level that sets nothing has what is above it");
    level.inherit(&PolicyLevel::default());
    assert_eq!(above, level, "a level takes nothing from one that sets nothing");
}

fn read(level: &mut PolicyLevel, line: &Directive<'_>) {
    let Some(row) = line.name().ok().and_then(Row::find) else { return };
    match row.sets {
        Sets::Policy(set) | Sets::Page(set) => {
            let before = *level;
            match set(level, line) {
                Ok(doubt) => {
                    assert!(doubt.is_none_or(|doubt| !doubt.is_empty()));
                    let again = set(level, line);
                    assert!(matches!(again, Err(DirectiveError::Duplicate(_))), "{again:?}");
                }
                Err(DirectiveError::Duplicate(_)) => {}
                Err(_) => assert_eq!(*level, before, "what is refused sets nothing"),
            }
        }
        Sets::Memory { read, default } => {
            let size = read(line).unwrap_or(default);
            assert!((256 << 10..=i64::MAX as u64).contains(&size));
        }
        Sets::Top { read, default } => {
            assert!(read(line).unwrap_or(default) <= 100);
        }
        Sets::Limit | Sets::Pass { .. } | Sets::Store | Sets::Admin => {}
    }
}

fn check(policy: &Policy) {
    assert!((1..=i64::MAX as u64).contains(&policy.timeout));
    for status in [policy.status, policy.error_status] {
        assert!((400..=599).contains(&status) && !(494..=497).contains(&status), "{status}");
    }
    assert!((1..=128).contains(&policy.ipv6_prefix) && policy.log.rate >= 1);
    assert!((1..=32).contains(&policy.ipv4_prefix));
    assert!(policy.lease == 0 || (10..=60_000).contains(&policy.lease));
    assert!(policy.retry_jitter <= i64::MAX as u64);
}

/// The name of a variable is one that NGINX finds in the text.
fn check_variable(text: &str) {
    let Some(name) = variable(text) else { return };
    assert!(text == format!("${name}") || text == format!("${{{name}}}"));
    assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
}
