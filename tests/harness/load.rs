//! Many requests: the well-known load generators, and one that runs while a test does other things.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::http::{Http, Response};
use crate::process::{Process, mortal};
use crate::{PATIENCE, wait_until};

/// How long a client program may run.
const RUN: Duration = Duration::from_secs(60);

/// The pause of a client between two requests: the load is to go on, not to take the processor from
/// other tests.
const PAUSE: Duration = Duration::from_millis(3);

/// How many requests ended how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Responses by status code.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a response, and why.
    pub failures: Vec<String>,
}

impl Tally {
    /// The number of responses with this status.
    pub fn of(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// The number of responses.
    pub fn total(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// The tally in the output of `hey`.
    pub fn of_hey(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output.lines().map(str::trim) {
            // "[200]	100 responses", and below "Error distribution:" "[3]	Get …: EOF"
            let Some((code, rest)) = line.strip_prefix('[').and_then(|l| l.split_once("]\t"))
            else {
                continue;
            };
            let responses = rest.strip_suffix(" responses").and_then(|number| number.parse().ok());
            match (code.parse(), responses) {
                (Ok(status), Some(number)) => drop(tally.statuses.insert(status, number)),
                _ => tally.failures.push(line.to_owned()),
            }
        }
        tally
    }

    fn add(&mut self, other: Self) {
        for (status, number) in other.statuses {
            *self.statuses.entry(status).or_default() += number;
        }
        self.failures.extend(other.failures);
    }
}

/// Runs a client program and returns what it prints; panics if it fails or takes over a minute.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let file = || tempfile::tempfile().expect("a temp file");
    let (stdout, stderr) = (file(), file());
    let mut command = Command::new(program);
    command.args(arguments);
    let mut command = mortal(&command, "KILL");
    command.stdin(Stdio::null());
    command.stdout(stdout.try_clone().expect("a second handle"));
    command.stderr(stderr.try_clone().expect("a second handle"));
    let mut process =
        Process::spawn(command).unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    let status = process.wait(RUN);
    let output = content(stdout);
    assert!(status.success(), "{program}: {status}\n{output}{}", content(stderr));
    output
}

/// `hey` with these arguments.
pub fn hey(arguments: &[&str]) -> Tally {
    Tally::of_hey(&run("hey", arguments))
}

/// `ab` with these arguments. It tells 2xx from other responses only: the latter count as 429.
pub fn ab(arguments: &[&str]) -> Tally {
    let output = run("ab", arguments);
    let number = |label: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(label));
        line.map_or(0, |rest| rest.trim().parse().expect("a number"))
    };
    let other = number("Non-2xx responses:");
    let statuses = [(200, number("Complete requests:") - other), (429, other)];
    // "Failed" counts bodies of another length too, as those of a rejection are.
    let broken =
        |line: &&str| line.contains("Exceptions:") && !line.contains("Connect: 0, Receive: 0");
    let failures = output.lines().filter(broken).map(str::to_owned).collect();
    Tally { statuses: statuses.into(), failures }
}

/// `h2load` with these arguments: it counts statuses by their hundreds, as 200, 300, 400 and 500.
pub fn h2load(arguments: &[&str]) -> Tally {
    let output = run("h2load", arguments);
    let line = |label: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("no {label:?} of h2load in:\n{output}"))
    };
    // "status codes: 100 2xx, 0 3xx, 100 4xx, 0 5xx"
    let class = |(index, part): (u16, &str)| {
        let number = part.split_whitespace().next().and_then(|n| n.parse().ok());
        ((index + 2) * 100, number.expect("a number"))
    };
    let statuses = (0..).zip(line("status codes:").split(',')).map(class).collect();
    // "failed" counts the statuses above 399 too.
    let requests = line("requests:");
    let failures = match requests.contains(" 0 errored, 0 timeout") {
        true => Vec::new(),
        false => vec![requests.to_owned()],
    };
    Tally { statuses, failures }
}

/// Requests that go on in the background, over connections that are kept.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// The number of responses to each client.
    responses: Vec<Arc<AtomicU64>>,
    clients: Vec<JoinHandle<Tally>>,
}

impl Load {
    /// `GET path`, one request after the other on each of so many connections.
    pub fn start(addr: SocketAddr, path: &str, connections: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let responses: Vec<_> = (0..connections).map(|_| Arc::default()).collect();
        let client = |number: &Arc<AtomicU64>| {
            let (stop, number, path) = (Arc::clone(&stop), Arc::clone(number), path.to_owned());
            std::thread::spawn(move || client(addr, &path, &number, &stop))
        };
        let clients = responses.iter().map(client).collect();
        Self { stop, responses, clients }
    }

    /// Waits until each client has got so many more responses. Afterwards each has a connection that was served.
    #[track_caller]
    pub fn wait_for_each(&self, more: u64) {
        let numbers = || self.responses.iter().map(|number| number.load(Ordering::Relaxed));
        let enough: Vec<_> = numbers().map(|number| number + more).collect();
        let have_come = || numbers().zip(&enough).all(|(number, enough)| number >= *enough);
        wait_until(PATIENCE, have_come, "responses to each client");
    }

    /// Ends the requests and returns their results.
    pub fn stop(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for client in self.clients.drain(..) {
            tally.add(client.join().expect("a client"));
        }
        tally
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn client(addr: SocketAddr, path: &str, responses: &AtomicU64, stop: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let used = connection.is_some();
        match exchange(&mut connection, addr, path) {
            Ok(response) => {
                *tally.statuses.entry(response.status).or_default() += 1;
                responses.fetch_add(1, Ordering::Relaxed);
            }
            // A server may close a kept connection just as the next request goes out: that
            // request was not served, and belongs on a new connection.
            Err(error) if used && closed(&error) => connection = None,
            Err(error) => {
                connection = None;
                tally.failures.push(error.to_string());
            }
        }
        std::thread::sleep(PAUSE);
    }
    tally
}

/// One request and its response; keeps the connection if the server does.
fn exchange(kept: &mut Option<Http>, addr: SocketAddr, path: &str) -> io::Result<Response> {
    let mut http = match kept.take() {
        Some(http) => http,
        None => Http::try_connect(addr)?,
    };
    http.try_send_raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let response = http.try_read_response()?;
    if response.header("Connection") != Some("close") {
        *kept = Some(http);
    }
    Ok(response)
}

fn closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn content(mut file: std::fs::File) -> String {
    use io::{Read as _, Seek as _};
    let mut text = String::new();
    file.rewind().expect("rewind");
    file.read_to_string(&mut text).expect("text");
    text
}
