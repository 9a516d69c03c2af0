//! `settle=`: what a request has really cost is known when it has ended.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Cluster, ClusterConf, Conf, MASTER_NAME, Mode, Nginx, PATIENCE, Proxy, Redis, Response,
};
use harness::{SentinelConf, h2load, run, slot, wait_until};

use crate::seen::{StartConnected as _, quota, retry_after, time, tokens, wait_for_connections};

/// An application whose answers the test writes.
struct Application {
    requests: Receiver<TcpStream>,
    port: u16,
}

impl Application {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (sender, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { requests, port }
    }

    /// The next request, once its header is there.
    fn request(&self) -> TcpStream {
        let mut stream = self.requests.recv_timeout(PATIENCE).expect("a request");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut header = Vec::new();
        while !header.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a header");
            header.push(byte[0]);
        }
        stream
    }
}

/// Answers a request of the application.
fn answer(mut stream: TcpStream, cost: &str) {
    let text = format!("HTTP/1.1 200 OK\r\nX-Cost: {cost}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("an answer");
}

/// An application that answers with the status and the `X-Cost` of the request's arguments.
const SAYS: &str = "server { listen 127.0.0.1:{port2}; root {prefix}/html; keepalive_timeout 0; \
                    add_header X-Cost $arg_cost always; \
                    if ($arg_status = 401) { return 401; } if ($arg_status = 500) { return 500; } \
                    location / { try_files /index.html =404; } }";

fn conf(redis: &Redis, snippet: &str) -> Conf {
    unconnected(snippet).redis(redis)
}

fn unconnected(snippet: &str) -> Conf {
    Conf::new()
        .decisions()
        .http(SAYS)
        .http("rate_limit_redis_deny_cache off;")
        .server(snippet)
        .server(
            "location = /metrics { rate_limit_redis off; rate_limit_redis_metrics prometheus; }",
        )
}

/// A location before the application, and one that shows what is left of the limit.
fn proxied(limit: &str) -> String {
    format!(
        "location / {{ rate_limit_redis {limit} settle=$upstream_http_x_cost; \
         proxy_pass http://127.0.0.1:{{port2}}; }} \
         location = /left {{ rate_limit_redis {limit} cost=0; try_files /index.html =404; }}"
    )
}

/// How many settlements of a limit had this result.
fn settlements(nginx: &Nginx, name: &str, result: &str) -> usize {
    let sample = format!("settlements_total{{name=\"{name}\",result=\"{result}\"}} ");
    metric(nginx, &sample) as usize
}

/// The value of a metric.
fn metric(nginx: &Nginx, sample: &str) -> u64 {
    let page = nginx.get("/metrics");
    let value = page.text().lines().find_map(|line| line.split_once(sample));
    let (_, value) = value.unwrap_or_else(|| panic!("no {sample} in {}", page.text()));
    value.parse().expect("a number")
}

/// Waits until so many are settled.
#[track_caller]
fn wait_for(nginx: &Nginx, name: &str, number: usize) {
    let settled = || settlements(nginx, name, "settled");
    wait_until(PATIENCE, || settled() >= number, &format!("{number} settlements of {name}"));
    assert_eq!(settled(), number);
}

/// A request, and what is left when it is settled.
#[track_caller]
fn left_after(nginx: &Nginx, path: &str) -> u64 {
    let before = settlements(nginx, "default", "settled");
    let response = nginx.get(path);
    assert_ne!(response.status, 429, "{response:?}");
    wait_for(nginx, "default", before + 1);
    left(nginx)
}

#[track_caller]
fn left(nginx: &Nginx) -> u64 {
    let response = nginx.get("/left");
    assert_eq!(response.status, 200, "{response:?}");
    response.remaining().expect("X-RateLimit-Remaining")
}

#[test]
fn only_failed_logins_count() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location / { proxy_pass http://127.0.0.1:{port2};")
        .http("map $status $failed { default 0; ~^4 1; }")
        .server("  rate_limit_redis $remote_addr name=login rate=5r/d settle=$failed; }")
        .start_connected(&redis);
    for number in 1..=20 {
        assert_eq!(nginx.get("/").status, 200);
        wait_for(&nginx, "login", number);
    }
    for number in 21..=25 {
        assert_eq!(nginx.get("/?status=401").status, 401);
        wait_for(&nginx, "login", number);
    }
    let locked = nginx.get("/");
    assert_eq!((locked.status, locked.decision()), (429, "REJECTED redis"));
    assert!(retry_after(&locked) > 1);
    // A request that is rejected is not settled.
    assert_eq!(settlements(&nginx, "login", "settled"), 25);
    assert_eq!(settlements(&nginx, "login", "lost"), 0);
}

#[test]
fn what_fails_costs_nothing() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=9r/d").replace("$upstream_http_x_cost", "$free"))
        .http("map $status $free { default ''; ~^5 0; }")
        .start_connected(&redis);
    assert_eq!(left_after(&nginx, "/?status=500"), 9);
    assert_eq!(nginx.get("/").status, 200);
    assert_eq!(left(&nginx), 8, "the charge stands where the value is empty");
    assert_eq!(settlements(&nginx, "default", "settled"), 1);
}

