//! Lasting trouble: how often a worker queries, dials and changes its mind, and whether it ends up at the right server.

use super::*;

type Of<T> = Box<dyn Fn(u8) -> T>;

const REFUSED: Option<u64> = None;

/// A world of servers that are known by the last byte of their address.
struct World {
    played: Played,
    /// How long a handshake takes, after the connection was accepted.
    connect: Of<Option<u64>>,
    /// The reply to a query for the topology.
    query: Of<String>,
    /// The reply to a command about a limit.
    command: Of<String>,
    /// A request each so many µs.
    every: Option<u64>,
    key: &'static str,
    next_request: u64,
    pending: Vec<(u64, ConnectionKey, String)>,
    /// Queries for the topology in each second.
    queries: Vec<usize>,
    lines: Vec<String>,
    dials: Vec<(u64, u8)>,
    decided: usize,
    failed: usize,
}

fn sentinel_reply(host: u8) -> String {
    let answer = match host {
        0 => "*-1\r\n".to_owned(),
        _ => {
            let host = format!("10.0.0.{host}");
            format!("*2\r\n${}\r\n{host}\r\n$4\r\n6379\r\n", host.len())
        }
    };
    format!(
        "*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n{answer}*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"
    )
}

/// The reply of a server to a handshake. It has all scripts.
fn answered(sent: &str) -> String {
    let is_sha = |word: &&str| word.len() == 40 && word.bytes().all(|it| it.is_ascii_hexdigit());
    let shas = sent.split("\r\n").filter(is_sha).count();
    let replies = sent.split("\r\n").filter_map(|word| match word {
        "AUTH" | "SELECT" | "SETNAME" | "PING" => Some("+OK\r\n".to_owned()),
        "EXISTS" => Some(format!("*{shas}\r\n{}", ":1\r\n".repeat(shas))),
        _ => None,
    });
    replies.collect()
}

impl World {
    fn new(played: Played) -> Self {
        let mut world = Self {
            played,
            connect: Box::new(|_| Some(0)),
            query: Box::new(|_| panic!("no query")),
            command: Box::new(|_| FOUND.to_owned()),
            every: None,
            key: "a",
            next_request: 0,
            pending: Vec::new(),
            queries: vec![0; 1_000],
            lines: Vec::new(),
            dials: Vec::new(),
            decided: 0,
            failed: 0,
        };
        world.played.client.start(0);
        world
    }

    /// Three sentinels (1, 2, 3), which report these masters; `None`: it cannot be reached; 0: it knows none.
    fn of_sentinels(connections: usize, votes: [Option<u8>; 3]) -> Self {
        let played = Played::with(|config| {
            config.connections = connections;
            config.kind = Kind::Sentinel("m".to_owned());
            config.servers = [1, 2, 3]
                .map(|host: u8| Server {
                    endpoint: format!("redis://10.0.0.{host}:26379").parse().unwrap(),
                    targets: vec![Target::Ip(SocketAddr::from(([10, 0, 0, host], 26_379)))],
                })
                .into();
        });
        let mut world = Self::new(played);
        world.vote(votes, |_| Some(0));
        world
    }

    fn vote(&mut self, votes: [Option<u8>; 3], masters: impl Fn(u8) -> Option<u64> + 'static) {
        let vote = move |host: u8| votes[usize::from(host) - 1];
        self.connect = Box::new(move |host| match host {
            1..=3 => vote(host).map(|_| 0),
            _ => masters(host),
        });
        self.query = Box::new(move |host| sentinel_reply(vote(host).unwrap()));
        for host in 1..=3 {
            if vote(host).is_none() {
                self.lose(host);
            }
        }
    }

    fn of_cluster(connections: usize, seeds: &[u8]) -> Self {
        let played = Played::with(|config| {
            config.connections = connections;
            config.kind = Kind::Cluster;
            config.servers = seeds
                .iter()
                .map(|host| Server {
                    endpoint: format!("redis://10.0.0.{host}:6379").parse().unwrap(),
                    targets: vec![Target::Ip(SocketAddr::from(([10, 0, 0, *host], 6_379)))],
                })
                .collect();
        });
        Self::new(played)
    }

