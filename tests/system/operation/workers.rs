//! Workers that are killed, that are many, and that lack descriptors.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use harness::{
    Conf, Http, Load, Nginx, PATIENCE, Redis, free_port, has_pid_namespaces, wait_until,
};

use crate::seen::{StartConnected as _, times, tokens};

/// The size of the shared memory, by which it is found in the memory of a worker.
const MEMORY: u64 = 16 << 20;

/// The process that holds the lock of the shared memory, as a worker sees it. NGINX has it in the first word of a zone.
fn lock_holder(worker: u32) -> u32 {
    let maps = fs::read_to_string(format!("/proc/{worker}/maps")).expect("the memory of a worker");
    let start = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let (start, end) = (start.ok()?, end.ok()?);
        (line.contains(" rw-s ") && end - start == MEMORY).then_some(start)
    };
    let start = maps.lines().find_map(start).expect("the shared memory");
    let mut word = [0; 8];
    let memory = File::open(format!("/proc/{worker}/mem")).expect("the memory of a worker");
    memory.read_exact_at(&mut word, start).expect("a word");
    u64::from_ne_bytes(word) as u32
}

/// Kills a worker while it holds the lock.
fn kill_in_the_lock(nginx: &mut Nginx) {
    let workers = nginx.worker_pids();
    let is_killed = || {
        workers
            .iter()
            .any(|worker| nginx.kill9_worker_if(*worker, || lock_holder(*worker) == *worker))
    };
    wait_until(PATIENCE, is_killed, "a worker that holds the lock");
}

/// A worker dies while it holds the lock of the shared memory, in the middle of a local decision. The others go on, and so
/// does the one that takes its place.
#[test]
fn killed_while_they_hold_the_lock_they_hold_up_nobody() {
    // So long decisions that the lock is often held.
    let log = |n| format!("rate_limit_redis k name=log{n} rate=3000r/s algorithm=sliding_log;");
    let logs: String = (0..20).map(log).collect();
    let page = "try_files /index.html =404; }";
    let mut nginx = Conf::new()
        .workers(2)
        .decisions()
        .store(format!("redis://127.0.0.1:{}", free_port()))
        .http("rate_limit_redis_shared_memory 16m; rate_limit_redis_on_error local;")
        .server(&format!("location /logs {{ {logs} {page}"))
        .server(&format!("location /bucket {{ rate_limit_redis k name=bucket rate=9r/h; {page}"))
        .server(&format!("location /control {{ {page}"))
        .start();
    // The master says that it has unlocked it, if it does so before another worker.
    nginx.allow_log("was locked by");
    nginx.wait_for_error_log("is down");
    let load = Load::start(nginx.addr(), "/logs", 8);
    for _ in 0..times(3, 50) {
        kill_in_the_lock(&mut nginx);
        for path in ["/logs", "/bucket"] {
            assert!(nginx.get(path).decision().ends_with(" local"));
        }
        assert_eq!(nginx.get("/control").status, 200);
    }
    let tally = load.stop();
    assert_eq!(tally.of(200) + tally.of(429), tally.total(), "{tally:?}");
}

/// The process id of a worker in its own namespace.
fn inner_pid(worker: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{worker}/status")).expect("a worker");
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).expect("a line");
    pids.split_whitespace().next_back().expect("a number").parse().expect("a number")
}

/// A worker gets the process id of one that was killed: it is not taken for that one.
#[test]
fn a_process_id_may_be_used_again() {
    if !has_pid_namespaces() {
        println!("not tested: it needs PID namespaces");
        return;
    }
    let redis = Redis::start();
    // One worker: it is the one that is killed.
    let mut nginx = Conf::new()
        .workers(1)
        .redis(&redis)
        .decisions()
        .daemon()
        .file("html/long", &"x".repeat(9_000_000))
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location / { rate_limit_redis k rate=900r/h cost=5 settle=1; limit_rate 1k; }")
        .start_connected(&redis);
    let metric = |nginx: &Nginx, name: &str| {
        let (page, name) = (nginx.get("/metrics"), format!("nginx_rate_limit_redis_{name} "));
        let value = page.text().lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("no {name}")).parse::<u64>().expect("a number")
    };
    let ready = format!("connections{{node=\"{}\",state=\"ready\"}}", redis.addr());
    let lost = "settlements_total{name=\"default\",result=\"lost\"}";
    let mut is_used_again = false;
    for killed in 1..=20 {
        let mut http = nginx.http();
        http.send("GET", "/long", &[]);
        // The response has begun, and takes hours.
        assert!(!http.is_closed());
        let worker = nginx.worker_pids()[0];
        let pid = inner_pid(worker);
        nginx.set_next_pid(pid);
        nginx.kill9_worker(worker);
        is_used_again |= inner_pid(nginx.worker_pids()[0]) == pid;
        wait_until(PATIENCE, || metric(&nginx, &ready) == 1, "the connection of the new worker");
        wait_until(PATIENCE, || metric(&nginx, lost) == killed, "the reservation that was lost");
        assert_eq!(nginx.get("/index.html").decision(), "PASSED redis");
        if is_used_again {
            return;
        }
    }
    panic!("no process id was used again");
}

