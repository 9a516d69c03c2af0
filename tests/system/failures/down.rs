//! Redis is away: the policy applies, no request waits for long, and Redis is found again.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Act, Conf, Fake, Journal, Load, Nginx, PATIENCE, Redis, wait_until};

use crate::seen::StartConnected as _;

/// Longer than a request is decided in that need not wait, on any machine. One that waits does so for its
/// timeout of 5 s.
const NO_WAIT: Duration = Duration::from_millis(2_500);

fn limited(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .journal()
        .store(url)
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
}

/// Waits until Redis decides again.
#[track_caller]
fn recovers(nginx: &Nginx) {
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "recovery");
}

/// The journal of `number` requests, one after the other, that all come to `decision`.
#[track_caller]
fn journal_of(nginx: &Nginx, number: usize, decision: &str) -> Journal {
    let mut http = nginx.http();
    let ours = |entry: &harness::Entry| entry.uri == "/?k=b";
    let before = nginx.journal().0.into_iter().filter(ours).count();
    for _ in 0..number {
        assert_eq!(http.get("/?k=b").decision(), decision);
    }
    let mut journal = Journal(Vec::new());
    let written = || {
        journal = Journal(nginx.journal().0.into_iter().filter(ours).collect());
        journal.0.len() == before + number
    };
    wait_until(PATIENCE, written, "the requests in the journal");
    journal.after(before)
}

#[track_caller]
fn nobody_waits(nginx: &Nginx, decision: &str) {
    let journal = journal_of(nginx, 200, decision);
    let most = journal.percentile(95);
    assert!(most < NO_WAIT, "{most:?}");
}

/// The connections of workers over which commands were sent.
fn used_connections(redis: &Redis) -> usize {
    let clients = redis.clients();
    let used = |line: &&String| line.contains("name=nginx_") && line.contains("cmd=evalsha");
    clients.iter().filter(used).count()
}

/// Requests go on while Redis is killed and comes back; returns their decisions. While it is away
/// each is `decision`, and none waits.
#[track_caller]
fn outage(nginx: &Nginx, redis: &mut Redis, decision: &str) -> harness::Tally {
    let load = Load::start(nginx.addr(), "/?k=a", 4);
    wait_until(PATIENCE, || used_connections(redis) == 2, "decisions for both workers");
    redis.kill9();
    nginx.wait_for_error_log("is down");
    nobody_waits(nginx, decision);
    redis.restart();
    wait_until(PATIENCE, || used_connections(redis) == 2, "decisions for both workers again");
    journal_of(nginx, 50, "PASSED redis");
    let tally = load.stop();
    assert!(tally.failures.is_empty(), "{tally:?}");
    tally
}

#[track_caller]
fn outages_are_logged(nginx: &Nginx, down: usize, up: usize) {
    // The log line that it is up may come after a while.
    wait_until(PATIENCE, || nginx.logged("is up again").len() >= up, "up again");
    let lines = nginx.logged(": redis ");
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((count("is down"), count("is up again")), (down, up), "{lines:#?}");
    // Besides, a note of each worker about its connection, and one that replies come too late.
    assert!(lines.len() <= 3 * down + up + 1, "{lines:#?}");
    let errors = nginx.logged("[error]");
    assert!(errors.iter().all(|line| lines.contains(line)), "{errors:#?}");
}

#[test]
fn killed_under_load_it_is_found_again_and_open_passes() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url()).workers(2).server("rate_limit_redis_on_error open;").start();
    let tally = outage(&nginx, &mut redis, "ERROR_PASSED none");
    assert_eq!(tally.of(200), tally.total(), "{tally:?}");
    outages_are_logged(&nginx, 1, 1);
}

#[test]
fn killed_under_load_it_is_found_again_and_closed_rejects() {
    let mut redis = Redis::start();
    let nginx =
        limited(&redis.url()).workers(2).server("rate_limit_redis_on_error closed;").start();
    let tally = outage(&nginx, &mut redis, "ERROR_REJECTED none");
    assert_eq!(tally.of(200) + tally.of(503), tally.total(), "{tally:?}");
    outages_are_logged(&nginx, 1, 1);
}

#[test]
fn each_outage_is_logged_once() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url()).start();
    for outages in 1..=3 {
        recovers(&nginx);
        redis.kill9();
        nobody_waits(&nginx, "ERROR_PASSED none");
        outages_are_logged(&nginx, outages, outages - 1);
        redis.restart();
        recovers(&nginx);
        outages_are_logged(&nginx, outages, outages);
    }
    let up = &nginx.logged("is up again")[0];
    assert!(up.contains("requests were not decided"), "{up}");
}

