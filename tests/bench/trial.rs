//! Whether a variant does what it is measured for: it passes, it rejects, and it sends the header fields.

use harness::stop::Stop;
use harness::{Nginx, Response};

/// Two requests for one key, and the answer to the second.
struct Trial {
    path: &'static str,
    status: u16,
    fields: &'static [(&'static str, u64)],
}

const TRIALS: [Trial; 2] = [
    Trial {
        path: "/free",
        status: 200,
        fields: &[
            ("X-RateLimit-Limit", 100_000_000),
            ("X-RateLimit-Remaining", 99_999_998),
            ("X-RateLimit-Reset", 60),
        ],
    },
    Trial { path: "/flood", status: 429, fields: &REJECTION },
];

/// The header fields of a rejection.
pub const REJECTION: [(&str, u64); 4] = [
    ("X-RateLimit-Limit", 1),
    ("X-RateLimit-Remaining", 0),
    ("X-RateLimit-Reset", 3600),
    ("Retry-After", 3600),
];

/// By how much a time may be less, as it has passed since, in s.
const LATE: u64 = 10;

/// Fails if the answers are not those of this variant, which may have no limits, or send no header fields.
pub fn check(
    variant: &str,
    nginx: &Nginx,
    has_limits: bool,
    sends_fields: bool,
) -> Result<(), Stop> {
    for trial in &TRIALS {
        let path = format!("{}?k=trial-{variant}", trial.path);
        let answers = [nginx.get(&path), nginx.get(&path)];
        let expected = [200, if has_limits { trial.status } else { 200 }];
        let found = [answers[0].status, answers[1].status];
        let fields = if sends_fields { trial.fields } else { &[] };
        let wrong = (found != expected)
            .then(|| format!("{found:?}, and not with {expected:?}"))
            .or_else(|| fields.iter().find_map(|(name, value)| wrong(&answers[1], name, *value)));
        if let Some(wrong) = wrong {
            let what = format!("{variant}: {path} was answered with {wrong}");
            return Err(Stop::Failure(what));
        }
    }
    Ok(())
}

/// A field that has not this value.
fn wrong(answer: &Response, name: &str, value: u64) -> Option<String> {
    let found = answer.header(name);
    let is_time = ["X-RateLimit-Reset", "Retry-After"].contains(&name);
    let least = value.saturating_sub(if is_time { LATE } else { 0 });
    let number = found.and_then(|found| found.parse().ok());
    let is_right = number.is_some_and(|number| (least..=value).contains(&number));
    let found = found.unwrap_or("nothing");
    (!is_right).then(|| format!("{name}: {found}, and not with {value}"))
}
