//! Sentinel: the master is found by its name, and followed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::reply::{error, master_addr, no_master, switch_master};
use harness::{
    Act, Conf, Fake, Load, MASTER_NAME, Nginx, PATIENCE, Redis, SentinelConf, Sentinels, free_port,
    wait_until,
};

/// Longer than a request is decided in that does not wait for its timeout of 5 s, on any machine.
const NO_WAIT: Duration = Duration::from_millis(2_500);

fn limited(sentinels: &[String], lines: &str) -> Conf {
    let servers: String = sentinels.iter().map(|url| format!("server {url};\n")).collect();
    Conf::new()
        .http("rate_limit_redis_store edge {")
        .http(&format!("{servers} sentinel {MASTER_NAME};"))
        .http(&format!("connect_timeout 30s; {lines} }}"))
        .http("rate_limit_redis_pass edge; rate_limit_redis_timeout 5s;")
        .decisions()
        .journal()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=500000; }")
}

#[track_caller]
fn decides(nginx: &Nginx) {
    let decision = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, decision, "decisions");
}

#[track_caller]
fn decided(nginx: &Nginx) {
    for _ in 0..20 {
        assert_eq!(nginx.get("/?k=a").decision(), "PASSED redis");
    }
}

fn clients_of(redis: &harness::Redis) -> usize {
    let clients = redis.clients();
    clients.iter().filter(|line| line.contains("name=nginx_rate_limit_redis:")).count()
}

