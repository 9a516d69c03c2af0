//! The cause of a request that is not decided: a failure counts for Redis only if it is one of
//! Redis. Waits are compared with those at a location without limit, in the same run.

use std::thread::sleep;
use std::time::Duration;

use harness::{Conf, Http, Mode, Nginx, Proxy, Redis};

use crate::seen::StartConnected as _;

/// Without a decision there is a 503.
fn limited(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .set("redis", url)
        .http("rate_limit_redis_store redis { server {redis}; connect_timeout 30s; fail_timeout 10s; }")
        .http("rate_limit_redis_pass redis;\nrate_limit_redis_on_error closed;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=1000; }")
}

/// The log has nothing about Redis except that a timeout is too short, if it was.
fn is_not_blamed(nginx: &Nginx) {
    let lines = nginx.logged("redis 127.0.0.1");
    assert!(lines.iter().all(|line| line.contains("is too short")), "{lines:#?}");
}

/// Compressed downloads take the worker for longer than requests may wait: the reply is in the socket
/// when it looks at its timers.
#[test]
fn a_worker_that_compresses_blames_nobody() {
    // Text that takes its time: what looks alike is compared again and again.
    let text: String =
        (0..200_000u32).map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) % 1_000)).collect();
    let redis = Redis::start();
    let nginx = limited(&redis.url())
        .http("rate_limit_redis_timeout 500ms;\ngzip_types text/plain;\ngzip_comp_level 9;")
        .server(
            "location /big { gzip on; }\nlocation = /metrics { rate_limit_redis_metrics json; }",
        )
        .file("html/big/text.txt", &text)
        .start_connected(&redis);
    let mut limited = nginx.http();
    let [mut first, mut second] = [(); 2].map(|()| [(); 12].map(|()| nginx.http()));
    for http in first.iter_mut().chain(&mut second) {
        assert_eq!(http.get("/?k=other").decision(), "PASSED redis");
    }
    assert_eq!(limited.get("/?k=a").decision(), "PASSED redis");
    let download =
        |http: &mut Http| http.send("GET", "/big/text.txt", &[("Accept-Encoding", "gzip")]);
    let lags = || long_lags(nginx.get("/metrics").text());
    // Twice, and again if on a busy machine nothing had to wait for the worker.
    let is_needed = |round: &u32| *round < 2 || (*round < 20 && lags() == 0);
    for round in (0..).take_while(is_needed) {
        nginx.in_one_turn(|| {
            limited.send("GET", "/?k=a", &[]);
            first.iter_mut().for_each(download);
        });
        // They come while the worker compresses, and so in the turn after the command was sent.
        second.iter_mut().for_each(download);
        assert_eq!(limited.read_response().decision(), "PASSED redis", "round {round}");
        for control in first.iter_mut().chain(&mut second) {
            assert_eq!(control.read_response().status, 200, "round {round}");
        }
    }
    is_not_blamed(&nginx);
    assert!(lags() > 0, "the lag is measured: {}", nginx.get("/metrics").text());
}

/// How often something waited for the worker for more than 10 ms.
fn long_lags(page: &str) -> u64 {
    let lags = page.split("\"worker_lag_seconds\"").nth(1).expect("the lags");
    let count = |bound: &str| -> u64 {
        let rest = lags.split(&format!("\"{bound}\":")).nth(1).expect("a bucket");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().expect("a number");
        digits.parse().expect("a number")
    };
    count("+Inf") - count("0.01")
}

/// The deadline has long passed when the worker goes on, but so long has the reply been there.
#[test]
fn a_worker_that_was_stopped_finds_its_replies() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url()).http("rate_limit_redis_timeout 4s;").start_connected(&redis);
    let mut clients: Vec<Http> = (0..5).map(|_| nginx.http()).collect();
    for http in &mut clients {
        assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    }
    for round in 0..2 {
        redis.stop_signal();
        for (number, http) in clients.iter_mut().enumerate() {
            http.send("GET", &format!("/?k={number}"), &[]);
        }
        sleep(Duration::from_millis(100));
        nginx.in_one_turn(|| {
            redis.cont();
            sleep(Duration::from_millis(4_500));
        });
        for http in &mut clients {
            assert_eq!(http.read_response().decision(), "PASSED redis", "round {round}");
        }
    }
    is_not_blamed(&nginx);
}

