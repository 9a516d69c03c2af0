//! The header fields that a client gets, and the variables of the log.

use std::thread::sleep;
use std::time::Duration;

use harness::{Conf, Nginx, Redis, Response};

use crate::seen::{
    FIELDS, StartConnected as _, lines, quota, remaining, retry_after, shows_nothing,
};

/// A server that limits to ten requests, one of which comes back every 10 s.
fn limited(redis: &Redis) -> Conf {
    Conf::new().redis(redis).server("rate_limit_redis $remote_addr rate=1r/10s capacity=10;")
}

/// One request was charged, and the header fields show that.
#[track_caller]
fn first_of_ten(response: &Response, status: u16) {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(quota(response), [10, 9, 10]);
    assert!(response.headers("Retry-After").is_empty(), "it is no rejection: {response:?}");
}

fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send("GET", path, headers);
    http.read_response()
}

#[test]
fn answers_of_every_status_show_what_is_left() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 302 /elsewhere; }")
        .server("rate_limit_redis $request_method$uri rate=1r/10s capacity=10;")
        .server("location = /moved { proxy_pass http://127.0.0.1:{port2}; }")
        .server("location = /closed { deny all; }")
        .server("location = /cycle { try_files /none /cycle; }")
        .server("location = /dead { proxy_pass http://127.0.0.1:1; }")
        .file("html/dir/a.txt", "a")
        .start_connected(&redis);
    let answers = [
        ("GET", "/index.html", 200),
        ("GET", "/dir", 301),
        ("GET", "/moved", 302),
        ("GET", "/closed", 403),
        ("GET", "/nothing", 404),
        ("POST", "/index.html", 405),
        ("GET", "/cycle", 500),
        ("GET", "/dead", 502),
    ];
    for (method, path, status) in answers {
        let mut http = nginx.http();
        http.send(method, path, &[("Content-Length", "0")]);
        let response = http.read_response();
        first_of_ten(&response, status);
        let to = response.header("Location").unwrap_or_default();
        assert_eq!(to.ends_with("/dir/"), path == "/dir", "{response:?}");
    }
}

#[test]
fn a_range_shows_what_is_left() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis).start_connected(&redis);
    let response = get(&nginx, "/index.html", &[("Range", "bytes=1-2")]);
    assert_eq!(response.text(), "el");
    first_of_ten(&response, 206);
    let response = get(&nginx, "/index.html", &[("Range", "bytes=99-")]);
    assert_eq!((response.status, quota(&response)), (416, [10, 8, 20]));
}

#[test]
fn an_unchanged_file_shows_what_is_left() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis).start_connected(&redis);
    let response =
        get(&nginx, "/index.html", &[("If-Modified-Since", "Fri, 31 Dec 2100 23:59:59 GMT")]);
    // nginx compares with the exact date of the file by default.
    assert_eq!(response.status, 200);
    let date = response.header("Last-Modified").expect("a date").to_owned();
    let response = get(&nginx, "/index.html", &[("If-Modified-Since", &date)]);
    assert_eq!((response.status, quota(&response)), (304, [10, 8, 20]));
}

#[test]
fn answers_without_a_length_show_what_is_left() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 204; }")
        .server("rate_limit_redis $uri rate=1r/10s capacity=10;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .server("location /page.html { gzip on; gzip_min_length 1; }")
        .file("html/page.html", &"all work and no play ".repeat(1000))
        .start_connected(&redis);
    first_of_ten(&nginx.get("/"), 204);
    let response = get(&nginx, "/page.html", &[("Accept-Encoding", "gzip")]);
    assert_eq!(response.header("Content-Encoding"), Some("gzip"));
    first_of_ten(&response, 200);
}

#[test]
fn http_1_0_shows_what_is_left() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis).start_connected(&redis);
    let mut http = nginx.http();
    http.send_raw(b"GET / HTTP/1.0\r\n\r\n");
    first_of_ten(&http.read_response(), 200);
    assert!(http.is_closed());
}

