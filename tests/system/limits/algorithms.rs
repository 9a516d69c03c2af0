//! Each algorithm, from the request to the key in Redis.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use harness::{Conf, Load, Nginx, PATIENCE, Redis, Response, Tally, wait_until};

use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::limit::Algorithm;
use redis::Commands as _;

use crate::seen::{
    StartConnected as _, choice, in_a_window, keys, lines, passing, quota, remaining, retry_after,
    time, wait_for_connections,
};

const HOUR: u64 = 3_600;

/// The name of the limit of an algorithm.
fn name(algorithm: Algorithm) -> String {
    format!("{algorithm:?}")
}

/// A server with a location for each algorithm, in all of them a rate of `count` a period, of which all pass at once,
/// and below each a `/quota`. The key is `a`.
fn all(redis: &Redis, count: u64, period: &str) -> Conf {
    let location = |algorithm| {
        let (name, words) = (name(algorithm), passing(algorithm, count));
        let line = format!("rate_limit_redis a name={name} rate={count}r/{period} {words}");
        format!(
            "location /{name} {{ {line}; error_page 404 =200 /index.html; }}
             location /{name}/quota {{ {line} cost=0; error_page 404 =200 /index.html; }}\n"
        )
    };
    let locations = Algorithm::ALL.map(location).concat();
    Conf::new().redis(redis).server(&locations).server("location = /index.html { }")
}

fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send("GET", path, headers);
    http.read_response()
}

/// The value of a key.
fn stored(redis: &Redis, key: &str) -> Option<Vec<u8>> {
    redis.command(&["DUMP", key])
}

#[test]
fn each_algorithm_shows_its_numbers() {
    let redis = Redis::start();
    let nginx = all(&redis, 3, "1h").start_connected(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        let rest = in_a_window(&redis, HOUR, 30);
        let start = Instant::now();
        let path = format!("/{name}");
        let answers = [(); 5].map(|()| nginx.get(&path));
        let passed = start.elapsed().as_secs() + 2;

        // Three, one of them every 20 minutes; the reset after each, and when to come back.
        let (resets, wait) = match algorithm {
            Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                ([HOUR / 3, 2 * HOUR / 3, HOUR], HOUR / 3)
            }
            Algorithm::IntervalBucket | Algorithm::SlidingLog => ([HOUR; 3], HOUR),
            Algorithm::FixedWindow => ([rest; 3], rest),
            // In the next window, when a part of one does not count any more.
            Algorithm::SlidingWindow => ([rest, rest + HOUR / 2, rest + 2 * HOUR / 3], rest),
        };
        let near =
            |shown: u64, expected: u64| (shown..=shown + passed + 1).contains(&(expected + 1));
        for (n, response) in answers.iter().enumerate() {
            let spent = n.min(2);
            let [limit, left, reset] = quota(response);
            let seen = (response.status, limit, left);
            let status = if n < 3 { 200 } else { 429 };
            assert_eq!(seen, (status, 3, 2 - spent as u64), "{name}, {n}");
            assert!(near(reset, resets[spent]), "{name}, {n}: {reset}, not {resets:?}");
            match status {
                200 => assert_eq!(response.header("Retry-After"), None),
                _ => assert!(near(retry_after(response), wait), "{name}: {response:?}, not {wait}"),
            }
        }
    }
}

#[test]
fn every_key_has_its_type_and_a_time_to_live() {
    let redis = Redis::start();
    let nginx = all(&redis, 3, "1h").start_connected(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        in_a_window(&redis, HOUR, 30);
        for n in 0..4 {
            let response = nginx.get(&format!("/{name}"));
            let left = redis.command::<i64>(&["PTTL", &format!("rl:{name}:a")]);
            // A rejection does not write. The end is rounded up to a whole ms, PTTL counts from the ms that has begun.
            let most = quota(&response)[2] as i64 * 1_000 + 1;
            assert!((most - 30_000..=most).contains(&left), "{name}, {n}: {left} of {most} ms");
        }
        let kind = redis.command::<String>(&["TYPE", &format!("rl:{name}:a")]);
        assert_eq!(kind, if algorithm.stores_itself() { "list" } else { "string" }, "{name}");
    }
    let mut expected = Algorithm::ALL.map(|algorithm| format!("rl:{}:a", name(algorithm)));
    expected.sort();
    assert_eq!(keys(&redis), expected, "and there are no others");
}

