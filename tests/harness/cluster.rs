//! A Redis Cluster.

use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};

use crate::lag::Lag;
use crate::redis::{Home, Redis, Setup};
use crate::tls::{Authority, Identity};
use crate::{PATIENCE, wait_until};

/// How many slots a cluster has.
pub const SLOTS: u16 = 16384;

/// After a start a master takes no writes for two seconds, whatever the configuration says; and
/// then an election may be under way.
const CLUSTER_PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that is being configured.
#[derive(Clone)]
pub struct ClusterConf {
    masters: usize,
    replicas: usize,
    setup: Setup,
    homes: Vec<Home>,
    node_timeout: Duration,
}

impl ClusterConf {
    /// So many masters, which share the slots evenly, and so many replicas, dealt out to them.
    pub fn new(masters: usize, replicas: usize) -> Self {
        let setup = Setup::new(&[
            "cluster-enabled yes",
            // A replica stands for election however old its data are.
            "cluster-replica-validity-factor 0",
            "repl-diskless-sync yes",
            "repl-diskless-sync-delay 0",
        ]);
        Self { masters, replicas, setup, homes: Vec::new(), node_timeout: Duration::from_secs(1) }
    }

    /// One that does not take a node for dead because the machine is busy: a node must be silent for 10 s.
    pub fn steady(masters: usize, replicas: usize) -> Self {
        Self::new(masters, replicas).node_timeout(Duration::from_secs(10))
    }

    /// Adds a line to the configuration of every node. In it `{n}` is the number of the node, and
    /// the rest is as with [`Redis::start_with`].
    pub fn line(mut self, line: &str) -> Self {
        self.setup.lines.push(line.to_owned());
        self
    }

    /// Where the nodes live, if not in temp directories and on ports that nobody chooses.
    pub fn homes(mut self, homes: Vec<Home>) -> Self {
        self.homes = homes;
        self
    }

    /// The nodes are started by this command: see [`Conf::wrapper`](crate::Conf::wrapper).
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.setup.wrapper = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The nodes run `binary`, a server of another version or make.
    pub fn binary(mut self, binary: impl AsRef<Path>) -> Self {
        self.setup.binary = binary.as_ref().to_owned();
        self
    }

    /// Replicas are so far behind their master, and lose what is under way when it dies.
    pub fn lag(mut self, delay: Duration) -> Self {
        self.setup.lag = Some(Arc::new(Lag::new(delay)));
        self
    }

    /// The nodes listen on `::1`, and announce that address.
    pub fn ipv6(mut self) -> Self {
        self.setup.address = Ipv6Addr::LOCALHOST.into();
        self
    }

    /// The nodes send clients to host names, such as `node{n}.test`; their addresses are metadata
    /// then. Needs Redis 7.
    pub fn hostnames(self, template: &str) -> Self {
        self.line(&format!("cluster-announce-hostname {template}"))
            .line("cluster-preferred-endpoint-type hostname")
    }

    /// The nodes speak TLS with each other and with clients, all as `identity`.
    pub fn secured(mut self, authority: &Authority, identity: &Identity) -> Self {
        self.setup.secure(authority, identity);
        self.line("tls-cluster yes").line("tls-replication yes")
    }

    /// How long a node must be silent to be taken for dead; a second, if this is not called.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Starts the nodes, joins them, and waits until they serve every slot.
    pub fn start(&self) -> Cluster {
        let nodes = (0..self.masters + self.replicas).map(|n| self.start_node(n));
        let cluster = Cluster { nodes: nodes.collect(), conf: self.clone() };
        cluster.join();
        for replica in self.masters..self.masters + self.replicas {
            cluster.replicate(replica, (replica - self.masters) % self.masters);
        }
        cluster.wait_listed();
        cluster.wait_ok();
        cluster
    }

    fn start_node(&self, n: usize) -> Node {
        let mut setup = Setup { home: self.homes.get(n).cloned(), ..self.setup.clone() };
        if let Some((user, password)) = self.setup.login() {
            setup.lines.push(format!("masteruser {user}\nmasterauth {password}"));
        }
        setup.lines.push(format!("cluster-node-timeout {}", self.node_timeout.as_millis()));
        for line in &mut setup.lines {
            *line = line.replace("{n}", &n.to_string());
        }
        let redis = Redis::start_as(setup);
        let id = redis.command(&["CLUSTER", "MYID"]);
        Node { redis, id }
    }
}

