//! Replies, and what follows from them.

use super::command::{Member, Purpose, Settlement};
use super::connection::{Fault, Incoming};
use super::handshake::Step;
use super::in_flight::{Owner, Sent};
use super::key::{CommandKey, ConnectionKey, NodeKey};
use super::node::Role;
use super::request::{self, Error};
use super::timers::Due;
use super::{Action, Client, Level};
use crate::decision::Verdict;
use crate::metrics::{AttemptResult, ErrorKind};
use crate::rate::MILLISECOND;
use crate::redis::cluster::{MAX_NODES, Redirect};
use crate::redis::reply::{Refusal, RefusalKind, Reply, ScriptReply};
use crate::redis::script::By;
use crate::text::log::Escaped;

/// How often a command may be sent on to another node.
const MAX_MOVES: u8 = 5;

/// Receiving.
impl Client {
    /// Where to put received bytes; empty if there is no such connection.
    pub fn space(&mut self, key: ConnectionKey) -> &mut [u8] {
        let Self { connections, input, .. } = self;
        connections.get_mut(key).map_or(&mut [], |connection| connection.space(input))
    }

    /// `count` bytes were put into the [`space`](Self::space). Returns false if the
    /// connection was lost because of them: nothing more is to be read from it.
    pub fn on_received(&mut self, key: ConnectionKey, count: usize, now: u64) -> bool {
        let open = self.connections.get_mut(key).filter(|connection| connection.is_open());
        let Some(connection) = open else { return false };
        let input = connection.on_received(count, &mut self.input, now);
        let result = self.read_replies(key, &input, now);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.put_back(input, &mut self.input);
        }
        if let Err(fault) = result {
            self.on_lost(key, &fault, now);
            return false;
        }
        let is_leaving = self.is_leaving;
        if let Some(mut link) = self.link(key) {
            link.recount();
            if is_leaving {
                link.close_if_quiet();
            }
        }
        true
    }

    /// Reads the replies that are complete. If one shows that the server is unfit, those behind it still
    /// decide.
    fn read_replies(&mut self, key: ConnectionKey, input: &[u8], now: u64) -> Result<(), Fault> {
        let mut fitness = Ok(());
        while let Some(connection) = self.connections.get_mut(key)
            && let Some(frame) = connection.next_frame(input)?
        {
            // Before its owner is taken from the queue: if this fails, the owner is lost with others.
            let reply = connection.parse(frame)?;
            match connection.on_reply(&reply, now)? {
                Incoming::Step(step, is_last) => self.on_step(key, step, is_last, &reply, now),
                Incoming::Message => {
                    let node = connection.node;
                    self.on_message(&reply, node, now);
                }
                Incoming::Reply(sent, was_overdue) => {
                    let node = connection.node;
                    fitness = fitness.and(self.on_reply(sent, was_overdue, &reply, node, now));
                }
            }
        }
        fitness
    }

    /// A step of the handshake is answered, which may have been the last.
    #[cold]
    fn on_step(
        &mut self,
        key: ConnectionKey,
        step: Step,
        is_last: bool,
        reply: &Reply<'_>,
        now: u64,
    ) {
        let Some(connection) = self.connections.get(key) else { return };
        let (node_key, took) = (connection.node, connection.age(now));
        let Some(node) = self.nodes.get_mut(node_key) else { return };
        node.abilities.on_reply(step, reply);
        let is_sentinel = node.role == Role::Sentinel;
        if is_last {
            node.on_ready(took);
            self.agenda.push(Action::Attempted(node_key, AttemptResult::Ready));
            self.log_missing(node_key);
            if is_sentinel {
                self.on_sentinel_connected(key, now);
            }
            self.flush_later(key);
        } else if self.connections.get(key).is_some_and(|connection| !connection.is_flushed()) {
            self.agenda.push(Action::Send(key));
        }
    }

    /// Logs, once, what is left out of the handshakes with a node.
    fn log_missing(&mut self, key: NodeKey) {
        let Some(node) = self.nodes.get_mut(key) else { return };
        let missing = node.abilities.missing();
        let logged = std::mem::replace(&mut node.logged_missing, missing.len());
        if missing.len() > logged {
            let (name, missing) = (node.name(), missing.join(", "));
            let line = format!("redis {name} does not accept {missing}: it is done without");
            self.agenda.push(Action::Log(Level::Notice, line));
        }
    }

    fn on_reply(
        &mut self,
        sent: Sent,
        was_overdue: bool,
        reply: &Reply<'_>,
        node: NodeKey,
        now: u64,
    ) -> Result<(), Fault> {
        if was_overdue {
            self.check_slowness(node);
            if self.nodes.get(node).is_some_and(|node| node.silences > 0) {
                self.on_patience_changed();
            }
        }
        match sent.owner {
            Owner::Command(key) => {
                self.check_patience(key, &sent, node, now);
                return self.on_command_reply(key, reply, node, was_overdue, now);
            }
            Owner::Probe => self.on_probe_reply(node, was_overdue),
            Owner::Topology(number) => {
                let result = self.on_query_reply(number, reply, node, now);
                self.agenda.push(Action::Queried(node, result));
            }
            Owner::Asking | Owner::Subscription => {}
        }
        Ok(())
    }

    /// A server that answers in time for some requests is too slow for others: that is no failure of
    /// the server, but of a timeout. If a request still waits, the reply came in time, and the worker was
    /// late to read it.
    fn check_patience(&mut self, key: CommandKey, sent: &Sent, node: NodeKey, now: u64) {
        let wait = now.saturating_sub(sent.at);
        if wait <= u64::from(sent.timeout) || sent.timeout == 0 || wait >= self.patience {
            return;
        }
        let members = self.commands.get(key).map_or(&[][..], |command| &command.members);
        if members.iter().any(|member| self.is_waiting(member.request)) {
            return;
        }
        let (wait, timeout) = (wait.div_ceil(MILLISECOND), u64::from(sent.timeout) / MILLISECOND);
        self.warn(
            node,
            format!("answered after {wait} ms: a timeout of {timeout} ms is too short for it"),
        );
    }
}