#[test]
fn an_idle_client_leaves_nothing() {
    let redis = Redis::start();
    let nginx = all(&redis, 50, "s").start_connected(&redis);
    for algorithm in Algorithm::ALL {
        nginx.get(&format!("/{}", name(algorithm)));
    }
    wait_until(PATIENCE, || keys(&redis).is_empty(), "the end of every key");
}

#[test]
fn a_quota_endpoint_spends_nothing() {
    let redis = Redis::start();
    let nginx = all(&redis, 3, "1h").start_connected(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        in_a_window(&redis, HOUR, 30);
        let (path, key) = (format!("/{name}"), format!("rl:{name}:a"));
        let numbers = || {
            let before = stored(&redis, &key);
            let [first, second] = [(); 2].map(|()| nginx.get(&format!("{path}/quota")));
            assert_eq!([first.status, second.status], [200; 2], "{name}");
            assert_eq!(first.header("Retry-After"), None);
            assert_eq!(quota(&first)[..2], quota(&second)[..2], "{name}");
            assert_eq!(stored(&redis, &key), before, "{name}");
            quota(&first)
        };
        assert_eq!(numbers(), [3, 3, 0], "{name}: a client not seen before");
        assert_eq!(stored(&redis, &key), None, "{name}");
        for left in [2, 1, 0] {
            assert_eq!(remaining(&nginx.get(&path)), left, "{name}");
            assert_eq!(numbers()[1], left, "{name}");
        }
        assert_eq!(nginx.get(&path).status, 429, "{name}");
        assert_eq!(numbers()[1], 0, "{name}");
    }
}

#[test]
fn a_cost_that_can_never_pass_has_no_retry() {
    let redis = Redis::start();
    let line = |algorithm| {
        let (name, words) = (name(algorithm), passing(algorithm, 3));
        format!("location /{name} {{ rate_limit_redis a name={name} rate=3r/1h {words}")
            + " cost=$arg_cost; }"
    };
    let conf = Conf::new().redis(&redis).server(&Algorithm::ALL.map(line).concat());
    let nginx = conf.start_connected(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        in_a_window(&redis, HOUR, 30);
        let response = nginx.get(&format!("/{name}?cost=4"));
        assert_eq!((response.status, quota(&response)), (429, [3, 3, 0]), "{name}");
        assert_eq!(response.header("Retry-After"), None, "{name}");
        assert_eq!(stored(&redis, &format!("rl:{name}:a")), None, "{name}");
        let response = nginx.get(&format!("/{name}?cost=3"));
        assert_eq!((response.status, remaining(&response)), (404, 0), "{name}: all at once");
        assert!(retry_after(&nginx.get(&format!("/{name}?cost=3"))) > 1, "{name}");
    }
}

#[test]
fn waiting_for_the_retry_is_enough() {
    let redis = Redis::start();
    let limits = [
        "rate=3r/2s refill=interval",
        "rate=2r/s capacity=5 refill=interval cost=3",
        "rate=3r/2s algorithm=leaky_bucket burst=1 nodelay",
        "rate=3r/2s algorithm=sliding_window",
        "rate=7r/s algorithm=sliding_window cost=3",
        "rate=3r/2s algorithm=sliding_log",
        "rate=7r/s algorithm=sliding_log cost=3",
        "rate=3r/2s algorithm=fixed_window",
        "rate=1r/1300ms algorithm=fixed_window",
        "rate=1r/1300ms algorithm=sliding_window",
    ];
    let mut conf = Conf::new().redis(&redis);
    for (n, limit) in limits.iter().enumerate() {
        let line = format!("rate_limit_redis $remote_addr name=n{n} {limit};");
        conf = conf.server(&format!("location /{n} {{ {line} }}"));
    }
    let nginx = conf.start_connected(&redis);
    let wait_thrice = |n: usize| {
        for _ in 0..3 {
            let mut answers = (0..200).map(|_| nginx.get(&format!("/{n}")));
            let rejected = answers.find(|response| response.status == 429);
            let seconds = retry_after(&rejected.expect("one of many is rejected"));
            assert!((1..=4).contains(&seconds), "{}: {seconds}", limits[n]);
            sleep(Duration::from_secs(seconds));
            let status = nginx.get(&format!("/{n}")).status;
            assert_eq!(status, 404, "{}: rejected after {seconds} s", limits[n]);
        }
    };
    scope(|scope| {
        let waiting: Vec<_> =
            (0..limits.len()).map(|n| scope.spawn(move || wait_thrice(n))).collect();
        assert!(waiting.into_iter().all(|thread| thread.join().is_ok()));
    });
}

