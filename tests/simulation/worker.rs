//! A worker process, as NGINX runs it: turns of an event loop, and in them the client of one store.
//!
//! A turn begins when something has happened. Sockets are read and requests come, then timers expire;
//! then, perhaps much later, what was posted meanwhile is done: what was gathered is sent, and
//! requests go on. What happens during a turn waits for the next one. The client is driven as the
//! module's driver does it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fastrand::Rng;
use rate_limit_core::charge::Charged;
use rate_limit_core::client::{
    Action, Client, Config, ConnectionKey, Error, Fault, Node, NodeState, RequestKey, Target, Turn,
    View,
};
use rate_limit_core::lease::Granted;
use rate_limit_core::lease::table::Taken;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::script::Scripts;

use crate::lease::{MACHINES, Machine};
use crate::ledger::{Class, Ledger, RequestId};
use crate::network::{ClientId, ConnectionId, End};
use crate::traffic::{Part, Plan};
use crate::watch::{Activity, Blame};
use crate::world::World;

/// The port of servers with names.
const NAMED_PORT: u16 = 6_379;

/// A timer expires in the millisecond after its time, and the event is dealt with a little later.
const TIMER: u64 = 2 * MILLISECOND;

/// The surroundings of all workers.
#[derive(Debug)]
pub struct Outside {
    pub world: World,
    pub ledger: Ledger,
    pub machines: [Machine; MACHINES],
    pub blame: Blame,
    pub rng: Rng,
    /// The events that are to come to workers, by the tokens of alarms.
    pub alarms: Vec<Alarm>,
    pub sockets: BTreeMap<ConnectionId, (ClientId, ConnectionKey)>,
    pub queries: BTreeMap<usize, (ClientId, ConnectionKey)>,
    /// When the whole machine was stopped last.
    pub pause: std::ops::Range<u64>,
    /// From when on Redis must decide every request.
    pub strict_from: Option<u64>,
    /// Whether what happens is printed.
    pub is_traced: bool,
    pub decided: u64,
}

/// The purpose of an alarm.
#[derive(Clone, Copy, Debug)]
pub enum Alarm {
    Turn(ClientId),
    EndTurn(ClientId),
    Timer(ClientId, u64),
    Writable(ClientId, ConnectionId),
    Leave(ClientId, RequestId),
    Requests(ClientId),
    /// The worker shuts down.
    Quit(ClientId),
    Pause,
    Check,
}

/// One worker.
#[derive(Debug)]
pub struct Worker {
    id: ClientId,
    pub client: Client,
    /// By the index of the connection.
    wires: Vec<Option<Wire>>,
    /// By the index of the request.
    requests: Vec<Option<Request>>,
    /// How long turns may take, in µs.
    lag: u64,
    is_in_turn: bool,
    is_turn_due: bool,
    /// The start of the last turn, if turns have followed one another since.
    busy_since: u64,
    timer: Option<u64>,
    /// When timers were late, and by how much, in µs.
    away: Vec<(u64, u64)>,
    timers: u64,
    arrived: Vec<Plan>,
    left: Vec<RequestId>,
    posted: VecDeque<Posted>,
    activity: Activity,
    pub is_leaving: bool,
}

/// A worker with what is around it, as the client's driver.
struct Driven<'a> {
    worker: &'a mut Worker,
    outside: &'a mut Outside,
}

#[derive(Debug)]
enum Posted {
    TurnEnd,
    Wake(RequestKey),
    Resolved(ConnectionKey, Vec<IpAddr>),
}

/// The parts of a connection.
#[derive(Debug)]
struct Wire {
    key: ConnectionKey,
    /// None while a name is resolved.
    socket: Option<Socket>,
}

/// A socket, with what the kernel knows of it.
#[derive(Debug)]
struct Socket {
    id: ConnectionId,
    is_connected: bool,
    /// The client knows that it is connected.
    is_open: bool,
    received: VecDeque<u8>,
    end: Option<End>,
    is_blocked: bool,
    is_writable: bool,
}

/// A request of a client.
#[derive(Debug)]
struct Request {
    key: RequestKey,
    plan: Plan,
    /// When the turn ended in which it came.
    began: Option<u64>,
    submitted: u64,
    is_complete: bool,
    /// The leases that it renews.
    taken: Vec<Taken>,
}

impl Outside {
    pub fn alarm(&mut self, at: u64, alarm: Alarm) {
        self.alarms.push(alarm);
        self.world.alarm(at, self.alarms.len() as u64 - 1);
    }

