//! Whatever happens, in whatever order: what was promised holds, and in the end all is well.
//!
//! Random faults befall a Redis, or the nodes of a cluster, while clients request all they can get
//! and nginx is reloaded. `RATE_LIMIT_SEED` chooses the faults, and `RATE_LIMIT_CHAOS_SECONDS` how
//! long it goes on.
//!
//! The most that a client may get in the time T, of a token bucket of the capacity C and the rate R:
//!
//! - of Redis at most C + R × T, and C more each time that Redis forgets everything;
//! - where this machine decides in between (`local`), at most C + R × T from the first outage on,
//!   however many follow, and even if Redis forgets everything: the client never stops, so
//!   its quota here is never whole again, and it is charged here for whatever Redis lets pass. Before
//!   that it has got at most C + R × t of Redis. So 2 × C + R × T in all, and C more for each time
//!   that the client does stop, because the machine is so busy.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fastrand::Rng;
use harness::{
    Cluster, ClusterConf, Conf, Http, Mode, Nginx, PATIENCE, Proxy, Redis, Response, slot,
    wait_until,
};

/// No request with a timeout of 50 ms waits this long, however busy the machine is.
const HUNG: Duration = Duration::from_secs(10);

const CAPACITY: f64 = 40.0;
const PER_SECOND: f64 = 20.0;
const WORKERS: usize = 2;
const POLICIES: [&str; 3] = ["open", "closed", "local"];

/// A location without a limit: whatever happens to Redis, its clients see nothing of it.
const CONTROL: &str = "control";

/// The keys of each policy's clients.
const KEYS: [&str; 3] = ["a", "b", "c"];

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

fn limited(store: &str) -> Conf {
    let location = |policy| {
        format!(
            "location /{policy} {{ rate_limit_redis $arg_k rate={PER_SECOND}r/s \
             capacity={CAPACITY} name={policy}; rate_limit_redis_on_error {policy}; \
             try_files /index.html =404; }}"
        )
    };
    let conf = Conf::new()
        .workers(WORKERS)
        .decisions()
        .http(&format!("rate_limit_redis_store redis {{ {store} }}"))
        .http("rate_limit_redis_pass redis; rate_limit_redis_timeout 50ms;")
        .http("rate_limit_redis_log_level info; keepalive_requests 500;");
    let control = format!("location /{CONTROL} {{ try_files /index.html =404; }}");
    POLICIES.into_iter().fold(conf, |conf, policy| conf.server(&location(policy))).server(&control)
}

/// The events, to be printed if the test fails.
struct Chronicle {
    seed: u64,
    start: Instant,
    events: Mutex<Vec<String>>,
    /// How often Redis forgot everything.
    losses: Mutex<u32>,
}

impl Chronicle {
    fn new() -> Self {
        let seed = number_of("RATE_LIMIT_SEED", 1);
        Self { seed, start: Instant::now(), events: Mutex::default(), losses: Mutex::default() }
    }

    fn note(&self, event: &str) {
        let event = format!("{:8.3} {event}", self.start.elapsed().as_secs_f64());
        self.events.lock().unwrap().push(event);
    }

    fn forgets(&self) {
        *self.losses.lock().unwrap() += 1;
    }
}

impl Drop for Chronicle {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let events = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("--- chaos of RATE_LIMIT_SEED={}\n{}", self.seed, events.join("\n"));
        }
    }
}

/// How a client's requests ended: how often how, and what must not be.
#[derive(Default)]
struct Seen {
    ends: BTreeMap<String, u64>,
    /// How often there was so long no request that half of a quota came back.
    pauses: u32,
    wrong: Vec<String>,
}

/// Ends the clients, also if the test fails.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A client that sends one request after the other.
fn client(addr: SocketAddr, policy: &str, key: &str, running: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut kept = None;
    let mut rng = Rng::new();
    let mut last = Instant::now();
    while running.load(Ordering::SeqCst) {
        let (was_kept, start) = (kept.is_some(), Instant::now());
        match exchange(&mut kept, addr, &format!("/{policy}?k={key}")) {
            Ok(response) => {
                let end = format!("{} {}", response.status, response.decision());
                if !is_allowed(policy, &end) || start.elapsed() > HUNG {
                    seen.wrong.push(format!("{policy}: {end} after {:?}", start.elapsed()));
                }
                *seen.ends.entry(end).or_default() += 1;
            }
            // nginx may close a kept connection just as the next request goes out.
            Err(error) if was_kept && is_closed(&error) => {}
            Err(error) => seen.wrong.push(format!("{policy}: {error} after {:?}", start.elapsed())),
        }
        seen.pauses += u32::from(last.elapsed().as_secs_f64() > CAPACITY / PER_SECOND / 2.0);
        last = Instant::now();
        sleep(Duration::from_micros(rng.u64(0..8_000)));
    }
    seen
}

fn exchange(kept: &mut Option<Http>, addr: SocketAddr, path: &str) -> io::Result<Response> {
    let mut http = kept.take().map_or_else(|| Http::try_connect(addr), Ok)?;
    http.try_send_raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let response = http.try_read_response()?;
    if response.header("Connection") != Some("close") {
        *kept = Some(http);
    }
    Ok(response)
}

fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn is_allowed(policy: &str, end: &str) -> bool {
    if policy == CONTROL {
        return end == "200 ";
    }
    let of_policy: &[_] = match policy {
        "open" => &["200 ERROR_PASSED none"],
        "closed" => &["503 ERROR_REJECTED none"],
        _ => &["200 PASSED local", "429 REJECTED local"],
    };
    let of_all = ["200 PASSED redis", "429 REJECTED redis", "429 REJECTED cache"];
    of_all.iter().chain(of_policy).any(|allowed| *allowed == end)
}

/// Waits until clients of all nodes are decided by Redis, so many that both workers serve some.
#[track_caller]
fn recovers(nginx: &Nginx, nodes: &[String], what: &str) {
    static CLIENTS: AtomicU64 = AtomicU64::new(0);
    let is_decided = |node: &String| {
        // The tag selects the slot, and so the node.
        let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
        nginx.get(&format!("/closed?k={{{node}}}{client}")).decision() == "PASSED redis"
    };
    let all = || nodes.iter().all(|node| (0..8).all(|_| is_decided(node)));
    wait_until(PATIENCE, all, what);
}

/// Has `befall` cause one fault after the other, under load, and checks whether all is as it
/// should be. `nodes` has a tag of a key for each node.
#[track_caller]
fn endures(
    chronicle: &Chronicle,
    nginx: &mut Nginx,
    nodes: &[String],
    mut befall: impl FnMut(&mut Rng, &mut Nginx),
) {
    let mut rng = Rng::with_seed(chronicle.seed);
    let seconds = number_of("RATE_LIMIT_CHAOS_SECONDS", 15);
    recovers(nginx, nodes, "decisions before all faults");
    let (addr, running, start) = (nginx.addr(), AtomicBool::new(true), Instant::now());
    let clients = scope(|scope| {
        let stop = Running(&running);
        let clients: Vec<_> = POLICIES
            .into_iter()
            .flat_map(|policy| KEYS.map(|key| (policy, key)))
            .chain([(CONTROL, "a")])
            .map(|(policy, key)| {
                let running = &running;
                (policy, key, scope.spawn(move || client(addr, policy, key, running)))
            })
            .collect();
        while start.elapsed() < Duration::from_secs(seconds) {
            befall(&mut rng, nginx);
            chronicle.note("over");
            if rng.bool() {
                recovers(nginx, nodes, "recovery");
                chronicle.note("decided by Redis");
            }
            sleep(Duration::from_millis(rng.u64(0..800)));
        }
        recovers(nginx, nodes, "recovery in the end");
        drop(stop);
        let join = |(policy, key, client): (_, _, std::thread::ScopedJoinHandle<'_, Seen>)| {
            (policy, key, client.join().expect("a client"))
        };
        clients.into_iter().map(join).collect::<Vec<_>>()
    });

    let refilled = PER_SECOND * start.elapsed().as_secs_f64();
    let losses = f64::from(*chronicle.losses.lock().unwrap());
    for (policy, key, seen) in clients {
        got_no_more_than_there_was(policy, key, &seen, refilled, losses);
    }
    assert_eq!(nginx.worker_pids().len(), WORKERS);
    let strange: Vec<_> =
        nginx.logged("[error]").into_iter().filter(|line| !line.contains(": redis ")).collect();
    assert!(strange.is_empty(), "{strange:#?}");
}

/// Checks how much a client has got, and that nothing was wrong with it.
#[track_caller]
fn got_no_more_than_there_was(policy: &str, key: &str, seen: &Seen, refilled: f64, losses: f64) {
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    if policy == CONTROL {
        assert!(!seen.ends.is_empty(), "no request without a limit");
        return;
    }
    let of = |end: &str| seen.ends.get(end).copied().unwrap_or(0) as f64;
    let (by_redis, by_local) = (of("200 PASSED redis"), of("200 PASSED local"));
    let (passed, most) = match policy {
        "local" => (by_redis + by_local, (2.0 + f64::from(seen.pauses)) * CAPACITY + refilled),
        _ => (by_redis, (1.0 + losses) * CAPACITY + refilled),
    };
    let summary = format!("{policy} {key}: {passed} of at most {most:.1}: {:?}", seen.ends);
    assert!(passed <= most + 1.0, "too many: {summary}");
    assert!(by_redis > CAPACITY, "hardly any: {summary}");
    println!("{summary}");
}

/// A fault lasts for a while. Now and then nginx is reloaded in the middle of it.
fn last(rng: &mut Rng, nginx: &mut Nginx, chronicle: &Chronicle) {
    let rest = Duration::from_millis(rng.u64(20..1_200));
    if rng.u8(0..4) == 0 {
        sleep(rest / 2);
        chronicle.note("reload");
        nginx.reload();
        sleep(rest / 2);
    } else {
        sleep(rest);
    }
}

