//! Traffic, faults and reloads for long: afterwards all is as it was before.
//!
//! Clients of every kind send requests, leave in the middle of them, and use HTTP/2, while Redis is killed, stopped, slow
//! and lost. In the first half of the time NGINX is reloaded as well, which shows what the master keeps; in the second half
//! it is not, which shows what the workers keep. What is measured before comes after all faults have been there once.
//! `RATE_LIMIT_SOAK_SECONDS` says how long it goes on; `scripts/soak` sets it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fastrand::Rng;
use harness::{
    Conf, Http, Library, Mode, Nginx, PATIENCE, Process, Proxy, Redis, Usage, h2load, mortal,
    wait_until, wakes,
};

const WORKERS: usize = 2;

/// The keys of each location: so many states there are in the shared memory.
const KEYS: usize = 40;

/// The blocks of memory that a process may have more than before, and their bytes: what is kept for the most requests
/// that there were at once is some hundred blocks. What is lost with each request is ten thousands of them.
const MORE_BLOCKS: u64 = 1_000;
const MORE_BYTES: u64 = 512 << 10;

/// How often an idle worker may wake in a second.
const WAKES: u64 = 20;

/// Each location with a limit of its own; the last one has none.
const LOCATIONS: [(&str, &str); 10] = [
    ("bucket", "rate=100r/s"),
    ("denied", "rate=1r/h capacity=5"),
    ("log", "rate=50r/s algorithm=sliding_log"),
    ("leaky", "rate=200r/s algorithm=leaky_bucket burst=20"),
    ("settled", "rate=100r/s cost=5 settle=1"),
    ("auth", "rate=100r/s after=auth"),
    ("blocked", "rate=100r/s block=1s"),
    ("local", "rate=100r/s; rate_limit_redis_on_error local"),
    ("leased", "rate=100r/s; rate_limit_redis_lease 1s"),
    ("control", ""),
];

fn time() -> Duration {
    let seconds = std::env::var("RATE_LIMIT_SOAK_SECONDS");
    Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().expect("a number")))
}

fn conf(proxy: &Proxy, blocks: &Library) -> Conf {
    let conf = Conf::new()
        .env("LD_PRELOAD", blocks.path())
        .workers(WORKERS)
        .http2()
        .status()
        .http("access_log off; keepalive_requests 200;")
        .http(&format!("rate_limit_redis_pass {};", proxy.url()))
        .http("rate_limit_redis_timeout 50ms; rate_limit_redis_log_level info;")
        .server("location = /metrics { rate_limit_redis_metrics json; }");
    let location = |(name, limit): (&str, &str)| {
        let line = match limit {
            "" => String::new(),
            limit => {
                let (own, others) = limit.split_once(';').unwrap_or((limit, ""));
                format!("rate_limit_redis $arg_k name={name} {own};{others};").replace(";;", ";")
            }
        };
        format!("location /{name} {{ {line} try_files /index.html =404; }}")
    };
    LOCATIONS.into_iter().fold(conf, |conf, of| conf.server(&location(of)))
}

/// A fault of Redis.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Stopped,
    Slow,
    Cut,
    WithoutReplies,
    ClosedAtReplies,
    WithoutScripts,
    ConnectionsKilled,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::Killed,
        Self::Stopped,
        Self::Slow,
        Self::Cut,
        Self::WithoutReplies,
        Self::ClosedAtReplies,
        Self::WithoutScripts,
        Self::ConnectionsKilled,
    ];

    /// Befalls Redis while `act` runs, and is over afterwards.
    fn befall(self, redis: &mut Redis, proxy: &Proxy, act: impl FnOnce()) {
        match self {
            Self::Killed => {
                redis.kill9();
                act();
                redis.restart();
            }
            Self::Stopped => {
                redis.stop_signal();
                act();
                redis.cont();
            }
            Self::Slow => through(proxy, Mode::Slow(Duration::from_millis(60)), act),
            Self::Cut => through(proxy, Mode::Cut, act),
            Self::WithoutReplies => through(proxy, Mode::DropReplies, act),
            Self::ClosedAtReplies => through(proxy, Mode::CloseAtReply, act),
            Self::WithoutScripts => {
                redis.command::<()>(&["SCRIPT", "FLUSH"]);
                act();
            }
            Self::ConnectionsKilled => {
                redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
                act();
            }
        }
    }
}

fn through(proxy: &Proxy, mode: Mode, act: impl FnOnce()) {
    proxy.set(mode);
    act();
    proxy.set(Mode::Pass);
    // The bytes that were lost in between are lost: no TCP goes on after that.
    proxy.cut();
}

/// The responses to a client's requests.
#[derive(Default)]
struct Seen {
    answers: BTreeMap<String, u64>,
    wrong: Vec<String>,
}

