//! Redis may lose the scripts at any time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Load, PATIENCE, Redis, wait_until};
use rate_limit_core::limit::Algorithm;
use rate_limit_core::redis::script::{Script, Scripts};

use crate::seen::StartConnected as _;
use crate::seen::tokens;

const BUDGET: u64 = 500_000;

/// So large a budget that nothing is rejected, and so slow a refill that what is left in Redis
/// shows what was spent.
fn limited(redis: &Redis) -> Conf {
    let limit = format!("location / {{ rate_limit_redis k rate=1r/h capacity={BUDGET}; }}");
    Conf::new().redis(redis).decisions().journal().server(&limit)
}

fn spent(redis: &Redis) -> u64 {
    BUDGET - tokens(redis, "rl:default:k").expect("a bucket")
}

#[test]
fn are_loaded_before_they_are_needed() {
    let redis = Redis::start();
    let nginx = limited(&redis).start();
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    assert_eq!((redis.calls("evalsha"), redis.calls("eval")), (1, 0));
}

#[test]
fn a_flush_between_two_requests_goes_unnoticed() {
    let redis = Redis::start();
    let nginx = limited(&redis)
        .server("location /two { rate_limit_redis a rate=9r/d name=a; try_files /index.html =404;")
        .server("rate_limit_redis b rate=9r/d name=b algorithm=gcra burst=8; }")
        .start();
    for (path, remaining) in [("/", BUDGET), ("/two", 9)] {
        assert_eq!(nginx.get(path).remaining(), Some(remaining - 1));
        redis.command::<()>(&["SCRIPT", "FLUSH"]);
        let response = nginx.get(path);
        assert_eq!(response.decision(), "PASSED redis");
        assert_eq!(response.remaining(), Some(remaining - 2));
    }
    // By its source only while it is missing: the second script was flushed with the first.
    assert_eq!(redis.calls("eval"), 3);
    assert_eq!(nginx.get("/two").remaining(), Some(6));
    assert_eq!(redis.calls("eval"), 3);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn are_loaded_by_the_first_connection_alone() {
    let redis = Redis::start();
    let first = limited(&redis).start_connected(&redis);
    assert_eq!(first.get("/").decision(), "PASSED redis");
    assert_eq!((redis.calls("script|exists"), redis.calls("script|load")), (1, 1));
    let second = limited(&redis).workers(2).start();
    assert_eq!(second.get("/").decision(), "PASSED redis");
    wait_until(PATIENCE, || redis.calls("script|exists") == 3, "the handshakes");
    assert_eq!((redis.calls("script|load"), redis.calls("eval")), (1, 0));
}

#[test]
fn only_what_limits_can_need_is_loaded() {
    let loaded = |limits: &str| {
        let redis = Redis::start();
        let nginx = Conf::new().redis(&redis).server(limits).start_connected(&redis);
        assert_eq!(nginx.get("/").headers("X-RateLimit-Limit").len(), 1);
        (redis.calls("script|load"), redis.calls("eval"))
    };
    let (one, lease) = ("rate_limit_redis a rate=9r/h;", "rate_limit_redis_lease on;");
    let other = "rate_limit_redis b rate=9r/h name=b algorithm=gcra;";
    let month = "rate_limit_redis a rate=9r/month algorithm=fixed_window;";
    assert_eq!(loaded(one), (1, 0));
    assert_eq!(loaded(month), (1, 0));
    // The one for several limits has leases. It is long, and is sent when it is needed.
    assert_eq!(loaded(&format!("{one} {lease}")), (1, 0));
    // Each alone, if the other's key is empty; the list; but not what any other part of it needs.
    assert_eq!(loaded(&format!("{one} {other}")), (3, 0));
}

/// The script that is made for limits of these algorithms.
fn script_of(list: &[Algorithm]) -> Script {
    Scripts::new().with_lists([list]).loaded().last().expect("a script").clone()
}

fn is_known(redis: &Redis, script: &Script) -> bool {
    redis.command::<[u8; 1]>(&["SCRIPT", "EXISTS", script.sha()]) == [1]
}

#[test]
fn a_list_of_limits_has_a_script_of_its_own() {
    use Algorithm::{FixedWindow, Gcra, TokenBucket};
    let (before, after) = (script_of(&[TokenBucket, Gcra]), script_of(&[Gcra, FixedWindow, Gcra]));
    let conf = |redis: &Redis, limits: &str| {
        let location = format!("location / {{ {limits} try_files /index.html =404; }}");
        Conf::new().redis(redis).decisions().server(&location)
    };
    let redis = Redis::start();
    let limits = "rate_limit_redis $arg_a rate=9r/1w name=a;
        rate_limit_redis $arg_b rate=1r/1w name=b algorithm=gcra burst=8;";
    let mut nginx = conf(&redis, limits).start();
    assert_eq!(nginx.get("/?a=x&b=x").remaining(), Some(8));
    assert!(is_known(&redis, &before) && !is_known(&redis, &after));
    let limits = "rate_limit_redis $arg_b rate=1r/1w name=b algorithm=gcra burst=8;
        rate_limit_redis $arg_a rate=9r/1w name=c algorithm=fixed_window;
        rate_limit_redis $arg_b rate=1r/1w name=d algorithm=leaky_bucket burst=8 nodelay;";
    nginx.reload_with(&conf(&redis, limits));
    assert_eq!(nginx.get("/?a=y&b=x").remaining(), Some(7));
    assert!(is_known(&redis, &after));
    // It is the one that runs: it is sent again, and no other is.
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(nginx.get("/?a=y&b=x").remaining(), Some(6));
    assert!(is_known(&redis, &after) && !is_known(&redis, Scripts::new().several()));
    // Without a key one limit does not apply, and the other two are no list of the configuration.
    assert_eq!(nginx.get("/?b=x").remaining(), Some(5));
    assert!(is_known(&redis, Scripts::new().several()));
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn flushes_under_load_lose_nothing_and_count_nothing_twice() {
    let redis = Redis::start();
    let nginx = limited(&redis).workers(2).start();
    let load = Load::start(nginx.addr(), "/", 8);
    let start = Instant::now();
    let mut client = redis.client();
    // For two seconds, or for as long as a slow machine needs.
    let is_enough = || redis.calls("eval") > 100 || start.elapsed() > PATIENCE;
    while start.elapsed() < Duration::from_secs(2) || !is_enough() {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut client).expect("flush");
        sleep(Duration::from_millis(2));
    }
    let tally = load.stop();
    assert!(tally.of(200) == tally.total() && tally.failures.is_empty(), "{tally:?}");
    let journal = nginx.wait_for_journal(tally.total() as usize);
    assert_eq!(journal.count("PASSED"), journal.0.len());
    assert!(journal.0.iter().all(|entry| entry.source == "redis"));
    assert_eq!(spent(&redis), tally.total());
    let by_source = redis.calls("eval");
    assert!(by_source > 100, "{by_source} scripts were sent again in {} requests", tally.total());
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_restart_under_load_heals() {
    let mut redis = Redis::start();
    let nginx = limited(&redis).workers(2).start();
    let load = Load::start(nginx.addr(), "/", 4);
    wait_until(PATIENCE, || redis.calls("evalsha") > 50, "decisions by Redis");
    redis.restart();
    wait_until(PATIENCE, || redis.calls("evalsha") > 50, "decisions by Redis again");
    let spent_before = spent(&redis);
    wait_until(PATIENCE, || nginx.get("/").decision() == "PASSED redis", "a decision by Redis");
    let tally = load.stop();
    assert!(tally.of(200) == tally.total() && tally.failures.is_empty(), "{tally:?}");
    assert!(spent(&redis) > spent_before);
}
