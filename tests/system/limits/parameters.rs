//! The parameters of a limit: what they mean, where it applies, and what it leaves in Redis.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Nginx, PATIENCE, Redis, Response, wait_until};

use crate::seen::{StartConnected as _, keys, quota, remaining, shows_nothing, tokens};

/// `GET path` with header fields, over a connection of its own.
fn get(nginx: &Nginx, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut http = nginx.http();
    http.send("GET", path, headers);
    http.read_response()
}

/// A server that shows the limit of each decision in `X-Name`.
fn named(redis: &Redis) -> Conf {
    Conf::new().redis(redis).http("add_header X-Name $rate_limit_redis_name always;")
}

/// The name of the limit that is shown, empty for none.
fn name(response: &Response) -> &str {
    response.header("X-Name").unwrap_or_default()
}

#[test]
fn capacity_and_burst_have_defaults() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=7r/d; }")
        .server("location /gcra { rate_limit_redis a name=g rate=7r/d algorithm=gcra; }")
        .server("location /bucket { rate_limit_redis a name=b rate=7r/d algorithm=token_bucket; }")
        .start_connected(&redis);
    assert_eq!(quota(&nginx.get("/"))[..2], [7, 6], "capacity is the n of the rate");
    assert_eq!(quota(&nginx.get("/bucket"))[..2], [7, 6]);
    assert_eq!(quota(&nginx.get("/gcra")), [1, 0, 86_400 / 7 + 1], "burst is 0");
    assert_eq!(nginx.get("/gcra").status, 429);
    assert_eq!(keys(&redis), ["rl:b:a", "rl:default:a", "rl:g:a"]);
}

#[test]
fn capacity_can_be_spent_at_once() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $remote_addr rate=1r/d capacity=3;")
        .start_connected(&redis);
    let seen = [(); 4].map(|()| nginx.get("/")).map(|r| (r.status, remaining(&r)));
    assert_eq!(seen, [(200, 2), (200, 1), (200, 0), (429, 0)]);
}

#[test]
fn capacity_may_be_below_the_rate() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $remote_addr rate=100r/d capacity=1;")
        .start_connected(&redis);
    assert_eq!([(); 2].map(|()| nginx.get("/").status), [200, 429]);
}

#[test]
fn burst_comes_on_top_of_one_request() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $remote_addr rate=1r/d algorithm=gcra burst=2;")
        .start_connected(&redis);
    let seen = [(); 4].map(|()| nginx.get("/")).map(|r| (r.status, quota(&r)[0], remaining(&r)));
    assert_eq!(seen, [(200, 3, 2), (200, 3, 1), (200, 3, 0), (429, 3, 0)]);
}

#[test]
fn a_cost_is_spent_by_requests_that_pass() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=10r/d cost=4; }")
        .server("location /one { rate_limit_redis a rate=10r/d; }")
        .start_connected(&redis);
    let seen = [(); 3].map(|()| nginx.get("/")).map(|r| (r.status, remaining(&r)));
    assert_eq!(seen, [(200, 6), (200, 2), (429, 2)], "a rejected request spends nothing");
    assert_eq!(remaining(&nginx.get("/one")), 1);
}

#[test]
fn a_cost_may_be_a_variable() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("map $request_method $cost { default 1; POST 5; }")
        .server("rate_limit_redis $remote_addr rate=10r/d cost=$cost;")
        .start_connected(&redis);
    let mut http = nginx.http();
    assert_eq!(remaining(&http.get("/")), 9);
    assert_eq!(remaining(&http.post("/", b"abc")), 4);
    let response = http.post("/", b"abc");
    assert_eq!((response.status, remaining(&response)), (429, 4));
    assert_eq!(remaining(&http.get("/")), 3);
}

#[test]
fn a_quota_endpoint_spends_nothing() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis $arg_key rate=1r/10s capacity=2; }")
        .server("location /quota { rate_limit_redis $arg_key rate=1r/10s capacity=2 cost=0; }")
        .file("html/quota", "")
        .start_connected(&redis);
    assert_eq!(quota(&nginx.get("/quota?key=a")), [2, 2, 0], "a client not seen before");
    assert_eq!(keys(&redis), [""; 0], "which leaves no trace");
    assert_eq!(nginx.get("/?key=a").status, 200);
    let state = redis.command::<Vec<u8>>(&["GET", "rl:default:a"]);
    for _ in 0..3 {
        let response = nginx.get("/quota?key=a");
        assert_eq!((response.status, quota(&response)), (200, [2, 1, 10]));
    }
    assert_eq!(nginx.get("/?key=a").status, 200);
    assert_ne!(redis.command::<Vec<u8>>(&["GET", "rl:default:a"]), state);
    let response = nginx.get("/quota?key=a");
    assert_eq!((response.status, quota(&response)), (200, [2, 0, 20]), "nothing is left");
    assert!(response.header("Retry-After").is_none());
    assert_eq!(nginx.get("/?key=a").status, 429);
}

