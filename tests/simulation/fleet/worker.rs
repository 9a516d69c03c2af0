//! A worker of a fleet: the real client, and as little as possible around it. A turn of its event loop takes
//! no time.

use std::sync::Arc;

use rate_limit_core::charge::Charge;
use rate_limit_core::client::{
    Action, Client, Config, ConnectionKey, Error, Fault, Level, RequestKey, Target, Turn,
};
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::script::Scripts;

use super::network::{Event, Network, Packet, WorkerId};
use super::record::Record;
use super::traffic::{Key, Traffic};
use crate::network::ConnectionId;

/// One worker.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    client: Client,
    /// By the index of the connection; 0 if there is none.
    sockets: Vec<ConnectionId>,
    /// Requests that wait.
    requests: Vec<Request>,
    is_turn_end_due: bool,
    timer: Option<u64>,
}

#[derive(Debug)]
struct Request {
    key: RequestKey,
    submitted: u64,
    is_served: bool,
}

/// A client whose driver has passed on what came as it came.
struct Driven<'a> {
    client: &'a mut Client,
    now: u64,
}

impl Turn for Driven<'_> {
    fn client(&mut self) -> &mut Client {
        self.client
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn read_sockets(&mut self) {}
}

/// The surroundings of a worker.
#[derive(Debug)]
pub struct Outside<'a> {
    pub network: &'a mut Network,
    pub record: &'a mut Record,
    pub has_tls: bool,
}

/// An event of a worker's connection.
#[derive(Debug)]
pub enum Happening {
    Connected,
    Secured,
    Received(Box<[u8]>),
    Lost(Fault),
}

impl Worker {
    pub fn new(id: WorkerId, config: Config, scripts: Arc<Scripts>) -> Self {
        Self {
            id,
            client: Client::new(config, scripts),
            sockets: Vec::new(),
            requests: Vec::new(),
            is_turn_end_due: false,
            timer: None,
        }
    }

    /// How many connections can be used.
    pub fn ready(&self) -> usize {
        let nodes = self.client.nodes().filter_map(|key| self.client.node(key));
        nodes.map(|node| node.view().ready).sum()
    }

    pub fn start(&mut self, outside: &mut Outside<'_>) {
        self.client.start(outside.network.now);
        self.act(outside);
    }

    /// The process ends: its connections are closed.
    pub fn end(&mut self, outside: &mut Outside<'_>) {
        for id in self.sockets.drain(..).filter(|id| *id > 0) {
            outside.network.close(id);
        }
    }

    /// A request comes, about this key.
    pub fn on_request(&mut self, key: &Key, traffic: &Traffic, outside: &mut Outside<'_>) {
        let (now, timeout) = (outside.network.now, traffic.timeout);
        let charge = Charge::new(&traffic.template, &key.name, &traffic.quota, 1);
        let charge = Charge { digest: key.digest, ..charge };
        let request = self.client.submit(&[charge], timeout, now);
        self.requests.push(Request { key: request, submitted: now, is_served: key.is_served });
        if self.client.outcome(request).is_some() {
            self.complete(request, outside);
        }
        self.act(outside);
    }

    pub fn on_timer(&mut self, at: u64, outside: &mut Outside<'_>) {
        if self.timer == Some(at) {
            self.timer = None;
            Driven { client: &mut self.client, now: outside.network.now }.check_timer();
            self.act(outside);
        }
    }

    /// Something happens to the connection that has this socket, unless it was closed.
    pub fn on_socket(
        &mut self,
        key: ConnectionKey,
        id: ConnectionId,
        happening: Happening,
        outside: &mut Outside<'_>,
    ) {
        if self.sockets.get(key.index()) != Some(&id) {
            return;
        }
        let now = outside.network.now;
        match happening {
            Happening::Connected if outside.has_tls => {
                self.client.on_securing(key);
                outside.network.send(id, Packet::Hello);
            }
            Happening::Connected | Happening::Secured => self.client.on_connected(key),
            Happening::Received(bytes) => self.receive(key, &bytes, now),
            Happening::Lost(fault) => self.client.on_lost(key, &fault, now),
        }
        self.act(outside);
    }

    fn receive(&mut self, key: ConnectionKey, mut bytes: &[u8], now: u64) {
        while !bytes.is_empty() {
            let space = self.client.space(key);
            let count = space.len().min(bytes.len());
            let (taken, rest) = bytes.split_at(count);
            space[..count].copy_from_slice(taken);
            bytes = rest;
            if count == 0 || !self.client.on_received(key, count, now) {
                return;
            }
        }
    }

    /// Carries out what follows, up to the end of the turn.
    fn act(&mut self, outside: &mut Outside<'_>) {
        loop {
            while let Some(action) = self.client.poll_action() {
                self.carry_out(action, outside);
            }
            if !std::mem::take(&mut self.is_turn_end_due) {
                break;
            }
            self.client.on_turn_end(outside.network.now);
        }
        self.set_timer(outside);
    }

    fn carry_out(&mut self, action: Action, outside: &mut Outside<'_>) {
        match action {
            Action::EndTurn => self.is_turn_end_due = true,
            Action::Connect(key, Target::Ip(address)) => {
                outside.record.now.attempts += 1;
                let id = outside.network.connect(self.id, key, address);
                if self.sockets.len() <= key.index() {
                    self.sockets.resize(key.index() + 1, 0);
                }
                self.sockets[key.index()] = id;
            }
            Action::Send(key) => self.send(key, outside),
            Action::Close(key) => {
                let id = self.sockets.get_mut(key.index()).map_or(0, std::mem::take);
                outside.network.close(id);
            }
            Action::Complete(key) => self.complete(key, outside),
            Action::Count(node) => drop(self.client.take_counts(node)),
            Action::Down(..) | Action::Log(Level::Error, _) => outside.record.now.lines += 1,
            Action::Connect(..) | Action::Resolve { .. } => panic!("{action:?}"),
            _ => {}
        }
    }

    fn send(&mut self, key: ConnectionKey, outside: &mut Outside<'_>) {
        let Some(id) = self.sockets.get(key.index()).copied().filter(|id| *id > 0) else { return };
        loop {
            let bytes = self.client.output(key, outside.network.now);
            let count = bytes.len();
            if count == 0 {
                return;
            }
            outside.network.send(id, Packet::Bytes(bytes.into()));
            self.client.on_sent(key, count);
        }
    }

    fn complete(&mut self, key: RequestKey, outside: &mut Outside<'_>) {
        let index = self.requests.iter().position(|request| request.key == key);
        let request = self.requests.swap_remove(index.expect("a request"));
        let outcome = self.client.outcome(key).expect("an outcome");
        let answers = self.client.answers(key);
        let is_unsent = outcome == Err(Error::Lost) && answers.iter().all(|it| it.node.is_none());
        outside.record.now.unsent += u64::from(is_unsent);
        outside.record.on_request(request.submitted, outcome.is_ok(), request.is_served);
        self.client.release(key, false);
    }

    fn set_timer(&mut self, outside: &mut Outside<'_>) {
        let Some(at) = self.client.timer().map(|at| at.next_multiple_of(MILLISECOND)) else {
            self.timer = None;
            return;
        };
        if self.timer != Some(at) {
            self.timer = Some(at);
            outside.network.at(at, Event::Timer(self.id, at));
        }
    }
}
