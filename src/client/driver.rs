//! Drives a client of the pure crate with NGINX's sockets, timers, resolver and events.
//!
//! It decides nothing: it passes events to the [`Client`], with the time, and carries out the actions
//! that follow. Requests are resumed by posted events, and most of NGINX's functions only register,
//! post or move bytes. But one that needs a free connection closes others first if there are few, and
//! ends their requests, which settle here. So what opens a socket is called without the state borrowed:
//! see [`Dial`].

use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use ngx::ffi::{
    NGX_LOG_ALERT, NGX_LOG_DEBUG_ALL, NGX_LOG_ERR, NGX_LOG_NOTICE, ngx_connection_t,
    ngx_core_conf_t, ngx_core_module, ngx_cycle, ngx_event_t, ngx_exiting, ngx_log_t, ngx_msec_t,
    ngx_pid, ngx_post_event, ngx_posted_events, ngx_random,
};
use rate_limit_core::client::{
    Action, Answer, Charge, Client, Config, ConnectionKey, Error, Fault, Level, NodeKey,
    RequestKey, Settlement, Target, Turn,
};
use rate_limit_core::decision::Verdict;
use rate_limit_core::lease::Granted;
use rate_limit_core::metrics;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::script::Scripts;

use super::resolver::Resolution;
use super::socket::{Socket, Transfer};
use super::tls::{Peer, Tls};
use crate::clock::{monotonic_micros, time_until, turn_start};
use crate::log::{cycle_log, debug, log};
use crate::nginx::event::{Posted, Timer};
use crate::shm::{NodeEntry, Reservations, Shared};

mod nodes;

/// The shortest time between two log lines about faults of a node that is up, in ms.
const WARN_EVERY: u64 = 10_000;

/// One worker's client of one store, driven by NGINX.
pub(crate) struct Driver {
    state: RefCell<State>,
}

struct State {
    /// Where the driver is, for NGINX's events.
    driver: NonNull<Driver>,
    client: Client,
    shared: Shared,
    /// The reference of the store: nodes of the same name in other stores have records of their own.
    store: String,
    tls: Option<Rc<Tls>>,
    /// By the index of the connection.
    wires: Vec<Option<Wire>>,
    /// By the index of the request: the event that resumes it.
    wakers: Vec<Option<(RequestKey, NonNull<ngx_event_t>)>>,
    /// The limits that were settled, by the tag of their settlements.
    settling: Vec<Reservations>,
    /// By the index of the node.
    nodes: Vec<Option<KnownNode>>,
    timer: Timer,
    /// When the timer expires, in µs.
    timer_at: Option<u64>,
    turn_end: Posted,
    is_leaving: bool,
    /// The transport that is to be started next, when the state is not borrowed any more.
    dial: Option<Dial>,
    /// How long resolving a host name may take, in ms.
    resolve_timeout: ngx_msec_t,
    /// For connections: NGINX's reports of failed attempts are not written to it.
    quiet_log: Box<Cell<ngx_log_t>>,
}

/// A connection: its transport, and the data of its events.
struct Wire {
    transport: Transport,
    /// Output waits until the socket is writable.
    is_blocked: bool,
    /// Dropped last: the transport's events refer to it.
    tag: Rc<Tag>,
}

/// The data of NGINX's events about a connection. It stays where it is, and is only read.
struct Tag {
    driver: NonNull<Driver>,
    key: ConnectionKey,
    /// Posted when the resolver has found addresses.
    resolved: Posted,
}

enum Transport {
    Nothing,
    Resolving(Box<Resolution>),
    Connecting(Socket),
    Open(Socket),
}

/// A transport that is to be started, for the connection of a tag. NGINX may call the driver meanwhile.
enum Dial {
    Resolve { tag: Rc<Tag>, host: String, port: u16, timeout: ngx_msec_t },
    Connect { tag: Rc<Tag>, target: Target, log: *mut ngx_log_t },
}

