//! The admin interface: clients are looked up and changed by HTTP.

use std::fs;
use std::thread;
use std::time::Duration;

use harness::{
    Authority, ClusterConf, Conf, MASTER_NAME, Nginx, PATIENCE, Redis, Response, Sentinels,
    at_once, servers, wait_until,
};
use rate_limit_core::limit::Algorithm;
use serde_json::{Value, json};

use crate::seen::{
    StartConnected as _, keys, passing, quota, recovers, remaining, tokens, wait_for_connections,
};

/// Limits, and what a client may spend at once. A day is long enough that nothing comes back.
fn limits() -> impl Iterator<Item = (String, u64)> {
    let of = |algorithm| (format!("rate=5r/d {}", passing(algorithm, 5)), 5);
    let others = [
        ("rate=5r/d", 5),
        ("rate=5r/d capacity=7", 7),
        ("rate=5r/month algorithm=fixed_window", 5),
    ];
    let others = others.map(|(limit, most)| (limit.to_owned(), most));
    Algorithm::ALL.into_iter().map(of).chain(others)
}

pub(super) const ADMIN: &str =
    "location = /admin { rate_limit_redis_admin; rate_limit_redis off; }";

fn conf(redis: &Redis) -> Conf {
    Conf::new().redis(redis).server(ADMIN)
}

/// A server with a limit of five requests a day for each key, which may have overrides.
fn five(redis: &Redis) -> Conf {
    conf(redis).server("location / { rate_limit_redis $arg_k name=five rate=5r/d override; }")
}

fn request(nginx: &Nginx, method: &str, query: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send(method, &format!("/admin{query}"), headers);
    http.read_response()
}

/// The answer to a request that is refused or not.
#[track_caller]
fn ask(nginx: &Nginx, method: &str, query: &str) -> (u16, Value) {
    let response = request(nginx, method, query, &[]);
    assert_eq!(response.header("Content-Type"), Some("application/json"), "{response:?}");
    assert_eq!(response.header("Cache-Control"), Some("no-store"));
    (response.status, serde_json::from_slice(&response.body).expect("an answer in JSON"))
}

/// The state of a client, after a change if there is one.
#[track_caller]
pub(super) fn client(nginx: &Nginx, method: &str, query: &str) -> Value {
    let (status, answer) = ask(nginx, method, query);
    assert_eq!(status, 200, "{method} {query}: {answer}");
    answer
}

#[track_caller]
fn refused(nginx: &Nginx, method: &str, query: &str, status: u16, sentence: &str) {
    let (found, answer) = ask(nginx, method, query);
    assert_eq!((found, answer), (status, json!({ "error": sentence })), "{method} {query}");
}

/// NGINX would answer 412 or 304 when the change is made.
#[test]
fn a_change_is_answered_with_its_state_whatever_the_preconditions() {
    let redis = Redis::start();
    let nginx = five(&redis).start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").remaining(), Some(4));
    let preconditions = [
        ("If-Match", "\"x\""),
        ("If-Unmodified-Since", "Sat, 29 Oct 1994 19:43:31 GMT"),
        ("If-None-Match", "*"),
    ];
    for precondition in preconditions {
        let change = "?limit=five&key=a&block=1h";
        let response = request(&nginx, "PATCH", change, &[precondition]);
        assert_eq!(response.status, 200, "{precondition:?}");
        assert!(response.text().contains("\"blocked_for\":3600"), "{response:?}");
    }
}

#[test]
fn the_limits_are_listed_once_each() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("location /a { rate_limit_redis $arg_k name=api rate=100r/m override; }")
        .server("location /b { rate_limit_redis $arg_k name=api rate=100r/m override cost=5; }")
        .server("location /c { rate_limit_redis $arg_k name=login rate=5r/m algorithm=gcra block=15m; }")
        .http("map $arg_tier $rate { gold 9r/s; default 1r/s; }")
        .server("location /d { rate_limit_redis $arg_k name=tiers rate=$rate; }")
        .server("location /e { rate_limit_redis $arg_k name=log rate=9r/h algorithm=sliding_log; }")
        .start();
    let limit = |name: &str, algorithm: &str, rate: &str| json!({ "name": name, "store": "redis", "algorithm": algorithm, "rate": rate, "block": 0, "override": false });
    let with = |mut limit: Value, members: Value| {
        let limit_members = limit.as_object_mut().expect("an object");
        limit_members.extend(members.as_object().expect("an object").clone());
        limit
    };
    let expected = json!({ "limits": [
        with(limit("api", "token_bucket", "100r/m"), json!({ "capacity": 100, "override": true })),
        with(limit("login", "gcra", "5r/m"), json!({ "burst": 0, "block": 900 })),
        with(limit("tiers", "token_bucket", "$rate"), json!({ "capacity": null })),
        limit("log", "sliding_log", "9r/h"),
    ] });
    assert_eq!(ask(&nginx, "GET", ""), (200, expected));
    assert_eq!(ask(&nginx, "GET", "?limit=api&top"), (200, json!({ "top": [] })));
}

