//! Replies, and what follows from them.

use super::command::{Member, Purpose, Settlement};
use super::connection::Incoming;
use super::fault::Fault;
use super::handshake::Step;
use super::in_flight::{Owner, Sent};
use super::link::Link;
use super::node::Role;
use super::requests::{self, Error};
use super::slab::{CommandKey, ConnectionKey, NodeKey};
use super::{Action, Client, Level};
use crate::decision::Verdict;
use crate::metrics::{AttemptResult, ErrorKind};
use crate::rate::MILLISECOND;
use crate::redis::refusal::RefusalKind;
use crate::redis::reply::{Reply, ScriptReply};

/// Receiving.
impl Client {
    /// Where to put received bytes; empty if there is no such connection.
    pub fn space(&mut self, key: ConnectionKey) -> &mut [u8] {
        self.pool.space(key)
    }

    /// `count` bytes were put into the [`space`](Self::space). Returns false if the
    /// connection was lost because of them: nothing more is to be read from it.
    pub fn on_received(&mut self, key: ConnectionKey, count: usize, now: u64) -> bool {
        let Some(input) = self.pool.on_received(key, count, now) else { return false };
        let result = self.read_replies(key, &input, now);
        self.pool.put_back(key, input);
        if let Err(fault) = result {
            self.on_lost(key, &fault, now);
            return false;
        }
        if self.late.are_waiting() {
            self.send_late(now);
        }
        self.check_done();
        let Some(mut link) = self.link(key) else { return false };
        link.recount();
        let (node, is_retired) = (link.connection.node, link.node.retired_at.is_some());
        !is_retired || !self.remove_if_done(node, now)
    }

