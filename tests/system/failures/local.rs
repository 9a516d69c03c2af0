//! `rate_limit_redis_on_error local`: while Redis cannot decide this machine does, and no client
//! gets a burst at either edge.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{
    Act, ClusterConf, Conf, Fake, Load, PATIENCE, Redis, Response, hey, run, slot, wait_until,
};

use rate_limit_core::algorithm::BurstParameter;
use rate_limit_core::limit::Algorithm;
use tempfile::NamedTempFile;

use crate::seen::{
    in_a_window, lines, passing, quota, recovers, retry_after, shows_nothing, tokens,
};

/// A server that decides locally if need be.
fn local(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .store(url)
        .http("rate_limit_redis_on_error local;")
        .http("rate_limit_redis_log_level info; keepalive_requests 1000000;")
}

/// A configuration for a Redis that is not there.
fn alone() -> Conf {
    local(&format!("redis://127.0.0.1:{}", harness::free_port()))
}

/// A location with a limit.
fn location(path: &str, limit: &str) -> String {
    format!("location {path} {{ rate_limit_redis {limit}; try_files /index.html =404; }}")
}

#[test]
fn workers_share_one_budget() {
    let nginx = alone().workers(2).server(&location("/", "$arg_k rate=1r/h capacity=50")).start();
    let tally = hey(&["-n", "400", "-c", "20", &nginx.url("/?k=a")]);
    assert_eq!((tally.of(200), tally.of(429)), (50, 350), "{tally:?}");
    let response = nginx.get("/?k=a");
    assert_eq!(response.decision(), "REJECTED local");
    assert_eq!(quota(&response)[..2], [50, 0]);
    assert!((3_590..=3_600).contains(&retry_after(&response)), "{response:?}");
    let response = nginx.get("/?k=b");
    assert_eq!((response.decision(), quota(&response)), ("PASSED local", [50, 49, 3_600]));
}

/// Workers that wait for each other do not take the log of a client back in time: all of it would be of now then, and so
/// count for longer. A client that sends half of what it may has nothing rejected.
#[test]
fn workers_that_decide_at_once_make_no_log_last_longer() {
    let limit = "a rate=2500r/1s algorithm=sliding_log";
    let nginx = alone().workers(4).server(&location("/", limit)).start();
    let load = Load::start(nginx.addr(), "/", 4);
    sleep(Duration::from_secs(5));
    let tally = load.stop();
    assert!(tally.total() < 5 * 1_400, "more than half of what may pass: {tally:?}");
    assert!(tally.failures.is_empty() && tally.of(200) == tally.total(), "{tally:?}");
}

/// Equal requests, at the same time, with a Redis and without.
#[test]
fn each_algorithm_gives_the_same_numbers() {
    let redis = Redis::start();
    let of = |algorithm: Algorithm| {
        let is_count = algorithm.burst_parameter() == BurstParameter::None;
        format!("rate={}r/d {}", if is_count { 12 } else { 6 }, passing(algorithm, 12))
    };
    let others = ["1w", "month"].map(|period| format!("rate=12r/{period} algorithm=fixed_window"));
    let limits: Vec<_> = Algorithm::ALL.map(of).into_iter().chain(others).collect();
    let locations: String = limits
        .iter()
        .enumerate()
        .map(|(n, limit)| location(&format!("/{n}"), &format!("a name={n} {limit} cost=$arg_c")))
        .collect();
    let fleet = local(&redis.url()).server(&locations).start();
    let alone = alone().server(&locations).start();
    for (n, limit) in limits.iter().enumerate() {
        // Days, weeks and months end at midnight.
        in_a_window(&redis, 24 * 3_600, 30);
        for cost in [0, 1, 1, 3, 0, 12, 13, 4, 5, 3, 1, 0, 12] {
            let path = format!("/{n}?c={cost}");
            let [of_redis, of_local] = [&fleet, &alone].map(|nginx| nginx.get(&path));
            let status =
                |response: &Response| response.decision().split(' ').next().map(str::to_owned);
            assert_eq!(status(&of_redis), status(&of_local), "{limit}, cost {cost}");
            assert!(
                of_local.decision().ends_with(" local") && of_redis.decision().ends_with("redis")
            );
            let [[limit_r, left_r, reset_r], [limit_l, left_l, reset_l]] =
                [&of_redis, &of_local].map(quota);
            assert_eq!((limit_r, left_r), (limit_l, left_l), "{limit}, cost {cost}");
            assert!(reset_r.abs_diff(reset_l) <= 2, "{limit}, cost {cost}: {reset_r} {reset_l}");
            let retry = |r: &Response| r.header("Retry-After").map(|s| s.parse::<i64>().unwrap());
            match (retry(&of_redis), retry(&of_local)) {
                (Some(r), Some(l)) => assert!((r - l).abs() <= 2, "{limit}: {r} {l}"),
                (r, l) => assert_eq!(r, l, "{limit}, cost {cost}"),
            }
        }
    }
}