#[test]
fn an_interval_brings_all_of_its_tokens_at_once() {
    let redis = Redis::start();
    let line = "rate_limit_redis a rate=3r/4s capacity=7 refill=interval";
    let nginx = Conf::new()
        .redis(&redis)
        .server(&format!("location / {{ {line}; }} location /quota {{ {line} cost=0; }}"))
        .start_connected(&redis);
    let start = Instant::now();
    (0..7).for_each(|n| assert_eq!(nginx.get("/").status, 200, "{n}"));
    assert!(start.elapsed() < Duration::from_secs(4), "this machine is too busy");
    let mut seen = BTreeSet::new();
    let full = || seen.insert(remaining(&nginx.get("/quota"))) && seen.contains(&7);
    wait_until(PATIENCE, full, "a full bucket");
    let passed = start.elapsed();
    assert_eq!(Vec::from_iter(seen), [0, 3, 6, 7]);
    assert!(passed >= Duration::from_millis(11_900), "full after {passed:?}");
}

/// Two machines of two workers request all they can get, for about so long, at every path, and
/// get the number that is answered for each.
fn flood(machines: &[Nginx; 2], paths: &[&str], duration: Duration) -> Vec<u64> {
    let load = |nginx: &Nginx, path: &str| Load::start(nginx.addr(), path, 2);
    let loads: Vec<_> =
        paths.iter().map(|path| machines.each_ref().map(|nginx| load(nginx, path))).collect();
    sleep(duration);
    let passed = |tallies: [Tally; 2]| {
        for tally in &tallies {
            assert!(tally.failures.is_empty(), "{tally:?}");
            assert_eq!(tally.of(200) + tally.of(429), tally.total(), "{tally:?}");
        }
        tallies.iter().map(|tally| tally.of(200)).sum()
    };
    // All get the signal to stop before any is waited for.
    scope(|scope| {
        let ends: Vec<_> =
            loads.into_iter().map(|pair| scope.spawn(|| pair.map(Load::stop))).collect();
        ends.into_iter().map(|end| passed(end.join().expect("clients"))).collect()
    })
}

fn machines(redis: &Redis, limits: &[(&str, &str)]) -> [Nginx; 2] {
    let location = |(path, limit): &(&str, &str)| {
        format!(
            "location /{path} {{ rate_limit_redis a name={path} {limit};
             error_page 404 =200 /index.html; }}"
        )
    };
    let locations: String = limits.iter().map(location).collect();
    let conf = Conf::new().redis(redis).workers(2).http("log_not_found off;").server(&locations);
    let conf = conf.server("rate_limit_redis_log_level info; location = /index.html { }");
    [conf.start_connected_to(redis, 2), conf.start_connected_to(redis, 4)]
}

/// A start that waits until so many workers in all are connected.
trait StartAmongOthers {
    fn start_connected_to(&self, redis: &Redis, workers: usize) -> Nginx;
}

impl StartAmongOthers for Conf {
    fn start_connected_to(&self, redis: &Redis, workers: usize) -> Nginx {
        let nginx = self.start();
        wait_for_connections(redis, workers);
        nginx
    }
}

#[test]
fn two_machines_share_a_budget_exactly() {
    let redis = Redis::start();
    let two = machines(
        &redis,
        &[
            ("log", "rate=40r/1d algorithm=sliding_log"),
            ("fixed", "rate=40r/1d algorithm=fixed_window"),
            ("window", "rate=40r/1d algorithm=sliding_window"),
            ("interval", "rate=40r/1d refill=interval"),
            ("leaky", "rate=10r/1d algorithm=leaky_bucket burst=39 nodelay"),
        ],
    );
    in_a_window(&redis, 24 * HOUR, 60);
    let paths = ["/log", "/fixed", "/window", "/interval", "/leaky"];
    let mut passed = flood(&two, &paths, Duration::from_secs(2));
    // A busy machine has not spent all of it by then.
    for (path, passed) in paths.iter().zip(&mut passed) {
        *passed += (0_u64..).take_while(|_| two[0].get(path).status == 200).count() as u64;
    }
    assert_eq!(passed, [40; 5]);
    assert_eq!(redis.command::<u64>(&["LLEN", "rl:log:a"]), 40);
}