/// The state of a client is what its next response shows, for every algorithm.
#[test]
fn a_client_is_looked_up_and_changed() {
    for (limit, most) in limits() {
        let redis = Redis::start_with_stopped_clock();
        let nginx = conf(&redis)
            .server(&format!("location / {{ rate_limit_redis $arg_k name=l {limit} override; }}"))
            .start_connected(&redis);
        let is = |method: &str, rest: &str, members: Value| {
            let state = client(&nginx, method, &format!("?limit=l&key=a{rest}"));
            for (name, value) in members.as_object().expect("members") {
                assert_eq!(state[name], *value, "{limit}: {method} {rest}: {name} of {state}");
            }
        };
        let passes = |left: u64| {
            let response = nginx.get("/?k=a");
            assert_eq!((response.status, remaining(&response)), (200, left), "{limit}");
        };
        is(
            "GET",
            "",
            json!({
                "limit": "l", "key": "a", "quota": most, "remaining": most, "reset": 0, "retry_after": 0,
                "blocked_for": 0, "debt": 0, "leased": 0, "override": null
            }),
        );
        (0..most).rev().for_each(passes);
        is("GET", "", json!({ "quota": most, "remaining": 0 }));
        assert_eq!(nginx.get("/?k=a").status, 429, "{limit}");
        let state = client(&nginx, "GET", "?limit=l&key=a");
        assert!(
            state["retry_after"].as_f64() > Some(0.0) && state["reset"].as_f64() > Some(0.0),
            "{state}"
        );

        is("PATCH", "&grant=2", json!({ "remaining": 2 }));
        passes(1);
        is("PATCH", "&grant=1000", json!({ "remaining": most, "reset": 0 }));
        passes(most - 1);
        is("PATCH", "&block=15m", json!({ "blocked_for": 900, "retry_after": 900 }));
        let blocked = nginx.get("/?k=a");
        assert_eq!((blocked.status, blocked.header("Retry-After")), (429, Some("900")), "{limit}");
        is("PATCH", "&block=0", json!({ "blocked_for": 0, "remaining": most - 1 }));
        passes(most - 2);
        is("PATCH", "&block=1h", json!({ "blocked_for": 3600 }));
        is("DELETE", "", json!({ "blocked_for": 0, "remaining": most, "reset": 0 }));
        passes(most - 1);
        // Another client is not meant.
        is("GET", "", json!({ "remaining": most - 1 }));
        assert_eq!(client(&nginx, "GET", "?limit=l&key=b")["remaining"], most);
    }
}

/// An override applies at once, keeps what was spent, and ends by itself or when it is removed.
#[test]
fn a_client_has_an_override() {
    for (limit, most) in limits() {
        let redis = Redis::start_with_stopped_clock();
        let nginx = conf(&redis)
            .server(&format!("location / {{ rate_limit_redis $arg_k name=l {limit} override; }}"))
            .start_connected(&redis);
        assert_eq!(quota(&nginx.get("/?k=a"))[..2], [most, most - 1], "{limit}");
        let period = if limit.contains("month") { "month" } else { "d" };
        let burst = match limit {
            _ if limit.contains("burst=") => "&burst=19",
            _ if limit.contains("capacity=") => "&capacity=20",
            _ => "",
        };
        let set = format!("?limit=l&key=a&rate=20r/{period}{burst}");
        let state = client(&nginx, "PUT", &set);
        assert_eq!(
            (&state["quota"], &state["remaining"]),
            (&json!(20), &json!(19)),
            "{limit}: {state}"
        );
        assert_eq!(state["override"]["rate"], format!("20r/{period}"), "{state}");
        assert_eq!(state["override"]["ends"], Value::Null);
        assert_eq!(quota(&nginx.get("/?k=a"))[..2], [20, 18], "{limit}");
        assert_eq!(quota(&nginx.get("/?k=b"))[..2], [most, most - 1], "{limit}");
        let [key] = &keys(&redis).into_iter().filter(|key| key == "rl:l:a").collect::<Vec<_>>()[..]
        else {
            panic!("no key of the client");
        };
        assert_eq!(
            redis.command::<i64>(&["PTTL", key]),
            -1,
            "{limit}: it stays until it is removed"
        );

        // A reset leaves it in place.
        let state = client(&nginx, "DELETE", "?limit=l&key=a");
        assert_eq!(
            (&state["remaining"], &state["quota"]),
            (&json!(20), &json!(20)),
            "{limit}: {state}"
        );
        assert_eq!(quota(&nginx.get("/?k=a"))[..2], [20, 19], "{limit}");
        let state = client(&nginx, "DELETE", "?limit=l&key=a&override");
        assert_eq!(
            (&state["quota"], &state["override"]),
            (&json!(most), &Value::Null),
            "{limit}: {state}"
        );
        assert_eq!(quota(&nginx.get("/?k=a"))[..2], [most, most - 2], "{limit}");
        assert!(redis.command::<i64>(&["PTTL", key]) > 0, "{limit}");

        let state = client(&nginx, "PUT", &format!("{set}&for=1h"));
        let now = redis.command::<Vec<u64>>(&["TIME"])[0];
        let ends = state["override"]["ends"].as_f64().expect("a time") as u64;
        assert!((now + 3_590..=now + 3_610).contains(&ends), "{limit}: {state}");
        redis.advance_clock(std::time::Duration::from_secs(3_601));
        assert_eq!(quota(&nginx.get("/?k=a"))[0], most, "{limit}");
    }
}

#[test]
fn a_rate_from_a_variable_is_given() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = conf(&redis)
        .http("map $arg_tier $rate { gold 9r/d; default 3r/d; }")
        .server("location / { rate_limit_redis $arg_k name=tiers rate=$rate; }")
        .start_connected(&redis);
    assert_eq!(quota(&nginx.get("/?k=a&tier=gold"))[..2], [9, 8]);
    let state = client(&nginx, "GET", "?limit=tiers&key=a&base_rate=9r/d");
    assert_eq!((&state["quota"], &state["remaining"]), (&json!(9), &json!(8)), "{state}");
    let missing =
        "the limit has a variable in \"rate\": add \"base_rate\" with its value for this client";
    refused(&nginx, "GET", "?limit=tiers&key=a", 400, missing);
    let own =
        "the limit \"tiers\" has no overrides: add \"override\" to its \"rate_limit_redis\" line";
    refused(&nginx, "PUT", "?limit=tiers&key=a&base_rate=9r/d&rate=1r/s", 409, own);
}

