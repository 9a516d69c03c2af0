//! One simulated history: workers and their requests in a world in which things go wrong.
//!
//! Faults come for a few seconds, and end. A second later every request must be decided again. Then
//! the requests end, the workers leave, and nothing may be left.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use rate_limit_core::client::{Config, Kind, Server, Target};
use rate_limit_core::rate::{MILLISECOND, SECOND};
use rate_limit_core::redis::endpoint::{Address, Endpoint};

use crate::deployment::Deployment;
use crate::fault;
use crate::lease::Machine;
use crate::ledger::Ledger;
use crate::network::ClientId;
use crate::sentinel::MASTER_NAME;
use crate::traffic::{LONGEST_TIMEOUT, Traffic};
use crate::watch::Blame;
use crate::worker::{Alarm, Outside, Worker};
use crate::world::{ClientEvent, World};

/// How soon all must be well at the start.
const START: u64 = 100 * MILLISECOND;

/// How soon all must be well again after the last fault, if the workers are connected by then.
const RECOVERY: u64 = SECOND;

/// How soon they must be: what does not pass by itself is tried rarely, and a server that has accepted a
/// connection is waited for.
const RECONNECTION: u64 = 10 * SECOND;

/// How long it is watched that all is well.
const WELL: u64 = SECOND;

/// How long what is left may take to end.
const END: u64 = 4 * SECOND;

/// How long the refunds that wait for each other may take to end.
const REFUNDS: u64 = 60 * SECOND;

/// If the servers have not settled by then, the simulation is wrong.
const LATEST: u64 = 60 * SECOND;

const PASSWORD: &str = "secret";

/// The figures of a history.
#[derive(Debug, Default)]
pub struct Report {
    pub steps: u64,
    pub decided: u64,
    pub lost_replies: u64,
    /// Requests that were decided from leases.
    pub hits: u64,
}

impl Report {
    /// Adds the figures of another history.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.decided += other.decided;
        self.lost_replies += other.lost_replies;
        self.hits += other.hits;
    }
}

/// How far a history has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Faulty,
    /// The last fault was over at this time.
    Recovering(u64),
    /// All is well at this time.
    Well(u64),
    /// No more requests come.
    Ending(u64),
    /// The workers are shutting down.
    Leaving(u64),
}

/// One history.
struct Simulation {
    outside: Outside,
    workers: Vec<Worker>,
    traffic: Traffic,
    /// When the last fault ends.
    faulty_until: u64,
    /// How long it takes on average until a worker's next requests come, in µs.
    gap: u64,
    connections: usize,
    stage: Stage,
}

/// Runs the history of a seed. Panics if anything is not as it should be.
pub fn run(seed: u64, is_traced: bool) -> Report {
    let mut simulation = Simulation::draw(seed, is_traced);
    simulation.begin();
    while simulation.step() {}
    simulation.outside.ledger.close();
    let Outside { world, ledger, machines, decided, .. } = &simulation.outside;
    let hits = machines.iter().map(|machine| machine.hits).sum();
    Report { steps: world.steps, decided: *decided, lost_replies: ledger.lost_replies, hits }
}

impl Simulation {
    fn draw(seed: u64, is_traced: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (deployment, config) = draw_deployment(&mut rng);
        let count = rng.usize(1..5);
        let faulty_until = rng.u64(1..5) * SECOND;
        let severity = rng.u32(0..6);
        let faults = [0, 60, 13][severity.min(2) as usize];
        let faults = rng.usize(0..=faults);
        let mut episodes = fault::draw(&deployment, count, faults, faulty_until, &mut rng);
        // In some histories nothing goes wrong that a request should notice.
        if severity < 2 {
            episodes.retain(|episode| episode.fault.is_harmless());
        }
        let is_harmless = episodes.iter().all(|episode| episode.fault.is_harmless());
        let blame = Blame::new(&episodes, deployment.servers.len(), config.connect_timeout);
        let traffic = Traffic::draw(&mut rng);
        let scripts = Arc::new(traffic.scripts());
        let lag = [100, 20_000, 300_000][rng.usize(0..3)];
        let worker = |id| {
            let config = Config { seed: rng.u64(..), ..config.clone() };
            Worker::new(id, config, Arc::clone(&scripts), lag)
        };
        let workers = (0..count).map(worker).collect();
        if is_traced {
            episodes.iter().for_each(|episode| eprintln!("{episode:?}"));
        }
        let gap = 1 << rng.u64(9..15);
        let mut world = World::new(deployment, episodes, rng.fork());
        world.network.distance = [0, 500, 4_000][rng.usize(0..3)];
        let outside = Outside {
            world,
            ledger: Ledger::default(),
            machines: std::array::from_fn(|_| Machine::new()),
            blame,
            rng,
            alarms: Vec::new(),
            sockets: BTreeMap::new(),
            queries: BTreeMap::new(),
            pause: 0..0,
            strict_from: is_harmless.then_some(START),
            is_traced,
            decided: 0,
        };
        let (connections, stage) = (config.connections, Stage::Faulty);
        Self { outside, workers, traffic, faulty_until, gap, connections, stage }
    }

