//! The deny cache: until when clients cannot pass, so that they can be rejected without Redis. See [`DenyTable`].

use std::sync::atomic::Ordering;

use rate_limit_core::decision::Verdict;
use rate_limit_core::deny_cache::Denial;
use rate_limit_core::deny_cache::DenyTable;
use rate_limit_core::request::{DenyCache, Evaluated};

use super::Shared;
use crate::conf::LimitConf;

impl DenyCache<LimitConf> for Shared {
    fn denied(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> Option<Verdict> {
        if !self.may_be_denied(now) {
            return None;
        }
        self.denials().denied(limit.charge.client(), limit.charge.quota.fingerprint(), now)
    }

    fn deny(&self, limit: &Evaluated<'_, LimitConf>, denial: Denial) {
        if self.denials().deny(limit.charge.client(), denial) {
            self.header.denied_until.fetch_max(denial.until, Ordering::Relaxed);
        }
    }

    fn end_denials_of_others(&self, limit: &Evaluated<'_, LimitConf>, now: u64) {
        if self.may_be_denied(now) {
            self.denials().end_others(limit.charge.client(), limit.charge.quota.fingerprint());
        }
    }
}

impl Shared {
    /// Ends what is denied to the client of this key and of the limit of this fingerprint.
    pub(crate) fn end_denials(&self, limit: u64, key: &[u8]) {
        self.denials().end(self.client_digest(limit, key));
    }

    fn denials(&self) -> DenyTable<'static> {
        DenyTable::new(self.deny_cache)
    }

    /// Whether there may be an entry that has not expired at `now`.
    fn may_be_denied(&self, now: u64) -> bool {
        now < self.header.denied_until.load(Ordering::Relaxed)
    }
}
