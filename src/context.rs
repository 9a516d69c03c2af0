//! The context of a request in a phase.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use ngx::ffi::{ngx_event_t, ngx_post_event, ngx_posted_events};
use ngx::http::HttpModule;
use rate_limit_core::conf::Policy;
use rate_limit_core::conf::limit::Phase;

use crate::Module;
use crate::client::Driver;
use crate::clock::{monotonic_micros, time_until, turn_start};
use crate::log::{Log, debug};
use crate::machine::{Decisions, Evaluated, LimitedRequest, Submission, memory};
use crate::nginx::cleanup::{self, CleanUp};
use crate::nginx::event::Timer;
use crate::nginx::{OutOfMemory, Request};

/// A request in a phase, and its lifecycle with NGINX: suspended, delayed, resumed, ended.
///
/// It lies in the pool of the request as the data of a cleanup. An internal redirect clears the
/// table of contexts, but not the cleanups, so there it is found again: this is how a request is
/// charged once however often it is redirected. The latest refers to those before it.
pub(crate) struct Context<'r> {
    /// The phase in which its limits decide.
    pub(crate) phase: Phase,
    previous: Option<&'r Self>,
    /// The limits that decide in this phase, and their decision.
    pub(crate) request: LimitedRequest<'r>,
    /// Ends its delay, if there is one.
    timer: Cell<Option<&'r Timer>>,
    /// Resumes the request.
    wake: NonNull<ngx_event_t>,
    stage: Cell<Stage>,
    /// Whether the phase is one of a `post_action`.
    is_of_action: bool,
}

/// The stage of a request in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The phase is to come, when the access checks have passed.
    Ahead(Ahead),
    /// It has left the phase, or one before, by an error. A context begins in this stage: an error before
    /// the next stage leaves no request that waits for nothing.
    Failed,
    /// It has left one before, perhaps by a failed access check of this status.
    Unclear(u16),
    /// It waits for its decision.
    Pending,
    /// It is delayed.
    Delayed,
    /// Its delay has ended.
    Due,
    /// It has left the phase.
    Done,
}

/// The signs of error pages in a request when its access phase begins: see `request/error_page.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// NGINX's mark of an error page after which there is no other one.
    pub(crate) is_last: bool,
    /// The status that an error page has left, 0 if none has.
    pub(crate) status: u16,
    /// The status of an access check whose error page would change neither.
    pub(crate) untraceable: Option<u16>,
}

