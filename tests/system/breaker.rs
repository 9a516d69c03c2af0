//! The circuit breaker of a node, and the bound of its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Act, Conf, Fake, Http, Load, Nginx, PATIENCE, Redis, h2load, wait_until};

/// Attempts and probes come at least every 0.8 s; the rest is for a busy machine.
const RECOVERY: Duration = Duration::from_millis(1_300);

/// What a request may wait that need not wait; a request that waits for its timeout waits longer.
const NO_WAIT: Duration = Duration::from_millis(5);

/// A store with these lines, and the default timeout of 20 ms.
fn limited(url: &str, lines: &str) -> Conf {
    Conf::new()
        .decisions()
        .journal()
        .set("redis", url)
        .http(&format!("rate_limit_redis_store redis {{ server {{redis}}; {lines} }}"))
        .http("rate_limit_redis_pass redis; keepalive_requests 100000;")
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
}

/// What is too late, by so much that the machine may be a bit late, too.
const LATE: Duration = Duration::from_millis(200);
const TIMEOUT: &str = "rate_limit_redis_timeout 100ms;";

/// A Redis that answers so late that requests have given up, if the key says so.
fn moody() -> Fake {
    Fake::answering(|key| match key {
        "late" => Act::After(LATE, Box::new(Act::Usual)),
        _ => Act::Usual,
    })
}

/// A request that fails. Its late answer has come when this returns: nobody else waits for it.
#[track_caller]
fn fail(http: &mut Http) {
    assert_eq!(http.get("/?k=late").decision(), "ERROR_PASSED none");
    // It has waited for half of that already.
    sleep(LATE * 6 / 10);
}

/// The breaker opens at the last of these failures, each so long after the one before, or not at
/// all.
#[track_caller]
fn opens(lines: &str, failures: &[u64], opens: bool) {
    let fake = moody();
    let nginx = limited(&fake.url(), lines).http(TIMEOUT).start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    for pause in failures {
        assert_eq!(nginx.logged("is down"), Vec::<String>::new(), "{lines} {failures:?}");
        sleep(Duration::from_millis(*pause));
        fail(&mut http);
    }
    assert_eq!(nginx.logged("is down").len(), usize::from(opens), "{lines} {failures:?}");
    match opens {
        true => wait_until(PATIENCE, || fake.count("PING") > 0, "a probe"),
        false => assert_eq!(fake.count("PING"), 0, "{lines} {failures:?}"),
    }
    // On a busy machine an answer may be late that should not.
    wait_until(RECOVERY, || http.get("/?k=a").decision() == "PASSED redis", "decisions by Redis");
}

#[test]
fn opens_after_so_many_failures_within_so_long() {
    // Three within a second.
    opens("", &[0, 0], false);
    opens("", &[0, 0, 0], true);
    opens("", &[0, 50, 50], true);
    opens("", &[0, 400, 400], false);
    opens("", &[0, 400, 400, 0], true);
    opens("max_fails 3; fail_timeout 10s;", &[0, 500, 500], true);
    opens("max_fails 3; fail_timeout 200ms;", &[0, 100, 100], false);
    opens("max_fails 1;", &[0], true);
    opens("max_fails 1; fail_timeout 1ms;", &[0], true);
    opens("max_fails 0;", &[0; 10], false);
}

/// What goes well in between changes nothing: it is the failures within a time that count.
#[test]
fn successes_do_not_hide_failures() {
    let fake = moody();
    let nginx = limited(&fake.url(), "").http(TIMEOUT).start();
    let mut http = nginx.http();
    for _ in 0..3 {
        assert_eq!(nginx.logged("is down"), Vec::<String>::new());
        fail(&mut http);
        http.get("/?k=a");
    }
    assert_eq!(nginx.logged("is down").len(), 1);
}

#[track_caller]
fn recovers(nginx: &Nginx) {
    wait_until(RECOVERY, || nginx.get("/?k=a").decision() == "PASSED redis", "recovery");
}

