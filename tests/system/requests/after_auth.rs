//! `after=auth`: limits that decide when all access checks have passed, beside those that decide before.

use std::time::{Duration, Instant};

use harness::{ClusterConf, Conf, MASTER_NAME, Nginx, Redis, Response, SentinelConf};
use harness::{h2load, is_installed};

use crate::seen::{self, StartConnected as _, keys, lines, quota};
use crate::seen::{retry_after, shows_nothing, tokens};

/// ann and bob, whose password is pw; and bob with another one.
const ANN: (&str, &str) = ("Authorization", "Basic YW5uOnB3");
const BOB: (&str, &str) = ("Authorization", "Basic Ym9iOnB3");
const WRONG: (&str, &str) = ("Authorization", "Basic Ym9iOndyb25n");
const USERS: &str = "auth_basic closed; auth_basic_user_file {prefix}/users;";
const PER_USER: &str = "rate_limit_redis $remote_user name=per_user rate=2r/d after=auth;";
const PER_ADDRESS: &str = "rate_limit_redis $remote_addr name=per_address rate=5r/d;";

fn conf(redis: &Redis, snippet: &str) -> Conf {
    unconnected(snippet).redis(redis)
}

fn unconnected(snippet: &str) -> Conf {
    seen::named(snippet).file("users", "ann:{PLAIN}pw\nbob:{PLAIN}pw\n")
}

fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send("GET", path, headers);
    http.read_response()
}

/// The statuses of N requests of a user.
fn statuses<const N: usize>(nginx: &Nginx, path: &str, user: (&str, &str)) -> [u16; N] {
    [(); N].map(|()| get(nginx, path, &[user]).status)
}

#[test]
fn each_user_has_a_budget() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{USERS} {PER_USER}")).start_connected(&redis);
    assert_eq!(statuses(&nginx, "/", ANN), [200, 200, 429]);
    assert_eq!(statuses(&nginx, "/", BOB), [200, 200, 429]);
    assert_eq!(keys(&redis), ["rl:per_user:ann", "rl:per_user:bob"]);
    let rejected = get(&nginx, "/", &[ANN]);
    assert_eq!((rejected.decision(), &quota(&rejected)[..2]), ("REJECTED redis", &[2, 0][..]));
    assert!(retry_after(&rejected) > 1);
    let [line, ..] = &nginx.logged("limiting requests")[..] else { panic!("a line") };
    assert!(line.contains("by limit \"per_user\", key: \"ann\""), "{line}");
}

#[test]
fn an_unauthenticated_request_costs_nothing() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{USERS} {PER_USER} error_page 403 /index.html;"))
        .server("location /nobody { deny all; }")
        .server("location /page { error_page 401 /index.html; }")
        .server("location /named { error_page 401 = @login; }")
        .server("location /free { rate_limit_redis off; error_page 401 = @login; }")
        .server("location @login { auth_basic off; try_files /index.html =404; }")
        .server("location = /index.html { auth_basic off; }")
        .start_connected(&redis);
    for (path, headers, status) in [
        ("/", &[][..], 401),
        ("/", &[WRONG], 401),
        ("/nobody", &[BOB], 403),
        // The page of an error is not charged either: its key is an unverified name.
        ("/page", &[WRONG], 401),
        ("/named", &[WRONG], 200),
        ("/free", &[WRONG], 200),
    ] {
        let response = get(&nginx, path, headers);
        assert_eq!((response.status, response.decision()), (status, ""), "{path}");
        assert!(shows_nothing(&response), "{response:?}");
    }
    assert_eq!((redis.calls("evalsha"), keys(&redis).len()), (0, 0));
    assert_eq!(get(&nginx, "/", &[BOB]).decision(), "PASSED redis");
}

