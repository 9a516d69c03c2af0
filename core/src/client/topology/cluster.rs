//! A Redis Cluster.

use xxhash_rust::xxh3::xxh3_128;

use super::{Layout, Line, Query, Topology, unexpected};
use crate::client::agenda::Level;
use crate::client::node::{Node, Nodes};
use crate::client::slab::NodeKey;
use crate::metrics::CommandKind;
use crate::redis::cluster::{Map, SLOTS};
use crate::redis::reply::Reply;

/// Each slot of keys belongs to one of the masters.
#[derive(Debug, Default)]
pub(in crate::client) struct Cluster {
    /// The name of the store that is shown.
    store: String,
    owners: Vec<Option<NodeKey>>,
    /// How many maps have changed an owner.
    changes: u32,
    /// How many slots have no node in the map that was applied last.
    orphans: usize,
    /// Whether slots have no node: from the first map that lacks some until all masters report that they have.
    is_incomplete: bool,
    /// How many of the latest maps in a row have a node for every slot. Masters may disagree.
    complete: usize,
    /// The best map of this round of queries, of those without a node for every slot, and how many of them
    /// have none.
    partial: Option<(usize, Layout)>,
    /// The map that was applied last, unless a redirection has changed an owner since.
    used: Option<Used>,
}

/// A map in use.
#[derive(Debug)]
struct Used {
    reply: MapReply,
    masters: Vec<NodeKey>,
}

/// A reply with a map: the same words are the same map. Nodes are queried every few seconds, and their map of
/// a large cluster takes long to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) struct MapReply {
    /// A hash of its bytes, which may be some millions.
    digest: u128,
    /// The host that was queried, where that makes a difference.
    host: Option<String>,
}

impl MapReply {
    /// Whether a reply with this digest of the node at `host` is the same.
    fn is_same(&self, digest: u128, host: &str) -> bool {
        self.digest == digest && self.host.as_ref().is_none_or(|own| own == host)
    }
}

impl Cluster {
    pub(in crate::client) fn new(store: &str) -> Self {
        Self { store: store.to_owned(), owners: vec![None; SLOTS], ..Self::default() }
    }

    /// Whether the map in use is the one with this digest that a node at `host` has sent.
    fn is_used(&self, digest: u128, host: &str) -> bool {
        self.used.as_ref().is_some_and(|used| used.reply.is_same(digest, host))
    }

    /// Sets the owners of all slots. Returns the masters.
    fn set_owners(&mut self, map: &Map, nodes: &mut Nodes) -> Vec<NodeKey> {
        let members = map.members.iter().map(|member| (member.host.as_str(), member.port));
        let masters = nodes.find_or_add_all(members);
        nodes.forget_aliases();
        for (member, key) in map.members.iter().zip(&masters) {
            if let Some(node) = nodes.get_mut(*key) {
                node.on_announced(member.name.as_deref(), member.address);
            }
        }
        nodes.set_replicas(&map.replicas);
        let mut has_changed = false;
        for (slot, owner) in (0..).zip(&mut self.owners) {
            let before = *owner;
            *owner = map.owner(slot).and_then(|index| masters.get(index).copied());
            has_changed |= *owner != before;
        }
        self.changes = self.changes.wrapping_add(has_changed.into());
        masters
    }

    /// Looks at the map in use, which one of so many masters has sent. Returns a line for the log when slots have no
    /// node, and when all masters report that this has ended.
    fn check_orphans(&mut self, masters: usize) -> Option<Line> {
        self.complete = if self.orphans > 0 { 0 } else { self.complete.saturating_add(1) };
        let is_incomplete = self.orphans > 0 || (self.is_incomplete && self.complete < masters);
        let was_incomplete = std::mem::replace(&mut self.is_incomplete, is_incomplete);
        let text = match (was_incomplete, is_incomplete) {
            (false, true) => format!("{} slots have no node", self.orphans),
            (true, false) => "every slot has a node again".to_owned(),
            _ => return None,
        };
        Some((Level::Error, format!("cluster \"{}\": {text}", self.store)))
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
        let packed = redis::cmd("CLUSTER").arg("SLOTS").get_packed_command();
        Some(Query { command: CommandKind::Cluster, packed, channel: None })
    }

