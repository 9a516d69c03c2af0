//! Nodes of a cluster that redirect, or send invalid replies.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::reply::{Node, array, ask_redirect, cluster_slots, error, integer, moved};
use harness::{Act, Command, Conf, Dns, Fake, Nginx, PATIENCE, wait_until};

/// How long a request waits at most; a server that is silent for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of tests that wait for so long.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that a busy machine may add to that.
const LATE: Duration = Duration::from_secs(2);

fn limited(seeds: &[&Fake]) -> Conf {
    limited_for(TIMEOUT, seeds)
}

fn limited_for(timeout: Duration, seeds: &[&Fake]) -> Conf {
    let servers: String = seeds.iter().map(|fake| format!("server {};\n", fake.url())).collect();
    Conf::new()
        .http(&format!(
            "rate_limit_redis_store edge {{ {servers} cluster on; connect_timeout 30s; }}"
        ))
        .http("rate_limit_redis_pass edge;")
        .http(&format!("rate_limit_redis_timeout {}s;", timeout.as_secs()))
        .decisions()
        .journal()
        .server("location / { rate_limit_redis $arg_k rate=1r/h capacity=10; }")
        .server("location /two { rate_limit_redis $arg_a name=a rate=1r/h capacity=10;")
        .server("rate_limit_redis $arg_b name=b rate=1r/h capacity=10;")
        .server("try_files /index.html =404; }")
}

fn is_slots(command: &Command) -> bool {
    command.name() == "CLUSTER"
}

/// One node has all slots.
fn all_at(port: u16) -> Act {
    Act::Reply(cluster_slots(&[(0, 16_383, &[Node::v7(Some("127.0.0.1"), port, &[])])]))
}

/// Servers, the first of which owns all slots in the map of each. The script answers commands about
/// limits.
fn nodes(
    number: usize,
    script: impl Fn(usize, &[u16], &str) -> Act + Send + Sync + 'static,
) -> Vec<Fake> {
    Fake::several(number, move |n, ports, command| match command.key() {
        Some(key) => script(n, ports, key),
        None if is_slots(command) => all_at(ports[0]),
        None => Act::Usual,
    })
}

/// The commands that a server got, but for those of the greeting.
fn commands(fake: &Fake) -> Vec<String> {
    let names = fake.received().iter().map(Command::name).collect::<Vec<_>>();
    let is_of_a_limit = |name: &String| ["EVAL", "EVALSHA", "ASKING"].contains(&name.as_str());
    names.into_iter().filter(is_of_a_limit).collect()
}

/// How a request is decided, and that it is not hung.
#[track_caller]
fn decided(nginx: &Nginx, path: &str) -> String {
    decided_within(TIMEOUT, nginx, path)
}

#[track_caller]
fn decided_within(timeout: Duration, nginx: &Nginx, path: &str) -> String {
    let start = Instant::now();
    let decision = nginx.get(path).decision().to_owned();
    let took = start.elapsed();
    assert!(took < timeout + LATE, "{path} took {took:?}");
    decision
}

#[test]
fn moved_leads_to_a_node_that_is_not_in_the_map() {
    let fakes = nodes(2, |n, ports, _| match n {
        0 => Act::Reply(moved(1, "127.0.0.1", ports[1])),
        _ => Act::Usual,
    });
    let nginx = limited(&[&fakes[0]]).start();
    for _ in 0..3 {
        assert_eq!(decided(&nginx, "/?k=a"), "PASSED redis");
    }
    assert_eq!(nginx.logged("[error]"), Vec::<String>::new());
}

#[test]
fn moved_may_name_the_port_alone() {
    for host in ["", "?"] {
        let fakes = nodes(2, move |n, ports, _| match n {
            0 => Act::Reply(moved(1, host, ports[1])),
            _ => Act::Usual,
        });
        let nginx = limited(&[&fakes[0]]).start();
        assert_eq!(decided(&nginx, "/?k=a"), "PASSED redis", "{host:?}");
    }
}

#[test]
fn moved_in_a_circle_ends_undecided() {
    let fakes = nodes(2, |n, ports, _| Act::Reply(moved(1, "127.0.0.1", ports[1 - n])));
    let nginx = limited(&[&fakes[0]]).start();
    for _ in 0..20 {
        assert_eq!(decided(&nginx, "/?k=a"), "ERROR_PASSED none");
    }
    let count = commands(&fakes[0]).len() + commands(&fakes[1]).len();
    assert!((20..=20 * 6).contains(&count), "{count} commands");
    let errors = nginx.logged("[error]");
    assert!((1..=2).contains(&errors.len()), "{errors:#?}");
}

