//! The slots of a cluster, as one of its nodes sees them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use rate_limit_core::redis::cluster::SLOTS;

use crate::resp;
use crate::server::ServerId;

/// The owner of a slot without one.
const NOBODY: u16 = u16::MAX;

/// A state of the whole cluster. Nodes share the newest one that has reached them.
#[derive(Clone, Debug)]
pub struct View {
    addresses: Vec<SocketAddr>,
    /// The master of each node that is a replica.
    masters: Vec<Option<ServerId>>,
    owners: Vec<u16>,
    /// The reply to `CLUSTER SLOTS`.
    reply: OnceCell<(usize, Vec<u8>)>,
}

impl View {
    /// Nodes at these addresses, none of which owns a slot.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        let masters = vec![None; addresses.len()];
        Self { addresses, masters, owners: vec![NOBODY; SLOTS], reply: OnceCell::new() }
    }

    pub fn owner(&self, slot: u16) -> Option<ServerId> {
        let owner = self.owners[usize::from(slot)];
        (owner != NOBODY).then_some(usize::from(owner))
    }

    pub fn address(&self, node: ServerId) -> SocketAddr {
        self.addresses[node]
    }

    pub fn master_of(&self, node: ServerId) -> Option<ServerId> {
        self.masters[node]
    }

    pub fn is_complete(&self) -> bool {
        !self.owners.contains(&NOBODY)
    }

    pub fn set_owner(&mut self, slot: u16, owner: Option<ServerId>) {
        self.owners[usize::from(slot)] = owner.map_or(NOBODY, |owner| owner as u16);
        self.reply.take();
    }

    pub fn set_master(&mut self, node: ServerId, master: Option<ServerId>) {
        self.masters[node] = master;
        self.reply.take();
    }

    pub fn set_address(&mut self, node: ServerId, address: SocketAddr) {
        self.addresses[node] = address;
        self.reply.take();
    }

    /// Gives all slots of one node to another, which becomes its master.
    pub fn fail_over(&mut self, from: ServerId, to: ServerId) {
        for owner in self.owners.iter_mut().filter(|owner| usize::from(**owner) == from) {
            *owner = to as u16;
        }
        for master in self.masters.iter_mut().filter(|master| **master == Some(from)) {
            *master = Some(to);
        }
        self.masters[to] = None;
        self.masters[from] = Some(to);
        self.reply.take();
    }

    /// The reply to `CLUSTER SLOTS`.
    pub fn reply(&self) -> &[u8] {
        &self.described().1
    }

    /// How many ranges of slots that reply has.
    pub fn ranges(&self) -> usize {
        self.described().0
    }

    fn described(&self) -> &(usize, Vec<u8>) {
        self.reply.get_or_init(|| {
            let runs = self.runs();
            let (count, mut out) = (runs.len(), Vec::new());
            resp::array(&mut out, count);
            for (first, last, owner) in runs {
                self.write_run(&mut out, first, last, owner);
            }
            (count, out)
        })
    }

    fn write_run(&self, out: &mut Vec<u8>, first: usize, last: usize, owner: ServerId) {
        let replicas = self.masters.iter().enumerate().filter(|(_, of)| **of == Some(owner));
        let nodes: Vec<_> = [owner].into_iter().chain(replicas.map(|(node, _)| node)).collect();
        resp::array(out, 2 + nodes.len());
        resp::integer(out, first as i64);
        resp::integer(out, last as i64);
        for node in nodes {
            let address = self.addresses[node];
            resp::array(out, 4);
            resp::bulk(out, address.ip().to_string().as_bytes());
            resp::integer(out, i64::from(address.port()));
            resp::bulk(out, format!("{node:040x}").as_bytes());
            resp::array(out, 0);
        }
    }

    /// The first and last slot of each run that one node owns.
    fn runs(&self) -> Vec<(usize, usize, ServerId)> {
        let mut runs: Vec<(usize, usize, u16)> = Vec::new();
        for (slot, owner) in self.owners.iter().copied().enumerate() {
            match runs.last_mut() {
                Some((_, last, of)) if *of == owner => *last = slot,
                _ => runs.push((slot, slot, owner)),
            }
        }
        let owned = runs.into_iter().filter(|(.., owner)| *owner != NOBODY);
        owned.map(|(first, last, owner)| (first, last, usize::from(owner))).collect()
    }
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct Member {
    pub view: Rc<View>,
    /// The slots that are on their way to another node.
    pub migrating: BTreeMap<u16, ServerId>,
    /// The slots that are on their way to this node.
    pub importing: BTreeSet<u16>,
    /// Whether all slots must have owners for any to be served.
    pub needs_all_slots: bool,
}

