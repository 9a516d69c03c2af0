//! The circuit breaker of a node, and the bound of its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Act, Conf, Fake, Nginx, PATIENCE, Redis, h2load, wait_until};

use crate::seen::{StartConnected as _, wait_for_connections};

/// How long a request waits for a Redis that does not answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than a request is decided in that need not wait, on any machine.
const NO_WAIT: Duration = Duration::from_secs(1);

/// A store with these lines.
fn limited(url: &str, lines: &str) -> Conf {
    Conf::new()
        .decisions()
        .journal()
        .set("redis", url)
        .http(&format!(
            "rate_limit_redis_store redis {{ server {{redis}}; connect_timeout 30s; {lines} }}"
        ))
        .http("rate_limit_redis_pass redis; keepalive_requests 100000;")
        .http(&format!("rate_limit_redis_timeout {}s;", TIMEOUT.as_secs()))
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
        .server("location = /metrics { rate_limit_redis_metrics prometheus; }")
        .server("location = /accepted { access_log off; return 204; }")
}

#[track_caller]
fn decides(nginx: &Nginx) {
    assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
}

/// Waits until the breaker is closed, which is shown where no request is needed.
#[track_caller]
fn closes(nginx: &Nginx) {
    let closed = || {
        let page = nginx.get("/metrics").text().to_owned();
        page.lines().any(|line| line.contains("breaker_open{") && line.ends_with(" 0"))
    };
    wait_until(PATIENCE, closed, "a closed breaker");
}

/// Stops Redis. Three requests that it does not answer open the breaker.
#[track_caller]
fn opens(nginx: &Nginx, redis: &mut Redis, keys: [&str; 3]) {
    let mut clients = keys.map(|_| nginx.http());
    for http in &mut clients {
        assert_eq!(http.get("/accepted").status, 204);
    }
    redis.stop_signal();
    // In one turn: after the first failure alone, the connection would be given up for its silence.
    nginx.in_one_turn(|| {
        for (http, key) in clients.iter_mut().zip(keys) {
            http.send("GET", &format!("/?k={key}"), &[]);
        }
    });
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "ERROR_PASSED none");
    }
    nginx.wait_for_error_log("is down: no reply within 2000 ms");
}

#[test]
fn while_it_is_open_no_command_is_sent_and_no_request_waits() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "fail_timeout 2s;").start_connected(&redis);
    decides(&nginx);
    opens(&nginx, &mut redis, ["0", "1", "2"]);
    let mut http = nginx.http();
    for number in 3..500 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "ERROR_PASSED none");
    }
    let journal = nginx.wait_for_journal(501).after(1);
    let waited = journal.0.iter().filter(|entry| entry.wait >= NO_WAIT).count();
    assert_eq!(waited, 3, "requests waited");
    redis.cont();
    closes(&nginx);
    decides(&nginx);
    nginx.wait_for_error_log("is up again");
    // The requests for which it opened were sent, and no other.
    let mut keys: Vec<String> = redis.command(&["KEYS", "*"]);
    keys.sort();
    assert_eq!(keys, ["rl:default:0", "rl:default:1", "rl:default:2", "rl:default:a"]);
    assert_eq!((nginx.logged("is down").len(), nginx.logged("is up again").len()), (1, 1));
}

/// The requests for which the breaker opens were rejected, and cost their clients nothing once Redis replies.
#[test]
fn what_opened_it_is_given_back_when_it_closes() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "fail_timeout 2s;")
        .server("rate_limit_redis_on_error closed;")
        .server(
            "location = /patient { rate_limit_redis a name=patient rate=1r/h; rate_limit_redis_timeout 60s; }",
        )
        .start_connected(&redis);
    decides(&nginx);
    redis.stop_signal();
    // The connection is not given up as long as it waits.
    let mut patient = nginx.http();
    patient.send("GET", "/patient", &[]);
    let mut clients = [(); 9].map(|()| nginx.http());
    nginx.in_one_turn(|| {
        for (number, http) in clients.iter_mut().enumerate() {
            http.send("GET", &format!("/?k={number}"), &[]);
        }
    });
    for http in &mut clients {
        assert_eq!(http.read_response().decision(), "ERROR_REJECTED none");
    }
    nginx.wait_for_error_log("is down: no reply within 2000 ms");
    redis.cont();
    assert_eq!(patient.read_response().decision(), "PASSED redis");
    let keys = || redis.command::<Vec<String>>(&["KEYS", "rl:default:*"]);
    wait_until(PATIENCE, || keys() == ["rl:default:a"], "the refunds");
}