#[test]
fn keys_are_what_stands_in_redis() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = conf(&redis)
        .http("map $http_x_key $key { default $http_x_key; }")
        .server("location / { rate_limit_redis $key name=l rate=5r/d; }")
        .start_connected(&redis);
    let long = "x".repeat(600);
    for (key, encoded, shown) in [
        ("a b+c%", "a%20b+c%25", "a b+c%"),
        ("\u{e4}&=", "%C3%A4%26%3D", "\u{e4}&="),
        (&long, &long, "sha1:"),
    ] {
        let mut http = nginx.http();
        http.send("GET", "/", &[("X-Key", key)]);
        assert_eq!(remaining(&http.read_response()), 4, "{key}");
        let state = client(&nginx, "GET", &format!("?limit=l&key={encoded}"));
        assert_eq!(state["remaining"], 4, "{key}: {state}");
        let name = state["key"].as_str().expect("a key");
        assert!(name.starts_with(shown) && name.len() <= 45, "{state}");
        // The digest itself is understood.
        if shown == "sha1:" {
            let again = client(&nginx, "GET", &format!("?limit=l&key={name}"));
            assert_eq!(again["remaining"], 4, "{again}");
        }
    }
    assert_eq!(client(&nginx, "GET", "?limit=l&key=%00%ff")["key"], "\u{0}%FF");
}

/// An operator changes the client of a long key by the digest that stands for it, or by the key, and nobody else.
#[test]
fn a_long_key_is_changed_by_its_digest() {
    let redis = Redis::start_with_stopped_clock();
    for (n, hmac) in ["", "key_hmac secret;"].into_iter().enumerate() {
        let store = format!("store{n}");
        let block = format!("server {}; connect_timeout 30s; prefix {n}:; {hmac}", redis.url());
        let nginx = conf(&redis)
            .file("secret", "a secret of 27 bytes, or so")
            .http(&format!("rate_limit_redis_store {store} {{ {block} }}"))
            .server(&format!(
                "location / {{ rate_limit_redis $http_x_key name=l rate=5r/d; rate_limit_redis_pass {store}; }}"
            ))
            .start();
        wait_for_connections(&redis, 1);
        let status = |key: &str| {
            let mut http = nginx.http();
            http.send("GET", "/", &[("X-Key", key)]);
            http.read_response().status
        };
        let long = "x".repeat(600);
        let shown = client(&nginx, "GET", &format!("?limit=l&key={long}"));
        let digest = shown["key"].as_str().expect("a key").to_owned();
        assert_eq!([status(&long), status(&digest)], [200, 200]);
        for (by, other) in [(&digest, &long), (&long, &digest)] {
            client(&nginx, "PATCH", &format!("?limit=l&key={by}&block=1h"));
            assert_eq!([status(&long), status(&digest)], [429, 200], "{hmac}");
            let state = client(&nginx, "DELETE", &format!("?limit=l&key={other}"));
            assert_eq!((&state["key"], &state["remaining"]), (&json!(digest), &json!(5)), "{hmac}");
            assert_eq!(status(&long), 200, "{hmac}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let redis = Redis::start();
    let nginx = five(&redis)
        .server("location /fixed { rate_limit_redis $arg_k name=fixed rate=5r/d; }")
        .start_connected(&redis);
    refused(&nginx, "GET", "?limit=nobody&key=a", 404, "there is no limit \"nobody\"");
    refused(&nginx, "GET", "?limit=five", 400, "\"key\" is missing");
    refused(&nginx, "GET", "?limit=five&key=a&x=1", 400, "there is no argument \"x\"");
    refused(&nginx, "GET", "?limit=five&key=a&key=b", 400, "\"key\" is there twice");
    refused(
        &nginx,
        "GET",
        "?limit=five&key=a&grant=1",
        400,
        "\"grant\" does not apply to this request",
    );
    let grant = "invalid grant \"0\": it must be a number from 1 to 9007199254740992";
    refused(&nginx, "PATCH", "?limit=five&key=a&grant=0", 400, grant);
    let no_override =
        "the limit \"fixed\" has no overrides: add \"override\" to its \"rate_limit_redis\" line";
    refused(&nginx, "PUT", "?limit=fixed&key=a&rate=1r/s", 409, no_override);
    let methods = "the method must be one of GET, HEAD, PUT, PATCH, DELETE";
    refused(&nginx, "POST", "?limit=five&key=a", 405, methods);
    let response = request(&nginx, "POST", "", &[]);
    assert_eq!(response.header("Allow"), Some("GET, HEAD, PUT, PATCH, DELETE"));
    assert_eq!(keys(&redis), [""; 0], "nothing was changed");
}

/// Bodies are discarded, whenever they come.
#[test]
fn a_body_changes_nothing() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = five(&redis).start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?k=a")), 4);
    let mut http = nginx.http();
    let length = ("Content-Length", "5");
    http.send("DELETE", "/admin?limit=five&key=a", &[length]);
    http.send_raw(b"he");
    let response = http.read_response();
    assert!(response.status == 200 && response.text().contains("\"remaining\":5"), "{response:?}");
    http.send_raw(b"llo");
    http.send("PATCH", "/admin?limit=five&key=a&block=1h", &[length]);
    http.send_raw(b"hello");
    assert!(http.read_response().text().contains("\"blocked_for\":3600"));
    let head = http.head("/admin?limit=five&key=a");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(http.get("/admin").text().starts_with("{\"limits\":["));
}

#[test]
fn browsers_get_a_page() {
    let redis = Redis::start();
    let nginx = five(&redis).start_connected(&redis);
    for query in ["", "?limit=five&key=a", "?nonsense"] {
        let accept = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        let response = request(&nginx, "GET", query, &[accept]);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("Content-Type"), Some("text/html; charset=utf-8"));
        assert_eq!(response.header("Cache-Control"), Some("no-store"));
        let policy = response.header("Content-Security-Policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; connect-src 'self'; "), "{policy}");
    }
    // A change has no page.
    let response = request(&nginx, "DELETE", "?limit=five&key=a", &[("Accept", "text/html")]);
    assert_eq!(response.header("Content-Type"), Some("application/json"));
}

