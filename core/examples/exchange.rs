//! The smallest driver of the client: it charges one request, and shows the verdict.
//!
//! ```text
//! cargo run -p rate-limit-core --example exchange -- redis://127.0.0.1:6379 192.0.2.7
//! ```
//!
//! It blocks on its only connection. A driver in an event loop waits for all sockets and the timer at once; the order
//! within a turn is the same: see [`Turn`].

use std::error::Error;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::client::{
    Action, Client, Config, ConnectionKey, Fault, Kind, Server, Target, Turn,
};
use rate_limit_core::decision::Verdict;
use rate_limit_core::key::Head;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MILLISECOND, SECOND};
use rate_limit_core::redis::endpoint::Endpoint;
use rate_limit_core::redis::script::Scripts;

/// How long the request waits for its decision, in µs.
const TIMEOUT: u64 = SECOND;

/// The client, and what it needs of the outside.
struct Driver {
    client: Client,
    start: Instant,
    stream: Option<(ConnectionKey, TcpStream)>,
}

impl Turn for Driver {
    fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Waits for input, but not for longer than until the timer expires.
    fn read_sockets(&mut self) {
        let now = self.now();
        let until = self.client.timer().unwrap_or(now + MILLISECOND);
        let wait = Duration::from_micros(until.saturating_sub(now).max(1));
        let Some((key, stream)) = &mut self.stream else { return std::thread::sleep(wait) };
        let key = *key;
        let received = stream.set_read_timeout(Some(wait)).and_then(|()| {
            match stream.read(self.client.space(key))? {
                0 => Err(ErrorKind::UnexpectedEof.into()),
                count => Ok(count),
            }
        });
        match received {
            // It returns whether more may be read.
            Ok(count) => drop(self.client.on_received(key, count, self.now())),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(error) => self.lose(key, &error),
        }
    }
}

impl Driver {
    fn new(server: Endpoint) -> Self {
        let config = Config {
            kind: Kind::Single,
            servers: vec![Server { endpoint: server.clone(), targets: Vec::new() }],
            account: server,
            store: "example".to_owned(),
            client_name: "example".to_owned(),
            auth_interval: 0,
            connect_timeout: 250 * MILLISECOND,
            connections: 1,
            max_fails: 3,
            fail_timeout: SECOND,
            longest_timeout: TIMEOUT,
            seed: 1,
        };
        let client = Client::new(config, Arc::new(Scripts::new()));
        Self { client, start: Instant::now(), stream: None }
    }

    /// Carries out what follows from commands and events.
    fn carry_out(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Resolve { connection, host, port } => {
                    let addresses = (host.as_str(), port).to_socket_addrs();
                    let targets = addresses.into_iter().flatten().map(Target::Ip).collect();
                    self.client.on_resolved(connection, targets, self.now());
                }
                Action::Connect(key, target) => self.connect(key, &target),
                Action::Send(key) => self.send(key),
                Action::Close(key) => drop(self.stream.take_if(|(other, _)| *other == key)),
                Action::Down(_, what)
                | Action::StillDown(_, what)
                | Action::Warn(_, what)
                | Action::Log(_, what) => {
                    eprintln!("{what}");
                }
                // The rest is for metrics, and for a driver that does other things meanwhile: each turn ends here.
                _ => {}
            }
        }
    }

    fn connect(&mut self, key: ConnectionKey, target: &Target) {
        let stream = match target {
            Target::Ip(address) => TcpStream::connect(address),
            Target::Unix(_) => Err(ErrorKind::Unsupported.into()),
        };
        match stream {
            Ok(stream) => {
                self.stream = Some((key, stream));
                self.client.on_connected(key);
            }
            Err(error) => self.client.on_lost(key, &Fault::Connect(error.to_string()), self.now()),
        }
    }

    fn send(&mut self, key: ConnectionKey) {
        let now = self.now();
        let Some((_, stream)) = self.stream.as_mut().filter(|(other, _)| *other == key) else {
            return;
        };
        loop {
            let output = self.client.output(key, now);
            if output.is_empty() {
                return;
            }
            match stream.write(output) {
                Ok(count) => self.client.on_sent(key, count),
                Err(error) => return self.lose(key, &error),
            }
        }
    }

    fn lose(&mut self, key: ConnectionKey, error: &io::Error) {
        self.stream = None;
        self.client.on_lost(key, &Fault::Closed(error.to_string()), self.now());
    }
}

/// Charges a client of this key one unit of five a minute.
pub fn charge(server: &str, key: &str) -> Result<Verdict, Box<dyn Error>> {
    let mut driver = Driver::new(server.parse()?);
    driver.client.start(driver.now());

    let quota = Quota::new(Algorithm::TokenBucket, "5r/m".parse()?, 5)?;
    let head = Head::new("rl:", "example").ok_or("no name of a limit")?;
    let template = Rc::new(Template::new(head, None));
    let charge = Charge::new(&template, key.as_bytes(), &quota, 1);
    let request = driver.client.submit(&[charge], TIMEOUT, driver.now());

    while driver.client.outcome(request).is_none() {
        driver.carry_out();
        driver.turn();
    }
    let outcome = driver.client.outcome(request).unwrap_or(Ok(()));
    let answer = driver.client.answers(request).first().and_then(|answer| answer.verdict);
    // A charge of a request that does not pass would be refunded here.
    driver.client.release(request, false);
    outcome.map_err(|error| format!("{error:?}"))?;
    Ok(answer.ok_or("no verdict")?)
}

#[allow(dead_code, reason = "a test includes this file")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let key = arguments.next().unwrap_or_else(|| "192.0.2.7".to_owned());
    let Verdict { allowed, remaining, .. } = charge(&server, &key)?;
    println!("{}, {remaining} left", if allowed { "allowed" } else { "rejected" });
    Ok(())
}