    fn read(&self, reply: &Reply<'_>, node: &Node) -> Result<Layout, String> {
        let Reply::Other(value) = reply else { return Err(unexpected(reply)) };
        let digest = xxh3_128(value.bytes());
        if self.is_used(digest, node.host()) {
            return Ok(Layout::SameSlots);
        }
        match Map::parse(*value, node.host()) {
            Ok(map) if map.members.is_empty() => Err("it knows no node that has slots".to_owned()),
            Ok(map) => {
                let host = map.is_relative.then(|| node.host().to_owned());
                Ok(Layout::Slots(map, MapReply { digest, host }))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// A node that has just joined does not know all masters: a map that lacks slots counts only if no node
    /// of the round has a whole one, or if it lacks no more of them than the one in use.
    fn weigh(&mut self, layout: Layout, _from: NodeKey, is_late: bool) -> Option<Layout> {
        if is_late {
            return None;
        }
        let orphans = match &layout {
            Layout::Slots(map, _) => map.orphans(),
            Layout::SameSlots | Layout::Master(..) => 0,
        };
        if orphans <= self.orphans {
            self.partial = None;
            return Some(layout);
        }
        self.complete = 0;
        if self.partial.as_ref().is_none_or(|(least, _)| orphans < *least) {
            self.partial = Some((orphans, layout));
        }
        None
    }

    fn conclude(&mut self, _serves: bool) -> Option<Layout> {
        self.partial.take().map(|(_, layout)| layout)
    }

    fn apply(&mut self, layout: Layout, nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        if let Layout::Slots(map, reply) = layout {
            let masters = self.set_owners(&map, nodes);
            self.orphans = map.orphans();
            self.used = Some(Used { reply, masters });
        }
        let Some(Used { masters, .. }) = &self.used else { return (Vec::new(), None) };
        let masters = masters.clone();
        let line = self.check_orphans(masters.len());
        (masters, line)
    }

    fn changes(&self) -> u32 {
        self.changes
    }

    fn on_moved(&mut self, slot: u16, node: NodeKey) {
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            if *owner != Some(node) {
                self.used = None;
                self.partial = None;
            }
            *owner = Some(node);
        }
    }

    fn is_master(&self, node: NodeKey) -> bool {
        self.owners.contains(&Some(node))
    }

    fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::RawValue;

    /// A map that lacks the first slots.
    fn without(slots: u16) -> Layout {
        let reply = format!("*1\r\n*3\r\n:{slots}\r\n:16383\r\n*2\r\n$8\r\n10.0.0.1\r\n:6379\r\n");
        let map = Map::parse(RawValue::new(reply.as_bytes()), "10.0.0.1").unwrap();
        Layout::Slots(map, MapReply { digest: slots.into(), host: None })
    }

    /// A node that has just joined is queried while a slot has no node.
    #[test]
    fn a_map_is_weighed_against_the_one_in_use() {
        let mut cluster = Cluster::new("edge");
        let from = NodeKey::new(0, 1);
        let counts_at_once = |cluster: &mut Cluster, slots: [u16; 4]| {
            slots.map(|slots| cluster.weigh(without(slots), from, false).is_some())
        };
        assert_eq!(counts_at_once(&mut cluster, [9_000, 2, 1, 0]), [false, false, false, true]);
        cluster.orphans = 1;
        assert_eq!(counts_at_once(&mut cluster, [9_000, 2, 1, 0]), [false, false, true, true]);
    }

    /// Slots are given to a node again, which one of two masters does not know.
    #[test]
    fn a_map_that_does_not_count_shows_that_not_all_masters_report_every_slot() {
        let mut cluster = Cluster::new("edge");
        cluster.is_incomplete = true;
        for _ in 0..4 {
            assert!(cluster.weigh(without(1), NodeKey::new(0, 1), false).is_none());
            assert_eq!(cluster.check_orphans(2), None);
        }
        assert!(cluster.check_orphans(2).is_some());
    }

    /// One of three nodes has dropped a slot, which the others have not noticed.
    #[test]
    fn a_slot_has_a_node_again_when_all_masters_report_it() {
        let mut cluster = Cluster::new("edge");
        let mut lines = |counts: &[usize]| -> Vec<String> {
            let lines = counts.iter().filter_map(|count| {
                cluster.orphans = *count;
                cluster.check_orphans(3)
            });
            lines.map(|(_, line)| line).collect()
        };
        assert_eq!(lines(&[0, 0, 0, 0]), [""; 0]);
        assert_eq!(lines(&[0, 1, 0, 0, 1, 0, 0, 1]), ["cluster \"edge\": 1 slots have no node"]);
        assert_eq!(lines(&[0, 0]), [""; 0]);
        assert_eq!(lines(&[0, 0]), ["cluster \"edge\": every slot has a node again"]);
        assert!(!cluster.is_incomplete());
    }
}
