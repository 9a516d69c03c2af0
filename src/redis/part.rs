//! What one command asks: limits of a request whose keys are in one place.

use std::cell::Cell;
use std::ptr::NonNull;

use rate_limit_core::decision::Verdict;
use rate_limit_core::metrics::{Command, ErrorKind};
use rate_limit_core::redis::cluster::Redirect;
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::{Integers, Refusal, RefusalKind, Reply};
use rate_limit_core::redis::script::{By, Scripts};
use rate_limit_core::text::log::Escaped;

use super::connection::{Answered, Connection};
use super::deployment::{Deployment, Wish};
use super::gift::Gift;
use super::node::Node;
use super::pending::{Asked, Pending, Trouble};

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
    result: Cell<Option<Result<(), Trouble>>>,
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
            result: Cell::new(None),
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
                let queue = unsafe { &mut *connection.as_ptr() };
                queue.cancel(ticket);
                if self.asking.get() {
                    queue.cancel(ticket.wrapping_sub(1));
                }
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

    /// It waits in the queue of a connection.
    pub(super) fn waits_at(&self, connection: NonNull<Connection>, ticket: Ticket) {
        self.place.set(Place::Queue(connection, ticket));
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

    /// Appends the command to what is sent.
    pub(super) fn encode(&self, scripts: &Scripts, node: &Node, out: &mut Vec<u8>) {
        node.count_command(match self.by.get() {
            By::Sha => Command::Evalsha,
            By::Source => Command::Eval,
        });
        let questions = self.asked().iter().map(|asked| asked.question);
        match self.owner.get() {
            Owner::Gift(_) => scripts.give_back(out, self.by.get(), questions),
            _ => scripts.ask(out, self.by.get(), questions),
        }
    }

    /// A server answered.
    pub(super) fn answered(&self, reply: Reply<'_>, node: &Node) -> Answered {
        match reply {
            Reply::Integers(integers) => {
                node.answers();
                let sound = self.read(integers);
                match sound {
                    true => self.settle(Ok(())),
                    false => self.misunderstood(node),
                }
            }
            Reply::Error(refusal) => return self.refused(refusal, node),
            Reply::Other(_) => self.misunderstood(node),
        }
        Answered::Done
    }

    /// The answer is to another question.
    fn misunderstood(&self, node: &Node) {
        node.count_error(ErrorKind::Protocol);
        node.complain("does not answer as a script of ours would");
        self.settle(Err(Trouble::Refused));
    }

    /// A server refused. Some refusals prove that the command did not run: it may be sent again.
    fn refused(&self, refusal: Refusal, node: &Node) -> Answered {
        let deployment = node.deployment();
        match refusal.kind {
            RefusalKind::NoScript if self.by.replace(By::Source) == By::Sha => {
                return Answered::Again;
            }
            RefusalKind::Moved | RefusalKind::Ask if deployment.is_cluster() => {
                if let Some(redirect) = Redirect::parse(&refusal.text)
                    && self.may_move()
                {
                    let asking = refusal.kind == RefusalKind::Ask;
                    let from = node.host().to_owned();
                    deployment.park(self, Wish::Go { redirect, asking, from });
                    return Answered::Done;
                }
            }
            RefusalKind::TryAgain if deployment.is_cluster() => {
                match self.owner.get() {
                    // Some of the keys are here, and others are not: each is found on its own.
                    // SAFETY: the request lives, or it would have cancelled its parts.
                    Owner::Request(pending) => unsafe { pending.as_ref() }.divide(self),
                    _ => deployment.park(self, Wish::Later),
                }
                return Answered::Done;
            }
            RefusalKind::ClusterDown if deployment.is_cluster() => {
                node.complain(&refused_to_decide(&refusal));
                deployment.park(self, Wish::News(Trouble::Refused));
                return Answered::Done;
            }
            RefusalKind::NotReady | RefusalKind::ReadOnly => {
                node.undecided();
                deployment.park(self, Wish::News(Trouble::Refused));
                return Answered::Unfit(refusal.text);
            }
            _ => {}
        }
        node.count_error(match refusal.kind {
            RefusalKind::Auth => ErrorKind::Auth,
            _ => ErrorKind::Script,
        });
        node.complain(&refused_to_decide(&refusal));
        self.settle(Err(Trouble::Refused));
        Answered::Done
    }

    /// No answer will come. If it was not sent, somebody else may be asked.
    pub(super) fn lost(&self, node: &Node, sent: bool) {
        node.undecided();
        match sent {
            true => self.settle(Err(Trouble::Lost)),
            false => node.deployment().park(self, Wish::News(Trouble::Lost)),
        }
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

    /// Reads the verdicts; whether they are an answer to this question.
    fn read(&self, mut integers: Integers<'_>) -> bool {
        for asked in self.asked() {
            asked.verdict.set(integers.take_array().and_then(Verdict::from_reply));
        }
        let sound = integers.next().is_none()
            && self.asked().iter().all(|asked| asked.verdict.get().is_some());
        self.spent.set(sound && self.asked().iter().all(Asked::is_allowed));
        sound
    }
}

fn refused_to_decide(refusal: &Refusal) -> String {
    format!("refused to decide: \"{}\"", Escaped(refusal.text.as_bytes()))
}
