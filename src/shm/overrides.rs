//! The quotas that clients have of their own, as far as this machine knows them: see [`OverrideTable`].

use rate_limit_core::overrides::Override;
use rate_limit_core::overrides::table::OverrideTable;
use rate_limit_core::request::{Evaluated, OverrideCache};

use super::Shared;
use crate::conf::LimitConf;

impl OverrideCache<LimitConf> for Shared {
    fn note_override(&self, limit: &Evaluated<'_, LimitConf>, own: Option<Override>) {
        OverrideTable::new(self.overrides).set(limit.charge.client(), own);
    }
}

impl Shared {
    /// Takes note of the override of the client of this key and of the limit of this fingerprint.
    pub(crate) fn set_override(&self, limit: u64, key: &[u8], own: Option<Override>) {
        OverrideTable::new(self.overrides).set(self.client_digest(limit, key), own);
    }

    /// The override of the client of this key and of the limit of this fingerprint, as far as it is known.
    pub(crate) fn known_override(&self, limit: u64, key: &[u8]) -> Option<Override> {
        OverrideTable::new(self.overrides).get(self.client_digest(limit, key))
    }
}
