//! All servers of a deployment, what happens to their processes, and what they make of it.
//!
//! A deployment has no clock and no network: what is to happen later, what is sent unrequested and
//! which connections end is left in fields for the world to take.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use fastrand::Rng;

use crate::cluster::Cluster;
use crate::database::{Database, Key, Write};
use crate::journal::{Cause, Journal, Loss};
use crate::network::ConnectionId;
use crate::replication::Backlog;
use crate::sentinel::Sentinels;
use crate::server::{Process, Role, Server, ServerId};

/// How long it takes until the others agree that a server is down, in µs.
const DETECTION: std::ops::Range<u64> = 50_000..400_000;

/// How long a new configuration takes to a server, in µs.
const GOSSIP: std::ops::Range<u64> = 500..80_000;

/// The servers, and what joins them.
#[derive(Debug)]
pub struct Deployment {
    pub servers: Vec<Server>,
    pub kind: Kind,
    /// The addresses of host names.
    pub names: BTreeMap<String, Vec<IpAddr>>,
    /// The changes that are to come, and when.
    pub later: Vec<(u64, Change)>,
    /// The messages that servers send unrequested.
    pub messages: Vec<(ServerId, ConnectionId, Vec<u8>)>,
    /// The connections that servers have closed.
    pub closed: Vec<(ServerId, ConnectionId)>,
    pub rng: Rng,
    password: Option<String>,
    /// The servers that the others cannot reach.
    isolated: BTreeSet<ServerId>,
    backlogs: Vec<Backlog>,
    /// The keys that a server has written although another one is the master.
    strays: Vec<BTreeSet<Key>>,
    /// How often the state of each process has changed.
    turns: Vec<u32>,
}

/// The link between the servers of a deployment.
#[derive(Debug)]
pub enum Kind {
    Single,
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// Something that happens in a deployment by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The others notice that a server is down, if nothing has happened to it since.
    Detect { server: ServerId, turn: u32 },
    /// The newest configuration reaches a server.
    Inform { server: ServerId },
    /// The migration of slots goes on.
    Migrate,
}

impl Deployment {
    /// One server, which may have a host name.
    pub fn single(name: Option<&str>, rng: Rng) -> Self {
        let address = SocketAddr::from(([10, 0, 0, 1], 6_379));
        let mut deployment = Self::new(Kind::Single, vec![(address, Role::Master)], rng);
        let names = name.into_iter().map(|name| (name.to_owned(), vec![address.ip()]));
        deployment.names.extend(names);
        deployment
    }

    /// This deployment, whose servers run scripts in Lua.
    pub fn with_lua(mut self) -> Self {
        self.servers.iter_mut().for_each(|server| server.runs_lua = true);
        self
    }