    pub fn now(&self) -> u64 {
        self.world.now()
    }

    pub fn is_strict(&self, since: u64) -> bool {
        self.strict_from.is_some_and(|from| from <= since)
    }

    pub fn trace(&self, worker: ClientId, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:>10} worker {worker}: {}", self.now(), what());
        }
    }
}

/// The kernel.
impl Worker {
    pub fn new(id: ClientId, config: Config, scripts: Arc<Scripts>, lag: u64) -> Self {
        Self {
            id,
            client: Client::new(config, scripts),
            wires: Vec::new(),
            requests: Vec::new(),
            lag,
            is_in_turn: false,
            is_turn_due: false,
            busy_since: 0,
            timer: None,
            away: Vec::new(),
            timers: 0,
            arrived: Vec::new(),
            left: Vec::new(),
            posted: VecDeque::new(),
            activity: Activity::default(),
            is_leaving: false,
        }
    }

    pub fn start(&mut self, outside: &mut Outside) {
        self.client.start(outside.now());
        self.act(outside);
    }

    /// The process is to end when its requests have.
    pub fn leave(&mut self, outside: &mut Outside) {
        self.is_leaving = true;
        self.client.leave(None, outside.now());
        self.act(outside);
    }

    /// Something has happened: a turn begins, if there is none.
    fn wake(&mut self, outside: &mut Outside) {
        if !self.is_in_turn && !std::mem::replace(&mut self.is_turn_due, true) {
            let at = outside.now() + outside.rng.u64(0..40);
            outside.alarm(at, Alarm::Turn(self.id));
        }
    }

    fn socket(&mut self, key: ConnectionKey, id: ConnectionId) -> Option<&mut Socket> {
        let wire = self.wires.get_mut(key.index())?.as_mut()?;
        wire.socket.as_mut().filter(|socket| wire.key == key && socket.id == id)
    }

    pub fn on_connected(&mut self, key: ConnectionKey, id: ConnectionId, outside: &mut Outside) {
        if let Some(socket) = self.socket(key, id) {
            socket.is_connected = true;
            self.wake(outside);
        }
    }

    pub fn on_received(
        &mut self,
        key: ConnectionKey,
        id: ConnectionId,
        bytes: &[u8],
        outside: &mut Outside,
    ) {
        if let Some(socket) = self.socket(key, id) {
            socket.received.extend(bytes);
            self.wake(outside);
        }
    }

    pub fn on_lost(
        &mut self,
        key: ConnectionKey,
        id: ConnectionId,
        end: End,
        outside: &mut Outside,
    ) {
        if let Some(socket) = self.socket(key, id) {
            socket.end = Some(end);
            self.wake(outside);
        }
    }

    pub fn on_writable(&mut self, id: ConnectionId, outside: &mut Outside) {
        let sockets = self.wires.iter_mut().flatten().filter_map(|wire| wire.socket.as_mut());
        if let Some(socket) = { sockets }.find(|socket| socket.id == id) {
            socket.is_writable = true;
            self.wake(outside);
        }
    }

    pub fn on_resolved(
        &mut self,
        key: ConnectionKey,
        addresses: Vec<IpAddr>,
        outside: &mut Outside,
    ) {
        self.posted.push_back(Posted::Resolved(key, addresses));
        self.wake(outside);
    }

    pub fn on_timer(&mut self, number: u64, outside: &mut Outside) {
        if number == self.timers {
            self.wake(outside);
        }
    }

    pub fn on_request(&mut self, plan: Plan, outside: &mut Outside) {
        self.arrived.push(plan);
        self.wake(outside);
    }

    /// The client of a request leaves.
    pub fn on_left(&mut self, request: RequestId, outside: &mut Outside) {
        self.left.push(request);
        self.wake(outside);
    }
}

impl Turn for Driven<'_> {
    fn client(&mut self) -> &mut Client {
        &mut self.worker.client
    }

    fn now(&self) -> u64 {
        self.outside.now()
    }

    fn read_sockets(&mut self) {
        self.worker.on_sockets(self.outside);
    }
}

/// Turns.
impl Worker {
    pub fn begin_turn(&mut self, outside: &mut Outside) {
        let now = outside.now();
        self.is_turn_due = false;
        self.is_in_turn = true;
        self.busy_since = match now - outside.pause.end.min(now) {
            0..100 => outside.pause.start,
            _ => now,
        };
        self.turn(outside);
    }

