//! A limit holds exactly, however many workers, machines and connections share it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Load, Nginx, Redis, Tally, ab, hey};

fn limited(redis: &Redis, limit: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .http("rate_limit_redis_log_level info;")
        .server(&format!("location / {{ rate_limit_redis shared {limit}; }}"))
        .server(&format!("location /cost {{ rate_limit_redis shared {limit} cost=$arg_cost;"))
        .server("try_files /index.html =404; }")
        .server(&format!("location /quota {{ rate_limit_redis shared {limit} cost=0;"))
        .server("try_files /index.html =404; }")
}

/// Two nginx of two workers each request all they can get of one key, for some seconds, and get no more
/// than there is.
#[track_caller]
fn holds(limit: &str, capacity: f64, per_second: f64) {
    let redis = Redis::start();
    let flooded = Flooded::new(&redis, limit, 1);
    let most = capacity + per_second * flooded.longest.as_secs_f64();
    let summary = format!("{flooded:?}: {most:.1} at most");
    assert!(flooded.passed as f64 <= most, "too many: {summary}");
    assert!(flooded.passed as f64 >= capacity, "too few: {summary}");
}

/// A flood as above. The units that it has not got are still there: nothing is lost, as the bucket is never full
/// after the first request, which takes most of it.
#[track_caller]
fn holds_exactly(limit: &str, capacity: f64, per_second: f64) {
    let redis = Redis::start();
    let flooded = Flooded::new(&redis, limit, 400);
    let all = (flooded.passed + flooded.remaining) as f64;
    let [least, most] =
        [flooded.shortest, flooded.longest].map(|time| capacity + per_second * time.as_secs_f64());
    assert!(all <= most && all + 1.0 >= least, "{flooded:?}: {least:.1} to {most:.1}");
}

/// The outcome of a flood after a first request of such a cost.
#[derive(Debug)]
struct Flooded {
    passed: u64,
    remaining: u64,
    /// The time in which tokens came back, or less and more than that.
    shortest: Duration,
    longest: Duration,
}

impl Flooded {
    #[track_caller]
    fn new(redis: &Redis, limit: &str, first: u64) -> Self {
        let conf = limited(redis, limit).workers(2);
        let machines = [conf.start(), conf.start()];
        let start = Instant::now();
        assert_eq!(machines[0].get(&format!("/cost?cost={first}")).status, 200);
        let charged = Instant::now();
        let loads = machines.each_ref().map(|nginx| Load::start(nginx.addr(), "/", 6));
        sleep(Duration::from_secs(3));
        let tallies = loads.map(Load::stop);
        let shortest = charged.elapsed();
        let remaining = machines[0].get("/quota").remaining().expect("what remains");
        let longest = start.elapsed();

        let passed: u64 = tallies.iter().map(|tally| tally.of(200)).sum();
        let rejected: u64 = tallies.iter().map(|tally| tally.of(429)).sum();
        let total: u64 = tallies.iter().map(Tally::total).sum();
        let failures = tallies.iter().any(|tally| !tally.failures.is_empty());
        assert!(total == passed + rejected && !failures, "{tallies:?}");
        assert!(tallies.iter().all(|tally| tally.of(200) > 0), "{tallies:?}");
        Self { passed: first + passed, remaining, shortest, longest }
    }
}

#[test]
fn a_token_bucket_holds_exactly() {
    // A bucket that is not full before seconds have passed, however busy the machine is.
    holds_exactly("rate=100r/s capacity=500", 500.0, 100.0);
}

#[test]
fn a_token_bucket_holds_at_a_high_rate() {
    holds("rate=1000r/s capacity=100", 100.0, 1000.0);
}

#[test]
fn a_small_token_bucket_holds_at_a_high_rate() {
    holds("rate=1000r/s capacity=10", 10.0, 1000.0);
}

#[test]
fn gcra_holds_exactly() {
    holds_exactly("rate=100r/s algorithm=gcra burst=499", 500.0, 100.0);
}

#[test]
fn gcra_holds_at_a_high_rate() {
    holds("rate=1000r/s algorithm=gcra burst=99", 100.0, 1000.0);
}

#[test]
fn gcra_holds_without_a_burst() {
    holds("rate=100r/s algorithm=gcra", 1.0, 100.0);
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
fn hey_gets_half_of_its_burst() {
    halves("rate=100r/m", |nginx| hey(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn hey_gets_half_of_its_burst_from_gcra() {
    let limit = "rate=100r/m algorithm=gcra burst=99";
    halves(limit, |nginx| hey(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn ab_gets_half_of_its_burst() {
    halves("rate=100r/m", |nginx| ab(&["-n", "200", "-c", "20", &nginx.url("/")]));
}

#[test]
fn ab_gets_half_of_its_burst_on_kept_connections() {
    halves("rate=100r/m", |nginx| ab(&["-k", "-n", "200", "-c", "20", &nginx.url("/")]));
}
