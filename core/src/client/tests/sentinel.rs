//! Three sentinels, and masters, of which only the [`REACHABLE`] ones accept connections.

use super::*;

const SENTINELS: [u8; 3] = [1, 2, 3];

/// The last bytes of their addresses.
const REACHABLE: [u8; 2] = [5, 6];

/// In place of the last byte: the sentinel closes the connection.
const NO_REPLY: u8 = 0;

fn sentinels() -> Played {
    let mut played = Played::with(|config| {
        config.kind = Kind::Sentinel("m".to_owned());
        config.servers = SENTINELS
            .map(|host| Server {
                endpoint: format!("redis://10.0.0.{host}:26379").parse().unwrap(),
                targets: vec![address(host)],
            })
            .into();
    });
    played.client.start(0);
    played
}

fn address(host: u8) -> Target {
    Target::Ip(SocketAddr::from(([10, 0, 0, host], 26_379)))
}

impl Played {
    /// Lets time pass until the timer has expired so many times. Each of the sentinels reports the host
    /// of a master. Returns which of them were queried, one after the other.
    fn refresh(&mut self, times: usize, reported: [u8; 3]) -> Vec<usize> {
        let mut queried = Vec::new();
        for _ in 0..times {
            self.connect();
            for (sentinel, host) in reported.into_iter().enumerate() {
                self.at = sentinel;
                if self.sent().contains("GET-MASTER") {
                    queried.push(sentinel);
                    if host == NO_REPLY {
                        self.lose();
                        continue;
                    }
                    self.reply(host);
                }
            }
            let due = self.client.timer().map_or(self.now, |at| at.max(self.now));
            self.now = due;
            self.client.on_timer(due);
        }
        queried
    }

    /// Lets time pass until a round of queries has led to a result.
    fn next_round(&mut self, reported: [u8; 3]) {
        let mut timers = 0;
        while self.refresh(1, reported).is_empty() {
            timers += 1;
            assert!(timers < 1_000, "no query");
        }
    }

    /// A sentinel replies that the master has this host.
    fn reply(&mut self, host: u8) {
        self.receive("*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n");
        self.receive(&format!("*2\r\n$8\r\n10.0.0.{host}\r\n$4\r\n6379\r\n"));
        self.receive("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n");
    }

    /// The next events happen at the connection to the first sentinel that is queried.
    fn at_queried(&mut self) {
        let is_queried = |sentinel: &usize| {
            self.at = *sentinel;
            self.sent().contains("GET-MASTER")
        };
        (0..SENTINELS.len()).find(is_queried).expect("a query");
    }

    /// The next events happen at the connection to the master.
    fn at_master(&mut self) {
        let master = self.client.discovery.topology.route(0);
        let is_it = |key| self.client.node_of(key) == master;
        self.at = self.client.pool.connections.keys().position(is_it).expect("a connection");
    }

    /// Connects to sentinels, and to masters that can be reached.
    fn connect(&mut self) {
        for action in self.turn() {
            let Action::Connect(key, target) = action else { continue };
            // The node may have been removed in the same turn.
            let position = self.client.pool.connections.keys().position(|other| other == key);
            let Some(connection) = position else { continue };
            self.at = connection;
            if !SENTINELS.map(address).contains(&target) {
                match target {
                    Target::Ip(SocketAddr::V4(it)) if REACHABLE.contains(&it.ip().octets()[3]) => {
                        self.accept_handshake();
                    }
                    _ => drop(self.lose()),
                }
                continue;
            }
            self.accept_handshake();
        }
        self.turn();
    }

    fn announce(&mut self, sentinel: usize, old: u8, new: u8) {
        self.at = sentinel;
        let payload = format!("m 10.0.0.{old} 6379 10.0.0.{new} 6379");
        let channel = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n";
        self.receive(&format!("{channel}${}\r\n{payload}\r\n", payload.len()));
    }

    fn master(&self) -> &str {
        let master = self.client.discovery.topology.route(0).expect("a master");
        self.client.pool.nodes.get(master).expect("its node").host()
    }
}

