//! A Redis Cluster: masters that own slots, their replicas, and slots on their way.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use fastrand::Rng;
use rate_limit_core::redis::cluster::{SLOTS, slot};

use crate::database::{Key, Write};
use crate::deployment::{Change, Deployment, Kind};
use crate::journal::Journal;
use crate::server::{Process, Role, ServerId};
use crate::slots::{Member, View};

/// How long the next step of a migration takes, in µs.
const STEP: std::ops::Range<u64> = 200..3_000;

/// And now and then, as when the key is large.
const LONG_STEP: std::ops::Range<u64> = 3_000..300_000;

/// The state of the cluster that the nodes agree on, or will.
#[derive(Debug)]
pub struct Cluster {
    pub truth: Rc<View>,
    /// The slots that are to move; the first one is moving.
    moves: VecDeque<Move>,
    /// The slots without an owner, and the nodes that have their keys.
    orphans: Vec<(u16, ServerId)>,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    slot: u16,
    from: ServerId,
    to: ServerId,
    started: bool,
}

impl Deployment {
    /// Servers 0 to `masters` - 1 share the slots evenly; then come the first replica of each, the
    /// second one of each, and so on.
    pub fn cluster(masters: usize, replicas: usize, needs_all_slots: bool, rng: Rng) -> Self {
        let count = masters * (1 + replicas);
        let address = |id: usize| {
            let [third, fourth] = (id as u16 + 1).to_be_bytes();
            SocketAddr::from(([10, 0, third, fourth], 7_000))
        };
        let role = |id| match id < masters {
            true => Role::Master,
            false => Role::Replica { of: id % masters },
        };
        let mut view = View::new((0..count).map(address).collect());
        for slot in 0..SLOTS {
            view.set_owner(slot as u16, Some(slot * masters / SLOTS));
        }
        (masters..count).for_each(|id| view.set_master(id, Some(id % masters)));
        let truth = Rc::new(view);
        let kind = Kind::Cluster(Cluster {
            truth: Rc::clone(&truth),
            moves: VecDeque::new(),
            orphans: Vec::new(),
        });
        let servers = (0..count).map(|id| (address(id), role(id))).collect();
        let mut deployment = Self::new(kind, servers, rng);
        for server in &mut deployment.servers {
            server.replicates = replicas > 0;
            server.member = Some(Member::new(Rc::clone(&truth), needs_all_slots));
        }
        deployment
    }

    /// Begins to move slots, those with keys first, from one master to another.
    pub fn move_slots(&mut self, from: ServerId, to: ServerId, count: usize, now: u64) {
        // Another node may have taken the place of one that does not know it yet.
        if self.is_superseded(from) || self.is_superseded(to) {
            return;
        }
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        let owned = |slot: &u16| cluster.truth.owner(*slot) == Some(from);
        let used = self.servers[from].databases[0].keys().map(|key| slot(b"", key));
        let slots: Vec<_> = used.chain(0..SLOTS as u16).filter(owned).collect();
        let is_idle = cluster.moves.is_empty();
        for slot in slots {
            if cluster.moves.len() >= count {
                break;
            }
            if cluster.moves.iter().all(|other| other.slot != slot) {
                cluster.moves.push_back(Move { slot, from, to, started: false });
            }
        }
        if is_idle && !cluster.moves.is_empty() {
            self.after(now, STEP, Change::Migrate);
        }
    }

    /// Whether slots are on their way.
    pub fn is_migrating(&self) -> bool {
        matches!(&self.kind, Kind::Cluster(cluster) if !cluster.moves.is_empty())
    }