/// A Redis Cluster of the test's own. Its nodes are numbered: first the masters that it was started
/// with, then their replicas, then those that were added.
pub struct Cluster {
    conf: ClusterConf,
    nodes: Vec<Node>,
}

struct Node {
    redis: Redis,
    id: String,
}

/// A slot on its way from one node to another.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The slot.
    pub slot: u16,
    /// The node that it leaves.
    pub from: usize,
    /// The node that gets it.
    pub to: usize,
}

impl Cluster {
    /// Starts a cluster that anyone may use.
    pub fn start(masters: usize, replicas: usize) -> Self {
        ClusterConf::new(masters, replicas).start()
    }

    /// A node.
    pub fn node(&self, n: usize) -> &Redis {
        &self.nodes[n].redis
    }

    /// The nodes, as servers of their own.
    pub fn into_servers(self) -> Vec<Redis> {
        self.nodes.into_iter().map(|node| node.redis).collect()
    }

    /// The URL of a node.
    pub fn url(&self, n: usize) -> String {
        self.nodes[n].redis.url()
    }

    /// The URLs of all nodes, to be used as seeds.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.redis.url()).collect()
    }

    /// Sends one command to a node and returns its answer.
    #[track_caller]
    pub fn command<T: FromRedisValue>(&self, n: usize, words: &[&str]) -> T {
        self.nodes[n].redis.command(words)
    }

    /// The reply to a command that the node may refuse, with a redirection for example.
    pub fn try_command<T: FromRedisValue>(&self, n: usize, words: &[&str]) -> RedisResult<T> {
        self.nodes[n].redis.try_command(words)
    }

    /// How often `command`, in lower case, was called on a node since it started.
    pub fn calls(&self, n: usize, command: &str) -> u64 {
        self.nodes[n].redis.calls(command)
    }

    /// The node that serves `slot`.
    #[track_caller]
    pub fn master_of(&self, slot: u16) -> usize {
        self.find_master(slot).unwrap_or_else(|| panic!("no node that runs serves slot {slot}"))
    }

    /// The replicas of a master, as it sees them.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let members = self.members(master);
        let replicates =
            |n: &usize| members.iter().any(|m| m.id == self.id(*n) && m.master == self.id(master));
        (0..self.nodes.len()).filter(replicates).collect()
    }

    /// Kills a node, as `kill -9`.
    pub fn kill9(&mut self, n: usize) {
        self.nodes[n].redis.kill9();
    }

    /// Starts a node again, on the same port. It knows the cluster, but has no keys.
    pub fn restart(&mut self, n: usize) {
        self.nodes[n].redis.restart();
    }

    /// Stops a node without closing anything: it accepts, and answers nothing.
    pub fn stop_signal(&mut self, n: usize) {
        self.nodes[n].redis.stop_signal();
    }

    /// Lets a stopped node go on.
    pub fn cont(&mut self, n: usize) {
        self.nodes[n].redis.cont();
    }

    /// Makes a replica the master, in agreement with the present one, and waits until all know.
    pub fn failover(&self, replica: usize) {
        self.wait_in_sync(replica);
        self.command::<()>(replica, &["CLUSTER", "FAILOVER"]);
        let done = || self.members(replica).iter().any(|m| m.myself && m.master.is_empty());
        wait_until(CLUSTER_PATIENCE, done, "failover");
        self.wait_ok();
    }

    /// Waits until a node that runs serves `slot` and all agree, as after the end of the node that
    /// did; returns it.
    pub fn wait_for_master(&self, slot: u16) -> usize {
        let what = format!("a master of slot {slot}");
        wait_until(CLUSTER_PATIENCE, || self.find_master(slot).is_some(), &what);
        self.wait_ok();
        self.master_of(slot)
    }

    /// Waits until all nodes that run agree on the roles of all nodes, and serve every slot.
    pub fn wait_ok(&self) {
        let ok = |n| self.command::<String>(n, &["CLUSTER", "INFO"]).contains("cluster_state:ok");
        let served = || self.agree() && self.running().all(ok);
        wait_until(CLUSTER_PATIENCE, served, "cluster_state:ok on every node");
    }

    /// Begins to move a slot: from now on the node that has it sends clients away with ASK for keys
    /// that it does not have.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Migration {
        let migration = Migration { slot, from: self.master_of(slot), to };
        self.set_slot(to, slot, &["IMPORTING", self.id(migration.from)]);
        self.set_slot(migration.from, slot, &["MIGRATING", self.id(to)]);
        migration
    }

    /// Moves at most so many keys of the slot, and returns how many it were.
    pub fn migrate_keys(&self, migration: Migration, number: usize) -> usize {
        let Migration { slot, from, to } = migration;
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &number.to_string()];
        let keys: Vec<String> = self.command(from, &words);
        if keys.is_empty() {
            return 0;
        }
        let (host, port) = self.host_and_port(to);
        let timeout = PATIENCE.as_millis().to_string();
        let mut words = vec!["MIGRATE", &host, &port, "", "0", &timeout];
        if let Some((user, password)) = self.conf.setup.login() {
            words.extend(["AUTH2", user, password]);
        }
        words.push("KEYS");
        words.extend(keys.iter().map(String::as_str));
        self.command::<()>(from, &words);
        keys.len()
    }

    /// Gives the slot, whose keys have all been moved, to the other node, and waits until all know.
    pub fn finish_migration(&self, migration: Migration) {
        let Migration { slot, from, to } = migration;
        // The new owner first: were it the old one, a client could find none.
        let others = self.masters().into_iter().filter(|n| ![from, to].contains(n));
        for node in [to, from].into_iter().chain(others) {
            self.set_slot(node, slot, &["NODE", self.id(to)]);
        }
        self.wait_agreed();
    }

    /// Moves a slot and all its keys.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let migration = self.begin_migration(slot, to);
        while self.migrate_keys(migration, 100) > 0 {}
        self.finish_migration(migration);
    }

    /// Removes the owner of a slot. Unless the nodes have `cluster-require-full-coverage no`, they
    /// serve no other slot any more.
    pub fn drop_slot(&self, slot: u16) {
        // The owner first, or it would announce itself again.
        let owner = self.master_of(slot);
        for node in [owner].into_iter().chain(self.running().filter(|n| *n != owner)) {
            // A node may know it already.
            let _ = self.try_command::<()>(node, &["CLUSTER", "DELSLOTS", &slot.to_string()]);
        }
        let nobody = || self.agree() && self.find_master(slot).is_none();
        wait_until(CLUSTER_PATIENCE, nobody, "a slot without an owner");
    }

    /// Gives a slot without an owner to a master.
    pub fn add_slot(&self, slot: u16, master: usize) {
        self.command::<()>(master, &["CLUSTER", "ADDSLOTS", &slot.to_string()]);
        self.wait_agreed();
    }

    /// Adds a master without slots, and returns its number.
    pub fn add_node(&mut self) -> usize {
        let n = self.nodes.len();
        self.nodes.push(self.conf.start_node(n));
        let known = self.running().next().expect("a node that runs");
        self.meet(n, known);
        let joined = || self.agree() && self.members(known).iter().any(|m| m.id == self.id(n));
        wait_until(CLUSTER_PATIENCE, joined, "a node to join");
        n
    }

    /// Adds a replica of `master`, and returns its number.
    pub fn add_replica(&mut self, master: usize) -> usize {
        let n = self.add_node();
        self.replicate(n, master);
        self.wait_agreed();
        n
    }

    /// Takes a node that has no slots out of the cluster, and ends it.
    pub fn remove_node(&mut self, n: usize) {
        self.kill9(n);
        for node in self.running() {
            self.command::<()>(node, &["CLUSTER", "FORGET", self.id(n)]);
        }
        self.wait_agreed();
    }

    /// Has the nodes meet, and the masters share the slots. Every node meets every other: that is
    /// quicker than to wait until they know each other.
    fn join(&self) {
        let count = self.nodes.len();
        for n in 0..count {
            let epoch = (n + 1).to_string();
            self.command::<()>(n, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            (0..n).for_each(|other| self.meet(n, other));
        }
        let masters = self.conf.masters;
        for n in 0..masters {
            let share = |n| n * usize::from(SLOTS) / masters;
            let slots: Vec<_> = (share(n)..share(n + 1)).map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            self.command::<()>(n, &words.collect::<Vec<_>>());
        }
        let joined = || self.agree() && self.members(0).len() == count;
        wait_until(CLUSTER_PATIENCE, joined, "the nodes to join");
    }

    fn meet(&self, n: usize, other: usize) {
        let (host, port) = self.host_and_port(other);
        self.command::<()>(n, &["CLUSTER", "MEET", &host, &port]);
    }

    fn replicate(&self, n: usize, master: usize) {
        self.command::<()>(n, &["CLUSTER", "REPLICATE", self.id(master)]);
        self.wait_in_sync(n);
    }

    fn wait_in_sync(&self, replica: usize) {
        let up = || self.nodes[replica].redis.info("master_link_status") == "up";
        wait_until(CLUSTER_PATIENCE, up, "a replica in sync");
    }

    /// Waits until every node tells clients of every replica. It does not as long as the replica has
    /// replicated nothing.
    fn wait_listed(&self) {
        (0..self.conf.masters).for_each(|master| self.command(master, &["FLUSHALL"]));
        let listed = |n| {
            let ranges: Vec<Vec<redis::Value>> = self.command(n, &["CLUSTER", "SLOTS"]);
            // The first and the last slot, the master, and the replicas.
            ranges.iter().map(|range| range.len() - 3).sum::<usize>() == self.conf.replicas
        };
        let everywhere = || self.running().all(listed);
        wait_until(CLUSTER_PATIENCE, everywhere, "the replicas in CLUSTER SLOTS");
    }

    fn set_slot(&self, n: usize, slot: u16, words: &[&str]) {
        let slot = slot.to_string();
        self.command::<()>(n, &[&["CLUSTER", "SETSLOT", &slot], words].concat());
    }

    fn host_and_port(&self, n: usize) -> (String, String) {
        let addr = self.nodes[n].redis.peer_addr();
        (addr.ip().to_string(), addr.port().to_string())
    }

    fn id(&self, n: usize) -> &str {
        &self.nodes[n].id
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].redis.runs())
    }

    fn masters(&self) -> Vec<usize> {
        let is_master =
            |n: &usize| self.members(*n).iter().any(|m| m.myself && m.master.is_empty());
        self.running().filter(is_master).collect()
    }

    /// The node that claims to serve `slot`. If two do, one has been replaced and does not
    /// know it yet.
    fn find_master(&self, slot: u16) -> Option<usize> {
        let claim = |n| {
            let me = self.members(n).into_iter().find(|member| member.myself)?;
            me.slots.iter().any(|range| range.contains(&slot)).then_some((me.epoch, n))
        };
        self.running().filter_map(claim).max().map(|(_, n)| n)
    }

    fn wait_agreed(&self) {
        wait_until(CLUSTER_PATIENCE, || self.agree(), "agreement of the nodes");
    }

    /// Whether all nodes that run agree on the roles of all nodes.
    fn agree(&self) -> bool {
        let picture = |n| {
            let mut members = self.members(n);
            members.sort_by(|a, b| a.id.cmp(&b.id));
            members.into_iter().map(|m| (m.id, m.master, m.slots)).collect::<Vec<_>>()
        };
        let mut pictures = self.running().map(picture);
        let first = pictures.next();
        pictures.all(|picture| Some(picture) == first)
    }

    /// The members of the cluster, as a node sees them.
    fn members(&self, n: usize) -> Vec<Member> {
        let text: String = self.command(n, &["CLUSTER", "NODES"]);
        text.lines().map(Member::parse).collect()
    }
}

