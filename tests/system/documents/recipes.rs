//! The recipes of docs/recipes.md, and some pairs of docs/coming-from.md, with the traffic that they are for.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::Instant;

use harness::{Conf, Nginx, PATIENCE, Redis, Response, run, wait_until};

use crate::documents::examples::read;
use crate::documents::pages::{block, conf, redis};
use crate::seen::{StartConnected as _, keys, quota, shows_nothing, tokens};

const RECIPES: &str = "docs/recipes.md";

/// An application that answers with the warning that it was sent. Its own field keeps it from those of `http`.
const APPLICATION: &str = "server { listen 127.0.0.1:{port2}; add_header X-Application yes; \
                           location / { return 200 $http_x_quota_warning; } }";

/// The recipe that holds `mark`, with other texts in the place of some, before an application.
fn recipe(mark: &str, replaced: &[(&str, &str)], redis: &Redis) -> Conf {
    let mut text = block(RECIPES, mark);
    for (from, to) in [("127.0.0.1:9000", "127.0.0.1:{port2}")].iter().chain(replaced) {
        assert!(text.contains(from), "no {from} in\n{text}");
        text = text.replace(from, to);
    }
    conf(&text, redis)
}

fn get(nginx: &Nginx, path: &str, field: (&str, &str)) -> Response {
    let mut http = nginx.http();
    http.send("GET", path, &[field]);
    http.read_response()
}

fn sorted_keys(redis: &Redis) -> Vec<String> {
    let mut keys = keys(redis);
    keys.sort_unstable();
    keys
}

#[test]
fn only_known_api_keys_have_a_quota_of_their_own() {
    let redis = redis();
    // Slower ones: the key of a fast one is gone soon.
    let rates = [(" 60r/m", " 1r/d"), ("6000r/m", "6000r/d")];
    let nginx = recipe("$customer_rate", &rates, &redis).http(APPLICATION).start_connected(&redis);
    let status = |key: &str| get(&nginx, "/api", ("X-API-Key", key)).status;
    assert_eq!(nginx.get("/api").status, 200);
    assert_eq!(nginx.get("/api").status, 429);
    assert_eq!([status("invented"), status("another")], [429, 429]);
    let acme = get(&nginx, "/api", ("X-API-Key", "4b0c1de55f7a4d3c9f20"));
    assert_eq!((acme.status, quota(&acme)[..2].to_vec()), (200, vec![6000, 5999]));
    let expected = ["rl:customer:127.0.0.1", "rl:customer:customer:acme"];
    assert_eq!(sorted_keys(&redis), expected, "API keys stay out of Redis");
}

#[test]
fn an_account_is_limited_when_it_is_authenticated() {
    const SESSIONS: &str = "server { listen 127.0.0.1:{port2}; \
                            location = /session { if ($http_x_token = '') { return 401; } \
                            add_header X-Account $http_x_token; return 204; } \
                            location / { return 200; } }";
    let redis = redis();
    let rates = [("rate=600r/m", "rate=6r/d"), ("rate=100r/m", "rate=2r/d")];
    let nginx =
        recipe("auth_request /session", &rates, &redis).http(SESSIONS).start_connected(&redis);
    let status = |token: &str| get(&nginx, "/api", ("X-Token", token)).status;
    assert_eq!([(); 3].map(|()| status("ann")), [200, 200, 429]);
    assert_eq!([status(""), status("bob"), status("")], [401, 200, 401]);
    assert_eq!(
        get(&nginx, "/api", ("X-Token", "carol")).status,
        429,
        "the address has spent its six"
    );
    assert_eq!(keys(&redis), ["rl:account:ann", "rl:account:bob", "rl:address:127.0.0.1"]);
}

