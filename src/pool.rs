//! Values in the memory pool of a request.

use std::ptr::NonNull;

use ngx::ffi::{ngx_http_request_t, ngx_palloc};

/// Keeps a value as long as the request lives. It is never dropped. `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid. What is returned must not be used after the request.
pub(crate) unsafe fn keep<T>(r: *mut ngx_http_request_t, value: T) -> Option<&'static T> {
    const { assert!(align_of::<T>() <= align_of::<usize>()) };
    // SAFETY: the request is valid, and so is its pool. What NGINX allocates there has the size that is
    // requested, is aligned for a word, which is enough for this type, and is used by nobody else.
    unsafe {
        let place = ngx_palloc((*r).pool, size_of::<T>()).cast::<T>();
        NonNull::new(place)?.write(value);
        Some(&*place)
    }
}
