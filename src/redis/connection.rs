//! One connection of a worker to a server.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;

use ngx::ffi::{
    NGX_LOG_ALERT, NGX_LOG_DEBUG_ALL, NGX_LOG_NOTICE, ngx_connection_t, ngx_event_t, ngx_exiting,
    ngx_log_t, ngx_random,
};
use rate_limit_core::metrics::ErrorKind;
use rate_limit_core::redis::greeting::Greeting;
use rate_limit_core::redis::link::{Event, Fault, Link, MAX_WAITING, Next, Refused};
use rate_limit_core::redis::queue::Ticket;

use super::node::Node;
use super::part::Part;
use super::recent::Recent;
use super::resolve::Resolution;
use super::socket::{Socket, Transfer};
use super::waiter::Waiter;
use super::{cycle_log, now};
use crate::event::{Posted, Timer};
use crate::log::log;

/// A connection: made when the worker starts, kept until it ends, and made again whenever it is
/// lost. It lends NGINX's events to a [`Link`].
pub(super) struct Connection {
    /// Where it is: what others get to refer to it.
    this: NonNull<Self>,
    link: Link<Waiter>,
    recent: Recent,
    /// How many wait behind others that ask the same.
    chained: usize,
    socket: Option<Socket>,
    /// The server's host, while its addresses are looked up.
    resolution: Option<Box<Resolution>>,
    node: NonNull<Node>,
    /// What the node has been told.
    told: Usable,
    /// Which of the server's addresses is used.
    address: usize,
    /// How many others were tried in this attempt.
    tried: usize,
    /// Why the server cannot be used, though it answers.
    unfit: Option<String>,
    /// Ends an attempt that takes too long, or starts the next one.
    timer: Timer,
    /// Sends what has gathered, at the end of this turn of the event loop.
    flush: Posted,
    /// A log of its own, in which NGINX does not report each attempt to connect.
    quiet_log: Box<Cell<ngx_log_t>>,
}

/// Of what use a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// Questions can be sent.
    pub(super) ready: bool,
    /// The server can be said to be there.
    pub(super) sound: bool,
}

impl Connection {
    /// A connection to `node` that is not made yet, at an address of its own.
    ///
    /// # Safety
    /// `node` must outlive it.
    pub(super) unsafe fn new(node: NonNull<Node>, greeting: Greeting) -> NonNull<Self> {
        let connection = Box::leak(Box::new(Self {
            this: NonNull::dangling(),
            link: Link::new(greeting),
            recent: Recent::new(),
            chained: 0,
            socket: None,
            resolution: None,
            node,
            told: Usable::default(),
            address: 0,
            tried: 0,
            unfit: None,
            timer: Timer::background(),
            flush: Posted::new(),
            quiet_log: Box::new(Cell::new(quiet_log())),
        }));
        let this = NonNull::from(&mut *connection);
        // SAFETY: it has just been made, and `connection` is not used any more.
        unsafe { (*this.as_ptr()).this = this };
        this
    }