#[test]
fn moved_to_a_node_that_is_not_there_is_logged() {
    let port = harness::free_port();
    let fakes = nodes(1, move |_, _, _| Act::Reply(moved(1, "127.0.0.1", port)));
    let nginx = limited(&[&fakes[0]]).start();
    for _ in 0..20 {
        assert_eq!(decided(&nginx, "/?k=a"), "ERROR_PASSED none");
    }
    let errors = nginx.logged("[error]");
    assert!(
        errors.iter().any(|line| line.contains(&format!("127.0.0.1:{port} is down"))),
        "{errors:#?}"
    );
    assert!(errors.len() <= 4, "{errors:#?}");
}

#[test]
fn moved_to_ever_new_nodes_costs_few_queries() {
    // Addresses of this machine without a server.
    let number = std::sync::atomic::AtomicU16::new(0);
    let fakes = nodes(1, move |_, _, _| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Act::Reply(moved(1, &format!("127.1.{}.{}", number >> 8, number & 255), 1))
    });
    let start = Instant::now();
    let nginx = limited(&[&fakes[0]]).start();
    for _ in 0..500 {
        assert_eq!(decided(&nginx, "/?k=a"), "ERROR_PASSED none");
    }
    // Every 100 ms at most.
    let queries = fakes[0].count("CLUSTER") as u128;
    assert!(queries <= 2 + start.elapsed().as_millis() / 100, "{queries} queries");
}

#[test]
fn nonsense_in_a_redirection_is_logged_once() {
    for text in ["MOVED", "MOVED 1", "MOVED x 127.0.0.1:1", "MOVED 1 127.0.0.1", "ASK 99999 a:1"] {
        let fakes = nodes(1, move |_, _, _| Act::Reply(error(text)));
        let nginx = limited(&[&fakes[0]]).start();
        assert_eq!(decided(&nginx, "/?k=a"), "ERROR_PASSED none");
        let errors = nginx.logged("[error]");
        assert!(errors.len() == 1 && errors[0].contains(text), "{errors:#?}");
    }
}

#[test]
fn ask_may_be_followed_by_moved() {
    // The second one has got the slot meanwhile, from the third.
    let fakes = nodes(3, |n, ports, _| match n {
        0 => Act::Reply(ask_redirect(1, "127.0.0.1", ports[1])),
        1 => Act::Reply(moved(1, "127.0.0.1", ports[2])),
        _ => Act::Usual,
    });
    let nginx = limited(&[&fakes[0]]).start();
    assert_eq!(decided(&nginx, "/?k=a"), "PASSED redis");
    assert_eq!(commands(&fakes[1]), ["ASKING", "EVALSHA"]);
    assert_eq!(commands(&fakes[2]), ["EVALSHA"]);
}

/// Each command that follows ASK needs an ASKING of its own, also that with the script's source.
#[test]
fn asking_comes_before_the_source_too() {
    let fakes = Fake::several(2, |n, ports, command| match command.name().as_str() {
        "CLUSTER" => all_at(ports[0]),
        "EVALSHA" if n == 0 => Act::Reply(ask_redirect(1, "127.0.0.1", ports[1])),
        "EVALSHA" => Act::Reply(error("NOSCRIPT No matching script.")),
        _ => Act::Usual,
    });
    let nginx = limited(&[&fakes[0]]).start();
    for _ in 0..2 {
        assert_eq!(decided(&nginx, "/?k=a"), "PASSED redis");
    }
    assert_eq!(commands(&fakes[1]), ["ASKING", "EVALSHA", "ASKING", "EVAL"].repeat(2));
    assert_eq!(commands(&fakes[0]).len(), 2);
}