#[test]
fn n_pass_in_each_period() {
    let redis = Redis::start();
    let two = machines(
        &redis,
        &[
            ("fixed", "rate=20r/2s algorithm=fixed_window"),
            ("window", "rate=20r/2s algorithm=sliding_window"),
            ("log", "rate=20r/2s algorithm=sliding_log"),
            ("interval", "rate=20r/2s refill=interval capacity=30"),
        ],
    );
    let start = time(&redis);
    let allowed = flood(&two, &["/fixed", "/window", "/log", "/interval"], Duration::from_secs(7));
    let end = time(&redis);

    let windows = end / 2_000_000 - start / 2_000_000 + 1;
    let periods = (end - start) / 2_000_000 + 1;
    let [fixed, window, log, interval] = allowed[..] else { panic!("{allowed:?}") };
    let summary = format!("{allowed:?} in {windows} windows, {periods} periods");
    // The first and the last window may have been too short to use all of them.
    assert!((20 * (windows - 2)..=20 * windows).contains(&fixed), "{summary}");
    assert!((20..=20 * windows).contains(&window), "{summary}");
    assert!((20 * (periods - 1)..=20 * periods).contains(&log), "{summary}");
    assert!((20 * (periods - 1)..=30 + 20 * periods).contains(&interval), "{summary}");
}

/// The output of `date` for a moment, in UTC.
fn date(moment: &str, format: &str) -> String {
    let output = Command::new("date").args(["-u", "-d", moment, format]).output().expect("date");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// When this month began, and when it ends.
fn month() -> (u64, u64) {
    let first = date("now", "+%Y-%m-01");
    let time = |moment: &str| date(moment, "+%s").parse().expect("a Unix time");
    (time(&first), time(&format!("{first} +1 month")))
}

#[test]
fn a_month_ends_with_that_of_the_calendar() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis_headers x-ratelimit ietf;")
        .server("location / { rate_limit_redis a name=m rate=$arg_rate algorithm=fixed_window; }")
        .server("location /gcra { rate_limit_redis a name=g rate=$arg_rate algorithm=gcra; }")
        .start_connected(&redis);
    let (responses, (begins, ends), now) = loop {
        let before = month();
        redis.command::<()>(&["FLUSHALL"]);
        let responses = [(); 3].map(|()| nginx.get("/?rate=2r/month"));
        let now = time(&redis) / 1_000_000;
        if before == month() {
            break (responses, before, now);
        }
    };
    assert_eq!(responses.each_ref().map(|response| response.status), [200, 200, 429]);
    let ttl: u64 = redis.command(&["PTTL", "rl:m:a"]);
    let policy = format!("\"m\";q=2;w={}", ends - begins);
    let rejected = &responses[2];
    assert_eq!(rejected.header("RateLimit-Policy"), Some(&*policy));
    let [_, _, reset] = quota(rejected);
    for rest in [ttl / 1_000, retry_after(rejected), reset] {
        assert!(rest.abs_diff(ends - now) < 60, "{rest} {rejected:?}");
    }

    // The rate is in a variable, and the algorithm cannot count it.
    assert_eq!(nginx.get("/gcra?rate=2r/month").header("X-RateLimit-Limit"), None);
    nginx.wait_for_error_log("\"rate=2r/month\" in \"rate_limit_redis\" directive");
}

#[test]
fn a_log_never_holds_more_than_n() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .workers(2)
        .server("rate_limit_redis_log_level info;")
        .server("location / { rate_limit_redis a rate=25r/3s algorithm=sliding_log; }")
        .start_connected(&redis);
    let (start, load) = (Instant::now(), Load::start(nginx.addr(), "/index.html", 8));
    let (mut client, mut longest) = (redis.client(), 0);
    // Old entries make room for new ones twice.
    while start.elapsed() < Duration::from_secs(8) {
        let length: u64 = client.llen("rl:default:a").expect("the length of the log");
        longest = longest.max(length);
        sleep(Duration::from_millis(1));
    }
    let tally = load.stop();
    assert!(tally.failures.is_empty() && tally.of(200) > 25, "{tally:?}");
    assert!(tally.of(429) > 0 && tally.of(200) + tally.of(429) == tally.total(), "{tally:?}");
    assert_eq!(longest, 25);
    wait_until(PATIENCE, || keys(&redis).is_empty(), "the end of the log");
}