    fn host(&self, key: ConnectionKey) -> Option<u8> {
        let node = self.played.client.node(self.played.client.node_of(key)?)?;
        node.host().rsplit('.').next()?.parse().ok()
    }

    fn keys(&self) -> Vec<ConnectionKey> {
        self.played.client.pool.connections.keys().collect()
    }

    /// Each connection to a host is closed by it.
    fn lose(&mut self, host: u8) {
        for key in self.keys() {
            if self.host(key) == Some(host) {
                self.pending.retain(|(_, other, _)| *other != key);
                let fault = Fault::Closed("closed".to_owned());
                self.played.client.on_lost(key, &fault, self.played.now);
            }
        }
    }

    fn at(&mut self, key: ConnectionKey) -> bool {
        let position = self.keys().iter().position(|other| *other == key);
        self.played.at = position.unwrap_or(0);
        position.is_some()
    }

    fn step(&mut self) {
        let mut is_busy = true;
        while std::mem::take(&mut is_busy) {
            let now = self.played.now;
            for action in self.played.turn() {
                match action {
                    Action::Connect(key, Target::Ip(SocketAddr::V4(address))) => {
                        is_busy = true;
                        let host = address.ip().octets()[3];
                        self.dials.push((now, host));
                        if !self.at(key) {
                            continue;
                        }
                        match (self.connect)(host) {
                            REFUSED => {
                                let fault = Fault::Connect("refused".to_owned());
                                self.played.client.on_lost(key, &fault, now);
                            }
                            Some(0) => self.played.accept_handshake(),
                            Some(delay) => {
                                self.played.client.on_connected(key);
                                let handshake = self.played.sent();
                                self.pending.push((now + delay, key, answered(&handshake)));
                            }
                        }
                    }
                    Action::Close(key) => self.pending.retain(|(_, other, _)| *other != key),
                    Action::Log(_, line) => self.lines.push(line),
                    Action::Complete(request) => self.finish(request),
                    _ => {}
                }
            }
            for key in self.keys() {
                let is_pending = self.pending.iter().any(|(_, other, _)| *other == key);
                if is_pending || !self.at(key) || !self.played.client.is_open(key) {
                    continue;
                }
                let (sent, host) = (self.played.sent(), self.host(key).unwrap());
                let all = |word: &str| -> Vec<usize> {
                    sent.match_indices(word).map(|it| it.0).collect()
                };
                let queries = [all("\r\nSLOTS\r\n"), all("GET-MASTER")].concat();
                let commands = all("\r\nEVALSHA\r\n");
                self.queries[(now / SECOND) as usize] += queries.len();
                let mut replies: Vec<_> = queries.iter().map(|at| (*at, true)).collect();
                replies.extend(commands.iter().map(|at| (*at, false)));
                replies.sort();
                let reply: String = (replies.iter())
                    .map(|(_, is_query)| match is_query {
                        true => (self.query)(host),
                        false => (self.command)(host),
                    })
                    .collect();
                if !reply.is_empty() {
                    is_busy = true;
                    self.played.client.space(key)[..reply.len()].copy_from_slice(reply.as_bytes());
                    self.played.client.on_received(key, reply.len(), now);
                }
            }
        }
    }

    fn finish(&mut self, request: RequestKey) {
        match self.played.client.outcome(request) {
            Some(Ok(())) => self.decided += 1,
            Some(Err(_)) => self.failed += 1,
            None => panic!("no outcome"),
        }
        self.played.client.release(request, false);
    }

