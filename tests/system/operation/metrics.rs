//! The metrics page: its counters, and its forms.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::reply::{Node, cluster_slots, error};
use harness::{ALLOWED, Act, Conf, Fake, Http, Nginx, PATIENCE, Redis, Response, run, wait_until};

use crate::seen::StartConnected as _;

/// Every counter and gauge, by its name without the prefix, and its labels as they stand there.
type Samples = BTreeMap<String, f64>;

const PREFIX: &str = "nginx_rate_limit_redis_";

/// An nginx whose `/metrics` is the page.
fn metered(redis: &Redis) -> Conf {
    Conf::new().redis(redis).decisions().server("location = /metrics { rate_limit_redis_metrics; }")
}

/// A location with a page that is there.
fn page(path: &str, directives: &str) -> String {
    format!("location {path} {{ {directives} try_files /index.html =404; }}")
}

fn metrics(nginx: &Nginx) -> Samples {
    let response = nginx.get("/metrics");
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.header("Content-Type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    parse(response.text())
}

/// Reads Prometheus's text format, and panics at whatever is not as that demands.
fn parse(page: &str) -> Samples {
    let mut samples = Samples::new();
    let mut families: Vec<(&str, &str)> = Vec::new();
    assert!(page.ends_with('\n'));
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a help");
            assert!(!text.is_empty() && !text.contains('\\'), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
            let (typed, kind) = kind.and_then(|kind| kind.split_once(' ')).expect("a type");
            assert!(typed == name && families.iter().all(|(other, _)| *other != name), "{line}");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            families.push((name, kind));
            continue;
        }
        let (family, kind) = *families.last().expect("a family");
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let suffixes: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["_sum", "_count"],
            _ => &[""],
        };
        let suffix = name.strip_prefix(family).expect("the name of the family");
        assert!(suffixes.contains(&suffix), "{line}");
        let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(word), "{line}");
        check_labels(labels).unwrap_or_else(|| panic!("the labels of {line}"));
        let value: f64 = value.parse().expect("a number");
        assert!(value >= 0.0, "{line}");
        let name = series.strip_prefix(PREFIX).expect("the prefix").to_owned();
        assert!(samples.insert(name, value).is_none(), "twice: {line}");
    }
    check_histogram(&samples);
    samples
}

/// `name="value",…}`, where only three characters are escaped.
fn check_labels(mut labels: &str) -> Option<()> {
    while labels != "}" {
        let (name, rest) = labels.split_once("=\"")?;
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "{name}");
        let mut escaped = false;
        let end = rest.find(|character| {
            assert!(!escaped || ['\\', '"', 'n'].contains(&character));
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        })?;
        labels = &rest[end + 1..];
        labels = labels.strip_prefix(',').unwrap_or(labels);
    }
    Some(())
}

fn check_histogram(samples: &Samples) {
    let bound = |name: &str| -> Option<f64> {
        name.strip_prefix("decision_seconds_bucket{le=\"")?.strip_suffix("\"}")?.parse().ok()
    };
    let mut buckets: Vec<_> =
        samples.iter().filter_map(|(name, count)| Some((bound(name)?, *count))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.len() > 5 && buckets[0].0 == 50e-6, "{buckets:?}");
    assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
    let (last, all) = buckets[buckets.len() - 1];
    assert!(last.is_infinite() && all == samples["decision_seconds_count"], "{buckets:?}");
}

/// Reads JSON into the paths of its values, such as `/limits/default/requests/passed`.
fn parse_json(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let rest = read_value(text, "", &mut values).expect("JSON");
    assert_eq!(rest, "");
    values
}

/// Reads one value, and returns what comes after it.
fn read_value<'a>(
    text: &'a str,
    path: &str,
    values: &mut BTreeMap<String, String>,
) -> Option<&'a str> {
    let Some(mut rest) = text.strip_prefix('{') else {
        let (value, rest) = match text.starts_with('"') {
            true => read_string(text)?,
            false => text.split_at(text.find([',', '}'])?),
        };
        assert!(values.insert(path.to_owned(), value.to_owned()).is_none(), "{path} is twice");
        return Some(rest);
    };
    if let Some(rest) = rest.strip_prefix('}') {
        return Some(rest);
    }
    loop {
        let (name, after) = read_string(rest)?;
        rest = read_value(after.strip_prefix(':')?, &format!("{path}/{name}"), values)?;
        match rest.split_at(1) {
            (",", after) => rest = after,
            ("}", after) => return Some(after),
            _ => return None,
        }
    }
}

/// A string without escapes: no name needs one here.
fn read_string(text: &str) -> Option<(&str, &str)> {
    let (string, rest) = text.strip_prefix('"')?.split_once('"')?;
    (!string.contains('\\')).then_some((string, rest))
}

fn json(nginx: &Nginx) -> BTreeMap<String, String> {
    let response = nginx.get("/metrics?format=json");
    assert_eq!(response.header("Content-Type"), Some("application/json"));
    parse_json(response.text())
}

fn requests(samples: &Samples, name: &str, result: &str) -> f64 {
    samples[&format!("requests_total{{name=\"{name}\",result=\"{result}\"}}")]
}

fn decisions(samples: &Samples, name: &str, source: &str) -> f64 {
    samples[&format!("decisions_total{{name=\"{name}\",source=\"{source}\"}}")]
}

fn errors(samples: &Samples, node: &str, kind: &str) -> f64 {
    samples[&format!("errors_total{{node=\"{node}\",kind=\"{kind}\"}}")]
}

fn connections(samples: &Samples, node: &str, state: &str) -> f64 {
    samples[&format!("connections{{node=\"{node}\",state=\"{state}\"}}")]
}

