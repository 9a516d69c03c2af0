//! The deciders of this machine, in the shared memory: the [deny cache](DenyTable), the [leases](LeaseTable), the local table, and
//! the [changes to clients](ManagedTable), as far as this machine knows them; and its counters of requests.

use std::sync::atomic::Ordering;

use ngx::ffi::ngx_random;
use rate_limit_core::decision::{Source, Status, Verdict};
use rate_limit_core::deny_cache::{Denial, DenyTable};
use rate_limit_core::lease::Holding;
use rate_limit_core::lease::table::{LeaseTable, Outcome, Renewed, Taken};
use rate_limit_core::limit::Quota;
use rate_limit_core::local;
use rate_limit_core::manage::table::{ManagedClient, ManagedTable};
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::metrics::{LeaseUnits, SettlementResult};
use rate_limit_core::overrides::Override;
use rate_limit_core::request::{Evaluated, Machine};
use rate_limit_core::table::Table;

use super::Shared;
use super::worker::{may_be_living, process_id};
use crate::clock::monotonic_micros;
use crate::conf::LimitConf;
use crate::machine::Submission;

impl Machine for Shared {
    type Limit = LimitConf;
    type Submission = Submission;

    fn now(&self) -> u64 {
        monotonic_micros()
    }

    fn random(&self) -> u32 {
        // NGINX's random numbers have 31 bits.
        (ngx_random() as u32) << 1
    }

    // The deny cache.

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

    #[inline(never)]
    fn end_denials_of_others(&self, limit: &Evaluated<'_, LimitConf>, now: u64) {
        if self.may_be_denied(now) {
            self.denials().end_others(limit.charge.client(), limit.charge.quota.fingerprint());
        }
    }

    fn end_denials_of(&self, limit: &Evaluated<'_, LimitConf>) {
        if self.may_be_denied(monotonic_micros()) {
            self.end_denials(limit.charge.client());
        }
    }

    // The leases.

