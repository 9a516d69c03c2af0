//! Logging, with the message formatted only if its level is logged, and with a bound on lines of one kind.

use std::cell::RefCell;
use std::fmt::Display;

use ngx::ffi::{NGX_LOG_ERR, ngx_event_t, ngx_log_t, ngx_msec_t, ngx_uint_t};
use rate_limit_core::text::log::Grouped;
use rate_limit_core::throttle::{PERIOD, Throttle};

use crate::clock::turn_start_ms;
use crate::nginx::event::Timer;

#[cfg(ngx_feature = "ssl")]
pub(crate) mod capture;

/// Logs to a `*mut ngx_log_t` at a level: `log!(NGX_LOG_ERR, log, "…", …)`.
macro_rules! log {
    ($level:expr, $log:expr, $($message:tt)+) => {{
        let log: *mut ngx::ffi::ngx_log_t = $log;
        let level = $level as ngx::ffi::ngx_uint_t;
        if $crate::log::is_logged(level, log) {
            $crate::log::write(level, log, format_args!($($message)+));
        }
    }};
}

/// Logs to a `*mut ngx_log_t` for debugging: `debug!(log, "…", …)`. Nothing is compiled where NGINX is
/// built without `--with-debug`.
macro_rules! debug {
    ($log:expr, $($message:tt)+) => {{
        let log: *mut ngx::ffi::ngx_log_t = $log;
        if $crate::log::is_debugged(log) {
            let level = ngx::ffi::NGX_LOG_DEBUG as ngx::ffi::ngx_uint_t;
            let message = format_args!($($message)+);
            $crate::log::write(level, log, format_args!("rate_limit_redis: {message}"));
        }
    }};
}

pub(crate) use {debug, log};

/// The log of the cycle.
pub(crate) fn cycle_log() -> *mut ngx::ffi::ngx_log_t {
    // SAFETY: a process that runs modules has a cycle, and a cycle has a log.
    unsafe { (*ngx::ffi::ngx_cycle).log }
}

/// Whether `log`, which must be valid, is written for debugging HTTP.
pub(crate) fn is_debugged(log: *mut ngx::ffi::ngx_log_t) -> bool {
    // SAFETY: see `is_logged`.
    ngx::log::DEBUG && unsafe { (*log).log_level } & ngx::ffi::NGX_LOG_DEBUG_HTTP as usize != 0
}

/// Whether `log`, which must be valid, is written at `level`.
pub(crate) fn is_logged(level: ngx::ffi::ngx_uint_t, log: *mut ngx::ffi::ngx_log_t) -> bool {
    // SAFETY: every log that this module is given, a cycle's or a connection's, lives as long as
    // what it belongs to.
    level <= unsafe { (*log).log_level }
}

/// Writes one line; `log` must be valid.
#[cold]
pub(crate) fn write(
    level: ngx::ffi::ngx_uint_t,
    log: *mut ngx::ffi::ngx_log_t,
    message: std::fmt::Arguments<'_>,
) {
    let mut buffer = [const { std::mem::MaybeUninit::uninit() }; ngx::log::LOG_BUFFER_SIZE];
    let text = ngx::log::write_fmt(&mut buffer, message);
    // SAFETY: as above.
    unsafe { ngx::log::log_error(level, log, 0, text) };
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
    pub(crate) log: *mut ngx_log_t,
}

thread_local! {
    static UNUSABLE: RefCell<Throttle<()>> = const { RefCell::new(Throttle::new()) };
    static DECIDED: RefCell<Throttle<Decided>> = const { RefCell::new(Throttle::new()) };
    /// Set until what was held back is logged.
    static REPORT: Timer = Timer::background();
}

/// Logs that a variable has an unusable value; `log` must be valid. A worker writes only a few such
/// lines a second, and the number of the others.
pub(crate) fn unusable(log: *mut ngx_log_t, error: &dyn Display, limit: &str) {
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
                let nobody = std::ptr::null::<()>();
                timer.start(PERIOD as ngx_msec_t, Some(report), nobody, cycle_log());
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
            "rate_limit_redis: {number} more unusable values in the last second"
        );
    }
    for (decided, number) in DECIDED.with_borrow_mut(Throttle::take_held_back) {
        let Decided { limit, what, level, log } = decided;
        log!(level, log, "{} more {what} by limit \"{limit}\"", Grouped(number));
    }
}
