//! A command: its charges, and the requests that wait for its reply.

use std::rc::Rc;

use smallvec::SmallVec;

use super::slab::{CommandKey, Recycle, RequestKey, Sparse};
use crate::charge::{Charge, Charged, Effect, Template};
use crate::decision::Verdict;
use crate::key::Digest;
use crate::lease::Lease;
use crate::limit::Quota;
use crate::manage::{Change, ClientState};
use crate::redis::answer::{self, Beside};
use crate::redis::reply::ScriptReply;
use crate::redis::script::{By, Scripts};

/// The settlement of a charge by its real cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Since when the difference can have been regained, by Redis's clock: see
    /// [`Algorithm::regained_from`](crate::limit::Algorithm::regained_from).
    pub since: u64,
    /// How much more than the charge it has cost; below zero, how much less.
    pub change: i64,
    /// Any number that the owner knows it by.
    pub tag: u64,
}

/// The purpose of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Requests are charged.
    #[default]
    Charge,
    /// The only charge is given back; since then it can have been regained.
    Refund(u64),
    /// The only charge is settled; its cost is by how much.
    Settle(Settlement),
    /// The state of the client of the only charge is changed, or looked at.
    Manage(Change),
}

/// The requests that wait for a command: most often one.
pub(super) type Members = SmallVec<[Member; 1]>;

/// The memory for keys within a command. Most keys are addresses, of which few are longer as text.
const KEYS: usize = 40;

/// A command. One with one charge of a short key, for which one request waits, needs no memory on the heap.
#[derive(Debug, Default)]
pub(super) struct Command {
    charges: SmallVec<[OwnedCharge; 1]>,
    /// The keys of all charges, one behind the other.
    keys: SmallVec<[u8; KEYS]>,
    /// The lease arguments of the charges.
    leases: Sparse<Lease>,
    /// Who waits for it. Several only where there is one charge: then each is charged once.
    pub(super) members: Members,
    pub(super) purpose: Purpose,
    /// Who has brought the lease of the only charge, and gets what comes of it.
    lessee: Option<RequestKey>,
    /// The digest of the only charge.
    pub(super) digest: Digest,
    pub(super) slot: u16,
    pub(super) stage: Stage,
    pub(super) by: By,
    /// A server has lacked its script.
    pub(super) lacked_script: bool,
    /// An `ASKING` goes before it.
    pub(super) is_asking: bool,
    /// How often it was sent on to another node.
    pub(super) moves: u8,
    /// How often it was to be tried again after a moment.
    pub(super) retries: u8,
    /// It has waited for a refresh of the topology before.
    pub(super) has_waited: bool,
    /// While it is held: when it is to be sent in any case.
    pub(super) send_at: u64,
    /// The command about the same key that is held until this one is answered.
    pub(super) follower: Option<CommandKey>,
}

/// A charge that a command owns.
#[derive(Clone, Debug)]
struct OwnedCharge {
    template: Rc<Template>,
    /// Where its key ends in the keys of the command.
    key_end: usize,
    quota: Quota,
    cost: u64,
    effect: Effect,
}

/// A request that waits for a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) request: RequestKey,
    /// The index of the command's first charge among all of the request.
    pub(super) first: usize,
    /// How long the request may wait, in µs.
    pub(super) timeout: u64,
}

/// How far a command has come.
///
/// ```text
///   Unsent ──────▶ InFlight { busy } ──▶ answered or lost
///    ▲  ▲              │
///    │  └── Waiting ◀──┘ MOVED, ASK, TRYAGAIN, a new topology
///   Held (until the command about the same key before it is answered, or a moment has passed)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is in the queue of a connection.
    #[default]
    Unsent,
    /// It is to be sent when the one before it is answered.
    Held,
    /// It was sent; `busy` if it was for several requests.
    InFlight { busy: bool },
    /// It waits until it can be routed.
    Waiting,
}

impl Recycle for Command {
    fn recycle(&mut self) {
        self.charges.clear();
        self.keys.clear();
        self.leases.clear();
        self.members.clear();
        self.lessee = None;
        self.purpose = Purpose::Charge;
        self.stage = Stage::Unsent;
        self.by = By::Sha;
        self.lacked_script = false;
        self.is_asking = false;
        self.moves = 0;
        self.retries = 0;
        self.has_waited = false;
        self.follower = None;
    }
}

impl OwnedCharge {
    fn borrow<'a>(&'a self, key: &'a [u8], digest: Digest, lease: Option<&'a Lease>) -> Charge<'a> {
        let &Self { ref template, ref quota, cost, effect, .. } = self;
        Charge { template, key, quota, cost, effect, digest, lease }
    }
}

