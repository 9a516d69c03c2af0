//! The bodies of rejections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use harness::{Conf, Nginx, PATIENCE, Redis, Response, run};

use crate::requests::forms::curl_h2;
use crate::seen::{StartConnected as _, quota, retry_after};

const JSON: &str = r#"{"error":"Rate limit exceeded","limit":"per_ip","retry_after":10}"#;

/// The body of a problem.
fn problem(status: u16, violated: &str) -> String {
    format!(
        "{{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":{status},\"violated-policies\":[{violated}]}}"
    )
}

/// A server that passes one request in 10 s, with more in its location.
fn once(redis: &Redis, snippet: &str) -> Conf {
    Conf::new()
        .redis(redis)
        .server("location / { rate_limit_redis $remote_addr name=per_ip rate=1r/10s;")
        .server(snippet)
        .server("}")
        .file("html/slow.txt", "slow down\n")
}

/// A location like that, and the one request has been spent.
fn spent(redis: &Redis, snippet: &str) -> Nginx {
    spent_of(once(redis, snippet), redis)
}

fn spent_of(conf: Conf, redis: &Redis) -> Nginx {
    let nginx = conf.start_connected(redis);
    assert_eq!(nginx.get("/index.html").status, 200);
    nginx
}

/// A rejection with this body and the length of it.
#[track_caller]
fn has_body(response: &Response, status: u16, kind: &str, body: &str) {
    assert_eq!((response.status, response.text()), (status, body), "{response:?}");
    assert_eq!(response.header("Content-Type"), Some(kind));
    assert_eq!(response.header("Content-Length"), Some(&*body.len().to_string()));
    assert_eq!(response.header("Transfer-Encoding"), None);
}

#[track_caller]
fn says_json(response: &Response) {
    has_body(response, 429, "application/json", JSON);
    assert_eq!((quota(response), retry_after(response)), ([1, 0, 10], 10));
}

#[test]
fn json_names_the_limit() {
    let redis = Redis::start_with_stopped_clock();
    says_json(&spent(&redis, "rate_limit_redis_body json;").get("/"));
}

#[test]
fn a_problem_names_the_limit() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = spent(&redis, "rate_limit_redis_body problem;");
    let response = nginx.get("/");
    has_body(&response, 429, "application/problem+json", &problem(429, "\"per_ip\""));
    assert_eq!((quota(&response), retry_after(&response)), ([1, 0, 10], 10));
}

#[test]
fn html_is_the_default() {
    let redis = Redis::start_with_stopped_clock();
    let default = spent(&redis, "").get("/");
    assert_eq!((default.status, default.header("Content-Type")), (429, Some("text/html")));
    assert!(default.text().contains("<h1>429 Too Many Requests</h1>"), "{}", default.text());
    let redis = Redis::start_with_stopped_clock();
    let chosen = spent(&redis, "rate_limit_redis_body html;").get("/");
    assert_eq!((chosen.status, chosen.text()), (429, default.text()));
}

#[test]
fn what_passes_is_left_alone() {
    for body in ["json", "problem"] {
        let redis = Redis::start_with_stopped_clock();
        let nginx = once(&redis, &format!("rate_limit_redis_body {body};")).start_connected(&redis);
        let response = nginx.get("/index.html");
        assert_eq!((response.status, response.text()), (200, "hello\n"));
    }
}

#[test]
fn no_time_is_given_for_a_cost_that_can_never_pass() {
    let redis = Redis::start_with_stopped_clock();
    let line = "rate_limit_redis a name=per_ip rate=1r/10s cost=$arg_cost; rate_limit_redis_body";
    let nginx = Conf::new()
        .redis(&redis)
        .server(&format!("location / {{ {line} json; }} location /p {{ {line} problem; }}"))
        .start_connected(&redis);
    let never = r#"{"error":"Rate limit exceeded","limit":"per_ip","retry_after":null}"#;
    for (path, kind, body) in [
        ("/?cost=2", "application/json", never),
        ("/p?cost=2", "application/problem+json", &problem(429, "\"per_ip\"")),
    ] {
        let response = nginx.get(path);
        has_body(&response, 429, kind, body);
        assert_eq!(response.header("Retry-After"), None);
    }
}

