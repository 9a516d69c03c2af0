//! `rate_limit_redis_on_invalid`: what a client writes into a rate, capacity, burst or cost opens no limit.

use harness::{Conf, Redis, Response, run};

use crate::seen::{StartConnected as _, keys, lines, remaining, shows_nothing};

/// A server whose limit has a cost that the client writes, with these lines.
fn conf(redis: &Redis, snippet: &str) -> Conf {
    Conf::new()
        .decisions()
        .redis(redis)
        .server("rate_limit_redis a rate=2r/d cost=$arg_c;")
        .server(snippet)
}

/// The status, the decision, and whether nothing is said of a quota.
fn seen(response: &Response) -> (u16, &str, bool) {
    (response.status, response.decision(), shows_nothing(response))
}

const REJECTED: (u16, &str, bool) = (400, "ERROR_REJECTED none", true);
const PASSED: (u16, &str, bool) = (200, "ERROR_PASSED none", true);

#[test]
fn is_rejected_whatever_on_error_says() {
    for policy in ["open", "closed", "local"] {
        let redis = Redis::start();
        let snippet = format!(
            "rate_limit_redis_on_error {policy}; rate_limit_redis_error_status 500;
             rate_limit_redis_status 418;"
        );
        let nginx = conf(&redis, &snippet).start_connected(&redis);
        for cost in ["-1", "x", "1.5", "", "0x1"] {
            assert_eq!(seen(&nginx.get(&format!("/?c={cost}"))), REJECTED, "{policy} {cost}");
        }
        assert_eq!(seen(&nginx.get("/")), REJECTED);
        assert_eq!(keys(&redis), [""; 0]);
        assert_eq!(remaining(&nginx.get("/?c=1")), 1);
    }
}

#[test]
fn every_parameter_may_be_invalid_and_come_from_a_map() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .redis(&redis)
        .http("map $arg_tier $tier { gold 5r/d; free ''; default nonsense; }")
        .http("map $arg_tier $size { gold 3; free 0; }")
        .file("html/inherits/here", "")
        .server("location /rate { rate_limit_redis a name=a rate=$tier; }")
        .server("location /text { rate_limit_redis a name=b rate=${arg_n}r/d; }")
        .server("location /capacity { rate_limit_redis a name=c rate=5r/d capacity=$size; }")
        .server(
            "location /burst { rate_limit_redis a name=d rate=5r/d algorithm=gcra burst=$size; }",
        )
        .server("location /inherits { rate_limit_redis $arg_k name=e rate=5r/d cost=$size;")
        .server("  location /inherits/here { rate_limit_redis_on_invalid pass; } }")
        .start_connected(&redis);
    for path in [
        "/rate?tier=free",
        "/rate?tier=tin",
        "/text?n=0",
        "/text",
        "/capacity?tier=free",
        "/capacity",
        "/burst",
        "/inherits?k=a",
    ] {
        assert_eq!(seen(&nginx.get(path)), REJECTED, "{path}");
    }
    assert_eq!(seen(&nginx.get("/inherits/here?k=a")), PASSED);
    assert_eq!(nginx.get("/inherits").decision(), "BYPASSED none", "an empty key is not limited");
    assert_eq!(keys(&redis), [""; 0]);
    let left = ["/rate?tier=gold", "/text?n=7", "/capacity?tier=gold", "/burst?tier=gold"];
    assert_eq!(left.map(|path| remaining(&nginx.get(path))), [4, 6, 2, 3]);
    assert_eq!(remaining(&nginx.get("/burst?tier=free")), 0, "a burst of 0 is none");
}

#[test]
fn passes_where_that_is_configured() {
    let redis = Redis::start();
    let snippet = "rate_limit_redis_on_invalid pass; rate_limit_redis_on_error closed;";
    let nginx = conf(&redis, snippet)
        .server("location /own { rate_limit_redis_on_invalid reject; }")
        .start_connected(&redis);
    (0..5).for_each(|_| assert_eq!(seen(&nginx.get("/?c=x")), PASSED));
    assert_eq!(keys(&redis), [""; 0]);
    assert_eq!(seen(&nginx.get("/own?c=x")), REJECTED);
    assert_eq!([(); 3].map(|()| nginx.get("/?c=1").status), [200, 200, 429]);
}

#[test]
fn a_dry_run_rejects_nobody() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .redis(&redis)
        .file("html/level", "")
        .file("html/line", "")
        .server("location /level { rate_limit_redis a name=a rate=2r/d cost=$arg_c;")
        .server("  rate_limit_redis_dry_run on; }")
        .server("location /line { rate_limit_redis a name=b rate=2r/d cost=$arg_c dry_run; }")
        .server("location /both { rate_limit_redis a name=b rate=2r/d cost=$arg_c dry_run;")
        .server("  rate_limit_redis a name=c rate=1r/d; }")
        .server("location /other { rate_limit_redis a name=b rate=2r/d dry_run;")
        .server("  rate_limit_redis a name=d rate=1r/d cost=$arg_c; }")
        .start_connected(&redis);
    assert_eq!(seen(&nginx.get("/level?c=x")), PASSED);
    assert_eq!(seen(&nginx.get("/line?c=x")), PASSED);
    let both = [(); 2].map(|()| nginx.get("/both?c=x").decision().to_owned());
    assert_eq!(both, ["PASSED redis", "REJECTED redis"], "the other line decides");
    assert_eq!(seen(&nginx.get("/other?c=x")), REJECTED);
}