/// A worker without requests finds by its probes alone that Redis replies again.
#[test]
fn a_server_is_up_again_though_a_worker_has_no_requests() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "")
        .workers(2)
        .http("add_header X-Worker $pid always;")
        .server("rate_limit_redis_timeout 50ms;")
        .start_connected(&redis);
    let mut clients: Vec<_> = Vec::new();
    while clients.len() < 2 {
        let mut http = nginx.http();
        let worker = http.get("/?k=a").header("X-Worker").map(str::to_owned);
        if clients.iter().all(|(other, _)| *other != worker) {
            clients.push((worker, http));
        }
    }
    for outage in 1..=4 {
        redis.stop_signal();
        for _ in 0..20 {
            for (_, http) in &mut clients {
                assert_eq!(http.get("/?k=b").decision(), "ERROR_PASSED none");
            }
        }
        // The workers probe more and more rarely, each in its own time.
        thread::sleep(Duration::from_secs(1));
        redis.cont();
        let (_, busy) = &mut clients[0];
        // A decision of the one and the closed breaker of the other are enough. On a busy machine one may open again.
        let is_up = (0..10).any(|_| {
            let decides = || busy.get("/?k=a").decision() == "PASSED redis";
            wait_until(PATIENCE, decides, "a decision");
            closes(&nginx);
            nginx.logged("is up again").len() >= outage
        });
        assert!(is_up, "outage {outage}: {:#?}", nginx.logged("[error]"));
    }
}

/// `max_fails` and `fail_timeout` of the store, with failures that follow each other.
#[test]
fn opens_as_configured() {
    for (lines, failures, opens) in [
        ("max_fails 1;", 1, true),
        ("max_fails 2; fail_timeout 1h;", 2, true),
        ("max_fails 2; fail_timeout 1ms;", 2, false),
        ("max_fails 0;", 2, false),
    ] {
        let (_fake, nginx) = without_failure(lines);
        for failure in 1..=failures {
            assert_eq!(nginx.get("/?k=lost").decision(), "ERROR_PASSED none");
            if failure < failures {
                nginx.wait_for_error_log("is slow: no reply within 100 ms");
                assert_eq!(nginx.logged("is down"), Vec::<String>::new(), "{lines}");
            }
        }
        if opens {
            nginx.wait_for_error_log("is down: no reply within 100 ms");
        } else {
            assert_eq!(nginx.logged("is down"), Vec::<String>::new(), "{lines}");
        }
    }
}

/// A server that is never silent, and whose reply about the key `lost` does not end; and an nginx that
/// waits for 100 ms, to which it has replied in time so far.
fn without_failure(lines: &str) -> (Fake, Nginx) {
    for _ in 0..20 {
        let endless = Act::Trickle(format!("-{}", "x".repeat(10_000)).into());
        let fake = Fake::answering(move |key| match key {
            "lost" => endless.clone(),
            _ => Act::Usual,
        });
        let nginx = limited(&fake.url(), lines).server("rate_limit_redis_timeout 100ms;").start();
        wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "a decision");
        // On a busy machine it may have been late, which counts as a failure.
        if ["is slow", "is down"].iter().all(|text| nginx.logged(text).is_empty()) {
            return (fake, nginx);
        }
    }
    panic!("it never replies in time");
}