#[test]
fn an_error_page_costs_nothing_whatever_its_form() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{USERS} {PER_USER} recursive_error_pages on;"))
        .server("location /named { error_page 401 = @login; }")
        .server("location /page { error_page 401 = /index.html; }")
        .server(&format!("location /both {{ {PER_ADDRESS} {PER_USER} error_page 401 = @login; }}"))
        .server("location /again { error_page 401 /missing; }")
        .server("location = /missing { auth_basic off; error_page 404 = @login; }")
        .server("location @login { auth_basic off; try_files /index.html =404; }")
        .server("location = /index.html { auth_basic off; }")
        // A request that is left for another location before the access checks is charged there.
        .server("location /other { error_page 418 = @other; return 418; }")
        .server("location @other { rate_limit_redis b name=b rate=1r/d after=auth;")
        .server("  auth_basic off; try_files /index.html =404; }")
        .server("location /closed { error_page 418 @closed; return 418; }")
        .server("location @closed { error_page 401 = @login; }")
        .start_connected(&redis);
    for (path, decision) in
        [("/named", ""), ("/page", ""), ("/both", "PASSED redis"), ("/again", ""), ("/closed", "")]
    {
        let response = get(&nginx, path, &[WRONG]);
        assert_eq!((response.status, response.decision()), (200, decision), "{path}");
    }
    assert_eq!(keys(&redis), ["rl:per_address:127.0.0.1"]);
    assert_eq!([(); 2].map(|()| nginx.get("/other").status), [200, 429]);
    assert_eq!(statuses(&nginx, "/named", BOB), [404, 404, 429]);
}

/// Also if the request has passed another location, in which no limit applied, before.
#[test]
fn an_error_page_costs_nothing_after_a_redirect() {
    let redis = Redis::start();
    let nginx = conf(&redis, PER_USER)
        .server("location / { rate_limit_redis off; try_files $uri @app; }")
        .server("location /no_key { rate_limit_redis $arg_none name=none rate=1r/d after=auth;")
        .server("  try_files $uri @app; }")
        .server("location /error { rate_limit_redis off; error_page 404 = @app; }")
        .server(&format!("location @app {{ {USERS} error_page 401 /login.html;"))
        .server("  try_files /index.html =404; }")
        .server("location = /login.html { }")
        .file("html/login.html", "login")
        .start_connected(&redis);
    for path in ["/some", "/no_key", "/error"] {
        for _ in 0..3 {
            let response = get(&nginx, path, &[WRONG]);
            assert_eq!((response.status, shows_nothing(&response)), (401, true), "{path}");
        }
    }
    assert_eq!(keys(&redis), [""; 0]);
    assert_eq!(statuses(&nginx, "/some", BOB), [200, 200, 429]);
}

#[test]
fn an_error_page_costs_nothing_behind_one_of_the_same_status() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{USERS} {PER_USER} recursive_error_pages on;"))
        .server("error_page 404 =200 /index.html; error_page 401 =200 /login.html;")
        .server("location /assets/ { auth_basic off; return 404; }")
        .server("location = /login.html { internal; auth_basic off; }")
        .server("location /again { auth_basic off; error_page 401 /closed; return 401; }")
        .server("location /closed { error_page 401 /login.html; }")
        .file("html/login.html", "login")
        .start_connected(&redis);
    for (path, status) in [("/assets/a", 200), ("/login.html", 200), ("/again", 401)] {
        let response = get(&nginx, path, &[WRONG]);
        let seen = (response.status, response.text(), response.decision());
        assert_eq!(seen, (status, "login", ""), "{path}");
    }
    assert_eq!(keys(&redis), [""; 0]);
    assert_eq!(statuses(&nginx, "/assets/a", BOB), [200, 200, 429]);
}

/// A module may redirect a request in the access phase too, which is no failed check.
#[test]
fn the_location_to_which_a_module_redirects_is_charged() {
    if !is_installed() {
        return;
    }
    let redis = Redis::start();
    let mut server = String::new();
    for (path, rest) in [
        ("last", "error_page 404 = @missing;"),
        ("recursive", "error_page 404 = @missing; recursive_error_pages on;"),
        ("status", "error_page 401 =200 @missing; recursive_error_pages on;"),
        ("unclear", "error_page 401 403 = @missing; recursive_error_pages on;"),
    ] {
        server += &format!(
            "location = /{path} {{ {rest} access_by_lua_block {{ ngx.exec('/', ngx.var.args) }} }}"
        );
    }
    // One worker: each logs the warning once.
    let nginx = conf(&redis, &server)
        .workers(1)
        .load("ndk_http_module")
        .load("ngx_http_lua_module")
        .server("location = / { rate_limit_redis $arg_key rate=1r/d after=auth;")
        .server("  try_files /index.html =404; }")
        .server("location /behind { error_page 404 /last?$args; return 404; }")
        .server("location @missing { return 404; }")
        .start_connected(&redis);
    let statuses = |path: &str| {
        let path = format!("{path}?key={path}");
        [(); 2].map(|()| nginx.get(&path).status)
    };
    for path in ["/last", "/recursive", "/status"] {
        assert_eq!(statuses(path), [200, 429], "{path}");
    }
    assert_eq!(statuses("/behind"), [404, 429]);
    assert_eq!(nginx.logged("are skipped"), [""; 0]);
    assert_eq!(statuses("/unclear"), [200, 200]);
    let [line] = &nginx.logged("limits with \"after=auth\" are skipped")[..] else {
        panic!("one line")
    };
    assert!(line.contains("[warn]") && line.contains("\"error_page 401\""), "{line}");
}

