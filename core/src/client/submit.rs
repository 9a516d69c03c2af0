//! From a request to commands, and to the queue of a connection.

use super::coalescer::longest_hold;
use super::command::{Charge, Command, Member, Purpose, Settlement, Stage};
use super::in_flight::Owner;
use super::key::{CommandKey, ConnectionKey, NodeKey, RequestKey};
use super::request::{self, Answer, Error, Request};
use super::timers::Due;
use super::{Action, Client, MAX_WAITING};
use crate::decision::Verdict;
use crate::lease::{Granted, Lease};
use crate::metrics::ErrorKind;
use crate::redis::cluster::slot;

/// The interface for requests.
impl Client {
    /// Charges a request, all charges at once and all or nothing as far as they can be in one command.
    /// It waits for at most `timeout` µs from the end of this turn. The [outcome](Self::outcome) may
    /// be known at once; else an [`Action::Complete`] follows. The request must be
    /// [released](Self::release) in the end.
    pub fn submit(&mut self, charges: &[Charge<'_>], timeout: u64, now: u64) -> RequestKey {
        let is_overload = self.requests.len() >= MAX_WAITING;
        let key = self.requests.reuse();
        let most = u32::try_from(charges.len()).unwrap_or(u32::MAX);
        if let Some(request) = self.requests.get_mut(key) {
            let unanswered =
                |charge: &Charge<'_>| Answer { dry_run: charge.dry_run, ..Answer::default() };
            // Many requests may wait: there is room for one answer to each charge, and no more.
            request.answers.reserve_exact(charges.len());
            request.answers.extend(charges.iter().map(unanswered));
            // Until all commands are on their way it has no outcome. They are as many as the charges, or
            // fewer.
            request.open = most.saturating_add(1);
        }
        let (mut first, mut saved) = (0, most);
        let mut left = charges;
        while !left.is_empty() {
            let (group, others) = self.split_command(left);
            left = others;
            let member = Member { request: key, first, timeout };
            first = first.saturating_add(group.len());
            saved = saved.saturating_sub(1);
            match is_overload {
                true => self.turn_away(group, member),
                false => self.dispatch(group, member, now),
            }
        }
        if let Some(request) = self.requests.get_mut(key)
            && !request.on_dispatched(most, saved)
        {
            self.waiting.deadlines.push(key, timeout);
            self.agenda.end_turn();
        }
        key
    }

    /// The first of these charges, which can be in one command, and the others. Most requests have one
    /// charge, and nothing is compared for it.
    fn split_command<'a, 'b>(
        &self,
        charges: &'a [Charge<'b>],
    ) -> (&'a [Charge<'b>], &'a [Charge<'b>]) {
        if !self.has_slots || charges.len() == 1 {
            return (charges, &[]);
        }
        let slot = charges.first().map(key_slot);
        let is_other = |charge: &Charge<'_>| Some(key_slot(charge)) != slot;
        charges.split_at(charges.iter().position(is_other).unwrap_or(charges.len()))
    }

    /// What came of a request, once that is known.
    pub fn outcome(&self, key: RequestKey) -> Option<Result<(), Error>> {
        self.requests.get(key)?.outcome()
    }

    /// What became of each charge of a request, in their order.
    pub fn answers(&self, key: RequestKey) -> &[Answer] {
        self.requests.get(key).map_or(&[], |request| &request.answers)
    }

    /// What came of the lease of a charge of a request, if a reply has come.
    pub fn granted(&self, key: RequestKey, charge: usize) -> Granted {
        let Some(request) = self.requests.get(key) else { return Granted::default() };
        let now = request.answers.get(charge).map_or(0, |answer| answer.now);
        let granted = request.rare.get(charge).and_then(|rare| rare.granted);
        granted.unwrap_or(Granted::nothing(now))
    }

    /// The verdict on a charge of a request if it is given back, as another command rejects the request.
    pub fn unspent(&self, key: RequestKey, charge: usize) -> Option<Verdict> {
        self.requests.get(key)?.rare.get(charge)?.unspent
    }

    /// Forgets a request. What was not sent will not be. What is in flight is charged, unless `refund`
    /// says that it is to be given back as soon as its reply shows that it was.
    pub fn release(&mut self, key: RequestKey, refund: bool) {
        let Some(request) = self.requests.get_mut(key) else { return };
        if refund && request.open > 0 {
            request.stage = request::RequestStage::Released;
            self.released = self.released.saturating_add(1);
        } else {
            let command = request.command;
            self.requests.remove(key);
            command.into_iter().for_each(|command| self.forget_command(command, key));
        }
    }

    /// Forgets a command in flight for which no request but this one waits: its reply will be discarded.
    fn forget_command(&mut self, key: CommandKey, request: RequestKey) {
        let is_unneeded = |command: &Command| {
            let is_in_flight = matches!(command.stage, Stage::InFlight { .. });
            // It may have been sent without the request, for others.
            let is_only = matches!(command.members[..], [ref only] if only.request == request);
            is_in_flight && is_only && command.follower.is_none()
        };
        if self.commands.get(key).is_some_and(is_unneeded) {
            self.commands.remove(key);
        }
    }

    /// Gives back what was charged, which can have been regained since `since`: see
    /// [`Algorithm::regained_from`](crate::limit::Algorithm::regained_from). No request waits for it, and it
    /// is sent once.
    pub fn refund(&mut self, charge: &Charge<'_>, since: u64, now: u64) {
        if charge.cost > 0 {
            self.send_once(charge, Purpose::Refund(since), now);
        }
    }

    /// Settles what was charged: charges or gives back the difference to what it has really cost.
    /// No request waits for it, and it is sent once. An [`Action::Settled`] follows.
    pub fn settle(&mut self, charge: &Charge<'_>, settlement: Settlement, now: u64) {
        let Settlement { change, tag, .. } = settlement;
        self.settling = self.settling.saturating_add(1);
        self.extend_grace(now);
        match change {
            0 => self.end_settlement(tag, true),
            _ => {
                let difference = Charge { cost: change.unsigned_abs(), ..*charge };
                self.send_once(&difference, Purpose::Settle(settlement), now);
            }
        }
    }

    pub(super) fn end_settlement(&mut self, tag: u64, is_settled: bool) {
        self.settling = self.settling.saturating_sub(1);
        self.agenda.push(Action::Settled { tag, is_settled });
    }

    fn send_once(&mut self, charge: &Charge<'_>, purpose: Purpose, now: u64) {
        let slot = self.slot_of(charge);
        let key = self.commands.reuse();
        if let Some(command) = self.commands.get_mut(key) {
            command.add(charge);
            command.purpose = purpose;
            command.slot = slot;
        }
        self.route(key, now);
    }
}