#[test]
fn json_names_the_longest_wait_and_a_problem_all_limits() {
    let redis = Redis::start_with_stopped_clock();
    let limits =
        "rate_limit_redis a name=short rate=1r/1h; rate_limit_redis a name=wide rate=9r/1d;
         rate_limit_redis a name=long rate=1r/1d algorithm=gcra;";
    let nginx = Conf::new()
        .redis(&redis)
        .server(limits)
        .server("location / { rate_limit_redis_body json; }")
        .server("location /p { rate_limit_redis_body problem; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/index.html").status, 200);
    let response = nginx.get("/");
    let wait = retry_after(&response);
    assert!((86_390..=86_400).contains(&wait), "{wait}: the longest wait");
    let body =
        format!("{{\"error\":\"Rate limit exceeded\",\"limit\":\"long\",\"retry_after\":{wait}}}");
    has_body(&response, 429, "application/json", &body);
    let body = problem(429, "\"short\",\"long\"");
    has_body(&nginx.get("/p"), 429, "application/problem+json", &body);
}

const BODIES: [&str; 2] = ["json", "problem"];

/// Type and text of a rejection with this status, retry after 10 s.
fn expected(body: &str, status: u16) -> (&'static str, String) {
    match body {
        "json" => ("application/json", JSON.to_owned()),
        _ => ("application/problem+json", problem(status, "\"per_ip\"")),
    }
}

#[test]
fn rejections_of_other_statuses_have_bodies_too() {
    for body in BODIES {
        let redis = Redis::start_with_stopped_clock();
        let statuses = [400, 401, 403, 404, 405, 413, 418, 451, 493, 500, 503, 504, 599];
        let mut conf = once(&redis, &format!("rate_limit_redis_body {body};"));
        for status in statuses {
            conf = conf.server(&format!(
                "location /{status} {{ rate_limit_redis $remote_addr name=per_ip rate=1r/10s;
                 rate_limit_redis_body {body}; rate_limit_redis_status {status}; }}"
            ));
        }
        let nginx = spent_of(conf, &redis);
        for status in statuses {
            let (kind, text) = expected(body, status);
            let response = nginx.get(&format!("/{status}"));
            has_body(&response, status, kind, &text);
            assert_eq!(retry_after(&response), 10, "{status}");
        }
    }
}

#[test]
fn with_statuses_that_close_there_is_none() {
    for (body, status) in BODIES.into_iter().flat_map(|body| [408, 444, 499].map(|s| (body, s))) {
        let redis = Redis::start_with_stopped_clock();
        let snippet = format!("rate_limit_redis_body {body}; rate_limit_redis_status {status};");
        let nginx = spent(&redis, &snippet);
        let mut http = nginx.http();
        http.send("GET", "/", &[]);
        assert!(http.is_closed());
        assert!(
            nginx.wait_for_access_log(2).contains(&format!("\" {status} 0")),
            "{}",
            nginx.access_log()
        );
    }
}

#[test]
fn what_was_not_decided_has_a_body_of_its_own() {
    let unavailable = r#"{"error":"Rate limit unavailable","limit":null,"retry_after":1}"#;
    let capacity = "{\"type\":\"https://iana.org/assignments/http-problem-types\
                    #temporary-reduced-capacity\",\"title\":\"";
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
        .server("rate_limit_redis a rate=9r/d;")
        .server("location /json { rate_limit_redis_body json; }")
        .server("location /problem { rate_limit_redis_body problem; }")
        .server("location /problem/500 { rate_limit_redis_body problem;")
        .server("  rate_limit_redis_status 418; rate_limit_redis_error_status 500; }")
        .server("location /json/500 { rate_limit_redis_body json;")
        .server("  rate_limit_redis_error_status 500; }")
        .server("location /json/444 { rate_limit_redis_body json;")
        .server("  rate_limit_redis_error_status 444; }")
        .server("location /paged { rate_limit_redis_body json; error_page 503 =200 /slow.txt; }")
        .server("location /other { rate_limit_redis_body json; error_page 429 /slow.txt; }")
        .file("html/slow.txt", "slow down\n")
        .start();
    for (path, status) in [("/json", 503), ("/json/500", 500), ("/other", 503)] {
        let response = nginx.get(path);
        has_body(&response, status, "application/json", unavailable);
        assert_eq!(retry_after(&response), 1);
    }
    for (path, status) in [("/problem", 503), ("/problem/500", 500)] {
        let response = nginx.get(path);
        let text = response.text().to_owned();
        assert!(text.starts_with(capacity), "{text}");
        let rest = format!("\",\"status\":{status},\"violated-policies\":[]}}");
        assert!(text.ends_with(&rest), "{text}");
        assert!(!text.contains("quota"), "{text}");
        has_body(&response, status, "application/problem+json", &text);
        assert_eq!(retry_after(&response), 1);
    }
    let response = nginx.get("/paged");
    assert_eq!((response.status, response.text()), (200, "slow down\n"));
    let mut http = nginx.http();
    http.send("GET", "/json/444", &[]);
    assert!(http.is_closed());
}

