//! What one command asks: limits of a request whose keys are in one place.

use std::cell::Cell;
use std::ptr::NonNull;

use rate_limit_core::metrics::{Command, ErrorKind};
use rate_limit_core::redis::answer;
use rate_limit_core::redis::cluster::Redirect;
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::{Found, Refusal, RefusalKind, Reply};
use rate_limit_core::redis::script::{By, Question, Scripts};
use rate_limit_core::text::log::Escaped;

use super::chain::Chained;
use super::connection::{Answered, Connection};
use super::deployment::{Deployment, Wish};
use super::gift::Gift;
use super::node::Node;
use super::pending::{Asked, Pending, Trouble};
use crate::shm::NodeRecord;

/// How often a question may be sent on to another node.
const MAX_MOVES: u8 = 5;

/// A command that asks limits, or gives back what they have spent.
///
/// Its owner, the queue of a connection and the deployment all refer to it, so everything that
/// changes is in a cell. It must not move while it waits.
pub(crate) struct Part {
    /// Nothing if it is spare.
    asked: Cell<&'static [Asked]>,
    deployment: NonNull<Deployment>,
    slot: u16,
    owner: Cell<Owner>,
    place: Cell<Place>,
    by: Cell<By>,
    asking: Cell<bool>,
    moves: Cell<u8>,
    /// It has waited for news of who decides.
    renewed: Cell<bool>,
    chained: Chained,
    result: Cell<Option<Result<(), Trouble>>>,
    /// Who has decided.
    decided_by: Cell<Option<&'static NodeRecord>>,
    spent: Cell<bool>,
}

/// Who is told of the outcome.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Nobody,
    Request(NonNull<Pending>),
    /// It gives back, for a request that may be gone.
    Gift(NonNull<Gift>),
}

/// Where a part waits.
#[derive(Clone, Copy)]
enum Place {
    Nowhere,
    /// For its turn or its answer on a connection.
    Queue(NonNull<Connection>, Ticket),
    /// For the deployment to find somebody who decides.
    Parked(Ticket),
}

impl Part {
    /// A command about `asked`, whose keys are in `slot`.
    pub(super) fn new(asked: &'static [Asked], slot: u16, deployment: NonNull<Deployment>) -> Self {
        Self {
            asked: Cell::new(asked),
            deployment,
            slot,
            owner: Cell::new(Owner::Nobody),
            place: Cell::new(Place::Nowhere),
            by: Cell::new(By::Sha),
            asking: Cell::new(false),
            moves: Cell::new(0),
            renewed: Cell::new(false),
            chained: Chained::default(),
            result: Cell::new(None),
            decided_by: Cell::new(None),
            spent: Cell::new(false),
        }
    }

    /// The part behind a pointer.
    pub(super) fn get<'a>(part: NonNull<Self>) -> &'a Self {
        // SAFETY: whoever holds such a pointer is a queue or the deployment, which a part leaves
        // when it is settled or cancelled; until then it lives and does not move.
        unsafe { &*part.as_ptr() }
    }

    /// Asks. What becomes of it is told to `owner`, perhaps before this returns.
    pub(super) fn ask(&self, owner: Owner) {
        self.owner.set(owner);
        // SAFETY: the deployment outlives all requests of its worker.
        unsafe { self.deployment.as_ref() }.submit(self);
    }

    /// Nobody waits for the outcome any more. Says at which server it waited, if it did.
    ///
    /// # Safety
    /// No function of a connection may be on the stack.
    pub(super) unsafe fn cancel(&self) -> Option<NonNull<Connection>> {
        match self.place.replace(Place::Nowhere) {
            Place::Nowhere => None,
            Place::Queue(connection, ticket) => {
                // SAFETY: a connection lives as long as somebody waits in its queue, and nothing
                // else refers to it at this moment.
                unsafe { &mut *connection.as_ptr() }.cancel(self, ticket);
                Some(connection)
            }
            Place::Parked(ticket) => {
                // SAFETY: see `ask`.
                unsafe { self.deployment.as_ref() }.unpark(ticket);
                None
            }
        }
    }

