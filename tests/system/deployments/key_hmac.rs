//! `key_hmac` in a store: what stands in Redis is an HMAC of the client's key, and everything works as without it.

use std::collections::BTreeSet;

use harness::{Cluster, ClusterConf, Conf, Nginx, PATIENCE, Redis, run, wait_until};

use crate::seen::{keys, wait_for_connections};

const SECRET: &str = "a secret of 27 bytes, or so";

/// The HMAC-SHA-256 as Python's library has it.
fn hmac(secret: &str, key: &str) -> String {
    const PROGRAM: &str = "import hmac, os, sys
secret, key = map(os.fsencode, sys.argv[1:])
print(hmac.new(secret, key, 'sha256').hexdigest())";
    run("python3", &["-c", PROGRAM, secret, key]).trim().to_owned()
}

/// The HMAC as OpenSSL has it: the documents show how.
fn hmac_of_openssl(secret: &str, key: &str) -> String {
    let command = format!("printf %s '{key}' | openssl dgst -sha256 -hmac '{secret}'");
    let output = run("sh", &["-c", &command]);
    output.split_whitespace().last().expect("a digest").to_owned()
}

/// An nginx whose limits are kept in a store of these lines, with the secret.
fn with(lines: &str) -> Conf {
    Conf::new()
        .http(&format!(
            "rate_limit_redis_store edge {{ {lines} key_hmac secret; connect_timeout 30s; }}"
        ))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .decisions()
        .file("secret", &format!("{SECRET}\n"))
}

fn on(redis: &Redis) -> Conf {
    with(&format!("server {};", redis.url()))
}

fn location(path: &str, lines: &str) -> String {
    format!("location {path} {{ {lines} try_files /index.html =404; }}")
}

/// The decision on each of so many requests.
fn decisions(nginx: &Nginx, path: &str, number: usize) -> Vec<String> {
    (0..number).map(|_| nginx.get(path).decision().to_owned()).collect()
}

#[test]
fn it_is_that_of_other_programs() {
    let redis = Redis::start();
    let nginx = on(&redis)
        .server("rate_limit_redis $arg_k rate=9r/d; rate_limit_redis $arg_k name=b rate=9r/d;")
        .start();
    wait_for_connections(&redis, 1);
    // A long key is replaced by its digest first.
    let long = "x".repeat(600);
    let digest = run("sh", &["-c", &format!("printf %s {long} | sha1sum")]);
    let digest = format!("sha1:{}", digest.split(' ').next().expect("a digest"));
    for key in ["192.0.2.1", "a%20b", "K\u{e4}se", &long] {
        assert_eq!(nginx.get(&format!("/?k={key}")).decision(), "PASSED redis");
    }
    let keys_of_limits = ["192.0.2.1", "a%20b", "K\u{e4}se", &digest].map(|key| {
        let hmac = hmac(SECRET, key);
        assert_eq!(hmac, hmac_of_openssl(SECRET, key));
        [format!("rl:b:{hmac}"), format!("rl:default:{hmac}")]
    });
    let expected: BTreeSet<_> = keys_of_limits.into_iter().flatten().collect();
    assert_eq!(keys(&redis).into_iter().collect::<BTreeSet<_>>(), expected);
}

/// The secret may be any bytes, and is shared by the machines that are to share the budgets.
#[test]
fn machines_with_the_same_secret_share_budgets() {
    let redis = Redis::start();
    let conf = on(&redis).server("rate_limit_redis $arg_k rate=9r/d;");
    let same = conf.clone().file("secret", SECRET);
    let other = conf.clone().file("secret", "another secret of 30 bytes\u{1}\r\n\n\n");
    let remaining = |conf: &Conf| conf.start().get("/?k=a").remaining();
    assert_eq!([&conf, &same, &other].map(remaining), [Some(8), Some(7), Some(8)]);
    let own = hmac("another secret of 30 bytes\u{1}\r\n\n", "a");
    let expected: BTreeSet<_> =
        [hmac(SECRET, "a"), own].map(|hmac| format!("rl:default:{hmac}")).into();
    assert_eq!(keys(&redis).into_iter().collect::<BTreeSet<_>>(), expected);
}

