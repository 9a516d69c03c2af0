//! The values of the directives of the policy, and the errors of others.

use proptest::prelude::*;

use super::*;
use crate::conf::directive::tests::directive;
use crate::conf::endpoint;
use crate::conf::limit::{LimitError, LimitWords, parameters};
use crate::conf::store::{self, StoreLine, StoreLines, StoreSets};

/// The values that a line sets, and its warning.
fn read(line: &str) -> Result<(PolicyLevel, Option<String>), String> {
    let directive = directive(line);
    let row = Row::find(directive.name().expect("a name")).expect("a directive");
    let (Sets::Policy(set) | Sets::Page(set)) = row.sets else { panic!("{line}") };
    let mut level = PolicyLevel::default();
    let doubt = set(&mut level, &directive).map_err(|error| error.to_string())?;
    Ok((level, doubt))
}

/// The policy of a level with this line alone.
#[track_caller]
fn policy(line: &str) -> Policy {
    let (level, _) = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    level.policy()
}

/// Checks that a directive cannot have any of these values.
#[track_caller]
fn refused(name: &str, values: &[&str], expected: &str) {
    for value in values {
        let error =
            format!("invalid value \"{value}\" in \"{name}\" directive, it must be {expected}");
        assert_eq!(read(&format!("{name} '{value}'")), Err(error));
    }
}

/// Checks the arguments of a directive that has several, of which one is invalid.
#[track_caller]
fn refused_one(name: &str, table: &[(&str, &str)], expected: &str) {
    for (words, value) in table {
        let error =
            format!("invalid value \"{value}\" in \"{name}\" directive, it must be {expected}");
        assert_eq!(read(&format!("{name} {words}")), Err(error), "{words}");
    }
}

#[test]
fn a_timeout_is_a_time_above_0() {
    let name = "rate_limit_redis_timeout";
    let values = ["0", "0ms", "0s", "-1s", "", "soon", "20us", "0.5s", "$arg_a", "1y"];
    refused(name, &values, "a time above 0, such as 250ms or 1s");
    refused(name, &["99999999999999999999s"], "a time above 0, such as 250ms or 1s");
    for (value, time) in [("1ms", 1), ("20ms", 20), ("1s", 1_000), ("1000ms", 1_000), ("1", 1_000)]
    {
        let (level, doubt) = read(&format!("{name} {value}")).unwrap();
        assert_eq!((level.policy().timeout, doubt), (time, None), "{value}");
    }
    for (value, time, seconds) in [
        ("100", 100_000, "100"),
        ("2", 2_000, "2"),
        ("1001ms", 1_001, "1.001"),
        ("1m", 60_000, "60"),
    ] {
        let (level, doubt) = read(&format!("{name} {value}")).unwrap();
        let hint = match value {
            "100" | "2" => ", and a number without a unit is one of seconds",
            _ => "",
        };
        let expected =
            format!("\"{name} {value}\" lets a request wait {seconds} s for its decision{hint}");
        assert_eq!((level.policy().timeout, doubt), (time, Some(expected)), "{value}");
    }
}

#[test]
fn on_error_is_open_closed_or_local() {
    let name = "rate_limit_redis_on_error";
    let values = ["", "Open", "redis", "off", "$arg_a"];
    refused(name, &values, "\"open\" or \"closed\" or \"local\"");
    let of = |value| policy(&format!("{name} {value}")).on_error;
    assert_eq!(of("open"), OnError::Open);
    assert_eq!(of("closed"), OnError::Closed);
    assert_eq!(of("local"), OnError::Local);
}

#[test]
fn on_invalid_is_reject_or_pass() {
    let name = "rate_limit_redis_on_invalid";
    let values = ["", "Reject", "open", "closed", "off", "400", "$arg_a"];
    refused(name, &values, "\"reject\" or \"pass\"");
    let of = |value| policy(&format!("{name} {value}")).on_invalid;
    assert_eq!(of("reject"), OnInvalid::Reject);
    assert_eq!(of("pass"), OnInvalid::Pass);
}

#[test]
fn a_status_is_that_of_an_error() {
    let expected = "a number between 400 and 599, but not 494 to 497";
    for name in ["rate_limit_redis_status", "rate_limit_redis_error_status"] {
        let values = ["399", "600", "200", "abc", "42", "4290", "-429", "+42", "0429", "429a"];
        refused(name, &values, expected);
        refused(name, &["$arg_a", "4e2", "", "494", "495", "496", "497"], expected);
    }
    for status in [400, 429, 493, 498, 599] {
        let of = |name| policy(&format!("{name} {status}"));
        let own = of("rate_limit_redis_status");
        assert_eq!((own.status, own.error_status), (status, 503));
        let error = of("rate_limit_redis_error_status");
        assert_eq!((error.status, error.error_status), (429, status));
    }
}

