//! The time. No other file reads it.
//!
//! NGINX reads the clocks once in a turn of the event loop and keeps what it has read, in ms: its
//! timers start from that, and it costs nothing. What has to be finer is read from the system.

use ngx::ffi::{ngx_current_msec, ngx_msec_t, ngx_time_update, ngx_timeofday};
use rate_limit_core::rate::MILLISECOND;

// With 32 bits NGINX's ms begin at 0 again after 49 days, and so would leases, blocks and delays that end at such a time.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("rate_limit_redis needs a 64-bit system");

/// µs of the monotonic clock, which all processes of a machine share.
pub(crate) fn monotonic_micros() -> u64 {
    micros(libc::CLOCK_MONOTONIC)
}

/// µs since the Unix epoch.
pub(crate) fn unix_micros() -> u64 {
    micros(libc::CLOCK_REALTIME)
}

/// When this turn of the event loop began, in µs of the monotonic clock, to the ms.
pub(crate) fn turn_start() -> u64 {
    turn_start_ms().saturating_mul(MILLISECOND)
}

/// When this turn of the event loop began, in ms of the monotonic clock.
pub(crate) fn turn_start_ms() -> u64 {
    // SAFETY: only NGINX writes it, in this thread.
    unsafe { ngx_current_msec as u64 }
}

/// The time to which a timer that is started now has to be set, so that it ends at `at`, in µs of the
/// monotonic clock: NGINX counts from the start of the turn.
pub(crate) fn time_until(at: u64) -> ngx_msec_t {
    at.div_ceil(MILLISECOND).saturating_sub(turn_start_ms()) as ngx_msec_t
}

/// ms since the Unix epoch, at the start of this turn of the event loop.
pub(crate) fn unix_ms() -> u64 {
    let now = ngx_timeofday();
    now.sec.unsigned_abs().saturating_mul(1_000).saturating_add(now.msec as u64)
}

/// Has NGINX read the clocks now.
pub(crate) fn update() {
    // SAFETY: always callable in the one thread of a process.
    unsafe { ngx_time_update() };
}

fn micros(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid. Reading a clock that every system has does not fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    // Neither is below zero.
    (time.tv_sec as u64).saturating_mul(1_000_000).saturating_add(time.tv_nsec as u64 / 1_000)
}