/// Limits of 100, most of which regain nothing worth mentioning in the time of a test.
const LIMITS: [&str; 7] = [
    "a rate=100r/d",
    "a rate=100r/d refill=interval",
    "a rate=100r/d algorithm=gcra burst=99",
    "a rate=100r/d algorithm=leaky_bucket burst=99 nodelay",
    "a rate=100r/52w algorithm=sliding_window",
    "a rate=100r/d algorithm=sliding_log",
    "a rate=100r/52w algorithm=fixed_window",
];

#[test]
fn the_application_reports_the_cost() {
    for limit in LIMITS {
        let redis = Redis::start();
        let nginx = conf(&redis, &proxied(limit)).start_connected(&redis);
        assert_eq!(left_after(&nginx, "/?cost=37"), 63, "{limit}");
        assert_eq!(left_after(&nginx, "/?cost=0"), 63, "{limit}");
        assert_eq!(left_after(&nginx, "/?cost=1"), 62, "{limit}");
        assert_eq!(left_after(&nginx, "/?cost=1.5"), 60, "{limit}");
        // More than there is: it is owed.
        assert_eq!(left_after(&nginx, "/?cost=161"), 0, "{limit}");
        let rejected = nginx.get("/");
        assert_eq!((rejected.status, rejected.remaining()), (429, Some(0)), "{limit}");
        assert!(retry_after(&rejected) > 60, "{rejected:?}");
        assert_eq!(settlements(&nginx, "default", "lost"), 0);
    }
}

/// A reservation that Redis makes too late is not settled, and does not stand.
#[test]
fn a_request_without_a_decision_costs_nothing() {
    let mut redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=100r/d"))
        .server("rate_limit_redis_timeout 100ms;")
        .start_connected(&redis);
    // A later command finds what was charged.
    let is_whole = || nginx.get("/left").remaining() == Some(100);
    // A command that is not sent when its time is over never is.
    wait_until(PATIENCE, is_whole, "a connection that takes commands");
    let before = redis.calls("evalsha");
    redis.stop_signal();
    assert_eq!(nginx.get("/").decision(), "ERROR_PASSED none");
    redis.cont();
    wait_until(PATIENCE, is_whole, "the refund of a late charge");
    let calls = redis.calls("evalsha");
    assert!(calls >= before + 3, "a charge, a refund, and what is left: {before}, {calls}");
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("GET", "/", &[]);
    drop(http);
    wait_until(PATIENCE, || nginx.access_log().contains(" 499 "), "the end of the request");
    redis.cont();
    wait_until(PATIENCE, is_whole, "the refund of a client that left");
    assert!(redis.calls("evalsha") >= calls + 3);
    assert_eq!(settlements(&nginx, "default", "settled"), 0);
}

/// A reservation that Redis has made in time, and whose reply comes late, to a client that shares its key with
/// others.
struct LateReply {
    redis: Redis,
    proxy: Proxy,
    /// The NGINX that waits for the reply.
    nginx: Nginx,
    /// The others.
    other: Nginx,
}

impl LateReply {
    /// Redis has charged it `before` the end of a window of ten seconds.
    fn of(algorithm: &str, before: Duration) -> Self {
        let redis = Redis::start_with_stopped_clock();
        let proxy = Proxy::to(&redis);
        let limit = proxied(&format!("a rate=2r/10s algorithm={algorithm}"));
        let other = conf(&redis, &limit).start_connected(&redis);
        let nginx = unconnected(&limit)
            .store(proxy.url())
            .server("rate_limit_redis_timeout 500ms;")
            .start();
        wait_for_connections(&redis, other.worker_pids().len() + nginx.worker_pids().len());
        // The last reply of the handshake may still be in the proxy.
        let is_ready = || {
            let page = nginx.get("/metrics");
            page.text()
                .lines()
                .any(|line| line.contains("_connections{") && line.ends_with("state=\"ready\"} 1"))
        };
        wait_until(PATIENCE, is_ready, "a connection that takes commands");
        let left = 10_000_000 - time(&redis) % 10_000_000;
        redis.advance_clock(Duration::from_micros(left) + Duration::from_secs(10) - before);
        proxy.set(Mode::HoldReplies);
        assert_eq!(nginx.get("/").decision(), "ERROR_PASSED none");
        wait_until(PATIENCE, || redis.calls("evalsha") == 1, "the charge");
        Self { redis, proxy, nginx, other }
    }

    /// The reply comes, and what it has charged is given back.
    fn comes(&self) {
        let calls = self.redis.calls("evalsha");
        self.proxy.set(Mode::Pass);
        wait_until(PATIENCE, || self.redis.calls("evalsha") > calls, "the refund");
        assert_eq!(settlements(&self.nginx, "default", "settled"), 0);
    }

    fn request(&self) -> u16 {
        self.other.get("/").status
    }
}

#[test]
fn nothing_is_given_back_to_a_later_window() {
    for algorithm in ["fixed_window", "sliding_window"] {
        let late = LateReply::of(algorithm, Duration::from_millis(10));
        late.redis.advance_clock(Duration::from_secs(9));
        assert_eq!([late.request(), late.request()], [200, 200], "{algorithm}");
        late.comes();
        assert_eq!(late.request(), 429, "{algorithm}");
    }
}

#[test]
fn what_others_have_spent_since_is_not_given_back() {
    let late = LateReply::of("sliding_log", Duration::from_secs(5));
    late.redis.advance_clock(Duration::from_millis(5));
    assert_eq!(late.request(), 200);
    late.comes();
    assert_eq!([late.request(), late.request()], [200, 429]);
    // The two that have passed are of the last ten seconds.
    late.redis.advance_clock(Duration::from_millis(9_998));
    assert_eq!(late.request(), 429);
}

