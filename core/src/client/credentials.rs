//! The password of a store, which may change, and logging in with it again on connections that are open.

use super::agenda::{Agenda, Due};
use super::in_flight::Owner;
use super::link::Link;
use super::node::Role;
use super::slab::NodeKey;
use super::{Action, Client, Level, Random};
use crate::metrics::ErrorKind;
use crate::redis::reply::Reply;

/// When connections log in again, and who has refused that. Times are in µs.
#[derive(Debug)]
pub(super) struct Credentials {
    /// The time between two logins; 0: each connection logs in once.
    interval: u64,
    /// When the next one is due.
    at: Option<u64>,
    /// The node whose refusal was logged, until it accepts the password or is sent it no more.
    refused_by: Option<NodeKey>,
}

impl Credentials {
    pub(super) fn new(interval: u64) -> Self {
        Self { interval, at: None, refused_by: None }
    }

    /// When connections are to log in again, if they are.
    pub(super) fn at(&self) -> Option<u64> {
        self.at
    }

    /// A connection is made. After the first one it is due for the first time somewhere in the interval: workers that
    /// start together do not all log in at once.
    pub(super) fn on_ready(&mut self, random: &mut Random, now: u64, agenda: &mut Agenda) {
        if self.interval > 0 && self.at.is_none() {
            let delay = random.next() % self.interval;
            self.schedule(now.saturating_add(delay), agenda);
        }
    }

    fn schedule(&mut self, at: u64, agenda: &mut Agenda) {
        self.at = Some(at);
        agenda.advance_to(Due::Login, at);
    }
}

/// Passwords.
impl Client {
    /// The password of the servers that run scripts, from now on: connections log in with it.
    pub fn set_password(&mut self, password: &str) {
        self.pool.nodes.set_password(password);
    }

    /// Connections are to log in again.
    pub(super) fn on_login_due(&mut self, now: u64) {
        self.credentials.at = None;
        if !self.is_done() {
            self.agenda.push(Action::Login);
            let next = now.saturating_add(self.credentials.interval);
            self.credentials.schedule(next, &mut self.agenda);
        }
    }

    /// Sends `AUTH` on the connections that can be used, between other commands. A sentinel takes none there: its
    /// connections are subscribed to a channel.
    pub fn login(&mut self, now: u64) {
        let mut can_accept = false;
        for key in self.pool.connections.keys().collect::<Vec<_>>() {
            let Some(Link { connection, node, .. }) = self.link(key) else { continue };
            if connection.is_ready() && node.role == Role::Data && node.retired_at.is_none() {
                let node = connection.node;
                can_accept |= self.credentials.refused_by == Some(node);
                self.push(key, Owner::Login, now);
            }
        }
        // A node that is sent no password any more cannot accept it.
        self.credentials.refused_by.take_if(|_| !can_accept);
    }

    /// A server has answered `AUTH` on a connection that is open. A refusal changes nothing there: the server keeps
    /// the account that it has accepted.
    pub(super) fn on_login_reply(&mut self, key: NodeKey, reply: &Reply<'_>) {
        let Some(node) = self.pool.nodes.get(key) else { return };
        let Reply::Error(refusal) = reply else {
            self.credentials.refused_by.take_if(|refused_by| *refused_by == key);
            return;
        };
        let line = format!(
            "redis {} refused the password, with which connections were to log in again: \"{}\"; they stay \
             open",
            node.name(),
            refusal.shown()
        );
        if self.credentials.refused_by.is_none() {
            self.credentials.refused_by = Some(key);
            self.agenda.push(Action::Log(Level::Error, line));
        }
        self.count_error(key, ErrorKind::Auth);
    }
}