#[test]
fn a_leaky_bucket_delays() {
    let limit = location("/", "a rate=1r/s algorithm=leaky_bucket burst=5");
    let nginx = alone().server(&limit).start();
    nginx.wait_for_error_log("is down");
    let start = Instant::now();
    let mut clients: Vec<_> = (0..8).map(|_| nginx.http()).collect();
    nginx.in_one_turn(|| clients.iter_mut().for_each(|http| http.send("GET", "/", &[])));
    let mut decisions: Vec<String> =
        clients.iter_mut().map(|http| http.read_response().decision().to_owned()).collect();
    let took = start.elapsed().as_millis();
    decisions.sort();
    let expected = [("DELAYED local", 5), ("PASSED local", 1), ("REJECTED local", 2)];
    let expected: Vec<_> = expected.iter().flat_map(|(what, n)| vec![*what; *n]).collect();
    assert_eq!(decisions, expected);
    // Five intervals of a second.
    assert!((4_900..7_000).contains(&took), "{took} ms");
}

#[test]
fn several_limits_spend_all_or_nothing() {
    let nginx = alone()
        .server("location = /two { rate_limit_redis a name=a rate=9r/d capacity=5;")
        .server("rate_limit_redis a name=b rate=9r/d capacity=2; try_files /index.html =404; }")
        .server(&location("= /a", "a name=a rate=9r/d capacity=5 cost=0"))
        .server(&location("= /b", "a name=b rate=9r/d capacity=2 cost=0"))
        .start();
    let decisions: Vec<_> = (0..5).map(|_| nginx.get("/two").decision().to_owned()).collect();
    assert_eq!(decisions, [["PASSED local"; 2].as_slice(), &["REJECTED local"; 3]].concat());
    assert_eq!(quota(&nginx.get("/two"))[..2], [2, 0]);
    assert_eq!(nginx.get("/a").remaining(), Some(3));
    assert_eq!(nginx.get("/b").remaining(), Some(0));
}

#[test]
fn at_the_start_of_an_outage_the_quota_is_whole() {
    let mut redis = Redis::start();
    let nginx = local(&redis.url()).server(&location("/", "$arg_k rate=1r/h capacity=10")).start();
    let mut http = nginx.http();
    recovers(&nginx, "/");
    for left in [9, 8, 7] {
        let response = http.get("/?k=a");
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(left)));
    }
    redis.kill9();
    nginx.wait_for_error_log("is down");
    for left in (0..10).rev() {
        let response = http.get("/?k=a");
        assert_eq!((response.decision(), response.remaining()), ("PASSED local", Some(left)));
    }
    assert_eq!(http.get("/?k=a").decision(), "REJECTED local");
}

/// A request is delayed by what this machine has let through, too.
#[test]
fn a_leaky_bucket_delays_by_what_passed_here() {
    let mut redis = Redis::start();
    redis.kill9();
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .server("rate_limit_redis_log_level error;")
        .server(&location("/", "a rate=1r/m burst=20 algorithm=leaky_bucket"))
        .server(&location("/other", "$arg_k rate=9r/m name=other"))
        .start();
    let delayed = || nginx.logged("delaying request");
    let mut clients = [(); 4].map(|()| nginx.http());
    for client in &mut clients[..3] {
        client.send("GET", "/", &[]);
    }
    wait_until(PATIENCE, || delayed().len() == 2, "two delays");
    redis.restart();
    recovers(&nginx, "/other");
    clients[3].send("GET", "/", &[]);
    wait_until(PATIENCE, || delayed().len() == 3, "a third delay");
    let line = &delayed()[2];
    let excess = line.split_once("excess: ").and_then(|(_, rest)| rest.split_once(' '));
    let excess: f64 = excess.and_then(|(excess, _)| excess.parse().ok()).expect("an excess");
    assert!((1.0..=3.0).contains(&excess), "{line}");
}