/// Replies to commands about limits.
impl Client {
    fn on_command_reply(
        &mut self,
        key: CommandKey,
        reply: &Reply<'_>,
        node: NodeKey,
        was_overdue: bool,
        now: u64,
    ) -> Result<(), Fault> {
        match reply {
            Reply::Error(refusal) => return self.on_refused(key, refusal, node, now),
            Reply::Script(found) => {
                if !was_overdue {
                    self.on_answered(node);
                }
                if !self.read_verdicts(key, found, node, now) {
                    self.on_misunderstood(key, node, now);
                }
            }
            Reply::Other(_) => self.on_misunderstood(key, node, now),
        }
        Ok(())
    }

    /// Reads the verdicts of a command, which ends with that. `false` if they are not of this command.
    fn read_verdicts(
        &mut self,
        key: CommandKey,
        found: &ScriptReply<'_>,
        node: NodeKey,
        now: u64,
    ) -> bool {
        if self.has_slots {
            self.note_unspent(key, found);
        }
        let Some(command) = self.commands.get_mut(key) else { return true };
        let charged_at = found.now();
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let requests = &mut self.requests;
        let is_understood =
            command.read(found.clone(), &mut verdicts, |request, charge, granted| {
                if let Some(request) = requests.get_mut(request) {
                    request.rare.update(charge, |rare| rare.granted = Some(granted));
                }
            });
        if is_understood && command.purpose != Purpose::Charge {
            if let Purpose::Settle(Settlement { tag, .. }) = command.purpose {
                self.end_settlement(tag, true);
            }
            self.commands.remove(key);
        } else if is_understood {
            let (count, members) = (command.len(), std::mem::take(&mut command.members));
            for (member, verdicts) in members.iter().zip(verdicts.chunks(count)) {
                self.on_verdicts(key, *member, verdicts, node, charged_at, now);
            }
            self.end_command(key, members, now);
        }
        self.verdicts = verdicts;
        is_understood
    }

    /// Keeps what the limits of a command hold without its charges, for requests that have others: these may
    /// reject them.
    fn note_unspent(&mut self, key: CommandKey, found: &ScriptReply<'_>) {
        let Some(command) = self.commands.get(key) else { return };
        if command.purpose != Purpose::Charge {
            return;
        }
        for (earlier, member) in command.members.iter().enumerate() {
            if let Some(request) = self.requests.get_mut(member.request)
                && request.answers.len() > command.len()
            {
                command.read_unspent(found.clone(), earlier, |index, verdict| {
                    let charge = member.first.saturating_add(index);
                    request.rare.update(charge, |rare| rare.unspent = Some(verdict));
                });
            }
        }
    }

    /// A command is answered, and so are its `members`, whose memory is used again.
    fn end_command(&mut self, key: CommandKey, members: Vec<Member>, now: u64) {
        let Some(command) = self.commands.get_mut(key) else { return };
        command.members = members;
        let follower = command.follower;
        self.commands.remove(key);
        if let Some(follower) = follower {
            self.send_held(follower, now);
        }
    }

