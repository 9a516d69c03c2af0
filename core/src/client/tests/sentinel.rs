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
                    self.receive("*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n");
                    self.receive(&format!("*2\r\n$8\r\n10.0.0.{host}\r\n$4\r\n6379\r\n"));
                    self.receive("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n");
                }
            }
            let due = self.client.timer().map_or(self.now, |at| at.max(self.now));
            self.now = due;
            self.client.on_timer(due);
        }
        queried
    }

    /// Connects to sentinels, and to masters that can be reached.
    fn connect(&mut self) {
        for action in self.turn() {
            let Action::Connect(key, target) = action else { continue };
            // The node may have been removed in the same turn.
            let position = self.client.connections.keys().position(|other| other == key);
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
        let master = self.client.topology.route(0).expect("a master");
        self.client.nodes.get(master).expect("its node").host()
    }
}

#[test]
fn one_that_does_not_know_the_master_counts_as_an_error() {
    for (reply, kind) in [("*-1", ErrorKind::Unfit), ("-NOPERM no", ErrorKind::Auth)] {
        let mut played = sentinels();
        played.connect();
        let is_queried = |sentinel: &usize| {
            played.at = *sentinel;
            played.sent().contains("GET-MASTER")
        };
        (0..SENTINELS.len()).find(is_queried).expect("a query");
        played.receive("*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n");
        played.receive(&format!("{reply}\r\n"));
        let node = played.client.connections.get(played.connection()).unwrap().node;
        assert_eq!(played.client.take_counts(node).unwrap().errors[kind as usize], 1, "{reply}");
    }
}

/// The one that is queried first does not know of the new master.
#[test]
fn all_are_queried_while_the_master_is_dead() {
    let queried = sentinels().refresh(40, [9; 3]);
    assert!((0..3).all(|it| queried.contains(&it)), "{queried:?}");
}

#[test]
fn one_that_has_missed_a_failover_is_not_believed() {
    for stale in 0..3 {
        let mut played = sentinels();
        played.refresh(10, [8; 3]);
        assert_eq!(played.master(), "10.0.0.8");
        played.announce((stale + 1) % 3, 8, 9);
        let mut reported = [9; 3];
        reported[stale] = 8;
        let mut queried = Vec::new();
        for _ in 0..40 {
            assert_eq!(played.master(), "10.0.0.9", "{queried:?}");
            queried.extend(played.refresh(1, reported));
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

/// What it reports may be true for once.
#[test]
fn one_that_has_missed_two_failovers_misleads_once_at_most() {
    for stale in 0..3 {
        let mut played = sentinels();
        played.refresh(10, [7; 3]);
        played.announce((stale + 1) % 3, 7, 8);
        played.announce((stale + 1) % 3, 8, 9);
        let mut reported = [9; 3];
        reported[stale] = 7;
        let mut masters = vec![played.master().to_owned()];
        for _ in 0..80 {
            played.refresh(1, reported);
            masters.push(played.master().to_owned());
        }
        masters.dedup();
        let expected = ["10.0.0.9", "10.0.0.7", "10.0.0.9"];
        assert!(masters == expected[..1] || masters == expected, "{masters:?}");
    }
}

#[test]
fn a_new_master_is_used_at_once_though_only_one_knows_it() {
    let mut played = sentinels();
    played.refresh(10, [8; 3]);
    let mut rounds = 0;
    while played.master() != "10.0.0.9" {
        rounds += 1;
        assert!(rounds < 10, "it is not used");
        played.refresh(1, [8, 8, 9]);
    }
}

/// The announcement was missed, and one sentinel has missed the failover.
#[test]
fn a_former_master_is_the_master_again_if_most_report_it() {
    let mut played = sentinels();
    played.refresh(10, [8; 3]);
    played.refresh(10, [9; 3]);
    assert_eq!(played.master(), "10.0.0.9");
    played.refresh(10, [8, 9, 8]);
    assert_eq!(played.master(), "10.0.0.8");
}
