//! Drives a client of the pure crate with NGINX's sockets, timers, resolver and events.
//!
//! It decides nothing: it passes events to the [`Client`], with the time, and carries out the actions
//! that follow. Requests are resumed by posted events, and most of NGINX's functions only register,
//! post or move bytes. But one that needs a free connection closes others first if there are few, and
//! ends their requests, which settle here. So what opens a socket is called without the state borrowed:
//! see [`Dial`].

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use ngx::ffi::{
    NGX_LOG_ALERT, NGX_LOG_DEBUG_ALL, NGX_LOG_ERR, NGX_LOG_NOTICE, ngx_core_conf_t,
    ngx_core_module, ngx_cycle, ngx_event_t, ngx_exiting, ngx_log_t, ngx_msec_t, ngx_post_event,
    ngx_posted_events, ngx_random,
};
use rate_limit_core::charge::Charge;
use rate_limit_core::client::{
    Action, Client, Config, Level, NodeKey, PREALLOCATED, RequestKey, Settlement, Turn,
};
use rate_limit_core::manage::Change;
use rate_limit_core::metrics::SettlementResult;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::script::Scripts;
use rate_limit_core::trouble::{Found, Trouble};
use wires::{Dial, Wire};

use super::password::PasswordFile;
use super::tls::{Peer, Tls};
use crate::clock::{monotonic_micros, time_until};
use crate::log::{cycle_log, debug, log};
use crate::nginx::event::{Posted, Timer};
use crate::shm::{NodeEntry, Reservations, Shared};

mod nodes;
mod wires;

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
    /// The file of the store's password, if it is in one.
    password_file: Option<PasswordFile>,
    /// By the index of the connection.
    wires: Vec<Option<Wire>>,
    /// By the index of the request: the event that resumes it.
    wakers: Vec<Option<(RequestKey, NonNull<ngx_event_t>)>>,
    /// The limits that were settled, by the tag of their settlements.
    settling: Vec<Reservations>,
    /// By the index of the node.
    nodes: Vec<Option<KnownNode>>,
    /// Not in this structure itself: NGINX writes to its events also while the state is borrowed, as to the
    /// neighbours of a timer that is set.
    timer: Rc<Timer>,
    /// When the timer expires, in µs.
    timer_at: Option<u64>,
    /// When it is time to look for outages that were not to be logged before, in µs.
    report_at: Option<u64>,
    turn_end: Rc<Posted>,
    is_leaving: bool,
    /// The transport that is to be started next, when the state is not borrowed any more.
    dial: Option<Dial>,
    /// How long resolving a host name may take, in ms.
    resolve_timeout: ngx_msec_t,
    /// For connections: NGINX's reports of failed attempts are not written to it.
    quiet_log: Rc<Cell<ngx_log_t>>,
    /// With `timer_resolution` NGINX reads the clocks as seldom as that says, and no longer in each turn of the event loop.
    has_timer_resolution: bool,
}

