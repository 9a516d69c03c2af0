//! The handlers of the access phase and the precontent phase, and the log lines about what they decide.
//!
//! A request of a client is charged once in each phase, by all limits of its location that decide
//! there. Until Redis replies the request is suspended and the worker serves others; then NGINX runs
//! the phase again, and the handler finds the context of the request, and in it the outcome.

use std::ptr;

use ngx::ffi::{
    NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN, ngx_http_request_t, ngx_int_t,
    ngx_uint_t,
};
use rate_limit_core::charge::Effect;
use rate_limit_core::client::Error;
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::conf::{LogKey, LogLevel, Policy};
use rate_limit_core::decision::{Decision, Status};
use rate_limit_core::request::Progress;
use rate_limit_core::text::log::{Excess, ShownKey};

use crate::answer;
use crate::clock::monotonic_micros;
use crate::context::{Context, Stage};
use crate::log::{Decided, Log, admits, cycle_log, debug, log};
use crate::machine::{Evaluated, LimitedRequest};
use crate::nginx::{OutOfMemory, Request, Step};
use crate::shm::Shared;

mod error_page;
mod evaluate;

use error_page::{expect_precontent, warn_of};
use evaluate::{applying, evaluate, stored};

/// The handler of the access phase. To allow is `NGX_DECLINED`: `NGX_OK` would satisfy
/// `satisfy any`.
pub(crate) unsafe extern "C" fn access(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request, and is done with it after what is returned.
    unsafe { Request::handle(r, |r| run(r, Phase::Access)) }
}

/// The handler of the access phase where limits decide in the precontent phase as well.
pub(crate) unsafe extern "C" fn access_first(r: *mut ngx_http_request_t) -> ngx_int_t {
    let begin = |r: Request<'_>| match expect_precontent(r) {
        Ok(()) => run(r, Phase::Access),
        Err(OutOfMemory) => Step::INTERNAL_ERROR,
    };
    // SAFETY: NGINX passes a request, and is done with it after what is returned.
    unsafe { Request::handle(r, begin) }
}

/// The handler of the precontent phase, which comes when all access checks have passed.
pub(crate) unsafe extern "C" fn precontent(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request, and is done with it after what is returned.
    unsafe { Request::handle(r, |r| run(r, Phase::Precontent)) }
}

/// Starts or resumes a request in a phase. Subrequests are not limited.
fn run(r: Request<'_>, phase: Phase) -> Step {
    if !r.is_main() {
        return Step::DECLINED;
    }
    let latest = Context::find(r);
    // Its error page is not charged in the other phase.
    if latest.is_some_and(|it| it.request.is_refused()) {
        return Step::DECLINED;
    }
    match latest.and_then(|latest| latest.of(phase)) {
        Some(context) if context.is_left(r) => {
            context.leave();
            Step::DECLINED
        }
        Some(context) => resume(r, context),
        None => begin(r, phase),
    }
}

/// Evaluates the limits of the location that decide in this phase, if there are any, and charges the
/// request. Not for the error page of a filter: NGINX has no way to wait there, and would close the
/// connection.
fn begin(r: Request<'_>, phase: Phase) -> Step {
    let Some(conf) = r.location_conf() else { return Step::DECLINED };
    let limits = conf.limits(phase);
    if limits.is_empty() || r.is_finalized_by_filter() {
        return Step::DECLINED;
    }
    let Some(shared) = r.memory() else { return Step::INTERNAL_ERROR };
    let Ok((evaluated, unusable)) = evaluate(r, limits, shared) else {
        return Step::INTERNAL_ERROR;
    };
    debug!(r.log(), "limits to charge: {}", evaluated.len());
    let now = monotonic_micros();
    let Ok(context) = Context::create(r, phase, &conf.policy, evaluated, now) else {
        return Step::INTERNAL_ERROR;
    };
    if let Some(effect) = unusable
        && context.request.leave_out(shared, effect, applying(r, limits))
    {
        return act(r, context);
    }
    match context.request.begin(shared) {
        Progress::Decided => act(r, context),
        Progress::Submit => submit(r, context, shared, now, Request::suspend),
    }
}

