//! Requests to the admin interface: what is accepted is within its bounds, and every answer is JSON.

use std::cell::Cell;
use std::num::NonZeroU64;

use rate_limit_core::admin::{ManagedLimit, Management, Operation};
use rate_limit_core::conf::limit::Definition;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::overrides::Override;
use rate_limit_core::rate::{MAX_EXACT, MAX_TIME};
use rate_limit_core::text::admin;
use rate_limit_core::top::TopKey;
use serde_json::Value;

const METHODS: [&[u8]; 6] = [b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"POST"];

/// The first byte of an input chooses the method; the others are the query string.
pub fn run(data: &[u8]) {
    let Some((first, query)) = data.split_first() else { return };
    let method = METHODS[usize::from(*first) % METHODS.len()];
    let limits = limits();
    let limits: Vec<_> = limits.iter().map(managed).collect();
    match Operation::read(method, query, &limits) {
        Err(error) => {
            assert!([400, 404, 405, 409].contains(&error.status()), "{error}");
            let answer = read(&admin::error(&error));
            assert_eq!(answer["error"], error.to_string());
        }
        Ok(Operation::List) => assert_eq!(read(&admin::limits(&limits))["limits"][1]["name"], "b"),
        Ok(Operation::Top(limit)) => assert!(limits.contains(limit)),
        Ok(Operation::Client(management)) => check(method, &management),
    }
    let key = query.to_vec();
    let top = read(&admin::top(&[TopKey { key, rejected: 1, error: 0 }]));
    assert!(top["top"][0]["key"].is_string());
}

/// A limit of each algorithm, and one with variables.
fn limits() -> Vec<Definition<'static>> {
    let limit = |name, algorithm| Definition {
        name,
        algorithm,
        rate: "9r/d",
        has_override: true,
        is_cached: Cell::new(true),
        lease: Cell::new(1_000),
        ..Definition::default()
    };
    let names: [_; Algorithm::ALL.len()] = ["a", "b", "c", "d", "e", "f", "g"];
    let mut limits: Vec<_> =
        names.into_iter().zip(Algorithm::ALL).map(|(name, it)| limit(name, it)).collect();
    let variable = limit("v", Algorithm::Gcra);
    limits.push(Definition {
        rate: "$rate",
        burst: Some("$burst"),
        is_settled: Cell::new(true),
        ..variable
    });
    limits.push(Definition { has_override: false, ..limit("n", Algorithm::SlidingWindow) });
    limits
}

fn managed<'a>(definition: &'a Definition<'a>) -> ManagedLimit<'a> {
    ManagedLimit { definition, store: "redis://127.0.0.1:6379" }
}

fn check(method: &[u8], management: &Management<'_>) {
    let Management { limit, key, quota, change } = management;
    assert!((1..=512).contains(&key.len()));
    check_quota(quota);
    let only_reads = *change == Change::Look;
    assert_eq!(only_reads, method == b"GET" || method == b"HEAD");
    let own = match *change {
        Change::Look | Change::Reset => None,
        Change::GiveBack(units) => {
            assert!((1..=MAX_EXACT).contains(&units));
            None
        }
        Change::Block(time) => {
            assert!(time <= MAX_TIME);
            None
        }
        Change::RemoveOverride => {
            assert!(limit.definition.has_override);
            None
        }
        Change::SetOverride { rate, limit: most, lasts } => {
            assert!(
                limit.definition.has_override && lasts.is_none_or(|time| time.get() <= MAX_TIME)
            );
            let own = Override { rate, limit: most, ends: lasts };
            check_quota(&own.quota(quota).expect("a quota that the algorithm can count"));
            Some(own)
        }
    };
    assert!(!admin::described(management).is_empty());
    check_answer(management, own);
}

fn check_quota(quota: &Quota) {
    assert!((1..=MAX_EXACT).contains(&quota.limit()));
}

fn check_answer(management: &Management<'_>, own: Option<Override>) {
    let time = management.key.len() as u64;
    let state = ClientState {
        now: time,
        quota: management.quota,
        remaining: 1,
        reset: time,
        retry_after: time,
        blocked_for: time,
        debt: 2,
        held: 3,
        held_for: time,
        own: own.map(|own| Override { ends: NonZeroU64::new(time), ..own }),
    };
    let answer = read(&admin::client(management, &state));
    assert_eq!(answer["limit"], management.limit.definition.name);
    assert_eq!(answer["override"].is_null(), own.is_none());
    if let Ok(key) = std::str::from_utf8(&management.key) {
        assert_eq!(answer["key"], key);
    }
}

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