    /// For so many seconds.
    fn run(&mut self, seconds: u64) {
        let end = self.played.now + seconds * SECOND;
        let mut turns = 0;
        loop {
            self.step();
            let now = self.played.now;
            if now >= end {
                break;
            }
            let request = self.every.map(|_| self.next_request.max(now));
            let pending = self.pending.iter().map(|(at, ..)| *at).min();
            let timer = self.played.client.timer();
            let next = [request, pending, timer, Some(end)].into_iter().flatten().min().unwrap();
            let next = next.max(now);
            turns = if next == now { turns + 1 } else { 0 };
            assert!(turns < 1_000, "it spins at {now}");
            self.played.now = next;
            let (due, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.pending).into_iter().partition(|(at, ..)| *at <= next);
            self.pending = rest;
            for (_, key, replies) in due {
                if self.at(key) && self.played.client.is_open(key) {
                    self.played.receive_at_once(&replies);
                }
            }
            if request.is_some_and(|at| at <= next) {
                self.next_request = next + self.every.unwrap();
                let request = self.played.submit(self.key);
                if self.played.client.outcome(request).is_some() {
                    self.finish(request);
                }
            }
            if self.played.client.timer().is_some_and(|at| at <= next) {
                self.played.client.on_timer(next);
            }
        }
    }

    /// Queries in each of the last seconds.
    fn latest(&self, seconds: usize) -> Vec<usize> {
        let now = (self.played.now / SECOND) as usize;
        self.queries[now - seconds..now].to_vec()
    }

    fn dialed(&self, host: u8, since: u64) -> Vec<u64> {
        let dials = self.dials.iter().filter(|(at, other)| *at >= since && *other == host);
        dials.map(|(at, _)| at / MILLISECOND).collect()
    }

    fn master(&self) -> u8 {
        let master = self.played.client.discovery.topology.route(0).expect("a master");
        let host = self.played.client.node(master).unwrap().host();
        host.rsplit('.').next().unwrap().parse().unwrap()
    }
}

/// The port of the cluster bus is blocked, say: each node thinks that it is alone, and lists the same map.
#[test]
fn a_cluster_that_is_down_with_a_whole_map_takes_two_queries_a_second() {
    let mut seen = Vec::new();
    for every in [20, 200, 400, 900] {
        let mut world = World::of_cluster(1, &[1, 2]);
        world.query = Box::new(|_| HALVES.to_owned());
        world.command = Box::new(|_| "-CLUSTERDOWN The cluster is down\r\n".to_owned());
        world.every = Some(every * MILLISECOND);
        world.run(60);
        seen.push((every, world.latest(20).iter().sum::<usize>()));
    }
    assert!(seen.iter().all(|(_, sum)| *sum <= 40), "(ms, queries in 20 s) {seen:?}");
}

/// CLUSTER SETSLOT at the source, and not at the target. Each names the other.
#[test]
fn two_nodes_that_redirect_to_each_other_take_two_queries_a_second() {
    let key = "a";
    let moved = slot(b"rl:a:", key.as_bytes());
    let mut seen = Vec::new();
    for every in [20, 200, 900] {
        let mut world = World::of_cluster(1, &[1, 2]);
        let owned = move |host: u8| {
            let other = 3 - host;
            map(&[(0, moved - 1, 1), (moved, moved, other), (moved + 1, 16_383, 2)])
        };
        world.query = Box::new(owned);
        world.command =
            Box::new(move |host| format!("-MOVED {moved} 10.0.0.{}:6379\r\n", 3 - host));
        world.every = Some(every * MILLISECOND);
        world.run(60);
        seen.push((every, world.latest(20).iter().sum::<usize>()));
    }
    assert!(seen.iter().all(|(_, sum)| *sum <= 40), "(ms, queries in 20 s) {seen:?}");
}