/// Requests whose reservations the test chooses, and ends as it likes. The limit holds 100.
fn reserving(application: &Application, limit: &str) -> String {
    format!(
        "location / {{ rate_limit_redis a {limit} cost=$arg_cost settle=$upstream_http_x_cost; \
         proxy_pass http://127.0.0.1:{}; }} \
         location = /left {{ rate_limit_redis a {limit} cost=0; try_files /index.html =404; }}",
        application.port
    )
}

/// A and B reserve 50 and 40. A gets all back, and when the bucket is full, C spends 100.
fn spend_what_came_back(
    nginx: &Nginx,
    application: &Application,
    wait: [impl FnOnce(); 2],
) -> TcpStream {
    let request = |cost: u64| {
        let (addr, path) = (nginx.addr(), format!("/?cost={cost}"));
        thread::spawn(move || harness::Http::connect(addr).get(&path).status);
        application.request()
    };
    let (first, second) = (request(50), request(40));
    let [before, after] = wait;
    before();
    answer(first, "0");
    wait_for(nginx, "default", 1);
    after();
    answer(request(100), "100");
    wait_for(nginx, "default", 2);
    second
}

/// The units that A got back have made the bucket full, and were spent: they do not come back once more with B.
#[test]
fn what_another_got_back_does_not_come_back_again() {
    for limit in [
        "rate=1r/s capacity=100",
        "rate=10r/10s capacity=100 refill=interval",
        "rate=1r/s algorithm=gcra burst=99",
        "rate=1r/s algorithm=leaky_bucket burst=99 nodelay",
    ] {
        let (redis, application) = (Redis::start_with_stopped_clock(), Application::start());
        let nginx = conf(&redis, &reserving(&application, limit)).start_connected(&redis);
        let wait = |seconds| {
            let redis = &redis;
            move || redis.advance_clock(Duration::from_secs(seconds))
        };
        let second = spend_what_came_back(&nginx, &application, [10, 40].map(wait));
        answer(second, "0");
        wait_for(&nginx, "default", 3);
        assert_eq!(left(&nginx), 0, "{limit}");
    }
}

/// Here time passes: some comes back while the test looks.
#[test]
fn what_another_got_back_does_not_come_back_on_this_machine() {
    for limit in [
        "rate=20r/s capacity=100",
        "rate=20r/1s capacity=100 refill=interval",
        "rate=20r/s algorithm=gcra burst=99",
    ] {
        let application = Application::start();
        let nginx = unconnected(&reserving(&application, limit))
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error local;")
            .start();
        let wait = |milliseconds| move || thread::sleep(Duration::from_millis(milliseconds));
        let second = spend_what_came_back(&nginx, &application, [0, 2_100].map(wait));
        let start = Instant::now();
        answer(second, "0");
        wait_for(&nginx, "default", 3);
        let left = left(&nginx);
        // All 40 of B would come back if nothing were known of A.
        let regained = start.elapsed().as_secs() * 20 + 20;
        assert!(left <= regained, "{limit}: {left} are left, {regained} can have been regained");
    }
}

/// A limit that may leave a client in debt is not taken ahead, by whichever line of the limit.
#[test]
fn a_debt_holds_where_there_are_leases() {
    for limit in [LIMITS[0], LIMITS[1], LIMITS[2], LIMITS[4], LIMITS[6]] {
        let redis = Redis::start();
        let plain = format!(
            "location = /plain {{ rate_limit_redis {limit}; try_files /index.html =404; }}"
        );
        let nginx = conf(&redis, &proxied(limit))
            .http("rate_limit_redis_lease 1m;")
            .server(&plain)
            .start_connected(&redis);
        for number in 1..=8 {
            assert_eq!(nginx.get("/plain").decision(), "PASSED redis", "{limit}");
            assert_eq!(left_after(&nginx, "/?cost=3"), 100 - 4 * number, "{limit}");
        }
        assert_eq!(left_after(&nginx, "/?cost=100"), 0, "{limit}");
        for path in ["/", "/plain"] {
            assert_eq!(nginx.get(path).decision(), "REJECTED redis", "{limit}");
        }
    }
}

#[test]
fn a_debt_is_regained() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=2r/s capacity=1")).start_connected(&redis);
    let response = nginx.get("/?cost=11");
    assert_eq!(response.status, 200);
    wait_for(&nginx, "default", 1);
    // Ten tokens at two a second are regained first.
    let rejected = nginx.get("/");
    assert_eq!(rejected.status, 429, "{rejected:?}");
    wait_until(PATIENCE, || nginx.get("/?cost=1").status == 200, "the end of the debt");
}

#[test]
fn a_fraction_is_rounded_up() {
    let redis = Redis::start();
    let snippet = proxied("a rate=9r/d").replace("$upstream_http_x_cost", "$request_time");
    let nginx = conf(&redis, &snippet).start_connected(&redis);
    // A moment is 1, as long as it is not shorter than any; nothing here takes 5 s.
    assert!((5..=9).contains(&left_after(&nginx, "/")));
}