    /// The server that it leads to.
    pub(super) fn node(&self) -> &'static Node {
        // SAFETY: see `new`; a node changes only inside of cells.
        unsafe { self.node.as_ref() }
    }

    /// Whether questions can be sent.
    pub(super) fn is_ready(&self) -> bool {
        self.link.is_ready()
    }

    /// Tells the node of what use the connection is now.
    fn tell_node(&mut self) {
        let usable = Usable { ready: self.link.is_ready(), sound: self.link.is_sound() };
        let told = std::mem::replace(&mut self.told, usable);
        if told != usable {
            self.node().changes(told, usable);
        }
    }

    /// Whether nobody waits and no reply is owed.
    pub(super) fn is_quiet(&self) -> bool {
        self.link.is_quiet()
    }

    /// Connects, unless it is connected.
    pub(super) fn open(&mut self) {
        if self.link.is_idle() {
            self.connect();
        }
    }

    /// Starts to connect, if need be by asking for the host's addresses first.
    fn connect(&mut self) {
        self.link.connecting();
        self.timer_in(self.node().connect_timeout());
        let this = self.this;
        // SAFETY: the connection stays where it is until it is dropped, and takes the resolution
        // with it. Only the flush event is touched, which is a cell.
        let done = move || unsafe {
            let (flush, log) = (&raw const (*this.as_ptr()).flush, cycle_log());
            (*flush).post(Some(on_flush), this.as_ptr(), log);
        };
        self.resolution = self.node().resolve(done);
        if self.resolution.is_none() {
            self.dial();
        }
    }

    /// Connects to one of the addresses that are known.
    fn dial(&mut self) {
        let addresses = self.node().addresses();
        let Some(address) = addresses.get(self.address).or(addresses.first()) else {
            return self.lost(Fault::Connect("its host name cannot be resolved".to_owned()));
        };
        let data = self.this.as_ptr().cast();
        match Socket::connect(address, self.log(), Some(on_event), data) {
            Ok(socket) => self.socket = Some(socket),
            Err(error) => self.lost(unconnected(&error)),
        }
    }

    /// Puts a question into the batch that is sent at the end of this turn.
    pub(super) fn submit(&mut self, waiter: Waiter) -> Result<(), Refused> {
        let Waiter::Part(part) = waiter else { return self.enqueue(waiter) };
        let part = Part::get(part);
        match self.recent.same(part) {
            Some(_) if self.link.waiting().saturating_add(self.chained) >= MAX_WAITING => {
                return Err(Refused::Overload);
            }
            // It is asked with the one before, which knows where that is.
            Some(last) => {
                let last = Part::get(last);
                self.chained = self.chained.saturating_add(1);
                last.append(part);
                self.recent.replace(last, Some(NonNull::from(part)));
            }
            None => {
                self.enqueue(waiter)?;
                // It does not wait here any more if the connection could not even begin to connect.
                if part.is_queued() {
                    self.recent.note(part);
                }
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, waiter: Waiter) -> Result<(), Refused> {
        if waiter.is_asking() {
            self.link.submit(Waiter::Asking)?;
        }
        let ticket = self.link.submit(waiter)?;
        waiter.waits_at(self.this, ticket);
        if self.link.is_idle() {
            self.connect();
        } else if self.link.is_ready() {
            self.post_flush();
        }
        Ok(())
    }

    /// Forgets a question whose request is gone, or has waited long enough.
    pub(super) fn cancel(&mut self, part: &Part, ticket: Ticket) {
        let (previous, next) = part.unchain();
        if previous.is_some() || next.is_some() {
            self.chained = self.chained.saturating_sub(1);
        }
        self.recent.replace(part, previous);
        match (previous, next) {
            (Some(_), _) => {}
            (None, Some(next)) => {
                Part::get(next).stands_in_for(part);
                self.link.replace(ticket, Waiter::Part(next));
            }
            (None, None) => self.link.cancel(ticket),
        }
        if part.is_asking() {
            self.link.cancel(ticket.wrapping_sub(1));
        }
    }

    /// Ends the connection if the server owes answers and has said nothing for long.
    pub(super) fn check(&mut self) {
        if self.link.is_silent(now()) {
            self.lost(Fault::Silent);
        }
    }

    fn post_flush(&self) {
        // SAFETY: the connection stays where it is until it is dropped, and cancels it then.
        unsafe { self.flush.post(Some(on_flush), self.this.as_ptr(), self.log()) };
    }

    fn timer_in(&self, delay: usize) {
        // SAFETY: as above.
        unsafe { self.timer.start(delay, Some(on_timer), self.this.as_ptr(), self.log()) };
    }

    /// Does what the socket is ready for.
    fn progress(&mut self) {
        if let Some(found) = self.resolution.as_ref().and_then(|resolution| resolution.take()) {
            self.resolution = None;
            self.node().resolved(found);
            self.dial();
        }
        if let Err(fault) = self.transfer() {
            self.lost(fault);
        }
        self.tell_node();
        // A worker that is leaving keeps no connection that it does not need.
        // SAFETY: only NGINX writes it, in this thread.
        if unsafe { ngx_exiting } != 0 && self.link.is_ready() && self.link.is_quiet() {
            self.close();
        }
    }

    /// Closes a connection on which nobody waits; the next question opens it again.
    pub(super) fn close(&mut self) {
        self.socket = None;
        self.link.close();
        self.tell_node();
    }

    fn transfer(&mut self) -> Result<(), Fault> {
        if self.link.is_connecting() {
            if !self.establish()? {
                return Ok(());
            }
            self.link.connected();
        }
        self.receive()?;
        match self.unfit.take() {
            Some(reason) => Err(Fault::Unfit(reason)),
            None => self.send(),
        }
    }

    /// Whether the connection is made, and TLS spoken on it where it is to be.
    fn establish(&mut self) -> Result<bool, Fault> {
        let peer = self.node().peer();
        let Some(socket) = &mut self.socket else { return Ok(false) };
        if !socket.is_secured() {
            socket.connected().map_err(|error| unconnected(&error))?;
        }
        let insecure = |error: io::Error| Fault::Connect(describe(&error));
        peer.map_or(Ok(true), |peer| socket.secure(peer).map_err(insecure))
    }

    fn receive(&mut self) -> Result<(), Fault> {
        while let Some(socket) = self.socket.as_mut().filter(|socket| socket.is_readable()) {
            match socket.receive(self.link.space()).map_err(closed)? {
                Transfer::Moved(count) => self.link.received(count, now()),
                Transfer::Later => break,
            }
            self.answer()?;
        }
        Ok(())
    }

    /// Deals out what was received.
    fn answer(&mut self) -> Result<(), Fault> {
        let node = self.node();
        loop {
            match self.link.next_event(now())? {
                None => return Ok(()),
                Some(Event::Ready) => {
                    self.tried = 0;
                    self.timer.stop();
                    if let (Some(socket), Some(peer)) = (&mut self.socket, node.peer()) {
                        socket.remember(peer);
                    }
                }
                Some(Event::Message(message)) => node.deployment().heard(&message),
                Some(Event::Answer(waiter, reply)) => {
                    self.chained = self.chained.saturating_sub(waiter.others());
                    self.recent.answered(waiter);
                    let (asked, later) = waiter.split();
                    if let Some(asked) = asked {
                        let answered = asked.answered(reply, node);
                        self.follow(asked, answered);
                    }
                    later.into_iter().for_each(|later| self.enqueue_again(later));
                }
            }
        }
    }

    /// Does what an answer asks for.
    fn follow(&mut self, waiter: Waiter, answered: Answered) {
        match answered {
            Answered::Done => {}
            Answered::Again => self.enqueue_again(waiter),
            Answered::Unfit(reason) => self.unfit = Some(reason),
        }
    }

    /// Puts those that have waited here before into the queue.
    fn enqueue_again(&mut self, waiter: Waiter) {
        match self.enqueue(waiter) {
            Ok(()) => self.chained = self.chained.saturating_add(waiter.others()),
            Err(_) => waiter.lost(self.node(), false),
        }
    }

    fn send(&mut self) -> Result<(), Fault> {
        let node = self.node();
        let Some(socket) = &mut self.socket else { return Ok(()) };
        let recent = &mut self.recent;
        loop {
            let bytes = self.link.output(now(), |waiter, out| {
                recent.next_batch();
                waiter.encode(node, out);
                recent.sent(waiter);
            });
            if bytes.is_empty() {
                break;
            }
            match socket.send(bytes).map_err(closed)? {
                Transfer::Moved(count) => self.link.sent(count),
                Transfer::Later => break,
            }
        }
        socket.watch().map_err(closed)
    }

    /// The connection is gone, or was never made: tells those who wait for it, and decides when
    /// to try again.
    pub(super) fn lost(&mut self, fault: Fault) {
        let node = self.node();
        self.socket = None;
        self.resolution = None;
        self.timer.stop();
        let was_ready = self.link.is_ready();
        if !was_ready && self.try_next_address() {
            return;
        }
        self.recent.clear();
        let random = ngx_random().unsigned_abs();
        let (chained, mut unsent) = (&mut self.chained, Vec::new());
        let next = self.link.lost(now(), random, fault.is_fit(), |waiter: Waiter, sent| {
            *chained = chained.saturating_sub(waiter.others());
            let (asked, later) = if sent { waiter.split() } else { (Some(waiter), None) };
            asked.into_iter().for_each(|asked| asked.lost(node, sent));
            unsent.extend(later);
        });
        self.tell_node();
        if was_ready {
            node.deployment().is_lost();
        }
        match next {
            Next::Connect { first } => {
                node.count_error(ErrorKind::Lost);
                if first {
                    log!(
                        NGX_LOG_NOTICE,
                        cycle_log(),
                        "redis {}: {fault}, reconnecting",
                        node.name()
                    );
                }
                self.connect();
            }
            Next::Wait { delay } => {
                node.lost(&fault);
                self.timer_in(delay as usize);
            }
        }
        unsent.into_iter().for_each(|waiter| self.enqueue_again(waiter));
    }

    /// Goes on with the next address of the host, unless all were tried: a host is not down because
    /// one of its addresses is.
    fn try_next_address(&mut self) -> bool {
        let count = self.node().addresses().len();
        self.address = self.address.wrapping_add(1).checked_rem(count).unwrap_or(0);
        self.tried = self.tried.saturating_add(1);
        if self.tried >= count {
            self.tried = 0;
            return false;
        }
        self.link.connecting();
        self.timer_in(self.node().connect_timeout());
        self.dial();
        true
    }

    fn log(&self) -> *mut ngx_log_t {
        self.quiet_log.as_ptr()
    }
}

/// What came of an answer.
pub(super) enum Answered {
    /// All is done.
    Done,
    /// The question is to be asked on this connection again.
    Again,
    /// The server cannot decide, for the reason that it gave.
    Unfit(String),
}

impl Drop for Connection {
    fn drop(&mut self) {
        let node = self.node();
        self.socket = None;
        self.resolution = None;
        self.link.lost(now(), 0, false, |waiter: Waiter, _| waiter.lost(node, true));
        self.timer.stop();
        self.flush.cancel();
    }
}

fn unconnected(error: &io::Error) -> Fault {
    Fault::Connect(format!("connect() failed {}", describe(error)))
}

fn closed(error: io::Error) -> Fault {
    Fault::Closed(describe(&error))
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

/// A copy of the cycle's log in which only alerts, and debugging if it is on, are written.
fn quiet_log() -> ngx_log_t {
    // SAFETY: see `cycle_log`; the structure holds nothing that a copy could free twice.
    let mut log = unsafe { std::ptr::read(cycle_log()) };
    let debug = log.log_level & NGX_LOG_DEBUG_ALL as usize;
    log.log_level = if debug == 0 { NGX_LOG_ALERT as usize } else { log.log_level };
    log
}

/// The connection that NGINX calls back.
///
/// # Safety
/// `data` must be what a living connection gave to NGINX.
unsafe fn connection<'a>(data: *mut std::ffi::c_void) -> &'a mut Connection {
    // SAFETY: the connection lives until it is dropped, which removes its events. Callbacks of one
    // worker never nest: a connection calls nothing that runs the event loop, a request, or
    // another connection.
    unsafe { &mut *data.cast::<Connection>() }
}

unsafe extern "C" fn on_event(event: *mut ngx_event_t) {
    // SAFETY: the data of an event of NGINX's connection is that, whose data is ours.
    unsafe { connection((*(*event).data.cast::<ngx_connection_t>()).data).progress() };
}

unsafe extern "C" fn on_flush(event: *mut ngx_event_t) {
    // SAFETY: the event is the connection's own.
    unsafe { connection((*event).data).progress() };
}

unsafe extern "C" fn on_timer(event: *mut ngx_event_t) {
    // SAFETY: the event is the connection's own.
    let connection = unsafe { connection((*event).data) };
    match &connection.socket {
        Some(socket) if socket.is_secured() && connection.link.is_connecting() => {
            connection.lost(Fault::Connect("timed out while SSL handshaking".to_owned()));
        }
        None if connection.resolution.is_none() => connection.connect(),
        _ => connection.lost(Fault::ConnectTimeout),
    }
}
