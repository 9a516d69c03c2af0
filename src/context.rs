//! The context of a request in a phase.

use std::cell::Cell;
use std::iter;
use std::ptr::{self, NonNull};

use ngx::ffi::{
    ngx_cycle, ngx_event_t, ngx_http_request_t, ngx_pool_cleanup_add, ngx_post_event,
    ngx_posted_events,
};
use ngx::http::{HttpModule, HttpModuleMainConf};
use rate_limit_core::client::{Answer, Error, RequestKey};
use rate_limit_core::conf::limit::{Effect, Phase};
use rate_limit_core::decision::{Decision, Source, Status};
use rate_limit_core::lease::Granted;
use rate_limit_core::rate::MILLISECOND;

use crate::Module;
use crate::bits;
use crate::client::Driver;
use crate::clock::{monotonic_micros, time_until, turn_start};
use crate::conf::LocationConf;
use crate::evaluated::{Evaluated, tightest};
use crate::event::Timer;
use crate::log::debug;
use crate::pool::keep;
use crate::shm::{Local, Shared};

/// The limits of a request that decide in one phase, and their decision.
///
/// It lies in the pool of the request as the data of a cleanup. An internal redirect clears the
/// table of contexts, but not the cleanups, so there it is found again: this is how a request is
/// charged once however often it is redirected. The latest refers to those before it.
pub(crate) struct Context {
    phase: Phase,
    previous: Option<&'static Self>,
    conf: &'static LocationConf,
    /// The limits that apply to the request; none if all keys were empty.
    limits: &'static [Evaluated],
    /// The request at the client of its store, from its submission until it is decided.
    submission: Cell<Option<Submission>>,
    /// Ends its delay, if there is one.
    timer: Cell<Option<&'static Timer>>,
    /// Resumes the request.
    wake: NonNull<ngx_event_t>,
    /// Whether the limits have decided: in Redis, in the deny cache or locally.
    is_decided: Cell<bool>,
    /// Whether the submission is the second one.
    is_second: Cell<bool>,
    /// What the request has spent locally.
    local: Cell<Option<Local>>,
    /// When the limits were evaluated, in µs of the monotonic clock.
    started: u64,
    outcome: Cell<Option<Outcome>>,
    stage: Cell<Stage>,
    /// Whether the request has ended.
    has_ended: Cell<bool>,
}

/// A request at the client of its store.
#[derive(Clone, Copy)]
pub(crate) struct Submission {
    driver: &'static Driver,
    key: RequestKey,
}

/// The decision, apart from the verdicts.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// The status of the request.
    status: Status,
    /// The status of the request, or what a dry run would have done to it.
    pub(crate) shown_status: Status,
    pub(crate) source: Source,
    pub(crate) wait: u64,
    pub(crate) delay: u64,
    /// See [`Decision::jitter`].
    jitter: u64,
    /// The limit to show, if the limits have decided.
    shown: Option<&'static Evaluated>,
    /// See [`Decision::is_invalid`].
    is_invalid: bool,
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

/// What a request shows of error pages when its access phase begins: see `request/error_page.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// NGINX's mark of an error page after which there is no other one.
    pub(crate) is_last: bool,
    /// The status that an error page has left, 0 if none has.
    pub(crate) status: u16,
    /// The status of an access check whose error page would change neither.
    pub(crate) untraceable: Option<u16>,
}

