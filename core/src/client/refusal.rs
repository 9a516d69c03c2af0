//! Refusals of commands about limits, and what follows from them.
//!
//! Some prove that the command did not run: then it may be sent again.

use super::Client;
use super::agenda::Due;
use super::command::{Member, Purpose};
use super::fault::Fault;
use super::requests::Error;
use super::slab::{CommandKey, NodeKey};
use crate::metrics::ErrorKind;
use crate::redis::cluster::{MAX_NODES, Redirect};
use crate::redis::refusal::{Refusal, RefusalKind};
use crate::redis::script::By;

/// Refusals.
impl Client {
    pub(super) fn on_refused(
        &mut self,
        key: CommandKey,
        refusal: &Refusal,
        node: NodeKey,
        now: u64,
    ) -> Result<(), Fault> {
        let is_cluster = self.discovery.has_slots;
        if refusal.has_no_effect()
            && let Some(command) = self.commands.get(key)
        {
            self.requests.on_not_run(command);
        }
        match refusal.kind {
            RefusalKind::NoScript if self.send_source(key, node, now) => {}
            RefusalKind::Moved | RefusalKind::Ask if is_cluster => {
                return self.redirect(key, refusal, node, now);
            }
            RefusalKind::TryAgain if is_cluster => self.try_again(key, refusal, node, now),
            RefusalKind::ClusterDown if is_cluster => self.on_no_owner(key, refusal, node, now),
            RefusalKind::NotReady | RefusalKind::ReadOnly | RefusalKind::LoggedOut => {
                if let Some(node) = self.pool.nodes.get_mut(node) {
                    node.is_unfit = true;
                }
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
                if let Some(node) = self.pool.nodes.get_mut(node) {
                    node.source = Some(key);
                }
            }
        }
        self.enqueue(key, node, is_asking, now);
        true
    }

    /// Whether a node is being sent the source of a script.
    fn is_source_sent(&self, node: NodeKey) -> bool {
        let source = self.pool.nodes.get(node).and_then(|node| node.source);
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
        let Some(mut redirect) = Redirect::parse(&refusal.text) else {
            self.give_up(key, refusal, from, now);
            return Ok(());
        };
        let nodes = &self.pool.nodes;
        let is_unnamed = redirect.host.is_empty();
        if let Some(node) = nodes.get(from).filter(|_| is_unnamed) {
            redirect.host = node.host().to_owned();
        }
        match nodes.find(&redirect.host, redirect.port) {
            // It names its own address, as it does not know the other node's host.
            Some(node) if is_unnamed && node == from => match is_asking {
                true => self.try_again(key, refusal, from, now),
                false => self.on_no_owner(key, refusal, from, now),
            },
            None if nodes.current().len() >= MAX_NODES => self.give_up(key, refusal, from, now),
            _ => return self.follow(key, refusal, &redirect, from, now),
        }
        Ok(())
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
        let (host, port) = (&redirect.host, redirect.port);
        let node = self.pool.find_or_add_node(host, port, &mut self.agenda);
        if !is_asking {
            self.discovery.topology.on_moved(redirect.slot, node);
            self.discovery.want(now, &mut self.agenda);
        }
        let is_gone = self.commands.get(key).is_none();
        match self.commands.count_move(key) {
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
        if let Some(node) = self.pool.nodes.get_mut(node) {
            node.is_cut_off |= refusal.kind == RefusalKind::ClusterDown;
        }
        self.discovery.want(now, &mut self.agenda);
        self.park(key, Error::Refused, now);
    }

    /// The key is on its way to another node, or some of the keys are: each charge is sent on its own,
    /// after a moment, for as long as a request waits for it.
    fn try_again(&mut self, key: CommandKey, refusal: &Refusal, node: NodeKey, now: u64) {
        let Some(command) = self.commands.get(key) else { return };
        let is_charge = command.purpose == Purpose::Charge;
        if command.len() > 1 {
            self.divide(key, now);
        } else if is_charge || self.commands.count_move(key) {
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
                self.requests.add_open(member.request);
                let first = member.first.saturating_add(index);
                part.members.push(Member { first, ..member });
            }
            let part = self.commands.insert(part);
            self.retry_later(part, now);
        }
        self.commands.remove(key);
        if let Some(member) = member {
            self.requests.conclude(member, Ok(()), &mut self.agenda);
        }
    }

    pub(super) fn retry_later(&mut self, key: CommandKey, now: u64) {
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

    /// The command failed, and would fail again.
    fn give_up(&mut self, key: CommandKey, refusal: &Refusal, node: NodeKey, now: u64) {
        self.count_error(node, if refusal.is_auth() { ErrorKind::Auth } else { ErrorKind::Script });
        let mut line = refused(refusal);
        if refusal.kind == RefusalKind::Moved && !self.discovery.has_slots {
            line.push_str(": it is a node of a cluster, which needs \"cluster on\" in its store");
        }
        self.warn(node, line);
        self.fail(key, Error::Refused, now);
    }
}

fn refused(refusal: &Refusal) -> String {
    format!("refused to decide: \"{}\"", refusal.shown())
}
