//! The configurations of nginx-conf/ do what their comments promise.

use std::fs;
use std::time::Instant;

use harness::{Authority, ClusterConf, Conf, Nginx, PATIENCE, Redis, SentinelConf, wait_until};

pub fn read(name: &str) -> String {
    let path = format!("{}/../nginx-conf/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// The account of limiter.acl, as a line of redis.conf.
pub fn account() -> String {
    read("limiter.acl").trim_end().to_owned()
}

/// The example of this name, with the servers of the test in place of those that it names.
pub fn example(name: &str, servers: &[(&str, String)]) -> Conf {
    let text = read(&format!("{name}.conf"));
    let (_, http) = text.split_once("\nhttp {\n").expect("a block for http");
    let mut http = http.trim_end().strip_suffix('}').expect("its end").to_owned();
    for (from, to) in servers {
        assert!(http.contains(from), "{name} does not name {from}");
        http = http.replace(from, to);
    }
    http = http
        .replace("listen 8080;", "listen 127.0.0.1:{port} default_server;")
        .replace("listen 127.0.0.1:8080;", "listen 127.0.0.1:{port} default_server;")
        .replace("127.0.0.1:8081", "unix:{prefix}/application.sock");
    assert!(http.contains("{port}") && !http.contains(":80"), "{name} has ports of its own");
    // The machine of a test may be too busy to connect in the default time.
    http = http.replace("_store edge {", "_store edge { connect_timeout 30s;");
    // The server of the harness steps back behind the example's own.
    Conf::new()
        .server("server_name harness;")
        .http("server_names_hash_bucket_size 64; rate_limit_redis_timeout 5s;")
        .http(&http)
}

/// A hundred requests a minute, and no complaint.
#[track_caller]
fn limits(nginx: &Nginx) {
    let mut http = nginx.http();
    let start = Instant::now();
    let (mut passed, mut rejected) = (0, 0);
    while rejected < 5 {
        match http.get("/").status {
            200 => passed += 1,
            429 => rejected += 1,
            status => panic!("status {status}"),
        }
        assert!(start.elapsed() < PATIENCE, "{passed} passed, {rejected} did not");
    }
    // On a slow machine one comes back every 600 ms.
    let gained = start.elapsed().as_millis() / 600;
    assert!((100..=100 + gained).contains(&passed), "{passed} passed, gained {gained}");
    let errors = nginx.logged("[error]");
    assert!(errors.iter().all(|line| line.contains("limiting requests")), "{errors:#?}");
}

#[test]
fn the_cluster_example_limits() {
    let cluster = ClusterConf::new(3, 0).line(&account()).start();
    let seeds: Vec<_> =
        (1..=3).map(|n| (format!("redis://10.0.0.{n}:6379"), cluster.url(n - 1))).collect();
    let seeds: Vec<_> = seeds.iter().map(|(from, to)| (from.as_str(), to.clone())).collect();
    limits(&example("cluster", &seeds).start());
}

#[test]
fn the_sentinel_example_limits() {
    let sentinels = SentinelConf::new(1).line(&account()).start();
    let urls = sentinels.urls();
    let seeds: Vec<_> = urls
        .iter()
        .enumerate()
        .map(|(n, url)| (format!("redis://10.0.0.{}:26379", n + 1), url.clone()))
        .collect();
    let seeds: Vec<_> = seeds.iter().map(|(from, to)| (from.as_str(), to.clone())).collect();
    limits(&example("sentinel", &seeds).start());
}

#[test]
fn the_tls_example_limits_with_an_account() {
    let authority = Authority::new();
    let server = authority.issue("DNS:localhost");
    let redis = Redis::start_tls(&authority, &server, &[&account(), "tls-auth-clients yes"]);
    let client = authority.issue("DNS:nginx");
    let files = [
        ("rediss://10.0.0.1:6379", format!("rediss://127.0.0.1:{}", redis.tls_port())),
        ("redis.internal", "localhost".to_owned()),
        ("# ssl_", "ssl_".to_owned()),
        ("ca.pem", authority.certificate()),
        ("client.pem", client.certificate.clone()),
        ("client.key", client.key.clone()),
    ];
    limits(&example("tls", &files).start());
}

#[test]
fn the_minimal_example_limits() {
    let redis = Redis::start();
    let server = [("redis://127.0.0.1:6379", redis.url())];
    let text = read("minimal.conf");
    assert!(text.contains("location /rating"));
    let nginx = example("minimal", &server).start();
    // Before nginx is connected to Redis, nothing is counted.
    let mut first = None;
    let decided = || {
        first = Some(nginx.get("/rating")).filter(|response| response.remaining().is_some());
        first.is_some()
    };
    wait_until(PATIENCE, decided, "a decision");
    let response = first.expect("a response");
    assert_eq!((response.status, response.remaining()), (200, Some(99)));
}