    fn turn(&mut self, outside: &mut Outside) {
        let now = outside.now();
        self.on_sockets(outside);
        for plan in std::mem::take(&mut self.arrived) {
            self.submit(plan, outside);
        }
        for request in std::mem::take(&mut self.left) {
            self.leave_request(request, outside);
        }
        if outside.rng.bool() {
            self.on_sockets(outside);
        }
        if let Some(at) = self.timer.filter(|at| ceil(*at) <= now) {
            self.timer = None;
            self.away.push((now, now - ceil(at)));
            Driven { worker: self, outside }.check_timer();
            self.act(outside);
        }
        self.check_deadlines(outside);
        let lag = match outside.rng.u32(0..400) {
            0 => outside.rng.u64(0..=self.lag),
            1..10 => outside.rng.u64(0..=self.lag.min(3_000)),
            _ => outside.rng.u64(0..60),
        };
        outside.alarm(now + lag, Alarm::EndTurn(self.id));
    }

    pub fn end_turn(&mut self, outside: &mut Outside) {
        let now = outside.now();
        while let Some(posted) = self.posted.pop_front() {
            match posted {
                Posted::TurnEnd => {
                    for request in self.requests.iter_mut().flatten() {
                        request.began.get_or_insert(now);
                    }
                    self.client.on_turn_end(now);
                    self.act(outside);
                }
                Posted::Wake(key) => self.decide(key, outside),
                Posted::Resolved(key, addresses) => {
                    let target = |ip| Target::Ip(SocketAddr::new(ip, NAMED_PORT));
                    self.client.on_resolved(key, addresses.into_iter().map(target).collect(), now);
                    self.act(outside);
                }
            }
        }
        self.is_in_turn = false;
        if self.has_work(now) {
            self.is_in_turn = true;
            self.turn(outside);
        }
    }

    /// Whether something has happened during the turn.
    fn has_work(&self, now: u64) -> bool {
        let is_ready = |wire: &Wire| wire.socket.as_ref().is_some_and(Socket::is_ready);
        !self.arrived.is_empty()
            || !self.left.is_empty()
            || self.timer.is_some_and(|at| ceil(at) <= now)
            || self.wires.iter().flatten().any(is_ready)
    }

    fn on_sockets(&mut self, outside: &mut Outside) {
        let mut keys: Vec<_> = self.wires.iter().flatten().map(|wire| wire.key).collect();
        outside.rng.shuffle(&mut keys);
        for key in keys {
            self.on_socket(key, outside);
            self.act(outside);
        }
    }

    /// Any request's time must not be over once the timer has expired.
    fn check_deadlines(&self, outside: &Outside) {
        for request in self.requests.iter().flatten().filter(|request| !request.is_complete) {
            let Some(began) = request.began else { continue };
            let latest = began + request.plan.timeout + TIMER;
            let id = request.plan.id;
            assert!(latest >= outside.now(), "request {id} waits since {began}");
        }
    }
}

/// Sockets.
impl Worker {
    fn open(&mut self, key: ConnectionKey) -> Option<&mut Socket> {
        let wire = self.wires.get_mut(key.index())?.as_mut()?;
        wire.socket.as_mut().filter(|_| wire.key == key)
    }

    fn on_socket(&mut self, key: ConnectionKey, outside: &mut Outside) {
        if !self.establish(key, outside) {
            return;
        }
        self.receive(key, outside);
        let Some(socket) = self.open(key) else { return };
        if socket.is_blocked && socket.is_writable {
            self.send(key, outside);
        }
    }

    fn establish(&mut self, key: ConnectionKey, outside: &mut Outside) -> bool {
        let Some(socket) = self.open(key) else { return false };
        if socket.is_open {
            return true;
        }
        if socket.is_connected {
            socket.is_open = true;
            self.client.on_connected(key);
            self.act(outside);
            return true;
        }
        if let Some(end) = socket.end.take() {
            let fault = Fault::Connect(format!("connect() failed ({end:?})"));
            self.client.on_lost(key, &fault, outside.now());
        }
        false
    }

