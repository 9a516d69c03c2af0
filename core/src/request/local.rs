//! Decisions about a request in the local table: in place of Redis, or beside it.

use super::{Evaluated, LimitedRequest, Machine};
use crate::conf::OnError;
use crate::decision::Verdict;
use crate::local::{self, LocalAnswer, LocalCharge, LocalCharges, Mode};

impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// Charges the request locally as long as anything of its limits that was spent in an outage is not regained: Redis
    /// has no record of it, so both are charged, this machine first. Returns whether a limit rejects the request.
    pub(super) fn is_rejected_locally(&self, machine: &M) -> bool {
        let has_charges = || self.limits.iter().any(|it| machine.has_charges(it, self.started));
        self.is_local() && has_charges() && self.charge_locally(machine)
    }

    /// Charges the request locally beside Redis. Returns whether a limit rejects it.
    #[inline(never)]
    fn charge_locally(&self, machine: &M) -> bool {
        let Some(local) = self.decide_locally(machine, Mode::Return) else { return false };
        self.local.set(Some(local));
        self.is_violated()
    }

    /// Whether what Redis does not decide is decided locally.
    pub(super) fn is_local(&self) -> bool {
        self.policy.on_error == OnError::Local
    }

    /// Decides the request in the local table, and charges it. `None` if the new states of its limits do not fit there.
    pub(super) fn decide_locally(&self, machine: &M, mode: Mode) -> Option<LocalCharges<'a>> {
        let blocked_for = |limit| match mode {
            Mode::Outage => machine.blocked_for(limit),
            // Redis, which knows better, decides as well.
            Mode::Return => 0,
        };
        let charges = self.limits.iter().map(|limit| (limit.charge, blocked_for(limit)));
        let mut local: LocalCharges<'_> = charges.collect();
        machine.with_local_table(|table, now| local::decide(table, now, mode, &mut local));
        for (limit, charge) in self.limits.iter().zip(local.iter()) {
            machine.note_charges(limit, charge.reset());
        }
        if local.iter().any(|charge| charge.answer() == LocalAnswer::NoRoom) {
            machine.count_no_room();
            give_back(machine, &mut local);
            return None;
        }
        for (limit, verdict) in self.limits.iter().zip(verdicts(&local)) {
            if verdict.is_some() {
                limit.verdict.set(verdict);
            }
        }
        Some(local)
    }

    /// Where the request was charged locally as well, Redis has no record of what was spent in the outage:
    /// of both verdicts the stricter one counts. What a rejected request was charged locally is given back.
    #[inline(never)]
    pub(super) fn join_local(&self, machine: &M) {
        let Some(mut local) = self.local.take() else { return };
        let is_rejected = self.is_violated();
        if is_rejected {
            give_back(machine, &mut local);
        }
        for (limit, local) in self.limits.iter().zip(verdicts(&local)) {
            let redis = limit.verdict();
            let joined = redis.zip(local).map(|(redis, local)| redis.stricter(local));
            limit.verdict.set(joined.or(redis));
        }
        if !is_rejected {
            self.local.set(Some(local));
        }
    }
}

/// The verdict of each limit that was checked locally, in their order.
pub(super) fn verdicts(local: &LocalCharges<'_>) -> impl Iterator<Item = Option<Verdict>> {
    local.iter().map(|charge| match charge.answer() {
        LocalAnswer::Verdict(verdict) => Some(verdict),
        LocalAnswer::Unchecked | LocalAnswer::NoRoom => None,
    })
}

/// Gives back what a request was charged locally. Its verdicts then show what the limits hold without it.
pub(super) fn give_back<M: Machine>(machine: &M, local: &mut LocalCharges<'_>) {
    machine.with_local_table(|table, now| local::give_back(table, now, local));
}

/// Settles what a limit has charged a request locally: it has cost so many units more; below zero, so many less.
pub(super) fn settle<M: Machine>(
    machine: &M,
    limit: &Evaluated<'_, M::Limit>,
    charge: &LocalCharge<'_>,
    change: i64,
) {
    let reset = machine.with_local_table(|table, now| local::settle(table, now, charge, change));
    if let Some(reset) = reset {
        machine.note_charges(limit, reset);
    }
}
