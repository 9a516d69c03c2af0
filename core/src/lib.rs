//! Rate limiting, without NGINX.
//!
//! Everything here is values in, values out: the algorithms and their Redis scripts, the Redis
//! protocol as far as a limiter needs it, and the text that a client sees. Time is an argument,
//! in microseconds; nothing in this crate reads a clock, opens a socket or knows what a request
//! is. The module crate around it does all of that and nothing else.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod algorithm;
pub mod client;
pub mod client_key;
pub mod decision;
pub mod key;
pub mod lease;
pub mod limit;
pub mod local;
pub mod metrics;
pub mod rate;
pub mod redis;
pub mod table;
pub mod text;
pub mod throttle;
mod transaction;
mod window;