/// A server whose rate and burst depend on `X-Tier`: small 2, default 4, gold 8, an hour.
fn tiers(redis: &Redis) -> Nginx {
    let line = |algorithm| {
        let (name, words) = (name(algorithm), choice(algorithm));
        let is_burst = algorithm.burst_parameter() == BurstParameter::Burst;
        let burst = if is_burst { "burst=$burst" } else { "" };
        format!(
            "location /{name} {{ error_page 404 =200 /index.html;
             rate_limit_redis $arg_key name={name} rate=$rate {words} {burst}; }}\n"
        )
    };
    Conf::new()
        .redis(redis)
        .http("map $http_x_tier $rate { default 4r/1h; small 2r/1h; gold 8r/1h; }")
        .http("map $http_x_tier $burst { default 3; small 1; gold 7; }")
        .server(&Algorithm::ALL.map(line).concat())
        .server("location = /index.html { }")
        .start_connected(redis)
}

#[test]
fn a_new_rate_takes_hold_at_the_next_request() {
    let redis = Redis::start();
    let nginx = tiers(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        in_a_window(&redis, HOUR, 30);
        let seen = |key: &str, tier: &str| {
            let response = get(&nginx, &format!("/{name}?key={key}"), &[("X-Tier", tier)]);
            let [limit, left, _] = quota(&response);
            (response.status, limit, left)
        };
        // The state of a client that has spent three of 4, or of 8: the tokens, the time until the quota is whole, or
        // what was spent.
        let (left, small, left_again) = match algorithm {
            // One token, and of 2 as many as fit.
            Algorithm::TokenBucket | Algorithm::IntervalBucket => (0, (200, 2, 1), 0),
            // 45 minutes of 60 are spent, and then 52.5; or 22.5, and then 52.5.
            Algorithm::Gcra | Algorithm::LeakyBucket => (1, (200, 2, 0), 0),
            // Three, and then four; three is more than two.
            Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::FixedWindow => {
                (4, (429, 2, 0), 4)
            }
        };
        let spent: [_; 3] = std::array::from_fn(|_| seen("up", ""));
        assert_eq!(spent, [(200, 4, 3), (200, 4, 2), (200, 4, 1)], "{name}");
        assert_eq!(seen("up", "gold"), (200, 8, left), "{name}");
        for more in (0..left).rev() {
            assert_eq!(seen("up", "gold"), (200, 8, more), "{name}");
        }
        assert_eq!(seen("up", "gold"), (429, 8, 0), "{name}");

        // And the other way: what is left of 8 does not fit into 2.
        let spent: [_; 3] = std::array::from_fn(|_| seen("down", "gold"));
        assert_eq!(spent, [(200, 8, 7), (200, 8, 6), (200, 8, 5)], "{name}");
        assert_eq!(seen("down", "small"), small, "{name}");
        // Rejections have spent nothing: a client that is gold again continues.
        assert_eq!(seen("down", "gold"), (200, 8, left_again), "{name}");
    }
}

#[test]
fn several_algorithms_on_one_request_spend_all_or_nothing() {
    let redis = Redis::start();
    let line = |algorithm| {
        let (name, words) = (name(algorithm), passing(algorithm, 9));
        format!("rate_limit_redis $arg_key name={name} rate=9r/1h {words} cost=$c_{name};")
    };
    let cost = |name| format!("map $arg_x $c_{name} {{ default 2; {name} 6; }}");
    let costs = Algorithm::ALL.map(|algorithm| cost(name(algorithm)));
    let nginx = Conf::new()
        .redis(&redis)
        .http(&costs.concat())
        .http("add_header X-Name $rate_limit_redis_name always;")
        .server(&Algorithm::ALL.map(line).concat())
        .start_connected(&redis);
    in_a_window(&redis, HOUR, 30);
    // Two of nine, twice; then one request costs six.
    for left in [7, 5] {
        let response = nginx.get("/?key=a");
        assert_eq!((response.status, remaining(&response)), (200, left));
    }
    let dumps =
        || Algorithm::ALL.map(|algorithm| stored(&redis, &format!("rl:{}:a", name(algorithm))));
    let before = dumps();
    assert!(before.iter().all(Option::is_some), "all are written");
    let calls = redis.calls("evalsha");
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        let response = nginx.get(&format!("/?key=a&x={name}"));
        assert_eq!((response.status, response.header("X-Name")), (429, Some(&name[..])));
        assert_eq!(quota(&response)[..2], [9, 5], "{name}");
        assert!(dumps() == before, "{name} rejects, and something was spent");
    }
    let calls = redis.calls("evalsha") - calls;
    assert_eq!(calls, Algorithm::ALL.len() as u64, "all are checked by one command");
    assert_eq!(remaining(&nginx.get("/?key=a")), 3);
}

