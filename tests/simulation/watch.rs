//! The promises of a client to the world around it: whom it blames, and how much it does in a second.

use std::net::SocketAddr;
use std::ops::Range;

use rate_limit_core::rate::SECOND;

use crate::fault::{Episode, Fault};
use crate::server::{ServerId, Unfit};
use crate::world::World;

/// How long after a fault its consequences may show, in µs.
const AFTERMATH: u64 = 2 * SECOND;

/// How often a connection may be made again in a second.
const CONNECTS: u64 = 80;

/// How many lines a node may cause in a second.
const LINES: u64 = 10;

/// When each server may be called down.
#[derive(Debug)]
pub struct Blame {
    faults: Vec<(ServerId, Range<u64>)>,
}

impl Blame {
    /// `connect_timeout` is how long a connection may take to be ready, in µs.
    pub fn new(episodes: &[Episode], servers: usize, connect_timeout: u64) -> Self {
        let mut faults = Vec::new();
        for Episode { time, fault } in episodes {
            let time = time.start..time.end + AFTERMATH;
            for server in blamed(fault, servers, connect_timeout) {
                faults.push((server, time.clone()));
            }
        }
        Self { faults }
    }

    /// Panics if a server is called down that nothing is wrong with. The worker was away at these times, until
    /// then and for so long, in µs: it blames no server for that, and so finds a fault later.
    pub fn check(&self, name: &str, reason: &str, world: &World, away: &[(u64, u64)]) {
        let server = match name.parse::<SocketAddr>() {
            Ok(address) => world.deployment.at(address),
            Err(_) => Some(0),
        };
        let Some(server) = server else { return };
        let now = world.now();
        let is_excused = |(of, time): &(ServerId, Range<u64>)| {
            *of == server && (time.start..end_after(time, away)).contains(&now)
        };
        assert!(self.faults.iter().any(is_excused), "{name} is healthy, but called down: {reason}");
    }
}

/// When the consequences of a fault end for a worker that was away meanwhile.
fn end_after(time: &Range<u64>, away: &[(u64, u64)]) -> u64 {
    away.iter().fold(time.end, |end, (until, late)| match (time.start..end).contains(until) {
        true => end + late,
        false => end,
    })
}

/// The servers that may be called down because of a fault.
fn blamed(fault: &Fault, servers: usize, connect_timeout: u64) -> Vec<ServerId> {
    match fault {
        Fault::Kill { server, .. }
        | Fault::Hang { server }
        | Fault::Partition { server, .. }
        | Fault::Reset { server }
        | Fault::Close { server }
        | Fault::Vanish { server }
        | Fault::Unfit { server, unfit: Unfit::Loading | Unfit::MasterDown | Unfit::NoReplicas }
        | Fault::Password { server }
        | Fault::Switch { server }
        | Fault::Readdress { server } => vec![*server],
        // The connection is accepted, the handshake goes there, and its replies come back.
        Fault::Slow { server, micros } if 3 * micros + 40_000 > connect_timeout => vec![*server],
        Fault::NoNames => (0..servers).collect(),
        Fault::Slow { .. }
        | Fault::Unfit { .. }
        | Fault::FlushScripts { .. }
        | Fault::Move { .. }
        | Fault::Orphan { .. } => Vec::new(),
    }
}

/// The work of one worker in this second.
#[derive(Debug, Default)]
pub struct Activity {
    second: u64,
    connects: u64,
    lines: u64,
}

impl Activity {
    /// A connection is made. There may be `connections` at a time.
    pub fn connect(&mut self, connections: usize, now: u64) {
        self.turn_to(now);
        self.connects += 1;
        let bound = CONNECTS * connections as u64;
        assert!(self.connects <= bound, "{} attempts to connect in a second", self.connects);
    }

    /// A line is logged.
    pub fn line(&mut self, nodes: usize, line: &str, now: u64) {
        self.turn_to(now);
        self.lines += 1;
        let bound = LINES * (1 + nodes as u64);
        assert!(self.lines <= bound, "{} lines in a second, the last one: {line}", self.lines);
    }

    fn turn_to(&mut self, now: u64) {
        if self.second != now / SECOND {
            *self = Self { second: now / SECOND, ..Self::default() };
        }
    }
}
