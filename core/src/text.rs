//! What a client, or an administrator, is told.

pub mod body;
pub mod fields;
pub mod log;
pub mod metrics;
pub mod number;
