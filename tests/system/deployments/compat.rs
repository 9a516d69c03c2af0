//! Redis as it is run: other versions and makes, accounts that may do little, commands that were
//! renamed, memory that is full.

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{
    Cluster, ClusterConf, Conf, Nginx, PATIENCE, Redis, Remote, at_once, servers, slot, wait_until,
};

use rate_limit_core::limit::Algorithm;
use rate_limit_core::redis::script::Scripts;

use crate::seen::{keys, passing, quota};

/// Attempts come at least every half second; the rest is for a busy machine. It is far from the
/// `connect_timeout`.
const RECOVERY: Duration = Duration::from_secs(10);

/// The name of a limit of which something has to be forgotten after seconds.
const SHORT: &str = "short";

/// The name of a limit of this algorithm.
fn name(algorithm: Algorithm) -> String {
    format!("{algorithm:?}")
}

/// A limit of each algorithm, by name.
fn limits() -> impl Iterator<Item = (String, String)> {
    let of = |algorithm| (name(algorithm), format!("rate=12r/52w {}", passing(algorithm, 12)));
    Algorithm::ALL.into_iter().map(of)
}

/// A location for each limit and for the short one, `/all` for all but that, and `/two`, whose limits are
/// of clients of their own.
fn limited(store: &str) -> Conf {
    let line = |name: &str, words: &str| format!("rate_limit_redis a name={name} {words};");
    let all: String = limits().map(|(name, words)| line(&name, &words)).collect();
    let conf = Conf::new()
        .decisions()
        .http(&format!("rate_limit_redis_store s {{ {store} connect_timeout 30s; }}"))
        .http("rate_limit_redis_pass s;")
        .http("rate_limit_redis_timeout 5s; rate_limit_redis_log_level info;")
        .http("rate_limit_redis_deny_cache off;")
        .server(&format!("location /all {{ {all} try_files /index.html =404; }}"))
        .server("location /two { rate_limit_redis $arg_a name=a rate=9r/d capacity=9;")
        .server("rate_limit_redis $arg_b name=b rate=2r/d algorithm=sliding_log;")
        .server("try_files /index.html =404; }")
        .server("location /blocked { try_files /index.html =404;")
        .server("rate_limit_redis a name=blocked rate=1r/d algorithm=sliding_log block=1d; }")
        .server("location /more { try_files /index.html =404;")
        .server("rate_limit_redis a name=more rate=5r/d algorithm=sliding_log cost=0 settle=9; }")
        .server("location /less { try_files /index.html =404;")
        .server("rate_limit_redis a name=less rate=5r/d algorithm=sliding_log cost=3 settle=1; }");
    let short = (SHORT.to_owned(), "rate=12r/4s algorithm=sliding_log".to_owned());
    limits().chain([short]).fold(conf, |conf, (name, words)| {
        let line = line(&name, &words);
        conf.server(&format!("location /{name} {{ {line} try_files /index.html =404; }}"))
    })
}

fn of(redis: &Redis) -> Conf {
    limited(&format!("server {};", redis.url()))
}

/// The account of the documents, without one of its rights, if any is named.
fn account(without: &str) -> String {
    let path = format!("{}/../nginx-conf/limiter.acl", env!("CARGO_MANIFEST_DIR"));
    let rule = fs::read_to_string(path).expect("the rule");
    let left: Vec<_> = rule.split_whitespace().filter(|word| *word != without).collect();
    assert_eq!(left.len() < rule.split_whitespace().count(), !without.is_empty(), "{without}");
    left.join(" ")
}

fn of_account(redis: &Redis, database: u32) -> Conf {
    let (store, url) = ("user limiter; password change-me;", redis.url());
    limited(&format!("server {url}; {store} database {database};"))
}

/// All commands that the module sends to a single Redis.
#[track_caller]
fn everything_works(nginx: &Nginx, what: &str) {
    let mut http = nginx.http();
    for left in [11, 10] {
        for (name, _) in limits() {
            let response = http.get(&format!("/{name}"));
            assert_eq!(response.decision(), "PASSED redis", "{what}: {name}");
            assert_eq!(quota(&response)[..2], [12, left], "{what}: {name}");
        }
    }
    let response = http.get("/all");
    assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(9)), "{what}");
    for _ in 0..9 {
        assert_eq!(http.get("/all").decision(), "PASSED redis", "{what}");
    }
    let response = http.get("/all");
    assert_eq!((response.status, response.decision()), (429, "REJECTED redis"), "{what}");
    forgets(nginx, what);
    for expected in ["PASSED redis", "PASSED redis", "REJECTED redis"] {
        assert_eq!(http.get("/two?a=x&b=y").decision(), expected, "{what}");
    }
    assert_eq!(http.get("/two?a=x&b=z").remaining(), Some(1), "{what}");
}