#[test]
fn an_error_page_wins() {
    for body in BODIES {
        let table = [
            ("error_page 429 /slow.txt;", 429, "slow down\n"),
            ("error_page 503 429 /slow.txt;", 429, "slow down\n"),
            ("error_page 429 =200 /slow.txt;", 200, "slow down\n"),
            ("error_page 429 = @slow;", 418, "named"),
            ("error_page 429 @slow;", 429, "named"),
            ("rate_limit_redis_status 403; error_page 403 /slow.txt;", 403, "slow down\n"),
        ];
        for (snippet, status, text) in table {
            let redis = Redis::start_with_stopped_clock();
            let conf = once(&redis, &format!("rate_limit_redis_body {body}; {snippet}"))
                .server("location @slow { return 418 named; }");
            let response = spent_of(conf, &redis).get("/");
            assert_eq!((response.status, response.text()), (status, text), "{snippet}");
            assert_eq!((quota(&response), retry_after(&response)), ([1, 0, 10], 10));
        }
        // One that leads elsewhere, and one that is inherited.
        let redis = Redis::start_with_stopped_clock();
        let snippet = "error_page 429 http://example.com/slow;";
        let nginx = spent(&redis, &format!("rate_limit_redis_body {body}; {snippet}"));
        let response = nginx.get("/");
        assert_eq!(response.status, 302);
        assert_eq!(response.header("Location"), Some("http://example.com/slow"));
        let redis = Redis::start_with_stopped_clock();
        let conf = once(&redis, &format!("rate_limit_redis_body {body};"))
            .http("error_page 429 /slow.txt;");
        let response = spent_of(conf, &redis).get("/");
        assert_eq!((response.status, response.text()), (429, "slow down\n"));
    }
}

#[test]
fn an_error_page_for_another_status_does_not() {
    for body in BODIES {
        let table = [
            ("error_page 503 404 /slow.txt;", 429),
            ("rate_limit_redis_status 403; error_page 429 /slow.txt;", 403),
        ];
        for (snippet, status) in table {
            let redis = Redis::start_with_stopped_clock();
            let nginx = spent(&redis, &format!("rate_limit_redis_body {body}; {snippet}"));
            let (kind, text) = expected(body, status);
            has_body(&nginx.get("/"), status, kind, &text);
        }
    }
}

#[test]
fn upstream_errors_are_left_alone() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("server { listen 127.0.0.1:{port2}; return 429 busy; }")
        .server("location / { rate_limit_redis a rate=9r/d; rate_limit_redis_body json;")
        .server("proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.status, response.text()), (429, "busy"));
    assert_eq!((response.header("Retry-After"), quota(&response)[1]), (None, 8));
}

#[test]
fn head_gets_the_length_alone() {
    for body in BODIES {
        let redis = Redis::start_with_stopped_clock();
        let nginx = spent(&redis, &format!("rate_limit_redis_body {body};"));
        let (kind, text) = expected(body, 429);
        let mut http = nginx.http();
        for _ in 0..3 {
            let response = http.head("/");
            assert_eq!((response.status, response.header("Content-Type")), (429, Some(kind)));
            let length = response.header("Content-Length");
            assert_eq!(length, Some(&*text.len().to_string()), "{response:?}");
            assert_eq!(retry_after(&response), 10);
            // Were there a body, this would not be read as a response.
            has_body(&http.get("/"), 429, kind, &text);
        }
    }
}

#[test]
fn http_1_0_gets_the_body_and_the_end() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = spent(&redis, "rate_limit_redis_body json;");
    let mut http = nginx.http();
    http.send_raw(b"GET / HTTP/1.0\r\n\r\n");
    says_json(&http.read_response());
    assert!(http.is_closed(), "and nothing after the body");

    // Whatever comes after the head is read too.
    let mut stream = TcpStream::connect(nginx.addr()).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").expect("send");
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("a head");
    assert!(all.contains(&format!("Content-Length: {}\r\n", JSON.len())), "{all}");
    assert!(all.ends_with("\r\n\r\n"), "{all}");

    let mut http = nginx.http();
    for _ in 0..2 {
        http.send_raw(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = http.read_response();
        says_json(&response);
        assert_eq!(response.header("Connection"), Some("keep-alive"));
    }
}