#[test]
fn closed_answers_as_configured() {
    let mut redis = Redis::start();
    redis.kill9();
    let nginx = limited(&redis.url())
        .server("location = /a { rate_limit_redis a rate=9r/m name=a;")
        .server("rate_limit_redis_on_error closed; }")
        .server("location = /b { rate_limit_redis a rate=9r/m name=a;")
        .server("rate_limit_redis_on_error closed; rate_limit_redis_error_status 509; }")
        .start();
    nginx.wait_for_error_log("is down");
    for (path, status) in [("/a", 503), ("/b", 509)] {
        let response = nginx.get(path);
        assert_eq!((response.status, response.decision()), (status, "ERROR_REJECTED none"));
        let after: u64 = response.header("Retry-After").expect("Retry-After").parse().unwrap();
        assert!(after >= 1);
        assert_eq!(response.remaining(), None);
    }
    assert_eq!(nginx.get("/?k=a").header("Retry-After"), None);
}

/// nginx starts, and serves, and finds Redis when it comes.
#[track_caller]
fn comes_later(url: &str, mut redis: Redis) {
    redis.kill9();
    let nginx = limited(url).workers(2).start();
    nginx.wait_for_error_log("is down");
    nobody_waits(&nginx, "ERROR_PASSED none");
    redis.restart();
    recovers(&nginx);
    // Once for both workers.
    outages_are_logged(&nginx, 1, 1);
}

#[test]
fn a_redis_that_comes_later_is_found() {
    let redis = Redis::start();
    comes_later(&redis.url(), redis);
}

#[test]
fn a_redis_that_comes_later_is_found_on_a_unix_socket() {
    let redis = Redis::start();
    comes_later(&redis.unix_url(), redis);
}

#[test]
fn the_reason_is_logged() {
    let redis = Redis::start();
    let url = redis.url();
    drop(redis);
    for (url, reason) in [
        (url.as_str(), "is down: connect() failed (111: Connection refused)"),
        ("redis+unix:///nowhere/redis.sock", "connect() failed (2: No such file or directory)"),
        ("redis+unix:///dev/null", "connect() failed (111: Connection refused)"),
    ] {
        let nginx = limited(url).start();
        nginx.wait_for_error_log("is down");
        assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
        let errors = nginx.logged("[error]");
        assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
    }
}

/// A server that comes back with a password is not what the first line says.
#[test]
fn the_reason_that_has_come_since_is_logged_once() {
    let mut redis = Redis::start();
    let mut nginx = limited(&redis.url()).workers(2).start();
    recovers(&nginx);
    redis.kill9();
    nobody_waits(&nginx, "ERROR_PASSED none");
    redis.restart_with(&["requirepass s3cret"]);
    nginx.wait_for_error_log("is still down: ");
    nobody_waits(&nginx, "ERROR_PASSED none");
    let lines = nginx.logged("[error]");
    let [_, line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(
        line.ends_with(
            "is still down: CLIENT SETNAME was refused: \"NOAUTH Authentication required.\""
        ),
        "{line}"
    );
    nginx.reload();
    assert_eq!(nginx.logged("is still down").len(), 1);
}

/// A server that hangs up is not the one that refused connections at first.
#[test]
fn the_reason_of_another_server_at_the_address_is_logged() {
    let redis = Redis::start();
    let url = redis.url();
    drop(redis);
    let nginx = limited(&url).workers(2).start();
    nginx.wait_for_error_log("is down: connect() failed (111: Connection refused)");
    let address = url.trim_start_matches("redis://");
    let listener = TcpListener::bind(address).expect("the address of Redis");
    thread::spawn(move || listener.incoming().for_each(drop));
    nginx.wait_for_error_log("is still down: ");
    nobody_waits(&nginx, "ERROR_PASSED none");
    let lines = nginx.logged("[error]");
    let [_, line] = &lines[..] else { panic!("{lines:#?}") };
    let hung_up = ["the server closed the connection", "(104: Connection reset by peer)"];
    assert!(hung_up.iter().any(|reason| line.ends_with(reason)), "{line}");
}

/// A server that has room for one worker of two is not up, and says why.
#[test]
fn a_server_is_up_again_when_all_workers_are_connected() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).workers(2).start_connected(&redis);
    let mut admin = redis.client();
    let mut set = |words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut admin).expect("a reply");
    };
    set(&["CONFIG", "SET", "maxclients", "2"]);
    set(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    nginx.wait_for_error_log("\"ERR max number of clients reached\"");
    (0..100).for_each(|_| recovers(&nginx));
    assert_eq!(nginx.logged("is up again"), Vec::<String>::new());
    set(&["CONFIG", "SET", "maxclients", "100"]);
    let is_up = || {
        recovers(&nginx);
        nginx.logged("is up again").len() == 1
    };
    wait_until(PATIENCE, is_up, "a server with room for all");
    outages_are_logged(&nginx, 1, 1);
}