#[test]
fn an_unusable_value_leaves_the_charge() {
    let redis = Redis::start();
    let mut nginx = conf(&redis, &proxied("a rate=9r/d")).start_connected(&redis);
    let values = ["-1", "much", "1e3", "9007199254740993x"];
    for (index, value) in values.into_iter().enumerate() {
        assert_eq!(nginx.get(&format!("/?cost={value}")).status, 200);
        nginx.wait_for_error_log(&format!("invalid settle \"{value}\" in"));
        assert_eq!(left(&nginx), 8 - index as u64);
    }
    assert_eq!(nginx.logged("[error]").len(), values.len());
    assert_eq!(nginx.get("/").status, 200);
    assert_eq!(left(&nginx), 4, "nor does an empty one change it");
    assert_eq!(settlements(&nginx, "default", "settled"), 0);
    // It is no settlement that the worker has failed to make.
    let old = nginx.reload_signal();
    let is_gone = || !std::path::Path::new(&format!("/proc/{}", old[0])).exists();
    wait_until(PATIENCE, is_gone, "the end of the old worker");
    assert_eq!(settlements(&nginx, "default", "lost"), 0);
}

/// However many digits it has, a request owes no more than can be owed: ten times the limit.
#[test]
fn more_than_can_be_owed_is_forgiven() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = conf(&redis, &proxied("$arg_k rate=9r/9s")).start_connected(&redis);
    let (zeros, nines) = ("0".repeat(100), "9".repeat(100));
    let values =
        ["100", "9007199254740993", &format!("1{zeros}"), &nines, "18446744073709551615.5"];
    for (number, value) in values.into_iter().enumerate() {
        assert_eq!(nginx.get(&format!("/?k={number}&cost={value}")).status, 200);
        wait_for(&nginx, "default", number + 1);
    }
    let left = |number: usize| quota(&nginx.get(&format!("/left?k={number}")));
    (0..values.len()).for_each(|number| assert_eq!(left(number), [9, 0, 99], "{}", values[number]));
    assert_eq!(nginx.get(&format!("/?k=5&cost={zeros}2.5")).status, 200);
    wait_for(&nginx, "default", 6);
    assert_eq!(left(5), [9, 6, 3]);
    assert_eq!(nginx.logged("[error]"), [""; 0]);
}

#[test]
fn cost_0_can_be_settled() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=9r/d").replace(" settle", " cost=0 settle"))
        .start_connected(&redis);
    assert_eq!(left_after(&nginx, "/?cost=4"), 5);
    assert_eq!(left_after(&nginx, "/?cost=7"), 0);
    assert_eq!(nginx.get("/?cost=1").status, 200, "a request of cost 0 passes in debt");
}

#[test]
fn each_limit_settles_for_itself() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location / { proxy_pass http://127.0.0.1:{port2};")
        .server("  rate_limit_redis a name=first rate=100r/d settle=$upstream_http_x_cost;")
        .server("  rate_limit_redis a name=second rate=100r/d cost=5 settle=0;")
        .server("  rate_limit_redis a name=third rate=100r/d;")
        .server("  rate_limit_redis a name=late rate=100r/d after=auth settle=3; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?cost=7").status, 200);
    ["first", "second", "late"].iter().for_each(|name| wait_for(&nginx, name, 1));
    let left = ["first", "third", "late"].map(|name| tokens(&redis, &format!("rl:{name}:a")));
    assert_eq!(left, [Some(93), Some(99), Some(97)]);
    let is_whole = || tokens(&redis, "rl:second:a").is_none();
    wait_until(PATIENCE, is_whole, "the end of a state that is whole again");
    assert_eq!(settlements(&nginx, "third", "settled"), 0);
}

#[test]
fn a_stream_is_settled_when_it_has_ended() {
    let redis = Redis::start();
    let application = Application::start();
    let nginx = conf(&redis, &proxied("a rate=100r/d").replace("{port2}; }", "{application}; }"))
        .set("application", application.port)
        .start_connected(&redis);
    let mut client = nginx.http();
    client.send("GET", "/", &[]);
    let mut stream = application.request();
    let header = "HTTP/1.1 200 OK\r\nX-Cost: 42\r\nContent-Length: 3\r\n\r\n";
    stream.write_all(header.as_bytes()).expect("a header");
    for byte in [b"a", b"b"] {
        stream.write_all(byte).expect("a part of the body");
        assert_eq!(left(&nginx), 99, "it has not ended");
    }
    stream.write_all(b"c").expect("the rest");
    assert_eq!(client.read_response().text(), "abc");
    wait_for(&nginx, "default", 1);
    assert_eq!(left(&nginx), 58);
}

#[test]
fn a_client_that_leaves_is_settled() {
    let redis = Redis::start();
    let application = Application::start();
    let snippet = proxied("a rate=100r/d").replace("$upstream_http_x_cost", "$after");
    let nginx = conf(&redis, &snippet.replace("{port2}; }", "{application}; }"))
        .set("application", application.port)
        .http("map $status $after { default ''; 499 11; }")
        .start_connected(&redis);
    let mut client = nginx.http();
    client.send("GET", "/", &[]);
    let _held = application.request();
    drop(client);
    wait_for(&nginx, "default", 1);
    assert_eq!(left(&nginx), 89);
}

#[test]
fn a_timeout_is_settled() {
    let redis = Redis::start();
    let application = Application::start();
    let snippet = proxied("a rate=100r/d").replace("$upstream_http_x_cost", "$after");
    let nginx = conf(&redis, &snippet.replace("{port2}; }", "{application}; }"))
        .set("application", application.port)
        .http("proxy_read_timeout 100ms; map $status $after { default ''; 504 0; }")
        .start_connected(&redis);
    assert_eq!(left_after(&nginx, "/"), 100);
    assert!(nginx.access_log().contains("\" 504 "), "{}", nginx.access_log());
}

