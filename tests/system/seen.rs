//! The quota as a client sees it, and as Redis holds it.

use std::thread::sleep;
use std::time::Duration;

use harness::{Conf, Nginx, PATIENCE, Redis, Response};
use harness::{is_configured, is_of_distribution, wait_until};
use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::limit::Algorithm;

/// A start that waits for the connections to Redis.
pub trait StartConnected {
    /// Starts nginx and waits until every worker is connected to `redis`. On a busy machine a
    /// request may otherwise come before that, and not be decided in time.
    fn start_connected(&self, redis: &Redis) -> Nginx;
}

impl StartConnected for Conf {
    fn start_connected(&self, redis: &Redis) -> Nginx {
        let nginx = self.start();
        wait_for_connections(redis, nginx.worker_pids().len());
        nginx
    }
}

/// Waits until workers have so many connections to Redis, and Redis has the last command of each handshake:
/// scripts are loaded after the connection has its name.
pub fn wait_for_connections(redis: &Redis, connections: usize) {
    let is_ready = |client: &String| {
        client.contains("name=nginx_rate_limit_redis:")
            && client.contains(" qbuf=0 ")
            && !client.contains(" cmd=client")
    };
    let connected = || redis.clients().into_iter().filter(is_ready).count() == connections;
    wait_until(PATIENCE, connected, "connections of the workers to Redis");
}

/// Waits until Redis decides; each request is of a new client.
#[track_caller]
pub fn recovers(nginx: &Nginx, path: &str) {
    let mut clients = 0;
    let decides = || {
        clients += 1;
        nginx.get(&format!("{path}?k=client-{clients}")).decision() == "PASSED redis"
    };
    wait_until(PATIENCE, decides, "decisions by Redis");
}

/// The time of Redis, in µs.
pub fn time(redis: &Redis) -> u64 {
    let [seconds, micros] = redis.command::<Vec<u64>>(&["TIME"])[..] else { panic!("no time") };
    seconds * 1_000_000 + micros
}

/// Waits until so much is left of an aligned period, all in seconds; returns how much.
pub fn in_a_window(redis: &Redis, period: u64, least: u64) -> u64 {
    loop {
        let rest = period * 1_000_000 - time(redis) % (period * 1_000_000);
        if rest >= least * 1_000_000 {
            return rest.div_ceil(1_000_000);
        }
        sleep(Duration::from_micros(rest));
    }
}

/// A server with these lines that shows each decision, with the limit in `X-Name`. It has no deny
/// cache, so that Redis decides every request.
pub fn named(snippet: &str) -> Conf {
    let name = "add_header X-Name \"$rate_limit_redis_name\" always;";
    Conf::new().decisions().http(name).http("rate_limit_redis_deny_cache off;").server(snippet)
}

/// The fields that show a client its quota.
pub const FIELDS: [&str; 3] = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];

/// Limit, remaining and reset; panics unless each field is there exactly once.
#[track_caller]
pub fn quota(response: &Response) -> [u64; 3] {
    FIELDS.map(|name| match response.headers(name)[..] {
        [value] => value.parse().unwrap_or_else(|_| panic!("{name}: {value:?}")),
        ref all => panic!("{name} is there {} times:\n{response:?}", all.len()),
    })
}

/// The units that remain; panics unless each of the fields is there exactly once.
#[track_caller]
pub fn remaining(response: &Response) -> u64 {
    quota(response)[1]
}

/// Whether there is neither a field with a quota nor `Retry-After`.
pub fn shows_nothing(response: &Response) -> bool {
    let fields = FIELDS.iter().chain(&["Retry-After"]);
    fields.map(|name| response.headers(name).len()).sum::<usize>() == 0
}

/// `Retry-After`, which must be there exactly once.
#[track_caller]
pub fn retry_after(response: &Response) -> u64 {
    match response.headers("Retry-After")[..] {
        [value] => value.parse().unwrap_or_else(|_| panic!("Retry-After: {value:?}")),
        ref all => panic!("Retry-After is there {} times:\n{response:?}", all.len()),
    }
}

/// The tokens in a token bucket; `None` for a client that has spent nothing.
pub fn tokens(redis: &Redis, key: &str) -> Option<u64> {
    let state = redis.command::<Option<Vec<u8>>>(&["GET", key])?;
    let tokens = state.first_chunk().unwrap_or_else(|| panic!("{key} is {state:?}"));
    Some(u64::from_le_bytes(*tokens))
}

/// The words of a line that choose an algorithm. None delays a request.
pub fn choice(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::IntervalBucket => "refill=interval".to_owned(),
        Algorithm::LeakyBucket => "algorithm=leaky_bucket nodelay".to_owned(),
        Algorithm::TokenBucket
        | Algorithm::Gcra
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::FixedWindow => format!("algorithm={}", algorithm.name()),
    }
}

/// A limit with the parameter by which `most` units pass at once, where it is not the n of the rate.
pub fn passing(algorithm: Algorithm, most: u64) -> String {
    let parameter = match algorithm.burst_parameter() {
        BurstParameter::Capacity => format!(" capacity={most}"),
        BurstParameter::Burst => format!(" burst={}", most - 1),
        BurstParameter::None => String::new(),
    };
    choice(algorithm) + &parameter
}

/// Every key in Redis.
pub fn keys(redis: &Redis) -> Vec<String> {
    let mut keys = redis.command::<Vec<String>>(&["KEYS", "*"]);
    keys.sort();
    keys
}

/// Waits until a log, other than the ordinary ones, has so many lines, and returns it.
#[track_caller]
pub fn lines(nginx: &Nginx, name: &str, number: usize) -> Vec<String> {
    // A long line may be there in part.
    let written = || nginx.read(name).matches('\n').count() >= number;
    wait_until(PATIENCE, written, &format!("{number} lines in {name}"));
    nginx.read(name).lines().map(str::to_owned).collect()
}

/// Whether NGINX has this event method. One that was built for tests must: else nothing would be tested.
pub fn has_event_method(name: &str) -> bool {
    let has = is_configured(&format!("--with-{name}_module"));
    assert!(has || is_of_distribution(), "an nginx without {name}");
    has
}

/// How often something is done: the second number in the long form of the tests, which `scripts/soak` runs.
pub fn times(short: usize, long: usize) -> usize {
    if std::env::var_os("RATE_LIMIT_SOAK_SECONDS").is_some() { long } else { short }
}
