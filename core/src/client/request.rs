//! A request that waits for its decision.

use smallvec::SmallVec;

use super::key::{CommandKey, NodeKey};
use super::slab::Recycle;
use super::sparse::Sparse;
use crate::charge::Effect;
use crate::decision::Verdict;
use crate::lease::Granted;
use crate::manage::ClientState;
use crate::overrides::Override;

/// Why a request was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The server was known to be down, or no server was known.
    Down,
    /// Too many others wait.
    Overload,
    /// No reply came in time.
    Timeout,
    /// The connection was lost, or could not be made.
    Lost,
    /// The server replied with an error, or with something else than a script's reply.
    Refused,
}

/// A request, from its submission until it is released.
///
/// ```text
///   Waiting ──▶ Done ──▶ (released)
///      │ cancelled or timed out, with commands in flight that are to be refunded
///      └──────▶ Released ──▶ (removed with the last reply)
/// ```
#[derive(Debug, Default)]
pub struct Request {
    /// One for each charge, in their order.
    pub(super) answers: SmallVec<[Answer; 1]>,
    pub(super) rare: Sparse<Rare>,
    /// How many of its commands have no outcome.
    pub(super) open: u32,
    pub(super) stage: RequestStage,
    /// The state of a client, if the request is an operator's.
    pub(super) state: Option<Box<ClientState>>,
    /// Its command, if it has only one.
    pub(super) command: Option<CommandKey>,
    error: Option<Error>,
}

/// The answer to one charge of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The verdict, once a reply has come.
    pub verdict: Option<Verdict>,
    /// Whether it was charged: it was allowed, as were all others of its command but those of a
    /// dry run.
    pub is_charged: bool,
    /// The effect of the verdict on the request.
    pub effect: Effect,
    /// The node that was sent the command, if one was.
    pub node: Option<NodeKey>,
    /// Redis's time of the charge in µs, if a reply has come.
    pub now: u64,
}

/// The parts of an answer that few charges have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The units that were set aside, for a charge with a lease.
    pub(super) granted: Option<Granted>,
    /// The quota of its own that the client was charged by.
    pub(super) own: Option<Override>,
    /// The verdict without the charge, which is given back if another command of the request rejects it.
    pub(super) unspent: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// For its commands.
    #[default]
    Waiting,
    /// The outcome is known.
    Done,
    /// The request is released. What its commands still charge is refunded.
    Released,
}

impl Recycle for Request {
    fn recycle(&mut self) {
        self.answers.clear();
        self.rare.clear();
        self.state = None;
        self.open = 0;
        self.stage = RequestStage::Waiting;
        self.command = None;
        self.error = None;
    }
}

impl Request {
    /// Whether it waits for its commands.
    pub(super) fn is_waiting(&self) -> bool {
        self.stage == RequestStage::Waiting
    }

    /// All its commands are on their way, or have an outcome already; they are `saved` fewer than its
    /// `charges`. Returns whether all have an outcome.
    pub(super) fn on_dispatched(&mut self, charges: u32, saved: u32) -> bool {
        self.open = self.open.saturating_sub(saved).saturating_sub(1);
        if charges.saturating_sub(saved) > 1 {
            self.command = None;
        }
        if self.open == 0 {
            self.finish();
        }
        self.open == 0
    }

    /// So many of its charges were sent to `node`.
    pub(super) fn on_sent(&mut self, first: usize, count: usize, node: NodeKey) {
        for answer in self.answers.iter_mut().skip(first).take(count) {
            answer.node = Some(node);
        }
    }

    /// The verdicts on its charges from the one at `first` have come from `node`, where it was `now`.
    pub(super) fn on_verdicts(
        &mut self,
        first: usize,
        verdicts: &[Verdict],
        node: NodeKey,
        now: u64,
    ) {
        let note = |answer: &mut Answer, verdict: &Verdict, passes: bool| {
            answer.verdict = Some(*verdict);
            answer.is_charged = passes && verdict.allowed;
            answer.node = Some(node);
            answer.now = now;
        };
        // Most commands have one charge.
        if let ([verdict], Some(answer)) = (verdicts, self.answers.get_mut(first)) {
            return note(answer, verdict, true);
        }
        let passes = self.passes(first, verdicts);
        for (answer, verdict) in self.answers.iter_mut().skip(first).zip(verdicts) {
            note(answer, verdict, passes);
        }
    }

    /// Whether the limits of its charges from the one at `first` let it pass with these verdicts.
    pub(super) fn passes(&self, first: usize, verdicts: &[Verdict]) -> bool {
        let mut answers = self.answers.iter().skip(first).zip(verdicts);
        answers.all(|(answer, verdict)| answer.effect.lets_pass(verdict))
    }

    /// One more of its commands has an outcome. Returns whether it is complete with that, and not released.
    pub(super) fn on_outcome(&mut self) -> bool {
        self.open = self.open.saturating_sub(1);
        let is_complete = self.open == 0 && self.stage == RequestStage::Waiting;
        if is_complete {
            self.finish();
        }
        is_complete
    }

    /// It waits no longer, and its outcome is known. What failed does not matter if one limit rejects it, or if all
    /// have a verdict but those of a dry run, and there are others.
    pub(super) fn finish(&mut self) {
        self.stage = RequestStage::Done;
        if self.error.is_some() && (self.is_rejected() || self.is_decided_by_enforced()) {
            self.error = None;
        }
    }

    fn is_rejected(&self) -> bool {
        let rejects = |answer: &Answer| {
            answer.verdict.is_some_and(|verdict| !answer.effect.lets_pass(&verdict))
        };
        self.answers.iter().any(rejects)
    }

    /// Whether there are limits that are no dry run, and all of them have a verdict.
    fn is_decided_by_enforced(&self) -> bool {
        let mut enforced =
            self.answers.iter().filter(|answer| answer.effect == Effect::Enforced).peekable();
        enforced.peek().is_some() && enforced.all(|answer| answer.verdict.is_some())
    }

    /// Notes why one of its commands has no reply, while it waits. The first reason is the one to be shown.
    pub(super) fn on_error(&mut self, error: Error) {
        if self.is_waiting() {
            self.error.get_or_insert(error);
        }
    }

    /// Its outcome, once that is known: one limit's rejection is enough, else all must have answered. A reply that
    /// comes later does not change it.
    pub(super) fn outcome(&self) -> Option<Result<(), Error>> {
        let is_known = self.stage == RequestStage::Done;
        is_known.then(|| self.error.map_or(Ok(()), Err))
    }
}
