//! Log lines that clients can cause, bounded.

use std::cell::RefCell;
use std::fmt::Display;

use ngx::ffi::{NGX_LOG_ERR, ngx_event_t, ngx_log_t, ngx_msec_t, ngx_uint_t};
use rate_limit_core::text::log::Grouped;
use rate_limit_core::throttle::{PERIOD, Throttle};

use super::{cycle_log, log};
use crate::clock::turn_start_ms;
use crate::nginx::event::Timer;

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
