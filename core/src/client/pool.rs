//! The servers of a store, and the connections to them.

use super::agenda::Agenda;
use super::connection::Connection;
use super::link::Link;
use super::node::{Node, Nodes, Role};
use super::requests::Error;
use super::slab::{ConnectionKey, NodeKey, Slab};
use super::{Action, Config, MAX_WAITING};
use crate::rate::SECOND;

/// A node that does not answer for longer has failed, unless the store's `fail_timeout` is longer.
const MAX_PATIENCE: u64 = SECOND;

/// How long a retired node may take to answer what it was sent.
const RETIREMENT: u64 = SECOND;

/// The servers of a store, and the connections to them.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) nodes: Nodes,
    pub(super) connections: Slab<Connection>,
    /// After so long without a reply, in µs, a command is a failure of the node.
    pub(super) patience: u64,
    /// Where bytes are received, on any connection on which no part of a reply has come.
    input: Vec<u8>,
}

/// Nodes.
impl Pool {
    /// The patience has a bound, so that the long timeout of one location does not hold up the requests
    /// of all others.
    pub(super) fn new(nodes: Nodes) -> Self {
        let Config { longest_timeout, fail_timeout, .. } = nodes.config;
        let patience = longest_timeout.min(MAX_PATIENCE.max(fail_timeout));
        Self { nodes, connections: Slab::new(), patience, input: Vec::new() }
    }

    /// The node at this address, which is added if it is new.
    pub(super) fn find_or_add_node(
        &mut self,
        host: &str,
        port: u16,
        agenda: &mut Agenda,
    ) -> NodeKey {
        let node = self.nodes.find_or_add(host, port);
        self.complete_node(node, agenda);
        node
    }

    /// Gives a new node its connections. None is made yet.
    pub(super) fn complete_node(&mut self, key: NodeKey, agenda: &mut Agenda) {
        let most = self.nodes.config.connections;
        let new = self.nodes.get_mut(key).filter(|node| node.connections.is_empty());
        let Some(node) = new else { return };
        let count = if node.role == Role::Sentinel { 1 } else { most };
        for _ in 0..count {
            let connection = Connection::new(key, node.handshake.clone());
            node.connections.push(self.connections.insert(connection));
        }
        agenda.push(Action::View(key));
    }

    /// Whether a node is retired, and owes no reply or has owed it for too long.
    pub(super) fn is_done(&self, key: NodeKey, now: u64) -> bool {
        let Some(node) = self.nodes.get(key) else { return false };
        let is_quiet =
            |key: &ConnectionKey| self.connections.get(*key).is_none_or(Connection::is_quiet);
        node.retired_at.is_some_and(|since| {
            now.saturating_sub(since) >= RETIREMENT || node.connections.iter().all(is_quiet)
        })
    }

    /// When the first retired node has owed a reply for too long.
    pub(super) fn next_retirement(&self) -> Option<u64> {
        let retired = self.nodes.retired().iter().filter_map(|key| self.nodes.get(*key));
        Some(retired.filter_map(|node| node.retired_at).min()?.saturating_add(RETIREMENT))
    }

    /// Closes the connections to nodes of the configuration that are no masters, and does not try to make
    /// them: whether such a node is up makes no difference. They may know the topology when no other node
    /// does, so they stay. Sentinels are kept connected.
    pub(super) fn close_unneeded_seeds(&mut self, masters: &[NodeKey], agenda: &mut Agenda) {
        let is_unneeded = |key: &&NodeKey| {
            let is_sentinel = self.nodes.get(**key).is_some_and(|it| it.role == Role::Sentinel);
            !is_sentinel && !masters.contains(key)
        };
        let unneeded = self.nodes.seeds().iter().filter(is_unneeded);
        for node in unneeded.copied().collect::<Vec<_>>() {
            for key in self.connections_of(node) {
                if let Some(mut link) = self.link(key, agenda) {
                    link.close_if_quiet();
                }
            }
        }
    }
}

