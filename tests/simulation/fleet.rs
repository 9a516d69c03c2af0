//! A fleet: thousands of workers and up to hundreds of servers, on one clock.
//!
//! Each worker runs the real client, and is light otherwise: its turns take no time, and its requests are all
//! alike. A server executes what arrives at once, which takes time of its one core, and what it replies leaves
//! when all before it is done. Everything follows from a seed.

mod drawing;
mod network;
mod processor;
#[cfg(test)]
mod quality;
mod record;
pub mod scenario;
mod traffic;
mod worker;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use rate_limit_core::client::{Config, Fault, Kind, Server, Target};
use rate_limit_core::limit::Algorithm;
use rate_limit_core::rate::{MILLISECOND, SECOND};
use rate_limit_core::redis::endpoint::{Address, Endpoint};
use rate_limit_core::redis::script::Scripts;

use crate::cost;
use crate::deployment::{Change, Deployment};
use crate::journal::Journal;
use crate::network::{ConnectionId, End};
use crate::sentinel::MASTER_NAME;
use crate::server::{Process, ServerId, TOO_MANY, Unfit};
use network::{Event, Network, Packet, Socket, WorkerId};
use processor::Processor;
use record::Record;
use traffic::Traffic;
use worker::{Happening, Outside, Worker};

/// How many connections the kernel of a server keeps that the server has not accepted yet (`tcp-backlog`).
const LISTEN_BACKLOG: usize = 511;

/// After how long a kernel repeats an attempt to connect that was not answered; each time twice as long, in µs.
const RETRANSMISSION: u64 = SECOND;

/// How long the others take to find that a server is down, beside what the detailed simulation takes.
const DETECTION: u64 = 2 * SECOND;

/// How many servers the configuration of a worker names at most.
const SEEDS: usize = 3;

/// The address of a server that is gone.
const LOST_SEED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), 7_000);