#[test]
fn each_form_of_fields_stands_once() {
    let name = "rate_limit_redis_headers";
    let expected = "\"off\", or any of \"x-ratelimit\" or \"x-ratelimit-epoch\", \"ratelimit\" and \"ietf\", \
                    each once";
    refused(name, &["on", "X-RateLimit", "draft", "", "$arg_a"], expected);
    refused_one(
        name,
        &[
            ("ietf ietf", "ietf"),
            ("x-ratelimit x-ratelimit", "x-ratelimit"),
            ("x-ratelimit x-ratelimit-epoch", "x-ratelimit-epoch"),
            ("x-ratelimit-epoch x-ratelimit", "x-ratelimit"),
            ("off x-ratelimit", "off"),
            ("ietf off", "off"),
            ("off off", "off"),
            ("ietf ratelimit ratelimit", "ratelimit"),
        ],
        expected,
    );
    let forms = |x_ratelimit, ratelimit, ietf| Forms { x_ratelimit, ratelimit, ietf };
    for (words, expected) in [
        ("off", forms(None, false, false)),
        ("x-ratelimit", forms(Some(Reset::Seconds), false, false)),
        ("x-ratelimit-epoch", forms(Some(Reset::Epoch), false, false)),
        ("ratelimit", forms(None, true, false)),
        ("ietf", forms(None, false, true)),
        ("ietf ratelimit x-ratelimit-epoch", forms(Some(Reset::Epoch), true, true)),
    ] {
        assert_eq!(policy(&format!("{name} {words}")).forms, expected, "{words}");
    }
}

#[test]
fn a_body_is_html_json_or_a_problem() {
    let name = "rate_limit_redis_body";
    let values = ["", "JSON", "off", "$arg_a"];
    refused(name, &values, "\"html\" or \"json\" or \"problem\"");
    let of = |value| policy(&format!("{name} {value}")).body;
    assert_eq!(of("html"), body::BodyForm::Html);
    assert_eq!(of("json"), body::BodyForm::Json);
    assert_eq!(of("problem"), body::BodyForm::Problem);
}

#[test]
fn a_flag_is_on_or_off() {
    for name in ["rate_limit_redis_dry_run", "rate_limit_redis_deny_cache"] {
        refused(name, &["yes", "1", "On", "", "$arg_a"], "\"on\" or \"off\"");
    }
    assert!(policy("rate_limit_redis_dry_run on").dry_run);
    assert!(!policy("rate_limit_redis_dry_run off").dry_run);
    assert!(policy("rate_limit_redis_deny_cache on").deny_cache);
    assert!(!policy("rate_limit_redis_deny_cache off").deny_cache);
}

#[test]
fn a_log_level_may_have_a_rate() {
    let name = "rate_limit_redis_log_level";
    let levels = "\"info\" or \"notice\" or \"warn\" or \"error\"";
    refused(name, &["debug", "crit", "warning", "Error", "rate=5r/s", ""], levels);
    let rate = "\"rate=<n>r/s\" with n from 1, such as rate=1000r/s";
    for word in ["rate=0r/s", "rate=5", "rate=5r/m", "rate=-1r/s", "rate=1.5r/s", "rate=", "5r/s"] {
        refused_one(name, &[(&format!("warn {word}"), word)], rate);
    }
    for (words, level, rate) in [
        ("info", LogLevel::Info, 1_000),
        ("notice", LogLevel::Notice, 1_000),
        ("warn rate=1r/s", LogLevel::Warn, 1),
        ("error rate=1000000r/s", LogLevel::Error, 1_000_000),
    ] {
        assert_eq!(policy(&format!("{name} {words}")).log, LogLimit { level, rate }, "{words}");
    }
}

#[test]
fn keys_are_logged_or_hidden_or_hmacs() {
    let name = "rate_limit_redis_log_key";
    refused(name, &["", "On", "yes", "HMAC", "sha1", "$arg_a"], "\"on\" or \"off\" or \"hmac\"");
    for (value, log_key) in [("on", LogKey::On), ("off", LogKey::Off), ("hmac", LogKey::Hmac)] {
        assert_eq!(policy(&format!("{name} {value}")).log_key, log_key);
    }
}

#[test]
fn a_retry_jitter_is_a_time() {
    let name = "rate_limit_redis_retry_jitter";
    refused(name, &["-1", "soon", "1.5s", "10x", "$arg_a", ""], "a time, such as 10s");
    for (value, time) in [("0", 0), ("10s", 10_000), ("1m", 60_000)] {
        assert_eq!(policy(&format!("{name} {value}")).retry_jitter, time);
    }
}