/// Connections.
impl Pool {
    /// A connection, unless it is gone, and its node.
    pub(super) fn link<'a>(
        &'a mut self,
        key: ConnectionKey,
        agenda: &'a mut Agenda,
    ) -> Option<Link<'a>> {
        let connection = self.connections.get_mut(key)?;
        let connect_timeout = self.nodes.config.connect_timeout;
        let node = self.nodes.get_mut(connection.node)?;
        Some(Link { key, connection, node, agenda, connect_timeout })
    }

    pub(super) fn connections_of(&self, node: NodeKey) -> Vec<ConnectionKey> {
        self.nodes.get(node).map_or_else(Vec::new, |node| node.connections.clone())
    }

    /// The connection to a node for a slot: so the commands about a key stay in order, and in one batch.
    pub(super) fn connection_for(&self, node: NodeKey, slot: u16) -> Result<ConnectionKey, Error> {
        let node = self.nodes.get(node).filter(|node| !node.health.is_open());
        let connections = node.map_or(&[][..], |node| &node.connections);
        let start = usize::from(slot).checked_rem(connections.len()).unwrap_or(0);
        let (before, from) = connections.split_at(start);
        let mut error = Error::Down;
        for key in from.iter().chain(before) {
            match self.connections.get(*key) {
                Some(connection) if !connection.accepts() => {}
                Some(connection) if connection.queue.len() >= MAX_WAITING => {
                    error = Error::Overload;
                }
                Some(_) => return Ok(*key),
                None => {}
            }
        }
        Err(error)
    }

    /// Has a connection flushed at the end of this turn, if it can send.
    pub(super) fn flush_later(&mut self, key: ConnectionKey, agenda: &mut Agenda) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ready() && !std::mem::replace(&mut connection.is_flush_due, true) {
            agenda.flush_later(key);
        }
    }

    /// Where to put bytes that are received; empty if there is no such connection.
    pub(super) fn space(&mut self, key: ConnectionKey) -> &mut [u8] {
        let Self { connections, input, .. } = self;
        connections.get_mut(key).map_or(&mut [], |connection| connection.input.space(input))
    }

    /// `count` bytes were received. Takes the input out, if the connection is open; it must be [put
    /// back](Self::put_back) when its replies were read.
    pub(super) fn on_received(
        &mut self,
        key: ConnectionKey,
        count: usize,
        now: u64,
    ) -> Option<Vec<u8>> {
        let connection = self.connections.get_mut(key).filter(|it| it.is_open())?;
        connection.on_received(now);
        Some(connection.input.take(count, &mut self.input))
    }

    pub(super) fn put_back(&mut self, key: ConnectionKey, input: Vec<u8>) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.input.put_back(input, &mut self.input);
        }
    }
}

/// Counts.
impl Pool {
    /// Changes what is counted at a node.
    pub(super) fn count(
        &mut self,
        key: NodeKey,
        agenda: &mut Agenda,
        change: impl FnOnce(&mut Node),
    ) {
        if let Some(node) = self.nodes.get_mut(key) {
            agenda.count(key, node, change);
        }
    }

