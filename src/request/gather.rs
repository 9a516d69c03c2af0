//! What a request asks: its keys, quotas and costs.

use std::cell::Cell;
use std::rc::Rc;

use ngx::ffi::{ngx_http_request_t, ngx_palloc, ngx_str_t};
use rate_limit_core::key;
use rate_limit_core::redis::script::Question;

use crate::conf::{Limit, Unusable};
use crate::redis::Asked;

/// Why there is nothing to ask.
pub(super) enum Ungathered {
    OutOfMemory,
    /// Of a limit without a store nothing can be asked.
    Unbound,
    Unusable(String),
}

impl From<Unusable> for Ungathered {
    fn from(Unusable(message): Unusable) -> Self {
        Self::Unusable(message)
    }
}

/// Evaluates keys and parameters; limits with an empty key are left out.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn gather(
    r: *mut ngx_http_request_t,
    limits: &'static [Rc<Limit>],
) -> Result<&'static [Asked], Ungathered> {
    // SAFETY: the request is valid. The memory is of its pool, large and aligned enough for all
    // limits, and only what has been written is returned.
    unsafe {
        let size = size_of::<Asked>().saturating_mul(limits.len());
        let first = ngx_palloc((*r).pool, size).cast::<Asked>();
        if first.is_null() {
            return Err(Ungathered::OutOfMemory);
        }
        let mut count = 0;
        for limit in limits {
            let key = limit.key(&mut *r).ok_or(Ungathered::OutOfMemory)?;
            if key.is_empty() {
                continue;
            }
            let question = Question {
                head: limit.head().ok_or(Ungathered::Unbound)?,
                key: shortened(r, key).ok_or(Ungathered::OutOfMemory)?,
                quota: limit.quota(&mut *r)?,
                cost: limit.cost(&mut *r)?,
            };
            first.add(count).write(Asked { limit, question, verdict: Cell::new(None) });
            count += 1;
        }
        Ok(std::slice::from_raw_parts(first, count))
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