    pub(super) fn asked(&self) -> &'static [Asked] {
        self.asked.get()
    }

    /// Whether it asks nothing.
    pub(super) fn is_spare(&self) -> bool {
        self.asked.get().is_empty()
    }

    /// From now on it asks these, for whom it is `owner`. It waits a moment before.
    pub(super) fn ask_later(&self, asked: &'static [Asked], owner: Owner) {
        self.asked.set(asked);
        self.owner.set(owner);
        // SAFETY: see `ask`.
        unsafe { self.deployment.as_ref() }.park(self, Wish::Later);
    }

    pub(super) fn chained(&self) -> &Chained {
        &self.chained
    }

    /// Whether it may be put together with others that ask the same.
    pub(super) fn is_repeatable(&self) -> bool {
        let [asked] = self.asked() else { return false };
        asked.question.quota.algorithm().is_repeatable()
            && !matches!(self.owner.get(), Owner::Gift(_))
            && !self.asking.get()
    }

    /// Whether the other part asks the same question.
    pub(super) fn asks_the_same(&self, other: &Self) -> bool {
        match (self.asked(), other.asked()) {
            ([own], [other]) => own.question == other.question,
            _ => false,
        }
    }

    /// It stands for those after it from now on, in the place of `first`.
    pub(super) fn stands_in_for(&self, first: &Self) {
        self.by.set(first.by.get());
        self.set_open(first.is_open());
    }

    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    pub(super) fn deployment(&self) -> NonNull<Deployment> {
        self.deployment
    }

    /// What came of it, if that is known.
    pub(super) fn result(&self) -> Option<Result<(), Trouble>> {
        self.result.get()
    }

    /// What is counted for the server that has decided, if one has.
    pub(super) fn decided_by(&self) -> Option<&'static NodeRecord> {
        self.decided_by.get()
    }

    /// Whether all its limits allowed the request in Redis, and so have been charged.
    pub(super) fn has_spent(&self) -> bool {
        self.spent.get()
    }

    /// Whether it may be sent on to another node once more.
    fn may_move(&self) -> bool {
        self.moves.replace(self.moves.get().saturating_add(1)) < MAX_MOVES
    }

    /// Whether this is the first time that it waits for news of who decides.
    pub(super) fn may_renew(&self) -> bool {
        !self.renewed.replace(true)
    }

    /// It waits in the queue of a connection, and all those that are asked with it.
    pub(super) fn waits_at(&self, connection: NonNull<Connection>, ticket: Ticket) {
        for part in self.chain() {
            part.place.set(Place::Queue(connection, ticket));
        }
    }

    /// Whether it waits in the queue of a connection.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self.place.get(), Place::Queue(..))
    }

    /// It waits where another part does.
    pub(super) fn waits_with(&self, other: &Self) {
        self.place.set(other.place.get());
    }

    /// Whether it goes right behind an `ASKING`.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.get()
    }

    /// Says whether it is to go right behind an `ASKING`.
    pub(super) fn set_asking(&self, asking: bool) {
        self.asking.set(asking);
    }

    /// It waits in the deployment.
    pub(super) fn is_parked(&self, ticket: Ticket) {
        self.place.set(Place::Parked(ticket));
    }

    /// Appends the command of the chain that starts here to what is sent.
    pub(super) fn encode(&self, scripts: &Scripts, node: &Node, out: &mut Vec<u8>) {
        let by = self.by.get();
        node.count_command(match by {
            By::Sha => Command::Evalsha,
            By::Source => Command::Eval,
        });
        let questions = self.asked().iter().map(|asked| asked.question);
        match (self.owner.get(), self.number_chain(), self.asked()) {
            (Owner::Gift(_), ..) => scripts.give_back(out, by, questions),
            (_, times @ 2.., [asked]) => scripts.ask_times(out, by, asked.question, times),
            (_, _, [asked]) if let (By::Sha, Some(command)) = (by, asked.limit.command()) => {
                command.ask(out, asked.question.key);
            }
            _ => scripts.ask(out, by, questions),
        }
    }

    /// A server answered the chain that starts here.
    pub(super) fn answered(&self, reply: Reply<'_>, node: &Node) -> Answered {
        match reply {
            Reply::Error(refusal) => return self.refused(&refusal, node),
            Reply::Found(found) => {
                node.answers();
                self.read(found, node);
            }
            _ => self.each(|part| part.misunderstood(node)),
        }
        Answered::Done
    }

    /// Does something with each part of the chain that starts here. The chain ends.
    fn each(&self, mut act: impl FnMut(&Self)) {
        let mut next = Some(NonNull::from(self));
        while let Some(part) = next.map(Self::get) {
            (_, next) = part.unchain();
            act(part);
        }
    }

    /// The answer is to another question.
    fn misunderstood(&self, node: &Node) {
        node.count_error(ErrorKind::Protocol);
        node.complain("does not answer as a script of ours would");
        self.settle(Err(Trouble::Refused));
    }

    /// A server refused the chain that starts here. Some refusals prove that the command did not
    /// run: it may be sent again.
    fn refused(&self, refusal: &Refusal, node: &Node) -> Answered {
        if refusal.kind == RefusalKind::NoScript && self.by.replace(By::Source) == By::Sha {
            return Answered::Again;
        }
        self.each(|part| part.is_refused(refusal, node));
        match refusal.kind {
            RefusalKind::NotReady | RefusalKind::ReadOnly => Answered::Unfit(refusal.text.clone()),
            _ => Answered::Done,
        }
    }

    fn is_refused(&self, refusal: &Refusal, node: &Node) {
        let deployment = node.deployment();
        match refusal.kind {
            RefusalKind::Moved | RefusalKind::Ask if deployment.is_cluster() => {
                if let Some(redirect) = Redirect::parse(&refusal.text)
                    && self.may_move()
                {
                    let asking = refusal.kind == RefusalKind::Ask;
                    let from = node.host().to_owned();
                    return deployment.park(self, Wish::Go { redirect, asking, from });
                }
            }
            RefusalKind::TryAgain if deployment.is_cluster() => match self.owner.get() {
                // Some of the keys are here, and others are not: each is found on its own.
                Owner::Request(pending) => {
                    // SAFETY: the request lives, or it would have cancelled its parts.
                    return unsafe { pending.as_ref() }.divide(self);
                }
                // Nothing else ends it.
                _ if self.may_move() => return deployment.park(self, Wish::Later),
                _ => {}
            },
            RefusalKind::ClusterDown if deployment.is_cluster() => {
                node.complain(&refused_to_decide(refusal));
                return deployment.park(self, Wish::News(Trouble::Refused));
            }
            RefusalKind::NotReady | RefusalKind::ReadOnly => {
                node.undecided();
                return deployment.park(self, Wish::News(Trouble::Refused));
            }
            _ => {}
        }
        node.count_error(match refusal.kind {
            RefusalKind::Auth => ErrorKind::Auth,
            _ => ErrorKind::Script,
        });
        node.complain(&refused_to_decide(refusal));
        self.settle(Err(Trouble::Refused));
    }

    /// No answer will come to the chain that starts here. If it was not sent, somebody else may be
    /// asked.
    pub(super) fn lost(&self, node: &Node, sent: bool) {
        self.each(|part| {
            node.undecided();
            match sent {
                true => part.settle(Err(Trouble::Lost)),
                false => node.deployment().park(part, Wish::News(Trouble::Lost)),
            }
        });
    }

    /// The outcome is known.
    pub(super) fn settle(&self, result: Result<(), Trouble>) {
        self.place.set(Place::Nowhere);
        self.result.set(Some(result));
        match self.owner.get() {
            Owner::Nobody => {}
            // SAFETY: the request lives, or it would have cancelled its parts.
            Owner::Request(pending) => unsafe { pending.as_ref() }.part_is_settled(),
            // SAFETY: see `ask`.
            Owner::Gift(gift) => unsafe { self.deployment.as_ref() }.discard(gift),
        }
    }

    /// Deals out the verdicts to the chain that starts here.
    fn read(&self, found: Found<'_>, node: &Node) {
        let sound = match self.asked() {
            [asked] => self.read_chain(found, &asked.question, node),
            several => {
                let questions = several.iter().map(|asked| asked.question);
                let sound = answer::verdicts(found, questions, |index, verdict| {
                    if let Some(asked) = several.get(index) {
                        asked.verdict.set(Some(verdict));
                    }
                });
                if sound {
                    self.is_decided(node);
                }
                sound
            }
        };
        if !sound {
            self.each(|part| part.misunderstood(node));
        }
    }

    fn read_chain(&self, found: Found<'_>, question: &Question<'_>, node: &Node) -> bool {
        let last = self.chain().filter_map(Self::index).last();
        let times = last.map_or(1, |last| last.saturating_add(1));
        let mut next = Some(NonNull::from(self));
        answer::repeated(found, question, times, |index, verdict| {
            // Who has gone meanwhile is passed over.
            let Some(part) = next.map(Self::get).filter(|part| part.index() == Some(index)) else {
                return;
            };
            (_, next) = part.unchain();
            if let [asked] = part.asked() {
                asked.verdict.set(Some(verdict));
            }
            part.is_decided(node);
        })
    }

    /// All its limits have said what they say.
    fn is_decided(&self, node: &Node) {
        self.decided_by.set(Some(node.record()));
        self.spent.set(self.asked().iter().all(Asked::is_allowed));
        self.settle(Ok(()));
    }
}

fn refused_to_decide(refusal: &Refusal) -> String {
    format!("refused to decide: \"{}\"", Escaped(refusal.text.as_bytes()))
}
