//! Values in a pool of NGINX, as the data of its cleanups.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use ngx::ffi::{ngx_pool_cleanup_add, ngx_pool_t};

/// A function to which NGINX passes a value before it frees the memory of the pool. A value is found by it: then it must
/// come from a static, as a function may have several addresses.
pub(crate) type CleanUp = unsafe extern "C" fn(*mut c_void);

/// Puts a value into a pool, which does not drop it; `None` if NGINX is out of memory.
///
/// # Safety
/// The pool must be NGINX's, and `clean_up` take such a value.
pub(crate) unsafe fn add<T>(
    pool: *mut ngx_pool_t,
    value: T,
    clean_up: CleanUp,
) -> Option<NonNull<T>> {
    // NGINX allocates nothing for a value without a size.
    const { assert!(size_of::<T>() > 0 && align_of::<T>() <= align_of::<usize>()) };
    // SAFETY: passed on. NGINX allocates the data of a cleanup as large as is requested, and aligned for a word, which is
    // enough for this type. Nobody else refers to it.
    unsafe {
        let cleanup = ngx_pool_cleanup_add(pool, size_of::<T>()).as_mut()?;
        let place = NonNull::new(cleanup.data)?.cast::<T>();
        place.write(value);
        cleanup.handler = Some(clean_up);
        Some(place)
    }
}

/// The value that was added last with `clean_up`.
///
/// # Safety
/// The pool must be NGINX's, and `clean_up` take such a value.
pub(crate) unsafe fn find<T>(pool: *const ngx_pool_t, clean_up: CleanUp) -> Option<NonNull<T>> {
    // SAFETY: passed on. The cleanups of a pool are a list.
    unsafe {
        let mut next = (*pool).cleanup;
        while let Some(cleanup) = next.as_ref() {
            if cleanup.handler.is_some_and(|handler| ptr::fn_addr_eq(handler, clean_up)) {
                return NonNull::new(cleanup.data.cast());
            }
            next = cleanup.next;
        }
    }
    None
}