/// The parameters of a fleet.
#[derive(Clone, Debug)]
pub struct Shape {
    pub workers: usize,
    pub deployment: DeploymentKind,
    /// How many servers share the keys.
    pub nodes: usize,
    pub has_tls: bool,
    /// How many requests a second each worker simulates.
    pub rate: f64,
    /// Which share of its core all requests take of each node, if all are decided.
    pub load: f64,
    /// Within which time the workers start, in µs.
    pub start: u64,
    /// How long a packet takes, in µs.
    pub latency: u64,
    /// How long a request waits, in µs.
    pub timeout: u64,
    /// Whether the configuration names a server that is gone.
    pub has_lost_seed: bool,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentKind {
    Single,
    Sentinel,
    Cluster,
}

/// Something that is done to a fleet.
#[derive(Clone, Debug)]
pub enum Step {
    Kill(ServerId),
    /// A server that was killed starts again.
    Restart(ServerId),
    /// The replica of a server takes its place, on request.
    Switch(ServerId),
    /// Slots move from one master to another: so many, those with keys first.
    Move(ServerId, ServerId, usize),
    /// A server takes so many times as long for everything.
    Slow(ServerId, f64),
    /// A server takes so many clients.
    MaxClients(ServerId, usize),
    /// The other servers do not reach a server any more, but the workers do.
    Isolate(ServerId),
    /// A server executes no scripts.
    Refuse(ServerId, Unfit),
    /// The slots of all keys have no owner from now on.
    TakeSlots,
    ReturnSlots,
    /// These workers are replaced by new ones.
    Reload(Range<WorkerId>),
}

/// A fleet and its servers.
#[derive(Debug)]
pub struct Fleet {
    shape: Shape,
    config: Config,
    scripts: Arc<Scripts>,
    traffic: Traffic,
    deployment: Deployment,
    journal: Journal,
    places: HashMap<SocketAddr, ServerId>,
    /// By the server.
    machines: Vec<Machine>,
    network: Network,
    workers: Vec<Worker>,
    /// How many requests each worker has had.
    requests: Vec<usize>,
    record: Record,
    rng: Rng,
}

/// The machine of a server.
#[derive(Debug)]
struct Machine {
    processor: Processor,
    /// When the connections will be accepted that the kernel has taken.
    listening: VecDeque<u64>,
}

impl Fleet {
    pub fn new(shape: Shape) -> Self {
        let mut rng = Rng::with_seed(shape.seed);
        let (mut deployment, kind) = match shape.deployment {
            DeploymentKind::Single => (Deployment::single(None, rng.fork()), Kind::Single),
            DeploymentKind::Sentinel => {
                (Deployment::sentinel(3, 2, rng.fork()), Kind::Sentinel(MASTER_NAME.to_owned()))
            }
            DeploymentKind::Cluster => {
                (Deployment::cluster(shape.nodes, 1, false, rng.fork()), Kind::Cluster)
            }
        };
        // No request reads what another one has written.
        deployment.servers.iter_mut().for_each(|server| server.replicates = false);
        let scripts = Scripts::new().loading(&[Algorithm::TokenBucket], false);
        let machine = |_: &_| Machine { processor: Processor::new(), listening: VecDeque::new() };
        let places = deployment.servers.iter().map(|server| (server.address, server.id));
        let mut fleet = Self {
            traffic: Traffic::new(&scripts, shape.nodes, shape.timeout),
            config: config(&deployment, kind, &shape),
            scripts: Arc::new(scripts),
            places: places.collect(),
            machines: deployment.servers.iter().map(machine).collect(),
            deployment,
            journal: Journal::default(),
            network: Network::new(shape.latency),
            workers: Vec::new(),
            requests: vec![0; shape.workers],
            record: Record::default(),
            rng,
            shape,
        };
        for worker in 0..fleet.shape.workers {
            let new = fleet.new_worker(worker);
            fleet.workers.push(new);
            let at = fleet.rng.u64(0..=fleet.shape.start);
            fleet.network.at(at, Event::Start(worker));
            fleet.network.at(at.max(fleet.first_request(worker)), Event::Request(worker));
        }
        fleet.network.at(record::SPAN, Event::Sample);
        fleet
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Does something at a time.
    pub fn schedule(&mut self, at: u64, step: Step) {
        self.network.at(at, Event::Step(step));
    }

    /// Goes on until a time.
    pub fn run(&mut self, end: u64) {
        while let Some(event) = self.network.next(end) {
            self.on(event);
            self.take_effects();
        }
    }

    /// The servers that decide at first.
    pub fn masters(&self) -> Vec<ServerId> {
        self.deployment.masters()
    }

    /// How many connections to masters the workers can use.
    pub fn ready(&self) -> usize {
        self.workers.iter().map(Worker::ready).sum()
    }

    /// How long it takes on average from one request of a worker to the next, in µs.
    fn gap(&self) -> u64 {
        (SECOND as f64 / self.shape.rate) as u64
    }

    /// When a worker gets its first request. Later on each node gets one at even intervals.
    fn first_request(&self, worker: WorkerId) -> u64 {
        let nodes = self.shape.nodes;
        let count = self.shape.workers.div_ceil(nodes);
        self.gap() * (worker / nodes) as u64 / count as u64
    }

    fn new_worker(&mut self, id: WorkerId) -> Worker {
        let config = Config { seed: self.rng.u64(..), ..self.config.clone() };
        Worker::new(id, config, Arc::clone(&self.scripts))
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Start(worker) => self.with(worker, Worker::start),
            Event::Request(worker) => self.request(worker),
            Event::Timer(worker, at) => self.with(worker, |worker, outside| {
                worker.on_timer(at, outside);
            }),
            Event::ToServer(id, packet) => self.on_server(id, packet),
            Event::ToWorker(id, packet) => self.on_worker(id, packet),
            Event::Change(change) => {
                self.deployment.change(change, self.network.now, &mut self.journal);
            }
            Event::Step(step) => self.step(step),
            Event::Sample => self.sample(),
        }
    }

