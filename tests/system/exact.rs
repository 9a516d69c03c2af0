//! A limit holds exactly, however many workers, machines and connections share it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Load, Nginx, Redis, Tally, ab, hey};

fn limited(redis: &Redis, limit: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .http("rate_limit_redis_log_level info;")
        .server(&format!("location / {{ rate_limit_redis shared {limit}; }}"))
}

/// Two nginx of two workers each ask for all they can get of one key, for some seconds, and get at
/// least `share` of it, and no more.
#[track_caller]
fn holds(limit: &str, capacity: f64, per_second: f64, share: f64) {
    let redis = Redis::start();
    let conf = limited(&redis, limit).workers(2);
    let machines = [conf.start(), conf.start()];

    let start = Instant::now();
    let loads = machines.each_ref().map(|nginx| Load::start(nginx.addr(), "/", 6));
    sleep(Duration::from_secs(3));
    let tallies = loads.map(Load::stop);
    let most = capacity + per_second * start.elapsed().as_secs_f64();

    let allowed: u64 = tallies.iter().map(|tally| tally.of(200)).sum();
    let rejected: u64 = tallies.iter().map(|tally| tally.of(429)).sum();
    let total: u64 = tallies.iter().map(Tally::total).sum();
    let failures = tallies.iter().any(|tally| !tally.failures.is_empty());
    assert!(total == allowed + rejected && !failures, "{tallies:?}");
    assert!(tallies.iter().all(|tally| tally.of(200) > 0), "{tallies:?}");
    let told = format!("{allowed} of {total} requests passed, {most:.1} should");
    assert!(allowed as f64 <= most, "too many: {told}");
    assert!(allowed as f64 >= most * share, "too few: {told}");
}

#[test]
fn token_bucket() {
    holds("rate=100r/s capacity=50", 50.0, 100.0, 0.98);
}

#[test]
fn token_bucket_at_a_high_rate() {
    // A tenth of a second's worth: a machine that is busy for longer loses some of it.
    holds("rate=1000r/s capacity=100", 100.0, 1000.0, 0.98);
}

#[test]
fn token_bucket_that_is_small() {
    // What comes while a busy machine does other things for 10 ms is lost.
    holds("rate=1000r/s capacity=10", 10.0, 1000.0, 0.5);
}

#[test]
fn gcra() {
    holds("rate=100r/s algorithm=gcra burst=49", 50.0, 100.0, 0.98);
}

#[test]
fn gcra_at_a_high_rate() {
    holds("rate=1000r/s algorithm=gcra burst=99", 100.0, 1000.0, 0.98);
}

#[test]
fn gcra_without_a_burst() {
    // Each wait for the next request is lost.
    holds("rate=100r/s algorithm=gcra", 1.0, 100.0, 0.7);
}

/// 200 requests, 20 at once, against a budget of 100.
#[track_caller]
fn halves(limit: &str, client: impl Fn(&Nginx) -> Tally) {
    let redis = Redis::start();
    let nginx = limited(&redis, limit).workers(2).start();
    let start = Instant::now();
    let tally = client(&nginx);
    let gained = (start.elapsed().as_secs_f64() * 100.0 / 60.0) as u64;
    assert!(tally.total() == 200 && tally.failures.is_empty(), "{tally:?}");
    assert_eq!(tally.of(200) + tally.of(429), 200, "{tally:?}");
    let allowed = tally.of(200);
    assert!((100..=100 + gained).contains(&allowed), "{allowed}, gained {gained}");
}

#[test]
fn a_burst_of_hey() {
    halves("rate=100r/m", |nginx| hey(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn a_burst_of_hey_against_gcra() {
    let limit = "rate=100r/m algorithm=gcra burst=99";
    halves(limit, |nginx| hey(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn a_burst_of_ab() {
    halves("rate=100r/m", |nginx| ab(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn a_burst_of_ab_on_kept_connections() {
    halves("rate=100r/m", |nginx| ab(&["-k", "-n", "200", "-c", "20", &nginx.url("/")]));
}
