//! A server, as a worker knows it.

use std::cell::{Cell, OnceCell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use ngx::ffi::{
    NGX_LOG_ERR, ngx_event_t, ngx_exiting, ngx_msec_t, ngx_pid, ngx_random, ngx_timeofday,
    ngx_worker,
};
use rate_limit_core::metrics::{Command, ErrorKind};
use rate_limit_core::redis::backoff::Backoff;
use rate_limit_core::redis::breaker::Breaker;
use rate_limit_core::redis::endpoint::{Address, Endpoint};
use rate_limit_core::redis::greeting::Greeting;
use rate_limit_core::redis::link::{Fault, Refused};
use rate_limit_core::redis::reply::RefusalKind;

use super::address::SocketAddress;
use super::connection::{Connection, Usable};
use super::deployment::Deployment;
use super::part::Part;
use super::pending::Trouble;
use super::resolve::Resolution;
use super::tls::Peer;
use super::waiter::{SCRIPTS, Waiter};
use super::{cycle_log, now};
use crate::event::Timer;
use crate::log::log;
use crate::shm::{NodeRecord, View};

/// What concerns single requests is logged at most this often, in ms.
const COMPLAIN_EVERY: u64 = 10_000;

/// A server: the connections of a worker to it, and whether they are of any use.
pub(super) struct Node {
    deployment: NonNull<Deployment>,
    role: Role,
    endpoint: Endpoint,
    /// The server as TLS knows it, where TLS is spoken.
    peer: Option<Peer>,
    /// The host name that it announces, if it does.
    alias: RefCell<Option<String>>,
    /// As it may be shown.
    name: String,
    addresses: RefCell<Rc<[SocketAddress]>>,
    /// Whether the addresses may be out of date: they were known before, and led nowhere.
    stale: Cell<bool>,
    connect_timeout: ngx_msec_t,
    connections: OnceCell<Vec<NonNull<Connection>>>,
    /// How many of them can be used.
    ready: Cell<usize>,
    /// How many of them show that the server is there.
    sound: Cell<usize>,
    breaker: RefCell<Breaker>,
    /// Asks for a sign of life while the breaker is open.
    probe: Timer,
    backoff: RefCell<Backoff>,
    /// Since when a sign of life is awaited.
    probed: Cell<Option<u64>>,
    /// It has answered no question since the breaker opened: a sign of life is not enough to say
    /// that it is back.
    mute: Cell<bool>,
    /// How long the requests would have waited that opened the breaker, in ms.
    patience: Cell<u64>,
    /// Whether it is down, as far as this worker can tell.
    down: Cell<bool>,
    /// What all workers together know of it.
    record: &'static NodeRecord,
}

/// What a node is there for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It decides.
    Decides,
    /// It knows who decides.
    Sentinel,
}

impl Node {
    /// A node of `deployment` that is not connected yet, at an address of its own.
    ///
    /// # Safety
    /// `deployment` must outlive it.
    pub(super) unsafe fn new(
        deployment: &Deployment,
        role: Role,
        endpoint: Endpoint,
        addresses: &[SocketAddress],
    ) -> NonNull<Self> {
        // SAFETY: set before any worker runs.
        let client = format!("nginx_rate_limit_redis:{}", unsafe { ngx_pid });
        let store = deployment.store();
        let (greeting, connections, max_fails) = match role {
            Role::Decides => {
                let greeting = Greeting::new(&endpoint, &client, SCRIPTS.all());
                (greeting, store.connections(), store.max_fails())
            }
            Role::Sentinel => (Greeting::new(&endpoint, &client, []), 1, 0),
        };
        let name = endpoint.address.to_string();
        let peer = store.tls().map(|tls| Peer::new(tls, host(&endpoint.address)));
        let node = Box::leak(Box::new(Self {
            deployment: NonNull::from(deployment),
            role,
            alias: RefCell::default(),
            record: deployment.shared().node(&name, store.reference()),
            name,
            endpoint,
            peer,
            addresses: RefCell::new(addresses.into()),
            stale: Cell::new(addresses.is_empty()),
            connect_timeout: store.connect_timeout(),
            connections: OnceCell::new(),
            ready: Cell::new(0),
            sound: Cell::new(0),
            breaker: RefCell::new(Breaker::new(max_fails, store.fail_timeout() as u64)),
            probe: Timer::background(),
            backoff: RefCell::default(),
            probed: Cell::new(None),
            mute: Cell::new(false),
            down: Cell::new(false),
            patience: Cell::new(0),
        }));
        let pointer = NonNull::from(&*node);
        // SAFETY: the node outlives its connections, which it frees.
        let connection = |_| unsafe { Connection::new(pointer, greeting.clone()) };
        let connections = (0..connections).map(connection).collect();
        node.connections.get_or_init(|| connections);
        node.tell_view(true);
        pointer
    }

