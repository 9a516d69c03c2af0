//! One server.

use super::{Layout, Line, Topology};
use crate::client::node::Nodes;
use crate::client::slab::NodeKey;

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

    fn apply(&mut self, _layout: Layout, _nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        (self.master.into_iter().collect(), None)
    }

    fn is_master(&self, node: NodeKey) -> bool {
        self.master == Some(node)
    }
}