impl Command {
    /// A command with one charge, for which no request waits yet.
    pub(super) fn new(charge: &Charge<'_>, purpose: Purpose, slot: u16) -> Self {
        let mut command = Self { slot, purpose, ..Self::default() };
        command.add(charge);
        command
    }

    pub(super) fn add(&mut self, charge: &Charge<'_>) {
        if let Some(lease) = charge.lease {
            self.leases.update(self.len(), |own| *own = *lease);
        }
        // Memory of its own is kept.
        match self.keys.is_empty() && !self.keys.spilled() {
            true => self.keys = SmallVec::from_slice(charge.key),
            false => self.keys.extend_from_slice(charge.key),
        }
        self.charges.push(OwnedCharge {
            template: Rc::clone(charge.template),
            key_end: self.keys.len(),
            quota: *charge.quota,
            cost: charge.cost,
            effect: charge.effect,
        });
        self.digest = charge.digest;
    }

    /// How many charges there are.
    pub(super) fn len(&self) -> usize {
        self.charges.len()
    }

    /// Whether it has charged any of its requests, with these verdicts.
    pub(super) fn has_charged(&self, verdicts: &[Verdict]) -> bool {
        let is_charged = |of_one: &[Verdict]| {
            let mut charges = self.charges.iter().zip(of_one);
            let passes = charges.clone().all(|(charge, verdict)| charge.effect.lets_pass(verdict));
            passes && charges.any(|(charge, verdict)| verdict.allowed && charge.cost > 0)
        };
        verdicts.chunks(self.len()).any(is_charged)
    }

    /// The charges, in the order in which they were added.
    pub(super) fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> + Clone {
        let mut start = 0;
        self.charges.iter().enumerate().map(move |(index, own)| {
            let key = self.keys.get(start..own.key_end).unwrap_or_default();
            start = own.key_end;
            own.borrow(key, self.digest, self.leases.get(index))
        })
    }

