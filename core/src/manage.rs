//! What an administrator does to a client of a limit, and what the client has afterwards.

use std::num::NonZeroU64;

use crate::limit::Quota;
use crate::overrides::Override;
use crate::rate::Rate;

/// What is done to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: its state is read.
    Look,
    /// Its quota is whole again, and neither block nor debt is left.
    Reset,
    /// So many units are given back.
    GiveBack(u64),
    /// It is blocked for so many µs; 0 ends a block.
    Block(u64),
    /// It has a quota of its own.
    SetOverride {
        /// Its rate.
        rate: Rate,
        /// The most that it can spend at once.
        limit: u64,
        /// How long, in µs; `None`: until it is removed.
        lasts: Option<NonZeroU64>,
    },
    /// It has the quota of the limit again.
    RemoveOverride,
}

/// What a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// Redis's clock, in µs since the epoch.
    pub now: u64,
    /// The quota that applies.
    pub quota: Quota,
    /// The units that are left.
    pub remaining: u64,
    /// When the quota is whole again, in µs from now.
    pub reset: u64,
    /// When a request of cost 1 can pass, in µs from now.
    pub retry_after: u64,
    /// How long the client is blocked, in µs from now.
    pub blocked_for: u64,
    /// The units that it owes.
    pub debt: u64,
    /// The units that machines hold for it.
    pub leased: u64,
    /// When what machines hold has ended at the latest, in µs from now; 0: they hold nothing.
    pub leases_end: u64,
    /// Its override, if it has one.
    pub own: Option<Override>,
}
