//! The leases of this machine, in the shared memory: see [`Table`].

use std::{io, ptr};

use ngx::ffi::ngx_pid;
use rate_limit_core::lease::Granted;
use rate_limit_core::lease::table::{Changes, Limit, Outcome, Table, Taken};
use rate_limit_core::metrics::LeaseUnits;
use rate_limit_core::redis::script::Question;

use super::{LimitRecord, Shared};
use crate::clock::monotonic_micros;
use crate::evaluated::Evaluated;

impl Shared {
    /// Spends for a request, if each of its limits has a lease with enough units left: their verdicts
    /// are set then.
    pub(crate) fn spend_leases(&self, limits: &[Evaluated], now: u64) -> bool {
        let parts =
            limits.iter().map(|limit| (limit.digest(), &limit.question.quota, limit.question.cost));
        self.leases().spend(parts, now, &mut |index, verdict, charged_at| {
            if let Some(limit) = limits.get(index) {
                limit.verdict.set(Some(verdict));
                // What is set aside is charged in Redis already.
                limit.is_charged.set(true);
                limit.charged_at.set(charged_at);
                let record = limit.limit.record(self);
                record.count_units(LeaseUnits::Used, limit.question.cost);
            }
        })
    }

    /// Whether this machine has units of a limit left that Redis has set aside.
    pub(crate) fn has_units(&self, limit: &Evaluated, now: u64) -> bool {
        self.leases().holding(limit.digest()).is_some_and(|holding| holding.left(now) > 0)
    }

    /// Takes out the lease of a limit, which a command is to renew until then.
    pub(crate) fn take_lease(&self, limit: &Evaluated, now: u64, until: u64) -> Taken {
        self.leases().take(limit.digest(), now, until)
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
            granted,
            span,
            submitted,
        };
        let digest = limit.digest();
        let Question { quota, cost, .. } = limit.question;
        let part = Limit { number: self.number(record), digest, quota, cost };
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

    /// The number of a limit in the table. A record outside of the memory is of this worker alone, and
    /// has none.
    fn number(&self, record: &LimitRecord) -> u64 {
        let number = self.limits.iter().position(|other| ptr::eq(other, record));
        number.map_or(u64::MAX, |number| number as u64)
    }

    fn leases(&self) -> Table<'static> {
        // SAFETY: NGINX sets it before it runs any hook of a process.
        let process = unsafe { ngx_pid };
        Table::new(self.leases, u32::try_from(process).unwrap_or(u32::MAX), may_be_living)
    }
}

/// Whether there may be such a process; it may be one of another user.
fn may_be_living(process: u32) -> bool {
    let Ok(process) = i32::try_from(process) else { return true };
    // SAFETY: no signal is sent.
    let result = unsafe { libc::kill(process, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