impl<'r> Context<'r> {
    /// Makes the context of a request in `phase`, whose limits were evaluated at `started`, in µs of the
    /// monotonic clock. The one before it was [found](Self::find), if there is one.
    pub(crate) fn create(
        r: Request<'r>,
        phase: Phase,
        policy: &'r Policy,
        limits: &'r [Evaluated<'r>],
        started: u64,
    ) -> Result<&'r Self, OutOfMemory> {
        let place = slot(r);
        let context = Self {
            phase,
            // SAFETY: what is in our slot is null, or a context of this request.
            previous: unsafe { (*place).as_ref() },
            request: LimitedRequest::new(policy, limits, started),
            timer: Cell::new(None),
            wake: r.write_event(),
            stage: Cell::new(Stage::Failed),
            is_of_action: r.is_post_action(),
        };
        // SAFETY: the pool is that of the request, and the function takes a context.
        unsafe {
            let context = cleanup::add(r.pool(), context, CLEAN_UP).ok_or(OutOfMemory)?;
            *place = context.as_ptr();
            Ok(context.as_ref())
        }
    }

    /// The latest context of the client's request that `r` is a part of.
    pub(crate) fn find(r: Request<'r>) -> Option<&'r Self> {
        let r = r.main();
        // SAFETY: what is in our slot is a context of this request, and so is what our function cleans up. Both live as
        // long as the request.
        unsafe {
            let context = *slot(r);
            if !context.is_null() {
                return Some(&*context);
            }
            // Nothing but these two clears the table.
            if !r.is_internal() && !r.is_finalized_by_filter() {
                return None;
            }
            let context = cleanup::find(r.pool(), CLEAN_UP)?;
            *slot(r) = context.as_ptr();
            Some(context.as_ref())
        }
    }

    /// The latest context of the request in `phase`, from this one back.
    pub(crate) fn of(&'r self, phase: Phase) -> Option<&'r Self> {
        let mut latest = Some(self);
        while let Some(context) = latest.filter(|context| context.phase != phase) {
            latest = context.previous;
        }
        latest
    }

    /// The decisions on the request up to this one, once there is one.
    pub(crate) fn decisions(&'r self) -> Option<Decisions<'r>> {
        match self.previous {
            None => Decisions::of_one(&self.request, turn_start()),
            Some(_) => {
                let requests = Phase::ALL.map(|phase| Some(&self.of(phase)?.request));
                Decisions::of_all(requests, turn_start())
            }
        }
    }

    /// Charges the request in Redis at `now`, in µs of the monotonic clock. Returns whether it waits for the
    /// outcome.
    pub(crate) fn submit(&self, driver: &'static Driver, now: u64) -> bool {
        let (request, timeout) = (&self.request, self.request.time_limit());
        // SAFETY: the event is that of the client's connection, which lives as long as the request;
        // the submission is released when the request goes.
        let submit = |charges: &[_]| unsafe { driver.submit(charges, timeout, now, self.wake) };
        let (key, waits) = match request.limits() {
            [limit] => submit(&[limit.with_lease()]),
            several => submit(&several.iter().map(Evaluated::with_lease).collect::<Vec<_>>()),
        };
        request.on_submitted(Submission { driver, key });
        self.enter(Stage::Pending);
        waits
    }

    /// The stage of the request.
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Whether the request has left the phase.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.stage(), Stage::Done | Stage::Failed | Stage::Unclear(_))
    }

    /// Whether the request, which is `r`, waits for what only its client needed, who has left: its `post_action` runs.
    pub(crate) fn is_left(&self, r: Request<'_>) -> bool {
        let waits = matches!(self.stage(), Stage::Pending | Stage::Delayed | Stage::Due);
        waits && r.is_post_action() && !self.is_of_action
    }

    /// The request ends, perhaps while it waits, or waits no more.
    pub(crate) fn leave(&self) {
        if let Some(timer) = self.timer.get() {
            timer.stop();
        }
        if self.request.is_submitted() {
            // SAFETY: the log of the event is that of the connection, which outlives the request.
            debug!(unsafe { Log::new(self.wake.as_ref().log) }, "released undecided");
        }
        self.request.abandon(memory);
        self.enter(Stage::Failed);
    }

    /// The request enters this stage.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.set(stage);
    }

    /// Delays the request, which is `r`, by `delay` µs from now.
    pub(crate) fn delay(&self, r: Request<'r>, delay: u64) -> Result<(), OutOfMemory> {
        let end = monotonic_micros().saturating_add(delay);
        let timer = r.keep(Timer::new())?;
        // SAFETY: the timer stays in the pool of the request, as the context does, whose cleanup stops it. The log is
        // that of the connection, which outlives the request.
        unsafe { timer.start(time_until(end), Some(on_delay_end), self, r.log()) };
        self.timer.set(Some(timer));
        self.enter(Stage::Delayed);
        Ok(())
    }
}

/// Our place in the table of contexts: null, or a context of this request.
fn slot<'r>(r: Request<'r>) -> *mut *mut Context<'r> {
    // SAFETY: the table of a request has a place for each module.
    unsafe { (*r.as_ptr()).ctx.add(Module::module().ctx_index).cast() }
}

/// By its address contexts are found among the cleanups of a pool.
static CLEAN_UP: CleanUp = clean_up;

unsafe extern "C" fn clean_up(data: *mut c_void) {
    // SAFETY: the data is the context, whose memory NGINX frees after this, without dropping it. Requests are freed by
    // NGINX, never while a driver borrows its state.
    unsafe { (*data.cast::<Context<'_>>()).leave() }
}

/// Resumes the request in this turn of the event loop.
unsafe extern "C" fn on_delay_end(event: *mut ngx_event_t) {
    // SAFETY: `delay` set the owner, and the timer is stopped before the context goes. The event that resumes the request
    // is that of its connection, which lives as long; NGINX takes it from the queue if the connection is closed first.
    unsafe {
        let context = &*Timer::owner::<Context<'_>>(event);
        context.enter(Stage::Due);
        ngx_post_event(context.wake.as_ptr(), &raw mut ngx_posted_events);
    }
}
