//! The handlers of the access phase and the precontent phase.
//!
//! A request of a client is charged once in each phase, by all limits of its location that decide
//! there. Until Redis replies the request is suspended and the worker serves others; then NGINX runs
//! the phase again, and the handler finds the context of the request, and in it the outcome.

use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_INTERNAL_SERVER_ERROR, ngx_handle_read_event, ngx_handle_write_event,
    ngx_http_block_reading, ngx_http_core_run_phases, ngx_http_request_t, ngx_http_test_reading,
    ngx_int_t, ngx_log_t, ngx_post_event, ngx_posted_events,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf};
use rate_limit_core::client::Error;
use rate_limit_core::conf::limit::{Effect, Phase};
use rate_limit_core::conf::{OnError, OnInvalid};
use rate_limit_core::decision::{self, Source};
use rate_limit_core::deny_cache::Denial;
use rate_limit_core::local::Mode;
use rate_limit_core::rate::MILLISECOND;

use crate::clock::monotonic_micros;
use crate::conf::LocationConf;
use crate::context::{Context, Stage, memory};
use crate::evaluated::{Evaluated, Renewal};
use crate::log::debug;
use crate::pool::keep;
use crate::report::Report;
use crate::shm::{Local, NoRoom, Shared};
use crate::{Module, answer, bits};

mod error_page;
mod evaluate;
mod log;

use error_page::{expect_precontent, warn_of};
use evaluate::{Unevaluated, count_undecided, evaluate};
use log::log_decision;

/// NGINX is out of memory, or could not register an event.
const INTERNAL_ERROR: Status = Status(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t);

/// The handler of the access phase. To allow is `NGX_DECLINED`: `NGX_OK` would satisfy
/// `satisfy any`.
pub(crate) unsafe extern "C" fn access(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request, and runs nothing else of it meanwhile.
    unsafe { run(r, Phase::Access).0 }
}

/// The handler of the access phase where limits decide in the precontent phase as well.
pub(crate) unsafe extern "C" fn access_first(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: as above.
    unsafe {
        match expect_precontent(r) {
            Some(()) => run(r, Phase::Access).0,
            None => INTERNAL_ERROR.0,
        }
    }
}

/// The handler of the precontent phase, which comes when all access checks have passed.
pub(crate) unsafe extern "C" fn precontent(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request, and runs nothing else of it meanwhile.
    unsafe { run(r, Phase::Precontent).0 }
}

/// Starts or resumes a request in a phase. Subrequests are not limited.
///
/// # Safety
/// `r` must be valid.
unsafe fn run(r: *mut ngx_http_request_t, phase: Phase) -> Status {
    // SAFETY: passed on.
    unsafe {
        if !ptr::eq(r, (*r).main) {
            return Status::NGX_DECLINED;
        }
        let latest = Context::find(r);
        // Its error page is not charged in the other phase.
        if latest.is_some_and(Context::is_refused) {
            return Status::NGX_DECLINED;
        }
        match latest.and_then(|latest| latest.of(phase)) {
            Some(context) => resume(r, context),
            None => begin(r, phase),
        }
    }
}

/// Evaluates the limits of the location that decide in this phase, if there are any, and charges the
/// request. Not for the error page of a filter: NGINX has no way to wait there, and would close the
/// connection.
///
/// # Safety
/// `r` must be valid.
unsafe fn begin(r: *mut ngx_http_request_t, phase: Phase) -> Status {
    // SAFETY: the request is valid, and configurations live as long as requests.
    let conf = unsafe { Module::location_conf(&*r.cast::<ngx::http::Request>()) };
    let Some(conf) = conf else { return Status::NGX_DECLINED };
    let limits = conf.limits(phase);
    // SAFETY: the request is valid.
    if limits.is_empty() || unsafe { bits::is_finalized_by_filter(r) } {
        return Status::NGX_DECLINED;
    }
    let Some(shared) = memory() else { return INTERNAL_ERROR };
    // SAFETY: as above.
    unsafe {
        match evaluate(r, limits, shared) {
            Err(Unevaluated::OutOfMemory | Unevaluated::Unbound) => INTERNAL_ERROR,
            Err(Unevaluated::Unusable(effect)) => {
                let status = undecided(conf, effect, conf.on_invalid() == OnInvalid::Reject);
                shared.count_wait(0);
                count_undecided(r, limits, &[], status, shared);
                end_uncharged(r, phase, conf, |context| context.end_invalid(status))
            }
            Ok([]) => {
                let bypass = |context: &Context| context.end_undecided(decision::Status::Bypassed);
                end_uncharged(r, phase, conf, bypass)
            }
            Ok(limits) => charge(r, phase, conf, limits, shared),
        }
    }
}

