//! Attempts to connect: how long one is waited for, how soon the next one follows, and what a fleet of
//! clients makes of a server to which each handshake is work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::metrics::AttemptResult;

const FIRST: u64 = 250 * MILLISECOND;

impl Played {
    /// A client that has begun to connect.
    fn connecting() -> Self {
        let mut played = Self::new();
        played.client.start(0);
        assert!(Self::is_connecting(&played.turn()));
        played
    }

    /// The time until the timer expires, and what happens then.
    fn next(&mut self) -> (u64, Vec<Action>) {
        let span = self.client.timer().expect("a timer") - self.now;
        (span, self.wait(span))
    }

    /// An attempt fails as `act` does; returns how long the pause is until the next one begins.
    fn pause_after(&mut self, act: impl FnOnce(&mut Self)) -> u64 {
        act(self);
        self.turn();
        let start = self.now;
        while !Self::is_connecting(&self.next().1) {}
        self.now - start
    }

    pub(super) fn refuse_handshake(&mut self, reply: &str) {
        self.client.on_connected(self.connection());
        self.sent();
        self.receive(reply);
    }
}

fn downs<'a>(actions: &'a [Action]) -> Vec<&'a str> {
    let reason = |action: &'a Action| match action {
        Action::Down(_, reason) => Some(reason.as_str()),
        _ => None,
    };
    actions.iter().filter_map(reason).collect()
}

#[test]
fn a_server_that_has_accepted_a_connection_is_waited_for_but_by_no_request() {
    for is_secure in [false, true] {
        let mut played = Played::connecting();
        let key = played.connection();
        let first = played.submit("a");
        match is_secure {
            true => played.client.on_securing(key),
            false => played.client.on_connected(key),
        }
        let mut actions = Vec::new();
        while played.now < FIRST {
            actions.extend(played.next().1);
        }
        let reason = if is_secure {
            "timed out while SSL handshaking"
        } else {
            "timed out while connecting"
        };
        assert_eq!((played.now, downs(&actions)), (FIRST, vec![reason]));
        assert!(!actions.contains(&Action::Close(key)), "{actions:?}");
        assert!(played.client.outcome(first).is_some());
        let second = played.submit("b");
        assert_eq!(played.client.outcome(second), Some(Err(Error::Down)));
        played.wait(7 * SECOND);
        match is_secure {
            true => played.accept_handshake(),
            false => played.answer_handshake(),
        }
        assert!(played.turn().contains(&Action::Up(played.node())));
        played.exchange();
    }
}

#[test]
fn a_server_that_accepts_and_never_answers_is_given_up() {
    let mut played = Played::connecting();
    played.client.on_connected(played.connection());
    played.next();
    let (span, actions) = played.next();
    assert_eq!(span, 8 * SECOND);
    assert!(actions.contains(&Action::Close(played.connection())), "{actions:?}");
    assert!(Played::is_connecting(&played.next().1));
}

/// The bound of an attempt doubles with each that has timed out, and one that succeeds resets it.
#[test]
fn a_server_that_accepts_nothing_gets_more_time() {
    let mut played = Played::connecting();
    let mut spans = Vec::new();
    for _ in 0..6 {
        let (span, actions) = played.next();
        assert!(actions.contains(&Action::Close(played.connection())), "{actions:?}");
        spans.push(span / MILLISECOND);
        assert!(Played::is_connecting(&played.next().1));
    }
    assert_eq!(spans, [250, 500, 1_000, 2_000, 2_000, 2_000]);
    played.accept_handshake();
    played.turn();
    played.lose();
    played.next();
    assert_eq!(played.next().0, FIRST);
}

/// The results of the attempts that have ended.
fn results(actions: &[Action]) -> Vec<AttemptResult> {
    let result = |action: &Action| match action {
        Action::Attempted(_, result) => Some(*result),
        _ => None,
    };
    actions.iter().filter_map(result).collect()
}