/// A node, and its record in the shared memory.
struct KnownNode {
    key: NodeKey,
    record: NodeEntry,
    /// The TLS name and session of the server, if TLS is used.
    peer: Option<Rc<Peer>>,
}

/// For requests.
impl Driver {
    /// A client of the store that `config` describes; nothing is connected yet.
    pub(crate) fn new(
        config: Config,
        scripts: Scripts,
        reference: String,
        tls: Option<Rc<Tls>>,
        shared: Shared,
    ) -> Rc<Self> {
        // SAFETY: set before any worker runs.
        let client_name = format!("nginx_rate_limit_redis:{}", unsafe { ngx_pid });
        let config = Config { client_name, seed: ngx_random().unsigned_abs(), ..config };
        let state = State {
            driver: NonNull::dangling(),
            client: Client::new(config.clone(), Arc::new(scripts)),
            shared,
            store: reference,
            tls,
            wires: Vec::new(),
            wakers: Vec::new(),
            settling: Vec::new(),
            nodes: Vec::new(),
            timer: Timer::background(),
            timer_at: None,
            turn_end: Posted::new(),
            is_leaving: false,
            dial: None,
            // The other half is left for connecting.
            resolve_timeout: (config.connect_timeout / 2 / MILLISECOND) as ngx_msec_t,
            quiet_log: Box::new(Cell::new(quiet_log())),
        };
        let driver = Rc::new(Self { state: RefCell::new(state) });
        let mut state = driver.state.borrow_mut();
        state.driver = NonNull::from(&*driver);
        state.show_all();
        drop(state);
        driver
    }

    /// Connects, before the first request needs it.
    pub(crate) fn start(&self) {
        self.act(|state| state.client.start(monotonic_micros()));
    }

