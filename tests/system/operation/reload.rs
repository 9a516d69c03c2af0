//! Workers come and go, and take their connections with them.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Act, Conf, Fake, Http, Nginx, PATIENCE, Redis, at_once, run, wait_until};

use super::control::{CONTROL, ControlledLoad};
use crate::seen::{has_event_method, times};

/// Longer than a worker needs to leave that waits for nothing, on any machine.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Far longer than that.
const LONG: &str = "rate_limit_redis_timeout 60s;";

fn limited(redis: &Redis, limit: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .status()
        .decisions()
        .journal()
        .http("rate_limit_redis_log_level info;")
        .server(&format!("location / {{ rate_limit_redis k {limit}; }}"))
}

/// The ids of the workers that are connected to `redis`.
fn connected(redis: &Redis) -> Vec<u32> {
    let clients = redis.clients();
    let name = "name=nginx_rate_limit_redis:";
    let pid = |line: &String| line.split(' ').find_map(|f| f.strip_prefix(name))?.parse().ok();
    let mut pids: Vec<u32> = clients.iter().filter_map(pid).collect();
    pids.sort_unstable();
    pids
}

#[track_caller]
fn all_are_connected(nginx: &Nginx, redis: &Redis) {
    let mut workers = nginx.worker_pids();
    workers.sort_unstable();
    wait_until(PATIENCE, || connected(redis) == workers, "a connection for each worker, no other");
}

/// Reloads under load: no request fails, and the budget is neither lost nor renewed.
#[track_caller]
fn unnoticed(configured: impl FnOnce(Conf) -> Conf) {
    let redis = Redis::start();
    let conf = limited(&redis, "rate=1r/h capacity=500").workers(2).server(CONTROL);
    let mut nginx = configured(conf).start();
    let load = ControlledLoad::start(&nginx);
    let reloads = times(5, 100);
    for reload in 1..=reloads {
        // More than have passed; the last ones are rejected.
        wait_until(PATIENCE, || nginx.journal().0.len() >= reload * 750 / reloads, "requests");
        nginx.reload();
    }
    wait_until(PATIENCE, || nginx.journal().count("REJECTED") > 100, "rejections");
    let tally = load.stop();
    assert_eq!(tally.of(200), 500, "{tally:?}");
    let journal = nginx.wait_for_journal(tally.total() as usize);
    assert_eq!(journal.count("PASSED") + journal.count("REJECTED"), journal.0.len());
    assert!(journal.0.iter().all(|entry| ["redis", "cache"].contains(&entry.source.as_str())));
    // Before this test looks at the connections, which takes some.
    let made: String = redis.command(&["INFO", "stats"]);
    all_are_connected(&nginx, &redis);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
    let made = made.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    // One for each worker that ever was, as many at most for those that were leaving with a request at
    // hand, and those of this test.
    let made: usize = made.expect("a number of connections").trim().parse().unwrap();
    assert!(made < 100 + 4 * reloads, "{made} connections");
}

#[test]
fn reload_under_load_goes_unnoticed_if_open() {
    unnoticed(|conf| conf.server("rate_limit_redis_on_error open;"));
}

#[test]
fn reload_under_load_goes_unnoticed_if_closed() {
    unnoticed(|conf| conf.server("rate_limit_redis_on_error closed;"));
}

/// However the workers share connections, and wait for events.
#[test]
fn reload_under_load_goes_unnoticed_with_other_events() {
    let methods = ["poll", "select"].into_iter().filter(|method| has_event_method(method));
    let methods = methods.map(|method| format!("use {method};"));
    let cases =
        methods.chain(["accept_mutex on;", "multi_accept on;", "reuseport"].map(str::to_owned));
    at_once(cases, |case| {
        // A set of select has room for 1024 descriptors.
        unnoticed(|conf| match case.as_str() {
            "reuseport" => conf.listen("reuseport"),
            events => conf.events(events).connections(512),
        });
    });
}

