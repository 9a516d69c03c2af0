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
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::decision;
use rate_limit_core::request::Progress;

use crate::clock::monotonic_micros;
use crate::context::{Context, Stage, decisions};
use crate::log::debug;
use crate::machine::memory;
use crate::pool::keep;
use crate::shm::Shared;
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
        if latest.is_some_and(|it| it.request.is_refused()) {
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
    // SAFETY: as above, and the limits are in the pool of the request.
    unsafe {
        let (evaluated, unusable) = match evaluate(r, limits, shared) {
            Ok(evaluated) => (evaluated, None),
            Err(Unevaluated::Unusable(effect)) => (&[][..], Some(effect)),
            Err(Unevaluated::OutOfMemory | Unevaluated::Unbound) => return INTERNAL_ERROR,
        };
        debug!(log_of(r), "limits to charge: {}", evaluated.len());
        let now = monotonic_micros();
        let Some(context) = Context::create(r, phase, conf.policy(), evaluated, now) else {
            return INTERNAL_ERROR;
        };
        if let Some(effect) = unusable {
            let status = context.request.end_invalid(shared, effect);
            count_undecided(r, limits, &[], status, shared);
            return act(r, context);
        }
        match context.request.begin(shared) {
            Progress::Decided => act(r, context),
            Progress::Submit => submit(r, context, shared, now, suspend),
        }
    }
}

/// Submits the request to the client of its store. `wait` has it wait, unless the outcome is known at once.
///
/// # Safety
/// `r` must be valid, and this be its context.
unsafe fn submit(
    r: *mut ngx_http_request_t,
    context: &Context,
    shared: &Shared,
    now: u64,
    wait: unsafe fn(*mut ngx_http_request_t) -> Status,
) -> Status {
    let store = context.request.limits().first().and_then(|limit| limit.limit.store());
    // SAFETY: the request is valid. What is kept in its pool lives as long as its limits do, and configurations
    // live as long as requests.
    unsafe {
        let main = Module::main_conf(&*r.cast::<ngx::http::Request>());
        let driver = main.zip(store).and_then(|(main, store)| main.driver(store));
        let taken = context.request.take_leases(shared, now, |renewal| keep(r, renewal));
        let Some(driver) = driver.filter(|_| taken.is_some()) else { return INTERNAL_ERROR };
        if !context.submit(driver, now) {
            return resume(r, context);
        }
        debug!(log_of(r), "wait for Redis");
        wait(r)
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
            Stage::Pending => match context.request.take_reply() {
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
            Stage::Done if context.request.is_bypassed() => begin(r, context.phase()),
            Stage::Done => Status::NGX_DECLINED,
        }
    }
}

/// Acts on the outcome of the submission.
///
/// # Safety
/// `r` must be valid, and this be its context.
unsafe fn on_reply(
    r: *mut ngx_http_request_t,
    context: &Context,
    outcome: Result<(), Error>,
) -> Status {
    let Some(shared) = memory() else { return INTERNAL_ERROR };
    // SAFETY: passed on.
    unsafe {
        if let Err(error) = outcome {
            debug!(log_of(r), "not decided by Redis: {error:?}");
        }
        let progress = context.request.on_reply(shared, outcome);
        // It waits for nothing any more, or not until it is submitted.
        context.fail();
        match progress {
            Progress::Submit => {
                debug!(log_of(r), "charge once more");
                submit(r, context, shared, monotonic_micros(), keep_waiting)
            }
            Progress::Decided => match stop_watching(r) {
                Status::NGX_OK => act(r, context),
                _ => INTERNAL_ERROR,
            },
        }
    }
}

/// Carries out the decision.
///
/// # Safety
/// `r` must be valid; it may be gone afterwards.
unsafe fn act(r: *mut ngx_http_request_t, context: &Context) -> Status {
    context.finish();
    let Some(outcome) = context.request.conclusion() else { return INTERNAL_ERROR };
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
            log_decision(r, &context.request);
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
                decisions(r).map_or(INTERNAL_ERROR, |it| answer::reject(r, &it))
            }
            _ => Status::NGX_DECLINED,
        }
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