#[test]
fn a_quota_endpoint_of_gcra_spends_nothing() {
    let redis = Redis::start_with_stopped_clock();
    let line = "rate_limit_redis $remote_addr rate=1r/10s algorithm=gcra burst=1";
    let nginx = Conf::new()
        .redis(&redis)
        .server(&format!("location / {{ {line}; }} location /quota {{ {line} cost=0; }}"))
        .start_connected(&redis);
    assert_eq!(quota(&nginx.get("/quota")), [2, 2, 0]);
    assert_eq!(keys(&redis), [""; 0]);
    assert_eq!([(); 3].map(|()| nginx.get("/").status), [200, 200, 429]);
    assert_eq!([(); 2].map(|()| quota(&nginx.get("/quota"))), [[2, 0, 20]; 2]);
}

#[test]
fn a_cost_that_can_never_pass_is_rejected_without_a_retry() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=5r/d cost=$arg_cost; }")
        .server("location /gcra { rate_limit_redis a rate=5r/d algorithm=gcra burst=1")
        .server("cost=$arg_cost name=g; }")
        .start_connected(&redis);
    let digits = ["9007199254740992", "9007199254740993", "18446744073709551616", &"9".repeat(100)];
    for (path, limit) in [("/", 5), ("/gcra", 2)] {
        let more = (limit + 1).to_string();
        for cost in [&more].into_iter().map(String::as_str).chain(digits) {
            let response = nginx.get(&format!("{path}?cost={cost}"));
            assert_eq!((response.status, quota(&response)), (429, [limit, limit, 0]), "{cost}");
            assert!(response.header("Retry-After").is_none(), "{response:?}");
            assert_eq!(keys(&redis), [""; 0]);
        }
    }
    nginx.wait_for_error_log("excess: 1.000 by limit \"default\", key: \"a\"");
    assert_eq!(remaining(&nginx.get("/?cost=5")), 0, "just all that it holds");
    assert_eq!(remaining(&nginx.get("/gcra?cost=2")), 0);
}

#[test]
fn a_cost_that_can_never_pass_is_warned_of() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a name=big rate=5r/d cost=6; }")
        .start_connected(&redis);
    let warnings = nginx.logged("every request will be rejected");
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    for part in ["[warn]", "\"cost=6\"", "\"big\"", " 5:", "/nginx.conf:"] {
        assert!(warning.contains(part), "{part} is not in {warning}");
    }
    let response = nginx.get("/");
    assert_eq!((response.status, response.header("Retry-After")), (429, None));
}

#[test]
fn lines_are_inherited_where_a_level_has_none() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .http("rate_limit_redis a name=http rate=9r/d;")
        .http("server { listen 127.0.0.1:{port2}; location / { proxy_pass http://127.0.0.1:1; } }")
        .server("rate_limit_redis a name=server rate=9r/d;")
        .server("location /inherits { location /inherits/deeper { } }")
        .server("location /own { rate_limit_redis a name=own rate=9r/d;")
        .server("  location /own/inherits { }")
        .server("  location /own/own { rate_limit_redis a name=inner rate=9r/d; }")
        .server("  location /own/off { rate_limit_redis off; } }")
        .server("location /off { rate_limit_redis off;")
        .server("  location /off/inherits { }")
        .server("  location /off/own { rate_limit_redis a name=back rate=9r/d; } }")
        .server("location /other { proxy_pass http://127.0.0.1:{port2}; }")
        .start_connected(&redis);
    let table = [
        ("/", "server"),
        ("/inherits", "server"),
        ("/inherits/deeper", "server"),
        ("/own", "own"),
        ("/own/inherits", "own"),
        ("/own/own", "inner"),
        ("/own/off", ""),
        ("/off", ""),
        ("/off/inherits", ""),
        ("/off/own", "back"),
    ];
    for (path, expected) in table {
        assert_eq!(name(&nginx.get(path)), expected, "{path}");
    }
    // Nothing was charged that was not shown.
    let spent = |name| tokens(&redis, &format!("rl:{name}:a")).map_or(0, |tokens| 9 - tokens);
    let names = ["server", "own", "inner", "back", "http"];
    assert_eq!(names.map(spent), [3, 2, 1, 1, 0]);
    assert_eq!(nginx.get("/other").status, 502);
    assert_eq!(spent("http"), 1, "the other server inherits from http");
}

#[test]
fn lines_of_http_are_inherited_by_locations() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .http("rate_limit_redis a name=http rate=9r/d;")
        .server("location /a { } location /own { rate_limit_redis a name=own rate=9r/d; }")
        .start_connected(&redis);
    let paths = ["/", "/a", "/own", "/elsewhere"];
    let names = paths.map(|path| name(&nginx.get(path)).to_owned());
    assert_eq!(names, ["http", "http", "own", "http"]);
}

#[test]
fn off_holds_for_a_server() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .http("rate_limit_redis a name=http rate=9r/d;")
        .server("rate_limit_redis off;")
        .server("location /a { } location /own { rate_limit_redis a name=own rate=9r/d; }")
        .start_connected(&redis);
    let names = ["/", "/a", "/own"].map(|path| name(&nginx.get(path)).to_owned());
    assert_eq!(names, ["", "", "own"]);
}

#[test]
fn blocks_inside_a_location_inherit() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .server("if ($arg_server) { set $unused 1; }")
        .server("location / { rate_limit_redis a name=outer rate=9r/d;")
        .server("  if ($arg_a) { add_header X-If yes always; }")
        .server("  limit_except GET { deny all; } }")
        .start_connected(&redis);
    let mut http = nginx.http();
    assert_eq!(remaining(&http.get("/index.html")), 8);
    let response = http.get("/index.html?a=1");
    assert_eq!((response.header("X-If"), remaining(&response)), (Some("yes"), 7));
    let response = http.post("/index.html", b"");
    assert_eq!((response.status, remaining(&response)), (403, 6));
}

