//! `rate_limit_redis_lease`: a machine takes units ahead, and no more passes than without.
//!
//! Leases last for a minute here, where not said otherwise, and quotas come back slowly: so what is
//! seen depends on the number of requests, and not on how fast they are.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use harness::{
    ClusterConf, Conf, Http, Library, Mode, Nginx, PATIENCE, Proxy, Redis, Response, h2load, slot,
    wait_until,
};

use rate_limit_core::algorithm::Regain;
use rate_limit_core::limit::Algorithm;
use tempfile::NamedTempFile;

use crate::seen::{StartConnected as _, passing, quota};

/// How long they last.
const LEASE: Duration = Duration::from_secs(60);

/// A server with leases of a minute.
pub(crate) fn leased(redis: &Redis) -> Conf {
    plain(redis).http("rate_limit_redis_lease 1m;")
}

/// A server with leases of a minute, where Redis has this URL.
fn leased_at(url: &str) -> Conf {
    common(Conf::new().store(url)).http("rate_limit_redis_lease 1m;")
}

/// A server without leases.
fn plain(redis: &Redis) -> Conf {
    common(Conf::new().redis(redis))
}

fn common(conf: Conf) -> Conf {
    conf.decisions()
        .workers(2)
        .http("rate_limit_redis_on_error closed;")
        .http("rate_limit_redis_log_level info; keepalive_requests 1000000;")
}

/// The metrics page.
pub(crate) const METRICS: &str = "location = /metrics { rate_limit_redis_metrics prometheus; }";

/// A location with these lines.
pub(crate) fn location(path: &str, lines: &str) -> String {
    format!("location {path} {{ {lines} try_files /index.html =404; }}")
}

/// A metric of a limit.
fn metric(nginx: &Nginx, name: &str, labels: &str) -> u64 {
    let page = nginx.get("/metrics");
    let sample = format!("nginx_rate_limit_redis_{name}{{{labels}}} ");
    let value = page.text().lines().find_map(|line| line.strip_prefix(&sample));
    value.unwrap_or_else(|| panic!("no {sample}in:\n{}", page.text())).parse().expect("a number")
}