#[test]
fn tryagain_is_tried_until_the_time_is_over() {
    let fakes = nodes(1, |_, _, key| match key {
        "first" => Act::Usual,
        _ => Act::Reply(error("TRYAGAIN Multiple keys request")),
    });
    let nginx = limited_for(SHORT_TIMEOUT, &[&fakes[0]]).start();
    // The time to connect is not to be part of the time.
    let is_connected = || nginx.get("/?k=first").decision() == "PASSED redis";
    wait_until(PATIENCE, is_connected, "a decision");
    let before = commands(&fakes[0]).len();
    assert_eq!(decided_within(SHORT_TIMEOUT, &nginx, "/?k=a"), "ERROR_PASSED none");
    let count = commands(&fakes[0]).len() - before;
    assert!((11..700).contains(&count), "{count} commands");
}

/// The replies of a node in place of a map, and what is logged.
#[test]
fn a_reply_without_a_map_is_logged() {
    let node = || Node::v7(Some("127.0.0.1"), 1, &[]);
    let cases: [(Vec<u8>, &str); 7] = [
        (error("NOPERM this user has no permissions to run the 'cluster|slots' command"), "NOPERM"),
        (error("ERR This instance has cluster support disabled"), "cluster support disabled"),
        (array(&[]), "no node that has slots"),
        (integer(5), "invalid reply to CLUSTER SLOTS"),
        (b"+OK\r\n".into(), "invalid reply to CLUSTER SLOTS"),
        (cluster_slots(&[(5, 3, &[node()])]), "invalid reply to CLUSTER SLOTS"),
        (cluster_slots(&[(0, 16_384, &[node()])]), "invalid reply to CLUSTER SLOTS"),
    ];
    for (answer, reason) in cases {
        let fake = Fake::start(move |command| match is_slots(command) {
            true => Act::Reply(answer.clone()),
            false => Act::Usual,
        });
        let start = Instant::now();
        let nginx = limited(&[&fake]).start();
        for number in 0..100 {
            assert_eq!(decided(&nginx, &format!("/?k={number}")), "ERROR_PASSED none");
        }
        sleep(Duration::from_millis(500));
        let errors = nginx.logged("[error]");
        assert!((1..=2).contains(&errors.len()), "{reason}: {errors:#?}");
        assert!(errors.iter().any(|line| line.contains(reason)), "{reason}: {errors:#?}");
        // Every 100 ms at most.
        let queries = fake.count("CLUSTER") as u128;
        assert!(queries <= 2 + start.elapsed().as_millis() / 100, "{queries} queries");
    }
}

/// One node has no map; the other one has.
#[test]
fn a_node_without_a_map_gives_way_to_another() {
    let fakes = Fake::several(2, |n, ports, command| match (is_slots(command), n) {
        (true, 0) => Act::Reply(array(&[])),
        (true, _) => all_at(ports[1]),
        _ => Act::Usual,
    });
    let nginx = limited(&[&fakes[0], &fakes[1]]).start();
    for number in 0..20 {
        assert_eq!(decided(&nginx, &format!("/?k={number}")), "PASSED redis");
        sleep(Duration::from_millis(20));
    }
    assert!(fakes[0].count("EVALSHA") == 0 && fakes[1].count("EVALSHA") == 20);
}

/// A node that does not answer the topology query is not waited for.
#[test]
fn a_node_that_does_not_answer_is_not_waited_for() {
    let fakes = Fake::several(3, |n, ports, command| match (is_slots(command), n) {
        (true, 2) => all_at(ports[2]),
        (true, _) => Act::Ignore,
        _ => Act::Usual,
    });
    let seeds: Vec<_> = fakes.iter().collect();
    let nginx = limited_for(SHORT_TIMEOUT, &seeds).start();
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "decisions");
    for number in 0..20 {
        let path = format!("/?k={number}");
        assert_eq!(decided_within(SHORT_TIMEOUT, &nginx, &path), "PASSED redis");
    }
}

/// A map that takes longer to come than a request may wait is used when it comes, and is not asked for again
/// meanwhile.
#[test]
fn a_map_that_takes_long_is_used_when_it_comes() {
    const TAKES: Duration = Duration::from_millis(700);
    let fakes = Fake::several(1, |_, ports, command| match is_slots(command) {
        true => Act::After(TAKES, Box::new(all_at(ports[0]))),
        false => Act::Usual,
    });
    let nginx = limited(&[&fakes[0]]).http("rate_limit_redis_on_error closed;").start();
    wait_until(PATIENCE, || nginx.get("/?k=a").decision() == "PASSED redis", "decisions");
    assert_eq!(fakes[0].count("CLUSTER"), 1);
    assert_eq!(nginx.logged("[error]"), [""; 0]);
}

