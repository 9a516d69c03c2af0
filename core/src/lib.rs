//! Rate limiting, without NGINX.
//!
//! The algorithms and their Redis scripts, the Redis client as a state machine, and the text that
//! clients see. Values go in, values come out, and time is an argument, in microseconds: nothing in
//! this crate reads a clock, opens a socket or refers to NGINX. The module crate around it does.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod admin;
pub mod algorithm;
pub mod charge;
pub mod client;
pub mod conf;
pub mod decision;
pub mod deny_cache;
pub mod entry;
pub mod key;
pub mod lease;
pub mod limit;
pub mod local;
pub mod lock;
pub mod manage;
pub mod metrics;
pub mod outage;
pub mod overrides;
pub mod rate;
pub mod redis;
pub mod request;
pub mod table;
pub mod text;
pub mod throttle;
pub mod top;
mod transaction;
pub mod trouble;
mod window;
mod word;