/// Numbers that look random, the same each time.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Clients of `keys` keys, each of which makes so many requests to machines at random: how many of
/// them passed, for each key.
pub(crate) fn flood(machines: &[Nginx], keys: usize, requests: usize) -> Vec<u64> {
    let passed: Vec<_> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for client in 0..4_u64 {
            let passed = &passed;
            scope.spawn(move || {
                let mut https: Vec<_> =
                    machines.iter().map(|nginx| [nginx.http(), nginx.http()]).collect();
                let mut seed = client;
                for round in 0..keys * requests / 4 {
                    // Each client begins elsewhere.
                    let key = (round + keys / 4 * client as usize) % keys;
                    let machine = random(&mut seed) as usize % machines.len();
                    let http = &mut https[machine][random(&mut seed) as usize % 2];
                    let response = http.get(&format!("/?k={key}"));
                    assert!([200, 429].contains(&response.status), "{response:?}");
                    passed[key].fetch_add(u64::from(response.status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    passed.into_iter().map(AtomicU64::into_inner).collect()
}

/// How many units of leases were lost because they have ended, as they do on a machine that needs a minute
/// for the requests.
pub(crate) fn ended(machines: &[Nginx], start: Instant) -> u64 {
    let lapsed = |nginx| metric(nginx, "lease_units_total", "name=\"default\",result=\"lapsed\"");
    if start.elapsed() < LEASE { 0 } else { machines.iter().map(lapsed).sum() }
}

/// At most 15 % of so many requests were commands, and two more for each key, machine and minute: what is
/// left when a lease ends is renewed.
#[track_caller]
pub(crate) fn few_are_commands(calls: u64, all: u64, keys: usize, start: Instant) {
    let renewals = 2 * 2 * keys as u64 * (start.elapsed().as_secs() / LEASE.as_secs());
    assert!(calls * 100 <= all * 15 + renewals * 100, "{calls} commands for {all} requests");
}

/// Asks for more than a limit of 200 for each of 40 keys: of each at least 99 % pass, and no more than
/// the limit and what came back at 200 an hour.
#[track_caller]
fn holds(machines: &[Nginx], start: Instant) {
    let passed = flood(machines, 40, 320);
    let most = 200 + 1 + start.elapsed().as_secs() * 200 / 3_600;
    let lost = ended(machines, start);
    let bounds = 198_u64.saturating_sub(lost)..=most;
    assert!(passed.iter().all(|passed| bounds.contains(passed)), "{bounds:?}: {passed:?}");
    assert!(passed.iter().sum::<u64>() + lost >= 40 * 198, "{lost} lost: {passed:?}");
}

#[test]
fn no_more_passes_than_without() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.has_leases()) {
        let period = match algorithm.regain() {
            Regain::Continuous => "h",
            Regain::AtRefills => "1d",
            Regain::AtOnce => "1w",
        };
        let limit = format!("rate=200r/{period} {}", passing(algorithm, 200));
        let redis = Redis::start();
        let conf = leased(&redis)
            .server(&location("/", &format!("rate_limit_redis $arg_k {limit};")))
            .server(METRICS);
        let start = Instant::now();
        let machines = [conf.start_connected(&redis), conf.start()];
        holds(&machines, start);
        let calls = redis.calls("evalsha");
        assert!(calls < 40 * 320 / 2, "{limit}: {calls} commands");
    }
}

/// A fleet in which one machine has leases and the other has not.
#[test]
fn budgets_are_shared_with_those_without_leases() {
    let redis = Redis::start();
    let limit = location("/", "rate_limit_redis $arg_k rate=200r/h;") + METRICS;
    let start = Instant::now();
    let machines = [leased(&redis).server(&limit).start(), plain(&redis).server(&limit).start()];
    holds(&machines, start);
}

/// Clients that stay below their limit: few of their requests are commands.
#[test]
fn most_requests_are_no_commands() {
    let redis = Redis::start();
    let conf = leased(&redis)
        .server(&location("/", "rate_limit_redis $arg_k rate=1r/h capacity=1000;"))
        .server(METRICS);
    let start = Instant::now();
    let machines = [conf.start_connected(&redis), conf.start()];
    let (keys, requests) = (20, 400);
    let passed = flood(&machines, keys, requests);
    assert!(passed.iter().all(|passed| *passed == requests as u64), "{passed:?}");
    let (calls, all) = (redis.calls("evalsha"), (keys * requests) as u64);
    few_are_commands(calls, all, keys, start);

    let sum = |name: &str, labels: &str| -> u64 {
        machines
            .iter()
            .map(|nginx| metric(nginx, name, &format!("name=\"default\",{labels}")))
            .sum()
    };
    let (hits, commands) =
        (sum("decisions_total", "source=\"lease\""), sum("decisions_total", "source=\"redis\""));
    assert_eq!(hits + commands, all);
    assert_eq!(sum("lease_units_total", "result=\"used\""), hits);
    assert_eq!(sum("decisions_total", "source=\"local\""), 0);
    let held = machines.iter().map(|nginx| metric(nginx, "lease_units_held", "name=\"default\""));
    assert!((1..keys as u64 * 600).contains(&held.sum()), "units of leases that are left");
}

/// Equal requests at the same time, with leases and without.
#[test]
fn a_client_of_one_machine_sees_no_leases() {
    let limits = [
        "rate=6r/d capacity=1000",
        "rate=6r/d capacity=1000 refill=interval",
        "rate=6r/d algorithm=gcra burst=999",
        "rate=1000r/1w algorithm=sliding_window",
        "rate=1000r/1w algorithm=fixed_window",
    ];
    let locations: String = limits
        .iter()
        .enumerate()
        .map(|(n, limit)| {
            location(
                &format!("/{n}"),
                &format!("rate_limit_redis a name=n{n} {limit} cost=$arg_c;"),
            )
        })
        .chain([location(
            "/two",
            "rate_limit_redis a name=n0 rate=6r/d capacity=1000 cost=$arg_c;
            rate_limit_redis a name=n2 rate=6r/d algorithm=gcra burst=999 cost=$arg_c;",
        )])
        .collect();
    let redis = [Redis::start(), Redis::start()];
    let fields = "rate_limit_redis_headers x-ratelimit ietf;";
    let machines = [
        leased(&redis[0]).http(fields).server(&locations).start_connected(&redis[0]),
        plain(&redis[1]).http(fields).server(&locations).start_connected(&redis[1]),
    ];
    let mut https = machines.each_ref().map(Nginx::http);
    for path in ["0", "1", "2", "3", "4", "two"] {
        let mut hits = 0;
        for round in 0..60 {
            let cost = [1, 1, 3, 0, 1, 2, 400][round % if round < 50 { 6 } else { 7 }];
            let seen = https.each_mut().map(|http| http.get(&format!("/{path}?c={cost}")));
            let shown = |response: &Response| {
                let decision = response.decision().split(' ').next().map(str::to_owned);
                let remaining: Vec<_> = response
                    .headers("RateLimit")
                    .iter()
                    .map(|field| field.split(";t=").next().map(str::to_owned))
                    .collect();
                (decision, quota(response)[..2].to_vec(), remaining)
            };
            assert_eq!(shown(&seen[0]), shown(&seen[1]), "{path}, {round}: cost {cost}");
            let [with, without] = seen.each_ref().map(|response| quota(response)[2]);
            assert!(with.abs_diff(without) <= 2, "{path}, {round}: {with} {without}");
            hits += usize::from(seen[0].decision().ends_with(" lease"));
        }
        assert!(hits >= 30, "{path}: {hits} of 60 requests had a lease");
    }
}

/// With several limits a request needs a lease of each.
#[test]
fn several_limits_need_a_lease_each() {
    let redis = Redis::start();
    let nginx = leased(&redis)
        .server(&location(
            "/",
            "rate_limit_redis $arg_a name=a rate=1r/h capacity=1000;
            rate_limit_redis $arg_b name=b rate=1r/h algorithm=gcra burst=999;",
        ))
        .server(&location(
            "/log",
            "rate_limit_redis $arg_a name=c rate=1r/h capacity=1000;
            rate_limit_redis $arg_b name=d rate=1000r/h algorithm=sliding_log;",
        ))
        .server(&location(
            "/small",
            "rate_limit_redis $arg_a name=a rate=1r/h capacity=1000;
            rate_limit_redis $arg_b name=e rate=3r/1w algorithm=fixed_window;",
        ))
        .start_connected(&redis);
    let mut http = nginx.http();
    let mut decisions = |path: &str, times: usize| -> Vec<String> {
        (0..times).map(|_| http.get(path).decision().to_owned()).collect()
    };
    let is_hit = |decision: &&String| *decision == "PASSED lease";
    let both = decisions("/?a=1&b=1", 60);
    assert!(both.iter().filter(is_hit).count() >= 40, "{both:?}");
    // Another client of the second limit has no lease there.
    assert_eq!(decisions("/?a=1&b=2", 1), ["PASSED redis"]);
    assert!(decisions("/log?a=1&b=1", 30).iter().all(|decision| decision == "PASSED redis"));
    // A request that the second limit rejects takes nothing from the first one.
    let before = quota(&nginx.get("/?a=2&b=3"))[1];
    let small = decisions("/small?a=2&b=4", 10);
    let passed = small.iter().filter(|decision| decision.starts_with("PASSED")).count();
    assert_eq!(passed, 3, "{small:?}");
    assert_eq!(quota(&nginx.get("/?a=2&b=5"))[1], before - 3 - 1);
}

/// Where a limit has no leases, none is taken for those beside it: they could not be spent.
#[test]
fn a_limit_without_leases_takes_none_for_others() {
    let redis = Redis::start();
    let others = [
        "rate_limit_redis $arg_b name=d rate=1000r/h algorithm=sliding_log;",
        "rate_limit_redis $arg_b name=e rate=1000r/h block=1m;",
        "rate_limit_redis $arg_b name=f rate=1000r/h cost=0;",
    ];
    for (number, other) in others.into_iter().enumerate() {
        let line = format!("rate_limit_redis {number} name=a rate=1r/h capacity=1000 cost=$arg_c;");
        let server = location("/", &format!("{line} {other}")) + &location("/left", &line);
        let machine = || leased(&redis).server(METRICS).server(&server);
        let nginx = machine().start_connected(&redis);
        for _ in 0..10 {
            assert_eq!(nginx.get("/?b=1&c=1").decision(), "PASSED redis");
        }
        assert_eq!(metric(&nginx, "lease_units_held", "name=\"a\""), 0);
        assert_eq!(quota(&machine().start().get("/left?c=0"))[1], 990, "{other}");
    }
}

/// A lease that has ended is reported by a request of cost 0, too.
#[test]
fn a_quota_endpoint_sees_what_a_lease_has_left() {
    for limit in ["capacity=1000", "algorithm=gcra burst=999", "capacity=1000 refill=interval"] {
        let redis = Redis::start();
        let line = |cost: &str| format!("rate_limit_redis a rate=1r/h {limit} cost={cost};");
        let nginx = plain(&redis)
            .http("rate_limit_redis_lease 50ms;")
            .server(&(location("/", &line("1")) + &location("/left", &line("0"))))
            .start_connected(&redis);
        let mut http = nginx.http();
        let mut spent = 0;
        for _ in 0..3 {
            let is_leased = |http: &mut Http| http.get("/").decision() == "PASSED lease";
            while {
                spent += 1;
                assert!(spent < 900, "the machine is too slow for leases of 50 ms");
                !is_leased(&mut http)
            } {}
            // The lease has units left, and ends. The next one is larger.
            sleep(Duration::from_millis(70));
            assert_eq!(quota(&http.get("/left"))[1], 1_000 - spent, "{limit}");
        }
    }
}

/// Redis decides, as the other limit has no lease, and counts what this machine has left as spent.
#[test]
fn a_quota_endpoint_of_several_limits_sees_what_a_lease_has_left() {
    for limit in ["capacity=1000", "algorithm=gcra burst=999"] {
        let redis = Redis::start();
        let line = |cost: &str| format!("rate_limit_redis a rate=1r/h {limit} cost={cost};");
        let both = line("0") + "rate_limit_redis b name=b rate=1r/h capacity=5000 cost=0;";
        let nginx = leased(&redis)
            .server(&(location("/", &line("1")) + &location("/left", &both)))
            .start_connected(&redis);
        let mut http = nginx.http();
        let decisions: Vec<_> = (0..30).map(|_| http.get("/").decision().to_owned()).collect();
        assert_eq!(decisions[29], "PASSED lease", "{decisions:?}");
        let left = http.get("/left");
        assert_eq!((left.decision(), quota(&left)[1]), ("PASSED redis", 970), "{limit}");
        assert_eq!(http.get("/").decision(), "PASSED lease", "it goes on");
    }
}

/// Redis counts the units of a lease as spent while the reply that brings them is under way: who is rejected because
/// of them is charged once more.
#[test]
fn units_under_way_reject_nobody() {
    for limit in ["rate=1r/h capacity=100", "rate=1r/h algorithm=gcra burst=99"] {
        let redis = Redis::start();
        let proxy = Proxy::to(&redis);
        let nginx = leased_at(&proxy.url())
            .workers(1)
            .server("rate_limit_redis_timeout 10s;")
            .server(&location("/", &format!("rate_limit_redis $arg_k {limit} cost=$arg_c;")))
            .start_connected(&redis);
        // Redis knows the scripts then.
        assert_eq!(nginx.get("/?k=warm&c=1").decision(), "PASSED redis");
        assert_eq!(nginx.get("/?k=warm&c=1").decision(), "PASSED redis");
        for key in 0..8 {
            let path = |cost: u32| format!("/?k={key}&c={cost}");
            let [mut first, mut second] = [nginx.http(), nginx.http()];
            assert_eq!(first.get(&path(8)).decision(), "PASSED redis");
            proxy.set(Mode::HoldReplies);
            let calls = redis.calls("evalsha");
            // It brings a lease of 8 units.
            first.send("GET", &path(8), &[]);
            wait_until(PATIENCE, || redis.calls("evalsha") == calls + 1, "a command");
            second.send("GET", &path(80), &[]);
            wait_until(PATIENCE, || redis.calls("evalsha") == calls + 2, "another one");
            proxy.set(Mode::Pass);
            assert_eq!(first.read_response().decision(), "PASSED redis");
            assert_eq!(second.read_response().decision(), "PASSED redis", "{limit}");
            assert_eq!(redis.calls("evalsha"), calls + 3);
            // Nothing more passes than that.
            assert_eq!(first.get(&path(5)).decision(), "REJECTED redis");
            assert_eq!(quota(&first.get(&path(4)))[1], 0);
        }
    }
}

/// The rest of a lease comes back, even when its hold has ended, but for what may be regained since.
#[test]
fn a_client_that_changes_machines_loses_little() {
    for limit in ["capacity=1000", "algorithm=gcra burst=999"] {
        let redis = Redis::start();
        let line = format!("rate_limit_redis a rate=1r/h {limit};");
        let machines = [(); 2].map(|()| {
            let conf = plain(&redis).http("rate_limit_redis_lease 50ms;");
            conf.server(&location("/", &line)).start()
        });
        let mut https = machines.each_ref().map(Nginx::http);
        let mut remaining = 1_000;
        for burst in 0..16 {
            for _ in 0..12 {
                remaining = quota(&https[burst % 2].get("/"))[1];
            }
            // The hold of the burst's last lease ends.
            sleep(Duration::from_millis(130));
        }
        // Each lease loses one unit, and the rest of the last ones is still to come back.
        assert!(remaining >= 1_000 - 16 * 12 - 16 - 2 * 36, "{limit}: {remaining}");
    }
}

/// Leases are spent to their end when Redis is gone, and then the policy applies.
#[test]
fn leases_are_spent_when_redis_is_gone() {
    for (policy, expected) in [
        ("open", "ERROR_PASSED none"),
        ("closed", "ERROR_REJECTED none"),
        ("local", "PASSED local"),
    ] {
        let mut redis = Redis::start();
        let nginx = leased(&redis)
            .workers(1)
            .server(&location("/", "rate_limit_redis $arg_k rate=1r/h capacity=1000;"))
            .server(&format!("rate_limit_redis_on_error {policy};"))
            .start_connected(&redis);
        let mut http = nginx.http();
        let mut decide = || http.get("/?k=a").decision().to_owned();
        // The one that brings a lease for the last one's demand and more.
        wait_until(PATIENCE, || decide() == "PASSED lease", "a lease");
        wait_until(PATIENCE, || decide() == "PASSED redis", "a renewal");
        redis.kill9();
        nginx.wait_for_error_log("is down");
        let decisions: Vec<_> = (0..40).map(|_| decide()).collect();
        let hits = decisions.iter().take_while(|decision| *decision == "PASSED lease").count();
        assert!(hits > 0, "{decisions:?}");
        assert!(decisions[hits..].iter().all(|decision| decision == expected), "{decisions:?}");
    }
}

/// A request that Redis refuses reports a lease that has ended, and nothing of it is written.
#[test]
fn what_a_refused_command_reports_is_reported_again() {
    const LEASE: Duration = Duration::from_millis(500);
    for algorithm in ["token_bucket", "fixed_window"] {
        let redis = Redis::start();
        let line = format!("rate_limit_redis $arg_k rate=300r/999d algorithm={algorithm};");
        let nginx = plain(&redis)
            .workers(1)
            .http("rate_limit_redis_lease 500ms; rate_limit_redis_deny_cache off;")
            .server(&location("/", &line))
            .start_connected(&redis);
        let mut http = nginx.http();
        let mut passes = || http.get("/?k=a").decision().starts_with("PASSED");
        let mut passed = (0..60).filter(|_| passes()).count();
        sleep(2 * LEASE);
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(!passes(), "{algorithm}: not refused");
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        passed += (0..300).filter(|_| passes()).count();
        assert_eq!(passed, 300, "{algorithm}");
    }
}

/// Workers are killed and replaced at any moment: what they leave in the shared memory is spent once,
/// or not at all, and others go on to spend it.
#[test]
fn killed_workers_leave_units_to_be_spent_once() {
    let redis = Redis::start();
    let conf = leased(&redis)
        .server(&location("/", "rate_limit_redis $arg_k rate=500r/h capacity=500;"))
        .server(METRICS);
    let start = Instant::now();
    let mut machines = [conf.start_connected(&redis), conf.start()];
    let (passed, _) = flood_while_workers_die(&mut machines, 8, 4_000, 300);
    let most = 500 + 1 + start.elapsed().as_secs() * 500 / 3_600;
    assert!(passed.iter().all(|passed| *passed <= most), "{most}: {passed:?}");
    for nginx in &machines {
        let used = metric(nginx, "lease_units_total", "name=\"default\",result=\"used\"");
        assert!(used > 0, "no leases");
        let decide = |key: usize| nginx.get(&format!("/?k=later{key}")).decision().to_owned();
        wait_until(PATIENCE, || decide(0) == "PASSED lease", "a lease after all that");
    }
}

/// Requests of random keys, so many of each of four clients, or more on a slow machine, while a worker is
/// killed, or nginx reloaded, after each `pause` of them: how many passed for each key, and how many had no
/// response.
pub(crate) fn flood_while_workers_die(
    machines: &mut [Nginx; 2],
    keys: usize,
    requests: usize,
    pause: u64,
) -> (Vec<u64>, u64) {
    machines.iter_mut().for_each(|nginx| nginx.allow_log("exited on signal 9"));
    let addrs = machines.each_ref().map(Nginx::addr);
    let passed: Vec<_> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    let (sent, lost) = (AtomicU64::new(0), AtomicU64::new(0));
    let rounds = AtomicUsize::new(0);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4_u64)
            .map(|client| {
                let (passed, sent, lost, rounds) = (&passed, &sent, &lost, &rounds);
                let is_needed =
                    move |round| round < requests || rounds.load(Ordering::Relaxed) <= 5;
                scope.spawn(move || {
                    let mut seed = client;
                    let mut https = [None, None];
                    for round in (0..).take_while(|round| is_needed(*round)) {
                        if round % 50 == 0 {
                            https = [None, None];
                        }
                        let machine = random(&mut seed) as usize % 2;
                        let key = random(&mut seed) as usize % keys;
                        let path = format!("/?k={key}");
                        let status = try_get(&mut https[machine], addrs[machine], &path);
                        sent.fetch_add(1, Ordering::Relaxed);
                        passed[key].fetch_add(u64::from(status == Some(200)), Ordering::Relaxed);
                        lost.fetch_add(u64::from(status.is_none()), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            let before = sent.load(Ordering::Relaxed);
            let goes_on = || {
                sent.load(Ordering::Relaxed) > before + pause
                    || clients.iter().all(|client| client.is_finished())
            };
            wait_until(PATIENCE, goes_on, "requests");
            let round = rounds.load(Ordering::Relaxed);
            let nginx = &mut machines[round % 2];
            match round % 3 {
                0 => nginx.reload(),
                _ => kill_a_worker(nginx),
            }
            rounds.store(round + 1, Ordering::Relaxed);
        }
    });
    (passed.into_iter().map(AtomicU64::into_inner).collect(), lost.into_inner())
}

fn try_get(http: &mut Option<Http>, addr: std::net::SocketAddr, path: &str) -> Option<u16> {
    let mut connection = match http.take() {
        Some(connection) => connection,
        None => Http::try_connect(addr).ok()?,
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    connection.try_send_raw(request.as_bytes()).ok()?;
    let response = connection.try_read_response().ok()?;
    if response.header("Connection") != Some("close") {
        *http = Some(connection);
    }
    Some(response.status)
}

/// Kills a worker, and waits for the one in its place.
fn kill_a_worker(nginx: &Nginx) {
    let workers = nginx.worker_pids();
    let Some(victim) = workers.first() else { return };
    // SAFETY: the signal goes to a worker of this test's nginx.
    unsafe { libc::kill(*victim as libc::pid_t, libc::SIGKILL) };
    let replaced = || {
        let living = nginx.worker_pids();
        living.len() == workers.len() && !living.contains(victim)
    };
    wait_until(PATIENCE, replaced, "a worker in place of the one that was killed");
}

/// A lease survives a reload, with the units that are left.
#[test]
fn a_lease_survives_a_reload() {
    let redis = Redis::start();
    let mut nginx = leased(&redis)
        .server(&location("/", "rate_limit_redis $arg_k rate=1r/h capacity=1000;"))
        .start_connected(&redis);
    for _ in 0..10 {
        nginx.get("/?k=a");
    }
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "a renewal");
    nginx.reload();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED lease");
}

/// A dry run is decided with leases as well.
#[test]
fn a_dry_run_is_decided_with_leases() {
    let redis = Redis::start();
    let nginx = leased(&redis)
        .http("rate_limit_redis_dry_run on;")
        .server(&location("/", "rate_limit_redis $arg_k rate=1r/h capacity=100;"))
        .start_connected(&redis);
    let decisions: Vec<_> = (0..120).map(|_| nginx.get("/?k=a").decision().to_owned()).collect();
    let count = |what: &str| decisions.iter().filter(|decision| decision.starts_with(what)).count();
    assert_eq!((count("PASSED"), count("REJECTED_DRY_RUN")), (100, 20), "{decisions:?}");
    assert!(count("PASSED lease") >= 50, "{decisions:?}");
}

/// Streams at once, of a quota that is not spent before the first lease is there.
#[test]
fn streams_spend_leases_and_no_more_than_the_limit() {
    let redis = Redis::start();
    let nginx = leased(&redis)
        .http2()
        .server(&location("/", "rate_limit_redis a rate=1r/h capacity=3000;"))
        .server(METRICS)
        .start_connected(&redis);
    let tally = h2load(&["-n", "6000", "-c", "4", "-m", "25", &nginx.h2_url("/")]);
    assert!((2_970..=3_000).contains(&tally.of(200)), "{tally:?}");
    assert_eq!(tally.of(200) + tally.of(400), 6_000, "{tally:?}");
    assert!(metric(&nginx, "decisions_total", "name=\"default\",source=\"lease\"") > 0);
}

/// Two limits in different slots of a cluster, of which one rejects.
#[test]
fn a_cluster_gets_back_what_the_other_limit_rejects() {
    let cluster = ClusterConf::new(3, 0).node_timeout(Duration::from_secs(10)).start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url}; ")).collect();
    let nginx = Conf::new()
        .decisions()
        .http(&format!(
            "rate_limit_redis_store edge {{ {servers} cluster on; connect_timeout 30s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s; rate_limit_redis_lease 1m;")
        .http("rate_limit_redis_on_error closed; rate_limit_redis_log_level info;")
        .server(&location("/one", "rate_limit_redis $arg_a name=a rate=1r/h capacity=1000;"))
        .server(&location(
            "/two",
            "rate_limit_redis $arg_a name=a rate=1r/h capacity=1000;
            rate_limit_redis $arg_b name=b rate=1r/h capacity=20;",
        ))
        .start();
    let other = (0..).map(|n| format!("b{n}"));
    let elsewhere = |key: &String| {
        cluster.master_of(slot(&format!("rl:b:{key}"))) != cluster.master_of(slot("rl:a:x"))
    };
    let b = other.into_iter().find(elsewhere).expect("a key of another node");
    wait_until(PATIENCE, || nginx.get("/one?a=y").decision().starts_with("PASSED"), "the cluster");
    let decisions: Vec<_> =
        (0..60).map(|_| nginx.get(&format!("/two?a=x&b={b}")).decision().to_owned()).collect();
    let count = |what: &str| decisions.iter().filter(|decision| decision.starts_with(what)).count();
    assert_eq!((count("PASSED"), count("REJECTED")), (20, 40), "{decisions:?}");
    assert!(count("PASSED lease") > 0, "{decisions:?}");
    // The charges for those that the other limit rejected are given back.
    let whole = || quota(&nginx.get("/one?a=x"))[1];
    let first = whole();
    assert!((970..=979).contains(&first), "{first} left");
}

/// Memory that is refused ends a request, also while its leases are taken out, and also if its error page
/// has limits.
#[test]
fn a_request_without_memory_ends() {
    let redis = Redis::start();
    let library = Library::compile("scarce_memory");
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path");
    let write = |number: i32| file.as_file().write_all_at(&number.to_ne_bytes(), 0);
    let refuse = |number: i32| write(number).expect("a number");
    refuse(0);
    let limits: String =
        (0..64).map(|n| format!("rate_limit_redis a name=limit{n} rate=1000r/d; ")).collect();
    let mut nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_lease 1m;")
        .server(&format!("error_page 500 /index.html; {limits}"))
        .env("LD_PRELOAD", library.path())
        .env("SCARCE_MEMORY", path)
        .start_connected(&redis);
    nginx.allow_log("posix_memalign");
    for number in 0..24_i32 {
        let mut client = nginx.http();
        refuse(number);
        client.send("GET", "/", &[]);
        let error = client.try_read_response().err();
        let kind = error.map(|error| error.kind());
        assert_ne!(kind, Some(ErrorKind::WouldBlock), "block {number}");
    }
    refuse(0);
    assert!(!nginx.logged("posix_memalign").is_empty());
}