/// Starts a request, and returns the application's side of it.
fn started(redis: &Redis) -> (Nginx, harness::Http, TcpStream) {
    started_with(redis, |conf| conf)
}

fn started_with(
    redis: &Redis,
    change: impl FnOnce(Conf) -> Conf,
) -> (Nginx, harness::Http, TcpStream) {
    let application = Application::start();
    let conf = conf(redis, &proxied("a rate=100r/d").replace("{port2}; }", "{application}; }"));
    // One worker: it is the one that settles.
    let nginx = change(conf.workers(1)).set("application", application.port).start_connected(redis);
    let mut client = nginx.http();
    client.send("GET", "/", &[]);
    let stream = application.request();
    (nginx, client, stream)
}

#[test]
fn a_worker_that_shuts_down_settles() {
    let redis = Redis::start();
    let (mut nginx, mut client, stream) = started(&redis);
    let old = nginx.reload_signal();
    answer(stream, "31");
    assert_eq!(client.read_response().status, 200);
    wait_for(&nginx, "default", 1);
    assert_eq!(left(&nginx), 69);
    // It waits for nothing else.
    wait_for_end(old[0]);
    assert_eq!(settlements(&nginx, "default", "lost"), 0);
}

/// Waits until a worker has ended.
#[track_caller]
fn wait_for_end(worker: u32) {
    let is_gone = || !std::path::Path::new(&format!("/proc/{worker}")).exists();
    wait_until(PATIENCE, is_gone, "the end of the old worker");
}

/// A worker that shuts down keeps its connection for the requests that it still has to settle, and no longer.
#[test]
fn a_worker_that_shuts_down_settles_over_the_connection_that_it_has() {
    let (redis, application) = (Redis::start(), Application::start());
    let limit = proxied("a rate=100r/d").replace("{port2}; }", "{application}; }");
    let mut nginx = conf(&redis, &limit)
        .workers(1)
        .set("application", application.port)
        .start_connected(&redis);
    let requests: Vec<_> = (0..30)
        .map(|_| {
            let mut client = nginx.http();
            client.send("GET", "/", &[]);
            (client, application.request())
        })
        .collect();
    let old = nginx.reload_signal()[0];
    // The new worker decides, so it is connected.
    assert_eq!(left(&nginx), 70);
    let node = redis.addr();
    let made = || metric(&nginx, &format!("attempts_total{{node=\"{node}\",result=\"ready\"}} "));
    let before = made();
    for (number, (mut client, stream)) in requests.into_iter().enumerate() {
        answer(stream, "2");
        assert_eq!(client.read_response().status, 200);
        wait_for(&nginx, "default", number + 1);
    }
    assert_eq!(made(), before);
    assert_eq!(left(&nginx), 40);
    wait_for_end(old);
    wait_for_connections(&redis, 1);
    assert_eq!(settlements(&nginx, "default", "lost"), 0);
}

/// Redis has no room for a worker that shuts down and has lost its connection. The other one has kept its own.
#[test]
fn what_only_a_worker_that_shuts_down_lacks_is_no_outage() {
    let redis = Redis::start();
    let (mut nginx, mut client, stream) = started(&redis);
    let old = nginx.reload_signal()[0];
    assert_eq!(left(&nginx), 99);
    wait_for_connections(&redis, 2);
    let name = format!(" name=nginx_rate_limit_redis:{old} ");
    let connection = redis.clients().into_iter().find(|line| line.contains(&name));
    let id = connection.as_deref().and_then(|line| line.split(['=', ' ']).nth(1));
    // The other connections are this one and that of the new worker.
    let mut admin = redis.client();
    let mut command = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut admin).expect("a reply");
    };
    command(&["CONFIG", "SET", "maxclients", "2"]);
    command(&["CLIENT", "KILL", "ID", id.expect("the connection of the old worker")]);
    nginx.wait_for_error_log(
        "is out of reach of a worker that shuts down: CLIENT SETNAME was refused",
    );
    answer(stream, "31");
    assert_eq!(client.read_response().status, 200);
    wait_for_end(old);
    assert_eq!(left(&nginx), 99, "the settlement is lost");
    assert_eq!(nginx.logged("is down: "), Vec::<String>::new());
}

/// Whether a request is settled that ends in a worker that shuts down, while Redis pauses for longer than connecting
/// may take. With `is_cut` that worker has lost its connection. `None` if the pause was longer than the worker stays.
fn is_settled_after_a_pause(is_cut: bool) -> Option<bool> {
    let (mut redis, application) = (Redis::start(), Application::start());
    let proxy = Proxy::to(&redis);
    let limit = proxied("a rate=100r/d").replace("{port2}; }", "{application}; }");
    let mut nginx = unconnected(&limit)
        .set("redis", proxy.url())
        .http("rate_limit_redis_store redis { server {redis}; connect_timeout 250ms; }")
        .http("rate_limit_redis_pass redis; rate_limit_redis_timeout 5s;")
        .workers(1)
        .set("application", application.port)
        .start_connected(&redis);
    let mut client = nginx.http();
    client.send("GET", "/", &[]);
    let stream = application.request();
    let old = nginx.reload_signal()[0];
    // The new worker decides, so it is connected.
    assert_eq!(left(&nginx), 99);
    redis.stop_signal();
    if is_cut {
        let before = proxy.connections();
        proxy.cut();
        wait_until(PATIENCE, || proxy.connections() >= before + 2, "new connections");
    }
    let start = Instant::now();
    answer(stream, "31");
    assert_eq!(client.read_response().status, 200);
    thread::sleep(Duration::from_millis(600));
    let is_lost = || settlements(&nginx, "default", "lost") == 1;
    let is_settled = !is_lost() && {
        redis.cont();
        let is_settled = || settlements(&nginx, "default", "settled") == 1;
        wait_until(PATIENCE, || is_settled() || is_lost(), "the end of the settlement");
        is_settled()
    };
    let is_in_time = start.elapsed() < Duration::from_secs(1);
    redis.cont();
    wait_for_end(old);
    (is_settled || is_in_time).then_some(is_settled)
}