/// A dry run that would reject all requests keeps no server down that charges them.
#[test]
fn a_server_that_charges_requests_beside_a_dry_run_is_up() {
    let redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .store(redis.url())
        .http("rate_limit_redis_deny_cache off;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000;")
        .server("rate_limit_redis all name=planned rate=1r/52w dry_run; }")
        .start_connected(&redis);
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let is_down = || {
        nginx.get("/?k=a");
        !nginx.logged("is down: it cannot decide").is_empty()
    };
    wait_until(PATIENCE, is_down, "a replica");
    redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    let is_up = || {
        nginx.get("/?k=a");
        !nginx.logged("is up again").is_empty()
    };
    wait_until(PATIENCE, is_up, "a master");
}

/// A server that cannot write decides whatever charges nothing.
#[test]
fn a_server_that_only_shows_what_is_left_is_not_up() {
    let redis = Redis::start();
    let nginx = limited(&redis.url())
        .workers(1)
        .server("location = /left { rate_limit_redis $arg_k rate=1r/h capacity=500000 cost=0; }")
        .start_connected(&redis);
    redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..5 {
        let is_refused = || nginx.get("/?k=a").decision() == "ERROR_PASSED none";
        wait_until(PATIENCE, is_refused, "a refusal");
        let is_shown = || nginx.get("/left?k=a").decision() == "PASSED redis";
        wait_until(PATIENCE, is_shown, "what is left");
    }
    let lines = || ["is down: ", "is up again"].map(|text| nginx.logged(text).len());
    assert_eq!(lines(), [1, 0]);
    redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    recovers(&nginx);
    nginx.wait_for_error_log("is up again");
    assert_eq!(lines(), [1, 1]);
}