/// A disk is full. All masters are connected.
#[test]
fn a_master_that_refuses_writes_takes_two_queries_a_second() {
    let mut seen = Vec::new();
    for connections in [1, 4, 16] {
        for every in [20, 200, 1_100] {
            let mut world = World::of_cluster(connections, &[1, 2]);
            world.query = Box::new(|_| HALVES.to_owned());
            world.command =
                Box::new(|_| "-MISCONF Errors writing to the AOF file: no\r\n".to_owned());
            world.every = Some(every * MILLISECOND);
            world.run(60);
            seen.push((connections, every, world.latest(20).iter().sum::<usize>()));
        }
    }
    assert!(seen.iter().all(|(.., sum)| *sum <= 40), "(connections, ms, queries in 20 s) {seen:?}");
}

#[test]
fn a_master_of_sentinels_that_refuses_writes_takes_two_queries_a_second() {
    let mut seen = Vec::new();
    for connections in [1, 4] {
        for every in [20, 200, 1_100] {
            let mut world = World::of_sentinels(connections, [Some(5); 3]);
            world.command =
                Box::new(|_| "-MISCONF Errors writing to the AOF file: no\r\n".to_owned());
            world.every = Some(every * MILLISECOND);
            world.run(60);
            seen.push((connections, every, world.latest(20).iter().sum::<usize>()));
        }
    }
    assert!(seen.iter().all(|(.., sum)| *sum <= 40), "(connections, ms, queries in 20 s) {seen:?}");
}

/// One sentinel cannot be reached, and the masters that the others report neither.
#[test]
fn two_dead_masters_are_tried_ever_more_rarely() {
    let mut world = World::of_sentinels(1, [Some(7), Some(8), None]);
    world.vote([Some(7), Some(8), None], |_| REFUSED);
    world.run(60);
    let lines = world.lines.iter().filter(|line| line.contains("is the master")).count();
    let dials = world.dialed(7, 40 * SECOND);
    let sum: usize = world.latest(20).iter().sum();
    assert!(
        sum <= 40 && lines <= 60,
        "{sum} queries in 20 s, {lines} lines in 60 s, {} dials of one in 20 s",
        dials.len()
    );
}

/// The master that is right takes its time to accept a connection: TLS, or a fleet that connects.
#[test]
fn a_master_that_accepts_slowly_is_used_though_another_sentinel_reports_a_dead_one() {
    let mut seen = Vec::new();
    for ms in [100, 200, 300, 400, 600, 1_000] {
        let mut world = World::of_sentinels(1, [Some(8); 3]);
        world.vote([Some(8); 3], |_| REFUSED);
        world.run(5);
        world.vote([Some(8), Some(6), None], move |host| match host {
            6 => Some(ms * MILLISECOND),
            _ => REFUSED,
        });
        let since = world.played.now;
        world.every = Some(50 * MILLISECOND);
        let mut seconds = 0;
        while world.decided == 0 && seconds < 60 {
            world.run(1);
            seconds += 1;
        }
        seen.push((ms, seconds, world.dialed(6, since).len()));
    }
    assert!(
        seen.iter().all(|it| it.1 < 10),
        "(ms to accept, s until it decides, attempts) {seen:?}"
    );
}

/// SENTINEL REMOVE at two of three, which watch other masters; the one that is left knows of the failover.
#[test]
fn a_sentinel_that_knows_no_master_any_more_does_not_vote() {
    let mut world = World::of_sentinels(1, [Some(5); 3]);
    world.every = Some(100 * MILLISECOND);
    world.run(30);
    world.vote([Some(0), Some(0), Some(5)], |_| Some(0));
    world.run(30);
    // Failover.
    world.vote([Some(0), Some(0), Some(6)], |host| (host != 5).then_some(0));
    world.lose(5);
    world.decided = 0;
    world.run(120);
    let seen = (world.master(), world.decided, world.failed);
    assert!(seen.0 == 6 && seen.1 > 1_000, "(master, decided, failed) in 120 s: {seen:?}");
}