#[test]
fn the_other_directives_are_inherited_too() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_status 420; rate_limit_redis_headers off;")
        .server("rate_limit_redis a rate=1r/d; rate_limit_redis_status 421;")
        .server("location /a { } location /b { rate_limit_redis_status 422; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/").status, 200);
    let statuses = ["/", "/a", "/b"].map(|path| nginx.get(path).status);
    assert_eq!(statuses, [421, 421, 422]);
    assert_eq!(nginx.get("/b").header("X-RateLimit-Limit"), None);
}

#[test]
fn the_status_for_want_of_a_decision_is_inherited() {
    let nginx = Conf::new()
        .http("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_on_error closed;")
        .http("rate_limit_redis_error_status 509;")
        .server("rate_limit_redis a rate=1r/d;")
        .server("location /a { } location /b { rate_limit_redis_error_status 510; }")
        .start();
    assert_eq!(["/", "/a", "/b"].map(|path| nginx.get(path).status), [509, 509, 510]);
}

#[test]
fn a_location_may_have_a_store_of_its_own() {
    let redis = Redis::start();
    // There is no server at the default address, and nothing should connect to it.
    let nginx = Conf::new()
        .set("redis", redis.url())
        .http("rate_limit_redis a rate=9r/d; rate_limit_redis_timeout 5s;")
        .http("rate_limit_redis_store own { server {redis}; connect_timeout 30s; }")
        .server("if ($arg_server) { set $unused 1; }")
        .server("location / { rate_limit_redis_pass own; }")
        .start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/")), 8);
    assert!(!nginx.error_log().contains(":6379"), "{}", nginx.error_log());
}

#[test]
fn several_limits_all_apply() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .server("rate_limit_redis a name=wide rate=10r/d;")
        .server("rate_limit_redis a name=narrow rate=2r/d;")
        .server("rate_limit_redis a name=gcra rate=1r/d algorithm=gcra burst=4;")
        .start_connected(&redis);
    let seen = [(); 3].map(|()| {
        let response = nginx.get("/");
        (response.status, name(&response).to_owned(), remaining(&response))
    });
    let expected = [(200, "narrow", 1), (200, "narrow", 0), (429, "narrow", 0)];
    assert_eq!(seen, expected.map(|(status, name, n)| (status, name.to_owned(), n)));
    assert_eq!(tokens(&redis, "rl:wide:a"), Some(8), "the rejection spent nothing");
    assert_eq!(tokens(&redis, "rl:narrow:a"), Some(0));
    assert_eq!(redis.calls("evalsha"), 3, "all are checked by one command");
}

#[test]
fn the_tightest_is_shown() {
    let redis = Redis::start();
    let nginx = named(&redis)
        .server("rate_limit_redis $arg_a name=a rate=10r/d cost=$arg_ca;")
        .server("rate_limit_redis $arg_b name=b rate=4r/d cost=$arg_cb;")
        .start_connected(&redis);
    let seen = |query: &str| {
        let response = nginx.get(&format!("/?{query}"));
        (response.status, name(&response).to_owned(), quota(&response)[..2].to_vec())
    };
    let shows =
        |status, name: &str, limit, remaining| (status, name.to_owned(), vec![limit, remaining]);
    assert_eq!(seen("a=x&b=x&ca=1&cb=0"), shows(200, "a", 10, 9), "9/10 is less than 4/4");
    assert_eq!(seen("a=x&b=x&ca=0&cb=1"), shows(200, "b", 4, 3), "3/4 is less than 9/10");
    assert_eq!(seen("a=x&b=x&ca=3&cb=0"), shows(200, "a", 10, 6), "6/10 is less than 3/4");
    assert_eq!(seen("a=x&b=x&ca=0&cb=4"), shows(429, "b", 4, 3), "b is violated");
    assert_eq!(seen("a=x&b=x&ca=7&cb=1"), shows(429, "a", 10, 6), "a is violated");
    assert_eq!(seen("a=&b=x&ca=0&cb=0"), shows(200, "b", 4, 3), "a has an empty key");
    assert_eq!(seen("a=x&b=&ca=0&cb=0"), shows(200, "a", 10, 6), "b has an empty key");
    assert!(shows_nothing(&nginx.get("/?ca=0&cb=0")), "both keys are empty");
}

#[test]
fn thirty_limits_apply_at_once() {
    let redis = Redis::start();
    let line = |n| format!("rate_limit_redis a name=n{n} rate={}r/d;", n + 1);
    let nginx =
        named(&redis).server(&(0..30).map(line).collect::<String>()).start_connected(&redis);
    let response = nginx.get("/index.html");
    assert_eq!((response.status, name(&response)), (200, "n0"));
    for n in 0..30 {
        assert_eq!(tokens(&redis, &format!("rl:n{n}:a")), Some(n), "limit {n}");
    }
    assert_eq!(nginx.get("/index.html").status, 429);
    assert_eq!(tokens(&redis, "rl:n29:a"), Some(29));
}

