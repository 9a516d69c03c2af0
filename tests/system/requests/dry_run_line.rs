//! The parameter `dry_run`: a line that decides and is shown, beside others that reject.

use harness::{ClusterConf, Conf, Nginx, PATIENCE, Redis, Response, h2load, slot, wait_until};

use crate::seen::{self, StartConnected as _, quota, retry_after, tokens};

const WIDE: &str = "rate_limit_redis a name=wide rate=9r/d;";
const PLANNED: &str = "rate_limit_redis a name=planned rate=1r/d dry_run;";
const WOULD_REJECT: &str = "REJECTED_DRY_RUN redis";

fn conf(redis: &Redis, snippet: &str) -> Conf {
    unconnected(snippet).redis(redis)
}

fn unconnected(snippet: &str) -> Conf {
    let metrics = "rate_limit_redis off; rate_limit_redis_metrics prometheus;";
    seen::named(snippet).server(&format!("location = /metrics {{ {metrics} }}"))
}

fn seen(response: &Response) -> (u16, &str, Option<&str>) {
    (response.status, response.decision(), response.header("X-Name"))
}

/// How often a limit had this result.
fn counted(nginx: &Nginx, name: &str, result: &str) -> usize {
    let page = nginx.get("/metrics");
    let sample = format!("requests_total{{name=\"{name}\",result=\"{result}\"}} ");
    let value = page.text().lines().find_map(|line| line.split_once(&sample));
    value.map_or(0, |(_, value)| value.parse().expect("a number"))
}

#[test]
fn it_never_rejects() {
    let redis = Redis::start();
    let nginx = conf(&redis, PLANNED).start_connected(&redis);
    assert_eq!(seen(&nginx.get("/")), (200, "PASSED redis", Some("planned")));
    let second = nginx.get("/");
    assert_eq!(seen(&second), (200, WOULD_REJECT, Some("planned")));
    assert_eq!((&quota(&second)[..2], second.header("Retry-After")), (&[1, 0][..], None));
    let [line] = &nginx.logged("limiting requests, dry run, excess: ")[..] else {
        panic!("a line")
    };
    assert!(line.contains("by limit \"planned\", key: \"a\""), "{line}");
    assert_eq!(["passed", "rejected_dry_run"].map(|it| counted(&nginx, "planned", it)), [1, 1]);
}

#[test]
fn others_spend_and_reject_as_if_it_were_not_there() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{PLANNED} {WIDE}"))
        .server("rate_limit_redis_headers x-ratelimit ietf; rate_limit_redis_body problem;")
        .start_connected(&redis);
    assert_eq!(seen(&nginx.get("/")), (200, "PASSED redis", Some("wide")));
    for _ in 1..9 {
        let response = nginx.get("/");
        assert_eq!(seen(&response), (200, WOULD_REJECT, Some("planned")));
        assert_eq!(quota(&response)[0], 9, "the limit that is enforced is shown");
        let all = "\"planned\";q=1;w=86400, \"wide\";q=9;w=86400";
        assert_eq!(response.headers("RateLimit-Policy"), [all]);
    }
    let rejected = nginx.get("/");
    assert_eq!(seen(&rejected), (429, "REJECTED redis", Some("wide")));
    assert!(retry_after(&rejected) <= 86_400 / 9, "of the limit that rejects: {rejected:?}");
    assert!(rejected.text().contains("\"violated-policies\":[\"wide\"]"), "{rejected:?}");
    let results = [("wide", "passed"), ("wide", "rejected"), ("planned", "passed")];
    assert_eq!(results.map(|(name, result)| counted(&nginx, name, result)), [9, 1, 1]);
    // The last one would have been rejected by both.
    assert_eq!(counted(&nginx, "planned", "rejected_dry_run"), 9);
}

#[test]
fn it_spends_only_if_the_request_passes() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis a name=planned rate=9r/d dry_run;")
        .server("rate_limit_redis a name=tight rate=2r/d;")
        .start_connected(&redis);
    assert_eq!([(); 4].map(|()| nginx.get("/").status), [200, 200, 429, 429]);
    assert_eq!(tokens(&redis, "rl:planned:a"), Some(7));
    let lines = nginx.logged("limiting requests");
    assert!(lines.len() == 2 && lines.iter().all(|line| !line.contains("planned")), "{lines:#?}");
    assert_eq!(counted(&nginx, "planned", "passed"), 2);
}

#[test]
fn both_are_logged_where_both_reject() {
    let redis = Redis::start();
    let tight = WIDE.replace('9', "1");
    let nginx = conf(&redis, &format!("{PLANNED} {tight}")).start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    assert_eq!(seen(&nginx.get("/")), (429, "REJECTED redis", Some("wide")));
    let lines = nginx.logged("limiting requests");
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("limiting requests, excess: ") && lines[0].contains("\"wide\""));
    assert!(!lines[0].contains("planned"), "{lines:#?}");
    assert!(lines[1].contains("requests, dry run, excess: ") && lines[1].contains("\"planned\""));
}

#[test]
fn it_never_delays() {
    let redis = Redis::start();
    let slow = "rate_limit_redis a name=slow rate=1r/h algorithm=leaky_bucket burst=5 dry_run;";
    let nginx = conf(&redis, &format!("{slow} {WIDE}")).start_connected(&redis);
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    assert_eq!(nginx.get("/").decision(), "DELAYED_DRY_RUN redis");
    assert_eq!(nginx.logged("delaying request, dry run, excess: ").len(), 1);
    assert_eq!(counted(&nginx, "slow", "delayed_dry_run"), 1);
    assert_eq!(counted(&nginx, "wide", "passed"), 2);
}