    fn begin(&mut self) {
        for (id, worker) in self.workers.iter_mut().enumerate() {
            worker.start(&mut self.outside);
            let at = self.outside.rng.u64(0..50_000);
            self.outside.alarm(at, Alarm::Requests(id));
        }
        self.outside.alarm(10_000, Alarm::Check);
        // In some histories the machine is stopped, or a worker leaves but its clients stay.
        for alarm in [Alarm::Pause, Alarm::Quit(0)] {
            if self.outside.rng.u32(0..3) == 0 {
                let at = self.outside.rng.u64(0..self.faulty_until);
                self.outside.alarm(at, alarm);
            }
        }
    }

    /// Goes on with the next event; false at the end.
    fn step(&mut self) -> bool {
        let Some(event) = self.outside.world.next() else { return false };
        let Outside { world, ledger, machines, sockets, .. } = &mut self.outside;
        ledger.read(&mut world.journal, machines, |connection| sockets[&connection].0);
        match event {
            ClientEvent::Alarm(token) => {
                return self.on_alarm(self.outside.alarms[token as usize]);
            }
            ClientEvent::Resolved(number, addresses) => {
                let (worker, key) = self.outside.queries[&number];
                self.workers[worker].on_resolved(key, addresses, &mut self.outside);
            }
            ClientEvent::Connected(id) => {
                let (worker, key) = self.outside.sockets[&id];
                self.workers[worker].on_connected(key, id, &mut self.outside);
            }
            ClientEvent::Received(id, bytes) => {
                let (worker, key) = self.outside.sockets[&id];
                self.workers[worker].on_received(key, id, &bytes, &mut self.outside);
            }
            ClientEvent::Lost(id, end) => {
                let (worker, key) = self.outside.sockets[&id];
                self.workers[worker].on_lost(key, id, end, &mut self.outside);
            }
        }
        true
    }

    fn on_alarm(&mut self, alarm: Alarm) -> bool {
        let outside = &mut self.outside;
        match alarm {
            Alarm::Turn(worker) => self.workers[worker].begin_turn(outside),
            Alarm::EndTurn(worker) => self.workers[worker].end_turn(outside),
            Alarm::Timer(worker, number) => self.workers[worker].on_timer(number, outside),
            Alarm::Writable(worker, id) => self.workers[worker].on_writable(id, outside),
            Alarm::Leave(worker, request) => self.workers[worker].on_left(request, outside),
            Alarm::Requests(worker) => self.request(worker),
            Alarm::Quit(worker) => self.workers[worker].leave(outside),
            Alarm::Pause => self.pause(),
            Alarm::Check => return self.check(),
        }
        true
    }

    /// Some requests come to a worker, and later the next ones.
    fn request(&mut self, worker: ClientId) {
        if matches!(self.stage, Stage::Leaving(_)) {
            return;
        }
        let is_over = matches!(self.stage, Stage::Ending(_));
        let rng = &mut self.outside.rng;
        let count = match rng.u32(0..40) {
            0 => rng.usize(1..80),
            1..8 => rng.usize(1..6),
            _ => 1,
        };
        for _ in 0..if is_over { 0 } else { count } {
            let plan = self.traffic.next(&mut self.outside.rng);
            self.workers[worker].on_request(plan, &mut self.outside);
        }
        // Few connections of clients are left of a worker that leaves.
        let rarity = if self.workers[worker].is_leaving { 20 } else { 1 };
        let at = self.outside.now() + self.outside.rng.u64(0..2 * self.gap * rarity);
        self.outside.alarm(at, Alarm::Requests(worker));
    }

    fn pause(&mut self) {
        let micros = self.outside.rng.u64(0..2 * SECOND);
        let now = self.outside.now();
        self.outside.pause = now..now + micros;
        self.outside.world.pause(micros);
    }