/// A log has a block, or a debt that grows, before its entries, and one of these is made smaller.
fn changes_logs(nginx: &Nginx) {
    for path in ["/blocked", "/blocked", "/more", "/more", "/less"] {
        nginx.get(path);
    }
}

/// Units spent in a log of four seconds are forgotten bit by bit.
#[track_caller]
fn forgets(nginx: &Nginx, what: &str) {
    for pause in [0, 2_400, 2_400] {
        sleep(Duration::from_millis(pause));
        assert_eq!(nginx.get(&format!("/{SHORT}")).decision(), "PASSED redis", "{what}");
    }
}

#[test]
fn everything_works_with_each_version() {
    at_once(servers(), |(version, binary)| {
        let redis = Redis::start_binary(&binary, &[]);
        let nginx = of(&redis).start();
        everything_works(&nginx, &version);
        redis.command::<()>(&["SCRIPT", "FLUSH"]);
        redis.command::<()>(&["FLUSHALL"]);
        everything_works(&nginx, &format!("{version}, flushed"));
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{version}");
        drop(nginx);
        fails_and_is_back(redis, &version);
    });
}

#[track_caller]
fn fails_and_is_back(mut redis: Redis, version: &str) {
    let nginx = of(&redis).http("rate_limit_redis_on_error closed;").start();
    let decides = || nginx.get("/TokenBucket").decision().ends_with(" redis");
    wait_until(RECOVERY, decides, version);
    redis.restart();
    wait_until(RECOVERY, decides, version);
    // A replica, of a master that is not there.
    redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_REJECTED none", "{version}");
    redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    wait_until(RECOVERY, decides, version);
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_REJECTED none", "{version}");
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(decides(), "{version}");
    assert!(nginx.logged("OOM").len() == 1, "{version}: {:?}", nginx.logged("[error]"));
}

#[test]
fn the_account_of_the_documents_is_enough() {
    at_once(servers(), |(version, binary)| {
        let redis = Redis::start_binary(binary, &[&account("")]);
        let nginx = of_account(&redis, 3).start();
        everything_works(&nginx, &version);
        changes_logs(&nginx);
        let calls = || ["lpush", "lpop"].map(|command| redis.calls(command));
        wait_until(PATIENCE, || calls() == [3, 1], "a block, and a debt twice");
        redis.command::<()>(&["SCRIPT", "FLUSH"]);
        assert_eq!(nginx.get("/all").decision(), "REJECTED redis", "{version}");
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{version}");
        let denied = redis.command::<Vec<redis::Value>>(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "{version}: {denied:?}");
    });
}

fn names(algorithms: &[Algorithm], others: &[&str]) -> BTreeSet<String> {
    let others = others.iter().map(|name| (*name).to_owned());
    algorithms.iter().map(|algorithm| name(*algorithm)).chain(others).collect()
}