    /// The only charge, if there is one only.
    pub(super) fn single(&self) -> Option<Charge<'_>> {
        let [own] = self.charges.as_slice() else { return None };
        Some(own.borrow(&self.keys, self.digest, self.leases.get(0)))
    }

    /// Whether other requests for the same charge may be put into it.
    pub(super) fn is_shareable(&self) -> bool {
        self.purpose == Purpose::Charge
            && !self.is_asking
            && self.single().is_some_and(|charge| !charge.quota.algorithm().stores_itself())
    }

    /// Whether it is about just this charge. It can say one thing about a lease only.
    pub(super) fn is_same(&self, charge: &Charge<'_>) -> bool {
        self.digest == charge.digest
            && self.single().is_some_and(|own| {
                Rc::ptr_eq(own.template, charge.template)
                    && own.key == charge.key
                    && own.quota == charge.quota
                    && own.cost == charge.cost
                    && own.effect == charge.effect
                    && (own.lease.is_none() || charge.lease.is_none())
            })
    }

    /// Adds a request that is charged the same.
    pub(super) fn join(&mut self, member: Member, lease: Option<&Lease>) {
        if let (Some(lease), 1) = (lease, self.len()) {
            self.leases.update(0, |own| *own = *lease);
            self.lessee = Some(member.request);
        }
        self.members.push(member);
    }

    /// Takes out the requests that share the command and are gone. With one goes the report of its
    /// lease, which the machine has as it was again.
    pub(super) fn take_gone(&mut self, is_gone: impl Fn(RequestKey) -> bool) -> Members {
        if self.lessee.is_some_and(&is_gone) {
            self.leases.clear();
        }
        let mut gone = Members::new();
        self.members.retain(|member| {
            let is_gone = is_gone(member.request);
            if is_gone {
                gone.push(*member);
            }
            !is_gone
        });
        gone
    }

    /// Whether one more request needs more memory.
    pub(super) fn is_full(&self) -> bool {
        self.members.len() == self.members.capacity()
    }

    pub(super) fn on_sent(&mut self) {
        self.stage = Stage::InFlight { busy: self.members.len() > 1 };
    }

    /// Appends the command to what is sent.
    pub(super) fn encode(&self, scripts: &Scripts, out: &mut Vec<u8>) {
        let times = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        match self.single() {
            Some(charge) if self.purpose != Purpose::Charge => {
                self.encode_other(charge, scripts, out);
            }
            Some(charge) if times > 1 => scripts.encode_repeated(out, self.by, charge, times),
            Some(Charge { template, key, lease, .. })
                if let (By::Sha, Some(prepared), true) =
                    (self.by, template.prepared(), lease.is_none()) =>
            {
                prepared.encode(out, key);
            }
            _ => scripts.encode_charges(out, self.by, self.charges()),
        }
    }

    /// Appends a command that charges no request.
    #[cold]
    fn encode_other(&self, charge: Charge<'_>, scripts: &Scripts, out: &mut Vec<u8>) {
        match &self.purpose {
            Purpose::Charge => {}
            Purpose::Manage(change) => scripts.encode_change(out, self.by, &charge, change),
            Purpose::Refund(since) => scripts.encode_correction(out, self.by, charge, *since, true),
            Purpose::Settle(Settlement { since, change, .. }) => {
                scripts.encode_correction(out, self.by, charge, *since, *change < 0);
            }
        }
    }

    /// Reads what a script has found: the verdict on each charge, or, of the only charge, for each
    /// member. `take` gets what came with it, if anything did, with the request and the index of its charge. `false`,
    /// and nothing is read, if the reply is not one to this command.
    pub(super) fn read(
        &self,
        found: ScriptReply<'_>,
        verdicts: &mut Vec<Verdict>,
        mut take: impl FnMut(RequestKey, usize, &Beside),
    ) -> bool {
        verdicts.clear();
        let mut take = |member: Option<&Member>, index: usize, beside: &Beside| {
            if let Some(member) = member {
                take(member.request, member.first.saturating_add(index), beside);
            }
        };
        match self.single() {
            Some(charge) => {
                let times = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
                answer::repeated(found, &charge, times, |verdict, beside| {
                    if let Some(beside) = beside {
                        // The granted lease goes only to the request that has brought the lease arguments.
                        let own = Beside { granted: None, ..*beside };
                        take(self.members.get(verdicts.len()), 0, &own);
                        take(self.lessee().filter(|_| beside.granted.is_some()), 0, beside);
                    }
                    verdicts.push(verdict);
                })
            }
            None => answer::verdicts(found, self.charges(), |index, verdict, beside| {
                verdicts.push(verdict);
                if let Some(beside) = beside {
                    take(self.lessee(), index, beside);
                }
            }),
        }
    }

    /// Whether its only charge fits into what the script has found, so that all of it was charged.
    pub(super) fn fits(&self, found: ScriptReply<'_>) -> bool {
        let Some(charge) = self.single() else { return false };
        let mut fits = false;
        answer::repeated(found, &charge, 1, |verdict, _| fits = verdict.allowed) && fits
    }

    /// Reads what the client of the only charge has.
    pub(super) fn read_state(&self, found: ScriptReply<'_>) -> Option<ClientState> {
        answer::managed(found, &self.single()?)
    }

    /// Reads the verdicts for a member without what the command has charged it. So many members come before
    /// it.
    pub(super) fn read_unspent(
        &self,
        found: ScriptReply<'_>,
        earlier: usize,
        each: impl FnMut(usize, Verdict),
    ) {
        let earlier = u32::try_from(earlier).unwrap_or(u32::MAX);
        answer::unspent(found, self.charges(), earlier, each);
    }

    /// The member that gets what comes of leases.
    fn lessee(&self) -> Option<&Member> {
        let lessee = self.members.iter().find(|member| Some(member.request) == self.lessee);
        lessee.or(self.members.first())
    }

    /// The commands that give back what this one has charged a request with these verdicts, at `charged_at`
    /// of Redis's clock.
    pub(super) fn refunds(&self, verdicts: &[Verdict], charged_at: u64) -> Vec<Self> {
        let refund = |(charge, verdict): (Charge<'_>, &Verdict)| {
            let (quota, cost) = (charge.quota, charge.cost);
            let since =
                quota.algorithm().regained_from(quota, Charged::new(charged_at, verdict), cost);
            Self::new(&Charge { lease: None, ..charge }, Purpose::Refund(since), self.slot)
        };
        let charged = self.charges().zip(verdicts);
        charged.filter(|(charge, it)| it.allowed && charge.cost > 0).map(refund).collect()
    }

    /// Gives back what `other` does as well, if both are refunds to one client of a limit that come to the same as one. Returns
    /// whether they are.
    pub(super) fn join_refund(&mut self, other: &Self) -> bool {
        let (Purpose::Refund(since), Purpose::Refund(its)) = (self.purpose, other.purpose) else {
            return false;
        };
        let is_same = |own: Charge<'_>, it: Charge<'_>| {
            Rc::ptr_eq(own.template, it.template)
                && own.key == it.key
                && own.quota == it.quota
                && own.quota.algorithm().is_one_refund(own.quota, since, its)
        };
        let (Some(own), Some(it)) = (self.single(), other.single()) else { return false };
        let (is_same, cost) = (is_same(own, it), own.cost.saturating_add(it.cost));
        if is_same && let [charge] = self.charges.as_mut_slice() {
            charge.cost = cost;
            self.purpose = Purpose::Refund(since.min(its));
        }
        is_same
    }

    /// A command for each charge of this one.
    pub(super) fn divide(&self) -> Vec<Self> {
        self.charges().map(|charge| Self::new(&charge, self.purpose, self.slot)).collect()
    }
}
