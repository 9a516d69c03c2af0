//! The leases of this machine, in the shared memory: see [`LeaseTable`].

use ngx::ffi::ngx_pid;
use rate_limit_core::lease::Granted;
use rate_limit_core::lease::table::{Changes, LeaseCharge, LeaseTable, Outcome, Taken};
use rate_limit_core::metrics::LeaseUnits;
use rate_limit_core::redis::script::Check;

use super::Shared;
use super::process::may_be_living;
use crate::clock::monotonic_micros;
use crate::evaluated::Evaluated;

impl Shared {
    /// Spends for a request, if each of its limits has a lease with enough units left: their verdicts
    /// are set then.
    pub(crate) fn spend_leases(&self, limits: &[Evaluated], now: u64) -> bool {
        let parts =
            limits.iter().map(|limit| (limit.digest(), limit.check.quota, limit.check.cost));
        self.leases().spend(parts, now, &mut |index, verdict| {
            if let Some(limit) = limits.get(index) {
                limit.verdict.set(Some(verdict));
                let record = limit.limit.record(self);
                record.count_units(LeaseUnits::Used, limit.check.cost);
            }
        })
    }

    /// Whether this machine has units of a limit left that Redis has set aside.
    pub(crate) fn has_units(&self, limit: &Evaluated, now: u64) -> bool {
        self.leases().holding(limit.digest()).is_some_and(|holding| holding.left(now) > 0)
    }

    /// Whether a command in flight gives units of a limit back, or may bring some.
    pub(crate) fn awaits_units(&self, limit: &Evaluated, now: u64) -> bool {
        self.leases().awaits_units(limit.digest(), now)
    }

    /// Whether this machine has a lease of a limit, be it spent or not.
    pub(crate) fn has_lease(&self, limit: &Evaluated, now: u64) -> bool {
        self.leases().holding(limit.digest()).is_some_and(|holding| holding.is_living(now))
    }

    /// Takes out the lease of a limit, which a command is to renew until then.
    pub(crate) fn take_lease(&self, limit: &Evaluated, now: u64, until: u64) -> Taken {
        self.leases().take(limit.digest(), limit.check.cost, now, until)
    }

    /// Takes note of what came of the command that was to renew the lease of a limit, which was `taken`
    /// out. It was submitted at `submitted`, and leases last `span` µs.
    pub(crate) fn renew_lease(
        &self,
        limit: &Evaluated,
        taken: Taken,
        granted: Granted,
        span: u64,
        submitted: u64,
    ) {
        let record = limit.limit.record(self);
        let outcome = Outcome {
            is_sent: limit.is_sent.get(),
            is_charged: limit.is_charged.get(),
            is_rejected: limit.is_violated(),
            granted,
            span,
            submitted,
        };
        let digest = limit.digest();
        let Check { quota, cost, .. } = limit.check;
        // A limit without a number is of this worker alone.
        let number = self.number(record).map_or(u64::MAX, |number| number as u64);
        let part = LeaseCharge { number, digest, quota: *quota, cost };
        let Changes { granted, returned, lapsed, evicted } =
            self.leases().renew(&part, taken, &outcome, monotonic_micros());
        record.count_granted(granted);
        record.count_units(LeaseUnits::Returned, returned);
        record.count_units(LeaseUnits::Lapsed, lapsed);
        if let Some(evicted) = evicted
            && let Some(record) = self.limits.get(evicted.limit as usize)
        {
            record.count_units(LeaseUnits::Lapsed, evicted.units);
        }
    }

    fn leases(&self) -> LeaseTable<'static> {
        // SAFETY: NGINX sets it before it runs any hook of a process.
        let process = unsafe { ngx_pid };
        LeaseTable::new(self.leases, u32::try_from(process).unwrap_or(u32::MAX), may_be_living)
    }
}
