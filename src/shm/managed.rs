//! The changes to clients, as far as this machine knows them: see [`ManagedTable`].

use std::sync::atomic::Ordering;

use rate_limit_core::limit::Quota;
use rate_limit_core::local;
use rate_limit_core::manage::table::{ManagedClient, ManagedTable};
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::overrides::Override;
use rate_limit_core::request::{Evaluated, LocalTable as _, ManagedClients};

use super::Shared;
use crate::clock::{monotonic_micros, unix_micros};
use crate::conf::LimitConf;

impl ManagedClients<LimitConf> for Shared {
    fn note_override(&self, limit: &Evaluated<'_, LimitConf>, own: Option<Override>) {
        self.managed().set_override(limit.charge.client(), own);
    }

    #[inline]
    fn note_block(&self, limit: &Evaluated<'_, LimitConf>, span: u64) {
        if span > 0 || self.may_be_blocked() {
            self.set_block(limit.charge.client(), span);
        }
    }
}

impl Shared {
    /// Changes what this machine keeps of the client of this key and of the limit of this fingerprint, as `change` has
    /// changed it in Redis: `state` is what it has there. Returns what it has on this machine.
    pub(crate) fn change_client(
        &self,
        (limit, key): (u64, &[u8]),
        quota: &Quota,
        change: &Change,
        state: ClientState,
    ) -> ClientState {
        let client = self.client_digest(limit, key);
        let own = self.managed().get(client).own;
        self.managed().set_override(client, state.own);
        if state.blocked_for > 0 || self.may_be_blocked() {
            self.set_block(client, state.blocked_for);
        }
        if !self.has_charges() {
            return state;
        }
        let now = unix_micros();
        self.with_table(|table| local::change(table, client, now, change, (quota, own), state))
    }

    /// The override of the client of this key and of the limit of this fingerprint, as far as it is known.
    pub(crate) fn known_override(&self, limit: u64, key: &[u8]) -> Option<Override> {
        self.managed().get(self.client_digest(limit, key)).own
    }

    /// For how long a client is still blocked, as far as it is known, in µs; 0: it is not.
    pub(super) fn blocked_for(&self, client: u128) -> u64 {
        if !self.may_be_blocked() {
            return 0;
        }
        let ManagedClient { blocked_until, .. } = self.managed().get(client);
        blocked_until.saturating_sub(monotonic_micros())
    }

    fn set_block(&self, client: u128, span: u64) {
        let until = if span > 0 { monotonic_micros().saturating_add(span) } else { 0 };
        self.header.blocked_until.fetch_max(until, Ordering::Relaxed);
        self.managed().set_block(client, until);
    }

    /// Whether any client may be blocked.
    fn may_be_blocked(&self) -> bool {
        monotonic_micros() < self.header.blocked_until.load(Ordering::Relaxed)
    }

    fn managed(&self) -> ManagedTable<'static> {
        ManagedTable::new(self.managed)
    }
}