#[test]
fn a_worker_that_shuts_down_waits_for_a_redis_that_pauses() {
    for is_cut in [false, true] {
        let results = std::iter::repeat_with(|| is_settled_after_a_pause(is_cut)).take(20);
        let result = { results }.find_map(|result| result);
        assert_eq!(result, Some(true), "is cut: {is_cut}");
    }
}

#[test]
fn what_a_killed_worker_could_not_settle_is_lost() {
    let redis = Redis::start();
    let (mut nginx, _client, stream) = started(&redis);
    nginx.allow_log("exited on signal 9");
    let worker = nginx.worker_pids()[0];
    run("kill", &["-KILL", &worker.to_string()]);
    let is_replaced = || nginx.worker_pids().iter().any(|pid| *pid != worker);
    wait_until(PATIENCE, is_replaced, "a new worker");
    drop(stream);
    wait_until(PATIENCE, || settlements(&nginx, "default", "lost") == 1, "a lost settlement");
    assert_eq!(settlements(&nginx, "default", "settled"), 0);
    assert_eq!(left(&nginx), 99);
}

#[test]
fn what_redis_does_not_take_is_lost() {
    let mut redis = Redis::start();
    let (nginx, mut client, stream) = started(&redis);
    redis.kill9();
    answer(stream, "31");
    assert_eq!(client.read_response().status, 200);
    wait_until(PATIENCE, || settlements(&nginx, "default", "lost") == 1, "a lost settlement");
    assert_eq!(settlements(&nginx, "default", "settled"), 0);
}

/// Whatever the longest timeout of a request is, nobody waits for a settlement.
#[test]
fn a_redis_that_hangs_does_not_keep_a_worker() {
    for (limit, timeout) in [("", " 0 us"), ("worker_shutdown_timeout 300ms;", " 300000 us")] {
        let mut redis = Redis::start();
        let (mut nginx, mut client, stream) = started_with(&redis, |conf| {
            conf.server("rate_limit_redis_timeout 5m;").main(limit).debug()
        });
        redis.stop_signal();
        answer(stream, "31");
        assert_eq!(client.read_response().status, 200);
        nginx.wait_for_error_log("settle limit");
        let old = nginx.reload_signal()[0];
        wait_for_end(old);
        assert_eq!(settlements(&nginx, "default", "lost"), 1);
        let limits = nginx.logged("leave, shutdown timeout: ");
        assert!(limits.iter().all(|line| line.ends_with(timeout)), "{limits:?}");
        assert_eq!(limits.len(), 1);
        redis.cont();
    }
}

/// NGINX closes lingering connections when it needs one and has no more: then a request ends, and
/// settles, in the middle of connecting to Redis.
#[test]
fn a_request_may_settle_while_its_worker_connects() {
    let redis = Redis::start();
    let mut nginx = conf(&redis, "rate_limit_redis a rate=100r/d settle=$arg_cost;")
        .server("lingering_close always; lingering_time 60s; lingering_timeout 60s;")
        .server("location = /left { rate_limit_redis a rate=100r/d cost=0;")
        .server("  try_files /index.html =404; }")
        .connections(30)
        .status()
        .start_connected(&redis);
    nginx.allow_log("worker_connections are not enough");
    let worker = nginx.worker_pids();
    let begin = || {
        let mut client = nginx.http();
        // There may be no connection for it.
        client.try_send_raw(b"GET /?cost=5 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n").ok();
        client
    };
    let mut lingering = [(); 3].map(|()| begin());
    nginx.wait_for_requests(0, lingering.len());
    let mut others = Vec::new();
    let is_full = || {
        others.push(begin());
        nginx.error_log().contains("worker_connections are not enough\n")
    };
    wait_until(PATIENCE, is_full, "a worker without a free connection");
    for client in &mut lingering {
        client.send_raw(b"\r\n");
        assert_eq!(client.read_response().status, 200);
    }
    redis.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    let has_ended = || nginx.access_log().contains("/?cost=5 HTTP/1.1\" 200 ");
    wait_until(PATIENCE, has_ended, "the end of a request");
    let named = |client: &String| client.contains("name=nginx_rate_limit_redis:");
    let is_connected = || redis.clients().iter().any(named);
    wait_until(PATIENCE, is_connected, "another connection to Redis");
    assert_eq!(nginx.worker_pids(), worker, "the worker has survived");
    drop((lingering, others));
    wait_for(&nginx, "default", 3);
    assert_eq!(left(&nginx), 85);
    assert_eq!(settlements(&nginx, "default", "lost"), 0);
}

