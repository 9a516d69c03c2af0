//! The requests, from their submission until they are released.

use super::agenda::Agenda;
use super::command::{Command, Member};
use super::key::{CommandKey, NodeKey, RequestEntries, RequestKey};
use super::request::{Answer, Error, Request, RequestStage};
use super::slab::Slab;
use super::{Action, MAX_WAITING, ROOM};
use crate::charge::Charge;
use crate::lease::Granted;
use crate::manage::ClientState;
use crate::redis::answer::Beside;

/// The requests.
#[derive(Debug)]
pub(super) struct Requests {
    slab: Slab<RequestEntries, Request>,
    /// How many were released while replies to their commands are still to come.
    released: usize,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { slab: Slab::with_room(ROOM), released: 0 }
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

    /// The lease that a reply has brought for a charge of a request, if one has come.
    pub(super) fn granted(&self, key: RequestKey, charge: usize) -> Granted {
        let Some(request) = self.get(key) else { return Granted::default() };
        let now = request.answers.get(charge).map_or(0, |answer| answer.now);
        let granted = request.rare.get(charge).and_then(|rare| rare.granted);
        granted.unwrap_or(Granted::nothing(now))
    }
}

/// Changes.
impl Requests {
    /// Adds a request. Until all its commands are on their way it has no outcome. They are as many as the
    /// charges, or fewer.
    #[inline]
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
        for member in &command.members {
            if let Some(request) = self.get_mut(member.request) {
                request.on_sent(member.first, command.len(), node);
            }
        }
    }

    /// A reply has brought `beside` with the verdict on a charge.
    pub(super) fn on_beside(&mut self, key: RequestKey, charge: usize, beside: &Beside) {
        let Beside { granted, own } = *beside;
        if let Some(request) = self.get_mut(key) {
            request.rare.update(charge, |rare| {
                rare.granted = granted.or(rare.granted);
                rare.own = own;
            });
        }
    }

    /// A reply has brought the state of a client.
    pub(super) fn on_state(&mut self, key: RequestKey, state: ClientState) {
        if let Some(request) = self.get_mut(key) {
            request.state = Some(Box::new(state));
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
