//! The driver of the client, whose sockets are the input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rate_limit_core::charge::{Charge, Effect};
use rate_limit_core::client::{Action, Client, ConnectionKey, Error, Fault, RequestKey, Turn};
use rate_limit_core::rate::{MAX_EXACT, SECOND};

use super::{refused, server, targets};
use crate::input::Input;

/// The most actions that follow from one event: some for each request and for each connection.
const MOST_ACTIONS: usize = 20_000;

pub struct Driver {
    pub client: Client,
    pub now: u64,
    /// Sockets take no bytes.
    pub is_blocked: bool,
    /// By the index of the connection.
    wires: BTreeMap<usize, Wire>,
    /// By the index of the request.
    requests: BTreeMap<usize, Request>,
    /// Whether the turn has an end to come.
    is_turn_due: bool,
    tags: u64,
    settled: BTreeSet<u64>,
    /// The password of the configuration, if there is one, and whether [`NEW_PASSWORD`] has taken its place.
    password: Option<String>,
    has_new_password: bool,
}

/// The password after the one of the configuration.
const NEW_PASSWORD: &str = "an0ther";

struct Wire {
    key: ConnectionKey,
    state: State,
    /// The commands that were sent and not answered.
    owed: VecDeque<Vec<Vec<u8>>>,
    /// The bytes sent of a command that is not complete.
    sent: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resolving,
    Connecting,
    Open,
}

struct Request {
    key: RequestKey,
    /// For each charge, whether its script replies with the verdict itself, whatever that says.
    charges: Vec<bool>,
    timeout: u64,
    /// When the turn ended in which it came.
    began: Option<u64>,
    outcome: Option<Result<(), Error>>,
}

impl Turn for Driver {
    fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    fn now(&self) -> u64 {
        self.now
    }

    /// They are read when the input says so.
    fn read_sockets(&mut self) {}

    fn turn(&mut self) {
        self.check_timer();
        self.carry_out(&mut Input::new(&[]));
        self.check_deadlines();
        self.client.on_turn_end(self.now);
        self.is_turn_due = false;
        for request in self.requests.values_mut() {
            request.began.get_or_insert(self.now);
        }
        self.carry_out(&mut Input::new(&[]));
    }
}

impl Driver {
    pub fn new(client: Client, password: Option<String>) -> Self {
        Self {
            password,
            has_new_password: false,
            client,
            now: 1,
            is_blocked: false,
            wires: BTreeMap::new(),
            requests: BTreeMap::new(),
            is_turn_due: false,
            tags: 0,
            settled: BTreeSet::new(),
        }
    }

    /// Carries out all actions.
    pub fn carry_out(&mut self, input: &mut Input<'_>) {
        for count in 0.. {
            assert!(count < MOST_ACTIONS, "the actions do not end");
            let Some(action) = self.client.poll_action() else { return };
            self.act(action, input);
        }
    }

    fn act(&mut self, action: Action, input: &mut Input<'_>) {
        match action {
            Action::EndTurn => self.is_turn_due = true,
            Action::Resolve { connection, .. } => self.place(connection, State::Resolving),
            Action::Connect(key, _) => self.place(key, State::Connecting),
            Action::Send(key) => self.send(key, input),
            Action::Close(key) => drop(self.wires.remove(&key.index())),
            Action::Complete(key) => self.complete(key),
            Action::Settled { tag, .. } => assert!(self.settled.insert(tag), "{tag} ended twice"),
            Action::Count(node) => drop(self.client.take_counts(node)),
            Action::Attempted(..) | Action::Queried(..) | Action::View(_) | Action::Remove(_) => {}
            Action::Login => self.client.login(self.now),
            Action::Slow(..) | Action::Prompt(_) | Action::Up(_) => {}
            Action::Down(_, line)
            | Action::StillDown(_, line)
            | Action::Warn(_, line)
            | Action::Log(_, line) => {
                self.check_log(&line);
            }
        }
    }

    fn place(&mut self, key: ConnectionKey, state: State) {
        let wire = Wire { key, state, owed: VecDeque::new(), sent: Vec::new() };
        let before = self.wires.insert(key.index(), wire);
        let is_closed = before.is_none_or(|wire| wire.state == State::Resolving);
        assert!(is_closed, "{key:?} was not closed before it was connected again");
    }

