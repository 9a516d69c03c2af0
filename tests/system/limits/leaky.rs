//! `algorithm=leaky_bucket`: as `limit_req`, excess requests wait for their turn.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, thread};

use harness::{
    Conf, Http, Library, Mode, Nginx, PATIENCE, Proxy, Redis, Response, at_once, h2load, run,
    wait_until,
};

use crate::seen::shows_nothing;
use crate::seen::{StartConnected as _, has_event_method, keys, lines, quota, retry_after};

/// The time that a request may take longer than it is delayed, on a busy machine. So the rates are such that no turn
/// comes while requests are still being sent.
const SLACK: Duration = Duration::from_secs(2);
/// How much earlier than computed a turn may come: nginx's clock ticks once a turn of its loop.
const EARLY: Duration = Duration::from_millis(30);
/// Far less than any delay that a test does not wait for.
const AT_ONCE: Duration = Duration::from_secs(60);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A server that shows how each request was decided, and logs how long it took. With one worker: several have no order
/// of requests.
pub(super) fn conf(redis: &Redis) -> Conf {
    let vars = "$request_uri $status $request_time $rate_limit_redis_status $limit_req_status";
    Conf::new()
        .workers(1)
        .redis(redis)
        .decisions()
        .http(&format!("log_format leaky '{vars}';"))
        .http("access_log {prefix}/leaky.log leaky;")
}

/// One with a leaky bucket for all.
fn leaky(redis: &Redis, parameters: &str) -> Conf {
    conf(redis).server(&format!("rate_limit_redis $arg_k algorithm=leaky_bucket {parameters};"))
}

/// A request as nginx wrote it down.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) uri: String,
    pub(super) status: u16,
    pub(super) time: Duration,
    pub(super) decision: String,
    pub(super) limit_req: String,
}

/// All requests, once so many are written down.
#[track_caller]
pub(super) fn log(nginx: &Nginx, number: usize) -> Vec<Logged> {
    let parse = |line: String| {
        let fields: Vec<_> = line.split(' ').collect();
        let [uri, status, time, decision, limit_req] = fields[..] else { panic!("{line:?}") };
        Logged {
            uri: uri.to_owned(),
            status: status.parse().expect("a status"),
            time: Duration::from_secs_f64(time.parse().expect("a time")),
            decision: decision.to_owned(),
            limit_req: limit_req.to_owned(),
        }
    };
    lines(nginx, "leaky.log", number).into_iter().map(parse).collect()
}

/// Sends a request over a connection of its own.
pub(super) fn sent(nginx: &Nginx, path: &str) -> Http {
    let mut http = nginx.http();
    http.send("GET", path, &[]);
    http
}

/// Sends requests, each over a connection of its own, which nginx accepts in this order and at once. Tells
/// when.
fn sent_together<const N: usize>(nginx: &Nginx, paths: [&str; N]) -> ([Http; N], Instant) {
    let mut sent = None;
    nginx.in_one_turn(|| sent = Some((paths.map(|path| self::sent(nginx, path)), Instant::now())));
    sent.expect("the requests")
}

/// A response, and when it came.
struct Received {
    response: Response,
    after: Duration,
}

/// Sends requests for `paths` in this order, without waiting for answers.
fn together<const N: usize>(nginx: &Nginx, paths: [&str; N]) -> [Received; N] {
    let (clients, start) = sent_together(nginx, paths);
    let receive = |mut http: Http| {
        thread::spawn(move || {
            let response = http.read_response();
            Received { response, after: start.elapsed() }
        })
    };
    clients.map(receive).map(|thread| thread.join().expect("a response"))
}

