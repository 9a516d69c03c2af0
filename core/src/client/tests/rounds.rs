//! The rounds of topology queries: how long a node may take, and how soon they follow each other.

use super::*;
use crate::metrics::QueryResult;

const SECOND: u64 = 1_000 * MILLISECOND;

/// How many masters there are; each has as many slots.
const MASTERS: u16 = 8;

/// A map of one master.
const OF_ONE: &str = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$8\r\n10.0.0.1\r\n:6379\r\n";

/// A map of all masters, in which this slot has no owner.
fn map(orphan: Option<u16>) -> String {
    let size = 16_384 / MASTERS;
    let node = |master: u16| format!("*2\r\n$8\r\n10.0.0.{}\r\n:6379\r\n", master + 1);
    let ranges = (0..MASTERS).map(|master| {
        let first = master * size + u16::from(orphan == Some(master * size));
        format!("*3\r\n:{first}\r\n:{}\r\n{}", (master + 1) * size - 1, node(master))
    });
    format!("*{MASTERS}\r\n{}", ranges.collect::<String>())
}

impl Played {
    /// A client of a cluster that has begun to connect.
    fn of_cluster() -> Self {
        let mut played = Self::with(|config| config.kind = Kind::Cluster);
        played.client.start(0);
        played
    }

    /// Accepts connections, and answers commands: those about limits as `reply` says. Returns how many
    /// topology queries there were.
    fn serve(&mut self, map: &str, reply: &str) -> usize {
        let mut queries = 0;
        let mut is_over = false;
        while !std::mem::replace(&mut is_over, true) {
            for action in self.turn() {
                if let Action::Connect(key, _) = action {
                    let position =
                        self.client.pool.connections.keys().position(|other| other == key);
                    self.at = position.unwrap();
                    self.accept_handshake();
                    is_over = false;
                }
            }
            for at in 0..self.client.pool.connections.keys().count() {
                self.at = at;
                let sent = self.sent();
                let found = sent.matches("SLOTS").count();
                let commands = sent.matches("\r\nEVALSHA\r\n").count();
                is_over &= found + commands == 0;
                queries += found;
                (0..found).for_each(|_| self.receive_at_once(map));
                (0..commands).for_each(|_| self.receive_at_once(reply));
            }
        }
        queries
    }
}

/// The map of a large cluster on a busy server.
#[test]
fn a_map_may_take_longer_than_connecting() {
    let mut played = Played::of_cluster();
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    let request = played.submit("a");
    played.turn();
    for _ in 0..9 {
        played.wait(100 * MILLISECOND);
        assert_eq!(played.sent(), "");
    }
    played.receive_at_once(&map(None));
    assert!(played.client.discovery.topology.route(0).is_some());
    played.client.release(request, false);
}

/// Nobody owns a slot, for as long as may be. With and without requests for it.
#[test]
fn a_lasting_hole_takes_two_queries_a_second() {
    for has_traffic in [false, true] {
        let mut played = Played::of_cluster();
        let map = map(Some(0));
        let mut queries = vec![0; 60];
        while played.now < 60 * SECOND {
            queries[(played.now / SECOND) as usize] +=
                played.serve(&map, "-CLUSTERDOWN Hash slot not served\r\n");
            let next = (played.now + 50 * MILLISECOND).min(played.client.timer().unwrap());
            if has_traffic {
                let request = played.submit("a");
                played.serve(&map, "-CLUSTERDOWN Hash slot not served\r\n");
                played.client.release(request, false);
            }
            played.wait(next.saturating_sub(played.now));
        }
        assert!(queries[0] <= 12, "{queries:?}");
        assert!(queries[3..].iter().all(|count| (1..=2).contains(count)), "{queries:?}");
    }
}

/// A map with a hole is used at once, and one without it is found soon.
#[test]
fn a_hole_that_is_filled_is_found_within_a_second() {
    let mut played = Played::of_cluster();
    while played.now < 20 * SECOND {
        played.serve(&map(Some(0)), FOUND);
        played.wait(played.client.timer().unwrap().saturating_sub(played.now));
    }
    assert!(
        played.client.discovery.topology.route(0).is_none()
            && played.client.discovery.topology.route(1).is_some()
    );
    let filled = played.now;
    while played.client.discovery.topology.route(0).is_none() {
        played.wait(played.client.timer().unwrap().saturating_sub(played.now));
        played.serve(&map(None), FOUND);
    }
    assert!(played.now <= filled + SECOND, "{} µs", played.now - filled);
}