    /// This deployment, with a password for the servers that have databases.
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.data_servers().into_iter().for_each(|server| self.restore_password(server));
        self
    }

    /// A server wants the password again that clients have.
    pub fn restore_password(&mut self, server: ServerId) {
        let is_sentinel = matches!(self.servers[server].role, Role::Sentinel { .. });
        self.servers[server].password = self.password.clone().filter(|_| !is_sentinel);
    }

    pub fn new(kind: Kind, servers: Vec<(SocketAddr, Role)>, mut rng: Rng) -> Self {
        let server = |(id, (address, role))| {
            let mut server = Server::new(id, address, role);
            server.skew = rng.i64(-20_000..20_000);
            server
        };
        let servers: Vec<_> = servers.into_iter().enumerate().map(server).collect();
        Self {
            backlogs: servers.iter().map(|_| Backlog::default()).collect(),
            strays: vec![BTreeSet::new(); servers.len()],
            turns: vec![0; servers.len()],
            servers,
            kind,
            names: BTreeMap::new(),
            later: Vec::new(),
            messages: Vec::new(),
            closed: Vec::new(),
            rng,
            password: None,
            isolated: BTreeSet::new(),
        }
    }

    /// The server that has this address now.
    pub fn at(&self, address: SocketAddr) -> Option<ServerId> {
        self.servers.iter().position(|server| server.address == address)
    }

    /// The servers that execute scripts when nothing is wrong.
    pub fn masters(&self) -> Vec<ServerId> {
        let is_master = |id: &ServerId| self.servers[*id].role == Role::Master;
        (0..self.servers.len()).filter(is_master).collect()
    }

    /// The servers that have databases.
    pub fn data_servers(&self) -> Vec<ServerId> {
        let is_sentinel = |id: &ServerId| matches!(self.servers[*id].role, Role::Sentinel { .. });
        (0..self.servers.len()).filter(|id| !is_sentinel(id)).collect()
    }

    /// Delivers bytes of a client to a running server; its replies are appended to `out`.
    pub fn receive(
        &mut self,
        server: ServerId,
        connection: ConnectionId,
        bytes: &[u8],
        now: u64,
        journal: &mut Journal,
        out: &mut Vec<u8>,
    ) {
        self.catch_up(server, now);
        self.servers[server].receive(connection, bytes, now, journal, out);
        for (database, write) in self.servers[server].take_writes() {
            self.replicate(server, database, write, now);
        }
    }

    /// Makes a change that the deployment has scheduled.
    pub fn change(&mut self, change: Change, now: u64, journal: &mut Journal) {
        match change {
            Change::Detect { server, turn } => {
                if !self.is_reachable(server) && self.turns[server] == turn {
                    self.fail_over(server, now, journal);
                    self.detect_later(server, now);
                }
            }
            Change::Inform { server } if self.is_reachable(server) => match self.kind {
                Kind::Single => {}
                Kind::Sentinel(_) => self.inform_of_master(server, now, journal),
                Kind::Cluster(_) => self.inform_of_view(server, now, journal),
            },
            Change::Inform { .. } => {}
            Change::Migrate => self.migrate(now),
        }
    }

    /// Whether every process runs, and can be reached.
    pub fn is_up(&self) -> bool {
        (0..self.servers.len()).all(|server| self.is_reachable(server))
    }

    pub(crate) fn after(&mut self, now: u64, delay: std::ops::Range<u64>, change: Change) {
        let at = now + self.rng.u64(delay);
        self.later.push((at, change));
    }

    pub(crate) fn inform_later(&mut self, server: ServerId, now: u64) {
        self.after(now, GOSSIP, Change::Inform { server });
    }
}

/// Processes.
impl Deployment {
    /// Ends a process. The kernel resets its connections, which are returned.
    pub fn kill(&mut self, server: ServerId, now: u64) -> Vec<ConnectionId> {
        self.set_process(server, Process::Dead, now);
        self.servers[server].drop_connections()
    }

    /// Stops a process without ending it.
    pub fn hang(&mut self, server: ServerId, now: u64) {
        if self.servers[server].process == Process::Running {
            self.set_process(server, Process::Hung, now);
        }
    }

    /// Continues a process that was stopped.
    pub fn resume(&mut self, server: ServerId, now: u64) {
        if self.servers[server].process == Process::Hung {
            self.set_process(server, Process::Running, now);
        }
    }

    /// Starts a process that has ended, with the data that it had, or with none.
    pub fn restart(&mut self, server: ServerId, keeps_data: bool, now: u64, journal: &mut Journal) {
        if self.servers[server].process != Process::Dead {
            return;
        }
        self.set_process(server, Process::Running, now);
        self.servers[server].flush_scripts();
        if !keeps_data && self.servers[server].role == Role::Master {
            let keys = self.servers[server].databases.iter().flat_map(Database::keys);
            let keys = keys.cloned().collect();
            self.lose(server, Cause::Restart, keys, now, journal);
            self.servers[server].databases.fill(Database::default());
            self.replicas_of(server).for_each(|replica| self.synchronize(replica, server));
        }
    }

    fn set_process(&mut self, server: ServerId, process: Process, now: u64) {
        self.servers[server].process = process;
        self.notice(server, now);
    }

