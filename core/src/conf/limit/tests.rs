//! Lines, with what they make or the error that they get.

use super::*;
use crate::conf::Directive;
use crate::conf::directive::tests::directive;
use crate::limit::QuotaError;
use crate::rate::{MAX_EXACT, MAX_TIME, SECOND};

/// The line of these words; its variables stay as they are written.
fn read(words: &str) -> Result<LimitLine<'_, &str>, LimitError> {
    let line = directive(words);
    LimitWords::read(&line)?.compile(Ok)
}

#[track_caller]
fn good(words: &str) -> LimitLine<'_, &str> {
    read(words).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// The error of a line.
#[track_caller]
fn error(words: &str) -> String {
    match read(words) {
        Ok(line) => panic!("{words} is valid: {line:?}"),
        Err(error) => error.to_string(),
    }
}

/// Checks the errors of a table of lines.
#[track_caller]
fn refused(table: &[(&str, &str)]) {
    for (words, expected) in table {
        assert_eq!(error(words), *expected, "{words}");
    }
}

/// Checks that a parameter cannot have any of these values; `words` are what is before it.
#[track_caller]
fn refused_values(words: &str, parameter: &str, values: &[&str], reason: &str) {
    for value in values {
        let line = format!("{words} '{parameter}={value}'");
        let expected =
            format!("invalid {parameter} \"{value}\" in \"rate_limit_redis\" directive: {reason}");
        assert_eq!(error(&line), expected, "{line}");
    }
}

/// Checks that a parameter cannot be there twice.
#[track_caller]
fn refused_twice(words: &str, parameter: &str, name: &str) {
    let line = format!("{words} {parameter} {parameter}");
    let expected = format!("duplicate \"{name}\" in \"rate_limit_redis\" directive");
    assert_eq!(error(&line), expected, "{line}");
}

fn unknown(word: &str) -> String {
    let hint = "which has \"rate=\", \"name=\", \"algorithm=\", \"capacity=\", \"burst=\", \"refill=\", \"cost=\", \
                \"delay=\", \"after=\", \"block=\", \"settle=\", \"nodelay\", \"dry_run\", \"override\"";
    unknown_but(word, hint)
}

fn unknown_but(word: &str, hint: &str) -> String {
    format!("invalid parameter \"{word}\" in \"rate_limit_redis\" directive, {hint}")
}

fn without_value(word: &str, flag: &str) -> String {
    unknown_but(word, &format!("\"{flag}\" has no value"))
}

fn with_value(word: &str) -> String {
    unknown_but(word, &format!("it is written \"{word}=\", with a value"))
}

fn foreign(parameter: &str, algorithm: &str, own: &str) -> String {
    format!(
        "\"{parameter}\" in \"rate_limit_redis\" directive is no parameter of algorithm={algorithm}, which \
         has {own}"
    )
}

fn quota_error(parameter: &str, error: QuotaError) -> String {
    format!("\"{parameter}\" in \"rate_limit_redis\" directive {error}")
}

const A: &str = "rate_limit_redis a rate=1r/s";
const CAPACITY: &str = "it must be a number from 1 to 9007199254740992";
const PERIOD: &str = "a rate is <n>r/<period>, where the period is s, m, h or d, or a number and one of ms s m h d w, \
                      such as 10s, or, of fixed_window, month";
const COUNT: &str = "it must be a number from 0 to 9007199254740992";

#[test]
fn a_line_has_a_key_and_a_rate() {
    let no_key = "\"rate_limit_redis\" must have a key before its parameters, such as $remote_addr";
    let no_rate = "\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s";
    let off = "; without limits it is \"rate_limit_redis off\", in lower case";
    refused(&[
        ("rate_limit_redis", no_key),
        ("rate_limit_redis $remote_addr", no_rate),
        ("rate_limit_redis on", no_rate),
        ("rate_limit_redis OFF", &format!("{no_rate}{off}")),
        ("rate_limit_redis Off", &format!("{no_rate}{off}")),
        ("rate_limit_redis OFF name=a", no_rate),
        // The key is forgotten, or comes last.
        ("rate_limit_redis rate=1r/s", no_key),
        ("rate_limit_redis rate=1r/s $remote_addr", no_key),
        ("rate_limit_redis rate=$arg_a name=a", no_key),
        ("rate_limit_redis rate=1r/s name=a", no_key),
        ("rate_limit_redis name=login rate=5r/m", no_key),
        ("rate_limit_redis algorithm=gcra rate=5r/m", no_key),
        ("rate_limit_redis dry_run rate=5r/m", no_key),
    ]);
    for key in ["name=$arg_name", "a=b", "name", "$remote_addr", "$a$b", "everyone", ""] {
        assert_eq!(good(&format!("rate_limit_redis '{key}' rate=5r/m")).key, key);
    }
}

#[test]
fn words_that_are_no_text_are_refused() {
    let read = |words: &[&'static [u8]]| {
        let line = Directive::new([&b"rate_limit_redis"[..]].into_iter().chain(words.to_vec()));
        LimitWords::read(&line).unwrap_err().to_string()
    };
    assert!(read(&[b"\xff", b"rate=1r/s"]).contains("must have a key"));
    assert_eq!(read(&[b"a", b"rate=\xff"]), "\"rate=\\xff\" is not UTF-8");
    // An error of a word before it comes first.
    assert!(read(&[b"a", b"b", b"\xff"]).contains("invalid parameter \"b\""));
}

