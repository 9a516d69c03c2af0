//! What is known of a request, for as long as it lives.

use std::cell::Cell;
use std::ptr;

use ngx::ffi::{
    ngx_cycle, ngx_event_t, ngx_http_request_t, ngx_log_t, ngx_msec_t, ngx_pool_cleanup_add,
};
use ngx::http::{HttpModule, HttpModuleMainConf};
use rate_limit_core::decision::{Decision, Source, Status, tightest};
use rate_limit_core::rate::MILLISECOND;

use crate::Module;
use crate::clock::monotonic_micros;
use crate::conf::LocationConf;
use crate::redis::{Asked, Pending};
use crate::shm::{Local, Shared};

/// The context of a request: what it asked, and how it was decided.
///
/// It lies in the pool of the request as the data of a cleanup. An internal redirect clears the
/// table of contexts, but not the cleanups, so there it is found again: this is how a request is
/// charged once however often it is redirected.
pub(crate) struct Context {
    conf: &'static LocationConf,
    /// What was asked, if there was anything to ask.
    asked: &'static [Asked],
    /// The questions to Redis, unless it need not be asked.
    pending: Option<Pending>,
    /// Whether what was asked has been answered, by whomever.
    answered: Cell<bool>,
    /// What has been spent in this machine's memory.
    local: Cell<Option<Local>>,
    /// When the request came, in µs.
    started: u64,
    outcome: Cell<Option<Outcome>>,
    stage: Cell<Stage>,
}

/// How a request was decided, but for what its limits said.
#[derive(Clone, Copy)]
struct Outcome {
    status: Status,
    source: Source,
    wait: u64,
    delay: u64,
    /// The limit that stands for all that were asked, if they answered.
    shown: Option<&'static Asked>,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for its decision.
    Asking,
    /// It waits for its turn.
    Delayed,
    /// Its turn has come.
    Due,
    /// It went on.
    Done,
}

