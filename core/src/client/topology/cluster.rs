//! A Redis Cluster.

use super::{Layout, Line, Query, Topology, unexpected};
use crate::client::action::Level;
use crate::client::key::NodeKey;
use crate::client::node::{Node, Nodes};
use crate::metrics::Command;
use crate::redis::cluster::{Map, SLOTS};
use crate::redis::reply::Reply;

/// Each slot of keys belongs to one of the masters.
#[derive(Debug)]
pub(in crate::client) struct Cluster {
    /// As the store is shown.
    store: String,
    owners: Vec<Option<NodeKey>>,
    /// Whether some slots have no node.
    has_orphans: bool,
}

impl Cluster {
    pub(in crate::client) fn new(store: &str) -> Self {
        Self { store: store.to_owned(), owners: vec![None; SLOTS], has_orphans: false }
    }

    /// Records how many slots have no node. Returns a line for the log when that begins or ends.
    fn set_orphans(&mut self, count: usize) -> Option<Line> {
        let store = &self.store;
        match (std::mem::replace(&mut self.has_orphans, count > 0), count) {
            (true, 0) => {
                Some((Level::Error, format!("cluster \"{store}\": every slot has a node again")))
            }
            (false, 1..) => {
                Some((Level::Error, format!("cluster \"{store}\": {count} slots have no node")))
            }
            _ => None,
        }
    }
}

impl Topology for Cluster {
    fn route(&self, slot: u16) -> Option<NodeKey> {
        self.owners.get(usize::from(slot)).copied().flatten()
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn query(&self) -> Option<Query> {
        let words = ["CLUSTER", "SLOTS"].map(str::to_owned).into();
        Some(Query { command: Command::Cluster, words, channel: None })
    }

    fn read(&self, reply: &Reply<'_>, node: &Node) -> Result<Layout, String> {
        match reply {
            Reply::Other(redis::Value::Array(ranges)) if ranges.is_empty() => {
                Err("it knows no node that has slots".to_owned())
            }
            Reply::Other(value) => {
                Map::parse(value, node.host()).map(Layout::Slots).map_err(|error| error.to_string())
            }
            _ => Err(unexpected(reply)),
        }
    }

    fn apply(&mut self, layout: Layout, nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        let Layout::Slots(map) = layout else { return (Vec::new(), None) };
        let mut masters = Vec::with_capacity(map.members.len());
        for member in &map.members {
            masters.push(nodes.find_or_add(&member.host, member.port));
        }
        nodes.forget_aliases();
        for (member, key) in map.members.iter().zip(&masters) {
            if let Some(node) = nodes.get_mut(*key) {
                node.on_announced(member.name.as_deref(), member.address);
            }
        }
        for (slot, owner) in (0..).zip(&mut self.owners) {
            *owner = map.owner(slot).and_then(|index| masters.get(index).copied());
        }
        let line = self.set_orphans(map.orphans());
        (masters, line)
    }

    fn on_moved(&mut self, slot: u16, node: NodeKey) {
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
    }

    fn is_master(&self, node: NodeKey) -> bool {
        self.owners.contains(&Some(node))
    }

    fn is_incomplete(&self) -> bool {
        self.has_orphans
    }
}
