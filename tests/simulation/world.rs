//! The world around the clients: servers, a network, a clock, and what goes wrong.
//!
//! Everything follows from one seed and from what the clients do. The world goes on by
//! [`World::next`], which returns what the next event means to a client.

use std::net::{IpAddr, SocketAddr};

use fastrand::Rng;

use crate::deployment::{Change, Deployment};
use crate::fault::{Episode, Fault};
use crate::journal::Journal;
use crate::network::{ClientId, ConnectionId, End, Network, Packet, Side};
use crate::queue::Queue;
use crate::server::{Process, ServerId, TOO_MANY};

/// How long a process that was stopped takes to go on with each connection, in µs.
const WAKING: std::ops::Range<u64> = 10..500;

/// An event of the world's own.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A client's attempt to connect arrives.
    Arrive(ConnectionId),
    /// The first packet on its way to this side of a connection arrives.
    Deliver(ConnectionId, Side),
    /// The deployment goes on.
    Change(Change),
    Begin(usize),
    Finish(usize),
    /// A host name has been resolved; the index of the query.
    Resolve(usize),
    Alarm(u64),
}

/// An event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    Connected(ConnectionId),
    Received(ConnectionId, Vec<u8>),
    /// The connection could not be made, or has ended.
    Lost(ConnectionId, End),
    /// The query of this number is answered; no addresses if it failed.
    Resolved(usize, Vec<IpAddr>),
    /// A time has come: see [`World::alarm`].
    Alarm(u64),
}

/// Servers, network and clock.
#[derive(Debug)]
pub struct World {
    pub deployment: Deployment,
    pub network: Network,
    pub journal: Journal,
    /// How many events there have been.
    pub steps: u64,
    now: u64,
    queue: Queue<Event>,
    episodes: Vec<Episode>,
    /// How many episodes are not over.
    episodes_left: usize,
    /// How many changes of the deployment are to come.
    changes_left: usize,
    queries: Vec<(ClientId, String)>,
    names_fail: bool,
    /// The connections of servers that are stopped, for each packet that has arrived there.
    stalled: Vec<Vec<ConnectionId>>,
    rng: Rng,
}

/// For clients.
impl World {
    pub fn new(deployment: Deployment, episodes: Vec<Episode>, mut rng: Rng) -> Self {
        let mut queue = Queue::new();
        for (index, episode) in episodes.iter().enumerate() {
            queue.push(episode.time.start, Event::Begin(index));
            queue.push(episode.time.end, Event::Finish(index));
        }
        let servers = deployment.servers.len();
        Self {
            network: Network::new(servers, rng.fork()),
            deployment,
            journal: Journal::default(),
            steps: 0,
            now: 0,
            queue,
            episodes_left: episodes.len(),
            episodes,
            changes_left: 0,
            queries: Vec::new(),
            names_fail: false,
            stalled: vec![Vec::new(); servers],
            rng,
        }
    }

    /// The time in µs since the start.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Begins to connect to an address.
    pub fn connect(&mut self, client: ClientId, address: SocketAddr) -> ConnectionId {
        self.network.open(client, address, self.now, &mut self.queue)
    }

    pub fn send(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.network.send(connection, Side::Server, bytes, self.now, &mut self.queue);
    }

    /// Closes a connection: nothing happens to the client with it any more.
    pub fn close(&mut self, connection: ConnectionId) {
        self.network.close(connection, self.now, &mut self.queue);
    }

    /// Begins to resolve a host name, and returns the number of the query.
    pub fn resolve(&mut self, client: ClientId, host: &str) -> usize {
        self.queries.push((client, host.to_owned()));
        let number = self.queries.len() - 1;
        let delay = self.rng.u64(200..20_000);
        self.queue.push(self.now + delay, Event::Resolve(number));
        number
    }

    /// Makes [`ClientEvent::Alarm`] happen with this token at a time.
    pub fn alarm(&mut self, at: u64, token: u64) {
        self.queue.push(at.max(self.now), Event::Alarm(token));
    }