/// Sends requests of all kinds until `running` ends. Of some it does not read the response, and of some it does not send
/// everything.
fn client(addr: SocketAddr, running: &AtomicBool) -> Seen {
    let (mut rng, mut seen, mut kept) = (Rng::new(), Seen::default(), None);
    while running.load(Ordering::Relaxed) {
        let (name, _) = LOCATIONS[rng.usize(..LOCATIONS.len())];
        let was_kept = kept.is_some();
        let request = format!("GET /{name}?k={} HTTP/1.1\r\nHost: a\r\n\r\n", rng.usize(..KEYS));
        match exchange(&mut kept, addr, &request, &mut rng) {
            Ok(None) => (),
            Ok(Some(status)) => {
                let is_right = status == 200 || (status == 429 && name != "control");
                if !is_right {
                    seen.wrong.push(format!("{name}: {status}"));
                }
                *seen.answers.entry(format!("{name} {status}")).or_default() += 1;
            }
            // NGINX may close a kept connection just as the next request goes out.
            Err(_) if was_kept => kept = None,
            Err(error) => seen.wrong.push(format!("{name}: {error}")),
        }
        sleep(Duration::from_micros(rng.u64(..6_000)));
    }
    seen
}

/// Sends a request, and returns the status if the client waits for the response.
fn exchange(
    kept: &mut Option<Http>,
    addr: SocketAddr,
    request: &str,
    rng: &mut Rng,
) -> io::Result<Option<u16>> {
    let mut http = kept.take().map_or_else(|| Http::try_connect(addr), Ok)?;
    match rng.u8(..10) {
        0 => http.try_send_raw(&request.as_bytes()[..rng.usize(..request.len())]).map(|()| None),
        1 => http.try_send_raw(request.as_bytes()).map(|()| None),
        _ => {
            http.try_send_raw(request.as_bytes())?;
            let response = http.try_read_response()?;
            if response.header("Connection") != Some("close") {
                *kept = Some(http);
            }
            Ok(Some(response.status))
        }
    }
}

/// Requests over HTTP/2, many at once, by clients of which every second one is killed in the middle.
fn http2_clients(nginx_url: &str, running: &AtomicBool) {
    for round in 0_u32.. {
        if !running.load(Ordering::Relaxed) {
            return;
        }
        let (name, _) = LOCATIONS[round as usize % LOCATIONS.len()];
        let url = format!("{nginx_url}{name}?k=1");
        if round.is_multiple_of(2) {
            // A request that a reload cuts off is not counted: a client of HTTP/2 has to send it again.
            drop(h2load(&["-n", "100", "-c", "2", "-m", "20", &url]));
        } else {
            let mut command = std::process::Command::new("h2load");
            command.args(["-n", "100000", "-c", "4", "-m", "50", &url]);
            let mut command = mortal(&command, "KILL");
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            let client = Process::spawn(command).expect("run h2load");
            sleep(Duration::from_millis(30));
            drop(client);
        }
        sleep(Duration::from_millis(100));
    }
}

