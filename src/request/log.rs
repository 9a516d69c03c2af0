//! Log lines about decisions.

use std::ptr;

use ngx::ffi::{ngx_http_request_t, ngx_log_t, ngx_uint_t};
use ngx::http::{HttpModuleLocationConf, NgxHttpCoreModule};
use rate_limit_core::conf::limit::Effect;
use rate_limit_core::decision::Status;
use rate_limit_core::text::log::{Escaped, Excess};

use super::log_of;
use crate::conf::LocationConf;
use crate::context::Context;
use crate::log::{Decided, admits, cycle_log, is_logged, log};

/// Logs a request that is, or would be, rejected or delayed, as `limit_req` does: one line for the
/// limits that are enforced, and one for the others.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn log_decision(r: *mut ngx_http_request_t, context: &Context) {
    // SAFETY: passed on.
    unsafe {
        // Delays are logged one level lower.
        if !is_logged(context.conf().log_level(), log_of(r)) {
            return;
        }
        log_group(r, context, Effect::Enforced);
        log_group(r, context, Effect::DryRun);
    }
}

/// The level of a line about a decision, and what it calls one such decision and several.
fn words(conf: &LocationConf, status: Status) -> Option<(ngx_uint_t, &'static str, &'static str)> {
    let (rejected, delayed) = (conf.log_level(), conf.delay_log_level());
    Some(match status {
        Status::Rejected => (rejected, "limiting requests", "rejections"),
        Status::RejectedDryRun => (rejected, "limiting requests, dry run", "dry-run rejections"),
        Status::Delayed => (delayed, "delaying request", "delays"),
        Status::DelayedDryRun => (delayed, "delaying request, dry run", "dry-run delays"),
        _ => return None,
    })
}

/// # Safety
/// `r` must be valid.
unsafe fn log_group(r: *mut ngx_http_request_t, context: &Context, effect: Effect) {
    let conf = context.conf();
    let (status, delay) = context.judge(effect);
    let Some((level, what, several)) = words(conf, status) else { return };
    // SAFETY: passed on.
    let (log, location_log) = unsafe { (log_of(r), location_log(r)) };
    if !is_logged(level, log) {
        return;
    }
    // A delay is logged for the limit that delays, which need not be the tightest.
    let shown = match delay {
        0 => context.tightest(effect),
        _ => context.group(effect).max_by_key(|limit| limit.delay()),
    };
    let Some(shown) = shown else { return };
    let Some(verdict) = shown.verdict.get() else { return };
    let decided = Decided { limit: shown.name(), what: several, level, log: location_log };
    if !admits(conf.log_rate(), decided) {
        return;
    }
    let excess = Excess::of(&verdict, &shown.check, delay);
    let others: String = context
        .violated(effect)
        .filter(|limit| !ptr::eq(*limit, shown))
        .map(|limit| format!(", also by limit \"{}\"", limit.name()))
        .collect();
    let (name, key) = (shown.name(), Escaped(shown.check.key));
    log!(level, log, "{what}, excess: {excess} by limit \"{name}\", key: \"{key}\"{others}");
}

/// The log of the request's location, which lives as long as the configuration.
///
/// # Safety
/// `r` must be valid.
unsafe fn location_log(r: *mut ngx_http_request_t) -> *mut ngx_log_t {
    // SAFETY: a request has a location, and a location has a log: if no level sets one, the cycle's.
    unsafe {
        let core = NgxHttpCoreModule::location_conf(&*r.cast::<ngx::http::Request>());
        core.map_or(cycle_log(), |core| core.error_log)
    }
}