#[test]
fn the_location_of_another_error_is_charged() {
    let redis = Redis::start();
    let nginx = conf(&redis, "error_page 404 = @app; rate_limit_redis off;")
        .server("location @app { rate_limit_redis a rate=1r/d after=auth;")
        .server("  try_files /index.html =404; }")
        // One location is often left for another in this way.
        .server("location /other { error_page 418 = @other; return 418; }")
        .server("location @other { rate_limit_redis b name=b rate=1r/d after=auth;")
        .server("  try_files /index.html =404; }")
        .start_connected(&redis);
    let statuses = |path| [(); 2].map(|()| nginx.get(path).status);
    assert_eq!(statuses("/missing"), [200, 429]);
    assert_eq!(statuses("/other"), [200, 429]);
}

#[test]
fn a_variable_of_auth_request_may_be_the_key() {
    let redis = Redis::start();
    let nginx = conf(&redis, PER_ADDRESS)
        .server(
            "location /api/ { auth_request /auth; auth_request_set $plan $upstream_http_x_plan;",
        )
        .server("  rate_limit_redis $plan name=plan rate=2r/d after=auth; alias {prefix}/html/; }")
        // A subrequest is not charged, whatever its location has.
        .server("location = /auth { rate_limit_redis a name=auth rate=1r/d after=auth;")
        .server("  proxy_pass http://127.0.0.1:{port2}; }")
        .http(
            "server { listen 127.0.0.1:{port2}; location / { if ($http_x_key = '') { return 401; }",
        )
        .http("  add_header X-Plan $http_x_key; return 204; } }")
        .start_connected(&redis);
    let statuses = |key| [(); 3].map(|()| get(&nginx, "/api/", &[("X-Key", key)]).status);
    assert_eq!(statuses("gold"), [200, 200, 429]);
    assert_eq!(get(&nginx, "/api/", &[]).status, 401);
    assert_eq!(redis.calls("evalsha"), 3);
    assert_eq!(statuses("silver"), [200, 200, 429]);
    assert_eq!(keys(&redis), ["rl:plan:gold", "rl:plan:silver"]);
}

#[test]
fn any_check_satisfies() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("satisfy any; deny all; {USERS}"))
        .server("rate_limit_redis $remote_user name=per_user rate=1r/d after=auth;")
        .start_connected(&redis);
    assert_eq!(get(&nginx, "/", &[]).status, 401);
    assert_eq!(statuses(&nginx, "/", BOB), [200, 429]);
    assert_eq!(keys(&redis), ["rl:per_user:bob"]);
}

