//! What a limiter needs of the Redis protocol, without a socket.
//!
//! The commands that ask scripts are packed here, without an allocation; replies are
//! framed and bounded here, and what a script answers is read in place. The `redis` crate reads URLs,
//! packs the rest and parses the rest.

pub mod answer;
pub mod cluster;
pub mod command;
pub mod endpoint;
pub mod reply;
pub mod script;
pub mod sentinel;

/// A value of any kind that a server has sent.
pub use redis::Value;
