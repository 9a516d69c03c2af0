//! What a client is told.

pub mod fields;
pub mod log;
