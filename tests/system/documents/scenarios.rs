//! The scenarios of nginx-conf/: what each promises, with real traffic.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{
    Authority, ClusterConf, Conf, Http, Nginx, PATIENCE, Redis, Response, check_file, run,
    wait_until,
};

use crate::documents::examples::{account, example, read};
use crate::seen::{keys, retry_after};

/// A scenario with one Redis.
fn scenario(name: &str, redis: &Redis) -> Conf {
    reachable(example(name, &[("redis://127.0.0.1:6379", redis.url())]))
}

/// Requests may name the address that they come from, and the harness sees which clients are
/// connected.
fn reachable(conf: Conf) -> Conf {
    conf.http("set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;")
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
}

/// Starts nginx, and waits until it is connected to so many servers: before that, a request may be
/// handled as if Redis were away.
fn start(conf: &Conf, servers: usize) -> Nginx {
    let nginx = conf.start();
    let connected = || {
        let page = get(&nginx, "/metrics", &[("Host", "harness")]);
        page.text().lines().filter(|line| line.ends_with(",state=\"ready\"} 1")).count() == servers
    };
    wait_until(PATIENCE, connected, "connections to Redis");
    nginx
}

fn request(http: &mut Http, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let length: &[_] = if method == "POST" { &[("Content-Length", "0")] } else { &[] };
    http.send(method, path, &[length, headers].concat());
    http.read_response()
}

fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Response {
    request(&mut nginx.http(), "GET", path, headers)
}

/// Sends requests until one is rejected: how many passed, and the rejection.
#[track_caller]
fn until_rejected(mut send: impl FnMut() -> Response) -> (u64, Response) {
    for passed in 0..1_000 {
        let response = send();
        if response.status == 429 {
            return (passed, response);
        }
        assert!([200, 204].contains(&response.status), "{response:?}");
    }
    panic!("nothing is rejected");
}

