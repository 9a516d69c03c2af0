//! `rate_limit_redis_retry_jitter`: rejected clients do not all come back at once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Conf, Nginx, PATIENCE, Redis, Response, wait_until};

use crate::seen::{StartConnected as _, quota, retry_after};

const DAY: u64 = 86_400;
const HOUR: u64 = 3_600;

/// A server whose answers show `$rate_limit_redis_retry_after`.
fn conf() -> Conf {
    Conf::new()
        .decisions()
        .http("add_header X-Retry \"$rate_limit_redis_retry_after\" always;")
        .http("rate_limit_redis_body json;")
}

/// `Retry-After`, which variable and body must hold too.
#[track_caller]
fn same_everywhere(response: &Response) -> u64 {
    let seconds = retry_after(response);
    assert_eq!(response.header("X-Retry"), Some(seconds.to_string().as_str()));
    let in_body = format!("\"retry_after\":{seconds}}}");
    assert!(response.text().ends_with(&in_body), "{response:?}");
    seconds
}

/// `Retry-After` of so many requests that are all rejected.
fn rejected(nginx: &Nginx, path: &str, number: usize) -> Vec<u64> {
    let mut http = nginx.http();
    (0..number).map(|_| same_everywhere(&http.get(path))).collect()
}

/// Checks that these are `wait`, less at most a minute, and up to an hour more. That all of 64 come within
/// a quarter of the hour by chance is less likely than 64 heads.
#[track_caller]
fn spread(seconds: &[u64], wait: u64) {
    let (first, last) = (*seconds.iter().min().unwrap(), *seconds.iter().max().unwrap());
    assert!(first >= wait.saturating_sub(60) && last <= wait + HOUR, "{seconds:?}");
    assert!(last - first > HOUR / 4, "{seconds:?}");
}

#[test]
fn a_random_part_is_added() {
    let redis = Redis::start();
    let nginx = conf()
        .redis(&redis)
        .server("rate_limit_redis a rate=1r/d; rate_limit_redis_retry_jitter 1h;")
        .server("rate_limit_redis_headers x-ratelimit ietf;")
        .server("location /uncached { rate_limit_redis_deny_cache off; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    let first = nginx.get("/");
    let [limit, remaining, reset] = quota(&first);
    assert_eq!((limit, remaining), (1, 0));
    assert!((DAY - 60..=DAY).contains(&reset), "the time that the limit itself needs: {reset}");
    for path in ["/", "/uncached"] {
        spread(&rejected(&nginx, path, 64), DAY);
    }
    // A rejection is cached for a second.
    let is_cached = || nginx.get("/").decision() == "REJECTED cache";
    wait_until(PATIENCE, is_cached, "a rejection from the cache");
    assert_eq!(nginx.get("/uncached").decision(), "REJECTED redis");
}

#[test]
fn it_is_never_part_of_the_decision() {
    let redis = Redis::start();
    let nginx = conf()
        .redis(&redis)
        .server("rate_limit_redis a rate=1r/s; rate_limit_redis_retry_jitter 1h;")
        .start_connected(&redis);
    let mut http = nginx.http();
    let start = Instant::now();
    assert_eq!(http.get("/").decision(), "PASSED redis");
    // The deny cache holds the time of the limit: a client that comes back after it passes.
    let mut rejections = 0;
    while http.get("/").status == 429 {
        rejections += 1;
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "rejected for longer than the limit says"
        );
        thread::sleep(Duration::from_millis(50));
    }
    assert!(rejections > 0 || start.elapsed() > Duration::from_secs(1));
}

#[test]
fn what_closed_rejects_is_spread_too() {
    let nginx = conf()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
        .server("rate_limit_redis a rate=1r/d; rate_limit_redis_retry_jitter 1h;")
        .server("location /exact { rate_limit_redis_retry_jitter 0; }")
        .start();
    spread(&rejected(&nginx, "/", 64), 1);
    assert_eq!(rejected(&nginx, "/exact", 8), [1; 8]);
}

#[test]
fn a_request_that_can_never_pass_has_no_retry_after() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .decisions()
        .server("rate_limit_redis a rate=1r/d cost=$arg_cost; rate_limit_redis_retry_jitter 1h;")
        .start_connected(&redis);
    let response = nginx.get("/?cost=2");
    assert_eq!((response.decision(), response.header("Retry-After")), ("REJECTED redis", None));
    assert_eq!(nginx.get("/?cost=1").header("Retry-After"), None, "nor is one that passes");
}

#[test]
fn jitter_is_inherited_and_overruled() {
    let redis = Redis::start();
    let nginx = conf()
        .redis(&redis)
        .http("rate_limit_redis_retry_jitter 1h; rate_limit_redis $uri rate=1r/h;")
        .server("location /a { } location /b { rate_limit_redis_retry_jitter 0s; }")
        .start_connected(&redis);
    assert_eq!(["/a", "/b"].map(|path| nginx.get(path).status), [404; 2]);
    spread(&rejected(&nginx, "/a", 64), HOUR);
    assert!(rejected(&nginx, "/b", 8).iter().all(|seconds| (HOUR - 60..=HOUR).contains(seconds)));
}

#[test]
fn an_error_page_shows_the_time_of_its_own_request() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a rate=1r/d; rate_limit_redis_retry_jitter 1h;")
        .server("error_page 429 = @slow_down;")
        .server("location @slow_down { return 503 \"$rate_limit_redis_retry_after\"; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let shown: BTreeSet<_> = (0..32)
        .map(|_| {
            let response = nginx.get("/");
            assert_eq!(response.status, 503);
            let seconds = retry_after(&response);
            assert_eq!(response.text(), seconds.to_string());
            seconds
        })
        .collect();
    assert!(shown.len() > 1, "{shown:?}");
}