#[test]
fn both_phases_share_one_set_of_fields() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{USERS} {PER_USER} {PER_ADDRESS}"))
        .server("rate_limit_redis_headers x-ratelimit ietf; rate_limit_redis_body problem;")
        .http("log_format both '$rate_limit_redis_status $rate_limit_redis_name';")
        .server("access_log {prefix}/both.log both;")
        .start_connected(&redis);
    let first = get(&nginx, "/", &[ANN]);
    assert_eq!((first.decision(), &quota(&first)[..2]), ("PASSED redis", &[2, 1][..]));
    let policies = "\"per_address\";q=5;w=86400, \"per_user\";q=2;w=86400";
    assert_eq!(first.headers("RateLimit-Policy"), [policies]);
    assert_eq!(redis.calls("evalsha"), 2);
    assert_eq!(get(&nginx, "/", &[ANN]).status, 200);
    let third = get(&nginx, "/", &[ANN]);
    assert_eq!((third.status, third.decision()), (429, "REJECTED redis"));
    assert_eq!(third.header("X-Name"), Some("per_user"));
    assert!(third.text().contains("\"violated-policies\":[\"per_user\"]"), "{third:?}");
    assert_eq!(third.headers("RateLimit-Policy"), [policies]);
    let [line] = &nginx.logged("limiting requests")[..] else { panic!("one line") };
    assert!(line.contains("by limit \"per_user\""), "{line}");
    // Units that the first phase has spent stay spent.
    assert_eq!(tokens(&redis, "rl:per_address:127.0.0.1"), Some(2));
    assert_eq!(get(&nginx, "/", &[BOB]).status, 200);
    assert_eq!(get(&nginx, "/", &[]).status, 401);
    let last = get(&nginx, "/", &[BOB]);
    assert_eq!((last.status, last.header("X-Name")), (429, Some("per_address")));
    assert_eq!(last.headers("RateLimit-Policy"), ["\"per_address\";q=5;w=86400"]);
    assert_eq!(tokens(&redis, "rl:per_user:bob"), Some(1), "the second phase was not reached");
    let expected =
        ["PASSED per_user", "PASSED per_user", "REJECTED per_user", "PASSED per_address"];
    assert_eq!(lines(&nginx, "both.log", 6)[..4], expected);
}

#[test]
fn the_wait_is_that_of_both() {
    let redis = Redis::start_with_stopped_clock();
    let nginx =
        conf(&redis, "rate_limit_redis a name=a rate=100r/s algorithm=leaky_bucket burst=9;")
            .server(
                "rate_limit_redis b name=b rate=1r/s algorithm=leaky_bucket burst=9 after=auth;",
            )
            .start_connected(&redis);
    let start = Instant::now();
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    assert_eq!(nginx.get("/").decision(), "DELAYED redis");
    assert_eq!(nginx.get("/").status, 200);
    // By the clock of Redis all come at once: the second waits for one turn, and the third for two. Timers
    // round off.
    assert!(start.elapsed() > Duration::from_millis(2_990), "{:?}", start.elapsed());
    assert!(!nginx.logged("delaying request, excess: ").is_empty());
    assert!(nginx.logged("by limit \"b\"").len() >= 2);
}

/// The earlier one may be long ago when the later one is made.
#[test]
fn the_reset_counts_from_the_later_decision() {
    let redis = Redis::start_with_stopped_clock();
    let nginx =
        conf(&redis, "rate_limit_redis a name=a rate=1r/3s algorithm=leaky_bucket burst=9;")
            .server("rate_limit_redis $arg_k name=b rate=1r/100s after=auth;")
            .start_connected(&redis);
    for (client, decision) in [("1", "PASSED redis"), ("2", "DELAYED redis")] {
        let response = nginx.get(&format!("/?k={client}"));
        assert_eq!((response.status, response.decision()), (200, decision));
        // By the clock of Redis a token takes 100 s. The first decision is 3 s ago, the second just made.
        let [limit, remaining, reset] = quota(&response);
        assert_eq!((limit, remaining), (1, 0));
        assert!((98..=100).contains(&reset), "{response:?}");
    }
}

#[test]
fn mirror_comes_later() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a rate=1r/d after=auth; mirror /copy;")
        .server("location = /copy { internal; log_subrequest on; access_log {prefix}/copy.log;")
        .server("  rate_limit_redis c name=c rate=1r/d after=auth; try_files /index.html =404; }")
        .start_connected(&redis);
    assert_eq!([(); 3].map(|()| nginx.get("/index.html").status), [200, 429, 429]);
    nginx.wait_for_access_log(3);
    assert_eq!(lines(&nginx, "copy.log", 1).len(), 1, "the copy of the request that passed");
    assert_eq!(keys(&redis), ["rl:default:a"]);
}

