//! Lines that clients can cause, as often as they like.

use std::cell::RefCell;

use ngx::ffi::{NGX_LOG_ERR, ngx_cycle, ngx_event_t, ngx_log_t, ngx_msec_t};
use rate_limit_core::throttle::{PERIOD, Throttle};

use super::log;
use crate::clock::turn_start_ms;
use crate::event::Timer;

thread_local! {
    static UNUSABLE: RefCell<Throttle> = const { RefCell::new(Throttle::new()) };
    /// Set until the number of suppressed lines is logged.
    static REPORT: Timer = Timer::background();
}

/// Logs that a variable has an unusable value; `log` must be valid. A worker writes only a few such
/// lines a second, and the number of the others.
pub(crate) fn unusable(log: *mut ngx_log_t, message: &str) {
    if UNUSABLE.with_borrow_mut(|throttle| throttle.admits(turn_start_ms())) {
        log!(NGX_LOG_ERR, log, "{message}");
        return;
    }
    REPORT.with(|timer| {
        if !timer.is_set() {
            // SAFETY: the timer lives as long as the thread, which is the worker's only one. So does
            // its log: that of the cycle.
            unsafe {
                timer.start(
                    PERIOD as ngx_msec_t,
                    Some(report),
                    std::ptr::null::<()>(),
                    (*ngx_cycle).log,
                );
            }
        }
    });
}

unsafe extern "C" fn report(_event: *mut ngx_event_t) {
    let number = UNUSABLE.with_borrow_mut(Throttle::take_held_back);
    // SAFETY: a worker has a cycle, and a cycle has a log.
    let log = unsafe { (*ngx_cycle).log };
    log!(NGX_LOG_ERR, log, "rate_limit_redis: {number} more unusable values in the last second");
}
