//! From a request to commands, and to the queue of a connection.

use super::agenda::Due;
use super::command::{Command, Member, Purpose, Settlement, Stage};
use super::commands::Ended;
use super::connection::ConnectionState;
use super::in_flight::Owner;
use super::requests::{Answer, Error};
use super::slab::{CommandKey, ConnectionKey, NodeKey, RequestKey};
use super::{Action, Client};
use crate::charge::Charge;
use crate::decision::Verdict;
use crate::lease::{Granted, Lease};
use crate::manage::{Change, ClientState};
use crate::metrics::ErrorKind;
use crate::overrides::Override;
use crate::redis::cluster::slot;

/// The interface for requests.
impl Client {
    /// Charges a request, all charges at once and all or nothing as far as they can be in one command.
    /// It waits for at most `timeout` µs from the end of this turn. The [outcome](Self::outcome) may
    /// be known at once; else an [`Action::Complete`] follows. The request must be
    /// [released](Self::release) in the end.
    pub fn submit(&mut self, charges: &[Charge<'_>], timeout: u64, now: u64) -> RequestKey {
        let is_overload = self.requests.is_full();
        let key = self.requests.begin(charges);
        let most = u32::try_from(charges.len()).unwrap_or(u32::MAX);
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
        self.on_dispatched(key, most, saved, timeout);
        key
    }

    /// All commands of a request are on their way, or have an outcome: unless all have, its time runs.
    #[inline(always)]
    fn on_dispatched(&mut self, key: RequestKey, charges: u32, saved: u32, timeout: u64) {
        if let Some(request) = self.requests.get_mut(key)
            && !request.on_dispatched(charges, saved)
        {
            self.waiting.deadlines.push(key, timeout);
            self.agenda.end_turn();
        }
    }

    /// Changes what the client of `charge` has, or looks at it: its cost, effect and lease do not matter. As with
    /// [`submit`](Self::submit) an outcome follows within `timeout` µs, then the [state](Self::state) is known, and the
    /// request must be released. What may have been changed is not changed again.
    pub fn manage(
        &mut self,
        charge: &Charge<'_>,
        change: Change,
        timeout: u64,
        now: u64,
    ) -> RequestKey {
        let is_overload = self.requests.is_full();
        let key = self.requests.begin(std::slice::from_ref(charge));
        let member = Member { request: key, first: 0, timeout };
        match is_overload {
            true => self.turn_away(std::slice::from_ref(charge), member),
            false => {
                let charge = Charge { lease: None, ..*charge };
                let slot = self.slot_of(&charge);
                let mut command = Command::new(&charge, Purpose::Manage(change), slot);
                command.members.push(member);
                self.send_new(command, now);
            }
        }
        self.on_dispatched(key, 1, 0, timeout);
        key
    }

    /// The state, after the change, of the client that a request [was about](Self::manage).
    pub fn state(&self, key: RequestKey) -> Option<ClientState> {
        self.requests.get(key)?.state.as_deref().copied()
    }

    /// The quota of its own by which the client of a charge was charged, if it has one.
    pub fn own(&self, key: RequestKey, charge: usize) -> Option<Override> {
        self.requests.get(key)?.rare.get(charge)?.beside.own
    }

    /// The first of these charges, which can be in one command, and the others. Most requests have one
    /// charge, and nothing is compared for it.
    fn split_command<'a, 'b>(
        &self,
        charges: &'a [Charge<'b>],
    ) -> (&'a [Charge<'b>], &'a [Charge<'b>]) {
        if !self.discovery.has_slots || charges.len() == 1 {
            return (charges, &[]);
        }
        let slot = charges.first().map(key_slot);
        let is_other = |charge: &Charge<'_>| Some(key_slot(charge)) != slot;
        charges.split_at(charges.iter().position(is_other).unwrap_or(charges.len()))
    }

    /// The outcome of a request, once there is one.
    pub fn outcome(&self, key: RequestKey) -> Option<Result<(), Error>> {
        self.requests.get(key)?.outcome()
    }

    /// The answers to the charges of a request, in their order.
    pub fn answers(&self, key: RequestKey) -> &[Answer] {
        self.requests.get(key).map_or(&[], |request| &request.answers)
    }

    /// The lease that a reply has brought for a charge of a request, if one has come.
    pub fn granted(&self, key: RequestKey, charge: usize) -> Granted {
        let Some(request) = self.requests.get(key) else { return Granted::default() };
        let now = request.answers.get(charge).map_or(0, |answer| answer.now);
        let granted = request.rare.get(charge).and_then(|rare| rare.beside.granted);
        granted.unwrap_or(Granted::nothing(now))
    }

    /// The verdict on a charge of a request if it is given back, as another command rejects the request.
    pub fn unspent(&self, key: RequestKey, charge: usize) -> Option<Verdict> {
        self.requests.get(key)?.rare.get(charge)?.unspent
    }

    /// Forgets a request. What was not sent will not be. What is in flight is charged, unless `refund`
    /// says that it is to be given back as soon as its reply shows that it was.
    pub fn release(&mut self, key: RequestKey, refund: bool) {
        self.check_done();
        if let Some(command) = self.requests.release(key, refund) {
            self.commands.forget(command, key);
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

    /// A charge is a reservation: [`settle`](Self::settle) or [`stand`](Self::stand) follows.
    pub fn reserve(&mut self) {
        self.leaving.on_reserved();
    }

    /// A reservation stands as it was charged.
    pub fn stand(&mut self) {
        self.leaving.on_reservation_ended();
        self.check_done();
    }

    /// Settles what was [reserved](Self::reserve): charges or gives back the difference to what it has really cost.
    /// No request waits for it, and it is sent once. An [`Action::Settled`] follows.
    pub fn settle(&mut self, charge: &Charge<'_>, settlement: Settlement, now: u64) {
        let Settlement { change, tag, .. } = settlement;
        self.check_done();
        self.leaving.on_settling(now, &mut self.agenda);
        match change {
            0 => self.leaving.on_settled(tag, true, &mut self.agenda),
            _ => {
                let difference = Charge { cost: change.unsigned_abs(), ..*charge };
                self.send_once(&difference, Purpose::Settle(settlement), now);
            }
        }
    }

    fn send_once(&mut self, charge: &Charge<'_>, purpose: Purpose, now: u64) {
        self.send_new(Command::new(charge, purpose, self.slot_of(charge)), now);
    }
}

/// Commands.
impl Client {
    /// The slot of a charge; 0 where it makes no difference.
    fn slot_of(&self, charge: &Charge<'_>) -> u16 {
        match self.discovery.has_slots || self.pool.nodes.config.connections > 1 {
            true => key_slot(charge),
            false => 0,
        }
    }

    /// Too many requests wait: one more is not sent.
    #[cold]
    fn turn_away(&mut self, charges: &[Charge<'_>], member: Member) {
        let slot = charges.first().map_or(0, |first| self.slot_of(first));
        if let Some(node) = self.discovery.route(slot) {
            self.pool.count_undecided(node, 1, &mut self.agenda);
            self.on_overload(node);
        }
        self.requests.conclude(member, Err(Error::Overload), &mut self.agenda);
    }

    fn on_overload(&mut self, node: NodeKey) {
        self.count_error(node, ErrorKind::Overload);
        self.warn(node, "has too many requests waiting".to_owned());
    }

    /// Puts charges into a command: into one that others share, or into a new one.
    fn dispatch(&mut self, charges: &[Charge<'_>], member: Member, now: u64) {
        let Some(first) = charges.first() else { return };
        let latest = if charges.len() == 1 { self.commands.latest(first) } else { None };
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

    fn new_command(&mut self, charges: &[Charge<'_>], member: Member) -> CommandKey {
        let slot = charges.first().map_or(0, |first| self.slot_of(first));
        self.commands.add(charges, member, slot, &mut self.requests)
    }

    /// Lets a request share a command that was not sent yet.
    fn join(&mut self, key: CommandKey, member: Member, lease: Option<&Lease>, now: u64) {
        let stage = self.commands.join(key, member, lease, &mut self.requests, &mut self.agenda);
        if stage == Some(Stage::Held) {
            self.send_in_time(key, member, now);
        }
    }

    /// Keeps a command until the reply to the one before it.
    fn hold(&mut self, key: CommandKey, before: CommandKey, member: Member, now: u64) {
        self.commands.hold(key, before);
        self.waiting.hold(key);
        self.send_in_time(key, member, now);
    }

    /// Has a held command sent in time for a request.
    #[inline(never)]
    fn send_in_time(&mut self, key: CommandKey, member: Member, now: u64) {
        if let Some(at) = self.commands.send_in_time(key, member, now) {
            self.agenda.advance_to(Due::Waiting, at);
        }
    }

    /// Sends the commands that were held for long enough.
    pub(super) fn release_held(&mut self, now: u64) {
        for key in self.waiting.take_held(&self.commands, now) {
            self.send_held(key, now);
        }
    }

    pub(super) fn send_held(&mut self, key: CommandKey, now: u64) {
        if self.commands.stage(key) == Some(Stage::Held) {
            self.route(key, now);
        }
    }
}

/// Nodes and connections.
impl Client {
    pub(super) fn send_new(&mut self, command: Command, now: u64) {
        let key = self.commands.insert(command);
        self.route(key, now);
    }

    /// Sends a command to the node that it belongs to.
    pub(super) fn route(&mut self, key: CommandKey, now: u64) {
        let Some(slot) = self.commands.get(key).map(|command| command.slot) else { return };
        match self.discovery.route(slot) {
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
        match self.pool.connection_for(node, slot) {
            Ok(connection) => self.push(connection, Owner::Command(key), now),
            Err(error) => self.refuse(key, node, error, now),
        }
    }

    /// A node takes no command now.
    fn refuse(&mut self, key: CommandKey, node: NodeKey, error: Error, now: u64) {
        match error {
            Error::Overload => self.on_overload(node),
            _ => {
                self.probe_refused(node, now);
                if self.is_patient(key) {
                    self.connect_before_grace_ends(key, node, now);
                    return self.retry_later(key, now);
                }
                self.count_error(node, ErrorKind::Down);
            }
        }
        self.count_undecided(key, node);
        self.fail(key, error, now);
    }

    /// A settlement for which no connection would be tried before the worker has left has one tried now, once.
    fn connect_before_grace_ends(&mut self, key: CommandKey, node: NodeKey, now: u64) {
        let is_first = self.commands.get(key).is_some_and(|command| command.retries == 0);
        let Some(node) = self.pool.nodes.get(node).filter(|_| is_first) else { return };
        let grace = self.leaving.grace();
        let is_too_late = |key: &&ConnectionKey| {
            let connection = self.pool.connections.get(**key);
            connection.is_some_and(|it| it.state == ConnectionState::Down && it.timer > grace)
        };
        if let Some(key) = node.connections.iter().find(is_too_late) {
            self.connect(*key, now);
        }
    }

    /// Whether a command that was not sent is tried again, although no node takes it: a settlement, if the worker is
    /// leaving and still waits for it. Nobody waits for that besides, and nothing comes after it.
    pub(super) fn is_patient(&self, key: CommandKey) -> bool {
        let command = self.commands.get(key).filter(|_| self.leaving.grace().is_some());
        command.is_some_and(|command| matches!(command.purpose, Purpose::Settle(_)))
    }

    /// Adds something to the queue of a connection, and connects if need be.
    #[inline(always)]
    pub(super) fn push(&mut self, key: ConnectionKey, owner: Owner, now: u64) {
        let Some(connection) = self.pool.connections.get_mut(key) else { return };
        connection.queue.push(owner);
        if connection.is_idle() {
            self.connect(key, now);
        } else {
            self.pool.flush_later(key, &mut self.agenda);
        }
    }
}

/// Outcomes.
impl Client {
    /// The requests that wait for a command were not decided by `node`.
    pub(super) fn count_undecided(&mut self, key: CommandKey, node: NodeKey) {
        let count = self.commands.awaiting(key, &self.requests);
        self.pool.count_undecided(node, count, &mut self.agenda);
    }

    /// A command ends without a reply: that is lost, or the command is not sent.
    pub(super) fn fail(&mut self, key: CommandKey, error: Error, now: u64) {
        let Some(Ended { members, purpose, follower }) = self.commands.take(key) else { return };
        if let Purpose::Settle(Settlement { tag, .. }) = purpose {
            self.leaving.on_settled(tag, false, &mut self.agenda);
        }
        for member in members {
            self.requests.conclude(member, Err(error), &mut self.agenda);
        }
        if let Some(follower) = follower {
            self.send_held(follower, now);
        }
    }

    /// Requests whose time is over are not decided.
    pub(super) fn expire_requests(&mut self, now: u64) {
        while let Some(key) = self.waiting.deadlines.next_expired(now) {
            if self.requests.is_waiting(key) {
                self.expire(key);
            }
        }
    }

    fn expire(&mut self, key: RequestKey) {
        for node in self.requests.expire(key) {
            self.count_error(node, ErrorKind::Timeout);
            self.pool.count_undecided(node, 1, &mut self.agenda);
        }
        self.agenda.push(Action::Complete(key));
    }
}

fn key_slot(charge: &Charge<'_>) -> u16 {
    slot(charge.template.head(), charge.key)
}
