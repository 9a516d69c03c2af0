//! The breaker of a node over time: what opens it, what happens while it is open, and what closes
//! it.

use super::*;

const SECOND: u64 = 1_000 * MILLISECOND;
const LATE: u64 = 2 * TIMEOUT;

impl Played {
    /// A request that the server answers after it has timed out; returns the actions until then.
    fn fail(&mut self) -> Vec<Action> {
        let request = self.submit("late");
        let mut actions = self.turn();
        self.sent();
        actions.extend(self.wait(TIMEOUT));
        assert_eq!(self.client.outcome(request), Some(Err(Error::Timeout)));
        self.client.release(request, false);
        self.receive(FOUND);
        actions.extend(self.turn());
        actions
    }

    /// A client whose breaker has just opened. The first probe is to be sent.
    fn open() -> Self {
        let mut played = Self::ready();
        let downs: Vec<_> = (0..3).map(|_| is_down(&played.fail())).collect();
        assert_eq!(downs, [false, false, true]);
        played
    }

    /// A client of a store in which some requests may wait for 100 s.
    fn patient(fail_timeout: u64) -> Self {
        let mut played = Self::with(|config| {
            config.longest_timeout = 100 * SECOND;
            config.fail_timeout = fail_timeout;
        });
        played.client.start(0);
        played.accept_handshake();
        played.turn();
        played
    }

    fn submit_patiently(&mut self, key: &str, timeout: u64) -> RequestKey {
        let template = Rc::clone(&self.template);
        self.client.submit(&[charge(&template, key)], timeout, self.now)
    }

    fn is_open(&self) -> bool {
        self.client.pool.nodes.get(self.node()).unwrap().health.is_open()
    }

    /// Lets the time pass, and the timer expire whenever it is due; returns the actions.
    fn pass(&mut self, micros: u64) -> Vec<Action> {
        let end = self.now + micros;
        let mut actions = Vec::new();
        while self.client.timer().is_some_and(|timer| timer <= end) {
            actions.extend(self.wait_for_timer());
        }
        self.now = end;
        actions
    }

    fn wait_for_timer(&mut self) -> Vec<Action> {
        let timer = self.client.timer().unwrap();
        self.wait(timer - self.now)
    }

    /// Waits until the next timer; returns whether a probe is sent then.
    fn probes(&mut self) -> bool {
        self.wait_for_timer();
        self.sent() == PING
    }
}

const PING: &str = "*1\r\n$4\r\nPING\r\n";

fn is_down(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Down(..)))
}

fn is_up(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Up(..)))
}

/// The breaker opens at the last of these failures, each so many ms after the one before, or not at
/// all.
#[track_caller]
fn opens(max_fails: usize, fail_timeout: u64, failures: &[u64], opens: bool) {
    let mut played = Played::with(|config| {
        config.max_fails = max_fails;
        config.fail_timeout = fail_timeout * MILLISECOND;
    });
    played.client.start(0);
    played.accept_handshake();
    played.turn();
    for (number, distance) in failures.iter().enumerate() {
        // A reply between two failures changes nothing.
        played.exchange();
        played.wait((distance * MILLISECOND).saturating_sub(TIMEOUT));
        let goes_down = opens && number + 1 == failures.len();
        assert_eq!(is_down(&played.fail()), goes_down, "failure {number} of {failures:?}");
    }
}

#[test]
fn so_many_failures_within_so_long_open_it() {
    opens(3, 1_000, &[100, 100], false);
    opens(3, 1_000, &[100, 100, 100], true);
    opens(3, 1_000, &[100, 500, 500], true);
    opens(3, 1_000, &[100, 500, 501], false);
    opens(3, 1_000, &[100, 500, 501, 400], true);
    opens(3, 10_000, &[100, 5_000, 5_000], true);
    opens(3, 200, &[100, 100, 101], false);
    opens(1, 0, &[100], true);
    opens(0, 1_000, &[100; 10], false);
}