#[test]
fn lines_after_the_access_checks_reject_too() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .redis(&redis)
        .server("rate_limit_redis a name=early rate=9r/d;")
        .server("rate_limit_redis a name=later rate=9r/d cost=$arg_c after=auth;")
        .server("location /pass { rate_limit_redis_on_invalid pass; try_files /index.html =404; }")
        .start_connected(&redis);
    assert_eq!(seen(&nginx.get("/?c=x")), REJECTED);
    // The earlier lines have decided, and show what they have left.
    let response = nginx.get("/pass?c=x");
    assert_eq!((response.status, response.decision()), (200, "ERROR_PASSED none"));
    assert_eq!(remaining(&response), 7);
    assert_eq!(keys(&redis), ["rl:early:a"]);
}

#[test]
fn the_body_says_so_unless_there_is_an_error_page() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location /json { rate_limit_redis_body json; }")
        .server("location /problem { rate_limit_redis_body problem; }")
        .server("location /page { rate_limit_redis_body json; error_page 400 /bad.txt; }")
        .server("location /ok { error_page 400 =200 /bad.txt; }")
        .server("location /named { error_page 400 = @bad; } location @bad { return 422 named; }")
        .server("location /other { rate_limit_redis_body json; error_page 429 503 /bad.txt; }")
        .server("rate_limit_redis_retry_jitter 1m;")
        .file("html/bad.txt", "bad\n")
        .start_connected(&redis);
    let json = r#"{"error":"Invalid request","limit":null,"retry_after":null}"#;
    let problem = r#"{"type":"about:blank","title":"Bad Request","status":400}"#;
    for (path, kind, body) in [
        ("/json", "application/json", json),
        ("/other", "application/json", json),
        ("/problem", "application/problem+json", problem),
    ] {
        let response = nginx.get(&format!("{path}?c=x"));
        assert_eq!((seen(&response), response.text()), (REJECTED, body));
        assert_eq!(response.header("Content-Type"), Some(kind));
    }
    let response = nginx.get("/?c=x");
    assert!(response.text().contains("<h1>400 Bad Request</h1>"), "{response:?}");
    for (path, status, text) in
        [("/page", 400, "bad\n"), ("/ok", 200, "bad\n"), ("/named", 422, "named")]
    {
        let response = nginx.get(&format!("{path}?c=x"));
        assert_eq!(seen(&response), (status, "ERROR_REJECTED none", true));
        assert_eq!(response.text(), text);
    }
    assert_eq!(keys(&redis), [""; 0], "nor is the error page charged");
}

#[test]
fn the_variables_show_no_quota() {
    let redis = Redis::start();
    let nginx = conf(&redis, "access_log {prefix}/invalid.log invalid;")
        .http(
            "log_format invalid '$status $rate_limit_redis_status $rate_limit_redis_source \
             <$rate_limit_redis_name$rate_limit_redis_limit$rate_limit_redis_retry_after>';",
        )
        .start_connected(&redis);
    assert_eq!(nginx.get("/?c=x").status, 400);
    assert_eq!(lines(&nginx, "invalid.log", 1), ["400 ERROR_REJECTED none <--->"]);
    assert_eq!(nginx.logged("invalid cost \"x\"").len(), 1);
}

/// The length of a body is what an upload costs. One without a body has none.
#[test]
fn the_length_of_a_body_may_be_missing() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .redis(&redis)
        .http("map $content_length $length { '' 0; default $content_length; }")
        .server("location / { rate_limit_redis a name=a rate=9r/d cost=$content_length;")
        .server("  client_max_body_size 0; error_page 405 =200 /index.html; }")
        .server("location /map { rate_limit_redis a name=b rate=9r/d cost=$length;")
        .server("  try_files /index.html =404; }")
        .start_connected(&redis);
    let length = |value: &str| {
        let mut http = nginx.http();
        http.send("POST", "/", &[("Content-Length", value)]);
        let response = http.read_response();
        (response.status, response.decision().to_owned())
    };
    assert_eq!(length("0"), (200, "PASSED redis".to_owned()));
    assert_eq!(length("9007199254740993"), (429, "REJECTED redis".to_owned()));
    assert_eq!(seen(&nginx.get("/")), REJECTED);
    assert_eq!(remaining(&nginx.get("/map")), 9);
}

#[test]
fn is_rejected_over_http2() {
    let redis = Redis::start();
    let nginx = conf(&redis, "").http2().start_connected(&redis);
    let url = nginx.h2_url("/?c=x");
    let status = run(
        "curl",
        &["-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code}", &url],
    );
    assert_eq!(status, "400");
}