/// Each was decided so, and came so many ms after the first was sent.
#[track_caller]
fn came(received: &[Received], expected: &[(&str, u64)]) {
    let seen: Vec<_> = received.iter().map(|r| (r.response.decision(), r.after)).collect();
    assert_eq!(seen.len(), expected.len());
    for ((decision, after), (status, delay)) in seen.iter().zip(expected) {
        assert_eq!(*decision, format!("{status} redis"), "{seen:?}");
        let right = *after + EARLY >= ms(*delay) && *after < ms(*delay) + SLACK;
        assert!(right, "not {delay} ms: {seen:?}");
    }
    for Received { response, .. } in received {
        let status = if response.decision() == "REJECTED redis" { 429 } else { 200 };
        assert_eq!(response.status, status, "{response:?}");
    }
}

#[test]
fn without_a_burst_the_second_is_rejected() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = leaky(&redis, "rate=1r/h").start_connected(&redis);
    let (first, second) = (nginx.get("/?k=a"), nginx.get("/?k=a"));
    assert_eq!([first.decision(), second.decision()], ["PASSED redis", "REJECTED redis"]);
    assert_eq!([first.status, second.status], [200, 429]);
    assert_eq!([quota(&first), quota(&second)], [[1, 0, 3600]; 2]);
    assert!((3_590..=3_600).contains(&retry_after(&second)), "{second:?}");
    assert_eq!(nginx.get("/?k=b").status, 200, "another client");
    assert!(shows_nothing(&nginx.get("/")), "no key");
    assert_eq!(keys(&redis), ["rl:default:a", "rl:default:b"]);
}

#[test]
fn excess_waits_for_its_turn() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=3").start_connected(&redis);
    let paths = ["/?k=a&0", "/?k=a&1", "/?k=a&2", "/?k=a&3", "/?k=a&4"];
    let received = together(&nginx, paths);
    let expected =
        [("PASSED", 0), ("DELAYED", 1000), ("DELAYED", 2000), ("DELAYED", 3000), ("REJECTED", 0)];
    came(&received, &expected);
    let shown = [0, 1, 2, 3, 4].map(|n: usize| quota(&received[n].response)[..2].to_vec());
    assert_eq!(shown, [[4, 3], [4, 2], [4, 1], [4, 0], [4, 0]]);
    assert_eq!(retry_after(&received[4].response), 1);
    assert!(received[3].response.header("Retry-After").is_none());

    let logged = log(&nginx, 5);
    let order: Vec<_> = logged.iter().map(|l| l.uri.as_str()).collect();
    assert_eq!(order, [paths[0], paths[4], paths[1], paths[2], paths[3]], "one after the other");
    for (entry, (least, most)) in logged.iter().zip([(0, 0), (0, 0), (1, 1), (2, 2), (3, 3)]) {
        // It came a little after the first one, whose turn counts.
        let (least, most) = ((1_000u64 * least).saturating_sub(800), 1_000 * most);
        assert!(entry.time >= ms(least) && entry.time < ms(most) + SLACK, "{logged:#?}");
    }

    // Long after, it starts anew.
    sleep(ms(1_100));
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
}

#[test]
fn a_little_excess_waits_a_little() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/4s burst=1").start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    sleep(ms(2_000));
    let start = Instant::now();
    assert_eq!(nginx.get("/?k=a").decision(), "DELAYED redis");
    assert!(start.elapsed() < ms(2_000) + SLACK, "{:?}", start.elapsed());
    let [line] = &nginx.logged("delaying request")[..] else { panic!("one line") };
    let excess: f64 =
        line.split_once("excess: ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(excess > 0.0 && excess <= 0.5, "{line}");
}

#[test]
fn nodelay_lets_the_burst_pass_at_once() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=2 nodelay").start_connected(&redis);
    let start = Instant::now();
    let seen = [(); 4].map(|()| nginx.get("/?k=a")).map(|r| (r.status, r.decision().to_owned()));
    assert!(start.elapsed() < AT_ONCE);
    let passed = (200, "PASSED redis".to_owned());
    let rejected = (429, "REJECTED redis".to_owned());
    assert_eq!(seen, [passed.clone(), passed.clone(), passed, rejected]);
    assert_eq!(nginx.logged("delaying").len(), 0);
}