#[test]
fn only_a_verified_user_is_charged() {
    let redis = redis();
    let nginx = recipe("$verified_client", &[("1000r/m", "1000r/d")], &redis)
        .http("server { listen 127.0.0.1:{port2}; location / { return 200; } }")
        .http("set_real_ip_from 127.0.0.1;")
        .start_connected(&redis);
    let status = |path: &str, address: &str, login: &str| {
        let mut http = nginx.http();
        http.send("GET", path, &[("X-Real-IP", address), ("Authorization", login)]);
        http.read_response().status
    };
    let (right, wrong) = ("Basic YWJjOmFiYw==", "Basic YWJjOndyb25n");
    assert_eq!(status("/api", "10.1.2.3", wrong), 200);
    assert_eq!(status("/api", "192.0.2.1", wrong), 401);
    assert_eq!(status("/login", "192.0.2.1", wrong), 200);
    assert_eq!(keys(&redis), ["rl:verified:address:10.1.2.3"]);
    assert_eq!(status("/api", "192.0.2.1", right), 200);
    assert_eq!(tokens(&redis, "rl:verified:user:abc"), Some(999));
}

#[test]
fn the_plan_of_an_account_sets_its_rate() {
    const PLANS: &str = "server { listen 127.0.0.1:{port2}; \
                         location = /plan { if ($http_x_token = '') { return 401; } \
                         add_header X-Account $http_x_token; add_header X-Plan $http_x_plan; return 204; } \
                         location / { return 200; } }";
    let redis = redis();
    let rates = [(" 60r/m", " 60r/d"), (" 600r/m", " 600r/d")];
    let nginx = recipe("$plan_rate", &rates, &redis).http(PLANS).start_connected(&redis);
    let call = |token: &str, plan: &str| {
        let mut http = nginx.http();
        http.send("GET", "/api", &[("X-Token", token), ("X-Plan", plan)]);
        let response = http.read_response();
        let limit = response.header("X-RateLimit-Limit").map(str::to_owned);
        (response.status, limit.unwrap_or_default(), response.remaining())
    };
    let shown = |limit: &str, remaining| (200, limit.to_owned(), Some(remaining));
    assert_eq!(call("ann", "free"), shown("60", 59));
    assert_eq!(call("ann", "free"), shown("60", 58));
    assert_eq!(call("bob", "pro"), shown("600", 599));
    // The rest of the quota stays, as far as it fits, and the next plan holds at once.
    assert_eq!(call("bob", "free"), shown("60", 59));
    assert_eq!(call("", "pro").0, 401);
}

#[test]
fn a_tenant_has_a_budget_and_each_of_its_clients() {
    let redis = redis();
    let rates =
        [("1000r/s", "1000r/d"), ("100r/s", "100r/d"), ("300r/m", "3r/d"), (" 1r/s", " 2r/d")];
    let nginx = recipe("$tenant_rate", &rates, &redis)
        .http(APPLICATION)
        .http("set_real_ip_from 127.0.0.1;")
        .start_connected(&redis);
    let call = |host: &str, address: &str| {
        let mut http = nginx.http();
        http.send("GET", "/api", &[("Host", host), ("X-Real-IP", address)]);
        http.read_response().status
    };
    let acme = "acme.example.com";
    assert_eq!([(); 4].map(|()| call(acme, "192.0.2.1")), [200, 200, 200, 429]);
    assert_eq!(call(acme, "192.0.2.2"), 200);
    assert_eq!(tokens(&redis, "rl:tenant:acme"), Some(996), "a rejection costs the tenant nothing");
    assert_eq!(call("globex.example.com", "192.0.2.1"), 200);
    // Names that nobody has share a budget.
    assert_eq!(["a", "b", "c"].map(|host| call(host, "192.0.2.3")), [200, 200, 429]);
}

#[test]
fn preflights_are_free_and_scripts_can_read_rejections() {
    let redis = redis();
    let nginx = recipe("$cors_client", &[("100r/m", "1r/d")], &redis)
        .http(APPLICATION)
        .start_connected(&redis);
    let call = |method: &str| {
        let mut http = nginx.http();
        http.send(method, "/api", &[("Content-Length", "0")]);
        http.read_response()
    };
    for _ in 0..3 {
        assert!(shows_nothing(&call("OPTIONS")));
    }
    assert_eq!(call("POST").status, 200);
    let rejection = call("POST");
    assert_eq!(rejection.status, 429);
    let origin = rejection.header("Access-Control-Allow-Origin");
    assert_eq!(origin, Some("https://app.example.com"));
    let exposed = rejection.header("Access-Control-Expose-Headers").expect("a list").split(", ");
    for name in exposed {
        assert!(rejection.header(name).is_some(), "no {name}: {rejection:?}");
    }
}

