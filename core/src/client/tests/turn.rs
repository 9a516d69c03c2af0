//! The order of a turn.

use super::*;
use crate::client::Turn;

/// A driver at whose socket bytes lie that were not read.
struct Unread {
    played: Played,
    bytes: &'static str,
}

impl Turn for Unread {
    fn client(&mut self) -> &mut Client {
        &mut self.played.client
    }

    fn now(&self) -> u64 {
        self.played.now
    }

    fn read_sockets(&mut self) {
        self.played.receive(std::mem::take(&mut self.bytes));
    }
}

/// A request that was sent, after so long.
fn sent(later: u64, bytes: &'static str) -> (Unread, RequestKey) {
    let mut played = Played::ready();
    let request = played.submit("a");
    played.turn();
    played.sent();
    played.now += later;
    (Unread { played, bytes }, request)
}

#[test]
fn a_reply_that_has_come_is_not_late() {
    let (mut driver, request) = sent(TIMEOUT, FOUND);
    driver.turn();
    assert_eq!(driver.client().outcome(request), Some(Ok(())));
}

#[test]
fn the_timer_is_checked_when_it_is_due() {
    for (later, outcome) in [(TIMEOUT - 1, None), (TIMEOUT, Some(Err(Error::Timeout)))] {
        let (mut driver, request) = sent(later, "");
        driver.turn();
        assert_eq!(driver.client().outcome(request), outcome);
    }
}

#[test]
fn a_turn_sends_what_follows_from_what_was_read() {
    let mut played = Played::new();
    played.client.start(0);
    played.submit("a");
    let key = played.connection();
    played.client.on_connected(key);
    played.answer_handshake();
    played.take();
    played.actions.clear();
    let mut driver = Unread { played, bytes: "" };
    driver.turn();
    driver.played.take();
    assert!(driver.played.actions.contains(&Action::Send(key)));
}

/// Replies are left unread if a worker that has not been away finds nothing due: a request that is decided is not
/// waited for.
#[test]
fn sockets_are_read_where_something_is_due() {
    let read = |is_decided: bool, later: u64| {
        let (mut driver, request) = sent(0, FOUND);
        if is_decided {
            driver.read_sockets();
            driver.client().release(request, false);
            driver.bytes = "+PONG\r\n";
        }
        driver.played.now = driver.client().timer().expect("a timer") + later;
        driver.check_timer();
        driver.bytes.is_empty()
    };
    assert_eq!([read(false, 0), read(true, 0), read(true, 10 * MILLISECOND)], [true, false, true]);
}
