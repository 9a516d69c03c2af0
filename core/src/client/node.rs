//! A server, as a worker knows it: its connections, and whether commands are sent to it.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

use super::Config;
use super::connection::Usable;
use super::handshake::{Abilities, Handshake};
use super::health::Health;
use super::slab::{CommandKey, ConnectionKey, NodeKey, Recycle, Slab};
use super::view::{Counts, NodeState, View};
use crate::metrics::{CommandKind, ErrorKind};
use crate::redis::cluster::Master;
use crate::redis::endpoint::{Address, Endpoint};
use crate::redis::script::Script;

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It runs scripts.
    Data,
    /// It knows the master.
    Sentinel,
}

/// A server.
#[derive(Debug)]
pub struct Node {
    pub(super) role: Role,
    endpoint: Endpoint,
    /// The host name that it announces, if it does.
    alias: Option<String>,
    /// The name that is shown.
    name: String,
    pub(super) handshake: Rc<Handshake>,
    /// Which steps of the handshake it accepts.
    pub(super) abilities: Abilities,
    /// How many that it does not accept were logged.
    pub(super) logged_missing: usize,
    /// Whether it has refused a command that goes with others since its latest connection was made.
    pub(super) is_permission_missing: bool,
    /// The latest command that was sent to it with the source of a script.
    pub(super) source: Option<CommandKey>,
    /// The addresses of its host that are known.
    pub(super) targets: Vec<Target>,
    /// The address that it announces beside its name, for when that cannot be resolved.
    announced: Option<Target>,
    /// Whether the addresses may be out of date: they were used before, and led nowhere.
    is_stale: bool,
    pub(super) connections: Vec<ConnectionKey>,
    /// How many of its connections are made, or being made.
    wanted: usize,
    /// How many of them can be used.
    pub(super) ready: usize,
    /// How many of them show that the server is back.
    sound: usize,
    pub(super) health: Health,
    /// It has no master for a slot (CLUSTERDOWN), and has decided nothing since. It may be a master that
    /// its cluster has replaced, and that does not know it: it is up, and answers.
    pub(super) is_cut_off: bool,
    /// It has refused to decide (READONLY, MISCONF), and has charged nothing since.
    pub(super) is_unfit: bool,
    /// How often the time is doubled for which it may owe a reply and send nothing.
    pub(super) silences: u32,
    /// Whether a topology query has timed out to which it may still reply. Commands may be answered before.
    pub(super) owes_topology: bool,
    /// Since when it is not part of the topology any more.
    pub(super) retired_at: Option<u64>,
    pub(super) counts: Counts,
    /// Whether requests were not decided by it since it last answered a command.
    pub(super) has_undecided: bool,
    /// The owner of the client knows that there are counts.
    pub(super) is_count_due: bool,
}

impl Recycle for Node {
    fn recycle(&mut self) {
        self.connections = Vec::new();
        self.targets = Vec::new();
    }
}

impl Node {
    fn new(role: Role, endpoint: Endpoint, targets: Vec<Target>, nodes: &Nodes) -> Self {
        let config = &nodes.config;
        let (handshake, max_fails) = match role {
            Role::Data => (Rc::clone(&nodes.data_handshake), config.max_fails),
            Role::Sentinel => (Rc::new(Handshake::new(&endpoint, &config.client_name, [])), 0),
        };
        let targets = match targets.is_empty() {
            true => target_of(&endpoint.address).into_iter().collect(),
            false => targets,
        };
        Self {
            role,
            alias: None,
            name: endpoint.address.to_string(),
            is_stale: targets.is_empty(),
            endpoint,
            handshake,
            abilities: Abilities::default(),
            logged_missing: 0,
            is_permission_missing: false,
            source: None,
            targets,
            announced: None,
            connections: Vec::new(),
            wanted: 0,
            ready: 0,
            sound: 0,
            health: Health::new(max_fails, config.fail_timeout),
            is_cut_off: false,
            is_unfit: false,
            silences: 0,
            owes_topology: false,
            retired_at: None,
            counts: Counts::default(),
            has_undecided: false,
            is_count_due: false,
        }
    }

    /// The name that is shown.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host, by name or address; that of a unix socket is empty.
    pub fn host(&self) -> &str {
        match &self.endpoint.address {
            Address::Tcp(host, _) => host,
            Address::Unix(_) => "",
        }
    }

