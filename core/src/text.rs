//! The text that clients and administrators read: header fields, bodies, metrics, log lines.

pub mod body;
pub mod fields;
pub mod log;
pub mod metrics;
pub mod number;