#[test]
fn a_rejection_shows_when_to_come_back() {
    let redis = Redis::start_with_stopped_clock();
    let limit = "rate_limit_redis $remote_addr rate=1r/10s;";
    let nginx = Conf::new().redis(&redis).server(limit).start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.status, quota(&response)), (200, [1, 0, 10]));
    let response = nginx.get("/");
    assert_eq!((response.status, quota(&response)), (429, [1, 0, 10]));
    assert_eq!(retry_after(&response), 10);
    assert!(response.text().contains("429 Too Many Requests"), "{}", response.text());
    assert_eq!(response.header("Content-Type"), Some("text/html"));
}

#[test]
fn nothing_is_shown_where_nothing_limits() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis $arg_key rate=1r/d; }")
        .server("location = /index.html { rate_limit_redis off; }")
        .start_connected(&redis);
    assert!(shows_nothing(&nginx.get("/index.html")), "limits are off");
    assert!(shows_nothing(&nginx.get("/nothing")), "an empty key");
    assert_eq!(quota(&nginx.get("/nothing?key=a")), [1, 0, 86_400]);
}

#[test]
fn fields_from_upstream_are_replaced() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis)
        .http("server { listen 127.0.0.1:{port2};")
        .http("add_header X-RateLimit-Limit 7; add_header X-RateLimit-Limit 8;")
        .http("add_header x-ratelimit-remaining 7; add_header X-RATELIMIT-RESET 7;")
        .http("add_header RateLimit-Limit 7; return 200 x; }")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = nginx.get("/");
    first_of_ten(&response, 200);
    assert_eq!(response.header("RateLimit-Limit"), Some("7"), "a field that is not ours");
}

#[test]
fn fields_from_upstream_stay_where_ours_are_off() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis)
        .http("server { listen 127.0.0.1:{port2}; add_header X-RateLimit-Limit 7; return 200; }")
        .server("rate_limit_redis_headers off;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!(FIELDS.map(|name| response.header(name)), [Some("7"), None, None]);
}

#[test]
fn an_upstream_may_send_a_retry_after() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis)
        .http("server { listen 127.0.0.1:{port2}; add_header Retry-After 77 always;")
        .http("return 503; }")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.status, remaining(&response)), (503, 9));
    assert_eq!(response.header("Retry-After"), Some("77"), "as the upstream said");
}

/// A client that waited for it would be rejected again.
#[test]
fn an_error_page_has_no_retry_after_for_a_request_that_never_passes() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("server { listen 127.0.0.1:{port2}; add_header Retry-After 77 always;")
        .http("add_header retry-after 78 always; location / { return 200; } }")
        .server("rate_limit_redis a name=api rate=5r/d cost=$arg_cost;")
        .server("error_page 429 /page; proxy_intercept_errors off;")
        .server("location = /page { rate_limit_redis off; proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let never = nginx.get("/?cost=6");
    assert_eq!((never.status, never.headers("Retry-After")), (429, vec![]));
    assert_eq!(nginx.get("/?cost=5").status, 200);
    let later = nginx.get("/?cost=1");
    assert_eq!(later.status, 429);
    let [seconds] = later.headers("Retry-After")[..] else { panic!("{later:?}") };
    assert!(seconds.parse::<u64>().is_ok_and(|seconds| seconds > 78), "{seconds}");
}

#[test]
fn off_hides_all_but_retry_after() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $remote_addr rate=1r/10s; rate_limit_redis_headers off;")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.status, shows_nothing(&response)), (200, true));
    let response = nginx.get("/");
    assert_eq!((response.status, FIELDS.map(|name| response.header(name))), (429, [None; 3]));
    assert_eq!(retry_after(&response), 10, "is on every rejection");
}