/// The rights of the account, with the limits that fail without each.
fn needed_rights() -> [(&'static str, BTreeSet<String>); 17] {
    let (logs, strings): (Vec<_>, Vec<_>) =
        Algorithm::ALL.into_iter().partition(|algorithm| algorithm.stores_itself());
    let all = names(&Algorithm::ALL, &[SHORT]);
    [
        ("+evalsha", all.clone()),
        ("+time", all.clone()),
        ("+get", names(&strings, &[])),
        ("+set", names(&strings, &[])),
        ("+lindex", names(&logs, &[SHORT])),
        ("+rpush", names(&logs, &[SHORT])),
        ("+pexpire", names(&logs, &[SHORT])),
        // Only where some entries are old.
        ("+llen", names(&[], &[SHORT])),
        ("+ltrim", names(&[], &[SHORT])),
        ("~rl:*", all.clone()),
        // They can be done without.
        ("+script|exists", names(&[], &[])),
        ("+script|load", names(&[], &[])),
        ("+client|setname", names(&[], &[])),
        ("+asking", names(&[], &[])),
        ("+cluster|slots", names(&[], &[])),
        ("+ping", names(&[], &[])),
        ("+select", names(&[], &[])),
    ]
}

/// Without a permission only the limits that need it fail, and the log has the reason.
#[test]
fn the_account_of_the_documents_has_nothing_too_much() {
    let all = names(&Algorithm::ALL, &[SHORT]);
    let start = Instant::now();
    let mut sites: Vec<_> = needed_rights()
        .into_iter()
        .map(|(right, failing)| {
            let redis = Redis::start_with(&[&account(right)]);
            let nginx = of_account(&redis, 0).start();
            (right, failing, redis, nginx, BTreeSet::new())
        })
        .collect();
    // The short one needs all its commands only later, when some of its entries are old and others are not. On
    // a slow machine all may be old at once: where something is still to fail it is tried again.
    for round in 0..10 {
        let (names, pause) = match round {
            0 => (all.clone(), 0),
            _ => (names(&[], &[SHORT]), 2_400),
        };
        let is_due = |failing: &_, failed: &_| round < 3 || failing != failed;
        if !sites.iter().any(|(_, failing, .., failed)| is_due(failing, failed)) {
            break;
        }
        sleep(Duration::from_millis(pause));
        for (right, failing, _, nginx, failed) in &mut sites {
            if !is_due(failing, failed) {
                continue;
            }
            for name in &names {
                match nginx.get(&format!("/{name}")).decision() {
                    "PASSED redis" => {}
                    "ERROR_PASSED none" => drop(failed.insert(name.clone())),
                    other => panic!("without {right}: {name} is {other}"),
                }
            }
        }
    }
    // One line each ten seconds.
    let most = 1 + start.elapsed().as_secs() as usize / 10;
    for (right, failing, _, nginx, failed) in &sites {
        assert_eq!(failed, failing, "without {right}");
        let errors = nginx.logged("[error]");
        match failing.is_empty() {
            true => assert_eq!(errors, Vec::<String>::new(), "without {right}"),
            false => {
                let is_expected = (1..=most).contains(&errors.len());
                assert!(
                    is_expected && errors.iter().all(|line| is_of_rights(line)),
                    "without {right}: {errors:?}"
                )
            }
        }
    }
}

/// Whether a log line reports that Redis refused for lack of a permission. If a script lacks it,
/// each version has its own message.
fn is_of_rights(line: &str) -> bool {
    line.contains("refused to decide: ")
        && ["NOPERM", "can't run this command", "can't access"]
            .iter()
            .any(|text| line.contains(text))
}

/// Rights that are needed only now and then.
#[test]
fn rights_that_are_rarely_needed_are_missed_then() {
    // A script that Redis has forgotten.
    let redis = Redis::start_with(&[&account("+eval")]);
    let nginx = of_account(&redis, 0).start();
    assert_eq!(nginx.get("/TokenBucket").decision(), "PASSED redis");
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_PASSED none");
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains("NOPERM"), "{errors:?}");

    // A database.
    let redis = Redis::start_with(&[&account("+select")]);
    let nginx = of_account(&redis, 1).start();
    nginx.wait_for_error_log("is down: SELECT was refused: \"NOPERM");
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_PASSED none");

    // The commands for the head of a log.
    for right in ["+lpush", "+lpop"] {
        let redis = Redis::start_with(&[&account(right)]);
        let nginx = of_account(&redis, 0).start();
        changes_logs(&nginx);
        nginx.wait_for_error_log("refused to decide: ");
        let errors = nginx.logged("[error]");
        assert!(errors.len() == 1 && is_of_rights(&errors[0]), "without {right}: {errors:?}");
    }

    // A name.
    let redis = Redis::start_with(&[&account("+client|setname")]);
    let nginx = of_account(&redis, 0).start();
    assert_eq!(nginx.get("/TokenBucket").decision(), "PASSED redis");
    assert!(
        redis.clients().iter().all(|client| client.contains(" name= ")),
        "{:?}",
        redis.clients()
    );

    // A sign of life: a refusal is one, too.
    let mut redis = Redis::start_with(&[&account("+ping")]);
    let nginx = of_account(&redis, 0).http("rate_limit_redis_on_error closed;").start();
    assert_eq!(nginx.get("/TokenBucket").decision(), "PASSED redis");
    redis.restart();
    wait_until(RECOVERY, || nginx.get("/TokenBucket").decision() == "PASSED redis", "recovery");
}

fn of_cluster(cluster: &Cluster) -> Conf {
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    limited(&format!("{servers} cluster on; user limiter; password change-me;"))
}