#[test]
fn all_that_are_violated_are_named() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("log_format names '$status [$rate_limit_redis_name]';")
        .server("access_log {prefix}/names.log names; rate_limit_redis_body problem;")
        .server("rate_limit_redis a name=wide rate=9r/1d;")
        .server("rate_limit_redis a name=b rate=1r/1h algorithm=fixed_window;")
        .server("rate_limit_redis a name=c rate=1r/1d algorithm=sliding_log;")
        .server("rate_limit_redis a name=wider rate=99r/1d algorithm=sliding_window;")
        .server("rate_limit_redis a name=d rate=9r/1h algorithm=gcra;")
        .start_connected(&redis);
    in_a_window(&redis, HOUR, 10);
    assert_eq!(nginx.get("/index.html").status, 200);
    let response = nginx.get("/index.html");
    assert_eq!(response.status, 429);
    let body = response.text();
    assert!(body.ends_with("\"violated-policies\":[\"b\",\"c\",\"d\"]}"), "{body}");
    assert!(retry_after(&response) > 23 * HOUR, "c takes longest");
    // One that none of the three rejects, in the same words.
    assert_eq!(lines(&nginx, "names.log", 2)[1], "429 [b, c, d]");
    let logged = nginx.logged("limiting requests");
    let [line] = &logged[..] else { panic!("{logged:?}") };
    let text = "by limit \"c\", key: \"a\", also by limit \"b\", also by limit \"d\", client: ";
    assert!(line.contains(text), "{line}");
    assert!(!line.contains("wide"), "{line}");
}

#[test]
fn a_key_of_another_type_is_an_error() {
    for policy in ["open", "closed"] {
        let redis = Redis::start();
        let nginx = all(&redis, 3, "1h")
            .decisions()
            .http(&format!("rate_limit_redis_on_error {policy};"))
            .start_connected(&redis);
        for algorithm in Algorithm::ALL {
            let name = name(algorithm);
            let key = &format!("rl:{name}:a");
            match algorithm.stores_itself() {
                true => redis.command::<String>(&["SET", key, "1 2 3"]),
                false => redis.command::<String>(&["HMSET", key, "a", "b"]),
            };
            for _ in 0..2 {
                let response = nginx.get(&format!("/{name}"));
                let (status, decision) = match policy {
                    "open" => (200, "ERROR_PASSED none"),
                    _ => (503, "ERROR_REJECTED none"),
                };
                assert_eq!((response.status, response.decision()), (status, decision), "{name}");
            }
        }
        let logged = nginx.logged("refused to decide");
        let [line] = &logged[..] else { panic!("not one line: {logged:#?}") };
        assert!(line.contains("[error]") && line.contains("WRONGTYPE"), "{line}");
        // The connection is none the worse, and a key that is mended is decided again.
        let mended = [Algorithm::SlidingLog, Algorithm::TokenBucket].map(name);
        let good = mended.map(|name| {
            redis.command::<i64>(&["DEL", &format!("rl:{name}:a")]);
            nginx.get(&format!("/{name}"))
        });
        assert_eq!(good.map(|response| (response.status, remaining(&response))), [(200, 2); 2]);
    }
}

#[test]
fn a_key_that_holds_nonsense_is_a_new_client() {
    let redis = Redis::start();
    let nginx = all(&redis, 3, "1h").start_connected(&redis);
    for algorithm in Algorithm::ALL {
        let name = name(algorithm);
        in_a_window(&redis, HOUR, 30);
        let key = &format!("rl:{name}:a");
        match algorithm.stores_itself() {
            true => drop(redis.command::<i64>(&["RPUSH", key, "nonsense"])),
            false => drop(redis.command::<String>(&["SET", key, "nonsense"])),
        }
        let seen =
            [(); 4].map(|()| nginx.get(&format!("/{name}"))).map(|r| (r.status, remaining(&r)));
        assert_eq!(seen, [(200, 2), (200, 1), (200, 0), (429, 0)], "{name}");
    }
}

#[test]
fn a_log_that_would_be_too_long_is_an_error() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .decisions()
        .server("location / { rate_limit_redis a rate=${arg_n}r/1d algorithm=sliding_log; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?n=100000").decision(), "PASSED redis");
    assert_eq!(nginx.get("/?n=100001").decision(), "ERROR_REJECTED none");
    let logged = nginx.logged("100000 entries");
    let [line] = &logged[..] else { panic!("{logged:?}") };
    assert!(line.contains("[error]") && line.contains("100001r/"), "{line}");
}