/// The numbers that the page names for `hey` and `ab`.
#[test]
fn a_load_test_finds_the_limit() {
    let page = read("../docs/recipes.md");
    let (_, commands) = page.split_once("```sh\nhey ").expect("commands");
    let commands = format!("hey {}", commands.split("```").next().expect("their end"));
    let first = read("../README.md");
    assert!(first.contains("location /rating {") && first.contains("rate=100r/m"), "{first}");
    // So that nothing comes back meanwhile.
    let redis = Redis::start_with_stopped_clock();
    let line = "location /rating { rate_limit_redis $remote_addr rate=100r/m; \
                try_files /index.html =404; }";
    let outputs = commands.lines().map(|command| {
        redis.command::<()>(&["FLUSHALL"]);
        // One for each tool, as it remembers whom it has rejected.
        let nginx = Conf::new().redis(&redis).server(line).start_connected(&redis);
        let url = nginx.url("/rating");
        let command = command.replace("http://127.0.0.1:8080/rating", &url);
        assert!(command.contains(&url), "{command}");
        run("sh", &["-c", &format!("no_proxy=* {command}")])
    });
    let [hey, ab] = outputs.collect::<Vec<_>>().try_into().expect("two commands");
    assert!(hey.contains("[200]\t100 responses") && hey.contains("[429]\t100 responses"), "{hey}");
    let rejected = ab.lines().find_map(|line| line.strip_prefix("Non-2xx responses:"));
    let rejected = rejected.expect("rejections").trim().parse::<u64>().expect("a number");
    assert_eq!(rejected, 100, "{ab}");
}

/// An application that answers with the status, the cost and the length that a request names.
const COSTS: &str = "server { listen 127.0.0.1:{port2}; root {prefix}/html; \
                     add_header X-Cost $arg_cost always; \
                     if ($arg_status = 401) { return 401; } if ($arg_status = 500) { return 500; } \
                     location / { try_files /$arg_file /index.html =404; } }";

/// An application that knows one password.
const LOGINS: &str = "server { listen 127.0.0.1:{port2}; \
                      location / { if ($args != right) { return 401; } return 200; } }";

/// Sends a request, and waits until a key of the limit holds what `is_right` accepts.
#[track_caller]
fn settles(nginx: &Nginx, redis: &Redis, path: &str, key: &str, is_right: impl Fn(u64) -> bool) {
    let response = get(nginx, path, ("X-API-Key", "k"));
    assert_ne!(response.status, 429, "{response:?}");
    // A bucket that is whole again is soon gone.
    let limit = response.header("X-RateLimit-Limit").expect("a limit").parse().expect("a number");
    let settled = || is_right(tokens(redis, key).unwrap_or(limit));
    wait_until(PATIENCE, settled, &format!("the settlement of {path}"));
}

/// Waits until so many failed logins are left.
#[track_caller]
fn wait_for_logins(redis: &Redis, left: u64) {
    // A bucket that is whole again is soon gone.
    let is_left = || tokens(redis, "rl:login:127.0.0.1").unwrap_or(5) == left;
    wait_until(PATIENCE, is_left, &format!("{left} logins that may fail"));
}

#[track_caller]
fn is_blocked(response: &Response) {
    assert_eq!(response.status, 429);
    let seconds = crate::seen::retry_after(response);
    assert!((840..=900).contains(&seconds), "a quarter of an hour: {seconds}");
}

