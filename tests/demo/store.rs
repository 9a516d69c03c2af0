//! The Redis that the nginx share: a server, a cluster, or the user's own.

use std::path::Path;

use harness::{ClusterConf, Home, Redis, is_free_with_bus};

use super::options::Kind;
use super::say;

/// The Redis in the configuration of the nginx, and its servers, if they are the demo's.
pub struct Store {
    /// The directives that stand for it.
    pub directives: String,
    /// Commands by which the user looks into it.
    pub hints: Vec<String>,
    servers: Vec<Server>,
}

/// A server of the demo.
struct Server {
    redis: Redis,
    name: String,
    /// Whether it should run.
    is_up: bool,
}

impl Server {
    fn new(redis: Redis) -> Self {
        let name = match redis.port() {
            0 => "Redis".to_owned(),
            port => format!("Redis at port {port}"),
        };
        Self { redis, name, is_up: true }
    }

    fn lives(&mut self) -> bool {
        self.redis.lives()
    }

    /// Whether it is not even frozen.
    fn runs(&mut self) -> bool {
        self.redis.lives() && self.redis.runs()
    }

    fn say(&self, event: &str) {
        say(&format!("{} {event}", self.name));
    }
}

impl Store {
    /// Starts the servers, below this directory.
    pub fn start(kind: &Kind, directory: &Path) -> Self {
        match kind {
            Kind::Single => single(directory),
            Kind::Cluster => cluster(directory),
            Kind::Own(url) => own(url, directory),
        }
    }

    /// Whether there are servers that the user may kill.
    pub fn has_servers(&self) -> bool {
        !self.servers.is_empty()
    }

    /// Kills a server. Of a cluster each press of a key is for one more server, the masters first.
    pub fn kill(&mut self) {
        if let Some(server) = self.first(Server::lives) {
            server.redis.kill9();
            server.is_up = false;
            server.say("is killed");
        }
    }

    /// Freezes a server.
    pub fn freeze(&mut self) {
        if let Some(server) = self.first(Server::runs) {
            server.redis.stop_signal();
            server.say("is frozen");
        }
    }

    /// Starts all servers that do not run.
    pub fn start_again(&mut self) {
        for server in &mut self.servers {
            if !server.lives() {
                // One that fails is reported as one that has ended.
                server.redis.try_start();
                server.is_up = true;
                server.say("starts");
            } else if !server.runs() {
                server.redis.cont();
                server.say("goes on");
            }
        }
    }

    fn first(&mut self, is_it: fn(&mut Server) -> bool) -> Option<&mut Server> {
        let index = self.servers.iter_mut().position(is_it)?;
        self.servers.get_mut(index)
    }

    /// Reports servers that have ended by themselves; the user starts them.
    pub fn look_after(&mut self) {
        for server in &mut self.servers {
            if server.is_up && !server.lives() {
                server.is_up = false;
                server.say("has ended");
            }
        }
    }
}

fn single(directory: &Path) -> Store {
    say(&format!("starting redis-server in {}", directory.display()));
    let home = Home::make(directory.join("redis"), 0).expect("create a directory");
    let redis = Redis::start_at(home);
    let directives = format!("rate_limit_redis_pass {};", redis.unix_url());
    let cli = format!("redis-cli -s {}", redis.socket().display());
    let hints = vec![format!("{cli} --scan"), format!("{cli} monitor")];
    Store { directives, hints, servers: vec![Server::new(redis)] }
}

/// Six servers, on the first free ports from 7000 on.
fn cluster(directory: &Path) -> Store {
    let ports: Vec<u16> =
        (7000..=u16::MAX).filter(|port| is_free_with_bus(*port)).take(6).collect();
    let words: Vec<_> = ports.iter().map(u16::to_string).collect();
    say(&format!("starting a Redis Cluster at 127.0.0.1, ports {}", words.join(" ")));
    let home = |port: &u16| Home::make(directory.join(format!("redis-{port}")), *port);
    let homes: Result<_, _> = ports.iter().map(home).collect();
    let cluster = ClusterConf::new(3, 3).homes(homes.expect("create directories")).start();
    let servers: String = cluster.urls().iter().map(|url| format!(" server {url};")).collect();
    // The last one is a replica, which stays when a master is ended.
    let last = ports.last().expect("six ports");
    let hints = vec![
        format!("redis-cli --cluster call 127.0.0.1:{last} keys '*'"),
        format!("redis-cli -c -p {last} cluster nodes"),
    ];
    Store {
        directives: store(&format!("{servers} cluster on;")),
        hints,
        servers: cluster.into_servers().into_iter().map(Server::new).collect(),
    }
}

/// Keys of this run alone: the budgets are whole, and no other key is touched. Limits give each of them a TTL.
fn own(url: &str, directory: &Path) -> Store {
    let name = directory.extension().unwrap_or_default().to_string_lossy();
    let lines = format!(" server {url}; prefix rl:demo.{name}:;");
    Store { directives: store(&lines), hints: Vec::new(), servers: Vec::new() }
}

fn store(lines: &str) -> String {
    format!("rate_limit_redis_store demo {{{lines} }} rate_limit_redis_pass demo;")
}