#[test]
fn every_feature_counts_by_it() {
    let mut redis = Redis::start();
    let limit = |name: &str, more: &str| format!("rate_limit_redis $arg_k name={name} {more};");
    let nginx = on(&redis)
        .file("users", "u:{PLAIN}p\n")
        .http("rate_limit_redis_on_error local; rate_limit_redis_log_level info;")
        .server(&location("/plain", &limit("plain", "rate=2r/d")))
        .server(&location(
            "/lease",
            &format!("{} rate_limit_redis_lease 1m;", limit("lease", "rate=900r/d")),
        ))
        .server(&location("/block", &limit("block", "rate=1r/d block=1h")))
        .server(&location("/settle", &limit("settle", "rate=10r/d cost=5 settle=1")))
        .server(&location("/settled", &limit("settle", "rate=10r/d cost=0")))
        .server(&location("/dry", &limit("dry", "rate=1r/d dry_run")))
        .server(&location(
            "/auth",
            "auth_basic a; auth_basic_user_file users; rate_limit_redis $remote_user name=auth rate=9r/d \
             after=auth;",
        ))
        .start();
    wait_for_connections(&redis, 1);
    let (passed, rejected, cached) = ("PASSED redis", "REJECTED redis", "REJECTED cache");
    assert_eq!(decisions(&nginx, "/plain?k=a", 4), [passed, passed, rejected, cached]);
    let leased = decisions(&nginx, "/lease?k=a", 30);
    assert!(leased.iter().any(|decision| decision == "PASSED lease"), "{leased:?}");
    assert_eq!(decisions(&nginx, "/block?k=a", 3), [passed, rejected, cached]);
    for left in [9, 8, 7] {
        assert_eq!(nginx.get("/settle?k=a").decision(), passed);
        let is_settled = || nginx.get("/settled?k=a").remaining() == Some(left);
        wait_until(PATIENCE, is_settled, "a settlement");
    }
    assert_eq!(decisions(&nginx, "/dry?k=a", 2), [passed, "REJECTED_DRY_RUN redis"]);
    let mut http = nginx.http();
    http.send("GET", "/auth", &[("Authorization", "Basic dTpw")]);
    assert_eq!(http.read_response().decision(), passed);
    let expected: BTreeSet<_> = ["plain", "lease", "block", "settle", "dry"]
        .map(|name| format!("rl:{name}:{}", hmac(SECRET, "a")))
        .into_iter()
        .chain([format!("rl:auth:{}", hmac(SECRET, "u"))])
        .collect();
    assert_eq!(keys(&redis).into_iter().collect::<BTreeSet<_>>(), expected);
    redis.kill9();
    assert_eq!(decisions(&nginx, "/plain?k=b", 3)[1..], ["PASSED local", "REJECTED local"]);
    assert_eq!(nginx.get("/plain?k=c").decision(), "PASSED local", "another client");
}

/// The slot is that of the HMAC, and what one node has charged is given back when another one rejects.
#[test]
fn it_chooses_the_slot_in_a_cluster() {
    let cluster = ClusterConf::steady(3, 0).start();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    let nginx = with(&format!("{servers} cluster on;"))
        .http("rate_limit_redis_on_error closed;")
        .server(&location(
            "/two",
            "rate_limit_redis $arg_a name=a rate=100r/d; rate_limit_redis $arg_b name=b rate=1r/d;",
        ))
        .server(&location("/look", "rate_limit_redis $arg_a name=a rate=100r/d cost=0;"))
        .start();
    let names: Vec<_> = (0..12).map(|number| format!("client{number}")).collect();
    for name in &names {
        let both = format!("/two?a={name}&b={name}");
        assert_eq!(decisions(&nginx, &both, 2), ["PASSED redis", "REJECTED redis"]);
    }
    for name in &names {
        let look = format!("/look?a={name}");
        let is_given_back = || nginx.get(&look).remaining() == Some(99);
        wait_until(PATIENCE, is_given_back, "what was charged is given back");
    }
    let expected: BTreeSet<_> = names
        .iter()
        .flat_map(|name| ["a", "b"].map(|limit| format!("rl:{limit}:{}", hmac(SECRET, name))))
        .collect();
    assert_eq!(keys_of(&cluster), expected);
    assert_eq!(nginx.logged("MOVED"), Vec::<String>::new());
}

/// Every key of a cluster.
fn keys_of(cluster: &Cluster) -> BTreeSet<String> {
    (0..3).flat_map(|node| cluster.command::<Vec<String>>(node, &["KEYS", "*"])).collect()
}