#[test]
fn only_failed_logins_count() {
    let redis = redis();
    let nginx = recipe("$failed_login", &[], &redis).http(LOGINS).start_connected(&redis);
    let login = |password: &str| nginx.http().post(&format!("/login?{password}"), b"");
    for _ in 0..8 {
        assert_eq!(login("right").status, 200);
        wait_for_logins(&redis, 5);
    }
    // The form itself is not limited.
    assert!(shows_nothing(&nginx.get("/login?wrong")));
    for left in (0..5).rev() {
        assert_eq!(login("wrong").status, 401);
        wait_for_logins(&redis, left);
    }
    is_blocked(&login("right"));
}

/// The application has the password as well if its client does not wait for the response.
#[test]
fn logins_whose_clients_leave_have_failed() {
    let redis = redis();
    let application = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = application.local_addr().expect("an address").to_string();
    let nginx = recipe("$failed_login", &[("127.0.0.1:{port2}", &address)], &redis);
    let nginx = nginx.start_connected(&redis);
    for left in (0..5).rev() {
        let mut http = nginx.http();
        http.send("POST", "/login", &[("Content-Length", "0")]);
        let attempt = application.accept().expect("an attempt");
        drop(http);
        wait_for_logins(&redis, left);
        nginx.wait_for_access_log(5 - left as usize);
        drop(attempt);
    }
    is_blocked(&nginx.http().post("/login", b""));
}

#[test]
fn what_fails_costs_nothing() {
    let redis = redis();
    // Nothing is regained in the time of the test.
    let rate = [("rate=1000r/h", "rate=1000r/52w")];
    let nginx = recipe("$cost_of_failure", &rate, &redis).http(COSTS).start_connected(&redis);
    let key = "rl:api:127.0.0.1";
    settles(&nginx, &redis, "/api", key, |left| left == 999);
    settles(&nginx, &redis, "/api?status=500", key, |left| left == 999);
    settles(&nginx, &redis, "/api?status=401", key, |left| left == 998);
}

#[test]
fn the_application_knows_the_cost() {
    let redis = redis();
    let rate = [("rate=10000r/d", "rate=10000r/52w")];
    let nginx = recipe("name=units", &rate, &redis).http(COSTS).start_connected(&redis);
    settles(&nginx, &redis, "/reports?cost=37", "rl:units:k", |left| left == 9_963);
    settles(&nginx, &redis, "/reports?cost=3", "rl:units:k", |left| left == 9_960);
}

#[test]
fn an_answer_costs_what_it_is_long() {
    let redis = redis();
    let nginx = recipe("$answer_units", &[], &redis)
        .http(COSTS)
        .file("html/long", &"x".repeat(25_000))
        .start_connected(&redis);
    settles(&nginx, &redis, "/chat", "rl:answers:k", |left| left == 99);
    settles(&nginx, &redis, "/chat?file=long", "rl:answers:k", |left| left == 96);
}