/// Each query is counted once, when its reply comes or will not come any more.
#[test]
fn queries_are_counted_by_result() {
    let results = |actions: &[Action]| -> Vec<QueryResult> {
        let result = |action: &Action| match action {
            Action::Queried(_, result) => Some(*result),
            _ => None,
        };
        actions.iter().filter_map(result).collect()
    };
    let mut played = Played::with(|config| {
        config.kind = Kind::Cluster;
        // A server that owes a reply for less is not considered dead.
        config.longest_timeout = 5 * SECOND;
        config.fail_timeout = 5 * SECOND;
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    // The result of the next query of the first node, which replies after so long, or is lost.
    let mut reply = |after: u64, reply: Option<&str>| {
        let mut actions = Vec::new();
        while !played.sent().contains("SLOTS") {
            let span = played.client.timer().unwrap().saturating_sub(played.now);
            actions.extend(played.wait(span));
        }
        if after > 0 {
            actions.extend(played.wait(after));
        }
        match reply {
            Some(reply) => played.receive_at_once(reply),
            None => actions.extend(played.lose()),
        }
        actions.extend(played.turn());
        results(&actions)
    };
    let (whole, hole) = (map(None), map(Some(0)));
    assert_eq!(reply(0, Some(&hole)), [QueryResult::Used]);
    assert_eq!(reply(SECOND / 2, Some(&hole)), [QueryResult::Unchanged]);
    assert_eq!(
        reply(0, Some("-ERR This instance has cluster support disabled\r\n")),
        [QueryResult::Failed]
    );
    assert_eq!(reply(2 * SECOND, Some(&hole)), [QueryResult::Late]);
    assert_eq!(reply(2 * SECOND, Some(&whole)), [QueryResult::Used]);
    assert_eq!(reply(0, None), [QueryResult::Failed]);
}

impl Played {
    /// Lets time pass until a node is queried, and then until its connection is given up. Returns how long that
    /// takes, in seconds.
    fn seconds_without_a_map(&mut self) -> u64 {
        let mut actions = self.turn();
        let mut queried = None;
        loop {
            assert!(self.now < 1_000 * SECOND, "it is not given up");
            if Self::is_connecting(&actions) {
                self.accept_handshake();
                self.turn();
            }
            if self.sent().contains("SLOTS") {
                queried = Some(self.now);
            }
            actions = self.wait(self.client.timer().unwrap().saturating_sub(self.now));
            if let Some(queried) = queried
                && actions.contains(&Action::Close(self.connection()))
            {
                return (self.now - queried) / SECOND;
            }
        }
    }
}

#[test]
fn a_map_that_did_not_come_gets_more_time_until_others_come() {
    let mut played = Played::of_cluster();
    assert_eq!([(); 5].map(|()| played.seconds_without_a_map()), [1, 2, 4, 8, 8]);
    let mut answered = 0;
    while answered < 2 {
        played.now = played.client.timer().unwrap().max(played.now);
        played.client.on_timer(played.now);
        answered += played.serve(OF_ONE, FOUND);
        assert!(played.now < 1_000 * SECOND, "no query");
    }
    assert_eq!(played.seconds_without_a_map(), 2);
}

/// It has replied to nothing for longer, but a command may take as long.
#[test]
fn a_query_that_has_timed_out_is_logged_once_and_counts_when_it_is_answered() {
    let mut played = Played::with(|config| {
        config.kind = Kind::Cluster;
        config.fail_timeout = 100 * SECOND;
        config.longest_timeout = 100 * SECOND;
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    let mut lines = Vec::new();
    while played.now < 30 * SECOND {
        let timer = played.client.timer().unwrap();
        lines.extend(played.wait(timer.saturating_sub(played.now)).into_iter().filter_map(
            |action| match action {
                Action::Warn(_, what) => Some(what),
                _ => None,
            },
        ));
        assert_eq!(played.sent(), "", "another query");
    }
    assert_eq!(lines, ["topology query timed out: no reply within 1000 ms"]);
    played.receive_at_once(&map(None));
    assert!(played.client.discovery.topology.route(0).is_some());
}

/// The configuration names a node that is gone, and one that has all slots.
#[test]
fn a_seed_that_is_gone_and_owns_nothing_is_no_outage() {
    let mut tries = 0;
    for seed in 0..8 {
        let mut played = Played::with(|config| {
            config.kind = Kind::Cluster;
            config.seed = seed;
            config.servers.insert(
                0,
                Server {
                    endpoint: "redis://10.0.0.9:6379".parse().unwrap(),
                    targets: vec![Target::Ip(SocketAddr::from(([10, 0, 0, 9], 6_379)))],
                },
            );
        });
        played.client.start(0);
        let gone = played.client.pool.nodes.seeds()[0];
        let (mut lines, mut attempts) = (0, Vec::new());
        while played.now < 60 * SECOND {
            for action in played.turn() {
                match action {
                    Action::Connect(key, _) => {
                        let is_gone = played.client.node_of(key) == Some(gone);
                        played.at = usize::from(!is_gone);
                        match is_gone {
                            true => {
                                attempts.push(played.now);
                                let fault = Fault::Connect("refused".to_owned());
                                played.client.on_lost(key, &fault, played.now);
                            }
                            false => played.accept_handshake(),
                        }
                    }
                    Action::Down(node, ..) => {
                        assert_eq!(node, gone);
                        lines += 1;
                    }
                    _ => {}
                }
            }
            played.at = 1;
            if played.sent().contains("SLOTS") {
                played.receive_at_once(OF_ONE);
            }
            let next = played.client.timer().unwrap().max(played.now + 1);
            played.now = next;
            played.client.on_timer(next);
        }
        assert!(lines <= 1, "{lines} lines");
        assert_eq!(played.client.node(gone).unwrap().view(), View::default(), "seed {seed}");
        tries += attempts.len();
        assert!(attempts.iter().all(|at| *at < SECOND), "{attempts:?}");
    }
    assert!(tries > 0, "it was tried first by none");
}
