//! The scripts that run in Redis against their references in Rust: the same random histories,
//! decision by decision.
//!
//! `RATE_LIMIT_SEED` repeats a run that failed; `RATE_LIMIT_STEPS` sets how long one is.

mod exchange;
mod lab;
mod model;
mod traffic;

mod agreement;
mod log;
mod overrides;
mod real_time;
mod stored;
mod streams;