#[test]
fn one_that_does_not_know_the_master_counts_as_an_error() {
    for (reply, kind) in [("*-1", ErrorKind::Unfit), ("-NOPERM no", ErrorKind::Auth)] {
        let mut played = sentinels();
        played.connect();
        played.at_queried();
        played.receive("*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n");
        played.receive(&format!("{reply}\r\n"));
        let node = played.client.pool.connections.get(played.connection()).unwrap().node;
        assert_eq!(played.client.take_counts(node).unwrap().errors[kind as usize], 1, "{reply}");
    }
}

/// Commands that need the permission fail with other words, or not at all.
#[test]
fn one_that_refuses_a_subscription_is_told_and_counts_as_an_error() {
    let (unsubscribed, subscribed, master) = (
        "*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n",
        "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
        "*2\r\n$8\r\n10.0.0.5\r\n$4\r\n6379\r\n",
    );
    let refused = "-NOPERM no\r\n";
    // Once, though it is refused again.
    for replies in
        [[refused, master, subscribed], [refused, master, refused], [unsubscribed, master, refused]]
    {
        let mut played = sentinels();
        played.connect();
        played.at_queried();
        replies.into_iter().for_each(|reply| played.receive(reply));
        let node = played.client.pool.connections.get(played.connection()).unwrap().node;
        let actions = played.turn();
        let line = Action::Warn(node, "refused a subscription: \"NOPERM no\"".to_owned());
        let lines = actions.iter().filter(|action| **action == line).count();
        assert_eq!(lines, 1, "{actions:?}");
        let errors = played.client.take_counts(node).unwrap().errors;
        assert_eq!(errors[ErrorKind::Auth as usize], 1);
    }
}

#[test]
fn all_are_queried_at_once() {
    let mut played = sentinels();
    assert_eq!(played.refresh(1, [9; 3]), [0, 1, 2]);
    assert_eq!(played.master(), "10.0.0.9");
}

/// Announcements that it has made meanwhile were missed.
#[test]
fn one_that_is_connected_again_is_queried() {
    let mut played = sentinels();
    played.refresh(10, [5; 3]);
    for lost in SENTINELS.map(|host| usize::from(host - 1)) {
        played.at = lost;
        played.lose();
        played.accept_handshake();
        played.turn();
        assert!(played.sent().contains("GET-MASTER"), "{lost}");
        played.reply(5);
    }
}

/// Neither while the new master serves, nor while it does not.
#[test]
fn one_that_has_missed_failovers_is_not_believed() {
    let [old, new] = REACHABLE;
    for (stale, new) in (0..3).flat_map(|stale| [(stale, new), (stale, 9)]) {
        let mut played = sentinels();
        played.refresh(10, [old; 3]);
        for (from, to) in [(old, 8), (8, new)] {
            played.announce((stale + 1) % 3, from, to);
            assert_eq!(played.master(), format!("10.0.0.{from}"));
            played.announce((stale + 2) % 3, from, to);
            assert_eq!(played.master(), format!("10.0.0.{to}"));
        }
        let mut reported = [new; 3];
        reported[stale] = old;
        let mut queried = Vec::new();
        for _ in 0..40 {
            queried.extend(played.refresh(1, reported));
            assert_eq!(played.master(), format!("10.0.0.{new}"), "{queried:?}");
        }
        assert!(queried.contains(&stale), "{queried:?}");
    }
}

/// The others are lost.
#[test]
fn the_last_one_does_not_lead_away_from_a_master_that_serves() {
    let [old, new] = REACHABLE;
    let mut played = sentinels();
    played.refresh(10, [old; 3]);
    played.refresh(10, [new; 3]);
    let queried = played.refresh(20, [NO_REPLY, NO_REPLY, old]);
    assert!(queried.contains(&2) && played.master() == "10.0.0.6", "{queried:?}");
    // Most of them do.
    played.refresh(20, [NO_REPLY, old, old]);
    assert_eq!(played.master(), "10.0.0.5");
}