#[test]
fn bad_secrets_are_refused() {
    let redis = Redis::start();
    let refused = |conf: Conf, parts: &[&str]| {
        let output = conf.config_error();
        for part in parts {
            assert!(output.contains(part), "{part:?} is not in {output}");
        }
    };
    let conf = on(&redis);
    refused(
        conf.clone().file("secret", "fifteen bytes..\n"),
        &["/secret\" of \"key_hmac\" has 15 bytes", "at least 16", "nginx.conf:"],
    );
    refused(conf.clone().file("secret", ""), &["/secret\" of \"key_hmac\" has 0 bytes"]);
    let server = format!("server {};", redis.url());
    refused(
        with(&format!("{server} key_hmac nowhere;")),
        &["cannot read", "/nowhere\" of \"key_hmac\"", "No such file"],
    );
    refused(
        with(&format!("{server} key_hmac {{prefix}};")),
        &["of \"key_hmac\"", "no regular file"],
    );
    refused(with(&format!("{server} key_hmac secret;")), &["\"key_hmac\" directive is duplicate"]);
    refused(with(&format!("{server} key_hmac;")), &["invalid number of arguments in \"key_hmac\""]);
}

/// The keys in the lines about rejections of each location.
fn logged(nginx: &Nginx, paths: &[&str]) -> Vec<Option<String>> {
    let key = |path: &&str| {
        let path = format!("{path}?k=client");
        nginx.get(&path);
        assert_eq!(nginx.get(&path).status, 429);
        let request = format!("request: \"GET {path} ");
        nginx.wait_for_error_log(&request);
        let line = nginx.logged(&request).swap_remove(0);
        let (_, key) = line.split_once(", key: \"")?;
        Some(key.split('"').next().expect("the end of the key").to_owned())
    };
    paths.iter().map(key).collect()
}

#[test]
fn the_log_shows_keys_as_configured() {
    let redis = Redis::start();
    let limit = |name: &str| format!("rate_limit_redis $arg_k name={name} rate=1r/d;");
    let nginx = on(&redis)
        .http(&format!("rate_limit_redis_store plain {{ server {}; }}", redis.url()))
        .server(&location("/default", &limit("default")))
        .server(&location("/on", &format!("rate_limit_redis_log_key on; {}", limit("on"))))
        .server(&location("/off", &format!("rate_limit_redis_log_key off; {}", limit("off"))))
        .server(&location("/hmac", &format!("rate_limit_redis_log_key hmac; {}", limit("hmac"))))
        .server(&location("/plain", &format!("rate_limit_redis_pass plain; {}", limit("plain"))))
        .server(&location(
            "/hidden",
            &format!(
                "rate_limit_redis_pass plain; rate_limit_redis_log_key off; {}",
                limit("hidden")
            ),
        ))
        .start();
    wait_for_connections(&redis, 2);
    let paths = ["/default", "/on", "/off", "/hmac", "/plain", "/hidden"];
    let own = || Some("client".to_owned());
    let hmac = format!("{}...", &hmac(SECRET, "client")[..16]);
    let expected = [own(), own(), None, Some(hmac), own(), None];
    assert_eq!(logged(&nginx, &paths), expected);
    let line = nginx.logged("/off").swap_remove(0);
    assert!(line.contains("by limit \"off\", client: "), "{line}");
}

#[test]
fn hmacs_in_the_log_need_a_store_with_them() {
    let redis = Redis::start();
    let conf = Conf::new()
        .redis(&redis)
        .http("rate_limit_redis_log_key hmac;")
        .server(&location("/a", "rate_limit_redis $arg_k name=a rate=1r/d;"));
    let output = conf.config_error();
    let expected = "\"rate_limit_redis_log_key hmac\" needs \"key_hmac\" in the \"rate_limit_redis_store\" of the \
                    limit \"a\" of ";
    assert!(output.contains(expected) && output.contains("and redis has none"), "{output}");
    // Nobody is limited by such a store.
    let unused = Conf::new().redis(&redis).http("rate_limit_redis_log_key hmac;");
    assert!(unused.check().0);
    // A file that the locations do not use is not looked at.
    let inherited = on(&redis)
        .server("rate_limit_redis_pass redis://127.0.0.1:1; rate_limit_redis_log_key hmac;")
        .server("rate_limit_redis $arg_k rate=1r/d;")
        .server("location / { rate_limit_redis_pass edge; }");
    assert!(inherited.check().0);
}