    fn with(&mut self, worker: WorkerId, act: impl FnOnce(&mut Worker, &mut Outside<'_>)) {
        let Self { network, record, shape, workers, .. } = self;
        let mut outside = Outside { network, record, has_tls: shape.has_tls };
        act(&mut workers[worker], &mut outside);
    }

    /// A worker gets a request, about the nodes in turn.
    fn request(&mut self, worker: WorkerId) {
        let number = self.requests[worker];
        self.requests[worker] += 1;
        let Self { network, record, shape, workers, traffic, .. } = self;
        let key = &traffic.keys[(worker + number) % traffic.keys.len()];
        let mut outside = Outside { network, record, has_tls: shape.has_tls };
        workers[worker].on_request(key, traffic, &mut outside);
        let at = self.network.now + self.gap();
        self.network.at(at, Event::Request(worker));
    }

    fn on_worker(&mut self, id: ConnectionId, packet: Packet) {
        let Some(socket) = self.network.sockets.get(&id) else { return };
        let happening = match packet {
            Packet::End(End::Refused) => Happening::Lost(Fault::Connect("refused".to_owned())),
            Packet::End(end) => Happening::Lost(Fault::Closed(format!("{end:?}"))),
            _ if socket.is_lost => return,
            Packet::Accepted => Happening::Connected,
            Packet::Hello => Happening::Secured,
            Packet::Bytes(bytes) => Happening::Received(bytes),
            Packet::Syn { .. } => return,
        };
        let (worker, key) = (socket.worker, socket.key);
        self.with(worker, |worker, outside| worker.on_socket(key, id, happening, outside));
    }

    /// Takes what the deployment has left to do.
    fn take_effects(&mut self) {
        let now = self.network.now;
        for (at, change) in self.deployment.later.drain(..) {
            let delay = if matches!(change, Change::Detect { .. }) { DETECTION } else { 0 };
            self.network.at(at + delay, Event::Change(change));
        }
        for (_, id, bytes) in self.deployment.messages.drain(..) {
            self.network.reply(id, Packet::Bytes(bytes.into()), now);
        }
        for (_, id) in self.deployment.closed.drain(..) {
            self.network.reset(id, End::Closed);
        }
    }

    fn step(&mut self, step: Step) {
        let now = self.network.now;
        match step {
            Step::Kill(server) => {
                self.machines[server].processor.clear(now);
                self.machines[server].listening.clear();
                for id in self.deployment.kill(server, now) {
                    self.network.reset(id, End::Reset);
                }
            }
            Step::Restart(server) => {
                self.deployment.restart(server, true, now, &mut self.journal);
            }
            Step::Switch(server) => self.deployment.switch(server, now, &mut self.journal),
            Step::Move(from, to, count) => self.deployment.move_slots(from, to, count, now),
            Step::Slow(server, slowness) => self.machines[server].processor.slowness = slowness,
            Step::MaxClients(server, most) => self.deployment.servers[server].max_clients = most,
            Step::Isolate(server) => self.deployment.isolate(server, now),
            Step::Refuse(server, unfit) => self.deployment.servers[server].unfit = Some(unfit),
            Step::TakeSlots => {
                for key in &mut self.traffic.keys {
                    key.is_served = false;
                    self.deployment.take_slots(key.slot..key.slot + 1, now);
                }
            }
            Step::ReturnSlots => {
                self.traffic.keys.iter_mut().for_each(|key| key.is_served = true);
                self.deployment.return_slots(now);
            }
            Step::Reload(workers) => {
                for worker in workers {
                    self.with(worker, Worker::end);
                    self.workers[worker] = self.new_worker(worker);
                    self.with(worker, Worker::start);
                }
            }
        }
    }

    fn sample(&mut self) {
        let now = self.network.now;
        let (mut busiest, mut busy, mut open) = (0.0_f64, 0.0, 0);
        for (machine, server) in self.machines.iter_mut().zip(&self.deployment.servers) {
            let share = machine.processor.take_busy(now) / record::SPAN as f64;
            busiest = busiest.max(share);
            busy += share / self.shape.nodes as f64;
            open += server.connections() as u64;
        }
        let sample = &mut self.record.now;
        (sample.busiest, sample.busy, sample.open) = (busiest, busy, open);
        self.record.end_sample(now);
        self.network.at(now + record::SPAN, Event::Sample);
    }
}

/// Servers.
impl Fleet {
    fn on_server(&mut self, id: ConnectionId, packet: Packet) {
        let Some(socket) = self.network.sockets.get(&id) else { return };
        match (packet, socket.server) {
            (Packet::Syn { tries }, _) => self.on_syn(id, tries),
            (Packet::End(_), server) => {
                if let Some(server) = server {
                    self.deployment.servers[server].drop_connection(id);
                }
                self.network.sockets.remove(&id);
            }
            (Packet::Hello, Some(server)) if self.is_known(server, id) => {
                let done = self.machines[server].processor.work(cost::TLS, self.network.now);
                self.network.reply(id, Packet::Hello, done);
            }
            (Packet::Bytes(bytes), Some(server)) if self.is_known(server, id) => {
                self.receive(server, id, &bytes);
            }
            _ => {}
        }
    }

