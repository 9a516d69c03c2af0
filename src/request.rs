//! The way of a request through the access phase.
//!
//! The limits of the location are asked once for each request of a client. While the answer is on
//! its way the request is suspended and the worker serves others; when it has come, NGINX runs the
//! phase again, and the handler finds the context of the request, and in it the outcome.

use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_LOG_ERR, ngx_handle_read_event, ngx_http_block_reading,
    ngx_http_core_run_phases, ngx_http_finalize_request, ngx_http_request_t, ngx_http_test_reading,
    ngx_int_t, ngx_log_t, ngx_post_event, ngx_posted_events,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf};
use rate_limit_core::decision;
use rate_limit_core::text::log::Escaped;

use crate::Module;
use crate::conf::{LocationConf, OnError};
use crate::log::log;
use crate::redis::{Asked, Pending};

mod context;
mod gather;

pub(crate) use context::Context;
use gather::{Ungathered, gather};

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
    // SAFETY: as above.
    unsafe {
        match gather(r, conf.limits()) {
            Err(Ungathered::OutOfMemory) => INTERNAL_ERROR,
            Err(Ungathered::Unusable(message)) => {
                log!(NGX_LOG_ERR, log_of(r), "{message}");
                match Context::create(r, conf, None) {
                    Some(context) => conclude(r, context, on_error(conf)),
                    None => INTERNAL_ERROR,
                }
            }
            Ok([]) => match Context::create(r, conf, None) {
                Some(context) => conclude(r, context, decision::Status::Bypassed),
                None => INTERNAL_ERROR,
            },
            Ok(asked) => ask(r, conf, asked),
        }
    }
}

/// Asks, and suspends the request unless the outcome is known at once.
///
/// # Safety
/// `r` must be valid, and `asked` be in its pool.
unsafe fn ask(
    r: *mut ngx_http_request_t,
    conf: &'static LocationConf,
    asked: &'static [Asked],
) -> Status {
    // SAFETY: the request is valid; its connection outlives it, and the nodes outlive both. The
    // context, and the question in it, stay in the pool of the request, whose cleanup cancels it.
    unsafe {
        let main = Module::main_conf(&*r.cast::<ngx::http::Request>());
        let node = main.and_then(|main| conf.node(main));
        let wake = NonNull::new((*(*r).connection).write);
        let (Some(node), Some(wake)) = (node, wake) else { return INTERNAL_ERROR };
        let pending = Pending::new(asked, node, wake);
        let Some(context) = Context::create(r, conf, Some(pending)) else { return INTERNAL_ERROR };
        let Some(pending) = context.pending() else { return INTERNAL_ERROR };
        pending.ask(conf.timeout(), log_of(r));
        match pending.outcome() {
            None => suspend(r),
            Some(_) => resume(r, context),
        }
    }
}

/// Goes on with a request that has been here before.
///
/// # Safety
/// `r` must be valid.
unsafe fn resume(r: *mut ngx_http_request_t, context: &Context) -> Status {
    if let Some(decision) = context.decision() {
        return match decision.status {
            // Nothing was asked, and after a redirect there may be something to ask.
            // SAFETY: passed on.
            decision::Status::Bypassed => unsafe { begin(r) },
            _ => Status::NGX_DECLINED,
        };
    }
    let Some(pending) = context.pending() else { return Status::NGX_DECLINED };
    // Any event of the connection runs the phase again, not only the one that is waited for.
    let Some(outcome) = pending.outcome() else { return Status::NGX_AGAIN };
    // SAFETY: passed on.
    if unsafe { stop_watching(r) } != Status::NGX_OK {
        return INTERNAL_ERROR;
    }
    let status = match outcome {
        Err(_) => on_error(context.conf()),
        Ok(()) if pending.asked().iter().all(Asked::is_allowed) => decision::Status::Passed,
        Ok(()) => decision::Status::Rejected,
    };
    // SAFETY: passed on.
    unsafe { conclude(r, context, status) }
}

/// Writes the decision down and acts on it.
///
/// # Safety
/// `r` must be valid.
unsafe fn conclude(
    r: *mut ngx_http_request_t,
    context: &Context,
    status: decision::Status,
) -> Status {
    let conf = context.conf();
    context.decide(status);
    match status {
        decision::Status::Rejected => {
            // SAFETY: passed on.
            unsafe {
                log_rejection(r, context);
                reject(r, conf.status())
            }
        }
        // SAFETY: passed on.
        decision::Status::ErrorRejected => unsafe { reject(r, conf.error_status()) },
        _ => Status::NGX_DECLINED,
    }
}

/// Ends the request. Returning the status instead would let `satisfy any` overrule a 401 or 403.
///
/// # Safety
/// `r` must be valid; it may be gone afterwards.
unsafe fn reject(r: *mut ngx_http_request_t, status: ngx_int_t) -> Status {
    // SAFETY: the phase engine does the same with a handler's error, and does not touch the
    // request again after NGX_DONE.
    unsafe { ngx_http_finalize_request(r, status) };
    Status::NGX_DONE
}

fn on_error(conf: &LocationConf) -> decision::Status {
    match conf.on_error() {
        OnError::Open => decision::Status::ErrorPassed,
        OnError::Closed => decision::Status::ErrorRejected,
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

/// # Safety
/// `r` must be valid.
unsafe fn log_rejection(r: *mut ngx_http_request_t, context: &Context) {
    let Some(asked) = context.shown() else { return };
    let name = asked.name;
    let key = Escaped(asked.question.key);
    // SAFETY: passed on.
    let log = unsafe { log_of(r) };
    match asked.verdict.get().and_then(|verdict| verdict.retry_after()) {
        Some(seconds) => {
            log!(
                context.conf().log_level(),
                log,
                "limiting requests by \"{name}\", key: \"{key}\", retry after: {seconds}s"
            );
        }
        None => {
            let cost = asked.question.cost;
            log!(
                context.conf().log_level(),
                log,
                "limiting requests by \"{name}\", key: \"{key}\", cost {cost} is above the limit"
            );
        }
    }
}
