//! The faults, and when: drawn from the seed, and over at a given time.

use std::ops::Range;

use fastrand::Rng;

use crate::deployment::{Deployment, Kind};
use crate::network::ClientId;
use crate::server::{ServerId, Unfit};

/// Something that goes wrong for a while.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process ends, and starts again, with or without its data.
    Kill { server: ServerId, keeps_data: bool },
    /// A process is stopped, and goes on later.
    Hang { server: ServerId },
    /// A server, or the way to it, is slow: by so many µs at most.
    Slow { server: ServerId, micros: u64 },
    /// Nothing passes between a server and these clients, nor, if it is isolated, the other
    /// servers.
    Partition { server: ServerId, clients: Vec<ClientId>, isolated: bool },
    /// A server's connections are reset.
    Reset { server: ServerId },
    /// A server closes its connections.
    Close { server: ServerId },
    /// A server's connections are gone without a notice.
    Vanish { server: ServerId },
    /// A server's cache of scripts is emptied.
    FlushScripts { server: ServerId },
    /// A server executes no scripts.
    Unfit { server: ServerId, unfit: Unfit },
    /// A server wants another password than the one that clients have.
    Password { server: ServerId },
    /// A replica takes the place of a master, on request.
    Switch { server: ServerId },
    /// Slots move from one master to another.
    Move { from: ServerId, to: ServerId, slots: usize },
    /// Slots have no owner.
    Orphan { slots: Range<u16> },
    /// A server gets another address.
    Readdress { server: ServerId },
    /// Host names are not resolved.
    NoNames,
}

impl Fault {
    /// Whether every request can be decided in spite of it.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Self::FlushScripts { .. } | Self::Move { .. })
    }
}

/// A fault, from when to when.
#[derive(Clone, Debug)]
pub struct Episode {
    pub time: Range<u64>,
    pub fault: Fault,
}

/// Draws so many faults, all of which are over at `end`.
pub fn draw(
    deployment: &Deployment,
    clients: usize,
    count: usize,
    end: u64,
    rng: &mut Rng,
) -> Vec<Episode> {
    let mut episodes: Vec<_> = (0..count)
        .filter_map(|_| {
            let start = rng.u64(0..end);
            let length = match rng.u32(0..3) {
                0 => rng.u64(1_000..50_000),
                1 => rng.u64(50_000..500_000),
                _ => rng.u64(500_000..3_000_000),
            };
            let fault = fault(deployment, clients, rng)?;
            Some(Episode { time: start..(start + length).min(end), fault })
        })
        .collect();
    episodes.sort_by_key(|episode| episode.time.start);
    episodes
}

/// Any fault that this deployment can have.
fn fault(deployment: &Deployment, clients: usize, rng: &mut Rng) -> Option<Fault> {
    let server = rng.usize(0..deployment.servers.len());
    let data = rng.choice(deployment.data_servers())?;
    Some(match rng.u32(0..20) {
        0..2 => Fault::Kill { server, keeps_data: rng.bool() },
        2..4 => Fault::Hang { server },
        4..6 => Fault::Slow { server, micros: 1 << rng.u32(8..18) },
        6 => {
            let clients = (0..clients).filter(|_| rng.u32(0..4) > 0).collect();
            Fault::Partition { server, clients, isolated: rng.bool() }
        }
        7..9 => Fault::Reset { server },
        9 => Fault::Close { server },
        10 => Fault::Vanish { server },
        11 => Fault::FlushScripts { server: data },
        12 => {
            let unfit = [
                Unfit::Loading,
                Unfit::MasterDown,
                Unfit::NoReplicas,
                Unfit::OutOfMemory,
                Unfit::Failing,
            ];
            Fault::Unfit { server: data, unfit: unfit[rng.usize(0..unfit.len())] }
        }
        13 => Fault::Password { server },
        14 => Fault::NoNames,
        _ => match deployment.kind {
            Kind::Single if deployment.names.is_empty() => Fault::FlushScripts { server },
            Kind::Single => Fault::Readdress { server },
            Kind::Sentinel(_) => Fault::Switch { server: data },
            Kind::Cluster(_) => cluster_fault(deployment, rng)?,
        },
    })
}

fn cluster_fault(deployment: &Deployment, rng: &mut Rng) -> Option<Fault> {
    let masters = deployment.masters();
    let (server, to) = (rng.choice(&masters).copied()?, rng.choice(&masters).copied()?);
    Some(match rng.u32(0..8) {
        0..2 => Fault::Switch { server },
        2..6 => Fault::Move { from: server, to, slots: rng.usize(1..40) },
        6 => {
            let first = rng.u16(0..16_000);
            Fault::Orphan { slots: first..first + rng.u16(1..384) }
        }
        // The first one stays where clients find it.
        _ if deployment.servers.len() == 1 => return None,
        _ => Fault::Readdress { server: server.max(1) },
    })
}
