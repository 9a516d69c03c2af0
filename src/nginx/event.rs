//! NGINX's timers and posted events.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr;

use ngx::ffi::{
    ngx_add_timer, ngx_connection_t, ngx_del_timer, ngx_delete_posted_event, ngx_event_handler_pt,
    ngx_event_t, ngx_msec_t, ngx_post_event, ngx_posted_events, ngx_socket_t,
};

use crate::log::Log;

/// A timer.
pub(crate) struct Timer {
    event: UnsafeCell<ngx_event_t>,
    data: UnsafeCell<TimerData>,
    /// Whether a worker that shuts down does not wait for it.
    is_background: Cell<bool>,
}

/// The data of a timer's event. With debug logging NGINX reads it as a connection, of which it logs the
/// socket.
#[repr(C)]
struct TimerData {
    owner: *const c_void,
    unused: [*const c_void; 2],
    socket: ngx_socket_t,
}

const _: () =
    assert!(std::mem::offset_of!(TimerData, socket) == std::mem::offset_of!(ngx_connection_t, fd));

impl Timer {
    /// A timer that is not set. A worker that shuts down waits for it, and so for its request.
    pub(crate) fn new() -> Self {
        let data = TimerData { owner: ptr::null(), unused: [ptr::null(); 2], socket: -1 };
        let (event, data) = (UnsafeCell::new(blank()), UnsafeCell::new(data));
        Self { event, data, is_background: Cell::new(false) }
    }

    /// A timer that is not set, and for which a worker that shuts down does not wait.
    pub(crate) fn background() -> Self {
        Self { is_background: Cell::new(true), ..Self::new() }
    }

    /// Sets whether a worker that shuts down does not wait for it, even if it is set.
    pub(crate) fn set_background(&self, is_background: bool) {
        if self.is_background.replace(is_background) != is_background {
            // SAFETY: only this thread uses the event.
            unsafe { (*self.event.get()).set_cancelable(is_background.into()) };
        }
    }

    /// Calls `handler` with an event of this [`owner`](Self::owner), in `delay` ms. A time that was set
    /// before is replaced.
    ///
    /// # Safety
    /// The timer must not move or go while it is set, and `owner` and `log` must live as long.
    pub(crate) unsafe fn start<T>(
        &self,
        delay: ngx_msec_t,
        handler: ngx_event_handler_pt,
        owner: *const T,
        log: Log<'_>,
    ) {
        self.stop();
        let (event, data) = (self.event.get(), self.data.get());
        // SAFETY: only this thread uses the event and its data, and both stay where they are.
        unsafe {
            (*data).owner = owner.cast();
            (*event).handler = handler;
            (*event).data = data.cast();
            (*event).log = log.as_ptr();
            (*event).set_cancelable(self.is_background.get().into());
            ngx_add_timer(event, delay);
        }
    }

    /// The owner that was given to [`start`](Self::start).
    ///
    /// # Safety
    /// `event` must be that of a timer that has just expired.
    pub(crate) unsafe fn owner<T>(event: *const ngx_event_t) -> *const T {
        // SAFETY: the data of such an event is what `start` has set.
        unsafe { (*(*event).data.cast::<TimerData>()).owner.cast() }
    }

    /// Whether it is set.
    pub(crate) fn is_set(&self) -> bool {
        // SAFETY: only this thread uses the event.
        unsafe { (*self.event.get()).timer_set() != 0 }
    }

    /// Stops it if it is set.
    pub(crate) fn stop(&self) {
        if self.is_set() {
            // SAFETY: only this thread uses the event, and it is set.
            unsafe { ngx_del_timer(self.event.get()) };
        }
    }
}

/// An event to be posted to the end of this turn of the event loop.
pub(crate) struct Posted(UnsafeCell<ngx_event_t>);

impl Posted {
    /// An event that is not posted.
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(blank()))
    }

    /// Calls `handler` with an event whose data is `owner` at the end of this turn; once, however
    /// often it is posted.
    ///
    /// # Safety
    /// It must not move or go while it is posted, and `owner` and `log` must live as long.
    pub(crate) unsafe fn post<T>(
        &self,
        handler: ngx_event_handler_pt,
        owner: *const T,
        log: Log<'_>,
    ) {
        let event = self.0.get();
        // SAFETY: only this thread uses the event, and it stays where it is.
        unsafe {
            (*event).handler = handler;
            (*event).data = owner.cast_mut().cast();
            (*event).log = log.as_ptr();
            ngx_post_event(event, &raw mut ngx_posted_events);
        }
    }

    /// Removes it if it is posted.
    pub(crate) fn cancel(&self) {
        let event = self.0.get();
        // SAFETY: only this thread uses the event, and it is removed only if it is posted.
        unsafe {
            if (*event).posted() != 0 {
                ngx_delete_posted_event(event);
            }
        }
    }
}

fn blank() -> ngx_event_t {
    // SAFETY: all zeroes is how NGINX itself starts an event.
    unsafe { std::mem::zeroed() }
}