/// Redis has forgotten everything, this machine has not.
#[test]
fn a_client_with_local_charges_gets_no_burst_from_a_redis_that_returns() {
    // So that Redis gives nothing back meanwhile. Local charges are regained by the clock of nginx.
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .server(&location("/slow", "$arg_k rate=1r/h capacity=5 name=slow"))
        .server(&location("/left", "$arg_k rate=1r/h capacity=5 name=slow cost=0"))
        .server(
            &location("/leased", "$arg_k rate=1r/h capacity=99 name=leased")
                .replace("rate_limit_redis ", "rate_limit_redis_lease 1m; rate_limit_redis "),
        )
        .start();
    let mut http = nginx.http();
    for _ in 0..5 {
        assert_eq!(http.get("/slow?k=a").decision(), "PASSED local");
    }
    assert_eq!(http.get("/slow?k=b").decision(), "PASSED local");
    for _ in 0..9 {
        assert_eq!(http.get("/leased?k=a").decision(), "PASSED local");
    }
    redis.restart();
    recovers(&nginx, "/slow");
    let spent = Instant::now();
    // A client without local charges is checked in Redis alone.
    let response = http.get("/slow?k=c");
    assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(4)));
    for _ in 0..5 {
        let response = http.get("/slow?k=a");
        assert_eq!(response.decision(), "REJECTED local");
        assert!(retry_after(&response) > 3_590);
    }
    // A client that has spent a part has the rest, which it is shown, and is charged in both places.
    for left in (0..4).rev() {
        assert_eq!(http.get("/left?k=b").remaining(), Some(left + 1));
        let response = http.get("/slow?k=b");
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(left)));
    }
    assert_eq!(http.get("/slow?k=b").decision(), "REJECTED local");
    assert_eq!(http.get("/left?k=b").remaining(), Some(0));
    // So it is where leases decide.
    let leased = (60..90).rev().filter(|left| {
        let response = http.get("/leased?k=a");
        assert_eq!(response.remaining(), Some(*left), "{response:?}");
        response.decision() == "PASSED lease"
    });
    assert!(leased.count() > 10);
    // Nothing is charged in Redis for what was rejected here.
    assert_eq!(redis.command::<Option<String>>(&["GET", "rl:slow:a"]), None);
    assert!(spent.elapsed() < PATIENCE);
}

#[test]
fn a_client_that_has_regained_its_local_charges_is_decided_by_redis_alone() {
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .server(&location("/slow", "$arg_k rate=1r/h capacity=5 name=slow"))
        .server(&location("/fast", "$arg_k rate=1r/s capacity=3 name=fast"))
        .start();
    let mut http = nginx.http();
    for _ in 0..3 {
        assert_eq!(http.get("/fast?k=a").decision(), "PASSED local");
    }
    redis.restart();
    recovers(&nginx, "/slow");
    sleep(Duration::from_millis(3_100));
    for left in [2, 1, 0] {
        let response = http.get("/fast?k=a");
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(left)));
    }
}

/// A clock that was years ahead in an outage, and is set back, does not make this machine decide beside
/// Redis for years.
#[test]
fn a_clock_that_was_ahead_does_not_bind_this_machine() {
    // The clock of Redis stands still, so that nothing is given back meanwhile.
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    let file = NamedTempFile::new().expect("a file");
    let set_clock = |offset: &str| fs::write(file.path(), offset).expect("set the clock");
    set_clock("+0");
    // Workers read it as another user.
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).expect("a mode");
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .env("LD_PRELOAD", &library("libfaketime.so.1"))
        .env("FAKETIME_TIMESTAMP_FILE", &file.path().display().to_string())
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        // nginx passes no others on to its workers.
        .main("env FAKETIME_TIMESTAMP_FILE; env FAKETIME_NO_CACHE;")
        .main("env FAKETIME_DONT_FAKE_MONOTONIC;")
        .server(&location("/", "$arg_k rate=1r/s capacity=3"))
        .start();
    let mut http = nginx.http();
    let year = |response: &Response| response.header("Date").map(|date| date[12..16].to_owned());
    let before = year(&http.get("/?k=b"));
    set_clock("+2000d");
    for _ in 0..3 {
        assert_eq!(http.get("/?k=a").decision(), "PASSED local");
    }
    assert_ne!(year(&http.get("/?k=b")), before, "the clock is ahead");
    set_clock("+0");
    redis.restart();
    recovers(&nginx, "/");
    // All is regained by then.
    sleep(Duration::from_millis(3_100));
    for left in [2, 1, 0] {
        let response = http.get("/?k=a");
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(left)));
    }
    assert_eq!(year(&http.get("/?k=b")), before, "the clock is right");
}

