//! The connections of a worker that is leaving, while its requests have reservations.

use super::*;

/// A client that is connected and leaving, with so many reservations.
fn leaving_with(reservations: usize) -> Played {
    let mut played = Played::ready();
    played.exchange();
    (0..reservations).for_each(|_| played.client.reserve());
    leave(&mut played, None);
    played
}

fn closes(played: &mut Played) -> bool {
    played.turn().contains(&Action::Close(played.connection()))
}

/// The results of the settlements that have ended.
fn settled(actions: &[Action]) -> Vec<bool> {
    let result = |action: &Action| match action {
        Action::Settled { is_settled, .. } => Some(*is_settled),
        _ => None,
    };
    actions.iter().filter_map(result).collect()
}

/// Waits for so long, with each timer on the way.
fn wait_for(played: &mut Played, micros: u64) -> Vec<Action> {
    let end = played.now + micros;
    let mut actions = Vec::new();
    while let Some(at) = played.client.timer().filter(|at| *at <= end) {
        actions.extend(played.wait(at.saturating_sub(played.now)));
    }
    actions.extend(played.wait(end - played.now));
    actions
}

#[test]
fn all_settlements_go_over_the_connection_that_there_is() {
    let mut played = leaving_with(60);
    for number in 1..=60 {
        assert!(!played.client.keeps_worker(), "the requests keep it, the connection does not");
        played.wait(2 * SECOND);
        played.settle(3);
        let actions = played.turn();
        assert!(!Played::is_connecting(&actions) && settled(&actions).is_empty());
        assert_eq!(played.sent_keys(), "a");
        assert!(played.client.keeps_worker());
        played.receive(FOUND);
        let actions = played.turn();
        assert_eq!(settled(&actions), [true]);
        let is_last = number == 60;
        assert_eq!(actions.contains(&Action::Close(played.connection())), is_last, "{number}");
    }
    assert!(!played.client.keeps_worker());
}

#[test]
fn the_connection_is_closed_when_the_last_reservation_stands() {
    let mut played = leaving_with(2);
    played.client.stand();
    assert!(!closes(&mut played));
    played.client.stand();
    assert!(closes(&mut played));
}

#[test]
fn without_reservations_it_is_closed_at_once() {
    let mut played = Played::ready();
    played.client.reserve();
    played.client.stand();
    played.turn();
    played.client.leave(None, played.now);
    assert!(closes(&mut played));
}

/// A request has its reservation in the turn in which its reply comes.
#[test]
fn a_request_that_waits_may_have_a_reservation() {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.turn();
    played.sent();
    leave(&mut played, None);
    played.receive(FOUND);
    // The turn of the reply has ended, and the request goes on in the next one.
    assert!(!closes(&mut played));
    played.client.release(request, false);
    played.client.reserve();
    assert!(!closes(&mut played));
    played.settle(0);
    assert!(closes(&mut played));
}

#[test]
fn a_request_without_a_reservation_needs_it_no_more_when_it_is_released() {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.turn();
    played.sent();
    leave(&mut played, None);
    played.receive(FOUND);
    assert!(!closes(&mut played));
    played.client.release(request, false);
    assert!(closes(&mut played));
}

#[test]
fn a_connection_that_is_lost_is_made_again_while_there_are_reservations() {
    let mut played = leaving_with(1);
    assert!(Played::is_connecting(&played.lose()));
    played.lose();
    assert!(Played::is_connecting(&wait_for(&mut played, SECOND)));
    played.lose();
    played.client.stand();
    assert!(closes(&mut played));
    assert!(!Played::is_connecting(&wait_for(&mut played, 10 * SECOND)));
    assert_eq!(played.client.timer(), None);
}

/// Redis pauses for longer than connecting may take.
#[test]
fn a_settlement_waits_for_a_connection_that_is_late() {
    let mut played = Played::leaving();
    played.settle(3);
    assert!(Played::is_connecting(&played.turn()));
    played.client.on_connected(played.connection());
    let actions = wait_for(&mut played, 600 * MILLISECOND);
    assert!(!Played::is_connecting(&actions), "the server is to answer that attempt");
    assert_eq!(settled(&actions), []);
    assert!(played.client.keeps_worker());
    played.answer_handshake();
    wait_for(&mut played, 50 * MILLISECOND);
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    let actions = played.turn();
    assert_eq!(settled(&actions), [true]);
    assert!(actions.contains(&Action::Close(played.connection())));
    assert!(!played.client.keeps_worker());
}

/// Each attempt is refused from now on, until `end`. Returns how many there were, and what became of the settlements.
fn refuse_until(played: &mut Played, end: u64) -> (usize, Vec<bool>) {
    let (mut attempts, mut results) = (1, settled(&played.lose()));
    while played.now < end {
        let actions = wait_for(played, 10 * MILLISECOND);
        results.extend(settled(&actions));
        if Played::is_connecting(&actions) {
            attempts += 1;
            results.extend(settled(&played.lose()));
        }
    }
    (attempts, results)
}

#[test]
fn a_settlement_waits_for_a_server_that_comes_back() {
    let mut played = Played::leaving();
    played.settle(3);
    assert!(Played::is_connecting(&played.turn()));
    let (attempts, results) = refuse_until(&mut played, 300 * MILLISECOND);
    assert!((2..10).contains(&attempts) && results.is_empty(), "{attempts}: {results:?}");
    while !Played::is_connecting(&wait_for(&mut played, MILLISECOND)) {
        assert!(played.client.keeps_worker());
    }
    played.accept_handshake();
    wait_for(&mut played, 50 * MILLISECOND);
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    assert_eq!(settled(&played.turn()), [true]);
}

#[test]
fn a_settlement_waits_for_a_server_that_is_down_no_longer_than_the_grace() {
    let mut played = Played::leaving();
    played.settle(3);
    assert!(Played::is_connecting(&played.turn()));
    assert!(played.client.keeps_worker());
    let (attempts, results) = refuse_until(&mut played, 2 * SECOND);
    assert!((2..20).contains(&attempts), "{attempts} attempts");
    assert_eq!(results, [false]);
    assert!(!played.client.keeps_worker() && played.client.is_idle());
    assert!(!Played::is_connecting(&wait_for(&mut played, 10 * SECOND)));
}

/// The server has refused all clients for long, and the pauses have grown to seconds.
#[test]
fn a_settlement_does_not_wait_for_a_pause_that_is_longer_than_the_grace() {
    let mut played = Played::ready();
    (0..2).for_each(|_| played.client.reserve());
    played.lose();
    for _ in 0..8 {
        while !Played::is_connecting(&wait_for(&mut played, 10 * MILLISECOND)) {}
        played.refuse_handshake("-ERR max number of clients reached\r\n");
        played.turn();
    }
    leave(&mut played, None);
    played.settle(3);
    assert!(Played::is_connecting(&played.turn()));
    played.refuse_handshake("-ERR max number of clients reached\r\n");
    assert!(!Played::is_connecting(&wait_for(&mut played, 500 * MILLISECOND)), "once");
    played.settle(3);
    assert!(Played::is_connecting(&played.turn()));
    played.accept_handshake();
    wait_for(&mut played, 50 * MILLISECOND);
    assert_eq!(played.sent_keys(), "a a");
}

/// A command that may have run is not sent again.
#[test]
fn a_settlement_that_was_sent_is_lost_with_its_connection() {
    let mut played = leaving_with(2);
    played.settle(3);
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    assert_eq!(settled(&played.lose()), [false]);
}