/// Each attempt is counted once: when the server is ready, or the attempt is given up.
#[test]
fn attempts_are_counted_by_result() {
    type Event = fn(&mut Played) -> Vec<Action>;
    let refused: Event = |played| {
        let fault = Fault::Connect("connection refused".to_owned());
        played.client.on_lost(played.connection(), &fault, played.now);
        played.turn()
    };
    let accepted: Event = |played| {
        played.client.on_connected(played.connection());
        played.turn()
    };
    let ready: Event = |played| {
        played.answer_handshake();
        played.turn()
    };
    let rejected: Event = |played| {
        played.refuse_handshake("-ERR max number of clients reached\r\n");
        played.turn()
    };
    let (lost, timer): (Event, Event) = (Played::lose, |played| played.next().1);
    let leaves: Event = |played| {
        played.client.leave(None, played.now);
        played.turn()
    };
    use AttemptResult::{Ready, Refused, Rejected, Timeout};
    let cases: [(&[Event], &[AttemptResult]); 8] = [
        (&[accepted, ready], &[Ready]),
        (&[refused], &[Refused]),
        (&[timer], &[Timeout]),
        (&[rejected], &[Rejected]),
        (&[accepted, lost], &[Rejected]),
        (&[accepted, timer], &[]),
        (&[accepted, timer, timer, timer, accepted, ready, lost], &[Timeout, Ready]),
        (&[accepted, timer, ready, leaves], &[Ready]),
    ];
    for (index, (events, expected)) in cases.into_iter().enumerate() {
        let mut played = Played::connecting();
        let actions: Vec<_> = events.iter().flat_map(|event| event(&mut played)).collect();
        assert_eq!(results(&actions), expected, "case {index}: {actions:?}");
    }
}

/// Each address that is tried counts.
#[test]
fn attempts_of_all_addresses_are_counted() {
    let targets = [1, 2].map(|host| Target::Ip(SocketAddr::from(([10, 0, 0, host], 6_379))));
    let mut played = Played::with(|config| config.servers[0].targets = targets.to_vec());
    played.client.start(0);
    played.turn();
    let actions = [played.lose(), played.next().1].concat();
    assert_eq!(results(&actions), [AttemptResult::Rejected, AttemptResult::Timeout]);
}

#[test]
fn a_longer_timeout_is_not_shortened() {
    let mut played = Played::with(|config| config.connect_timeout = 30 * SECOND);
    played.client.start(0);
    played.turn();
    for _ in 0..3 {
        assert_eq!(played.next().0, 30 * SECOND);
        played.next();
    }
}

/// A server with several addresses is not waited for at the first one.
#[test]
fn the_next_address_is_tried_at_once() {
    let targets = [1, 2].map(|host| Target::Ip(SocketAddr::from(([10, 0, 0, host], 6_379))));
    let mut played = Played::with(|config| config.servers[0].targets = targets.to_vec());
    played.client.start(0);
    played.turn();
    played.client.on_connected(played.connection());
    let (span, actions) = played.next();
    assert_eq!(span, FIRST);
    let connects = actions.contains(&Action::Connect(played.connection(), targets[1].clone()));
    assert!(connects, "{actions:?}");
    played.client.on_connected(played.connection());
    let (span, actions) = played.next();
    assert!(span == FIRST && !actions.contains(&Action::Close(played.connection())));
}

/// The longest pause after this reply to a handshake, in ms.
fn longest_pause(reply: &str) -> u64 {
    let mut played = Played::connecting();
    let pauses = [(); 12].map(|()| played.pause_after(|it| it.refuse_handshake(reply)));
    assert!(pauses[0] < pauses[5] && pauses[0] < pauses[11], "{pauses:?}");
    pauses.into_iter().max().unwrap() / MILLISECOND
}

#[test]
fn a_refusal_that_does_not_pass_by_itself_is_tried_rarely() {
    for reply in [
        "-WRONGPASS invalid username-password pair\r\n",
        "-NOAUTH Authentication required.\r\n",
        "-ERR max number of clients reached\r\n",
        "-DENIED Redis is running in protected mode\r\n",
    ] {
        let has_account = reply.starts_with("-WRONG");
        let mut played = Played::with(|config| {
            config.account.password = has_account.then(|| "p".to_owned());
        });
        played.client.start(0);
        played.turn();
        let pauses = [(); 8].map(|()| played.pause_after(|it| it.refuse_handshake(reply)));
        assert!(pauses[0] >= SECOND / 2 && pauses[7] >= 4 * SECOND, "{reply}: {pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= 8 * SECOND), "{reply}: {pauses:?}");
    }
    assert!(longest_pause("-LOADING Redis is loading the dataset in memory\r\n") <= 2_000);
}

#[test]
fn a_server_that_is_away_is_tried_soon() {
    let mut played = Played::connecting();
    let pauses = [(); 12].map(|()| played.pause_after(|it| drop(it.lose())));
    assert!(pauses[8..].iter().all(|pause| *pause >= SECOND / 2), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= SECOND), "{pauses:?}");
}

