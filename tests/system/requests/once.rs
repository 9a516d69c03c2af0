//! A client's request is charged once, whatever becomes of it inside nginx.

use std::thread::sleep;
use std::time::Duration;

use harness::{Conf, Redis, Response};

use crate::seen::{StartConnected as _, keys, quota, remaining, retry_after};
use crate::seen::{shows_nothing, tokens};

/// A server that limits, so slowly that nothing comes back while a test runs.
fn limited(redis: &Redis) -> Conf {
    Conf::new().redis(redis).server("rate_limit_redis $remote_addr rate=100r/d;")
}

/// A second server, which answers with the value of `X-Body`.
fn with_echo(conf: Conf) -> Conf {
    conf.http("server { listen 127.0.0.1:{port2}; location / { return 200 $http_x_body; } }")
        .server("proxy_set_header X-Body $request_body;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
}

const STATE: &str = "rl:default:127.0.0.1";

/// The first request of this client was charged, no other limit was, and the fields show that
/// once.
#[track_caller]
fn charged_once(redis: &Redis, response: &Response) {
    let [limit, remaining, _] = quota(response);
    assert_eq!((limit, remaining), (100, 99), "shown: {response:?}");
    assert_eq!(tokens(redis, STATE), Some(99), "tokens in Redis");
    assert_eq!(redis.calls("evalsha"), 1, "questions to Redis");
    assert_eq!(keys(redis), [STATE], "keys in Redis");
}

/// Configuration beside the limit, a path, and the answer in the end. `{other}` is another limit.
const WAYS: [(&str, &str, (u16, &str)); 11] = [
    ("", "/index.html", (200, "hello\n")),
    ("location = /index.html { {other} }", "/", (200, "hello\n")),
    ("location = / { rate_limit_redis off; }", "/", (200, "hello\n")),
    (
        "location / { try_files /none $uri /index.html; } location = /index.html { {other} }",
        "/nothing",
        (200, "hello\n"),
    ),
    (
        "location / { try_files /none @backend; }
         location @backend { {other} proxy_pass http://127.0.0.1:{port2}; }",
        "/nothing",
        (200, "backend"),
    ),
    ("error_page 404 /404.txt;", "/nothing", (404, "not here\n")),
    ("error_page 404 /404.txt; location = /404.txt { {other} }", "/nothing", (404, "not here\n")),
    (
        "error_page 404 = @backend;
         location @backend { {other} proxy_pass http://127.0.0.1:{port2}; }",
        "/nothing",
        (200, "backend"),
    ),
    (
        "recursive_error_pages on; error_page 404 /gone; error_page 502 = @last;
         location /gone { {other} proxy_pass http://127.0.0.1:1; }
         location @last { {other} try_files /index.html =500; }",
        "/nothing",
        (200, "hello\n"),
    ),
    ("location /old { {other} rewrite ^ /index.html last; }", "/old", (200, "hello\n")),
    (
        "location /accel { proxy_pass http://127.0.0.1:{port2}; }
         location /inner/ { internal; alias {prefix}/html/; {other} }",
        "/accel",
        (200, "hello\n"),
    ),
];

#[test]
fn a_request_is_charged_once_wherever_it_is_redirected() {
    for (snippet, path, answer) in WAYS {
        let redis = Redis::start();
        let nginx = limited(&redis)
            .set("other", "rate_limit_redis $remote_addr name=other rate=7r/d;")
            .http("server { listen 127.0.0.1:{port2}; location / { return 200 backend; }")
            .http(
                "location /accel { add_header X-Accel-Redirect /inner/index.html; return 200; } }",
            )
            .server(snippet)
            .file("html/404.txt", "not here\n")
            .start_connected(&redis);
        let response = nginx.get(path);
        assert_eq!((response.status, response.text()), answer, "{snippet}");
        charged_once(&redis, &response);
    }
}

#[test]
fn a_head_request_is_charged_once() {
    let redis = Redis::start();
    let nginx = limited(&redis).start_connected(&redis);
    let mut http = nginx.http();
    let response = http.head("/index.html");
    assert_eq!((response.status, response.header("content-length")), (200, Some("6")));
    charged_once(&redis, &response);
    assert_eq!(remaining(&http.get("/index.html")), 98, "the same connection, afterwards");
}

#[test]
fn an_index_is_charged_if_the_first_key_is_empty() {
    let redis = Redis::start();
    let nginx = limited(&redis)
        .server("location = / { rate_limit_redis $arg_key name=empty rate=7r/d; }")
        .server("add_header X-Status $rate_limit_redis_status;")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.text(), response.header("X-Status")), ("hello\n", Some("PASSED")));
    charged_once(&redis, &response);
}

#[test]
fn an_error_page_is_charged_if_the_request_was_not() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("error_page 404 /404.txt;")
        .server("location = /404.txt { rate_limit_redis $remote_addr rate=100r/d; }")
        .file("html/404.txt", "not here\n")
        .start_connected(&redis);
    let response = nginx.get("/nothing");
    assert_eq!((response.status, response.text()), (404, "not here\n"));
    charged_once(&redis, &response);
}

/// NGINX finds that a precondition fails when it sends the header: it cannot wait then.
#[test]
fn an_error_page_of_a_filter_is_not_charged() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("error_page 412 /412.txt;")
        .server("location = /412.txt { rate_limit_redis $remote_addr rate=100r/d;")
        .server("  rate_limit_redis $remote_addr name=later rate=100r/d after=auth; }")
        .file("html/page.txt", "page\n")
        .file("html/412.txt", "other\n")
        .start_connected(&redis);
    for _ in 0..2 {
        // NGINX closes the connection after the response.
        let mut http = nginx.http();
        http.send("GET", "/page.txt", &[("If-Match", "\"x\"")]);
        let response = http.read_response();
        assert_eq!((response.status, response.text()), (412, "other\n"));
        assert!(shows_nothing(&response), "{response:?}");
    }
    assert_eq!(redis.calls("evalsha"), 0);
}