/// A library of the system by its file's name.
fn library(name: &str) -> String {
    let found = run("find", &["/usr/lib", "-name", name]);
    found.lines().next().unwrap_or_else(|| panic!("no {name}: scripts/test installs it")).to_owned()
}

/// The second of two limits is shown if the first one has no verdict.
#[test]
fn one_of_two_limits_remembers() {
    let mut redis = Redis::start();
    redis.kill9();
    let narrow = "$arg_k rate=1r/h name=narrow";
    let nginx = local(&redis.url())
        .server(&location("/one", narrow))
        .server(&location(
            "/two",
            &format!("$arg_k rate=9r/h name=wide; rate_limit_redis {narrow}"),
        ))
        .start();
    assert_eq!(nginx.get("/one?k=a").decision(), "PASSED local");
    redis.restart();
    recovers(&nginx, "/one");
    let response = nginx.get("/two?k=a");
    assert_eq!(response.decision(), "REJECTED local");
    let [limit, remaining, reset] = quota(&response);
    assert_eq!((limit, remaining), (1, 0), "{response:?}");
    assert!(reset > 3_590 && retry_after(&response) > 3_590, "{response:?}");
}

/// How many of some requests one bucket lets pass: each with its time in seconds, and whether it was
/// decided locally. The outage starts with a whole bucket.
fn passes(requests: &[(f64, bool)], capacity: f64, per_second: f64) -> usize {
    let (mut tokens, mut last, mut is_outage, mut passed) = (capacity, requests[0].0, false, 0);
    for (time, is_local) in requests {
        // Workers need not log in the order of time.
        let now = time.max(last);
        tokens = capacity.min(tokens + (now - last) * per_second);
        last = now;
        if *is_local && !is_outage {
            (tokens, is_outage) = (capacity, true);
        }
        if tokens >= 1.0 {
            tokens -= 1.0;
            passed += 1;
        }
    }
    passed
}

/// One client requests all it can get before, during and after an outage, after which Redis has
/// forgotten everything.
#[track_caller]
fn an_outage_under_load(limit: &str, capacity: f64, share: f64) {
    const PER_SECOND: f64 = 50.0;
    let mut redis = Redis::start();
    let logged = format!("a {limit}; access_log {{prefix}}/times.log times");
    let nginx = local(&redis.url())
        .workers(2)
        .http("log_format times '$msec $status $rate_limit_redis_source';")
        .server(&location("= /load", &logged))
        .server(&location("/other", "$arg_k rate=1r/h name=other"))
        .start();
    recovers(&nginx, "/other");
    let start = Instant::now();
    let load = Load::start(nginx.addr(), "/load", 4);
    // All that can be had at once is gone.
    sleep(Duration::from_millis(1_000));
    redis.kill9();
    sleep(Duration::from_millis(1_500));
    redis.restart();
    recovers(&nginx, "/other");
    sleep(Duration::from_millis(2_000));
    let tally = load.stop();
    let seconds = start.elapsed().as_secs_f64();
    assert!(tally.failures.is_empty() && tally.of(200) + tally.of(429) == tally.total());

    let log = lines(&nginx, "times.log", tally.total() as usize);
    let log: Vec<Vec<&str>> = log.iter().map(|line| line.split(' ').collect()).collect();
    let requests = log.iter().map(|line| (line[0].parse().expect("a time"), line[2] == "local"));
    let asked = passes(&requests.collect::<Vec<_>>(), capacity, PER_SECOND);
    let outage = log.iter().position(|line| line[2] == "local").expect("a local decision");
    let passed = |log: &[Vec<&str>], source: &str| {
        log.iter().filter(|line| line[1] == "200" && line[2] == source).count()
    };
    let before = passed(&log[..outage], "redis");
    let [by_redis, by_local] = ["redis", "local"].map(|source| passed(&log[outage..], source));
    // One bucket of Redis until the outage, and one of this machine from then on.
    let most = 2.0 * capacity + PER_SECOND * seconds;
    let all = before + by_redis + by_local;
    let summary = format!(
        "{limit}: {before} before the outage, then {by_redis} by Redis and {by_local} locally, \
         {most:.1} in all at most, of what was asked for {asked}"
    );
    assert!(all as f64 <= most + 1.0, "too many: {summary}");
    // A slow machine does not ask for all there is.
    assert!(all as f64 >= share * asked as f64, "too few: {summary}");
    assert!(before > 0 && by_redis > 0 && by_local > 0, "too few: {summary}");
}

