//! The parts of the Redis protocol that a limiter needs, without a socket.
//!
//! Commands that run scripts are encoded here, without an allocation. Replies are framed and
//! bounded here, and those of scripts and the maps of clusters are read in place. The `redis` crate reads
//! URLs, and encodes and parses everything else.

pub mod answer;
pub mod cluster;
pub mod endpoint;
mod raw;
pub mod refusal;
pub mod reply;
pub mod script;
pub mod sentinel;

pub use raw::RawValue;