    /// Charges a request: see [`Client::submit`]. Returns whether it waits, too: then `wake` is posted
    /// when the outcome is known.
    ///
    /// # Safety
    /// `wake` must be valid until the request is released.
    pub(crate) unsafe fn submit(
        &self,
        charges: &[Charge<'_>],
        timeout: u64,
        now: u64,
        wake: NonNull<ngx_event_t>,
    ) -> (RequestKey, bool) {
        self.act(|state| {
            let key = state.client.submit(charges, timeout, now);
            place(&mut state.wakers, key.index(), (key, wake));
            (key, state.client.outcome(key).is_none())
        })
    }

    /// The outcome of a request, once there is one.
    pub(crate) fn outcome(&self, key: RequestKey) -> Option<Result<(), Error>> {
        self.state.borrow().client.outcome(key)
    }

    /// Runs `act` with the answer to each charge of a request, as far as they have come.
    pub(crate) fn with_answers(&self, key: RequestKey, act: impl FnOnce(&[Answer])) {
        act(self.state.borrow().client.answers(key));
    }

    /// The verdict on a charge of a request if it is given back: see [`Client::unspent`].
    pub(crate) fn unspent(&self, key: RequestKey, charge: usize) -> Option<Verdict> {
        self.state.borrow().client.unspent(key, charge)
    }

    /// What came of the lease of a charge of a request: see [`Client::granted`].
    pub(crate) fn granted(&self, key: RequestKey, charge: usize) -> Granted {
        self.state.borrow().client.granted(key, charge)
    }

    /// Forgets a request: see [`Client::release`]. If Redis has decided it, `wait` is how long that took,
    /// in µs: it is counted for each node that took part.
    pub(crate) fn release(&self, key: RequestKey, refund: bool, wait: Option<u64>) {
        let mut state = self.state.borrow_mut();
        if let Some(wait) = wait {
            state.count_wait(key, wait);
        }
        if let Some(waker) = state.wakers.get_mut(key.index())
            && waker.is_some_and(|(other, _)| other == key)
        {
            *waker = None;
        }
        // This leads to no action.
        state.client.release(key, refund);
        state.wait_for_requests();
    }

    /// Gives back what was charged: see [`Client::refund`].
    pub(crate) fn refund(&self, charge: &Charge<'_>, since: u64) {
        self.act(|state| state.client.refund(charge, since, monotonic_micros()));
    }

    /// Settles what was charged at `since`: see [`Client::settle`]. The end of it is counted.
    pub(crate) fn settle(
        &self,
        charge: &Charge<'_>,
        since: u64,
        change: i64,
        reservations: Reservations,
    ) {
        self.act(|state| {
            let tag = state.tag_of(reservations);
            state.client.settle(charge, Settlement { since, change, tag }, monotonic_micros());
        });
    }

    /// Passes an event to the client, and carries out the actions that follow.
    fn act<T>(&self, event: impl FnOnce(&mut State) -> T) -> T {
        let (result, dials) = self.handle(event);
        if dials {
            self.dial();
        }
        result
    }

    /// Passes an event to the client, and carries out the actions that follow, up to the next transport
    /// that is to be started. Returns whether there is one.
    fn handle<T>(&self, event: impl FnOnce(&mut State) -> T) -> (T, bool) {
        let mut state = self.state.borrow_mut();
        let result = event(&mut state);
        state.carry_out();
        (result, state.dial.is_some())
    }

    /// Starts the transport that is to be started, and those that follow.
    #[cold]
    fn dial(&self) {
        while let Some(dial) = self.next_dial() {
            match dial {
                Dial::Resolve { tag, host, port, timeout } => {
                    let pointer = Rc::as_ptr(&tag);
                    // SAFETY: the tag outlives the resolution: here, and in the wire, which drops it last.
                    let done = move || unsafe {
                        (*pointer).resolved.post(Some(on_resolved), pointer, cycle_log());
                    };
                    let resolution = Resolution::start(&host, port, timeout, done);
                    self.handle(|state| state.on_resolution(&tag, resolution));
                }
                Dial::Connect { tag, target, log } => {
                    let data = Rc::as_ptr(&tag).cast_mut().cast();
                    let socket = Socket::connect(&target, log, Some(on_socket), data);
                    self.handle(|state| state.on_dialed(&tag, socket));
                }
            }
        }
    }

    fn next_dial(&self) -> Option<Dial> {
        self.state.borrow_mut().dial.take()
    }

    /// Closes every connection: no event refers to this driver any more.
    pub(crate) fn disconnect(&self) {
        let mut state = self.state.borrow_mut();
        state.timer.stop();
        state.turn_end.cancel();
        state.wires.clear();
        state.hide_all();
    }
}

/// Actions.
impl State {
    /// Carries out what follows from an event, up to the next transport that is to be started. Most
    /// submissions lead to nothing.
    fn carry_out(&mut self) {
        // SAFETY: only NGINX writes it, in this thread.
        if unsafe { ngx_exiting } != 0 && !self.is_leaving {
            self.leave();
        }
        if self.client.has_actions() {
            self.carry_out_actions();
        }
        self.wait_for_requests();
        let at = self.client.timer();
        if self.timer_at != at {
            self.set_timer(at);
        }
    }

    fn leave(&mut self) {
        self.is_leaving = true;
        let (now, timeout) = (monotonic_micros(), shutdown_timeout());
        debug!(cycle_log(), "leave, shutdown timeout: {timeout} us");
        let limit = (timeout > 0).then(|| now.saturating_add(timeout));
        self.client.leave(limit, now);
    }