/// Clients of a server with one core, to which a handshake costs so much.
struct Fleet {
    clients: Vec<Played>,
    /// The number of the attempt of each client.
    attempts: Vec<u64>,
    is_secure: bool,
    cost: u64,
    /// When the server begins to accept connections.
    starts: u64,
    /// When it has nothing to do any more.
    free_at: u64,
    /// How many connections it has accepted.
    connections: usize,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The client's timer may expire.
    Timer,
    /// The server is done with the handshake of this attempt.
    Done(u64),
}

impl Fleet {
    fn new(clients: usize, cost: u64, is_secure: bool) -> Self {
        let client = |seed| Played::with(|config| config.seed = seed);
        Self {
            clients: (1..=clients as u64).map(client).collect(),
            attempts: vec![0; clients],
            is_secure,
            cost,
            starts: 0,
            free_at: 0,
            connections: 0,
            events: BinaryHeap::new(),
        }
    }

    /// Lets all of them connect; returns when the last one is ready.
    fn connect(&mut self) -> u64 {
        for index in 0..self.clients.len() {
            self.clients[index].client.start(0);
            self.carry_out(index);
        }
        let mut left = self.clients.len();
        while left > 0 {
            let Reverse((now, index, event)) = self.events.pop().expect("an event");
            assert!(now < 100 * SECOND, "{left} are not ready");
            let played = &mut self.clients[index];
            played.now = now;
            match event {
                Event::Timer if played.client.timer().is_some_and(|at| at <= now) => {
                    played.client.on_timer(now);
                }
                Event::Done(attempt) if attempt == self.attempts[index] => {
                    if self.is_secure {
                        played.client.on_connected(played.connection());
                    }
                    played.answer_handshake();
                    left -= played.client.node(played.node()).unwrap().view().ready;
                    if left == 0 {
                        return now;
                    }
                }
                _ => continue,
            }
            self.carry_out(index);
        }
        unreachable!()
    }

    fn carry_out(&mut self, index: usize) {
        let now = self.clients[index].now;
        for action in self.clients[index].turn() {
            match action {
                Action::Connect(key, _) if now < self.starts => {
                    let fault = Fault::Connect("refused".to_owned());
                    self.clients[index].client.on_lost(key, &fault, now);
                    self.carry_out(index);
                }
                Action::Connect(key, _) => {
                    self.connections += 1;
                    self.attempts[index] += 1;
                    match self.is_secure {
                        true => self.clients[index].client.on_securing(key),
                        false => self.clients[index].client.on_connected(key),
                    }
                    // It does not notice that the client has closed the connection meanwhile.
                    self.free_at = self.free_at.max(now) + self.cost;
                    let done = Event::Done(self.attempts[index]);
                    self.events.push(Reverse((self.free_at, index, done)));
                }
                Action::Close(_) => self.attempts[index] += 1,
                _ => {}
            }
        }
        if let Some(at) = self.clients[index].client.timer() {
            self.events.push(Reverse((at, index, Event::Timer)));
        }
    }
}

/// At a start, and at a restart, when all find the server away at first.
#[test]
fn a_fleet_connects_at_the_pace_of_the_server() {
    const CLIENTS: usize = 200;
    for cost in [MILLISECOND, 15 * MILLISECOND, 30 * MILLISECOND] {
        for (is_secure, starts) in [(false, 0), (true, 0), (false, 3 * SECOND), (true, 3 * SECOND)]
        {
            let mut fleet = Fleet::new(CLIENTS, cost, is_secure);
            fleet.starts = starts;
            let took = fleet.connect() - starts;
            let most = 2 * CLIENTS as u64 * cost + SECOND;
            assert!(took <= most, "{took} of {most} µs, cost {cost}");
            assert!(fleet.connections <= CLIENTS * 13 / 10, "{} connections", fleet.connections);
        }
    }
}
