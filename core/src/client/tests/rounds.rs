//! The rounds of topology queries: how long a node may take, and how soon they follow each other.

use super::*;
use crate::metrics::QueryResult;

const SECOND: u64 = 1_000 * MILLISECOND;

/// How many masters there are; each has as many slots.
const MASTERS: u16 = 8;

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
                    let position = self.client.connections.keys().position(|other| other == key);
                    self.at = position.unwrap();
                    self.accept_handshake();
                    is_over = false;
                }
            }
            for at in 0..self.client.connections.keys().count() {
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
    assert!(played.client.topology.route(0).is_some());
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

/// What is wrong is found soon, and what is right is used at once.
#[test]
fn a_hole_that_is_filled_is_found_within_a_second() {
    let mut played = Played::of_cluster();
    while played.now < 20 * SECOND {
        played.serve(&map(Some(0)), FOUND);
        played.wait(played.client.timer().unwrap().saturating_sub(played.now));
    }
    assert!(played.client.topology.route(0).is_none() && played.client.topology.route(1).is_some());
    let filled = played.now;
    while played.client.topology.route(0).is_none() {
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
        config.patience = 5 * SECOND;
        config.fail_timeout = 5 * SECOND;
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    // What becomes of the next query of the first node, which replies after so long, or is lost.
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
