//! The requests, from their submission until they are released: each of them, and all.

use smallvec::SmallVec;

use super::agenda::Agenda;
use super::command::{Command, Member};
use super::slab::{CommandKey, NodeKey, Recycle, RequestKey, Slab, Sparse};
use super::{Action, MAX_WAITING, PREALLOCATED};
use crate::charge::{Charge, Effect};
use crate::decision::Verdict;
use crate::manage::ClientState;
use crate::redis::answer::Beside;

#[derive(Debug)]
pub(super) struct Requests {
    slab: Slab<Request>,
    /// How many were released while replies to their commands are still to come.
    released: usize,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { slab: Slab::with_room(PREALLOCATED), released: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.len() == 0
    }

    /// Whether no more may wait.
    pub(super) fn is_full(&self) -> bool {
        self.slab.len() >= MAX_WAITING
    }

    /// How many were submitted and not released.
    pub(super) fn unreleased(&self) -> usize {
        self.slab.len().saturating_sub(self.released)
    }

    /// How many were released while replies to their commands are still to come.
    pub(super) fn released(&self) -> usize {
        self.released
    }

    pub(super) fn get(&self, key: RequestKey) -> Option<&Request> {
        self.slab.get(key)
    }

    pub(super) fn get_mut(&mut self, key: RequestKey) -> Option<&mut Request> {
        self.slab.get_mut(key)
    }

    /// Whether a request waits for its commands.
    pub(super) fn is_waiting(&self, key: RequestKey) -> bool {
        self.get(key).is_some_and(Request::is_waiting)
    }
}

/// Changes.
impl Requests {
    /// Adds a request. Until all its commands are on their way it has no outcome. They are as many as the
    /// charges, or fewer.
    #[inline(always)]
    pub(super) fn begin(&mut self, charges: &[Charge<'_>]) -> RequestKey {
        let key = self.slab.reuse();
        if let Some(request) = self.slab.get_mut(key) {
            let unanswered =
                |charge: &Charge<'_>| Answer { effect: charge.effect, ..Answer::default() };
            match charges {
                // Most requests have one charge.
                [charge] => request.answers.push(unanswered(charge)),
                // Many requests may wait: there is room for one answer to each charge, and no more.
                _ => {
                    request.answers.reserve_exact(charges.len());
                    request.answers.extend(charges.iter().map(unanswered));
                }
            }
            request.open = u32::try_from(charges.len()).unwrap_or(u32::MAX).saturating_add(1);
        }
        key
    }

    /// One more command of a request has no outcome.
    pub(super) fn add_open(&mut self, key: RequestKey) {
        if let Some(request) = self.get_mut(key) {
            request.open = request.open.saturating_add(1);
        }
    }

    /// A command was sent to `node` for its members.
    pub(super) fn on_sent(&mut self, command: &Command, node: NodeKey) {
        self.each_answer(command, |answer| (answer.node, answer.may_have_run) = (Some(node), true));
    }

    /// A command that was sent has not run.
    pub(super) fn on_not_run(&mut self, command: &Command) {
        self.each_answer(command, |answer| answer.may_have_run = false);
    }

    /// Changes the answers to the charges of a command's members.
    fn each_answer(&mut self, command: &Command, change: impl Fn(&mut Answer)) {
        for member in &command.members {
            if let Some(request) = self.get_mut(member.request) {
                request.answers.iter_mut().skip(member.first).take(command.len()).for_each(&change);
            }
        }
    }

    /// A reply has brought `beside` with the verdict on a charge.
    pub(super) fn on_beside(&mut self, key: RequestKey, charge: usize, beside: &Beside) {
        if let Some(request) = self.get_mut(key) {
            request.rare.update(charge, |rare| {
                let granted = beside.granted.or(rare.beside.granted);
                rare.beside = Beside { granted, ..*beside };
            });
        }
    }

    /// A command of a request has an outcome; its verdicts are noted already.
    pub(super) fn conclude(
        &mut self,
        member: Member,
        outcome: Result<(), Error>,
        agenda: &mut Agenda,
    ) {
        let Some(request) = self.slab.get_mut(member.request) else { return };
        if let Err(error) = outcome {
            request.on_error(error);
        }
        if request.on_outcome() {
            agenda.push(Action::Complete(member.request));
        } else if request.open == 0 && request.stage == RequestStage::Released {
            self.slab.remove(member.request);
            self.released = self.released.saturating_sub(1);
        }
    }

    /// The time of a request is over: it is not decided. Returns the nodes that have not answered it.
    pub(super) fn expire(&mut self, key: RequestKey) -> Vec<NodeKey> {
        let Some(request) = self.get_mut(key) else { return Vec::new() };
        request.on_error(Error::Timeout);
        request.finish();
        let mut unanswered = Vec::new();
        for answer in request.answers.iter().filter(|answer| answer.verdict.is_none()) {
            if let Some(node) = answer.node.filter(|node| !unanswered.contains(node)) {
                unanswered.push(node);
            }
        }
        unanswered
    }

    /// Forgets a request; with a `refund` not before all its commands have an outcome. Returns its command,
    /// if it is forgotten now and had only one.
    pub(super) fn release(&mut self, key: RequestKey, refund: bool) -> Option<CommandKey> {
        let request = self.slab.get_mut(key)?;
        if refund && request.open > 0 {
            request.stage = RequestStage::Released;
            self.released = self.released.saturating_add(1);
            return None;
        }
        let command = request.command;
        self.slab.remove(key);
        command
    }
}

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
    /// Whether it may have run the command, so that it is never to be sent again.
    pub may_have_run: bool,
    /// Redis's time of the charge in µs, if a reply has come.
    pub now: u64,
}