    fn carry_out_actions(&mut self) {
        while self.dial.is_none()
            && let Some(action) = self.client.poll_action()
        {
            match action {
                Action::EndTurn => self.post_turn_end(),
                Action::Send(key) => self.send(key),
                Action::Complete(key) => self.wake(key),
                Action::Settled { tag, is_settled } => self.end_settlement(tag, is_settled),
                Action::Count(node) => self.count(node),
                Action::Attempted(node, result) => self.count_attempt(node, result),
                Action::Queried(node, result) => self.count_query(node, result),
                Action::Resolve { connection, host, port } => self.resolve(connection, host, port),
                Action::Connect(key, target) => self.connect(key, target),
                Action::Close(key) => self.close(key),
                Action::View(node) => self.show(node),
                Action::Remove(node) => self.forget(node),
                Action::Down(node, reason) => self.log_down(node, &reason),
                Action::Up(node) => self.log_up(node),
                Action::Slow(node, patience) => self.log_slow(node, patience),
                Action::Prompt(node) => self.log_prompt(node),
                Action::Warn(node, what) => self.log_warning(node, &what),
                Action::Log(Level::Error, line) => log!(NGX_LOG_ERR, cycle_log(), "{line}"),
                Action::Log(Level::Notice, line) => log!(NGX_LOG_NOTICE, cycle_log(), "{line}"),
            }
        }
    }

    /// The tag of a settlement of a limit.
    fn tag_of(&mut self, reservations: Reservations) -> u64 {
        let known = self.settling.iter().position(|other| other.is_same(reservations));
        let index = known.unwrap_or_else(|| {
            self.settling.push(reservations);
            self.settling.len().saturating_sub(1)
        });
        index as u64
    }

    fn end_settlement(&self, tag: u64, is_settled: bool) {
        if let Some(reservations) = self.settling.get(tag as usize) {
            let result = if is_settled {
                metrics::SettlementResult::Settled
            } else {
                metrics::SettlementResult::Lost
            };
            debug!(cycle_log(), "settlement: {}", result.name());
            reservations.end(result);
        }
    }

    /// A worker that shuts down waits for what the client waits for, and for nothing else.
    fn wait_for_requests(&self) {
        self.timer.set_background(!self.client.keeps_worker());
    }

    fn post_turn_end(&self) {
        // SAFETY: the driver stays where it is until it is dropped, which cancels the event.
        unsafe { self.turn_end.post(Some(on_turn_end), self.driver.as_ptr(), cycle_log()) };
    }

    /// Resumes the request in this turn.
    fn wake(&self, key: RequestKey) {
        let waker = self.wakers.get(key.index()).copied().flatten();
        if let Some((_, event)) = waker.filter(|(other, _)| *other == key) {
            // SAFETY: the event is that of the client's connection, and is valid until the request is
            // released, which forgets the waker. NGINX takes it from the queue if the connection is
            // closed first.
            unsafe { ngx_post_event(event.as_ptr(), &raw mut ngx_posted_events) };
        }
    }

    fn set_timer(&mut self, at: Option<u64>) {
        self.timer_at = at;
        match at {
            // SAFETY: as for the end of the turn; dropping it stops the timer.
            Some(at) => unsafe {
                self.timer.start(time_until(at), Some(on_timer), self.driver.as_ptr(), cycle_log());
            },
            None => self.timer.stop(),
        }
    }

    fn resolve(&mut self, key: ConnectionKey, host: String, port: u16) {
        debug!(cycle_log(), "connection {}: resolve {host}", key.index());
        let (tag, timeout) = (self.wire(key), self.resolve_timeout);
        self.dial = Some(Dial::Resolve { tag, host, port, timeout });
    }

    fn connect(&mut self, key: ConnectionKey, target: Target) {
        debug!(cycle_log(), "connection {} to {target:?}", key.index());
        let (tag, log) = (self.wire(key), self.quiet_log.as_ptr());
        self.dial = Some(Dial::Connect { tag, target, log });
    }

    fn close(&mut self, key: ConnectionKey) {
        if self.wires.get_mut(key.index()).and_then(Option::take).is_some() {
            debug!(cycle_log(), "close connection {}", key.index());
        }
    }

    /// Replaces the wire of a connection by one without a transport; returns its tag.
    fn wire(&mut self, key: ConnectionKey) -> Rc<Tag> {
        let tag = Rc::new(Tag { driver: self.driver, key, resolved: Posted::new() });
        let wire = Wire { transport: Transport::Nothing, is_blocked: false, tag: Rc::clone(&tag) };
        place(&mut self.wires, key.index(), wire);
        tag
    }