/// A node, and its record in the shared memory.
struct KnownNode {
    key: NodeKey,
    record: NodeEntry,
    /// Why this worker has found it down, if that may have to be logged later.
    reason: Option<String>,
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
        password_file: Option<PasswordFile>,
        shared: Shared,
    ) -> Rc<Self> {
        let client_name = format!("nginx_rate_limit_redis:{}", std::process::id());
        let config = Config { client_name, seed: ngx_random().unsigned_abs(), ..config };
        let state = State {
            driver: NonNull::dangling(),
            client: Client::new(config.clone(), Arc::new(scripts)),
            shared,
            store: reference,
            tls,
            password_file,
            wires: Vec::new(),
            wakers: Vec::with_capacity(PREALLOCATED),
            settling: Vec::new(),
            nodes: Vec::new(),
            timer: Rc::new(Timer::background()),
            timer_at: None,
            report_at: None,
            turn_end: Rc::new(Posted::new()),
            is_leaving: false,
            dial: None,
            // The other half is left for connecting.
            resolve_timeout: (config.connect_timeout / 2 / MILLISECOND) as ngx_msec_t,
            quiet_log: Rc::new(Cell::new(quiet_log())),
            has_timer_resolution: core_conf().timer_resolution > 0,
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

    /// Changes what a client has: see [`Client::manage`]. Otherwise as for [`submit`](Self::submit).
    ///
    /// # Safety
    /// `wake` must be valid until the request is released.
    pub(crate) unsafe fn manage(
        &self,
        charge: &Charge<'_>,
        change: Change,
        timeout: u64,
        wake: NonNull<ngx_event_t>,
    ) -> (RequestKey, bool) {
        self.act(|state| {
            let key = state.client.manage(charge, change, timeout, monotonic_micros());
            place(&mut state.wakers, key.index(), (key, wake));
            (key, state.client.outcome(key).is_none())
        })
    }

    /// Runs `f` with the client, for what it knows of a request.
    #[inline]
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Client) -> T) -> T {
        f(&self.state.borrow().client)
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
        state.client.release(key, refund);
        // A worker that is leaving may not need its connections any more. Otherwise there is no action.
        if state.client.has_actions() {
            state.carry_out_actions();
        }
        state.wait_for_requests();
    }

    /// Gives back what was charged: see [`Client::refund`].
    pub(crate) fn refund(&self, charge: &Charge<'_>, since: u64) {
        self.act_at_end(|state| state.client.refund(charge, since, monotonic_micros()));
    }

    /// Counts a reservation: see [`Client::reserve`].
    pub(crate) fn reserve(&self) {
        self.state.borrow_mut().client.reserve();
    }

    /// A reservation stands: see [`Client::stand`].
    pub(crate) fn stand(&self) {
        self.act_at_end(|state| state.client.stand());
    }

    /// Settles what was charged at `since`: see [`Client::settle`]. The end of it is counted.
    pub(crate) fn settle(
        &self,
        charge: &Charge<'_>,
        since: u64,
        change: i64,
        reservations: Reservations,
    ) {
        self.act_at_end(|state| {
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

    /// Passes an event of a request that may be ending. A transport that it leads to is started at the end of the turn. NGINX could
    /// close the connection of that request to make room for it, and end the request once more.
    fn act_at_end(&self, event: impl FnOnce(&mut State)) {
        let ((), dials) = self.handle(event);
        if dials {
            self.state.borrow().post_turn_end();
        }
    }

    /// Passes an event to the client, and carries out the actions that follow, up to the next transport
    /// that is to be started. Returns whether there is one.
    fn handle<T>(&self, event: impl FnOnce(&mut State) -> T) -> (T, bool) {
        let mut state = self.state.borrow_mut();
        let result = event(&mut state);
        state.carry_out();
        (result, state.dial.is_some())
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
    #[inline(always)]
    fn carry_out(&mut self) {
        // SAFETY: only NGINX writes it, in this thread.
        if unsafe { ngx_exiting } != 0 && !self.is_leaving {
            self.leave();
        }
        if self.client.has_actions() {
            self.carry_out_actions();
        }
        self.wait_for_requests();
        let at = self.client.timer().into_iter().chain(self.report_at).min();
        if self.timer_at != at {
            self.set_timer(at);
        }
    }

    #[cold]
    fn leave(&mut self) {
        self.is_leaving = true;
        let (now, timeout) = (monotonic_micros(), shutdown_timeout());
        debug!(cycle_log(), "leave, shutdown timeout: {timeout} us");
        let limit = (timeout > 0).then(|| now.saturating_add(timeout));
        self.client.leave(limit, now);
    }

    #[inline(never)]
    fn carry_out_actions(&mut self) {
        while self.dial.is_none()
            && let Some(action) = self.client.poll_action()
        {
            match action {
                Action::EndTurn => self.post_turn_end(),
                Action::Send(key) => self.send(key),
                Action::Complete(key) => self.wake(key),
                Action::Settled { tag, is_settled } => self.end_settlement(tag, is_settled),
                Action::Login => self.login(),
                Action::Count(node) => self.count(node),
                Action::Attempted(node, result) => {
                    self.count_in(node, |it| it.count_attempt(result))
                }
                Action::Queried(node, result) => self.count_in(node, |it| it.count_query(result)),
                Action::Resolve { connection, host, port } => self.resolve(connection, host, port),
                Action::Connect(key, target) => self.connect(key, target),
                Action::Close(key) => self.close(key),
                Action::View(node) => self.show(node),
                Action::Remove(node) => self.forget(node),
                Action::Down(node, reason) => self.log_down(node, reason, Found::First),
                Action::StillDown(node, reason) => self.log_down(node, reason, Found::Again),
                Action::Up(node) => self.find_up(node),
                Action::Slow(node, span) => self.log_line(node, |it, now, _| it.on_slow(now, span)),
                Action::Prompt(node) => self.log_line(node, Trouble::on_prompt),
                Action::Warn(node, what) => self.log_line(node, |it, now, _| it.warn(now, what)),
                Action::Log(Level::Error, line) => log!(NGX_LOG_ERR, cycle_log(), "{line}"),
                Action::Log(Level::Notice, line) => log!(NGX_LOG_NOTICE, cycle_log(), "{line}"),
            }
        }
    }

    /// Reads the password again, and logs in again on connections that are open.
    #[cold]
    fn login(&mut self) {
        self.read_password();
        self.client.login(monotonic_micros());
    }

    /// Reads the password again, if it is in a file.
    fn read_password(&mut self) {
        if let Some(password) = self.password_file.as_mut().and_then(PasswordFile::read) {
            self.client.set_password(&password);
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
            let result =
                if is_settled { SettlementResult::Settled } else { SettlementResult::Lost };
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

    #[inline(never)]
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

    /// The timer has expired.
    fn on_timer(&mut self) {
        let now = monotonic_micros();
        if let Some(at) = self.timer_at.take() {
            self.count_lag(now.saturating_sub(at));
        }
        if self.report_at.is_some_and(|at| at <= now) {
            self.report();
        }
        self.check_timer();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.disconnect();
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

/// How long a worker may take to shut down, in µs: `worker_shutdown_timeout`; 0 if there is no limit.
fn shutdown_timeout() -> u64 {
    (core_conf().shutdown_timeout as u64).saturating_mul(MILLISECOND)
}

/// NGINX's own configuration outside of `http`.
fn core_conf() -> ngx_core_conf_t {
    // SAFETY: a worker has a cycle, which has a configuration of the core module, at the module's index. What it points to is
    // not used.
    unsafe {
        let core = *(*ngx_cycle).conf_ctx.add(ngx_core_module.index);
        *core.cast::<ngx_core_conf_t>()
    }
}

/// A copy of the cycle's log in which only alerts, and debugging if it is on, are written.
fn quiet_log() -> ngx_log_t {
    // SAFETY: see `cycle_log`; the structure holds nothing that a copy could free twice.
    let mut log = unsafe { std::ptr::read(cycle_log().as_ptr()) };
    let debug = log.log_level & NGX_LOG_DEBUG_ALL as usize;
    log.log_level = if debug == 0 { NGX_LOG_ALERT as usize } else { log.log_level };
    log
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