/// No node answers the query: that is logged, once.
#[test]
fn nodes_that_reply_nothing_are_logged_once() {
    let fake = Fake::start(|command| match is_slots(command) {
        true => Act::Ignore,
        false => Act::Usual,
    });
    let nginx = limited_for(SHORT_TIMEOUT, &[&fake]).start();
    nginx.wait_for_error_log("is down: no reply for 1000 ms");
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(decided_within(SHORT_TIMEOUT, &nginx, "/?k=a"), "ERROR_PASSED none");
    }
    let errors = nginx.logged("[error]");
    assert_eq!(errors.len(), 1, "{errors:#?}");
}

/// Redis 6.2 announces no names, and Redis 7 names first, if it is configured to. A node may not
/// know its own address.
#[test]
fn every_form_of_a_map_is_read() {
    type Form = fn(u16) -> Node;
    let forms: [Form; 5] = [
        |port| Node::v6("127.0.0.1", port),
        |port| Node::v7(Some("a.test"), port, &[("ip", "127.0.0.1")]),
        |port| Node::v7(None, port, &[]),
        |port| Node::v7(Some("?"), port, &[]),
        |port| Node::v7(Some(""), port, &[]),
    ];
    for form in forms {
        let fakes = Fake::several(2, move |_, ports, command| match is_slots(command) {
            true => Act::Reply(cluster_slots(&[
                (0, 8_191, &[form(ports[0])]),
                (8_192, 16_383, &[form(ports[1])]),
            ])),
            false => Act::Usual,
        });
        let nginx = limited(&[&fakes[0]]).start();
        for number in 0..20 {
            assert_eq!(decided(&nginx, &format!("/?k={number}")), "PASSED redis");
        }
        assert!(fakes.iter().all(|fake| fake.count("EVALSHA") > 3));
    }
}

/// The nodes of the script, which know each other by name only.
fn named() -> Vec<Fake> {
    Fake::several(2, |_, ports, command| match is_slots(command) {
        true => Act::Reply(cluster_slots(&[
            (0, 8_191, &[Node::v6("a.test", ports[0])]),
            (8_192, 16_383, &[Node::v6("B.test", ports[1])]),
        ])),
        false => Act::Usual,
    })
}

#[test]
fn nodes_known_by_name_are_resolved() {
    let fakes = named();
    let dns = Dns::start();
    dns.set("a.test", &["127.0.0.1"]);
    dns.set("b.test", &["127.0.0.1"]);
    let nginx = limited(&[&fakes[0]]).http(&format!("resolver {} ipv6=off;", dns.addr())).start();
    for number in 0..20 {
        assert_eq!(decided(&nginx, &format!("/?k={number}")), "PASSED redis");
    }
    assert!(fakes.iter().all(|fake| fake.count("EVALSHA") > 3));
}

#[test]
fn nodes_whose_names_cannot_be_resolved_are_down() {
    let fakes = named();
    let nginx = limited(&[&fakes[0]]).start();
    for number in 0..20 {
        assert_eq!(decided(&nginx, &format!("/?k={number}")), "ERROR_PASSED none");
    }
    let errors = nginx.logged("is down: its host name cannot be resolved");
    assert_eq!(errors.len(), 2, "{errors:#?}");
}

/// A request of two limits: one node rejects, the other gives back, whatever it is.
#[test]
fn what_was_charged_is_given_back_while_a_slot_moves() {
    // An empty bucket, filled at this moment.
    const REJECTED: &[u8] = b"$37\r\n1763683200 0 \
        \0\0\0\0\0\0\0\0\0\xe0\xa1~\x0fD\x06\0\0\0\0\0\0\0\0\0\r\n";
    let fakes = nodes(2, |n, ports, key| match (n, key) {
        (_, "b") => Act::Reply(REJECTED.into()),
        (0, _) => Act::Reply(ask_redirect(1, "127.0.0.1", ports[1])),
        _ => Act::Usual,
    });
    let nginx = limited(&[&fakes[0]]).start();
    assert_eq!(decided(&nginx, "/two?a=a&b=b"), "REJECTED redis");
    let given = || commands(&fakes[1]) == ["ASKING", "EVALSHA"].repeat(2);
    wait_until(PATIENCE, given, "what was spent to be given back");
}