/// One is refused what it sends. The other sends nothing, and takes the server for up when it has connected again.
#[test]
fn an_outage_that_another_worker_ends_too_early_begins_again() {
    let redis = Redis::start();
    let nginx = limited(&redis.url()).workers(2).start_connected(&redis);
    (0..50).for_each(|_| assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis"));
    let mut http = nginx.http();
    redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    let mut is_refused = || http.get("/?k=a").decision() == "ERROR_PASSED none";
    wait_until(PATIENCE, &mut is_refused, "a refusal");
    nginx.wait_for_error_log("is down: ");
    let line = nginx.logged("is down: ").remove(0);
    let is_other = |worker: &u32| !line.contains(&format!(" {worker}#"));
    let other = nginx.worker_pids().into_iter().find(is_other).expect("a worker");
    let name = format!(" name=nginx_rate_limit_redis:{other} ");
    let its_connection = || {
        let connection = redis.clients().into_iter().find(|line| line.contains(&name))?;
        connection.split(['=', ' ']).nth(1).map(str::to_owned)
    };
    let id = its_connection().expect("a connection");
    redis.command::<()>(&["CLIENT", "KILL", "ID", &id]);
    let is_back = || its_connection().is_some_and(|now| now != id);
    wait_until(PATIENCE, is_back, "another connection");
    for _ in 0..3 {
        let before = redis.info("errorstat_READONLY");
        let is_refused_again = || is_refused() && redis.info("errorstat_READONLY") != before;
        wait_until(PATIENCE, is_refused_again, "one more refusal");
    }
    let lines = || ["is down: ", "is up again"].map(|text| nginx.logged(text).len());
    let is_down = || {
        let [downs, ups] = lines();
        is_refused() && downs == ups + 1
    };
    wait_until(PATIENCE, is_down, "one more outage");
    redis.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    wait_until(PATIENCE, || http.get("/?k=a").decision() == "PASSED redis", "recovery");
    let is_over = || {
        let [downs, ups] = lines();
        downs == ups
    };
    wait_until(PATIENCE, is_over, "the end of the last outage");
}

#[test]
fn nobody_waits_for_an_address_that_does_not_answer() {
    // TEST-NET-1: packets go nowhere, or are refused by a router.
    let nginx = Conf::new()
        .decisions()
        .journal()
        .http("rate_limit_redis_pass redis://192.0.2.1:6379; rate_limit_redis_timeout 5s;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h; }")
        .start();
    nginx.wait_for_error_log("is down");
    nobody_waits(&nginx, "ERROR_PASSED none");
    assert_eq!(nginx.logged("is down").len(), 1);
}

/// Nothing is configured but the URL: a request waits for 20 ms, and the breaker opens after three.
#[test]
fn a_stopped_redis_costs_the_default_timeout_and_then_nothing() {
    let mut redis = Redis::start();
    let nginx = Conf::new()
        .decisions()
        .journal()
        .set("redis", redis.url())
        .http("rate_limit_redis_pass {redis}; keepalive_requests 1000000;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
        .start();
    // On a busy machine even this Redis may be down for a while.
    let is_known_up = || {
        let decision = nginx.get("/?k=a").decision() == "PASSED redis";
        decision && nginx.logged("is down").len() == nginx.logged("is up again").len()
    };
    wait_until(PATIENCE, is_known_up, "recovery");
    let known = nginx.logged("is down").len();
    redis.stop_signal();
    let mut http = nginx.http();
    while nginx.logged("is down").len() == known {
        assert_eq!(http.get("/?k=b").decision(), "ERROR_PASSED none");
    }
    // By three requests that it keeps waiting; or, if the worker is so busy that their waits are its own, by
    // the silence of the connection.
    let errors = nginx.logged("is down");
    let reason = &errors[errors.len() - 1];
    let needed = if reason.contains("no reply within 20 ms") { 3 } else { 1 };
    assert!(needed == 3 || reason.contains("no reply for 1000 ms"), "{errors:?}");
    let waited = |entry: &&harness::Entry| entry.wait >= Duration::from_millis(19);
    let enough = || nginx.journal().0.iter().filter(waited).count() >= needed;
    wait_until(PATIENCE, enough, "requests that waited");

    // Attempts to connect are accepted by the system, and come to nothing.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1_500) {
        assert_eq!(http.get("/?k=b").decision(), "ERROR_PASSED none");
    }
    redis.cont();
    recovers(&nginx);
}

/// The configuration `limited`, but the breaker never opens.
fn patient(url: &str) -> Conf {
    Conf::new()
        .decisions()
        .journal()
        .http(&format!("rate_limit_redis_store patient {{ server {url}; max_fails 0;"))
        .http("connect_timeout 30s; }")
        .http("rate_limit_redis_pass patient; rate_limit_redis_timeout 5s;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
}

#[test]
fn late_replies_never_reach_another_request() {
    let mut redis = Redis::start();
    let nginx = patient(&redis.url())
        .server("location /own { rate_limit_redis $arg_k rate=1r/h name=own capacity=$arg_c;")
        .server("rate_limit_redis_timeout 300ms; try_files /index.html =404; }")
        .start();
    recovers(&nginx);
    let mut clients: Vec<_> = (0..20).map(|_| nginx.http()).collect();
    // On a busy machine it may be too late for the others, too: then it takes more rounds.
    let (start, mut decided) = (Instant::now(), 0);
    for round in 0.. {
        if round >= 8 && decided > 40 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "hardly any was decided");
        redis.stop_signal();
        let (waiting, later) = clients.split_at_mut(10);
        for (number, http) in waiting.iter_mut().enumerate() {
            let capacity = 1_000 + number;
            http.send("GET", &format!("/own?k=early-{round}-{number}&c={capacity}"), &[]);
        }
        for http in waiting.iter_mut() {
            assert_eq!(http.read_response().decision(), "ERROR_PASSED none");
        }
        // Sent while the replies to the others are still to come.
        for (number, http) in later.iter_mut().enumerate() {
            let capacity = 2_000 + 100 * round + number;
            http.send("GET", &format!("/own?k=late-{round}-{number}&c={capacity}"), &[]);
        }
        redis.cont();
        for (number, http) in later.iter_mut().enumerate() {
            let response = http.read_response();
            if response.decision() == "PASSED redis" {
                decided += 1;
                assert_eq!(response.remaining(), Some((2_000 + 100 * round + number - 1) as u64));
            } else {
                assert_eq!(response.decision(), "ERROR_PASSED none");
            }
        }
    }
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
}

/// Redis charges each request after that was rejected; what it charges is given back.
#[test]
fn what_is_rejected_as_redis_is_late_is_not_charged() {
    let mut redis = Redis::start();
    let nginx = patient(&redis.url())
        .server("location /strict { rate_limit_redis $arg_k rate=60r/h name=own; try_files /index.html =404;")
        .server("rate_limit_redis_on_error closed; rate_limit_redis_timeout 20ms; }")
        .server("location /look { rate_limit_redis $arg_k rate=60r/h name=own cost=0; try_files /index.html =404; }")
        .start();
    recovers(&nginx);
    for _ in 0..5 {
        let before = redis.calls("evalsha");
        redis.stop_signal();
        for _ in 0..4 {
            assert_eq!(nginx.get("/strict?k=a").decision(), "ERROR_REJECTED none");
        }
        redis.cont();
        wait_until(PATIENCE, || redis.calls("evalsha") >= before + 4, "the late charges");
    }
    let whole = || nginx.get("/look?k=a").remaining() == Some(60);
    wait_until(PATIENCE, whole, "what was charged to be given back");
}

#[test]
fn nothing_is_wrong_after_a_long_stop() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url())
        .server("rate_limit_redis_timeout 20ms;")
        .server("location /own { rate_limit_redis $arg_k rate=1r/h name=own capacity=$arg_c;")
        .server("rate_limit_redis_timeout 1s; try_files /index.html =404; }")
        .start();
    recovers(&nginx);
    redis.stop_signal();
    let mut http = nginx.http();
    wait_until(
        PATIENCE,
        || {
            assert_eq!(http.get("/?k=a").decision(), "ERROR_PASSED none");
            !nginx.logged("is down").is_empty()
        },
        "silence to be noticed",
    );
    redis.cont();
    recovers(&nginx);
    for number in 100..150 {
        let response = http.get(&format!("/own?k={number}&c={number}"));
        assert_eq!((response.decision(), response.remaining()), ("PASSED redis", Some(number - 1)));
    }
}