    fn send(&mut self, key: ConnectionKey, input: &mut Input<'_>) {
        let Some(wire) = self.wires.get_mut(&key.index()).filter(|wire| wire.key == key) else {
            return;
        };
        while !self.is_blocked && wire.state == State::Open {
            let output = self.client.output(key, self.now);
            if output.is_empty() {
                return;
            }
            let cut = usize::from(input.byte());
            let count = if cut > 0 && cut < output.len() { cut } else { output.len() };
            wire.sent.extend_from_slice(&output[..count]);
            self.client.on_sent(key, count);
            wire.owed.extend(server::take_commands(&mut wire.sent));
        }
    }

    /// One of the connections in a state.
    fn choose(&self, input: &mut Input<'_>, state: State) -> Option<ConnectionKey> {
        let keys: Vec<_> =
            { self.wires.values() }.filter(|it| it.state == state).map(|it| it.key).collect();
        (!keys.is_empty()).then(|| keys[input.below(keys.len().min(256))])
    }
}

/// Events of connections.
impl Driver {
    pub fn connect(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.choose(input, State::Connecting) else { return };
        if input.below(4) == 0 {
            return self.client.on_lost(key, &refused(), self.now);
        }
        if input.flag() {
            self.client.on_securing(key);
        }
        if let Some(wire) = self.wires.get_mut(&key.index()) {
            wire.state = State::Open;
        }
        self.client.on_connected(key);
    }

    pub fn resolve(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.choose(input, State::Resolving) else { return };
        self.client.on_resolved(key, targets(input), self.now);
    }

    pub fn lose(&mut self, input: &mut Input<'_>) {
        if let Some(key) = self.choose(input, State::Open) {
            self.client.on_lost(key, &Fault::Closed("closed".to_owned()), self.now);
        }
    }

    pub fn lose_all(&mut self) {
        let wires: Vec<_> = self.wires.values().map(|wire| (wire.key, wire.state)).collect();
        for (key, state) in wires {
            match state {
                State::Resolving => self.client.on_resolved(key, Vec::new(), self.now),
                State::Connecting => self.client.on_lost(key, &refused(), self.now),
                State::Open => {
                    self.client.on_lost(key, &Fault::Closed("closed".to_owned()), self.now);
                }
            }
        }
    }

    /// Replies to the commands that a connection has sent, as a server may, the first of them perhaps as no server does.
    pub fn reply(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.choose(input, State::Open) else { return };
        self.send(key, input);
        let Some(wire) = self.wires.get_mut(&key.index()) else { return };
        let (count, mut bytes) = (input.below(8), Vec::new());
        for _ in 0..=count {
            let Some(command) = wire.owed.pop_front() else { break };
            bytes.extend(server::reply(input, &command, self.now));
        }
        let chunk = usize::from(input.byte()) + 1;
        self.deliver(key, &bytes, if chunk > 64 { bytes.len().max(1) } else { chunk });
    }

    /// Any bytes.
    pub fn receive(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.choose(input, State::Open) else { return };
        let (chunk, bytes) = (usize::from(input.byte()) + 1, input.bytes());
        self.deliver(key, bytes, chunk);
    }

    fn deliver(&mut self, key: ConnectionKey, bytes: &[u8], chunk: usize) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.client.space(key);
            let count = chunk.min(rest.len()).min(space.len());
            if count == 0 {
                return;
            }
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            let is_open = self.client.on_received(key, count, self.now);
            self.carry_out(&mut Input::new(&[]));
            if !is_open || !self.client.is_open(key) {
                return;
            }
        }
    }
}

