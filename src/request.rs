//! The way of a request through the access phase.
//!
//! The limits of the location are asked once for each request of a client. While the answer is on
//! its way the request is suspended and the worker serves others; when it has come, NGINX runs the
//! phase again, and the handler finds the context of the request, and in it the outcome.

use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_INTERNAL_SERVER_ERROR, ngx_handle_read_event, ngx_http_block_reading,
    ngx_http_core_run_phases, ngx_http_request_t, ngx_http_test_reading, ngx_int_t, ngx_log_t,
    ngx_post_event, ngx_posted_events,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf};
use rate_limit_core::decision::{self, Decision, Source};
use rate_limit_core::local::Mode;
use rate_limit_core::text::log::{Escaped, Excess};

use crate::clock::monotonic_micros;
use crate::conf::{LocationConf, OnError};
use crate::log::{is_logged, log, unusable};
use crate::shm::Shared;
use crate::{Module, answer};

mod asked;
mod context;
mod evaluate;

pub(crate) use asked::Asked;
pub(crate) use context::Context;
use context::Stage;
use evaluate::{Unevaluated, evaluate};

/// NGINX is out of memory, or could not register an event.
const INTERNAL_ERROR: Status = Status(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t);

/// The handler of the access phase. To allow is `NGX_DECLINED`: `NGX_OK` would satisfy
/// `satisfy any`.
pub(crate) unsafe extern "C" fn access(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request, and runs nothing else of it meanwhile.
    let status = unsafe {
        match Context::find(r) {
            _ if !ptr::eq(r, (*r).main) => Status::NGX_DECLINED,
            Some(context) => resume(r, context),
            None => begin(r),
        }
    };
    status.0
}

/// Asks the limits of the location, if there are any.
///
/// # Safety
/// `r` must be valid.
unsafe fn begin(r: *mut ngx_http_request_t) -> Status {
    // SAFETY: the request is valid, and configurations live as long as requests.
    let conf = unsafe { Module::location_conf(&*r.cast::<ngx::http::Request>()) };
    let Some(conf) = conf.filter(|conf| !conf.limits().is_empty()) else {
        return Status::NGX_DECLINED;
    };
    let Some(shared) = context::memory() else { return INTERNAL_ERROR };
    // SAFETY: as above.
    unsafe {
        match evaluate(r, conf.limits(), shared) {
            Err(Unevaluated::OutOfMemory | Unevaluated::Unbound) => INTERNAL_ERROR,
            Err(Unevaluated::Unusable(message)) => {
                unusable(log_of(r), &message);
                settle(r, conf, undecided(conf))
            }
            Ok([]) => settle(r, conf, decision::Status::Bypassed),
            Ok(asked) => charge(r, conf, asked),
        }
    }
}

/// Ends the way of a request that has nothing to ask.
///
/// # Safety
/// `r` must be valid.
unsafe fn settle(
    r: *mut ngx_http_request_t,
    conf: &'static LocationConf,
    status: decision::Status,
) -> Status {
    // SAFETY: passed on.
    unsafe {
        let context = Context::create(r, conf, &[], monotonic_micros());
        let Some(context) = context else { return INTERNAL_ERROR };
        context.settle(status);
        act(r, context)
    }
}

/// Charges the request, and suspends it unless the outcome is known at once.
///
/// # Safety
/// `r` must be valid, and `asked` be in its pool.
unsafe fn charge(
    r: *mut ngx_http_request_t,
    conf: &'static LocationConf,
    asked: &'static [Asked],
) -> Status {
    let now = monotonic_micros();
    // SAFETY: the request is valid, and what is asked is in its pool.
    unsafe {
        let Some(context) = Context::create(r, conf, asked, now) else { return INTERNAL_ERROR };
        if is_denied(conf, asked, now) {
            context.decide(Source::Cache);
            return act(r, context);
        }
        if is_rejected_locally(context, asked) {
            context.decide(Source::Local);
            return act(r, context);
        }
        let main = Module::main_conf(&*r.cast::<ngx::http::Request>());
        let Some(driver) = main.and_then(|main| conf.driver(main)) else { return INTERNAL_ERROR };
        context.submit(driver);
        match context.outcome() {
            None => suspend(r),
            Some(_) => resume(r, context),
        }
    }
}

/// Whether it is known, without asking Redis, that the request cannot pass. Of several limits the
/// others would not answer, so then all are asked.
fn is_denied(conf: &LocationConf, asked: &[Asked], now: u64) -> bool {
    let [asked] = asked else { return false };
    let Some(shared) = cache_of(conf, asked) else { return false };
    let verdict = shared.denied(asked.digest(), now);
    asked.verdict.set(verdict);
    verdict.is_some()
}

/// Remembers until when the request cannot pass.
fn remember_denial(context: &Context) {
    if let [asked] = context.asked()
        && let Some(verdict) = asked.verdict.get()
        && let Some(shared) = cache_of(context.conf(), asked)
    {
        shared.remember_denial(asked.digest(), &verdict, monotonic_micros());
    }
}

/// Where it is remembered until when a client cannot pass. Not where more than the time of the
/// rejection would have to be known: a request of more than one unit finds ever more remaining while
/// it waits.
fn cache_of(conf: &LocationConf, asked: &Asked) -> Option<Shared> {
    context::memory().filter(|_| conf.deny_cache() && asked.question.cost == 1)
}

