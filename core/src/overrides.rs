//! Quotas of single clients.

use crate::rate::Rate;

/// A quota of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Its rate.
    pub rate: Rate,
    /// The most that it can spend at once.
    pub limit: u64,
    /// When it ends, in µs since the epoch by Redis's clock; `None`: when it is removed.
    pub ends: Option<u64>,
}
