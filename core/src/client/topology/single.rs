//! One server.

use super::{Layout, Line, Query, Topology};
use crate::client::node::{Node, Nodes};
use crate::client::slab::NodeKey;
use crate::redis::reply::Reply;

/// All keys are at one server.
#[derive(Debug, Default)]
pub(in crate::client) struct Single {
    master: Option<NodeKey>,
}

impl Topology for Single {
    fn on_seed(&mut self, node: NodeKey) {
        self.master = Some(node);
    }

    fn route(&self, _slot: u16) -> Option<NodeKey> {
        self.master
    }

    fn query(&self) -> Option<Query> {
        None
    }

    fn read(&self, reply: &Reply<'_>, _node: &Node) -> Result<Layout, String> {
        Err(super::unexpected(reply))
    }

    fn weigh(&mut self, layout: Layout, _from: NodeKey, _is_late: bool) -> Option<Layout> {
        Some(layout)
    }

    fn conclude(&mut self, _serves: bool) -> Option<Layout> {
        None
    }

    fn apply(&mut self, _layout: Layout, _nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        (self.master.into_iter().collect(), None)
    }

    fn is_master(&self, node: NodeKey) -> bool {
        self.master == Some(node)
    }
}