    /// The other servers cannot reach a server any more.
    pub fn isolate(&mut self, server: ServerId, now: u64) {
        for replica in self.replicas_of(server) {
            self.catch_up(replica, now);
        }
        self.isolated.insert(server);
        self.notice(server, now);
    }

    /// The other servers can reach a server again.
    pub fn join(&mut self, server: ServerId, now: u64) {
        if self.isolated.remove(&server) {
            self.notice(server, now);
        }
    }

    /// Whether the other servers can reach a server.
    fn is_reachable(&self, server: ServerId) -> bool {
        self.servers[server].process == Process::Running && !self.isolated.contains(&server)
    }

    /// The others will notice that a server can be reached, or cannot.
    fn notice(&mut self, server: ServerId, now: u64) {
        self.turns[server] += 1;
        match self.is_reachable(server) {
            true => self.inform_later(server, now),
            false => self.detect_later(server, now),
        }
    }

    /// A master without a successor can be detected as long as it is down.
    fn detect_later(&mut self, server: ServerId, now: u64) {
        if self.servers[server].role == Role::Master && !self.is_superseded(server) {
            let turn = self.turns[server];
            self.after(now, DETECTION, Change::Detect { server, turn });
        }
    }
}

/// Replication.
impl Deployment {
    /// A replica applies what has arrived from its master.
    fn catch_up(&mut self, replica: ServerId, now: u64) {
        if let Role::Replica { of } = self.servers[replica].role
            && !self.isolated.contains(&of)
        {
            self.backlogs[replica].apply(&mut self.servers[replica], now);
        }
    }

    pub fn replicas_of(&self, master: ServerId) -> impl Iterator<Item = ServerId> + use<> {
        let is_replica = |server: &&Server| server.role == Role::Replica { of: master };
        let replicas: Vec<_> =
            self.servers.iter().filter(is_replica).map(|server| server.id).collect();
        replicas.into_iter()
    }

    /// Sends a write that a master has applied to its replicas.
    fn replicate(&mut self, master: ServerId, database: usize, write: Write, now: u64) {
        if self.is_superseded(master) {
            self.strays[master].insert(write.key.clone());
        }
        for replica in self.replicas_of(master) {
            self.backlogs[replica].push(database, write.clone(), now, &mut self.rng);
        }
    }

    /// Applies a write at a master, and sends it to its replicas.
    pub(crate) fn write(&mut self, master: ServerId, write: Write, now: u64) {
        self.servers[master].databases[0].apply(write.clone());
        self.replicate(master, 0, write, now);
    }

    /// Whether another server has taken the place of this one, which may not know it yet.
    pub(crate) fn is_superseded(&self, server: ServerId) -> bool {
        match &self.kind {
            Kind::Single => false,
            Kind::Sentinel(sentinels) => sentinels.master != server,
            Kind::Cluster(cluster) => cluster.truth.master_of(server).is_some(),
        }
    }

    /// A replica that runs takes the place of a master.
    fn fail_over(&mut self, master: ServerId, now: u64, journal: &mut Journal) {
        if self.servers[master].role != Role::Master || self.is_superseded(master) {
            return;
        }
        let replicas: Vec<_> =
            self.replicas_of(master).filter(|replica| self.is_reachable(*replica)).collect();
        if let Some(replica) = self.rng.choice(replicas) {
            self.promote(replica, master, now, journal);
        }
    }

    /// A failover on request, without a loss.
    pub fn switch(&mut self, master: ServerId, now: u64, journal: &mut Journal) {
        if self.is_reachable(master) {
            for replica in self.replicas_of(master) {
                self.catch_up(replica, u64::MAX);
            }
            self.fail_over(master, now, journal);
        }
    }

