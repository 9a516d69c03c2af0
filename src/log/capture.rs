//! A log that is listened to.

use std::cell::{Cell, UnsafeCell};
use std::ptr;

use ngx::ffi::{NGX_LOG_INFO, ngx_log_t, ngx_uint_t, u_char};

/// A log that keeps the last message instead of writing it: what NGINX finds out about a failure
/// of TLS it tells nobody else.
///
/// Alerts, and debugging if it is on, go to the log that this one stands before.
pub(crate) struct Capture {
    log: UnsafeCell<ngx_log_t>,
    message: Cell<Option<String>>,
}

impl Capture {
    /// A log that stands before `next`.
    ///
    /// # Safety
    /// `next` must be valid for as long as the log is used.
    pub(crate) unsafe fn new(next: *mut ngx_log_t) -> Box<Self> {
        // SAFETY: `next` is valid, and holds nothing that a copy could free twice.
        let mut log = unsafe { ptr::read(next) };
        log.log_level = log.log_level.max(NGX_LOG_INFO as ngx_uint_t);
        log.writer = Some(keep);
        log.next = next;
        let capture = Box::new(Self { log: UnsafeCell::new(log), message: Cell::new(None) });
        // SAFETY: nobody else knows the log yet. The message stays where it is, as it is boxed.
        unsafe { (*capture.log.get()).wdata = ptr::from_ref(&capture.message).cast_mut().cast() };
        capture
    }

    /// The log to give to NGINX; valid for as long as `self`.
    pub(crate) fn log(&self) -> *mut ngx_log_t {
        self.log.get()
    }

    /// The last message, without time, level and process.
    pub(crate) fn take(&self) -> Option<String> {
        self.message.take()
    }
}

unsafe extern "C" fn keep(log: *mut ngx_log_t, level: ngx_uint_t, line: *mut u_char, len: usize) {
    if level > NGX_LOG_INFO as ngx_uint_t {
        return;
    }
    // SAFETY: NGINX passes the log that `new` made, and the line that it has formatted.
    let (message, line) = unsafe {
        let message = &*(*log).wdata.cast::<Cell<Option<String>>>();
        (message, std::slice::from_raw_parts(line, len))
    };
    let line = String::from_utf8_lossy(line);
    let text = line.split_once(": ").map_or(line.as_ref(), |(_, text)| text);
    message.set(Some(text.trim_end().to_owned()));
}