/// A whole quota has passed, and no more than came back since.
#[track_caller]
fn is_quota(passed: u64, capacity: u64, back: u64, period: Duration, since: Instant) {
    let regained = since.elapsed().as_secs_f64() / period.as_secs_f64() * back as f64;
    let most = capacity + regained as u64;
    assert!((capacity..=most).contains(&passed), "{passed} of {capacity} to {most}");
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn rating_edge_limits_as_promised() {
    // No node is to be taken for dead because the machine is busy.
    let mut cluster = ClusterConf::steady(3, 0).start();
    let seeds = [1, 2, 3].map(|n| format!("redis://10.0.0.{n}:6379"));
    let seeds: Vec<_> = seeds.iter().map(String::as_str).zip(cluster.urls()).collect();
    let conf = reachable(example("rating-edge", &seeds));
    // Two of them share what a client may send.
    let edges = [start(&conf, 3), start(&conf, 3)];
    let mut connections = edges.each_ref().map(Nginx::http);
    let client = [("X-Real-IP", "192.0.2.1")];

    let since = Instant::now();
    let mut turn = 0;
    let (passed, rejection) = until_rejected(|| {
        turn = 1 - turn;
        request(&mut connections[turn], "GET", "/rating", &client)
    });
    is_quota(passed, 100, 100, MINUTE, since);
    assert_eq!(retry_after(&rejection), 1);
    assert_eq!(rejection.header("Content-Type"), Some("application/json"));

    let keys: Vec<_> = (0..3).flat_map(|n| keys(cluster.node(n))).collect();
    assert_eq!(keys, ["rl:rating:eu:192.0.2.1"]);

    let other = get(&edges[0], "/rating", &[("X-Real-IP", "192.0.2.2")]);
    assert_eq!((other.status, other.text(), other.remaining()), (200, "rating: 5\n", Some(99)));

    (0..3).for_each(|n| cluster.kill9(n));
    for edge in &edges {
        let away = get(edge, "/rating", &[("X-Real-IP", "192.0.2.3")]);
        assert_eq!((away.status, retry_after(&away)), (503, 1), "{away:?}");
    }
}

/// With the lines that are there to be uncommented.
#[test]
fn rating_edge_serves_over_tls_with_an_account() {
    let authority = Authority::new();
    let identity = authority.issue("DNS:redis.internal");
    let conf = ClusterConf::steady(3, 0).secured(&authority, &identity).line(&account());
    let cluster = conf.start();
    let seeds = [1, 2, 3].map(|n| format!("redis://10.0.0.{n}:6379"));
    let url = |n: usize| format!("rediss://127.0.0.1:{}", cluster.node(n).tls_port());
    let seeds = seeds.iter().enumerate().map(|(n, seed)| (seed.as_str(), url(n)));
    let lines = [
        ("# user limiter;", "user limiter; connect_timeout 30s;".to_owned()),
        ("# password change-me;", "password change-me;".to_owned()),
        ("# ssl_name", "ssl_name".to_owned()),
        (
            "# ssl_trusted_certificate ca.pem",
            format!("ssl_trusted_certificate {}", authority.certificate()),
        ),
    ];
    let replaced: Vec<_> = seeds.chain(lines).collect();
    let nginx = start(&reachable(example("rating-edge", &replaced)), 3);
    let response = get(&nginx, "/rating", &[]);
    assert_eq!((response.status, response.remaining()), (200, Some(99)), "{response:?}");
}

fn rate(nginx: &Nginx, headers: &[(&str, &str)]) -> Response {
    request(&mut nginx.http(), "POST", "/api/v1/rate", headers)
}

#[test]
fn rating_worker_limits_as_promised() {
    let redis = Redis::start();
    let nginx = start(&scenario("rating-worker", &redis), 1);
    let client = [("CF-Connecting-IP", "203.0.113.7")];
    let others = [
        ("GET", "/api/v1/rate"),
        ("PUT", "/api/v1/rate"),
        ("POST", "/api/v1/rate/"),
        ("POST", "/api/v1/other"),
        ("GET", "/"),
    ];
    for (method, path) in others {
        let response = request(&mut nginx.http(), method, path, &client);
        assert_eq!((response.status, response.remaining()), (404, None), "{method} {path}");
    }
    assert!(keys(&redis).is_empty(), "what is not there is charged");

    let since = Instant::now();
    let mut http = nginx.http();
    let (passed, rejection) =
        until_rejected(|| request(&mut http, "POST", "/api/v1/rate", &client));
    is_quota(passed, 100, 10, MINUTE, since);
    let seconds = retry_after(&rejection);
    assert!((1..=6).contains(&seconds), "{rejection:?}");
    let body = format!(
        "{{\"error\":\"Rate limit exceeded\",\"limit\":\"rate\",\"retry_after\":{seconds}}}"
    );
    assert_eq!(rejection.text(), body);
    assert_eq!(rejection.header("Content-Type"), Some("application/json"));

    assert_eq!(keys(&redis), ["rl:rate:203.0.113.7"]);

    let anonymous = rate(&nginx, &[]);
    assert_eq!((anonymous.status, anonymous.remaining()), (200, Some(99)));
    assert_eq!(anonymous.text(), "{\"rating\":5}\n");
    assert!(keys(&redis).contains(&"rl:rate:anonymous".to_owned()));
}

/// Restarts a Redis as `systemctl restart redis-server` does, until nginx is connected again. Returns what is left
/// then, after one more request.
fn restart(redis: &mut Redis, nginx: &Nginx) -> u64 {
    redis.try_command::<()>(&["SHUTDOWN"]).expect_err("it closes the connection");
    redis.restart();
    let mut remaining = None;
    let decided = || {
        remaining = rate(nginx, &[]).remaining();
        remaining.is_some()
    };
    wait_until(PATIENCE, decided, "a decision after the restart of Redis");
    remaining.expect("it was decided")
}

/// The lines of docs/operations.md that make Redis durable.
fn durable() -> Vec<String> {
    let page = read("../docs/operations.md");
    let (_, restarts) = page.split_once("\n**Restarts.**").expect("a paragraph on restarts");
    let lines = restarts.lines().skip_while(|line| !line.starts_with("    "));
    lines.map_while(|line| line.strip_prefix("    ").map(str::to_owned)).collect()
}

#[test]
fn rating_worker_survives_restarts() {
    let durable = durable();
    assert!(durable.contains(&"appendonly yes".to_owned()), "{durable:?}");
    let lines: Vec<_> = durable.iter().map(String::as_str).collect();
    let mut redis = Redis::start_with(&lines);
    let conf = scenario("rating-worker", &redis);
    let since = Instant::now();
    let mut nginx = start(&conf, 1);
    (0..60).for_each(|_| assert_eq!(rate(&nginx, &[]).status, 200));
    nginx.quit();

    let nginx = start(&conf, 1);
    let remaining = rate(&nginx, &[]).remaining().expect("a decision");
    is_quota(remaining, 39, 10, MINUTE, since);
    is_quota(restart(&mut redis, &nginx), 38, 10, MINUTE, since);
}

/// The reason for `appendonly yes`.
#[test]
fn rating_worker_starts_anew_with_a_redis_that_keeps_nothing() {
    let mut redis = Redis::start();
    let nginx = start(&scenario("rating-worker", &redis), 1);
    (0..60).for_each(|_| assert_eq!(rate(&nginx, &[]).status, 200));
    assert_eq!(restart(&mut redis, &nginx), 99);
}

#[test]
fn production_limits_as_promised() {
    let mut redis = Redis::start();
    // A day, so that nothing comes back in the time that a slow machine takes.
    let replaced = [
        ("redis://127.0.0.1:6379", redis.url()),
        ("rate=600r/m capacity=100", "rate=600r/d capacity=100".to_owned()),
        ("rate=300r/m capacity=50", "rate=300r/d capacity=50".to_owned()),
        ("192.0.2.0/24", "127.0.0.1".to_owned()),
        ("/var/log/nginx/access.log", "{prefix}/decisions.log".to_owned()),
    ];
    let conf = example("production", &replaced)
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }");
    let nginx = start(&conf, 1);
    let mut http = nginx.http();
    let client = [("X-Forwarded-For", "198.51.100.7")];
    let first = request(&mut http, "GET", "/a", &client);
    let body = "{\"path\":\"/a\",\"quota_remaining\":\"99\"}\n";
    assert_eq!((first.status, first.text()), (200, body));
    let (more, rejection) = until_rejected(|| request(&mut http, "GET", "/a", &client));
    assert_eq!(1 + more, 100);
    assert_eq!(rejection.header("Content-Type"), Some("application/json"));
    assert_eq!(
        rejection.header("RateLimit-Policy").map(|field| field.matches(";q=").count()),
        Some(2)
    );

    // The next limit would have rejected half of them.
    let page = get(&nginx, "/metrics", &[("Host", "harness")]);
    let counted = "requests_total{name=\"client_next\",result=\"rejected_dry_run\"} ";
    let counted =
        page.text().lines().find_map(|line| line.split_once(counted)?.1.parse::<u64>().ok());
    assert_eq!(counted, Some(51), "{}", page.text());

    // Only attempts to log in spend of their limit.
    let other = [("X-Forwarded-For", "198.51.100.8")];
    (0..10).for_each(|_| assert_eq!(request(&mut http, "GET", "/login", &other).status, 200));
    let (passed, rejection) = until_rejected(|| request(&mut http, "POST", "/login", &other));
    assert!(passed >= 5 && retry_after(&rejection) >= 840, "{passed} {rejection:?}");
    assert_eq!(get(&nginx, "/health", &client).status, 200);
    assert_eq!(get(&nginx, "/metrics", &client).status, 403, "the client is no Prometheus");

    redis.kill9();
    let stranger = [("X-Forwarded-For", "198.51.100.9")];
    assert_eq!(
        request(&mut http, "GET", "/a", &stranger).remaining(),
        Some(99),
        "it is decided here"
    );

    let log = || fs::read_to_string(nginx.path("decisions.log")).expect("the log");
    let is_logged = |decision: &str| {
        let lines = log();
        let mut lines = lines.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.any(|line: serde_json::Value| line["decision"] == decision && line["status"] != 0)
    };
    wait_until(PATIENCE, || is_logged("PASSED") && is_logged("REJECTED"), "lines of the log");
    assert!(!log().contains("/health"), "it is not worth a line");
}

