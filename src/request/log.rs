//! Log lines about decisions.

use std::ptr;

use ngx::ffi::{NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN, ngx_log_t, ngx_uint_t};
use rate_limit_core::charge::Effect;
use rate_limit_core::conf::{LogKey, LogLevel, Policy};
use rate_limit_core::decision::Status;
use rate_limit_core::text::log::{Excess, ShownKey};

use super::evaluate::stored;
use crate::log::{Decided, admits, cycle_log, is_logged, log};
use crate::machine::{Evaluated, LimitedRequest};
use crate::nginx::Request;

/// Logs a request that is, or would be, rejected or delayed, as `limit_req` does: one line for the
/// limits that are enforced, and one for the others.
pub(super) fn log_decision<'r>(r: Request<'r>, request: &LimitedRequest<'r>) {
    // Delays are logged one level lower.
    if !is_logged(rejection_level(request.policy()), r.log()) {
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

fn log_group<'r>(r: Request<'r>, request: &LimitedRequest<'r>, effect: Effect) {
    let policy = request.policy();
    let (status, delay) = request.judge(effect);
    let Some((level, what, several)) = words(policy, status) else { return };
    let (log, location_log) = (r.log(), location_log(r));
    if !is_logged(level, log) {
        return;
    }
    // A delay is logged for the limit that delays, which need not be the tightest.
    let shown = match delay {
        0 => request.tightest(effect),
        _ => request.group(effect).max_by_key(|limit| limit.delay()),
    };
    let Some(shown) = shown else { return };
    let Some(verdict) = shown.verdict() else { return };
    let decided = Decided { limit: shown.limit.name(), what: several, level, log: location_log };
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
    let (conf, stored_key) = (limit.limit, limit.charge.key);
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
fn location_log(r: Request<'_>) -> *mut ngx_log_t {
    r.location().map_or(cycle_log(), |location| location.error_log)
}
