//! The topology as far as it is known, and the rounds of queries that keep it up to date.

use super::agenda::{Agenda, Due};
use super::node::{Node, Nodes, Role};
use super::pool::Pool;
use super::slab::{ConnectionKey, NodeKey};
use super::topology::cluster::Cluster;
use super::topology::rounds::Rounds;
use super::topology::sentinel::Sentinel;
use super::topology::single::Single;
use super::topology::{Layout, Query, Topology};
use super::{Kind, Random};

/// How many nodes of a cluster are queried in a round. The next round goes on with the others.
const MOST_QUERIES: usize = 5;

/// The topology and the rounds of queries for it.
#[derive(Debug)]
pub(super) struct Discovery {
    pub(super) topology: Box<dyn Topology>,
    pub(super) rounds: Rounds,
    /// Whether the keys of a command must be in one slot.
    pub(super) has_slots: bool,
    /// How a node is queried; `None` if the topology cannot change.
    pub(super) query: Option<Query>,
}

impl Discovery {
    /// Nothing was queried yet. `store` is the name of the store in log lines.
    pub(super) fn new(kind: &Kind, store: &str, random: u64) -> Self {
        let topology: Box<dyn Topology> = match kind {
            Kind::Single => Box::new(Single::default()),
            Kind::Sentinel(name) => Box::new(Sentinel::new(name)),
            Kind::Cluster => Box::new(Cluster::new(store)),
        };
        let (has_slots, query) = (topology.has_slots(), topology.query());
        Self { topology, rounds: Rounds::new(random), has_slots, query }
    }

    /// Whether the topology can change, and nodes can be queried for it.
    pub(super) fn can_change(&self) -> bool {
        self.query.is_some()
    }

    /// The node for the keys of a slot, if one is known.
    pub(super) fn route(&self, slot: u16) -> Option<NodeKey> {
        self.topology.route(slot)
    }

    /// Whether the master serves, where there is but one.
    pub(super) fn master_serves(&self, nodes: &Nodes) -> bool {
        let master = self.route(0).and_then(|key| nodes.get(key));
        master.is_some_and(Node::serves)
    }

    /// Whether something is missing in the topology.
    pub(super) fn is_urgent(&self, nodes: &Nodes) -> bool {
        let seeds = nodes.seeds();
        let is_missing = |key: &NodeKey| {
            let is_needed = !seeds.contains(key) || self.topology.is_master(*key);
            is_needed && nodes.get(*key).is_some_and(|node| !node.is_available())
        };
        self.topology.is_incomplete()
            || !nodes.retired().is_empty()
            || nodes.current().iter().any(is_missing)
    }

    /// The connection over which a node is queried, if it can be: not if it owes a reply for too
    /// long, or one to an earlier query, or if its breaker is open. That it is silent is for the timer to say:
    /// until then the reply may lie unread.
    pub(super) fn connection_for_query(
        &self,
        node: NodeKey,
        pool: &Pool,
        now: u64,
    ) -> Option<ConnectionKey> {
        let node = pool.nodes.get(node)?;
        if node.health.is_open() || node.owes_topology {
            return None;
        }
        let key = *node.connections.first()?;
        let connection = pool.connections.get(key).filter(|connection| connection.accepts())?;
        let is_silent =
            pool.silent_at(connection, self.rounds.patience()).is_some_and(|at| at <= now);
        (!is_silent).then_some(key)
    }
}

/// Rounds.
impl Discovery {
    /// The topology may have changed.
    pub(super) fn want(&mut self, now: u64, agenda: &mut Agenda) {
        self.rounds.want();
        self.rounds.begin_at(now);
        agenda.advance_to(Due::Topology, now);
    }

    /// The next round begins as soon as it may.
    pub(super) fn pause(&mut self, agenda: &mut Agenda) {
        let at = self.rounds.pause();
        agenda.advance_to(Due::Topology, at);
    }

    /// Nodes are queried in turn, then those that are not connected, and at last those that the cluster has cut
    /// off, which go on to list themselves as the masters of their slots.
    pub(super) fn begin_round(&mut self, nodes: &Nodes) {
        let queried = match self.topology.seed_role() {
            Role::Sentinel => nodes.seeds(),
            Role::Data => nodes.current(),
        };
        let rank = |key: &NodeKey| nodes.get(*key).map(|node| (node.is_cut_off, node.ready == 0));
        self.rounds.begin(queried.to_vec(), rank);
    }