#[test]
fn changes_are_logged() {
    let redis = Redis::start();
    let nginx = five(&redis).start_connected(&redis);
    client(&nginx, "GET", "?limit=five&key=a");
    let user = ("Authorization", "Basic Ym9iOng=");
    request(&nginx, "PATCH", "?limit=five&key=a%22%0Ab&grant=2", &[user]);
    client(&nginx, "PUT", "?limit=five&key=a&rate=9r/m&for=1h");
    refused(&nginx, "PATCH", "?limit=five&key=a", 400, "\"grant\" or \"block\" is missing");
    nginx.wait_for_error_log("override rate=");
    let lines = nginx.logged("a client: ");
    let [granted, own] = &lines[..] else { panic!("{lines:?}") };
    assert!(granted.contains("[notice]"), "{granted}");
    let change = "changed a client: grant 2, limit \"five\", key: \"a\\x22\\x0Ab\", user: \"bob\", client: 127.0.0.1";
    assert!(granted.contains(change), "{granted}");
    let change = "changed a client: override rate=9r/m capacity=9 for 3600 s, limit \"five\", key: \"a\", client: ";
    assert!(own.contains(change), "{own}");
}

#[test]
fn redis_that_is_away_changes_nothing() {
    let mut redis = Redis::start_with_stopped_clock();
    let mut nginx = five(&redis).start_connected(&redis);
    nginx.allow_log("redis");
    assert_eq!(remaining(&nginx.get("/?k=a")), 4);
    redis.kill9();
    let away = || {
        ask(&nginx, "DELETE", "?limit=five&key=a").1
            == json!({ "error": "Redis is down, nothing was changed" })
    };
    wait_until(PATIENCE, away, "a Redis that is down");
    let (status, _) = ask(&nginx, "PATCH", "?limit=five&key=a&grant=1");
    assert_eq!(status, 503);
    let sentence = "Redis is down";
    assert_eq!(ask(&nginx, "GET", "?limit=five&key=a"), (503, json!({ "error": sentence })));
    // A request that needs no Redis is answered.
    assert_eq!(ask(&nginx, "GET", "").0, 200);
    assert_eq!(nginx.logged("a client: "), [""; 0]);
}

#[test]
fn redis_that_refuses_is_told_of() {
    let redis = Redis::start_with(&["user limiter on >p ~other:* +@all"]);
    let url = format!("redis://limiter:p@127.0.0.1:{}", redis.port());
    let mut nginx = Conf::new()
        .store(url)
        .server(ADMIN)
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d; }")
        .start_connected(&redis);
    nginx.allow_log("redis");
    let (status, answer) = ask(&nginx, "DELETE", "?limit=five&key=a");
    assert_eq!(status, 503, "{answer}");
    assert!(
        answer["error"].as_str().expect("a sentence").starts_with("Redis has refused it"),
        "{answer}"
    );
}

/// Access checks that depend on the method: NGINX takes the handler of such a request from the block.
#[test]
fn methods_may_be_excepted() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location = /admin { rate_limit_redis_admin; rate_limit_redis off;")
        .server("limit_except GET { allow 127.0.0.1; deny all; } }")
        .server("location = /closed { rate_limit_redis_admin; rate_limit_redis off; allow all;")
        .server("limit_except GET { deny all; } }")
        .server("location = /metrics { rate_limit_redis_metrics json; limit_except POST { allow all; } }")
        .server("location /static { limit_except POST { allow all; } }")
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d; }")
        .start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?k=a")), 4);
    assert_eq!(client(&nginx, "GET", "?limit=five&key=a")["remaining"], 4);
    assert_eq!(client(&nginx, "DELETE", "?limit=five&key=a")["remaining"], 5);
    let mut http = nginx.http();
    http.send("DELETE", "/closed?limit=five&key=a", &[]);
    assert_eq!(http.read_response().status, 403);
    let page = nginx.get("/metrics");
    assert_eq!((page.status, page.header("Content-Type")), (200, Some("application/json")));
    assert_eq!(nginx.get("/static").status, 404, "no page of this module");
}

/// The account of the documents, without one of its rights, if any is named.
fn account(without: &str) -> String {
    let path = format!("{}/../nginx-conf/limiter.acl", env!("CARGO_MANIFEST_DIR"));
    let rule = fs::read_to_string(path).expect("the rule");
    rule.split_whitespace().filter(|word| *word != without).collect::<Vec<_>>().join(" ")
}

/// The argument that makes a quota of a client's own larger than one request, where the rate does not.
fn burst(limit: &str) -> &'static str {
    if limit.contains("burst") { "&burst=19" } else { "" }
}