/// Submits the request to the client of its store. `wait` has it wait, unless the outcome is known at once.
fn submit<'r>(
    r: Request<'r>,
    context: &'r Context<'r>,
    shared: &Shared,
    now: u64,
    wait: fn(Request<'r>) -> Step,
) -> Step {
    let bound = context.request.limits().first().and_then(|limit| limit.line.bound());
    let driver = bound.and_then(|bound| r.main_conf()?.driver(bound.store));
    let taken = context.request.take_leases(shared, now, |renewal| r.keep(renewal).ok());
    let Some(driver) = driver.filter(|_| taken.is_some()) else { return Step::INTERNAL_ERROR };
    if !context.submit(driver, now) {
        return resume(r, context);
    }
    debug!(r.log(), "wait for Redis");
    wait(r)
}

/// Resumes a request that has a context. Any event of its connection runs the phase again, not only
/// the one that it waits for.
fn resume<'r>(r: Request<'r>, context: &'r Context<'r>) -> Step {
    match context.stage() {
        Stage::Pending => match context.request.take_reply() {
            None => r.keep_waiting(),
            Some(outcome) => on_reply(r, context, outcome),
        },
        Stage::Delayed => r.keep_waiting(),
        Stage::Due => {
            context.enter(Stage::Done);
            if r.stop_watching() { Step::DECLINED } else { Step::INTERNAL_ERROR }
        }
        // The error page of a request that did not pass the access checks, or of one that could not
        // be charged.
        Stage::Failed => Step::DECLINED,
        Stage::Unclear(status) => {
            warn_of(r, status);
            Step::DECLINED
        }
        Stage::Ahead(_) => {
            context.enter(Stage::Done);
            begin(r, context.phase)
        }
        // No limit applied, but after a redirect one may.
        Stage::Done if context.request.is_bypassed() => begin(r, context.phase),
        Stage::Done => Step::DECLINED,
    }
}

/// Acts on the outcome of the submission.
fn on_reply<'r>(r: Request<'r>, context: &'r Context<'r>, outcome: Result<(), Error>) -> Step {
    let Some(shared) = r.memory() else { return Step::INTERNAL_ERROR };
    if let Err(error) = outcome {
        debug!(r.log(), "not decided by Redis: {error:?}");
    }
    let progress = context.request.on_reply(shared, outcome);
    // It waits for nothing any more, or not until it is submitted.
    context.enter(Stage::Failed);
    match progress {
        Progress::Submit => {
            debug!(r.log(), "charge once more");
            submit(r, context, shared, monotonic_micros(), Request::keep_waiting)
        }
        Progress::Decided if r.stop_watching() => act(r, context),
        Progress::Decided => Step::INTERNAL_ERROR,
    }
}

/// Carries out the decision.
#[inline(always)]
fn act<'r>(r: Request<'r>, context: &'r Context<'r>) -> Step {
    context.enter(Stage::Done);
    // It is not copied as a whole.
    let Some(Decision { status, source, wait, delay, .. }) = context.request.decision() else {
        return Step::INTERNAL_ERROR;
    };
    debug!(r.log(), "{}, source: {}, after {wait} us", status.name(), source.name());
    match status {
        Status::Passed => Step::DECLINED,
        _ => act_on(r, context, status, delay),
    }
}

/// Carries out a decision by which the request does not just pass.
fn act_on<'r>(r: Request<'r>, context: &'r Context<'r>, status: Status, delay: u64) -> Step {
    log_decision(r, &context.request);
    match status {
        Status::Delayed => {
            debug!(r.log(), "delay for {delay} us");
            match context.delay(r, delay) {
                Ok(()) => r.suspend(),
                Err(OutOfMemory) => Step::INTERNAL_ERROR,
            }
        }
        Status::Rejected | Status::ErrorRejected => {
            if let Some(top) = r.main_conf().and_then(|main| main.top.get()) {
                top.count(&context.request);
            }
            answer::reject(r, &context.request)
        }
        Status::Passed
        | Status::DelayedDryRun
        | Status::RejectedDryRun
        | Status::ErrorPassed
        | Status::Bypassed => Step::DECLINED,
    }
}

