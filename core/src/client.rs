//! A Redis client without I/O, for limits.
//!
//! A [`Client`] is one worker's view of one store: the nodes, the connections to them, and the
//! requests that wait for a reply. It does nothing on its own. Events go in, each with the time, and
//! actions come out. Nothing calls back, so nothing can be re-entered, and the whole client can be
//! simulated. Times are in µs of one monotonic clock.
//!
//! ```text
//!   submit ─▶ coalescer ─▶ topology ─▶ node ─▶ connection ─▶ output ─▶ (the server)
//!                                                                          │
//!   Action::Complete ◀── request ◀── verdicts, redirections, refunds ◀── on_received
//! ```
//!
//! # How it is driven
//!
//! `core/examples/exchange.rs` is a whole driver of a hundred lines that can be run. A driver calls:
//!
//! - **Commands:** [`start`](Client::start) once, [`submit`](Client::submit) for each request,
//!   [`release`](Client::release) when the request has taken its outcome or has gone,
//!   [`refund`](Client::refund) afterwards, [`reserve`](Client::reserve) where the real cost is known later, and then
//!   [`settle`](Client::settle) or [`stand`](Client::stand), and [`leave`](Client::leave) when the worker shuts
//!   down. Where the store's password is in a file, [`set_password`](Client::set_password) when it was read again:
//!   before `on_connected`, and after [`Action::Login`], which [`login`](Client::login) answers.
//! - **Events of a connection:** [`on_resolved`](Client::on_resolved) after
//!   [`Action::Resolve`]; after [`Action::Connect`] [`on_securing`](Client::on_securing) where a TLS
//!   handshake begins, and [`on_connected`](Client::on_connected) when all is done; received bytes are
//!   written to [`space`](Client::space), and [`on_received`](Client::on_received) reads them; after
//!   [`Action::Send`] [`output`](Client::output) is written, and [`on_sent`](Client::on_sent) says how
//!   much of it was; [`on_lost`](Client::on_lost) ends an attempt or a connection.
//! - **Polls:** [`poll_action`](Client::poll_action) until there is none, after each command and event;
//!   then [`timer`](Client::timer), which any of them may have moved.
//! - **Getters** about a request: [`outcome`](Client::outcome), [`answers`](Client::answers),
//!   [`granted`](Client::granted), [`unspent`](Client::unspent); about nodes:
//!   [`nodes`](Client::nodes), [`node`](Client::node), [`node_of`](Client::node_of),
//!   [`take_counts`](Client::take_counts); about the worker: [`is_idle`](Client::is_idle),
//!   [`keeps_worker`](Client::keeps_worker).
//!
//! A turn of the event loop has this order: all sockets are read; the client does what is due, if its timer
//! has expired; and at the end [`on_turn_end`](Client::on_turn_end) sends what the turn has led to.
//! [`Turn`] is this order: a driver implements what it does with its sockets, and calls
//! [`Turn::turn`]. One whose event loop does other things as well calls the parts:
//! [`Turn::check_timer`] when the timer has expired, and `on_turn_end` at the end of a turn in which
//! [`Action::EndTurn`] has come.
//!
//! # At most once
//!
//! A command that may have run is never sent again. Only one that provably did not run is: it was not sent,
//! or a node refused it with NOSCRIPT, MOVED, ASK, TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN,
//! READONLY, NOREPLICAS, MISCONF or NOAUTH.

use std::sync::Arc;

use crate::decision::Verdict;
use crate::metrics::ErrorKind;
use crate::rate::MILLISECOND;
use crate::redis::endpoint::Endpoint;
use crate::redis::script::Scripts;

mod agenda;
mod blame;
mod channel;
mod command;
mod commands;
mod connection;
mod credentials;
mod discovery;
mod fault;
mod handshake;
mod health;
mod in_flight;
mod input;
mod late;
mod leaving;
mod link;
mod node;
mod pool;
mod receive;
mod refresh;
mod refusal;
mod requests;
mod slab;
mod submit;
#[cfg(test)]
mod tests;
mod topology;
mod transport;
mod view;
mod waiting;

pub use agenda::{Action, Level, Turn};
pub use command::Settlement;
pub use fault::Fault;
pub use handshake::Step;
pub use node::{Node, Target};
pub use requests::{Answer, Error};
pub use slab::{ConnectionKey, Key, NodeKey, RequestKey};
pub use view::{Counts, NodeState, View};

use agenda::{Agenda, Due};
use commands::Commands;
use credentials::Credentials;
use discovery::Discovery;
use late::LateRefunds;
use leaving::Leaving;
use link::Link;
use node::Nodes;
use pool::Pool;
use requests::Requests;
use waiting::Waiting;

/// How many requests of a worker may wait for one store; more are refused at once.
const MAX_WAITING: usize = 65_536;