    /// The state of this node, as the metrics show it.
    pub fn view(&self) -> View {
        // A worker has no connection to nodes of the configuration that are no masters, and sends no
        // request to a sentinel.
        let is_cut_off = self.wanted > 0 && self.ready == 0;
        let state = match self.role {
            Role::Data if is_cut_off || self.health.is_open() => NodeState::Open,
            _ if self.health.is_slow() => NodeState::Slow,
            _ => NodeState::Up,
        };
        View { ready: self.ready, connecting: self.wanted.saturating_sub(self.ready), state }
    }

    /// It announces another name, or an address beside its name.
    pub(super) fn on_announced(&mut self, name: Option<&str>, address: Option<IpAddr>) {
        self.alias = name.map(str::to_owned);
        self.announced = match (&self.endpoint.address, address) {
            (Address::Tcp(_, port), Some(ip)) => Some(Target::Ip(SocketAddr::new(ip, *port))),
            _ => None,
        };
    }

    /// Whether its host name was resolved to these addresses, in any order.
    pub(super) fn has_targets(&self, targets: &[Target]) -> bool {
        self.targets.len() == targets.len()
            && targets.iter().all(|target| self.targets.contains(target))
    }

    /// Where to connect to: to the addresses of its host in turn, and to the one that it announces, if that
    /// is another.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &Target> {
        let announced = self.announced.iter().filter(|it| !self.targets.contains(it));
        self.targets.iter().chain(announced)
    }

    /// The address of this index, if there are as many.
    pub(super) fn target(&self, index: usize) -> Option<&Target> {
        self.addresses().nth(index).or(self.addresses().next())
    }

    /// The hosts and the port at which it is, if it runs scripts.
    fn data_addresses(&self) -> impl Iterator<Item = (&str, u16)> {
        let own = match &self.endpoint.address {
            Address::Tcp(host, port) if self.role == Role::Data => Some((host.as_str(), *port)),
            _ => None,
        };
        let alias = own.and_then(|(_, port)| Some((self.alias.as_deref()?, port)));
        own.into_iter().chain(alias)
    }

    /// Whether commands can be sent to it.
    pub(super) fn is_available(&self) -> bool {
        self.ready > 0 && !self.health.is_open()
    }

    /// Whether commands can be sent to it, and it is not known to refuse them.
    pub(super) fn serves(&self) -> bool {
        self.wanted > 0 && self.health.is_up() && !self.is_unfit
    }

    /// Whether one of its connections shows that it is up, which is noted.
    pub(super) fn recover(&mut self) -> bool {
        self.sound > 0 && !self.is_unfit && self.health.on_sound()
    }

    /// The use of one of its connections has changed.
    pub(super) fn recount(&mut self, before: Usable, after: Usable) {
        let recount = |counter: &mut usize, before: bool, after: bool| {
            *counter = counter.saturating_sub(before.into()).saturating_add(after.into());
        };
        recount(&mut self.wanted, before.is_wanted, after.is_wanted);
        recount(&mut self.ready, before.is_ready, after.is_ready);
        recount(&mut self.sound, before.is_sound, after.is_sound);
    }

    /// The host and port to be resolved before the next attempt to connect, if there are any: the
    /// addresses may be out of date, and the host is a name.
    pub(super) fn next_name(&mut self) -> Option<(&str, u16)> {
        let was_stale = std::mem::replace(&mut self.is_stale, true);
        match &self.endpoint.address {
            Address::Tcp(host, port) if was_stale && host.parse::<IpAddr>().is_err() => {
                Some((host, *port))
            }
            _ => None,
        }
    }

    pub(super) fn count_command(&mut self, command: CommandKind) {
        increment(&mut self.counts.commands, command as usize);
    }

    /// Whether all but one of its connections can be used.
    pub(super) fn lacks_one(&self) -> bool {
        self.ready.saturating_add(1) == self.connections.len()
    }

    pub(super) fn count_error(&mut self, kind: ErrorKind) {
        increment(&mut self.counts.errors, kind as usize);
    }

    /// `count` requests were not decided by it.
    pub(super) fn count_undecided(&mut self, requests: usize) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.counts.undecided = self.counts.undecided.saturating_add(requests);
        self.counts.has_answered = false;
        self.has_undecided = true;
    }

    /// It has answered a command, after requests that it had not decided.
    pub(super) fn count_answered(&mut self) {
        self.counts.has_answered = true;
        self.has_undecided = false;
    }
}

