//! A server with pairs of locations: one has a limit, and its control has none. Nothing else differs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Conf, Mode, Nginx, PATIENCE, Proxy, Redis, at_once, wait_until};

use crate::seen::{StartConnected as _, wait_for_connections};

/// How a location answers, and how it is limited.
struct Kind {
    /// The end of its path, and the name of its limit.
    name: &'static str,
    /// The directives of both locations of a pair.
    both: &'static str,
    /// The parameters of the limit.
    limit: &'static str,
    /// The directives of the control in place of a limit that rejects.
    control: &'static str,
}

const KEY: &str = "\"$http_x_key|$uri|$args\" rate=1000000r/s";
const FILE: &str = "alias {prefix}/html/index.html;";
const PASS: &str = "proxy_pass http://127.0.0.1:{port2};";

/// A limit that decides after Redis was asked, at once, later than the access checks, or after a delay; in front of what
/// reads no body, all of it before the request is passed on, or pieces as they come.
const KINDS: [Kind; 7] = [
    Kind { name: "file", both: FILE, limit: KEY, control: "" },
    Kind { name: "body", both: PASS, limit: KEY, control: "" },
    Kind {
        name: "pieces",
        both: "proxy_request_buffering off; proxy_http_version 1.1; proxy_pass http://127.0.0.1:{port2};",
        limit: KEY,
        control: "",
    },
    Kind {
        name: "late",
        both: PASS,
        limit: "\"$http_x_key|$uri|$args\" rate=1000000r/s after=auth settle=$request_length",
        control: "",
    },
    Kind {
        name: "delayed",
        both: PASS,
        limit: "$connection rate=100r/s algorithm=leaky_bucket burst=10000",
        control: "",
    },
    Kind { name: "rejected", both: FILE, limit: "all rate=1r/d", control: "deny all;" },
    Kind {
        name: "refused",
        both: "rate_limit_redis_deny_cache off; proxy_pass http://127.0.0.1:{port2};",
        limit: "all rate=1r/d",
        control: "deny all;",
    },
];

/// Redis decides every request, however busy the machine is.
const STORE: &str =
    "rate_limit_redis_store redis { server {redis}; connect_timeout 30s; fail_timeout 5m; }
    rate_limit_redis_pass redis; rate_limit_redis_timeout 60s;";

/// Times that no client which goes on sending exceeds. A value of 64 KiB fits in, one of 200 KiB does not.
const SERVER: &str = "keepalive_timeout 500ms; client_header_timeout 4s; client_body_timeout 4s; send_timeout 4s; \
    lingering_close always; lingering_timeout 1s; client_max_body_size 200k; \
    large_client_header_buffers 4 160k; keepalive_requests 100000; uninitialized_variable_warn off; \
    access_log {prefix}/phase.log phase; \
    location = /metrics { access_log off; rate_limit_redis_metrics json; }";

