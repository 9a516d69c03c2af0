//! `block=`: a client that exceeds a limit is rejected for a while, whatever it regains meanwhile.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{ClusterConf, Conf, MASTER_NAME, Nginx, PATIENCE, Redis, Response, SentinelConf};
use harness::{h2load, slot, wait_until};
use rate_limit_core::limit::Algorithm;

use crate::seen::{StartConnected as _, passing, quota, retry_after};

const HOUR: u64 = 3_600;

/// Limits that let two requests pass at once, and are whole again soon.
fn limits() -> impl Iterator<Item = String> {
    Algorithm::ALL.into_iter().map(|algorithm| format!("rate=2r/s {}", passing(algorithm, 2)))
}

fn conf(redis: &Redis, snippet: &str) -> Conf {
    Conf::new().redis(redis).decisions().server(snippet)
}

/// Requests until one is rejected, which a machine that is slow may delay.
#[track_caller]
fn exceed(nginx: &Nginx, path: &str) -> Response {
    let mut http = nginx.http();
    let mut last = http.get(path);
    let start = Instant::now();
    while last.status != 429 {
        assert!(start.elapsed() < PATIENCE, "no rejection");
        last = http.get(path);
    }
    last
}

/// Checks that a rejection is one of a block of an hour that has just begun.
#[track_caller]
fn is_blocked(response: &Response) {
    assert_eq!(response.status, 429, "{response:?}");
    let (retry, [_, remaining, reset]) = (retry_after(response), quota(response));
    assert!((HOUR - 60..=HOUR).contains(&retry), "{response:?}");
    assert!(remaining == 0 && reset >= retry, "{response:?}");
}

#[test]
fn what_is_regained_does_not_end_it() {
    for limit in limits() {
        let redis = Redis::start();
        let nginx = conf(&redis, &format!("rate_limit_redis a {limit} block=1h;"))
            .server("rate_limit_redis_deny_cache off; rate_limit_redis_headers x-ratelimit ietf;")
            .start_connected(&redis);
        let first = exceed(&nginx, "/");
        is_blocked(&first);
        assert!(first.header("RateLimit").is_some_and(|it| it.contains(";r=0;t=")), "{first:?}");
        // All would be regained by now.
        sleep(Duration::from_millis(1_100));
        let again = nginx.get("/");
        is_blocked(&again);
        assert_eq!(again.decision(), "REJECTED redis", "{limit}");
        let millis = redis.command::<i64>(&["PTTL", "rl:default:a"]);
        assert!(
            (3_500_000..=3_610_000).contains(&millis),
            "{limit}: the key lives for {millis} ms"
        );
    }
}

#[test]
fn it_ends_and_later_attempts_do_not_prolong_it() {
    for cache in ["off", "on"] {
        let redis = Redis::start();
        let nginx = conf(&redis, "rate_limit_redis a rate=50r/s capacity=1 block=2s;")
            .server(&format!("rate_limit_redis_deny_cache {cache};"))
            .start_connected(&redis);
        let began = Instant::now();
        assert!(retry_after(&exceed(&nginx, "/")) <= 2);
        let is_over = || nginx.get("/").status == 200;
        wait_until(PATIENCE, is_over, "the end of the block");
        assert!(began.elapsed() >= Duration::from_secs(2), "{cache}: {:?}", began.elapsed());
        // Attempts went on all the time: had they prolonged it, it would not have ended.
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn it_ends_with_the_key() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a rate=10r/s capacity=1 block=1h;")
        .server("location /uncached { rate_limit_redis_deny_cache off; alias {prefix}/html/; }")
        .start_connected(&redis);
    is_blocked(&exceed(&nginx, "/"));
    redis.command::<u64>(&["DEL", "rl:default:a"]);
    assert_eq!(nginx.get("/uncached/index.html").decision(), "PASSED redis");
}

#[test]
fn the_deny_cache_knows_it() {
    let redis = Redis::start();
    let nginx =
        conf(&redis, "rate_limit_redis a rate=50r/s capacity=1 block=1h;").start_connected(&redis);
    is_blocked(&exceed(&nginx, "/"));
    // By now a token is regained. Once a second one request goes to Redis.
    sleep(Duration::from_millis(100));
    let calls = redis.calls("evalsha");
    let start = Instant::now();
    let mut http = nginx.http();
    for _ in 0..50 {
        is_blocked(&http.get("/"));
    }
    let seconds = start.elapsed().as_secs() + 1;
    assert!(redis.calls("evalsha") - calls <= seconds, "in {seconds} s");
}

#[test]
fn every_nginx_rejects() {
    let redis = Redis::start();
    let conf = conf(&redis, "rate_limit_redis a rate=50r/s capacity=1 block=1h;");
    let (one, other) = (conf.start_connected(&redis), conf.start());
    is_blocked(&exceed(&one, "/"));
    let first = || other.get("/").decision() != "ERROR_PASSED none";
    wait_until(PATIENCE, first, "a decision of the other nginx");
    is_blocked(&other.get("/"));
}

#[test]
fn it_begins_where_too_little_is_left() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a rate=1r/h capacity=3 cost=$arg_cost block=10h;")
        .server("rate_limit_redis_deny_cache off;")
        .start_connected(&redis);
    let get = |cost: u64| nginx.get(&format!("/?cost={cost}"));
    // A cost that can never pass begins none.
    let never = get(4);
    assert_eq!((never.status, never.header("Retry-After")), (429, None));
    assert_eq!((get(2).status, get(0).status), (200, 200));
    // Too much for what is left does, and then rejects less as well.
    let blocked = get(2);
    assert_eq!(blocked.status, 429);
    assert!((10 * HOUR - 60..=10 * HOUR).contains(&retry_after(&blocked)), "{blocked:?}");
    assert_eq!(get(1).status, 429);
    let state = get(0);
    assert_eq!((state.status, state.remaining()), (200, Some(0)), "a question passes");
}

