//! A log that keeps its last message.

use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::rc::Rc;

use ngx::ffi::{NGX_LOG_INFO, ngx_log_t, ngx_uint_t, ngx_use_stderr, u_char};

/// A log that keeps its last message: NGINX reports the cause of a failure of TLS only in the log.
///
/// It is shared with NGINX, which has pointers to it. So it is in an `Rc`, and not in a `Box`: to move that would assert
/// that nothing else refers to it.
pub(crate) struct Capture {
    log: UnsafeCell<ngx_log_t>,
    message: Cell<Option<String>>,
}

impl Capture {
    /// A log in place of `log`, to which nothing is written any more.
    ///
    /// # Safety
    /// `log` must be valid.
    pub(crate) unsafe fn instead_of(log: *mut ngx_log_t) -> Rc<Self> {
        // SAFETY: it is valid, and holds nothing that a copy could free twice.
        let mut log = unsafe { ptr::read(log) };
        log.log_level = log.log_level.max(NGX_LOG_INFO as ngx_uint_t);
        log.writer = Some(keep);
        log.next = ptr::null_mut();
        let capture = Rc::new(Self { log: UnsafeCell::new(log), message: Cell::new(None) });
        // SAFETY: nothing else refers to the log yet. The message stays where it is, as it is counted.
        unsafe { (*capture.log()).wdata = ptr::from_ref(&capture.message).cast_mut().cast() };
        capture
    }

    /// A log before `log`, to which messages of its level are still written.
    ///
    /// # Safety
    /// `log` must be valid for as long as what is returned is used.
    pub(crate) unsafe fn before(log: *mut ngx_log_t) -> Rc<Self> {
        // SAFETY: as for `instead_of`; nothing else refers to the log that is made.
        unsafe {
            let capture = Self::instead_of(log);
            (*capture.log()).next = log;
            capture
        }
    }

    /// The log to give to NGINX; valid for as long as `self`.
    pub(crate) fn log(&self) -> *mut ngx_log_t {
        self.log.get()
    }

    /// Runs `work` while the configuration is read, without copies of its messages on standard error.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: a flag that only this thread uses.
        let before = unsafe { ptr::replace(&raw mut ngx_use_stderr, 0) };
        let result = work();
        // SAFETY: the flag of this thread.
        unsafe { ngx_use_stderr = before };
        result
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
    // SAFETY: NGINX passes the log that `instead_of` made, and the line that it has formatted.
    let (message, line) = unsafe {
        let message = &*(*log).wdata.cast::<Cell<Option<String>>>();
        (message, std::slice::from_raw_parts(line, len))
    };
    let line = String::from_utf8_lossy(line);
    let text = line.split_once(": ").map_or(line.as_ref(), |(_, text)| text);
    message.set(Some(text.trim_end().to_owned()));
}
