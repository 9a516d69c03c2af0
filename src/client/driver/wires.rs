//! The connections of a driver: their transports, with NGINX's events about them.

use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

use ngx::ffi::{ngx_connection_t, ngx_event_t, ngx_log_t, ngx_msec_t};
use rate_limit_core::client::{Client, ConnectionKey, Fault, Target, Turn};
use rate_limit_core::text::log::SystemError;

use super::super::resolver::Resolution;
use super::super::socket::{Socket, Transfer};
use super::super::tls::Peer;
use super::{Driver, State, place};
use crate::clock::{monotonic_micros, turn_start};
use crate::log::{cycle_log, debug};
use crate::nginx::event::Posted;

/// A connection: its transport, and the data of its events.
pub(super) struct Wire {
    transport: Transport,
    /// Output waits until the socket is writable.
    is_blocked: bool,
    /// Dropped last: the transport's events refer to it.
    tag: Rc<Tag>,
}

/// The data of NGINX's events about a connection. It stays where it is, and is only read.
pub(super) struct Tag {
    driver: NonNull<Driver>,
    key: ConnectionKey,
    /// Posted when the resolver has found addresses.
    resolved: Posted,
}

pub(super) enum Transport {
    Nothing,
    Resolving(Rc<Resolution>),
    Connecting(Socket),
    Open(Socket),
}

/// A transport that is to be started, for the connection of a tag. NGINX may call the driver meanwhile.
pub(super) enum Dial {
    Resolve { tag: Rc<Tag>, host: String, port: u16, timeout: ngx_msec_t },
    Connect { tag: Rc<Tag>, target: Target, log: *mut ngx_log_t },
}

/// Transports are started while the state is not borrowed.
impl Driver {
    /// Starts the transport that is to be started, and those that follow.
    #[cold]
    pub(super) fn dial(&self) {
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
                    // SAFETY: the log is the driver's. The tag outlives the socket: here, and in the wire, which
                    // drops it last.
                    let socket = unsafe { Socket::connect(&target, log, Some(on_socket), data) };
                    self.handle(|state| state.on_dialed(&tag, socket));
                }
            }
        }
    }

    fn next_dial(&self) -> Option<Dial> {
        self.state.borrow_mut().dial.take()
    }
}

/// Actions.
impl State {
    pub(super) fn resolve(&mut self, key: ConnectionKey, host: String, port: u16) {
        debug!(cycle_log(), "connection {}: resolve {host}", key.index());
        let (tag, timeout) = (self.wire(key), self.resolve_timeout);
        self.dial = Some(Dial::Resolve { tag, host, port, timeout });
    }

    pub(super) fn connect(&mut self, key: ConnectionKey, target: Target) {
        debug!(cycle_log(), "connection {} to {target:?}", key.index());
        let (tag, log) = (self.wire(key), self.quiet_log.as_ptr());
        self.dial = Some(Dial::Connect { tag, target, log });
    }

    pub(super) fn close(&mut self, key: ConnectionKey) {
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

    fn socket(&self, key: ConnectionKey) -> Option<&Socket> {
        match &self.wires.get(key.index())?.as_ref()?.transport {
            Transport::Open(socket) => Some(socket),
            _ => None,
        }
    }

    /// Sends the output of a connection, as far as the socket takes it.
    pub(super) fn send(&mut self, key: ConnectionKey) {
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
    fn on_resolution(&mut self, tag: &Rc<Tag>, resolution: Option<Rc<Resolution>>) {
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
        if matches!(self.wires.get(key.index()), Some(Some(wire)) if wire.is_blocked) {
            self.send(key);
        }
        if self.client.is_open(key)
            && let Some(Err(error)) = self.socket(key).map(Socket::watch)
        {
            self.lose(key, &closed("ngx_handle_read_event()", &error));
        }
    }

    /// Whether the connection can be used; if it is being made, it is continued first.
    fn establish(&mut self, key: ConnectionKey) -> bool {
        let Some(Some(wire)) = self.wires.get(key.index()) else { return false };
        match wire.transport {
            Transport::Open(_) => true,
            Transport::Connecting(_) => self.proceed(key),
            Transport::Nothing | Transport::Resolving(_) => false,
        }
    }

    /// Continues to connect; whether the connection can be used.
    #[cold]
    fn proceed(&mut self, key: ConnectionKey) -> bool {
        let (peer, is_plain) = (self.peer(key), self.tls.is_none());
        let Some(Some(wire)) = self.wires.get_mut(key.index()) else { return false };
        let Transport::Connecting(socket) = &mut wire.transport else { return false };
        let progress = match peer {
            // Without a name to verify nothing is sent.
            None if !is_plain => Err(Fault::Connect("the server is not known any more".to_owned())),
            peer => advance(socket, peer),
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
                self.read_password();
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
            if let Some(socket) = self.socket(key) {
                socket.save_session();
            }
        }
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
            if let Some(Some(wire)) = self.wires.get(key.index())
                && let Transport::Connecting(socket) | Transport::Open(socket) = &wire.transport
            {
                socket.refresh_events();
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
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.resolved.cancel();
    }
}

/// Continues to connect a socket, and the TLS handshake if there is one; whether it can be used.
fn advance(socket: &mut Socket, peer: Option<Rc<Peer>>) -> Result<bool, Fault> {
    if !socket.has_tls() && !socket.test_connect().map_err(|error| unconnected(&error))? {
        return Ok(false);
    }
    let insecure = |error: io::Error| Fault::Connect(error.to_string());
    peer.map_or(Ok(true), |peer| socket.secure(peer).map_err(insecure))
}

fn unconnected(error: &io::Error) -> Fault {
    Fault::Connect(cause("connect()", error))
}

fn closed(call: &str, error: &io::Error) -> Fault {
    Fault::Closed(cause(call, error))
}

/// The cause of a lost connection: the failed call, or what is no error of the system.
fn cause(call: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => format!("{call} failed{}", SystemError(error)),
        None => error.to_string(),
    }
}

/// Passes an event of a connection to its driver.
///
/// # Safety
/// `data` must be the tag of a wire that was not dropped.
unsafe fn on_wire(data: *const Tag, event: impl FnOnce(&mut State, ConnectionKey)) {
    // SAFETY: the caller guarantees that the tag is valid, and it is only ever read. The driver drops its wires
    // before it goes, so it is there. The key is copied: the event may end the wire.
    unsafe {
        let (driver, key) = ((*data).driver, (*data).key);
        driver.as_ref().act(|state| event(state, key));
    }
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