#[test]
fn a_redirection_cycle_is_charged_once() {
    let redis = Redis::start();
    let nginx =
        limited(&redis).server("location /a { try_files /none /a; }").start_connected(&redis);
    let response = nginx.get("/a");
    assert_eq!(response.status, 500);
    charged_once(&redis, &response);
}

#[test]
fn ssi_includes_are_not_charged() {
    let redis = Redis::start();
    let include = "<!--#include virtual=\"/part/a.txt\" -->";
    let nginx = limited(&redis)
        .server("ssi on;")
        .server("location /part/ { rate_limit_redis $remote_addr name=part rate=7r/d; }")
        .file("html/page.html", &format!("{include}+{include}+{include}"))
        .file("html/part/a.txt", "part")
        .start_connected(&redis);
    let response = nginx.get("/page.html");
    assert_eq!((response.status, response.text()), (200, "part+part+part"));
    charged_once(&redis, &response);
}

#[test]
fn additions_are_not_charged() {
    let redis = Redis::start();
    let nginx = limited(&redis)
        .server("location = /page.html { add_before_body /part/a.html;")
        .server("add_after_body /part/a.html; }")
        .server("location /part/ { rate_limit_redis $remote_addr name=part rate=1r/d; }")
        .file("html/page.html", "page")
        .file("html/part/a.html", "+")
        .start_connected(&redis);
    let response = nginx.get("/page.html");
    assert_eq!((response.status, response.text()), (200, "+page+"));
    charged_once(&redis, &response);
}

#[test]
fn a_mirrored_request_is_not_charged() {
    let redis = Redis::start();
    let nginx = limited(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 200; }")
        .server("location / { mirror /mirror; }")
        .server("location = /mirror { internal; proxy_pass http://127.0.0.1:{port2}/mirrored;")
        .server("rate_limit_redis $remote_addr name=mirror rate=7r/d; }")
        .start_connected(&redis);
    let response = nginx.get("/index.html");
    assert_eq!((response.status, response.text()), (200, "hello\n"));
    let log = nginx.wait_for_access_log(2);
    assert!(log.contains("GET /mirrored"), "{log}");
    charged_once(&redis, &response);
}

/// A subrequest to a second server, which requires a header field `X-User`.
fn with_auth_request(conf: Conf) -> Conf {
    conf.http("server { listen 127.0.0.1:{port2};")
        .http("if ($http_x_user = '') { return 401; } return 204; }")
        .server("location / { auth_request /auth; }")
        .server("location = /auth { internal; proxy_pass http://127.0.0.1:{port2}/subrequest;")
        .server("rate_limit_redis $remote_addr name=auth rate=1r/d; }")
}

#[test]
fn auth_request_is_not_charged() {
    let redis = Redis::start();
    let nginx = with_auth_request(limited(&redis)).start_connected(&redis);
    let mut http = nginx.http();
    http.send("GET", "/index.html", &[("X-User", "bob")]);
    let response = http.read_response();
    assert_eq!((response.status, response.text()), (200, "hello\n"));
    charged_once(&redis, &response);

    http.send("GET", "/", &[("X-User", "bob")]);
    let response = http.read_response();
    assert_eq!((response.status, remaining(&response)), (200, 98), "with an index redirect");
    assert_eq!(keys(&redis), [STATE]);
}