/// A server that reads a whole body before it answers.
const BEHIND: &str = "server { listen 127.0.0.1:{port2}; access_log off; client_max_body_size 1m; \
    large_client_header_buffers 4 160k; location / { proxy_pass http://127.0.0.1:{port3}; } }
    server { listen 127.0.0.1:{port3}; access_log off; client_max_body_size 1m; \
    large_client_header_buffers 4 160k; \
    location / { return 200 \"$request_method $content_length $http_x_key\\n\"; } }";

/// An nginx with these locations, and a Redis that is some way off.
pub struct Site {
    pub nginx: Nginx,
    _redis: Redis,
    _proxy: Proxy,
    workers: Vec<u32>,
}

impl Site {
    /// Starts both; a reply of Redis comes so much later than at once.
    pub fn start(delay: Duration) -> Self {
        let redis = Redis::start();
        spend(&redis);
        let proxy = Proxy::to(&redis);
        if !delay.is_zero() {
            proxy.set(Mode::Far(delay / 2));
        }
        let conf = Conf::new()
            .set("redis", proxy.url())
            .http(STORE)
            .workers(2)
            .http2()
            .status()
            .file("html/large", &"0123456789abcdef".repeat(1 << 18))
            .http("log_format phase '$kind|$status|$rate_limit_redis_status';")
            .http(BEHIND)
            .server(SERVER)
            .server("location /limited/large { set $kind limited-large; send_timeout 60s;")
            .server("alias {prefix}/html/large;")
            .server("rate_limit_redis $http_x_key|$args name=large rate=1000000r/s; }")
            .server("location /control/large { set $kind control-large; send_timeout 60s;")
            .server("alias {prefix}/html/large; }");
        let nginx = KINDS.iter().fold(conf, |conf, kind| conf.server(&locations(kind))).start();
        wait_for_connections(&redis, 2);
        let workers = nginx.worker_pids();
        Self { nginx, _redis: redis, _proxy: proxy, workers }
    }

    /// Waits until no request is left, and checks that the workers are those of the start and serve, that every
    /// request which came to a limit is counted by it, and that the module has logged no raw byte.
    pub fn is_well(&self) {
        self.nginx.wait_for_requests(0, 0);
        assert_eq!(self.nginx.worker_pids(), self.workers, "the workers");
        assert_eq!(pair("body").map(|path| self.nginx.get(&path).status), [200; 2]);
        wait_until(PATIENCE, || self.is_counted(), "a count of each request");
        for line in self.lines_of_limits() {
            let text = line.split(", client: ").next().expect("a part");
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line:?}");
            assert!(line.len() <= 2_048, "{} bytes: {line}", line.len());
        }
    }

    fn lines_of_limits(&self) -> Vec<String> {
        self.nginx.logged("by limit \"")
    }

    /// Whether `requests_total` of each limit is the number of requests that it has decided, of those that came to it.
    fn is_counted(&self) -> bool {
        let ends = self.ends();
        names().chain(["large"]).all(|name| {
            let kind = format!("limited-{name}");
            let came = ends.iter().filter(|end| end.kind == kind);
            let decided = came.filter(|end| (end.status, end.decision.as_str()) != (499, "-"));
            requests_total(&self.nginx, name) == decided.map(|end| end.number).sum::<usize>()
        })
    }

    /// How the requests ended that have come to the phase of limits.
    pub fn ends(&self) -> Vec<End> {
        let log = self.nginx.read("phase.log");
        let mut numbers = BTreeMap::<&str, usize>::new();
        log.lines().for_each(|line| *numbers.entry(line).or_default() += 1);
        let end = |(line, number): (&str, usize)| {
            let [kind, status, decision] = line.split('|').collect::<Vec<_>>()[..] else {
                return None;
            };
            let (kind, decision) = (kind.to_owned(), decision.to_owned());
            Some(End { kind, status: status.parse().expect("a status"), decision, number })
        };
        numbers.into_iter().filter_map(end).collect()
    }

    /// The log lines about limited requests, without those about the control.
    pub fn complaints(&self) -> BTreeSet<String> {
        let log = self.nginx.error_log();
        let about = |side: &str| -> BTreeSet<String> {
            log.lines().filter(|line| line.contains(&format!(" /{side}/"))).map(complaint).collect()
        };
        &about("limited") - &about("control")
    }
}

/// How so many requests ended.
#[derive(Debug)]
pub struct End {
    /// The side and the name of the pair.
    pub kind: String,
    pub status: u16,
    /// `$rate_limit_redis_status`, or `-`.
    pub decision: String,
    pub number: usize,
}

/// The text of a line of the error log, without numbers, and without what NGINX was doing, which depends on the moment.
fn complaint(line: &str) -> String {
    let text = line
        .split_once(": *")
        .and_then(|(_, rest)| rest.split_once(' '))
        .map_or(line, |(_, text)| text);
    let text = text.split(", client: ").next().expect("a part");
    let text = text.rsplit_once(" while ").map_or(text, |(text, _)| text);
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Has the one request of a day pass that the limits which reject allow.
fn spend(redis: &Redis) {
    let limit =
        |name| format!("location /{name} {{ rate_limit_redis all rate=1r/d name={name}; }}");
    let names = ["rejected", "refused"];
    let conf = names.iter().fold(Conf::new().redis(redis), |conf, name| conf.server(&limit(name)));
    let nginx = conf.start_connected(redis);
    assert_eq!(names.map(|name| nginx.get(&format!("/{name}")).status), [404; 2]);
}

/// The two locations of a kind. What is rejected gets the same status from both.
fn locations(kind: &Kind) -> String {
    let Kind { name, both, limit, control } = kind;
    format!(
        "location /limited/{name} {{ set $kind limited-{name}; {both} rate_limit_redis {limit} name={name}; \
         rate_limit_redis_status 403; }}
         location /control/{name} {{ set $kind control-{name}; {both} {control} }}"
    )
}

/// `requests_total` of a limit, over all results, from the page `/metrics`.
pub fn requests_total(nginx: &Nginx, name: &str) -> usize {
    let page = nginx.get("/metrics");
    let page: serde_json::Value = serde_json::from_str(page.text()).expect("JSON");
    let results = page["limits"][name]["requests"].as_object().expect("results");
    results.values().map(|number| number.as_u64().expect("a number") as usize).sum()
}

/// The paths of a pair.
pub fn pair(name: &str) -> [String; 2] {
    ["limited", "control"].map(|side| format!("/{side}/{name}"))
}

/// The names of all pairs that answer with little.
pub fn names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// In how many pieces a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// In one.
    AtOnce,
    /// In at most a hundred, one a millisecond.
    Trickling,
}

/// Connects.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("connect");
    stream.set_nodelay(true).expect("send at once");
    stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("set a timeout");
    stream
}