#[test]
fn excess_up_to_delay_does_not_wait() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=4 delay=2").start_connected(&redis);
    let received = together(&nginx, ["/?k=a"; 6]);
    let passed = [("PASSED", 0); 3];
    let delayed = [("DELAYED", 1000), ("DELAYED", 2000), ("REJECTED", 0)];
    came(&received, &[passed, delayed].concat());
}

/// A delay begins when Redis decides, also in a turn of the worker that began before.
#[test]
fn a_delay_ends_no_earlier_because_the_worker_is_busy() {
    let redis = Redis::start();
    let (proxy, library) = (Proxy::to(&redis), Library::compile("slow_answer"));
    let nginx = Conf::new()
        .store(proxy.url())
        .decisions()
        .server("rate_limit_redis $arg_k algorithm=leaky_bucket rate=1r/4s burst=1;")
        .server("location /slow { add_header X-Slow yes; try_files /index.html =404; }")
        .env("LD_PRELOAD", library.path())
        .start();
    let [mut first, mut other, mut second, mut slow] = [(); 4].map(|()| nginx.http());
    slow.get("/slow");
    let start = Instant::now();
    assert_eq!(first.get("/?k=a").decision(), "PASSED redis");
    proxy.set(Mode::Far(ms(500)));
    other.send("GET", "/?k=b", &[]);
    sleep(ms(900));
    second.send("GET", "/?k=a", &[]);
    sleep(ms(40));
    // The worker finds a request to answer, and Redis's first reply. The second one, which is decided
    // meanwhile, is there when it has answered.
    nginx.in_one_turn(|| {
        slow.send("GET", "/slow", &[]);
        sleep(ms(110));
    });
    assert_eq!(second.read_response().decision(), "DELAYED redis");
    assert!(start.elapsed() + EARLY >= ms(4_000), "{:?}", start.elapsed());
    for mut http in [other, slow] {
        assert_eq!(http.read_response().status, 200);
    }
}

#[test]
fn delay_of_the_whole_burst_delays_nothing() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=2 delay=2").start_connected(&redis);
    let received = together(&nginx, ["/?k=a"; 4]);
    came(&received, &[("PASSED", 0), ("PASSED", 0), ("PASSED", 0), ("REJECTED", 0)]);
}

#[test]
fn lines_of_one_name_may_differ_in_delay() {
    let redis = Redis::start();
    let line = "rate_limit_redis a algorithm=leaky_bucket rate=1r/s burst=5";
    let nginx = conf(&redis)
        .server(&format!("location / {{ {line}; }} location = /index.html {{ {line} nodelay; }}"))
        .file("html/other", "")
        .start_connected(&redis);
    let received = together(&nginx, ["/index.html", "/index.html", "/other"]);
    came(&received, &[("PASSED", 0), ("PASSED", 0), ("DELAYED", 2000)]);
    assert_eq!(keys(&redis), ["rl:default:a"]);
}

#[test]
fn costs_wait_for_as_many_turns() {
    let redis = Redis::start();
    let line = "rate_limit_redis a algorithm=leaky_bucket rate=1r/s burst=3";
    let nginx = conf(&redis)
        .server(&format!("location / {{ {line} cost=2; }} location /quota {{ {line} cost=0; }}"))
        .file("html/quota", "")
        .start_connected(&redis);
    let received = together(&nginx, ["/", "/", "/", "/quota"]);
    came(&received, &[("PASSED", 0), ("DELAYED", 2000), ("REJECTED", 0), ("PASSED", 0)]);
    assert!(received[3].response.header("Retry-After").is_none());
}

#[test]
fn nobody_else_waits() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=3")
        .server("location / { }")
        .server("location /free { rate_limit_redis off; try_files /index.html =404; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let waiting = sent(&nginx, "/?k=a");
    nginx.wait_for_error_log("delaying request");
    let mut http = nginx.http();
    for n in 0..15 {
        assert_eq!(http.get("/free").status, 200);
        assert_eq!(http.get(&format!("/?k={n}")).decision(), "PASSED redis");
    }
    let logged = log(&nginx, 31);
    assert!(logged.iter().all(|entry| entry.decision != "DELAYED"), "{logged:?}");
    drop(waiting);
    wait_for_499(&nginx, 1);
}