/// Nodes with names that are too long for the shared memory, and alike for longer than it has room.
#[test]
fn long_names_of_nodes_are_distinct() {
    let (first, second) = (Redis::start(), Redis::start());
    let server = |redis: &Redis| format!("redis://{}127.0.0.1:{}", "0".repeat(130), redis.port());
    let nginx = Conf::new()
        .http(&format!("rate_limit_redis_store one {{ server {}; }}", server(&first)))
        .http(&format!("rate_limit_redis_store two {{ server {}; }}", server(&second)))
        .server("location / { rate_limit_redis_pass one; rate_limit_redis a rate=1r/s; }")
        .server("location /b { rate_limit_redis_pass two; rate_limit_redis a name=b rate=1r/s; }")
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
        .start();
    let nodes = || {
        let samples = metrics(&nginx);
        let nodes = samples.keys().filter_map(|name| name.strip_prefix("breaker_open{node=\""));
        nodes.map(str::to_owned).collect::<Vec<_>>()
    };
    let ends = |redis: &Redis| format!("127.0.0.1:{}\"}}", redis.port());
    let are_there = || {
        let nodes = nodes();
        let has = |redis| nodes.iter().any(|node| node.ends_with(&ends(redis)));
        nodes.len() == 2 && has(&first) && has(&second)
    };
    wait_until(PATIENCE, are_there, "two nodes");
    assert!(nodes().iter().all(|node| node.contains("000~")), "{:?}", nodes());
}

/// The counts of `family` for a server, for each of `results`.
fn by_result<const N: usize>(
    nginx: &Nginx,
    family: &str,
    node: &str,
    results: [&str; N],
) -> [f64; N] {
    let samples = metrics(nginx);
    results.map(|result| samples[&format!("{family}{{node=\"{node}\",result=\"{result}\"}}")])
}

/// The attempts to connect to a server: those that ended ready, refused, with a timeout, rejected.
fn attempts(nginx: &Nginx, node: &str) -> [f64; 4] {
    let results = ["ready", "refused", "timeout", "rejected"];
    by_result(nginx, "connection_attempts_total", node, results)
}

/// The topology queries of a server: those that were used, unchanged, late, failed.
fn queries(nginx: &Nginx, node: &str) -> [f64; 4] {
    by_result(nginx, "topology_queries_total", node, ["used", "unchanged", "late", "failed"])
}

/// Whether each result was counted so often at least, and no other one was.
fn reaches(counts: [f64; 4], least: [f64; 4]) -> bool {
    counts
        .into_iter()
        .zip(least)
        .all(|(count, least)| count >= least && (least > 0.0 || count == 0.0))
}

/// The results of a limit that are not zero.
fn results(samples: &Samples, name: &str) -> Vec<(String, f64)> {
    let prefix = format!("requests_total{{name=\"{name}\",result=\"");
    let results = samples.iter().filter_map(|(series, count)| {
        Some((series.strip_prefix(&prefix)?.strip_suffix("\"}")?.to_owned(), *count))
    });
    results.filter(|(_, count)| *count > 0.0).collect()
}

const RESULTS: [&str; 7] = [
    "passed",
    "delayed",
    "rejected",
    "delayed_dry_run",
    "rejected_dry_run",
    "error_passed",
    "error_rejected",
];