/// Ends a request that is charged by no limit.
///
/// # Safety
/// `r` must be valid.
unsafe fn end_uncharged(
    r: *mut ngx_http_request_t,
    phase: Phase,
    conf: &'static LocationConf,
    end: impl FnOnce(&Context),
) -> Status {
    // SAFETY: passed on.
    unsafe {
        let context = Context::create(r, phase, conf, &[], monotonic_micros());
        let Some(context) = context else { return INTERNAL_ERROR };
        end(context);
        act(r, context)
    }
}

/// Charges the request, and suspends it unless the outcome is known at once.
///
/// # Safety
/// `r` must be valid, and `limits` be in its pool.
unsafe fn charge(
    r: *mut ngx_http_request_t,
    phase: Phase,
    conf: &'static LocationConf,
    limits: &'static [Evaluated],
    shared: &Shared,
) -> Status {
    let now = monotonic_micros();
    // SAFETY: the request is valid, and the limits are in its pool.
    unsafe {
        debug!(log_of(r), "limits to charge: {}", limits.len());
        let Some(context) = Context::create(r, phase, conf, limits, now) else {
            return INTERNAL_ERROR;
        };
        if deny(conf, limits, shared, now) {
            context.decide(Source::Cache);
            return act(r, context);
        }
        if reject_locally(context, shared) {
            context.decide(Source::Local);
            return act(r, context);
        }
        let is_leased = conf.lease() > 0 && limits.iter().all(Evaluated::has_leases);
        if is_leased && shared.spend_leases(limits, now) {
            context.join_local(shared);
            context.decide(Source::Lease);
            return act(r, context);
        }
        match submit(r, context, shared, now) {
            Some(true) => {
                debug!(log_of(r), "wait for Redis");
                suspend(r)
            }
            Some(false) => resume(r, context),
            None => INTERNAL_ERROR,
        }
    }
}

/// Submits the request to the client of Redis; the command also renews leases. Returns whether the request
/// waits for the outcome; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid, and the limits be in its pool.
unsafe fn submit(
    r: *mut ngx_http_request_t,
    context: &Context,
    shared: &Shared,
    now: u64,
) -> Option<bool> {
    let conf = context.conf();
    // SAFETY: the request is valid, and the limits are in its pool.
    let main = unsafe {
        if conf.lease() > 0 {
            take_leases(r, conf, context.limits(), shared, now)?;
        }
        Module::main_conf(&*r.cast::<ngx::http::Request>())
    };
    Some(context.submit(conf.driver(main?)?, now))
}

/// Rejects the request if the deny cache holds that it cannot pass. With several limits Redis must
/// decide: the cache has no verdicts of the others. While this machine has units that Redis has set
/// aside, and so rejects others, the request is not rejected.
fn deny(conf: &LocationConf, limits: &[Evaluated], shared: &Shared, now: u64) -> bool {
    let [limit] = limits else { return false };
    if !conf.deny_cache() || !limit.is_cacheable() {
        return false;
    }
    let has_units = || conf.lease() > 0 && shared.has_units(limit, now);
    let verdict = shared.denied(limit, now).filter(|_| !has_units());
    limit.verdict.set(verdict);
    verdict.is_some()
}

/// Caches that Redis has rejected the request.
fn cache_denial(context: &Context) {
    if let [limit] = context.decided()
        && context.conf().deny_cache()
        && limit.is_violated()
        && limit.is_cacheable()
        && let Some(verdict) = limit.verdict.get()
        && let (quota, submitted) = (limit.check.quota, context.started())
        && let Some(denial) = Denial::new(&verdict, quota, submitted, monotonic_micros())
        && let Some(shared) = memory()
    {
        shared.deny(limit, denial);
    }
}

/// Takes the leases of the request's limits out of the table. If every limit can have a lease, the
/// command for the request renews them; otherwise it only reports them, as they could not be spent.
/// `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid, and `limits` be in its pool.
unsafe fn take_leases(
    r: *mut ngx_http_request_t,
    conf: &LocationConf,
    limits: &[Evaluated],
    shared: &Shared,
    now: u64,
) -> Option<()> {
    let until = now.saturating_add((conf.timeout() as u64).saturating_mul(MILLISECOND));
    // A command of cost 0 brings no lease.
    let may_spend = |limit: &Evaluated| {
        limit.has_leases() && (limit.check.cost > 0 || shared.has_lease(limit, now))
    };
    let spends = limits.iter().all(may_spend);
    for limit in limits.iter().filter(|limit| limit.has_leases()) {
        let taken = shared.take_lease(limit, now, until);
        let lease = match spends {
            true => taken.lease(limit.check.quota, conf.lease(), now),
            false => taken.report(limit.check.quota, conf.lease(), now),
        };
        // SAFETY: the request is valid, and the limit is in its pool.
        limit.renewal.set(Some(unsafe { keep(r, Renewal { taken, lease })? }));
    }
    Some(())
}

