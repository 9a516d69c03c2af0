//! Requests that are sent only to be cancelled, over HTTP/2 and HTTP/3.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use harness::frames::{Frame, Frames};
use harness::{Load, PATIENCE, at_once, wait_until};

use super::site::{Site, names, pair, requests_total, rounds};
use super::streams::Outcome;
use crate::requests::h3::{Http3, has_http3, values};

/// How many requests of a connection are sent before they are cancelled, how often, and how long between: at once, while
/// they wait for Redis, and when some have their response.
const STORMS: [(u32, u32, u64); 3] = [(1, 1_000, 0), (100, 10, 3), (100, 10, 12)];

/// A connection that cancels whatever it requests.
fn storm(site: &Site, path: &str, (number, times, pause): (u32, u32, u64)) -> Outcome {
    let mut frames = Frames::connect(site.nginx.h2_addr());
    for batch in 0..times {
        let streams = || (0..number).map(|n| 2 * (batch * number + n) + 1);
        let requests: Vec<u8> = streams().flat_map(|id| Frame::get(id, path).bytes()).collect();
        let cancels: Vec<u8> = streams().flat_map(|id| Frame::cancel(id).bytes()).collect();
        // NGINX may have had enough of it.
        let _ = frames.write(&requests);
        sleep(Duration::from_millis(pause));
        let _ = frames.write(&cancels);
    }
    Outcome::of(&mut frames)
}

#[test]
fn a_storm_of_resets_hurts_no_others() {
    let site = Site::start(Duration::from_millis(6));
    let others = Load::start(site.nginx.addr(), "/limited/body", 2);
    let ends = [(); 2].map(|()| Mutex::new(BTreeSet::new()));
    for _ in 0..rounds() {
        let cases = STORMS.into_iter().flat_map(|storm| names().map(move |name| (storm, name)));
        at_once(cases, |(kind, name)| {
            for (path, ends) in pair(name).iter().zip(&ends) {
                ends.lock().unwrap().insert(storm(&site, path, kind).goaway);
            }
        });
    }
    let tally = others.stop();
    assert!(tally.failures.is_empty() && tally.of(200) == tally.total(), "others: {tally:?}");
    site.is_well();
    let [limited, control] = ends.map(|ends| ends.into_inner().unwrap());
    assert!(
        limited.is_subset(&control),
        "connections ended with {limited:?}, control: {control:?}"
    );
}

/// Options of clients that lose packets, move, or go in the middle.
const CLIENTS: [&str; 6] = [
    "--tx-loss=0.1 --rx-loss=0.1 --timeout=10s -n 20",
    "--exit-on-first-stream-close -n 100",
    "--change-local-addr=5ms -n 20",
    "--change-local-addr=5ms --nat-rebinding -n 20",
    "--key-update=2ms -n 20",
    "--timeout=100ms --rx-loss=0.8 -n 50",
];

#[test]
fn a_storm_over_http3_is_counted_and_survived() {
    if !has_http3() {
        return;
    }
    let site = Http3::start(
        "location /limited/ { alias {prefix}/html/; rate_limit_redis all rate=1000000r/s; } \
         location /control/ { alias {prefix}/html/; }",
    );
    let workers = site.nginx.worker_pids();
    let cases = (0..rounds()).flat_map(|_| CLIENTS);
    let cases = cases.flat_map(|options| pair("").map(|path| (options, path)));
    at_once(cases, |(options, path)| {
        let said = site.client(&format!("--exit-on-all-streams-close {options}"), &path);
        assert!(
            values(&said, ":status").iter().all(|status| *status == "200"),
            "{options}: {said}"
        );
        // One that is killed says nothing.
        site.killed_client(Duration::from_millis(30), &path);
    });
    for path in pair("") {
        assert_eq!(values(&site.client("--exit-on-all-streams-close", &path), ":status"), ["200"]);
    }
    assert_eq!(site.nginx.worker_pids(), workers);
    // Requests that have left before they were decided are not counted. NGINX logs them with 499, or without a status where
    // their connection has ended.
    let has_left = |line: &&str| ["\" 499 ", "\" 000 "].iter().any(|status| line.contains(status));
    let is_counted = || {
        let log = site.nginx.access_log();
        let came = log.lines().filter(|line| line.contains("/limited/"));
        let (left, ended): (Vec<_>, Vec<_>) = came.partition(has_left);
        (ended.len()..=ended.len() + left.len()).contains(&requests_total(&site.nginx, "default"))
    };
    wait_until(PATIENCE, is_counted, "a count of each request");
}
