//! Header fields of an answer.

use crate::decision::{Shown, seconds};

/// A header field.
pub type Field = (&'static str, String);

/// The `X-RateLimit-*` fields that APIs have converged on: the limit, what remains of it, and the
/// seconds, rounded up, until it is whole again.
pub fn x_ratelimit(shown: &Shown<'_>) -> [Field; 3] {
    [
        ("X-RateLimit-Limit", shown.limit.to_string()),
        ("X-RateLimit-Remaining", shown.verdict.remaining.to_string()),
        ("X-RateLimit-Reset", seconds(shown.verdict.reset).to_string()),
    ]
}

/// `Retry-After` (RFC 9110, section 10.2.3), in seconds.
pub fn retry_after(seconds: u64) -> Field {
    ("Retry-After", seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Retry, Verdict};

    #[test]
    fn x_ratelimit_rounds_up() {
        let verdict = Verdict { allowed: true, remaining: 9, reset: 1_000_001, retry: Retry::No };
        let shown = Shown { name: "default", limit: 10, verdict };
        let fields = x_ratelimit(&shown).map(|(name, value)| format!("{name}: {value}"));
        assert_eq!(
            fields,
            ["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 2"]
        );
    }
}