    /// Goes on to the next event that means anything to a client. `None` if there is none.
    pub fn next(&mut self) -> Option<ClientEvent> {
        loop {
            let (at, event) = self.queue.pop()?;
            self.now = self.now.max(at);
            self.steps += 1;
            let event = self.on(event);
            self.take_effects();
            if event.is_some() {
                return event;
            }
        }
    }

    /// The machine that all run on is stopped, for so many µs.
    pub fn pause(&mut self, micros: u64) {
        self.now += micros;
    }

    /// Whether nothing goes wrong any more: all faults are over, and the servers have settled.
    pub fn is_calm(&self) -> bool {
        self.episodes_left == 0
            && self.changes_left == 0
            && self.deployment.is_up()
            && !self.deployment.is_migrating()
    }

    fn on(&mut self, event: Event) -> Option<ClientEvent> {
        match event {
            Event::Arrive(id) => self.arrive(id),
            Event::Deliver(id, Side::Client) => return self.deliver_to_client(id),
            Event::Deliver(id, Side::Server) => self.deliver_to_server(id),
            Event::Change(change) => {
                self.changes_left -= 1;
                self.deployment.change(change, self.now, &mut self.journal);
            }
            Event::Begin(index) => self.begin(index),
            Event::Finish(index) => self.finish(index),
            Event::Resolve(number) => return Some(self.resolved(number)),
            Event::Alarm(token) => return Some(ClientEvent::Alarm(token)),
        }
        None
    }

    fn resolved(&self, number: usize) -> ClientEvent {
        let known = self.deployment.names.get(&self.queries[number].1).filter(|_| !self.names_fail);
        ClientEvent::Resolved(number, known.cloned().unwrap_or_default())
    }

    /// Takes what the deployment has left to do.
    fn take_effects(&mut self) {
        for (at, change) in self.deployment.later.drain(..) {
            self.changes_left += 1;
            self.queue.push(at, Event::Change(change));
        }
        for (_, connection, bytes) in self.deployment.messages.drain(..) {
            self.network.send(connection, Side::Client, &bytes, self.now, &mut self.queue);
        }
        for (_, connection) in self.deployment.closed.drain(..) {
            let end = Packet::End(End::Closed);
            self.network.push(connection, Side::Client, end, self.now, &mut self.queue);
        }
    }
}

/// Packets.
impl World {
    fn arrive(&mut self, id: ConnectionId) {
        let Some(connection) = self.network.get(id) else { return };
        let (client, address) = (connection.client, connection.address);
        let Some(server) = self.deployment.at(address) else {
            // No server has the address: another host refuses, or there is no reply at all.
            if self.rng.bool() {
                let refused = Packet::End(End::Refused);
                self.network.push(id, Side::Client, refused, self.now, &mut self.queue);
            }
            return;
        };
        if let Some(until) = self.network.link_blocked_until(client, server, self.now) {
            return self.queue.push(until, Event::Arrive(id));
        }
        let packet = match self.deployment.servers[server].process {
            Process::Dead => Packet::End(End::Refused),
            _ => {
                self.network.accept(id, server);
                Packet::Accepted
            }
        };
        self.network.push(id, Side::Client, packet.clone(), self.now, &mut self.queue);
        if packet == Packet::Accepted && !self.deployment.servers[server].accept(id) {
            let refusal = Packet::Bytes(TOO_MANY.to_vec());
            self.network.push(id, Side::Client, refusal, self.now, &mut self.queue);
            self.network.push(
                id,
                Side::Client,
                Packet::End(End::Closed),
                self.now,
                &mut self.queue,
            );
        }
    }

    fn deliver_to_client(&mut self, id: ConnectionId) -> Option<ClientEvent> {
        match self.network.deliver(id, Side::Client, self.now, &mut self.queue)? {
            Packet::Accepted => Some(ClientEvent::Connected(id)),
            Packet::Bytes(bytes) => Some(ClientEvent::Received(id, bytes)),
            Packet::End(end) => {
                self.forget(id);
                Some(ClientEvent::Lost(id, end))
            }
        }
    }