/// A location whose requests may wait for 100 s does not make others wait for a Redis that hangs. Its own
/// requests wait, and are decided.
#[test]
fn a_long_timeout_of_one_location_holds_up_no_other() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "")
        .server("location /long { rate_limit_redis $arg_k rate=1r/h capacity=500000;")
        .server("rate_limit_redis_timeout 100s; }")
        .start_connected(&redis);
    let states = || {
        let page = nginx.get("/metrics").text().to_owned();
        ["node_slow{", "breaker_open{"].map(|name| {
            let line = page.lines().find(|line| line.contains(name)).expect("a sample");
            line.ends_with(" 1")
        })
    };
    let (mut patient, mut others) = (nginx.http(), ["b", "c", "d"].map(|_| nginx.http()));
    decides(&nginx);
    redis.stop_signal();
    patient.send("GET", "/long?k=a", &[]);
    nginx.wait_for_error_log("is slow: no reply within 1000 ms");
    assert_eq!(states(), [true, false]);
    redis.cont();
    assert_eq!(patient.read_response().decision(), "PASSED redis");
    nginx.wait_for_error_log("is no longer slow, after ");
    assert_eq!(states(), [false, false]);
    for http in &mut others {
        assert_eq!(http.get("/accepted").status, 204);
    }
    redis.stop_signal();
    patient.send("GET", "/long?k=a", &[]);
    nginx.in_one_turn(|| {
        for (number, http) in others.iter_mut().enumerate() {
            http.send("GET", &format!("/?k={number}"), &[]);
        }
    });
    nginx.wait_for_error_log("is down: no reply within 1000 ms");
    assert_eq!(states(), [false, true]);
    for http in &mut others {
        assert_eq!(http.read_response().decision(), "ERROR_PASSED none");
        assert_eq!(http.get("/?k=e").decision(), "ERROR_PASSED none");
    }
    let journal = nginx.wait_for_journal(11);
    let waits: Vec<_> = journal.0.iter().filter(|it| it.uri == "/?k=e").map(|it| it.wait).collect();
    assert!(waits.len() == 3 && waits.iter().all(|wait| *wait < NO_WAIT), "{waits:?}");
    redis.cont();
    assert_eq!(patient.read_response().decision(), "PASSED redis");
    closes(&nginx);
}

/// The machine logs it, not each of its workers, and the numbers are those of all workers.
#[test]
fn two_workers_log_an_outage_once() {
    let mut redis = Redis::start();
    let nginx =
        limited(&redis.url(), "").workers(2).http("add_header X-Worker $pid always;").start();
    let workers = nginx.worker_pids();
    let mut clients: Vec<_> = workers.iter().map(|pid| client_of(&nginx, *pid)).collect();
    for outage in 1..=2 {
        for http in &mut clients {
            let decided = || http.get("/?k=a").decision() == "PASSED redis";
            wait_until(PATIENCE, decided, "a decision by each worker");
        }
        assert_eq!(nginx.logged("is up again").len(), outage - 1);
        redis.kill9();
        for http in &mut clients {
            for _ in 0..50 {
                assert_eq!(http.get("/?k=a").decision(), "ERROR_PASSED none");
            }
        }
        assert_eq!(nginx.logged("is down").len(), outage);
        redis.restart();
        wait_until(
            PATIENCE,
            || nginx.logged("is up again").len() == outage,
            "the end of the outage",
        );
        let last = nginx.logged("is up again").pop().expect("a line");
        assert!(last.contains(" s, 100 requests were not decided"), "{last}");
    }
}

/// A server that holds its replies about these keys back until they are released, and a store that waits for it as long as a
/// location `/long` does.
fn holding<const N: usize>(keys: [&'static str; N]) -> (Fake, [Arc<AtomicBool>; N], Conf) {
    let held = keys.map(|_| Arc::new(AtomicBool::new(true)));
    let of_fake = held.clone();
    let fake = Fake::answering(move |key| {
        let index = keys.iter().position(|held| *held == key);
        while index.is_some_and(|index| of_fake[index].load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_millis(1));
        }
        Act::Usual
    });
    let conf = limited(&fake.url(), "max_fails 0;")
        .server("location /long { rate_limit_redis $arg_k rate=1r/h capacity=500000;")
        .server("rate_limit_redis_timeout 100s; }");
    (fake, held, conf)
}

/// Whether any worker sees a node as slow.
fn is_slow(nginx: &Nginx) -> bool {
    let page = nginx.get("/metrics").text().to_owned();
    page.lines().any(|line| line.contains("node_slow{") && line.ends_with(" 1"))
}

