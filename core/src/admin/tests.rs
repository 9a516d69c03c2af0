use std::cell::Cell;

use super::*;
use crate::conf::limit::Definition;
use crate::limit::Algorithm;
use crate::rate::SECOND;

fn known() -> Definition<'static> {
    let (name, rate, has_override) = ("api", "100r/m", true);
    Definition { name, rate, has_override, is_cached: Cell::new(true), ..Definition::default() }
}

fn managed(definition: Definition<'static>) -> ManagedLimit<'static> {
    let definition = Box::leak(Box::new(definition));
    ManagedLimit { definition, store: "redis://127.0.0.1:6379" }
}

fn limits() -> [ManagedLimit<'static>; 5] {
    [
        known(),
        Definition { name: "tiers", rate: "$rate", burst: Some("$most"), ..known() },
        Definition {
            name: "login",
            algorithm: Algorithm::Gcra,
            rate: "5r/m",
            burst: Some("2"),
            block: 60 * SECOND,
            has_override: false,
            ..known()
        },
        Definition { name: "queue", algorithm: Algorithm::LeakyBucket, ..known() },
        Definition { name: "daily", algorithm: Algorithm::FixedWindow, rate: "9r/d", ..known() },
    ]
    .map(managed)
}

/// The operation of a request: the name of the limit, the key, the most that can be spent at once, and the change.
fn read(method: &str, query: &str) -> Result<(String, Vec<u8>, u64, Change), AdminError> {
    let limits = limits();
    match Operation::read(method.as_bytes(), query.as_bytes(), &limits)? {
        Operation::Client(Management { limit, key, quota, change }) => {
            Ok((limit.definition.name.to_owned(), key, quota.limit(), change))
        }
        other => panic!("{method} ?{query}: {other:?}"),
    }
}

#[track_caller]
fn reads(method: &str, query: &str, name: &str, most: u64, change: Change) {
    assert_eq!(read(method, query), Ok((name.to_owned(), b"k".to_vec(), most, change)), "{query}");
}

#[track_caller]
fn fails(method: &str, query: &str, status: u16, sentence: &str) {
    let error = read(method, query).expect_err(query);
    assert_eq!((error.status(), error.to_string().as_str()), (status, sentence), "{query}");
}

#[test]
fn lists_are_read() {
    let limits = limits();
    for (method, query, expected) in [
        ("GET", "", Operation::List),
        ("HEAD", "&", Operation::List),
        ("GET", "limit=api&top", Operation::Top(&limits[0])),
        ("GET", "top=&limit=login", Operation::Top(&limits[2])),
    ] {
        assert_eq!(Operation::read(method.as_bytes(), query.as_bytes(), &limits), Ok(expected));
    }
}

/// An override.
fn set(rate: &str, limit: u64, lasts: u64) -> Change {
    Change::SetOverride { rate: rate.parse().unwrap(), limit, lasts: NonZeroU64::new(lasts) }
}

#[test]
fn changes_are_read() {
    reads("GET", "limit=api&key=k", "api", 100, Change::Look);
    reads("HEAD", "key=k&limit=login", "login", 3, Change::Look);
    reads("GET", "limit=queue&key=k", "queue", 1, Change::Look);
    reads("DELETE", "limit=api&key=k", "api", 100, Change::Reset);
    reads("DELETE", "limit=api&key=k&override", "api", 100, Change::RemoveOverride);
    reads("PATCH", "limit=api&key=k&grant=7", "api", 100, Change::GiveBack(7));
    reads("PATCH", "limit=api&key=k&block=15m", "api", 100, Change::Block(900 * SECOND));
    reads("PATCH", "limit=login&key=k&block=1m", "login", 3, Change::Block(60 * SECOND));
    reads("PATCH", "limit=api&key=k&block=0", "api", 100, Change::Block(0));
    reads("PUT", "limit=api&key=k&rate=1000r/m", "api", 100, set("1000r/m", 1000, 0));
    reads(
        "PUT",
        "limit=api&key=k&rate=1000r%2Fm&capacity=50&for=30d",
        "api",
        100,
        set("1000r/m", 50, 30 * 86_400 * SECOND),
    );
    reads("PUT", "limit=queue&key=k&rate=7r/s", "queue", 1, set("7r/s", 1, 0));
    reads("PUT", "limit=queue&key=k&rate=7r/s&burst=4", "queue", 1, set("7r/s", 5, 0));
    reads(
        "PUT",
        "limit=daily&key=k&rate=90r/d&for=1h",
        "daily",
        9,
        set("90r/d", 90, 3600 * SECOND),
    );
}

#[test]
fn a_window_may_become_one_of_a_month() {
    let rate = "90r/month".parse().unwrap();
    let set = Change::SetOverride { rate, limit: 90, lasts: None };
    reads("PUT", "limit=daily&key=k&rate=90r/month", "daily", 9, set);
}

#[test]
fn variables_are_given() {
    let query = "limit=tiers&key=k&base_rate=10r/s";
    reads("GET", &format!("{query}&base_capacity=30"), "tiers", 30, Change::Look);
    // Numbers above 2^53 are as large as can be counted, as those of a request are.
    let most = "9".repeat(20);
    let saturated = format!("limit=tiers&key=k&base_rate={most}r/s&base_capacity={most}");
    reads("GET", &saturated, "tiers", 10_000_000_000, Change::Look);
    let missing = |parameter, argument| {
        format!(
            "the limit has a variable in \"{parameter}\": add \"{argument}\" with its value for this client"
        )
    };
    fails("GET", query, 400, &missing("capacity", "base_capacity"));
    fails("DELETE", "limit=tiers&key=k", 400, &missing("rate", "base_rate"));
    let foreign = "\"base_burst\" does not apply to this request";
    fails("GET", &format!("{query}&base_capacity=30&base_burst=1"), 400, foreign);
    let known = "\"base_rate\" does not apply to this request";
    fails("GET", "limit=api&key=k&base_rate=1r/s", 400, known);
    let zero = "invalid base_capacity \"0\": it must be a number from 1 to 9007199254740992";
    fails("GET", &format!("{query}&base_capacity=0"), 400, zero);
}

#[test]
fn keys_are_percent_encoded() {
    for (encoded, key) in [
        ("a%20b", b"a b".to_vec()),
        ("a+b", b"a+b".to_vec()),
        ("%00%fF%25%26%3d=x", b"\0\xff%&==x".to_vec()),
        ("sha1:0a", b"sha1:0a".to_vec()),
        (&"x".repeat(512), vec![b'x'; 512]),
        (&"x".repeat(513), key::digest(&[b'x'; 513]).unwrap().into_bytes()),
        (&"%78".repeat(513), key::digest(&[b'x'; 513]).unwrap().into_bytes()),
        (&format!("sha1:{}", "0a".repeat(20)), format!("sha1:{}", "0a".repeat(20)).into_bytes()),
    ] {
        let query = format!("limit=api&key={encoded}");
        assert_eq!(read("GET", &query).unwrap().1, key, "{encoded}");
    }
    let unfinished = "\"key\" has a percent sign without two hexadecimal digits";
    for key in ["%", "%4", "a%", "%zz", "%+1", "%4g"] {
        fails("GET", &format!("limit=api&key={key}"), 400, unfinished);
    }
}

#[test]
fn what_is_missing_or_too_much() {
    let at = |rest: &str| format!("limit=api&key=k{rest}");
    let unexpected = |name| format!("\"{name}\" does not apply to this request");
    fails("GET", "key=k", 400, "\"limit\" is missing");
    fails("DELETE", "", 400, "\"limit\" is missing");
    let empty = "\"limit\" is empty: it must be the name of a limit";
    for query in ["limit=&key=k", "limit&key=k", "limit=&top"] {
        fails("GET", query, 400, empty);
    }
    fails("DELETE", "limit=&key=k&override", 400, empty);
    fails("GET", "limit=api", 400, "\"key\" is missing");
    fails(
        "GET",
        "limit=api&key=",
        400,
        "\"key\" is empty, and a client with an empty key is not limited",
    );
    fails("GET", "limit=api&key=k&top", 400, &unexpected("key"));
    fails("GET", &at("&grant=1"), 400, &unexpected("grant"));
    fails("GET", &at("&override"), 400, &unexpected("override"));
    fails("DELETE", &at("&top"), 400, &unexpected("top"));
    fails("PUT", &at("&rate=1r/s&burst=1"), 400, &unexpected("burst"));
    fails("PUT", "limit=daily&key=k&rate=1r/d&capacity=1", 400, &unexpected("capacity"));
    fails("PUT", &at(""), 400, "\"rate\" is missing");
    fails("PATCH", &at(""), 400, "\"grant\" or \"block\" is missing");
    fails("PATCH", &at("&grant=1&block=1"), 400, "\"grant\" and \"block\" exclude each other");
    fails("GET", &at("&key=k"), 400, "\"key\" is there twice");
    fails("GET", &at("&x\"y=1"), 400, "there is no argument \"x\\x22y\"");
    fails("GET", &at("&Key=1"), 400, "there is no argument \"Key\"");
    fails("GET", "limit=api&top=5", 400, "\"top\" takes no value");
    fails("GET", "limit=%ff&key=k", 400, "\"limit\" is not UTF-8");
}

#[test]
fn what_is_unknown_or_not_possible() {
    let no_override =
        "the limit \"login\" has no overrides: add \"override\" to its \"rate_limit_redis\" line";
    fails("GET", "limit=nobody&key=k", 404, "there is no limit \"nobody\"");
    fails("PUT", "limit=login&key=k&rate=1r/s", 409, no_override);
    fails("DELETE", "limit=login&key=k&override", 409, no_override);
    let longer = "the limit \"login\" has \"block=\", and blocks no client for longer than that: add \"override\" to its \
                  \"rate_limit_redis\" line";
    fails("PATCH", "limit=login&key=k&block=61s", 409, longer);
    let methods = "the method must be one of GET, HEAD, PUT, PATCH, DELETE";
    for method in ["POST", "OPTIONS", "get", ""] {
        fails(method, "limit=api&key=k", 405, methods);
    }
}

#[test]
fn values_that_are_unusable() {
    let put = |rest: &str| format!("limit=api&key=k&{rest}");
    let rate = "a rate is <n>r/<period>, such as 10r/s, 100r/m or 5r/10s";
    fails("PUT", &put("rate=fast"), 400, &format!("invalid rate \"fast\": {rate}"));
    fails(
        "PUT",
        &put("rate=0r/s"),
        400,
        "invalid rate \"0r/s\": the number of requests and the period must be at least 1",
    );
    fails(
        "PUT",
        &put("rate=1r/52w&capacity=9999999"),
        400,
        "\"capacity=9999999\" would take more than a hundred years to refill at this rate",
    );
    let longest = set("1r/s", 1, 36_500 * 86_400 * SECOND);
    reads("PUT", &put("rate=1r/s&for=36500d"), "api", 100, longest);
    let time = "it must be a time above 0 and up to 36500d, such as 30d";
    for lasts in ["0", "soon", "-1s", "5300w", "36501d", "1y", "1M", ""] {
        let query = put(&format!("rate=1r/s&for={lasts}"));
        fails("PUT", &query, 400, &format!("invalid for \"{lasts}\": {time}"));
    }
    let grant = "it must be a number from 1 to 9007199254740992";
    for units in ["0", "-1", "1.5", "9007199254740993", ""] {
        let query = format!("limit=api&key=k&grant={units}");
        fails("PATCH", &query, 400, &format!("invalid grant \"{units}\": {grant}"));
    }
    let block = "it must be a time up to 36500d, such as 15m, or 0";
    for time in ["never", "36501d", "1y"] {
        let query = format!("limit=api&key=k&block={time}");
        fails("PATCH", &query, 400, &format!("invalid block \"{time}\": {block}"));
    }
    let longest = Change::Block(36_500 * 86_400 * SECOND);
    reads("PATCH", "limit=api&key=k&block=36500d", "api", 100, longest);
    let month = "\"rate=1r/month\" is by the month of the calendar, which is for algorithm=fixed_window only";
    for rest in ["rate=1r/month", "rate=1r/month&capacity=5"] {
        fails("PUT", &put(rest), 400, month);
    }
}

#[test]
fn an_override_must_count_its_debts() {
    for is_settled in [true, false] {
        let limits = [managed(Definition { is_settled: Cell::new(is_settled), ..known() })];
        let read = |query: &str| Operation::read(b"PUT", query.as_bytes(), &limits);
        let error = read("limit=api&key=k&rate=1r/52w&capacity=20").unwrap_err().to_string();
        let expected = "would take more than a hundred years to regain a debt of ten times as much";
        assert_eq!(error, format!("\"capacity=20\" {expected}"));
        assert!(read("limit=api&key=k&rate=1r/52w&capacity=5").is_ok());
    }
}

#[test]
fn what_redis_has_not_done() {
    for (error, beginning) in [
        (crate::client::Error::Down, "Redis is down, nothing was changed"),
        (
            crate::client::Error::Timeout,
            "Redis has not replied in time: a change may have been made",
        ),
    ] {
        let error = AdminError::of_redis(error, Change::Reset);
        assert_eq!(error.status(), 503);
        assert!(error.to_string().starts_with(beginning), "{error}");
    }
    let error = AdminError::of_redis(crate::client::Error::Timeout, Change::Look);
    assert_eq!(
        (error.status(), error.to_string().as_str()),
        (503, "Redis has not replied in time")
    );
}