#[test]
fn what_passes_over_an_outage_is_bounded() {
    an_outage_under_load("rate=50r/s capacity=40", 40.0, 0.85);
    an_outage_under_load("rate=50r/s algorithm=gcra burst=39", 40.0, 0.85);
    // It gives back all of a second at once, where a bucket does so evenly.
    an_outage_under_load("rate=50r/s algorithm=sliding_log", 50.0, 0.5);
}

#[test]
fn a_reload_keeps_what_was_spent() {
    let conf = alone().workers(2).server(&location("/", "$arg_k rate=1r/h capacity=5"));
    let mut nginx = conf.start();
    for left in (1..5).rev() {
        assert_eq!(nginx.get("/?k=a").remaining(), Some(left));
    }
    nginx.reload();
    assert_eq!(nginx.get("/?k=a").remaining(), Some(0));
    // Also with another configuration of everything else.
    nginx.reload_with(&conf.workers(1).server("rate_limit_redis_timeout 1s;"));
    let response = nginx.get("/?k=a");
    assert_eq!((response.status, response.decision()), (429, "REJECTED local"));
}

#[test]
fn another_size_of_the_memory_is_a_new_memory() {
    let conf = alone().workers(2).server(&location("/", "$arg_k rate=1r/h capacity=2"));
    let of_size = |size| conf.clone().http(&format!("rate_limit_redis_shared_memory {size};"));
    let mut nginx = of_size("1m").start();
    for size in ["2m", "256k", "8m"] {
        let decisions = [(); 3].map(|()| nginx.get("/?k=a").decision().to_owned());
        assert_eq!(decisions, ["PASSED local", "PASSED local", "REJECTED local"], "before {size}");
        nginx.reload_with(&of_size(size));
    }
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED local");
}

#[test]
fn the_memory_has_a_least_size() {
    let message = Conf::new().http("rate_limit_redis_shared_memory 255k;").config_error();
    assert!(message.contains("\"rate_limit_redis_shared_memory\" directive"), "{message}");
    assert!(message.contains("a size of at least 256k"), "{message}");
    for size in ["256k", "64m"] {
        Conf::new().http(&format!("rate_limit_redis_shared_memory {size};")).config_ok();
    }
}

/// However large the memory is, only what is used of it is taken from the system. NGINX itself keeps 24
/// bytes for each page.
#[test]
fn memory_that_is_not_used_is_not_taken() {
    const ENOUGH: u64 = 64 << 20;
    let conf = alone()
        .http("rate_limit_redis_shared_memory 2000m;")
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server(&location("/", "$arg_k rate=9r/h"));
    let taken = conf.memory_of_check();
    assert!(taken < ENOUGH, "{taken} bytes by nginx -t");
    let nginx = conf.start();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED local");
    assert_eq!(nginx.get("/metrics").status, 200);
    for pid in nginx.worker_pids().into_iter().chain([nginx.pid()]) {
        let taken = shared_memory(pid);
        assert!(taken < ENOUGH, "{taken} bytes by {pid}");
    }
}

/// How much of the memory that a process shares with others it has used, in bytes.
fn shared_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("a line");
    let kb: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kb * 1024
}

