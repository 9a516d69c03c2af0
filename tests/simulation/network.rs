//! Connections between clients and servers: bytes in order, late, and cut anywhere.
//!
//! Each direction of a connection is a pipe of packets. For each packet the world gets one event,
//! which delivers the first packet of the pipe: so the order is kept, whatever delays the events.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use fastrand::Rng;

use crate::queue::Queue;
use crate::server::ServerId;
use crate::world::Event;

/// The number of a connection; none is used twice.
pub type ConnectionId = u64;

/// The number of a client.
pub type ClientId = usize;

/// One of so many packets is cut.
const CUT: u32 = 6;

/// The end of a connection that something is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A packet in a pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The server's kernel has accepted the connection.
    Accepted,
    Bytes(Vec<u8>),
    End(End),
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The address has no server.
    Refused,
    /// The other side has closed it.
    Closed,
    /// The other side has reset it: packets may be missing.
    Reset,
}

/// All connections.
#[derive(Debug)]
pub struct Network {
    connections: BTreeMap<ConnectionId, Connection>,
    opened: ConnectionId,
    /// Until when nothing passes between a client and a server.
    blocked: BTreeMap<(ClientId, ServerId), u64>,
    /// How long each server takes beside the usual, in µs.
    slowness: Vec<u64>,
    /// How far away all servers are, in µs.
    pub distance: u64,
    rng: Rng,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    pub client: ClientId,
    pub address: SocketAddr,
    /// The server that has accepted it.
    pub server: Option<ServerId>,
    /// The client has closed it.
    closed: bool,
    /// The other side is silently gone: until when nothing that is sent has any effect.
    silent_until: Option<u64>,
    to_client: Pipe,
    to_server: Pipe,
}

#[derive(Debug, Default)]
struct Pipe {
    packets: VecDeque<Packet>,
    last: u64,
}

impl Network {
    pub fn new(servers: usize, rng: Rng) -> Self {
        Self {
            connections: BTreeMap::new(),
            opened: 0,
            blocked: BTreeMap::new(),
            slowness: vec![0; servers],
            distance: 0,
            rng,
        }
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// How many connections a client has open, or is making.
    pub fn open_connections(&self, client: ClientId) -> usize {
        let is_open = |connection: &&Connection| connection.client == client && !connection.closed;
        self.connections.values().filter(is_open).count()
    }

    /// A client begins to connect.
    pub fn open(
        &mut self,
        client: ClientId,
        address: SocketAddr,
        now: u64,
        queue: &mut Queue<Event>,
    ) -> ConnectionId {
        self.opened += 1;
        let connection = Connection {
            client,
            address,
            server: None,
            closed: false,
            silent_until: None,
            to_client: Pipe::default(),
            to_server: Pipe::default(),
        };
        self.connections.insert(self.opened, connection);
        let delay = self.delay(None);
        queue.push(now + delay, Event::Arrive(self.opened));
        self.opened
    }

    /// A server's kernel accepts a connection.
    pub fn accept(&mut self, id: ConnectionId, server: ServerId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.server = Some(server);
        }
    }

    /// Sends bytes, perhaps in several packets.
    pub fn send(
        &mut self,
        id: ConnectionId,
        to: Side,
        bytes: &[u8],
        now: u64,
        queue: &mut Queue<Event>,
    ) {
        let mut rest = bytes;
        while rest.len() > 1 && self.rng.u32(0..CUT) == 0 {
            let (packet, more) = rest.split_at(self.rng.usize(1..rest.len()));
            self.push(id, to, Packet::Bytes(packet.to_vec()), now, queue);
            rest = more;
        }
        if !rest.is_empty() {
            self.push(id, to, Packet::Bytes(rest.to_vec()), now, queue);
        }
    }

