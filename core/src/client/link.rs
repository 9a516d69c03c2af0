//! A connection and its node, as one event finds them: their keys are looked up once.

use super::Action;
use super::agenda::{Agenda, Due};
use super::command::Command;
use super::connection::{Connection, ConnectionState, Next};
use super::fault::Fault;
use super::handshake::Step;
use super::in_flight::Owner;
use super::node::Node;
use super::slab::{CommandKey, ConnectionKey, NodeKey};
use super::topology::Query;
use crate::metrics::{AttemptResult, CommandKind, ErrorKind};
use crate::redis::refusal::{Refusal, RefusalKind};
use crate::redis::script::{By, Scripts};

/// A connection and its node.
#[derive(Debug)]
pub(super) struct Link<'a> {
    pub(super) key: ConnectionKey,
    pub(super) connection: &'a mut Connection,
    pub(super) node: &'a mut Node,
    pub(super) agenda: &'a mut Agenda,
    pub(super) connect_timeout: u64,
}

/// The reason why a connection was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) node: NodeKey,
    pub(super) next: Next,
    /// Whether it could be used.
    pub(super) was_ready: bool,
    /// Whether the server was silent about a topology query.
    pub(super) was_silent_about_topology: bool,
}

/// Connecting.
impl Link<'_> {
    /// Starts to connect, if need be by resolving the node's host name first.
    pub(super) fn connect(&mut self, now: u64) -> Result<(), Fault> {
        self.begin_attempt(now);
        let name = self.node.next_name().map(|(host, port)| (host.to_owned(), port));
        let Some((host, port)) = name else { return self.dial() };
        self.set_state(ConnectionState::Resolving);
        self.agenda.push(Action::Resolve { connection: self.key, host, port });
        Ok(())
    }

    /// Connects to one of the addresses that are known.
    pub(super) fn dial(&mut self) -> Result<(), Fault> {
        let Some(target) = self.node.target(self.connection.address).cloned() else {
            return Err(Fault::Connect("its host name cannot be resolved".to_owned()));
        };
        self.set_state(ConnectionState::Connecting);
        self.agenda.push(Action::Connect(self.key, target));
        Ok(())
    }

    fn begin_attempt(&mut self, now: u64) {
        let end = self.connection.begin_attempt(self.connect_timeout, now);
        self.agenda.advance_to(Due::Connections, end);
    }

    /// Tries the next address of the node's host, unless all were tried: a host is not down because
    /// one of its addresses is.
    fn try_next_target(&mut self, now: u64) -> bool {
        let count = self.turn_address();
        self.connection.tried = self.connection.tried.saturating_add(1);
        if self.connection.tried >= count {
            self.connection.tried = 0;
            return false;
        }
        self.begin_attempt(now);
        self.dial().is_ok()
    }

    /// The next attempt is to connect to the next address of the node's host. Returns how many there are.
    fn turn_address(&mut self) -> usize {
        let count = self.node.addresses().count();
        let next = self.connection.address.wrapping_add(1);
        self.connection.address = next.checked_rem(count).unwrap_or(0);
        count
    }

    /// A server has accepted the connection, and takes long. Returns whether it is waited for: if it has
    /// another address, that is tried instead. Where many clients connect at once, a new attempt would go to
    /// the end of the server's queue, and the old one would be work for it nevertheless.
    pub(super) fn on_late(&mut self) -> bool {
        let tried = self.connection.tried.saturating_add(1);
        tried >= self.node.addresses().count() && self.connection.on_late()
    }
}