#[test]
fn invented_api_keys_share_the_quota_of_an_address() {
    let redis = redis();
    let rate = [("rate=600r/m", "rate=2r/d")];
    let nginx = recipe("name=api_key", &rate, &redis).http(APPLICATION).start_connected(&redis);
    let statuses = ["a", "b", "c"].map(|key| get(&nginx, "/api", ("X-API-Key", key)).status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn exempt_clients_are_not_limited() {
    let redis = redis();
    let nginx = recipe("geo $exempt", &[("100r/m", "1r/d")], &redis)
        .http(APPLICATION)
        .http("set_real_ip_from 127.0.0.1;")
        .decisions()
        .start_connected(&redis);
    for exempt in ["10.1.2.3", "192.0.2.10", "2001:db8::1"] {
        for _ in 0..3 {
            let response = get(&nginx, "/", ("X-Real-IP", exempt));
            assert_eq!(response.status, 200, "{exempt}: {response:?}");
            assert!(response.decision().starts_with("BYPASSED "), "{exempt}: {response:?}");
            assert!(shows_nothing(&response), "{exempt}: {response:?}");
        }
    }
    for limited in ["127.0.0.1", "192.0.2.11", "2001:db9::1"] {
        let status = || get(&nginx, "/", ("X-Real-IP", limited)).status;
        assert_eq!([status(), status()], [200, 429], "{limited}");
    }
}

#[test]
fn a_trusted_proxy_sets_the_client() {
    let redis = redis();
    // A slower rate: the key of a fast one is gone soon.
    let trusted = [("192.0.2.0/24", "127.0.0.0/8"), ("100r/m", "100r/d")];
    let nginx =
        recipe("real_ip_header", &trusted, &redis).http(APPLICATION).start_connected(&redis);
    for forwarded in ["203.0.113.9", "198.51.100.1, 203.0.113.9", "203.0.113.9, 127.0.0.5"] {
        redis.command::<()>(&["FLUSHALL"]);
        assert_eq!(get(&nginx, "/", ("X-Forwarded-For", forwarded)).status, 200);
        assert_eq!(keys(&redis), ["rl:default:203.0.113.9"], "{forwarded}");
    }
    redis.command::<()>(&["FLUSHALL"]);
    assert_eq!(get(&nginx, "/", ("X-Forwarded-For", "2001:db9:1:2::3")).status, 200);
    assert_eq!(keys(&redis), ["rl:default:2001:db9:1:2::/64"]);
}

#[test]
fn no_other_client_sets_the_client() {
    let redis = redis();
    let nginx = recipe("real_ip_header", &[("100r/m", "100r/d")], &redis)
        .http(APPLICATION)
        .start_connected(&redis);
    assert_eq!(get(&nginx, "/", ("X-Forwarded-For", "203.0.113.9")).status, 200);
    assert_eq!(keys(&redis), ["rl:default:127.0.0.1"]);
}

/// A gRPC call with an empty message, and the frames that `nghttp` got.
fn call(nginx: &Nginx) -> String {
    let mut message = tempfile::NamedTempFile::new().expect("a temp file");
    message.write_all(&[0; 5]).expect("write a temp file");
    let path = message.path().to_str().expect("a path");
    let url = nginx.h2_url("/helloworld.Greeter/SayHello");
    let content_type = "content-type: application/grpc";
    run("nghttp", &["-v", "-d", path, "-H", content_type, "-H", "te: trailers", &url])
}

/// The value of a field in the frames that were received.
#[track_caller]
fn received<'a>(frames: &'a str, name: &str) -> &'a str {
    let lines = frames.lines().filter(|line| line.contains(" recv ("));
    let mut values = lines.filter_map(|line| line.split_once(&format!(") {name}: ")));
    let (_, value) = values.next().unwrap_or_else(|| panic!("no {name} in\n{frames}"));
    assert_eq!(values.next(), None, "{name} twice in\n{frames}");
    value
}

#[test]
fn a_rejected_grpc_call_has_a_status_of_its_own() {
    let redis = redis();
    let application = "server { listen 127.0.0.1:{port2} http2; default_type application/grpc; \
                       location / { add_header grpc-status 0; return 200; } }";
    let nginx = recipe("grpc_pass", &[("100r/m", "1r/d")], &redis)
        .http2()
        .http(application)
        .start_connected(&redis);
    let passed = call(&nginx);
    assert_eq!(received(&passed, "grpc-status"), "0");
    assert_eq!(received(&passed, "x-ratelimit-remaining"), "0");

    let rejected = call(&nginx);
    assert_eq!(received(&rejected, ":status"), "200");
    assert_eq!(received(&rejected, "content-type"), "application/grpc");
    assert_eq!(received(&rejected, "grpc-status"), "8");
    assert_eq!(received(&rejected, "grpc-message"), "rate limit exceeded");
    assert_eq!(received(&rejected, "x-ratelimit-limit"), "1");
    let pushback = format!("{}000", received(&rejected, "retry-after"));
    assert_eq!(received(&rejected, "grpc-retry-pushback-ms"), pushback);
    // "Trailers-Only": the one frame of the response ends it.
    let (_, response) = rejected.split_once(") grpc-status: 8").expect("its fields");
    let (_, frame) = response.split_once(" recv HEADERS frame ").expect("its frame");
    assert!(frame.contains("; END_STREAM | END_HEADERS"), "{rejected}");
    assert!(!rejected.contains(" recv DATA frame "), "{rejected}");
}