#[test]
fn the_deny_cache_rejects_no_request_for_it() {
    let redis = Redis::start();
    let nginx = conf(&redis, PLANNED)
        .server("rate_limit_redis_deny_cache on;")
        .server("location /enforced { rate_limit_redis a name=planned rate=1r/d; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").decision(), "PASSED redis");
    assert_eq!(nginx.get("/").decision(), WOULD_REJECT);
    let is_cached = || {
        let response = nginx.get("/");
        assert_eq!(response.status, 200);
        response.decision() == "REJECTED_DRY_RUN cache"
    };
    wait_until(PATIENCE, is_cached, "a decision of the cache");
    assert_eq!(nginx.get("/enforced").status, 429, "a line of the same name that is enforced");
}

#[test]
fn no_request_fails_because_of_it() {
    let redis = Redis::start();
    let nginx = conf(&redis, "rate_limit_redis_on_error closed;")
        .server("rate_limit_redis a name=planned rate=$arg_rate dry_run;")
        .server("location /both { rate_limit_redis a name=planned rate=$arg_rate dry_run;")
        .server("  rate_limit_redis a name=tight rate=1r/d; alias {prefix}/html/; }")
        .server("location /away { rate_limit_redis b name=away rate=1r/d dry_run;")
        .server("  rate_limit_redis_pass redis://127.0.0.1:1; alias {prefix}/html/; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?rate=much").decision(), "ERROR_PASSED none");
    assert_eq!(nginx.logged("invalid rate \"much\"").len(), 1);
    let both = [(); 2].map(|()| nginx.get("/both/index.html?rate=much").decision().to_owned());
    assert_eq!(both, ["PASSED redis", "REJECTED redis"], "the other line decides");
    assert_eq!(nginx.get("/away/index.html").decision(), "ERROR_PASSED none");
    assert_eq!(counted(&nginx, "away", "error_passed"), 1);
}

#[test]
fn it_rejects_nothing_while_redis_is_away() {
    let nginx = unconnected(&format!("{PLANNED} rate_limit_redis a name=tight rate=2r/d;"))
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error local;")
        .start();
    let decisions = [(); 3].map(|()| nginx.get("/").decision().to_owned());
    assert_eq!(decisions, ["PASSED local", "REJECTED_DRY_RUN local", "REJECTED local"]);
}

#[test]
fn it_rejects_nothing_on_a_cluster() {
    let cluster = ClusterConf::steady(3, 0).start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url}; ")).collect();
    let nginx = unconnected("rate_limit_redis $arg_a name=planned rate=1r/d dry_run;")
        .http(&format!(
            "rate_limit_redis_store edge {{ {servers} cluster on; connect_timeout 30s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .http("rate_limit_redis_on_error closed;")
        .server("rate_limit_redis $arg_b name=tight rate=3r/d;")
        .start();
    let node = |key: &str| cluster.master_of(slot(key));
    let is_elsewhere = |key: &String| node(&format!("rl:planned:{key}")) != node("rl:tight:b");
    let mut keys = (0..).map(|number| format!("k{number}")).filter(is_elsewhere);
    let (one, other) = (keys.next().expect("a key"), keys.next().expect("a key"));
    let get = |key: &str| nginx.get(&format!("/?a={key}&b=b"));
    let decisions = [(); 4].map(|()| get(&one).decision().to_owned());
    assert_eq!(decisions, ["PASSED redis", WOULD_REJECT, WOULD_REJECT, "REJECTED redis"]);
    // The units that the line would spend of another client come back when the other line rejects.
    assert_eq!(get(&other).status, 429);
    let key = format!("rl:planned:{other}");
    let is_given_back = || cluster.command::<u64>(node(&key), &["EXISTS", &key]) == 0;
    wait_until(PATIENCE, is_given_back, "the end of what was given back");
}

#[test]
fn it_rejects_no_stream_over_http2() {
    let redis = Redis::start();
    let nginx = conf(&redis, &format!("{PLANNED} {WIDE}")).http2().start_connected(&redis);
    let seen = h2load(&["-n", "20", "-c", "1", "-m", "20", &nginx.h2_url("/")]);
    assert_eq!((seen.of(200), seen.total()), (9, 20), "{seen:?}");
    assert_eq!(nginx.logged("limiting requests, dry run").len(), 19);
}

/// The line's node does not answer: the other lines decide.
#[test]
fn the_others_decide_if_its_node_does_not_answer() {
    let mut cluster = ClusterConf::steady(3, 0).line("cluster-require-full-coverage no").start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url}; ")).collect();
    let nginx = unconnected("rate_limit_redis $arg_a name=planned rate=1r/d dry_run;")
        .http(&format!(
            "rate_limit_redis_store edge {{ {servers} cluster on; connect_timeout 30s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 500ms;")
        .http("rate_limit_redis_on_error closed;")
        .server("rate_limit_redis $arg_b name=tight rate=9r/d;")
        .start();
    let node = |key: &str| cluster.master_of(slot(key));
    let mut keys = (0..).map(|number| format!("k{number}"));
    let key = keys
        .find(|key| node(&format!("rl:planned:{key}")) != node("rl:tight:b"))
        .expect("a key of another node");
    let get = |key: &str| nginx.get(&format!("/?a={key}&b=b"));
    wait_until(PATIENCE, || get("").decision() == "PASSED redis", "the cluster");
    let planned = node(&format!("rl:planned:{key}"));
    cluster.stop_signal(planned);
    let before = counted(&nginx, "planned", "error_passed");
    let left = quota(&get(""))[1];
    let response = get(&key);
    assert_eq!(seen(&response), (200, "PASSED redis", Some("tight")));
    assert_eq!(quota(&response)[..2], [9, left - 1]);
    assert_eq!(counted(&nginx, "planned", "error_passed"), before + 1);
}