/// A worker that leaves keeps its idle connection to Redis for the settlement of a request whose connection lingers. Another
/// one would need room, which NGINX would make by closing that of the request.
#[test]
fn a_request_may_settle_while_its_worker_makes_room() {
    let redis = Redis::start();
    let mut nginx = conf(&redis, "rate_limit_redis a rate=100r/d settle=7;")
        .server("lingering_close always; lingering_time 60s; lingering_timeout 3s;")
        .server("location = /left { rate_limit_redis a rate=100r/d cost=0;")
        .server("  try_files /index.html =404; }")
        .workers(1)
        // It makes room where four are free.
        .connections(64)
        .start_connected(&redis);
    nginx.allow_log("worker_connections are not enough");
    let begin = || {
        let mut client = nginx.http();
        // There may be no connection for it.
        client.try_send_raw(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n").ok();
        client
    };
    let mut lingering = begin();
    let mut others = Vec::new();
    let is_full = || {
        others.push(begin());
        nginx.error_log().contains("worker_connections are not enough\n")
    };
    wait_until(PATIENCE, is_full, "a worker without a free connection");
    lingering.send_raw(b"\r\n");
    assert_eq!(lingering.read_response().status, 200);
    let old = nginx.reload_signal();
    wait_for(&nginx, "default", 1);
    assert_eq!(left(&nginx), 93);
    drop((lingering, others));
    wait_for_end(old[0]);
}

/// The zone of an old worker is none of NGINX's newest configuration, whose locks it releases.
#[test]
fn a_worker_may_die_with_the_lock_of_a_zone_that_was_replaced() {
    use std::os::unix::fs::FileExt as _;
    let application = Application::start();
    let limit = proxied("a rate=100r/d").replace("{port2}; }", "{application}; }");
    let conf = |size: &str| {
        unconnected(&limit)
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error local;")
            .http(&format!("rate_limit_redis_shared_memory {size};"))
            .workers(1)
            .set("application", application.port)
    };
    let mut nginx = conf("1m").start();
    let mut client = nginx.http();
    client.send("GET", "/", &[]);
    let stream = application.request();
    let old = nginx.reload_signal_with(&conf("2m"))[0];
    let maps = std::fs::read_to_string(format!("/proc/{old}/maps")).expect("the maps");
    let address = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|it| u64::from_str_radix(it, 16).expect("an address"));
        (rest.starts_with("rw-s") && end - start == 1 << 20).then_some(start)
    };
    let zones: Vec<_> = maps.lines().filter_map(address).collect();
    let [zone] = zones[..] else { panic!("{maps}") };
    // Its first word is the process that has locked it.
    let mut process = std::process::Command::new("true").spawn().expect("a process");
    process.wait().expect("its end");
    let memory = std::fs::OpenOptions::new().write(true).open(format!("/proc/{old}/mem"));
    let owner = u64::from(process.id()).to_ne_bytes();
    match memory {
        Ok(memory) => memory.write_all_at(&owner, zone).expect("a lock"),
        // The system may reserve that for root.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    answer(stream, "31");
    assert_eq!(client.read_response().status, 200);
    let is_gone = || !std::path::Path::new(&format!("/proc/{old}")).exists();
    wait_until(PATIENCE, is_gone, "the end of the old worker");
}

#[test]
fn a_rejection_in_a_dry_run_is_not_settled() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=2r/d"))
        .server("rate_limit_redis_dry_run on;")
        .start_connected(&redis);
    assert_eq!(left_after(&nginx, "/?cost=2"), 0);
    let response = nginx.get("/?cost=0");
    assert_eq!((response.status, response.decision()), (200, "REJECTED_DRY_RUN redis"));
    assert_eq!(left(&nginx), 0);
    assert_eq!(settlements(&nginx, "default", "settled"), 1);
}

/// A request that another limit rejects was not charged, or is given back.
#[test]
fn what_another_limit_rejects_is_not_settled() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location / { rate_limit_redis a name=wide rate=9r/d settle=3;")
        .server("  rate_limit_redis a name=tight rate=1r/d; try_files /index.html =404; }")
        .server("location /dry { rate_limit_redis a name=wide rate=9r/d settle=3;")
        .server("  rate_limit_redis a name=tight rate=1r/d;")
        .server("  rate_limit_redis_dry_run on; try_files /index.html =404; }")
        .start_connected(&redis);
    let statuses = ["/", "/", "/dry"].map(|path| nginx.get(path).status);
    assert_eq!(statuses, [200, 429, 200]);
    nginx.wait_for_access_log(3);
    wait_for(&nginx, "wide", 1);
    assert_eq!(tokens(&redis, "rl:wide:a"), Some(6));
}

#[test]
fn this_machine_settles_while_redis_is_away() {
    for limit in LIMITS {
        let nginx = unconnected(&proxied(limit))
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error local;")
            .start();
        assert_eq!(left_after(&nginx, "/?cost=37"), 63, "{limit}");
        assert_eq!(left_after(&nginx, "/?cost=0"), 63, "{limit}");
        assert_eq!(left_after(&nginx, "/?cost=163"), 0, "{limit}");
        let rejected = nginx.get("/");
        assert_eq!((rejected.status, rejected.decision()), (429, "REJECTED local"), "{limit}");
    }
}