/// Limits of all algorithms, each with `override` and without, of a server with that account.
fn with_account(redis: &Redis) -> Nginx {
    let url = format!("redis://limiter:change-me@127.0.0.1:{}", redis.port());
    let mut conf = Conf::new()
        // A busy machine makes no server slow.
        .http(&format!(
            "rate_limit_redis_store edge {{ server {url}; connect_timeout 30s; fail_timeout 60s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 30s;")
        .server(ADMIN);
    for (n, (limit, _)) in limits().enumerate() {
        for (kind, own) in [("own", "override"), ("plain", "")] {
            conf = conf
                .server(&format!("location /{kind}{n} {{ try_files /index.html =404;"))
                .server(&format!("rate_limit_redis $arg_k name={kind}{n} {limit} {own}; }}"));
        }
    }
    conf.start_connected(redis)
}

#[test]
fn the_account_of_the_documents_is_enough_for_operators() {
    at_once(servers(), |(version, binary)| {
        let redis = Redis::start_binary(binary, &[&account("")]);
        let nginx = with_account(&redis);
        for (n, (limit, _)) in limits().enumerate() {
            let burst = burst(&limit);
            for kind in ["own", "plain"] {
                let charge = || assert_eq!(nginx.get(&format!("/{kind}{n}?k=a")).status, 200);
                let change = |method, change: &str| {
                    client(&nginx, method, &format!("?limit={kind}{n}&key=a{change}"))
                };
                charge();
                if kind == "own" {
                    change("PUT", &format!("&rate=30r/d{burst}"));
                    charge();
                    change("PUT", &format!("&rate=20r/d&for=1h{burst}"));
                    charge();
                    change("PUT", &format!("&rate=8r/d{burst}"));
                }
                change("PATCH", "&grant=1");
                change("PATCH", "&block=1h");
                change("PATCH", "&block=0");
                charge();
                change("DELETE", "");
                if kind == "own" {
                    change("DELETE", "&override");
                }
                charge();
                change("PATCH", "&grant=9");
            }
        }
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{version}");
        let denied = redis.command::<Vec<redis::Value>>(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "{version}: {denied:?}");
    });
}

/// The account of an earlier version has no right to PERSIST.
#[test]
fn a_log_whose_account_lacks_a_right_is_not_changed_in_part() {
    let redis = Redis::start_with(&[&account("+persist")]);
    let mut nginx = with_account(&redis);
    nginx.allow_log("The user executing the script can't run this command");
    let log = limits().position(|(limit, _)| limit.contains("sliding_log")).expect("a log");
    let (log, key) = (format!("own{log}"), format!("rl:own{log}:a"));
    let before = || redis.command::<Vec<String>>(&["LRANGE", &key, "0", "-1"]);
    let get = || nginx.get(&format!("/{log}?k=a"));
    get();
    let entries = before();
    let (status, answer) = ask(&nginx, "PUT", &format!("?limit={log}&key=a&rate=30r/d"));
    assert_eq!(status, 503, "{answer}");
    assert_eq!(before(), entries);
    assert!(redis.command::<i64>(&["PTTL", &key]) > 0);
    // All else works, an override with an end too.
    client(&nginx, "PUT", &format!("?limit={log}&key=a&rate=30r/d&for=1h"));
    client(&nginx, "PATCH", &format!("?limit={log}&key=a&block=1h"));
    assert_eq!(get().status, 429);
}

/// The line of one machine has `override`, and that of another one does not yet, or no longer.
#[test]
fn lines_without_override_keep_what_clients_have_of_their_own() {
    let redis = Redis::start();
    for (limit, _) in limits() {
        for (own, ends) in [("", false), ("&for=2d", true)] {
            redis.command::<()>(&["FLUSHALL"]);
            let server = |marks: &str| {
                let line = format!("rate_limit_redis $arg_k name=five {limit} {marks};");
                conf(&redis).decisions().server(&format!("location / {{ {line} }}"))
            };
            let [with, without] = [server("override").start(), server("").start()];
            for nginx in [&with, &without] {
                wait_until(PATIENCE, || nginx.get("/?k=b").decision().ends_with("redis"), &limit);
            }
            let change = format!("?limit=five&key=a&rate=20r/d{}{own}", burst(&limit));
            client(&with, "PUT", &change);
            assert_eq!(remaining(&with.get("/?k=a")), 19, "{limit}");
            let found = quota(&without.get("/?k=a"));
            assert!(found[0] < 10, "{limit}: the quota of the line, not {found:?}");
            client(&without, "PATCH", "?limit=five&key=a&grant=1");
            let state = client(&with, "GET", "?limit=five&key=a");
            assert_eq!(
                (&state["quota"], &state["override"]["rate"]),
                (&json!(20), &json!("20r/d")),
                "{limit}: {state}"
            );
            client(&without, "DELETE", "?limit=five&key=a");
            let state = client(&with, "GET", "?limit=five&key=a");
            assert_eq!(state["quota"], 20, "{limit}: {state}");
            let ttl = redis.command::<i64>(&["TTL", "rl:five:a"]);
            assert_eq!(ttl == -1, !ends, "{limit}: {ttl}");
            assert!(!ends || ttl > 47 * 3_600, "{limit}: {ttl}");
        }
    }
}

/// Redis and NGINX read the same state, also where units are set aside.
#[test]
fn a_line_without_override_grants_no_more_with_leases() {
    let redis = Redis::start();
    let limits =
        ["rate=60r/d", "rate=60r/d algorithm=gcra burst=59", "rate=60r/d algorithm=fixed_window"];
    for limit in limits {
        redis.command::<()>(&["FLUSHALL"]);
        let server = |marks: &str| {
            let line = format!("rate_limit_redis $arg_k name=five {limit} {marks};");
            conf(&redis).decisions().server(&format!("location / {{ {line} }}"))
        };
        let with = server("override").start();
        let without = server("").http("rate_limit_redis_lease on;").start();
        for nginx in [&with, &without] {
            wait_until(PATIENCE, || nginx.get("/?k=b").decision().ends_with("redis"), limit);
        }
        let change = format!("?limit=five&key=a&rate=50r/d{}", burst(limit));
        client(&with, "PUT", &change);
        let mut http = without.http();
        let passed = (0..150).filter(|_| http.get("/?k=a").status != 429).count();
        assert!(passed <= 60, "{limit}: {passed}");
    }
}

/// The request of a client that leaves is released; what was in flight is carried out.
#[test]
fn a_client_may_leave_while_its_change_is_in_flight() {
    let mut redis = Redis::start();
    let nginx = Conf::new()
        .set("redis", redis.url())
        .http("rate_limit_redis_store redis { server {redis}; connect_timeout 30s; fail_timeout 5m; }")
        .http("rate_limit_redis_pass redis; rate_limit_redis_timeout 5m;")
        .status()
        .server(ADMIN)
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d; }")
        .start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?k=a")), 4);
    // Redis has the script from now on.
    assert_eq!(client(&nginx, "GET", "?limit=five&key=a")["remaining"], 4);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("DELETE", "/admin?limit=five&key=a", &[]);
    nginx.wait_for_requests(1, 0);
    drop(http);
    wait_until(PATIENCE, || nginx.access_log().contains("\" 499 "), "a request that is left");
    nginx.wait_for_error_log("may have changed a client: reset, limit \"five\", key: \"a\" ");
    nginx.wait_for_requests(0, 0);
    redis.cont();
    wait_until(
        PATIENCE,
        || client(&nginx, "GET", "?limit=five&key=a")["remaining"] == 5,
        "the reset",
    );
}

