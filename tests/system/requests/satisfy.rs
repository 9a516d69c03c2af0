//! The limiter never satisfies `satisfy any`, and no other module overrules its rejection.

use harness::{Conf, Http, Nginx, Redis, Response};

use crate::seen::{StartConnected as _, remaining, retry_after, shows_nothing};

/// bob, whose password is secret.
const CREDENTIALS: (&str, &str) = ("Authorization", "Basic Ym9iOnNlY3JldA==");
const WRONG: (&str, &str) = ("Authorization", "Basic Ym9iOndyb25n");
const AUTH_BASIC: &str = "auth_basic closed; auth_basic_user_file {prefix}/users;";

/// A server that is limited to two requests, with further access rules.
fn guarded(redis: &Redis, snippet: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .file("users", "bob:{PLAIN}secret\n")
        .server("rate_limit_redis $remote_addr rate=2r/d;")
        .server(snippet)
}

fn get(nginx: &Nginx, headers: &[(&str, &str)]) -> Response {
    let mut http: Http = nginx.http();
    http.send("GET", "/index.html", headers);
    http.read_response()
}

#[test]
fn passing_does_not_replace_credentials() {
    let redis = Redis::start();
    let nginx =
        guarded(&redis, &format!("satisfy any; deny all; {AUTH_BASIC}")).start_connected(&redis);
    let response = get(&nginx, &[]);
    assert_eq!((response.status, remaining(&response)), (401, 1));
    assert_eq!(response.header("WWW-Authenticate"), Some("Basic realm=\"closed\""));
    assert!(response.header("Retry-After").is_none(), "it is no rejection of the limiter");
    assert_eq!(get(&nginx, &[WRONG]).status, 401, "the wrong password");
}

#[test]
fn credentials_satisfy_beside_a_limit() {
    let redis = Redis::start();
    let nginx =
        guarded(&redis, &format!("satisfy any; deny all; {AUTH_BASIC}")).start_connected(&redis);
    let response = get(&nginx, &[CREDENTIALS]);
    assert_eq!((response.status, remaining(&response)), (200, 1));
}

#[test]
fn passing_does_not_replace_an_address() {
    let redis = Redis::start();
    let nginx = guarded(&redis, "satisfy any; deny all;").start_connected(&redis);
    let response = get(&nginx, &[]);
    assert_eq!((response.status, remaining(&response)), (403, 1));
}

#[test]
fn an_address_satisfies_beside_a_limit() {
    let redis = Redis::start();
    let snippet = format!("satisfy any; allow 127.0.0.1; deny all; {AUTH_BASIC}");
    let nginx = guarded(&redis, &snippet).start_connected(&redis);
    let response = get(&nginx, &[]);
    assert_eq!((response.status, remaining(&response)), (200, 1));
}

#[test]
fn all_must_be_satisfied() {
    let redis = Redis::start();
    let nginx =
        guarded(&redis, &format!("satisfy all; allow all; {AUTH_BASIC}")).start_connected(&redis);
    assert_eq!(get(&nginx, &[]).status, 401);
    assert_eq!(get(&nginx, &[CREDENTIALS]).status, 200);
    assert_eq!(get(&nginx, &[CREDENTIALS]).status, 429);
}

/// Two requests that may enter pass, a third is rejected with `status`, with and without
/// credentials.
#[track_caller]
fn rejects_with(status: u16, snippet: &str) {
    let redis = Redis::start();
    let snippet = format!("rate_limit_redis_status {status}; {snippet}");
    let nginx = guarded(&redis, &snippet).start_connected(&redis);
    for _ in 0..2 {
        assert_eq!(get(&nginx, &[CREDENTIALS]).status, 200, "within the limit");
    }
    for headers in [&[CREDENTIALS][..], &[]] {
        let response = get(&nginx, headers);
        assert_eq!((response.status, remaining(&response)), (status, 0), "{headers:?}");
        assert!(retry_after(&response) > 40_000);
    }
}

#[test]
fn a_rejection_is_final() {
    rejects_with(429, "satisfy any; allow 127.0.0.1; deny all;");
    rejects_with(429, &format!("satisfy any; deny all; {AUTH_BASIC}"));
}

#[test]
fn a_rejection_with_401_is_final() {
    rejects_with(401, "satisfy any; allow 127.0.0.1; deny all;");
    rejects_with(401, &format!("satisfy any; deny all; {AUTH_BASIC}"));
    rejects_with(401, &format!("satisfy all; allow all; {AUTH_BASIC}"));
}

#[test]
fn a_rejection_with_403_is_final() {
    rejects_with(403, "satisfy any; allow 127.0.0.1; deny all;");
    rejects_with(403, &format!("satisfy any; deny all; {AUTH_BASIC}"));
    rejects_with(403, &format!("satisfy all; allow all; {AUTH_BASIC}"));
}

#[test]
fn a_rejection_for_want_of_a_decision_is_final() {
    for status in [401, 403] {
        let nginx = Conf::new()
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
            .server(&format!("rate_limit_redis_error_status {status};"))
            .server("rate_limit_redis $remote_addr rate=2r/d;")
            .server("satisfy any; allow 127.0.0.1; deny all;")
            .start();
        let response = get(&nginx, &[]);
        assert_eq!((response.status, retry_after(&response)), (status, 1));
    }
}

#[test]
fn passing_without_a_decision_does_not_satisfy() {
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error open;")
        .server("rate_limit_redis $remote_addr rate=2r/d; satisfy any; deny all;")
        .start();
    let response = get(&nginx, &[]);
    assert_eq!((response.status, shows_nothing(&response)), (403, true));
}

#[test]
fn an_empty_key_does_not_satisfy() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $arg_key rate=2r/d; satisfy any; deny all;")
        .start_connected(&redis);
    assert_eq!(get(&nginx, &[]).status, 403);
}