/// Room for so many requests that wait is allocated with a client. What is allocated later lies among what the
/// requests of other modules have, and splits NGINX's memory for good.
pub const PREALLOCATED: usize = 128;

/// A timer that expires this much too late shows that the worker was away.
const LATE: u64 = 5 * MILLISECOND;

/// The configuration of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kind of the servers.
    pub kind: Kind,
    /// The servers that are configured; at least one.
    pub servers: Vec<Server>,
    /// The account and database of the servers that run scripts, at any address.
    pub account: Endpoint,
    /// The store, as it is shown in a log.
    pub store: String,
    /// The name under which connections appear in `CLIENT LIST`; without spaces.
    pub client_name: String,
    /// How often connections that are open log in again, in µs; 0: never.
    pub auth_interval: u64,
    /// How long connecting may take, from the host name to the end of the handshake, in µs.
    pub connect_timeout: u64,
    /// How many connections there are to each node.
    pub connections: usize,
    /// So many failures within [`fail_timeout`](Self::fail_timeout) open a node's breaker; 0:
    /// never.
    pub max_fails: usize,
    /// In µs.
    pub fail_timeout: u64,
    /// The longest timeout of any request, in µs. A command that is not answered within this time, but at
    /// most a second, or [`fail_timeout`](Self::fail_timeout) if that is longer, is a failure of the node.
    pub longest_timeout: u64,
    /// Any number that differs between processes.
    pub seed: u64,
}

/// The kind of a store's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The one server.
    Single,
    /// Nodes of a Redis Cluster, which know of each other.
    Cluster,
    /// Sentinels, which know the master of this name.
    Sentinel(String),
}

/// A server of the configuration.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address, and, of a sentinel, the account.
    pub endpoint: Endpoint,
    /// The addresses of its host, if they are known. There are none to be given of an IP address or unix socket.
    pub targets: Vec<Target>,
}

/// A Redis client. See the [module](self).
///
/// Each part of its state has a room, with methods that change nothing but the room and what they are given. The
/// client routes between the rooms.
#[derive(Debug)]
pub struct Client {
    scripts: Arc<Scripts>,
    random: Random,
    requests: Requests,
    commands: Commands,
    waiting: Waiting,
    pool: Pool,
    discovery: Discovery,
    agenda: Agenda,
    leaving: Leaving,
    credentials: Credentials,
    late: LateRefunds,
    /// The verdicts of the reply that is being read.
    verdicts: Vec<Verdict>,
}

impl Client {
    /// A client that is not connected. `scripts` are those that the commands run.
    pub fn new(mut config: Config, scripts: Arc<Scripts>) -> Self {
        let mut random = Random(config.seed);
        let servers = std::mem::take(&mut config.servers);
        let mut client = Self {
            discovery: Discovery::new(&config.kind, &config.store, random.next()),
            credentials: Credentials::new(config.auth_interval),
            pool: Pool::new(Nodes::new(config, scripts.loaded())),
            scripts,
            random,
            requests: Requests::new(),
            commands: Commands::new(),
            waiting: Waiting::default(),
            agenda: Agenda::default(),
            leaving: Leaving::default(),
            late: LateRefunds::default(),
            verdicts: Vec::with_capacity(PREALLOCATED),
        };
        for Server { endpoint, targets } in servers {
            let role = client.discovery.topology.seed_role();
            let node = client.pool.nodes.add_seed(role, endpoint, targets);
            client.discovery.topology.on_seed(node);
            client.pool.complete_node(node, &mut client.agenda);
        }
        client
    }

    /// Connects, before the first request needs it.
    pub fn start(&mut self, now: u64) {
        if self.discovery.can_change() {
            return self.refresh_topology(now);
        }
        for node in self.pool.nodes.current().to_vec() {
            self.open_node(node, now);
        }
    }

    /// Whether there is an action to be carried out.
    pub fn has_actions(&self) -> bool {
        self.agenda.has_actions()
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.agenda.poll()
    }

    /// When [`Turn::check_timer`] is to be called, if nothing else happens before.
    pub fn timer(&self) -> Option<u64> {
        self.agenda.timers.earliest()
    }

