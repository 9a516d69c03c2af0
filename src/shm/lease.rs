//! The leases of this machine, in the shared memory: see [`LeaseTable`].

use ngx::ffi::ngx_pid;
use rate_limit_core::decision::Verdict;
use rate_limit_core::lease::table::{LeaseTable, Outcome, Renewed, Taken};
use rate_limit_core::metrics::LeaseUnits;
use rate_limit_core::request::{Evaluated, MachineLeases};

use super::Shared;
use super::process::may_be_living;
use crate::clock::monotonic_micros;
use crate::conf::LimitConf;

impl MachineLeases<LimitConf> for Shared {
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
                let record = limit.limit.record(self);
                record.count_units(LeaseUnits::Used, limit.charge.cost);
            }
        })
    }

    fn has_units(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> bool {
        self.leases()
            .holding(limit.charge.digest.number())
            .is_some_and(|holding| holding.left(now) > 0)
    }

    fn awaits_units(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> bool {
        self.leases().awaits_units(limit.charge.digest.number(), now)
    }

    fn has_lease(&self, limit: &Evaluated<'_, LimitConf>, now: u64) -> bool {
        self.leases()
            .holding(limit.charge.digest.number())
            .is_some_and(|holding| holding.is_living(now))
    }

    fn take(&self, limit: &Evaluated<'_, LimitConf>, now: u64, until: u64) -> Taken {
        self.leases().take(&limit.charge, now, until)
    }

    fn renew(&self, limit: &Evaluated<'_, LimitConf>, taken: Taken, outcome: &Outcome) {
        let record = limit.limit.record(self);
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
}

impl Shared {
    fn leases(&self) -> LeaseTable<'static> {
        // SAFETY: NGINX sets it before it runs any hook of a process.
        let process = unsafe { ngx_pid };
        LeaseTable::new(self.leases, u32::try_from(process).unwrap_or(u32::MAX), may_be_living)
    }
}