#[test]
fn the_account_of_the_documents_is_enough_for_a_cluster() {
    at_once(servers(), |(version, binary)| {
        let cluster = ClusterConf::steady(2, 0).binary(binary).line(&account("")).start();
        let nginx = of_cluster(&cluster).start();
        everything_works(&nginx, &version);
        // A slot on its way: its key is there already.
        let slot = slot("rl:TokenBucket:a");
        let migration = cluster.begin_migration(slot, 1 - cluster.master_of(slot));
        cluster.migrate_keys(migration, 9);
        let response = nginx.get("/TokenBucket");
        assert_eq!(
            (response.decision(), response.remaining()),
            ("REJECTED redis", Some(0)),
            "{version}"
        );
        cluster.finish_migration(migration);
        assert_eq!(nginx.get("/TokenBucket").decision(), "REJECTED redis", "{version}");
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{version}");
        for node in 0..2 {
            let denied = cluster.command::<Vec<redis::Value>>(node, &["ACL", "LOG"]);
            assert!(denied.is_empty(), "{version}: {denied:?}");
        }
    });
}

#[test]
fn a_cluster_needs_the_right_to_its_map() {
    let cluster = ClusterConf::steady(2, 0).line(&account("+cluster|slots")).start();
    let nginx = of_cluster(&cluster).start();
    nginx.wait_for_error_log("topology query failed: \"NOPERM");
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_PASSED none");
}

#[test]
fn commands_may_be_renamed_but_eval() {
    let renamed = |commands: &[&str]| -> Vec<String> {
        commands.iter().map(|command| format!("rename-command {command} \"\"")).collect()
    };
    // Not CLIENT: the test itself names its connections.
    at_once([&["SCRIPT"][..], &["EVALSHA"], &["SCRIPT", "EVALSHA", "PING"]], |commands| {
        let lines = renamed(commands);
        let redis = Redis::start_with(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let key = "location = /key { rate_limit_redis $arg_k name=key rate=100r/h; \
                   try_files /index.html =404; }";
        let nginx = of(&redis).server(key).start();
        everything_works(&nginx, &format!("without {commands:?}"));
        // Redis cuts the key short in its error, within a character too.
        for start in ["", "x"] {
            let response = nginx.get(&format!("/key?k={start}{}", "é".repeat(90)));
            assert_eq!(response.decision(), "PASSED redis", "{start}");
        }
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{commands:?}");
    });
    let lines = renamed(&["EVALSHA", "EVAL"]);
    let redis = Redis::start_with(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let nginx = of(&redis).start();
    for _ in 0..3 {
        assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_PASSED none");
    }
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains("ERR unknown command 'EVAL'"), "{errors:?}");
}

/// Redis forgets clients when it needs room, and that is all.
#[test]
fn memory_that_is_full_makes_redis_forget_clients() {
    for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-lfu", "allkeys-random"] {
        let redis = Redis::start_with(&[&format!("maxmemory-policy {policy}")]);
        let nginx = Conf::new()
            .decisions()
            .redis(&redis)
            .http("keepalive_requests 100000;")
            .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=9; }")
            .start();
        let mut http = nginx.http();
        assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
        let used: u64 = redis.info("used_memory").parse().expect("a number of bytes");
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", &(used + 200_000).to_string()]);
        for number in 0..4_000 {
            let response = http.get(&format!("/?k={number}"));
            assert_eq!(
                (response.decision(), response.remaining()),
                ("PASSED redis", Some(8)),
                "{policy}"
            );
        }
        let evicted: u64 = redis.info("evicted_keys").parse().expect("a number of keys");
        assert!(evicted > 500 && keys(&redis).len() > 100, "{policy}: {evicted} evicted");
        assert_eq!(nginx.logged("[error]"), Vec::<String>::new(), "{policy}");
    }
}

/// A fleet that connects evicts no counter where there is the room that docs/operations.md asks for.
#[test]
fn a_fleet_that_connects_evicts_no_counter() {
    const WORKERS: usize = 4;
    const CONNECTIONS: usize = 64;
    let redis = Redis::start_with(&["maxmemory-policy volatile-ttl"]);
    for counter in 0..1_000 {
        redis.command::<()>(&[
            "SET",
            &format!("rl:a:{counter}"),
            "state of a counter",
            "EX",
            "9000",
        ]);
    }
    let room = WORKERS * CONNECTIONS * 40_000;
    let used: usize = redis.info("used_memory").parse().expect("a number of bytes");
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", &(used + room).to_string()]);
    let url = redis.url();
    let store = format!("server {url}; connections {CONNECTIONS}; connect_timeout 30s;");
    let nginx = Conf::new()
        .decisions()
        .workers(WORKERS)
        .http(&format!("rate_limit_redis_store s {{ {store} }} rate_limit_redis_pass s;"))
        .http("rate_limit_redis_timeout 5s;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=9; }")
        .start();
    let named = || redis.clients().iter().filter(|client| client.contains("name=nginx")).count();
    wait_until(PATIENCE, || named() == WORKERS * CONNECTIONS, "all connections");
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    assert_eq!((redis.info("evicted_keys").as_str(), keys(&redis).len()), ("0", 1_001));
}

