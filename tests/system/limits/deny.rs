//! Clients that cannot pass are rejected without a command to Redis.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Http, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::StartConnected as _;

/// How long an entry of the deny cache is used.
const LONGEST: Duration = Duration::from_secs(1);

const PASSED: &str = "PASSED redis";
const REJECTED: &str = "REJECTED redis";
const KNOWN: &str = "REJECTED cache";

/// Each client passes once.
fn limited(redis: &Redis) -> Conf {
    Conf::new()
        .redis(redis)
        .decisions()
        .http("rate_limit_redis_log_level info; keepalive_requests 100000;")
        .server("try_files /index.html =404;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h; }")
}

/// How requests of these clients are decided.
fn request(http: &mut Http, clients: &[String]) -> Vec<String> {
    let decision = |client: &String| http.get(&format!("/?k={client}")).decision().to_owned();
    clients.iter().map(decision).collect()
}

/// How requests of the last `number` of so many clients are decided that were just rejected by
/// Redis, one after the other: the latest first, as one that is not known any more is asked about in Redis, and takes the
/// place of the earliest. If that has taken so long that entries have expired, it is done
/// once more with others.
fn asked_again(nginx: &Nginx, clients: usize, number: usize) -> Vec<String> {
    let mut http = nginx.http();
    for attempt in 0..30 {
        let clients: Vec<_> = (0..clients).map(|client| format!("{attempt}-{client}")).collect();
        assert!(request(&mut http, &clients).iter().all(|decision| decision == PASSED));
        let (first, last) = clients.split_at(clients.len() - number);
        assert!(request(&mut http, first).iter().all(|decision| decision == REJECTED));
        let begin = Instant::now();
        assert!(request(&mut http, last).iter().all(|decision| decision == REJECTED));
        let latest_first: Vec<_> = last.iter().rev().cloned().collect();
        let decisions = request(&mut http, &latest_first);
        if begin.elapsed() < LONGEST {
            return decisions;
        }
    }
    panic!("the machine is too busy");
}

/// How many requests were rejected from the deny cache.
fn known_of(decisions: &[String]) -> usize {
    assert!(decisions.iter().all(|decision| decision == KNOWN || decision == REJECTED));
    decisions.iter().filter(|decision| *decision == KNOWN).count()
}

/// Few enough of them share a place by chance.
#[test]
fn all_of_many_clients_are_known() {
    let redis = Redis::start();
    let nginx = limited(&redis).start_connected(&redis);
    let known = known_of(&asked_again(&nginx, 1_000, 200));
    assert!(known >= 198, "{known} of 200");
}

#[test]
fn where_there_is_no_room_for_all_the_latest_are_known() {
    let redis = Redis::start();
    // Room for a thousand.
    let nginx =
        limited(&redis).http("rate_limit_redis_shared_memory 256k;").start_connected(&redis);
    let known = known_of(&asked_again(&nginx, 3_000, 50));
    assert!(known >= 49, "{known} of the last 50");
}

#[test]
fn a_key_that_was_deleted_is_noticed() {
    let redis = Redis::start();
    let nginx = limited(&redis).start_connected(&redis);
    let client = ["a".to_owned()];
    let mut http = nginx.http();
    assert_eq!(request(&mut http, &client), [PASSED]);
    let rejected = Instant::now();
    assert_eq!(request(&mut http, &client), [REJECTED]);
    assert_eq!(redis.command::<u64>(&["DEL", "rl:default:a"]), 1);
    wait_until(PATIENCE, || request(&mut http, &client) == [PASSED], "the client to pass");
    assert!(rejected.elapsed() > LONGEST / 2, "it was not known");
}

/// The rejection after the end of a block begins another one, which only Redis can, though the client could
/// not pass yet for an hour.
#[test]
fn a_block_ends_what_is_known() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .decisions()
        .server("rate_limit_redis a rate=1r/h block=1ms;")
        .start_connected(&redis);
    let decide = || {
        sleep(Duration::from_millis(2));
        nginx.get("/").decision().to_owned()
    };
    assert_eq!([(); 4].map(|()| decide()), [PASSED, REJECTED, REJECTED, REJECTED]);
}

/// A debt that a client has since then is regained first.
#[test]
fn a_settlement_ends_what_is_known() {
    let redis = Redis::start_with_stopped_clock();
    let limit = "rate_limit_redis a name=api rate=1r/3s block=2s settle=$arg_s";
    let nginx = Conf::new()
        .redis(&redis)
        .decisions()
        .server("try_files /index.html =404;")
        .server(&format!("location /api {{ {limit}; }} location /free {{ {limit} cost=0; }}"))
        .start_connected(&redis);
    let mut http = nginx.http();
    assert_eq!(http.get("/api").decision(), PASSED);
    assert_eq!(http.get("/api").header("Retry-After"), Some("3"));
    assert_eq!(http.get("/free?s=4").decision(), PASSED);
    let response = http.get("/api");
    assert_eq!((response.decision(), response.header("Retry-After")), (REJECTED, Some("15")));
}

/// A request with another rate leaves a state that the first rate would not have: here a window of days, in
/// which nothing of the present hour is spent.
#[test]
fn another_rate_of_a_client_ends_what_is_known() {
    let redis = Redis::start_with_stopped_clock();
    for cache in ["on", "off"] {
        let nginx = Conf::new()
            .redis(&redis)
            .decisions()
            .server("rate_limit_redis $arg_k rate=$arg_r algorithm=fixed_window;")
            .server(&format!("rate_limit_redis_deny_cache {cache};"))
            .start_connected(&redis);
        let decide = |rate| nginx.get(&format!("/?k={cache}&r={rate}")).decision().to_owned();
        let decisions = ["1r/h", "1r/h", "2r/d", "1r/h"].map(decide);
        assert_eq!(decisions, [PASSED, REJECTED, PASSED, PASSED], "{cache}");
    }
}

/// They did not wait, and are counted where the others are.
#[test]
fn they_are_counted() {
    let redis = Redis::start();
    let nginx = limited(&redis)
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
        .start_connected(&redis);
    let decisions = request(&mut nginx.http(), &["a", "a", "b", "a", "a"].map(str::to_owned));
    let known = known_of(&decisions[3..]);
    let page = nginx.get("/metrics").text().to_owned();
    for line in [
        "requests_total{name=\"default\",result=\"passed\"} 2".to_owned(),
        "requests_total{name=\"default\",result=\"rejected\"} 3".to_owned(),
        format!("decisions_total{{name=\"default\",source=\"redis\"}} {}", 5 - known),
        format!("decisions_total{{name=\"default\",source=\"cache\"}} {known}"),
        "decision_seconds_bucket{le=\"+Inf\"} 5".to_owned(),
        "decision_seconds_count 5".to_owned(),
    ] {
        let line = format!("nginx_rate_limit_redis_{line}");
        assert!(page.lines().any(|other| other == line), "{line}:\n{page}");
    }
    let shortest = page.lines().find(|line| line.contains("decision_seconds_bucket"));
    let shortest = shortest.and_then(|line| line.rsplit_once(' ')).map(|(_, count)| count);
    assert!(shortest.is_some_and(|count| count.parse::<usize>().unwrap() >= known), "{page}");
}
