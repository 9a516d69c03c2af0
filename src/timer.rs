//! A timer of NGINX's that belongs to a request.

use std::cell::UnsafeCell;

use ngx::ffi::{
    ngx_add_timer, ngx_del_timer, ngx_event_handler_pt, ngx_event_t, ngx_log_t, ngx_msec_t,
};

/// A timer. It is an ordinary one: a worker that is leaving waits for it, and so for the request.
pub(crate) struct Timer(UnsafeCell<ngx_event_t>);

impl Timer {
    /// A timer that is not set.
    pub(crate) fn new() -> Self {
        // SAFETY: all zeroes is how NGINX itself starts an event.
        Self(UnsafeCell::new(unsafe { std::mem::zeroed() }))
    }

    /// Calls `handler` with an event whose data is `owner`, in `delay` ms.
    ///
    /// # Safety
    /// The timer must not move or go while it is set, and `owner` and `log` must live as long.
    pub(crate) unsafe fn start<T>(
        &self,
        delay: ngx_msec_t,
        handler: ngx_event_handler_pt,
        owner: &T,
        log: *mut ngx_log_t,
    ) {
        let event = self.0.get();
        // SAFETY: only this thread uses the event, and it stays where it is.
        unsafe {
            (*event).handler = handler;
            (*event).data = std::ptr::from_ref(owner).cast_mut().cast();
            (*event).log = log;
            ngx_add_timer(event, delay);
        }
    }

    /// Makes sure that it is not set.
    pub(crate) fn stop(&self) {
        let event = self.0.get();
        // SAFETY: only this thread uses the event, and it is removed only if it is set.
        unsafe {
            if (*event).timer_set() != 0 {
                ngx_del_timer(event);
            }
        }
    }
}