#[test]
fn a_location_may_show_what_the_server_hides() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = limited(&redis)
        .server("rate_limit_redis_headers off;")
        .server("location /a { } location /b { rate_limit_redis_headers x-ratelimit; }")
        .start_connected(&redis);
    assert!(shows_nothing(&nginx.get("/a")));
    assert_eq!(quota(&nginx.get("/b")), [10, 8, 20]);
}

/// The fields of `path` for each of so many requests in a row.
fn shown<const N: usize>(nginx: &Nginx, path: &str) -> [(u16, [u64; 3], Option<u64>); N] {
    [(); N].map(|()| {
        let response = nginx.get(path);
        let wait = response.header("Retry-After").map(|text| text.parse().expect("a number"));
        (response.status, quota(&response), wait)
    })
}

#[test]
fn a_token_bucket_is_shown_exactly() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=1r/10s capacity=3 name=a; }")
        .server("location /cost { rate_limit_redis b rate=3r/60s cost=2 capacity=5 name=b; }")
        .start_connected(&redis);
    let expected = [
        (200, [3, 2, 10], None),
        (200, [3, 1, 20], None),
        (200, [3, 0, 30], None),
        (429, [3, 0, 30], Some(10)),
        (429, [3, 0, 30], Some(10)),
    ];
    assert_eq!(shown(&nginx, "/"), expected);
    let expected = [
        (404, [5, 3, 40], None),
        (404, [5, 1, 80], None),
        // one more token is needed, and comes in 20 s
        (429, [5, 1, 80], Some(20)),
    ];
    assert_eq!(shown(&nginx, "/cost"), expected);
}

#[test]
fn gcra_is_shown_exactly() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=1r/10s algorithm=gcra burst=2 name=a; }")
        .server("location /zero { rate_limit_redis b rate=3r/60s algorithm=gcra name=b; }")
        .server("location /cost { rate_limit_redis c rate=3r/60s algorithm=gcra")
        .server("burst=4 cost=2 name=c; }")
        .start_connected(&redis);
    let expected = [
        (200, [3, 2, 10], None),
        (200, [3, 1, 20], None),
        (200, [3, 0, 30], None),
        (429, [3, 0, 30], Some(10)),
        (429, [3, 0, 30], Some(10)),
    ];
    assert_eq!(shown(&nginx, "/"), expected);
    assert_eq!(shown(&nginx, "/zero"), [(404, [1, 0, 20], None), (429, [1, 0, 20], Some(20))]);
    let expected = [(404, [5, 3, 40], None), (404, [5, 1, 80], None), (429, [5, 1, 80], Some(20))];
    assert_eq!(shown(&nginx, "/cost"), expected);
}

#[test]
fn seconds_are_rounded_up() {
    let redis = Redis::start_with_stopped_clock();
    // One every 2.4 s.
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /a { rate_limit_redis a rate=5r/12s capacity=1 name=a; }")
        .server("location /b { rate_limit_redis b rate=5r/12s algorithm=gcra name=b; }")
        // One every 20 ms.
        .server("location /c { rate_limit_redis c rate=50r/s capacity=1 name=c; }")
        .start_connected(&redis);
    for path in ["/a", "/b"] {
        let mut http = nginx.http();
        http.send_raw(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2).as_bytes());
        assert_eq!(http.read_response().status, 404);
        let response = http.read_response();
        assert_eq!((response.status, quota(&response)[2], retry_after(&response)), (429, 3, 3));
    }
    // At least 1, even for the rest of a period that is about to end.
    let mut rejected = 0;
    for _ in 0..100 {
        let response = nginx.get("/c");
        assert_eq!(quota(&response)[2], 1);
        if response.status == 429 {
            assert_eq!(retry_after(&response), 1);
            rejected += 1;
        }
    }
    assert!(rejected > 10, "{rejected} of 100 rejected");
}