#[test]
fn delays_are_logged_one_level_lower() {
    let redis = Redis::start();
    let levels = [("info", "info"), ("notice", "info"), ("warn", "notice"), ("error", "warn")];
    let location = |(level, _): &(&str, &str)| {
        format!("location /{level} {{ rate_limit_redis_log_level {level};")
            + "try_files /index.html =404; }"
    };
    let nginx = leaky(&redis, "rate=1r/s burst=1 name=slow")
        .server(&levels.iter().map(location).collect::<String>())
        .start_connected(&redis);
    for (level, lower) in levels {
        let path = format!("/{level}?k={level}");
        let received = together(&nginx, [&path; 3]);
        came(&received, &[("PASSED", 0), ("DELAYED", 1000), ("REJECTED", 0)]);
        let delaying = nginx.logged("delaying request, excess: ");
        let limiting = nginx.logged("limiting requests, excess: ");
        let of = |lines: Vec<String>| -> String {
            let of: Vec<_> = lines.into_iter().filter(|line| line.contains(&path)).collect();
            assert_eq!(of.len(), 1, "{of:?}");
            of[0].clone()
        };
        let (delaying, limiting) = (of(delaying), of(limiting));
        assert!(delaying.contains(&format!(" [{lower}] ")), "{delaying}");
        assert!(limiting.contains(&format!(" [{level}] ")), "{limiting}");
        let named = format!("by limit \"slow\", key: \"{level}\", client: 127.0.0.1");
        assert!(delaying.contains(&named) && limiting.contains(&named), "{delaying}\n{limiting}");
        let excess = |line: &str| -> f64 {
            let number = line.split_once("excess: ").expect("an excess").1;
            number.split(' ').next().unwrap().parse().expect("a number")
        };
        assert!((0.01..=1.0).contains(&excess(&delaying)), "{delaying}");
        // limit_req would log one more: it counts the request itself and what is above `burst`.
        assert!((0.01..=1.0).contains(&excess(&limiting)), "{limiting}");
    }
    let first = nginx.logged("limiting requests").len() + nginx.logged("delaying request").len();
    assert_eq!(first, 8, "nothing else is logged of it");
}

/// Waits until so many requests are logged as left by their client.
#[track_caller]
fn wait_for_499(nginx: &Nginx, number: usize) {
    let logged = || nginx.read("leaky.log").matches(" 499 ").count();
    wait_until(AT_ONCE, || logged() >= number, "requests that are logged as left by the client");
    assert_eq!(logged(), number, "{}", nginx.read("leaky.log"));
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("list descriptors").count()
}

#[test]
fn a_client_that_leaves_has_spent_its_turn() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=1").start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let http = sent(&nginx, "/?k=a");
    nginx.wait_for_error_log("delaying request");
    sleep(ms(100));
    assert_eq!(log(&nginx, 1).len(), 1, "it does wait");
    drop(http);
    wait_for_499(&nginx, 1);
    assert_eq!(log(&nginx, 2)[1].decision, "DELAYED");
    assert_eq!(nginx.get("/?k=a").decision(), "REJECTED redis", "its turn is spent");
    assert_eq!(nginx.get("/?k=b").decision(), "PASSED redis");
    // The exit of nginx at once proves that no timer was left behind.
}

#[test]
fn many_clients_that_leave_keep_no_descriptor() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=100000").start_connected(&redis);
    let worker = nginx.worker_pids()[0];
    let before = descriptors(worker);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    for round in 1..=4 {
        let request = |_| {
            let mut http = nginx.http();
            http.send("GET", "/?k=a", &[]);
            http
        };
        let clients: Vec<_> = (0..50).map(request).collect();
        let delayed = || nginx.logged("delaying request").len() == round * 50;
        wait_until(PATIENCE, delayed, "that all are delayed");
        assert!(descriptors(worker) >= before + 50);
        drop(clients);
        wait_for_499(&nginx, round * 50);
    }
    wait_until(AT_ONCE, || descriptors(worker) <= before, "the descriptors of those who left");
}

