//! Changes of a client's state by an operator.

use super::*;
use crate::manage::{Change, ClientState};

impl Played {
    fn manage(&mut self, change: Change) -> RequestKey {
        let template = Rc::clone(&self.template);
        self.client.manage(&charge(&template, "a"), change, TIMEOUT, self.now)
    }
}

/// The reply of the script: nothing is held, and nothing is stored.
const NOTHING: &str = "$26\r\n1763683200 123456 \0\0\0\0\0\0\0\0\r\n";

#[test]
fn the_state_of_a_client_comes_with_the_reply() {
    let mut played = Played::ready();
    let key = played.manage(Change::Reset);
    played.turn();
    let sent = played.sent();
    assert!(sent.contains("rl:a:a") && sent.contains("reset"), "{sent}");
    assert_eq!((played.client.outcome(key), played.client.state(key)), (None, None));
    played.receive(NOTHING);
    assert_eq!(played.client.outcome(key), Some(Ok(())));
    let ClientState { remaining, now, .. } = played.client.state(key).unwrap();
    assert_eq!((remaining, now), (3, 1_763_683_200_123_456));
    played.client.release(key, false);
    assert!(played.client.is_idle());
}

#[test]
fn a_change_whose_reply_is_lost_is_not_made_again() {
    let mut played = Played::ready();
    let key = played.manage(Change::GiveBack(2));
    played.turn();
    assert!(played.sent().contains("give_back"));
    played.lose();
    assert_eq!(
        (played.client.outcome(key), played.client.state(key)),
        (Some(Err(Error::Lost)), None)
    );
}

#[test]
fn a_reply_that_says_nothing_of_a_client_is_an_error() {
    let mut played = Played::ready();
    let key = played.manage(Change::Look);
    played.turn();
    played.sent();
    played.receive(FOUND);
    assert_eq!(played.client.outcome(key), Some(Err(Error::Refused)));
    assert_eq!(played.client.state(key), None);
}

#[test]
fn a_change_is_not_coalesced_with_requests() {
    let mut played = Played::ready();
    played.submit("a");
    played.manage(Change::Block(SECOND));
    played.submit("a");
    played.turn();
    let sent = played.sent();
    assert_eq!(sent.matches("EVALSHA").count(), 2, "{sent}");
}
