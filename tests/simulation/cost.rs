//! How long the work of a server takes, in ns of its core.
//!
//! Measured with Redis 7.0 on the machine of docs/performance: what a connection costs over loopback, and
//! what commands cost that are pipelined.

const MICROSECOND: u64 = 1_000;

/// A connection is accepted, read for the first time, and closed at last.
pub const ACCEPT: u64 = 80 * MICROSECOND;

/// One is accepted beyond `maxclients`, and closed.
pub const REFUSE: u64 = 36 * MICROSECOND;

/// A TLS handshake with a key of RSA-2048.
pub const TLS: u64 = 1_500 * MICROSECOND;

/// A script decides one limit.
pub const SCRIPT: u64 = 5 * MICROSECOND;

/// Any other command.
pub const COMMAND: u64 = 2 * MICROSECOND;

/// The cost of a KB that is received, with the digest of a script in it.
const RECEIVED_KB: u64 = 2_700;

/// A script that is new to the server costs so much more: it is compiled.
const COMPILED_KB: u64 = 31 * MICROSECOND;

/// A map of a cluster costs so much beside its ranges.
const MAP: u64 = 50 * MICROSECOND;

const RANGE: u64 = 290;

pub fn received(bytes: usize) -> u64 {
    bytes as u64 * RECEIVED_KB / 1_024
}

pub fn compiled(bytes: usize) -> u64 {
    bytes as u64 * COMPILED_KB / 1_024
}

pub fn map(ranges: usize) -> u64 {
    MAP + ranges as u64 * RANGE
}