/// More pairs of a worker and a limit that settles than there is room for in the shared memory.
#[test]
fn many_workers_and_many_limits_may_settle() {
    const WORKERS: usize = 32;
    const LIMITS: usize = 17;
    const CAPACITY: u64 = 10_000;
    let redis = Redis::start();
    let limit =
        |n| format!("rate_limit_redis k name=l{n} rate=1r/h capacity={CAPACITY} cost=1 settle=2;");
    let lines: String = (0..LIMITS).map(limit).collect();
    let mut nginx = Conf::new()
        .workers(WORKERS)
        .connections(256)
        .redis(&redis)
        .decisions()
        .server("location = /metrics { rate_limit_redis off; rate_limit_redis_metrics; }")
        .server(&lines)
        .start_connected(&redis);
    let mut requests = 0;
    for _ in 0..times(2, 20) {
        let mut clients: Vec<_> = (0..100).map(|_| nginx.http()).collect();
        clients.iter_mut().for_each(|http| http.send("GET", "/", &[]));
        let decisions = clients.iter_mut().map(|http| http.read_response().decision().to_owned());
        assert!(decisions.into_iter().all(|decision| decision == "PASSED redis"));
        requests += 100;
        let count = |page: &str, n, result| {
            let start = format!("settlements_total{{name=\"l{n}\",result=\"{result}\"}} ");
            let rest = page.split_once(&start).expect("a counter").1;
            rest.lines().next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
        };
        let is_settled = |page: &str, n: usize| {
            // A busy machine may keep Redis from replying in time: then it is not known what has run.
            let (settled, lost) = (count(page, n, "settled"), count(page, n, "lost"));
            let left = tokens(&redis, &format!("rl:l{n}:k")).expect("a state");
            let spent = requests + settled..=requests + settled + lost;
            settled + lost == requests && spent.contains(&(CAPACITY - left))
        };
        let all = || {
            let page = nginx.get("/metrics");
            (0..LIMITS).all(|n| is_settled(page.text(), n))
        };
        wait_until(PATIENCE, all, "each request settled for every limit, or known to be lost");
        nginx.reload();
    }
}

/// Without a free descriptor a worker cannot connect to Redis again, nor open a file. It goes on as without Redis, and
/// connects once one is free.
#[test]
fn descriptors_are_exhausted() {
    let mut redis = Redis::start();
    // One worker: one without descriptors leaves connections to the others.
    let mut nginx = Conf::new()
        .workers(1)
        .redis(&redis)
        .decisions()
        .main("worker_rlimit_nofile 40;")
        .server("location / { rate_limit_redis k rate=1000r/s; empty_gif; }")
        .server("location = /control { empty_gif; }")
        .start_connected(&redis);
    nginx.allow_log("Too many open files");
    redis.kill9();
    nginx.wait_for_error_log("is down");
    let mut held: Vec<Http> = Vec::new();
    while nginx.logged("accept4() failed (24").is_empty() {
        assert!(held.len() < 200, "there are descriptors for all");
        let mut http = nginx.http();
        http.send_raw(b"GET /");
        held.push(http);
    }
    // Only then the waiting clients have all descriptors: one that the worker had for an attempt to connect was free again
    // after it.
    nginx.wait_for_error_log("socket() failed (24");
    redis.restart();
    let mut finish = |rest: &str| {
        let mut http = held.remove(0);
        http.send_raw(format!("{rest} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        http.read_response()
    };
    assert_eq!(finish("").decision(), "ERROR_PASSED none");
    assert_eq!(finish("control").status, 200);
    drop(held);
    wait_until(PATIENCE, || nginx.get("/").decision() == "PASSED redis", "a decision by Redis");
}