    /// The wire of a tag, unless it was closed or replaced.
    fn wire_of(&mut self, tag: &Rc<Tag>) -> Option<&mut Wire> {
        let wire = self.wires.get_mut(tag.key.index())?.as_mut();
        wire.filter(|wire| Rc::ptr_eq(&wire.tag, tag))
    }

    fn socket(&mut self, key: ConnectionKey) -> Option<&mut Socket> {
        match &mut self.wires.get_mut(key.index())?.as_mut()?.transport {
            Transport::Open(socket) => Some(socket),
            _ => None,
        }
    }

    /// Sends the output of a connection, as far as the socket takes it.
    fn send(&mut self, key: ConnectionKey) {
        if let Err(error) = self.try_send(key) {
            self.on_send_failed(key, &error);
        }
    }

    /// A server that closes a connection may have said why: that is read first.
    #[cold]
    fn on_send_failed(&mut self, key: ConnectionKey, error: &io::Error) {
        if let Some(socket) = self.socket(key) {
            socket.refresh_events();
        }
        self.receive(key);
        if self.client.is_open(key) {
            self.lose(key, &closed("send()", error));
        }
    }

    /// Reports that a connection is lost. What its socket would report next is not the client's
    /// business any more: it may connect anew under the same key.
    #[cold]
    fn lose(&mut self, key: ConnectionKey, fault: &Fault) {
        self.close(key);
        self.client.on_lost(key, fault, monotonic_micros());
    }

    fn try_send(&mut self, key: ConnectionKey) -> io::Result<()> {
        let now = monotonic_micros();
        let Some(Some(wire)) = self.wires.get_mut(key.index()) else { return Ok(()) };
        let Transport::Open(socket) = &mut wire.transport else { return Ok(()) };
        wire.is_blocked = false;
        loop {
            let bytes = self.client.output(key, now);
            if bytes.is_empty() {
                return Ok(());
            }
            match socket.send(bytes)? {
                Transfer::Moved(count) => self.client.on_sent(key, count),
                Transfer::Later => {
                    wire.is_blocked = true;
                    return socket.watch();
                }
            }
        }
    }
}

/// Events.
impl State {
    /// A host name is being resolved, unless there is no resolver.
    fn on_resolution(&mut self, tag: &Rc<Tag>, resolution: Option<Box<Resolution>>) {
        let Some(wire) = self.wire_of(tag) else { return };
        match resolution {
            Some(resolution) => wire.transport = Transport::Resolving(resolution),
            None => self.client.on_resolved(tag.key, Vec::new(), monotonic_micros()),
        }
    }

    /// A socket is being connected, or has failed at once.
    fn on_dialed(&mut self, tag: &Rc<Tag>, socket: io::Result<Socket>) {
        let Some(wire) = self.wire_of(tag) else { return };
        match socket {
            Ok(socket) => wire.transport = Transport::Connecting(socket),
            Err(error) => self.lose(tag.key, &unconnected(&error)),
        }
    }

    /// A socket has become readable or writable.
    fn on_socket(&mut self, key: ConnectionKey) {
        if !self.establish(key) {
            return;
        }
        self.receive(key);
        if self.wires.get(key.index()).is_some_and(|it| it.as_ref().is_some_and(|it| it.is_blocked))
        {
            self.send(key);
        }
        if self.client.is_open(key)
            && let Some(Err(error)) = self.socket(key).map(Socket::watch)
        {
            self.lose(key, &closed("ngx_handle_read_event()", &error));
        }
    }

