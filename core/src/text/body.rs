//! Bodies of rejections.

use crate::decision::{Decision, Status};
use crate::metrics::labels;

labels! {
    /// The form of the body of a rejection. Its name is an argument.
    #[derive(Default)]
    BodyForm::ALL {
        /// NGINX's own page.
        #[default]
        Html = "html",
        /// A short JSON object.
        Json = "json",
        /// A problem (RFC 9457) of the types of draft-ietf-httpapi-ratelimit-headers-11.
        Problem = "problem",
    }
}

/// The media type and the text of a rejection with HTTP status `status`; `violated` are the limits
/// that rejected the request. `None` if NGINX's own page is to be sent.
///
/// Names of limits need no escaping: see [`is_name`](crate::limit::is_name).
pub fn rejection<'a>(
    form: BodyForm,
    status: u16,
    decision: &Decision<'_>,
    violated: impl Iterator<Item = &'a str>,
) -> Option<(&'static str, String)> {
    let Reason { error, kind, title, is_of_limits } = Reason::of(decision);
    match form {
        BodyForm::Html => None,
        BodyForm::Json => {
            let limit = decision.shown.map_or("null".into(), |shown| format!("\"{}\"", shown.name));
            let retry_after =
                decision.retry_after().map_or("null".into(), |seconds| seconds.to_string());
            Some((
                "application/json",
                format!(
                    "{{\"error\":\"{error}\",\"limit\":{limit},\"retry_after\":{retry_after}}}"
                ),
            ))
        }
        BodyForm::Problem => {
            let violated: Vec<_> = violated.map(|name| format!("\"{name}\"")).collect();
            let policies = match is_of_limits {
                true => format!(",\"violated-policies\":[{}]", violated.join(",")),
                false => String::new(),
            };
            Some((
                "application/problem+json",
                format!(
                    "{{\"type\":\"{kind}\",\"title\":\"{title}\",\"status\":{status}{policies}}}"
                ),
            ))
        }
    }
}

/// Why a request was rejected, as bodies say it.
struct Reason {
    error: &'static str,
    /// The type of the problem.
    kind: &'static str,
    title: &'static str,
    /// Whether the type is one of those of rate limits.
    is_of_limits: bool,
}

impl Reason {
    fn of(decision: &Decision<'_>) -> Self {
        match (decision.status, decision.is_invalid) {
            // A rate, capacity, burst or cost of it is unusable: the problem says no more than the status.
            (Status::ErrorRejected, true) => Self {
                error: "Invalid request",
                kind: "about:blank",
                title: "Bad Request",
                is_of_limits: false,
            },
            // Redis did not decide.
            (Status::ErrorRejected, false) => Self {
                error: "Rate limit unavailable",
                kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                title: "Request cannot be satisfied due to temporary server capacity constraints",
                is_of_limits: true,
            },
            // Its cost is more than a limit has left.
            _ => Self {
                error: "Rate limit exceeded",
                kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                title: "Request cannot be satisfied as assigned quota has been exceeded",
                is_of_limits: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::decision::{Retry, Shown, Source, Verdict};
    use crate::limit::{Algorithm, Quota};

    static QUOTA: LazyLock<Quota> =
        LazyLock::new(|| Quota::new(Algorithm::Gcra, "1r/s".parse().unwrap(), 1).unwrap());

    fn decision(status: Status, retry: Retry) -> Decision<'static> {
        let verdict = Verdict { allowed: false, blocked: 0, remaining: 0, reset: 0, retry };
        let shown = Shown { name: "per_ip", quota: &QUOTA, verdict };
        let shown = (status == Status::Rejected).then_some(shown);
        let (source, is_invalid) = (Source::Redis, false);
        Decision { status, source, shown, wait: 0, delay: 0, jitter: 0, is_invalid }
    }

    fn invalid() -> Decision<'static> {
        Decision { is_invalid: true, ..decision(Status::ErrorRejected, Retry::No) }
    }

    fn text(form: BodyForm, decision: &Decision<'_>, violated: &[&str]) -> String {
        rejection(form, 429, decision, violated.iter().copied()).unwrap().1
    }

    #[test]
    fn json_says_when_to_retry() {
        let rejected = decision(Status::Rejected, Retry::After(2_100_000));
        assert_eq!(
            text(BodyForm::Json, &rejected, &["per_ip"]),
            r#"{"error":"Rate limit exceeded","limit":"per_ip","retry_after":3}"#
        );
        assert_eq!(
            text(BodyForm::Json, &decision(Status::Rejected, Retry::Never), &["per_ip"]),
            r#"{"error":"Rate limit exceeded","limit":"per_ip","retry_after":null}"#
        );
        assert_eq!(
            text(BodyForm::Json, &decision(Status::ErrorRejected, Retry::No), &[]),
            r#"{"error":"Rate limit unavailable","limit":null,"retry_after":1}"#
        );
        assert_eq!(
            text(BodyForm::Json, &invalid(), &[]),
            r#"{"error":"Invalid request","limit":null,"retry_after":null}"#
        );
        assert_eq!(rejection(BodyForm::Html, 429, &rejected, [].into_iter()), None);
    }

    #[test]
    fn a_problem_has_its_members() {
        let rejected = decision(Status::Rejected, Retry::After(1));
        let body = text(BodyForm::Problem, &rejected, &["per_ip", "daily"]);
        assert!(body.starts_with(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":""#
        ));
        assert!(body.ends_with(r#""status":429,"violated-policies":["per_ip","daily"]}"#));
        let undecided = text(BodyForm::Problem, &decision(Status::ErrorRejected, Retry::No), &[]);
        assert!(undecided.contains("#temporary-reduced-capacity"));
        assert!(undecided.ends_with(r#""violated-policies":[]}"#));
        let (_, body) = rejection(BodyForm::Problem, 400, &invalid(), [].into_iter()).unwrap();
        assert_eq!(body, r#"{"type":"about:blank","title":"Bad Request","status":400}"#);
    }
}