/// Requests.
impl Driver {
    pub fn submit(&mut self, charges: &[Charge<'_>], timeout: u64) {
        let key = self.client.submit(charges, timeout, self.now);
        let outcome = self.client.outcome(key);
        let charges: Vec<_> =
            charges.iter().map(|it| it.quota.algorithm().stores_itself()).collect();
        let request = Request { key, charges, timeout, began: None, outcome };
        assert!(self.requests.insert(key.index(), request).is_none(), "{key:?} is taken");
        if outcome.is_some() {
            self.check_answers(key.index());
        }
    }

    fn complete(&mut self, key: RequestKey) {
        // It may have been released meanwhile.
        let Some(request) = self.requests.get_mut(&key.index()).filter(|it| it.key == key) else {
            return;
        };
        assert!(request.outcome.is_none(), "{key:?} is complete twice");
        request.outcome = self.client.outcome(key);
        assert!(request.outcome.is_some(), "{key:?} is complete without an outcome");
        self.check_answers(key.index());
    }

    /// A request that is decided has a verdict of each limit, or one that rejects it.
    fn check_answers(&self, index: usize) {
        let request = &self.requests[&index];
        let answers = self.client.answers(request.key);
        assert_eq!(answers.len(), request.charges.len());
        for (answer, is_own) in answers.iter().zip(&request.charges) {
            assert!(*is_own || answer.verdict.is_none_or(|it| it.remaining <= 5), "{answer:?}");
            assert!(
                !answer.is_charged || answer.verdict.is_some_and(|it| it.allowed),
                "{answer:?}"
            );
            assert!(answer.now <= MAX_EXACT);
        }
        let mut enforced = answers.iter().filter(|answer| answer.effect == Effect::Enforced);
        let rejects = enforced.clone().any(|it| it.verdict.is_some_and(|it| !it.allowed));
        let is_whole = rejects || enforced.all(|answer| answer.verdict.is_some());
        assert!(request.outcome != Some(Ok(())) || is_whole, "{answers:?}");
    }

    /// Forgets one of the requests, whether or not it is complete.
    pub fn release(&mut self, input: &mut Input<'_>) {
        let keys: Vec<_> = self.requests.keys().copied().collect();
        if !keys.is_empty() {
            let index = keys[input.below(keys.len().min(256))];
            self.release_one(index, input.flag());
        }
    }

    pub fn release_all(&mut self) {
        for index in self.requests.keys().copied().collect::<Vec<_>>() {
            assert!(self.requests[&index].outcome.is_some(), "a request waits for ever");
            self.release_one(index, false);
        }
    }

    fn release_one(&mut self, index: usize, refund: bool) {
        let request = self.requests.remove(&index).expect("a request");
        if request.outcome.is_some() {
            assert_eq!(self.client.outcome(request.key), request.outcome, "another outcome");
        }
        for charge in 0..request.charges.len() {
            let _ = self.client.granted(request.key, charge);
            let _ = self.client.unspent(request.key, charge);
        }
        self.client.release(request.key, refund);
    }

    /// The timer has expired where it was due: no request waits for longer than its timeout.
    fn check_deadlines(&self) {
        for request in self.requests.values().filter(|request| request.outcome.is_none()) {
            let is_late = request.began.is_some_and(|began| began + request.timeout <= self.now);
            assert!(!is_late, "{:?} waits for too long", request.key);
        }
    }

    pub fn next_tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    /// All requests were released, and all connections are lost.
    pub fn check_end(&self) {
        assert!(self.client.is_idle(), "something is left of a request");
        assert!(!self.client.keeps_worker(), "the worker is kept for ever");
        assert_eq!(self.settled.len() as u64, self.tags, "a settlement has not ended");
        assert!(self.now > 2 * SECOND);
    }
}

/// Passwords and logs.
impl Driver {
    pub fn log_in_again(&mut self) {
        self.has_new_password = true;
        self.client.set_password(NEW_PASSWORD);
        self.client.login(self.now);
    }

    /// Text of servers does not come into a log as it is; of what they refuse, no password does at all. A node that a
    /// redirection names may be called like one.
    fn check_log(&self, line: &str) {
        assert!(line.len() < 4_096 && line.chars().all(|it| !it.is_control()), "{line:?}");
        let refusals = [
            "was refused: ",
            "refused the password",
            "refused to decide",
            "cannot decide",
            "query failed",
        ];
        let is_refusal = refusals.iter().any(|it| line.contains(it));
        if is_refusal && !["\"MOVED ", "\"ASK "].iter().any(|it| line.contains(it)) {
            let new = self.has_new_password.then_some(NEW_PASSWORD);
            let mut passwords = self.password.as_deref().into_iter().chain(new);
            assert!(!passwords.any(|password| line.contains(password)), "{line:?}");
        }
    }
}