/// Runs `act` under traffic, and sees that no request has failed.
#[track_caller]
fn under_traffic(nginx: &mut Nginx, act: impl FnOnce(&mut Nginx)) {
    let (addr, url, running) = (nginx.addr(), nginx.h2_url("/"), AtomicBool::new(true));
    let seen: Vec<Seen> = scope(|scope| {
        let clients: Vec<_> = (0..6).map(|_| scope.spawn(|| client(addr, &running))).collect();
        let http2 = scope.spawn(|| http2_clients(&url, &running));
        let stop = Stop(&running);
        act(nginx);
        drop(stop);
        http2.join().expect("clients of HTTP/2");
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let mut answers = BTreeMap::<String, u64>::new();
    for client in seen {
        assert!(client.wrong.is_empty(), "{:#?}", client.wrong);
        client.answers.into_iter().for_each(|(end, n)| *answers.entry(end).or_default() += n);
    }
    println!("{answers:?}");
    assert!(LOCATIONS.iter().all(|(name, _)| answers.contains_key(&format!("{name} 200"))));
}

/// Ends the clients, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Each fault once, and each key of every location while Redis is away: all that may be kept is there afterwards.
fn warm_up(nginx: &mut Nginx, redis: &mut Redis, proxy: &Proxy) {
    under_traffic(nginx, |_| {
        for fault in Fault::ALL {
            fault.befall(redis, proxy, || sleep(Duration::from_millis(300)));
            sleep(Duration::from_millis(200));
        }
    });
    Fault::Killed.befall(redis, proxy, || {
        for (name, _) in LOCATIONS {
            (0..KEYS).for_each(|key| drop(nginx.get(&format!("/{name}?k={key}"))));
        }
    });
}

/// One fault after the other for so long, each followed by a reload if there are to be any.
fn soak(nginx: &mut Nginx, redis: &mut Redis, proxy: &Proxy, time: Duration, reloads: bool) {
    let (mut rng, start, mut rounds) = (Rng::with_seed(1), Instant::now(), 0);
    under_traffic(nginx, |nginx| {
        while start.elapsed() < time {
            let fault = Fault::ALL[rng.usize(..Fault::ALL.len())];
            let mut act = || {
                sleep(Duration::from_millis(rng.u64(..400)));
                if reloads {
                    nginx.reload();
                }
            };
            fault.befall(redis, proxy, &mut act);
            sleep(Duration::from_millis(rng.u64(..800)));
            rounds += 1;
        }
    });
    println!("{rounds} faults");
}

/// The resources of NGINX, and what is kept for it, when nobody sends anything.
#[derive(Debug)]
struct Kept {
    master: Usage,
    workers: Vec<(u32, Usage)>,
    shared_memory: String,
}

impl Kept {
    /// Waits until nobody sends anything and each worker is connected to Redis, once.
    fn measure(nginx: &Nginx, redis: &Redis) -> Self {
        nginx.wait_for_requests(0, 0);
        wait_until(PATIENCE, || is_idle(nginx), "the end of all connections of clients");
        let one_each = || connected(redis) == WORKERS && redis.clients().len() == WORKERS;
        wait_until(PATIENCE, one_each, "a connection of each worker to Redis, no other");
        let workers = nginx.worker_pids();
        for worker in &workers {
            let before = wakes(*worker);
            sleep(Duration::from_secs(1));
            let woken = wakes(*worker) - before;
            assert!(woken < WAKES, "an idle worker has woken {woken} times in a second");
        }
        let workers = workers.into_iter().map(|pid| (pid, Usage::of(pid))).collect();
        let (master, shared_memory) = (Usage::of(nginx.pid()), shared_memory(nginx));
        Self { master, workers, shared_memory }
    }

    /// Panics if the master has more than `before`, or the workers have other descriptors, or more memory if they are
    /// those of before.
    #[track_caller]
    fn is_no_more_than(&self, before: &Self) {
        println!("before {before:?}\nafter {self:?}");
        assert_eq!(self.shared_memory, before.shared_memory);
        no_more("the master", &self.master, &before.master);
        for ((pid, after), (pid_before, before)) in self.workers.iter().zip(&before.workers) {
            assert_eq!(after.descriptors, before.descriptors, "of worker {pid}");
            if pid == pid_before {
                no_more("a worker", after, before);
            }
        }
    }
}

#[track_caller]
fn no_more(whose: &str, after: &Usage, before: &Usage) {
    assert_eq!(after.descriptors, before.descriptors, "of {whose}");
    let is_bounded =
        after.blocks < before.blocks + MORE_BLOCKS && after.bytes < before.bytes + MORE_BYTES;
    assert!(is_bounded, "{whose} has kept memory: {before:?}, now {after:?}");
}

/// Whether no client has a connection. That of the question is one.
fn is_idle(nginx: &Nginx) -> bool {
    nginx.status().contains("Active connections: 1 ")
}

/// How many connections to Redis have the name that workers give them.
fn connected(redis: &Redis) -> usize {
    let ours = |client: &String| client.contains("name=nginx_rate_limit_redis:");
    redis.clients().into_iter().filter(ours).count()
}

/// How much of the shared memory is in use.
fn shared_memory(nginx: &Nginx) -> String {
    let page = nginx.get("/metrics").text().to_owned();
    let from = page.find("\"shared_memory_bytes\"").expect("the shared memory");
    page[from..].split('}').next().expect("its states").to_owned()
}

#[test]
fn all_is_as_it_was_before() {
    let mut redis = Redis::start();
    let proxy = Proxy::to(&redis);
    let blocks = Library::counted_blocks();
    let mut nginx = conf(&proxy, &blocks).start();
    let mut measured = |nginx: &mut Nginx, time, reloads| {
        warm_up(nginx, &mut redis, &proxy);
        let before = Kept::measure(nginx, &redis);
        soak(nginx, &mut redis, &proxy, time, reloads);
        Kept::measure(nginx, &redis).is_no_more_than(&before);
    };
    measured(&mut nginx, time() / 2, true);
    measured(&mut nginx, time() / 2, false);
    let strange: Vec<_> =
        nginx.logged("[error]").into_iter().filter(|line| !line.contains(": redis ")).collect();
    assert!(strange.is_empty(), "{strange:#?}");
    // No timer that nobody needs keeps a worker.
    let start = Instant::now();
    nginx.quit();
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
}
