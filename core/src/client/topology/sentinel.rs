//! A master and its replicas, watched by sentinels.

use redis::Value;

use super::{Layout, Line, Query, Topology, unexpected};
use crate::client::action::Level;
use crate::client::key::NodeKey;
use crate::client::node::{Node, Nodes, Role};
use crate::metrics::Command;
use crate::redis::reply::Reply;
use crate::redis::sentinel;

/// The channel on which sentinels publish new masters.
const CHANNEL: &str = "+switch-master";

/// All keys are at the master that the sentinels report.
#[derive(Debug)]
pub(in crate::client) struct Sentinel {
    /// What the sentinels call the master.
    name: String,
    /// How many sentinels the configuration names.
    sentinels: usize,
    master: Option<NodeKey>,
    /// Where the master is.
    present: Option<Place>,
    /// Where the master before it is.
    former: Option<Place>,
    reports: Reports,
    /// How often the master has changed.
    changes: u32,
}

/// A host and a port.
type Place = (String, u16);

/// How many sentinels have reported in this round that the master has not changed, though it does not
/// serve, or that the former one still is the master: they may have missed a failover.
#[derive(Debug, Default)]
struct Reports {
    present: usize,
    former: usize,
}

impl Sentinel {
    pub(in crate::client) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sentinels: 0,
            master: None,
            present: None,
            former: None,
            reports: Reports::default(),
            changes: 0,
        }
    }
}

impl Topology for Sentinel {
    fn seed_role(&self) -> Role {
        Role::Sentinel
    }

    fn on_seed(&mut self, _node: NodeKey) {
        self.sentinels = self.sentinels.saturating_add(1);
    }

    fn route(&self, _slot: u16) -> Option<NodeKey> {
        self.master
    }

    fn query(&self) -> Option<Query> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name].map(str::to_owned).into();
        Some(Query { command: Command::Sentinel, words, channel: Some(CHANNEL) })
    }

    fn read(&self, reply: &Reply<'_>, _node: &Node) -> Result<Layout, String> {
        let Reply::Other(value) = reply else { return Err(unexpected(reply)) };
        if *value == Value::Nil {
            return Err(format!("it knows no master \"{}\"", self.name));
        }
        let (host, port) =
            sentinel::master(value).ok_or("the address of the master is malformed")?;
        Ok(Layout::Master(host, port))
    }

    /// Any other master is new, and used at once: most sentinels may not know of it yet.
    fn weigh(&mut self, layout: Layout, serves: bool) -> Option<Layout> {
        let Layout::Master(host, port) = layout else { return None };
        let reported = Some((host, port));
        if reported == self.former {
            self.reports.former = self.reports.former.saturating_add(1);
        } else if reported == self.present && !serves {
            self.reports.present = self.reports.present.saturating_add(1);
        } else {
            self.reports = Reports::default();
            return master_at(reported);
        }
        None
    }

    /// While the present master serves, only most of all sentinels lead back to the former one: those that
    /// can be reached may have missed the failover.
    fn conclude(&mut self, serves: bool) -> Option<Layout> {
        let Reports { present, former } = std::mem::take(&mut self.reports);
        match (present, former) {
            (0, 0) => None,
            _ if serves && former.saturating_mul(2) <= self.sentinels => {
                master_at(self.present.clone())
            }
            _ if former >= present => master_at(self.former.clone()),
            _ => master_at(self.present.clone()),
        }
    }

    fn on_message(&self, message: &Value) -> Option<Layout> {
        let (host, port) = sentinel::switched(message, &self.name)?;
        Some(Layout::Master(host, port))
    }

    fn apply(&mut self, layout: Layout, nodes: &mut Nodes) -> (Vec<NodeKey>, Option<Line>) {
        let Layout::Master(host, port) = layout else { return (Vec::new(), None) };
        let node = nodes.find_or_add(&host, port);
        let is_new = self.master.replace(node) != Some(node);
        if is_new {
            self.former = self.present.replace((host, port));
            self.reports = Reports::default();
            self.changes = self.changes.wrapping_add(1);
        }
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

fn master_at(place: Option<Place>) -> Option<Layout> {
    place.map(|(host, port)| Layout::Master(host, port))
}