#[test]
fn off_stands_alone() {
    let is_off = |words| is_off(&directive(words));
    assert!(is_off("rate_limit_redis off").unwrap());
    assert!(!is_off("rate_limit_redis a rate=1r/s").unwrap());
    assert!(!is_off("rate_limit_redis").unwrap());
    let error = is_off("rate_limit_redis off rate=1r/s").unwrap_err().to_string();
    assert_eq!(error, "\"rate_limit_redis off\" takes no parameters");
    assert_eq!(self::error("rate_limit_redis a rate=1r/s off"), unknown("off"));
}

#[test]
fn a_rate_has_a_number_and_a_period() {
    let a = "rate_limit_redis a";
    let syntax = "a rate is <n>r/<period>, such as 10r/s, 100r/m or 5r/10s";
    refused_values(a, "rate", &["", "10", "10r", "10/s", "r/s", "10R/s"], syntax);
    refused_values(a, "rate", &["10r/x", "10r/", "10r/ms", "10r/w", "10r/1y", "10r/S"], PERIOD);
    refused_values(a, "rate", &["10r/sec", "1r/s ", "1r/-1s", "100r/1month", "1r/Month"], PERIOD);
    refused_values(a, "rate", &["1.5r/s", "-1r/s", "+1r/s", " 1r/s"], syntax);
    refused_values(
        a,
        "rate",
        &["0r/s", "1r/0s"],
        "the number of requests and the period must be at least 1",
    );
    refused_values(
        a,
        "rate",
        &["99999999999999999999r/s", "1r/99999999999999999999d", "1r/36501d"],
        "the number of requests is above 9007199254740992, or the period above 36500d",
    );
    refused_twice(a, "rate=1r/s", "rate=");
    refused(&[("rate_limit_redis a rate = 1r/s", &with_value("rate"))]);
    for (text, count, period) in [
        ("10r/s", 10, SECOND),
        ("100r/m", 100, 60 * SECOND),
        ("5r/10s", 5, 10 * SECOND),
        ("1r/2w", 1, 14 * 86_400 * SECOND),
        ("3r/500ms", 3, SECOND / 2),
        ("1000000r/s", 1_000_000, SECOND),
    ] {
        let line = format!("rate_limit_redis a rate={text}");
        let rate = good(&line).rate.literal().expect("a literal");
        assert_eq!((rate.count(), rate.period()), (count, period), "{text}");
    }
    assert_eq!(good("rate_limit_redis a rate=${n}r/s").rate, Setting::Variable("${n}r/s"));
}

#[test]
fn a_name_is_short_and_plain() {
    let long = "n".repeat(65);
    let values = ["", "a/b", "a:b", "a b", "$host", &long];
    refused_values(A, "name", &values, "it must be 1 to 64 of A-Z a-z 0-9 _ - .");
    let shown = "invalid name \"\\xC3\\xA4\" in \"rate_limit_redis\" directive: it must be 1 to 64 of A-Z \
                 a-z 0-9 _ - .";
    refused(&[("rate_limit_redis a rate=1r/s name=\u{e4}", shown)]);
    refused_twice(A, "name=a", "name=");
    assert_eq!(good(A).definition.name, "default");
    for name in ["a.b-c_D9", &"n".repeat(64)] {
        assert_eq!(good(&format!("{A} name={name}")).definition.name, name);
    }
}

#[test]
fn an_algorithm_is_one_of_those_known() {
    let known = "it must be one of token_bucket, gcra, leaky_bucket, sliding_window, sliding_log, \
                 fixed_window";
    let values = ["", "leaky", "GCRA", "$arg_a", "limit_req", "sliding", "sliding-log"];
    refused_values(A, "algorithm", &values, known);
    refused_values(A, "algorithm", &["interval_bucket"], known);
    refused_twice(A, "algorithm=gcra", "algorithm=");
    assert_eq!(good(A).definition.algorithm, Algorithm::TokenBucket);
    for name in Algorithm::ALL.map(Algorithm::name) {
        assert_eq!(good(&format!("{A} algorithm={name}")).definition.algorithm.name(), name);
    }
    let month = good("rate_limit_redis a rate=7r/month algorithm=fixed_window");
    assert_eq!(month.definition.algorithm, Algorithm::FixedWindow);
}