#[test]
fn an_ipv4_prefix_has_1_to_32_bits() {
    let name = "rate_limit_redis_ipv4_prefix";
    let values = ["0", "33", "-1", "+24", "24.0", "/24", "255.255.255.0", "$arg_a", ""];
    refused(name, &values, "a number between 1 and 32");
    for bits in [1, 24, 32] {
        assert_eq!(policy(&format!("{name} {bits}")).ipv4_prefix, bits);
    }
}

#[test]
fn an_ipv6_prefix_has_1_to_128_bits() {
    let name = "rate_limit_redis_ipv6_prefix";
    let values = ["0", "129", "-1", "+64", "64.0", "/64", "64bits", "4294967360", "$arg_a", ""];
    refused(name, &values, "a number between 1 and 128");
    for bits in [1, 64, 128] {
        assert_eq!(policy(&format!("{name} {bits}")).ipv6_prefix, bits);
    }
}

#[test]
fn a_lease_is_off_on_or_a_time() {
    let name = "rate_limit_redis_lease";
    let values = ["9ms", "61s", "60001ms", "1h", "0", "-1", "1.5s", "On", "yes", "$arg_a", ""];
    refused(name, &values, "\"off\", \"on\" or a time between 10ms and 1m");
    for (value, time) in [("off", 0), ("on", 1_000), ("10ms", 10), ("2", 2_000), ("1m", 60_000)] {
        assert_eq!(policy(&format!("{name} {value}")).lease, time, "{value}");
    }
}

#[test]
fn a_metrics_page_may_have_one_form() {
    let name = "rate_limit_redis_metrics";
    let values = ["xml", "on", "JSON", "", "$arg_a"];
    refused(name, &values, "\"prometheus\" or \"json\" or \"html\"");
    assert_eq!(policy(name).page, None);
    for form in metrics::PageForm::ALL {
        assert_eq!(policy(&format!("{name} {}", form.name())).page, Some(form));
    }
}

#[test]
fn the_memory_has_at_least_256k() {
    let size = |value: &str| {
        let line = format!("rate_limit_redis_shared_memory '{value}'");
        let directive = directive(&line);
        let row = Row::find("rate_limit_redis_shared_memory").expect("a directive");
        let Sets::Memory { read, .. } = row.sets else { panic!("{line}") };
        read(&directive).map_err(|error| error.to_string())
    };
    for value in ["255k", "0", "-1", "x", "8mm", "", "1000", "8g", "$arg_a"] {
        let error = format!(
            "invalid value \"{value}\" in \"rate_limit_redis_shared_memory\" directive, it must be a size of \
             at least 256k, such as 8m or 1024m"
        );
        assert_eq!(size(value), Err(error));
    }
    for (value, bytes) in [
        ("256k", 256 << 10),
        ("262144", 256 << 10),
        ("8m", 8 << 20),
        ("8M", 8 << 20),
        ("64m", 64 << 20),
    ] {
        assert_eq!(size(value), Ok(bytes), "{value}");
    }
}

#[test]
fn at_most_100_top_keys_are_kept() {
    let number = |value: &str| {
        let line = format!("rate_limit_redis_top '{value}'");
        let directive = directive(&line);
        let row = Row::find("rate_limit_redis_top").expect("a directive");
        let Sets::Top { read, .. } = row.sets else { panic!("{line}") };
        read(&directive).map_err(|error| error.to_string())
    };
    for value in ["-1", "101", "ten", "on", "", "$arg_a"] {
        let error = format!(
            "invalid value \"{value}\" in \"rate_limit_redis_top\" directive, it must be a number between 0 and 100"
        );
        assert_eq!(number(value), Err(error));
    }
    assert_eq!([number("0"), number("10"), number("100")], [Ok(0), Ok(10), Ok(100)]);
}

/// A value of each directive of the policy that is not its default.
const OTHERS: &[&str] = &[
    "rate_limit_redis_timeout 50ms",
    "rate_limit_redis_on_error local",
    "rate_limit_redis_on_invalid pass",
    "rate_limit_redis_status 503",
    "rate_limit_redis_error_status 429",
    "rate_limit_redis_headers ietf",
    "rate_limit_redis_body json",
    "rate_limit_redis_dry_run on",
    "rate_limit_redis_log_level warn",
    "rate_limit_redis_log_key off",
    "rate_limit_redis_retry_jitter 10s",
    "rate_limit_redis_ipv4_prefix 24",
    "rate_limit_redis_ipv6_prefix 56",
    "rate_limit_redis_deny_cache off",
    "rate_limit_redis_lease on",
    "rate_limit_redis_metrics json",
];