/// Which limit a rejection of redis-guide.conf names.
fn violated(rejection: &Response) -> &str {
    let (_, rest) = rejection.text().split_once("\"limit\":\"").expect("the name of a limit");
    rest.split('"').next().expect("its end")
}

/// redis-guide.conf behind a proxy on this machine, with more that is replaced.
fn redis_guide_with(redis: &Redis, replaced: &[(&str, String)]) -> Conf {
    let own = [("redis://127.0.0.1:6379", redis.url()), ("192.0.2.0/24", "127.0.0.1".to_owned())];
    reachable(example("redis-guide", &[&own[..], replaced].concat()))
}

#[test]
fn redis_guide_limits_as_promised() {
    let redis = Redis::start();
    // Slower, so that nothing comes back in the time that a slow machine takes.
    let nginx = start(&redis_guide_with(&redis, &[("r/10s", "r/10m".to_owned())]), 1);
    let mut http = nginx.http();
    let mut call = |path: &str, user: &str, address: &str| {
        request(&mut http, "GET", path, &[("X-User", user), ("X-Forwarded-For", address)])
    };
    let since = Instant::now();
    let whole = |passed, capacity, back| is_quota(passed, capacity, back, 10 * MINUTE, since);

    let (orders, rejection) = until_rejected(|| call("/api/orders/1", "alice", "192.0.2.1"));
    assert_eq!(violated(&rejection), "user_endpoint");
    whole(orders, 6, 3);

    // At another endpoint the user goes on, up to the user's own limit.
    let (searches, rejection) = until_rejected(|| call("/api/search", "alice", "192.0.2.1"));
    assert_eq!(violated(&rejection), "user");
    let of_user = orders + searches;
    whole(of_user, 10, 5);

    // Requests that the first limit rejected have spent nothing of the second.
    let (more, rejection) = until_rejected(|| call("/api/orders/1", "", "192.0.2.1"));
    assert_eq!(violated(&rejection), "address");
    let of_address = of_user + more;
    whole(of_address, 20, 10);

    let mut clients = 1..250;
    let mut anybody = |path: &str| {
        call(path, "", &format!("198.51.100.{}", clients.next().expect("enough clients")))
    };
    let (more, rejection) = until_rejected(|| anybody("/api/orders/2"));
    assert_eq!(violated(&rejection), "endpoint");
    whole(of_address - searches + more, 50, 25);

    (0..30).for_each(|_| assert_eq!(anybody("/api/search?q=a").status, 200));
    let (rest, rejection) = until_rejected(|| anybody("/api/users"));
    assert_eq!(violated(&rejection), "global");
    whole(of_address + more + 30 + rest, 100, 50);
}