#[test]
fn waiting_for_the_retry_is_enough() {
    let redis = Redis::start();
    let limits = [
        "rate=1r/s",
        "rate=3r/2s",
        "rate=3r/2s capacity=4 cost=3",
        "rate=1r/1300ms",
        "rate=1r/s algorithm=gcra",
        "rate=3r/2s algorithm=gcra",
        "rate=7r/3s algorithm=gcra burst=5 cost=4",
        "rate=1r/1300ms algorithm=gcra burst=1",
    ];
    let mut conf = Conf::new().redis(&redis);
    for (n, limit) in limits.iter().enumerate() {
        let line = format!("rate_limit_redis $remote_addr name=n{n} {limit};");
        conf = conf.server(&format!("location /{n} {{ {line} }}"));
    }
    let nginx = conf.start_connected(&redis);
    let wait_twice = |n: usize| {
        for _ in 0..2 {
            let rejected = (0..50).map(|_| nginx.get(&format!("/{n}"))).find(|r| r.status == 429);
            let seconds = retry_after(&rejected.expect("one of fifty is rejected"));
            assert!((1..=2).contains(&seconds), "{}: {seconds}", limits[n]);
            sleep(Duration::from_secs(seconds));
            let status = nginx.get(&format!("/{n}")).status;
            assert_eq!(status, 404, "{}: rejected after {seconds} s", limits[n]);
        }
    };
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..limits.len()).map(|n| scope.spawn(move || wait_twice(n))).collect();
        assert!(waiting.into_iter().all(|thread| thread.join().is_ok()));
    });
}

/// A server that is limited to one request, with more about its rejections.
fn once(redis: &Redis, snippet: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .server("location / { rate_limit_redis $remote_addr rate=1r/10s;")
        .server(snippet)
        .server("}")
        .file("html/slow.txt", "slow down\n")
}

/// The second response, which is a rejection that keeps its fields.
#[track_caller]
fn second(nginx: &Nginx) -> Response {
    let first = nginx.get("/index.html");
    assert_eq!((first.status, quota(&first)), (200, [1, 0, 10]));
    let second = nginx.get("/index.html");
    assert_eq!((quota(&second), retry_after(&second)), ([1, 0, 10], 10));
    second
}

#[test]
fn an_error_page_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 /slow.txt;").start_connected(&redis);
    let response = second(&nginx);
    assert_eq!((response.status, response.text()), (429, "slow down\n"));
}

#[test]
fn a_limited_error_page_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 /slow.txt;")
        .server("location = /slow.txt { rate_limit_redis $remote_addr name=slow rate=1r/d; }")
        .start_connected(&redis);
    let response = second(&nginx);
    assert_eq!((response.status, response.text()), (429, "slow down\n"));
    assert_eq!(crate::seen::keys(&redis), ["rl:default:127.0.0.1"], "charged elsewhere");
}

#[test]
fn an_error_page_of_another_status_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 =200 /slow.txt;").start_connected(&redis);
    let response = second(&nginx);
    assert_eq!((response.status, response.text()), (200, "slow down\n"));
}

#[test]
fn a_named_location_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 = @slow;")
        .server("location @slow {")
        .server("return 420 '{\"retry\":$rate_limit_redis_retry_after}'; }")
        .start_connected(&redis);
    let response = second(&nginx);
    assert_eq!((response.status, response.text()), (420, "{\"retry\":10}"));
}

#[test]
fn an_error_page_from_upstream_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 @upstream;")
        .http("server { listen 127.0.0.1:{port2}; add_header Retry-After 77 always;")
        .http("add_header X-RateLimit-Limit 77 always; return 200 page; }")
        .server("location @upstream { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = second(&nginx);
    assert_eq!((response.status, response.text()), (429, "page"));
}

#[test]
fn a_redirect_to_another_host_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 http://example.com/slow;").start_connected(&redis);
    let response = second(&nginx);
    assert_eq!(response.status, 302);
    assert_eq!(response.header("Location"), Some("http://example.com/slow"));
}

#[test]
fn a_missing_error_page_keeps_the_fields() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "error_page 429 /none.txt;").start_connected(&redis);
    assert_eq!(second(&nginx).status, 404);
}