#[test]
fn while_it_is_open_nothing_is_asked_and_nobody_waits() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "").start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    redis.stop_signal();
    for number in 0..503 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "ERROR_PASSED none");
    }
    let journal = nginx.wait_for_journal(504).after(1);
    let waited = journal.0.iter().filter(|entry| entry.wait >= NO_WAIT).count();
    assert!(waited <= 3 + 5, "{waited} waited");
    assert!(journal.percentile(95) < NO_WAIT && journal.percentile(50).as_micros() < 1_000);
    redis.cont();
    recovers(&nginx);
    // Those for which it opened were in Redis's hands, and no other.
    let mut keys: Vec<String> = redis.ask(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["rl:default:0", "rl:default:1", "rl:default:2", "rl:default:a"]);
}

/// A Redis that does so about everything while the switch is on.
fn switched(act: Act) -> (Fake, Arc<AtomicBool>) {
    let switch = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&switch);
    let fake = Fake::start(move |command| match is_on.load(Ordering::SeqCst) {
        true if !command.words.is_empty() => act.clone(),
        _ => Act::Usual,
    });
    (fake, switch)
}

fn late() -> Act {
    Act::After(LATE, Box::new(Act::Usual))
}

#[test]
fn a_probe_closes_it_and_not_a_request() {
    let (fake, switch) = switched(late());
    let nginx = limited(&fake.url(), "").http(TIMEOUT).start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    switch.store(true, Ordering::SeqCst);
    while nginx.logged("is down").is_empty() {
        assert_eq!(http.get("/?k=a").decision(), "ERROR_PASSED none");
    }
    // Those that failed; the fake reads the last of them late.
    let asked = 1 + 3;
    wait_until(PATIENCE, || fake.count("EVALSHA") == asked, "the last question");
    switch.store(false, Ordering::SeqCst);
    let probes = fake.count("PING");
    sleep(RECOVERY);
    assert!(fake.count("PING") > probes);
    assert_eq!(fake.count("EVALSHA"), asked);
    // It is closed, though nobody has tried; that it is up again is told once it has decided.
    assert_eq!(nginx.logged("is up again"), Vec::<String>::new());
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    nginx.wait_for_error_log("is up again");
    let probes = fake.count("PING");
    sleep(Duration::from_millis(300));
    assert_eq!(fake.count("PING"), probes, "nobody has to be probed any more");
}

#[test]
fn a_slow_redis_is_left_alone_and_probed_ever_more_rarely() {
    let (fake, switch) = switched(late());
    let nginx = limited(&fake.url(), "").http(TIMEOUT).start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    switch.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let asked = fake.count("EVALSHA");
    while start.elapsed() < Duration::from_secs(3) {
        assert_eq!(http.get("/?k=a").decision(), "ERROR_PASSED none");
        sleep(Duration::from_millis(2));
    }
    assert_eq!(fake.count("EVALSHA") - asked, 3);
    // After 20, 40, 80 ms and so on up to 0.8 s, or down to half of each; and one at a time.
    let probes = fake.count("PING");
    assert!((4..=12).contains(&probes), "{probes} probes in three seconds");
    switch.store(false, Ordering::SeqCst);
    recovers(&nginx);
    assert_eq!((nginx.logged("is down").len(), nginx.logged("is up again").len()), (1, 1));
    assert_eq!(nginx.logged("[error]").len(), 3, "{:?}", nginx.logged("[error]"));
}

/// The machine tells, not each of its workers; and what it counts is of all of them.
#[test]
fn two_workers_tell_of_it_once() {
    let mut redis = Redis::start();
    // Under load on a busy machine Redis may be late without a fault.
    let nginx =
        limited(&redis.url(), "").workers(2).http("rate_limit_redis_timeout 200ms;").start();
    let load = Load::start(nginx.addr(), "/?k=a", 4);
    for outage in 1..=2 {
        sleep(Duration::from_millis(300));
        redis.stop_signal();
        sleep(Duration::from_millis(800));
        redis.cont();
        let told = || nginx.logged("is up again").len() == outage;
        wait_until(RECOVERY, told, "the end of the outage");
        // Both workers have seen it.
        sleep(RECOVERY);
        assert_eq!(nginx.logged("is down").len(), outage);
    }
    let tally = load.stop();
    let journal = nginx.wait_for_journal(tally.total() as usize);
    let undecided = journal.count("ERROR_PASSED");
    let count = |line: &String| -> usize {
        let words: Vec<_> = line.split(' ').collect();
        let at = words.iter().position(|word| *word == "requests").expect("how many requests");
        words[at - 1].parse().expect("a number")
    };
    let told: usize = nginx.logged("is up again").iter().map(count).sum();
    // The worker that finds out last goes on without Redis for a moment.
    assert!(told <= undecided && told > undecided / 2, "{told} of {undecided} were told of");
}

