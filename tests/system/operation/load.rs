//! Many requests at a time, and after each other.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Act, Conf, Fake, Http, Nginx, PATIENCE, Redis, ab, wait_until};

use crate::seen::StartConnected as _;

fn limited(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .store(url)
        .server("location / { rate_limit_redis k$arg_k rate=1000r/s capacity=1000000; }")
}

fn clients(nginx: &Nginx, number: usize) -> Vec<Http> {
    (0..number).map(|_| nginx.http()).collect()
}

#[test]
fn the_questions_of_one_turn_are_sent_at_once() {
    let fake = Fake::start(|_| Act::Usual);
    let nginx = limited(&fake.url()).start();
    let mut clients = clients(&nginx, 100);
    for http in &mut clients {
        assert_eq!(http.get("/").decision(), "PASSED redis");
    }
    let (commands, segments) = (fake.count("EVALSHA"), fake.segments());
    nginx.in_one_turn(|| {
        for (number, http) in clients.iter_mut().enumerate() {
            http.send("GET", &format!("/?k={}", number / 10), &[]);
        }
    });
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "PASSED redis");
    }
    // Equal requests share a command. One key comes after the other, as two that have the same place in
    // the coalescer take it from each other.
    assert_eq!(fake.count("EVALSHA") - commands, 10);
    // One, unless the system happens to cut it in two.
    let sent = fake.segments() - segments;
    assert!(sent <= 2, "sent in {sent} parts");
}

/// The resident memory of the only worker, in kB.
fn memory(nginx: &Nginx) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", nginx.worker_pids()[0])).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

#[track_caller]
fn does_not_grow(nginx: &Nginx) {
    let requests = || {
        for path in ["/", "/?again"] {
            let tally = ab(&["-k", "-n", "10000", "-c", "50", &nginx.url(path)]);
            assert!(tally.failures.is_empty() && tally.total() == 10_000, "{tally:?}");
        }
    };
    requests();
    let before = memory(nginx);
    requests();
    let after = memory(nginx);
    assert!(after < before + 1_024, "grew from {before} to {after} kB");
}

#[test]
fn memory_does_not_grow() {
    let redis = Redis::start();
    does_not_grow(&limited(&redis.url()).start());
}

#[test]
fn memory_does_not_grow_while_redis_is_away() {
    let mut redis = Redis::start();
    redis.kill9();
    let nginx = limited(&redis.url()).start();
    nginx.wait_for_error_log("is down");
    does_not_grow(&nginx);
}

#[test]
fn thousands_wait_and_are_answered() {
    let mut redis = Redis::start();
    let nginx =
        limited(&redis.url()).server("rate_limit_redis_timeout 2s;").start_connected(&redis);
    let mut clients = clients(&nginx, 2_000);
    assert_eq!(clients[0].get("/").decision(), "PASSED redis");
    redis.stop_signal();
    let start = Instant::now();
    for http in &mut clients {
        http.send("GET", "/", &[]);
    }
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "ERROR_PASSED none");
    }
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
    redis.cont();
    wait_until(PATIENCE, || clients[0].get("/").decision() == "PASSED redis", "decisions by Redis");
    for http in &mut clients {
        http.send("GET", "/", &[]);
    }
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "PASSED redis");
    }
}

#[test]
fn thousands_wait_and_are_decided_when_redis_goes_on() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url()).start();
    let mut clients = clients(&nginx, 2_000);
    assert_eq!(clients[0].get("/").decision(), "PASSED redis");
    redis.stop_signal();
    for http in &mut clients {
        http.send("GET", "/", &[]);
    }
    sleep(Duration::from_millis(300));
    redis.cont();
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "PASSED redis");
    }
    assert!(redis.calls("evalsha") < 1_500, "{} commands", redis.calls("evalsha"));
}

/// The connection to Redis is one of the worker's: without a free one it cannot be made again.
#[test]
fn worker_connections_are_exhausted() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis.url()).connections(30).start();
    nginx.allow_log("worker_connections are not enough");
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    redis.kill9();
    nginx.wait_for_error_log("is down");
    // Clients in the middle of a request, which NGINX cannot send away to make room.
    let mut held = Vec::new();
    // At the first alert one of them may just be sent away.
    while nginx.logged("[alert]").len() < 5 {
        let mut http = nginx.http();
        let _ = http.try_send_raw(b"GET / HTTP/1.1\r\n");
        held.push(http);
        sleep(Duration::from_millis(5));
    }
    redis.restart();
    nginx
        .wait_for_error_log("is still down: no free connection: all worker_connections are in use");
    assert_eq!(nginx.logged("is up again"), Vec::<String>::new());

    let answered = held.iter_mut().find_map(|http| {
        http.try_send_raw(b"Host: localhost\r\n\r\n").ok()?;
        http.try_read_response().ok()
    });
    assert_eq!(answered.expect("an answer").decision(), "ERROR_PASSED none");
    drop(held);
    nginx.wait_for_error_log("is up again");
    // nginx may not have noticed yet that they are gone.
    let decided = || {
        let mut http = nginx.http();
        let sent = http.try_send_raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let response = sent.and_then(|()| http.try_read_response());
        response.is_ok_and(|response| response.decision() == "PASSED redis")
    };
    wait_until(PATIENCE, decided, "a decision by Redis");
    assert_eq!(nginx.logged("[error]").len(), 3, "{:?}", nginx.logged("[error]"));
}