#[test]
fn a_client_is_warned_before_its_quota_is_spent() {
    let redis = redis();
    let nginx = recipe("$quota_warning", &[("100r/m", "100r/d")], &redis)
        .http(APPLICATION)
        .start_connected(&redis);
    let mut http = nginx.http();
    let warning = "less than 20 requests left";
    for left in (0..100).rev() {
        let response = http.get("/");
        assert_eq!(response.remaining(), Some(left), "{response:?}");
        let expected = (left < 20).then_some(warning);
        assert_eq!(response.header("X-Quota-Warning"), expected, "{response:?}");
        assert_eq!(response.text(), expected.unwrap_or(""), "the application is warned, too");
    }
    let rejected = http.get("/");
    assert_eq!((rejected.status, rejected.header("X-Quota-Warning")), (429, Some(warning)));
}

#[test]
fn clients_beyond_their_quota_get_another_pool() {
    let redis = redis();
    let replaced = [("100r/m", "2r/d"), ("127.0.0.1:9001", "127.0.0.1:{port3}")];
    let pools = "server { listen 127.0.0.1:{port2}; location / { return 200 all; } } \
                 server { listen 127.0.0.1:{port3}; location / { return 200 few; } }";
    let nginx = recipe("REJECTED_DRY_RUN", &replaced, &redis).http(pools).start_connected(&redis);
    let pools: Vec<_> = (0..4).map(|_| nginx.get("/").text().to_owned()).collect();
    assert_eq!(pools, ["all", "all", "few", "few"]);
}

/// How many of 30 requests pass at once, and how many more may by the time that they took.
fn burst(nginx: &Nginx) -> (u64, u64) {
    let began = Instant::now();
    let mut http = nginx.http();
    let passed = (0..30).filter(|_| http.get("/").status == 502).count();
    (passed as u64, began.elapsed().as_secs() / 60 + 1)
}

#[test]
fn a_new_token_needs_no_reload() {
    let redis = redis();
    let nginx = recipe("auth_interval", &[("auth_interval 1m", "auth_interval 50ms")], &redis)
        .http(APPLICATION)
        .start_connected(&redis);
    assert_eq!(nginx.get("/api").status, 200);
    redis.command::<()>(&["ACL", "SETUSER", "limiter", ">another"]);
    // The recipe says so.
    let (file, new) = (nginx.path("redis.token"), nginx.path("redis.token.new"));
    std::fs::write(&new, "another\n").expect("write the token");
    std::fs::rename(new, file).expect("rename the token");
    redis.command::<()>(&["ACL", "SETUSER", "limiter", "<p@ss"]);
    let logins = redis.calls("auth");
    wait_until(PATIENCE, || redis.calls("auth") > logins + 1, "AUTH");
    redis.command::<i32>(&["CLIENT", "KILL", "USER", "limiter"]);
    wait_until(PATIENCE, || nginx.get("/api").remaining().is_some(), "a decision");
}

#[test]
fn limit_req_and_the_leaky_bucket_let_the_same_burst_through() {
    let redis = redis();
    let pair = |mark: &str| {
        let text = block("docs/coming-from.md", mark);
        assert!(text.contains("rate=10r/s"), "{text}");
        conf(&text.replace("rate=10r/s", "rate=1r/m"), &redis)
    };
    let theirs = pair("limit_req zone=one").start();
    let ours = pair("name=one").start_connected(&redis);
    for nginx in [theirs, ours] {
        let (passed, more) = burst(&nginx);
        assert!((21..21 + more).contains(&passed), "{passed}");
    }
}

/// The answers of redis-cell to the first `CL.THROTTLE user123 15 30 60 1`.
#[test]
fn redis_cell_has_the_same_numbers() {
    let redis = redis();
    let nginx =
        conf(&block("docs/coming-from.md", "algorithm=gcra"), &redis).start_connected(&redis);
    let response = nginx.get("/");
    assert_eq!((response.status, quota(&response)), (502, [16, 15, 2]));
    assert_eq!(response.header("Retry-After"), None);
}