#[test]
fn rejections_of_other_statuses_keep_the_fields() {
    for (status, reason) in [(400, "400 Bad"), (503, "503 Service Temp"), (418, ""), (599, "")] {
        let redis = Redis::start_with_stopped_clock();
        let nginx =
            once(&redis, &format!("rate_limit_redis_status {status};")).start_connected(&redis);
        let response = second(&nginx);
        assert_eq!(response.status, status);
        assert!(response.text().contains(reason), "{status}: {:?}", response.text());
    }
}

#[test]
fn with_444_the_connection_is_closed() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(&redis, "rate_limit_redis_status 444;").start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let mut http = nginx.http();
    http.send("GET", "/", &[]);
    assert!(http.is_closed());
    assert!(nginx.wait_for_access_log(2).contains("\" 444 0"), "{}", nginx.access_log());
}

#[test]
fn no_quota_is_shown_without_a_decision() {
    for (status, snippet) in [(503, ""), (429, "rate_limit_redis_error_status 429;")] {
        let nginx = Conf::new()
            .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
            .server("rate_limit_redis $remote_addr rate=9r/d;")
            .server(snippet)
            .start();
        let response = nginx.get("/");
        assert_eq!((response.status, retry_after(&response)), (status, 1));
        assert_eq!(FIELDS.map(|name| response.header(name)), [None; 3]);
    }
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1;")
        .server("rate_limit_redis $remote_addr rate=9r/d;")
        .start();
    let response = nginx.get("/");
    assert_eq!((response.status, shows_nothing(&response)), (200, true));
}

#[test]
fn an_error_page_keeps_retry_after_without_a_decision() {
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
        .server("location / { rate_limit_redis $remote_addr rate=9r/d;")
        .server("error_page 503 =200 /slow.txt; }")
        .file("html/slow.txt", "slow down\n")
        .start();
    let response = nginx.get("/index.html");
    assert_eq!((response.status, response.text()), (200, "slow down\n"));
    assert_eq!(retry_after(&response), 1);
}

#[test]
fn add_header_may_use_the_variables() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = once(
        &redis,
        "add_header X-Quota \"$rate_limit_redis_remaining of $rate_limit_redis_limit\" always;
         add_header X-Wait $rate_limit_redis_retry_after always;",
    )
    .start_connected(&redis);
    let [first, second] = [(); 2].map(|()| nginx.get("/"));
    assert_eq!(first.header("X-Quota"), Some("0 of 1"));
    assert_eq!(first.header("X-Wait"), None);
    assert_eq!(second.header("X-Quota"), Some("0 of 1"));
    assert_eq!(second.header("X-Wait"), Some("10"));
}

const VARIABLES: &str = "$uri:$rate_limit_redis_status,$rate_limit_redis_name,\
    $rate_limit_redis_limit,$rate_limit_redis_remaining,$rate_limit_redis_reset,\
    $rate_limit_redis_retry_after,$rate_limit_redis_source,$rate_limit_redis_time";

/// A line of the log without the time at its end, which must be one if there is any.
#[track_caller]
fn without_time(line: &str) -> &str {
    let (line, time) = line.rsplit_once(',').expect("a line with commas");
    let (seconds, micros) = time.split_once('.').unwrap_or_else(|| panic!("{line}: {time:?}"));
    assert!(seconds.parse::<u64>().is_ok_and(|s| s < 5), "{line}: {time:?}");
    assert!(micros.len() == 6 && micros.parse::<u64>().is_ok(), "{line}: {time:?}");
    line
}