/// A node is slow until no worker waits for it any more.
#[test]
fn two_workers_log_slowness_once() {
    let (_fake, [first, second], conf) = holding(["first", "second"]);
    let nginx = conf.workers(2).http("add_header X-Worker $pid always;").start();
    let workers = nginx.worker_pids();
    let mut clients: Vec<_> = workers.iter().map(|pid| client_of(&nginx, *pid)).collect();
    let mut behind = client_of(&nginx, workers[1]);
    clients[0].send("GET", "/long?k=first", &[]);
    nginx.wait_for_error_log("is slow: no reply within 1000 ms");
    clients[1].send("GET", "/long?k=second", &[]);
    // It waits for longer than the patience, behind the other request of this worker.
    assert_eq!(behind.get("/?k=a").decision(), "ERROR_PASSED none");
    let ends = || nginx.logged("is no longer slow").len();
    for (index, held) in [first, second].into_iter().enumerate() {
        assert_eq!((is_slow(&nginx), ends()), (true, 0), "{index}");
        held.store(false, Ordering::SeqCst);
        assert_eq!(clients[index].read_response().decision(), "PASSED redis");
        assert_eq!(clients[index].get("/?k=a").decision(), "PASSED redis");
    }
    assert_eq!((is_slow(&nginx), ends()), (false, 1));
    assert_eq!(nginx.logged("is slow").len(), 1);
}

/// A worker's view does not count when the worker is gone.
#[test]
fn slowness_ends_with_the_worker_that_has_seen_it() {
    let (_fake, [held], conf) = holding(["held"]);
    let mut nginx = conf.start();
    let mut http = nginx.http();
    http.send("GET", "/long?k=held", &[]);
    wait_until(PATIENCE, || is_slow(&nginx), "a node that is slow");
    nginx.kill9_worker(nginx.worker_pids()[0]);
    assert!(!is_slow(&nginx));
    let mut http = nginx.http();
    http.send("GET", "/long?k=held", &[]);
    wait_until(PATIENCE, || is_slow(&nginx), "a node that is slow again");
    held.store(false, Ordering::SeqCst);
    assert_eq!(http.read_response().decision(), "PASSED redis");
    assert_eq!(http.get("/?k=a").decision(), "PASSED redis");
    assert!(!is_slow(&nginx));
    // The line that it is slow comes once in 10 s, which may be over by now. The first of them has no end.
    let [begins, ends] = ["is slow", "is no longer slow"].map(|text| nginx.logged(text).len());
    assert_eq!(begins, ends + 1, "{:#?}", nginx.logged("slow"));
}

/// A connection to this worker.
fn client_of(nginx: &Nginx, worker: u32) -> harness::Http {
    let mut found = None;
    let is_found = || {
        let mut http = nginx.http();
        let is_its = http.get("/metrics").header("X-Worker") == Some(&worker.to_string());
        found = is_its.then_some(http);
        is_its
    };
    wait_until(PATIENCE, is_found, "a connection to each worker");
    found.expect("a connection")
}

/// One of several connections that can be used is enough for all to be decided.
#[test]
fn one_of_two_connections_is_enough() {
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
    // The requests whose command was lost with the connection.
    assert!((1..=3).contains(&undecided), "{undecided} were not decided");
    assert_eq!(nginx.logged("is down"), Vec::<String>::new());
    lost.store(false, Ordering::SeqCst);
    let asks_again = || {
        let _ = (0..20).map(|number| http.get(&format!("/?k={number}"))).count();
        fake.received().iter().any(|command| command.connection > 1 && command.key().is_some())
    };
    wait_until(PATIENCE, asks_again, "two connections again");
}

#[test]
fn all_connections_have_one_breaker() {
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "connections 2; fail_timeout 2s;").start();
    wait_for_connections(&redis, 2);
    let mut http = nginx.http();
    for number in 0..100 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "PASSED redis");
    }
    opens(&nginx, &mut redis, ["b", "c", "d"]);
    for number in 0..50 {
        assert_eq!(http.get(&format!("/?k={number}")).decision(), "ERROR_PASSED none");
    }
    let journal = nginx.wait_for_journal(153).after(100);
    let waited = journal.0.iter().filter(|entry| entry.wait >= NO_WAIT).count();
    assert_eq!(waited, 3, "requests waited");
    redis.cont();
    closes(&nginx);
    decides(&nginx);
}

/// So many requests wait at most: the others do not.
#[test]
fn overload_is_refused_at_once() {
    const ALL: usize = 70_000;
    const WAITING: usize = 65_536;
    let mut redis = Redis::start();
    let nginx = limited(&redis.url(), "fail_timeout 60s;")
        .http2()
        .http("http2_max_concurrent_streams 10000;")
        .server("rate_limit_redis_on_error closed; rate_limit_redis_timeout 60s;")
        // The clients differ: equal requests would be coalesced.
        .server("location = /own { rate_limit_redis $request_id rate=9r/h name=own;")
        .server("try_files /index.html =404; }")
        .start_connected(&redis);
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