/// The answer of a node to a command for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Serve,
    Moved(SocketAddr),
    Ask(SocketAddr),
    TryAgain,
    /// The slot has no owner.
    Unserved,
    /// The cluster is incomplete.
    Down,
}

impl Member {
    pub fn new(view: Rc<View>, needs_all_slots: bool) -> Self {
        Self { view, migrating: BTreeMap::new(), importing: BTreeSet::new(), needs_all_slots }
    }

    /// The route by Redis's `getNodeByQuery`: `missing` of the `keys` keys are not at `node`.
    pub fn route(
        &self,
        node: ServerId,
        slot: u16,
        (keys, missing): (usize, usize),
        asking: bool,
    ) -> Route {
        if self.needs_all_slots && !self.view.is_complete() {
            return Route::Down;
        }
        let Some(owner) = self.view.owner(slot) else { return Route::Unserved };
        if owner != node {
            return match asking && self.importing.contains(&slot) {
                true if missing > 0 && keys > 1 => Route::TryAgain,
                true => Route::Serve,
                false => Route::Moved(self.view.address(owner)),
            };
        }
        match self.migrating.get(&slot) {
            Some(_) if missing > 0 && missing < keys => Route::TryAgain,
            Some(target) if missing > 0 => Route::Ask(self.view.address(*target)),
            _ => Route::Serve,
        }
    }
}

#[cfg(test)]
mod tests {
    use rate_limit_core::redis::cluster::Map;
    use rate_limit_core::redis::reply::{self, Reply};

    use super::*;

    fn address(node: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, node], 7_000))
    }

    /// Two masters and a replica of the first.
    fn view() -> View {
        let mut view = View::new([0, 1, 2].map(address).to_vec());
        (0..SLOTS as u16).for_each(|slot| view.set_owner(slot, Some(usize::from(slot % 2))));
        view.set_master(2, Some(0));
        view
    }

    #[test]
    fn the_client_reads_what_a_node_sees() {
        let mut view = view();
        view.set_owner(7, None);
        let Ok(Reply::Other(value)) = reply::parse(view.reply()) else { panic!("no map") };
        let map = Map::parse(value, "").unwrap();
        assert_eq!(map.members.len(), 2);
        assert_eq!((map.members[1].host.as_str(), map.members[1].port), ("10.0.0.1", 7_000));
        assert_eq!([0, 1, 7].map(|slot| map.owner(slot)), [Some(0), Some(1), None]);
    }

    #[test]
    fn a_replica_takes_over() {
        let mut view = view();
        view.reply();
        view.fail_over(0, 2);
        assert_eq!([view.owner(0), view.owner(1)], [Some(2), Some(1)]);
        assert_eq!([view.master_of(0), view.master_of(2)], [Some(2), None]);
        assert!(view.reply().windows(8).any(|bytes| bytes == b"10.0.0.2"));
    }

    #[test]
    fn commands_are_served_where_their_slot_is() {
        let view = Rc::new(view());
        let mut source = Member::new(Rc::clone(&view), true);
        let mut target = Member::new(view, true);
        let route = |member: &Member, node, keys| member.route(node, 0, keys, false);
        assert_eq!(route(&source, 0, (1, 1)), Route::Serve);
        assert_eq!(route(&source, 1, (1, 1)), Route::Moved(address(0)));
        source.migrating.insert(0, 1);
        target.importing.insert(0);
        assert_eq!(route(&source, 0, (2, 0)), Route::Serve);
        assert_eq!(route(&source, 0, (2, 1)), Route::TryAgain);
        assert_eq!(route(&source, 0, (2, 2)), Route::Ask(address(1)));
        assert_eq!(route(&target, 1, (1, 1)), Route::Moved(address(0)));
        assert_eq!(target.route(1, 0, (1, 1), true), Route::Serve);
        assert_eq!(target.route(1, 0, (2, 1), true), Route::TryAgain);
        assert_eq!(target.route(1, 0, (2, 0), true), Route::Serve);
    }

    #[test]
    fn a_slot_without_an_owner_is_not_served() {
        let mut view = view();
        view.set_owner(0, None);
        let mut member = Member::new(Rc::new(view), true);
        assert_eq!(member.route(1, 1, (1, 0), false), Route::Down);
        member.needs_all_slots = false;
        assert_eq!(member.route(1, 1, (1, 0), false), Route::Serve);
        assert_eq!(member.route(1, 0, (1, 0), false), Route::Unserved);
    }
}