    /// Sends a packet after those that are on their way.
    pub fn push(
        &mut self,
        id: ConnectionId,
        to: Side,
        packet: Packet,
        now: u64,
        queue: &mut Queue<Event>,
    ) {
        let Some(server) = self.connections.get(&id).map(|connection| connection.server) else {
            return;
        };
        let delay = self.delay(server);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(to);
        pipe.last = pipe.last.max(now + delay);
        pipe.packets.push_back(packet);
        queue.push(pipe.last, Event::Deliver(id, to));
    }

    /// Resets a connection from one side: some of the packets that are on their way to the other
    /// side arrive, perhaps cut.
    pub fn reset(&mut self, id: ConnectionId, to: Side, now: u64, queue: &mut Queue<Event>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let packets = &mut connection.pipe(to).packets;
        packets.truncate(self.rng.usize(0..=packets.len()));
        if let Some(Packet::Bytes(bytes)) = packets.back_mut() {
            bytes.truncate(self.rng.usize(0..=bytes.len()));
        }
        self.push(id, to, Packet::End(End::Reset), now, queue);
    }

    /// Takes the packet that arrives now. One that cannot pass arrives when it can: the sender
    /// repeats it until then.
    pub fn deliver(
        &mut self,
        id: ConnectionId,
        to: Side,
        now: u64,
        queue: &mut Queue<Event>,
    ) -> Option<Packet> {
        let until = self.blocked_until(id, now);
        let connection = self.connections.get_mut(&id)?;
        if let Some(until) = until {
            queue.push(until, Event::Deliver(id, to));
            return None;
        }
        let packet = connection.pipe(to).packets.pop_front()?;
        (to == Side::Server || !connection.closed).then_some(packet)
    }

    /// A client closes a connection, and gets no more events of it. What it has sent may be
    /// lost.
    pub fn close(&mut self, id: ConnectionId, now: u64, queue: &mut Queue<Event>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.closed = true;
        match self.rng.bool() {
            true => self.push(id, Side::Server, Packet::End(End::Closed), now, queue),
            false => self.reset(id, Side::Server, now, queue),
        }
    }

    /// Forgets a connection that neither side has open.
    pub fn forget(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// Until when nothing passes on a connection, if so.
    pub fn blocked_until(&self, id: ConnectionId, now: u64) -> Option<u64> {
        let connection = self.connections.get(&id)?;
        let link = |server| self.blocked.get(&(connection.client, server)).copied();
        let blocked = connection.server.and_then(link);
        blocked.max(connection.silent_until).filter(|until| *until > now)
    }

    /// Until when nothing passes between a client and a server, if so.
    pub fn link_blocked_until(&self, client: ClientId, server: ServerId, now: u64) -> Option<u64> {
        self.blocked.get(&(client, server)).copied().filter(|until| *until > now)
    }

    pub fn block(&mut self, client: ClientId, server: ServerId, until: u64) {
        let blocked = self.blocked.entry((client, server)).or_default();
        *blocked = until.max(*blocked);
    }

    /// The server's end of a connection is gone, and the client does not notice: what is on its way
    /// is lost, and until this time nothing that it sends has any effect.
    pub fn silence(&mut self, id: ConnectionId, until: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.to_client.packets.clear();
            connection.to_server.packets.clear();
            connection.silent_until = Some(until);
        }
    }

    pub fn set_slowness(&mut self, server: ServerId, micros: u64) {
        self.slowness[server] = micros;
    }

    /// How long a packet takes: mostly a tenth of a millisecond if the server is near, seldom several
    /// milliseconds.
    fn delay(&mut self, server: Option<ServerId>) -> u64 {
        let usual = self.rng.u64(40..160) + self.rng.u64(0..=self.distance);
        let rare = if self.rng.u32(0..100) == 0 { self.rng.u64(0..6_000) } else { 0 };
        let slow = match server.map_or(0, |server| self.slowness[server]) {
            0 => 0,
            slowness => self.rng.u64(0..slowness),
        };
        usual + rare + slow
    }
}

impl Connection {
    fn pipe(&mut self, to: Side) -> &mut Pipe {
        match to {
            Side::Client => &mut self.to_client,
            Side::Server => &mut self.to_server,
        }
    }
}