#[test]
fn a_name_twice_at_one_level_is_charged_twice() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a rate=7r/d; rate_limit_redis a rate=7r/d cost=2;")
        .start_connected(&redis);
    let seen = [(); 3].map(|()| nginx.get("/")).map(|r| (r.status, remaining(&r)));
    assert_eq!(seen, [(200, 4), (200, 1), (429, 1)]);
    assert_eq!(tokens(&redis, "rl:default:a"), Some(1), "the rejection spent nothing");
}

/// A rejection is until all lines of one budget can spend at once.
#[test]
fn lines_of_one_budget_pass_together_or_never() {
    let redis = Redis::start_with_stopped_clock();
    for (name, algorithm) in
        [("bucket", "token_bucket"), ("gcra", "gcra burst=2"), ("log", "sliding_log")]
    {
        let line = |cost| {
            format!(
                "rate_limit_redis {name} name={name} rate=3r/d algorithm={algorithm} cost={cost};"
            )
        };
        let nginx = Conf::new()
            .redis(&redis)
            .server(&format!("location /never {{ {} {} }}", line(2), line(2)))
            .server(&format!("location / {{ {} {} }}", line(1), line(2)))
            .start_connected(&redis);
        let seen = |path| {
            let response = nginx.get(path);
            (response.status, response.header("Retry-After").map(str::to_owned))
        };
        assert_eq!(seen("/never"), (429, None), "{name}");
        assert_eq!(seen("/"), (200, None), "{name}");
        // The first line alone could pass in a third of a day, but for the log.
        assert_eq!(seen("/"), (429, Some("86400".to_owned())), "{name}");
    }
}

#[test]
fn a_shared_name_is_a_shared_budget() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("server { listen 127.0.0.1:{port2}; location / { root {prefix}/html;")
        .http("rate_limit_redis $arg_key name=shared rate=9r/d; } }")
        .server("location /a { rate_limit_redis $arg_key name=shared rate=9r/d; }")
        .server("location /b { rate_limit_redis $arg_key name=shared rate=9r/d cost=2; }")
        .server("location /c { rate_limit_redis $arg_key name=alone rate=9r/d; }")
        .server("location /other { proxy_pass http://127.0.0.1:{port2}/; }")
        .start_connected(&redis);
    let paths = ["/a?key=x", "/b?key=x", "/a?key=x", "/c?key=x", "/a?key=y", "/b?key=x"];
    let seen = paths.map(|path| remaining(&nginx.get(path)));
    assert_eq!(seen, [8, 6, 5, 8, 8, 3]);
    assert_eq!(nginx.get("/other?key=x").status, 200);
    assert_eq!(tokens(&redis, "rl:shared:x"), Some(2), "another server");
}

#[test]
fn an_empty_key_is_not_limited() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $http_x_key rate=1r/d;")
        .start_connected(&redis);
    for _ in 0..3 {
        let response = nginx.get("/");
        assert_eq!((response.status, shows_nothing(&response)), (200, true));
        let response = get(&nginx, "/", &[("X-Key", "")]);
        assert_eq!((response.status, shows_nothing(&response)), (200, true));
    }
    assert_eq!((redis.calls("evalsha"), redis.calls("eval")), (0, 0), "no command was sent");
    assert_eq!(remaining(&get(&nginx, "/", &[("X-Key", "a")])), 0);
}

#[test]
fn keys_are_kept_apart() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $http_x_key rate=3r/d;")
        .start_connected(&redis);
    let awkward = [
        "a",
        "A",
        "a b",
        "a\tb",
        "a:b",
        "\"a\"",
        "'a'",
        "a\\",
        "{a}",
        "*",
        "a*",
        "$1",
        "%00",
        "a%0d%0ab",
        "\u{e4}\u{f6}\u{fc}",
        "\u{1}\u{7f}",
        "-1",
        "$5\\r\\nhello",
        "null",
    ];
    for key in awkward {
        let response = get(&nginx, "/", &[("X-Key", key)]);
        assert_eq!((response.status, remaining(&response)), (200, 2), "{key:?}");
        assert_eq!(tokens(&redis, &format!("rl:default:{key}")), Some(2), "{key:?}");
    }
    let mut expected = awkward.map(|key| format!("rl:default:{key}"));
    expected.sort();
    assert_eq!(keys(&redis), expected);
}

#[test]
fn keys_may_be_any_bytes() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("log_not_found off; rate_limit_redis $uri rate=3r/d;")
        .start_connected(&redis);
    for path in ["/%0d%0aSET%20x%201%0d%0a", "/%ff%fe", "/%01", "/%22%27"] {
        assert_eq!(remaining(&nginx.get(path)), 2, "{path}");
        assert_eq!(remaining(&nginx.get(path)), 1, "{path}, the second time");
    }
    let mut found = redis.command::<Vec<Vec<u8>>>(&["KEYS", "*"]);
    found.sort();
    let expected: [&[u8]; 4] = [
        b"rl:default:/\x01",
        b"rl:default:/\r\nSET x 1\r\n",
        b"rl:default:/\"'",
        b"rl:default:/\xff\xfe",
    ];
    assert_eq!(found, expected);
}

#[test]
fn keys_may_be_made_of_several_parts() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis \"$request_method ${arg_a}:$arg_b\" rate=9r/d;")
        .start_connected(&redis);
    assert_eq!(remaining(&nginx.get("/?a=x&b=y")), 8);
    assert_eq!(keys(&redis), ["rl:default:GET x:y"]);
}