/// The connections that nginx has to a server.
fn connections(redis: &Redis) -> usize {
    let ours = |client: &String| client.contains("name=nginx_rate_limit_redis:");
    redis.clients().into_iter().filter(ours).count()
}

#[test]
fn one_redis_keeps_its_promises_in_chaos() {
    let mut redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let chronicle = Chronicle::new();
    let mut nginx = limited(&format!("server {};", proxy.url())).start();
    endures(&chronicle, &mut nginx, &["a".to_owned()], |rng, nginx| {
        let fault = rng.u8(0..14);
        let mode = match fault {
            0 => Mode::Stall,
            1 => Mode::DropReplies,
            2 => Mode::CloseAtReply,
            3 => Mode::Cut,
            4 => Mode::Slow(Duration::from_millis(rng.u64(1..120))),
            5 => Mode::Trickle,
            _ => return befall_redis(fault, &mut redis, rng, nginx, &chronicle),
        };
        chronicle.note(&format!("{mode:?}"));
        proxy.set(mode);
        last(rng, nginx, &chronicle);
        proxy.set(Mode::Pass);
        if mode == Mode::DropReplies {
            // The bytes that are lost are lost: no TCP goes on after that.
            proxy.cut();
        }
    });
    wait_until(PATIENCE, || connections(&redis) == WORKERS, "a connection of each worker");
}

/// One of the faults of a Redis itself.
fn befall_redis(
    fault: u8,
    redis: &mut Redis,
    rng: &mut Rng,
    nginx: &mut Nginx,
    chronicle: &Chronicle,
) {
    let mut say = |what: &str, begin: &[&str], end: &[&str]| {
        chronicle.note(what);
        redis.command::<()>(begin);
        last(rng, nginx, chronicle);
        redis.command::<()>(end);
    };
    let nothing = ["PING"];
    match fault {
        6 => {
            say("full", &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"])
        }
        7 => {
            // The master is not there.
            say("replica", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]);
        }
        8 => say("no scripts", &["SCRIPT", "FLUSH"], &["SCRIPT", "FLUSH"]),
        9 => say("pause", &["CLIENT", "PAUSE", "300"], &nothing),
        10 => {
            chronicle.note("connections are killed");
            for _ in 0..rng.u8(1..30) {
                redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
                sleep(Duration::from_millis(rng.u64(0..30)));
            }
        }
        11 => {
            chronicle.note("stopped");
            redis.stop_signal();
            last(rng, nginx, chronicle);
            redis.cont();
        }
        12 => {
            chronicle.note("killed");
            chronicle.forgets();
            redis.kill9();
            last(rng, nginx, chronicle);
            redis.restart();
        }
        _ => {
            chronicle.note("reload");
            nginx.reload();
        }
    }
}

#[test]
fn a_cluster_keeps_its_promises_in_chaos() {
    let mut cluster = ClusterConf::new(3, 0).line("cluster-require-full-coverage no").start();
    let chronicle = Chronicle::new();
    let servers: String = cluster.urls().iter().map(|url| format!("server {url};")).collect();
    let mut nginx = limited(&format!("{servers} cluster on;")).start();
    let tag_of = |cluster: &Cluster, node| {
        (0..)
            .map(|n: u32| n.to_string())
            .find(|tag| cluster.master_of(slot(tag)) == node)
            .expect("a tag")
    };
    let nodes = [0, 1, 2].map(|node| tag_of(&cluster, node));
    endures(&chronicle, &mut nginx, &nodes, |rng, nginx| {
        let node = rng.usize(0..3);
        match rng.u8(0..6) {
            0 => {
                chronicle.note(&format!("{node} is stopped"));
                cluster.stop_signal(node);
                last(rng, nginx, &chronicle);
                cluster.cont(node);
                cluster.wait_ok();
            }
            1 => {
                chronicle.note(&format!("{node} is killed"));
                chronicle.forgets();
                cluster.kill9(node);
                last(rng, nginx, &chronicle);
                cluster.restart(node);
                cluster.wait_ok();
            }
            2 => {
                let key = format!("rl:{}:{}", POLICIES[rng.usize(0..3)], KEYS[rng.usize(0..3)]);
                chronicle.note(&format!("the slot of {key} moves to {node}"));
                if cluster.master_of(slot(&key)) != node {
                    let migration = cluster.begin_migration(slot(&key), node);
                    last(rng, nginx, &chronicle);
                    while cluster.migrate_keys(migration, 1) > 0 {}
                    last(rng, nginx, &chronicle);
                    cluster.finish_migration(migration);
                }
            }
            3 => {
                chronicle.note(&format!("{node} has no scripts"));
                cluster.command::<()>(node, &["SCRIPT", "FLUSH"]);
            }
            4 => {
                chronicle.note(&format!("connections to {node} are killed"));
                cluster.command::<()>(node, &["CLIENT", "KILL", "TYPE", "normal"]);
            }
            _ => {
                chronicle.note("reload");
                nginx.reload();
            }
        }
    });
    for node in 0..3 {
        let connected = || connections(cluster.node(node)) == WORKERS;
        wait_until(PATIENCE, connected, "a connection of each worker to each node");
    }
}