    /// Reads the replies that are complete. If one shows that the server is unfit, those behind it still
    /// decide.
    fn read_replies(&mut self, key: ConnectionKey, input: &[u8], now: u64) -> Result<(), Fault> {
        let mut fitness = Ok(());
        while let Some(connection) = self.pool.connections.get_mut(key)
            && let Some(frame) = connection.next_frame(input)?
        {
            // Before its owner is taken from the queue: if this fails, the owner is lost with others.
            let mut reply = connection.parse(frame)?;
            if let Reply::Error(refusal) = &mut reply
                && let Some(node) = self.pool.nodes.get(connection.node)
            {
                connection.hide_secrets(&node.handshake, refusal);
            }
            match connection.on_reply(&reply, now)? {
                Incoming::Step(step, is_last) => self.on_step(key, step, is_last, &reply, now),
                Incoming::Message => {
                    let node = connection.node;
                    self.on_message(&reply, node, now);
                }
                Incoming::Reply(sent, was_overdue) => {
                    let node = connection.node;
                    if let Err(fault) = self.on_reply(sent, was_overdue, &reply, node, now) {
                        fitness = fitness.and(Err(fault));
                    }
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
        let Some(Link { connection, node, .. }) = self.link(key) else { return };
        node.abilities.on_reply(step, reply);
        if is_last {
            let (node_key, is_sentinel) = (connection.node, node.role == Role::Sentinel);
            node.on_ready(connection.age(now));
            self.agenda.push(Action::Attempted(node_key, AttemptResult::Ready));
            self.credentials.on_ready(&mut self.random, now, &mut self.agenda);
            self.log_missing(node_key);
            if is_sentinel {
                self.on_sentinel_connected(key, now);
            }
            self.pool.flush_later(key, &mut self.agenda);
        } else if !connection.is_flushed() {
            self.agenda.push(Action::Send(key));
        }
    }

    /// Logs, once, what is left out of the handshakes with a node.
    fn log_missing(&mut self, key: NodeKey) {
        let Some(node) = self.pool.nodes.get_mut(key) else { return };
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
            self.pool.check_slowness(node, &mut self.agenda);
            if self.pool.nodes.get(node).is_some_and(|node| node.silences > 0) {
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
            Owner::Login => self.on_login_reply(node, reply),
            Owner::Asking => self.check_permission("ASKING", reply, node),
            // A server that refuses subscriptions, without which it serves, is warned of once a connection.
            Owner::Subscription
                if self.pool.nodes.get(node).is_some_and(|it| it.is_permission_missing) => {}
            Owner::Subscription => self.check_permission("a subscription", reply, node),
        }
        Ok(())
    }

    /// Reads the reply to a command that goes with others: where it is forbidden, or unknown, these fail for another reason,
    /// or not at all. What else is refused, the others are refused as well.
    fn check_permission(&mut self, what: &str, reply: &Reply<'_>, key: NodeKey) {
        let Reply::Error(refusal) = reply else { return };
        let kind = match refusal.kind {
            RefusalKind::Auth => ErrorKind::Auth,
            RefusalKind::Failed => ErrorKind::Script,
            _ => return,
        };
        if let Some(node) = self.pool.nodes.get_mut(key) {
            node.is_permission_missing = true;
        }
        self.count_error(key, kind);
        self.warn(key, format!("refused {what}: \"{}\"", refusal.shown()));
    }

    /// A server that answers in time for some requests is too slow for others: that is no failure of
    /// the server, but of a timeout. If a request still waits, the reply came in time, and the worker was
    /// late to read it.
    fn check_patience(&mut self, key: CommandKey, sent: &Sent, node: NodeKey, now: u64) {
        let wait = now.saturating_sub(sent.at);
        if wait <= u64::from(sent.timeout) || sent.timeout == 0 || wait >= self.pool.patience {
            return;
        }
        if self.commands.awaiting(key, &self.requests) > 0 {
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
        if self.discovery.has_slots {
            self.commands.note_unspent(key, found, &mut self.requests);
        }
        let Some(command) = self.commands.get_mut(key) else { return true };
        if command.purpose != Purpose::Charge {
            return self.read_other(key, found, node);
        }
        let (mut verdicts, requests) = (std::mem::take(&mut self.verdicts), &mut self.requests);
        let is_understood =
            command.read(found.clone(), &mut verdicts, |request, charge, beside| {
                requests.on_beside(request, charge, beside);
            });
        if is_understood {
            let was_unfit = self.pool.nodes.get(node).is_some_and(|node| node.is_unfit);
            let is_fit_again = was_unfit && command.has_charged(&verdicts);
            let (count, members) = (command.len(), std::mem::take(&mut command.members));
            let mut of_each = verdicts.chunks(count);
            for member in &members {
                let Some(verdicts) = of_each.next() else { break };
                self.on_verdicts(key, *member, verdicts, node, found.now(), now);
            }
            if let Some(follower) = self.commands.remove_answered(key, members) {
                self.send_held(follower, now);
            }
            if is_fit_again {
                self.on_fit_again(node);
            }
        }
        self.verdicts = verdicts;
        is_understood
    }

    /// Reads the reply to a command that has charged no request, which ends with that.
    #[cold]
    fn read_other(&mut self, key: CommandKey, found: &ScriptReply<'_>, node: NodeKey) -> bool {
        let Some(command) = self.commands.get(key) else { return true };
        match command.purpose {
            Purpose::Manage(_) => return self.read_state(key, found),
            Purpose::Settle(Settlement { tag, change, .. }) => {
                let was_unfit = self.pool.nodes.get(node).is_some_and(|node| node.is_unfit);
                let is_fit_again = was_unfit && change > 0 && command.fits(found.clone());
                self.leaving.on_settled(tag, true, &mut self.agenda);
                if is_fit_again {
                    self.on_fit_again(node);
                }
            }
            Purpose::Charge | Purpose::Refund(_) => {}
        }
        self.commands.remove(key);
        true
    }

    /// Reads what a client has, with which an operator's request ends. `false` if the reply does not say that.
    fn read_state(&mut self, key: CommandKey, found: &ScriptReply<'_>) -> bool {
        let read = self.commands.get(key).and_then(|command| command.read_state(found.clone()));
        let (Some(state), Some(ended)) = (read, read.and_then(|_| self.commands.take(key))) else {
            return false;
        };
        for member in ended.members {
            if let Some(request) = self.requests.get_mut(member.request) {
                request.state = Some(Box::new(state));
            }
            self.requests.conclude(member, Ok(()), &mut self.agenda);
        }
        true
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
        if request.stage != requests::RequestStage::Released {
            request.on_verdicts(member.first, verdicts, node, charged_at);
            if request.on_outcome() {
                self.agenda.push(Action::Complete(member.request));
            }
            return;
        }
        if request.passes(member.first, verdicts) {
            let is_undecided = request.is_undecided();
            self.refund_command(key, verdicts, is_undecided, charged_at, now);
        }
        self.requests.conclude(member, Ok(()), &mut self.agenda);
    }

    /// Gives back what a command has charged for a request that was released meanwhile: another limit has rejected it, or it
    /// was undecided.
    fn refund_command(
        &mut self,
        key: CommandKey,
        verdicts: &[Verdict],
        is_undecided: bool,
        charged_at: u64,
        now: u64,
    ) {
        let Some(command) = self.commands.get(key) else { return };
        let refunds = command.refunds(verdicts, charged_at);
        match is_undecided {
            true => self.refund_late(refunds, now),
            false => refunds.into_iter().for_each(|refund| self.send_new(refund, now)),
        }
    }

    /// The reply is not one to the command.
    fn on_misunderstood(&mut self, key: CommandKey, node: NodeKey, now: u64) {
        self.count_error(node, ErrorKind::Protocol);
        self.warn(node, "sent an invalid reply to a script".to_owned());
        self.fail(key, Error::Refused, now);
    }
}