#[test]
fn long_keys_are_digested() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("large_client_header_buffers 4 256k;")
        .server("rate_limit_redis $http_x_key rate=9r/d;")
        .start_connected(&redis);
    let digest =
        |key: &str| redis.command::<String>(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", key]);
    let mut expected = vec![format!("rl:default:{}", "k".repeat(512))];
    for length in [512, 513, 1000, 100_000] {
        let key = "k".repeat(length);
        assert_eq!(remaining(&get(&nginx, "/", &[("X-Key", &key)])), 8, "{length} bytes");
        assert_eq!(remaining(&get(&nginx, "/", &[("X-Key", &key)])), 7, "{length} bytes, again");
        if length > 512 {
            expected.push(format!("rl:default:sha1:{}", digest(&key)));
        }
    }
    expected.sort();
    assert_eq!(keys(&redis), expected);
}

/// The key of a client may be the digest that stands for the long key of another one.
#[test]
fn a_digest_as_a_key_is_another_client() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $http_x_key rate=9r/d;")
        .start_connected(&redis);
    let (long, left) =
        ("k".repeat(600), |key: &str| remaining(&get(&nginx, "/", &[("X-Key", key)])));
    assert_eq!(left(&long), 8);
    let digest = keys(&redis)[0].replace("rl:default:", "");
    assert!(digest.starts_with("sha1:"), "{digest}");
    assert_eq!((left(&digest), left(&digest), left(&long)), (8, 7, 7));
    assert_eq!(keys(&redis).len(), 2);
}

#[test]
fn every_key_has_a_time_to_live() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /bucket { rate_limit_redis a name=b rate=1r/10s capacity=5; }")
        .server("location /gcra { rate_limit_redis a name=g rate=1r/10s algorithm=gcra burst=4; }")
        .server("location /both { rate_limit_redis a name=b2 rate=1r/10s capacity=5;")
        .server("rate_limit_redis a name=g2 rate=1r/10s algorithm=gcra burst=4; }")
        .start_connected(&redis);
    for spent in 1..=5 {
        for path in ["/bucket", "/gcra", "/both"] {
            assert_eq!(nginx.get(path).status, 404);
        }
        for name in ["b", "g", "b2", "g2"] {
            let left = redis.command::<i64>(&["PTTL", &format!("rl:{name}:a")]);
            assert_eq!(left, spent * 10_000, "{name}: ms");
        }
    }
    assert_eq!(keys(&redis).len(), 4);
    assert_eq!(nginx.get("/bucket").status, 429);
    assert_eq!(redis.command::<i64>(&["PTTL", "rl:b:a"]), 50_000, "ms after a rejection");
}

#[test]
fn a_client_that_is_idle_leaves_nothing() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location / { rate_limit_redis a rate=100r/s; }")
        .server("location /gcra { rate_limit_redis a name=g rate=1000000r/s algorithm=gcra; }")
        .server("location /fast { rate_limit_redis a name=f rate=1000000r/s; }")
        .start_connected(&redis);
    for path in ["/index.html", "/gcra", "/fast"] {
        // A second connection finds the counts that the first has left, or none.
        assert!([200, 404].contains(&nginx.get(path).status), "{path}");
    }
    wait_until(PATIENCE, || keys(&redis).is_empty(), "the end of every key");
    assert!(!nginx.error_log().contains("[error] ") || nginx.error_log().contains("No such file"));
    assert_eq!(nginx.logged("redis 127.0.0.1"), [""; 0]);
}

#[test]
fn quota_comes_back() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /a { rate_limit_redis a name=a rate=2r/10s; }")
        .server("location /b { rate_limit_redis a name=b rate=2r/10s algorithm=gcra burst=1; }")
        .start_connected(&redis);
    for path in ["/a", "/b"] {
        assert_eq!([(); 3].map(|()| nginx.get(path).status), [404, 404, 429]);
    }
    sleep(Duration::from_millis(5_200));
    for path in ["/a", "/b"] {
        assert_eq!([(); 2].map(|()| nginx.get(path).status), [404, 429], "{path}: one is back");
    }
}

const TIERS: &str = "map $http_x_api_key $tier { default 2r/d; gold 5r/d; lead ''; }
                     map $http_x_api_key $size { default 3; gold 7; }";

#[test]
fn a_rate_may_be_a_variable() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http(TIERS)
        .server("location / { rate_limit_redis $http_x_api_key rate=$tier; }")
        .server("location /b { rate_limit_redis $http_x_api_key name=b rate=$tier")
        .server("capacity=$size; }")
        .server("location /g { rate_limit_redis $http_x_api_key name=g rate=$tier burst=$size")
        .server("algorithm=gcra; }")
        .server("location /text { rate_limit_redis a name=t rate=${arg_n}r/$arg_unit; }")
        .start_connected(&redis);
    let limit = |path: &str, key: &str| quota(&get(&nginx, path, &[("X-Api-Key", key)]))[0];
    let seen = ["/", "/b", "/g"].map(|path| [limit(path, "gold"), limit(path, "iron")]);
    assert_eq!(seen, [[5, 2], [7, 3], [8, 4]]);
    assert_eq!(quota(&nginx.get("/text?n=6&unit=m")), [6, 5, 10]);
    assert!(shows_nothing(&nginx.get("/")), "a client without a key is not limited");
    assert!(!nginx.error_log().contains("invalid"), "nor is its rate looked at");
}