/// A sentinel is behind, another one is lost, and the master closes an idle connection.
#[test]
fn a_connection_that_is_made_anew_does_not_lead_away_from_a_master() {
    let mut world = World::of_sentinels(1, [Some(5); 3]);
    world.run(12);
    world.vote([Some(5), Some(6), Some(6)], |host| (host > 3).then_some(MILLISECOND));
    world.run(30);
    assert_eq!(world.master(), 6);
    world.vote([Some(5), Some(6), None], |host| (host > 3).then_some(MILLISECOND));
    world.run(30);
    assert_eq!(world.master(), 6, "it serves");
    world.lose(6);
    world.run(60);
    assert_eq!(world.master(), 6, "it served, was never down, and was connected again after 1 ms");
}

/// A master has become a replica, and there is no majority.
#[test]
fn a_master_that_refuses_all_does_not_serve_over_however_many_connections() {
    let mut seen = Vec::new();
    for connections in [1, 2, 3, 4] {
        for every in [100, 500, 2_000] {
            let mut world = World::of_sentinels(connections, [Some(5); 3]);
            world.every = Some(every * MILLISECOND);
            world.run(12);
            world.vote([Some(5), Some(6), None], |_| Some(0));
            world.command = Box::new(|host| match host {
                5 => "-READONLY You can't write against a read only replica.\r\n".to_owned(),
                _ => FOUND.to_owned(),
            });
            world.decided = 0;
            world.failed = 0;
            world.run(60);
            seen.push((connections, every, world.master(), world.decided, world.failed));
        }
    }
    assert!(seen.iter().all(|it| it.2 == 6), "(connections, ms, master, decided, failed) {seen:?}");
}

/// A map with a hole, received before a redirection, is applied after it.
#[test]
fn a_map_with_a_hole_that_came_before_a_redirection_does_not_undo_it() {
    let (mut played, key) = halves();
    let slot = slot(b"rl:a:", key.as_bytes());
    while {
        played.wait(13_000 * MILLISECOND);
        played.queried() != Some(0)
    } {
        played.receive(HALVES);
        played.turn();
    }
    // The first node's map lacks a slot; the second node is queried next.
    played.at = 0;
    played.receive(&map(&[(0, 8_190, 1), (8_192, 16_383, 2)]));
    played.turn();
    let request = played.submit_to_first(key);
    played.receive(&format!("-MOVED {slot} 10.0.0.2:6379\r\n"));
    played.turn();
    assert_eq!(played.owner(slot), "10.0.0.2:6379");
    played.at = 1;
    assert!(played.sent().contains("SLOTS"));
    played.receive("-ERR no\r\n");
    played.receive(FOUND);
    assert_eq!(played.client.outcome(request), Some(Ok(())));
    let owner = played.owner(slot).to_owned();
    let next = played.client.timer().unwrap() - played.now;
    assert_eq!(owner, "10.0.0.2:6379", "the next round is in {} ms", next / MILLISECOND);
}

/// A sentinel, or what is between, closes each connection after a second.
#[test]
fn a_sentinel_whose_connections_do_not_last_takes_two_queries_a_second() {
    let mut world = World::of_sentinels(1, [Some(5); 3]);
    for _ in 0..60 {
        world.run(1);
        world.played.now += 10 * MILLISECOND;
        world.lose(3);
    }
    let sum: usize = world.latest(20).iter().sum();
    assert!(sum <= 40, "{sum} queries in 20 s");
}

/// A worker that is leaving keeps what sentinels reported before it closed their connections.
#[test]
fn a_worker_that_is_leaving_finds_the_new_master() {
    let mut seen = Vec::new();
    for votes in [[Some(6), None, None], [None, Some(6), None], [Some(5), Some(6), Some(6)]] {
        let mut world = World::of_sentinels(1, [Some(5); 3]);
        world.run(12);
        let now = world.played.now;
        world.played.client.leave(None, now);
        world.run(1);
        world.vote(votes, |host| (host != 5).then_some(0));
        world.every = Some(100 * MILLISECOND);
        world.lose(5);
        world.run(30);
        seen.push((world.master(), world.decided, world.failed));
    }
    assert!(seen.iter().all(|it| it.0 == 6), "{seen:?}");
}