/// Sending.
impl Link<'_> {
    /// Encodes a command about limits, behind an `ASKING` if need be.
    pub(super) fn encode_command(
        &mut self,
        key: CommandKey,
        command: &Command,
        scripts: &Scripts,
        now: u64,
    ) {
        let connection = &mut *self.connection;
        if command.is_asking {
            redis::cmd("ASKING").write_packed_command(connection.buffer());
            connection.queue.on_sent(Owner::Asking, now, 0);
        }
        command.encode(scripts, connection.buffer());
        let timeouts = command.members.iter().map(|member| member.timeout);
        let shortest = timeouts.clone().min().unwrap_or(0);
        connection.queue.on_sent(Owner::Command(key), now, shortest);
        connection.await_until(now.saturating_add(timeouts.max().unwrap_or(0)));
        let counted = match command.by {
            By::Sha => CommandKind::Evalsha,
            By::Source => CommandKind::Eval,
        };
        self.count(|node| {
            node.count_command(counted);
            if command.is_asking {
                node.count_command(CommandKind::Asking);
            }
        });
    }

    /// Encodes a command that is none about limits.
    pub(super) fn encode(&mut self, owner: Owner, packed: &[u8], counted: CommandKind, now: u64) {
        self.write(owner, packed, now);
        self.count(|node| node.count_command(counted));
    }

    /// Encodes `AUTH`, if there is an account.
    pub(super) fn encode_login(&mut self, now: u64) {
        if let Some(login) = self.node.handshake.auth() {
            self.connection.buffer().extend_from_slice(login);
            self.connection.queue.on_sent(Owner::Login, now, 0);
        }
    }

    /// Encodes a query for the topology. A connection that is subscribed to a channel takes no other command:
    /// the subscription ends before it, and begins anew after it.
    pub(super) fn encode_query(&mut self, owner: Owner, query: &Query, now: u64) {
        let of_channel =
            |command| Some(redis::cmd(command).arg(query.channel?).get_packed_command());
        if let Some(unsubscribe) = of_channel("UNSUBSCRIBE") {
            self.write(Owner::Subscription, &unsubscribe, now);
        }
        self.encode(owner, &query.packed, query.command, now);
        if let Some(subscribe) = of_channel("SUBSCRIBE") {
            self.write(Owner::Subscription, &subscribe, now);
            self.connection.channel.subscribe();
        }
    }

    fn write(&mut self, owner: Owner, packed: &[u8], now: u64) {
        self.connection.buffer().extend_from_slice(packed);
        self.connection.queue.on_sent(owner, now, 0);
    }
}

/// Changes.
impl Link<'_> {
    fn set_state(&mut self, state: ConnectionState) {
        self.connection.state = state;
        self.recount();
    }

    /// Updates the node's counts of connections.
    pub(super) fn recount(&mut self) {
        let after = self.connection.usable();
        let before = std::mem::replace(&mut self.connection.counted, after);
        if before == after {
            return;
        }
        self.node.recount(before, after);
        let key = self.connection.node;
        self.agenda.push(Action::View(key));
        if self.node.recover() {
            self.agenda.push(Action::Up(key));
        }
    }

    /// Closes the connection, if there is one and nothing waits for it; the next command opens it again.
    pub(super) fn close_if_quiet(&mut self) {
        if !self.connection.is_idle() && self.connection.is_quiet() {
            self.close();
        }
    }

    /// Closes the connection, for which nothing waits.
    pub(super) fn close(&mut self) {
        self.connection.on_closed();
        self.agenda.push(Action::Close(self.key));
        self.recount();
    }

    /// The connection was lost, or could not be made. Returns what follows, unless it is not there, or another
    /// address is tried.
    pub(super) fn lose(&mut self, fault: &Fault, random: u64, now: u64) -> Option<Lost> {
        self.note_hang_up(fault);
        if matches!(self.connection.state, ConnectionState::Idle | ConnectionState::Down) {
            return None;
        }
        self.agenda.push(Action::Close(self.key));
        let (node, was_ready) = (self.connection.node, self.connection.is_ready());
        if !was_ready {
            self.agenda.push(Action::Attempted(node, attempt_result(fault)));
            if self.try_next_target(now) {
                return None;
            }
        }
        // Another server of this host may be fit.
        if was_ready && matches!(fault, Fault::Unfit(_) | Fault::Misplaced) {
            self.turn_address();
        }
        let is_silent = matches!(fault, Fault::Silent(_));
        let was_silent_about_topology = is_silent && self.connection.queue.owes_topology();
        if is_silent && !was_silent_about_topology {
            self.node.on_silence();
        }
        let next = self.connection.on_lost(fault, now, random);
        self.recount();
        Some(Lost { node, next, was_ready, was_silent_about_topology })
    }

    /// Takes note of the step of the handshake at which a server has closed the connection instead of replying.
    fn note_hang_up(&mut self, fault: &Fault) {
        if let (Some(step), Fault::Closed(_)) = (self.connection.unanswered_step(), fault) {
            self.node.abilities.on_closed(step);
        }
    }

    /// Changes what is counted at the node.
    pub(super) fn count(&mut self, change: impl FnOnce(&mut Node)) {
        self.agenda.count(self.connection.node, self.node, change);
    }

    /// No other attempt to connect is made before `delay` has passed.
    pub(super) fn pause(&mut self, fault: &Fault, delay: u64, now: u64) {
        let (node, at) = (self.connection.node, now.saturating_add(delay));
        self.connection.timer = Some(at);
        self.agenda.advance_to(Due::Connections, at);
        self.count(|node| node.count_error(error_kind(fault)));
        if self.node.ready > 0 {
            return;
        }
        if self.node.health.on_unreachable() {
            self.agenda.push(Action::Down(node, fault.to_string()));
        } else {
            self.agenda.push(Action::StillDown(node, fault.to_string()));
        }
    }
}