    fn deliver_to_server(&mut self, id: ConnectionId) {
        let server = self.network.get(id).and_then(|connection| connection.server);
        if let Some(server) = server
            && self.deployment.servers[server].process == Process::Hung
        {
            return self.stalled[server].push(id);
        }
        match self.network.deliver(id, Side::Server, self.now, &mut self.queue) {
            Some(Packet::Bytes(bytes)) => self.process(id, server, &bytes),
            Some(Packet::End(_)) => self.forget(id),
            _ => {}
        }
    }

    /// A server gets bytes. If it does not know the connection any more, it resets it.
    fn process(&mut self, id: ConnectionId, server: Option<ServerId>, bytes: &[u8]) {
        let Some(server) = server.filter(|server| self.deployment.servers[*server].has(id)) else {
            let reset = Packet::End(End::Reset);
            return self.network.push(id, Side::Client, reset, self.now, &mut self.queue);
        };
        let mut out = Vec::new();
        self.deployment.receive(server, id, bytes, self.now, &mut self.journal, &mut out);
        self.network.send(id, Side::Client, &out, self.now, &mut self.queue);
    }

    /// One side knows that the connection has ended, the other one has ended it.
    fn forget(&mut self, id: ConnectionId) {
        if let Some(server) = self.network.get(id).and_then(|connection| connection.server) {
            self.deployment.servers[server].drop_connection(id);
        }
        self.network.forget(id);
    }

    /// Bytes that have arrived while a process was stopped are processed, or lost with the process.
    fn wake(&mut self, server: ServerId) {
        for id in std::mem::take(&mut self.stalled[server]) {
            let at = self.now + self.rng.u64(WAKING);
            self.queue.push(at, Event::Deliver(id, Side::Server));
        }
    }

    fn reset_all(&mut self, connections: Vec<ConnectionId>) {
        for id in connections {
            self.network.reset(id, Side::Client, self.now, &mut self.queue);
        }
    }
}

/// Faults.
impl World {
    fn begin(&mut self, index: usize) {
        let Episode { time, fault } = self.episodes[index].clone();
        let now = self.now;
        match fault {
            Fault::Kill { server, .. } => {
                let connections = self.deployment.kill(server, now);
                self.reset_all(connections);
                self.wake(server);
            }
            Fault::Hang { server } => self.deployment.hang(server, now),
            Fault::Slow { server, micros } => self.network.set_slowness(server, micros),
            Fault::Partition { server, clients, isolated } => {
                for client in clients {
                    self.network.block(client, server, time.end);
                }
                if isolated {
                    self.deployment.isolate(server, now);
                }
            }
            Fault::Reset { server } => {
                let connections = self.deployment.servers[server].drop_connections();
                self.reset_all(connections);
            }
            Fault::Close { server } => {
                for id in self.deployment.servers[server].drop_connections() {
                    let end = Packet::End(End::Closed);
                    self.network.push(id, Side::Client, end, now, &mut self.queue);
                }
            }
            Fault::Vanish { server } => {
                for id in self.deployment.servers[server].drop_connections() {
                    self.network.silence(id, time.end);
                }
            }
            Fault::FlushScripts { server } => self.deployment.servers[server].flush_scripts(),
            Fault::Unfit { server, unfit } => {
                self.deployment.servers[server].unfit = Some(unfit);
            }
            Fault::Password { server } => {
                self.deployment.servers[server].password = Some("changed".to_owned());
            }
            Fault::Switch { server } => self.deployment.switch(server, now, &mut self.journal),
            Fault::Move { from, to, slots } => {
                let masters = self.deployment.masters();
                if from != to && masters.contains(&from) && masters.contains(&to) {
                    self.deployment.move_slots(from, to, slots, now);
                }
            }
            Fault::Orphan { slots } => self.deployment.take_slots(slots, now),
            Fault::Readdress { server } => self.readdress(server, time.end),
            Fault::NoNames => self.names_fail = true,
        }
    }