/// A configuration that is refused late changes nothing: not by another module once this one is done, nor between the
/// filters of both, nor for want of an address. Nor does it for a worker that the master starts afterwards.
#[test]
fn a_configuration_that_is_refused_changes_nothing() {
    let redis = Redis::start();
    let good = limited(&redis, "rate=1r/h capacity=500").workers(2).server(CONTROL);
    let mut nginx = good.start();
    let load = ControlledLoad::start(&nginx);
    let refused = [
        "source_charset utf-8; charset koi8-r;",
        "log_format x $no_such_variable;",
        "server { listen 192.0.2.1:80; }",
    ];
    // A client whose connection dies takes a new one: if that dies too, before any response, the request has failed.
    load.wait_for_each(3);
    for round in 1..=times(1, 10) {
        for snippet in refused {
            nginx.reload_in_vain(&good.clone().http(snippet));
            let worker = nginx.worker_pids()[0];
            nginx.kill9_worker(worker);
            load.wait_for_each(3);
        }
        nginx.reload_with(&good);
        assert!(nginx.get("/").remaining().is_some(), "in round {round}");
    }
    wait_until(PATIENCE, || nginx.journal().count("REJECTED") > 100, "rejections");
    // A response may have died with its worker.
    let (passed, kills) = (load.stop().of(200), 3 * times(1, 10) as u64);
    let journal = nginx.journal();
    assert!(passed <= 500 && passed + 10 * kills >= 500, "{passed} have passed");
    assert_eq!(journal.count("PASSED") + journal.count("REJECTED"), journal.0.len());
    all_are_connected(&nginx, &redis);
}