    /// Ends a node: those who wait in vain are told.
    ///
    /// # Safety
    /// [`Node::new`] must have made it, nothing must refer to it afterwards, and no function of a
    /// connection may be on the stack.
    pub(super) unsafe fn free(node: NonNull<Self>) {
        // SAFETY: see above; the connections were made by `Connection::new`, and refer to the node,
        // which goes after them.
        unsafe {
            for connection in node.as_ref().connections() {
                drop(Box::from_raw(connection.as_ptr()));
            }
            node.as_ref().probe.stop();
            node.as_ref().set_view(View::default(), false);
            drop(Box::from_raw(node.as_ptr()));
        }
    }

    fn connections(&self) -> &[NonNull<Connection>] {
        self.connections.get().map_or(&[], Vec::as_slice)
    }

    /// The deployment that it belongs to.
    pub(super) fn deployment(&self) -> &'static Deployment {
        // SAFETY: see `new`; a deployment changes only inside of cells.
        unsafe { self.deployment.as_ref() }
    }

    /// As it may be shown.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The host, by name or address; that of a unix socket is empty.
    pub(super) fn host(&self) -> &str {
        host(&self.endpoint.address)
    }

    /// The server as TLS knows it, where TLS is spoken.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Whether it decides, and is at this host and port.
    pub(super) fn decides_at(&self, host: &str, port: u16) -> bool {
        self.role == Role::Decides
            && matches!(&self.endpoint.address, Address::Tcp(own, own_port)
                if *own_port == port
                    && (own == host || self.alias.borrow().as_deref() == Some(host)))
    }

    /// It announces this host name.
    pub(super) fn set_alias(&self, name: Option<String>) {
        self.alias.replace(name);
    }

    /// In ms.
    pub(super) fn connect_timeout(&self) -> ngx_msec_t {
        self.connect_timeout
    }
}

/// What a deployment does with a node. No function of a connection is on the stack.
impl Node {
    /// Connects, unless it is connected.
    pub(super) fn open(&self) {
        self.each_connection(Connection::open);
    }

    /// Closes the connections if nobody waits for anything; a question opens them again.
    pub(super) fn rest(&self) {
        self.each_connection(|connection| {
            if connection.is_ready() && connection.is_quiet() {
                connection.close();
            }
        });
    }

    /// Whether nobody waits for anything.
    pub(super) fn is_quiet(&self) -> bool {
        // SAFETY: the connections live as long as the node, and are only looked at.
        self.connections().iter().all(|connection| unsafe { connection.as_ref() }.is_quiet())
    }

    /// Whether it can be asked.
    pub(super) fn is_available(&self) -> bool {
        self.ready.get() > 0 && !self.breaker.borrow().is_open()
    }

    /// Puts a question into the batch that is sent at the end of this turn.
    pub(super) fn submit(&self, part: &Part, asking: bool) -> Result<(), Trouble> {
        let connections = self.connections();
        let mut trouble = Trouble::Down;
        if !self.breaker.borrow().is_open() {
            part.set_asking(asking);
            // One key, one connection: its questions stay in order, and in one batch.
            let first = usize::from(part.slot()).checked_rem(connections.len()).unwrap_or(0);
            let (before, from) = connections.split_at(first);
            for connection in from.iter().chain(before) {
                // SAFETY: the connection lives, and nothing else refers to it at this moment.
                let queue = unsafe { &mut *connection.as_ptr() };
                match queue.submit(Waiter::Part(NonNull::from(part))) {
                    Ok(()) => return Ok(()),
                    Err(Refused::Overload) => trouble = Trouble::Overload,
                    Err(Refused::Down) => {}
                }
            }
        }
        self.undecided();
        if trouble == Trouble::Overload {
            self.count_error(ErrorKind::Overload);
            self.complain("has too many requests waiting");
        } else {
            self.count_error(ErrorKind::Down);
        }
        Err(trouble)
    }