#[test]
fn a_connection_is_kept_after_a_body() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = spent(&redis, "rate_limit_redis_body json;");
    let mut http = nginx.http();
    for _ in 0..3 {
        says_json(&http.get("/"));
    }
    let body = vec![b'x'; 100_000];
    for _ in 0..3 {
        says_json(&http.post("/", b"abc"));
        says_json(&http.post("/", &body));
        says_json(&http.get("/"));
    }
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    http.send_raw(format!("{chunked}3\r\nabc\r\n0\r\n\r\n").as_bytes());
    says_json(&http.read_response());
    says_json(&http.get("/"));

    // All at once.
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    http.send_raw(format!("{get}{post}{get}").as_bytes());
    (0..3).for_each(|_| says_json(&http.read_response()));
}

#[test]
fn the_body_does_not_wait_for_that_of_the_request() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = spent(&redis, "rate_limit_redis_body problem;");
    let (kind, text) = expected("problem", 429);
    let mut http = nginx.http();
    let body = "GET /a HTTP/1.1\r\n".repeat(1_000);
    for part in [0, 1, 5_000, body.len()] {
        http.send("POST", "/", &[("Content-Length", &body.len().to_string())]);
        http.send_raw(&body.as_bytes()[..part]);
        has_body(&http.read_response(), 429, kind, &text);
        http.send_raw(&body.as_bytes()[part..]);
        // The rest of the body is not taken for a request.
        has_body(&http.get("/"), 429, kind, &text);
    }
}

#[test]
fn http_2_gets_the_same_body() {
    for body in BODIES {
        let redis = Redis::start_with_stopped_clock();
        let conf = once(&redis, &format!("rate_limit_redis_body {body};")).http2();
        let nginx = spent_of(conf.file("long.txt", &"x".repeat(100_000)), &redis);
        let (kind, text) = expected(body, 429);
        let url = nginx.h2_url("/");
        let response = curl_h2(&[&url]);
        has_body(&response, 429, kind, &text);
        assert_eq!((quota(&response), retry_after(&response)), ([1, 0, 10], 10));
        let response = curl_h2(&["-I", &url]);
        assert_eq!((response.status, response.text()), (429, ""));
        assert_eq!(response.header("Content-Length"), Some(&*text.len().to_string()));
        assert_eq!(response.header("Content-Type"), Some(kind));

        // Many in one connection, and with bodies that are not wanted. (curl takes it amiss that
        // nginx does not, whatever module answers.)
        let [short, long] = ["html/slow.txt", "long.txt"].map(|name| nginx.path(name));
        let [short, long] = [&short, &long].map(|path| path.to_str().expect("a path"));
        for data in [&[][..], &["-d", short], &["-d", long]] {
            let urls: Vec<_> = (0..10).map(|n| nginx.h2_url(&format!("/?{n}"))).collect();
            let mut arguments = [&["-v"], data].concat();
            arguments.extend(urls.iter().map(String::as_str));
            let output = run("nghttp", &arguments);
            assert_eq!(output.matches(&text).count(), 10, "{output}");
            assert_eq!(output.matches(" :status: 429").count(), 10, "{output}");
        }
    }
}

#[test]
fn the_body_is_inherited_and_overruled() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_body json;")
        .http("server { listen 127.0.0.1:{port2}; rate_limit_redis_body problem;")
        .http("  location / { rate_limit_redis a name=per_ip rate=1r/10s; } }")
        .server("rate_limit_redis a name=per_ip rate=1r/10s;")
        .server("location /p { rate_limit_redis_body problem; location /p/inner { } }")
        .server("location /h { rate_limit_redis_body html; }")
        .server("location /free { rate_limit_redis off; rate_limit_redis_body html;")
        .server("  try_files /none /p; }")
        .server("location /other { rate_limit_redis off; proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/index.html").status, 200);
    let kind = |path| nginx.get(path).header("Content-Type").unwrap_or_default().to_owned();
    let json = "application/json";
    let problem = "application/problem+json";
    let paths = ["/", "/p", "/p/inner", "/h", "/free", "/other"];
    assert_eq!(paths.map(kind), [json, problem, problem, "text/html", problem, problem]);
}

