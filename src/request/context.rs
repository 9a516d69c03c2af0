//! What is known of a request, for as long as it lives.

use std::cell::Cell;
use std::ptr::{self, NonNull};

use ngx::ffi::{
    ngx_cycle, ngx_event_t, ngx_http_request_t, ngx_log_t, ngx_msec_t, ngx_pool_cleanup_add,
    ngx_post_event, ngx_posted_events,
};
use ngx::http::{HttpModule, HttpModuleMainConf};
use rate_limit_core::client::{RequestKey, Trouble};
use rate_limit_core::decision::{Decision, Source, Status, Verdict, tightest};
use rate_limit_core::rate::MILLISECOND;

use super::asked::Asked;
use crate::Module;
use crate::client::Driver;
use crate::clock::monotonic_micros;
use crate::conf::LocationConf;
use crate::event::Timer;
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
    /// Where the request waits for Redis, if it does.
    submission: Cell<Option<Submission>>,
    /// For its turn.
    timer: Timer,
    /// Has the request go on.
    wake: NonNull<ngx_event_t>,
    /// Whether what was asked has been answered, by whomever.
    answered: Cell<bool>,
    /// What has been spent in this machine's memory.
    local: Cell<Option<Local>>,
    /// When the request came, in µs.
    started: u64,
    outcome: Cell<Option<Outcome>>,
    stage: Cell<Stage>,
}

/// A request at the client of its store.
#[derive(Clone, Copy)]
pub(super) struct Submission {
    driver: &'static Driver,
    key: RequestKey,
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
        started: u64,
    ) -> Option<&'static Self> {
        // SAFETY: a valid request has a connection, whose events are valid.
        let wake = NonNull::new(unsafe { (*(*r).connection).write })?;
        let context = Self {
            conf,
            asked,
            submission: Cell::new(None),
            timer: Timer::new(),
            wake,
            answered: Cell::new(false),
            local: Cell::new(None),
            started,
            outcome: Cell::new(None),
            stage: Cell::new(Stage::Asking),
        };
        const { assert!(align_of::<Self>() <= align_of::<usize>()) };
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

    /// Charges the request in Redis.
    pub(super) fn submit(&self, driver: &'static Driver) {
        let timeout = (self.conf.timeout() as u64).saturating_mul(MILLISECOND);
        // SAFETY: the event is that of the client's connection, which lives as long as the request;
        // the submission is released when the request goes.
        let submit =
            |charges: &[_]| unsafe { driver.submit(charges, timeout, self.started, self.wake) };
        let key = match self.asked {
            [asked] => submit(&[asked.charge()]),
            several => submit(&several.iter().map(Asked::charge).collect::<Vec<_>>()),
        };
        self.submission.set(Some(Submission { driver, key }));
    }

    /// What came of the submission, once that is known.
    pub(super) fn outcome(&self) -> Option<Result<(), Trouble>> {
        let Submission { driver, key } = self.submission.get()?;
        driver.outcome(key)
    }

    /// Takes over the verdicts that have come from Redis.
    pub(super) fn take_verdicts(&self) {
        let Some(Submission { driver, key }) = self.submission.get() else { return };
        driver.with_answers(key, |answers| {
            for (asked, answer) in self.asked.iter().zip(answers) {
                asked.verdict.set(answer.verdict);
                asked.is_charged.set(answer.is_charged);
            }
        });
    }

    /// The request is not at the client any more. If it does not pass, what it was charged is given
    /// back. If a limit rejected it, that goes for what is still in flight as well; if Redis did not
    /// answer in time, it is not given even more to do.
    fn release(&self, status: Status, source: Source, wait: u64) {
        let Some(Submission { driver, key }) = self.submission.take() else { return };
        let is_decided = source == Source::Redis;
        let is_rejected = status.is_rejection() && is_decided;
        driver.release(key, is_rejected, is_decided.then_some(wait));
        if status.is_rejection() {
            let charged = self.asked.iter().filter(|asked| asked.is_charged.get());
            charged.for_each(|asked| driver.refund(&asked.charge()));
        }
        if is_rejected {
            self.forget_charges();
        }
    }

    /// The verdicts are as if nothing had been charged.
    fn forget_charges(&self) {
        for asked in self.asked.iter().filter(|asked| asked.is_charged.get()) {
            let returned = |verdict: Verdict| {
                verdict.given_back(asked.question.cost, asked.question.quota.limit())
            };
            asked.verdict.set(asked.verdict.get().map(returned));
        }
    }

    /// Has the request go on in this turn of the event loop.
    fn wake(&self) {
        // SAFETY: the event is that of the request's connection, which lives as long as the request;
        // NGINX takes it from the queue if the connection is closed first.
        unsafe { ngx_post_event(self.wake.as_ptr(), &raw mut ngx_posted_events) };
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
        // SAFETY: the context stays where it is, and its cleanup stops the timer.
        unsafe { self.timer.start(delay, Some(on_turn), self, log) };
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
        let wait = match source {
            // It is known, so nothing was waited for.
            Source::Cache => 0,
            _ => monotonic_micros().saturating_sub(self.started),
        };
        self.release(status, source, wait);
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

    /// All that was asked, answered or not.
    pub(super) fn submitted(&self) -> &'static [Asked] {
        self.asked
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
        context.timer.stop();
        if let Some(Submission { driver, key }) = context.submission.take() {
            driver.release(key, false, None);
        }
    }
}

unsafe extern "C" fn on_turn(event: *mut ngx_event_t) {
    // SAFETY: `delay` set the data, and the timer is stopped before the context goes.
    unsafe {
        let context = &*(*event).data.cast::<Context>();
        context.stage.set(Stage::Due);
        context.wake();
    }
}
