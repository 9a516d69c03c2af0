//! Measures how many requests too many pass when a master is lost before its replica has everything.
//!
//! `cargo run -p rate-limit-tests --example failover -- 15`, or `scripts/failover`: a row for each deployment and lag, of so
//! many failovers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Cluster, ClusterConf, Conf, MASTER_NAME, Nginx, PATIENCE, Redis, SLOTS, SentinelConf,
    Sentinels, slot, wait_until,
};

/// How far the replica is behind its master, in ms.
const LAGS: [u64; 4] = [0, 10, 30, 100];

/// The quota of a client in all. Nothing of it comes back meanwhile.
const QUOTA: usize = 2_000;

/// How many connections send requests, and how often each does.
const CONNECTIONS: usize = 4;
const PAUSE: Duration = Duration::from_millis(4);

/// For how long requests are sent before the master is killed, at least.
const BEFORE: Duration = Duration::from_millis(800);

/// How long the time is in which requests are counted to know their rate, before the master is killed.
const SPAN: Duration = Duration::from_millis(500);

/// Replies of the old master may still be read so long after it was killed.
const NOT_SO_SOON: Duration = Duration::from_millis(100);

fn main() {
    let number = std::env::args().nth(1).expect("how many failovers of each");
    let number = number.parse().expect("a number of failovers");
    println!(
        "| deployment | lag | failovers | requests a second | too many: median | most | bound | undecided for |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for lag in LAGS {
        measure("Sentinel", lag, number, with_sentinels(lag));
    }
    for lag in LAGS {
        measure("Cluster", lag, number, with_cluster(lag));
    }
}

/// Servers of which one can be lost.
enum Servers {
    Behind(Box<Sentinels>),
    Sharing(Box<Cluster>),
}

/// The tag of a key that the first node of a cluster owns at the start, and then its replica.
const TAG: &str = "{b}";

fn with_sentinels(lag: u64) -> Servers {
    let sentinels = SentinelConf::new(1).lag(Duration::from_millis(lag)).start();
    Servers::Behind(Box::new(sentinels))
}

fn with_cluster(lag: u64) -> Servers {
    assert!(slot(TAG) < SLOTS / 3, "a slot of the first node");
    let conf = ClusterConf::new(3, 1).line("cluster-require-full-coverage no");
    Servers::Sharing(Box::new(conf.lag(Duration::from_millis(lag)).start()))
}

impl Servers {
    /// The lines of a store.
    fn store(&self) -> String {
        let (urls, kind) = match self {
            Self::Behind(sentinels) => (sentinels.urls(), format!("sentinel {MASTER_NAME};")),
            Self::Sharing(cluster) => (cluster.urls(), "cluster on;".to_owned()),
        };
        urls.iter().map(|url| format!("server {url}; ")).collect::<String>() + &kind
    }

    /// The master, and its only replica.
    fn pair(&self) -> [&Redis; 2] {
        match self {
            Self::Behind(sentinels) => {
                let master = sentinels.master();
                [master, 1 - master].map(|n| sentinels.server(n))
            }
            Self::Sharing(cluster) => {
                let master = cluster.master_of(slot(TAG));
                [master, cluster.replicas_of(master)[0]].map(|n| cluster.node(n))
            }
        }
    }

    /// Waits until the replica has all that was written until now. That its link is up is not enough: a master sends
    /// nothing to a replica that it has just sent everything, until that has acknowledged it.
    fn wait_in_sync(&self) {
        let [master, replica] = self.pair();
        master.command::<()>(&["SET", TAG, "in sync", "PX", "1000"]);
        let number = |redis: &Redis, field| redis.info(field).parse::<u64>().unwrap_or(0);
        let written = number(master, "master_repl_offset");
        let has_all = || number(replica, "slave_repl_offset") >= written;
        wait_until(PATIENCE, has_all, "a replica in sync");
    }