    fn receive(&mut self, key: ConnectionKey, outside: &mut Outside) {
        let now = outside.now();
        while let Some(Some(wire)) = self.wires.get_mut(key.index())
            && let Some(socket) = wire.socket.as_mut().filter(|_| wire.key == key)
            && socket.is_readable()
        {
            if socket.received.is_empty() {
                let fault = Fault::Closed(format!("{:?}", socket.end.take()));
                self.client.on_lost(key, &fault, now);
                return;
            }
            let id = socket.id;
            let space = self.client.space(key);
            let most = space.len().min(socket.received.len());
            let count = if outside.rng.u32(0..4) > 0 { most } else { outside.rng.usize(1..=most) };
            for (byte, received) in space.iter_mut().zip(socket.received.drain(..count)) {
                *byte = received;
            }
            self.client.on_received(key, count, now);
            let arrived = outside.ledger.deliver(id, count);
            self.act(outside);
            self.check_replies(key, id, arrived);
        }
    }

    /// Replies that the client has read must have reached the requests that wait for them.
    fn check_replies(
        &mut self,
        key: ConnectionKey,
        id: ConnectionId,
        arrived: Vec<(RequestId, Class)>,
    ) {
        if self.socket(key, id).is_none() {
            // It was closed, perhaps because of what came, and the rest was not read.
            return;
        }
        for (request, class) in arrived {
            let Some(request) = self.request(request) else { continue };
            let parts = request.plan.parts.iter();
            for (part, answer) in parts.zip(self.client.answers(request.key)) {
                let is_it = part.class(self.id) == class;
                let name = request.plan.id;
                assert!(!is_it || answer.verdict.is_some(), "request {name} was not answered");
            }
        }
    }

    fn send(&mut self, key: ConnectionKey, outside: &mut Outside) {
        let now = outside.now();
        let Some(Some(wire)) = self.wires.get_mut(key.index()) else { return };
        let Some(socket) = wire.socket.as_mut().filter(|it| it.is_open && wire.key == key) else {
            return;
        };
        socket.is_blocked = false;
        loop {
            let bytes = self.client.output(key, now);
            if bytes.is_empty() {
                return;
            }
            if socket.end == Some(End::Reset) {
                return self.client.on_lost(key, &Fault::Closed("reset".to_owned()), now);
            }
            let count = match outside.rng.u32(0..200) {
                0 => 0,
                1..6 => outside.rng.usize(0..=bytes.len()),
                _ => bytes.len(),
            };
            if count == 0 {
                socket.is_blocked = true;
                socket.is_writable = false;
                let at = now + outside.rng.u64(50..5_000);
                let writable = Alarm::Writable(self.id, socket.id);
                return outside.alarm(at, writable);
            }
            outside.world.send(socket.id, &bytes[..count]);
            self.client.on_sent(key, count);
        }
    }
}

impl Socket {
    fn is_readable(&self) -> bool {
        self.is_open && (!self.received.is_empty() || self.end.is_some())
    }

    fn is_ready(&self) -> bool {
        self.is_readable()
            || !self.is_open && (self.is_connected || self.end.is_some())
            || self.is_blocked && self.is_writable
    }
}

/// Actions.
impl Worker {
    fn act(&mut self, outside: &mut Outside) {
        while let Some(action) = self.client.poll_action() {
            if !matches!(action, Action::Count(_) | Action::Send(_) | Action::EndTurn) {
                outside.trace(self.id, || format!("{action:?}"));
            }
            self.carry_out(action, outside);
        }
        self.set_timer(outside);
    }

    fn carry_out(&mut self, action: Action, outside: &mut Outside) {
        let now = outside.now();
        match action {
            Action::EndTurn => {
                self.posted.push_back(Posted::TurnEnd);
                self.wake(outside);
            }
            Action::Resolve { connection, host, .. } => {
                let number = outside.world.resolve(self.id, &host);
                outside.queries.insert(number, (self.id, connection));
                self.place(Wire { key: connection, socket: None });
            }
            Action::Connect(key, target) => self.connect(key, &target, outside),
            Action::Send(key) => self.send(key, outside),
            Action::Close(key) => self.close(key, outside),
            Action::Complete(key) => self.complete(key, outside),
            Action::Settled { .. } | Action::Attempted(..) | Action::Queried(..) => {}
            Action::Count(node) => drop(self.client.take_counts(node)),
            Action::View(_) | Action::Remove(_) | Action::Up(_) => {}
            Action::StillDown(..) | Action::Warn(..) => {}
            Action::Down(node, reason) => {
                // One that was retired may be gone already.
                if let Some(node) = self.client.node(node) {
                    outside.blame.check(node.name(), &reason, &outside.world, &self.away);
                }
                self.activity.line(self.client.nodes().count(), &reason, now);
            }
            Action::Login => self.client.login(now),
            Action::Slow(..) | Action::Prompt(_) => {}
            Action::Log(_, line) => self.activity.line(self.client.nodes().count(), &line, now),
        }
    }

