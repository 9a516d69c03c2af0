//! HTTP/3, with an NGINX that has it: that of Debian 12 does not.

use std::process::Command;
use std::time::Duration;

use harness::{Conf, Nginx, PATIENCE, Redis, free_port, run, wait_until};

use crate::seen::{StartConnected, tokens};

/// Whether NGINX has HTTP/3. One that is new enough must: else these tests would test nothing.
pub fn has_http3() -> bool {
    let nginx = std::env::var("RATE_LIMIT_NGINX").unwrap_or_else(|_| "/usr/sbin/nginx".to_owned());
    let output = Command::new(nginx).arg("-V").output().expect("nginx -V");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let has = text.contains("--with-http_v3_module");
    assert!(has || text.contains("nginx/1.22."), "an nginx without HTTP/3: {text}");
    has
}

/// A server that speaks HTTP/3.
pub struct Http3 {
    _keys: tempfile::TempDir,
    redis: Redis,
    pub nginx: Nginx,
    port: String,
}

impl Http3 {
    /// A server with this in it.
    pub fn start(snippet: &str) -> Self {
        let redis = Redis::start();
        let keys = tempfile::tempdir().expect("a temp dir");
        let path = |name: &str| keys.path().join(name).to_str().expect("a path").to_owned();
        let (key, certificate) = (path("key.pem"), path("certificate.pem"));
        let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"];
        run("openssl", &[&request[..], &["-keyout", &key, "-out", &certificate]].concat());
        let port = free_port().to_string();
        let nginx = Conf::new()
            .redis(&redis)
            .set("quic", &port)
            .http("server { listen 127.0.0.1:{quic} quic; root {prefix}/html;")
            .http(&format!("ssl_certificate {certificate}; ssl_certificate_key {key};"))
            .http(snippet)
            .http("}")
            .server("location = /metrics { access_log off; rate_limit_redis_metrics json; }")
            .start_connected(&redis);
        Self { _keys: keys, redis, nginx, port }
    }

    /// The output of the client about so many requests, each in a stream of its own.
    fn request(&self, number: usize) -> String {
        self.client(&format!("--exit-on-all-streams-close -n {number}"), "/")
    }

    /// The output of a client with these options about requests for `path`, however it ends.
    pub fn client(&self, options: &str, path: &str) -> String {
        let command = format!("gtlsclient --no-quic-dump --no-http-dump {options}");
        self.run(&format!("{command} {} 2>&1 || true", self.target(path)))
    }

    /// Has a client of many requests be killed after this time.
    pub fn killed_client(&self, time: Duration, path: &str) {
        let command = format!("timeout -s KILL {} gtlsclient -q -n 100", time.as_secs_f64());
        self.run(&format!("{command} {} >/dev/null 2>&1 || true", self.target(path)));
    }

    fn target(&self, path: &str) -> String {
        format!("127.0.0.1 {0} https://localhost:{0}{path}", self.port)
    }

    fn run(&self, command: &str) -> String {
        run("sh", &["-c", command])
    }
}

/// The values of a field, in the order of the streams.
pub fn values<'a>(said: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" [{name}: ");
    let lines = said.lines().filter(|line| line.starts_with("http: stream "));
    lines.filter_map(|line| line.split_once(&start)?.1.strip_suffix(']')).collect()
}

#[test]
fn every_stream_is_limited_for_itself() {
    if !has_http3() {
        return;
    }
    let limit = "rate_limit_redis all rate=9r/d capacity=3; rate_limit_redis_body problem;";
    let http3 = Http3::start(limit);
    let said = http3.request(5);
    assert_eq!(values(&said, ":status"), ["200", "200", "200", "429", "429"], "{said}");
    assert_eq!(values(&said, "x-ratelimit-remaining"), ["2", "1", "0", "0", "0"], "{said}");
    let waits: Vec<u64> =
        values(&said, "retry-after").iter().map(|value| value.parse().expect("seconds")).collect();
    // A slow machine counts from the first request a little later.
    assert!(waits.len() == 2 && waits.iter().all(|wait| (9_590..=9_600).contains(wait)), "{said}");
    assert_eq!(values(&said, "content-type")[3..], ["application/problem+json"; 2], "{said}");
    // Requests of one turn share a command.
    assert!((1..=5).contains(&http3.redis.calls("evalsha")));
}

#[test]
fn a_stream_waits_for_its_turn() {
    if !has_http3() {
        return;
    }
    let http3 = Http3::start("rate_limit_redis all algorithm=leaky_bucket rate=1r/2s burst=1;");
    let said = http3.request(3);
    let mut statuses = values(&said, ":status");
    statuses.sort_unstable();
    assert_eq!(statuses, ["200", "200", "429"], "{said}");
    http3.nginx.wait_for_error_log("delaying request, excess: ");
}

/// Limits that block, that decide after the access checks, that only would decide; and one that is
/// settled when the stream has ended.
#[test]
fn limits_of_every_kind_count_streams() {
    if !has_http3() {
        return;
    }
    let http3 = Http3::start(
        "rate_limit_redis all rate=9r/d block=1d; rate_limit_redis all name=dry rate=1r/d dry_run; \
         rate_limit_redis all name=after rate=100r/d after=auth settle=3;",
    );
    let said = http3.request(10);
    let mut statuses = values(&said, ":status");
    statuses.sort_unstable();
    assert_eq!((&statuses[..9], statuses[9]), (&["200"; 9][..], "429"), "{said}");
    assert_eq!(values(&said, "retry-after"), ["86400"], "{said}");
    let left = || tokens(&http3.redis, "rl:after:all");
    wait_until(PATIENCE, || left() == Some(100 - 9 * 3), "nine settlements");
}

#[test]
fn a_client_that_leaves_is_forgotten() {
    if !has_http3() {
        return;
    }
    let mut http3 = Http3::start("rate_limit_redis all rate=9r/d; rate_limit_redis_timeout 5s;");
    http3.redis.stop_signal();
    // It gives up after half a second of silence, without a close.
    let command = format!(
        "gtlsclient -q --timeout=500ms 127.0.0.1 {0} https://localhost:{0}/ || true",
        http3.port
    );
    run("sh", &["-c", &command]);
    http3.redis.cont();
    let said = http3.request(1);
    assert_eq!(values(&said, ":status"), ["200"], "{said}");
}