/// Tokens come back five at a time, at the time of `Retry-After`.
#[test]
fn redis_guide_refills_at_intervals() {
    let redis = Redis::start();
    let refills = ("rate=5r/10s", "rate=5r/5s".to_owned());
    // One endpoint is enough to see it.
    let endpoint = ("capacity=6 ", "capacity=100 ".to_owned());
    let nginx = start(&redis_guide_with(&redis, &[refills, endpoint]), 1);
    let mut http = nginx.http();
    let mut send = || request(&mut http, "GET", "/api/orders", &[("X-User", "alice")]);
    let (passed, rejection) = until_rejected(&mut send);
    assert!(passed >= 10 && passed % 5 == 0, "{passed}");
    std::thread::sleep(Duration::from_secs(retry_after(&rejection)));
    let (passed, _) = until_rejected(send);
    assert!(passed >= 5 && passed % 5 == 0, "{passed}");
}

#[test]
fn redis_guide_rejects_logins_without_redis() {
    let mut redis = Redis::start();
    let nginx = start(&redis_guide_with(&redis, &[]), 1);
    let mut http = nginx.http();
    let since = Instant::now();
    let (passed, rejection) = until_rejected(|| request(&mut http, "POST", "/login", &[]));
    assert_eq!(violated(&rejection), "login");
    is_quota(passed, 5, 1, MINUTE, since);
    redis.kill9();
    let stranger = [("X-Forwarded-For", "192.0.2.1")];
    let login = request(&mut http, "POST", "/login", &stranger);
    assert_eq!((login.status, retry_after(&login)), (503, 1), "{login:?}");
    assert_eq!(get(&nginx, "/api/orders", &stranger).status, 200);
}

#[test]
fn redis_cell_gives_the_same_five_numbers() {
    let redis = Redis::start();
    // Slower, so that a slow machine does not come to the end of what is left to wait for.
    let replaced =
        [("redis://127.0.0.1:6379", redis.url()), ("rate=30r/60s", "rate=30r/3600s".to_owned())];
    let nginx = start(&reachable(example("redis-cell", &replaced)), 1);
    let since = Instant::now();
    // The five numbers of CL.THROTTLE. One comes back every two minutes, so that on a slow machine
    // more may remain, and less time is left.
    let throttle = |path: &str, [limited, limit, remaining, retry, reset]: [i64; 5]| {
        let response = nginx.get(path);
        let number = |name| response.header(name).map(|value| value.parse::<i64>().unwrap());
        let passed = since.elapsed().as_secs_f64();
        let (back, late) = ((passed / 120.0) as i64, passed.ceil() as i64);
        assert_eq!(response.status, if limited == 1 { 429 } else { 200 }, "{path}");
        assert_eq!(number("X-RateLimit-Limit"), Some(limit), "{path}");
        let seen = number("X-RateLimit-Remaining").unwrap();
        assert!((remaining..=remaining + back).contains(&seen), "{path}: {response:?}");
        let seen = number("Retry-After").unwrap_or(-1);
        let soonest = if limited == 1 { 1.max(retry - late) } else { retry };
        assert!((soonest..=retry).contains(&seen), "{path}: {response:?}");
        let seen = number("X-RateLimit-Reset").unwrap();
        assert!((reset - late..=reset).contains(&seen), "{path}: {response:?}");
    };
    throttle("/items", [0, 16, 15, -1, 120]);
    throttle("/items?count=10", [0, 16, 5, -1, 1320]);
    throttle("/items?count=15", [1, 16, 5, 1200, 1320]);
    throttle("/items?count=5", [0, 16, 0, -1, 1920]);
    // More than can ever be had: nothing to wait for.
    let never = nginx.get("/items?count=17");
    assert_eq!((never.status, never.header("Retry-After")), (429, None), "{never:?}");
    // A text that is no number counts as one.
    throttle("/items?count=0", [1, 16, 0, 120, 1920]);
}

