//! A master and its replicas, watched by sentinels.

use super::{HostPort, Layout, Line, Query, Topology, unexpected};
use crate::client::agenda::Level;
use crate::client::node::{Node, Nodes, Role};
use crate::client::slab::NodeKey;
use crate::metrics::CommandKind;
use crate::redis::reply::Reply;
use crate::redis::{RawValue, sentinel};

/// The channel on which sentinels publish new masters.
const CHANNEL: &str = "+switch-master";

/// All keys are at the master that most of the sentinels report.
///
/// The last report of a sentinel, in reply to a query or by an announcement, counts for as long as it is
/// connected. The master that more than half of all sentinels report is used at once. As long as there is
/// none, a master that serves is kept: the sentinels that can be reached may have missed a failover. One that
/// does not serve gives way, at the end of a round of queries, to the one that most of those sentinels report
/// which can be reached; among several that as many report, to the next one.
#[derive(Debug)]
pub(in crate::client) struct Sentinel {
    /// The name by which the sentinels know the master.
    name: String,
    /// All sentinels, and what each of them reports, if it is connected and has replied.
    reports: Vec<(NodeKey, Option<HostPort>)>,
    master: Option<NodeKey>,
    /// Where the master is.
    present: Option<HostPort>,
    /// How often the master has changed.
    changes: u32,
}

impl Sentinel {
    pub(in crate::client) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), reports: Vec::new(), master: None, present: None, changes: 0 }
    }

    fn set_report(&mut self, from: NodeKey, place: Option<HostPort>) {
        if let Some((_, report)) = self.reports.iter_mut().find(|(node, _)| *node == from) {
            *report = place;
        }
    }

    /// The reports of the sentinels that can be reached.
    fn reported(&self) -> impl Iterator<Item = &HostPort> {
        self.reports.iter().filter_map(|(_, report)| report.as_ref())
    }

    /// How many sentinels report this master.
    fn votes(&self, place: &HostPort) -> usize {
        self.reported().filter(|other| *other == place).count()
    }

    /// The master that more than half of all sentinels report.
    fn elected(&self) -> Option<&HostPort> {
        let is_majority =
            |place: &&HostPort| self.votes(place).saturating_mul(2) > self.reports.len();
        self.reported().find(is_majority)
    }

    /// The masters that as many sentinels report as any other, each once.
    fn leading(&self) -> Vec<&HostPort> {
        let most = self.reported().map(|place| self.votes(place)).max();
        let mut leading = Vec::new();
        for place in self.reported() {
            if Some(self.votes(place)) == most && !leading.contains(&place) {
                leading.push(place);
            }
        }
        leading
    }
}

impl Topology for Sentinel {
    fn seed_role(&self) -> Role {
        Role::Sentinel
    }

    fn on_seed(&mut self, node: NodeKey) {
        self.reports.push((node, None));
    }

    fn route(&self, _slot: u16) -> Option<NodeKey> {
        self.master
    }

    fn query(&self) -> Option<Query> {
        let mut query = redis::cmd("SENTINEL");
        let packed = query.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).get_packed_command();
        Some(Query { command: CommandKind::Sentinel, packed, channel: Some(CHANNEL) })
    }

    fn read(&self, reply: &Reply<'_>, _node: &Node) -> Result<Layout, String> {
        let Reply::Other(value) = reply else { return Err(unexpected(reply)) };
        if value.is_null() {
            return Err(format!("it knows no master \"{}\"", self.name));
        }
        let master = sentinel::master(*value).ok_or("the address of the master is malformed")?;
        Ok(Layout::Master(master))
    }

    fn weigh(&mut self, layout: Layout, from: NodeKey, _is_late: bool) -> Option<Layout> {
        let Layout::Master(place) = layout else { return None };
        self.set_report(from, Some(place));
        let new = self.elected().filter(|place| Some(*place) != self.present.as_ref());
        new.cloned().map(Layout::Master)
    }

    fn conclude(&mut self, serves: bool) -> Option<Layout> {
        let leading = self.leading();
        if serves && !leading.is_empty() {
            return self.present.clone().map(Layout::Master);
        }
        let is_present = |place: &&HostPort| self.present.as_ref() == Some(*place);
        let next = leading.iter().position(is_present).map_or(0, |index| index.saturating_add(1));
        leading.get(next).or(leading.first()).map(|place| Layout::Master((*place).clone()))
    }

    fn forget(&mut self, node: NodeKey) {
        self.set_report(node, None);
    }

    fn on_message(&self, message: RawValue<'_>) -> Option<Layout> {
        sentinel::switched(message, &self.name).map(Layout::Master)
    }

    fn apply(&mut self, layout: Layout, nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        let Layout::Master(place) = layout else { return (Vec::new(), None) };
        let node = nodes.find_or_add(&place.0, place.1);
        let is_new = self.master.replace(node) != Some(node);
        self.present = Some(place);
        self.changes = self.changes.wrapping_add(is_new.into());
        let name = nodes.get(node).map_or("", Node::name);
        let line = format!("redis {name} is the master of \"{}\"", self.name);
        (vec![node], is_new.then_some((Level::Notice, line)))
    }

    fn changes(&self) -> u32 {
        self.changes
    }

    fn is_master(&self, node: NodeKey) -> bool {
        self.master == Some(node)
    }
}