/// A change holds on every machine: at once, or where a rejection is cached within a second.
#[test]
fn a_change_holds_on_every_machine() {
    let redis = Redis::start();
    let machines = [five(&redis).start_connected(&redis), five(&redis).start()];
    let [here, there] = &machines;
    let rejected = |nginx: &Nginx| {
        let is_rejected = || nginx.get("/?k=a").status == 429;
        wait_until(PATIENCE, is_rejected, "a rejection");
    };
    rejected(here);
    rejected(there);
    let state = client(here, "DELETE", "?limit=five&key=a");
    assert_eq!((&state["remaining"], &state["everywhere_in"]), (&json!(5), &json!(1)), "{state}");
    let response = here.get("/?k=a");
    assert_eq!((response.status, remaining(&response)), (200, 4), "at once on this machine");
    wait_until(PATIENCE, || there.get("/?k=a").status == 200, "the reset on the other machine");

    client(there, "PUT", "?limit=five&key=b&rate=50r/d");
    assert_eq!(quota(&here.get("/?k=b"))[..2], [50, 49]);
    assert_eq!(quota(&there.get("/?k=b"))[..2], [50, 48]);
}

#[test]
fn what_machines_hold_is_shown() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = conf(&redis)
        .server("location / { rate_limit_redis $arg_k name=l rate=10000r/d; rate_limit_redis_lease 1m; }")
        .start_connected(&redis);
    let leased = || {
        nginx.get("/?k=a");
        client(&nginx, "GET", "?limit=l&key=a")["leased"].as_u64() > Some(0)
    };
    wait_until(PATIENCE, leased, "units that are set aside");
    let state = client(&nginx, "GET", "?limit=l&key=a");
    assert_eq!(state["everywhere_in"], 63.75, "{state}");
}

/// The units that a machine holds are spent until its lease ends, and Redis remembers them for longer, or not at all.
#[test]
fn a_change_holds_when_leases_have_ended() {
    let redis = Redis::start();
    let on = "rate_limit_redis_lease 2s; rate_limit_redis_deny_cache off;";
    let lines = "rate=9000r/h override; bucket
        rate=9000r/h algorithm=gcra burst=8999 override; gcra
        rate=9000r/h algorithm=fixed_window override; window";
    let mut conf = conf(&redis).decisions();
    for line in lines.lines() {
        let (line, name) = line.split_once("; ").expect("a name");
        conf = conf.server(&format!(
            "location /{name} {{ rate_limit_redis $arg_k name={name} {line}; {on} }}"
        ));
    }
    let nginx = conf.start_connected(&redis);
    for (name, is_remembered) in [("bucket", true), ("gcra", true), ("window", false)] {
        let get = || nginx.get(&format!("/{name}?k=a"));
        let query = format!("?limit={name}&key=a");
        let has_lease = || get().decision() == "PASSED lease";
        wait_until(PATIENCE, has_lease, "a lease");
        let state = client(&nginx, "GET", &query);
        assert_eq!(
            state["leased"].as_u64().is_some_and(|units| units > 0),
            is_remembered,
            "{state}"
        );
        assert_eq!(state["leased"].is_null(), !is_remembered, "{state}");
        assert_eq!(state["everywhere_in"], 2.125, "{state}");

        // Whatever a change has Redis forget.
        client(&nginx, "PUT", &format!("{query}&rate=1r/h"));
        let state = client(&nginx, "GET", &query);
        assert_eq!(state["everywhere_in"], 2.125, "{state}");
        thread::sleep(Duration::from_millis(2_125));
        assert_eq!(get().status, 429, "{name}");
    }
}

/// A machine with one worker, which finds out by itself that Redis is back, that decides by itself while it is away.
fn deciding_alone(redis: &Redis) -> Conf {
    five(redis)
        .workers(1)
        .decisions()
        .http("rate_limit_redis_on_error local; rate_limit_redis_deny_cache off;")
}