#[test]
fn the_timeout_is_as_configured() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url())
        .server("location = /50 { rate_limit_redis a rate=9r/m name=a;")
        .server("rate_limit_redis_timeout 50ms; try_files /index.html =404; }")
        .server("location = /2000 { rate_limit_redis a rate=9r/m name=a;")
        .server("rate_limit_redis_timeout 2s; try_files /index.html =404; }")
        .start();
    recovers(&nginx);
    redis.stop_signal();
    for (path, timeout) in [("/50", 50), ("/2000", 2_000), ("/50", 50)] {
        let start = Instant::now();
        assert_eq!(nginx.get(path).decision(), "ERROR_PASSED none");
        let took = start.elapsed().as_millis();
        assert!((timeout - 5..timeout + 1_500).contains(&took), "{path} took {took} ms");
    }
    redis.cont();
}

/// Redis answers, but too late: that is as good as not at all.
#[test]
fn a_slow_redis_is_logged_without_spam() {
    for (conf, down) in [(limited as fn(&str) -> Conf, 1), (patient, 0)] {
        assert!((0..5).any(|_| is_logged_without_spam(conf, down)), "it falls silent each time");
    }
}

/// False if the fake itself stood still for so long that its connection was given up.
#[track_caller]
fn is_logged_without_spam(conf: fn(&str) -> Conf, down: usize) -> bool {
    // A reply that takes 10 s, byte by byte.
    let endless = Act::Trickle(format!("-{}", "x".repeat(10_000)).into());
    let fake = Fake::answering(move |_| endless.clone());
    let start = Instant::now();
    let nginx = conf(&fake.url()).server("rate_limit_redis_timeout 20ms;").start();
    let mut http = nginx.http();
    let mut numbers = 0..;
    let mut send = || {
        let path = format!("/?k={}", numbers.next().expect("a number"));
        assert_eq!(http.get(&path).decision(), "ERROR_PASSED none");
    };
    // A command that is sent before there is a connection is no failure of the server.
    let line = if down > 0 { "is down" } else { "[error]" };
    let is_logged = || {
        send();
        !nginx.logged(line).is_empty()
    };
    wait_until(PATIENCE, is_logged, "a line of the log");
    (0..20).for_each(|_| send());
    let (errors, connections) = (nginx.logged("[error]"), fake.count(""));
    let took = start.elapsed();
    // Nothing is logged where the breaker is open.
    let was_lost = connections > 1 && took >= Duration::from_secs(1);
    if was_lost || !nginx.logged("no reply for 1000 ms").is_empty() {
        return false;
    }
    let downs = errors.iter().filter(|line| line.contains("is down")).count();
    assert_eq!((downs, connections), (down, 1), "{errors:?}");
    // One more each ten seconds.
    assert!(errors.len() <= 2 + took.as_secs() as usize / 10, "{errors:?}");
    assert!(errors[0].contains("redis 127.0.0.1:"), "{errors:?}");
    true
}