    fn connect(&mut self, key: ConnectionKey, target: &Target, outside: &mut Outside) {
        let Target::Ip(address) = target else { panic!("{target:?}") };
        // A worker that leaves connects for the requests that still come, and closes at once.
        if !self.is_leaving {
            self.activity.connect(self.wires.len().max(key.index() + 1), outside.now());
        }
        let id = outside.world.connect(self.id, *address);
        outside.sockets.insert(id, (self.id, key));
        let socket = Socket {
            id,
            is_connected: false,
            is_open: false,
            received: VecDeque::new(),
            end: None,
            is_blocked: false,
            is_writable: false,
        };
        self.place(Wire { key, socket: Some(socket) });
    }

    fn place(&mut self, wire: Wire) {
        let index = wire.key.index();
        if self.wires.len() <= index {
            self.wires.resize_with(index + 1, || None);
        }
        let before = self.wires[index].replace(wire);
        let is_closed = before.as_ref().is_none_or(|wire| wire.socket.is_none());
        assert!(is_closed, "not closed before it was connected again: {before:?}");
    }

    fn close(&mut self, key: ConnectionKey, outside: &mut Outside) {
        let wire = self.wires.get_mut(key.index()).and_then(Option::take);
        if let Some(socket) = wire.and_then(|wire| wire.socket) {
            outside.world.close(socket.id);
            outside.ledger.end(socket.id);
        }
    }

    fn complete(&mut self, key: RequestKey, outside: &mut Outside) {
        let now = outside.now();
        let busy_since = self.busy_since;
        let Some(Some(request)) = self.requests.get_mut(key.index()) else {
            panic!("no request is complete: {key:?}")
        };
        assert!(request.key == key && !request.is_complete, "completed twice: {request:?}");
        request.is_complete = true;
        let latest = request.began.map_or(now, |began| began + request.plan.timeout + TIMER);
        assert!(now <= latest || busy_since <= latest, "too late: {request:?}");
        self.posted.push_back(Posted::Wake(key));
        self.wake(outside);
    }

    fn set_timer(&mut self, outside: &mut Outside) {
        let at = self.client.timer();
        if self.timer == at {
            return;
        }
        self.timer = at;
        self.timers += 1;
        if let Some(at) = at {
            let rounding = outside.rng.u64(0..100);
            outside.alarm(ceil(at) + rounding, Alarm::Timer(self.id, self.timers));
        }
    }
}

