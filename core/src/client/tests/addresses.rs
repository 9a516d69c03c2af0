//! The addresses of a server.

use super::*;

fn address(host: u8) -> Target {
    Target::Ip(SocketAddr::from(([10, 0, 0, host], 6_379)))
}

impl Played {
    /// Where it connects to in this turn.
    fn dialed(&mut self) -> Vec<Target> {
        let target = |action| match action {
            Action::Connect(_, target) => Some(target),
            _ => None,
        };
        self.turn().into_iter().filter_map(target).collect()
    }

    /// The attempt to connect fails; where it connects to then, at once or later.
    fn refuse(&mut self) -> Target {
        let key = self.connection();
        self.client.on_lost(key, &Fault::Connect("refused".to_owned()), self.now);
        self.next_dialed()
    }

    fn next_dialed(&mut self) -> Target {
        for _ in 0..100 {
            if let [target] = &self.dialed()[..] {
                return target.clone();
            }
            self.now = self.client.timer().expect("a timer");
            self.client.on_timer(self.now);
        }
        panic!("it does not connect");
    }
}

/// The first address is that of a replica.
#[test]
fn an_address_that_serves_is_found() {
    let mut played = Played::with(|config| {
        config.servers[0].targets = vec![address(1), address(2)];
    });
    played.client.start(0);
    assert_eq!(played.dialed(), [address(1)]);
    played.accept_handshake();
    played.submit("a");
    played.turn();
    played.sent();
    played.receive("-READONLY You can't write against a read only replica.\r\n");
    assert_eq!(played.next_dialed(), address(2));
}

#[test]
fn the_announced_address_is_tried_beside_the_others() {
    let mut played = Played::new();
    let node = played.node();
    played.client.pool.nodes.get_mut(node).unwrap().on_announced(None, Some([10, 0, 0, 9].into()));
    played.client.start(0);
    assert_eq!(played.dialed(), [address(1)]);
    assert_eq!(played.refuse(), address(9));
    assert_eq!(played.refuse(), address(1));
    // One that is no other is not tried twice.
    played.client.pool.nodes.get_mut(node).unwrap().on_announced(None, Some([10, 0, 0, 1].into()));
    assert_eq!([(); 3].map(|()| played.refuse()), [(); 3].map(|()| address(1)));
}

/// The only node of a cluster, which announces its host name.
fn named() -> Played {
    named_with("*3\r\n:0\r\n:16383\r\n*2\r\n$6\r\nnode-a\r\n:6379\r\n")
}