    /// A command has answered one of its requests, which it charged at `charged_at` of Redis's clock.
    fn on_verdicts(
        &mut self,
        key: CommandKey,
        member: Member,
        verdicts: &[Verdict],
        node: NodeKey,
        charged_at: u64,
        now: u64,
    ) {
        let Some(request) = self.requests.get_mut(member.request) else { return };
        if request.stage != request::RequestStage::Released {
            request.on_verdicts(member.first, verdicts, node, charged_at);
            if request.on_outcome() {
                self.agenda.push(Action::Complete(member.request));
            }
            return;
        }
        if request.passes(member.first, verdicts) {
            self.refund_command(key, verdicts, charged_at, now);
        }
        self.conclude(member, Ok(()));
    }

    /// Gives back what a command has charged for a request that was rejected meanwhile.
    fn refund_command(&mut self, key: CommandKey, verdicts: &[Verdict], charged_at: u64, now: u64) {
        let Some(command) = self.commands.get(key) else { return };
        for refund in command.refunds(verdicts, charged_at) {
            let refund = self.commands.insert(refund);
            self.route(refund, now);
        }
    }

    /// The reply is not one to the command.
    fn on_misunderstood(&mut self, key: CommandKey, node: NodeKey, now: u64) {
        self.count_error(node, ErrorKind::Protocol);
        self.warn(node, "sent an invalid reply to a script".to_owned());
        self.fail(key, Error::Refused, now);
    }
}

/// Refusals. Some prove that the command did not run: then it may be sent again.
impl Client {
    fn on_refused(
        &mut self,
        key: CommandKey,
        refusal: &Refusal,
        node: NodeKey,
        now: u64,
    ) -> Result<(), Fault> {
        let is_cluster = self.has_slots;
        match refusal.kind {
            RefusalKind::NoScript if self.send_source(key, node, now) => {}
            RefusalKind::Moved | RefusalKind::Ask if is_cluster => {
                return self.redirect(key, refusal, node, now);
            }
            RefusalKind::TryAgain if is_cluster => self.try_again(key, refusal, node, now),
            RefusalKind::ClusterDown if is_cluster => self.on_no_owner(key, refusal, node, now),
            RefusalKind::NotReady | RefusalKind::ReadOnly | RefusalKind::LoggedOut => {
                self.count_undecided(key, node);
                self.park(key, Error::Refused, now);
                return Err(Fault::Unfit(refusal.text.clone()));
            }
            _ => self.give_up(key, refusal, node, now),
        }
        Ok(())
    }

    /// Sends a command once more, with the script's source, which also puts the script back into the
    /// server's cache: what was in flight behind the first such command is sent once more as it was.
    /// `false` if the source was sent already.
    fn send_source(&mut self, key: CommandKey, node: NodeKey, now: u64) -> bool {
        let is_source_sent = self.is_source_sent(node);
        let Some(command) = self.commands.get_mut(key) else { return true };
        let is_asking = command.is_asking;
        let is_first = !std::mem::replace(&mut command.lacked_script, true);
        match command.by {
            By::Source => return false,
            // The server has the script by then, unless it is another one.
            By::Sha if is_first && is_source_sent => {}
            By::Sha => {
                command.by = By::Source;
                if let Some(node) = self.nodes.get_mut(node) {
                    node.source = Some(key);
                }
            }
        }
        self.enqueue(key, node, is_asking, now);
        true
    }

    /// Whether a node is being sent the source of a script.
    fn is_source_sent(&self, node: NodeKey) -> bool {
        let source = self.nodes.get(node).and_then(|node| node.source);
        source.is_some_and(|command| self.commands.get(command).is_some())
    }

    /// Sends a command on to the node that was named. The owner of a slot is noted even if the command was
    /// dropped meanwhile.
    fn redirect(
        &mut self,
        key: CommandKey,
        refusal: &Refusal,
        from: NodeKey,
        now: u64,
    ) -> Result<(), Fault> {
        let is_asking = refusal.kind == RefusalKind::Ask;
        if is_asking && self.commands.get(key).is_none() {
            return Ok(());
        }
        match Redirect::parse(&refusal.text) {
            Some(redirect) if self.is_unnamed(&redirect, from) => match is_asking {
                true => self.try_again(key, refusal, from, now),
                false => self.on_no_owner(key, refusal, from, now),
            },
            Some(redirect) if self.has_room_for(&redirect, from) => {
                return self.follow(key, refusal, &redirect, from, now);
            }
            _ => self.give_up(key, refusal, from, now),
        }
        Ok(())
    }

    /// Whether `from` names its own address, as it does not know the other node's host.
    fn is_unnamed(&self, redirect: &Redirect, from: NodeKey) -> bool {
        redirect.host.is_empty()
            && self.nodes.find(&self.host(redirect, from), redirect.port) == Some(from)
    }