    /// Whether nothing is left of any request: no command, no reply that is still to come, and no refund.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.commands.is_empty() && !self.late.are_waiting()
    }

    /// The worker is leaving, and is to have left at `limit`, if there is one: connections are closed as soon as nothing
    /// will come that needs them. Requests are still served.
    pub fn leave(&mut self, limit: Option<u64>, now: u64) {
        self.leaving.begin(limit, now, &mut self.agenda);
        self.close_unneeded();
    }

    /// Whether a worker that is leaving stays: for requests that were submitted and not released, and
    /// for a moment for settlements, and for replies that may lead to a refund.
    pub fn keeps_worker(&self) -> bool {
        self.leaving.keeps_worker(&self.requests, self.sends_late())
    }

    /// Whether the worker is leaving, and nothing will come any more that needs a connection.
    fn is_done(&self) -> bool {
        self.leaving.is_done(&self.requests, self.sends_late())
    }

    /// Something has ended. If the worker is leaving, its connections may not be needed any more: that is known when the
    /// requests of this turn have gone on, of which some may have got reservations.
    fn check_done(&mut self) {
        if self.leaving.has_begun() {
            self.agenda.end_turn();
        }
    }

    /// Closes what is not needed any more, if the worker is leaving.
    fn close_unneeded(&mut self) {
        if !self.is_done() {
            return;
        }
        for key in self.pool.connections.keys().collect::<Vec<_>>() {
            if let Some(mut link) = self.link(key) {
                link.close_if_quiet();
            }
        }
    }

    /// A node.
    pub fn node(&self, key: NodeKey) -> Option<&Node> {
        self.pool.nodes.get(key)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeKey> + '_ {
        self.pool.nodes.all()
    }

    /// The node that a connection leads to.
    pub fn node_of(&self, connection: ConnectionKey) -> Option<NodeKey> {
        self.pool.connections.get(connection).map(|connection| connection.node)
    }

    /// Takes what was counted at a node.
    pub fn take_counts(&mut self, key: NodeKey) -> Option<Counts> {
        let node = self.pool.nodes.get_mut(key)?;
        node.is_count_due = false;
        Some(std::mem::take(&mut node.counts))
    }

    /// The turn ends: what its events have led to is sent.
    pub fn on_turn_end(&mut self, now: u64) {
        self.agenda.is_turn_end_due = false;
        if let Some(deadline) = self.waiting.deadlines.on_turn_end(now) {
            self.agenda.advance_to(Due::Waiting, deadline);
        }
        // Once a turn is often enough.
        self.waiting.forget_deadlines(&self.requests);
        while let Some(connection) = self.agenda.next_flush() {
            if let Some(entry) = self.pool.connections.get_mut(connection) {
                entry.is_flush_due = false;
                self.encode_batch(connection, now);
                self.agenda.push(Action::Send(connection));
            }
        }
        self.close_unneeded();
    }

    /// Whether anything is due, or the worker was away. A time may be too early: what it was for may be done. Then the
    /// sockets, which may be many, need not be read.
    fn find_due(&mut self, now: u64) -> bool {
        if self.away(now) >= LATE {
            return true;
        }
        for kind in Due::ALL {
            if self.agenda.timers.is_due(kind, now) {
                self.set_timer(kind);
            }
        }
        self.timer().is_some_and(|at| at <= now)
    }

    /// For how long something has been due.
    fn away(&self, now: u64) -> u64 {
        self.timer().map_or(0, |due| now.saturating_sub(due))
    }

    /// Does what is due. Every socket was read.
    fn on_timer(&mut self, now: u64) {
        let away = self.away(now);
        if away >= LATE {
            self.pool.excuse_all(away, now);
        }
        for kind in Due::ALL {
            if self.agenda.timers.is_due(kind, now) {
                self.on_due(kind, now);
                self.set_timer(kind);
            }
        }
    }

    /// Does what is due of a kind.
    fn on_due(&mut self, kind: Due, now: u64) {
        match kind {
            Due::Waiting => {
                self.expire_requests(now);
                self.release_held(now);
                self.retry(now);
            }
            Due::Connections => self.check_connections(now),
            Due::Probes => self.probe_nodes(now),
            Due::Retirement => self.remove_retired(now),
            Due::Topology => self.check_refresh(now),
            Due::Leaving => {
                self.leaving.on_timer(now);
                self.check_done();
            }
            Due::Login => self.on_login_due(now),
        }
    }

    /// Sets when the next thing of a kind is due.
    fn set_timer(&mut self, kind: Due) {
        let next = match kind {
            Due::Waiting => {
                self.waiting.forget_deadlines(&self.requests);
                self.waiting.earliest(&self.commands)
            }
            Due::Connections => self.pool.next_due(self.discovery.rounds.patience()),
            Due::Probes => self.pool.nodes.next_probe(),
            Due::Retirement => self.pool.next_retirement(),
            Due::Topology => self.discovery.rounds.at(),
            Due::Leaving => self.leaving.grace(),
            Due::Login => self.credentials.at(),
        };
        self.agenda.timers.set(kind, next);
    }

    /// A connection, unless it is gone, and its node.
    fn link(&mut self, key: ConnectionKey) -> Option<Link<'_>> {
        self.pool.link(key, &mut self.agenda)
    }

    fn count_error(&mut self, node: NodeKey, kind: ErrorKind) {
        self.pool.count(node, &mut self.agenda, |node| node.count_error(kind));
    }

    fn warn(&mut self, node: NodeKey, what: String) {
        self.agenda.push(Action::Warn(node, what));
    }
}

/// Pseudo-random numbers, for jitter.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