/// The parts of an answer that few charges have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The granted lease and the override, which come with the verdict.
    pub(super) beside: Beside,
    /// The verdict without the charge, which is given back if another command of the request rejects it.
    pub(super) unspent: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// The request waits for its commands.
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

    /// Whether it was not decided in time.
    pub(super) fn is_undecided(&self) -> bool {
        self.error.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with so many commands that have no outcome.
    fn begun(requests: &mut Requests, commands: u32) -> RequestKey {
        let key = requests.begin(&[]);
        (0..commands).for_each(|_| requests.add_open(key));
        requests.get_mut(key).unwrap().on_dispatched(commands, 0);
        key
    }

    fn member(request: RequestKey) -> Member {
        Member { request, first: 0, timeout: 0 }
    }

    #[test]
    fn a_request_has_an_outcome_when_all_its_commands_have() {
        let (mut requests, mut agenda) = (Requests::new(), Agenda::default());
        let key = begun(&mut requests, 2);
        requests.conclude(member(key), Ok(()), &mut agenda);
        assert!(requests.is_waiting(key) && agenda.poll().is_none());
        requests.conclude(member(key), Err(Error::Lost), &mut agenda);
        assert_eq!(agenda.poll(), Some(Action::Complete(key)));
        assert_eq!(requests.get(key).unwrap().outcome(), Some(Err(Error::Lost)));
        requests.release(key, true);
        assert!(requests.is_empty());
    }

    #[test]
    fn a_request_that_is_to_be_refunded_stays_until_its_last_reply() {
        let (mut requests, mut agenda) = (Requests::new(), Agenda::default());
        let key = begun(&mut requests, 1);
        requests.get_mut(key).unwrap().command = Some(CommandKey::new(7, 1));
        assert_eq!(requests.release(key, true), None, "the command is still needed");
        assert_eq!((requests.unreleased(), requests.released()), (0, 1));
        requests.conclude(member(key), Ok(()), &mut agenda);
        assert!(requests.is_empty() && requests.released() == 0 && agenda.poll().is_none());
        let key = begun(&mut requests, 1);
        requests.get_mut(key).unwrap().command = Some(CommandKey::new(7, 1));
        assert_eq!(requests.release(key, false), Some(CommandKey::new(7, 1)));
        assert!(requests.is_empty());
    }

    #[test]
    fn nodes_that_have_not_answered_in_time_are_named_once() {
        let mut requests = Requests::new();
        let key = begun(&mut requests, 3);
        let nodes = [0, 1].map(|index| NodeKey::new(index, 1));
        let unanswered = [Some(nodes[1]), None, Some(nodes[0]), Some(nodes[1])];
        let answers = unanswered.map(|node| Answer { node, ..Answer::default() });
        requests.get_mut(key).unwrap().answers.extend(answers);
        assert_eq!(requests.expire(key), [nodes[1], nodes[0]]);
        assert_eq!(requests.get(key).unwrap().outcome(), Some(Err(Error::Timeout)));
        requests.release(key, false);
        assert_eq!(requests.expire(key), []);
    }
}
