//! The cost of the connections of a fleet's workers for Redis: `scripts/bench --fleet` measures it.
//!
//! An nginx with many workers stands for the fleet: each has one connection, as each worker of a fleet has. Redis has
//! a core of its own, which it shares with this process; the workers share the other one.

use std::cell::RefCell;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::stop::{self, Stop};
use harness::{Nginx, Redis, run};
use redis::{Cmd, Connection, FromRedisValue};
use tempfile::TempDir;

use crate::machine::{cpu_seconds, on, private_memory};
use crate::servers::Servers;

/// How long a phase may take.
const PHASE: Duration = Duration::from_secs(180);

/// By then Redis has given back what a connection takes at first.
const SETTLED: Duration = Duration::from_secs(10);

/// How long workers are watched for which Redis has no room.
const REFUSED: Duration = Duration::from_secs(30);

/// How long Redis is away when it is restarted.
const AWAY: Duration = Duration::from_secs(2);

const COLUMNS: &str = "| phase | workers | connections made | refused | seconds | CPU of Redis each, µs | most at once \
                       | KB each, at most | KB each, later | resident KB each, later |";

/// The work of Redis from one moment to another. Memory is in bytes, and beyond that without connections.
struct Phase {
    name: String,
    workers: u64,
    made: u64,
    refused: u64,
    seconds: f64,
    /// Its CPU time in s, without what it takes when nothing happens.
    cpu: f64,
    /// The most connections at one moment.
    most: u64,
    memory: Option<Memory>,
}

/// Memory at its most, and when the connections are not new any more.
struct Memory {
    peak: u64,
    later: u64,
    resident: u64,
}

impl Phase {
    /// Its line of the table.
    fn row(&self) -> String {
        let each = self.cpu / (self.made + self.refused).max(1) as f64 * 1e6;
        let kb = |bytes: u64, number: u64| format!("{:.1}", bytes as f64 / number as f64 / 1024.0);
        let sizes = match &self.memory {
            Some(Memory { peak, later, resident }) => {
                let [later, resident] = [later, resident].map(|bytes| kb(*bytes, self.workers));
                format!("{} | {later} | {resident}", kb(*peak, self.most))
            }
            None => " |  | ".to_owned(),
        };
        let Self { name, workers, made, refused, seconds, most, .. } = self;
        format!(
            "| {name} | {workers} | {made} | {refused} | {seconds:.1} | {each:.0} | {most} | {sizes} |"
        )
    }
}

/// A Redis that is watched over one connection.
struct Store {
    redis: Redis,
    client: RefCell<Connection>,
    /// Its CPU time until it served, in s.
    boot: f64,
    /// Its memory without workers.
    empty: u64,
    empty_resident: u64,
}

impl Store {
    /// Starts it, with TLS if there is a certificate.
    fn start(servers: &Servers, certificate: Option<&Certificate>) -> Self {
        let mut lines = vec!["maxclients 20000".to_owned()];
        lines.extend(certificate.into_iter().flat_map(Certificate::lines));
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let redis = Redis::start_wrapped(&on(&servers.pinning.redis), &lines);
        let client = RefCell::new(redis.client());
        let mut store = Self { redis, client, boot: 0.0, empty: 0, empty_resident: 0 };
        (store.boot, store.empty) = (store.cpu(), store.used_memory());
        store.empty_resident = private_memory(store.redis.pid());
        store
    }

    /// Kills it, and starts it again after a while; returns when that was.
    fn restart(&mut self) -> Instant {
        self.redis.kill9();
        sleep(AWAY);
        let began = Instant::now();
        self.redis.restart();
        self.client = RefCell::new(self.redis.client());
        began
    }

    fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = Cmd::new();
        command.arg(words);
        command.query(&mut self.client.borrow_mut()).expect("a reply of Redis")
    }

    /// A number in `INFO`.
    fn info(&self, section: &str, name: &str) -> u64 {
        let info: String = self.command(&["INFO", section]);
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.parse().ok()).expect("a number in INFO")
    }

    fn cpu(&self) -> f64 {
        cpu_seconds(&[self.redis.pid()])
    }

    fn used_memory(&self) -> u64 {
        self.info("memory", "used_memory")
    }

    /// Its memory beyond that without workers.
    fn memory(&self) -> u64 {
        self.used_memory().saturating_sub(self.empty)
    }

    /// How many clients it has, without this one.
    fn clients(&self) -> u64 {
        self.info("clients", "connected_clients") - 1
    }

    /// How many connections were accepted, and how many refused.
    fn accepted(&self) -> [u64; 2] {
        ["total_connections_received", "rejected_connections"].map(|name| self.info("stats", name))
    }

    /// How many connections have been given their names, which comes last but for the scripts.
    fn ready(&self) -> u64 {
        let list: String = self.command(&["CLIENT", "LIST"]);
        list.matches("name=nginx_rate_limit_redis:").count() as u64
    }

    /// The connections, and the memory that they take, now and then.
    fn look(&self) -> (u64, u64) {
        sleep(Duration::from_millis(100));
        (self.clients(), self.memory())
    }

    /// The share of its core that it takes when nothing happens but that it is watched.
    fn idle(&self) -> Result<f64, Stop> {
        let (before, began) = (self.cpu(), Instant::now());
        while began.elapsed() < SETTLED {
            stop::check()?;
            self.look();
        }
        Ok((self.cpu() - before) / SETTLED.as_secs_f64())
    }
}

/// A certificate of RSA-2048, as most are.
struct Certificate {
    dir: TempDir,
}

