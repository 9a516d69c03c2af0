//! A worker's connection to one server.

use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use ngx::ffi::{
    NGX_LOG_ALERT, NGX_LOG_DEBUG_ALL, NGX_LOG_ERR, NGX_LOG_NOTICE, ngx_add_timer, ngx_connection_t,
    ngx_current_msec, ngx_cycle, ngx_del_timer, ngx_delete_posted_event, ngx_event_t, ngx_exiting,
    ngx_log_t, ngx_msec_t, ngx_pid, ngx_post_event, ngx_posted_events, ngx_random,
};
use once_cell::sync::Lazy;
use rate_limit_core::redis::greeting::Greeting;
use rate_limit_core::redis::link::{Event, Fault, Link, Next, Refused};
use rate_limit_core::redis::queue::Ticket;
use rate_limit_core::redis::reply::{RefusalKind, Reply};
use rate_limit_core::redis::script::Scripts;
use rate_limit_core::text::log::Escaped;

use super::pending::{Pending, Trouble};
use super::socket::{Socket, Transfer};
use super::tls::Peer;
use crate::conf::Store;
use crate::log::log;

/// How long connecting and greeting may take, in ms.
const CONNECT_TIMEOUT: ngx_msec_t = 250;

/// What concerns single requests is logged at most this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

static SCRIPTS: Lazy<Scripts> = Lazy::new(Scripts::new);

/// A worker's connection to one server: made when the worker starts, kept until it ends, and made
/// again whenever it is lost.
pub(crate) struct Node {
    link: Link<NonNull<Pending>>,
    socket: Option<Socket>,
    /// The server as TLS knows it, where TLS is spoken.
    tls: Option<Peer>,
    /// The server as it may be shown.
    name: String,
    addresses: &'static [ngx::ffi::ngx_addr_t],
    /// Which of the addresses is used.
    address: usize,
    /// How many others were tried in this attempt.
    tried: usize,
    /// Ends an attempt that takes too long, or starts the next one.
    timer: ngx_event_t,
    /// Sends what has gathered, at the end of this turn of the event loop.
    flush: ngx_event_t,
    /// A log of its own, in which NGINX does not report each attempt to connect.
    quiet_log: ngx_log_t,
    down_since: Option<Instant>,
    /// Requests that were not decided since the last answer.
    undecided: u64,
    complained: Option<Instant>,
}

impl Node {
    /// A node that is not connected yet, at an address of its own.
    pub(crate) fn new(store: &Store) -> NonNull<Self> {
        // SAFETY: set before any worker runs.
        let name = format!("nginx_rate_limit_redis:{}", unsafe { ngx_pid });
        let greeting = Greeting::new(store.endpoint(), &name, &SCRIPTS);
        let node = Box::leak(Box::new(Self {
            link: Link::new(greeting),
            socket: None,
            tls: store.peer(),
            name: store.endpoint().address.to_string(),
            addresses: store.addresses(),
            address: 0,
            tried: 0,
            // SAFETY: all zeroes is how NGINX itself starts an event.
            timer: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            flush: unsafe { std::mem::zeroed() },
            quiet_log: quiet_log(),
            down_since: None,
            undecided: 0,
            complained: None,
        }));
        let pointer = NonNull::from(&mut *node);
        for (event, handler) in [
            (&mut node.timer, on_timer as unsafe extern "C" fn(*mut ngx_event_t)),
            (&mut node.flush, on_flush),
        ] {
            event.handler = Some(handler);
            event.data = pointer.as_ptr().cast();
            event.log = &mut node.quiet_log;
            // It must not keep a worker that has been asked to leave.
            event.set_cancelable(1);
        }
        pointer
    }

    /// Starts to connect.
    pub(crate) fn connect(&mut self) {
        let Some(address) = self.addresses.get(self.address) else { return };
        self.link.connecting();
        let data = std::ptr::from_mut(self).cast();
        match Socket::connect(address, &mut self.quiet_log, Some(on_event), data) {
            Ok(socket) => {
                self.socket = Some(socket);
                self.set_timer(CONNECT_TIMEOUT);
            }
            Err(error) => self.lost(unconnected(&error)),
        }
    }