    /// Looks every now and then how far things have come; false at the end.
    fn check(&mut self) -> bool {
        let now = self.outside.now();
        match self.stage {
            Stage::Faulty if now > self.faulty_until && self.outside.world.is_calm() => {
                self.stage = Stage::Recovering(now);
            }
            Stage::Faulty => assert!(now < LATEST, "the servers do not settle"),
            Stage::Recovering(since)
                if now >= since + RECONNECTION
                    || (now >= since + RECOVERY
                        && self.workers.iter().all(Worker::is_connected)) =>
            {
                self.outside.strict_from.get_or_insert(now);
                self.stage = Stage::Well(now);
            }
            Stage::Well(since) if now >= since + WELL => {
                self.stage = Stage::Ending(now);
            }
            Stage::Ending(since) if now >= since + END && self.are_refunds_over(since) => {
                self.check_connections();
                let Self { workers, outside, .. } = self;
                workers.iter_mut().for_each(|worker| worker.leave(outside));
                self.stage = Stage::Leaving(now);
            }
            Stage::Leaving(since) if now >= since + END => {
                self.check_end();
                return false;
            }
            _ => {}
        }
        self.outside.alarm(now + 10 * MILLISECOND, Alarm::Check);
        true
    }

    /// Whether no refund waits for another one any more, or there was time for all.
    fn are_refunds_over(&self, since: u64) -> bool {
        self.workers.iter().all(|it| it.client.is_idle()) || self.outside.now() >= since + REFUNDS
    }

    /// There are no more connections than are configured.
    fn check_connections(&self) {
        for (id, worker) in self.workers.iter().enumerate() {
            worker.check_idle();
            let nodes = worker.client.nodes().count();
            let open = self.outside.world.network.open_connections(id);
            assert!(open <= nodes * self.connections, "{open} connections to {nodes} nodes");
        }
    }

    fn check_end(&self) {
        for (id, worker) in self.workers.iter().enumerate() {
            worker.check_idle();
            let open = self.outside.world.network.open_connections(id);
            assert_eq!(open, 0, "connections of a worker that has left");
        }
    }
}

/// Any servers, and a client's configuration for them.
fn draw_deployment(rng: &mut Rng) -> (Deployment, Config) {
    let name = rng.bool().then_some("redis.test");
    let (deployment, kind) = match rng.u32(0..5) {
        0 | 1 => (Deployment::single(name, rng.fork()), Kind::Single),
        2 => {
            let (sentinels, replicas) = (rng.usize(1..4), rng.usize(1..3));
            let kind = Kind::Sentinel(MASTER_NAME.to_owned());
            let deployment = Deployment::sentinel(sentinels, replicas, rng.fork());
            match sentinels > 1 && rng.u32(0..4) > 0 {
                true => (deployment.with_stale_sentinel(rng.usize(0..sentinels)), kind),
                false => (deployment, kind),
            }
        }
        _ => {
            let (masters, replicas) = (rng.usize(1..4), rng.usize(0..2));
            (Deployment::cluster(masters, replicas, rng.bool(), rng.fork()), Kind::Cluster)
        }
    };
    let has_password = rng.bool();
    let deployment = deployment.with_lua();
    let deployment = match has_password {
        true => deployment.with_password(PASSWORD),
        false => deployment,
    };
    let account = endpoint(Address::Tcp(String::new(), 0), has_password);
    let config = Config {
        servers: servers(&deployment, &kind),
        kind,
        account,
        store: "test".to_owned(),
        client_name: "worker".to_owned(),
        auth_interval: if has_password { 300 * MILLISECOND } else { 0 },
        connect_timeout: [250, 400][rng.usize(0..2)] * MILLISECOND,
        connections: rng.usize(1..3),
        max_fails: rng.usize(1..4),
        fail_timeout: SECOND,
        longest_timeout: LONGEST_TIMEOUT,
        seed: 0,
    };
    (deployment, config)
}

/// The servers of the configuration.
fn servers(deployment: &Deployment, kind: &Kind) -> Vec<Server> {
    if let Some(name) = deployment.names.keys().next() {
        let address = Address::Tcp(name.clone(), deployment.servers[0].address.port());
        return vec![Server { endpoint: endpoint(address, false), targets: Vec::new() }];
    }
    let is_seed = |id: &usize| match kind {
        Kind::Sentinel(_) => !deployment.data_servers().contains(id),
        _ => *id < 2,
    };
    let server = |id: usize| {
        let address = deployment.servers[id].address;
        let own = Address::Tcp(address.ip().to_string(), address.port());
        Server { endpoint: endpoint(own, false), targets: vec![Target::Ip(address)] }
    };
    (0..deployment.servers.len()).filter(is_seed).map(server).collect()
}

fn endpoint(address: Address, has_password: bool) -> Endpoint {
    let password = has_password.then(|| PASSWORD.to_owned());
    Endpoint { address, tls: false, user: None, password, database: 0 }
}