    fn promote(&mut self, to: ServerId, from: ServerId, now: u64, journal: &mut Journal) {
        self.catch_up(to, now);
        let lost = self.backlogs[to].lose();
        self.lose(to, Cause::Promotion, lost.into_iter().collect(), now, journal);
        self.servers[to].role = Role::Master;
        for replica in self.replicas_of(from) {
            self.servers[replica].role = Role::Replica { of: to };
            self.synchronize(replica, to);
        }
        match self.kind {
            Kind::Single => {}
            Kind::Sentinel(_) => self.set_master(to, now),
            Kind::Cluster(_) => self.set_owner_of_all(from, to, now),
        }
    }

    /// A server that was a master becomes a replica.
    pub(crate) fn demote(
        &mut self,
        server: ServerId,
        master: ServerId,
        now: u64,
        journal: &mut Journal,
    ) {
        let strays = std::mem::take(&mut self.strays[server]).into_iter().collect();
        self.lose(server, Cause::Demotion, strays, now, journal);
        self.servers[server].role = Role::Replica { of: master };
        self.synchronize(server, master);
    }

    /// A replica gets all that its master has.
    fn synchronize(&mut self, replica: ServerId, master: ServerId) {
        self.backlogs[replica].lose();
        self.servers[replica].databases = self.servers[master].databases.clone();
    }

    fn lose(
        &self,
        server: ServerId,
        cause: Cause,
        keys: Vec<Key>,
        now: u64,
        journal: &mut Journal,
    ) {
        if !keys.is_empty() {
            journal.losses.push(Loss { at: now, server, cause, keys });
        }
    }
}

#[cfg(test)]
pub mod tests {
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::server::tests::{CLIENT, charge, words};

    /// Makes all changes that are due, until nothing more is to happen but what waits for a server.
    pub fn settle(deployment: &mut Deployment, journal: &mut Journal) {
        for _ in 0..2_000 {
            deployment.later.sort_by_key(|(at, _)| *at);
            if deployment.later.is_empty() {
                return;
            }
            let (at, change) = deployment.later.remove(0);
            deployment.change(change, at, journal);
        }
    }

    /// The replies of a server on a connection, as text.
    pub fn replies(deployment: &mut Deployment, server: ServerId, bytes: &[u8]) -> String {
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        if !deployment.servers[server].has(CLIENT) {
            deployment.servers[server].accept(CLIENT);
        }
        deployment.receive(server, CLIENT, bytes, 0, &mut journal, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Whether the reply to a command of one key has a state in it.
    pub fn has_state(reply: &str) -> bool {
        reply.starts_with('$') && reply.len() > "$18\r\n1763683200 123456 \r\n".len()
    }

    #[test]
    fn a_server_may_start_with_nothing() {
        let mut journal = Journal::default();
        for keeps_data in [true, false] {
            let mut deployment = Deployment::single(None, Rng::with_seed(1));
            replies(&mut deployment, 0, &charge(By::Source, &["k"]));
            assert_eq!(deployment.kill(0, 0), [CLIENT]);
            assert!(!deployment.is_up());
            deployment.restart(0, keeps_data, 0, &mut journal);
            assert!(deployment.is_up());
            assert!(replies(&mut deployment, 0, &charge(By::Sha, &["k"])).contains("NOSCRIPT"));
            let reply = replies(&mut deployment, 0, &charge(By::Source, &["k"]));
            assert_eq!(has_state(&reply), keeps_data);
        }
        let [loss] = &journal.losses[..] else { panic!("{journal:?}") };
        assert_eq!((loss.at, loss.server), (0, 0));
        assert_eq!((loss.cause, loss.keys.len()), (Cause::Restart, 1));
    }

    #[test]
    fn servers_with_databases_want_a_password() {
        let mut deployment = Deployment::sentinel(1, 1, Rng::with_seed(1)).with_password("secret");
        let mut ping = |server| replies(&mut deployment, server, &words(&["PING"]));
        assert_eq!(ping(0), "+PONG\r\n");
        assert!(ping(1).starts_with("-NOAUTH") && ping(2).starts_with("-NOAUTH"));
    }
}
