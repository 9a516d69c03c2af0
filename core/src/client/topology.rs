//! Which node a key's commands go to.
//!
//! One file for each kind of deployment. A kind defines which node a slot belongs to, how a node is
//! queried for the topology, and what its reply changes.

use super::agenda::Level;
use super::node::{Node, Nodes, Role};
use super::slab::NodeKey;
use crate::metrics;
use crate::redis::RawValue;
use crate::redis::cluster::Map;
use crate::redis::reply::Reply;
use cluster::MapReply;

pub(super) mod cluster;
pub(super) mod rounds;
pub(super) mod sentinel;
pub(super) mod single;

/// A kind of deployment.
pub(super) trait Topology: std::fmt::Debug {
    /// The role of the nodes of the configuration.
    fn seed_role(&self) -> Role {
        Role::Data
    }

    /// A node of the configuration was added.
    fn on_seed(&mut self, _node: NodeKey) {}

    /// The node for the keys of a slot, if one is known.
    fn route(&self, slot: u16) -> Option<NodeKey>;

    /// Whether the keys of a command must be in one slot.
    fn has_slots(&self) -> bool {
        false
    }

    /// How a node is queried for the topology; `None` if it cannot change.
    fn query(&self) -> Option<Query> {
        None
    }

    /// Reads the reply of `node` to the query.
    fn read(&self, reply: &Reply<'_>, _node: &Node) -> Result<Layout, String> {
        Err(unexpected(reply))
    }

    /// Weighs what a node has reported: the layout to apply, or `None` if what others report counts as well.
    /// It `is_late` if a reply to a later query was applied meanwhile.
    fn weigh(&mut self, layout: Layout, _from: NodeKey, _is_late: bool) -> Option<Layout> {
        Some(layout)
    }

    /// Every node of the round was queried, and no reply was enough by itself: the layout to apply, if there
    /// is one. `serves` is whether the present master does.
    fn conclude(&mut self, _serves: bool) -> Option<Layout> {
        None
    }

    /// A node is not connected any more, and may report something else when it is again.
    fn forget(&mut self, _node: NodeKey) {}

    /// Reads a message of a channel.
    fn on_message(&self, _message: RawValue<'_>) -> Option<Layout> {
        None
    }

    /// Applies a layout. Returns the masters, and a line for the log if there is one.
    fn apply(&mut self, layout: Layout, nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>);

    /// How many layouts have changed where keys are.
    fn changes(&self) -> u32 {
        0
    }

    /// A redirection (MOVED) names this node as the owner of the slot.
    fn on_moved(&mut self, _slot: u16, _node: NodeKey) {}

    fn is_master(&self, node: NodeKey) -> bool;

    /// Whether a part of the deployment has no node.
    fn is_incomplete(&self) -> bool {
        false
    }
}

/// A line about the topology for the log.
pub(super) type Line = (Level, String);

/// The topology, as a reply or a message describes it.
#[derive(Debug)]
pub(super) enum Layout {
    /// The map of a cluster, and the reply that describes it.
    Slots(Map, MapReply),
    /// The map of a cluster that is in use.
    SameSlots,
    /// Where a master is.
    Master(HostPort),
}

/// A host and a port.
pub(super) type HostPort = (String, u16);

/// The command that queries a node for the topology.
#[derive(Debug)]
pub(super) struct Query {
    /// The kind that it is counted as.
    pub(super) command: metrics::CommandKind,
    /// The command, packed.
    pub(super) packed: Vec<u8>,
    /// The channel on which changes are published, if there is one. A connection that is subscribed
    /// to it takes no other command.
    pub(super) channel: Option<&'static str>,
}

/// The error for a reply of the wrong kind.
fn unexpected(reply: &Reply<'_>) -> String {
    match reply {
        Reply::Error(refusal) => format!("\"{}\"", refusal.shown()),
        _ => "the reply is malformed".to_owned(),
    }
}