/// Units spent at the slow rate are gone when the fast one would have regained them.
#[test]
fn a_key_expires_at_the_rate_of_its_last_write() {
    let redis = Redis::start_with_stopped_clock();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a rate=$arg_rate capacity=2;")
        .start_connected(&redis);
    let expires = |rate| {
        assert_eq!(nginx.get(&format!("/?rate={rate}")).status, 200);
        redis.command::<i64>(&["PTTL", "rl:default:a"])
    };
    assert_eq!(["1r/h", "10r/s"].map(expires), [3_600_000, 200]);
}

/// Invalid values of variables, and what the log expects instead.
const UNUSABLE: [(&str, &str, &str); 20] = [
    ("rate", "", "<n>r/<period>"),
    ("rate", "10", "<n>r/<period>"),
    ("rate", "ten per second", "<n>r/<period>"),
    ("rate", "1.5r/s", "<n>r/<period>"),
    ("rate", "-1r/s", "<n>r/<period>"),
    ("rate", "1r/y", "<n>r/<period>"),
    ("rate", "0r/s", "at least 1"),
    ("rate", "1r/0s", "at least 1"),
    ("capacity", "", "a number from 1 to"),
    ("capacity", "many", "a number from 1 to"),
    ("capacity", "0", "a number from 1 to"),
    ("capacity", "-1", "a number from 1 to"),
    ("capacity", "1.5", "a number from 1 to"),
    ("burst", "", "a number from 0 to"),
    ("burst", "-1", "a number from 0 to"),
    ("burst", "1e3", "a number from 0 to"),
    ("cost", "", "a number from 0 to"),
    ("cost", "-1", "a number from 0 to"),
    ("cost", "0x1", "a number from 0 to"),
    ("cost", "9007199254740993x", "a number from 0 to"),
];

#[test]
fn unusable_values_are_rejected_and_logged() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /rate { rate_limit_redis a name=a rate=$http_x_value; }")
        .server("location /capacity { rate_limit_redis a name=b rate=1r/s")
        .server("capacity=$http_x_value; }")
        .server("location /burst { rate_limit_redis a name=c rate=1r/s algorithm=gcra")
        .server("burst=$http_x_value; }")
        .server("location /cost { rate_limit_redis a name=d rate=1r/s cost=$http_x_value; }")
        .start_connected(&redis);
    let mut logged = 0;
    for (parameter, value, right) in UNUSABLE {
        let response = get(&nginx, &format!("/{parameter}"), &[("X-Value", value)]);
        assert_eq!((response.status, shows_nothing(&response)), (400, true), "{parameter}={value}");
        let lines = nginx.logged("[error]");
        logged += 1;
        assert_eq!(lines.len(), logged, "one line for {parameter}={value}:\n{lines:?}");
        let line = &lines[logged - 1];
        for part in [parameter, &format!("\"{value}\""), right, "limit \"", "client: 127.0.0.1"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    assert_eq!(redis.calls("evalsha"), 0, "no command was sent");
}

/// The limits are powers of ten: the largest that can be counted at these rates.
#[test]
fn numbers_above_2_53_are_as_large_as_can_be_counted() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("location /rate { rate_limit_redis a name=a rate=$arg_value capacity=1; }")
        .server("location /both { rate_limit_redis a name=b rate=$arg_value; }")
        .server("location /capacity { rate_limit_redis a name=c rate=1r/s capacity=$arg_value; }")
        .server("location /burst { rate_limit_redis a name=d rate=1r/s algorithm=gcra")
        .server("burst=$arg_value; }")
        .start_connected(&redis);
    let most = "9".repeat(40);
    for (path, value, limit) in [
        ("/rate", format!("{most}r/s"), 1),
        ("/rate", format!("1r/{most}s"), 1),
        ("/both", format!("{most}r/s"), 10_u64.pow(10)),
        ("/capacity", most.clone(), 10_u64.pow(9)),
        ("/burst", most, 10_u64.pow(9) + 1),
    ] {
        redis.command::<()>(&["FLUSHALL"]);
        let response = nginx.get(&format!("{path}?value={value}"));
        assert_eq!((response.status, quota(&response)[0]), (404, limit), "{path} {value}");
    }
    assert_eq!(nginx.logged("rate_limit_redis\" directive"), [""; 0]);
}

/// No client can fill the disk with them. Beyond a bound they are counted, and none is lost.
#[test]
fn many_unusable_values_are_counted_instead_of_logged() {
    const REQUESTS: usize = 1_000;
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .http("keepalive_requests 1000000; rate_limit_redis_on_invalid pass;")
        .server("rate_limit_redis a rate=9r/d cost=$arg_cost;")
        .start_connected(&redis);
    let (mut http, start) = (nginx.http(), Instant::now());
    nginx.in_one_turn(|| (0..REQUESTS).for_each(|_| http.send("GET", "/?cost=x", &[])));
    (0..REQUESTS).for_each(|_| assert_eq!(http.read_response().status, 200));
    let lines = || nginx.logged("invalid cost").len();
    let counted = |line: &String| {
        let (before, _) = line.split_once(" more unusable values")?;
        before.rsplit(' ').next()?.replace(',', "").parse::<usize>().ok()
    };
    let others = || nginx.logged("more unusable values").iter().filter_map(counted).sum::<usize>();
    wait_until(PATIENCE, || lines() + others() == REQUESTS, "all of them, by line or by number");
    let seconds = start.elapsed().as_secs() as usize;
    assert!(lines() <= 100 * (seconds + 2), "{} lines in {seconds} s", lines());
}