#[test]
fn try_files_comes_later() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location / { rate_limit_redis a rate=1r/d after=auth;")
        .server("  try_files /missing @found; }")
        .server("location @found { rate_limit_redis b name=b rate=1r/d after=auth;")
        .server("  try_files /index.html =404; }")
        .start_connected(&redis);
    assert_eq!([(); 3].map(|()| nginx.get("/").status), [200, 429, 429]);
    assert_eq!((keys(&redis), redis.calls("evalsha")), (vec!["rl:default:a".to_owned()], 3));
}

#[test]
fn a_request_is_charged_once_in_each_phase() {
    let redis = Redis::start();
    let nginx = conf(&redis, "index index.html; error_page 404 405 /error/;")
        .server(
            "rate_limit_redis a name=a rate=9r/d; rate_limit_redis b name=b rate=9r/d after=auth;",
        )
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    assert_eq!(nginx.get("/missing").status, 404);
    assert_eq!((tokens(&redis, "rl:a:a"), tokens(&redis, "rl:b:b")), (Some(7), Some(7)));
    assert_eq!(redis.calls("evalsha"), 4);
}

#[test]
fn the_error_page_of_a_rejection_is_not_charged() {
    let redis = Redis::start();
    let nginx = conf(&redis, "location / { rate_limit_redis a name=a rate=1r/d; }")
        .server("error_page 429 = @slow_down; location @slow_down {")
        .server("  rate_limit_redis b name=b rate=1r/d after=auth; try_files /index.html =404; }")
        .start_connected(&redis);
    let responses = [(); 4].map(|()| nginx.get("/"));
    assert_eq!(
        responses.map(|it| it.decision().to_owned()),
        ["PASSED redis", "REJECTED redis", "REJECTED redis", "REJECTED redis"]
    );
    assert_eq!(keys(&redis), ["rl:a:a"]);
}

#[test]
fn an_empty_key_bypasses_its_phase_alone() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a name=a rate=9r/d;")
        .server("rate_limit_redis $arg_b name=b rate=9r/d after=auth;")
        .server("location /late { rate_limit_redis $arg_b name=b rate=9r/d after=auth; }")
        .start_connected(&redis);
    let seen = |path| {
        let response = nginx.get(path);
        (response.decision().to_owned(), response.header("X-Name").map(str::to_owned))
    };
    assert_eq!(seen("/"), ("PASSED redis".to_owned(), Some("a".to_owned())));
    assert_eq!(seen("/late").0, "BYPASSED none");
    assert_eq!(redis.calls("evalsha"), 1);
    assert_eq!(seen("/late?b=1"), ("PASSED redis".to_owned(), Some("b".to_owned())));
}

#[test]
fn a_level_replaces_the_lines_of_both_phases() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a name=a rate=9r/d;")
        .server("rate_limit_redis b name=b rate=9r/d after=auth;")
        .server("location /own { rate_limit_redis c name=c rate=9r/d after=auth; }")
        .server("location /off { rate_limit_redis off; }")
        .start_connected(&redis);
    nginx.get("/own");
    assert_eq!(keys(&redis), ["rl:c:c"], "a line of a level replaces all of the level before");
    nginx.get("/off");
    assert_eq!(keys(&redis).len(), 1);
    nginx.get("/");
    assert_eq!(keys(&redis), ["rl:a:a", "rl:b:b", "rl:c:c"]);
}

#[test]
fn lines_of_both_phases_may_share_a_name() {
    let redis = Redis::start();
    let nginx =
        conf(&redis, "rate_limit_redis a rate=4r/d; rate_limit_redis a rate=4r/d after=auth;")
            .start_connected(&redis);
    assert_eq!([(); 3].map(|()| nginx.get("/").status), [200, 200, 429]);
    assert_eq!(tokens(&redis, "rl:default:a"), Some(0));
}

#[test]
fn several_limits_of_the_phase_are_charged_together() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a name=wide rate=9r/d after=auth;")
        .server("rate_limit_redis a name=tight rate=1r/d after=auth;")
        .start_connected(&redis);
    assert_eq!([(); 3].map(|()| nginx.get("/").status), [200, 429, 429]);
    assert_eq!(tokens(&redis, "rl:wide:a"), Some(8), "a rejected request spends nothing");
    assert_eq!(redis.calls("evalsha"), 3);
}