impl Context {
    /// Makes the context of a request in `phase`, whose limits were evaluated at `started`, in µs of the
    /// monotonic clock. `None` if NGINX is out of memory.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(crate) unsafe fn create(
        r: *mut ngx_http_request_t,
        phase: Phase,
        conf: &'static LocationConf,
        limits: &'static [Evaluated],
        started: u64,
    ) -> Option<&'static Self> {
        // SAFETY: a valid request has a connection, whose events are valid.
        let wake = NonNull::new(unsafe { (*(*r).connection).write })?;
        let context = Self {
            phase,
            // SAFETY: passed on.
            previous: unsafe { Self::find(r) },
            conf,
            limits,
            submission: Cell::new(None),
            timer: Cell::new(None),
            wake,
            is_decided: Cell::new(false),
            is_second: Cell::new(false),
            local: Cell::new(None),
            started,
            outcome: Cell::new(None),
            stage: Cell::new(Stage::Failed),
            has_ended: Cell::new(false),
        };
        const { assert!(align_of::<Self>() <= align_of::<usize>()) };
        // SAFETY: the request is valid. NGINX allocates the data of a cleanup as large as is
        // requested, and aligned for any type of its own, which is enough for this one.
        unsafe {
            let cleanup = ngx_pool_cleanup_add((*r).pool, size_of::<Self>()).as_mut()?;
            let place = cleanup.data.cast::<Self>();
            place.write(context);
            cleanup.handler = Some(clean_up);
            *slot(r) = place;
            Some(&*place)
        }
    }

    /// The latest context of the client's request that `r` is a part of.
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
            if !bits::is_internal(r) && !bits::is_finalized_by_filter(r) {
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

    /// The latest context of the request in `phase`, from this one back.
    pub(crate) fn of(&'static self, phase: Phase) -> Option<&'static Self> {
        let mut latest = Some(self);
        while let Some(context) = latest.filter(|context| context.phase != phase) {
            latest = context.previous;
        }
        latest
    }

    /// Whether the request has no other context.
    pub(crate) fn is_only(&self) -> bool {
        self.previous.is_none()
    }

    /// The phase in which its limits decide.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The configuration of the location whose limits apply.
    pub(crate) fn conf(&self) -> &'static LocationConf {
        self.conf
    }

    /// When its limits were evaluated, in µs of the monotonic clock.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }

    /// Charges the request in Redis at `now`, in µs of the monotonic clock. Returns whether it waits for the
    /// outcome.
    pub(crate) fn submit(&self, driver: &'static Driver, now: u64) -> bool {
        let timeout = if self.is_second.get() { self.timeout() / 2 } else { self.timeout() };
        // SAFETY: the event is that of the client's connection, which lives as long as the request;
        // the submission is released when the request goes.
        let submit = |charges: &[_]| unsafe { driver.submit(charges, timeout, now, self.wake) };
        let charge = |limit: &Evaluated| limit.charge(limit.lease());
        let (key, waits) = match self.limits {
            [limit] => submit(&[charge(limit)]),
            several => submit(&several.iter().map(charge).collect::<Vec<_>>()),
        };
        self.submission.set(Some(Submission { driver, key }));
        self.stage.set(Stage::Pending);
        waits
    }

    /// How long the request may wait for its decision, in µs.
    fn timeout(&self) -> u64 {
        (self.conf.timeout() as u64).saturating_mul(MILLISECOND)
    }

    /// The outcome of the submission, once that is known; the answers of Redis are taken over then. Where the second
    /// one is not decided, a rejection by the first one stands.
    pub(crate) fn take_reply(&self) -> Option<Result<(), Error>> {
        let Submission { driver, key } = self.submission.get()?;
        let outcome = driver.outcome(key)?;
        self.take_answers();
        let stands = self.is_second.get() && self.is_violated();
        Some(if stands { Ok(()) } else { outcome })
    }

    /// Whether Redis has rejected the request, and charged nothing of it, where each limit can have a lease.
    pub(crate) fn is_rejected_beside_leases(&self) -> bool {
        let can_spend = |limit: &Evaluated| limit.has_leases() && !limit.is_charged.get();
        self.conf.lease() > 0 && self.is_violated() && self.limits.iter().all(can_spend)
    }

    /// Whether the request is to be charged once more at `now`, as units lie in leases of this machine by then, or
    /// a command in flight may bring some. The first submission ends with that. There are two at most: the second
    /// one has half of the time, and begins before the other half is over.
    pub(crate) fn charges_again(&self, shared: &Shared, now: u64) -> bool {
        let is_helped =
            |limit: &Evaluated| shared.has_units(limit, now) || shared.awaits_units(limit, now);
        let is_late = now.saturating_sub(self.started) > self.timeout() / 2;
        if self.is_second.get() || is_late || !self.rejecting().all(is_helped) {
            return false;
        }
        self.is_second.set(true);
        // Until it is submitted it waits for nothing.
        self.stage.set(Stage::Failed);
        if let Some(Submission { driver, key }) = self.submission.take() {
            driver.release(key, false, None);
        }
        true
    }

    /// Takes over the answers of Redis that have come.
    fn take_answers(&self) {
        if let Some(Submission { driver, key }) = self.submission.get() {
            driver.with_answers(key, |answers| self.take(answers));
        }
    }

    fn take(&self, answers: &[Answer]) {
        for (limit, answer) in self.limits.iter().zip(answers) {
            let first = limit.verdict.get().filter(|_| self.is_second.get());
            limit.take(answer);
            limit.verdict.set(answer.verdict.or(first));
        }
    }

    /// Takes note of what came of the leases that were to be renewed.
    #[inline]
    pub(crate) fn renew_leases(&self) {
        let span = self.conf.lease();
        if span > 0 {
            self.renew(span);
        }
    }

    fn renew(&self, span: u64) {
        let Some(shared) = memory() else { return };
        for (index, limit) in self.limits.iter().enumerate() {
            if let Some(renewal) = limit.renewal.take() {
                let granted = self.granted(index);
                // The second submission of a request was later than that. Its lease ends so much earlier, and what is
                // spent of it counts as spent so much later, which takes something, and lets nothing more pass.
                shared.renew_lease(limit, renewal.taken, granted, span, self.started);
            }
        }
    }

    /// What Redis has set aside for the limit of this index.
    fn granted(&self, index: usize) -> Granted {
        let granted = |Submission { driver, key }: Submission| driver.granted(key, index);
        self.submission.get().map_or(Granted::default(), granted)
    }

    /// Releases the request from the client. If it does not pass, its charges are refunded, also those
    /// still in flight if a limit rejected it, or if a limit has `settle`. If Redis did not reply in time,
    /// other charges in flight are not: that would only add to its load.
    fn release(&self, status: Status, source: Source, wait: u64) {
        let Some(Submission { driver, key }) = self.submission.take() else { return };
        self.end_denials();
        let is_decided = source == Source::Redis;
        let is_rejected = status.is_rejection() && is_decided;
        let has_reservations = self.has_reservations();
        // Where a lease has decided after all, no reply may charge it besides.
        let refunds = is_rejected || has_reservations || source == Source::Lease;
        driver.release(key, refunds, is_decided.then_some(wait));
        let is_unsettled = !is_decided && has_reservations;
        if status.is_rejection() || is_unsettled {
            self.charged().for_each(|limit| refund(driver, limit));
        }
    }

    /// Gives back what Redis has charged the request, if a limit rejects it. The verdicts are then those
    /// without these charges.
    pub(crate) fn give_back_if_rejected(&self) {
        let Some(Submission { driver, key }) = self.submission.get() else { return };
        if !self.is_violated() {
            return;
        }
        for (index, limit) in self.limits.iter().enumerate().filter(|(_, it)| it.is_charged.get()) {
            refund(driver, limit);
            limit.verdict.set(driver.unspent(key, index).or(limit.verdict.get()));
        }
    }

    /// Whether an enforced limit does not allow the request.
    pub(crate) fn is_violated(&self) -> bool {
        self.rejecting().next().is_some()
    }

    /// The enforced limits that do not allow the request, decided or not.
    fn rejecting(&self) -> impl Iterator<Item = &'static Evaluated> {
        let rejects = |it: &&Evaluated| it.effect() == Effect::Enforced && it.is_violated();
        self.limits.iter().filter(rejects)
    }

    /// Ends what the deny cache holds for other quotas of its clients: Redis may have changed their states.
    fn end_denials(&self) {
        for limit in self.limits.iter().filter(|limit| limit.limit.known_quota().is_none()) {
            if let Some(shared) = memory() {
                shared.end_denials_of_others(limit, monotonic_micros());
            }
        }
    }

    /// The limits that were charged in Redis.
    fn charged(&self) -> impl Iterator<Item = &'static Evaluated> {
        self.limits.iter().filter(|limit| limit.is_charged.get())
    }

    /// Resumes the request in this turn of the event loop.
    fn wake(&self) {
        // SAFETY: the event is that of the request's connection, which lives as long as the request;
        // NGINX takes it from the queue if the connection is closed first.
        unsafe { ngx_post_event(self.wake.as_ptr(), &raw mut ngx_posted_events) };
    }

    /// The decision apart from the verdicts, once there is one.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome.get()
    }

    /// The decision, once there is one.
    pub(crate) fn decision(&self) -> Option<Decision<'static>> {
        let Outcome { shown_status, source, wait, delay, jitter, shown, is_invalid, .. } =
            self.outcome.get()?;
        let shown = shown.and_then(Evaluated::show);
        Some(Decision { status: shown_status, source, shown, wait, delay, jitter, is_invalid })
    }

    /// How long before this turn of the event loop the decision was made, in µs, once there is one.
    pub(crate) fn age(&self) -> Option<u64> {
        let decided = self.started.saturating_add(self.outcome.get()?.wait);
        Some(turn_start().saturating_sub(decided))
    }

    /// Whether no limit applied to the request.
    pub(crate) fn is_bypassed(&self) -> bool {
        self.outcome.get().is_none_or(|outcome| outcome.status == Status::Bypassed)
    }

    /// Whether the request is rejected, or would be without the dry run.
    pub(crate) fn is_rejected(&self) -> bool {
        self.outcome.get().is_some_and(|outcome| outcome.status.is_rejection())
    }

    /// Whether the request is rejected, and not only in a dry run.
    pub(crate) fn is_refused(&self) -> bool {
        let status = self.outcome.get().map(|outcome| outcome.status);
        matches!(status, Some(Status::Rejected | Status::ErrorRejected))
    }

    /// The stage of the request.
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Whether the request has left the phase.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.stage(), Stage::Done | Stage::Failed | Stage::Unclear(_))
    }

    /// The phase is to come.
    pub(crate) fn expect(&self, ahead: Ahead) {
        self.stage.set(Stage::Ahead(ahead));
    }

    /// The request will not come to the phase.
    pub(crate) fn fail(&self) {
        self.stage.set(Stage::Failed);
    }

    /// The request may have failed an access check of this status: it is handled as one that has.
    pub(crate) fn doubt(&self, status: u16) {
        self.stage.set(Stage::Unclear(status));
    }

    /// The request leaves the phase.
    pub(crate) fn finish(&self) {
        self.stage.set(Stage::Done);
    }

    /// Delays the request by `delay` µs from now. `None` if NGINX is out of memory.
    ///
    /// # Safety
    /// `r` must be valid, and this a context of it.
    pub(crate) unsafe fn delay(&self, r: *mut ngx_http_request_t, delay: u64) -> Option<()> {
        let end = monotonic_micros().saturating_add(delay);
        // SAFETY: the request is valid, and has a connection and a log. The timer stays in its pool, as
        // the context does, whose cleanup stops it.
        unsafe {
            let timer = keep(r, Timer::new())?;
            timer.start(time_until(end), Some(on_delay_end), self, (*(*r).connection).log);
            self.timer.set(Some(timer));
        }
        self.stage.set(Stage::Delayed);
        Some(())
    }

    /// Keeps what the request has spent locally.
    pub(crate) fn keep_local(&self, local: Local) {
        self.local.set(Some(local));
    }

    /// Where the request was charged locally as well, Redis has no record of what was spent in the outage:
    /// of both verdicts the stricter one counts. What a rejected request was charged locally is given back.
    #[inline(never)]
    pub(crate) fn join_local(&self, shared: &Shared) {
        let Some(mut local) = self.local.take() else { return };
        let is_rejected = self.is_violated();
        if is_rejected {
            shared.give_back(&mut local);
        }
        for (limit, local) in self.limits.iter().zip(local.verdicts()) {
            let redis = limit.verdict.get();
            let joined = redis.zip(local).map(|(redis, local)| redis.stricter(local));
            limit.verdict.set(joined.or(redis));
        }
        if !is_rejected {
            self.local.set(Some(local));
        }
    }

    /// Takes what the request has spent locally.
    pub(crate) fn take_local(&self) -> Option<Local> {
        self.local.take()
    }

    /// Decides the request by the verdicts of its limits, which come from `source`.
    pub(crate) fn decide(&self, source: Source) {
        self.is_decided.set(true);
        let (status, delay) = self.judge(Effect::Enforced);
        // A status that affects the request is worse than one of a dry run.
        let is_dry_run = |limit: &Evaluated| limit.effect() == Effect::DryRun;
        let shown_status = match self.limits.iter().any(is_dry_run) {
            true => status.worse(self.judge(Effect::DryRun).0),
            false => status,
        };
        self.set_outcome(status, shown_status, source, delay);
    }

    /// Ends a request that no limit decided.
    pub(crate) fn end_undecided(&self, status: Status) {
        self.set_outcome(status, status, Source::None, 0);
    }

    /// Ends a request that no limit could decide, as a value of it is unusable.
    pub(crate) fn end_invalid(&self, status: Status) {
        self.end_undecided(status);
        let outcome = self.outcome.get();
        self.outcome.set(outcome.map(|outcome| Outcome { is_invalid: true, ..outcome }));
    }

    fn set_outcome(&self, status: Status, shown_status: Status, source: Source, delay: u64) {
        let wait = match source {
            // The request did not wait.
            Source::Lease | Source::Cache if self.submission.get().is_none() => 0,
            _ => monotonic_micros().saturating_sub(self.started),
        };
        self.release(status, source, wait);
        let shown = self.shown();
        let jitter = self.conf.jitter();
        let is_invalid = false;
        let outcome =
            Outcome { status, shown_status, source, wait, delay, jitter, shown, is_invalid };
        self.outcome.set(Some(outcome));
        if let Some(shared) = memory() {
            self.count(shared, status, source, wait);
            self.reservations().for_each(|limit| limit.limit.reservations(shared).add());
        }
    }

    /// The limit to show, if any has a verdict.
    fn shown(&self) -> Option<&'static Evaluated> {
        match self.decided() {
            [limit] => limit.verdict.get().map(|_| limit),
            _ => self.tightest(Effect::Enforced).or_else(|| self.tightest(Effect::DryRun)),
        }
    }

    /// The limits whose charges are to be settled when the request has ended: those that have allowed it,
    /// if it passes.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = &'static Evaluated> + use<> {
        let limits = if self.is_rejected() { &[] } else { self.decided() };
        let is_charged = |limit: &Evaluated| limit.allows() || limit.is_charged.get();
        limits.iter().filter(move |limit| limit.limit.settles() && is_charged(limit))
    }

    /// Whether any limit has `settle`: without a decision its charge must be given back.
    fn has_reservations(&self) -> bool {
        self.limits.iter().any(|limit| limit.limit.settles())
    }

    /// Whether this is called for the first time.
    pub(crate) fn is_first_end(&self) -> bool {
        !self.has_ended.replace(true)
    }

    /// Counts the request for each limit that had a part in its decision: a limit that allowed what
    /// another rejected had none.
    fn count(&self, shared: &Shared, status: Status, source: Source, wait: u64) {
        if self.limits.is_empty() {
            return;
        }
        // Requests that the deny cache rejects did not wait: their decisions are counted, which is enough.
        if source != Source::Cache {
            shared.count_wait(wait);
        }
        for limit in self.limits {
            let record = limit.limit.record(shared);
            if self.is_decided.get() && limit.verdict.get().is_some() {
                record.count_decision(source);
            }
            if let Some(status) = self.status_of(limit, status) {
                record.count_request(status);
            }
        }
    }

    /// What to count for a limit, where `status` is that of the request.
    fn status_of(&self, limit: &'static Evaluated, status: Status) -> Option<Status> {
        let has_part = !self.is_decided.get() || limit.is_violated() || !status.is_rejection();
        match limit.effect() {
            _ if !has_part => None,
            Effect::Enforced => Some(status),
            Effect::DryRun if self.is_decided.get() && limit.verdict.get().is_some() => {
                Some(judge(iter::once(limit), true).0)
            }
            Effect::DryRun => Some(Status::ErrorPassed),
        }
    }

    /// All limits that apply to the request.
    pub(crate) fn limits(&self) -> &'static [Evaluated] {
        self.limits
    }

    /// The limits, if they have decided.
    pub(crate) fn decided(&self) -> &'static [Evaluated] {
        if self.is_decided.get() { self.limits } else { &[] }
    }

    /// The limits that have decided and are enforced, or not.
    pub(crate) fn group(
        &self,
        effect: Effect,
    ) -> impl Iterator<Item = &'static Evaluated> + Clone + use<> {
        self.decided().iter().filter(move |limit| limit.effect() == effect)
    }

    /// The limits that did not allow the request.
    pub(crate) fn violated(
        &self,
        effect: Effect,
    ) -> impl Iterator<Item = &'static Evaluated> + use<> {
        self.group(effect).filter(|limit| limit.is_violated())
    }

    /// What these limits do to the request, or would do, and the delay in µs.
    pub(crate) fn judge(&self, effect: Effect) -> (Status, u64) {
        judge(self.group(effect), effect == Effect::DryRun || self.conf.dry_run())
    }

    /// The tightest of these limits that have a verdict.
    pub(crate) fn tightest(&self, effect: Effect) -> Option<&'static Evaluated> {
        tightest(self.group(effect))
    }
}

