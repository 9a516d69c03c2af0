//! The keys of a limit that were rejected most.

use std::collections::{BTreeSet, HashMap};
use std::thread;

use harness::{Conf, Nginx, Redis};
use serde_json::json;

use super::admin::{ADMIN, client};
use crate::seen::StartConnected as _;

/// A server that shows which worker has answered. A request to `/dear` costs more than the limit ever allows.
fn conf(redis: &Redis) -> Conf {
    Conf::new()
        .redis(redis)
        .workers(2)
        .http("add_header X-Worker $pid always;")
        .server(ADMIN)
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d; }")
        .server("location /dear { rate_limit_redis $arg_k name=five rate=5r/d cost=9; }")
        .server("location /other { rate_limit_redis $arg_k name=other rate=5r/d; }")
}

/// The keys of a limit that were rejected most, each with the count and the error.
#[track_caller]
fn top(nginx: &Nginx, limit: &str) -> Vec<(String, u64, u64)> {
    let answer = client(nginx, "GET", &format!("?limit={limit}&top"));
    let rows = answer["top"].as_array().expect("a list").iter();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    rows.map(|row| {
        let key = row["key"].as_str().expect("a key").to_owned();
        (key, number(&row["rejected"]), number(&row["error"]))
    })
    .collect()
}

/// Which workers have answered, and how many requests of each key were rejected.
type Seen = (BTreeSet<String>, HashMap<String, u64>);

/// Rounds of requests of three keys that come often, and of many that come once.
fn traffic(nginx: &Nginx, thread: usize) -> Seen {
    let (mut http, mut workers, mut rejected) = (nginx.http(), BTreeSet::new(), HashMap::new());
    let mut get = |path: &str, key: &str| {
        let response = http.get(&format!("{path}?k={key}"));
        workers.insert(response.header("X-Worker").expect("a worker").to_owned());
        if response.status == 429 {
            *rejected.entry(key.to_owned()).or_default() += 1;
        }
    };
    for round in 0..50 {
        for (key, times) in [("often", 6), ("less", 4), ("least", 2)] {
            (0..times).for_each(|_| get("/", key));
        }
        for number in 0..6 {
            get("/dear", &format!("once-{thread}-{round}-{number}"));
        }
    }
    (workers, rejected)
}

#[test]
fn a_flood_of_keys_does_not_displace_those_that_are_rejected_most() {
    let redis = Redis::start();
    let nginx = conf(&redis).http("rate_limit_redis_top 8;").start_connected(&redis);
    let (mut workers, mut rejected) = Seen::default();
    // So many connections that both workers have some.
    for _ in 0..10 {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let nginx = &nginx;
                    let thread = thread + 4 * rejected.len();
                    scope.spawn(move || traffic(nginx, thread))
                })
                .collect();
            for thread in threads {
                let (seen, counts) = thread.join().expect("its traffic");
                workers.extend(seen);
                counts
                    .into_iter()
                    .for_each(|(key, count)| *rejected.entry(key).or_default() += count);
            }
        });
        if workers.len() == 2 {
            break;
        }
    }
    assert_eq!(workers.len(), 2);
    assert!(rejected.len() > 1_000, "a flood: {}", rejected.len());
    let found = top(&nginx, "five");
    assert_eq!(found.len(), 8, "{found:?}");
    assert!(found.is_sorted_by_key(|(_, rejected, _)| std::cmp::Reverse(*rejected)), "{found:?}");
    let keys: Vec<_> = found.iter().map(|(key, ..)| key.as_str()).collect();
    assert_eq!(keys[..3], ["often", "less", "least"], "{found:?}");
    for (key, count, error) in &found {
        let true_count = rejected.get(key).copied().unwrap_or_default();
        assert!(count - error <= true_count, "{key}: {true_count} {found:?}");
    }
    // All counts may have been halved meanwhile, once or twice.
    for (key, count, error) in &found[..3] {
        assert!(count - error >= rejected[key] / 8, "{key}: {} {found:?}", rejected[key]);
    }
    assert_eq!(top(&nginx, "other"), []);
}

#[test]
fn nothing_is_kept_without_the_directive() {
    let redis = Redis::start();
    for number in ["", "rate_limit_redis_top 0;"] {
        let nginx = conf(&redis).http(number).start_connected(&redis);
        assert_eq!(nginx.get("/dear?k=a").status, 429);
        assert_eq!(client(&nginx, "GET", "?limit=five&top"), json!({ "top": [] }));
    }
}

/// The beginning of an HMAC is enough to find the key in Redis, and no key of a client.
#[test]
fn a_shortened_hmac_is_no_key() {
    let redis = Redis::start_with_stopped_clock();
    let parameters = "key_hmac secret; connect_timeout 30s;";
    let store = format!("rate_limit_redis_store s {{ server {}; {parameters} }}", redis.url());
    let nginx = Conf::new()
        .file("secret", "a secret of some length")
        .http(&store)
        .http("rate_limit_redis_pass s; rate_limit_redis_timeout 5s; rate_limit_redis_top 8;")
        .server(ADMIN)
        .server("location / { rate_limit_redis $arg_k name=five rate=5r/d; }")
        .start_connected(&redis);
    (0..6).for_each(|_| drop(nginx.get("/?k=a")));
    let found = top(&nginx, "five");
    let [(shown, 1, 0)] = &found[..] else { panic!("{found:?}") };
    let beginning = shown.strip_suffix("...").expect("a part");
    let [key] = &crate::seen::keys(&redis)[..] else { panic!("one key") };
    assert!(key.strip_prefix("rl:five:").expect("its name").starts_with(beginning), "{key}");
    assert_eq!(client(&nginx, "GET", &format!("?limit=five&key={shown}"))["remaining"], 5);
    assert_eq!(client(&nginx, "GET", "?limit=five&key=a")["remaining"], 0);
}