#[test]
fn a_client_may_leave_after_part_of_its_body() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=5").start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").status, 200);
    let mut http = nginx.http();
    http.send("POST", "/?k=a", &[("Content-Length", "1000")]);
    http.send_raw(b"not all");
    nginx.wait_for_error_log("delaying request");
    sleep(ms(50));
    drop(http);
    wait_for_499(&nginx, 1);
}

#[test]
fn delayed_requests_are_served_before_a_worker_quits() {
    let redis = Redis::start();
    let mut nginx = leaky(&redis, "rate=1r/s burst=3").start_connected(&redis);
    let (mut clients, start) = sent_together(&nginx, ["/?k=a"; 3]);
    wait_until(PATIENCE, || nginx.logged("delaying request").len() == 2, "two that are delayed");
    nginx.signal(libc::SIGQUIT);
    for (n, http) in clients.iter_mut().enumerate() {
        let response = http.read_response();
        assert_eq!(response.status, 200, "{response:?}");
        let due = ms(1_000 * n as u64);
        assert!(start.elapsed() + EARLY >= due, "too early: {:?}", start.elapsed());
        assert!(start.elapsed() < due + SLACK, "too late: {:?}", start.elapsed());
    }
    nginx.quit();
}

#[test]
fn delayed_requests_are_served_across_a_reload() {
    let redis = Redis::start();
    let mut nginx = leaky(&redis, "rate=1r/3s burst=3").start_connected(&redis);
    let (mut clients, start) = sent_together(&nginx, ["/?k=a"; 2]);
    nginx.wait_for_error_log("delaying request");
    nginx.reload_signal();
    let mut last = sent(&nginx, "/?k=a");
    assert_eq!(nginx.get("/?k=b").decision(), "PASSED redis");
    let decisions =
        clients.each_mut().map(|http| http.read_response()).map(|r| r.decision().to_owned());
    assert_eq!(decisions, ["PASSED redis", "DELAYED redis"]);
    assert!(start.elapsed() + EARLY >= ms(3_000), "{:?}", start.elapsed());
    assert_eq!(last.read_response().decision(), "DELAYED redis", "by the new worker");
    assert!(start.elapsed() + EARLY >= ms(6_000), "{:?}", start.elapsed());
    assert!(start.elapsed() < ms(6_000) + SLACK, "{:?}", start.elapsed());
    assert_eq!(nginx.get("/?k=b").status, 200);
}

#[test]
fn streams_wait_for_their_turns() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=3").http2().start_connected(&redis);
    let start = Instant::now();
    let seen = h2load(&["-n", "6", "-c", "1", "-m", "6", &nginx.h2_url("/?k=a")]);
    assert!(seen.failures.is_empty(), "{seen:?}");
    assert_eq!((seen.of(200), seen.of(400)), (4, 2));
    assert!(start.elapsed() >= ms(2_900), "{:?}", start.elapsed());
    let logged = log(&nginx, 6);
    let decisions: Vec<_> = logged.iter().map(|entry| entry.decision.as_str()).collect();
    let expected = ["PASSED", "REJECTED", "REJECTED", "DELAYED", "DELAYED", "DELAYED"];
    assert_eq!(decisions, expected, "{logged:#?}");
    for (entry, due) in logged[3..].iter().zip([1_000, 2_000, 3_000]) {
        let right = entry.time + ms(800) >= ms(due) && entry.time < ms(due) + SLACK;
        assert!(right, "not {due} ms: {logged:#?}");
    }
}

