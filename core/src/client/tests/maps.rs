//! Maps that equal the one in use.

use super::*;
use crate::client::topology::Layout;
use crate::redis::reply;

impl Played {
    /// Whether a reply of one of two nodes is the map in use.
    fn is_known(&self, at: usize, map: &str) -> bool {
        let node = self.client.nodes().nth(at).and_then(|key| self.client.node(key)).unwrap();
        let reply = reply::parse(map.as_bytes()).unwrap();
        matches!(self.client.discovery.topology.read(&reply, node).unwrap(), Layout::SameSlots)
    }
}

/// The node that is queried has the first half, and does not know its own address.
const OWN_HALF: &str = "*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$-1\r\n:6379\r\n\
                     *3\r\n:8192\r\n:16383\r\n*2\r\n$8\r\n10.0.0.2\r\n:6379\r\n";

#[test]
fn the_map_in_use_is_known_from_whichever_node() {
    let (played, _) = halves();
    assert!(played.is_known(0, HALVES) && played.is_known(1, HALVES));
    assert!(!played.is_known(0, &map(&[(0, 16_383, 1)])));
}

#[test]
fn a_map_without_an_address_is_known_only_from_the_same_node() {
    let (mut played, _) = halves();
    while {
        played.wait(13_000 * MILLISECOND);
        played.queried() != Some(0)
    } {
        played.receive(HALVES);
        played.turn();
    }
    played.receive(OWN_HALF);
    played.turn();
    assert_eq!([played.owner(0), played.owner(8_192)], ["10.0.0.1:6379", "10.0.0.2:6379"]);
    assert!(played.is_known(0, OWN_HALF) && !played.is_known(1, OWN_HALF));
}

/// The first node has redirected a command to the second one (`MOVED` or `ASK`), which has been sent it. Returns its slot, too.
fn redirected(code: &str) -> (Played, u16) {
    let (mut played, key) = halves();
    let slot = slot(b"rl:a:", key.as_bytes());
    played.submit_to_first(key);
    played.receive(&format!("-{code} {slot} 10.0.0.2:6379\r\n"));
    played.turn();
    played.at = 1;
    assert_eq!(played.sent_keys(), key);
    (played, slot)
}

/// The node that has replied may not know yet what the redirection knows, but it is believed.
#[test]
fn the_map_in_use_counts_again_after_a_redirection() {
    let (mut played, slot) = redirected("MOVED");
    played.receive(FOUND);
    assert_eq!(played.owner(slot), "10.0.0.2:6379");
    assert!(!played.is_known(0, HALVES));
    played.wait_for_query();
    assert_eq!(played.owner(slot), "10.0.0.1:6379");
    assert!(played.is_known(0, HALVES));
}

/// The node redirects the command that follows, which is no cause.
#[test]
fn a_node_that_refuses_asking_is_told() {
    for refusal in ["NOPERM no", "ERR unknown command 'ASKING'"] {
        let (mut played, _) = redirected("ASK");
        played.receive(&format!("-{refusal}\r\n"));
        let (actions, told) = (played.turn(), format!("refused ASKING: \"{refusal}\""));
        let is_told = |it: &Action| matches!(it, Action::Warn(_, line) if *line == told);
        assert!(actions.iter().any(is_told), "{actions:?}");
    }
}

/// The reply to the command says so as well.
#[test]
fn a_node_that_is_not_ready_for_asking_is_told_once() {
    let (mut played, _) = redirected("ASK");
    played.receive("-LOADING it\r\n-LOADING it\r\n");
    let actions = played.turn();
    assert!(!actions.iter().any(|action| matches!(action, Action::Warn(..))), "{actions:?}");
    assert!(actions.iter().any(|action| matches!(action, Action::Down(..))), "{actions:?}");
}

/// Nodes that the map does not list are retired each time.
#[test]
fn a_node_that_a_redirection_has_added_goes_with_the_map_in_use() {
    let (mut played, key) = halves();
    let slot = slot(b"rl:a:", key.as_bytes());
    played.submit_to_first(key);
    played.receive(&format!("-ASK {slot} 10.0.0.3:6379\r\n"));
    played.turn();
    assert_eq!(played.client.pool.nodes.current().len(), 3);
    assert!(played.is_known(0, HALVES));
    played.wait_for_query();
    assert_eq!(played.client.pool.nodes.current().len(), 2);
}
