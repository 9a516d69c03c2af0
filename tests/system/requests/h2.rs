//! HTTP/2: many requests at once in one connection.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use harness::frames::{END_STREAM, Frame, Frames};
use harness::{Conf, Nginx, PATIENCE, Redis, h2load, run, wait_until};

use crate::seen::{StartConnected as _, lines, remaining, tokens};

fn conf(redis: &Redis, limit: &str) -> Conf {
    Conf::new()
        .http2()
        .redis(redis)
        .http("log_format h2 '$status $request_uri $rate_limit_redis_remaining';")
        .server("access_log {prefix}/h2.log h2; keepalive_requests 10000;")
        // Longer than any of these tests has Redis stopped.
        .server("rate_limit_redis_timeout 60s;")
        .server(limit)
}

/// How many requests were logged with which status, once so many are.
fn statuses(nginx: &Nginx, number: usize) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for line in lines(nginx, "h2.log", number) {
        *tally.entry(line[..3].to_owned()).or_default() += 1;
    }
    tally
}

fn tally<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.map(|(status, number)| (status.to_owned(), number)).into()
}

#[test]
fn fifty_streams_of_one_connection_are_counted_exactly() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=60r/d;").start_connected(&redis);
    let seen = h2load(&["-n", "200", "-c", "1", "-m", "50", &nginx.h2_url("/")]);
    assert!(seen.failures.is_empty(), "{seen:?}");
    assert_eq!((seen.of(200), seen.of(400)), (60, 140));
    assert_eq!(statuses(&nginx, 200), tally([("200", 60), ("429", 140)]));
    assert_eq!(tokens(&redis, "rl:default:127.0.0.1"), Some(0));
}

#[test]
fn many_connections_of_two_workers_are_counted_exactly() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=300r/d;")
        .workers(2)
        .start_connected(&redis);
    let seen = h2load(&["-n", "1000", "-c", "8", "-m", "25", &nginx.h2_url("/index.html")]);
    assert!(seen.failures.is_empty(), "{seen:?}");
    assert_eq!((seen.of(200), seen.of(400)), (300, 700));
    assert_eq!(statuses(&nginx, 1000), tally([("200", 300), ("429", 700)]));
}

#[test]
fn each_stream_has_its_own_numbers() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=100r/d;").start_connected(&redis);
    let urls: Vec<_> = (0..20).map(|n| nginx.h2_url(&format!("/?{n}"))).collect();
    let mut arguments = vec!["-n", "-v"];
    arguments.extend(urls.iter().map(String::as_str));
    let output = run("nghttp", &arguments);
    let field = "x-ratelimit-remaining: ";
    let mut shown: Vec<u64> =
        output.lines().filter_map(|line| line.split_once(field)?.1.trim().parse().ok()).collect();
    shown.sort_unstable();
    assert_eq!(shown, (80..100).collect::<Vec<_>>(), "{output}");
    assert_eq!(output.matches(" x-ratelimit-limit: 100").count(), 20, "{output}");
}

/// The output of `curl`, which speaks HTTP/2 at once; panics unless it succeeds.
fn curl(arguments: &[&str]) -> String {
    let mut all = vec!["-sS", "-i", "--max-time", "60", "--http2-prior-knowledge"];
    all.extend(arguments);
    run("curl", &all)
}

#[test]
fn fields_are_shown_in_small_letters() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=1r/d;").start_connected(&redis);
    let passed = curl(&[&nginx.h2_url("/")]);
    let rejected = curl(&[&nginx.h2_url("/")]);
    for (output, status, retry_after) in [(&passed, "200", 0), (&rejected, "429", 1)] {
        assert!(output.starts_with(&format!("HTTP/2 {status}")), "{output}");
        let count = |field: &str| output.matches(&format!("\n{field}: ")).count();
        assert_eq!(count("x-ratelimit-limit"), 1, "{output}");
        assert_eq!(count("x-ratelimit-remaining"), 1, "{output}");
        assert_eq!(count("x-ratelimit-reset"), 1, "{output}");
        assert_eq!(count("retry-after"), retry_after, "{output}");
    }
}

#[test]
fn internal_redirects_are_charged_once() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=100r/d;")
        .server("error_page 404 /404.txt;")
        .file("html/404.txt", "not here\n")
        .start_connected(&redis);
    let output = curl(&[&nginx.h2_url("/nothing")]);
    assert!(output.ends_with("not here\n"), "{output}");
    assert_eq!(output.matches("x-ratelimit-remaining: 99").count(), 1, "{output}");
    assert_eq!(tokens(&redis, "rl:default:127.0.0.1"), Some(99));
}