    /// Puts a question into the batch that is sent at the end of this turn.
    pub(super) fn submit(&mut self, pending: NonNull<Pending>) -> Result<Ticket, Trouble> {
        let ticket = self.link.submit(pending).map_err(|refused| {
            self.undecided = self.undecided.saturating_add(1);
            match refused {
                Refused::Down => Trouble::Down,
                Refused::Overload => {
                    self.complain("has too many requests waiting");
                    Trouble::Overload
                }
            }
        })?;
        if self.link.is_idle() {
            self.connect();
        } else if self.link.is_ready() {
            self.post_flush();
        }
        Ok(ticket)
    }

    /// Forgets a question whose request is gone, or has waited long enough.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.link.cancel(ticket);
    }

    /// A request has waited long enough: has the server, too?
    pub(super) fn timed_out(&mut self) {
        self.undecided = self.undecided.saturating_add(1);
        if self.link.is_silent(now()) {
            self.lost(Fault::Silent);
        } else if self.link.is_ready() {
            self.complain("did not answer in time");
        }
    }

    fn post_flush(&mut self) {
        // SAFETY: the event lives as long as the node, which removes it when it is dropped.
        unsafe { ngx_post_event(&mut self.flush, &raw mut ngx_posted_events) };
    }

    fn set_timer(&mut self, delay: ngx_msec_t) {
        self.clear_timer();
        // SAFETY: the event lives as long as the node, which removes it when it is dropped.
        unsafe { ngx_add_timer(&mut self.timer, delay) };
    }

    fn clear_timer(&mut self) {
        if self.timer.timer_set() != 0 {
            // SAFETY: the timer is set.
            unsafe { ngx_del_timer(&mut self.timer) };
        }
    }

    /// Does what the socket is ready for.
    fn progress(&mut self) {
        if let Err(fault) = self.transfer() {
            self.lost(fault);
        }
        self.tell_if_back();
        // A worker that is leaving keeps no connection that it does not need.
        // SAFETY: only NGINX writes it, in this thread.
        if unsafe { ngx_exiting } != 0 && self.link.is_ready() && self.link.is_quiet() {
            self.socket = None;
            self.link.close();
        }
    }

    fn transfer(&mut self) -> Result<(), Fault> {
        if self.link.is_connecting() {
            let Some(socket) = &mut self.socket else { return Ok(()) };
            if !socket.is_secured() {
                socket.connected().map_err(|error| unconnected(&error))?;
            }
            if let Some(peer) = &self.tls
                && !socket.secure(peer).map_err(|error| Fault::Connect(describe(&error)))?
            {
                return Ok(());
            }
            self.link.connected();
        }
        self.receive()?;
        self.send()
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
        loop {
            match self.link.next_event(now())? {
                None => return Ok(()),
                Some(Event::Ready) => {
                    self.tried = 0;
                    self.clear_timer();
                    if let (Some(socket), Some(peer)) = (&mut self.socket, &mut self.tls) {
                        socket.remember(peer);
                    }
                }
                Some(Event::Answer(pending, Reply::Integers(integers))) => {
                    if self.down_since.is_none() {
                        self.undecided = 0;
                    }
                    if !Pending::get(pending).answered(integers) {
                        self.complain("does not answer as a script of ours would");
                    }
                }
                Some(Event::Answer(pending, Reply::Error(refusal)))
                    if refusal.kind == RefusalKind::NoScript
                        && !Pending::get(pending).told_source() =>
                {
                    // It did not run, so it may be sent again, this time with the source.
                    match self.link.submit(pending) {
                        Ok(ticket) => Pending::get(pending).resubmitted(ticket),
                        Err(_) => Pending::get(pending).finish(Err(Trouble::Overload)),
                    }
                }
                Some(Event::Answer(pending, Reply::Error(refusal))) => {
                    let text = Escaped(refusal.text.as_bytes());
                    self.complain(&format!("refused to decide: \"{text}\""));
                    Pending::get(pending).finish(Err(Trouble::Refused));
                }
                Some(Event::Answer(pending, Reply::Other(_))) => {
                    self.complain("does not answer as a script of ours would");
                    Pending::get(pending).finish(Err(Trouble::Refused));
                }
            }
        }
    }

    fn send(&mut self) -> Result<(), Fault> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        loop {
            let bytes = self.link.output(now(), |pending, out| {
                Pending::get(pending).encode(&SCRIPTS, out);
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

    /// Tells, once, that the server is back.
    fn tell_if_back(&mut self) {
        if !self.link.is_sound() {
            return;
        }
        if let Some(since) = self.down_since.take() {
            let seconds = since.elapsed().as_secs_f64();
            log!(
                NGX_LOG_ERR,
                cycle_log(),
                "redis {} is up again after {seconds:.3} s, {} requests were not decided",
                self.name,
                self.undecided
            );
            self.undecided = 0;
        }
    }

    /// The connection is gone, or was never made: tells those who wait for it, and decides when
    /// to try again.
    fn lost(&mut self, fault: Fault) {
        self.socket = None;
        self.clear_timer();
        if !self.link.is_ready() && self.try_next_address() {
            return;
        }
        let mut undecided = 0u64;
        let next = self.link.lost(now(), ngx_random().unsigned_abs(), |pending| {
            undecided = undecided.saturating_add(1);
            Pending::get(pending).finish(Err(Trouble::Lost));
        });
        self.undecided = self.undecided.saturating_add(undecided);
        match next {
            Next::Connect { first } => {
                if first {
                    log!(NGX_LOG_NOTICE, cycle_log(), "redis {}: {fault}, reconnecting", self.name);
                }
                self.connect();
            }
            Next::Wait { delay } => {
                if self.down_since.is_none() {
                    self.down_since = Some(Instant::now());
                    log!(NGX_LOG_ERR, cycle_log(), "redis {} is down: {fault}", self.name);
                }
                self.set_timer(delay as ngx_msec_t);
            }
        }
    }

    /// Goes on with the next address of the host, unless all were tried: a host is not down because
    /// one of its addresses is.
    fn try_next_address(&mut self) -> bool {
        self.address = self.address.wrapping_add(1).checked_rem(self.addresses.len()).unwrap_or(0);
        self.tried = self.tried.saturating_add(1);
        if self.tried >= self.addresses.len() {
            self.tried = 0;
            return false;
        }
        self.connect();
        true
    }

    /// Logs what is wrong with a server that is there, but not for every request.
    fn complain(&mut self, what: &str) {
        if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            log!(NGX_LOG_ERR, cycle_log(), "redis {} {what}", self.name);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.socket = None;
        let abandon = |pending| Pending::get(pending).finish(Err(Trouble::Lost));
        self.link.lost(now(), 0, abandon);
        self.clear_timer();
        if self.flush.posted() != 0 {
            // SAFETY: the event is posted.
            unsafe { ngx_delete_posted_event(&mut self.flush) };
        }
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

/// The time of this turn of the event loop, in ms.
fn now() -> u64 {
    // SAFETY: only NGINX writes it, in this thread.
    unsafe { ngx_current_msec as u64 }
}

fn cycle_log() -> *mut ngx_log_t {
    // SAFETY: a process that runs modules has a cycle, and a cycle has a log.
    unsafe { (*ngx_cycle).log }
}

/// A copy of the cycle's log in which only alerts, and debugging if it is on, are written.
fn quiet_log() -> ngx_log_t {
    // SAFETY: see `cycle_log`; the structure holds nothing that a copy could free twice.
    let mut log = unsafe { std::ptr::read(cycle_log()) };
    let debug = log.log_level & NGX_LOG_DEBUG_ALL as usize;
    log.log_level = if debug == 0 { NGX_LOG_ALERT as usize } else { log.log_level };
    log
}

/// The node that NGINX calls back.
///
/// # Safety
/// `data` must be what a living node gave to NGINX.
unsafe fn node<'a>(data: *mut std::ffi::c_void) -> &'a mut Node {
    // SAFETY: the node lives until it is dropped, which removes its events. Callbacks of one
    // worker never nest: a node calls nothing that runs the event loop or a request.
    unsafe { &mut *data.cast::<Node>() }
}

unsafe extern "C" fn on_event(event: *mut ngx_event_t) {
    // SAFETY: the data of a connection's event is the connection, whose data is the node.
    unsafe { node((*(*event).data.cast::<ngx_connection_t>()).data).progress() };
}

unsafe extern "C" fn on_flush(event: *mut ngx_event_t) {
    // SAFETY: the event is the node's own.
    unsafe { node((*event).data).progress() };
}

unsafe extern "C" fn on_timer(event: *mut ngx_event_t) {
    // SAFETY: the event is the node's own.
    let node = unsafe { node((*event).data) };
    match &node.socket {
        Some(socket) if socket.is_secured() && node.link.is_connecting() => {
            node.lost(Fault::Connect("timed out while SSL handshaking".to_owned()));
        }
        Some(_) => node.lost(Fault::ConnectTimeout),
        None => node.connect(),
    }
}