#[test]
fn of_several_limits_the_one_that_rejects_blocks() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a name=wide rate=9r/s block=1h;")
        .server("rate_limit_redis $arg_k name=tight rate=10r/s capacity=1 block=1h;")
        .start_connected(&redis);
    is_blocked(&exceed(&nginx, "/?k=1"));
    assert_eq!(nginx.get("/?k=2").status, 200, "the wide limit blocks no client");
    sleep(Duration::from_millis(200));
    is_blocked(&nginx.get("/?k=1"));
}

#[test]
fn it_holds_while_redis_is_away() {
    for limit in limits() {
        let nginx = Conf::new()
            .decisions()
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error local;")
            .server(&format!("rate_limit_redis a {limit} block=1h;"))
            .start();
        assert_eq!([(); 2].map(|()| nginx.get("/").status), [200; 2], "{limit}");
        is_blocked(&exceed(&nginx, "/"));
        sleep(Duration::from_millis(1_100));
        let again = nginx.get("/");
        is_blocked(&again);
        assert_eq!(again.decision(), "REJECTED local", "{limit}");
    }
}

#[test]
fn it_holds_on_a_cluster_and_with_sentinels() {
    let cluster = ClusterConf::steady(3, 0).start();
    let sentinels = SentinelConf::new(1).start();
    let servers = |urls: Vec<String>| urls.iter().map(|url| format!("server {url}; ")).collect();
    let [nodes, watchers]: [String; 2] = [cluster.urls(), sentinels.urls()].map(servers);
    for store in [format!("{nodes} cluster on;"), format!("{watchers} sentinel {MASTER_NAME};")] {
        let nginx = Conf::new()
            .decisions()
            .http(&format!("rate_limit_redis_store edge {{ {store} connect_timeout 30s; }}"))
            .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
            .http("rate_limit_redis_on_error closed;")
            .server("rate_limit_redis $arg_a name=a rate=9r/s block=1h;")
            .server("rate_limit_redis $arg_b name=b rate=10r/s capacity=1 block=1h;")
            .start();
        // Keys of different nodes.
        let node = |key: &str| cluster.master_of(slot(key));
        let other = (0..).map(|n| format!("k{n}"));
        let mut other = other.filter(|key| node(&format!("rl:b:{key}")) != node("rl:a:a"));
        let (one, two) = (other.next().expect("a key"), other.next().expect("a key"));
        is_blocked(&exceed(&nginx, &format!("/?a=a&b={one}")));
        assert_eq!(nginx.get(&format!("/?a=a&b={two}")).status, 200);
        is_blocked(&nginx.get(&format!("/?a=a&b={one}")));
    }
}

#[test]
fn a_reload_does_not_end_it() {
    let redis = Redis::start();
    let mut nginx =
        conf(&redis, "rate_limit_redis a rate=50r/s capacity=1 block=1h;").start_connected(&redis);
    is_blocked(&exceed(&nginx, "/"));
    nginx.reload();
    let decided = || nginx.get("/").decision() != "ERROR_PASSED none";
    wait_until(PATIENCE, decided, "a decision after the reload");
    is_blocked(&nginx.get("/"));
}

#[test]
fn it_holds_over_http2() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a rate=1000r/s capacity=3 block=1h;")
        .http2()
        .start_connected(&redis);
    let seen = h2load(&["-n", "400", "-c", "4", "-m", "20", &nginx.h2_url("/")]);
    assert!(seen.failures.is_empty(), "{seen:?}");
    is_blocked(&exceed(&nginx, "/"));
    let seen = h2load(&["-n", "100", "-c", "4", "-m", "20", &nginx.h2_url("/")]);
    assert_eq!((seen.of(400), seen.total()), (100, 100), "{seen:?}");
}