    /// Whether the node that is named is known, or may be added.
    fn has_room_for(&self, redirect: &Redirect, from: NodeKey) -> bool {
        self.nodes.current().len() < MAX_NODES
            || self.nodes.find(&self.host(redirect, from), redirect.port).is_some()
    }

    /// The host that is named; without a name it is that of `from`.
    fn host(&self, redirect: &Redirect, from: NodeKey) -> String {
        match redirect.host.as_str() {
            "" => self.nodes.get(from).map_or_else(String::new, |node| node.host().to_owned()),
            host => host.to_owned(),
        }
    }

    /// Sends a command on. If a node names itself as the owner (MOVED), another server is behind its address:
    /// the command waits for a new connection.
    fn follow(
        &mut self,
        key: CommandKey,
        refusal: &Refusal,
        redirect: &Redirect,
        from: NodeKey,
        now: u64,
    ) -> Result<(), Fault> {
        let is_asking = refusal.kind == RefusalKind::Ask;
        let node = self.find_or_add_node(&self.host(redirect, from), redirect.port);
        if !is_asking {
            self.topology.on_moved(redirect.slot, node);
            self.want_refresh(now);
        }
        let is_gone = self.commands.get(key).is_none();
        match self.count_move(key) {
            true => self.enqueue(key, node, is_asking, now),
            false if is_gone => {}
            false => self.give_up(key, refusal, from, now),
        }
        match node == from && !is_asking {
            true => Err(Fault::Misplaced),
            false => Ok(()),
        }
    }

    /// The slot has no master that this node could name. A new topology is wanted even if the command was
    /// dropped meanwhile.
    fn on_no_owner(&mut self, key: CommandKey, refusal: &Refusal, node: NodeKey, now: u64) {
        self.count_error(node, ErrorKind::Unfit);
        self.warn(node, refused(refusal));
        if let Some(node) = self.nodes.get_mut(node) {
            node.is_cut_off |= refusal.kind == RefusalKind::ClusterDown;
        }
        self.want_refresh(now);
        self.park(key, Error::Refused, now);
    }

    /// The key is on its way to another node, or some of the keys are: each charge is sent on its own,
    /// after a moment, for as long as a request waits for it.
    fn try_again(&mut self, key: CommandKey, refusal: &Refusal, node: NodeKey, now: u64) {
        let Some(command) = self.commands.get(key) else { return };
        let is_charge = command.purpose == Purpose::Charge;
        if command.len() > 1 {
            self.divide(key, now);
        } else if is_charge || self.count_move(key) {
            self.retry_later(key, now);
        } else {
            self.give_up(key, refusal, node, now);
        }
    }

    fn divide(&mut self, key: CommandKey, now: u64) {
        let Some(command) = self.commands.get(key) else { return };
        let parts = command.divide();
        let member = command.members.first().copied();
        for (index, mut part) in parts.into_iter().enumerate() {
            if let Some(member) = member {
                self.add_open(member.request);
                let first = member.first.saturating_add(index);
                part.members.push(Member { first, ..member });
            }
            let part = self.commands.insert(part);
            self.retry_later(part, now);
        }
        self.commands.remove(key);
        if let Some(member) = member {
            self.conclude(member, Ok(()));
        }
    }

    fn retry_later(&mut self, key: CommandKey, now: u64) {
        if let Some(command) = self.commands.get_mut(key) {
            let at = self.waiting.retry_later(key, command, now);
            self.agenda.advance_to(Due::Waiting, at);
        }
    }

    /// Sends the commands that were to be tried again.
    pub(super) fn retry(&mut self, now: u64) {
        while let Some(key) = self.waiting.next_retry(now) {
            self.route(key, now);
        }
    }

    /// Counts that a command is sent on once more. `false` if that was done too often.
    fn count_move(&mut self, key: CommandKey) -> bool {
        let Some(command) = self.commands.get_mut(key) else { return false };
        command.moves = command.moves.saturating_add(1);
        command.moves <= MAX_MOVES
    }

    /// The command failed, and would fail again.
    fn give_up(&mut self, key: CommandKey, refusal: &Refusal, node: NodeKey, now: u64) {
        self.count_error(node, if refusal.is_auth() { ErrorKind::Auth } else { ErrorKind::Script });
        let mut line = refused(refusal);
        if refusal.kind == RefusalKind::Moved && !self.has_slots {
            line.push_str(": it is a node of a cluster, which needs \"cluster on\" in its store");
        }
        self.warn(node, line);
        self.fail(key, Error::Refused, now);
    }
}

fn refused(refusal: &Refusal) -> String {
    format!("refused to decide: \"{}\"", Escaped(refusal.text.as_bytes()))
}