    /// Asks something else, over the first connection.
    pub(super) fn submit_waiter(&self, waiter: Waiter) -> Result<(), Refused> {
        let connection = self.connections().first().ok_or(Refused::Down)?;
        // SAFETY: as above.
        unsafe { &mut *connection.as_ptr() }.submit(waiter)
    }

    /// A request has waited in vain for `timeout` ms.
    pub(super) fn timed_out(&self, timeout: ngx_msec_t) {
        self.undecided();
        self.count_error(ErrorKind::Timeout);
        self.patience.set(timeout as u64);
        if self.breaker.borrow_mut().failed(now()) {
            self.mute.set(true);
            self.tell_view(false);
            self.is_down(&format!("no answer within {timeout} ms"));
            self.deployment().is_lost();
            self.send_probe();
        } else if self.is_available() {
            self.complain("did not answer in time");
        }
        self.check();
    }

    /// Ends the connections over which answers are owed for too long.
    pub(super) fn check(&self) {
        self.each_connection(Connection::check);
    }

    /// Asks for a sign of life, and does so again after a while.
    fn send_probe(&self) {
        if !self.breaker.borrow().is_open() {
            return;
        }
        self.check();
        if self.probed.get().is_none() {
            // SAFETY: the connections live as long as the node, and nothing else refers to them.
            let mut all = self.connections().iter().map(|all| unsafe { &mut *all.as_ptr() });
            if let Some(ready) = all.find(|connection| connection.is_ready())
                && ready.submit(Waiter::Probe).is_ok()
            {
                self.probed.set(Some(now()));
            }
        }
        let delay = self.backoff.borrow_mut().failed(ngx_random().unsigned_abs());
        self.probe_in(delay as ngx_msec_t);
    }

    fn probe_in(&self, delay: ngx_msec_t) {
        // SAFETY: the node stays where it is until it is freed, which stops the timer.
        unsafe { self.probe.start(delay, Some(on_probe), self, cycle_log()) };
    }

    fn each_connection(&self, mut act: impl FnMut(&mut Connection)) {
        for connection in self.connections() {
            // SAFETY: the connections live as long as the node, and nothing else refers to them at
            // this moment.
            act(unsafe { &mut *connection.as_ptr() });
        }
    }
}

/// What a connection tells its node. Connections are not to be changed by these functions.
impl Node {
    /// The addresses that are known.
    pub(super) fn addresses(&self) -> Rc<[SocketAddress]> {
        Rc::clone(&self.addresses.borrow())
    }

    /// Looks up the addresses of the host again, if they may be out of date, and it has a name and
    /// somebody to ask. `done` is called when they can be taken.
    pub(super) fn resolve(&self, done: impl Fn() + 'static) -> Option<Box<Resolution>> {
        let Address::Tcp(host, port) = &self.endpoint.address else { return None };
        if !self.stale.replace(true) || host.parse::<std::net::IpAddr>().is_ok() {
            return None;
        }
        // Half of the time is left for connecting.
        Resolution::start(host, *port, self.connect_timeout / 2, done)
    }

    /// These are the addresses of the host now; none if that could not be found out.
    pub(super) fn resolved(&self, found: Vec<SocketAddress>) {
        if !found.is_empty() {
            self.addresses.replace(found.into());
        }
    }

    /// A connection is of another use than before.
    pub(super) fn changes(&self, before: Usable, after: Usable) {
        let count = |counter: &Cell<usize>, before: bool, after: bool| {
            let others = counter.get().saturating_sub(before.into());
            counter.set(others.saturating_add(after.into()));
        };
        count(&self.ready, before.ready, after.ready);
        count(&self.sound, before.sound, after.sound);
        if after.ready && !before.ready && self.breaker.borrow().is_open() {
            self.probe_in(1);
        }
        self.tell_view(false);
        self.tell_if_back();
    }

