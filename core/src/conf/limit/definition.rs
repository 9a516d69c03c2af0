//! The definition that the name of a limit stands for: the part that all lines of the name share.

use std::cell::Cell;

use crate::conf::Policy;
use crate::limit::{Algorithm, Quota, QuotaError};
use crate::rate::{MILLISECOND, Rate};

/// The definition of a limit, without the store. What is in cells is complete when all of the configuration is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition<'a> {
    /// The name that identifies the limit.
    pub name: &'a str,
    /// The algorithm that counts.
    pub algorithm: Algorithm,
    /// `rate=`, as it is written.
    pub rate: &'a str,
    /// `capacity=` or `burst=`, as it is written.
    pub burst: Option<&'a str>,
    /// How long a client that exceeds the limit is blocked, in µs; 0: not at all.
    pub block: u64,
    /// Whether a client may have a rate and capacity of its own.
    pub has_override: bool,
    /// All of this as it is written. Lines that share a name must agree in it.
    pub written: String,
    /// Whether a line has `settle`.
    pub is_settled: Cell<bool>,
    /// Whether charges may be given back: by a settlement, or because another limit, in another slot of a
    /// cluster, rejects the request.
    pub is_refundable: Cell<bool>,
    /// Whether rejections by any line may come from the deny cache.
    pub is_cached: Cell<bool>,
    /// How long leases last at most in the locations of its lines, in ms; 0: there are none.
    pub lease: Cell<u64>,
}

impl Definition<'_> {
    /// Takes note of a location with this policy that has a line of the limit.
    pub fn note_policy(&self, policy: &Policy) {
        self.is_cached.set(self.is_cached.get() || policy.deny_cache);
        self.lease.set(self.lease.get().max(policy.lease));
    }

    /// Whether clients may have leases. Not where a rejection blocks a client, nor where a settlement may leave it in
    /// debt: that is to hold for all machines at once.
    pub fn has_leases(&self) -> bool {
        self.algorithm.has_leases() && self.block == 0 && !self.is_settled.get()
    }

    /// How long leases of its clients last at most, in µs; 0: its lines have none.
    pub fn lease_span(&self) -> u64 {
        if self.has_leases() { self.lease.get().saturating_mul(MILLISECOND) } else { 0 }
    }

    /// The quota of a client at this rate, with this capacity or burst. Where it `may_owe`, debts can be counted, too.
    pub(crate) fn quota(
        &self,
        rate: Rate,
        burst: Option<u64>,
        may_owe: bool,
    ) -> Result<Quota, QuotaError> {
        let limit = self.algorithm.burst_parameter().limit(rate, burst);
        let quota = Quota::new(self.algorithm, rate, limit)?;
        // Units beyond what an override, or the line after it, allows are owed.
        if may_owe || self.has_override {
            quota.check_settle()?;
        }
        let quota = quota.with_block(self.block);
        Ok(if self.has_override { quota.with_override() } else { quota })
    }

    /// A quota of the limit: all lines keep what those with `settle` need.
    pub fn corrected(&self, quota: Quota) -> Quota {
        if self.is_settled.get() { quota.with_settle() } else { quota }
    }
}