    fn spend(
        &self,
        limits: &[Evaluated<'_, LimitConf>],
        now: u64,
        act: &mut impl FnMut(usize, Verdict),
    ) -> bool {
        let charges = limits.iter().map(|limit| &limit.charge);
        self.leases().spend(charges, now, &mut |index, verdict| {
            act(index, verdict);
            if let Some(limit) = limits.get(index) {
                let record = limit.line.record(self);
                record.count_units(LeaseUnits::Used, limit.charge.cost);
            }
        })
    }

    fn holding(&self, limit: &Evaluated<'_, LimitConf>) -> Option<Holding> {
        self.leases().holding(limit.charge.digest.number())
    }

    fn awaits_units(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> bool {
        self.leases().awaits_units(limit.charge.digest.number(), now)
    }

    fn take_lease(&self, limit: &Evaluated<'_, LimitConf>, now: u64, until: u64) -> Taken {
        self.leases().take(&limit.charge, now, until)
    }

    fn renew_lease(&self, limit: &Evaluated<'_, LimitConf>, taken: Taken, outcome: &Outcome) {
        let record = limit.line.record(self);
        // A limit without a number is of this worker alone.
        let number = self.number(record).map_or(u64::MAX, |number| number as u64);
        let Renewed { granted, returned, lapsed, evicted } =
            self.leases().renew(&limit.charge, number, taken, outcome, monotonic_micros());
        record.count_granted(granted);
        record.count_units(LeaseUnits::Returned, returned);
        record.count_units(LeaseUnits::Lapsed, lapsed);
        if let Some(evicted) = evicted
            && let Some(record) = self.limits.get(evicted.limit as usize)
        {
            record.count_units(LeaseUnits::Lapsed, evicted.units);
        }
    }

    // The states of clients that are decided locally.

    fn has_charges(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> bool {
        self.may_have_charges(now) && limit.line.record(self).may_have_charges(now)
    }

    /// The time is that of the monotonic clock: a wall clock that was far ahead must not prolong it.
    fn note_charges(&self, limit: &Evaluated<'_, LimitConf>, reset: u64) {
        if reset > 0 {
            let whole = monotonic_micros().saturating_add(reset);
            limit.line.record(self).charge_until(whole);
            self.header.whole.fetch_max(whole, Ordering::Relaxed);
        }
    }

    fn with_local_table<T>(&self, act: impl FnOnce(&mut Table<'_>, u64) -> T) -> T {
        self.with_table(act)
    }

    fn count_no_room(&self) {
        self.header.no_room.fetch_add(1, Ordering::Relaxed);
    }

    // The changes to clients.

    fn note_override(
        &self,
        limit: &Evaluated<'_, LimitConf>,
        own: Option<Override>,
        redis_now: u64,
    ) {
        self.set_override(limit.charge.client(), own, redis_now);
    }

    #[inline]
    fn note_block(&self, limit: &Evaluated<'_, LimitConf>, span: u64) {
        if span > 0 || self.may_be_blocked() {
            self.set_block(limit.charge.client(), span);
        }
    }

    fn blocked_for(&self, limit: &Evaluated<'_, LimitConf>) -> u64 {
        if !self.may_be_blocked() {
            return 0;
        }
        let ManagedClient { blocked_until, .. } = self.managed().get(limit.charge.client());
        blocked_until.saturating_sub(monotonic_micros())
    }

    // The counters.

    fn count_wait(&self, wait: u64) {
        self.header.waits.add(wait);
    }

    fn count(&self, limit: &LimitConf, source: Option<Source>, status: Option<Status>) {
        let record = limit.record(self);
        if let Some(source) = source {
            record.count_decision(source);
        }
        if let Some(status) = status {
            record.count_request(status);
        }
    }

    // The reservations.

    fn add_reservation(&self, limit: &LimitConf) {
        limit.reservations(self).add();
    }

    fn end_reservation(&self, limit: &LimitConf, result: Option<SettlementResult>) {
        let reservations = limit.reservations(self);
        match result {
            Some(result) => reservations.end(result),
            None => reservations.stand(),
        }
    }

    fn settle(
        &self,
        limit: &Evaluated<'_, LimitConf>,
        submission: Submission,
        since: u64,
        change: i64,
    ) {
        let reservations = limit.line.reservations(self);
        submission.driver.settle(&limit.of_line(), since, change, reservations);
    }
}

/// The deny cache and the leases.
impl Shared {
    /// Ends what is denied to the client of this digest.
    pub(crate) fn end_denials(&self, client: u128) {
        self.denials().end(client);
    }

    fn denials(&self) -> DenyTable<'static> {
        DenyTable::new(self.deny_cache)
    }

    /// Whether there may be an entry that has not expired at `now`.
    fn may_be_denied(&self, now: u64) -> bool {
        now < self.header.denied_until.load(Ordering::Relaxed)
    }

    fn leases(&self) -> LeaseTable<'static> {
        LeaseTable::new(self.leases, process_id(), may_be_living)
    }
}

/// Local decisions.
impl Shared {
    /// Whether any local charge of any limit may not be regained yet.
    fn may_have_charges(&self, now: u64) -> bool {
        now < self.header.whole.load(Ordering::Relaxed)
    }
}

/// Changes to clients.
impl Shared {
    /// Changes what this machine keeps of the client of this digest, as `change` has changed it in Redis: `state` is what it
    /// has there. Returns what it has on this machine.
    pub(crate) fn change_client(
        &self,
        client: u128,
        quota: &Quota,
        change: &Change,
        state: ClientState,
    ) -> ClientState {
        // An override counts on this machine as one without an end.
        let own = self.known_override(client).map(|own| Override { ends: None, ..own });
        self.set_override(client, state.own, state.now);
        if state.blocked_for > 0 || self.may_be_blocked() {
            self.set_block(client, state.blocked_for);
        }
        if !self.may_have_charges(monotonic_micros()) {
            return state;
        }
        self.with_table(|table, now| local::change(table, client, now, change, (quota, own), state))
    }

    /// The override of the client of this digest, as far as it is known and has not ended.
    pub(crate) fn known_override(&self, client: u128) -> Option<Override> {
        self.managed().get(client).own.filter(|own| !own.is_over(monotonic_micros()))
    }

    /// Takes note of an override by a reply of this time of Redis's clock. On the monotonic clock: the wall clock of this
    /// machine may be ahead or behind.
    fn set_override(&self, client: u128, own: Option<Override>, redis_now: u64) {
        let now = monotonic_micros();
        self.managed().set_override(client, own.map(|own| own.by_clock(redis_now, now)), now);
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