/// Charges the request locally as long as anything that was spent in an outage is not regained: Redis
/// has no record of it, so both are charged, this machine first. Returns whether a limit rejects the request.
fn reject_locally(context: &Context, shared: &Shared) -> bool {
    let is_local = context.conf().on_error() == OnError::Local;
    is_local && shared.has_local_charges() && charge_locally(context, shared)
}

/// Charges the request locally beside Redis. Returns whether a limit rejects it.
#[inline(never)]
fn charge_locally(context: &Context, shared: &Shared) -> bool {
    let Ok(local) = decide_locally(context, shared, Mode::Return) else { return false };
    context.keep_local(local);
    context.is_violated()
}

/// Decides the request in the shared memory.
fn decide_locally(context: &Context, shared: &Shared, mode: Mode) -> Result<Local, NoRoom> {
    let limits = context.limits();
    let charges = limits.iter().map(|limit| (limit.limit.fingerprint(), &limit.check));
    let local = shared.decide(mode, charges)?;
    for (limit, verdict) in limits.iter().zip(local.verdicts()) {
        if verdict.is_some() {
            limit.verdict.set(verdict);
        }
    }
    Ok(local)
}

/// The memory for local decisions; `None` if the location has another policy.
fn local_memory(conf: &LocationConf) -> Option<&'static Shared> {
    match conf.on_error() {
        OnError::Local => memory(),
        _ => None,
    }
}

/// Resumes a request that has a context. Any event of its connection runs the phase again, not only
/// the one that it waits for.
///
/// # Safety
/// `r` must be valid.
unsafe fn resume(r: *mut ngx_http_request_t, context: &Context) -> Status {
    // SAFETY: passed on.
    unsafe {
        match context.stage() {
            Stage::Pending => match context.take_reply() {
                None => keep_waiting(r),
                Some(outcome) => on_reply(r, context, outcome),
            },
            Stage::Delayed => keep_waiting(r),
            Stage::Due => {
                context.finish();
                let watching = stop_watching(r);
                if watching == Status::NGX_OK { Status::NGX_DECLINED } else { INTERNAL_ERROR }
            }
            // The error page of a request that did not pass the access checks, or of one that could not
            // be charged.
            Stage::Failed => Status::NGX_DECLINED,
            Stage::Unclear(status) => {
                warn_of(r, status);
                Status::NGX_DECLINED
            }
            Stage::Ahead(_) => {
                context.finish();
                begin(r, context.phase())
            }
            // No limit applied, but after a redirect one may.
            Stage::Done if context.is_bypassed() => begin(r, context.phase()),
            Stage::Done => Status::NGX_DECLINED,
        }
    }
}

/// Acts on the outcome of the submission.
///
/// # Safety
/// `r` must be valid, and the limits be in its pool.
unsafe fn on_reply(
    r: *mut ngx_http_request_t,
    context: &Context,
    outcome: Result<(), Error>,
) -> Status {
    context.renew_leases();
    // SAFETY: passed on.
    unsafe {
        if outcome.is_ok()
            && context.is_rejected_beside_leases()
            && let Some(shared) = memory()
            && let Some(status) = try_leases(r, context, shared)
        {
            return status;
        }
        if stop_watching(r) != Status::NGX_OK {
            return INTERNAL_ERROR;
        }
        conclude(r, context, outcome);
        act(r, context)
    }
}

/// Redis has rejected the request, but units that it counts as spent may lie in a lease which another command has
/// brought meanwhile, or is bringing. The request spends them, or is charged once more, by a command that gives them
/// back. `None` if there are none.
///
/// # Safety
/// `r` must be valid, and the limits be in its pool.
#[cold]
unsafe fn try_leases(
    r: *mut ngx_http_request_t,
    context: &Context,
    shared: &Shared,
) -> Option<Status> {
    let now = monotonic_micros();
    // SAFETY: passed on.
    unsafe {
        if shared.spend_leases(context.limits(), now) {
            if stop_watching(r) != Status::NGX_OK {
                return Some(INTERNAL_ERROR);
            }
            context.join_local(shared);
            context.decide(Source::Lease);
            return Some(act(r, context));
        }
        if !context.charges_again(shared, now) {
            return None;
        }
        debug!(log_of(r), "charge once more");
        Some(match submit(r, context, shared, now) {
            Some(true) => keep_waiting(r),
            Some(false) => resume(r, context),
            None => INTERNAL_ERROR,
        })
    }
}