#[test]
fn a_redis_that_may_forget_nothing_refuses_to_decide() {
    let redis = Redis::start_with(&["maxmemory-policy noeviction"]);
    let nginx = of(&redis).http("rate_limit_redis_on_error local;").start();
    assert_eq!(nginx.get("/TokenBucket").decision(), "PASSED redis");
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..3 {
        assert_eq!(nginx.get("/TokenBucket").decision(), "PASSED local");
        assert_eq!(nginx.get("/SlidingLog").decision(), "PASSED local");
    }
    let errors = nginx.logged("[error]");
    assert!(errors.len() == 1 && errors[0].contains("refused to decide: \"OOM"), "{errors:?}");
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    // Units spent here meanwhile count.
    let response = nginx.get("/TokenBucket");
    assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(8)));
}

#[test]
fn protected_mode_is_told_and_recovered_from() {
    if !Remote::possible() {
        println!("no network namespaces here: protected mode is not tested");
        return;
    }
    let remote = Remote::start();
    remote.redis().command::<()>(&["CONFIG", "SET", "protected-mode", "yes"]);
    let nginx = limited(&format!("server {};", remote.url())).start();
    nginx.wait_for_error_log("is down");
    assert_eq!(nginx.get("/TokenBucket").decision(), "ERROR_PASSED none");
    let errors = nginx.logged("[error]");
    assert!(
        errors.len() == 1 && errors[0].contains("DENIED Redis is running in protected mode"),
        "{errors:?}"
    );
    remote.redis().command::<()>(&["CONFIG", "SET", "protected-mode", "no"]);
    let decides = || nginx.get("/TokenBucket").decision() == "PASSED redis";
    wait_until(RECOVERY, decides, "decisions");
    wait_until(PATIENCE, || nginx.logged("is up again").len() == 1, "up again");
}

/// A quota that is whole again in less than a millisecond is not forgotten before.
#[test]
fn the_shortest_states_are_not_forgotten_early() {
    let scripts = Scripts::new();
    let source = scripts.single(Algorithm::TokenBucket).expect("the script").source();
    for (version, binary) in servers() {
        let redis = Redis::start_binary(&binary, &[]);
        let nothing = |run: i32| {
            let mut questions = redis::pipe();
            for _ in 0..300 {
                // One at once, and each 200 µs.
                let key = format!("k{run}");
                questions.cmd("EVAL").arg(source).arg(1).arg(key).arg(1).arg(200);
            }
            let found: Vec<Vec<u8>> = questions.query(&mut redis.client()).expect("answers");
            // Where nothing was stored the answer ends with the time.
            found.iter().filter(|found| found.ends_with(b" ")).count()
        };
        // A busy machine gives some states the time to be whole again.
        let nothing = (0..10).map(nothing).min().expect("a run");
        assert!((1..30).contains(&nothing), "{version}: nothing found {nothing} times of 300");
    }
}

/// Lua is a module of Valkey from 9.1 on, and may not be there: the log says so, once for all workers.
#[test]
fn a_valkey_without_lua_is_told_once() {
    let is_such = |(version, _): &(String, _)| version.starts_with("valkey-9.");
    let Some((_, binary)) = servers().into_iter().find(is_such) else {
        println!("not tested: there is no Valkey 9");
        return;
    };
    let valkey = Redis::start_binary(&binary, &["enable-module-command yes"]);
    valkey.command::<()>(&["MODULE", "UNLOAD", "lua"]);
    let nginx = Conf::new()
        .workers(2)
        .redis(&valkey)
        .decisions()
        .server("location / { rate_limit_redis k rate=9r/h; }")
        .start();
    for _ in 0..10 {
        assert_eq!(nginx.get("/").decision(), "ERROR_PASSED none");
    }
    let line = "refused to decide: \"ERR Could not find scripting engine 'lua'\"";
    assert_eq!(nginx.logged(line).len(), 1);
    assert_eq!(nginx.logged("[error]").len(), 1, "{:?}", nginx.logged("[error]"));
}
