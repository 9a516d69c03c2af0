//! Host names, and NGINX's `resolver`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Answer, Conf, Dns, Load, Nginx, PATIENCE, Redis, at_once, wait_until};

/// How long nginx waits for an answer of a name server.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than anything takes that does not wait for that, on any machine.
const NO_WAIT: Duration = Duration::from_millis(1_500);

/// A Redis on 127.0.0.1, and another one on 127.0.0.2 at the same port.
fn two() -> (Redis, Redis) {
    let first = Redis::start_with(&["bind 127.0.0.1"]);
    let port = format!("port {}", first.port());
    let second = Redis::start_with(&["bind 127.0.0.2", &port]);
    (first, second)
}

/// NGINX reads the configuration before any resolver runs: the system must know the name. It
/// does know `localhost`, and so may the resolver, with another address.
fn limited(dns: &Dns, port: u16) -> Conf {
    with_connect_timeout("30s", dns, port)
}

/// Half of the time for connecting may pass until an address that was known before is taken.
fn with_connect_timeout(time: &str, dns: &Dns, port: u16) -> Conf {
    Conf::new()
        .set("dns", dns.addr())
        .http("resolver {dns} ipv6=off;")
        .http(&format!("resolver_timeout {}s;", RESOLVER_TIMEOUT.as_secs()))
        .http(&format!("rate_limit_redis_store edge {{ server redis://localhost:{port};"))
        .http(&format!("connect_timeout {time}; }} rate_limit_redis_pass edge;"))
        .http("rate_limit_redis_timeout 5s;")
        .decisions()
        .journal()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
        .server("location /plain { try_files /index.html =404; }")
}

#[track_caller]
fn decides(nginx: &Nginx) {
    let decision = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, decision, "decisions");
}

#[test]
fn an_address_that_changes_is_followed() {
    let (mut first, second) = two();
    let dns = Dns::start();
    dns.set("localhost", &["127.0.0.1"]);
    let nginx = limited(&dns, first.port()).workers(2).start();
    decides(&nginx);
    assert_eq!(dns.queries("localhost"), 0, "the address is known from the configuration");
    dns.set("localhost", &["127.0.0.2"]);
    first.kill9();
    decides(&nginx);
    assert!(second.calls("evalsha") > 0);
    assert!(dns.queries("localhost") > 0);
}

#[test]
fn names_that_cannot_be_resolved_keep_their_address() {
    at_once([Answer::Unknown, Answer::Failure, Answer::Silence], |answer| {
        let mut redis = Redis::start();
        let dns = Dns::start();
        dns.answer("localhost", answer.clone());
        let nginx = with_connect_timeout("6s", &dns, redis.port()).start();
        decides(&nginx);
        for _ in 0..2 {
            redis.restart();
            decides(&nginx);
        }
        // A good connection that is lost.
        sleep(Duration::from_millis(1_100));
        let _ = redis.try_command::<i32>(&["CLIENT", "KILL", "TYPE", "normal"]);
        decides(&nginx);
        assert!(dns.queries("localhost") > 0, "{answer:?}");
    });
}

/// While the name server is silent only requests that need it wait.
#[test]
fn a_silent_name_server_blocks_no_other_request() {
    let mut redis = Redis::start();
    let dns = Dns::start();
    dns.answer("localhost", Answer::Silence);
    let nginx = with_connect_timeout("6s", &dns, redis.port())
        .server("rate_limit_redis_timeout 50ms;")
        .start();
    decides(&nginx);
    redis.kill9();
    let load = Load::start(nginx.addr(), "/?k=a", 2);
    let mut http = nginx.http();
    let end = Instant::now() + Duration::from_millis(800);
    while Instant::now() < end {
        let start = Instant::now();
        assert_eq!(http.get("/plain").status, 200);
        assert!(start.elapsed() < NO_WAIT, "{:?}", start.elapsed());
        sleep(Duration::from_millis(20));
    }
    let tally = load.stop();
    assert!(tally.failures.is_empty() && tally.of(200) == tally.total(), "{tally:?}");
    assert!(nginx.journal().percentile(100) < NO_WAIT);
    redis.restart();
    decides(&nginx);
}

#[test]
fn the_second_address_is_used_if_the_first_is_dead() {
    let (mut first, second) = two();
    let dns = Dns::start();
    dns.set("localhost", &["127.0.0.3", "127.0.0.2"]);
    let nginx = limited(&dns, first.port()).start();
    decides(&nginx);
    first.kill9();
    decides(&nginx);
    for _ in 0..3 {
        second.command::<i32>(&["CLIENT", "KILL", "TYPE", "normal"]);
        decides(&nginx);
    }
    assert!(second.calls("evalsha") > 0);
}

/// A worker leaves while a name is being resolved. That may take half of the time for connecting, 15 s.
#[test]
fn a_worker_leaves_though_a_name_is_being_resolved() {
    for single in [false, true] {
        let mut redis = Redis::start();
        let dns = Dns::start();
        dns.answer("localhost", Answer::Silence);
        let conf = limited(&dns, redis.port());
        let mut nginx = if single { conf.single() } else { conf }.start();
        decides(&nginx);
        redis.kill9();
        wait_until(PATIENCE, || dns.queries("localhost") > 0, "a question for the name");
        if !single {
            (0..3).for_each(|_| nginx.reload());
        }
        let start = Instant::now();
        nginx.quit();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