#[test]
fn a_capacity_is_a_number_that_can_be_counted() {
    let values = ["", "0", "-1", "1.5", "10k", "9007199254740993", "99999999999999999999"];
    refused_values(A, "capacity", &values, CAPACITY);
    refused_values(&format!("{A} refill=interval"), "capacity", &["0"], CAPACITY);
    refused_twice(A, "capacity=1", "capacity=");
    refused(&[
        (
            "rate_limit_redis a rate=1r/52w capacity=101",
            &quota_error("capacity=101", QuotaError::TooSlow),
        ),
        (
            "rate_limit_redis a rate=1r/52w capacity=101 refill=interval",
            &quota_error("capacity=101", QuotaError::TooSlow),
        ),
        (
            "rate_limit_redis a rate=9007199254740991r/s capacity=2",
            &quota_error("capacity=2", QuotaError::TooLarge),
        ),
        (
            "rate_limit_redis a rate=9007199254740991r/s",
            &quota_error("rate=9007199254740991r/s", QuotaError::TooLarge),
        ),
    ]);
    let limit = |words: &str| good(words).known_quota.map(|quota| quota.limit());
    assert_eq!(limit("rate_limit_redis a rate=10r/s"), Some(10));
    assert_eq!(limit("rate_limit_redis a rate=10r/s capacity=1"), Some(1));
    assert_eq!(limit("rate_limit_redis a rate=10r/s capacity=50"), Some(50));
    assert_eq!(limit("rate_limit_redis a rate=10r/s capacity=$x"), None);
    assert_eq!(limit("rate_limit_redis a rate=$x capacity=50"), None);
}

#[test]
fn a_burst_is_a_number_that_can_be_counted() {
    for algorithm in ["gcra", "leaky_bucket"] {
        let a = format!("{A} algorithm={algorithm}");
        refused_values(&a, "burst", &["", "-1", "few"], COUNT);
        refused_twice(&a, "burst=1", "burst=");
        let slow = format!("rate_limit_redis a rate=1r/52w algorithm={algorithm} burst=101");
        assert_eq!(error(&slow), quota_error("burst=101", QuotaError::TooSlow));
        let limit = |words: &str| good(&format!("{a} {words}")).known_quota.map(|it| it.limit());
        assert_eq!(limit(""), Some(1));
        assert_eq!(limit("burst=0"), Some(1));
        assert_eq!(limit("burst=49"), Some(50));
        assert_eq!(limit("burst=$msec"), None);
    }
}

#[test]
fn a_refill_is_continuous_or_by_intervals() {
    let right = "it must be continuous or interval";
    refused_values(A, "refill", &["", "Interval", "1s", "$arg_a", "none"], right);
    refused_values(&format!("{A} algorithm=token_bucket"), "refill", &["none"], right);
    refused_twice(A, "refill=interval", "refill=");
    refused(&[("rate_limit_redis a rate=1r/s refill", &with_value("refill"))]);
    let algorithm =
        |words: &str| good(&format!("rate_limit_redis a rate=10r/s {words}")).definition.algorithm;
    assert_eq!(algorithm("refill=continuous"), Algorithm::TokenBucket);
    assert_eq!(algorithm("capacity=50 refill=interval"), Algorithm::IntervalBucket);
    assert_eq!(algorithm("refill=interval algorithm=token_bucket"), Algorithm::IntervalBucket);
}

#[test]
fn a_cost_is_a_whole_number() {
    refused_values(A, "cost", &["", "-1", "0.5", "one", "9007199254740993"], COUNT);
    refused_twice(A, "cost=1", "cost=");
    refused(&[("rate_limit_redis a rate=1r/s Cost=1", &unknown("Cost=1"))]);
    let cost = |words: &str| good(&format!("{A} {words}")).cost.literal();
    assert_eq!(cost(""), Some(1));
    assert_eq!(cost("cost=0"), Some(0));
    assert_eq!(cost("cost=9007199254740992"), Some(MAX_EXACT));
    assert_eq!(cost("cost=1$x"), None);
}

#[test]
fn a_line_may_come_after_the_access_checks() {
    refused_values(A, "after", &["", "access", "$arg_a"], "it must be auth");
    refused_twice(A, "after=auth", "after=");
    refused(&[("rate_limit_redis a rate=1r/s after", &with_value("after"))]);
    assert_eq!(good(A).phase, Phase::Access);
    assert_eq!(good("rate_limit_redis a rate=1r/s after=auth").phase, Phase::Precontent);
}

#[test]
fn a_dry_run_has_no_value() {
    refused_twice(A, "dry_run", "dry_run");
    let on = without_value("dry_run=on", "dry_run");
    refused(&[("rate_limit_redis a rate=1r/s dry_run=on", &on)]);
    assert_eq!(good(A).effect, Effect::Enforced);
    assert_eq!(good("rate_limit_redis a rate=1r/s dry_run").effect, Effect::DryRun);
    let is_plain = |words: &str| good(&format!("{A} {words}")).is_plain();
    assert!(is_plain("cost=2") && !is_plain("dry_run") && !is_plain("block=1s"));
}

#[test]
fn a_settlement_is_a_number_or_a_variable() {
    let right = "it must be a number of at least 0, such as 3 or 0.25";
    refused_values(A, "settle", &["", "-1", "one", "1.", "1e3"], right);
    refused_twice(A, "settle=1", "settle=");
    refused(&[
        ("rate_limit_redis a rate=1r/s settle", &with_value("settle")),
        (
            "rate_limit_redis a rate=1r/52w capacity=50 settle=$status",
            &quota_error("capacity=50", QuotaError::DebtTooSlow),
        ),
    ]);
    refused(&[(
        "rate_limit_redis a rate=1r/52w capacity=50 override",
        &quota_error("capacity=50", QuotaError::DebtTooSlow),
    )]);
    assert_eq!(good(A).settle, None);
    for value in ["$status", "0", "1.5", "${status}0"] {
        assert_eq!(good(&format!("{A} settle={value}")).settle, Some(value));
    }
    assert_eq!(good(A).read_settle("1.5").unwrap(), 2);
}