/// The name, the n of the rate and what is left, as the fields of the draft show it.
fn quota(response: &Response) -> Option<(u64, u64)> {
    let parameter = |field: &str, name: &str| {
        let item = response.header(field)?.strip_prefix("\"api\";").expect("one limit");
        let value = item.split(';').find_map(|parameter| parameter.strip_prefix(name));
        Some(value?.parse().expect("a number"))
    };
    Some((parameter("RateLimit-Policy", "q=")?, parameter("RateLimit", "r=")?))
}

#[test]
fn api_gateway_limits_as_promised() {
    let mut redis = Redis::start();
    let nginx = start(&scenario("api-gateway", &redis), 1);
    let call = |path: &str, key: &str, address: &str| {
        get(&nginx, path, &[("X-API-Key", key), ("X-Real-IP", address)])
    };
    let [stranger, colleague] = ["192.0.2.1", "10.1.2.3"];
    // Tokens come back: rates are small next to what a test takes, but for the largest.
    let since = Instant::now();
    let spent = |response: &Response, n: u64, spent: u64| {
        assert_eq!(response.status, 200, "{response:?}");
        let (rate, remaining) = quota(response).expect("fields");
        assert_eq!(rate, n);
        let back = since.elapsed().as_secs_f64() * n as f64 / 60.0;
        assert!((n - spent..=n - spent + back as u64).contains(&remaining), "{response:?}");
    };
    spent(&call("/", "", stranger), 60, 1);
    // An invented key is no fresh budget.
    spent(&call("/", "invented", stranger), 60, 2);
    spent(&call("/search?q=a", "", stranger), 60, 7);
    spent(&call("/", "example-key-1", stranger), 6000, 1);
    spent(&call("/", "example-key-2", stranger), 600, 1);
    // A customer's budget is one, wherever a request comes from.
    spent(&call("/search", "example-key-2", "192.0.2.2"), 600, 6);
    for free in [call("/health", "", stranger), call("/search", "example-key-1", colleague)] {
        assert_eq!((free.status, quota(&free)), (200, None), "{free:?}");
        assert_eq!(free.header("X-RateLimit-Limit"), None);
    }
    // A name, not the secret. What is whole again has gone.
    let keys = keys(&redis);
    let names = ["address:192.0.2.1", "customer:acme", "customer:initech"];
    let expected = names.map(|name| format!("rl:api:{name}"));
    assert!(!keys.is_empty() && keys.iter().all(|key| expected.contains(key)), "{keys:?}");

    redis.kill9();
    let since = Instant::now();
    let (passed, rejection) = until_rejected(|| call("/", "", "192.0.2.3"));
    is_quota(passed, 60, 60, MINUTE, since);
    assert_eq!(rejection.header("Content-Type"), Some("application/json"));
    assert!(retry_after(&rejection) >= 1);
    assert_eq!(call("/search", "", colleague).status, 200);
}