    /// Continues to connect; whether the connection can be used.
    fn establish(&mut self, key: ConnectionKey) -> bool {
        let (peer, is_plain) = (self.peer(key), self.tls.is_none());
        let Some(Some(wire)) = self.wires.get_mut(key.index()) else { return false };
        let Transport::Connecting(socket) = &mut wire.transport else {
            return matches!(wire.transport, Transport::Open(_));
        };
        let progress = match peer {
            // Without a name to verify nothing is sent.
            None if !is_plain => Err(Fault::Connect("the server is not known any more".to_owned())),
            peer => advance(socket, peer.as_deref()),
        };
        // Also where the handshake fails at once: it was the server that did not want it.
        if socket.has_tls() {
            self.client.on_securing(key);
        }
        match progress {
            Ok(false) => false,
            Ok(true) => {
                let transport = std::mem::replace(&mut wire.transport, Transport::Nothing);
                if let Transport::Connecting(socket) = transport {
                    wire.transport = Transport::Open(socket);
                }
                debug!(cycle_log(), "connection {} is open", key.index());
                self.client.on_connected(key);
                true
            }
            Err(fault) => {
                self.lose(key, &fault);
                false
            }
        }
    }

    /// Reads all input, and passes it to the client.
    fn receive(&mut self, key: ConnectionKey) {
        let now = monotonic_micros();
        let (mut has_read, mut is_open) = (false, true);
        while is_open
            && let Some(Some(wire)) = self.wires.get_mut(key.index())
            && let Transport::Open(socket) = &mut wire.transport
            && socket.is_readable()
        {
            match socket.receive(self.client.space(key)) {
                Ok(Transfer::Moved(count)) => is_open = self.client.on_received(key, count, now),
                Ok(Transfer::Later) => break,
                Err(error) => {
                    self.lose(key, &closed("recv()", &error));
                    is_open = false;
                }
            }
            has_read = true;
        }
        if has_read {
            self.count_lag(now.saturating_sub(turn_start()));
            self.save_session(key);
        }
    }

    /// The timer has expired.
    fn on_timer(&mut self) {
        if let Some(at) = self.timer_at.take() {
            self.count_lag(monotonic_micros().saturating_sub(at));
        }
        self.check_timer();
    }

    fn on_resolved(&mut self, key: ConnectionKey) {
        let Some(Some(wire)) = self.wires.get_mut(key.index()) else { return };
        if let Transport::Resolving(resolution) = &wire.transport
            && let Some(targets) = resolution.take()
        {
            self.client.on_resolved(key, targets, monotonic_micros());
        }
    }
}

/// The actions are carried out afterwards.
impl Turn for State {
    fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    fn now(&self) -> u64 {
        monotonic_micros()
    }

    fn read_sockets(&mut self) {
        let keys: Vec<_> = self.wires.iter().flatten().map(|wire| wire.tag.key).collect();
        for key in keys {
            if let Some(Some(wire)) = self.wires.get_mut(key.index()) {
                match &mut wire.transport {
                    Transport::Connecting(socket) | Transport::Open(socket) => {
                        socket.refresh_events()
                    }
                    _ => {}
                }
            }
            self.on_socket(key);
        }
    }
}

/// TLS.
impl State {
    /// The TLS name and session of a connection's server, if TLS is used.
    fn peer(&mut self, key: ConnectionKey) -> Option<Rc<Peer>> {
        let tls = self.tls.clone()?;
        let node = self.client.node_of(key)?;
        let host = self.client.node(node)?.host().to_owned();
        let known = self.known(node)?;
        Some(Rc::clone(known.peer.get_or_insert_with(|| Rc::new(Peer::new(tls, &host)))))
    }