/// The result to count for an attempt that has failed.
fn attempt_result(fault: &Fault) -> AttemptResult {
    match fault {
        Fault::Connect(_) => AttemptResult::Refused,
        Fault::ConnectTimeout | Fault::SecureTimeout => AttemptResult::Timeout,
        Fault::Closed(_)
        | Fault::Silent(_)
        | Fault::Protocol(_)
        | Fault::Handshake(..)
        | Fault::Unfit(_)
        | Fault::Misplaced => AttemptResult::Rejected,
    }
}

/// The error to count for a lost connection.
fn error_kind(fault: &Fault) -> ErrorKind {
    match fault {
        Fault::Connect(_) | Fault::ConnectTimeout | Fault::SecureTimeout => ErrorKind::Connect,
        Fault::Closed(_) | Fault::Silent(_) => ErrorKind::Lost,
        Fault::Protocol(_) => ErrorKind::Protocol,
        Fault::Handshake(_, refusal) if refusal.is_auth() => ErrorKind::Auth,
        // A password where the server has none is refused with the code of any failure.
        Fault::Handshake(Step::Auth, Refusal { kind: RefusalKind::Failed, .. }) => ErrorKind::Auth,
        Fault::Handshake(..) | Fault::Unfit(_) | Fault::Misplaced => ErrorKind::Unfit,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::rc::Rc;

    use super::*;
    use crate::client::node::Target;
    use crate::client::pool::Pool;
    use crate::client::pool::tests::TIMEOUT;
    use crate::rate::SECOND;
    use crate::redis::reply;

    /// A pool of one node with one connection, and what is to be done.
    struct Bench {
        pool: Pool,
        agenda: Agenda,
        key: ConnectionKey,
    }

    impl Bench {
        /// The host of the node has these addresses; it is a name if there is none.
        fn new(targets: &[Target]) -> Self {
            let (pool, agenda, node) = Pool::of_one_node(targets, 1);
            let key = pool.connections_of(node)[0];
            let mut bench = Self { pool, agenda, key };
            assert_eq!(bench.actions(), ["view"]);
            bench
        }

        fn link(&mut self) -> Link<'_> {
            self.pool.link(self.key, &mut self.agenda).unwrap()
        }

        /// The event, in short.
        fn actions(&mut self) -> Vec<String> {
            let name = |action: Action| match action {
                Action::Connect(_, Target::Ip(address)) => format!("connect {}", address.port()),
                Action::Resolve { host, port, .. } => format!("resolve {host}:{port}"),
                Action::Close(_) => "close".to_owned(),
                Action::Attempted(_, result) => format!("{result:?}"),
                Action::Count(_) => "count".to_owned(),
                Action::View(_) => "view".to_owned(),
                Action::Up(_) => "up".to_owned(),
                Action::Down(_, reason) => format!("down: {reason}"),
                Action::StillDown(_, reason) => format!("still down: {reason}"),
                other => panic!("{other:?}"),
            };
            std::iter::from_fn(|| self.agenda.poll()).map(name).collect()
        }

        /// Connects, and has the handshake accepted.
        fn ready(targets: &[Target]) -> Self {
            let mut bench = Self::new(targets);
            let mut link = bench.link();
            link.connect(0).unwrap();
            link.connection.on_connected(Rc::clone(&link.node.handshake), link.node.abilities);
            for step in [&b"+PONG\r\n"[..], b"+OK\r\n"] {
                let reply = reply::parse_other(step).unwrap();
                link.connection.on_reply(&reply, 0).unwrap();
            }
            let sent = link.connection.output().len();
            link.connection.on_sent(sent);
            link.recount();
            assert!(link.connection.is_ready() && link.connection.is_quiet());
            bench.actions();
            bench
        }
    }

    fn targets(ports: &[u16]) -> Vec<Target> {
        let target = |port: &u16| Target::Ip(SocketAddr::from(([10, 0, 0, 1], *port)));
        ports.iter().map(target).collect()
    }

    fn refused() -> Fault {
        Fault::Connect("refused".to_owned())
    }

    #[test]
    fn an_attempt_ends_in_time_and_resolves_a_name_first() {
        let mut bench = Bench::new(&targets(&[7]));
        bench.link().connect(5).unwrap();
        assert_eq!(bench.actions(), ["view", "connect 7"]);
        assert_eq!(bench.agenda.timers.earliest(), Some(5 + TIMEOUT));
        let mut bench = Bench::new(&[]);
        bench.link().connect(5).unwrap();
        assert_eq!(bench.actions(), ["view", "resolve redis.test:1"]);
        assert!(bench.link().dial().is_err(), "no address is known");
    }

    #[test]
    fn all_addresses_are_tried_before_a_pause() {
        let mut bench = Bench::new(&targets(&[7, 8]));
        bench.link().connect(0).unwrap();
        bench.actions();
        assert!(bench.link().lose(&refused(), 0, 0).is_none());
        assert_eq!(bench.actions(), ["close", "Refused", "connect 8"]);
        let lost = bench.link().lose(&refused(), 0, 0).unwrap();
        assert!(matches!(lost.next, Next::Wait(delay) if delay > 0) && !lost.was_ready);
        assert_eq!(bench.actions(), ["close", "Refused"]);
        assert!(bench.link().lose(&refused(), 0, 0).is_none(), "it is lost already");
        assert_eq!(bench.actions(), [""; 0]);
        bench.link().pause(&refused(), 20, 100);
        assert_eq!(bench.actions(), ["count", "down: refused"]);
        bench.link().pause(&refused(), 20, 100);
        assert_eq!(bench.actions(), ["still down: refused"]);
        bench.link().connect(120).unwrap();
        assert_eq!(bench.actions(), ["resolve redis.test:1"], "the addresses led nowhere");
        bench.link().dial().unwrap();
        assert_eq!(bench.actions(), ["connect 7"]);
    }

    #[test]
    fn a_late_attempt_is_waited_for_once_and_only_at_the_last_address() {
        let mut bench = Bench::new(&targets(&[7, 8]));
        bench.link().connect(0).unwrap();
        assert!(!bench.link().on_late(), "the other address comes first");
        assert!(bench.link().lose(&Fault::ConnectTimeout, 0, TIMEOUT).is_none());
        assert!(bench.link().on_late() && !bench.link().connection.accepts());
        assert!(!bench.link().on_late());
    }

    #[test]
    fn a_node_is_up_again_when_a_connection_is_sound() {
        let mut bench = Bench::new(&targets(&[7]));
        bench.link().connect(0).unwrap();
        bench.link().lose(&refused(), 0, 0).unwrap();
        bench.link().pause(&refused(), 20, 0);
        bench.actions();
        let mut link = bench.link();
        link.connection.state = ConnectionState::Ready { since: 0 };
        link.recount();
        link.recount();
        assert_eq!(bench.actions(), ["view", "up"]);
        assert_eq!(
            bench
                .pool
                .nodes
                .all()
                .filter(|key| bench.pool.nodes.get(*key).unwrap().serves())
                .count(),
            1
        );
    }

    #[test]
    fn a_good_connection_is_replaced_and_one_to_the_wrong_server_elsewhere() {
        let long_after = 2 * SECOND;
        let mut bench = Bench::ready(&targets(&[7, 8]));
        let lost = bench.link().lose(&Fault::Closed("closed".to_owned()), 0, long_after).unwrap();
        assert_eq!((lost.next, lost.was_ready), (Next::Connect { is_first: true }, true));
        bench.link().dial().unwrap();
        assert_eq!(bench.actions(), ["close", "view", "view", "connect 7"]);
        let mut bench = Bench::ready(&targets(&[7, 8]));
        bench.link().lose(&Fault::Misplaced, 0, long_after).unwrap();
        bench.link().dial().unwrap();
        assert_eq!(bench.actions(), ["close", "view", "view", "connect 8"]);
    }

    #[test]
    fn a_connection_is_closed_only_while_nothing_waits_for_it() {
        let mut bench = Bench::ready(&targets(&[7]));
        bench.link().connection.queue.push(Owner::Probe);
        bench.link().close_if_quiet();
        assert_eq!(bench.actions(), [""; 0]);
        bench.link().connection.queue.next_unsent();
        bench.link().close_if_quiet();
        assert_eq!(bench.actions(), ["close", "view"]);
        assert!(bench.link().connection.is_idle());
    }

    #[test]
    fn a_query_interrupts_a_subscription() {
        let mut bench = Bench::ready(&targets(&[7]));
        let (command, packed) = (CommandKind::Sentinel, b"SENTINEL".to_vec());
        let query = Query { command, packed, channel: Some("+switch-master") };
        let mut link = bench.link();
        link.encode_query(Owner::Topology(1), &query, 0);
        let sent = String::from_utf8(link.connection.output().to_vec()).unwrap();
        let commands =
            ["UNSUBSCRIBE", "SENTINEL", "\r\nSUBSCRIBE"].map(|it| sent.find(it).unwrap());
        assert!(commands.is_sorted(), "{sent}");
        let owners = [(); 3].map(|()| link.connection.queue.next_lost().unwrap());
        assert_eq!(owners, [Owner::Subscription, Owner::Topology(1), Owner::Subscription]);
        assert_eq!(bench.actions(), ["count"]);
    }
}