/// In little memory the client that was not seen for the longest time is forgotten, and no other.
#[test]
fn the_least_recently_used_client_is_evicted() {
    let nginx = alone()
        .http("rate_limit_redis_shared_memory 256k;")
        .server(&location("/", "$arg_k rate=1r/h capacity=1"))
        .start();
    let mut http = nginx.http();
    for key in ["old", "kept"] {
        assert_eq!(http.get(&format!("/?k={key}")).decision(), "PASSED local");
        assert_eq!(http.get(&format!("/?k={key}")).decision(), "REJECTED local");
    }
    for number in 0..6_000 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "PASSED local");
        if number % 100 == 0 {
            assert_eq!(http.get("/?k=kept").decision(), "REJECTED local", "after {number}");
        }
    }
    assert_eq!(http.get("/?k=5999").decision(), "REJECTED local");
    assert_eq!(http.get("/?k=kept").decision(), "REJECTED local");
    assert_eq!(http.get("/?k=old").decision(), "PASSED local");
}

/// No client may take more than its part of the memory.
#[test]
fn a_log_that_is_too_long_for_the_memory_is_not_decided() {
    let log = "$arg_k name=log rate=50000r/d algorithm=sliding_log";
    let bucket = "$arg_k name=bucket rate=9r/d";
    let nginx = alone()
        .http("rate_limit_redis_shared_memory 256k;")
        .server(&location("/", log))
        .server(&location("/two", &format!("{bucket}; rate_limit_redis {log}")))
        .server(&location("/left", &format!("{bucket} cost=0")))
        .start();
    let mut http = nginx.http();
    let mut passed = 0;
    while http.get("/?k=a").decision() == "PASSED local" {
        passed += 1;
        assert!(passed < 20_000, "there cannot be room for that");
    }
    assert!(passed > 500, "room for {passed} only");
    for _ in 0..10 {
        let response = http.get("/?k=a");
        assert_eq!((response.status, response.decision()), (200, "ERROR_PASSED none"));
        assert!(shows_nothing(&response), "{response:?}");
    }
    // Nor is a request of which one limit has no room, and the others are not charged.
    for _ in 0..3 {
        assert_eq!(http.get("/two?k=a").decision(), "ERROR_PASSED none");
    }
    assert_eq!(http.get("/left?k=a").remaining(), Some(9));
    assert_eq!(http.get("/?k=b").decision(), "PASSED local");
}

/// A limit with unusable values cannot be decided locally either.
#[test]
fn an_unusable_cost_is_not_decided_here() {
    let redis = Redis::start();
    let limit = location("/", "a rate=9r/d cost=$arg_c");
    for conf in [local(&redis.url()), alone()] {
        let nginx = conf.server(&limit).start();
        for _ in 0..12 {
            let response = nginx.get("/?c=abc");
            assert_eq!((response.status, response.decision()), (400, "ERROR_REJECTED none"));
        }
        assert_eq!(nginx.get("/?c=1").remaining(), Some(8));
    }
}

#[test]
fn a_dry_run_rejects_nothing() {
    let nginx = alone()
        .server("rate_limit_redis_dry_run on;")
        .server(&location("/", "a rate=1r/h capacity=1"))
        .start();
    let decisions = [(); 3].map(|()| nginx.get("/").decision().to_owned());
    let [first, others @ ..] = &decisions;
    assert_eq!(first, "PASSED local");
    assert!(others.iter().all(|decision| decision == "REJECTED_DRY_RUN local"), "{decisions:?}");
}

