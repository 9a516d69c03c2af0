//! Logging, with the message formatted only if its level is logged.

#[cfg(ngx_feature = "ssl")]
pub(crate) mod capture;
mod throttled;

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

pub(crate) use throttled::{Decided, admits, flush, unusable};
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