#[test]
fn while_it_is_open_no_command_is_sent_and_no_request_waits() {
    let mut played = Played::open();
    assert!(played.is_open());
    assert_eq!(played.sent(), PING);
    for _ in 0..100 {
        let request = played.submit("a");
        assert_eq!(played.client.outcome(request), Some(Err(Error::Down)));
        played.client.release(request, false);
        played.turn();
    }
    assert_eq!(played.sent(), "");
}

/// The server answers each probe, but too late for requests.
#[test]
fn a_slow_server_is_probed_ever_more_rarely_and_by_one_probe_at_a_time() {
    let mut played = Played::open();
    let opened = played.now;
    assert_eq!(played.sent(), PING);
    let mut probes = vec![played.now];
    let mut answer_at = played.now + LATE;
    while played.now < opened + 4 * SECOND {
        let timer = played.client.timer().unwrap();
        if answer_at <= timer {
            played.wait(answer_at - played.now);
            played.receive("+PONG\r\n");
            assert!(!is_up(&played.turn()) && played.is_open());
            answer_at = u64::MAX;
        } else if played.probes() {
            assert_eq!(answer_at, u64::MAX, "two probes at a time");
            probes.push(played.now);
            answer_at = played.now + LATE;
        }
    }
    let distances: Vec<_> = probes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let longest = *distances.iter().max().unwrap();
    // 20, 40, 80 ms and so on up to 1 s, or down to half of each; and not before the reply.
    assert!((4..=12).contains(&distances.len()), "{distances:?}");
    assert!(longest > 500 * MILLISECOND && longest <= LATE + SECOND, "{distances:?}");
}

#[test]
fn a_probe_that_is_answered_in_time_closes_it_and_a_command_shows_that_the_server_is_up() {
    let mut played = Played::open();
    assert_eq!(played.sent(), PING);
    played.wait(TIMEOUT - 1);
    assert!(played.is_open());
    played.receive("+PONG\r\n");
    assert!(!is_up(&played.turn()) && !played.is_open());
    played.wait(2 * SECOND);
    assert_eq!(played.sent(), "", "there is nothing to probe");
    let request = played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    assert!(is_up(&played.turn()));
}

/// Another worker may have found it up meanwhile.
#[test]
fn a_server_that_answers_probes_alone_is_still_down_each_time() {
    let mut played = Played::open();
    for _ in 0..3 {
        assert_eq!(played.sent(), PING);
        played.receive("+PONG\r\n");
        played.turn();
        assert!(!played.is_open());
        played.submit("a");
        played.turn();
        played.sent();
        let actions = played.pass(TIMEOUT);
        let still_down = Action::StillDown(played.node(), "no reply within 100 ms".to_owned());
        assert!(played.is_open() && actions.contains(&still_down), "{actions:?}");
        assert!(!is_down(&actions) && !is_up(&actions), "{actions:?}");
        played.receive(FOUND);
        played.turn();
    }
}

#[test]
fn a_worker_that_leaves_while_it_is_open_probes_with_its_requests() {
    let mut played = Played::open();
    assert_eq!(played.sent(), PING);
    played.lose();
    played.client.leave(None, played.now);
    played.turn();
    for _ in 0..10 {
        assert!(!Played::is_connecting(&played.wait(SECOND)));
    }
    assert!(played.is_open());
    let request = played.submit("a");
    assert_eq!(played.client.outcome(request), Some(Err(Error::Down)));
    played.client.release(request, false);
    assert!(Played::is_connecting(&played.turn()));
    played.accept_handshake();
    played.turn();
    assert_eq!(played.sent(), PING);
    played.receive("+PONG\r\n");
    assert!(played.turn().contains(&Action::Close(played.connection())));
    assert!(!played.is_open());
}