#[test]
fn http2_streams_do_not_wait_for_each_other() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/5s burst=3").http2().start_connected(&redis);
    let urls = ["/?k=a&0", "/?k=a&1", "/?k=b&2", "/?k=c&3"].map(|path| nginx.h2_url(path));
    let start = Instant::now();
    run("nghttp", &["-n", &urls[0], &urls[1], &urls[2], &urls[3]]);
    assert!(start.elapsed() >= ms(4_900), "{:?}", start.elapsed());
    let logged = log(&nginx, 4);
    let last = logged.last().expect("a request");
    assert!(last.decision == "DELAYED" && last.uri.contains("k=a"), "{logged:#?}");
    let quick = logged[..3].iter().all(|e| e.decision == "PASSED" && e.time < ms(4_000));
    assert!(quick, "{logged:#?}");
}

#[test]
fn a_client_over_http2_may_leave() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=9").http2().start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let url = nginx.h2_url("/?k=a");
    let arguments = ["-sS", "--http2-prior-knowledge", "--max-time", "3", &url];
    let output = Command::new("curl").args(arguments).output().expect("run curl");
    assert_eq!(output.status.code(), Some(28), "curl times out: {output:?}");
    wait_for_499(&nginx, 1);
}

#[test]
fn a_large_body_over_http2_is_kept_during_the_delay() {
    let redis = Redis::start();
    let body = "0123456789abcdef".repeat(20_000);
    let nginx = leaky(&redis, "rate=1r/4s burst=3")
        .http2()
        .http("server { listen 127.0.0.1:{port2}; add_header X-Echo yes;")
        .http("access_log off; location / { return 200 $http_x_length; } }")
        .server("client_body_buffer_size 1m; location / { proxy_pass http://127.0.0.1:{port2};")
        .server("proxy_set_header X-Length $content_length; }")
        .file("body", &body)
        .start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let data = nginx.path("body").display().to_string();
    // Not curl, which polls all the time while it may not send.
    let arguments = ["--timeout", "60", "--data", &data, &nginx.h2_url("/?k=a")];
    assert_eq!(run("nghttp", &arguments), body.len().to_string());
    assert_eq!(log(&nginx, 2)[1].decision, "DELAYED");
}

/// NGINX discards a body also while the error page for it waits, first for a decision and then for its turn.
#[test]
fn bodies_that_are_too_large_are_discarded_to_their_end() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=20r/s burst=100")
        .server("error_page 413 /index.html?k=a;")
        .start_connected(&redis);
    let body = vec![b'x'; 32 << 20];
    at_once(0..10, |_| assert_eq!(nginx.http().post("/?k=a", &body).status, 413));
}

#[test]
fn of_two_limits_the_longer_delay_counts() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=5r/s burst=5 name=fast")
        .server("rate_limit_redis $arg_k algorithm=leaky_bucket rate=1r/s burst=5 name=slow;")
        .start_connected(&redis);
    let received = together(&nginx, ["/?k=a"; 3]);
    came(&received, &[("PASSED", 0), ("DELAYED", 1000), ("DELAYED", 2000)]);
    assert_eq!(nginx.logged("delaying request").len(), 2, "one line for each request");
}

#[test]
fn the_delay_is_that_of_the_limit_that_delays() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=5 name=leaky")
        .server("rate_limit_redis $arg_k rate=2r/d name=bucket;")
        .start_connected(&redis);
    let received = together(&nginx, ["/?k=a"; 3]);
    came(&received, &[("PASSED", 0), ("DELAYED", 1000), ("REJECTED", 0)]);
    assert_eq!(quota(&received[1].response)[..2], [2, 0], "the bucket has the least left");
}

#[test]
fn what_another_limit_rejects_is_not_delayed() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/h burst=5 name=leaky")
        .server("rate_limit_redis $arg_k rate=1r/d name=day;")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    let state = || redis.command::<Vec<u8>>(&["GET", "rl:leaky:a"]);
    let before = state();
    let start = Instant::now();
    let response = nginx.get("/?k=a");
    assert!(start.elapsed() < AT_ONCE);
    assert_eq!((response.status, response.decision()), (429, "REJECTED redis"));
    assert!(retry_after(&response) > 80_000, "{response:?}");
    assert_eq!(state(), before, "nothing is spent");
    assert_eq!(nginx.logged("delaying request").len(), 0);
}

