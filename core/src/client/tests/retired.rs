//! Nodes that are not part of the topology any more.

use super::*;
use crate::redis::reply;

/// A node that was retired with a command in flight. Returns the request as well.
fn retired() -> (Played, RequestKey, NodeKey) {
    let (mut played, _) = halves();
    let is_second = |key: &&str| slot(b"rl:a:", key.as_bytes()) >= 8_192;
    let key = ["a", "b", "c", "d", "e"].into_iter().find(is_second).unwrap();
    played.wait(13_000 * MILLISECOND);
    let queried = played.queried().expect("a query");
    let request = played.submit(key);
    played.turn();
    played.at = 1;
    assert_eq!(played.sent_keys(), key);
    let node = played.client.node_of(played.connection()).unwrap();
    played.at = queried;
    played.receive(&map(&[(0, 16_383, 1)]));
    let actions = played.turn();
    assert!(!actions.contains(&Action::Remove(node)), "a reply is to come");
    assert_eq!(played.client.pool.nodes.retired(), [node]);
    played.at = 1;
    (played, request, node)
}

#[test]
fn the_last_reply_removes_it() {
    let (mut played, request, node) = retired();
    let key = played.connection();
    played.receive_at_once(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    let actions = played.turn();
    assert!(actions.contains(&Action::Close(key)) && actions.contains(&Action::Remove(node)));
    assert!(played.client.space(key).is_empty());
}

#[test]
fn it_is_removed_when_its_connection_is_lost() {
    let (mut played, request, node) = retired();
    let actions = played.lose();
    assert_eq!(played.client.outcome(request), Some(Err(Error::Lost)));
    assert!(actions.contains(&Action::Remove(node)) && !Played::is_connecting(&actions));
}

#[test]
fn it_is_removed_after_a_second_at_the_latest() {
    let (mut played, _, node) = retired();
    let end = played.now + SECOND;
    while played.client.node(node).is_some() {
        let at = played.client.timer().expect("a timer");
        assert!(at <= end);
        played.wait(at - played.now);
    }
    assert_eq!(played.now, end);
}

/// Nodes of the configuration are kept.
#[test]
fn one_that_had_refused_a_password_does_not_keep_refusals_of_others_out_of_the_log() {
    let (mut played, _, node) = retired();
    let refuse = |played: &mut Played, node| {
        let refusal = reply::parse(b"-WRONGPASS no\r\n").unwrap();
        played.client.on_login_reply(node, &refusal);
        let is_line = |it: &Action| matches!(it, Action::Log(Level::Error, _));
        played.turn().iter().filter(|it| is_line(it)).count()
    };
    assert_eq!([(); 2].map(|()| refuse(&mut played, node)), [1, 0]);
    played.client.login(played.now);
    assert!(played.client.node(node).is_some());
    let other = played.client.pool.nodes.current()[0];
    for logged in [1, 0] {
        assert_eq!(refuse(&mut played, other), logged);
        played.client.login(played.now);
    }
}