/// The server is silent: the connection is closed, and another one is made.
#[test]
fn a_silent_server_is_found_when_it_answers_again() {
    let mut played = Played::open();
    played.sent();
    while !Played::is_connecting(&played.wait_for_timer()) {
        assert!(played.now < 3 * SECOND, "it is still waited for");
    }
    played.accept_handshake();
    while !played.probes() {
        assert!(played.now < 5 * SECOND, "it is not probed");
    }
    played.receive("+PONG\r\n");
    played.turn();
    assert!(!played.is_open());
    let request = played.submit("a");
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    assert!(is_up(&played.turn()));
}

/// The long timeout of one location is no reason for others to wait for a server that hangs.
#[test]
fn the_patience_is_bounded() {
    for (fail_timeout, patience) in [(100 * MILLISECOND, SECOND), (3 * SECOND, 3 * SECOND)] {
        let mut played = Played::patient(fail_timeout);
        let _ = ["a", "b", "c"].map(|key| played.submit(key));
        played.turn();
        assert_eq!(played.sent_keys(), "a b c");
        assert!(!is_down(&played.pass(patience - 1)));
        assert!(is_down(&played.pass(1)), "{patience}");
        let request = played.submit("d");
        assert_eq!(played.client.outcome(request), Some(Err(Error::Down)));
    }
}

/// A request that may wait for long gets its reply, and until then the server is slow.
#[test]
fn a_server_that_owes_a_reply_for_longer_than_the_patience_is_slow() {
    let mut played = Played::patient(SECOND);
    let is_slow = |played: &Played| {
        played.client.node(played.node()).unwrap().view().state == NodeState::Slow
    };
    let request = played.submit_patiently("a", 100 * SECOND);
    played.turn();
    assert_eq!(played.sent_keys(), "a");
    assert!(!played.pass(SECOND - 1).contains(&Action::Slow(played.node(), SECOND)));
    let actions = played.pass(1);
    assert!(actions.contains(&Action::Slow(played.node(), SECOND)), "{actions:?}");
    assert!(actions.contains(&Action::View(played.node())) && is_slow(&played));
    for _ in 0..97 {
        assert_eq!(played.pass(SECOND), []);
    }
    played.receive(FOUND);
    let actions = played.turn();
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    assert!(actions.contains(&Action::Prompt(played.node())) && !is_slow(&played), "{actions:?}");
}

/// Nobody waits for its reply any more, however long others might.
#[test]
fn a_silent_server_for_which_no_request_waits_is_lost_after_a_second() {
    let mut played = Played::patient(SECOND);
    played.submit("a");
    played.turn();
    played.sent();
    assert!(!played.pass(SECOND - 1).contains(&Action::Close(played.connection())));
    let actions = played.pass(1);
    assert!(actions.contains(&Action::Close(played.connection())), "{actions:?}");
    let [down, prompt] = [
        |it: &Action| matches!(it, Action::Down(..)),
        |it: &Action| matches!(it, Action::Prompt(_)),
    ]
    .map(|is| actions.iter().position(is));
    assert!(down.is_some() && down < prompt, "down, and therefore not slow: {actions:?}");
}

/// However many requests follow each other.
#[test]
fn a_silent_server_is_lost_after_the_longest_timeout() {
    let mut played = Played::patient(SECOND);
    for second in 0..100 {
        assert!(!played.client.pool.connections.get(played.connection()).unwrap().is_idle());
        played.submit_patiently(&second.to_string(), 100 * SECOND);
        played.turn();
        played.sent();
        assert_eq!(is_down(&played.pass(SECOND)), second == 99, "second {second}");
    }
}

/// Replies come late from a server whose breaker they have opened.
#[test]
fn late_refunds_wait_until_the_breaker_has_closed() {
    let mut played = Played::ready();
    reject_late(&mut played, &["a", "b", "c"]);
    played.receive_at_once(&FOUND.repeat(3));
    played.turn();
    assert!(played.is_open());
    assert_eq!(played.sent(), "*1\r\n$4\r\nPING\r\n", "a probe alone");
    played.receive("+PONG\r\n");
    let mut keys = [(); 3].map(|()| {
        let key = refunded(&mut played);
        played.receive(FOUND);
        key
    });
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
    assert!(played.client.is_idle());
}
