//! Clients that make up a new key for each request.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::time::Instant;

use harness::{Conf, Nginx, Redis, at_once, free_port};

use super::site::{Pace, connect, rounds, send};
use crate::seen::StartConnected as _;

/// How many clients there are.
const CLIENTS: usize = 4;

/// How many keys are in a pipeline.
const PIPELINE: usize = 100;

/// How many pipelines a client sends. In the long form, of 50 rounds, a million keys are sent.
fn pipelines() -> usize {
    50 * rounds()
}

fn keys() -> usize {
    CLIENTS * pipelines() * PIPELINE
}

fn limited(conf: Conf) -> Conf {
    conf.workers(2)
        .http("rate_limit_redis_shared_memory 1m; rate_limit_redis_log_level error rate=100r/s;")
        .server("keepalive_requests 100000000; access_log off; root {prefix}/html;")
        .server("location /metrics { rate_limit_redis_metrics json; }")
        .server(
            "location /limited { rate_limit_redis $arg_k rate=1r/d; try_files /index.html =404; }",
        )
        .server("location /control { try_files /index.html =404; }")
}

/// How often which status came.
type Tally = BTreeMap<String, usize>;

/// Has every client send each of its keys twice, and returns the statuses.
fn send_all(nginx: &Nginx, path: &str) -> Tally {
    let tallies = std::sync::Mutex::new(Tally::new());
    at_once(0..CLIENTS, |client| {
        let mut stream = BufReader::new(connect(nginx.addr()));
        for pipeline in 0..pipelines() {
            let requests: String = (0..PIPELINE)
                .map(|n| {
                    format!("HEAD {path}?k={client}-{pipeline}-{n} HTTP/1.1\r\nHost: a\r\n\r\n")
                })
                .map(|request| request.repeat(2))
                .collect();
            send(stream.get_mut(), requests.as_bytes(), Pace::AtOnce);
            for _ in 0..2 * PIPELINE {
                *tallies.lock().unwrap().entry(status(&mut stream)).or_default() += 1;
            }
        }
    });
    tallies.into_inner().unwrap()
}

/// The status of a response without content.
fn status(stream: &mut BufReader<TcpStream>) -> String {
    let mut lines = stream.lines().map(|line| line.expect("a line"));
    let status = lines.next().expect("a response").split(' ').nth(1).expect("a status").to_owned();
    assert!(lines.any(|line| line.is_empty()), "the end of the header");
    status
}

fn tally<const N: usize>(expected: [(&str, usize); N]) -> Tally {
    expected.map(|(status, number)| (status.to_owned(), number)).into()
}

/// The resident memory of both workers, in KiB.
fn memory(nginx: &Nginx) -> i64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        line.trim().trim_end_matches(" kB").parse::<i64>().expect("a number")
    };
    nginx.worker_pids().iter().map(of).sum()
}

fn page(nginx: &Nginx) -> (usize, serde_json::Value) {
    let response = nginx.get("/metrics");
    (response.text().len(), serde_json::from_str(response.text()).expect("JSON"))
}

/// Sends all keys to both locations, and checks that what NGINX keeps does not grow with them; returns the metrics.
#[track_caller]
fn stays_bounded(nginx: &Nginx, expected: Tally) -> serde_json::Value {
    let workers = nginx.worker_pids();
    assert_eq!(send_all(nginx, "/control"), tally([("200", 2 * keys())]));
    let (length, _) = page(nginx);
    let (before, start) = (memory(nginx), Instant::now());
    assert_eq!(send_all(nginx, "/limited"), expected);
    let grown = memory(nginx) - before;
    // The shared memory, of 1 MiB, which each worker has in its own account, and buffers.
    assert!(grown < 6 << 10, "{grown} KiB more after {} keys", keys());
    let (grown, metrics) = page(nginx);
    // Numbers have more digits.
    assert!(grown < length + 500, "a page of {length} bytes, then of {grown}");
    let lines = nginx.error_log().lines().count();
    let most = 2 * 110 * (start.elapsed().as_secs() as usize + 2);
    assert!(lines < most, "{lines} lines in {:?}", start.elapsed());
    assert_eq!(nginx.worker_pids(), workers, "the workers");
    metrics
}

#[test]
fn fill_neither_nginx_nor_its_log() {
    let redis = Redis::start();
    let nginx = limited(Conf::new().redis(&redis)).start_connected(&redis);
    let metrics = stays_bounded(&nginx, tally([("200", keys()), ("429", keys())]));
    let requests = &metrics["limits"]["default"]["requests"];
    assert_eq!((&requests["passed"], &requests["rejected"]), (&keys().into(), &keys().into()));
    assert_eq!(redis.command::<usize>(&["DBSIZE"]), keys());
    assert_ne!(
        redis.command::<i64>(&["PTTL", "rl:default:0-0-0"]),
        -1,
        "a key without a time to live"
    );
}

#[test]
fn are_evicted_where_the_machine_decides() {
    let nginx = limited(Conf::new().store(format!("redis://127.0.0.1:{}", free_port())))
        .http("rate_limit_redis_on_error local;")
        .start();
    nginx.wait_for_error_log("is down");
    let metrics = stays_bounded(&nginx, tally([("200", keys()), ("429", keys())]));
    let requests = &metrics["limits"]["default"]["requests"];
    assert_eq!((&requests["passed"], &requests["rejected"]), (&keys().into(), &keys().into()));
    assert!(metrics["shared_memory_evictions"].as_u64() > Some(1_000), "{metrics}");
}