#[test]
fn a_request_that_auth_request_denies_is_charged_once() {
    let redis = Redis::start();
    let nginx = with_auth_request(limited(&redis)).start_connected(&redis);
    let response = nginx.get("/index.html");
    assert_eq!(response.status, 401);
    charged_once(&redis, &response);
}

#[test]
fn a_rejected_request_is_not_authorized() {
    let redis = Redis::start();
    let limit = "rate_limit_redis $remote_addr rate=1r/d;";
    let nginx = with_auth_request(Conf::new().redis(&redis).server(limit)).start_connected(&redis);
    assert_eq!(nginx.get("/index.html").status, 401);
    assert_eq!(nginx.get("/index.html").status, 429);
    let log = nginx.wait_for_access_log(3);
    assert_eq!(
        log.matches("/subrequest").count(),
        1,
        "the second request had no subrequest:\n{log}"
    );
}

#[test]
fn pipelined_requests_are_charged_each() {
    let redis = Redis::start();
    let mut conf = limited(&redis);
    for n in 0..10 {
        conf = conf.file(&format!("html/{n}.txt"), &n.to_string());
    }
    let nginx = conf.start_connected(&redis);
    let mut http = nginx.http();
    let request = |n| format!("GET /{n}.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    http.send_raw((0..10).map(request).collect::<String>().as_bytes());
    for n in 0..10u64 {
        let response = http.read_response();
        assert_eq!((response.status, response.text()), (200, n.to_string().as_str()));
        assert_eq!(remaining(&response), 99 - n, "response {n}");
    }
    assert_eq!((tokens(&redis, STATE), redis.calls("evalsha")), (Some(90), 10));
}

#[test]
fn pipelined_requests_over_the_limit_are_rejected_in_order() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $remote_addr rate=5r/d;")
        .start_connected(&redis);
    let mut http = nginx.http();
    http.send_raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(10).as_bytes());
    let seen = [(); 10].map(|()| {
        let response = http.read_response();
        (response.status, remaining(&response), response.header("Retry-After").is_some())
    });
    let passed = [4, 3, 2, 1, 0].map(|remaining| (200, remaining, false));
    assert_eq!(seen, [passed, [(429, 0, true); 5]].concat()[..]);
    assert_eq!(http.get("/").status, 429, "in step afterwards");
}

#[test]
fn a_request_is_charged_once_though_its_body_comes_late() {
    let redis = Redis::start();
    let nginx = with_echo(limited(&redis)).start_connected(&redis);
    let mut http = nginx.http();
    http.send("POST", "/", &[("Content-Length", "4")]);
    sleep(Duration::from_millis(200));
    http.send_raw(b"late");
    let response = http.read_response();
    assert_eq!((response.status, response.text()), (200, "late"));
    charged_once(&redis, &response);
    assert_eq!(remaining(&http.get("/")), 98, "the same connection, afterwards");
}

#[test]
fn a_request_is_charged_once_though_its_chunks_come_late() {
    let redis = Redis::start();
    let nginx = with_echo(limited(&redis)).start_connected(&redis);
    let mut http = nginx.http();
    http.send("POST", "/", &[("Transfer-Encoding", "chunked")]);
    for part in ["2\r\nla", "\r\n2\r\nte\r\n", "0\r\n\r\n"] {
        sleep(Duration::from_millis(70));
        http.send_raw(part.as_bytes());
    }
    let response = http.read_response();
    assert_eq!((response.status, response.text()), (200, "late"));
    charged_once(&redis, &response);
    assert_eq!(remaining(&http.get("/")), 98, "the same connection, afterwards");
}

#[test]
fn a_late_body_of_a_rejected_request_is_discarded() {
    let redis = Redis::start();
    let limit = "rate_limit_redis $arg_key rate=1r/d;";
    let nginx = with_echo(Conf::new().redis(&redis).server(limit)).start_connected(&redis);
    assert_eq!(nginx.get("/?key=a").status, 200);

    let mut http = nginx.http();
    http.send("POST", "/?key=a", &[("Content-Length", "4")]);
    let response = http.read_response();
    assert_eq!((response.status, remaining(&response)), (429, 0), "before the body has come");
    assert!(retry_after(&response) > 80_000);
    sleep(Duration::from_millis(200));
    http.send_raw(b"late");
    let next = http.get("/?key=b");
    assert_eq!((next.status, next.text()), (200, ""), "the same connection, afterwards");

    http.send("POST", "/?key=a", &[("Transfer-Encoding", "chunked")]);
    assert_eq!(http.read_response().status, 429, "before any chunk has come");
    http.send_raw(b"4\r\nlate\r\n0\r\n\r\n");
    assert_eq!(http.get("/?key=c").status, 200, "the same connection, afterwards");
    let log = nginx.wait_for_access_log(8);
    assert!(!log.lines().any(|line| line.contains("\"POST") && line.contains(" 200 ")), "{log}");
}