/// With other numbers of workers, and other sizes of the memory that they share.
#[test]
fn other_workers_and_another_memory_lose_nothing() {
    let redis = Redis::start();
    let conf = |workers: usize, memory: &str| {
        limited(&redis, "rate=1r/h capacity=500")
            .workers(workers)
            .http(&format!("rate_limit_redis_shared_memory {memory};"))
            .server(CONTROL)
    };
    let mut nginx = conf(2, "8m").start();
    let load = ControlledLoad::start(&nginx);
    let others = [(5, "8m"), (1, "256k"), (3, "64m"), (2, "8m")];
    for (workers, memory) in others.into_iter().cycle().take(times(4, 40)) {
        nginx.reload_with(&conf(workers, memory));
        all_are_connected(&nginx, &redis);
    }
    wait_until(PATIENCE, || nginx.journal().count("REJECTED") > 100, "rejections");
    let tally = load.stop();
    assert_eq!(tally.of(200), 500, "{tally:?}");
    let journal = nginx.journal();
    assert_eq!(journal.count("PASSED") + journal.count("REJECTED"), journal.0.len());
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_reload_without_traffic_replaces_the_connections_at_once() {
    let redis = Redis::start();
    let mut nginx = limited(&redis, "rate=9r/d").workers(2).start();
    all_are_connected(&nginx, &redis);
    // A client that keeps its connection does not keep the worker.
    let mut http = nginx.http();
    assert_eq!(http.get("/").remaining(), Some(8));
    for _ in 0..3 {
        let before = connected(&redis);
        // It waits until the old workers have ended, and not for as long as a connection is kept.
        nginx.reload();
        all_are_connected(&nginx, &redis);
        assert!(connected(&redis).iter().all(|pid| !before.contains(pid)));
    }
    assert!(http.is_closed());
    assert_eq!(nginx.get("/").remaining(), Some(7));
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn a_new_configuration_takes_effect_and_the_budget_stays() {
    let (redis, other) = (Redis::start(), Redis::start());
    let mut nginx = limited(&redis, "rate=9r/d").start();
    assert_eq!(nginx.get("/").remaining(), Some(8));
    nginx.reload_with(&limited(&redis, "rate=5r/d"));
    assert_eq!(nginx.get("/").header("X-RateLimit-Limit"), Some("5"));
    nginx.reload_with(&limited(&redis, "rate=9r/d cost=2"));
    let left = nginx.get("/").remaining();
    assert!(left.is_some_and(|left| left < 5), "{left:?}");
    nginx.reload_with(&limited(&other, "rate=9r/d"));
    assert_eq!(nginx.get("/").remaining(), Some(8));
    wait_until(PATIENCE, || connected(&redis).is_empty(), "the end of the old connection");
    all_are_connected(&nginx, &other);
    nginx.reload_with(&Conf::new());
    wait_until(PATIENCE, || connected(&other).is_empty(), "the end of the last connection");
}

#[test]
fn a_worker_that_leaves_slowly_holds_no_connection() {
    let redis = Redis::start();
    let mut nginx = limited(&redis, "rate=9r/d")
        .file("html/long", &"x".repeat(500_000))
        .server("location = /long { limit_rate 100k; }")
        .start();
    all_are_connected(&nginx, &redis);
    let (mut slow, mut late) = (nginx.http(), nginx.http());
    slow.send("GET", "/long", &[]);
    late.send_raw(b"GET / HTTP/1.1\r\nHost: a\r\n");
    nginx.wait_for_requests(1, 1);
    let old = nginx.reload_signal();
    all_are_connected(&nginx, &redis);
    // The old worker still has to decide a request, and does so.
    late.send_raw(b"\r\n");
    assert_eq!(late.read_response().decision(), "PASSED redis");
    all_are_connected(&nginx, &redis);
    assert_eq!(slow.read_response().body.len(), 500_000);
    let gone = || !std::path::Path::new(&format!("/proc/{}", old[0])).exists();
    wait_until(PATIENCE, gone, "the end of the old worker");
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// Whatever state its connection is in, a worker that has nothing to do leaves at once.
#[track_caller]
fn leaves_at_once(nginx: &mut Nginx) {
    for _ in 0..3 {
        let start = Instant::now();
        nginx.reload();
        assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn workers_leave_while_redis_is_away() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis, "rate=9r/d").workers(2).start();
    redis.kill9();
    nginx.wait_for_error_log("is down");
    leaves_at_once(&mut nginx);
}

#[test]
fn workers_leave_while_redis_does_not_greet() {
    let fake = Fake::start(|_| Act::Ignore);
    let mut nginx = Conf::new()
        .set("redis", fake.url())
        .http("rate_limit_redis_pass {redis};")
        .server("location / { rate_limit_redis k rate=9r/d; }")
        .start();
    leaves_at_once(&mut nginx);
    sleep(Duration::from_millis(300));
    leaves_at_once(&mut nginx);
}

#[test]
fn workers_leave_while_redis_owes_replies_to_released_requests() {
    let mut redis = Redis::start();
    // The connection is not given up for its silence before the longest of all timeouts.
    let mut nginx = limited(&redis, "rate=1r/h capacity=100000")
        .server("rate_limit_redis_timeout 20ms;")
        .server(&format!("location /patient {{ rate_limit_redis k rate=9r/d name=p; {LONG} }}"))
        .start();
    let is_decided = || nginx.get("/").decision() == "PASSED redis";
    wait_until(PATIENCE, is_decided, "a decision by Redis");
    redis.stop_signal();
    assert_eq!(nginx.get("/").decision(), "ERROR_PASSED none");
    leaves_at_once(&mut nginx);
    redis.cont();
}

/// Requests that wait for a Redis that is stopped.
fn waiting(nginx: &Nginx, redis: &mut Redis) -> Vec<Http> {
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    redis.stop_signal();
    let mut clients: Vec<_> = (0..10).map(|_| nginx.http()).collect();
    for http in &mut clients {
        http.send("GET", "/", &[]);
    }
    nginx.wait_for_requests(clients.len(), 0);
    clients
}

#[test]
fn requests_that_wait_are_served_before_a_worker_quits() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis, "rate=99r/m").server("rate_limit_redis_timeout 5s;").start();
    let clients = waiting(&nginx, &mut redis);
    nginx.quit();
    for mut http in clients {
        let response = http.read_response();
        assert_eq!((response.status, response.decision()), (200, "ERROR_PASSED none"));
    }
    redis.cont();
}

#[test]
fn requests_that_wait_are_decided_before_a_worker_quits() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis, "rate=99r/m").server(LONG).start();
    let clients = waiting(&nginx, &mut redis);
    nginx.signal(libc::SIGQUIT);
    nginx.wait_for_error_log("gracefully shutting down");
    redis.cont();
    for mut http in clients {
        assert_eq!(http.read_response().decision(), "PASSED redis");
    }
    nginx.quit();
}