    /// The next step of a migration: a slot is marked at both nodes, or one of its keys is moved,
    /// or, when none is left, it gets its new owner.
    pub(crate) fn migrate(&mut self, now: u64) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        let Some(first) = cluster.moves.front_mut() else { return };
        let (step, begins) = (*first, !first.started);
        let is_up = |id: ServerId| self.servers[id].process == Process::Running;
        if is_up(step.from) && is_up(step.to) {
            first.started = true;
            if begins {
                self.mark(step, true);
            } else if let Some(key) = self.key_in(step.from, step.slot) {
                self.move_key(key, step, now);
                // The target may have joined only now, and know no script.
                if self.rng.bool() {
                    self.servers[step.to].flush_scripts();
                }
            } else {
                self.finish_first_move(now);
            }
        }
        if self.is_migrating() {
            let step = if self.rng.u32(0..12) == 0 { LONG_STEP } else { STEP };
            self.after(now, step, Change::Migrate);
        }
    }

    fn mark(&mut self, Move { slot, from, to, .. }: Move, moving: bool) {
        let source = self.servers[from].member.as_mut().expect("a node");
        match moving {
            true => drop(source.migrating.insert(slot, to)),
            false => drop(source.migrating.remove(&slot)),
        }
        let target = self.servers[to].member.as_mut().expect("a node");
        match moving {
            true => target.importing.insert(slot),
            false => target.importing.remove(&slot),
        };
    }

    fn key_in(&self, server: ServerId, slot_number: u16) -> Option<Key> {
        let mut keys = self.servers[server].databases[0].keys();
        keys.find(|key| slot(b"", key) == slot_number).cloned()
    }

    fn move_key(&mut self, key: Key, Move { from, to, .. }: Move, now: u64) {
        let stored = self.servers[from].databases[0].take(&key);
        self.write(to, Write { key: key.clone(), stored }, now);
        self.write(from, Write { key, stored: None }, now);
    }

    fn finish_first_move(&mut self, now: u64) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        let Some(step) = cluster.moves.pop_front() else { return };
        self.mark(step, false);
        self.change_view(&[step.to, step.from], now, |view| {
            view.set_owner(step.slot, Some(step.to));
        });
    }

    /// Slots that were to move from or to a server move from or to another one.
    fn redirect_moves(&mut self, old: ServerId, new: ServerId) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        let first = cluster.moves.front().copied().filter(|step| step.started);
        for step in &mut cluster.moves {
            for end in [&mut step.from, &mut step.to].into_iter().filter(|end| **end == old) {
                *end = new;
            }
        }
        let redirected = cluster.moves.front().copied();
        if let (Some(first), Some(redirected)) = (first, redirected) {
            self.mark(first, false);
            self.mark(redirected, true);
        }
    }

    /// Takes slots from their owners, except those that are to move.
    pub fn take_slots(&mut self, slots: Range<u16>, now: u64) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        for slot in slots {
            let moves = cluster.moves.iter().any(|step| step.slot == slot);
            if let Some(owner) = cluster.truth.owner(slot).filter(|_| !moves) {
                cluster.orphans.push((slot, owner));
            }
        }
        let orphans: Vec<_> = cluster.orphans.iter().map(|(slot, _)| *slot).collect();
        self.change_view(&[], now, |view| {
            orphans.into_iter().for_each(|slot| view.set_owner(slot, None));
        });
    }

    /// Gives the slots without an owner back to those that have their keys.
    pub fn return_slots(&mut self, now: u64) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        let orphans = std::mem::take(&mut cluster.orphans);
        self.change_view(&[], now, |view| {
            for (slot, owner) in orphans {
                let master = view.master_of(owner).unwrap_or(owner);
                view.set_owner(slot, Some(master));
            }
        });
    }

    /// All slots of a master belong to the replica that has taken its place.
    pub(crate) fn set_owner_of_all(&mut self, from: ServerId, to: ServerId, now: u64) {
        self.change_view(&[to], now, |view| view.fail_over(from, to));
        self.redirect_moves(from, to);
    }

    /// A node has another address from now on.
    pub fn set_address(&mut self, server: ServerId, address: SocketAddr, now: u64) {
        self.servers[server].address = address;
        self.names.values_mut().for_each(|addresses| *addresses = vec![address.ip()]);
        self.change_view(&[server], now, |view| view.set_address(server, address));
    }

    /// Changes what the nodes agree on. These nodes know it at once, the others a little later.
    fn change_view(&mut self, first: &[ServerId], now: u64, change: impl FnOnce(&mut View)) {
        let Kind::Cluster(cluster) = &mut self.kind else { return };
        change(Rc::make_mut(&mut cluster.truth));
        for id in 0..self.servers.len() {
            match first.contains(&id) {
                true => self.adopt_view(id),
                false => self.inform_later(id, now),
            }
        }
    }

    fn adopt_view(&mut self, id: ServerId) {
        let Kind::Cluster(cluster) = &self.kind else { return };
        if let Some(member) = &mut self.servers[id].member {
            member.view = Rc::clone(&cluster.truth);
        }
    }

    /// The newest view reaches a node, which may find that another one has taken its place.
    pub(crate) fn inform_of_view(&mut self, id: ServerId, now: u64, journal: &mut Journal) {
        self.adopt_view(id);
        let Kind::Cluster(cluster) = &self.kind else { return };
        if let Some(master) = cluster.truth.master_of(id)
            && self.servers[id].role == Role::Master
        {
            self.demote(id, master, now, journal);
        }
    }
}

#[cfg(test)]
mod tests {
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::deployment::tests::{has_state, replies, settle};
    use crate::server::tests::{charge, words};

    fn deployment() -> Deployment {
        Deployment::cluster(2, 1, true, Rng::with_seed(7))
    }

