use std::cell::Cell;
use std::num::NonZeroU64;

use super::*;
use crate::algorithm::Stored;
use crate::limit::{Algorithm, Quota};
use crate::manage::Change;
use crate::overrides::Applied;

fn limit(algorithm: Algorithm) -> Definition<'static> {
    let (name, rate, has_override) = ("api", "100r/m", true);
    Definition { name, algorithm, rate, has_override, ..Definition::default() }
}

fn managed<'a>(definition: &'a Definition<'a>) -> ManagedLimit<'a> {
    ManagedLimit { definition, store: "edge" }
}

#[test]
fn the_limits_as_they_are_written() {
    let bucket = limit(Algorithm::TokenBucket);
    let all = [
        bucket.clone(),
        Definition { rate: "$rate", ..bucket.clone() },
        Definition { rate: "$rate", burst: Some("$most"), ..bucket.clone() },
        Definition { burst: Some("7"), block: 1_500_000, has_override: false, ..bucket },
        limit(Algorithm::Gcra),
        Definition { burst: Some("3"), ..limit(Algorithm::LeakyBucket) },
        limit(Algorithm::SlidingLog),
    ];
    let all: Vec<_> = all.iter().map(managed).collect();
    let expected = concat!(
        r#"{"limits":[{"name":"api","store":"edge","algorithm":"token_bucket","rate":"100r/m","#,
        r#""capacity":100,"block":0,"override":true},"#,
        r#"{"name":"api","store":"edge","algorithm":"token_bucket","rate":"$rate","#,
        r#""capacity":null,"block":0,"override":true},"#,
        r#"{"name":"api","store":"edge","algorithm":"token_bucket","rate":"$rate","#,
        r#""capacity":"$most","block":0,"override":true},"#,
        r#"{"name":"api","store":"edge","algorithm":"token_bucket","rate":"100r/m","#,
        r#""capacity":7,"block":1.5,"override":false},"#,
        r#"{"name":"api","store":"edge","algorithm":"gcra","rate":"100r/m","burst":0,"#,
        r#""block":0,"override":true},"#,
        r#"{"name":"api","store":"edge","algorithm":"leaky_bucket","rate":"100r/m","burst":3,"#,
        r#""block":0,"override":true},"#,
        r#"{"name":"api","store":"edge","algorithm":"sliding_log","rate":"100r/m","#,
        r#""block":0,"override":true}]}"#,
    );
    assert_eq!(limits(&all), expected);
    assert_eq!(limits(&[]), r#"{"limits":[]}"#);
}

#[test]
fn a_client_is_shown() {
    let definition = limit(Algorithm::Gcra);
    let limit = managed(&definition);
    let quota = Quota::new(Algorithm::Gcra, "1000r/h".parse().unwrap(), 5).unwrap();
    let key = b"a\"\xff\xc3\xa4".to_vec();
    let managed = Management { limit: &limit, key, quota, change: Change::Look };
    let rate = "1000r/h".parse().unwrap();
    let own = Override { rate, limit: 5, ends: NonZeroU64::new(1_700_000_000_250_000) };
    let state = ClientState {
        now: 1,
        quota,
        remaining: 2,
        reset: 3_500_000,
        retry_after: 0,
        blocked_for: 60_000_000,
        debt: 4,
        held: 6,
        held_for: 2_250_000,
        own: Some(own),
    };
    let expected = concat!(
        r#"{"limit":"api","key":"a\"%FFä","quota":5,"remaining":2,"reset":3.5,"retry_after":0,"#,
        r#""blocked_for":60,"debt":4,"leased":6,"#,
        r#""override":{"rate":"1000r/h","burst":4,"ends":1700000000.25},"everywhere_in":2.25}"#,
    );
    assert_eq!(client(&managed, &state), expected);

    definition.is_cached.set(true);
    let lasting = ClientState { held_for: 0, own: Some(Override { ends: None, ..own }), ..state };
    let end = r#""ends":null},"everywhere_in":1}"#;
    assert!(client(&managed, &lasting).ends_with(end));
    let none = ClientState { own: None, ..lasting };
    assert!(client(&managed, &none).ends_with(r#""override":null,"everywhere_in":1}"#));
}

/// The fields of the answer about leases, where the locations of a limit have such of so many seconds, and Redis counts the units of
/// a client for so many seconds more.
fn leases(algorithm: Algorithm, lease: u64, held_for: u64) -> String {
    let (lease, is_cached) = (Cell::new(lease * 1_000), Cell::new(true));
    let limit = Definition { lease, is_cached, ..limit(algorithm) };
    let limit = self::managed(&limit);
    let quota = Quota::new(algorithm, "100r/m".parse().unwrap(), 100).unwrap();
    let state = ClientState::new(&Applied { stored: Stored::default(), quota, own: None }, SECOND);
    let state = ClientState { held: 6, held_for: held_for * SECOND, ..state };
    let managed = Management { limit: &limit, key: b"k".to_vec(), quota, change: Change::Look };
    let answer: String = client(&managed, &state);
    let from = |name: &str| answer.find(name).map(|at| &answer[at + name.len()..]).unwrap();
    let value = |text: &str| text.split([',', '}']).next().unwrap().to_owned();
    format!("{} {}", value(from("\"leased\":")), value(from("\"everywhere_in\":")))
}

#[test]
fn leases_end_when_machines_spend_them_no_more() {
    use Algorithm::{FixedWindow, Gcra, TokenBucket};
    for (algorithm, lease, held_for, expected) in [
        // Redis remembers them for much longer, and after a reset not at all.
        (TokenBucket, 16, 1_200, "6 17"),
        (Gcra, 16, 0, "6 17"),
        // The deny cache.
        (Gcra, 0, 0, "6 1"),
        // The configuration of another machine has leases.
        (TokenBucket, 0, 30, "6 30"),
        (TokenBucket, 0, 1_200, "6 63.75"),
        // They end with a window, and Redis does not know of them.
        (FixedWindow, 16, 0, "null 17"),
        (FixedWindow, 0, 0, "6 1"),
    ] {
        assert_eq!(
            leases(algorithm, lease, held_for),
            expected,
            "{algorithm:?} {lease} {held_for}"
        );
    }
}

#[test]
fn who_was_rejected_most() {
    let clients = [
        TopKey { key: b"192.0.2.1".to_vec(), rejected: 9, error: 1 },
        TopKey { key: b"100%\xfe".to_vec(), rejected: 2, error: 0 },
    ];
    let expected = concat!(
        r#"{"top":[{"key":"192.0.2.1","rejected":9,"error":1},"#,
        r#"{"key":"100%%FE","rejected":2,"error":0}]}"#,
    );
    assert_eq!(top(&clients), expected);
    assert_eq!(top(&[]), r#"{"top":[]}"#);
}

#[test]
fn an_error_is_shown() {
    let error = super::error(&AdminError::UnknownLimit("x\"".to_owned()));
    assert_eq!(error, r#"{"error":"there is no limit \"x\"\""}"#);
}

#[test]
fn changes_for_the_log() {
    let set = |lasts| Change::SetOverride {
        rate: "10r/m".parse().unwrap(),
        limit: 5,
        lasts: NonZeroU64::new(lasts),
    };
    for (algorithm, change, text) in [
        (Algorithm::Gcra, Change::Reset, "reset"),
        (Algorithm::Gcra, Change::GiveBack(7), "grant 7"),
        (Algorithm::Gcra, Change::Block(0), "unblock"),
        (Algorithm::Gcra, Change::Block(1_500_000), "block for 1.5 s"),
        (Algorithm::Gcra, Change::RemoveOverride, "remove the override"),
        (Algorithm::Gcra, set(0), "override rate=10r/m burst=4"),
        (Algorithm::TokenBucket, set(60_000_000), "override rate=10r/m capacity=5 for 60 s"),
        (Algorithm::SlidingLog, set(0), "override rate=10r/m"),
    ] {
        let limit = limit(algorithm);
        let limit = managed(&limit);
        let quota = Quota::new(algorithm, "100r/m".parse().unwrap(), 1).unwrap();
        let managed = Management { limit: &limit, key: b"k".to_vec(), quota, change };
        assert_eq!(described(&managed), text);
    }
}