impl Context {
    /// Makes the context of a request that came at `started`, in µs of the monotonic clock. `None` if
    /// NGINX is out of memory.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(super) unsafe fn create(
        r: *mut ngx_http_request_t,
        conf: &'static LocationConf,
        asked: &'static [Asked],
        pending: Option<Pending>,
        started: u64,
    ) -> Option<&'static Self> {
        let context = Self {
            conf,
            asked,
            pending,
            answered: Cell::new(false),
            local: Cell::new(None),
            started,
            outcome: Cell::new(None),
            stage: Cell::new(Stage::Asking),
        };
        // SAFETY: the request is valid. NGINX allocates the data of a cleanup as large as is
        // asked for, and aligned for any type of its own, which is enough for this one.
        unsafe {
            let cleanup = ngx_pool_cleanup_add((*r).pool, size_of::<Self>()).as_mut()?;
            let place = cleanup.data.cast::<Self>();
            place.write(context);
            cleanup.handler = Some(clean_up);
            *slot(r) = place;
            Some(&*place)
        }
    }

    /// The context of the client's request that `r` is a part of.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(crate) unsafe fn find(r: *mut ngx_http_request_t) -> Option<&'static Self> {
        // SAFETY: the main request of a valid request is valid. Data of a cleanup with our
        // handler is a context, and so is what we put into our slot.
        unsafe {
            let r = (*r).main;
            let context = *slot(r);
            if !context.is_null() {
                return Some(&*context);
            }
            // Nothing but these two clears the table.
            if (*r).internal() == 0 && (*r).filter_finalize() == 0 {
                return None;
            }
            let mut cleanup = (*(*r).pool).cleanup;
            while let Some(this) = cleanup.as_ref() {
                if this.handler.is_some_and(|handler| ptr::fn_addr_eq(handler, CLEAN_UP)) {
                    *slot(r) = this.data.cast();
                    return Some(&*this.data.cast());
                }
                cleanup = this.next;
            }
            None
        }
    }

    /// The configuration of the location whose limits were asked.
    pub(crate) fn conf(&self) -> &'static LocationConf {
        self.conf
    }

    /// When the request came, in µs of the monotonic clock.
    pub(super) fn started(&self) -> u64 {
        self.started
    }

    /// The questions to Redis, unless it need not be asked.
    pub(super) fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// How the request was decided, once it is.
    pub(crate) fn decision(&self) -> Option<Decision<'static>> {
        let Outcome { status, source, wait, delay, shown } = self.outcome.get()?;
        Some(Decision { status, source, shown: shown.and_then(Asked::show), wait, delay })
    }

    /// The limit that stands for all that were asked, if they answered.
    pub(super) fn shown(&self) -> Option<&'static Asked> {
        self.outcome.get()?.shown
    }

    /// Whether the request had nothing to ask.
    pub(super) fn is_bypassed(&self) -> bool {
        self.outcome.get().is_some_and(|outcome| outcome.status == Status::Bypassed)
    }

    /// Whether the request is not to pass, or would not.
    pub(super) fn is_rejected(&self) -> bool {
        self.outcome.get().is_some_and(|outcome| outcome.status.is_rejection())
    }

    /// How far the request has come.
    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// The request goes on.
    pub(super) fn done(&self) {
        self.stage.set(Stage::Done);
    }

    /// The request waits for its turn, `delay` µs from now.
    ///
    /// # Safety
    /// `log` must live as long as the request.
    pub(super) unsafe fn delay(&self, delay: u64, log: *mut ngx_log_t) {
        self.stage.set(Stage::Delayed);
        let delay = delay.div_ceil(MILLISECOND) as ngx_msec_t;
        if let Some(pending) = &self.pending {
            // SAFETY: the context stays where it is, and its cleanup stops the timer.
            unsafe { pending.timer().start(delay, Some(on_turn), self, log) };
        }
    }

    /// Notes what the request has spent in this machine's memory.
    pub(super) fn has_spent(&self, local: Local) {
        self.local.set(Some(local));
    }

    /// Takes what the request has spent in this machine's memory.
    pub(super) fn take_spent(&self) -> Option<Local> {
        self.local.take()
    }

    /// Writes down what became of the request that has been answered by `source`.
    pub(super) fn decide(&self, source: Source) {
        self.answered.set(true);
        let allowed = self.violated().next().is_none();
        let delay = match allowed {
            true => self.asked().iter().map(Asked::delay).max().unwrap_or(0),
            false => 0,
        };
        let status = Status::decided(allowed, delay > 0, self.conf.dry_run());
        self.write_down(status, source, delay);
    }

    /// Writes down what became of a request that nobody decided.
    pub(super) fn settle(&self, status: Status) {
        self.write_down(status, Source::None, 0);
    }

    fn write_down(&self, status: Status, source: Source, delay: u64) {
        if status.is_rejection()
            && let Some(pending) = &self.pending
        {
            pending.give_back();
            // What others have decided is not about that.
            if source == Source::Redis {
                pending.forget_spent();
            }
        }
        let wait = match source {
            // It is known, so nothing was waited for.
            Source::Cache => 0,
            _ => monotonic_micros().saturating_sub(self.started),
        };
        let shown = self.tightest();
        self.outcome.set(Some(Outcome { status, source, wait, delay, shown }));
        if let Some(shared) = memory() {
            self.count(&shared, status, source, wait);
        }
    }

    /// Counts what became of the request, for each limit that had a part in it: one that allowed
    /// what another rejected had none.
    fn count(&self, shared: &Shared, status: Status, source: Source, wait: u64) {
        if self.asked.is_empty() {
            return;
        }
        // Those of the cache did not wait: their decisions are counted, which is enough.
        if source != Source::Cache {
            shared.count_wait(wait);
        }
        if let (Source::Redis, Some(pending)) = (source, &self.pending) {
            pending.count_wait(wait);
        }
        for asked in self.asked {
            let record = asked.limit.record(shared);
            if self.answered.get() && asked.verdict.get().is_some() {
                record.count_decision(source);
            }
            if !self.answered.get() || asked.is_violated() || !status.is_rejection() {
                record.count_request(status);
            }
        }
    }

    /// All that was asked and answered.
    pub(crate) fn asked(&self) -> &'static [Asked] {
        if self.answered.get() { self.asked } else { &[] }
    }

    /// The limits that did not allow the request.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &'static Asked> {
        self.asked().iter().filter(|asked| asked.is_violated())
    }

    /// Of the limits that answered, the one that stands for all.
    fn tightest(&self) -> Option<&'static Asked> {
        let mut answered =
            self.asked().iter().filter_map(|asked| Some((asked, asked.verdict.get()?)));
        let verdicts = answered.clone().map(|(asked, it)| (asked.question.quota.limit(), it));
        let index = tightest(verdicts)?;
        answered.nth(index).map(|(asked, _)| asked)
    }
}

/// What the workers of this machine share.
pub(super) fn memory() -> Option<Shared> {
    // SAFETY: a worker has a cycle.
    unsafe { Module::main_conf(&*ngx_cycle)?.shared() }
}

/// Our place in the table of contexts.
///
/// # Safety
/// `r` must be valid.
unsafe fn slot(r: *mut ngx_http_request_t) -> *mut *mut Context {
    // SAFETY: the table of a valid request has a place for each module.
    unsafe { (*r).ctx.add(Module::module().ctx_index).cast() }
}

const CLEAN_UP: unsafe extern "C" fn(*mut std::ffi::c_void) = clean_up;

/// The request is gone, perhaps while it waited.
unsafe extern "C" fn clean_up(data: *mut std::ffi::c_void) {
    // SAFETY: the data is the context, which NGINX drops with the pool after this. Requests are
    // freed by NGINX itself, never by a function of a node.
    unsafe {
        let context = &*data.cast::<Context>();
        drop(context.local.take());
        if let Some(pending) = &context.pending {
            pending.cancel();
        }
    }
}

unsafe extern "C" fn on_turn(event: *mut ngx_event_t) {
    // SAFETY: `delay` set the data, and the timer is stopped before the context goes.
    unsafe {
        let context = &*(*event).data.cast::<Context>();
        context.stage.set(Stage::Due);
        if let Some(pending) = &context.pending {
            pending.wake();
        }
    }
}