/// A pause between two pieces after which the server may have closed a connection that waits for a request.
const LATE: Duration = Duration::from_millis(300);

/// Sends bytes, unless the server closes the connection before that. Returns whether no piece was late: the machine may
/// have stopped the client meanwhile.
pub fn send(stream: &mut TcpStream, bytes: &[u8], pace: Pace) -> bool {
    let size = match pace {
        Pace::AtOnce => bytes.len(),
        Pace::Trickling => bytes.len().div_ceil(100),
    };
    let mut longest = Duration::ZERO;
    for piece in bytes.chunks(size.max(1)) {
        let since = Instant::now();
        if stream.write_all(piece).is_err() {
            break;
        }
        if pace == Pace::Trickling {
            sleep(Duration::from_millis(1));
        }
        longest = longest.max(since.elapsed());
    }
    pace == Pace::AtOnce || longest < LATE
}

/// The bytes that come until the server closes the connection, or nothing where it resets it: the system may have
/// thrown away any part of what it has sent. Panics if the server does neither.
pub fn received(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => Some(bytes),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
    }
}

/// The part that must not differ: everything but the fields of the limit, the date, and the path.
pub fn essence(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("/limited/", "/control/");
    let of_limit = ["X-RateLimit-", "Retry-After:", "Date:"];
    text.split_inclusive('\n')
        .filter(|line| !of_limit.iter().any(|start| line.starts_with(start)))
        .collect()
}

/// How many clients there are at a time. Each has two connections.
const CLIENTS: usize = 200;

/// Has clients run all cases, as many at a time as there are clients: most of it waits.
pub fn by_clients<T: Send>(cases: impl Iterator<Item = T> + Send, run: impl Fn(T) + Sync) {
    let cases = Mutex::new(cases);
    let next = || cases.lock().unwrap().next();
    at_once(0..CLIENTS, |_| std::iter::from_fn(next).for_each(&run));
}

/// The outcomes of both locations of a pair, at the same time.
pub fn both<T: Send>(run: impl Fn(&str) -> T + Sync, [limited, control]: [&str; 2]) -> [T; 2] {
    std::thread::scope(|scope| {
        let limited = scope.spawn(|| run(limited));
        let control = run(control);
        [limited.join().expect("no panic"), control]
    })
}

/// How often the control is tried where an answer depends on the moment at which bytes come.
pub const TRIES: usize = 10;

/// How often everything is done; more than once in the long form.
pub fn rounds() -> usize {
    std::env::var("RATE_LIMIT_ABUSE_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number"))
}