#[test]
fn the_variables_say_what_was_decided() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http(&format!("log_format limits escape=none '{VARIABLES}';"))
        .server("access_log {prefix}/limits.log limits;")
        .server("location /ok { rate_limit_redis a name=a rate=1r/10s capacity=2; }")
        .server("location /empty { rate_limit_redis '' name=a rate=1r/10s capacity=2; }")
        .server("location /gone { rate_limit_redis a name=g rate=1r/s;")
        .server("rate_limit_redis_pass redis://127.0.0.1:1; }")
        .server("location /shut { rate_limit_redis a name=g rate=1r/s;")
        .server("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed; }")
        .server("location /bad { rate_limit_redis a name=b rate=$arg_rate; }")
        .server("location /never { rate_limit_redis n name=n rate=1r/10s cost=$arg_cost; }")
        .server("location / { }")
        .start_connected(&redis);
    let paths = ["/ok", "/ok", "/ok", "/empty", "/gone", "/shut", "/bad", "/never?cost=9", "/no"];
    let statuses = paths.map(|path| nginx.get(path).status);
    assert_eq!(statuses, [404, 404, 429, 404, 404, 503, 400, 429, 404]);
    let log = lines(&nginx, "limits.log", paths.len());
    let (unlimited, limited) = log.split_last().expect("lines");
    let limited: Vec<_> = limited.iter().map(|line| without_time(line)).collect();
    let expected = [
        "/ok:PASSED,a,2,1,10,,redis",
        "/ok:PASSED,a,2,0,20,,redis",
        "/ok:REJECTED,a,2,0,20,10,redis",
        "/empty:BYPASSED,,,,,,none",
        "/gone:ERROR_PASSED,,,,,,none",
        "/shut:ERROR_REJECTED,,,,,1,none",
        "/bad:ERROR_REJECTED,,,,,,none",
        "/never:REJECTED,n,1,1,0,,redis",
    ];
    assert_eq!(limited, expected);
    assert_eq!(unlimited, "/no:,,,,,,,", "where nothing limits");
}

#[test]
fn variables_that_are_read_too_early_do_not_stick() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("map $rate_limit_redis_status $rejected { REJECTED 1; default 0; }")
        .http("log_format early '$early,$rate_limit_redis_status,$rate_limit_redis_remaining';")
        .server("set $early \"$rate_limit_redis_status$rate_limit_redis_remaining\";")
        .server("rate_limit_redis $remote_addr rate=1r/d; access_log {prefix}/early.log early;")
        .server("access_log {prefix}/rejected.log combined if=$rejected;")
        .start_connected(&redis);
    assert_eq!([(); 2].map(|()| nginx.get("/index.html").status), [200, 429]);
    assert_eq!(lines(&nginx, "early.log", 2), [",PASSED,0", ",REJECTED,0"]);
    let rejected = lines(&nginx, "rejected.log", 1);
    assert!(rejected.len() == 1 && rejected[0].contains("\" 429 "), "{rejected:?}");
}

#[test]
fn the_time_is_that_of_the_wait() {
    let mut redis = Redis::start();
    let nginx = limited(&redis)
        .http("log_format time '$rate_limit_redis_time $rate_limit_redis_status';")
        .server("access_log {prefix}/time.log time;")
        .server("location /short { rate_limit_redis_timeout 100ms; }")
        .status()
        .start_connected(&redis);
    assert_eq!(nginx.get("/index.html").status, 200);
    let seconds = |number: usize| {
        let log = lines(&nginx, "time.log", number);
        let (time, status) = log[number - 1].split_once(' ').expect("a time");
        (time.parse::<f64>().expect("a number"), status.to_owned())
    };
    assert!(seconds(1).0 < 1.5, "{:?}", seconds(1));

    redis.stop_signal();
    let mut http = nginx.http();
    http.send("GET", "/index.html", &[]);
    nginx.wait_for_requests(1, 0);
    sleep(Duration::from_secs(2));
    redis.cont();
    assert_eq!(http.read_response().status, 200);
    let (time, status) = seconds(2);
    assert!((1.5..5.0).contains(&time) && status == "PASSED", "{time} {status}");

    redis.stop_signal();
    assert_eq!(nginx.get("/short").status, 404);
    let (time, status) = seconds(3);
    assert!((0.09..1.5).contains(&time) && status == "ERROR_PASSED", "{time} {status}");
    redis.cont();
}