/// The fields and the log line of a client that an operator has blocked, from Redis and from the deny cache.
#[test]
fn a_blocked_client_is_told_when_the_block_ends() {
    for (limit, _) in limits() {
        let redis = Redis::start_with_stopped_clock();
        let nginx = conf(&redis)
            .decisions()
            .server("rate_limit_redis_headers ietf; rate_limit_redis_log_level info;")
            .server(&format!("location / {{ rate_limit_redis $arg_k name=five {limit}; }}"))
            .start_connected(&redis);
        client(&nginx, "PATCH", "?limit=five&key=a&block=48h");
        for source in ["redis", "cache"] {
            let response = nginx.get("/?k=a");
            assert_eq!(response.decision(), format!("REJECTED {source}"), "{limit}");
            let [retry, field] =
                ["Retry-After", "RateLimit"].map(|it| response.header(it).unwrap());
            let retry: u64 = retry.parse().unwrap();
            assert!((172_800 - 60..=172_800).contains(&retry), "{limit}: {retry}");
            assert_eq!(field, format!("\"five\";r=0;t={retry}"), "{limit}");
            nginx.wait_for_error_log("excess: 1.000 by limit \"five\"");
        }
        assert_eq!(nginx.logged("excess").len(), nginx.logged("excess: 1.000").len(), "{limit}");
    }
}

/// Requests that a machine has let through in an outage count on it afterwards, until an operator changes that.
#[test]
fn a_change_holds_where_an_outage_has_left_something() {
    let mut redis = Redis::start();
    let machines = [deciding_alone(&redis).start(), deciding_alone(&redis).start()];
    machines.iter().for_each(|nginx| recovers(nginx, "/"));
    redis.kill9();
    for nginx in &machines {
        nginx.wait_for_error_log("is down");
        for key in ["a", "b", "c", "d"] {
            let decisions: Vec<_> =
                (0..6).map(|_| nginx.get(&format!("/?k={key}")).decision().to_owned()).collect();
            assert_eq!(decisions, [["PASSED local"; 5].as_slice(), &["REJECTED local"]].concat());
        }
    }
    redis.restart();
    machines.iter().for_each(|nginx| recovers(nginx, "/"));
    let [here, there] = &machines;
    let get = |key: &str| {
        let response = here.get(&format!("/?k={key}"));
        (response.decision().to_owned(), remaining(&response))
    };
    assert_eq!(get("a"), ("REJECTED local".to_owned(), 0));
    // The state says why: Redis knows of nothing.
    let state = client(here, "GET", "?limit=five&key=a");
    assert_eq!((&state["quota"], &state["remaining"]), (&json!(5), &json!(0)), "{state}");
    assert!(state["retry_after"].as_f64() > Some(10_000.0), "{state}");

    let state = client(here, "DELETE", "?limit=five&key=a");
    assert_eq!((&state["remaining"], &state["retry_after"]), (&json!(5), &json!(0)), "{state}");
    assert_eq!(get("a"), ("PASSED redis".to_owned(), 4));
    let state = client(here, "PATCH", "?limit=five&key=b&grant=2");
    assert_eq!(state["remaining"], 2, "{state}");
    assert_eq!(
        [get("b"), get("b"), get("b")].map(|(decision, _)| decision),
        ["PASSED redis", "PASSED redis", "REJECTED local"]
    );
    let state = client(here, "PUT", "?limit=five&key=c&rate=50r/d");
    assert_eq!((&state["quota"], &state["remaining"]), (&json!(50), &json!(45)), "{state}");
    assert_eq!(get("c"), ("PASSED redis".to_owned(), 44));

    // On another machine it is to be changed as well.
    assert_eq!(there.get("/?k=a").decision(), "REJECTED local");
    client(there, "DELETE", "?limit=five&key=a");
    assert_eq!(there.get("/?k=a").decision(), "PASSED redis");
}

/// The machines that have learned of a block keep it while Redis is away.
#[test]
fn a_block_holds_in_an_outage() {
    let mut redis = Redis::start();
    let machines = [deciding_alone(&redis).start(), deciding_alone(&redis).start()];
    machines.iter().for_each(|nginx| recovers(nginx, "/"));
    let [here, there] = &machines;
    for key in ["a", "b", "c"] {
        client(here, "PATCH", &format!("?limit=five&key={key}&block=2h"));
    }
    // A machine learns of a block, and of its end, from the interface, or from Redis when a request comes.
    let decision =
        |nginx: &Nginx, key: &str| nginx.get(&format!("/?k={key}")).decision().to_owned();
    assert_eq!(decision(there, "a"), "REJECTED redis");
    assert_eq!(decision(there, "c"), "REJECTED redis");
    client(here, "PATCH", "?limit=five&key=c&block=0");
    assert_eq!(decision(there, "c"), "PASSED redis");
    redis.kill9();
    machines.iter().for_each(|nginx| nginx.wait_for_error_log("is down"));
    for nginx in &machines {
        let response = nginx.get("/?k=a");
        assert_eq!((response.decision(), response.status), ("REJECTED local", 429));
        let after: u64 = response.header("Retry-After").and_then(|it| it.parse().ok()).unwrap();
        assert!((7_100..=7_200).contains(&after), "{response:?}");
        assert_eq!(decision(nginx, "c"), "PASSED local");
    }
    assert_eq!(decision(here, "b"), "REJECTED local");
    assert_eq!(decision(there, "b"), "PASSED local", "it has never met this client");
    // It has no memory of the block, and it decides again.
    redis.restart();
    machines.iter().for_each(|nginx| recovers(nginx, "/"));
    assert_eq!(decision(here, "a"), "PASSED redis");
}

/// Limits that decide after authentication, and the interface itself limited.
#[test]
fn limits_of_both_phases_are_changed() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis x name=server rate=9r/d;")
        .server("location = /admin { rate_limit_redis_admin; }")
        .server("location / { rate_limit_redis $arg_k name=late rate=5r/d after=auth; }")
        .start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?k=a")), 4);
    let response = request(&nginx, "DELETE", "?limit=late&key=a", &[]);
    assert!(response.text().contains("\"remaining\":5"), "{response:?}");
    assert_eq!(quota(&response)[..2], [9, 8], "it is limited itself");
    let response = request(&nginx, "GET", "?limit=server&key=x", &[]);
    assert!(response.text().contains("\"remaining\":7"), "{response:?}");
}