    fn finish(&mut self, index: usize) {
        self.episodes_left -= 1;
        let now = self.now;
        match self.episodes[index].fault.clone() {
            Fault::Kill { server, keeps_data } => {
                self.deployment.restart(server, keeps_data, now, &mut self.journal);
            }
            Fault::Hang { server } => {
                self.deployment.resume(server, now);
                self.wake(server);
            }
            Fault::Slow { server, .. } => self.network.set_slowness(server, 0),
            Fault::Unfit { server, .. } => self.deployment.servers[server].unfit = None,
            Fault::Password { server } => self.deployment.restore_password(server),
            Fault::Partition { server, .. } => self.deployment.join(server, now),
            Fault::Orphan { .. } => self.deployment.return_slots(now),
            Fault::NoNames => self.names_fail = false,
            _ => {}
        }
    }

    /// A server moves to another host: its connections are gone without a notice.
    fn readdress(&mut self, server: ServerId, until: u64) {
        let mut address = self.deployment.servers[server].address;
        let IpAddr::V4(host) = address.ip() else { return };
        address.set_ip(IpAddr::from((u32::from(host) + 0x1_0000).to_be_bytes()));
        for id in self.deployment.servers[server].drop_connections() {
            self.network.silence(id, until);
        }
        self.deployment.set_address(server, address, self.now);
    }
}

#[cfg(test)]
mod tests {
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::fault;
    use crate::server::tests::{charge, words};

    fn address() -> SocketAddr {
        ([10, 0, 0, 1], 6_379).into()
    }

    fn world(seed: u64, episodes: Vec<Episode>) -> World {
        let mut rng = Rng::with_seed(seed);
        World::new(Deployment::single(None, rng.fork()), episodes, rng)
    }

    fn episode(start: u64, end: u64, fault: Fault) -> Vec<Episode> {
        vec![Episode { time: start..end, fault }]
    }

    /// Connects, and sends bytes as soon as that is done.
    fn connect_and_send(world: &mut World, bytes: &[u8]) -> ConnectionId {
        let connection = world.connect(0, address());
        assert_eq!(world.next(), Some(ClientEvent::Connected(connection)));
        world.send(connection, bytes);
        connection
    }

    /// Everything that is received on the only connection, and how it ends.
    fn receive(world: &mut World) -> (Vec<u8>, Option<End>) {
        let mut received = Vec::new();
        while let Some(event) = world.next() {
            match event {
                ClientEvent::Received(_, bytes) => received.extend(bytes),
                ClientEvent::Lost(_, end) => return (received, Some(end)),
                other => panic!("{other:?}"),
            }
        }
        (received, None)
    }