#[test]
fn a_block_lasts_for_a_time_above_0() {
    let right = "it must be a time above 0 and up to 36500d, such as 10m";
    let values = ["0", "0s", "-1s", "soon", "1.5m", "10r/s", "36501d", "$arg_a", "", "1M"];
    refused_values(A, "block", &values, right);
    refused_twice(A, "block=1s", "block=");
    refused(&[
        ("rate_limit_redis a rate=1r/s block", &with_value("block")),
        (
            "rate_limit_redis a rate=1r/s block=1s dry_run",
            "\"block=\" and \"dry_run\" of the \"rate_limit_redis\" directive exclude each other",
        ),
    ]);
    assert_eq!(good(A).definition.block, 0);
    for (text, time) in [
        ("1ms", 1_000),
        ("90", 90 * SECOND),
        ("10m", 600 * SECOND),
        ("1d 12h", 36 * 3_600 * SECOND),
        ("36500d", MAX_TIME),
    ] {
        let words = format!("{A} 'block={text}'");
        let line = good(&words);
        assert_eq!(line.definition.block, time, "{text}");
        assert_eq!(line.known_quota.map(|quota| quota.block()), Some(time), "{text}");
    }
}

#[test]
fn delay_and_nodelay_exclude_each_other() {
    let a = format!("{A} algorithm=leaky_bucket");
    refused_values(&a, "delay", &["", "-1", "1s", "$arg_a", "99999999999999999999"], COUNT);
    refused_twice(&a, "delay=1", "delay=");
    refused_twice(&a, "nodelay", "nodelay");
    let both =
        "\"delay=\" and \"nodelay\" of the \"rate_limit_redis\" directive exclude each other";
    for (words, expected) in [
        ("delay", with_value("delay")),
        ("delay=1 nodelay", both.to_owned()),
        ("nodelay delay=1", both.to_owned()),
        ("nodelay=on", without_value("nodelay=on", "nodelay")),
    ] {
        assert_eq!(error(&format!("{a} {words}")), expected);
    }
    let undelayed = |words: &str| good(&format!("{a} {words}")).undelayed;
    assert_eq!(undelayed(""), Some(Undelayed::UpTo(0)));
    assert_eq!(undelayed("burst=5 delay=3"), Some(Undelayed::UpTo(3)));
    assert_eq!(undelayed("burst=5 nodelay"), Some(Undelayed::All));
    assert_eq!(good(A).undelayed, None);
}

/// Each algorithm takes its own parameters, and none of another.
#[test]
fn an_algorithm_takes_its_own_parameters_alone() {
    let bucket = "\"capacity=\" and \"refill=\"";
    let leaky = "\"burst=\", \"delay=\" and \"nodelay\"";
    let none = "none of its own";
    for algorithm in Algorithm::ALL {
        let own = match algorithm {
            Algorithm::TokenBucket | Algorithm::IntervalBucket => bucket,
            Algorithm::Gcra => "\"burst=\"",
            Algorithm::LeakyBucket => leaky,
            Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::FixedWindow => none,
        };
        let algorithm = algorithm.name();
        for (name, values) in [
            ("capacity=", &["5"][..]),
            ("burst=", &["5"]),
            ("refill=", &["interval", "continuous"]),
            ("delay=", &["2"]),
            ("nodelay", &[""]),
        ] {
            for value in values {
                let parameter = format!("{name}{value}");
                let line = format!("{A} algorithm={algorithm} {parameter}");
                match own.contains(&format!("\"{name}\"")) {
                    true => assert_eq!(good(&line).definition.algorithm.name(), algorithm),
                    false => assert_eq!(error(&line), foreign(&parameter, algorithm, own)),
                }
            }
        }
    }
    // A line without an algorithm, and one with a refill by intervals, are of token_bucket.
    refused(&[
        ("rate_limit_redis a rate=1r/s burst=5", &foreign("burst=5", "token_bucket", bucket)),
        ("rate_limit_redis a rate=1r/s nodelay", &foreign("nodelay", "token_bucket", bucket)),
        ("rate_limit_redis a rate=1r/s delay=5", &foreign("delay=5", "token_bucket", bucket)),
        (
            "rate_limit_redis a rate=1r/s refill=interval burst=5",
            &foreign("burst=5", "token_bucket", bucket),
        ),
        (
            "rate_limit_redis a rate=1r/s refill=interval algorithm=gcra",
            &foreign("refill=interval", "gcra", "\"burst=\""),
        ),
    ]);
}

#[test]
fn an_unknown_parameter_is_answered_with_those_known() {
    for word in ["zone=one", "off", "", "a", "=", "=1", "Rate", "$a", "rates=1r/s", "/var/x"] {
        assert_eq!(error(&format!("{A} '{word}'")), unknown(word));
    }
    for word in ["100r/m", "5r/10s", "7r/month", "0r/s", "${n}r/s", "10r/minute"] {
        let expected = unknown_but(word, &format!("the rate is written \"rate={word}\""));
        assert_eq!(error(&format!("rate_limit_redis a {word}")), expected);
    }
}

