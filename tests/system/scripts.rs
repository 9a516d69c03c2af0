//! Redis may lose the scripts at any time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Load, PATIENCE, Redis, wait_until};

use crate::seen::tokens;

const BUDGET: u64 = 500_000;

/// So large a budget that nothing is rejected, and so slow a refill that what is left in Redis
/// tells what was spent.
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
        .server("location /two { rate_limit_redis a rate=9r/m name=a; try_files /index.html =404;")
        .server("rate_limit_redis b rate=9r/m name=b algorithm=gcra burst=8; }")
        .start();
    for (path, remaining) in [("/", BUDGET), ("/two", 9)] {
        assert_eq!(nginx.get(path).remaining(), Some(remaining - 1));
        redis.ask::<()>(&["SCRIPT", "FLUSH"]);
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
fn flushes_under_load_lose_nothing_and_count_nothing_twice() {
    let redis = Redis::start();
    let nginx = limited(&redis).workers(2).start();
    let load = Load::start(nginx.addr(), "/", 8);
    let start = Instant::now();
    let mut client = redis.client();
    while start.elapsed() < Duration::from_secs(2) {
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