/// Workers die in the middle of local decisions, long ones among them. The others go on, also if one died with the
/// lock.
#[test]
fn workers_are_killed_in_the_middle_of_it() {
    let limits = location("/", "a name=a rate=500r/h algorithm=sliding_log")
        + &location("/bucket", "$arg_k name=b rate=1r/h capacity=1000");
    let mut nginx = alone().workers(2).server(&limits).start();
    nginx.allow_log("exited on signal 9");
    // The master has unlocked it, then.
    nginx.allow_log("was locked by");
    let paths = ["/", "/bucket?k=a", "/bucket?k=b"];
    let loads = paths.map(|path| Load::start(nginx.addr(), path, 2));
    for _ in 0..20 {
        let worker = nginx.worker_pids()[0].to_string();
        run("kill", &["-KILL", &worker]);
        let replaced = || {
            let workers = nginx.worker_pids();
            workers.len() == 2 && !workers.iter().any(|pid| pid.to_string() == worker)
        };
        wait_until(PATIENCE, replaced, "another worker");
        for _ in 0..4 {
            // A connection may be of a worker that has just died.
            if let Ok(mut http) = harness::Http::try_connect(nginx.addr()) {
                http.try_send_raw(b"GET /bucket?k=c HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                let decision = http.try_read_response().map(|r| r.decision().to_owned());
                assert!(decision.is_ok_and(|decision| decision.ends_with(" local")));
            }
        }
    }
    let tallies = loads.map(Load::stop);
    for ((tally, path), most) in tallies.iter().zip(paths).zip([500, 1_000, 1_000]) {
        assert_eq!(tally.of(200) + tally.of(429), tally.total());
        let rest = (0_u64..).take_while(|_| nginx.get(path).status == 200).count() as u64;
        // A worker that dies in the middle of a change takes with it all that was spent, or the response
        // of what it has just spent.
        assert!((most..=most * 21).contains(&(tally.of(200) + rest + 20)), "{rest}, {tally:?}");
    }
    let decisions = [(); 10].map(|()| nginx.get("/bucket?k=a").decision().to_owned());
    assert!(decisions.iter().all(|decision| decision.ends_with(" local")), "{decisions:?}");
}

/// A limit's node answers and another limit's does not: this machine decides about both, and tells
/// nothing of the answer that came.
#[test]
fn a_cluster_that_answers_in_part_leaves_all_to_this_machine() {
    // The others go on, even if they take the node that does not answer for dead.
    let mut cluster = ClusterConf::steady(3, 0).line("cluster-require-full-coverage no").start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    let key_of = |name: &str, node: usize| {
        let of_node = |key: &String| cluster.master_of(slot(&format!("rl:{name}:{key}"))) == node;
        (0..).map(|n: u32| n.to_string()).find(of_node).expect("a key of the node")
    };
    let (a, b, b_of_other) = (key_of("a", 0), key_of("b", 1), key_of("b", 2));
    let another = key_of("a", 2);
    // One worker: each learns the topology by itself.
    let nginx = Conf::new()
        .workers(1)
        .decisions()
        .http(&format!("rate_limit_redis_store edge {{ {servers} cluster on; max_fails 0;"))
        .http("connect_timeout 30s; }\nrate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .http("rate_limit_redis_on_error local;")
        .server("location / { rate_limit_redis $arg_a name=a rate=1r/d capacity=3;")
        .server(
            "rate_limit_redis $arg_b name=b rate=1r/d capacity=9; try_files /index.html =404; }",
        )
        .start();
    let path = format!("/?a={a}&b={b}");
    wait_until(PATIENCE, || nginx.get("/?a=x&b=y").decision() == "PASSED redis", "the cluster");
    cluster.stop_signal(1);
    let left = || tokens(cluster.node(0), &format!("rl:a:{a}"));
    let send = || {
        let mut http = nginx.http();
        http.send("GET", &path, &[]);
        http
    };
    let mut early = [(); 3].map(|()| send());
    wait_until(PATIENCE, || left() == Some(0), "the charges of the node that answers");
    // It forgets them, so that it lets pass what this machine will not.
    cluster.command::<()>(0, &["DEL", &format!("rl:a:{a}")]);
    let mut late = [(); 2].map(|()| send());
    for (http, left) in early.iter_mut().zip([2, 1, 0]) {
        let response = http.read_response();
        assert_eq!(response.decision(), "PASSED local");
        assert_eq!(quota(&response)[..2], [3, left]);
    }
    for http in &mut late {
        let response = http.read_response();
        assert_eq!((response.status, response.decision()), (429, "REJECTED local"));
        assert_eq!(quota(&response)[..2], [3, 0]);
    }
    wait_until(PATIENCE, || left().is_none_or(|left| left == 3), "what was spent is given back");
    // A client that has spent its local quota is not checked in Redis.
    assert_eq!(nginx.get(&path).decision(), "REJECTED local");
    assert!(left().is_none_or(|left| left == 3));

    // A client whose nodes both answer is decided by them.
    let response = nginx.get(&format!("/?a={another}&b={b_of_other}"));
    assert_eq!(response.decision(), "PASSED redis");
    cluster.cont(1);
}

/// Units that other machines have spent are no reason to spend what this one has left.
#[test]
fn what_redis_rejects_is_given_back_here() {
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    let limit = "$arg_k rate=1r/h capacity=5";
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .http("rate_limit_redis_deny_cache off;")
        .server(&location("/", limit))
        .server(&location("/others", &format!("{limit}; rate_limit_redis_on_error open")))
        .start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED local");
    redis.restart();
    recovers(&nginx, "/");
    for _ in 0..5 {
        assert_eq!(http.get("/others?k=a").decision(), "PASSED redis");
    }
    for _ in 0..9 {
        assert_eq!(http.get("/?k=a").decision(), "REJECTED redis");
    }
    assert_eq!(redis.command::<u64>(&["DEL", "rl:default:a"]), 1);
    for left in (0..4).rev() {
        let response = http.get("/?k=a");
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(left)));
    }
    assert_eq!(http.get("/?k=a").decision(), "REJECTED local");
}