/// The machine has been away, so to speak: neither the worker nor Redis ran. A request that was waited for so long is
/// not decided, but it is not Redis that failed.
#[test]
fn a_machine_that_was_away_blames_nobody() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url()).http("rate_limit_redis_timeout 4s;").start_connected(&redis);
    let mut clients: Vec<Http> = (0..5).map(|_| nginx.http()).collect();
    for http in &mut clients {
        assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    }
    redis.stop_signal();
    for (number, http) in clients.iter_mut().enumerate() {
        http.send("GET", &format!("/?k={number}"), &[]);
    }
    sleep(Duration::from_millis(50));
    nginx.in_one_turn(|| sleep(Duration::from_secs(10)));
    redis.cont();
    for http in &mut clients {
        // One whose command was not sent before is decided.
        let response = http.read_response();
        assert!(["ERROR_REJECTED none", "PASSED redis"].contains(&response.decision()));
    }
    for http in &mut clients {
        assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    }
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

/// A busy key over a path whose round trip takes more than half of the timeout: no request waits for two
/// of them.
#[test]
fn a_busy_key_far_away_waits_for_one_round_trip() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let nginx = limited(&proxy.url()).http("rate_limit_redis_timeout 10s;").start();
    let mut clients: Vec<Http> = (0..60).map(|_| nginx.http()).collect();
    for http in &mut clients {
        assert_eq!(http.get("/?k=other").decision(), "PASSED redis");
    }
    // 6 s there and back: twice is more than the timeout.
    proxy.set(Mode::Far(Duration::from_secs(3)));
    // In one turn, so that the key is busy.
    let (together, later) = clients.split_at_mut(10);
    nginx.in_one_turn(|| together.iter_mut().for_each(|http| http.send("GET", "/?k=busy", &[])));
    for http in later.iter_mut() {
        http.send("GET", "/?k=busy", &[]);
        sleep(Duration::from_millis(5));
    }
    let remaining: Vec<_> = clients
        .iter_mut()
        .map(|http| {
            let response = http.read_response();
            assert_eq!(response.decision(), "PASSED redis");
            response.remaining()
        })
        .collect();
    assert_eq!(remaining.iter().min(), Some(&Some(1_000 - 60)));
    is_not_blamed(&nginx);
}

/// A location is too impatient for its Redis: its own policy applies to it, and the log reports
/// that. All others go on.
#[test]
fn an_impatient_location_blames_nobody() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let nginx = limited(&proxy.url())
        .http("rate_limit_redis_timeout 10s;")
        .server("location /impatient { rate_limit_redis $arg_k rate=1r/h name=i; rate_limit_redis_timeout 5ms; }")
        .start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    // Farther than a busy machine may be late.
    proxy.set(Mode::Far(Duration::from_millis(400)));
    for round in 0..4 {
        let path = format!("/impatient?k={round}");
        assert_eq!(http.get(&path).decision(), "ERROR_REJECTED none", "round {round}");
        assert_eq!(http.get("/?k=a").decision(), "PASSED redis", "round {round}");
    }
    nginx.wait_for_error_log("a timeout of 5 ms is too short for it");
    is_not_blamed(&nginx);
}

/// A rejection from the cache promises no more than Redis does, which has counted from the arrival of the
/// command, a second after the request.
#[test]
fn a_cached_rejection_over_a_slow_path_promises_no_more_than_redis() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let nginx = Conf::new()
        .decisions()
        .store(proxy.url())
        .server("rate_limit_redis_timeout 10s;")
        .server("location / { rate_limit_redis $arg_k algorithm=gcra rate=1r/6s; }")
        .start_connected(&redis);
    let (mut http, mut other) = (nginx.http(), nginx.http());
    assert_eq!(http.get("/?k=warm").decision(), "PASSED redis");
    proxy.set(Mode::Far(Duration::from_secs(1)));
    // A rejection is cached for a second: on a busy machine the other client may come too late for that.
    let mut reject = |number: u32| {
        let path = format!("/?k={number}");
        assert_eq!(http.get(&path).decision(), "PASSED redis");
        assert_eq!(http.get(&path).decision(), "REJECTED redis");
        let rejected = other.get(&path);
        (rejected.decision() == "REJECTED cache").then_some((path, rejected))
    };
    let (path, rejected) = (0..10).find_map(&mut reject).expect("a rejection from the cache");
    let wait: u64 =
        rejected.header("Retry-After").and_then(|text| text.parse().ok()).expect("seconds");
    // The path of the next command takes a second as well: that is not what passing depends on.
    proxy.set(Mode::Pass);
    sleep(Duration::from_secs(wait));
    assert_eq!(other.get(&path).decision(), "PASSED redis", "after {wait} s");
}
