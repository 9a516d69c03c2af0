//! The keys, quotas and costs of a request.

use std::ptr;
use std::rc::Rc;

use ngx::ffi::{ngx_http_request_t, ngx_palloc, ngx_str_t};
use rate_limit_core::conf::limit::Effect;
use rate_limit_core::decision::Status;
use rate_limit_core::key;
use rate_limit_core::limit::Quota;
use rate_limit_core::redis::script::Check;
use rate_limit_core::request::ConfiguredLimit;

use crate::conf::{EvaluateError, LimitConf};
use crate::log::unusable;
use crate::machine::Evaluated;
use crate::pool::keep;
use crate::shm::Shared;

/// Why the limits of a request cannot be evaluated.
pub(super) enum Unevaluated {
    /// NGINX is out of memory.
    OutOfMemory,
    /// A limit has no store.
    Unbound,
    /// A variable of a limit of this effect has a value that cannot be used.
    Unusable(Effect),
}

/// Evaluates keys and parameters; limits with an empty key are left out. So are those of a dry run with
/// an unusable value, if any others are left.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn evaluate(
    r: *mut ngx_http_request_t,
    limits: &'static [Rc<LimitConf>],
    shared: &Shared,
) -> Result<&'static [Evaluated<'static>], Unevaluated> {
    const { assert!(align_of::<Evaluated<'_>>() <= align_of::<usize>()) };
    // SAFETY: the request is valid. The memory is of its pool, large and aligned enough for all
    // limits, and only what has been written is returned.
    unsafe {
        let size = size_of::<Evaluated<'_>>().saturating_mul(limits.len());
        let first = ngx_palloc((*r).pool, size).cast::<Evaluated<'_>>();
        if first.is_null() {
            return Err(Unevaluated::OutOfMemory);
        }
        let (mut count, mut is_unusable) = (0, false);
        for limit in limits {
            let key = limit.key(&mut *r).ok_or(Unevaluated::OutOfMemory)?;
            if key.is_empty() {
                continue;
            }
            let template = limit.template().ok_or(Unevaluated::Unbound)?;
            let key = shortened(r, key).ok_or(Unevaluated::OutOfMemory)?;
            let (quota, cost) = match quota_and_cost(r, limit) {
                Ok(values) => values,
                Err(EvaluateError::OutOfMemory) => return Err(Unevaluated::OutOfMemory),
                Err(error) => {
                    unusable((*(*r).connection).log, &error, limit.name());
                    is_unusable = true;
                    match limit.effect() {
                        Effect::Enforced => return Err(Unevaluated::Unusable(Effect::Enforced)),
                        Effect::DryRun => continue,
                    }
                }
            };
            let dry_run = limit.effect() == Effect::DryRun;
            let check = Check { dry_run, ..Check::new(template.head(), key, quota, cost) };
            let digest = shared.digest(limit.fingerprint(), &check);
            first.add(count).write(Evaluated::new(limit, template, check, digest));
            count += 1;
        }
        let evaluated = std::slice::from_raw_parts(first, count);
        if is_unusable && evaluated.is_empty() {
            return Err(Unevaluated::Unusable(Effect::DryRun));
        }
        if is_unusable {
            count_undecided(r, limits, evaluated, Status::ErrorPassed, shared);
        }
        Ok(evaluated)
    }
}

/// Counts a request for the limits that apply to it and are not among those evaluated: they will have no
/// verdict. `status` is what becomes of the request; a dry run lets it pass.
///
/// # Safety
/// `r` must be valid.
#[cold]
pub(super) unsafe fn count_undecided(
    r: *mut ngx_http_request_t,
    limits: &'static [Rc<LimitConf>],
    evaluated: &[Evaluated<'_>],
    status: Status,
    shared: &Shared,
) {
    let is_evaluated = |limit: &LimitConf| evaluated.iter().any(|it| ptr::eq(it.limit, limit));
    for limit in limits.iter().filter(|limit| !is_evaluated(limit)) {
        // SAFETY: the request is valid.
        let applies = unsafe { limit.key(&mut *r).is_some_and(|key| !key.is_empty()) };
        if applies {
            limit.record(shared).count_request(match limit.effect() {
                Effect::Enforced => status,
                Effect::DryRun => Status::ErrorPassed,
            });
        }
    }
}

/// # Safety
/// `r` must be valid.
unsafe fn quota_and_cost(
    r: *mut ngx_http_request_t,
    limit: &'static LimitConf,
) -> Result<(&'static Quota, u64), EvaluateError> {
    // SAFETY: the request is valid.
    unsafe {
        let quota = match limit.known_quota() {
            Some(quota) => quota,
            None => keep(r, limit.quota(&mut *r)?).ok_or(EvaluateError::OutOfMemory)?,
        };
        Ok((quota, limit.cost(&mut *r)?))
    }
}

/// The key as it goes to Redis.
///
/// # Safety
/// `r` must be valid, and `key` live as long as it does.
unsafe fn shortened(r: *mut ngx_http_request_t, key: &[u8]) -> Option<&'static [u8]> {
    let (from, length) = match key::digest(key) {
        None => (key.as_ptr(), key.len()),
        Some(digest) => {
            // SAFETY: the request is valid.
            let copy = unsafe { ngx_str_t::from_bytes((*r).pool, digest.as_bytes())? };
            (copy.data.cast_const(), copy.len)
        }
    };
    // SAFETY: both are of the pool of the request, or of the configuration.
    Some(unsafe { std::slice::from_raw_parts(from, length) })
}