    fn is_known(&self, server: ServerId, id: ConnectionId) -> bool {
        self.deployment.servers[server].has(id)
    }

    /// A worker tries to connect.
    fn on_syn(&mut self, id: ConnectionId, tries: u32) {
        let now = self.network.now;
        let Socket { address, is_closed, .. } = self.network.sockets[&id];
        if is_closed {
            // It has given up.
            self.network.sockets.remove(&id);
            return;
        }
        // Nothing is there that would refuse.
        let Some(server) = self.places.get(&address).copied() else { return };
        if self.deployment.servers[server].process == Process::Dead {
            return self.network.reset(id, End::Refused);
        }
        let Machine { processor, listening } = &mut self.machines[server];
        while listening.front().is_some_and(|accepted| *accepted <= now) {
            listening.pop_front();
        }
        if listening.len() >= LISTEN_BACKLOG {
            let again = now + (RETRANSMISSION << tries);
            let packet = Packet::Syn { tries: tries + 1 };
            return self.network.at(again, Event::ToServer(id, packet));
        }
        let is_taken = self.deployment.servers[server].accept(id);
        let done = processor.work(self.deployment.servers[server].take_work().time, now);
        listening.push_back(done);
        self.network.reply(id, Packet::Accepted, now);
        if is_taken {
            self.record.now.accepted += 1;
            self.network.sockets.get_mut(&id).expect("a socket").server = Some(server);
        } else {
            self.record.now.refused += 1;
            self.network.reply(id, Packet::Bytes(TOO_MANY.into()), done);
            self.network.reply(id, Packet::End(End::Closed), done);
        }
    }

    fn receive(&mut self, server: ServerId, id: ConnectionId, bytes: &[u8]) {
        let (now, mut out) = (self.network.now, Vec::new());
        self.deployment.receive(server, id, bytes, now, &mut self.journal, &mut out);
        self.journal = Journal::default();
        let work = self.deployment.servers[server].take_work();
        self.record.now.queries += work.queries;
        let gap = self.gap();
        let processor = &mut self.machines[server].processor;
        let done = processor.work(work.time, now);
        if work.scripts > 0 {
            // All the requests for which this one stands.
            let all = self.shape.load * self.shape.nodes as f64 * gap as f64 * 1_000.0;
            let all = (all / self.shape.workers as f64) as u64;
            processor.stream(work.scripts * all.saturating_sub(cost::SCRIPT), gap, now);
        }
        if !out.is_empty() {
            self.network.reply(id, Packet::Bytes(out.into()), done);
        }
    }
}

/// The configuration of the workers.
fn config(deployment: &Deployment, kind: Kind, shape: &Shape) -> Config {
    let is_seed = |id: &ServerId| match kind {
        Kind::Sentinel(_) => !deployment.data_servers().contains(id),
        _ => *id < SEEDS,
    };
    let endpoint = |host: String, port| Endpoint {
        address: Address::Tcp(host, port),
        tls: false,
        user: None,
        password: None,
        database: 0,
    };
    let server = |address: SocketAddr| {
        let endpoint = endpoint(address.ip().to_string(), address.port());
        Server { endpoint, targets: vec![Target::Ip(address)] }
    };
    let lost = shape.has_lost_seed.then_some(LOST_SEED);
    let seeds = (0..deployment.servers.len()).filter(is_seed);
    let seeds = lost.into_iter().chain(seeds.map(|id| deployment.servers[id].address));
    Config {
        servers: seeds.map(server).collect(),
        kind,
        account: endpoint(String::new(), 0),
        store: "fleet".to_owned(),
        client_name: "nginx".to_owned(),
        auth_interval: 0,
        connect_timeout: 250 * MILLISECOND,
        connections: 1,
        max_fails: 3,
        fail_timeout: SECOND.max(shape.timeout),
        longest_timeout: shape.timeout,
        seed: 0,
    }
}