/// Decides a request by the outcome of its submission.
///
/// # Safety
/// `r` must be valid.
unsafe fn conclude(r: *mut ngx_http_request_t, context: &Context, outcome: Result<(), Error>) {
    let conf = context.conf();
    let memory = local_memory(conf);
    let Err(error) = outcome else {
        context.give_back_if_rejected();
        if let Some(memory) = memory {
            context.join_local(memory);
        }
        context.decide(Source::Redis);
        cache_denial(context);
        return;
    };
    // SAFETY: the request is valid.
    unsafe { debug!(log_of(r), "not decided by Redis: {error:?}") };
    if let (Some(memory), Some(mut local)) = (memory, context.take_local()) {
        memory.give_back(&mut local);
    }
    match memory.map(|memory| decide_locally(context, memory, Mode::Outage)) {
        Some(Ok(local)) => {
            context.decide(Source::Local);
            if !context.is_rejected() {
                context.keep_local(local);
            }
        }
        _ => {
            let is_enforced = context.limits().iter().any(|it| it.effect() == Effect::Enforced);
            let effect = if is_enforced { Effect::Enforced } else { Effect::DryRun };
            let rejects = conf.on_error() == OnError::Closed;
            context.end_undecided(undecided(conf, effect, rejects));
        }
    }
}

/// Carries out the decision.
///
/// # Safety
/// `r` must be valid; it may be gone afterwards.
unsafe fn act(r: *mut ngx_http_request_t, context: &Context) -> Status {
    context.finish();
    let Some(outcome) = context.outcome() else { return INTERNAL_ERROR };
    // SAFETY: passed on.
    unsafe {
        debug!(
            log_of(r),
            "{}, source: {}, after {} us",
            outcome.shown_status.name(),
            outcome.source.name(),
            outcome.wait
        );
        if outcome.shown_status != decision::Status::Passed {
            log_decision(r, context);
        }
        match outcome.shown_status {
            decision::Status::Delayed => {
                debug!(log_of(r), "delay for {} us", outcome.delay);
                match context.delay(r, outcome.delay) {
                    Some(()) => suspend(r),
                    None => INTERNAL_ERROR,
                }
            }
            decision::Status::Rejected | decision::Status::ErrorRejected => {
                Report::on(r).map_or(INTERNAL_ERROR, |report| answer::reject(r, &report))
            }
            _ => Status::NGX_DECLINED,
        }
    }
}

/// The status of a request that limits of this effect do not decide, where the policy for that rejects it
/// or not. A dry run rejects nothing, whatever the reason.
fn undecided(conf: &LocationConf, effect: Effect, rejects: bool) -> decision::Status {
    match effect {
        Effect::Enforced if rejects && !conf.dry_run() => decision::Status::ErrorRejected,
        Effect::Enforced | Effect::DryRun => decision::Status::ErrorPassed,
    }
}

/// Suspends the request until it is resumed, or the client leaves.
///
/// # Safety
/// `r` must be valid.
unsafe fn suspend(r: *mut ngx_http_request_t) -> Status {
    // SAFETY: the request and its connection are valid; limit_req does the same.
    unsafe {
        let read = (*(*r).connection).read;
        if (*read).ready() != 0 {
            ngx_post_event(read, &raw mut ngx_posted_events);
        } else if ngx_handle_read_event(read, 0) != Status::NGX_OK.0 {
            return INTERNAL_ERROR;
        }
        (*r).read_event_handler = Some(ngx_http_test_reading);
        (*r).write_event_handler = Some(ngx_http_core_run_phases);
    }
    Status::NGX_AGAIN
}

/// Lets a suspended request wait on. If the response before it has filled the socket, the write event is
/// still registered, and select and poll would report it in each turn.
///
/// # Safety
/// `r` must be valid.
unsafe fn keep_waiting(r: *mut ngx_http_request_t) -> Status {
    // SAFETY: the request and its connection are valid; limit_req does the same.
    match Status(unsafe { ngx_handle_write_event((*(*r).connection).write, 0) }) {
        Status::NGX_OK => Status::NGX_AGAIN,
        _ => INTERNAL_ERROR,
    }
}

/// Stops watching the client: the following phases do that themselves.
///
/// # Safety
/// `r` must be valid.
unsafe fn stop_watching(r: *mut ngx_http_request_t) -> Status {
    // SAFETY: the request and its connection are valid; limit_req does the same.
    unsafe {
        (*r).read_event_handler = Some(ngx_http_block_reading);
        Status(ngx_handle_read_event((*(*r).connection).read, 0))
    }
}

/// # Safety
/// `r` must be valid.
unsafe fn log_of(r: *mut ngx_http_request_t) -> *mut ngx_log_t {
    // SAFETY: a request has a connection, and a connection has a log.
    unsafe { (*(*r).connection).log }
}