/// The only node of a cluster, which lists this range of slots.
fn named_with(range: &str) -> Played {
    let mut played = Played::with(|config| {
        config.kind = Kind::Cluster;
        config.servers[0].endpoint = "redis://node-a:6379".parse().unwrap();
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    assert!(played.sent().contains("SLOTS"));
    played.receive(&format!("*1\r\n{range}"));
    played.turn();
    played
}

impl Played {
    /// The node of a command names itself as its owner, and its host is resolved anew.
    fn misplace(&mut self, resolved: Target) -> Vec<Action> {
        assert_eq!(self.sent_keys(), "a");
        self.receive(&format!("-MOVED {} node-a:6379\r\n", slot(b"rl:a:", b"a")));
        let actions = self.turn();
        let key = self.connection();
        self.client.on_resolved(key, vec![resolved], self.now);
        self.accept_handshake();
        self.turn();
        actions
    }
}

/// A redirection tells the name of a replica that has become a master, and no resolver knows it.
#[test]
fn a_replica_that_becomes_a_master_is_found_at_the_address_that_it_announces() {
    let replica = "*4\r\n$6\r\nnode-b\r\n:6379\r\n$1\r\nb\r\n*2\r\n$2\r\nip\r\n$8\r\n10.0.0.9\r\n";
    let master = "*2\r\n$6\r\nnode-a\r\n:6379\r\n";
    let mut played = named_with(&format!("*4\r\n:0\r\n:16383\r\n{master}{replica}"));
    let request = played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive(&format!("-MOVED {} node-b:6379\r\n", slot(b"rl:a:", b"a")));
    let actions = played.turn();
    let key = actions.iter().find_map(|action| match action {
        Action::Resolve { connection, host, .. } if host == "node-b" => Some(*connection),
        _ => None,
    });
    let key = key.unwrap_or_else(|| panic!("{actions:?}"));
    played.client.on_resolved(key, Vec::new(), played.now);
    let actions = played.turn();
    assert!(actions.contains(&Action::Connect(key, address(9))), "{actions:?}");
    assert_eq!(played.client.outcome(request), None);
}

/// The addresses of two nodes were swapped.
#[test]
fn a_node_that_redirects_to_itself_is_resolved_anew_and_the_command_waits_for_that() {
    let mut played = named();
    let request = played.submit("a");
    played.turn();
    let actions = played.misplace(address(2));
    let resolve = |it: &Action| matches!(it, Action::Resolve { host, .. } if host == "node-a");
    assert!(actions.iter().any(resolve), "{actions:?}");
    let line = "redis node-a:6379: the node redirects to itself, reconnecting".to_owned();
    assert!(actions.contains(&Action::Log(Level::Notice, line)), "{actions:?}");
    assert_eq!(played.client.outcome(request), None);
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
}

#[test]
fn all_that_a_node_redirects_to_itself_waits_for_the_new_connection() {
    let mut played = named();
    let requests = ["a", "b"].map(|key| played.submit(key));
    played.turn();
    assert_eq!(played.sent_keys(), "a b");
    played.receive_at_once(&"-MOVED 1 node-a:6379\r\n".repeat(2));
    played.turn();
    let key = played.connection();
    played.client.on_resolved(key, vec![address(2)], played.now);
    played.accept_handshake();
    played.turn();
    assert_eq!(played.sent_keys(), "a b");
    assert_eq!(requests.map(|request| played.client.outcome(request)), [None, None]);
}

#[test]
fn a_node_that_always_redirects_to_itself_is_given_up() {
    let mut played = named();
    let request = played.submit("a");
    played.turn();
    for _ in 0..6 {
        assert_eq!(played.client.outcome(request), None);
        played.misplace(address(1));
    }
    assert_eq!(played.client.outcome(request), Some(Err(Error::Refused)));
}

/// Several servers have one name.
#[test]
fn another_server_of_a_host_that_redirects_to_itself_is_tried() {
    let mut played = named();
    let node = played.node();
    played.client.pool.nodes.get_mut(node).unwrap().targets = vec![address(1), address(2)];
    played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive("-MOVED 1 node-a:6379\r\n");
    played.turn();
    let key = played.connection();
    played.client.on_resolved(key, vec![address(1), address(2)], played.now);
    assert_eq!(played.dialed(), [address(2)]);
}

/// A resolver's answers have no order. The first address is that of a replica.
#[test]
fn addresses_are_tried_in_turn_in_whatever_order_they_are_resolved() {
    for resolved in [[1, 2, 3], [2, 3, 1], [3, 1, 2]] {
        let mut played = named();
        let (node, key) = (played.node(), played.connection());
        played.client.pool.nodes.get_mut(node).unwrap().targets = [1, 2, 3].map(address).into();
        played.submit("a");
        played.turn();
        played.sent();
        played.receive("-READONLY You can't write against a read only replica.\r\n");
        let is_resolve = |it: &Action| matches!(it, Action::Resolve { .. });
        while !played.turn().iter().any(is_resolve) {
            played.now = played.client.timer().unwrap();
            played.client.on_timer(played.now);
        }
        played.client.on_resolved(key, resolved.map(address).into(), played.now);
        assert_eq!(played.next_dialed(), address(2), "{resolved:?}");
        assert_eq!([(); 2].map(|()| played.refuse()), [3, 1].map(address), "{resolved:?}");
    }
}

#[test]
fn each_address_is_tried_while_another_connection_resolves_the_host() {
    let mut played = Played::with(|config| {
        config.servers[0].endpoint = "redis://redis:6379".parse().unwrap();
        config.servers[0].targets = Vec::new();
        config.connections = 2;
    });
    played.client.start(0);
    let [first, second] = [0, 1].map(|at| played.client.pool.connections.keys().nth(at).unwrap());
    played.client.on_resolved(first, [1, 2].map(address).into(), 0);
    played.take();
    assert_eq!(played.dialed(), [address(1)]);
    played.client.on_resolved(second, [2, 1].map(address).into(), 0);
    played.turn();
    assert_eq!(played.refuse(), address(2));
}