#[test]
fn on_error_applies_while_redis_is_away() {
    let nginx = unconnected("rate_limit_redis_pass redis://127.0.0.1:1;")
        .server(
            "rate_limit_redis a name=a rate=9r/d; rate_limit_redis b name=b rate=1r/d after=auth;",
        )
        .server("location /local { rate_limit_redis_on_error local; alias {prefix}/html/; }")
        .server("location /closed { rate_limit_redis_on_error closed; }")
        .start();
    assert_eq!(nginx.get("/").decision(), "ERROR_PASSED none");
    assert_eq!(nginx.get("/closed").decision(), "ERROR_REJECTED none");
    let local = [(); 2].map(|()| nginx.get("/local/index.html").decision().to_owned());
    assert_eq!(local, ["PASSED local", "REJECTED local"]);
}

/// The limits of the access phase have no part in it.
#[test]
fn no_limit_is_named_where_the_later_phase_is_undecided() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a rate=9r/d;")
        .server("rate_limit_redis a name=planned rate=1r/d dry_run;")
        .server("rate_limit_redis a name=later rate=$arg_rate after=auth;")
        .server("add_header X-Name \"<$rate_limit_redis_name>\" always;")
        .server("location /json { rate_limit_redis_body json; }")
        .server("location /problem { rate_limit_redis_body problem; }")
        .start_connected(&redis);
    let json = r#"{"error":"Invalid request","limit":null,"retry_after":null}"#;
    let problem = r#"{"type":"about:blank","title":"Bad Request","status":400}"#;
    for (path, body) in [("/json", json), ("/problem", problem)] {
        let response = nginx.get(&format!("{path}?rate=much"));
        assert_eq!((response.status, response.text()), (400, body), "{response:?}");
        assert_eq!(response.header("X-Name"), Some("<>"));
        assert_eq!(response.header("X-RateLimit-Limit"), None);
    }
}

#[test]
fn a_cluster_and_sentinels_decide_in_both_phases() {
    let cluster = ClusterConf::steady(3, 0).start();
    let sentinels = SentinelConf::new(1).down_after(Duration::from_secs(10)).start();
    let servers =
        |urls: &[String]| urls.iter().map(|url| format!("server {url}; ")).collect::<String>();
    let (nodes, watchers) = (servers(&cluster.urls()), servers(&sentinels.urls()));
    for store in [format!("{nodes} cluster on;"), format!("{watchers} sentinel {MASTER_NAME};")] {
        let nginx = unconnected(&format!("{USERS} {PER_USER} {PER_ADDRESS}"))
            .http(&format!("rate_limit_redis_store edge {{ {store} connect_timeout 30s; }}"))
            .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
            .http("rate_limit_redis_on_error closed;")
            .start();
        assert_eq!(statuses(&nginx, "/", ANN), [200, 200, 429]);
        assert_eq!(get(&nginx, "/", &[]).status, 401);
        assert_eq!(statuses(&nginx, "/", BOB), [200, 429]);
    }
}

#[test]
fn streams_are_charged_in_both_phases() {
    let redis = Redis::start();
    let nginx =
        conf(&redis, &format!("{USERS} {PER_USER} {PER_ADDRESS}")).http2().start_connected(&redis);
    let header = format!("{}: {}", ANN.0, ANN.1);
    let url = nginx.h2_url("/");
    let seen = h2load(&["-n", "9", "-c", "1", "-m", "9", "-H", &header, &url]);
    assert_eq!((seen.of(200), seen.total()), (2, 9), "{seen:?}");
    assert_eq!(tokens(&redis, "rl:per_address:127.0.0.1"), Some(0));
    assert_eq!(tokens(&redis, "rl:per_user:ann"), Some(0));
}

#[test]
fn a_reload_keeps_requests_that_wait() {
    let redis = Redis::start_with_stopped_clock();
    let mut nginx =
        conf(&redis, "rate_limit_redis a rate=1r/3s algorithm=leaky_bucket burst=9 after=auth;")
            .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let mut waiting = nginx.http();
    waiting.send("GET", "/", &[]);
    nginx.wait_for_error_log("delaying request");
    nginx.reload_signal();
    let response = waiting.read_response();
    assert_eq!((response.status, response.decision()), (200, "DELAYED redis"));
}