impl Certificate {
    fn make() -> Self {
        let dir = TempDir::new().expect("create a temp directory");
        let certificate = Self { dir };
        let (certified, key) = (certificate.path("cert.pem"), certificate.path("key.pem"));
        let options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
        let names = ["-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1"];
        let files = ["-keyout", &key, "-out", &certified];
        run("openssl", &[&options[..], &names, &files].concat());
        certificate
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The lines of a server that shows it.
    fn lines(&self) -> [String; 5] {
        let (certified, key) = (self.path("cert.pem"), self.path("key.pem"));
        [
            "tls-port {tls}".to_owned(),
            format!("tls-cert-file {certified}"),
            format!("tls-key-file {key}"),
            format!("tls-ca-cert-file {certified}"),
            "tls-auth-clients no".to_owned(),
        ]
    }
}

/// So many workers and a Redis.
struct Fleet<'a> {
    servers: &'a Servers,
    workers: u64,
    certificate: Option<Certificate>,
    store: Store,
}

impl<'a> Fleet<'a> {
    fn new(servers: &'a Servers, workers: u64, is_secure: bool) -> Self {
        let certificate = is_secure.then(Certificate::make);
        let store = Store::start(servers, certificate.as_ref());
        Self { servers, workers, certificate, store }
    }

    /// The phases, one after the other; the last workers stay.
    fn phases(mut self) -> Result<Vec<Phase>, Stop> {
        let mut nginx = None;
        let start = self.watch("start", |fleet| nginx = Some(fleet.nginx()))?;
        let mut nginx: Nginx = nginx.expect("an nginx");
        let reload = self.watch("reload", |_| nginx.signal(1))?;
        let restart = self.watch_restart()?;
        Ok(vec![start, reload, restart, self.watch_refused()?])
    }

    fn nginx(&self) -> Nginx {
        let redis = &self.store.redis;
        let server = match &self.certificate {
            None => format!("server {};", redis.url()),
            Some(certificate) => format!(
                "server rediss://127.0.0.1:{}; ssl_trusted_certificate {};",
                redis.tls_port(),
                certificate.path("cert.pem")
            ),
        };
        let store =
            format!("rate_limit_redis_store edge {{ {server} }} rate_limit_redis_pass edge;");
        self.servers.module(&store).workers(self.workers as usize).connections(64).start()
    }

    /// The phase that begins so.
    fn watch(&mut self, name: &str, begin: impl FnOnce(&mut Self)) -> Result<Phase, Stop> {
        let (accepted, cpu, began) = (self.store.accepted(), self.store.cpu(), Instant::now());
        begin(self);
        self.until_settled(name, accepted, cpu, began)
    }

    /// A restart of Redis. Workers may be there before it is known to serve.
    fn watch_restart(&mut self) -> Result<Phase, Stop> {
        let began = self.store.restart();
        // Two connections are ours: one that found out whether it serves, and the one that watches.
        self.until_settled("restart", [2, 0], self.store.boot, began)
    }

    /// The phase since then, until each worker has its connection, and no other one is left.
    fn until_settled(
        &self,
        name: &str,
        accepted: [u64; 2],
        cpu: f64,
        began: Instant,
    ) -> Result<Phase, Stop> {
        let (store, workers) = (&self.store, self.workers);
        let (mut most, mut peak) = (1, 0);
        while !(most >= workers && store.clients() == workers && store.ready() == workers) {
            stop::check()?;
            if began.elapsed() > PHASE {
                let ready = store.ready();
                let what = format!("{name}: {ready} of {workers} connections after {PHASE:?}");
                return Err(Stop::Failure(what));
            }
            let (clients, memory) = store.look();
            (most, peak) = (most.max(clients), peak.max(memory));
        }
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), store.cpu() - cpu);
        let now = store.accepted();
        stop::sleep(SETTLED)?;
        let cpu = cpu - seconds * store.idle()?;
        let resident = private_memory(store.redis.pid()).saturating_sub(store.empty_resident);
        let memory = Some(Memory { peak, later: store.memory(), resident });
        let [made, refused] = [0, 1].map(|i| now[i] - accepted[i]);
        Ok(Phase { name: self.title(name), workers, made, refused, seconds, cpu, most, memory })
    }

    /// A while in which Redis has room for half of the workers.
    fn watch_refused(&self) -> Result<Phase, Stop> {
        let (store, workers) = (&self.store, self.workers);
        let (idle, before) = (store.idle()?, store.accepted());
        store.command::<()>(&["CONFIG", "SET", "maxclients", &(workers / 2).to_string()]);
        store.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let (began, cpu) = (Instant::now(), store.cpu());
        stop::sleep(REFUSED)?;
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), store.cpu() - cpu);
        let now = store.accepted();
        let [made, refused] = [0, 1].map(|i| now[i] - before[i]);
        let (name, cpu) = (self.title("room for half"), cpu - seconds * idle);
        Ok(Phase {
            name,
            workers,
            made,
            refused,
            seconds,
            cpu,
            most: store.clients(),
            memory: None,
        })
    }

    fn title(&self, name: &str) -> String {
        let suffix = if self.certificate.is_some() { ", TLS" } else { "" };
        name.to_owned() + suffix
    }
}

/// A table of what happens to fleets of so many workers, without TLS and with it.
pub fn measure(servers: &Servers, workers: &[u64]) -> Result<String, Stop> {
    let mut lines = vec![COLUMNS.to_owned(), "|---".repeat(10) + "|"];
    for number in workers {
        for is_secure in [false, true] {
            let phases = Fleet::new(servers, *number, is_secure).phases()?;
            lines.extend(phases.iter().map(Phase::row));
        }
    }
    Ok(lines.join("\n"))
}