fn increment(counters: &mut [u32], index: usize) {
    if let Some(counter) = counters.get_mut(index) {
        *counter = counter.saturating_add(1);
    }
}

/// All nodes of a store.
#[derive(Debug)]
pub(super) struct Nodes {
    /// The configuration of the store, with the latest password.
    pub(super) config: Config,
    /// The handshake with those that run scripts.
    data_handshake: Rc<Handshake>,
    slab: Slab<Node>,
    /// The nodes of the configuration first, which stay; then those that were discovered.
    current: Vec<NodeKey>,
    seeds: usize,
    /// The nodes that are not part of the topology any more.
    retired: Vec<NodeKey>,
    /// The addresses of replicas that announce a name and a port.
    replicas: HashMap<(String, u16), IpAddr>,
}

/// The target that an address names by itself: all but a host name do.
fn target_of(address: &Address) -> Option<Target> {
    match address {
        Address::Tcp(host, port) => Some(Target::Ip(SocketAddr::new(host.parse().ok()?, *port))),
        Address::Unix(path) => Some(Target::Unix(path.clone())),
    }
}

impl Nodes {
    /// There are none yet. Those that run scripts load these.
    pub(super) fn new<'a>(config: Config, scripts: impl IntoIterator<Item = &'a Script>) -> Self {
        let data_handshake = Handshake::new(&config.account, &config.client_name, scripts);
        Self {
            config,
            data_handshake: Rc::new(data_handshake),
            slab: Slab::new(),
            current: Vec::new(),
            seeds: 0,
            retired: Vec::new(),
            replicas: HashMap::new(),
        }
    }

    /// The password of the servers that run scripts, from now on.
    pub(super) fn set_password(&mut self, password: &str) {
        let Self { config: Config { account, .. }, data_handshake, .. } = self;
        if account.password.as_deref() == Some(password) {
            return;
        }
        account.password = Some(password.to_owned());
        *data_handshake = Rc::new(data_handshake.with_account(account));
        for key in self.current.iter().chain(&self.retired) {
            if let Some(node) = self.slab.get_mut(*key).filter(|node| node.role == Role::Data) {
                node.handshake = Rc::clone(data_handshake);
            }
        }
    }

    pub(super) fn get(&self, key: NodeKey) -> Option<&Node> {
        self.slab.get(key)
    }

    pub(super) fn get_mut(&mut self, key: NodeKey) -> Option<&mut Node> {
        self.slab.get_mut(key)
    }

    /// Adds a node of the configuration.
    pub(super) fn add_seed(
        &mut self,
        role: Role,
        endpoint: Endpoint,
        targets: Vec<Target>,
    ) -> NodeKey {
        let endpoint = match role {
            Role::Data => Endpoint { address: endpoint.address, ..self.config.account.clone() },
            Role::Sentinel => endpoint,
        };
        self.seeds = self.seeds.saturating_add(1);
        self.add(Node::new(role, endpoint, targets, self))
    }

    fn add(&mut self, node: Node) -> NodeKey {
        let key = self.slab.insert(node);
        self.current.push(key);
        key
    }

    /// The node that runs scripts at this address, which is added if it is new. One that was retired is
    /// part of the topology again.
    pub(super) fn find_or_add(&mut self, host: &str, port: u16) -> NodeKey {
        if let Some(key) = self.find(host, port) {
            return key;
        }
        let announced = self.replicas.get(&(host.to_owned(), port)).copied();
        let key = self.revive(host, port).unwrap_or_else(|| {
            let address = Address::Tcp(host.to_owned(), port);
            let endpoint = Endpoint { address, ..self.config.account.clone() };
            let targets = self.targets_at(host, port);
            // The name may lead elsewhere now.
            self.add(Node { is_stale: true, ..Node::new(Role::Data, endpoint, targets, self) })
        });
        if let (Some(node), Some(address)) = (self.get_mut(key), announced) {
            node.on_announced(None, Some(address));
        }
        key
    }

    /// The addresses with this port of a host name that is known by another node: all nodes of a cluster may be behind one, and
    /// without a `resolver` only those of the configuration are ever resolved.
    fn targets_at(&self, host: &str, port: u16) -> Vec<Target> {
        let known = self.current.iter().filter_map(|key| self.get(*key));
        let known = known.filter(|node| node.host() == host).flat_map(|node| &node.targets);
        let mut targets = Vec::new();
        for target in known {
            if let Target::Ip(address) = target
                && let at = Target::Ip(SocketAddr::new(address.ip(), port))
                && !targets.contains(&at)
            {
                targets.push(at);
            }
        }
        targets
    }

    /// Takes note of replicas that announce a name and an address, in place of others.
    pub(super) fn set_replicas(&mut self, replicas: &HashSet<Master>) {
        let announced = |it: &Master| Some(((it.host.clone(), it.port), it.address?));
        self.replicas = replicas.iter().filter_map(announced).collect();
    }

    /// The node at each of these addresses, in their order. A cluster may have a thousand, of which most are
    /// known: all nodes are looked through once.
    pub(super) fn find_or_add_all<'a>(
        &mut self,
        addresses: impl Iterator<Item = (&'a str, u16)>,
    ) -> Vec<NodeKey> {
        let mut known = HashMap::new();
        for key in &self.current {
            for (host, port) in self.get(*key).into_iter().flat_map(Node::data_addresses) {
                known.entry((host.to_owned(), port)).or_insert(*key);
            }
        }
        let node = |(host, port): (&str, u16)| {
            let entry = known.entry((host.to_owned(), port));
            *entry.or_insert_with(|| self.find_or_add(host, port))
        };
        addresses.map(node).collect()
    }

    pub(super) fn find(&self, host: &str, port: u16) -> Option<NodeKey> {
        self.find_among(&self.current, host, port)
    }

    fn find_among(&self, nodes: &[NodeKey], host: &str, port: u16) -> Option<NodeKey> {
        let is_at = |node: &Node| node.data_addresses().any(|address| address == (host, port));
        nodes.iter().find(|key| self.get(**key).is_some_and(is_at)).copied()
    }

    fn revive(&mut self, host: &str, port: u16) -> Option<NodeKey> {
        let key = self.find_among(&self.retired, host, port)?;
        self.retired.retain(|other| *other != key);
        self.current.push(key);
        self.get_mut(key)?.retired_at = None;
        Some(key)
    }

    /// Names that nodes have announced beside their addresses may be those of others now.
    pub(super) fn forget_aliases(&mut self) {
        for key in &self.current {
            if let Some(node) = self.slab.get_mut(*key) {
                node.alias = None;
            }
        }
    }

    /// All but those that are retired.
    pub(super) fn current(&self) -> &[NodeKey] {
        &self.current
    }

    /// The nodes of the configuration.
    pub(super) fn seeds(&self) -> &[NodeKey] {
        self.current.get(..self.seeds).unwrap_or_default()
    }

    /// All that have connections.
    pub(super) fn all(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.current.iter().chain(&self.retired).copied()
    }

    /// When the first probe of any of them is due.
    pub(super) fn next_probe(&self) -> Option<u64> {
        self.all().filter_map(|key| self.get(key)?.health.probe_at()).min()
    }

    /// The nodes that are not part of the topology any more.
    pub(super) fn retired(&self) -> &[NodeKey] {
        &self.retired
    }

    /// From now on these are the topology: the others that were discovered are retired.
    pub(super) fn retire_others(&mut self, masters: &[NodeKey], now: u64) {
        // All of them exist, so that an index is enough to tell them apart.
        let masters: HashSet<_> = masters.iter().map(|key| key.index()).collect();
        let is_other = |key: &mut NodeKey| !masters.contains(&key.index());
        let discovered = self.seeds.min(self.current.len())..;
        for key in self.current.extract_if(discovered, is_other) {
            if let Some(node) = self.slab.get_mut(key) {
                node.retired_at = Some(now);
            }
            self.retired.push(key);
        }
    }

    /// Removes a retired node.
    pub(super) fn remove(&mut self, key: NodeKey) {
        self.retired.retain(|other| *other != key);
        self.slab.remove(key);
    }
}