#[test]
fn a_large_body_is_kept_while_the_request_waits() {
    let mut redis = Redis::start();
    let body = "0123456789abcdef".repeat(20_000);
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=100r/d;")
        .http("server { listen 127.0.0.1:{port2}; location / { return 200 $http_x_length; } }")
        .http("log_format body $request_body;")
        .server("client_body_buffer_size 1m; access_log {prefix}/body.log body;")
        .server("location / { proxy_pass http://127.0.0.1:{port2};")
        .server("proxy_set_header X-Length $request_length; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let file = tempfile::NamedTempFile::new().expect("a temp file");
    fs_write(&file, &body);
    let data = format!("@{}", file.path().display());
    redis.stop_signal();
    thread::scope(|scope| {
        let url = nginx.h2_url("/");
        let sent = scope.spawn(move || curl(&["--data-binary", &data, &url]));
        thread::sleep(Duration::from_millis(300));
        redis.cont();
        let output = sent.join().expect("a response");
        assert!(output.starts_with("HTTP/2 200"), "{output}");
        assert_eq!(output.matches("x-ratelimit-remaining: 98").count(), 1, "{output}");
    });
    let received = lines(&nginx, "body.log", 2);
    assert!(received[1] == body, "{} bytes of the body came through", received[1].len());
}

fn fs_write(file: &tempfile::NamedTempFile, text: &str) {
    std::fs::write(file.path(), text).expect("write a temp file");
}

#[test]
fn a_client_that_leaves_is_charged_for_requests_in_flight() {
    let mut redis = Redis::start();
    let nginx =
        conf(&redis, "rate_limit_redis $remote_addr rate=100r/d;").status().start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    redis.stop_signal();
    let mut client = Command::new("nghttp")
        .args(["-n", &nginx.h2_url("/?a"), &nginx.h2_url("/?b"), &nginx.h2_url("/?c")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("run nghttp");
    nginx.wait_for_requests(3, 0);
    client.kill().expect("kill nghttp");
    client.wait().expect("wait for nghttp");
    let logged = || nginx.read("h2.log").lines().count();
    wait_until(PATIENCE, || logged() == 4, "the end of its requests");
    assert_eq!(statuses(&nginx, 4), tally([("200", 1), ("499", 3)]));
    redis.cont();
    // Their commands were in flight, so they are charged.
    assert_eq!(remaining(&nginx.get("/")), 95);
}

#[test]
fn bodies_that_come_late_are_read_or_discarded() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=2r/d;")
        .http("server { listen 127.0.0.1:{port2}; location / { return 200; } }")
        .http("log_format body $request_body;")
        .server("access_log {prefix}/body.log body;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let mut client = Frames::connect(nginx.h2_addr());
    client.send(&Frame::post(1, "/?passes"));
    thread::sleep(Duration::from_millis(100));
    client.send(&Frame::data(1, 0, b"la"));
    thread::sleep(Duration::from_millis(100));
    client.send(&Frame::data(1, END_STREAM, b"te"));
    client.wait_for_end(1);
    client.send(&Frame::get(3, "/?passes"));
    client.wait_for_end(3);
    client.send(&Frame::post(5, "/?rejected"));
    client.wait_for_end(5);
    client.send(&Frame::data(5, END_STREAM, b"late"));
    client.send(&Frame::get(7, "/?rejected"));
    client.wait_for_end(7);
    let log = lines(&nginx, "h2.log", 4);
    assert_eq!(log, ["200 /?passes 1", "200 /?passes 0", "429 /?rejected 0", "429 /?rejected 0"]);
    assert_eq!(lines(&nginx, "body.log", 4)[0], "late");
}

#[test]
fn a_stream_that_is_reset_leaves_the_others_waiting() {
    let mut redis = Redis::start();
    let nginx =
        conf(&redis, "rate_limit_redis $remote_addr rate=100r/d;").status().start_connected(&redis);
    let mut client = Frames::connect(nginx.h2_addr());
    client.send(&Frame::get(1, "/?first"));
    client.wait_for_end(1);
    redis.stop_signal();
    // In one turn, so that all are in flight.
    nginx.in_one_turn(|| {
        for stream in [3, 5, 7] {
            client.send(&Frame::get(stream, &format!("/?{stream}")));
        }
    });
    nginx.wait_for_requests(3, 0);
    client.send(&Frame::cancel(3));
    client.send(&Frame::cancel(7));
    let logged = || nginx.read("h2.log").lines().count();
    wait_until(PATIENCE, || logged() == 3, "the end of the cancelled requests");
    assert_eq!(statuses(&nginx, 3), tally([("200", 1), ("499", 2)]));

    redis.cont();
    client.wait_for_end(5);
    client.send(&Frame::get(9, "/?last"));
    client.wait_for_end(9);
    let log = lines(&nginx, "h2.log", 5);
    // The commands of the cancelled ones were in flight, so they are charged.
    assert_eq!(log[3..], ["200 /?5 97", "200 /?last 95"], "{log:?}");
}

#[test]
fn hundreds_of_streams_that_are_reset_cost_few_commands() {
    let mut redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis $remote_addr rate=10000r/d;")
        .server("http2_max_concurrent_streams 128;")
        .server("location = /metrics { access_log off; rate_limit_redis off;")
        .server("rate_limit_redis_metrics prometheus; }")
        .status()
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let commands = || {
        let page = nginx.get("/metrics").text().to_owned();
        let is_it = |line: &&str| line.contains("commands_total{") && line.contains("\"evalsha\"");
        let line = page.lines().find(is_it).expect("a number of commands").to_owned();
        line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    redis.stop_signal();
    let mut client = Frames::connect(nginx.h2_addr());
    let mut stream = 1;
    for batch in 1..=4 {
        let (first, before) = (stream, commands());
        for _ in 0..100 {
            client.send(&Frame::get(stream, "/?x"));
            stream += 2;
        }
        nginx.wait_for_requests(100, 0);
        // The command of the first of them is in flight.
        wait_until(PATIENCE, || commands() > before, "a command");
        (first..stream).step_by(2).for_each(|stream| client.send(&Frame::cancel(stream)));
        let logged = || nginx.read("h2.log").lines().count();
        wait_until(PATIENCE, || logged() == 1 + batch * 100, "the end of the cancelled requests");
    }
    assert_eq!(statuses(&nginx, 401), tally([("200", 1), ("499", 400)]));
    redis.cont();
    client.send(&Frame::get(stream, "/?last"));
    client.wait_for_end(stream);
    let log = lines(&nginx, "h2.log", 402);
    // Commands in flight are charged, but not requests that waited for the next command.
    let left = log[401].strip_prefix("200 /?last ").and_then(|left| left.parse().ok());
    assert!(left.is_some_and(|left: u64| (9_598..=9_994).contains(&left)), "{}", log[401]);
}