    #[test]
    fn bytes_arrive_in_order_whatever_the_seed() {
        let bytes =
            [words(&["PING"]), charge(By::Source, &["k"]), charge(By::Sha, &["k"])].concat();
        let mut pieces = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut world = world(seed, Vec::new());
            connect_and_send(&mut world, &bytes);
            let (received, end) = receive(&mut world);
            assert!(received.starts_with(b"+PONG\r\n$") && received.ends_with(b"\0\0\r\n"));
            assert_eq!((end, world.journal.executions.len()), (None, 2));
            pieces.insert(world.steps);
        }
        assert!(pieces.len() > 3, "not cut in the same way each time");
    }

    #[test]
    fn the_same_seed_is_the_same_world() {
        let history = |seed| {
            let mut rng = Rng::with_seed(seed);
            let deployment = Deployment::cluster(3, 1, true, rng.fork());
            let episodes = fault::draw(&deployment, 1, 30, 5_000_000, &mut rng);
            let mut world = World::new(deployment, episodes, rng);
            (0..100).for_each(|number| world.alarm(number * 50_000, number));
            let (mut history, mut bytes) = (Vec::new(), charge(By::Source, &["k"]));
            while let Some(event) = world.next() {
                match &event {
                    ClientEvent::Alarm(_) => drop(world.connect(0, ([10, 0, 0, 1], 7_000).into())),
                    ClientEvent::Connected(connection) => world.send(*connection, &bytes),
                    ClientEvent::Received(connection, _) => world.close(*connection),
                    _ => bytes = charge(By::Source, &["l"]),
                }
                history.push((world.now(), event));
            }
            assert!(world.is_calm(), "{seed}");
            assert_eq!(world.network.open_connections(0), 0, "{seed}");
            history
        };
        for seed in 0..20 {
            assert_eq!(history(seed), history(seed));
        }
        assert_ne!(history(1), history(2));
    }

    #[test]
    fn a_hung_server_replies_later() {
        let mut world = world(1, episode(5_000, 900_000, Fault::Hang { server: 0 }));
        world.alarm(6_000, 0);
        assert_eq!(world.next(), Some(ClientEvent::Alarm(0)));
        connect_and_send(&mut world, &words(&["PING"]));
        assert_eq!(receive(&mut world), (b"+PONG\r\n".to_vec(), None));
        assert!(world.now() > 900_000);
    }

    #[test]
    fn a_dead_server_resets_and_refuses() {
        let kill = Fault::Kill { server: 0, keeps_data: true };
        let mut world = world(1, episode(5_000, 900_000, kill));
        connect_and_send(&mut world, &words(&["PING"]));
        assert_eq!(receive(&mut world).1, Some(End::Reset));
        world.connect(0, address());
        assert_eq!(receive(&mut world).1, Some(End::Refused));
    }

    #[test]
    fn what_a_reset_cuts_off_may_have_been_executed() {
        let executed = (0..200).filter(|seed| {
            let mut world = world(*seed, episode(400, 401, Fault::Reset { server: 0 }));
            let connection = world.connect(0, address());
            let mut received = 0;
            while let Some(event) = world.next() {
                match event {
                    ClientEvent::Connected(_) => {
                        world.send(connection, &charge(By::Source, &["k"]))
                    }
                    ClientEvent::Received(_, bytes) => received += bytes.len() as u64,
                    _ => {}
                }
            }
            world.journal.executions.iter().any(|execution| execution.reply_ends > received)
        });
        assert!((10..190).contains(&executed.count()));
    }

    #[test]
    fn what_vanishes_is_noticed_when_something_is_sent_later() {
        let mut world = world(1, episode(5_000, 900_000, Fault::Vanish { server: 0 }));
        world.alarm(6_000, 0);
        let connection = connect_and_send(&mut world, b"");
        assert_eq!(world.next(), Some(ClientEvent::Alarm(0)));
        world.send(connection, &words(&["PING"]));
        assert_eq!(receive(&mut world), (Vec::new(), Some(End::Reset)));
        assert!(world.now() > 900_000);
    }

    #[test]
    fn a_partition_delays_what_is_sent() {
        let partition = Fault::Partition { server: 0, clients: vec![0], isolated: false };
        let mut world = world(1, episode(0, 900_000, partition));
        world.alarm(1, 0);
        assert_eq!(world.next(), Some(ClientEvent::Alarm(0)));
        connect_and_send(&mut world, &words(&["PING"]));
        assert!(world.now() > 900_000);
        assert_eq!(receive(&mut world), (b"+PONG\r\n".to_vec(), None));
    }

    #[test]
    fn host_names_follow_their_servers() {
        let mut rng = Rng::with_seed(1);
        let deployment = Deployment::single(Some("redis.test"), rng.fork());
        let episodes = episode(30_000, 60_000, Fault::Readdress { server: 0 });
        let mut world = World::new(deployment, episodes, rng);
        let mut resolve = |at| {
            world.alarm(at, 0);
            assert_eq!(world.next(), Some(ClientEvent::Alarm(0)));
            let number = world.resolve(0, "redis.test");
            let Some(ClientEvent::Resolved(answered, addresses)) = world.next() else {
                panic!("not resolved")
            };
            assert_eq!(answered, number);
            addresses
        };
        assert_eq!(resolve(0), [IpAddr::from([10, 0, 0, 1])]);
        assert_eq!(resolve(70_000), [IpAddr::from([10, 1, 0, 1])]);
    }
}