/// Gives back what a limit has charged in Redis.
fn refund(driver: &Driver, limit: &Evaluated) {
    driver.refund(&limit.charge(None), limit.regained_from(limit.check.cost));
    // So that nothing of it is settled when the request ends.
    limit.is_charged.set(false);
}

/// What limits together do to a request, or would do, and the delay in µs.
fn judge(limits: impl Iterator<Item = &'static Evaluated>, is_dry_run: bool) -> (Status, u64) {
    let (mut allowed, mut delay) = (true, 0);
    for limit in limits {
        allowed &= !limit.is_violated();
        delay = limit.delay().max(delay);
    }
    let delay = if allowed { delay } else { 0 };
    (Status::decided(allowed, delay > 0, is_dry_run), delay)
}

/// The memory that the workers of this machine share.
pub(crate) fn memory() -> Option<&'static Shared> {
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

/// The request ends, perhaps while it waits.
unsafe extern "C" fn clean_up(data: *mut std::ffi::c_void) {
    // SAFETY: the data is the context, whose memory NGINX frees after this, without dropping it. The log
    // of the event is that of the connection, which outlives the request. Requests are freed by NGINX,
    // never while a driver borrows its state.
    unsafe {
        let context = &*data.cast::<Context>();
        drop(context.local.take());
        if let Some(timer) = context.timer.get() {
            timer.stop();
        }
        context.take_answers();
        context.renew_leases();
        if context.submission.get().is_some() {
            debug!(context.wake.as_ref().log, "released undecided");
            context.release(Status::ErrorPassed, Source::None, 0);
        }
    }
}

unsafe extern "C" fn on_delay_end(event: *mut ngx_event_t) {
    // SAFETY: `delay` set the owner, and the timer is stopped before the context goes.
    unsafe {
        let context = &*Timer::owner::<Context>(event);
        context.stage.set(Stage::Due);
        context.wake();
    }
}
