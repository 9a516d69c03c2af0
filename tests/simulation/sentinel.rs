//! A master and its replicas, watched by sentinels.

use std::net::SocketAddr;

use fastrand::Rng;

use crate::deployment::{Deployment, Kind};
use crate::journal::Journal;
use crate::server::{Role, ServerId};

/// The name by which sentinels know the master.
pub const MASTER_NAME: &str = "limits";

/// The state that the sentinels have agreed on.
#[derive(Debug)]
pub struct Sentinels {
    pub master: ServerId,
    /// One that the others do not reach: it misses failovers.
    stale: Option<ServerId>,
}

impl Deployment {
    /// Servers 0 to `sentinels` - 1 are the sentinels, then come the master and its replicas.
    pub fn sentinel(sentinels: usize, replicas: usize, rng: Rng) -> Self {
        let address = |third: u8, index: usize, port| {
            SocketAddr::from(([10, 0, third, index as u8 + 1], port))
        };
        let master = address(0, 0, 6_379);
        let sentinel =
            |index| (address(1, index, 26_379), Role::Sentinel { name: MASTER_NAME, master });
        let replica = |index| (address(0, index, 6_379), Role::Replica { of: sentinels });
        let mut servers: Vec<_> = (0..sentinels).map(sentinel).collect();
        servers.push((master, Role::Master));
        servers.extend((1..=replicas).map(replica));
        let kind = Kind::Sentinel(Sentinels { master: sentinels, stale: None });
        let mut deployment = Self::new(kind, servers, rng);
        deployment.servers.iter_mut().for_each(|server| server.replicates = true);
        deployment
    }

    /// One of the sentinels misses failovers.
    pub fn with_stale_sentinel(mut self, stale: ServerId) -> Self {
        if let Kind::Sentinel(sentinels) = &mut self.kind {
            sentinels.stale = Some(stale);
        }
        self
    }

    /// The sentinels have agreed on a new master: they learn it one after the other, and so do the
    /// servers.
    pub(crate) fn set_master(&mut self, new: ServerId, now: u64) {
        let Kind::Sentinel(Sentinels { master, stale }) = &mut self.kind else { return };
        *master = new;
        let stale = *stale;
        let others = (0..self.servers.len()).filter(|server| Some(*server) != stale);
        others.for_each(|server| self.inform_later(server, now));
    }

    /// The newest master becomes known to a sentinel, which announces it, or to the server that was
    /// the master before, which closes the connections of its clients.
    pub(crate) fn inform_of_master(&mut self, id: ServerId, now: u64, journal: &mut Journal) {
        let Kind::Sentinel(Sentinels { master, .. }) = self.kind else { return };
        let newest = self.servers[master].address;
        let server = &mut self.servers[id];
        match &mut server.role {
            Role::Sentinel { name, master } if *master != newest => {
                let (old, name) = (std::mem::replace(master, newest), *name);
                let message =
                    format!("{name} {} {} {} {}", old.ip(), old.port(), newest.ip(), newest.port());
                let (connections, bytes) = server.publish(&message);
                let message = |connection| (id, connection, bytes.clone());
                self.messages.extend(connections.into_iter().map(message));
            }
            Role::Master if id != master => {
                let connections = server.drop_connections();
                self.closed.extend(connections.into_iter().map(|connection| (id, connection)));
                self.demote(id, master, now, journal);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::deployment::tests::{replies, settle};
    use crate::journal::Cause;
    use crate::server::tests::{charge, words};

    const MASTER: ServerId = 3;

    fn deployment(seed: u64) -> Deployment {
        Deployment::sentinel(3, 2, Rng::with_seed(seed))
    }

    #[test]
    fn a_replica_becomes_the_master_and_sentinels_announce_it() {
        for seed in 0..20 {
            let (mut deployment, mut journal) = (deployment(seed), Journal::default());
            replies(&mut deployment, 0, &words(&["SUBSCRIBE", "+switch-master"]));
            deployment.kill(MASTER, 0);
            settle(&mut deployment, &mut journal);
            let masters: Vec<_> =
                deployment.masters().into_iter().filter(|master| *master != MASTER).collect();
            let [master] = masters[..] else { panic!("{masters:?}") };
            let address = deployment.servers[master].address;
            let [(0, _, message)] = &deployment.messages[..] else { panic!("no message") };
            let message = String::from_utf8_lossy(message);
            let moved = format!("limits 10.0.0.1 6379 {} 6379", address.ip());
            assert!(message.contains(&moved), "{message}");
            for sentinel in 0..3 {
                let query = words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]);
                let reply = replies(&mut deployment, sentinel, &query);
                assert!(sentinel == 0 || reply.contains(&address.ip().to_string()), "{reply}");
            }
            deployment.restart(MASTER, true, 0, &mut journal);
            settle(&mut deployment, &mut journal);
            assert_eq!(deployment.servers[MASTER].role, Role::Replica { of: master });
            assert!(
                replies(&mut deployment, MASTER, &charge(By::Source, &["k"])).contains("READONLY")
            );
        }
    }

    #[test]
    fn the_last_writes_may_be_lost() {
        let losses = (0..50).filter(|seed| {
            let (mut deployment, mut journal) = (deployment(*seed), Journal::default());
            replies(&mut deployment, MASTER, &charge(By::Source, &["k"]));
            deployment.isolate(MASTER, 10_000);
            settle(&mut deployment, &mut journal);
            journal.losses.iter().any(|loss| loss.cause == Cause::Promotion)
        });
        assert!((1..50).contains(&losses.count()));
    }

    #[test]
    fn what_two_masters_have_decided_is_noted() {
        let (mut deployment, mut journal) = (deployment(1), Journal::default());
        deployment.isolate(MASTER, 0);
        settle(&mut deployment, &mut journal);
        replies(&mut deployment, MASTER, &charge(By::Source, &["k"]));
        deployment.join(MASTER, 0);
        settle(&mut deployment, &mut journal);
        assert_eq!(journal.losses.last().map(|loss| loss.cause), Some(Cause::Demotion));
        assert_eq!(deployment.closed.len(), 1);
    }
}