#[test]
fn code_asks_whether_it_may() {
    let mut redis = Redis::start();
    let nginx = start(&scenario("check-from-code", &redis), 1);
    let may = |query: &str| request(&mut nginx.http(), "POST", &format!("/may/mail?{query}"), &[]);
    assert_eq!(may("").status, 400, "no customer is named");
    let since = Instant::now();
    let first = may("customer=acme&count=2");
    assert_eq!((first.status, first.remaining(), first.text()), (204, Some(28), ""));
    let (passed, rejection) = until_rejected(|| may("customer=acme"));
    is_quota(2 + passed, 30, 30, MINUTE, since);
    assert!((1..=2).contains(&retry_after(&rejection)), "{rejection:?}");
    assert_eq!(keys(&redis), ["rl:mail:acme"]);
    for count in ["0", "-5", "1.5", "abc", "1234567890"] {
        assert_eq!(may(&format!("customer=hooli&count={count}")).status, 400, "{count}");
    }
    for count in [31, 500, 999_999_999] {
        let response = may(&format!("customer=hooli&count={count}"));
        assert_eq!((response.status, response.header("Retry-After")), (429, None), "{count}");
    }
    redis.kill9();
    assert_eq!(may("customer=initech").status, 503);
}

/// The client in Python draws on the same budget, and waits until there is enough.
#[test]
fn a_client_in_python_waits_for_its_budget() {
    let redis = Redis::start();
    let nginx = start(&scenario("check-from-code", &redis), 1);
    // With more patience for a slow machine.
    let script = read("check-from-code.py");
    assert!(script.contains("timeout=1)"), "{script}");
    let client = nginx.path("check-from-code.py");
    fs::write(&client, script.replace("timeout=1)", "timeout=30)")).expect("write the client");
    let (client, url) = (client.display().to_string(), nginx.url("/may/mail"));
    let python = |arguments: &[&str]| {
        run("env", &[&["no_proxy=*", "python3", &client, &url], arguments].concat())
    };
    let since = Instant::now();
    python(&["acme", "5"]);
    let mut http = nginx.http();
    let mut may = || request(&mut http, "POST", "/may/mail?customer=acme", &[]);
    is_quota(may().remaining().expect("a decision"), 24, 30, MINUTE, since);

    // Whether each question of the client was answered with 204.
    let answers = || -> Vec<bool> {
        let log = nginx.access_log();
        let own = log.lines().filter(|line| line.contains("Python"));
        own.map(|line| line.contains("\" 204 ")).collect()
    };
    // Until Python is there, what it wants may have come back.
    let waited = |_| {
        until_rejected(&mut may);
        let before = answers().len();
        python(&["acme", "2"]);
        wait_until(PATIENCE, || answers()[before..].contains(&true), "its last answer");
        answers()[before..].first() == Some(&false)
    };
    assert!((0..5).any(waited), "it never has to wait");
}

#[test]
fn the_client_in_python_says_what_is_wrong() {
    let redis = Redis::start();
    let nginx = start(&scenario("check-from-code", &redis), 1);
    let script = format!("{}/../nginx-conf/check-from-code.py", env!("CARGO_MANIFEST_DIR"));
    let says = |arguments: &[&str]| {
        let mut python = Command::new("python3");
        python.arg(&script).args(arguments).env("no_proxy", "*");
        let output = python.output().expect("run python3");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).expect("a text")
    };
    let (url, elsewhere) = (nginx.url("/may/mail"), nginx.url("/nowhere"));
    let cases: [(&[&str], &str); 6] = [
        (&[], "Waits until a mail"),
        (&["http://127.0.0.1:1/", "acme"], "cannot reach http://127.0.0.1:1/: "),
        (&["may", "acme"], "cannot reach may: unknown url type"),
        (&[&elsewhere, "acme"], "the URL leads to no limit"),
        (&[&url, "acme", "many"], "the count is no number"),
        (&[&url, "acme", "31"], "more than the limit can ever hold"),
    ];
    for (arguments, expected) in cases {
        let text = says(arguments);
        assert!(text.contains(expected) && !text.contains("Traceback"), "{arguments:?}: {text}");
    }
}

/// The names of the configurations.
fn names() -> Vec<String> {
    let files = fs::read_dir(format!("{}/../nginx-conf", env!("CARGO_MANIFEST_DIR")));
    let names = files.expect("list nginx-conf").map(|file| file.unwrap().file_name());
    let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name.ends_with(".conf"));
    names.sort();
    names
}

/// The configurations as they stand, on a machine without a network.
#[test]
fn every_configuration_is_valid() {
    for name in names() {
        check_file(&format!("{}/../nginx-conf/{name}", env!("CARGO_MANIFEST_DIR")));
    }
}

#[test]
fn every_configuration_is_in_the_table() {
    let readme = read("../README.md");
    let (_, section) = readme.split_once("\n## Scenarios\n").expect("a section on scenarios");
    let section = section.split("\n## ").next().expect("a section");
    for name in names() {
        assert!(section.contains(&format!("](nginx-conf/{name})")), "no row on {name}");
    }
}