/// Requests.
impl Worker {
    fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.iter().flatten().find(|request| request.plan.id == id)
    }

    fn submit(&mut self, plan: Plan, outside: &mut Outside) {
        let now = outside.now();
        let machine = &mut outside.machines[self.id % MACHINES];
        if machine.spend(self.id, &plan, now) {
            outside.decided += 1;
            return;
        }
        let taken = machine.take(self.id, &plan, now);
        let owner = plan.is_alone.then(|| (plan.id, outside.is_strict(now)));
        for part in &plan.parts {
            outside.ledger.submit(&part.class(self.id), owner);
        }
        let parts = plan.parts.iter().zip(&taken);
        let spends = plan.parts.iter().all(Part::has_leases);
        let lease = |(part, taken): (&Part, &Taken)| match spends {
            true => taken.lease(&part.quota, plan.span, now),
            false => taken.report(&part.quota, plan.span, now),
        };
        let leases: Vec<_> = parts.map(lease).collect();
        let parts = plan.parts.iter().zip(&leases);
        let charges: Vec<_> = parts.map(|(part, lease)| part.charge(lease.as_ref())).collect();
        let key = self.client.submit(&charges, plan.timeout, now);
        outside.trace(self.id, || format!("request {} is {key:?}: {plan:?}", plan.id));
        match outside.rng.u32(0..40) {
            // A request leaves in the same read, like a stream of HTTP/2 that is reset.
            0 => self.left.push(plan.id),
            1 => {
                // A request is as likely to leave within 10 µs as within 10 ms to 100 ms: before it is sent, or in
                // flight.
                let delay = (plan.timeout as f64).powf(outside.rng.f64());
                outside.alarm(now + delay as u64, Alarm::Leave(self.id, plan.id));
            }
            _ => {}
        }
        let index = key.index();
        if self.requests.len() <= index {
            self.requests.resize_with(index + 1, || None);
        }
        let request = Request { key, plan, began: None, submitted: now, is_complete: false, taken };
        assert!(self.requests[index].replace(request).is_none(), "{key:?} is taken");
        self.act(outside);
        if self.client.outcome(key).is_some() {
            self.decide(key, outside);
        }
    }

    /// The client of a request has left.
    fn leave_request(&mut self, id: RequestId, outside: &mut Outside) {
        if let Some(key) = self.request(id).map(|request| request.key) {
            outside.trace(self.id, || format!("request {id} leaves"));
            self.release(key, false, outside);
        }
    }

    /// A request goes on, if it is still there.
    fn decide(&mut self, key: RequestKey, outside: &mut Outside) {
        let Some(Some(request)) = self.requests.get(key.index()) else { return };
        if request.key != key {
            return;
        }
        let outcome = self.client.outcome(key).expect("it is complete");
        outside.trace(self.id, || format!("request {} ends: {outcome:?}", request.plan.id));
        request.check_outcome(outcome, outside);
        let answers = self.client.answers(key);
        let is_rejected = answers.iter().any(|it| it.verdict.is_some_and(|it| !it.allowed));
        let is_whole = is_rejected || answers.iter().all(|answer| answer.verdict.is_some());
        assert!(outcome.is_err() || is_whole, "request {} was half decided", request.plan.id);
        let is_refused = is_rejected || outcome.is_err() && request.plan.is_closed;
        outside.decided += u64::from(outcome.is_ok());
        self.release(key, is_refused, outside);
    }

    fn release(&mut self, key: RequestKey, refund: bool, outside: &mut Outside) {
        let request = self.requests[key.index()].take().expect("a request");
        let answers = self.client.answers(key).to_vec();
        let is_late = matches!(self.client.outcome(key), Some(Err(_)));
        for (part, answer) in request.plan.parts.iter().zip(&answers) {
            let class = part.class(self.id);
            outside.trace(self.id, || format!("request {} {part:?}: {answer:?}", request.plan.id));
            outside.ledger.on_answer(request.plan.id, &class, answer);
            outside.ledger.release(&class, answer, refund, is_late);
        }
        let grants: Vec<Granted> =
            (0..answers.len()).map(|index| self.client.granted(key, index)).collect();
        let times = (request.submitted, outside.now());
        let machine = &outside.machines[self.id % MACHINES];
        machine.renew(self.id, &request.plan, &request.taken, (&answers, &grants), times);
        self.client.release(key, refund);
        self.act(outside);
        let charged = request.plan.parts.iter().zip(&answers).filter(|(_, it)| it.is_charged);
        for (part, answer) in charged.filter(|_| refund) {
            let (charge, verdict) = (part.charge(None), answer.verdict.expect("a verdict"));
            let (quota, cost) = (charge.quota, charge.cost);
            let charged = Charged::new(answer.now, &verdict);
            let since = quota.algorithm().regained_from(quota, charged, cost);
            self.client.refund(&charge, since, outside.now());
            self.act(outside);
        }
    }

    /// Whether it has all the connections that it wants.
    pub fn is_connected(&self) -> bool {
        let view = |key| self.client.node(key).map(Node::view);
        let is_connected = |view: View| view.connecting == 0 && view.state != NodeState::Open;
        self.is_leaving || self.client.nodes().filter_map(view).all(is_connected)
    }

    /// At the end nothing is left of any request.
    pub fn check_idle(&self) {
        assert!(self.requests.iter().flatten().next().is_none(), "{:?}", self.requests);
        assert!(self.client.is_idle() && !self.client.keeps_worker(), "something is left");
    }
}

impl Request {
    fn check_outcome(&self, outcome: Result<(), Error>, outside: &Outside) {
        let Err(error) = outcome else { return };
        let (id, timeout) = (self.plan.id, self.plan.timeout);
        if error == Error::Timeout {
            let began = self.began.expect("the end of the turn");
            let is_over = outside.now() >= began + timeout;
            assert!(is_over, "request {id} timed out too early");
        }
        // A short timeout may end before the reply comes over this network, and any timeout while the
        // machine is stopped.
        let is_short = timeout < 100 * MILLISECOND || outside.pause.end > self.submitted;
        let is_excused = error == Error::Timeout && is_short;
        let is_strict = outside.is_strict(self.submitted);
        assert!(is_excused || !is_strict, "request {id} was not decided: {error:?}");
    }
}

/// The next whole millisecond, as timers have no finer time.
fn ceil(at: u64) -> u64 {
    at.next_multiple_of(MILLISECOND)
}