    /// Two keys of one slot, which the first master owns.
    const KEYS: [&str; 2] = ["{a}1", "{a}2"];

    fn owner(deployment: &Deployment) -> Option<ServerId> {
        let Kind::Cluster(cluster) = &deployment.kind else { panic!("no cluster") };
        cluster.truth.owner(slot(b"", b"a"))
    }

    #[test]
    fn a_slot_moves_key_by_key() {
        let (mut deployment, mut journal) = (deployment(), Journal::default());
        let [from, to] = [1, 0];
        assert_eq!(owner(&deployment), Some(from));
        let sent = |deployment: &mut Deployment, server, keys: &[&str]| {
            replies(deployment, server, &charge(By::Source, keys))
        };
        sent(&mut deployment, from, &KEYS);
        assert!(sent(&mut deployment, to, &KEYS).starts_with("-MOVED 15495 10.0.0.2:7000"));
        deployment.move_slots(from, to, 1, 0);
        // The slot is marked, and one key is moved.
        deployment.migrate(0);
        assert!(sent(&mut deployment, from, &KEYS).starts_with('*'));
        assert!(sent(&mut deployment, from, &["{a}3"]).starts_with("-ASK 15495 10.0.0.1:7000"));
        deployment.migrate(0);
        assert!(sent(&mut deployment, from, &KEYS).starts_with("-TRYAGAIN"));
        assert!(sent(&mut deployment, from, &KEYS[..1]).starts_with("-ASK"));
        assert!(has_state(&sent(&mut deployment, from, &KEYS[1..])));
        assert!(sent(&mut deployment, to, &KEYS[..1]).starts_with("-MOVED"));
        replies(&mut deployment, to, &words(&["ASKING"]));
        assert!(has_state(&sent(&mut deployment, to, &KEYS[..1])));
        replies(&mut deployment, to, &words(&["ASKING"]));
        assert!(sent(&mut deployment, to, &KEYS).starts_with("-TRYAGAIN"));
        assert!(
            sent(&mut deployment, to, &KEYS[..1]).starts_with("-MOVED"),
            "ASKING holds for one command"
        );
        settle(&mut deployment, &mut journal);
        assert!(!deployment.is_migrating());
        assert_eq!(owner(&deployment), Some(to));
        assert_eq!(sent(&mut deployment, to, &KEYS).matches("$24").count(), 2);
        assert!(sent(&mut deployment, from, &KEYS).starts_with("-MOVED 15495 10.0.0.1:7000"));
    }

    #[test]
    fn a_replica_takes_over_in_the_midst_of_a_move() {
        let (mut deployment, mut journal) = (deployment(), Journal::default());
        replies(&mut deployment, 1, &charge(By::Source, &KEYS));
        deployment.move_slots(1, 0, 1, 0);
        deployment.migrate(50_000);
        deployment.migrate(50_000);
        deployment.kill(1, 50_000);
        settle(&mut deployment, &mut journal);
        assert_eq!(deployment.servers[3].role, Role::Master);
        assert!(!deployment.is_migrating());
        assert_eq!(owner(&deployment), Some(0));
        let reply = replies(&mut deployment, 0, &charge(By::Source, &KEYS));
        assert_eq!(reply.matches("$24").count(), 2, "{reply}");
        let reply = replies(&mut deployment, 2, &charge(By::Source, &["{b}"]));
        assert!(reply.starts_with("-MOVED 3300 10.0.0.1:7000"), "{reply}");
    }

    #[test]
    fn slots_without_an_owner_are_not_served() {
        let (mut deployment, mut journal) = (deployment(), Journal::default());
        deployment.take_slots(0..100, 0);
        settle(&mut deployment, &mut journal);
        let reply = replies(&mut deployment, 1, &charge(By::Source, &KEYS));
        assert!(reply.starts_with("-CLUSTERDOWN"), "{reply}");
        deployment.return_slots(0);
        settle(&mut deployment, &mut journal);
        assert!(replies(&mut deployment, 1, &charge(By::Source, &KEYS)).starts_with('*'));
    }

    #[test]
    fn a_node_has_another_address() {
        let (mut deployment, mut journal) = (deployment(), Journal::default());
        let address = SocketAddr::from(([10, 1, 0, 2], 7_000));
        deployment.set_address(1, address, 0);
        settle(&mut deployment, &mut journal);
        assert_eq!(deployment.at(address), Some(1));
        let reply = replies(&mut deployment, 0, &charge(By::Source, &KEYS));
        assert!(reply.starts_with("-MOVED 15495 10.1.0.2:7000"), "{reply}");
        assert!(replies(&mut deployment, 0, &words(&["CLUSTER", "SLOTS"])).contains("10.1.0.2"));
    }
}
