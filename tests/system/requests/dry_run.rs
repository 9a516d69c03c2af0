//! `rate_limit_redis_dry_run`: all is as always, but no request is rejected or delayed.

use std::time::{Duration, Instant};

use harness::{Conf, Redis, Response};

use crate::seen::{StartConnected as _, keys, quota, retry_after, shows_nothing, tokens};

const AT_ONCE: Duration = Duration::from_secs(60);

/// A server that shows how each request was decided.
fn conf(redis: &Redis) -> Conf {
    Conf::new().redis(redis).decisions().http("rate_limit_redis_deny_cache off;")
}

fn seen(response: &Response) -> (u16, &str) {
    (response.status, response.decision())
}

#[test]
fn a_dry_run_rejects_nobody() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("rate_limit_redis_dry_run on; rate_limit_redis_body json;")
        .server("rate_limit_redis $remote_addr rate=1r/d; error_page 429 /index.html;")
        .server("add_header X-Decision \"$rate_limit_redis_status $rate_limit_redis_source\";")
        .server("add_header X-Retry \"<$rate_limit_redis_retry_after>\";")
        .start_connected(&redis);
    let first = nginx.get("/");
    assert_eq!((seen(&first), quota(&first)), ((200, "PASSED redis"), [1, 0, 86_400]));
    let state = redis.command::<Vec<u8>>(&["GET", "rl:default:127.0.0.1"]);
    for _ in 0..3 {
        let response = nginx.get("/");
        assert_eq!(seen(&response), (200, "REJECTED_DRY_RUN redis"));
        assert_eq!(response.text(), "hello\n");
        let [limit, remaining, reset] = quota(&response);
        assert_eq!((limit, remaining), (1, 0));
        assert!(reset > 86_000, "{reset}");
        assert!(response.header("Retry-After").is_none(), "{response:?}");
        assert_eq!(response.header("X-Retry"), Some("<>"));
    }
    let now = redis.command::<Vec<u8>>(&["GET", "rl:default:127.0.0.1"]);
    assert_eq!(now, state, "what would be rejected spends nothing");
    let logged = nginx.logged("limiting requests");
    assert_eq!(logged.len(), 3, "{logged:#?}");
    let expected = "limiting requests, dry run, excess: ";
    assert!(logged.iter().all(|l| l.contains(expected) && l.contains("[error]")), "{logged:#?}");
    assert!(logged[0].contains("by limit \"default\", key: \"127.0.0.1\""), "{logged:#?}");
}

#[test]
fn a_dry_run_delays_nobody() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("rate_limit_redis_dry_run on; rate_limit_redis_log_level warn;")
        .server("rate_limit_redis a rate=1r/h algorithm=leaky_bucket burst=1;")
        .start_connected(&redis);
    let start = Instant::now();
    let mut http = nginx.http();
    let decisions = [(); 3].map(|()| {
        let response = http.get("/");
        assert!(response.header("Retry-After").is_none(), "{response:?}");
        (response.decision().to_owned(), quota(&response)[..2].to_vec())
    });
    assert!(start.elapsed() < AT_ONCE);
    let expected = [("PASSED", [2, 1]), ("DELAYED_DRY_RUN", [2, 0]), ("REJECTED_DRY_RUN", [2, 0])];
    assert_eq!(decisions, expected.map(|(d, q)| (format!("{d} redis"), q.to_vec())));
    let [delaying] = &nginx.logged("delaying request")[..] else { panic!("one line") };
    assert!(
        delaying.contains("[notice]")
            && delaying.contains("delaying request, dry run, excess: 0.9"),
        "{delaying}"
    );
    let [limiting] = &nginx.logged("limiting requests")[..] else { panic!("one line") };
    assert!(
        limiting.contains("[warn]") && limiting.contains("limiting requests, dry run, excess: "),
        "{limiting}"
    );
}

#[test]
fn a_dry_run_counts_as_always() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("rate_limit_redis a rate=3r/d;")
        .server("location /dry { rate_limit_redis_dry_run on; }")
        .file("html/dry", "")
        .start_connected(&redis);
    assert_eq!([(); 2].map(|()| nginx.get("/dry").decision().to_owned()), ["PASSED redis"; 2]);
    assert_eq!(tokens(&redis, "rl:default:a"), Some(1));
    assert_eq!(seen(&nginx.get("/")), (200, "PASSED redis"));
    let rejected = nginx.get("/");
    assert_eq!(seen(&rejected), (429, "REJECTED redis"), "what was spent in rehearsal is spent");
    assert!(retry_after(&rejected) > 1);
    assert_eq!(seen(&nginx.get("/dry")), (200, "REJECTED_DRY_RUN redis"));
    assert_eq!(keys(&redis), ["rl:default:a"]);
    assert_eq!(redis.calls("evalsha"), 5);
}

