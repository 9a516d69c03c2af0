//! Connections between a fleet and its servers, and the events that are to come.

use std::collections::HashMap;
use std::net::SocketAddr;

use rate_limit_core::client::ConnectionKey;

use super::Step;
use crate::deployment::Change;
use crate::network::{ConnectionId, End};
use crate::queue::Queue;
use crate::server::ServerId;

/// How much longer than others a packet takes on some connections, in µs.
const SPREAD: u64 = 64;

/// The index of a worker in its fleet.
pub type WorkerId = usize;

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// A worker starts.
    Start(WorkerId),
    /// A worker gets a request.
    Request(WorkerId),
    /// The timer of a worker expires, unless it was set to another time.
    Timer(WorkerId, u64),
    /// A packet arrives at a server.
    ToServer(ConnectionId, Packet),
    /// A packet arrives at a worker.
    ToWorker(ConnectionId, Packet),
    /// The servers go on among themselves.
    Change(Change),
    /// The next step of the scenario.
    Step(Step),
    /// A sample of what has happened since the last one is recorded.
    Sample,
}

/// A packet of a connection.
#[derive(Debug)]
pub enum Packet {
    /// An attempt to connect, and how many were not answered before.
    Syn {
        tries: u32,
    },
    /// The kernel of the server has accepted the connection.
    Accepted,
    /// A flight of the TLS handshake.
    Hello,
    Bytes(Box<[u8]>),
    End(End),
}

/// A connection.
#[derive(Debug)]
pub struct Socket {
    pub worker: WorkerId,
    pub key: ConnectionKey,
    pub address: SocketAddr,
    /// The server that has accepted it, until one of them closes it.
    pub server: Option<ServerId>,
    /// The worker has closed it.
    pub is_closed: bool,
    /// The server has closed it, or is gone.
    pub is_lost: bool,
}

/// All connections, and all events.
#[derive(Debug)]
pub struct Network {
    pub now: u64,
    /// How long a packet takes, in µs.
    latency: u64,
    pub sockets: HashMap<ConnectionId, Socket>,
    opened: ConnectionId,
    queue: Queue<Event>,
}

impl Network {
    pub fn new(latency: u64) -> Self {
        Self { now: 0, latency, sockets: HashMap::new(), opened: 0, queue: Queue::new() }
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.queue.push(time.max(self.now), event);
    }

    /// The next event up to `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        self.queue.next_at().filter(|at| *at <= end)?;
        let (at, event) = self.queue.pop()?;
        self.now = at;
        Some(event)
    }

    /// A worker begins to connect.
    pub fn connect(
        &mut self,
        worker: WorkerId,
        key: ConnectionKey,
        address: SocketAddr,
    ) -> ConnectionId {
        self.opened += 1;
        let (id, server) = (self.opened, None);
        let socket = Socket { worker, key, address, server, is_closed: false, is_lost: false };
        self.sockets.insert(id, socket);
        self.send(id, Packet::Syn { tries: 0 });
        id
    }

    /// A worker sends something.
    pub fn send(&mut self, id: ConnectionId, packet: Packet) {
        self.at(self.now + self.latency + id % SPREAD, Event::ToServer(id, packet));
    }

    /// A server sends something at `time`.
    pub fn reply(&mut self, id: ConnectionId, packet: Packet, time: u64) {
        self.at(time + self.latency + id % SPREAD, Event::ToWorker(id, packet));
    }

    /// A worker closes a connection, and gets nothing more of it.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.is_closed = true;
            self.send(id, Packet::End(End::Closed));
        }
    }

    /// A server ends a connection: what is on its way to the worker is lost.
    pub fn reset(&mut self, id: ConnectionId, end: End) {
        if let Some(socket) = self.sockets.get_mut(&id) {
            socket.is_lost = true;
            self.reply(id, Packet::End(end), self.now);
        }
    }
}