/// NGINX cannot resume a part of a request.
#[test]
fn subrequests_are_refused() {
    let redis = Redis::start();
    let include = "<!--# include virtual=\"/admin?limit=five&key=a\" -->";
    let nginx = five(&redis)
        .server("location /page { ssi on; ssi_types *; rate_limit_redis off; }")
        .file("html/page", include)
        .start_connected(&redis);
    let page = nginx.get("/page");
    assert_eq!(page.text(), "{\"error\":\"a subrequest cannot look a client up\"}");
}

#[test]
fn a_client_is_changed_at_the_master_of_sentinels() {
    let sentinels = Sentinels::start(1);
    let servers: String = sentinels.urls().iter().map(|url| format!("server {url};\n")).collect();
    let nginx = stored(&format!("{servers} sentinel {MASTER_NAME};"));
    is_changed(&nginx);
    let master = sentinels.server(sentinels.master());
    assert_eq!(tokens(master, "rl:five:a1"), Some(4));
}

#[test]
fn clients_are_changed_on_every_node_of_a_cluster() {
    let cluster = ClusterConf::new(2, 0).start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};\n")).collect();
    let nginx = stored(&format!("{servers} cluster on;"));
    is_changed(&nginx);
    let keys: Vec<_> = (0..2).map(|node| cluster.command::<u64>(node, &["DBSIZE"])).collect();
    assert!(keys.iter().all(|number| *number > 0), "on both nodes: {keys:?}");
}

/// A machine with a store of these lines.
fn stored(lines: &str) -> Nginx {
    Conf::new()
        .http(&format!("rate_limit_redis_store edge {{ {lines} connect_timeout 30s; }}"))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .server(ADMIN)
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/52w; }")
        .start()
}

/// Several clients, which may be on several nodes, are spent from and reset.
#[track_caller]
fn is_changed(nginx: &Nginx) {
    let decides = || ask(nginx, "GET", "?limit=five&key=a0").0 == 200;
    wait_until(PATIENCE, decides, "a connection");
    for number in 0..20 {
        let key = format!("a{number}");
        assert_eq!(remaining(&nginx.get(&format!("/?k={key}"))), 4);
        let query = format!("?limit=five&key={key}");
        assert_eq!(client(nginx, "GET", &query)["remaining"], 4);
        assert_eq!(client(nginx, "DELETE", &query)["remaining"], 5);
        assert_eq!(remaining(&nginx.get(&format!("/?k={key}"))), 4);
    }
}

/// The warnings of `nginx -t` about a location that listens on all addresses.
fn warnings(lines: &str) -> Vec<String> {
    let conf = Conf::new().file("users", "").http(&format!(
        "server {{ listen {{port2}}; location /admin {{ rate_limit_redis_admin; {lines} }} }}"
    ));
    let (is_valid, output) = conf.check();
    assert!(is_valid, "{output}");
    output.lines().filter(|line| line.contains("[warn]")).map(str::to_owned).collect()
}

#[test]
fn a_location_that_anybody_can_use_is_warned_of() {
    for lines in ["", "auth_basic off;", "allow ::1;", "allow 127.0.0.1;", "satisfy any;"] {
        let found = warnings(lines);
        let [warning] = &found[..] else { panic!("{lines}: {found:?}") };
        let start =
            "anybody may use \"rate_limit_redis_admin\": its location has none of \"deny\", ";
        assert!(warning.contains(start) && warning.contains("nginx.conf:"), "{warning}");
    }
    for lines in [
        "allow 127.0.0.1; deny all;",
        "deny all;",
        "auth_basic admin; auth_basic_user_file {prefix}/users;",
        "auth_request /check;",
        "internal;",
    ] {
        assert_eq!(warnings(lines), [""; 0], "{lines}");
    }
}

/// A check of a level above counts, and so do a server for this machine alone and certificates of clients.
#[test]
fn checks_are_found_where_they_are() {
    let admin = "location /admin { rate_limit_redis_admin; }";
    let authority = Authority::new();
    let identity = authority.issue("DNS:localhost");
    let tls = format!(
        "listen {{port2}} ssl; ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {};",
        identity.certificate,
        identity.key,
        authority.certificate()
    );
    for (server, is_checked) in [
        ("listen {port2};", false),
        ("listen {port2}; deny 192.0.2.0/24;", true),
        ("listen 127.0.0.1:{port2};", true),
        ("listen [::1]:{port2};", true),
        ("listen unix:{prefix}/socket;", true),
        ("listen 127.0.0.1:{port2}; listen {port3};", false),
        (&tls, false),
        (&format!("{tls} ssl_verify_client on;"), true),
        (&format!("{tls} ssl_verify_client optional;"), false),
    ] {
        let (is_valid, output) =
            Conf::new().http(&format!("server {{ {server} {admin} }}")).check();
        assert!(is_valid, "{output}");
        assert_eq!(!output.contains("[warn]"), is_checked, "{server}: {output}");
    }
}

#[test]
fn a_location_has_one_admin_interface() {
    let twice =
        Conf::new().server("location / { rate_limit_redis_admin; rate_limit_redis_admin; }");
    assert!(twice.config_error().contains("\"rate_limit_redis_admin\" directive is duplicate"));
    let argument = Conf::new().server("location / { rate_limit_redis_admin on; }");
    assert!(
        argument
            .config_error()
            .contains("invalid number of arguments in \"rate_limit_redis_admin\"")
    );
}