/// Logs a request that is, or would be, rejected or delayed, as `limit_req` does: one line for the
/// limits that are enforced, and one for the others.
fn log_decision<'r>(r: Request<'r>, request: &LimitedRequest<'r>) {
    // Delays are logged one level lower.
    if !r.log().has_level(rejection_level(request.policy())) {
        return;
    }
    log_group(r, request, Effect::Enforced);
    log_group(r, request, Effect::DryRun);
}

/// The level at which rejections are logged.
fn rejection_level(policy: &Policy) -> ngx_uint_t {
    let level = match policy.log.level {
        LogLevel::Info => NGX_LOG_INFO,
        LogLevel::Notice => NGX_LOG_NOTICE,
        LogLevel::Warn => NGX_LOG_WARN,
        LogLevel::Error => NGX_LOG_ERR,
    };
    level as ngx_uint_t
}

/// The level of a line about a decision, and what it calls one such decision and several.
fn words(policy: &Policy, status: Status) -> Option<(ngx_uint_t, &'static str, &'static str)> {
    let rejected = rejection_level(policy);
    // A delay is logged one level lower, as with `limit_req`.
    let delayed = rejected.saturating_add(1).min(NGX_LOG_INFO as ngx_uint_t);
    Some(match status {
        Status::Rejected => (rejected, "limiting requests", "rejections"),
        Status::RejectedDryRun => (rejected, "limiting requests, dry run", "dry-run rejections"),
        Status::Delayed => (delayed, "delaying request", "delays"),
        Status::DelayedDryRun => (delayed, "delaying request, dry run", "dry-run delays"),
        _ => return None,
    })
}

#[cold]
fn log_group<'r>(r: Request<'r>, request: &LimitedRequest<'r>, effect: Effect) {
    let policy = request.policy();
    let (status, delay) = request.judge(effect);
    let Some((level, what, several)) = words(policy, status) else { return };
    let (log, location_log) = (r.log(), location_log(r));
    if !log.has_level(level) {
        return;
    }
    // A delay is logged for the limit that delays, which need not be the tightest.
    let shown = match delay {
        0 => request.tightest(effect),
        _ => request.group(effect).max_by_key(|limit| limit.delay()),
    };
    let Some(shown) = shown else { return };
    let Some(verdict) = shown.verdict() else { return };
    let decided = Decided { limit: shown.line.name(), what: several, level, log: location_log };
    if !admits(policy.log.rate, decided) {
        return;
    }
    let excess = Excess::of(&verdict, &shown.shown_charge(), delay);
    let others: String = request
        .group(effect)
        .filter(|limit| limit.is_violated() && !ptr::eq(*limit, shown))
        .map(|limit| format!(", also by limit \"{}\"", limit.name()))
        .collect();
    let (name, key) = (shown.name(), shown_key(r, shown, policy.log_key));
    log!(level, log, "{what}, excess: {excess} by limit \"{name}\"{key}{others}");
}

/// The key of a line. Where an HMAC stands for it, the client's own key is evaluated once more, so that requests which are
/// not logged need not keep it. A limit outside of any location may have a store without an HMAC: its keys are not shown
/// where HMACs are to be.
fn shown_key<'r>(r: Request<'r>, limit: &Evaluated<'r>, log_key: LogKey) -> ShownKey<'r> {
    let (conf, stored_key) = (limit.line, limit.charge.key);
    match (log_key, conf.key_hmac()) {
        (LogKey::On, None) => ShownKey::Own(stored_key),
        (LogKey::On, Some(_)) => {
            let own = conf.key(r).and_then(|key| stored(r, key, None));
            own.map_or(ShownKey::Hidden, ShownKey::Own)
        }
        (LogKey::Hmac, Some(_)) => ShownKey::Hmac(stored_key),
        (LogKey::Hmac, None) | (LogKey::Off, _) => ShownKey::Hidden,
    }
}

/// The log of the request's location, which lives as long as the configuration: if no level sets one, that of the
/// cycle.
fn location_log(r: Request<'_>) -> Log<'static> {
    // SAFETY: a location has the log that one of its levels sets, or the cycle's.
    r.location().map_or(cycle_log(), |location| unsafe { Log::new(location.error_log) })
}