    /// Saves the session for the next connection to the server.
    fn save_session(&mut self, key: ConnectionKey) {
        if self.tls.is_some()
            && let Some(peer) = self.peer(key)
            && let Some(socket) = self.socket(key)
        {
            socket.save_session(&peer);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.resolved.cancel();
    }
}

/// Sets the element of an index, and grows the vector to it.
fn place<T>(places: &mut Vec<Option<T>>, index: usize, value: T) {
    if places.len() <= index {
        places.resize_with(index.saturating_add(1), || None);
    }
    if let Some(place) = places.get_mut(index) {
        *place = Some(value);
    }
}

/// Continues to connect a socket, and the TLS handshake if there is one; whether it can be used.
fn advance(socket: &mut Socket, peer: Option<&Peer>) -> Result<bool, Fault> {
    if !socket.has_tls() && !socket.test_connect().map_err(|error| unconnected(&error))? {
        return Ok(false);
    }
    let insecure = |error: io::Error| Fault::Connect(describe(&error));
    peer.map_or(Ok(true), |peer| socket.secure(peer).map_err(insecure))
}

fn unconnected(error: &io::Error) -> Fault {
    Fault::Connect(format!("connect() failed {}", describe(error)))
}

/// What a connection was lost by: the failed call, or an end that is no error of the system.
fn closed(call: &str, error: &io::Error) -> Fault {
    let text = describe(error);
    Fault::Closed(match error.raw_os_error() {
        Some(_) => format!("{call} failed {text}"),
        None => text,
    })
}

/// An error of the system as NGINX writes it: `(111: Connection refused)`.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("({number}: {text})")
        }
        None => text,
    }
}

/// How long a worker may take to shut down, in µs: `worker_shutdown_timeout`; 0 if there is no limit.
fn shutdown_timeout() -> u64 {
    // SAFETY: a worker has a cycle, which has a configuration of the core module, at the module's index.
    let timeout = unsafe {
        let core = *(*ngx_cycle).conf_ctx.add(ngx_core_module.index);
        (*core.cast::<ngx_core_conf_t>()).shutdown_timeout
    };
    (timeout as u64).saturating_mul(MILLISECOND)
}

/// A copy of the cycle's log in which only alerts, and debugging if it is on, are written.
fn quiet_log() -> ngx_log_t {
    // SAFETY: see `cycle_log`; the structure holds nothing that a copy could free twice.
    let mut log = unsafe { std::ptr::read(cycle_log()) };
    let debug = log.log_level & NGX_LOG_DEBUG_ALL as usize;
    log.log_level = if debug == 0 { NGX_LOG_ALERT as usize } else { log.log_level };
    log
}

/// Passes an event of a connection to its driver.
///
/// # Safety
/// `data` must be the tag of a wire that was not dropped.
unsafe fn on_wire(data: *const Tag, event: impl FnOnce(&mut State, ConnectionKey)) {
    // SAFETY: the caller guarantees that the tag is valid, and it is only ever read. The driver drops its wires
    // before it goes, so it is there. The key is copied: the event may end the wire.
    let (driver, key) = unsafe { ((*data).driver, (*data).key) };
    // SAFETY: as above.
    unsafe { driver.as_ref() }.act(|state| event(state, key));
}

unsafe extern "C" fn on_socket(event: *mut ngx_event_t) {
    // SAFETY: the data of an event of NGINX's connection is that connection, whose data is the tag of
    // the wire that the socket belongs to; closing the socket removes its events.
    unsafe { on_wire((*(*event).data.cast::<ngx_connection_t>()).data.cast(), State::on_socket) };
}

unsafe extern "C" fn on_resolved(event: *mut ngx_event_t) {
    // SAFETY: the event is part of the tag that is its data; dropping the tag removes it.
    unsafe { on_wire((*event).data.cast(), State::on_resolved) };
}

unsafe extern "C" fn on_timer(event: *mut ngx_event_t) {
    // SAFETY: the owner is the driver, and dropping it stops the timer.
    unsafe { &*Timer::owner::<Driver>(event) }.act(State::on_timer);
}

unsafe extern "C" fn on_turn_end(event: *mut ngx_event_t) {
    // SAFETY: the data is the driver, and dropping it cancels the event.
    let driver = unsafe { &*(*event).data.cast::<Driver>() };
    driver.act(|state| state.client.on_turn_end(monotonic_micros()));
}