#[test]
fn an_unusable_value_of_one_limit_spends_nothing_of_the_others() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a name=a rate=9r/d;")
        .server("rate_limit_redis a name=b rate=9r/d cost=$arg_cost;")
        .server("location /pass { rate_limit_redis_on_invalid pass; }")
        .start_connected(&redis);
    for (path, status) in [("/?cost=x", 400), ("/pass?cost=x", 404)] {
        let response = nginx.get(path);
        assert_eq!((response.status, shows_nothing(&response)), (status, true));
        assert_eq!(keys(&redis), [""; 0]);
    }
    assert_eq!(remaining(&nginx.get("/?cost=1")), 8);
}

#[test]
fn a_quota_that_cannot_be_counted_is_unusable() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis a rate=$arg_rate capacity=$arg_capacity;")
        .start_connected(&redis);
    for (query, parts) in [
        ("rate=1r/52w&capacity=101", ["capacity=101", "hundred years"]),
        ("rate=999999937r/s&capacity=999999937", ["capacity=", "too large"]),
    ] {
        let response = nginx.get(&format!("/?{query}"));
        assert_eq!((response.status, shows_nothing(&response)), (400, true));
        let lines = nginx.logged(parts[1]);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for part in ["[error]", "rate_limit_redis", parts[0]] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}

/// The line that a rejection leaves in a log.
#[track_caller]
fn rejection(log: &str) -> &str {
    let lines: Vec<_> = log.lines().filter(|line| line.contains("limiting requests")).collect();
    let [line] = lines[..] else { panic!("{} rejections in the log:\n{log}", lines.len()) };
    line
}

#[test]
fn rejections_are_logged() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis \"$remote_addr $arg_key\" name=per_ip rate=1r/h;")
        .start_connected(&redis);
    assert_eq!([(); 2].map(|()| nginx.get("/?key=x").status), [200, 429]);
    nginx.wait_for_error_log("limiting requests");
    let log = nginx.error_log();
    let line = rejection(&log);
    // The excess is that of limit_req: just less than one too much, since something came back meanwhile.
    assert!(line.contains("limiting requests, excess: 0.9"), "{line}");
    let expected = " by limit \"per_ip\", key: \"127.0.0.1 x\", \
                    client: 127.0.0.1, server: , request: \"GET /?key=x HTTP/1.1\"";
    assert!(line.contains(expected), "{line}");
    assert!(line.contains("[error]"), "{line}");
}

#[test]
fn rejections_are_logged_at_the_configured_level() {
    for level in ["info", "notice", "warn", "error"] {
        let redis = Redis::start();
        let nginx = Conf::new()
            .redis(&redis)
            .server("error_log {prefix}/warn.log warn; error_log {prefix}/info.log info;")
            .server(&format!("rate_limit_redis a rate=1r/d; rate_limit_redis_log_level {level};"))
            .start_connected(&redis);
        assert_eq!([(); 2].map(|()| nginx.get("/").status), [200, 429]);
        nginx.wait_for_access_log(2);
        let line = format!("[{level}]");
        let info = nginx.read("info.log");
        assert!(rejection(&info).contains(&line), "{level}: {info}");
        let warn = nginx.read("warn.log");
        let expected = usize::from(["warn", "error"].contains(&level));
        assert_eq!(warn.matches("limiting requests").count(), expected, "{level}: {warn}");
    }
}

#[test]
fn a_client_cannot_forge_a_line_of_the_log() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("log_not_found off; rate_limit_redis $uri rate=1r/d;")
        .server("location /value { rate_limit_redis a name=v rate=$uri; }")
        .start_connected(&redis);
    let forged = "%0d%0a%1b%5b31mforged%22%2c%20%5c";
    let path = format!("/a{forged}%ff");
    assert_eq!([(); 2].map(|()| nginx.get(&path).status), [404, 429]);
    assert_eq!(nginx.get(&format!("/value{forged}")).status, 400);
    nginx.wait_for_error_log("invalid rate");
    let log = nginx.error_log();
    let line = rejection(&log);
    let escaped = "key: \"/a\\x0D\\x0A\\x1B[31mforged\\x22, \\x5C\\xFF\", client";
    assert!(line.contains(escaped), "{line}");
    let line = log.lines().find(|line| line.contains("invalid rate")).expect("a line");
    let escaped = "\"/value\\x0D\\x0A\\x1B[31mforged\\x22, \\x5C\"";
    assert!(line.contains(escaped), "{line}");
    assert!(!log.bytes().any(|byte| byte < b' ' && byte != b'\n'), "{log:?}");
}

