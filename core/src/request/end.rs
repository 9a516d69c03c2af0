//! The end of a request: its reservations stand, or are settled by what it has really cost.

use super::{ConfiguredLimit as _, Evaluated, LimitedRequest, Machine, Submission as _, local};
use crate::metrics::SettlementResult;

impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// The limits whose charges are to be settled when the request has ended: those that have allowed it,
    /// if it passes.
    pub(super) fn reservations(
        &self,
    ) -> impl Iterator<Item = &'a Evaluated<'a, M::Limit>> + use<'a, M> {
        let limits = if self.is_rejected() { &[] } else { self.decided() };
        let is_charged = |limit: &Evaluated<'_, M::Limit>| limit.allows() || limit.is_charged();
        limits.iter().filter(move |limit| limit.line.settles() && is_charged(limit))
    }

    /// Whether any limit has `settle`: without a decision its charge must be given back.
    pub(super) fn has_reservations(&self) -> bool {
        self.limits.iter().any(|limit| limit.line.settles())
    }

    /// Counts the reservations: for this machine, and, as far as Redis has charged them, at the client that is to settle them.
    pub(super) fn reserve(&self, machine: &M, submission: Option<M::Submission>) {
        for limit in self.reservations() {
            machine.add_reservation(limit.line);
            if let Some(submission) = submission.filter(|_| limit.is_charged()) {
                submission.reserve();
                self.reserved.set(Some(submission));
            }
        }
    }

    /// The request has ended: what it was charged is settled, if that was not done before. `real_cost` returns what it has
    /// really cost by a limit, in units; `None` if its reservation stands.
    pub fn end(&self, machine: &M, real_cost: impl Fn(&Evaluated<'a, M::Limit>) -> Option<u64>) {
        if self.has_ended.replace(true) {
            return;
        }
        let charges = self.local.take();
        for limit in self.reservations() {
            let redis = self.reserved.get().filter(|_| limit.is_charged());
            let Some(cost) = real_cost(limit) else {
                machine.end_reservation(limit.line, None);
                redis.iter().for_each(M::Submission::stand);
                continue;
            };
            // Both are up to 2^54.
            let change = cost.cast_signed().saturating_sub(limit.charge.cost.cast_signed());
            let index = || self.limits.element_offset(limit);
            if let Some(charge) = charges.as_ref().and_then(|all| all.get(index()?)) {
                local::settle(machine, limit, charge, change);
            }
            match redis {
                Some(submission) => settle(machine, limit, submission, change),
                None => machine.end_reservation(limit.line, Some(SettlementResult::Settled)),
            }
        }
    }
}

/// Has Redis settle a reservation, which has cost so many units more; below zero, so many less.
fn settle<M: Machine>(
    machine: &M,
    limit: &Evaluated<'_, M::Limit>,
    submission: M::Submission,
    change: i64,
) {
    if change > 0 {
        // The client passes later than they say.
        machine.end_denials_of(limit);
    }
    machine.settle(limit, submission, limit.regained_from(change.unsigned_abs()), change);
}