#[test]
fn one_worker_counts_exactly() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "").start();
    let mut http = nginx.http();
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    redis.stop_signal();
    for _ in 0..100 {
        assert_eq!(http.get("/?k=a").decision(), "ERROR_PASSED none");
    }
    redis.cont();
    sleep(RECOVERY);
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    let told = nginx.logged("is up again");
    assert!(told.len() == 1 && told[0].contains(" s, 100 requests were not decided"), "{told:?}");
}

/// As long as one of several connections can be used, all can be decided.
#[test]
fn one_of_two_connections_is_lost() {
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    // The first connection ends, and no other is made.
    let fake = Fake::start(move |command| match command.connection {
        1 => Act::Usual,
        _ if is_lost.load(Ordering::SeqCst) => Act::Reset,
        _ => Act::Usual,
    });
    let nginx = limited(&fake.url(), "connections 2;").start();
    let mut http = nginx.http();
    let of = |connection| fake.received().iter().filter(|c| c.connection == connection).count();
    wait_until(PATIENCE, || of(0) > 1 && of(1) > 1, "two connections");
    for number in 0..100 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "PASSED redis");
    }
    assert!(of(0) > 30 && of(1) > 30, "{} and {} commands", of(0), of(1));
    lost.store(true, Ordering::SeqCst);
    let mut undecided = 0;
    for number in 0..200 {
        undecided += usize::from(http.get(&format!("/?k={number}")).decision() != "PASSED redis");
    }
    // Those whose question the connection took with it.
    assert!((1..=3).contains(&undecided), "{undecided} were not decided");
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
    lost.store(false, Ordering::SeqCst);
    let asks_again = || {
        let _ = (0..20).map(|number| http.get(&format!("/?k={number}"))).count();
        fake.received().iter().any(|command| command.connection > 1 && command.key().is_some())
    };
    wait_until(RECOVERY, asks_again, "two connections again");
}

#[test]
fn all_connections_have_one_breaker() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "connections 2;").start();
    let connections = || redis.clients().len();
    wait_until(PATIENCE, || connections() == 2, "two connections");
    let mut http = nginx.http();
    for number in 0..100 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "PASSED redis");
    }
    redis.stop_signal();
    for number in 0..50 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "ERROR_PASSED none");
    }
    let journal = nginx.wait_for_journal(150).after(100);
    let waited = journal.0.iter().filter(|entry| entry.wait >= NO_WAIT).count();
    assert!((3..=5).contains(&waited), "{waited} waited");
    redis.cont();
    recovers(&nginx);
}

/// So many requests wait at most: the others do not.
#[test]
fn overload() {
    const ALL: usize = 70_000;
    const WAITING: usize = 65_536;
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "")
        .http2()
        .http("rate_limit_redis_timeout 60s; http2_max_concurrent_streams 10000;")
        .server("rate_limit_redis_on_error closed;")
        // Of clients of their own: equal questions would be put together, and wait as one.
        .server("location = /own { rate_limit_redis $request_id rate=9r/h name=own;")
        .server("try_files /index.html =404; }")
        .start();
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    redis.stop_signal();
    let url = nginx.h2_url("/own");
    let clients = std::thread::spawn(move || {
        h2load(&["-n", &ALL.to_string(), "-c", "10", "-m", "7000", &url])
    });
    let refused = nginx.wait_for_journal(1 + ALL - WAITING).after(1);
    assert_eq!(refused.count("ERROR_REJECTED"), ALL - WAITING);
    assert!(refused.percentile(90) < NO_WAIT, "{:?}", refused.percentile(90));
    assert_eq!(nginx.logged("has too many requests waiting").len(), 1);
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
    redis.cont();
    let tally = clients.join().expect("the clients");
    assert!(tally.failures.is_empty(), "{tally:?}");
    assert_eq!((tally.of(200), tally.of(500)), (WAITING as u64, (ALL - WAITING) as u64));
}
