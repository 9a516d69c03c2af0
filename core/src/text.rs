//! The text that clients and administrators read: header fields, bodies, metrics, log lines.

pub mod admin;
pub mod body;
pub mod fields;
mod json;
pub mod log;
pub mod metrics;
pub mod number;
mod policy;

pub use policy::policy;