    /// Kills the master; returns which it was.
    fn kill(&mut self) -> usize {
        match self {
            Self::Behind(sentinels) => sentinels.kill9_master(),
            Self::Sharing(cluster) => {
                let master = cluster.master_of(slot(TAG));
                cluster.kill9(master);
                master
            }
        }
    }

    /// Starts a server that was killed, when another one is the master, and waits until it is its replica.
    fn restart(&mut self, n: usize) {
        match self {
            Self::Behind(sentinels) => {
                sentinels.wait_for_failover(n);
                sentinels.server_mut(n).restart();
                sentinels.wait_settled();
            }
            Self::Sharing(cluster) => {
                let master = cluster.wait_for_master(slot(TAG));
                cluster.restart(n);
                cluster.wait_ok();
                let follows = || cluster.replicas_of(master) == [n];
                wait_until(PATIENCE, follows, "a replica");
            }
        }
    }
}

/// An nginx that is decided for by these servers. What they do not decide is rejected, and not counted.
fn start(servers: &Servers) -> Nginx {
    let nginx = Conf::new()
        .workers(2)
        .http(&format!("rate_limit_redis_store redis {{ {} }}", servers.store()))
        .http(
            "rate_limit_redis_pass redis; rate_limit_redis_timeout 1s; keepalive_requests 1000000;",
        )
        .server("rate_limit_redis_on_error closed; access_log off;")
        .server(&format!("rate_limit_redis $arg_k rate={QUOTA}r/52w;"))
        .start();
    wait_until(PATIENCE, || nginx.get("/?k={b}").status == 200, "decisions");
    nginx
}

/// One master that is lost.
struct Failover {
    /// How many requests passed beyond the quota.
    excess: usize,
    /// How many passed in a second before.
    rate: f64,
    /// How long no request was decided.
    gap: Duration,
}

fn measure(name: &str, lag: u64, number: usize, mut servers: Servers) {
    let nginx = start(&servers);
    let failovers: Vec<_> = (0..number).map(|n| fail_over(&mut servers, &nginx, n)).collect();
    let mut excess: Vec<_> = failovers.iter().map(|failover| failover.excess).collect();
    excess.sort_unstable();
    let mean = |of: fn(&Failover) -> f64| failovers.iter().map(of).sum::<f64>() / number as f64;
    let rate = mean(|failover| failover.rate);
    println!(
        "| {name} | {lag} ms | {number} | {rate:.0} | {} | {} | {:.0} | {:.1} s |",
        excess[number / 2],
        excess[number - 1],
        rate * lag as f64 / 1e3,
        mean(|failover| failover.gap.as_secs_f64()),
    );
}

fn fail_over(servers: &mut Servers, nginx: &Nginx, n: usize) -> Failover {
    let (passed, rejected) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let path = format!("/?k={TAG}{n}");
    servers.wait_in_sync();
    let (lost, killed) = thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| client(nginx, &path, &passed, &rejected));
        }
        // Not always at the same point of what servers do once in a while.
        thread::sleep(BEFORE + Duration::from_millis(fastrand::u64(0..200)));
        (servers.kill(), Instant::now())
    });
    servers.restart(lost);
    let passed = passed.into_inner().unwrap();
    let before = passed.iter().filter(|at| **at <= killed && **at + SPAN > killed).count();
    let after = passed.iter().filter(|at| **at > killed + NOT_SO_SOON).min().expect("a decision");
    Failover {
        excess: passed.len().saturating_sub(QUOTA),
        rate: before as f64 / SPAN.as_secs_f64(),
        gap: *after - killed,
    }
}

fn client(nginx: &Nginx, path: &str, passed: &Mutex<Vec<Instant>>, rejected: &AtomicBool) {
    let (mut http, mut next) = (nginx.http(), Instant::now());
    while !rejected.load(Ordering::Relaxed) {
        match http.get(path).status {
            200 => passed.lock().unwrap().push(Instant::now()),
            429 => rejected.store(true, Ordering::Relaxed),
            _ => (),
        }
        next = (next + PAUSE).max(Instant::now());
        thread::sleep(next - Instant::now());
    }
}