#[test]
fn an_error_page_that_is_rejected_has_a_body() {
    // An error page is not replaced by another, so the body is that of the module.
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("error_page 404 /page;")
        .server("location = /page { rate_limit_redis a name=per_ip rate=1r/10s;")
        .server("  rate_limit_redis_body json; try_files /page.txt =500; }")
        .file("html/page.txt", "page\n")
        .start_connected(&redis);
    let response = nginx.get("/none");
    assert_eq!((response.status, response.text()), (404, "page\n"));
    says_json(&nginx.get("/none"));
}

#[test]
fn an_error_page_wins_only_if_nginx_goes_to_it() {
    // It goes from one error page to another only with recursive_error_pages.
    for (recursive, body) in [("off", JSON), ("on", "slow down\n")] {
        let redis = Redis::start_with_stopped_clock();
        let nginx = Conf::new()
            .redis(&redis)
            .server(&format!("recursive_error_pages {recursive};"))
            .server("location / { error_page 404 /page; }")
            .server("location = /page { rate_limit_redis a name=per_ip rate=1r/10s;")
            .server("  rate_limit_redis_body json; error_page 429 /slow.txt;")
            .server("  try_files /page.txt =500; }")
            .file("html/page.txt", "page\n")
            .file("html/slow.txt", "slow down\n")
            .start_connected(&redis);
        assert_eq!(nginx.get("/none").text(), "page\n");
        let response = nginx.get("/none");
        assert_eq!((response.status, response.text()), (429, body), "{recursive}");
    }
}

#[test]
fn gzip_may_pack_them() {
    for body in BODIES {
        let redis = Redis::start_with_stopped_clock();
        let gzip = "gzip on; gzip_min_length 1;
            gzip_types application/json application/problem+json;";
        // The only errors that gzip packs are 403 and 404.
        let snippet = format!("rate_limit_redis_body {body}; rate_limit_redis_status 403; {gzip}");
        let nginx = spent_of(once(&redis, &snippet).http2(), &redis);
        let (kind, text) = expected(body, 403);
        let mut http = nginx.http();
        for _ in 0..2 {
            http.send("GET", "/", &[("Accept-Encoding", "gzip")]);
            let response = http.read_response();
            assert_eq!((response.status, response.header("Content-Type")), (403, Some(kind)));
            assert_eq!(response.header("Content-Encoding"), Some("gzip"));
            assert_eq!(response.header("Content-Length"), None);
            assert_ne!(response.body, text.as_bytes());
            assert_eq!(retry_after(&response), 10);
        }
        has_body(&http.get("/"), 403, kind, &text);
        let unpacked = run("curl", &["-sS", "--max-time", "10", "--compressed", &nginx.url("/")]);
        assert_eq!(unpacked, text);
        let response = curl_h2(&["--compressed", &nginx.h2_url("/")]);
        assert_eq!((response.status, response.text()), (403, &*text));
        assert_eq!(response.header("Content-Encoding"), Some("gzip"));
    }
    // And where it does not, it is not in the way.
    let redis = Redis::start_with_stopped_clock();
    let gzip = "gzip on; gzip_min_length 1; gzip_types application/json;";
    let nginx = spent(&redis, &format!("rate_limit_redis_body json; {gzip}"));
    let mut http = nginx.http();
    http.send("GET", "/", &[("Accept-Encoding", "gzip")]);
    says_json(&http.read_response());
}

#[test]
fn fields_of_the_administrator_are_added() {
    let redis = Redis::start_with_stopped_clock();
    let add = "add_header X-Own $rate_limit_redis_name always; charset utf-8; etag on;";
    let response = spent(&redis, &format!("rate_limit_redis_body json; {add}")).get("/");
    assert_eq!(response.header("X-Own"), Some("per_ip"));
    says_json(&response);
}

/// A client that waits for "100 Continue" gets the rejection, as with NGINX's own pages.
#[test]
fn a_rejection_sends_no_100_continue() {
    for body in BODIES {
        let redis = Redis::start_with_stopped_clock();
        let nginx = spent_of(once(&redis, &format!("rate_limit_redis_body {body};")), &redis);
        let mut http = nginx.http();
        http.send("POST", "/", &[("Expect", "100-continue"), ("Content-Length", "5")]);
        assert_eq!(http.read_response().status, 429, "{body}");
    }
}