#[test]
fn an_unusable_value_that_is_no_text_is_logged_too() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("log_not_found off; rate_limit_redis a rate=$uri;")
        .start_connected(&redis);
    assert_eq!(nginx.get("/value%ff").status, 400);
    nginx.wait_for_error_log("invalid rate");
    assert!(nginx.error_log().contains("invalid rate \"/value"), "{}", nginx.error_log());
}

#[test]
fn long_keys_do_not_fill_the_log() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .redis(&redis)
        .server("rate_limit_redis $http_x_key rate=1r/d;")
        .start_connected(&redis);
    let key = "k".repeat(500);
    assert_eq!([(); 2].map(|()| get(&nginx, "/", &[("X-Key", &key)]).status), [200, 429]);
    nginx.wait_for_error_log("limiting requests");
    let log = nginx.error_log();
    let line = rejection(&log);
    assert!(line.len() < 400 && line.contains("client: 127.0.0.1"), "{line}");
}

#[test]
fn rejections_keep_the_connection() {
    let redis = Redis::start();
    let nginx =
        Conf::new().redis(&redis).server("rate_limit_redis a rate=1r/d;").start_connected(&redis);
    let mut http = nginx.http();
    let responses = [(); 50].map(|()| http.get("/"));
    assert_eq!(responses[0].status, 200);
    for response in &responses[1..] {
        assert_eq!(response.status, 429);
        assert_eq!(response.header("Connection"), Some("keep-alive"));
    }
    http.send("GET", "/", &[("Connection", "close")]);
    let response = http.read_response();
    assert_eq!((response.status, response.header("Connection")), (429, Some("close")));
    assert!(http.is_closed());

    let mut http = nginx.http();
    http.send_raw(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(http.read_response().status, 429);
    assert!(http.is_closed());
}

/// A server with a limit that its locations do not have, but for those that are given, in which three
/// URIs lead to one that does not begin with a slash: no location matches it, not even `/`.
fn outside(locations: &str) -> Conf {
    Conf::new()
        .file("htmlfoo", "outside\n")
        .http("rate_limit_redis_timeout 5s;")
        .http("server { listen 127.0.0.1:{port2}; add_header X-Accel-Redirect foo; }")
        .server("rate_limit_redis $http_x_k rate=9r/d; rewrite ^/rewritten$ foo;")
        .server(
            "location = /passed { rate_limit_redis off; proxy_pass http://127.0.0.1:{port2}/; }",
        )
        .server("location = /tried { rate_limit_redis off; try_files /none foo; }")
        .server(locations)
}

const OUTSIDE: [&str; 3] = ["/rewritten", "/passed", "/tried"];

/// One client of each URI, and what Redis then holds.
#[track_caller]
fn outside_is_limited(nginx: &Nginx, redis: &Redis, prefix: &str) {
    for (index, path) in OUTSIDE.iter().enumerate() {
        for left in [8, 7] {
            let response = get(nginx, path, &[("X-K", &index.to_string())]);
            assert_eq!((response.status, response.text()), (200, "outside\n"), "{path}");
            assert_eq!(remaining(&response), left, "{path}");
        }
    }
    let expected: Vec<_> = (0..3).map(|index| format!("{prefix}default:{index}")).collect();
    assert_eq!(keys(redis), expected);
}

#[test]
fn requests_outside_of_any_location_are_limited() {
    let redis = Redis::start();
    let off = "location / { rate_limit_redis off; }";
    let conf = outside(off).set("redis", redis.url());
    let nginx = conf
        .clone()
        .http("rate_limit_redis_store redis { server {redis}; connect_timeout 30s; }")
        .http("rate_limit_redis_pass redis;")
        // A client's key cannot be any key of Redis, where another limit keeps its counters too.
        .server("location /other { rate_limit_redis a name=other rate=9r/d; }")
        .start_connected(&redis);
    outside_is_limited(&nginx, &redis, "rl:");
    drop(nginx);

    redis.command::<()>(&["FLUSHALL"]);
    let block = "rate_limit_redis_store own { server {redis}; prefix own:; connect_timeout 30s; }";
    let nginx = conf.http(block).http("rate_limit_redis_pass own;").start();
    outside_is_limited(&nginx, &redis, "own:");
}

/// A name stands for one store: that of the locations, where the server has none of its own.
#[test]
fn requests_outside_of_the_locations_use_their_store() {
    let redis = Redis::start();
    let nginx = outside("location / { rate_limit_redis_pass own; }")
        .set("redis", redis.url())
        .http("rate_limit_redis_store own { server {redis}; connect_timeout 30s; }")
        .start_connected(&redis);
    outside_is_limited(&nginx, &redis, "rl:");
    assert_eq!(remaining(&get(&nginx, "/", &[("X-K", "0")])), 6, "the same budget");
    assert!(!nginx.error_log().contains(":6379"), "{}", nginx.error_log());
}

#[test]
fn clients_outside_of_any_location_are_rejected() {
    let redis = Redis::start();
    let nginx = outside("location / { rate_limit_redis off; }")
        .set("redis", redis.url())
        .http("rate_limit_redis_store own { server {redis}; connect_timeout 30s; }")
        .http("rate_limit_redis_pass own;")
        .start();
    (0..9).for_each(|_| assert_eq!(get(&nginx, "/rewritten", &[("X-K", "a")]).status, 200));
    for _ in 0..2 {
        assert_eq!(get(&nginx, "/rewritten", &[("X-K", "a")]).status, 429);
    }
}