#[test]
fn every_parameter_is_read() {
    for (name, _) in parameters() {
        let refused = error(&format!("{A} {name} {name}"));
        assert!(refused.contains(&format!("duplicate \"{name}\"")), "{refused}");
    }
    assert_eq!(parameters().count(), 14);
}

/// A parameter with the default of its row makes what there is without it.
#[test]
fn defaults_change_nothing() {
    for (name, default) in parameters().filter_map(|(name, it)| Some((name, it?))) {
        let a = match name.as_str() {
            "burst=" | "delay=" => format!("{A} algorithm=leaky_bucket"),
            _ => A.to_owned(),
        };
        let made = |words: &str| {
            let mut line = good(words);
            // The words in which lines of one name must agree.
            Rc::make_mut(&mut line.definition).written.clear();
            Rc::make_mut(&mut line.definition).burst = None;
            format!("{line:?}").replace("burst: Some(Literal(0))", "burst: None")
        };
        assert_eq!(made(&format!("{a} {name}{default}")), made(&a), "{name}{default}");
    }
    assert_eq!(parameters().filter(|(_, default)| default.is_some()).count(), 6);
}

#[test]
fn what_an_algorithm_cannot_count_is_refused() {
    let log = "rate_limit_redis a algorithm=sliding_log";
    let window = "rate_limit_redis a algorithm=sliding_window";
    for (words, rate, expected) in [
        (log, "100001r/s", QuotaError::TooLong),
        (log, "1000000r/d", QuotaError::TooLong),
        (window, "9007199254740991r/s", QuotaError::TooLarge),
        (window, "7r/month", QuotaError::Monthly),
        ("rate_limit_redis a", "7r/month", QuotaError::Monthly),
        ("rate_limit_redis a capacity=$arg_a", "7r/month", QuotaError::Monthly),
    ] {
        let line = format!("{words} rate={rate}");
        assert_eq!(error(&line), quota_error(&format!("rate={rate}"), expected), "{line}");
    }
    let fixed = "rate_limit_redis a algorithm=fixed_window";
    let too_large = "the number of requests is above 9007199254740992, or the period above 36500d";
    refused_values(fixed, "rate", &["1r/36501d"], too_large);
    refused_values(fixed, "rate", &["7r/2month"], PERIOD);
    for words in [
        "rate_limit_redis a rate=100000r/s algorithm=sliding_log",
        "rate_limit_redis a rate=100000r/1w algorithm=sliding_log",
        "rate_limit_redis a rate=50000000r/1d algorithm=sliding_window",
        "rate_limit_redis a rate=7r/month algorithm=fixed_window",
    ] {
        assert!(good(words).known_quota.is_some(), "{words}");
    }
}

/// Whatever the algorithm and the period, some quota can be counted.
#[test]
fn numbers_of_a_request_saturate() {
    for algorithm in Algorithm::ALL {
        let burst = algorithm.burst_parameter().name();
        let burst = burst.map_or(String::new(), |name| format!("{name}=$b"));
        for settle in ["", "settle=$s"] {
            let words = format!(
                "rate_limit_redis a algorithm={} rate=$r {burst} {settle}",
                algorithm.name()
            );
            let line = good(&words);
            let most = line.read_burst("99999999999999999999").unwrap();
            for period in ["1ms", "7ms", "s", "m", "h", "d", "3w"] {
                let (few, many) =
                    (format!("7r/{period}"), format!("99999999999999999999r/{period}"));
                let [few, many] = [few, many].map(|text| line.read_rate(&text).unwrap());
                for (rate, burst) in
                    [(many, None), (many, Some(most)), (many, Some(3)), (few, Some(most))]
                {
                    let quota = line.quota_of_request(rate, burst);
                    let quota =
                        quota.unwrap_or_else(|error| panic!("{words} {rate} {burst:?}: {error}"));
                    assert!(burst != Some(3) || quota.limit() >= 3, "{words} {rate} {quota:?}");
                }
            }
        }
    }
}