/// The reset of a rejection does not count what is given back.
#[test]
fn what_is_given_back_here_is_not_shown() {
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    let limit = |cost| format!("$arg_k rate=1r/h capacity=5 cost={cost}");
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .http("rate_limit_redis_deny_cache off;")
        .server(&location("/", &limit("$arg_c")))
        .server(&location("/others", &format!("{}; rate_limit_redis_on_error open", limit("4"))))
        .start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a&c=3").decision(), "PASSED local");
    redis.restart();
    recovers(&nginx, "/others");
    assert_eq!(http.get("/others?k=a").decision(), "PASSED redis");
    for _ in 0..3 {
        // With this request this machine would have nothing left, and five hours to regain it.
        let response = http.get("/?k=a&c=2");
        assert_eq!(response.decision(), "REJECTED redis");
        assert_eq!(quota(&response), [5, 1, 4 * 3_600]);
    }
}

/// A limit that only this machine remembers, and that is not enforced, does not keep a request from
/// Redis: the others charge it there.
#[test]
fn a_dry_run_that_remembers_keeps_nothing_from_redis() {
    let mut redis = Redis::start_with_stopped_clock();
    redis.kill9();
    let planned = "rate_limit_redis $arg_k name=planned rate=1r/h dry_run";
    // One worker: each finds out by itself that Redis is back.
    let nginx = local(&redis.url())
        .workers(1)
        .server(&location("/", &format!("$arg_k name=wide rate=9r/h; {planned}")))
        .server(&location("/other", "$arg_k name=other rate=1r/h"))
        .start();
    let mut http = nginx.http();
    let decisions = [(); 2].map(|()| http.get("/?k=a").decision().to_owned());
    assert_eq!(decisions, ["PASSED local", "REJECTED_DRY_RUN local"]);
    redis.restart();
    recovers(&nginx, "/other");
    for left in [6, 5] {
        let response = http.get("/?k=a");
        assert_eq!(response.decision(), "REJECTED_DRY_RUN redis");
        assert_eq!((response.status, response.remaining()), (200, Some(left)));
    }
    assert_eq!(tokens(&redis, "rl:wide:a"), Some(7));
}

/// The clock of Redis is behind: what a client has of its own has ended by the clock of this machine, and not in Redis.
#[test]
fn an_override_holds_in_an_outage_whatever_the_clock_says() {
    const NOW: u64 = 1_763_683_200;
    let day = 86_400_000_000_u64;
    let record = move |ends: u64| {
        let numbers = [50, day / 50, 1, ends * 1_000_000, 50, day];
        [&numbers.map(u64::to_le_bytes).concat()[..], b"o\x01"].concat()
    };
    let reply = move |ends| {
        let text = [format!("{NOW} 0 ").as_bytes(), &record(ends)].concat();
        [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat()
    };
    let fake = Fake::answering(move |key| match key {
        "hour" => Act::Reply(reply(NOW + 3_600)),
        "second" => Act::Reply(reply(NOW + 1)),
        _ => Act::Usual,
    });
    let nginx =
        local(&fake.url()).server(&location("/", "$arg_k name=own rate=5r/d override")).start();
    for key in ["hour", "second"] {
        let response = nginx.get(&format!("/?k={key}"));
        assert_eq!((response.decision(), quota(&response)[0]), ("PASSED redis", 50));
    }
    drop(fake);
    let counts_locally = |key: &str, limit: u64| {
        let response = nginx.get(&format!("/?k={key}"));
        response.decision().ends_with(" local") && quota(&response)[0] == limit
    };
    wait_until(PATIENCE, || counts_locally("hour", 50), "an override that lasts");
    wait_until(PATIENCE, || counts_locally("second", 5), "an override that has ended");
    assert!(counts_locally("hour", 50));
}