#[test]
fn a_body_is_kept_that_comes_while_the_request_waits() {
    let mut redis = Redis::start();
    let nginx = with_echo(limited(&redis)).start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/")), 99);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("POST", "/", &[("Content-Length", "9")]);
    sleep(Duration::from_millis(100));
    http.send_raw(b"while");
    sleep(Duration::from_millis(100));
    http.send_raw(b"wait");
    sleep(Duration::from_millis(100));
    redis.cont();
    let response = http.read_response();
    assert_eq!((response.status, response.text()), (200, "whilewait"));
    assert_eq!(remaining(&response), 98);
    assert_eq!(remaining(&http.get("/")), 97, "the same connection, afterwards");
    assert_eq!(tokens(&redis, STATE), Some(97));
}

#[test]
fn a_body_is_discarded_that_comes_before_the_rejection() {
    let mut redis = Redis::start();
    let limit = "rate_limit_redis $arg_key rate=1r/d;";
    let nginx = with_echo(Conf::new().redis(&redis).server(limit)).start_connected(&redis);
    assert_eq!(nginx.get("/?key=a").status, 200);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("POST", "/?key=a", &[("Content-Length", "9")]);
    sleep(Duration::from_millis(100));
    http.send_raw(b"while");
    sleep(Duration::from_millis(100));
    redis.cont();
    assert_eq!(http.read_response().status, 429);
    http.send_raw(b"wait");
    assert_eq!(http.get("/?key=b").status, 200, "the same connection, afterwards");
}

#[test]
fn a_large_body_is_kept_that_comes_while_the_request_waits() {
    let mut redis = Redis::start();
    let body = "0123456789abcdef".repeat(50_000);
    let nginx = limited(&redis)
        .http("server { listen 127.0.0.1:{port2}; location / { return 200; } }")
        .http("log_format body $request_body;")
        .server("client_body_buffer_size 1m; access_log {prefix}/body.log body;")
        .server("location / { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    redis.stop_signal();
    let mut http = nginx.http();
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| http.post("/", body.as_bytes()));
        sleep(Duration::from_millis(200));
        redis.cont();
        let response = sent.join().expect("a response");
        assert_eq!((response.status, remaining(&response)), (200, 98));
    });
    let received = crate::seen::lines(&nginx, "body.log", 2);
    assert!(received[1] == body, "{} bytes of the body came through", received[1].len());
    assert_eq!(remaining(&http.get("/")), 97, "the same connection, afterwards");
}

#[test]
fn a_pipelined_request_waits_behind_the_first() {
    let mut redis = Redis::start();
    let nginx = limited(&redis).file("html/b.txt", "second").start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/")), 99);
    redis.stop_signal();
    let mut http = nginx.http();
    http.send("GET", "/", &[]);
    sleep(Duration::from_millis(100));
    http.send("GET", "/b.txt", &[]);
    sleep(Duration::from_millis(100));
    redis.cont();
    let (first, second) = (http.read_response(), http.read_response());
    assert_eq!((first.text(), remaining(&first)), ("hello\n", 98));
    assert_eq!((second.text(), remaining(&second)), ("second", 97));
}

#[test]
fn variables_survive_redirects() {
    let redis = Redis::start();
    let vars = "$rate_limit_redis_status $rate_limit_redis_name $rate_limit_redis_limit \
                $rate_limit_redis_remaining $rate_limit_redis_source";
    let nginx = limited(&redis)
        .http(&format!("log_format limits '$request_uri $uri {vars}';"))
        .server("access_log {prefix}/limits.log limits;")
        .server("recursive_error_pages on; error_page 404 /gone; error_page 502 = @last;")
        .server("location /gone { proxy_pass http://127.0.0.1:1; }")
        .server("location @last { rate_limit_redis $remote_addr name=other rate=7r/d;")
        .server(&format!("add_header X-Vars '{vars}' always; try_files /index.html =500; }}"))
        .start_connected(&redis);
    let response = nginx.get("/nothing");
    assert_eq!(response.header("X-Vars"), Some("PASSED default 100 99 redis"));
    charged_once(&redis, &response);
    let log = crate::seen::lines(&nginx, "limits.log", 1);
    assert_eq!(log, ["/nothing /index.html PASSED default 100 99 redis"]);
}