/// A second server, which answers with the value of `X-Body`.
fn with_echo(conf: Conf) -> Conf {
    conf.http("server { listen 127.0.0.1:{port2}; add_header X-Echo yes;")
        .http("access_log off; location / { return 200 $http_x_body; } }")
        .server("proxy_set_header X-Body $request_body;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
}

#[test]
fn a_body_is_kept_that_comes_during_the_delay() {
    let redis = Redis::start();
    let nginx = with_echo(leaky(&redis, "rate=1r/2s burst=3")).start_connected(&redis);
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    let start = Instant::now();
    http.send("POST", "/?k=a", &[("Content-Length", "10")]);
    for part in ["while", "delay"] {
        sleep(ms(100));
        http.send_raw(part.as_bytes());
    }
    let response = http.read_response();
    assert_eq!((response.text(), response.decision()), ("whiledelay", "DELAYED redis"));
    assert!(start.elapsed() > ms(300), "{:?}", start.elapsed());
    assert_eq!(http.get("/?k=b").status, 200, "the same connection, afterwards");
}

#[test]
fn a_body_is_read_that_comes_after_the_delay() {
    let redis = Redis::start();
    let nginx = with_echo(leaky(&redis, "rate=1r/3s burst=3")).start_connected(&redis);
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    http.send("POST", "/?k=a", &[("Transfer-Encoding", "chunked")]);
    http.send_raw(b"2\r\nla\r\n");
    sleep(ms(3_500));
    http.send_raw(b"2\r\nte\r\n0\r\n\r\n");
    let response = http.read_response();
    assert_eq!((response.text(), response.decision()), ("late", "DELAYED redis"));
    assert_eq!(http.get("/?k=b").status, 200, "the same connection, afterwards");
}

#[test]
fn pipelined_requests_wait_one_after_the_other() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=3").start_connected(&redis);
    let mut http = nginx.http();
    let start = Instant::now();
    http.send_raw("GET /?k=a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4).as_bytes());
    let decisions = [(); 4].map(|()| http.read_response().decision().to_owned());
    assert_eq!(decisions, ["PASSED redis", "DELAYED redis", "DELAYED redis", "DELAYED redis"]);
    let took = start.elapsed();
    // Each is read and checked when the one before it is answered.
    assert!(took + 3 * EARLY >= ms(3_000) && took < ms(3_000) + SLACK, "{took:?}");
    assert_eq!(http.get("/?k=b").decision(), "PASSED redis", "in step afterwards");
}

/// The response before has filled the socket. Then NGINX waits until the socket can be written to, which
/// these event methods report for as long as it can.
#[test]
fn a_worker_sleeps_while_a_pipelined_request_waits() {
    for method in ["poll", "select"].into_iter().filter(|method| has_event_method(method)) {
        let mut redis = Redis::start_with_stopped_clock();
        let nginx = leaky(&redis, "rate=1r/s burst=9")
            .server("location = /large { rate_limit_redis off; }")
            .server("location /redis { rate_limit_redis k name=redis rate=9r/d;")
            .server("  rate_limit_redis_timeout 1s; try_files /index.html =404; }")
            .server("location /patient { rate_limit_redis k name=redis rate=9r/d;")
            .server("  rate_limit_redis_timeout 5m; try_files /index.html =404; }")
            .events(&format!("use {method};"))
            .connections(512)
            .file("html/large", &"x".repeat(12 << 20))
            .debug()
            .start_connected(&redis);
        assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
        // The second of two requests has been read, and waits.
        let waiting = |path: &str, mark: &str| {
            let [before, blocked] = [mark, "writev() not ready"].map(|it| nginx.logged(it).len());
            let mut http = nginx.http();
            let requests =
                ["/large", path].map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            http.send_raw(requests.concat().as_bytes());
            let is_blocked = || nginx.logged("writev() not ready").len() > blocked;
            wait_until(PATIENCE, is_blocked, "a response that fills the socket");
            assert_eq!(http.read_response().body.len(), 12 << 20);
            wait_until(PATIENCE, || nginx.logged(mark).len() > before, mark);
            http
        };
        let slept = |mark: &str| {
            let log = nginx.error_log();
            let turns = log.rsplit(mark).next().expect("the rest").matches("worker cycle").count();
            assert!(turns < 100, "{turns} turns after {mark:?} with {method}");
        };
        let mut delayed = waiting("/?k=a", "delay for ");
        assert_eq!(delayed.read_response().decision(), "DELAYED redis");
        slept("delay for ");
        redis.stop_signal();
        drop(waiting("/patient", "wait for Redis"));
        let has_left = || nginx.read("leaky.log").contains("/patient 499 ");
        wait_until(PATIENCE, has_left, "the end of a request whose client has left");
        slept("wait for Redis");
        let mut undecided = waiting("/redis", "wait for Redis");
        assert_eq!(undecided.read_response().decision(), "ERROR_PASSED none");
        slept("wait for Redis");
        redis.cont();
    }
}

/// How many decisions about requests Redis has made for the limit `default`.
fn decided_by_redis(nginx: &Nginx) -> u64 {
    let page = nginx.get("/metrics");
    let name = "nginx_rate_limit_redis_decisions_total{name=\"default\",source=\"redis\"} ";
    let line = page.text().lines().find_map(|line| line.strip_prefix(name));
    line.expect("the counter").parse().expect("a number")
}

#[test]
fn an_internal_redirect_is_not_delayed_again() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/4s burst=3")
        .server("error_page 404 /404.txt;")
        .server("location = /404.txt { rate_limit_redis a algorithm=leaky_bucket name=page")
        .server("rate=1r/4s burst=3; }")
        .server("location = /metrics { rate_limit_redis off; rate_limit_redis_metrics; }")
        .file("html/404.txt", "not here\n")
        .start_connected(&redis);
    let mut received = together(&nginx, ["/nothing?k=a", "/nothing?k=a"]);
    for received in &mut received {
        assert_eq!((received.response.status, received.response.text()), (404, "not here\n"));
        received.response.status = 200;
    }
    came(&received, &[("PASSED", 0), ("DELAYED", 4000)]);
    assert!(received[1].after < ms(7_500), "{:?}", received[1].after);
    assert_eq!(keys(&redis), ["rl:default:a"]);
    assert_eq!(decided_by_redis(&nginx), 2, "requests of one turn may share a command");
    assert_eq!(log(&nginx, 2)[1].decision, "DELAYED", "the variable stays");
    assert_eq!(nginx.logged("delaying request").len(), 1);
}

#[test]
fn an_index_is_delayed_once() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=3")
        .server("location = /metrics { rate_limit_redis off; rate_limit_redis_metrics; }")
        .start_connected(&redis);
    let received = together(&nginx, ["/?k=a", "/?k=a", "/index.html?k=a"]);
    came(&received, &[("PASSED", 0), ("DELAYED", 1000), ("DELAYED", 2000)]);
    assert_eq!(decided_by_redis(&nginx), 3, "requests of one turn may share a command");
}

#[test]
fn the_limit_that_delays_is_logged() {
    let redis = Redis::start();
    let nginx = leaky(&redis, "rate=1r/s burst=20 name=slow")
        .server("rate_limit_redis $arg_k name=tight rate=1000r/h capacity=4;")
        .start_connected(&redis);
    let received = together(&nginx, ["/?k=a"; 2]);
    came(&received, &[("PASSED", 0), ("DELAYED", 1000)]);
    let logged = nginx.logged("delaying request");
    assert!(logged[0].contains("by limit \"slow\""), "{logged:?}");
}