    /// The next node to be queried, if one is: of a cluster one at a time, and all sentinels at once.
    pub(super) fn next_node(&mut self) -> Option<NodeKey> {
        let (at_once, most) = match self.has_slots {
            true => (1, MOST_QUERIES),
            false => (usize::MAX, usize::MAX),
        };
        self.rounds.next_node(at_once, most)
    }

    /// A node is queried. Returns the number of the query.
    pub(super) fn open(&mut self, node: NodeKey, now: u64, agenda: &mut Agenda) -> u32 {
        let (number, at) = self.rounds.open(node, now);
        agenda.advance_to(Due::Topology, at);
        number
    }

    /// Every node of the round was queried, and no reply was enough by itself. Returns the layout to apply, if
    /// there is one.
    pub(super) fn conclude(&mut self, nodes: &Nodes) -> Option<Layout> {
        let serves = self.master_serves(nodes);
        self.topology.conclude(serves)
    }

    /// A round has ended with a layout, which has changed something of note or not. Returns whether the next
    /// one is wanted at once.
    pub(super) fn on_applied(
        &mut self,
        has_changed: bool,
        nodes: &Nodes,
        random: &mut Random,
        now: u64,
        agenda: &mut Agenda,
    ) -> bool {
        let is_urgent = self.is_urgent(nodes);
        self.rounds.end(is_urgent && !has_changed, random.next(), now);
        let at = self.rounds.set_next(is_urgent, || random.next(), now);
        at.into_iter().for_each(|at| agenda.advance_to(Due::Topology, at));
        at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_server_needs_no_queries() {
        let can_change = |kind| Discovery::new(&kind, "edge", 0).can_change();
        let kinds = [Kind::Single, Kind::Cluster, Kind::Sentinel("main".to_owned())];
        assert_eq!(kinds.map(can_change), [false, true, true]);
    }

    #[test]
    fn nodes_that_are_cut_off_or_not_connected_are_queried_last() {
        let (mut pool, mut agenda, seed) = Pool::of_one_node(&[], 1);
        let [cut_off, ready] = [2, 3].map(|port| {
            let key = pool.find_or_add_node("redis.test", port, &mut agenda);
            pool.nodes.get_mut(key).unwrap().ready = 1;
            key
        });
        pool.nodes.get_mut(cut_off).unwrap().is_cut_off = true;
        let mut discovery = Discovery::new(&Kind::Cluster, "edge", 0);
        discovery.begin_round(&pool.nodes);
        let order = [(); 4].map(|()| discovery.next_node());
        assert_eq!(order, [Some(ready), Some(seed), Some(cut_off), None]);
    }

    #[test]
    fn a_node_is_queried_unless_it_owes_an_answer_or_takes_no_command() {
        let (mut pool, _, node) = Pool::of_one_node(&[], 1);
        let discovery = Discovery::new(&Kind::Cluster, "edge", 0);
        let key = pool.connections_of(node)[0];
        assert_eq!(discovery.connection_for_query(node, &pool, 0), Some(key));
        pool.nodes.get_mut(node).unwrap().owes_topology = true;
        assert_eq!(discovery.connection_for_query(node, &pool, 0), None);
        pool.nodes.get_mut(node).unwrap().owes_topology = false;
        pool.connections.get_mut(key).unwrap().on_late();
        assert_eq!(discovery.connection_for_query(node, &pool, 0), None);
    }

    #[test]
    fn what_is_wanted_is_due_at_once_and_a_pause_is_kept() {
        let mut agenda = Agenda::default();
        let mut discovery = Discovery::new(&Kind::Cluster, "edge", 0);
        discovery.want(7, &mut agenda);
        assert_eq!((discovery.rounds.at(), agenda.timers.earliest()), (Some(7), Some(7)));
        discovery.rounds.end(true, 0, 7);
        discovery.rounds.turn_nodes();
        agenda.timers.set(Due::Topology, None);
        discovery.pause(&mut agenda);
        assert!(
            discovery.rounds.at() > Some(7) && agenda.timers.earliest() == discovery.rounds.at()
        );
    }
}