#[test]
fn the_last_one_leads_away_from_a_master_that_does_not_serve() {
    let [_, new] = REACHABLE;
    let mut played = sentinels();
    played.refresh(10, [8; 3]);
    played.refresh(60, [new, NO_REPLY, NO_REPLY]);
    assert_eq!(played.master(), "10.0.0.6");
}

/// The announcement was missed, and one sentinel has missed the failover.
#[test]
fn a_former_master_is_the_master_again_if_most_report_it() {
    let mut played = sentinels();
    played.refresh(10, [8; 3]);
    played.refresh(10, [9; 3]);
    assert_eq!(played.master(), "10.0.0.9");
    played.next_round([8, 9, 8]);
    assert_eq!(played.master(), "10.0.0.8");
}

/// Both masters accept connections, and the old one decides, or refuses writes for want of replicas.
#[test]
fn a_split_brain_ends_within_two_rounds() {
    let [old, new] = REACHABLE;
    let cases = [
        ([old, new, new], FOUND),
        ([old, new, NO_REPLY], "-NOREPLICAS Not enough good replicas to write.\r\n"),
        ([old, new, NO_REPLY], "-MISCONF Errors writing to the AOF file: no\r\n"),
        ([old, NO_REPLY, new], "-READONLY You can't write against a replica.\r\n"),
    ];
    let turned = |(mut reported, reply): ([u8; 3], _), turns| {
        reported.rotate_left(turns);
        (reported, reply)
    };
    let cases = cases.into_iter().flat_map(|case| (0..3).map(move |turns| turned(case, turns)));
    for (reported, reply) in cases {
        let mut played = sentinels();
        played.refresh(10, [old; 3]);
        let request = played.submit("a");
        played.turn();
        played.at_master();
        played.sent();
        played.receive(reply);
        played.client.release(request, false);
        (0..2).for_each(|_| played.next_round(reported));
        assert_eq!(played.master(), "10.0.0.6", "{reply}");
        played.refresh(20, reported);
        assert_eq!(played.master(), "10.0.0.6", "{reply}");
    }
}

/// There is no majority.
#[test]
fn two_that_disagree_are_tried_in_turn_until_a_master_serves() {
    let [_, new] = REACHABLE;
    for reported in [[8, new, NO_REPLY], [new, 8, NO_REPLY], [7, 8, new]] {
        let mut played = sentinels();
        played.refresh(10, [8; 3]);
        (0..10).for_each(|_| played.next_round(reported));
        assert_eq!(played.master(), "10.0.0.6", "{reported:?}");
    }
}

/// Two of the sentinels announce one and the other in turn.
#[test]
fn masters_that_are_announced_without_end_are_followed_a_few_times_and_by_rounds() {
    let [first, second] = REACHABLE;
    let mut played = sentinels();
    played.refresh(10, [first; 3]);
    let mut lines = 0;
    for turn in 0..100 {
        let (old, new) = if turn % 2 == 0 { (first, second) } else { (second, first) };
        (0..2).for_each(|sentinel| played.announce(sentinel, old, new));
        let is_line = |action: &&Action| matches!(action, Action::Log(..));
        lines += played.turn().iter().filter(is_line).count();
    }
    assert_eq!(lines, 11);
    played.next_round([second; 3]);
    assert_eq!(played.master(), "10.0.0.6");
    played.wait(SECOND);
    (0..2).for_each(|sentinel| played.announce(sentinel, second, first));
    assert_eq!(played.master(), "10.0.0.5", "it is followed at once again");
}

#[test]
fn one_that_announces_more_than_it_may_is_connected_anew() {
    let mut played = sentinels();
    played.refresh(10, [5; 3]);
    let mut messages = 0;
    let is_closed = |actions: &[Action]| actions.iter().any(|it| matches!(it, Action::Close(_)));
    while !is_closed(&played.turn()) {
        played.announce(0, 5, 5);
        messages += 1;
        assert!(messages < 10_000, "no end");
    }
    assert!(messages > 500, "{messages}");
    assert_eq!(played.master(), "10.0.0.5");
}