#[test]
fn all_is_there_before_the_first_request() {
    let redis = Redis::start();
    // One worker: its connection is counted.
    let nginx = metered(&redis)
        .workers(1)
        .server("location /a { rate_limit_redis k name=a.b-c_D9 rate=9r/m; }")
        .server("location /b { rate_limit_redis k rate=9r/m; }")
        .start();
    let node = redis.addr().to_string();
    let ready = || connections(&metrics(&nginx), &node, "ready") == 1.0;
    wait_until(PATIENCE, ready, "a connection");
    let samples = metrics(&nginx);
    for limit in ["default", "a.b-c_D9"] {
        RESULTS.iter().for_each(|result| assert_eq!(requests(&samples, limit, result), 0.0));
        for source in ["redis", "cache", "local"] {
            assert_eq!(decisions(&samples, limit, source), 0.0);
        }
    }
    for command in ["evalsha", "eval", "asking", "ping", "cluster", "sentinel"] {
        let series = format!("commands_total{{node=\"{node}\",command=\"{command}\"}}");
        assert_eq!(samples[&series], 0.0);
    }
    for kind in ["connect", "timeout", "protocol", "auth", "script", "overload", "lost"] {
        assert_eq!(errors(&samples, &node, kind), 0.0);
    }
    assert_eq!(connections(&samples, &node, "connecting"), 0.0);
    assert_eq!(samples[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
    assert_eq!(samples["decision_seconds_count"], 0.0);
    assert_eq!(samples["decision_seconds_sum"], 0.0);
    let bytes = |state| samples[&format!("shared_memory_bytes{{state=\"{state}\"}}")];
    assert_eq!(bytes("used") + bytes("free"), f64::from(8 << 20));
    let info = samples.keys().find(|series| series.starts_with("build_info{version=\"")).unwrap();
    assert!(info.contains(concat!("\"", env!("CARGO_PKG_VERSION"), "\",nginx=\"1.")), "{info}");
}

/// Each request is counted once, by what became of it; and Redis agrees.
#[test]
fn requests_are_counted_by_result() {
    let redis = Redis::start();
    let leaky = "algorithm=leaky_bucket";
    let dry = "rate_limit_redis_dry_run on;";
    let narrow = "rate_limit_redis k name=narrow rate=1r/h;";
    let limits = [
        ("/plain", "$arg_k name=plain rate=3r/h;".to_owned()),
        ("/free", "$arg_k name=free rate=1r/h cost=0;".to_owned()),
        ("/leaky", format!("k name=leaky rate=1r/3s {leaky} burst=2;")),
        ("/dry", format!("k name=dry rate=3r/h; {dry}")),
        ("/dryleaky", format!("k name=dryleaky rate=1r/h {leaky} burst=1; {dry}")),
        ("/both", format!("k name=wide rate=9r/h; {narrow}")),
    ];
    let conf = metered(&redis)
        .workers(2)
        .http("rate_limit_redis_log_level info; rate_limit_redis_deny_cache off;");
    let add = |conf: Conf, (path, limit): &(&str, String)| {
        conf.server(&page(path, &format!("rate_limit_redis {limit}")))
    };
    let nginx = limits.iter().fold(conf, add).start();
    let send = |path: &str, number: usize| (0..number).for_each(|_| drop(nginx.get(path)));
    send("/plain?k=a", 5);
    send("/plain?k=b", 1);
    send("/plain?k=", 2);
    send("/free?k=a", 4);
    send("/leaky", 3);
    send("/dry", 5);
    send("/dryleaky", 3);
    send("/both", 3);
    let samples = metrics(&nginx);
    let results = |name| results(&samples, name);
    let counts = |counts: &[(&str, f64)]| -> Vec<(String, f64)> {
        counts.iter().map(|(result, count)| ((*result).to_owned(), *count)).collect()
    };
    // An empty key is not limited.
    assert_eq!(results("plain"), counts(&[("passed", 4.0), ("rejected", 2.0)]));
    assert_eq!(results("free"), counts(&[("passed", 4.0)]));
    assert_eq!(results("leaky"), counts(&[("delayed", 2.0), ("passed", 1.0)]));
    assert_eq!(results("dry"), counts(&[("passed", 3.0), ("rejected_dry_run", 2.0)]));
    let dry = [("delayed_dry_run", 1.0), ("passed", 1.0), ("rejected_dry_run", 1.0)];
    assert_eq!(results("dryleaky"), counts(&dry));
    // A rejection counts at the limit that rejects, and not at the one that allowed the request.
    assert_eq!(results("wide"), counts(&[("passed", 1.0)]));
    assert_eq!(results("narrow"), counts(&[("passed", 1.0), ("rejected", 2.0)]));
    let decided_requests = 6 + 4 + 3 + 5 + 3 + 3;
    assert_eq!(samples["decision_seconds_count"], f64::from(decided_requests));
    assert!(samples["decision_seconds_sum"] > 0.0);
    for (name, number) in [("plain", 6.0), ("wide", 3.0), ("narrow", 3.0)] {
        assert_eq!(decisions(&samples, name, "redis"), number);
        assert_eq!(decisions(&samples, name, "local"), 0.0);
    }
    redis_has_decided(&redis, &samples, f64::from(decided_requests));
    // No key is shown.
    let pages = [nginx.get("/metrics"), nginx.get("/metrics?format=json")];
    assert!(pages.iter().all(|page| !page.text().contains("\"a\"")));
}

/// Checks that so many commands have decided all requests, by the page and by Redis.
#[track_caller]
fn redis_has_decided(redis: &Redis, samples: &BTreeMap<String, f64>, requests: f64) {
    let node = redis.addr();
    let evalsha = samples[&format!("commands_total{{node=\"{node}\",command=\"evalsha\"}}")];
    assert_eq!(evalsha, requests);
    assert_eq!(evalsha, redis.calls("evalsha") as f64);
    let decided = samples[&format!("node_decision_seconds_count{{node=\"{node}\"}}")];
    assert_eq!(decided, requests);
    let (node_sum, sum) = (
        samples[&format!("node_decision_seconds_sum{{node=\"{node}\"}}")],
        samples["decision_seconds_sum"],
    );
    assert_eq!(node_sum, sum);
}

/// JSON has the same numbers.
#[test]
fn json_is_the_same() {
    let redis = Redis::start();
    let nginx = metered(&redis)
        .server(&page("/a", "rate_limit_redis k name=a rate=2r/h;"))
        .server(&page("/b", "rate_limit_redis k name=b rate=2r/h;"))
        .start();
    (0..3).for_each(|_| drop(nginx.get("/a")));
    drop(nginx.get("/b"));
    let (samples, values) = (metrics(&nginx), json(&nginx));
    let number = |path: &str| -> f64 { values[path].parse().expect("a number") };
    for limit in ["a", "b"] {
        for result in RESULTS {
            let path = format!("/limits/{limit}/requests/{result}");
            assert_eq!(number(&path), requests(&samples, limit, result), "{path}");
        }
        for source in ["redis", "cache", "local"] {
            let path = format!("/limits/{limit}/decisions/{source}");
            assert_eq!(number(&path), decisions(&samples, limit, source), "{path}");
        }
    }
    assert_eq!(number("/limits/a/requests/rejected"), 1.0);
    let node = redis.addr();
    for (path, series) in [
        ("commands/evalsha", format!("commands_total{{node=\"{node}\",command=\"evalsha\"}}")),
        ("errors/timeout", format!("errors_total{{node=\"{node}\",kind=\"timeout\"}}")),
        ("connections/ready", format!("connections{{node=\"{node}\",state=\"ready\"}}")),
        (
            "connection_attempts/ready",
            format!("connection_attempts_total{{node=\"{node}\",result=\"ready\"}}"),
        ),
        (
            "topology_queries/used",
            format!("topology_queries_total{{node=\"{node}\",result=\"used\"}}"),
        ),
        ("breaker_open", format!("breaker_open{{node=\"{node}\"}}")),
        ("decision_seconds/sum", format!("node_decision_seconds_sum{{node=\"{node}\"}}")),
    ] {
        assert_eq!(number(&format!("/nodes/{node}/{path}")), samples[&series], "{path}");
    }
    assert_eq!(number("/decision_seconds/count"), 4.0);
    assert_eq!(number("/decision_seconds/buckets/+Inf"), 4.0);
    assert_eq!(number("/decision_seconds/sum"), samples["decision_seconds_sum"]);
    let used = samples["shared_memory_bytes{state=\"used\"}"];
    assert_eq!(number("/shared_memory_bytes/used"), used);
    assert_eq!(values["/build_info/version"], env!("CARGO_PKG_VERSION"));
    // JSON has nothing that Prometheus's format does not have.
    assert_eq!(values.len() + 1, samples.len() + 2, "{values:#?}");
}

/// A request that Redis does not decide is counted by what became of it.
#[test]
fn errors_are_counted_by_policy() {
    let mut redis = Redis::start();
    // One worker: each finds out by itself that Redis is gone.
    let nginx = metered(&redis)
        .workers(1)
        .server(&page("/open", "rate_limit_redis k name=open rate=1r/h;"))
        .server(&page(
            "/closed",
            "rate_limit_redis k name=closed rate=1r/h; rate_limit_redis_on_error closed;",
        ))
        .server(&page(
            "/local",
            "rate_limit_redis k name=local rate=2r/h; rate_limit_redis_on_error local;",
        ))
        .start();
    assert_eq!(nginx.get("/open").decision(), "PASSED redis");
    redis.kill9();
    nginx.wait_for_error_log("is down");
    for path in ["/open", "/closed", "/local"] {
        (0..3).for_each(|_| drop(nginx.get(path)));
    }
    let samples = metrics(&nginx);
    assert_eq!(requests(&samples, "open", "error_passed"), 3.0);
    assert_eq!(requests(&samples, "closed", "error_rejected"), 3.0);
    assert_eq!(requests(&samples, "local", "passed"), 2.0);
    assert_eq!(requests(&samples, "local", "rejected"), 1.0);
    assert_eq!(decisions(&samples, "local", "local"), 3.0);
    assert_eq!(decisions(&samples, "open", "redis"), 1.0);
    assert_eq!(decisions(&samples, "closed", "redis"), 0.0);
    assert_eq!(samples["decision_seconds_count"], 10.0);
    let node = redis.addr().to_string();
    assert_eq!(samples[&format!("node_decision_seconds_count{{node=\"{node}\"}}")], 1.0);
    // A rejection by the deny cache is not sent to Redis.
    assert_eq!(errors(&samples, &node, "down"), 8.0);
    let refused = || errors(&metrics(&nginx), &node, "connect") >= 1.0;
    wait_until(PATIENCE, refused, "an attempt to connect");
    assert_eq!(samples[&format!("breaker_open{{node=\"{node}\"}}")], 1.0);
    assert_eq!(connections(&samples, &node, "ready"), 0.0);
    assert_eq!(connections(&samples, &node, "connecting"), 1.0);
    redis.restart();
    nginx.wait_for_error_log("is up again");
    let samples = metrics(&nginx);
    assert_eq!(samples[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
    assert_eq!(connections(&samples, &node, "ready"), 1.0);
}

/// A server that accepts no connection, because its queue is full.
struct Full {
    addr: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl Full {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a port");
        let addr = listener.local_addr().expect("the address of a listener");
        // SAFETY: the socket is open.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let connect = || TcpStream::connect_timeout(&addr, Duration::from_millis(300)).ok();
        let waiting = std::iter::from_fn(connect).collect();
        Self { addr, _listener: listener, _waiting: waiting }
    }
}

/// Each attempt to connect is counted by what became of it, across workers and reloads.
#[test]
fn attempts_to_connect_are_counted_by_result() {
    let mut redis = Redis::start();
    let mut nginx =
        metered(&redis).workers(2).server("location / { rate_limit_redis k rate=9r/h; }").start();
    let node = redis.addr().to_string();
    wait_until(PATIENCE, || attempts(&nginx, &node) == [2.0, 0.0, 0.0, 0.0], "two connections");
    nginx.reload();
    wait_until(PATIENCE, || attempts(&nginx, &node) == [4.0, 0.0, 0.0, 0.0], "two more");
    redis.kill9();
    // The kernel closes the connections of the server before the listening socket: an attempt in between is lost.
    let refused = || {
        let [connected, refused, late, _lost] = attempts(&nginx, &node);
        (connected, late) == (4.0, 0.0) && refused >= 2.0
    };
    wait_until(PATIENCE, refused, "attempts that are refused");

    let closed = Redis::start_with(&["requirepass secret"]);
    let full = Full::start();
    let nginx = Conf::new()
        .http(&format!("rate_limit_redis_store closed {{ server {}; }}", closed.url()))
        .http(&format!("rate_limit_redis_store full {{ server redis://{};", full.addr))
        .http("connect_timeout 50ms; }")
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server(&page("/closed", "rate_limit_redis a rate=9r/h; rate_limit_redis_pass closed;"))
        .server(&page("/full", "rate_limit_redis a name=b rate=9r/h; rate_limit_redis_pass full;"))
        .start();
    for (addr, result) in [(closed.addr(), 3), (full.addr, 2)] {
        let node = addr.to_string();
        let counted = || attempts(&nginx, &node)[result] >= 2.0;
        wait_until(PATIENCE, counted, "two attempts with this result");
        let counts = attempts(&nginx, &node);
        assert_eq!(counts.iter().sum::<f64>(), counts[result], "{node}: {counts:?}");
    }
}

/// Each query for the topology is counted by what became of it.
#[test]
fn topology_queries_are_counted_by_result() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let has_failed = Arc::clone(&is_broken);
    let mut fakes = Fake::several(1, move |_, ports, command| match command.name().as_str() {
        "CLUSTER" if has_failed.load(Ordering::Relaxed) => Act::Reply(error("ERR no")),
        "CLUSTER" => Act::Reply(cluster_slots(&[(0, 16_383, &[Node::v6("127.0.0.1", ports[0])])])),
        _ => Act::Usual,
    });
    let fake = fakes.remove(0);
    // One worker: its queries are counted.
    let nginx = Conf::new()
        .workers(1)
        .http(&format!("rate_limit_redis_store edge {{ server {}; cluster on;", fake.url()))
        .http("connect_timeout 30s; } rate_limit_redis_pass edge;")
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .start();
    let node = format!("127.0.0.1:{}", fake.port());
    wait_until(PATIENCE, || queries(&nginx, &node) == [1.0, 0.0, 0.0, 0.0], "a query");
    // The worker queries the topology when it has lost a connection.
    fake.hang_up();
    let unchanged = || reaches(queries(&nginx, &node), [1.0, 1.0, 0.0, 0.0]);
    wait_until(PATIENCE, unchanged, "a query that changes nothing");
    is_broken.store(true, Ordering::Relaxed);
    fake.hang_up();
    let failed = || reaches(queries(&nginx, &node), [1.0, 1.0, 0.0, 1.0]);
    wait_until(PATIENCE, failed, "a query that fails");
}

/// A server that does not answer opens the breaker, while its connection stays.
#[test]
fn a_silent_server_opens_the_breaker() {
    let mut redis = Redis::start();
    // One worker: its turn, and its own errors, are counted.
    let nginx = metered(&redis)
        .workers(1)
        .server("rate_limit_redis_timeout 150ms;")
        .server("location / { rate_limit_redis $arg_k rate=1000r/h; }")
        .start();
    // On a busy machine the first ones may be too late.
    let is_decided = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, is_decided, "a decision by Redis");
    let (before, lines) = (metrics(&nginx), nginx.logged("is down").len());
    redis.stop_signal();
    let mut clients = [(); 3].map(|()| nginx.http());
    nginx.in_one_turn(|| {
        for (client, key) in clients.iter_mut().zip(["a", "b", "c"]) {
            client.send("GET", &format!("/?k={key}"), &[]);
        }
    });
    let undecided = |client: &mut Http| client.read_response().decision() == "ERROR_PASSED none";
    assert!(clients.iter_mut().all(undecided));
    let is_down = || nginx.logged("is down").len() > lines;
    wait_until(PATIENCE, is_down, "the line about the server");
    (0..2).for_each(|_| assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none"));
    let node = redis.addr().to_string();
    let samples = metrics(&nginx);
    let errors_of = |kind| errors(&samples, &node, kind) - errors(&before, &node, kind);
    assert_eq!(["timeout", "down"].map(errors_of), [3.0, 2.0], "{samples:?}");
    assert_eq!(samples[&format!("breaker_open{{node=\"{node}\"}}")], 1.0);
    let passed = |samples| requests(samples, "default", "error_passed");
    assert_eq!(passed(&samples) - passed(&before), 5.0);
    redis.cont();
    let back = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, back, "a decision");
    let samples = metrics(&nginx);
    assert_eq!(samples[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
}

/// Replies that are of no use.
#[test]
fn errors_are_counted_by_kind() {
    let fake = Fake::answering(|key| match key {
        "script" => Act::line("-ERR user_script:1: something is wrong"),
        "auth" => Act::line("-NOPERM this user has no permissions to run the 'evalsha' command"),
        "protocol" => Act::line("+OK"),
        _ => Act::Reply(ALLOWED.into()),
    });
    let nginx = Conf::new()
        .store(fake.url())
        .decisions()
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location / { rate_limit_redis $arg_k rate=9r/h; }")
        .start();
    for (kind, number) in [("script", 1), ("auth", 2), ("protocol", 3)] {
        for _ in 0..number {
            assert_eq!(nginx.get(&format!("/?k={kind}")).decision(), "ERROR_PASSED none");
        }
    }
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let samples = metrics(&nginx);
    let node = format!("127.0.0.1:{}", fake.port());
    for (kind, number) in [("script", 1.0), ("auth", 2.0), ("protocol", 3.0), ("timeout", 0.0)] {
        assert_eq!(errors(&samples, &node, kind), number, "{kind}");
    }
    assert_eq!(requests(&samples, "default", "error_passed"), 6.0);
}

/// A password that is missing, and one that the server has no use for.
#[test]
fn a_wrong_password_counts_as_auth() {
    let (closed, open) = (Redis::start_with(&["requirepass secret"]), Redis::start());
    let of = |redis: &Redis, account: &str| format!("redis://{account}{}", redis.addr());
    for (redis, account) in [(&closed, ""), (&open, ":secret@")] {
        let nginx = Conf::new()
            .store(of(redis, account))
            .server("location = /metrics { rate_limit_redis_metrics; }")
            .server("location / { rate_limit_redis k rate=9r/h; }")
            .start();
        nginx.wait_for_error_log("is down");
        let node = redis.addr().to_string();
        let errors_of = |kind| errors(&metrics(&nginx), &node, kind);
        assert!(errors_of("auth") >= 1.0, "{account}");
        assert_eq!(errors_of("unfit"), 0.0, "{account}");
    }
}

/// A request that one limit cannot decide, for want of a usable value, is counted by each limit that
/// applies to it.
#[test]
fn unusable_values_are_counted_by_policy() {
    let redis = Redis::start();
    let nginx = metered(&redis)
        .server("location / { rate_limit_redis k name=first rate=100r/h;")
        .server("rate_limit_redis k name=cost rate=100r/h cost=$arg_cost;")
        .server("rate_limit_redis k name=planned rate=100r/h cost=$arg_planned dry_run;")
        .server("rate_limit_redis $arg_none name=none rate=100r/h;")
        .server(&page("/open", ""))
        .server(&page(
            "/pass",
            "rate_limit_redis_on_error closed; rate_limit_redis_on_invalid pass;",
        ))
        .server("}")
        .start_connected(&redis);
    for (path, decision) in [
        ("/pass?cost=x&planned=1", "ERROR_PASSED none"),
        ("/open?cost=x&planned=1", "ERROR_REJECTED none"),
        ("/open?cost=x&planned=x", "ERROR_REJECTED none"),
        ("/open?cost=1&planned=x", "PASSED redis"),
    ] {
        assert_eq!(nginx.get(path).decision(), decision, "{path}");
    }
    let samples = metrics(&nginx);
    let results = ["passed", "error_passed", "error_rejected"];
    let of = |name| results.map(|result| requests(&samples, name, result));
    assert_eq!(of("first"), [1.0, 1.0, 2.0]);
    assert_eq!(of("cost"), [1.0, 1.0, 2.0]);
    assert_eq!(of("planned"), [0.0, 4.0, 0.0], "a dry run rejects nothing");
    assert_eq!(of("none"), [0.0; 3], "a limit without a key does not apply");
    assert_eq!(samples["decision_seconds_count"], 4.0);
}

/// The counters are of all workers, whichever answers, and survive them.
#[test]
fn counters_survive_workers() {
    let redis = Redis::start();
    let mut nginx = metered(&redis)
        .workers(2)
        .server("location / { rate_limit_redis k rate=1000r/h; }")
        .start();
    nginx.allow_log("exited on signal 9");
    let node = redis.addr().to_string();
    let ready = || connections(&metrics(&nginx), &node, "ready") == 2.0;
    wait_until(PATIENCE, ready, "the connections");
    (0..40).for_each(|_| drop(nginx.get("/")));
    (0..10).for_each(|_| assert_eq!(requests(&metrics(&nginx), "default", "passed"), 40.0));

    nginx.reload();
    let samples = metrics(&nginx);
    assert_eq!(requests(&samples, "default", "passed"), 40.0);
    assert_eq!(samples["decision_seconds_count"], 40.0);
    let ready = || connections(&metrics(&nginx), &node, "ready") == 2.0;
    wait_until(PATIENCE, ready, "the new connections");

    let pids = nginx.worker_pids();
    run("kill", &["-9", &pids[0].to_string()]);
    let replaced = || nginx.worker_pids().len() == 2 && !nginx.worker_pids().contains(&pids[0]);
    wait_until(PATIENCE, replaced, "a new worker");
    let ready = || connections(&metrics(&nginx), &node, "ready") == 2.0;
    wait_until(PATIENCE, ready, "no more connections than workers");
    let samples = metrics(&nginx);
    assert_eq!(connections(&samples, &node, "connecting"), 0.0);
    assert_eq!(requests(&samples, "default", "passed"), 40.0);
    drop(nginx.get("/"));
    assert_eq!(requests(&metrics(&nginx), "default", "passed"), 41.0);
}

/// The connections of all workers are counted, however many there are.
#[test]
fn connections_of_many_workers_are_counted() {
    let redis = Redis::start();
    let conf = |workers| {
        metered(&redis).workers(workers).server("location / { rate_limit_redis k rate=9r/h; }")
    };
    let mut nginx = conf(40).connections(64).start();
    let node = redis.addr().to_string();
    let ready = |nginx: &Nginx, number: f64| {
        let right = || connections(&metrics(nginx), &node, "ready") == number;
        wait_until(PATIENCE, right, "the right number of connections");
        assert_eq!(connections(&metrics(nginx), &node, "connecting"), 0.0);
    };
    ready(&nginx, 40.0);
    nginx.reload_with(&conf(3));
    ready(&nginx, 3.0);
}

/// With fewer workers, and with another server, those that are gone are not counted.
#[test]
fn connections_of_workers_that_are_gone_are_not_counted() {
    let (first, second) = (Redis::start(), Redis::start());
    let conf = |redis, workers| {
        metered(redis).workers(workers).server("location / { rate_limit_redis k rate=9r/h; }")
    };
    let mut nginx = conf(&first, 3).start();
    let ready = |nginx: &Nginx, redis: &Redis, number: f64| {
        let node = redis.addr().to_string();
        let right = || connections(&metrics(nginx), &node, "ready") == number;
        wait_until(PATIENCE, right, "the right number of connections");
        assert_eq!(connections(&metrics(nginx), &node, "connecting"), 0.0);
        assert_eq!(metrics(nginx)[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
    };
    ready(&nginx, &first, 3.0);
    nginx.reload_with(&conf(&first, 1));
    ready(&nginx, &first, 1.0);
    nginx.reload_with(&conf(&second, 1));
    ready(&nginx, &second, 1.0);
    ready(&nginx, &first, 0.0);
}

/// Workers that were killed are not counted either.
#[test]
fn connections_of_workers_that_were_killed_are_not_counted() {
    let redis = Redis::start();
    let conf = |workers| {
        metered(&redis).workers(workers).server("location / { rate_limit_redis k rate=9r/h; }")
    };
    let mut nginx = conf(2).start();
    nginx.allow_log("exited on signal 9");
    let node = redis.addr().to_string();
    let ready = |nginx: &Nginx| connections(&metrics(nginx), &node, "ready");
    wait_until(PATIENCE, || ready(&nginx) == 2.0, "the connections");
    let old: Vec<_> = nginx.worker_pids().iter().map(u32::to_string).collect();
    let signal = |signal: &str| {
        old.iter().for_each(|pid| drop(run("kill", &[signal, pid])));
    };
    let log = nginx.path("error.log");
    let started =
        || fs::read_to_string(&log).expect("the log").matches("start worker process ").count();
    let before = started();
    signal("-STOP");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The master no longer replaces those of the old configuration.
            wait_until(PATIENCE, || started() > before, "a new worker");
            signal("-KILL");
        });
        nginx.reload_with(&conf(1));
    });
    wait_until(PATIENCE, || ready(&nginx) == 1.0, "the connection of the only worker");
    assert_eq!(metrics(&nginx)[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
}

/// A worker that takes its time to leave closes its connection. Nothing is wrong with the server.
#[test]
fn a_worker_that_leaves_slowly_closes_its_connection() {
    let redis = Redis::start();
    // One worker: it is the one that has the slow request.
    let mut nginx = metered(&redis)
        .workers(1)
        .status()
        .file("html/long", &"x".repeat(9_000_000))
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .server("location = /long { limit_rate 100k; }")
        .start();
    let node = redis.addr().to_string();
    let mut slow = nginx.http();
    slow.send("GET", "/long", &[]);
    nginx.wait_for_requests(1, 0);
    let other = Redis::start();
    let text = nginx.read("nginx.conf").replace(&redis.url(), &other.url());
    fs::write(nginx.path("nginx.conf"), text).expect("write a configuration");
    let old = nginx.reload_signal();
    let samples = || metrics(&nginx);
    let left = || connections(&samples(), &node, "ready") == 0.0;
    wait_until(PATIENCE, left, "the end of the connection");
    assert_eq!(connections(&samples(), &node, "connecting"), 0.0);
    assert_eq!(samples()[&format!("breaker_open{{node=\"{node}\"}}")], 0.0);
    assert!(std::path::Path::new(&format!("/proc/{}", old[0])).exists());
    drop(slow);
}

/// With `timer_resolution` a turn of the event loop begins at a time that NGINX does not know.
#[test]
fn what_is_not_known_is_not_counted() {
    let redis = Redis::start();
    for (resolution, is_counted) in [("", true), ("timer_resolution 500ms;", false)] {
        let nginx = metered(&redis)
            .main(resolution)
            .server(&page("/", "rate_limit_redis $arg_k rate=9r/d;"))
            .start();
        wait_until(PATIENCE, || nginx.get("/?k=a").decision().ends_with("redis"), resolution);
        let samples = metrics(&nginx);
        assert!(samples["decision_seconds_count"] > 0.0, "{resolution}");
        assert_eq!(samples["worker_lag_seconds_count"] > 0.0, is_counted, "{resolution}");
    }
}

#[test]
fn local_decisions_fill_the_memory() {
    let mut redis = Redis::start();
    redis.kill9();
    let nginx = metered(&redis)
        .http("rate_limit_redis_shared_memory 256k; rate_limit_redis_on_error local;")
        .server("location / { rate_limit_redis $arg_k rate=9r/h; }")
        .start();
    nginx.wait_for_error_log("is down");
    let used = |samples: &Samples| samples["shared_memory_bytes{state=\"used\"}"];
    let before = metrics(&nginx);
    assert_eq!(used(&before) + before["shared_memory_bytes{state=\"free\"}"], f64::from(256 << 10));
    let mut http = nginx.http();
    (0..10).for_each(|n| assert_eq!(http.get(&format!("/?k={n}")).decision(), "PASSED local"));
    assert_eq!(used(&metrics(&nginx)) - used(&before), 640.0);
    let mut http = nginx.http();
    for n in 0..5_000 {
        if n % 900 == 899 {
            http = nginx.http();
        }
        http.get(&format!("/?k={n}"));
    }
    let after = metrics(&nginx);
    assert_eq!(after["shared_memory_bytes{state=\"free\"}"], 0.0);
    let local = |samples: &Samples| samples["local_state_bytes"];
    assert_eq!(local(&before), 0.0);
    assert_eq!(local(&after), used(&after) - used(&before));
    assert!(after["shared_memory_evictions_total"] > 1_000.0, "{after:?}");
    assert_eq!(after["shared_memory_no_room_total"], 0.0);
}

#[test]
fn a_limit_without_a_record_is_logged() {
    let redis = Redis::start();
    let limit = |n| format!("location /{n} {{ rate_limit_redis a name=n{n} rate=9r/h; }}");
    let nginx = metered(&redis)
        .http("rate_limit_redis_shared_memory 256k;")
        .server(&(0..40).map(limit).collect::<String>())
        .start_connected(&redis);
    assert_eq!(nginx.get("/39").header("X-RateLimit-Remaining"), Some("8"));
    let samples = metrics(&nginx);
    let is_shown =
        |n| samples.contains_key(&format!("requests_total{{name=\"n{n}\",result=\"passed\"}}"));
    assert!(is_shown(0) && !is_shown(39), "{samples:?}");
    assert_eq!(
        nginx.logged("room for more: 11, such as \"n29\"").len(),
        1,
        "{}",
        nginx.error_log()
    );
}

/// A node that comes when there is no room for more takes the record of one that is gone, and nothing of
/// what was counted and noted there.
#[test]
fn a_node_begins_with_nothing() {
    let redis = Redis::start();
    // One worker: its connections are counted.
    let small = |conf: Conf| {
        conf.workers(1)
            .http("rate_limit_redis_shared_memory 256k;")
            .server("location = /metrics { rate_limit_redis_metrics; }")
    };
    let absent = |n| {
        let limit = format!("rate_limit_redis a name=n{n} rate=9r/h;");
        page(&format!("/{n}"), &format!("{limit} rate_limit_redis_pass redis://127.0.0.1:{n};"))
    };
    let mut nginx = small(Conf::new()).server(&(1..=16).map(absent).collect::<String>()).start();
    let errors = |nginx: &Nginx, node: &str| -> Vec<f64> {
        let name = format!("errors_total{{node=\"{node}\"");
        let samples = metrics(nginx).into_iter().filter(|(sample, _)| sample.starts_with(&name));
        samples.map(|(_, value)| value).collect()
    };
    let is_counted = || errors(&nginx, "127.0.0.1:1").iter().sum::<f64>() > 0.0;
    wait_until(PATIENCE, is_counted, "errors of a node that is not there");
    assert!(errors(&nginx, "127.0.0.1:16").is_empty(), "there is no room for all");
    // So that no worker knows the first of them any more.
    nginx.reload_with(&small(Conf::new()).server(&absent(2)));
    let limit = page("/", "rate_limit_redis a rate=9r/h;");
    nginx.reload_with(&small(Conf::new().redis(&redis)).server(&limit));
    let node = format!("127.0.0.1:{}", redis.port());
    let ready = format!("connections{{node=\"{node}\",state=\"ready\"}}");
    wait_until(PATIENCE, || metrics(&nginx).get(&ready) == Some(&1.0), "a connection");
    assert!(errors(&nginx, &node).iter().all(|count| *count == 0.0), "{:?}", metrics(&nginx));
    assert_eq!(nginx.get("/").header("X-RateLimit-Remaining"), Some("8"));
    assert!(!nginx.error_log().contains("is up again"), "{}", nginx.error_log());
}

/// Sends a request and returns the answer.
fn request(nginx: &Nginx, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send(method, path, headers);
    http.read_response()
}

#[test]
fn only_get_and_head_are_answered() {
    // Without limits no worker connects, so that HEAD and GET find the same numbers.
    let nginx = Conf::new().server("location = /metrics { rate_limit_redis_metrics; }").start();
    let mut http = nginx.http();
    let head = http.head("/metrics");
    assert_eq!(head.status, 200);
    let length: usize = head.header("Content-Length").expect("a length").parse().unwrap();
    let get = http.get("/metrics");
    assert_eq!((get.status, get.body.len()), (200, length));
    assert_eq!(get.header("Cache-Control"), Some("no-store"));
    let post = http.post("/metrics", b"format=json");
    assert_eq!((post.status, post.header("Allow")), (405, Some("GET, HEAD")));
    // The connection goes on after that.
    assert_eq!(http.get("/metrics?format=json").status, 200);
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "ODD"] {
        assert_eq!(request(&nginx, method, "/metrics", &[]).status, 405, "{method}");
    }
    // A body that comes with a GET is read and forgotten.
    http.send("GET", "/metrics", &[("Content-Length", "3")]);
    http.send_raw(b"abc");
    assert_eq!(http.read_response().status, 200);
    assert_eq!(http.get("/metrics").status, 200);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

#[test]
fn the_client_chooses_the_form() {
    let redis = Redis::start();
    let nginx = metered(&redis).server("location / { rate_limit_redis k rate=9r/h; }").start();
    let of = |path: &str, accept: &[&str]| {
        let headers: Vec<_> = accept.iter().map(|accept| ("accept", *accept)).collect();
        let response = request(&nginx, "GET", path, &headers);
        assert_eq!(response.status, 200, "{path} {accept:?}");
        response.header("Content-Type").expect("a type").to_owned()
    };
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    assert_eq!(of("/metrics", &[]), TEXT);
    assert_eq!(of("/metrics", &["*/*"]), TEXT);
    assert_eq!(of("/metrics", &["application/openmetrics-text;version=1.0.0,*/*;q=0.1"]), TEXT);
    assert_eq!(of("/metrics", &[browser]), HTML);
    assert_eq!(of("/metrics", &["application/json"]), JSON);
    assert_eq!(of("/metrics", &["text/html;q=0.1, application/json;q=0.2"]), JSON);
    assert_eq!(of("/metrics", &["text/html;q=0.5", "application/json"]), JSON);
    assert_eq!(of("/metrics", &["\u{e4}\u{ff};;q=,,"]), TEXT);
    assert_eq!(of("/metrics?format=json", &[browser]), JSON);
    assert_eq!(of("/metrics?format=prometheus", &[browser]), TEXT);
    assert_eq!(of("/metrics?a=b&format=html", &["application/json"]), HTML);
    for unknown in ["xml", "", "JSON", "json%20", "jsonx"] {
        let path = format!("/metrics?format={unknown}");
        assert_eq!(nginx.get(&path).status, 400, "{path}");
    }
    let lines = nginx.logged("invalid \"format\": it must be prometheus, json or html");
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn the_administrator_chooses_the_form() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location = /text { rate_limit_redis_metrics prometheus; }")
        .server("location = /json { rate_limit_redis_metrics json; }")
        .server("location = /html { rate_limit_redis_metrics html; }")
        .server("location = /if { rate_limit_redis_metrics json; if ($arg_a) { set $b 1; } }")
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .start();
    for (path, expected) in [("/text", TEXT), ("/json", JSON), ("/html", HTML), ("/if", JSON)] {
        for query in ["", "?format=prometheus", "?format=html", "?format=xml", "?a=b"] {
            let path = format!("{path}{query}");
            for accept in ["*/*", "text/html", "application/json", "text/plain"] {
                let response = request(&nginx, "GET", &path, &[("Accept", accept)]);
                assert_eq!(response.status, 200, "{path} {accept}");
                assert_eq!(response.header("Content-Type"), Some(expected), "{path} {accept}");
            }
        }
    }
    // The page for a browser needs its numbers.
    assert_eq!(nginx.get("/html?format=json").header("Content-Type"), Some(JSON));
    assert_eq!(nginx.get("/text?format=json").header("Content-Type"), Some(TEXT));
}

#[test]
fn a_browser_gets_a_page_that_may_be_compressed() {
    let redis = Redis::start();
    let nginx = metered(&redis)
        .http("charset utf-8; gzip on; gzip_min_length 1;")
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .start();
    let page = nginx.get("/metrics?format=html");
    assert_eq!(page.header("Content-Type"), Some(HTML));
    assert_eq!(page.header("Cache-Control"), Some("no-store"));
    assert!(page.text().starts_with("<!DOCTYPE html>\n<html lang=\"en\">"));
    assert!(page.text().contains("?format=json"));
    // NGINX knows what it is, and so compresses it as any other page.
    let headers = [("Accept-Encoding", "gzip")];
    let packed = request(&nginx, "GET", "/metrics?format=html", &headers);
    assert_eq!(packed.header("Content-Encoding"), Some("gzip"));
    assert_eq!(nginx.get("/metrics").header("Content-Security-Policy"), None);
    assert_eq!(nginx.get("/metrics").header("Content-Type"), Some(TEXT));
}

/// A browser uses the script and the style of the page, and none that was injected.
#[test]
fn the_page_has_a_content_security_policy() {
    let nginx = Conf::new().server("location = /metrics { rate_limit_redis_metrics; }").start();
    let page = nginx.get("/metrics?format=html");
    let hash = |element: &str| {
        let (_, rest) = page.text().split_once(&format!("<{element}>")).expect("an element");
        let (content, _) = rest.split_once(&format!("</{element}>")).expect("its end");
        fs::write(nginx.path(element), content).expect("write a file");
        let file = nginx.path(element).display().to_string();
        let digest = "openssl dgst -sha256 -binary \"$0\" | openssl base64";
        format!("'sha256-{}'", run("sh", &["-c", digest, &file]).trim())
    };
    let mut expected = vec![
        "default-src 'none'".to_owned(),
        "connect-src 'self'".to_owned(),
        "img-src data:".to_owned(),
        "base-uri 'none'".to_owned(),
        "form-action 'none'".to_owned(),
        "frame-ancestors 'none'".to_owned(),
        format!("script-src {}", hash("script")),
        format!("style-src {}", hash("style")),
    ];
    let policy = page.header("Content-Security-Policy").expect("a policy");
    let mut found: Vec<_> = policy.split("; ").collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for form in ["html", "json", "prometheus"] {
        let page = nginx.get(&format!("/metrics?format={form}"));
        assert_eq!(page.header("X-Content-Type-Options"), Some("nosniff"), "{form}");
    }
}

#[test]
fn the_page_can_be_limited_and_closed() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location = /limited { rate_limit_redis_metrics;")
        .server("rate_limit_redis k name=scrape rate=2r/h; }")
        .server("location = /closed { rate_limit_redis_metrics; deny all; }")
        .start();
    let statuses: Vec<_> = (0..3).map(|_| nginx.get("/limited").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(nginx.get("/closed").status, 403);
}

#[test]
fn a_page_without_limits_names_none() {
    let nginx = Conf::new().server("location = /metrics { rate_limit_redis_metrics; }").start();
    let samples = metrics(&nginx);
    assert!(samples.keys().all(|series| !series.contains("{name=") && !series.contains("{node=")));
    assert_eq!(samples["decision_seconds_count"], 0.0);
    assert!(nginx.get("/metrics?format=json").text().starts_with("{\"limits\":{},\"nodes\":{},"));
}

#[test]
fn a_process_without_a_master_counts_a_unix_socket() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .single()
        .store(redis.unix_url())
        .decisions()
        .server("location = /metrics { rate_limit_redis_metrics; }")
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .start();
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    let samples = metrics(&nginx);
    let ready = samples.iter().find(|(series, _)| {
        series.starts_with("connections{node=\"")
            && series.ends_with("redis.sock\",state=\"ready\"}")
    });
    assert_eq!(ready.map(|(_, count)| *count), Some(1.0), "{samples:#?}");
    assert!(samples["decision_seconds_sum"] < Duration::from_secs(5).as_secs_f64());
}