/// Commands.
impl Client {
    /// The slot of a charge; 0 where it makes no difference.
    fn slot_of(&self, charge: &Charge<'_>) -> u16 {
        match self.has_slots || self.connections_a_node > 1 {
            true => key_slot(charge),
            false => 0,
        }
    }

    /// One more command of a request has no outcome.
    pub(super) fn add_open(&mut self, key: RequestKey) {
        if let Some(request) = self.requests.get_mut(key) {
            request.open = request.open.saturating_add(1);
        }
    }

    /// Too many requests wait: one more is not sent.
    fn turn_away(&mut self, charges: &[Charge<'_>], member: Member) {
        let slot = charges.first().map_or(0, |first| self.slot_of(first));
        if let Some(node) = self.topology.route(slot) {
            self.count(node, |node| node.count_undecided(1));
            self.on_overload(node);
        }
        self.conclude(member, Err(Error::Overload));
    }

    fn on_overload(&mut self, node: NodeKey) {
        self.count_error(node, ErrorKind::Overload);
        self.warn(node, "has too many requests waiting".to_owned());
    }

    /// Puts charges into a command: into one that others share, or into a new one.
    fn dispatch(&mut self, charges: &[Charge<'_>], member: Member, now: u64) {
        let Some(first) = charges.first() else { return };
        let latest = if charges.len() == 1 { self.latest(first) } else { None };
        match latest {
            Some((latest, Stage::Unsent | Stage::Held)) => {
                self.join(latest, member, first.lease, now);
            }
            Some((latest, Stage::InFlight { busy: true })) => {
                let held = self.new_command(charges, member);
                self.hold(held, latest, member, now);
            }
            _ => {
                let command = self.new_command(charges, member);
                self.route(command, now);
            }
        }
    }

    /// The latest command about just this charge, if others may share it or what follows it, and its
    /// stage.
    fn latest(&self, charge: &Charge<'_>) -> Option<(CommandKey, Stage)> {
        let key = self.coalescer.latest(charge.digest)?;
        let command = self.commands.get(key)?;
        let is_shared =
            command.is_same(charge) && command.is_shareable() && command.follower.is_none();
        is_shared.then_some((key, command.stage))
    }

    /// A command for a request.
    fn new_command(&mut self, charges: &[Charge<'_>], member: Member) -> CommandKey {
        let slot = charges.first().map_or(0, |first| self.slot_of(first));
        let key = self.commands.reuse();
        if let Some(command) = self.commands.get_mut(key) {
            charges.iter().for_each(|charge| command.add(charge));
            command.join(member, charges.first().and_then(|first| first.lease));
            command.slot = slot;
            if let Some(request) = self.requests.get_mut(member.request) {
                request.command = Some(key);
            }
            if let [charge] = charges {
                self.coalescer.set_latest(charge.digest, key);
            }
        }
        key
    }

    /// Lets a request share a command that was not sent yet.
    fn join(&mut self, key: CommandKey, member: Member, lease: Option<&Lease>, now: u64) {
        let Some(mut command) = self.commands.get_mut(key) else { return };
        if command.is_full() {
            // Many may have come and gone while it waits for a connection.
            self.drop_gone(key);
            let Some(same) = self.commands.get_mut(key) else { return };
            command = same;
        }
        command.join(member, lease);
        if command.stage == Stage::Held {
            self.send_in_time(key, member, now);
        }
    }

    /// Keeps a command until the reply to the one before it.
    fn hold(&mut self, key: CommandKey, before: CommandKey, member: Member, now: u64) {
        if let Some(before) = self.commands.get_mut(before) {
            before.follower = Some(key);
        }
        if let Some(command) = self.commands.get_mut(key) {
            command.stage = Stage::Held;
            command.send_at = u64::MAX;
        }
        self.waiting.hold(key);
        self.send_in_time(key, member, now);
    }

    /// Has a held command sent in time for a request.
    fn send_in_time(&mut self, key: CommandKey, member: Member, now: u64) {
        let at = now.saturating_add(longest_hold(member.timeout));
        if let Some(command) = self.commands.get_mut(key)
            && at < command.send_at
        {
            command.send_at = at;
            self.agenda.advance_to(Due::Waiting, at);
        }
    }

    /// Sends the commands that were held for long enough.
    pub(super) fn release_held(&mut self, now: u64) {
        for key in self.waiting.take_held(&self.commands, now) {
            self.send_held(key, now);
        }
    }

    /// Sends a command, if it is held.
    pub(super) fn send_held(&mut self, key: CommandKey, now: u64) {
        if self.commands.get(key).is_some_and(|command| command.stage == Stage::Held) {
            self.route(key, now);
        }
    }
}

/// Nodes and connections.
impl Client {
    /// Sends a command to the node that it belongs to.
    pub(super) fn route(&mut self, key: CommandKey, now: u64) {
        let Some(slot) = self.commands.get(key).map(|command| command.slot) else { return };
        match self.topology.route(slot) {
            Some(node) => self.enqueue(key, node, false, now),
            None => self.park(key, Error::Down, now),
        }
    }

    /// Puts a command into the queue of a connection to `node`, behind an `ASKING` if need be.
    pub(super) fn enqueue(&mut self, key: CommandKey, node: NodeKey, is_asking: bool, now: u64) {
        let Some(command) = self.commands.get_mut(key) else { return };
        command.is_asking = is_asking;
        command.stage = Stage::Unsent;
        let slot = command.slot;
        match self.connection_for(node, slot) {
            Ok(connection) => self.push(connection, Owner::Command(key), now),
            Err(error) => self.refuse(key, node, error, now),
        }
    }

    /// The connection for a slot: so the commands about a key stay in order, and in one batch.
    fn connection_for(&self, node: NodeKey, slot: u16) -> Result<ConnectionKey, Error> {
        let node = self.nodes.get(node).filter(|node| !node.health.is_open());
        let connections = node.map_or(&[][..], |node| &node.connections);
        let start = usize::from(slot).checked_rem(connections.len()).unwrap_or(0);
        let (before, from) = connections.split_at(start);
        let mut error = Error::Down;
        for key in from.iter().chain(before) {
            match self.connections.get(*key) {
                Some(connection) if !connection.accepts() => {}
                Some(connection) if connection.queue.len() >= MAX_WAITING => {
                    error = Error::Overload;
                }
                Some(_) => return Ok(*key),
                None => {}
            }
        }
        Err(error)
    }

    /// A node takes no command now.
    fn refuse(&mut self, key: CommandKey, node: NodeKey, error: Error, now: u64) {
        match error {
            Error::Overload => self.on_overload(node),
            _ => {
                self.count_error(node, ErrorKind::Down);
                self.probe_refused(node, now);
            }
        }
        self.count_undecided(key, node);
        self.fail(key, error, now);
    }

    /// Adds something to the queue of a connection, and connects if need be.
    pub(super) fn push(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.queue.push(owner);
        if connection.is_idle() {
            self.connect(key, now);
        } else {
            self.flush_later(key);
        }
    }

    /// Has a connection flushed at the end of this turn, if it can send.
    pub(super) fn flush_later(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.is_ready() && !std::mem::replace(&mut connection.is_flush_due, true) {
            self.agenda.flush_later(key);
        }
    }
}

/// Outcomes.
impl Client {
    /// The requests that wait for a command were not decided by `node`.
    pub(super) fn count_undecided(&mut self, key: CommandKey, node: NodeKey) {
        let Some(command) = self.commands.get(key) else { return };
        let is_waiting = |member: &&Member| self.is_waiting(member.request);
        let count = command.members.iter().filter(is_waiting).count();
        if count > 0 {
            self.count(node, |node| node.count_undecided(count));
        }
    }

    /// Whether a request waits for its commands.
    pub(super) fn is_waiting(&self, key: RequestKey) -> bool {
        self.requests.get(key).is_some_and(Request::is_waiting)
    }

    /// No reply to a command will come.
    pub(super) fn fail(&mut self, key: CommandKey, error: Error, now: u64) {
        let Some(command) = self.commands.get_mut(key) else { return };
        let members = std::mem::take(&mut command.members);
        let (follower, purpose) = (command.follower, command.purpose);
        self.commands.remove(key);
        if let Purpose::Settle(Settlement { tag, .. }) = purpose {
            self.end_settlement(tag, false);
        }
        members.into_iter().for_each(|member| self.conclude(member, Err(error)));
        if let Some(follower) = follower {
            self.send_held(follower, now);
        }
    }

    /// A command of a request has an outcome; its verdicts are noted already.
    pub(super) fn conclude(&mut self, member: Member, outcome: Result<(), Error>) {
        let Some(request) = self.requests.get_mut(member.request) else { return };
        if let Err(error) = outcome {
            request.on_error(error);
        }
        if request.on_outcome() {
            self.agenda.push(Action::Complete(member.request));
        } else if request.open == 0 && request.stage == request::RequestStage::Released {
            self.requests.remove(member.request);
            self.released = self.released.saturating_sub(1);
        }
    }

    /// Forgets the deadlines of requests that are decided, as far as none before them waits.
    pub(super) fn forget_deadlines(&mut self) {
        let requests = &self.requests;
        self.waiting.deadlines.forget(|key| requests.get(key).is_some_and(Request::is_waiting));
    }

    /// Requests whose time is over are not decided.
    pub(super) fn expire_requests(&mut self, now: u64) {
        while let Some(key) = self.waiting.deadlines.next_expired(now) {
            if self.is_waiting(key) {
                self.expire(key);
            }
        }
    }

    fn expire(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get_mut(key) else { return };
        request.on_error(Error::Timeout);
        request.finish();
        let mut unanswered = Vec::new();
        for answer in request.answers.iter().filter(|answer| answer.verdict.is_none()) {
            if let Some(node) = answer.node.filter(|node| !unanswered.contains(node)) {
                unanswered.push(node);
            }
        }
        for node in unanswered {
            self.count_error(node, ErrorKind::Timeout);
            self.count(node, |node| node.count_undecided(1));
        }
        self.agenda.push(Action::Complete(key));
    }
}

fn key_slot(charge: &Charge<'_>) -> u16 {
    slot(charge.template.head(), charge.key)
}