#[test]
fn every_directive_sets_what_it_says_once() {
    let rows = DIRECTIVES.iter().filter(|row| matches!(row.sets, Sets::Policy(_) | Sets::Page(_)));
    for row in rows {
        let name = format!("{} ", row.name.to_str().expect("a name"));
        assert!(OTHERS.iter().any(|line| line.starts_with(&name)), "{name}");
    }
    for line in OTHERS {
        assert_ne!(policy(line), Policy::default(), "{line}");
        let directive = directive(line);
        let name = directive.name().expect("a name");
        let row = Row::find(name).expect("a directive");
        let (Sets::Policy(set) | Sets::Page(set)) = row.sets else { panic!("{line}") };
        let (mut level, _) = read(line).expect("a value");
        let error = set(&mut level, &directive).unwrap_err().to_string();
        assert_eq!(error, format!("\"{name}\" directive is duplicate"));
    }
}

#[test]
fn a_level_inherits_what_it_does_not_set() {
    for line in OTHERS {
        let (above, _) = read(line).expect("a value");
        let mut below = PolicyLevel::default();
        below.inherit(&above);
        assert_eq!(below.policy(), policy(line), "{line}");
        // The value of another directive is kept.
        for other in OTHERS.iter().filter(|other| *other != line) {
            let (mut below, _) = read(other).expect("a value");
            below.inherit(&above);
            assert_ne!(below.policy(), policy(other), "{line}, {other}");
            let (mut reverse, _) = read(line).expect("a value");
            let (other, _) = read(other).expect("a value");
            reverse.inherit(&other);
            assert_eq!(below, reverse);
        }
    }
}

#[test]
fn a_level_overrules_the_level_above() {
    for (above, own) in [
        ("rate_limit_redis_timeout 50ms", "rate_limit_redis_timeout 20ms"),
        ("rate_limit_redis_dry_run on", "rate_limit_redis_dry_run off"),
        ("rate_limit_redis_lease on", "rate_limit_redis_lease off"),
        ("rate_limit_redis_headers ietf", "rate_limit_redis_headers x-ratelimit"),
        ("rate_limit_redis_metrics json", "rate_limit_redis_metrics"),
    ] {
        let ((above, _), (mut level, _)) = (read(above).unwrap(), read(own).unwrap());
        level.inherit(&above);
        assert_eq!(level.policy(), Policy::default(), "{own}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 500 }))]

    /// No words of a configuration make their reader panic.
    #[test]
    fn no_words_panic(
        first in proptest::sample::select(DIRECTIVES),
        words in proptest::collection::vec(words(), 0..5),
    ) {
        let name = [first.name.to_bytes()].into_iter();
        let line = Directive::new(name.chain(words.iter().map(Vec::as_slice)));
        match first.sets {
            Sets::Policy(set) | Sets::Page(set) => drop(set(&mut PolicyLevel::default(), &line)),
            Sets::Memory { read, .. } | Sets::Top { read, .. } => drop(read(&line)),
            Sets::Limit => {
                if let Ok(words) = LimitWords::read(&line)
                    && let Ok(line) = words.compile(Ok::<_, LimitError>)
                {
                    drop(words.doubts(&line, |_| true));
                }
            }
            Sets::Admin => {}
            Sets::Pass { .. } | Sets::Store => {
                drop(line.value().map(|url| endpoint("server", url)));
                let line = Directive::new(words.iter().map(Vec::as_slice));
                let row = line.name().ok().and_then(|name| StoreLine::find(name).ok());
                if let Some(StoreLine { sets: StoreSets::Value(read), .. }) = row {
                    drop(read(&mut StoreLines::default(), &line));
                }
            }
        }
    }
}

/// A word: any bytes, or something like a parameter or a time.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let lines = store::LINES.iter().map(|row| row.name.to_owned());
    let names = parameters().map(|(name, _)| name).chain(lines).collect::<Vec<_>>();
    let values =
        "[0-9]{0,20}(r/)?[0-9]{0,20}( |ms|s|m|h|d|w|k|month)?[0-9]{0,3}|[$]?[{]?[a-z_]*[}]?";
    let parameters = (proptest::sample::select(names.clone()), values);
    prop_oneof![
        proptest::sample::select(names).prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..20),
        parameters.prop_map(|(name, value)| format!("{name}{value}").into_bytes()),
        values.prop_map(String::into_bytes),
    ]
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = DIRECTIVES.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), DIRECTIVES.len());
    assert!(Row::find("rate_limit_redis").is_some() && Row::find("rate_limit_redis_").is_none());
}