#[test]
fn sigterm_waits_for_no_request() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis, "rate=99r/m").server(LONG).start();
    let clients = waiting(&nginx, &mut redis);
    let start = Instant::now();
    nginx.terminate();
    assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    for mut http in clients {
        assert!(http.is_closed());
    }
    redis.cont();
    wait_until(PATIENCE, || connected(&redis).is_empty(), "the end of the connection");
}

#[test]
fn a_worker_waits_no_longer_than_its_shutdown_timeout() {
    let mut redis = Redis::start();
    let mut nginx =
        limited(&redis, "rate=99r/m").server(LONG).main("worker_shutdown_timeout 300ms;").start();
    let clients = waiting(&nginx, &mut redis);
    let start = Instant::now();
    nginx.quit();
    assert!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    for mut http in clients {
        assert!(http.is_closed());
    }
    redis.cont();
}

#[test]
fn logs_can_be_reopened() {
    let mut redis = Redis::start();
    // One worker: it is the one that is known to have reopened its log.
    let mut nginx = limited(&redis, "rate=9r/d").workers(1).start();
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    fs::rename(nginx.path("error.log"), nginx.path("error.log.1")).expect("rename the log");
    nginx.signal(libc::SIGUSR1);
    wait_until(PATIENCE, || nginx.path("error.log").exists(), "a new log");
    // The worker reopens its log a little later than the master.
    let worker = nginx.worker_pids()[0];
    wait_until(
        PATIENCE,
        || !has_open(worker, "error.log.1"),
        "a worker that writes to the new log",
    );
    redis.kill9();
    nginx.wait_for_error_log("is down");
    redis.restart();
    nginx.wait_for_error_log("is up again");
    assert!(!nginx.read("error.log.1").contains("is down"));
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
}

#[test]
fn a_worker_that_was_killed_is_replaced() {
    let redis = Redis::start();
    let mut nginx = limited(&redis, "rate=9r/d").workers(2).start();
    nginx.allow_log("exited on signal 9");
    all_are_connected(&nginx, &redis);
    assert_eq!(nginx.get("/").remaining(), Some(8));
    let killed = nginx.worker_pids()[0];
    run("kill", &["-9", &killed.to_string()]);
    let replaced = || nginx.worker_pids().len() == 2 && !nginx.worker_pids().contains(&killed);
    wait_until(PATIENCE, replaced, "a new worker");
    all_are_connected(&nginx, &redis);
    assert_eq!(nginx.get("/").remaining(), Some(7));
}

#[test]
fn a_process_without_a_master_leaves_too() {
    let redis = Redis::start();
    let mut nginx = limited(&redis, "rate=9r/d").single().start();
    let pid = nginx.pid();
    wait_until(PATIENCE, || connected(&redis) == [pid], "the connection");
    assert_eq!(nginx.get("/").remaining(), Some(8));
    nginx.quit();
    wait_until(PATIENCE, || connected(&redis).is_empty(), "the end of the connection");
}

/// Whether a process has a file of this name open.
fn has_open(pid: u32, name: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("list descriptors");
    let mut files = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    files.any(|file| file.ends_with(name))
}

/// The private memory of the master, in kB.
fn memory_of_master(nginx: &Nginx) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", nginx.pid())).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

/// Each kind of limit has a script, which the master makes when it reads the configuration.
#[test]
fn an_unloaded_module_leaves_no_memory() {
    let redis = Redis::start();
    let limits =
        ["", " refill=interval", " algorithm=gcra", " algorithm=sliding_window"].map(|kind| {
            let name = kind.len();
            format!("location /{name} {{ rate_limit_redis $arg_k name=l{name} rate=1r/s{kind}; }}")
        });
    let with = Conf::new().redis(&redis).server(&limits.concat());
    let mut nginx = with.start();
    let mut unload = || {
        for _ in 0..6 {
            nginx.reload_with(&Conf::new().plain());
            nginx.reload_with(&with);
        }
        memory_of_master(&nginx)
    };
    let before = unload();
    let after = unload();
    assert!(after < before + 120, "grew from {before} to {after} kB");
}
