//! Logging, with the message formatted only if its level is logged, and with a bound on lines of one kind.

use std::cell::RefCell;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use ngx::ffi::{
    NGX_LOG_DEBUG_HTTP, NGX_LOG_ERR, ngx_cycle, ngx_event_t, ngx_log_t, ngx_msec_t, ngx_uint_t,
};
use ngx::log::{LOG_BUFFER_SIZE, log_error, write_fmt};
use rate_limit_core::text::log::Grouped;
use rate_limit_core::throttle::{PERIOD, Throttle};

use crate::clock::turn_start_ms;
use crate::nginx::event::Timer;

#[cfg(ngx_feature = "ssl")]
pub(crate) mod capture;

/// A log of NGINX, which is valid for `'a`. NGINX may change it: nothing refers into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Log<'a> {
    log: NonNull<ngx_log_t>,
    lifetime: PhantomData<&'a ngx_log_t>,
}

/// Logs to a [`Log`] at a level: `log!(NGX_LOG_ERR, log, "…", …)`.
macro_rules! log {
    ($level:expr, $log:expr, $($message:tt)+) => {{
        let log: $crate::log::Log<'_> = $log;
        let level = $level as ngx::ffi::ngx_uint_t;
        if log.has_level(level) {
            log.write(level, format_args!($($message)+));
        }
    }};
}

/// Logs to a [`Log`] for debugging: `debug!(log, "…", …)`. Nothing is compiled where NGINX is built without
/// `--with-debug`.
macro_rules! debug {
    ($log:expr, $($message:tt)+) => {{
        let log: $crate::log::Log<'_> = $log;
        if log.is_debugged() {
            let level = ngx::ffi::NGX_LOG_DEBUG as ngx::ffi::ngx_uint_t;
            let message = format_args!($($message)+);
            log.write(level, format_args!("rate_limit_redis: {message}"));
        }
    }};
}

pub(crate) use {debug, log};

impl<'a> Log<'a> {
    /// A log that NGINX has made.
    ///
    /// # Safety
    /// It must be valid for `'a`, and so must those that follow it.
    pub(crate) unsafe fn new(log: *mut ngx_log_t) -> Self {
        // SAFETY: what is valid is not null.
        Self { log: unsafe { NonNull::new_unchecked(log) }, lifetime: PhantomData }
    }

    /// The log for functions of NGINX. It is valid for `'a`.
    pub(crate) fn as_ptr(self) -> *mut ngx_log_t {
        self.log.as_ptr()
    }

    fn level(self) -> ngx_uint_t {
        // SAFETY: by `new`, it is valid for `'a`.
        unsafe { (*self.as_ptr()).log_level }
    }

    /// Whether it is written at `level`.
    pub(crate) fn has_level(self, level: ngx_uint_t) -> bool {
        level <= self.level()
    }

    /// Whether it is written for debugging HTTP.
    pub(crate) fn is_debugged(self) -> bool {
        ngx::log::DEBUG && self.level() & NGX_LOG_DEBUG_HTTP as ngx_uint_t != 0
    }

    /// Writes one line.
    #[cold]
    pub(crate) fn write(self, level: ngx_uint_t, message: fmt::Arguments<'_>) {
        let mut buffer = [const { MaybeUninit::uninit() }; LOG_BUFFER_SIZE];
        let text = write_fmt(&mut buffer, message);
        // SAFETY: by `new`, it is valid for `'a`.
        unsafe { log_error(level, self.as_ptr(), 0, text) };
    }
}

/// The log of the cycle. A worker has the same cycle as long as it lives.
pub(crate) fn cycle_log() -> Log<'static> {
    // SAFETY: a process that runs modules has a cycle, and a cycle has a log. Only a worker keeps it.
    unsafe { Log::new((*ngx_cycle).log) }
}

/// How many lines about unusable values a worker writes in a second.
const UNUSABLE_RATE: u64 = 100;

/// A kind of log line about a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decided {
    /// The name of the limit.
    pub(crate) limit: &'static str,
    /// The status of the requests.
    pub(crate) what: &'static str,
    /// The level of the lines.
    pub(crate) level: ngx_uint_t,
    /// The log of the location.
    pub(crate) log: Log<'static>,
}

thread_local! {
    static UNUSABLE: RefCell<Throttle<()>> = const { RefCell::new(Throttle::new()) };
    static DECIDED: RefCell<Throttle<Decided>> = const { RefCell::new(Throttle::new()) };
    /// Set until what was held back is logged.
    static REPORT: Timer = Timer::background();
}

/// Logs that a variable has an unusable value. A worker writes only a few such lines a second, and the number
/// of the others.
pub(crate) fn unusable(log: Log<'_>, error: &dyn Display, limit: &str) {
    if UNUSABLE.with_borrow_mut(|it| it.admits(turn_start_ms(), UNUSABLE_RATE, ())) {
        log!(NGX_LOG_ERR, log, "{error}, limit \"{limit}\"");
    } else {
        report_later();
    }
}

/// Whether one more line about a decision may be written, if a worker may write `rate` of them in a
/// second. A line that may not is counted, and the number is logged within a second.
pub(crate) fn admits(rate: u64, decided: Decided) -> bool {
    let admits = DECIDED.with_borrow_mut(|it| it.admits(turn_start_ms(), rate, decided));
    if !admits {
        report_later();
    }
    admits
}

fn report_later() {
    REPORT.with(|timer| {
        if !timer.is_set() {
            // SAFETY: the timer lives as long as the thread, which is the worker's only one, and NGINX
            // takes the cycle's log as that of a timer.
            unsafe {
                timer.start(PERIOD as ngx_msec_t, Some(report), ptr::null::<()>(), cycle_log());
            }
        }
    });
}

unsafe extern "C" fn report(_event: *mut ngx_event_t) {
    flush();
}

/// Logs how many lines were held back. It must be called before the configuration that they refer
/// to is freed.
pub(crate) fn flush() {
    REPORT.with(Timer::stop);
    for ((), number) in UNUSABLE.with_borrow_mut(Throttle::take_held_back) {
        log!(
            NGX_LOG_ERR,
            cycle_log(),
            "rate_limit_redis: {} more unusable values in the last second",
            Grouped(number)
        );
    }
    for (decided, number) in DECIDED.with_borrow_mut(Throttle::take_held_back) {
        let Decided { limit, what, level, log } = decided;
        log!(level, log, "{} more {what} by limit \"{limit}\"", Grouped(number));
    }
}