/// One test, because it takes seconds to start the servers.
#[test]
fn the_master_is_found_and_a_failover_is_followed() {
    let mut sentinels = Sentinels::start(1);
    let urls = sentinels.urls();

    // Each sentinel knows it, also if others are dead.
    sentinels.sentinel_mut(0).kill9();
    let mut nginx = limited(&urls, "connections 2;").workers(2).start();
    decides(&nginx);
    decided(&nginx);
    wait_until(PATIENCE, || clients_of(sentinels.server(0)) == 4, "two connections a worker");
    assert_eq!(clients_of(sentinels.server(1)), 0);
    assert!(nginx.logged(&format!("is the master of \"{MASTER_NAME}\"")).len() == 2);
    sentinels.sentinel_mut(0).restart();

    // A manual failover under load.
    let load = Load::start(nginx.addr(), "/?k=a", 4);
    wait_until(PATIENCE, || nginx.journal().count("PASSED") > 100, "decisions");
    assert_eq!(sentinels.failover(), 1);
    decides(&nginx);
    let tally = load.stop();
    assert!(tally.failures.is_empty() && tally.of(200) == tally.total(), "{tally:?}");
    wait_until(PATIENCE, || clients_of(sentinels.server(0)) == 0, "the old master to be left");

    // A reload finds the new master, and takes all connections with it.
    nginx.reload();
    decides(&nginx);
    let connected = || clients_of(sentinels.server(1)) == 4;
    wait_until(PATIENCE, connected, "two connections of each new worker");

    // A sentinel's connection is lost: another failover is noticed nevertheless.
    for sentinel in 0..3 {
        let _ =
            sentinels.sentinel(sentinel).try_command::<i32>(&["CLIENT", "KILL", "TYPE", "normal"]);
        let _ =
            sentinels.sentinel(sentinel).try_command::<i32>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    decided(&nginx);

    // All sentinels are down: the master goes on deciding.
    (0..3).for_each(|sentinel| sentinels.sentinel_mut(sentinel).kill9());
    sleep(Duration::from_millis(300));
    decided(&nginx);
    // Far less than the time for connecting, 30 s.
    let start = Instant::now();
    nginx.quit();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

/// A worker is connected to one of the sentinels. Nothing is wrong with the others.
#[test]
fn no_breaker_is_open_for_a_sentinel() {
    let sentinels = Sentinels::start(1);
    let metrics = "location = /metrics { rate_limit_redis_metrics; }";
    let nginx = limited(&sentinels.urls(), "").server(metrics).start();
    decides(&nginx);
    let response = nginx.get("/metrics");
    let page = response.text();
    let breakers: Vec<_> = page.lines().filter(|line| line.contains("breaker_open{")).collect();
    assert_eq!(breakers.len(), 4, "three sentinels and the master: {page}");
    assert!(breakers.iter().all(|line| line.ends_with(" 0")), "{breakers:#?}");
}

#[test]
fn a_master_that_is_killed_under_load_is_replaced() {
    let mut sentinels = Sentinels::start(1);
    let nginx = limited(&sentinels.urls(), "").workers(2).start();
    decides(&nginx);
    let load = Load::start(nginx.addr(), "/?k=a", 4);
    wait_until(PATIENCE, || nginx.journal().count("PASSED") > 100, "decisions");
    sentinels.kill9_master();
    wait_until(PATIENCE, || sentinels.master() == 1, "a promotion");
    decides(&nginx);
    let tally = load.stop();
    assert!(tally.failures.is_empty() && tally.of(200) == tally.total(), "{tally:?}");
    let most = nginx.journal().percentile(100);
    assert!(most < NO_WAIT, "{most:?}");
    let errors = nginx.logged("[error]");
    assert!((1..=8).contains(&errors.len()), "{errors:#?}");
}

/// The master becomes a replica behind the back of the sentinels: it answers READONLY, and is left.
#[test]
fn a_stale_master_is_left_at_once() {
    let sentinels = SentinelConf::new(1)
        .line("user default off")
        .line("user limiter on >secret ~rl:* +@all")
        .sentinel_line("requirepass guarded")
        .start();
    let urls: Vec<_> =
        sentinels.urls().iter().map(|url| url.replace("//", "//:guarded@")).collect();
    let nginx = limited(&urls, "user limiter; password secret;").start();
    decides(&nginx);
    decided(&nginx);
    let before = nginx.journal().0.len();
    sentinels.demote(0, 1);
    assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    nginx.wait_for_error_log("it cannot decide: \"READONLY");
    let followed = || nginx.get("/?k=a").decision() == "PASSED redis";
    wait_until(PATIENCE, followed, "decisions again");
    let most = nginx.journal().after(before).percentile(100);
    assert!(most < NO_WAIT, "{most:?}");
    for secret in ["secret", "guarded"] {
        assert_eq!(nginx.logged(secret), Vec::<String>::new());
    }
}

/// A sentinel that reports the master as long as the test lets it, and announces changes.
fn fake_sentinel(reply: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Fake {
    Fake::start(move |command| match command.name().as_str() {
        "SENTINEL" => Act::Reply(reply()),
        name @ ("SUBSCRIBE" | "UNSUBSCRIBE") => {
            let kind = name.to_lowercase();
            Act::Reply(harness::reply::array(&[
                harness::reply::bulk(&kind),
                harness::reply::bulk("+switch-master"),
                harness::reply::integer(1),
            ]))
        }
        _ => Act::Usual,
    })
}

#[test]
fn a_master_that_is_announced_is_followed_at_once() {
    let old = Fake::start(|_| Act::Usual);
    let new = Arc::new(Fake::start(|_| Act::Usual));
    let is_announced = Arc::new(AtomicBool::new(false));
    let port = old.port();
    // A query does not lead to the new master, as it is not answered before that is followed.
    let sentinel = fake_sentinel({
        let (new, is_announced) = (new.clone(), is_announced.clone());
        move || {
            if !is_announced.load(Ordering::Relaxed) {
                return master_addr("127.0.0.1", port);
            }
            wait_until(PATIENCE, || new.count("") > 0, "a connection to the new master");
            master_addr("127.0.0.1", new.port())
        }
    });
    let nginx = limited(&[sentinel.url()], "").start();
    decides(&nginx);
    let subscribed = || sentinel.count("SUBSCRIBE") > 0;
    wait_until(PATIENCE, subscribed, "a subscription");
    let other = switch_master("another", ("127.0.0.1", port), ("127.0.0.1", 1));
    sentinel.shout(&other);
    sleep(Duration::from_millis(50));
    decided(&nginx);
    assert_eq!(new.count("EVALSHA"), 0);
    let at = ("127.0.0.1", port);
    is_announced.store(true, Ordering::Relaxed);
    sentinel.shout(&switch_master(MASTER_NAME, at, ("127.0.0.1", new.port())));
    wait_until(PATIENCE, || new.count("") == 1, "a connection to the new master");
    let before = old.count("EVALSHA");
    decided(&nginx);
    assert_eq!((old.count("EVALSHA"), new.count("EVALSHA")), (before, 20));
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

/// A sentinel that announces one master and the other in turn, as fast as it can.
#[test]
fn a_flood_of_announcements_holds_up_no_request() {
    let masters = [(); 2].map(|()| Fake::start(|_| Act::Usual));
    let [first, second] = masters.each_ref().map(|master| ("127.0.0.1", master.port()));
    let sentinel = fake_sentinel(move || master_addr(first.0, first.1));
    let mut nginx = limited(&[sentinel.url()], "")
        .server("location = /free { return 204; }")
        .workers(1)
        .start();
    decides(&nginx);
    let switches = [(first, second), (second, first)]
        .map(|(old, new)| switch_master(MASTER_NAME, old, new))
        .concat()
        .repeat(500);
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                sentinel.shout(&switches);
            }
        });
        nginx.wait_for_error_log("the server sent too many messages");
        while start.elapsed() < Duration::from_secs(2) {
            assert_eq!(nginx.get("/free").status, 204);
            nginx.get("/?k=a");
        }
        // A few, and those that rounds of queries confirm.
        let lines = nginx.logged("is the master of").len();
        let seconds = start.elapsed().as_secs() as usize;
        assert!(lines < 40 + 4 * seconds, "{lines} in {seconds} s");
        nginx.quit();
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A worker that gets no announcements any more queries again.
#[test]
fn a_subscription_that_is_lost_is_made_again() {
    let (old, new) = (Fake::start(|_| Act::Usual), Fake::start(|_| Act::Usual));
    let now = Arc::new(AtomicU16::new(old.port()));
    let sentinel = fake_sentinel({
        let now = now.clone();
        move || master_addr("127.0.0.1", now.load(Ordering::Relaxed))
    });
    let nginx = limited(&[sentinel.url()], "").start();
    decides(&nginx);
    // A connection that lived for a second is made again at once.
    sleep(Duration::from_millis(1_100));
    let before = sentinel.count("SUBSCRIBE");
    now.store(new.port(), Ordering::Relaxed);
    // Nonsense ends the connection.
    sentinel.shout(b"?\r\n");
    wait_until(PATIENCE, || sentinel.count("SUBSCRIBE") > before, "another subscription");
    wait_until(PATIENCE, || new.count("") == 1, "a connection to the new master");
    decided(&nginx);
    assert_eq!(new.count("EVALSHA"), 20);
}

/// While the new master does not serve, all sentinels are queried.
#[test]
fn a_sentinel_that_has_missed_a_failover_does_not_lead_back() {
    /// A server that closes each connection while it is down.
    fn master(is_down: &Arc<AtomicBool>) -> Fake {
        let is_down = is_down.clone();
        Fake::start(move |_| match is_down.load(Ordering::Relaxed) {
            true => Act::Close(Vec::new()),
            false => Act::Usual,
        })
    }
    for stale in 0..3 {
        let [is_old_down, is_new_down] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (old, new) = (master(&is_old_down), master(&is_new_down));
        let sentinels = [0, 1, 2].map(|number| {
            let (is_over, [old, new]) = (is_old_down.clone(), [old.port(), new.port()]);
            let knows = move || number != stale && is_over.load(Ordering::Relaxed);
            fake_sentinel(move || master_addr("127.0.0.1", if knows() { new } else { old }))
        });
        let nginx = limited(&sentinels.each_ref().map(Fake::url), "").start();
        decides(&nginx);
        is_old_down.store(true, Ordering::Relaxed);
        old.hang_up();
        wait_until(PATIENCE, || new.count("") > 0, "a connection to the new master");
        decides(&nginx);

        is_new_down.store(true, Ordering::Relaxed);
        let queries = sentinels[stale].count("SENTINEL");
        new.hang_up();
        let queried = || sentinels[stale].count("SENTINEL") > queries + 2;
        wait_until(PATIENCE, queried, "queries");
        is_new_down.store(false, Ordering::Relaxed);
        decides(&nginx);
        // Its last connection to the old master may be counted late, where the machine is busy.
        let masters = nginx.logged("is the master of");
        assert_eq!(masters.len(), 2, "sentinel {stale} has led back: {masters:#?}");
    }
}

/// Two masters, of which the old one has lost its replicas, and one sentinel knows of no other.
#[test]
fn a_split_brain_ends() {
    let (old, new) = (Redis::start_with(&["min-replicas-to-write 1"]), Redis::start());
    let ports = [old.port(), new.port(), new.port()];
    let sentinels = ports.map(|port| fake_sentinel(move || master_addr("127.0.0.1", port)));
    let workers = 8;
    let nginx = limited(&sentinels.each_ref().map(Fake::url), "").workers(workers).start();
    wait_until(PATIENCE, || clients_of(&new) == workers, "all workers at the new master");
    assert_eq!(clients_of(&old), 0);
    decided(&nginx);
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn no_master_is_known() {
    let cases = [
        (no_master as fn() -> Vec<u8>, "it knows no master \"mymaster\""),
        (|| error("NOAUTH Authentication required."), "NOAUTH"),
        (|| error("ERR unknown command 'SENTINEL'"), "unknown command"),
        (|| b"+OK\r\n".into(), "malformed"),
        (|| master_addr("127.0.0.1", 0), "malformed"),
    ];
    for (reply, reason) in cases {
        let sentinel = fake_sentinel(reply);
        let nginx = limited(&[sentinel.url()], "").start();
        for _ in 0..50 {
            let start = Instant::now();
            assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
            assert!(start.elapsed() < NO_WAIT, "{:?}", start.elapsed());
        }
        let errors = nginx.logged("[error]");
        assert!(errors.len() == 1 && errors[0].contains(reason), "{reason}: {errors:#?}");
        assert!(errors[0].contains(&format!("redis 127.0.0.1:{}", sentinel.port())), "{errors:#?}");
    }
}

#[test]
fn all_sentinels_are_down() {
    let urls = [free_port(), free_port()].map(|port| format!("redis://127.0.0.1:{port}"));
    let nginx = limited(&urls, "").start();
    for _ in 0..50 {
        assert_eq!(nginx.get("/?k=a").decision(), "ERROR_PASSED none");
    }
    let errors = nginx.logged("is down: connect() failed (111: Connection refused)");
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert_eq!(nginx.logged("[error]").len(), 2);
}