    /// Tells all who ask what this worker knows of the node.
    fn tell_view(&self, is_first: bool) {
        let count = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let ready = self.ready.get();
        let others = self.connections().len().saturating_sub(ready);
        let is_open = ready == 0 || self.breaker.borrow().is_open();
        let view = View { ready: count(ready), others: count(others), is_open, ..View::default() };
        // A worker that is leaving closes its connections, which says nothing of the server.
        // SAFETY: only NGINX writes it, in this thread.
        let is_leaving = unsafe { ngx_exiting } != 0;
        self.set_view(if is_leaving { View::default() } else { view }, is_first);
    }

    fn set_view(&self, view: View, is_first: bool) {
        let view = View { pid: std::process::id(), ..view };
        // SAFETY: set before any worker runs.
        self.record.set_view(unsafe { ngx_worker }, view, is_first);
    }

    /// What all workers together know of it.
    pub(super) fn record(&self) -> &'static NodeRecord {
        self.record
    }

    /// Counts a command that is sent.
    pub(super) fn count_command(&self, command: Command) {
        self.record.count_command(command);
    }

    /// Counts what went wrong.
    pub(super) fn count_error(&self, kind: ErrorKind) {
        self.record.count_error(kind);
    }

    /// A connection was lost and cannot be replaced, or could not be made.
    pub(super) fn lost(&self, fault: &Fault) {
        self.count_error(match fault {
            Fault::Connect(_) | Fault::ConnectTimeout => ErrorKind::Connect,
            Fault::Closed(_) | Fault::Silent => ErrorKind::Lost,
            Fault::Protocol(_) => ErrorKind::Protocol,
            Fault::Greeting(_, refusal) if refusal.kind == RefusalKind::Auth => ErrorKind::Auth,
            Fault::Greeting(..) | Fault::Unfit(_) => ErrorKind::Unfit,
        });
        if self.ready.get() == 0 {
            self.is_down(&fault.to_string());
        }
    }

    /// The server gave a sign of life.
    pub(super) fn probed(&self) {
        let Some(since) = self.probed.take() else { return };
        // One that comes too late for the requests helps nobody.
        if now().saturating_sub(since) <= self.patience.get() {
            self.breaker.borrow_mut().close();
            self.probe.stop();
            self.tell_view(false);
        }
    }

    /// No sign of life will come over this connection.
    pub(super) fn not_probed(&self) {
        self.probed.set(None);
    }

    /// The server has answered a question.
    pub(super) fn answers(&self) {
        if self.mute.replace(false) {
            self.backoff.borrow_mut().succeeded();
            self.tell_if_back();
        }
        self.record.answers();
    }

    /// A request was not decided here.
    pub(super) fn undecided(&self) {
        self.record.undecided();
    }

    /// Tells, once for all workers, that the server is gone.
    fn is_down(&self, reason: &str) {
        if !self.down.replace(true) && self.record.goes_down(unix_ms()) {
            log!(NGX_LOG_ERR, cycle_log(), "redis {} is down: {reason}", self.name);
        }
    }

    /// Tells, once for all workers, that the server is back, if it is.
    fn tell_if_back(&self) {
        if self.breaker.borrow().is_open() || self.mute.get() || self.sound.get() == 0 {
            return;
        }
        self.down.set(false);
        if let Some((since, undecided)) = self.record.comes_up() {
            let seconds = unix_ms().saturating_sub(since) as f64 / 1_000.0;
            log!(
                NGX_LOG_ERR,
                cycle_log(),
                "redis {} is up again after {seconds:.3} s, {undecided} requests were not decided by it",
                self.name
            );
        }
    }

    /// Logs what is wrong with a server that is there, but not for every request.
    pub(super) fn complain(&self, what: &str) {
        if self.record.may_complain(unix_ms(), COMPLAIN_EVERY) {
            log!(NGX_LOG_ERR, cycle_log(), "redis {} {what}", self.name);
        }
    }
}

fn host(address: &Address) -> &str {
    match address {
        Address::Tcp(host, _) => host,
        Address::Unix(_) => "",
    }
}

/// The time in ms, as NGINX knows it.
fn unix_ms() -> u64 {
    let now = ngx_timeofday();
    now.sec.unsigned_abs().saturating_mul(1_000).saturating_add(now.msec as u64)
}

unsafe extern "C" fn on_probe(event: *mut ngx_event_t) {
    // SAFETY: `probe_in` set the data, and the timer is stopped before the node goes. The event
    // loop calls this, so no function of a connection is on the stack.
    unsafe { &*(*event).data.cast::<Node>() }.send_probe();
}