/// One node charges a request, the other does not answer, and this machine decides: what the first has
/// charged is given back, and nothing of it is settled there.
#[test]
fn what_a_part_of_a_cluster_has_charged_is_given_back() {
    let mut cluster = ClusterConf::steady(3, 0).line("cluster-require-full-coverage no").start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url}; ")).collect();
    let nginx = unconnected("location / { proxy_pass http://127.0.0.1:{port2};")
        .http(&format!("rate_limit_redis_store edge {{ {servers} cluster on;"))
        .http("connect_timeout 30s; }\nrate_limit_redis_pass edge; rate_limit_redis_timeout 500ms;")
        .http("rate_limit_redis_on_error local;")
        .server("  rate_limit_redis $arg_a name=a rate=100r/d cost=5 settle=$upstream_http_x_cost;")
        .server("  rate_limit_redis $arg_b name=b rate=100r/d; }")
        .start();
    let node = |key: &str| cluster.master_of(slot(key));
    let mut keys = (0..).map(|n| format!("k{n}"));
    let other = keys.find(|key| node(&format!("rl:b:{key}")) != node("rl:a:a")).expect("a key");
    let (of_a, of_b) = (node("rl:a:a"), node(&format!("rl:b:{other}")));
    let left = |cluster: &Cluster| tokens(cluster.node(of_a), "rl:a:a");
    let decided = || nginx.get("/?a=a&cost=30").decision() == "PASSED redis";
    wait_until(PATIENCE, decided, "the cluster");
    wait_for(&nginx, "a", 1);
    wait_until(PATIENCE, || left(&cluster) == Some(70), "the settlement");
    cluster.stop_signal(of_b);
    assert_eq!(nginx.get(&format!("/?a=a&b={other}&cost=1")).decision(), "PASSED local");
    wait_for(&nginx, "a", 2);
    wait_until(PATIENCE, || left(&cluster) == Some(70), "the refund");
    // Another one is settled after whatever the first one has sent.
    assert_eq!(nginx.get("/?a=a&cost=6").status, 200);
    wait_for(&nginx, "a", 3);
    wait_until(PATIENCE, || left(&cluster) == Some(64), "what only the second request has cost");
}

#[test]
fn a_cluster_and_sentinels_are_settled_with() {
    let cluster = ClusterConf::steady(3, 0).start();
    let sentinels = SentinelConf::new(1).down_after(Duration::from_secs(10)).start();
    let servers = |urls: Vec<String>| urls.iter().map(|url| format!("server {url}; ")).collect();
    let [nodes, watchers]: [String; 2] = [cluster.urls(), sentinels.urls()].map(servers);
    for store in [format!("{nodes} cluster on;"), format!("{watchers} sentinel {MASTER_NAME};")] {
        let nginx = unconnected("location / { proxy_pass http://127.0.0.1:{port2};")
            .http(&format!("rate_limit_redis_store edge {{ {store} connect_timeout 30s; }}"))
            .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
            .http("rate_limit_redis_on_error closed; rate_limit_redis_headers ietf;")
            .server("  rate_limit_redis $arg_a name=a rate=100r/d settle=$upstream_http_x_cost;")
            .server("  rate_limit_redis $arg_b name=b rate=100r/d settle=0; }")
            .server("location = /left { rate_limit_redis $arg_a name=a rate=100r/d cost=0;")
            .server("  rate_limit_redis $arg_b name=b rate=100r/d cost=0;")
            .server("  try_files /index.html =404; }")
            .start();
        let node = |key: &str| cluster.master_of(slot(key));
        let mut keys = (0..).map(|n| format!("k{n}"));
        let other = keys.find(|key| node(&format!("rl:b:{key}")) != node("rl:a:a")).expect("a key");
        assert_eq!(nginx.get(&format!("/?a=a&b={other}&cost=8")).status, 200);
        wait_for(&nginx, "a", 1);
        wait_for(&nginx, "b", 1);
        let left = nginx.get(&format!("/left?a=a&b={other}"));
        let fields = left.header("RateLimit").expect("RateLimit");
        assert!(fields.starts_with("\"a\";r=92;") && fields.contains("\"b\";r=100;"), "{fields}");
    }
}

#[test]
fn streams_are_settled_each() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=1000r/d")).http2().start_connected(&redis);
    let seen = h2load(&["-n", "50", "-c", "2", "-m", "10", &nginx.h2_url("/?cost=3")]);
    assert_eq!((seen.of(200), seen.total()), (50, 50), "{seen:?}");
    wait_for(&nginx, "default", 50);
    assert_eq!(left(&nginx), 850);
}

#[test]
fn many_at_once_are_settled_once_each() {
    let redis = Redis::start();
    let nginx = conf(&redis, &proxied("a rate=100000r/52w")).workers(2).start_connected(&redis);
    // Where nearly nothing is missing, more charges than can be distinguished may get back too little.
    assert_eq!(nginx.get("/?cost=100").status, 200);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let addr = nginx.addr();
            thread::spawn(move || {
                let mut http = harness::Http::connect(addr);
                let is_passed = |it: &Response| it.status == 200;
                (0..50).map(|n| http.get(&format!("/?cost={}", n % 5))).filter(is_passed).count()
            })
        })
        .collect();
    let passed: usize = threads.into_iter().map(|it| it.join().expect("a client")).sum();
    assert_eq!(passed, 400);
    wait_for(&nginx, "default", 401);
    // Fifty requests cost 0 + 1 + 2 + 3 + 4, ten times.
    assert_eq!(left(&nginx), 100_000 - 100 - 8 * 100);
}