/// After an outage Redis does not know what has been spent here meanwhile: until that is regained,
/// a request is charged in both places, here first.
fn is_rejected_locally(context: &Context, asked: &[Asked]) -> bool {
    let Some(shared) = local_memory(context.conf()).filter(Shared::is_remembered) else {
        return false;
    };
    let Ok(local) = shared.decide(Mode::Return, asked) else { return false };
    context.has_spent(local);
    asked.iter().any(Asked::is_violated)
}

/// Where to decide if Redis cannot; `None` if the location has another policy.
fn local_memory(conf: &LocationConf) -> Option<Shared> {
    match conf.on_error() {
        OnError::Local => context::memory(),
        _ => None,
    }
}

/// Goes on with a request that has been here before. Any event of its connection runs the phase
/// again, not only the one that is waited for.
///
/// # Safety
/// `r` must be valid.
unsafe fn resume(r: *mut ngx_http_request_t, context: &Context) -> Status {
    // SAFETY: passed on.
    unsafe {
        match context.stage() {
            Stage::Asking => match context.outcome() {
                None => Status::NGX_AGAIN,
                Some(_) if stop_watching(r) != Status::NGX_OK => INTERNAL_ERROR,
                Some(outcome) => {
                    conclude(context, outcome.is_ok());
                    act(r, context)
                }
            },
            Stage::Delayed => Status::NGX_AGAIN,
            Stage::Due => {
                context.done();
                let watching = stop_watching(r);
                if watching == Status::NGX_OK { Status::NGX_DECLINED } else { INTERNAL_ERROR }
            }
            // Nothing was asked, and after a redirect there may be something to ask.
            Stage::Done if context.is_bypassed() => begin(r),
            Stage::Done => Status::NGX_DECLINED,
        }
    }
}

/// Writes down what became of a request that Redis has answered, or has not.
fn conclude(context: &Context, is_answered: bool) {
    let conf = context.conf();
    let memory = local_memory(conf);
    let give_back = || {
        if let (Some(memory), Some(local)) = (&memory, context.take_spent()) {
            memory.give_back(local);
        }
    };
    context.take_verdicts();
    if is_answered {
        context.decide(Source::Redis);
        if context.is_rejected() {
            give_back();
            remember_denial(context);
        }
        return;
    }
    give_back();
    match memory.map(|memory| memory.decide(Mode::Outage, context.submitted())) {
        Some(Ok(_)) => context.decide(Source::Local),
        _ => context.settle(undecided(conf)),
    }
}

/// Does what was decided.
///
/// # Safety
/// `r` must be valid; it may be gone afterwards.
unsafe fn act(r: *mut ngx_http_request_t, context: &Context) -> Status {
    context.done();
    let Some(decision) = context.decision() else { return INTERNAL_ERROR };
    // SAFETY: passed on.
    unsafe {
        log_decision(r, context, &decision);
        match decision.status {
            decision::Status::Delayed => {
                context.delay(decision.delay, log_of(r));
                suspend(r)
            }
            decision::Status::Rejected | decision::Status::ErrorRejected => {
                answer::reject(r, context, &decision)
            }
            _ => Status::NGX_DECLINED,
        }
    }
}

/// What becomes of a request that nobody decides. A dry run rejects nothing, whatever the reason.
fn undecided(conf: &LocationConf) -> decision::Status {
    match conf.on_error() {
        OnError::Closed if !conf.dry_run() => decision::Status::ErrorRejected,
        _ => decision::Status::ErrorPassed,
    }
}

/// Lets the worker do other things until the outcome is known, or the client is gone.
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

/// The client is not watched any more: what follows does that itself.
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

/// Logs a request that is, or would be, rejected or delayed, as `limit_req` does.
///
/// # Safety
/// `r` must be valid.
unsafe fn log_decision(r: *mut ngx_http_request_t, context: &Context, decision: &Decision<'_>) {
    let conf = context.conf();
    let (level, what) = match decision.status {
        decision::Status::Rejected => (conf.log_level(), "limiting requests"),
        decision::Status::RejectedDryRun => (conf.log_level(), "limiting requests, dry run"),
        decision::Status::Delayed => (conf.delay_log_level(), "delaying request"),
        decision::Status::DelayedDryRun => (conf.delay_log_level(), "delaying request, dry run"),
        _ => return,
    };
    // SAFETY: passed on.
    let log = unsafe { log_of(r) };
    if !is_logged(level, log) {
        return;
    }
    // A delay is told of the limit that delays, which need not be the tightest.
    let shown = match decision.delay {
        0 => context.shown(),
        _ => context.asked().iter().max_by_key(|asked| asked.delay()),
    };
    let Some(shown) = shown else { return };
    let Some(verdict) = shown.verdict.get() else { return };
    let excess = Excess::of(&verdict, &shown.question, decision.delay);
    let others: String = context
        .violated()
        .filter(|asked| !ptr::eq(*asked, shown))
        .map(|asked| format!(", also by limit \"{}\"", asked.limit.name()))
        .collect();
    let (name, key) = (shown.limit.name(), Escaped(shown.question.key));
    log!(level, log, "{what}, excess: {excess} by limit \"{name}\", key: \"{key}\"{others}");
}
