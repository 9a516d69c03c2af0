//! Three nginx.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use harness::{Http, Prefix, holds_within, is_free_port};

use super::say;
use super::site::Plan;
use super::stop;

const SIZE: usize = 3;

/// How long servers may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The nginx of the demo.
pub struct Fleet {
    plan: Plan,
    ports: Vec<u16>,
    machines: Vec<Prefix>,
}

impl Fleet {
    /// Starts them; the error is a message. That a port is free is a guess: where somebody else takes one meanwhile, all
    /// start again with others.
    pub fn start(plan: Plan, own_port: Option<u16>) -> Result<Self, String> {
        let mut fleet = Self { plan, ports: Vec::new(), machines: Vec::new() };
        for _ in 0..5 {
            fleet.ports = choose_ports(own_port)?;
            if fleet.try_start() {
                return Ok(fleet);
            }
            if !fleet.logs("stderr.log").contains("Address already in use") {
                break;
            }
            fleet.machines.clear();
            fleet.sites().for_each(|site| fs::remove_dir_all(site).expect("remove a directory"));
        }
        eprint!("{}", fleet.logs("stderr.log"));
        Err("nginx did not start".to_owned())
    }

    fn try_start(&mut self) -> bool {
        for number in 0..SIZE {
            self.plan.lay_out(number, &self.ports).expect("lay out an nginx");
            self.machines.push(Prefix::start(&self.plan.site(number)).expect("run nginx"));
        }
        let machines = &mut self.machines;
        holds_within(PATIENCE, || machines.iter_mut().all(|it| it.serves() || it.has_ended()));
        machines.iter().all(Prefix::serves)
    }

    /// Starts an nginx again that has ended.
    pub fn look_after(&mut self) {
        for (number, machine) in self.machines.iter_mut().enumerate() {
            if machine.has_ended() {
                say(&format!("nginx at port {} has ended, and starts again", self.ports[number]));
                // A socket is not made where there is one already.
                let _ = fs::remove_file(self.plan.site(number).join("application.sock"));
                // One that cannot be started has ended the next time, too.
                let _ = machine.restart();
            }
        }
    }

    /// Where they are.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect()
    }

    /// The logs of requests.
    pub fn access_logs(&self) -> Vec<PathBuf> {
        self.sites().map(|site| site.join("access.log")).collect()
    }

    /// Their error logs.
    pub fn error_logs(&self) -> String {
        self.logs("error.log")
    }

    /// The last twenty lines of what each has logged of errors.
    pub fn last_errors(&self) -> String {
        let read = |site: PathBuf| fs::read_to_string(site.join("error.log")).unwrap_or_default();
        let last = |log: String| {
            let lines: Vec<_> = log.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n") + "\n"
        };
        self.sites().map(read).map(last).collect()
    }

    fn sites(&self) -> impl Iterator<Item = PathBuf> {
        (0..SIZE).map(|number| self.plan.site(number))
    }

    /// The logs of this name, one after the other.
    fn logs(&self, name: &str) -> String {
        let read = |site: PathBuf| fs::read(site.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&self.sites().flat_map(read).collect::<Vec<_>>()).into_owned()
    }
}

/// The port that was given and the next free ones, or the first free ones from 8080 on.
fn choose_ports(own: Option<u16>) -> Result<Vec<u16>, String> {
    if let Some(port) = own.filter(|port| !is_free_port(*port)) {
        return Err(format!("port {port} of 127.0.0.1 is taken"));
    }
    let first = own.unwrap_or(8080);
    let mut ports = Vec::new();
    for port in (first..=first.saturating_add(100)).chain(8080..=8180) {
        if ports.len() < SIZE && !ports.contains(&port) && is_free_port(port) {
            ports.push(port);
        }
    }
    match ports.len() {
        SIZE => Ok(ports),
        _ => Err(format!("no three ports from {first} on are free")),
    }
}

/// Waits until all workers reach Redis, to which they connect on their own: the burst should not be there before. Returns
/// whether they do.
pub fn reach_redis(machines: &[SocketAddr]) -> bool {
    let reaches = |machine: &SocketAddr| (0..10).all(|_| is_limited(*machine).unwrap_or(false));
    holds_within(PATIENCE, || stop::check().is_err() || machines.iter().all(reaches))
}

/// Whether an answer, over a connection of its own, tells the limit.
fn is_limited(machine: SocketAddr) -> io::Result<bool> {
    let mut http = Http::try_connect(machine)?;
    http.try_send_raw(b"GET /quota HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    Ok(http.try_read_response()?.header("X-RateLimit-Limit").is_some())
}