/// A line of `CLUSTER NODES`.
struct Member {
    id: String,
    myself: bool,
    /// The id of the master, if this is a replica.
    master: String,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

impl Member {
    fn parse(line: &str) -> Self {
        let fields: Vec<_> = line.split(' ').collect();
        let [id, _address, flags, master, _ping, _pong, epoch, _link, slots @ ..] = &fields[..]
        else {
            panic!("not a line of CLUSTER NODES: {line:?}");
        };
        // A slot on its way, in brackets, belongs to whom it belonged.
        let slots = slots.iter().filter(|slots| !slots.starts_with('['));
        let slots = slots.map(|slots| {
            let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
            let number = |text: &str| text.parse::<u16>().expect("a slot");
            number(first)..=number(last)
        });
        Self {
            id: (*id).to_owned(),
            myself: flags.split(',').any(|flag| flag == "myself"),
            master: master.trim_matches('-').to_owned(),
            epoch: epoch.parse().expect("an epoch"),
            slots: slots.collect(),
        }
    }
}

/// The slot of a key: of what is between the first `{` and the next `}`, if that is anything, else
/// of the whole.
pub fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, bit by bit.
fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16| (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| shift(crc)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// The first two words of the error that a node answers with.
    #[track_caller]
    fn refusal(cluster: &Cluster, n: usize, words: &[&str]) -> String {
        let error = cluster.try_command::<String>(n, words).unwrap_err();
        let (code, detail) = (error.code().unwrap(), error.detail().unwrap_or_default());
        format!("{code} {}", detail.split(' ').next().unwrap())
    }

    #[test]
    fn moves_slots_and_changes_masters() {
        let mut cluster = ClusterConf::new(3, 3).node_timeout(Duration::from_millis(500)).start();
        for key in
            ["", "a", "user1000", "{user1000}.x", "x{}y", "{}{a}", "{{a}}", "a{b", "rl:a:{k}"]
        {
            assert_eq!(
                slot(key),
                cluster.command::<u16>(0, &["CLUSTER", "KEYSLOT", key]),
                "{key:?}"
            );
        }
        assert_eq!([0, 5461, SLOTS - 1].map(|slot| cluster.master_of(slot)), [0, 1, 2]);
        assert_eq!([0, 1, 2].map(|master| cluster.replicas_of(master)), [[3], [4], [5]]);

        let here = slot("{a}");
        let (from, to) = (cluster.master_of(here), 0);
        assert_ne!(from, to);
        for key in ["{a}1", "{a}2"] {
            cluster.command::<()>(from, &["SET", key, "1"]);
        }
        assert_eq!(cluster.calls(from, "set"), 2);
        assert_eq!(refusal(&cluster, to, &["GET", "{a}1"]), format!("MOVED {here}"));
        let migration = cluster.begin_migration(here, to);
        assert_eq!(refusal(&cluster, from, &["GET", "{a}3"]), format!("ASK {here}"));
        assert_eq!([1, 9, 9].map(|number| cluster.migrate_keys(migration, number)), [1, 1, 0]);
        cluster.finish_migration(migration);
        assert_eq!(cluster.master_of(here), to);
        assert_eq!(cluster.command::<u32>(to, &["GET", "{a}2"]), 1);

        cluster.failover(3);
        assert_eq!((cluster.master_of(0), cluster.replicas_of(3)), (3, vec![0]));
        let start = Instant::now();
        cluster.kill9(3);
        assert_eq!(cluster.wait_for_master(0), 0);
        assert!(start.elapsed() > Duration::from_millis(300));
        cluster.restart(3);
        cluster.wait_ok();
        assert_eq!(cluster.replicas_of(0), [3]);
    }

    #[test]
    fn grows_shrinks_and_loses_slots() {
        let mut cluster = ClusterConf::new(1, 0).node_timeout(Duration::from_millis(500)).start();
        let added = cluster.add_node();
        cluster.move_slot(7, added);
        assert_eq!((cluster.master_of(7), cluster.master_of(8)), (added, 0));
        let replica = cluster.add_replica(added);
        assert_eq!(cluster.replicas_of(added), [replica]);
        cluster.remove_node(replica);
        assert_eq!(cluster.urls().len(), 3);
        cluster.drop_slot(7);
        assert_eq!(refusal(&cluster, 0, &["GET", "a"]), "CLUSTERDOWN The");
        cluster.add_slot(7, 0);
        cluster.wait_ok();
        assert_eq!(cluster.master_of(7), 0);
    }

    #[test]
    fn clients_get_host_names_and_strangers_are_kept_out() {
        let cluster = ClusterConf::new(2, 1)
            .ipv6()
            .hostnames("node{n}.test")
            .line("user default off")
            .line("user limiter on >secret ~rl:* +@all")
            .start();
        let slots: Vec<redis::Value> = cluster.command(1, &["CLUSTER", "SLOTS"]);
        let text = format!("{slots:?}");
        for name in ["node0.test", "node1.test", "node2.test", "\"::1\""] {
            assert!(text.contains(name), "no {name} in {text}");
        }
        assert!(cluster.url(0).starts_with("redis://[::1]:"));
        let stranger = redis::Client::open(cluster.node(0).unix_url()).unwrap();
        let error = redis::cmd("PING").exec(&mut stranger.get_connection().unwrap()).unwrap_err();
        assert_eq!(error.code(), Some("NOAUTH"));
        cluster.command::<()>(cluster.master_of(slot("k")), &["SET", "k", "1"]);
        cluster.move_slot(slot("k"), 1 - cluster.master_of(slot("k")));
        assert_eq!(cluster.command::<u32>(cluster.master_of(slot("k")), &["GET", "k"]), 1);
    }
}