#[test]
fn of_several_limits_all_or_none_are_charged() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("rate_limit_redis_dry_run on;")
        .server("rate_limit_redis a rate=9r/d name=wide; rate_limit_redis a rate=1r/d name=day;")
        .server("rate_limit_redis a rate=1r/d name=tight;")
        .start_connected(&redis);
    let decisions = [(); 3].map(|()| nginx.get("/").decision().to_owned());
    let rejected = "REJECTED_DRY_RUN redis";
    assert_eq!(decisions, ["PASSED redis", rejected, rejected]);
    assert_eq!(tokens(&redis, "rl:wide:a"), Some(8));
    let logged = nginx.logged("limiting requests, dry run, excess: ");
    assert_eq!(logged.len(), 2);
    assert!(logged[0].contains("\"day\"") && logged[0].contains("\"tight\""), "{logged:#?}");
}

#[test]
fn a_dry_run_is_inherited_and_overruled() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .http("rate_limit_redis_dry_run on; rate_limit_redis a rate=1r/d;")
        .server("location /off { rate_limit_redis_dry_run off;")
        .server("  location /off/on { rate_limit_redis_dry_run on; }")
        .server("  location /off/off { } }")
        .server("location /own { rate_limit_redis b name=own rate=1r/d; }")
        .start_connected(&redis);
    // Nothing is there but the index, so what passes is a 404.
    assert_eq!(nginx.get("/own/x").decision(), "PASSED redis");
    assert_eq!(nginx.get("/x").decision(), "PASSED redis");
    let table = [
        ("/x", 404, "REJECTED_DRY_RUN redis"),
        ("/own/x", 404, "REJECTED_DRY_RUN redis"),
        ("/off/x", 429, "REJECTED redis"),
        ("/off/off/x", 429, "REJECTED redis"),
        ("/off/on/x", 404, "REJECTED_DRY_RUN redis"),
    ];
    for (path, status, decision) in table {
        assert_eq!(seen(&nginx.get(path)), (status, decision), "{path}");
    }
}

#[test]
fn is_off_by_default() {
    let redis = Redis::start();
    let nginx = conf(&redis).server("rate_limit_redis a rate=1r/d;").start_connected(&redis);
    let responses = [(); 2].map(|()| nginx.get("/"));
    let seen = responses.each_ref().map(seen);
    assert_eq!(seen, [(200, "PASSED redis"), (429, "REJECTED redis")]);
    assert_eq!(nginx.logged("dry run").len(), 0);
}

#[test]
fn rejects_nobody_while_redis_is_down() {
    let nginx = Conf::new()
        .decisions()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
        .server("rate_limit_redis a rate=1r/d;")
        .server("location /dry { rate_limit_redis_dry_run on; }")
        .file("html/dry", "dry")
        .start();
    for _ in 0..3 {
        let response = nginx.get("/dry");
        assert_eq!((seen(&response), response.text()), ((200, "ERROR_PASSED none"), "dry"));
        assert!(shows_nothing(&response), "{response:?}");
        assert_eq!(seen(&nginx.get("/")), (503, "ERROR_REJECTED none"), "without a dry run");
    }
}

#[test]
fn rejects_nobody_for_a_value_that_is_unusable() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .server("rate_limit_redis a rate=5r/d cost=$arg_cost;")
        .server("location /dry { rate_limit_redis_dry_run on; }")
        .file("html/dry", "dry")
        .start_connected(&redis);
    let response = nginx.get("/dry?cost=much");
    assert_eq!(seen(&response), (200, "ERROR_PASSED none"));
    assert!(shows_nothing(&response), "{response:?}");
    assert_eq!(seen(&nginx.get("/?cost=much")), (400, "ERROR_REJECTED none"));
    let errors = nginx.logged("[error]");
    assert!(
        errors.len() == 2 && errors[0].contains("much"),
        "an error is still logged: {errors:?}"
    );
    assert_eq!(seen(&nginx.get("/dry?cost=1")), (200, "PASSED redis"));
}

#[test]
fn rejects_no_stream_over_http2() {
    let redis = Redis::start();
    let nginx = conf(&redis)
        .http2()
        .server("rate_limit_redis_dry_run on; rate_limit_redis a rate=2r/d;")
        .start_connected(&redis);
    let seen = harness::h2load(&["-n", "9", "-c", "1", "-m", "9", &nginx.h2_url("/")]);
    assert_eq!((seen.of(200), seen.total()), (9, 9), "{seen:?}");
    assert_eq!(nginx.logged("limiting requests, dry run").len(), 7);
}