    /// So many requests were not decided by a node.
    pub(super) fn count_undecided(&mut self, node: NodeKey, count: usize, agenda: &mut Agenda) {
        if count > 0 {
            self.count(node, agenda, |node| node.count_undecided(count));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::client::connection::ConnectionState;
    use crate::client::in_flight::Owner;
    use crate::client::node::Target;
    use crate::client::tests::config;
    use crate::redis::endpoint::Endpoint;

    /// How long an attempt to connect may take, in µs.
    pub(in crate::client) const TIMEOUT: u64 = SECOND / 4;

    impl Pool {
        /// A pool of one node, whose host has these addresses; it is a name if there is none.
        pub(in crate::client) fn of_one_node(
            targets: &[Target],
            connections: usize,
        ) -> (Self, Agenda, NodeKey) {
            let account: Endpoint = "redis://redis.test:1".parse().unwrap();
            let config = Config {
                account: account.clone(),
                connect_timeout: TIMEOUT,
                connections,
                longest_timeout: SECOND,
                ..config()
            };
            let mut pool = Self::new(Nodes::new(config, []));
            let node = pool.nodes.add_seed(Role::Data, account, targets.to_vec());
            let mut agenda = Agenda::default();
            pool.complete_node(node, &mut agenda);
            (pool, agenda, node)
        }
    }

    #[test]
    fn a_node_gets_its_connections_once() {
        let (mut pool, mut agenda, seed) = Pool::of_one_node(&[], 3);
        assert_eq!((agenda.poll(), agenda.poll()), (Some(Action::View(seed)), None));
        let found = pool.find_or_add_node("redis.test", 1, &mut agenda);
        assert_eq!((found, pool.connections_of(seed).len(), agenda.poll()), (seed, 3, None));
        let new = pool.find_or_add_node("redis.test", 2, &mut agenda);
        assert_eq!((pool.connections_of(new).len(), agenda.poll()), (3, Some(Action::View(new))));
    }

    /// All nodes of a cluster may be behind one name, where there is no `resolver`.
    #[test]
    fn a_node_at_a_known_host_name_is_looked_for_at_its_addresses() {
        let at = |address: &str| Target::Ip(address.parse().unwrap());
        let known = [at("10.0.0.1:1"), at("[::1]:1")];
        let (mut pool, mut agenda, _) = Pool::of_one_node(&known, 1);
        let new = pool.find_or_add_node("redis.test", 2, &mut agenda);
        let other = pool.find_or_add_node("other.test", 2, &mut agenda);
        let targets = |pool: &Pool, key| pool.nodes.get(key).unwrap().targets.clone();
        assert_eq!(targets(&pool, new), [at("10.0.0.1:2"), at("[::1]:2")]);
        assert!(targets(&pool, other).is_empty());
        let name = pool.nodes.get_mut(new).unwrap().next_name();
        assert_eq!(name, Some(("redis.test", 2)), "the name may lead elsewhere by now");
    }

    #[test]
    fn slots_share_the_connections_that_take_commands() {
        let (mut pool, _, node) = Pool::of_one_node(&[], 2);
        let [even, odd] = pool.connections_of(node)[..] else { panic!() };
        let slots = |pool: &Pool| [0, 1, 2].map(|slot| pool.connection_for(node, slot));
        assert_eq!(slots(&pool), [Ok(even), Ok(odd), Ok(even)]);
        pool.connections.get_mut(odd).unwrap().on_late();
        assert_eq!(slots(&pool), [Ok(even); 3]);
        let queue = &mut pool.connections.get_mut(even).unwrap().queue;
        (0..MAX_WAITING).for_each(|_| queue.push(Owner::Probe));
        assert_eq!(slots(&pool), [Err(Error::Overload); 3]);
        pool.connections.get_mut(even).unwrap().on_late();
        assert_eq!(slots(&pool), [Err(Error::Down); 3]);
    }

    #[test]
    fn a_retired_node_is_done_when_it_owes_no_reply_or_after_a_second() {
        let (mut pool, mut agenda, seed) = Pool::of_one_node(&[], 1);
        let node = pool.find_or_add_node("redis.test", 2, &mut agenda);
        assert!(!pool.is_done(node, 9 * SECOND), "it is not retired");
        let key = pool.connections_of(node)[0];
        pool.connections.get_mut(key).unwrap().queue.push(Owner::Probe);
        pool.nodes.retire_others(&[seed], 5);
        assert_eq!(pool.next_retirement(), Some(5 + RETIREMENT));
        assert!(!pool.is_done(node, 4 + RETIREMENT) && pool.is_done(node, 5 + RETIREMENT));
        pool.connections.get_mut(key).unwrap().queue.next_unsent();
        assert!(pool.is_done(node, 5));
        pool.nodes.remove(node);
        assert!(pool.next_retirement().is_none() && !pool.is_done(node, 5));
    }

    #[test]
    fn a_connection_is_flushed_once_a_turn_and_only_when_it_can_send() {
        let (mut pool, mut agenda, node) = Pool::of_one_node(&[], 1);
        let key = pool.connections_of(node)[0];
        pool.flush_later(key, &mut agenda);
        assert_eq!(agenda.next_flush(), None);
        pool.connections.get_mut(key).unwrap().state = ConnectionState::Ready { since: 0 };
        (0..2).for_each(|_| pool.flush_later(key, &mut agenda));
        assert_eq!([agenda.next_flush(), agenda.next_flush()], [Some(key), None]);
    }

    #[test]
    fn the_longest_timeout_is_the_patience_up_to_a_second() {
        let patience = |longest_timeout, fail_timeout| {
            let config = Config { longest_timeout, fail_timeout, ..config() };
            Pool::new(Nodes::new(config, [])).patience
        };
        assert_eq!(patience(5, SECOND / 2), 5);
        assert_eq!(patience(9 * SECOND, SECOND / 2), SECOND);
        assert_eq!(patience(9 * SECOND, 2 * SECOND), 2 * SECOND);
    }
}