/// A variable is read as a literal is, but that its digits saturate.
#[test]
fn values_of_a_request_are_read_as_literals_are() {
    let line = good("rate_limit_redis a rate=$r capacity=$c cost=$n");
    let rate = line.read_rate("5r/s").unwrap();
    assert_eq!((rate.count(), rate.period()), (5, SECOND));
    assert_eq!(line.read_burst("7").unwrap(), 7);
    assert_eq!(line.quota(rate, Some(7)).unwrap().limit(), 7);
    assert_eq!(line.quota(rate, None).unwrap().limit(), 5);
    let digits = "99999999999999999999";
    assert!(line.read_cost(digits).unwrap() > MAX_EXACT);
    let capacity = line.read_burst(digits).unwrap();
    let error = line.quota(rate, Some(capacity)).unwrap_err().to_string();
    assert_eq!(error, quota_error(&format!("capacity={capacity}"), QuotaError::TooLarge));
    assert_eq!(line.quota_of_request(rate, Some(capacity)).unwrap().limit(), 10_u64.pow(10));
    let (capacity, error) = (u64::pow(10, 11), QuotaError::TooSlow);
    let too_slow = line.quota_of_request(rate, Some(capacity)).unwrap_err().to_string();
    assert_eq!(too_slow, quota_error(&format!("capacity={capacity}"), error), "fewer digits");
    // A shorter period would let more through.
    for period in ["36500d", "99999999999999999999d"] {
        let slow = line.read_rate(&format!("1r/{period}")).unwrap();
        assert_eq!(line.quota_of_request(slow, Some(1)).unwrap().rate().period(), MAX_TIME);
        let error = line.quota_of_request(slow, Some(2)).unwrap_err().to_string();
        assert_eq!(error, quota_error("capacity=2", QuotaError::TooSlow));
    }
    for (error, expected) in [
        (line.read_rate("").unwrap_err(), "invalid rate \"\""),
        (line.read_rate("7r/month").unwrap_err(), "\"rate=7r/month\" in"),
        (line.read_burst("0").unwrap_err(), "invalid capacity \"0\""),
        (line.read_cost("a\nb").unwrap_err(), "invalid cost \"a\\x0Ab\""),
        (line.read_settle("x").unwrap_err(), "invalid settle \"x\""),
    ] {
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// The key is compiled first, then the parameters in their order; a literal is not.
#[test]
fn variables_are_compiled_in_their_order() {
    let line = directive("rate_limit_redis $a cost=$d rate=$b capacity=$c settle=$e name=x");
    let mut compiled = Vec::new();
    let compile = |text| -> Result<(), LimitError> {
        compiled.push(text);
        Ok(())
    };
    LimitWords::read(&line).unwrap().compile(compile).unwrap();
    assert_eq!(compiled, ["$a", "$b", "$c", "$d", "$e"]);
    // An error of a text that cannot be compiled comes before errors of later words.
    let line = directive("rate_limit_redis a rate=$b cost=x");
    let words = LimitWords::read(&line).unwrap();
    let compile = |text: &str| match text {
        "$b" => Err(LimitError::Duplicate("compiled".to_owned())),
        _ => Ok(()),
    };
    let error = words.compile(compile).unwrap_err();
    assert!(error.to_string().starts_with("duplicate \"compiled\""), "{error}");
}

/// The words in which lines that share a name must agree.
#[test]
fn lines_of_a_name_agree_in_their_definition() {
    let written =
        |words: &str| good(&format!("rate_limit_redis {words}")).definition.written.clone();
    for (one, other) in [
        ("a rate=1r/s", "a rate=2r/s"),
        ("a rate=60r/m", "a rate=1r/s"),
        ("a rate=1r/s", "b rate=1r/s capacity=2"),
        ("a rate=$arg_a", "a rate=$arg_b"),
        ("a rate=1r/s", "a rate=1r/s algorithm=gcra"),
        ("a rate=1r/s algorithm=gcra burst=1", "a rate=1r/s algorithm=gcra burst=2"),
        // These lines differ only in what refills the bucket, as it is written.
        ("a rate=1r/s", "a rate=1r/s refill=interval"),
        ("a rate=1r/s refill=interval", "a rate=1r/s refill=continuous"),
        ("a rate=1r/s algorithm=sliding_log", "a rate=1r/s algorithm=sliding_window"),
        ("a rate=1r/s algorithm=gcra", "a rate=1r/s algorithm=leaky_bucket nodelay"),
        ("a rate=1r/s block=1m", "a rate=1r/s"),
    ] {
        assert_ne!(written(one), written(other));
    }
    let leaky = "rate=1r/s algorithm=leaky_bucket burst=5";
    let of_leaky = |words| written(&format!("{words} {leaky}"));
    assert_eq!(of_leaky("a"), "algorithm=leaky_bucket rate=1r/s burst=5");
    for words in ["b", "a name=x", "a cost=0", "a settle=$status", "a after=auth", "a dry_run"] {
        assert_eq!(of_leaky(words), of_leaky("a"), "{words}");
    }
    for words in ["nodelay", "delay=2"] {
        assert_eq!(written(&format!("a {leaky} {words}")), of_leaky("a"), "{words}");
    }
    let all = "a block=1m refill=interval capacity=$c rate=$r";
    assert_eq!(written(all), "algorithm=token_bucket rate=$r capacity=$c refill=interval block=1m");
}

/// The warning of `nginx -t`, where `$remote_addr` is the only variable.
fn doubts(words: &str) -> Option<String> {
    let line = directive(words);
    let words = LimitWords::read(&line).expect("a line");
    let line = words.compile(Ok::<_, LimitError>).expect("a line");
    words.doubts(&line, |name| name == "remote_addr")
}

#[track_caller]
fn no_doubts(lines: &[&str]) {
    for line in lines {
        assert_eq!(doubts(&format!("rate_limit_redis {line}")), None, "{line}");
    }
}

#[test]
fn an_empty_key_limits_nothing() {
    let doubt = doubts("rate_limit_redis '' rate=1r/s");
    assert_eq!(doubt.as_deref(), Some("the key is empty: no request is limited"));
    no_doubts(&["a rate=1r/s", "$arg_a rate=1r/s"]);
}

#[test]
fn unverified_users_are_warned_of() {
    let doubt =
        "\"$remote_user\" is not verified before the access checks have passed: add \"after=auth\"";
    for line in [
        "$remote_user rate=1r/s",
        "${remote_user} rate=1r/s",
        "$Remote_User rate=1r/s",
        "'$host ${remote_user}x' rate=1r/s",
        "$host rate=$remote_user",
        "$host rate=${remote_user}r/s",
        "$host rate=1r/s capacity=$remote_user",
        "$host rate=1r/s algorithm=gcra burst=$remote_user",
        "$host rate=1r/s cost=$remote_user",
        "$host rate=1r/s settle=$remote_user",
        "$remote_user rate=1r/s dry_run",
    ] {
        let found = doubts(&format!("rate_limit_redis {line}"));
        assert_eq!(found.as_deref(), Some(doubt), "{line}");
    }
    no_doubts(&[
        "$remote_user rate=1r/s after=auth",
        "$remote_user after=auth rate=${remote_user}r/s cost=$remote_user",
        "$remote_user_agent rate=1r/s",
        "'$remote_addr remote_user' rate=1r/s",
        "x-remote_user rate=1r/s",
    ]);
}

#[test]
fn numbers_that_clients_choose_are_warned_of() {
    let doubt =
        |word: &str| format!("\"{word}\" is whatever the client writes: use a \"map\" of it");
    for parameter in ["rate", "capacity", "cost"] {
        for variable in
            ["$arg_a", "${arg_a}", "$http_x_cost", "$cookie_a", "$HTTP_A", "$http_content_length"]
        {
            let word = format!("{parameter}={variable}");
            let rate = if parameter == "rate" { "" } else { "rate=1r/s" };
            let line = format!("rate_limit_redis $host {rate} {word}");
            assert_eq!(doubts(&line), Some(doubt(&word)), "{line}");
        }
    }
    let burst = "rate_limit_redis $host rate=1r/s algorithm=gcra burst=$arg_a";
    assert_eq!(doubts(burst), Some(doubt("burst=$arg_a")));
    let unit = "rate_limit_redis $host rate=${arg_a}r/m";
    assert_eq!(doubts(unit), Some(doubt("rate=${arg_a}r/m")));
    let length = "rate_limit_redis $host rate=1r/s capacity=$content_length";
    assert_eq!(doubts(length), Some(doubt("capacity=$content_length")));
    no_doubts(&[
        "$arg_a rate=1r/s cost=$content_length",
        "$http_x_api_key rate=1r/s settle=$upstream_http_x_cost",
        "$host rate=$tier capacity=$capacity cost=$cost",
    ]);
}

#[test]
fn settlements_that_clients_choose_are_warned_of() {
    for variable in ["$arg_a", "${arg_a}", "$http_x_cost", "$cookie_a", "$HTTP_A", "${arg_a}0"] {
        let doubt = format!(
            "\"settle={variable}\" is whatever the client writes, and one that writes 0 pays nothing: \
             \"$upstream_http_...\" is what the backend answers"
        );
        let line = format!("rate_limit_redis $host rate=1r/s settle={variable}");
        assert_eq!(doubts(&line), Some(doubt), "{line}");
    }
    no_doubts(&[
        "$host rate=1r/s settle=$request_length",
        "$host rate=1r/s settle=$content_length",
        "$host rate=1r/s settle=$status",
        "$host rate=1r/s settle=$sent_http_x_cost",
        "$host rate=1r/s settle=$upstream_http_x_cost",
        "$host rate=1r/s settle=$argument",
    ]);
}

/// A limit decides before the body of the request is read, and before there is a response.
#[test]
fn variables_that_get_their_values_later_are_warned_of() {
    let no_response = "empty when the limit decides, before there is a response";
    let no_body = "empty when the limit decides, before the body of the request is read";
    for (name, state) in [
        ("upstream_http_x_cost", no_response),
        ("Upstream_Http_X_Cost", no_response),
        ("sent_http_x_cost", no_response),
        ("upstream_cookie_a", no_response),
        ("upstream_trailer_a", no_response),
        ("sent_trailer_a", no_response),
        ("upstream_status", no_response),
        ("upstream_addr", no_response),
        ("upstream_response_length", no_response),
        ("status", "\"000\" when the limit decides, before there is a response"),
        ("request_body", no_body),
        ("Request_Body", no_body),
        ("request_body_file", no_body),
    ] {
        for (place, words) in [
            ("rate", "$host rate="),
            ("capacity", "$host rate=1r/s capacity="),
            ("burst", "$host rate=1r/s algorithm=gcra burst="),
            ("cost", "$host rate=1r/s after=auth cost="),
            ("key", ""),
        ] {
            let hint =
                if place == "cost" { ": \"settle=\" is what a request has cost" } else { "" };
            let doubt = format!("\"${name}\" in the {place} is {state}{hint}");
            for value in [format!("${name}"), format!("${{{name}}}0")] {
                let words = match place {
                    "key" => format!("{value} rate=1r/s"),
                    _ => format!("{words}{value}"),
                };
                assert_eq!(
                    doubts(&format!("rate_limit_redis {words}")).as_deref(),
                    Some(&*doubt),
                    "{words}"
                );
            }
        }
    }
    // The variables of a configuration may be called so.
    no_doubts(&[
        "$upstream_pool rate=$upstream_rate",
        "$host rate=1r/s cost=$sent",
        "upstream_http_x rate=1r/s",
        "$request_body_size rate=$status_rate",
        "$host rate=1r/s settle=$request_body",
    ]);
}

#[test]
fn a_line_that_is_given_twice_is_warned_of() {
    let a = directive("rate_limit_redis a rate=1r/s name=x");
    let doubt = "\"rate_limit_redis\" of the limit \"x\" is given twice at one level, first in /a.conf:1, as where a \
                 file is included twice: both lines charge each request";
    assert_eq!(twice(&a, "x", [(&a, "/a.conf:1"), (&a, "/a.conf:2")]).as_deref(), Some(doubt));
    assert_eq!(twice(&a, "x", []), None);
    for other in [
        "rate_limit_redis b rate=1r/s name=x",
        "rate_limit_redis a rate=1r/s name=x cost=0",
        "rate_limit_redis a name=x rate=1r/s",
        "rate_limit_redis 'a rate=1r/s' name=x",
    ] {
        assert_eq!(twice(&a, "x", [(&directive(other), "/a.conf:1")]), None, "{other}");
    }
}

#[test]
fn keys_that_lack_their_dollar_are_warned_of() {
    let doubt =
        "the key \"remote_addr\" is a text, one for all clients: the variable is \"$remote_addr\"";
    assert_eq!(doubts("rate_limit_redis remote_addr rate=1r/s").as_deref(), Some(doubt));
    no_doubts(&["everyone rate=1r/s", "remote_addr: rate=1r/s", "Remote_Addr rate=1r/s"]);
    no_doubts(&["remote_addr$uri rate=1r/s", "$remote_addr rate=1r/s"]);
}

#[test]
fn keys_that_clients_choose_anew_are_warned_of() {
    let doubt = "\"$http_x_forwarded_for\" is whatever the client writes, a new key for each request: use the \
                 client's address, with \"set_real_ip_from\" behind a proxy";
    for key in ["$http_x_forwarded_for", "${http_x_forwarded_for}", "$uri:$HTTP_X_Forwarded_For"] {
        let line = format!("rate_limit_redis {key} rate=1r/s");
        assert_eq!(doubts(&line).as_deref(), Some(doubt), "{key}");
    }
    no_doubts(&["$http_x_forwarded_for_a rate=1r/s"]);
}

#[test]
fn costs_above_the_limit_are_warned_of() {
    let doubt = |cost, limit| {
        format!(
            "\"cost={cost}\" is above all that the limit \"x\" can hold, {limit}: every request will be \
             rejected"
        )
    };
    for (words, cost, limit) in [
        ("rate=1r/s cost=2", 2, 1),
        ("rate=10r/s capacity=5 cost=6", 6, 5),
        ("rate=10r/s algorithm=gcra cost=2", 2, 1),
        ("rate=10r/s algorithm=gcra burst=3 cost=9", 9, 4),
        ("rate=2r/month algorithm=fixed_window cost=3", 3, 2),
    ] {
        let line = format!("rate_limit_redis a name=x {words}");
        assert_eq!(doubts(&line), Some(doubt(cost, limit)), "{line}");
    }
    no_doubts(&["a rate=1r/s cost=1", "a rate=$r cost=2", "a rate=1r/s capacity=$c cost=2"]);
    no_doubts(&["a rate=1r/s cost=$cost", "a rate=1r/s cost=0"]);
}

#[test]
fn delays_above_the_burst_are_warned_of() {
    let doubt = |delay, burst| {
        format!(
            "\"delay={delay}\" is above \"burst={burst}\": no request will be delayed, as with \"nodelay\""
        )
    };
    let line = |words| format!("rate_limit_redis a rate=1r/s algorithm=leaky_bucket {words}");
    assert_eq!(doubts(&line("burst=5 delay=6")), Some(doubt(6, 5)));
    assert_eq!(doubts(&line("delay=1")), Some(doubt(1, 0)));
    for words in ["burst=5 delay=5", "burst=5 nodelay", "delay=0", "burst=$msec delay=9"] {
        assert_eq!(doubts(&line(words)), None, "{words}");
    }
}

/// A line gets one warning, however much is wrong with it.
#[test]
fn a_line_is_warned_of_once() {
    let line = "rate_limit_redis $remote_user$http_x_forwarded_for rate=1r/s cost=2";
    let doubts = doubts(line).expect("doubts");
    let doubts: Vec<_> = doubts.split("; ").collect();
    let begin = ["\"$remote_user\" is not", "\"$http_x_forwarded_for\" is", "\"cost=2\" is above"];
    assert_eq!(doubts.len(), begin.len(), "{doubts:?}");
    assert!(doubts.iter().zip(begin).all(|(doubt, it)| doubt.starts_with(it)), "{doubts:?}");
}
