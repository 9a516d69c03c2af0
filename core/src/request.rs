//! A request in a phase: from the limits that were evaluated for it to its decision, and to what it leaves behind.
//!
//! ```text
//!   leave_out ▶ decided: a value of a limit is unusable
//!     ▼
//!   begin ──▶ decided: no limit applies
//!     ├─────▶ decided by the deny cache
//!     ├─────▶ decided locally: what was spent in an outage is not regained
//!     ├─────▶ decided by leases
//!     ▼
//!   to be submitted ──▶ submitted ──▶ on_reply ──▶ decided by Redis
//!     ▲                                  ├───────▶ decided by leases that came meanwhile
//!     └───────── once more, at most ─────┤
//!                                        └ error ▶ decided locally, or by the policy
//!   end ────▶ what is reserved stands, or is settled
//! ```
//!
//! This is the one order in which the deny cache, the local table, the leases and Redis are queried:
//!
//! 1. The deny cache, as it costs least. It knows only rejections, and only of requests with one limit.
//! 2. The local table, as long as anything of these limits that was spent in an outage is not regained: Redis has no record
//!    of it.
//!    What is rejected here spends no lease, and nothing in Redis.
//! 3. The leases, if every limit has one with enough units left.
//! 4. Redis.
//! 5. The leases again, if Redis rejects: units that it counts as spent may have come to this machine meanwhile.
//! 6. The local table again, if Redis does not decide and the policy is `local`; else the policy alone.

mod conclusion;
mod end;
mod evaluated;
mod local;
mod machine;
#[cfg(test)]
mod tests;
mod unusable;

use std::cell::Cell;

use crate::charge::Effect;
use crate::client::{Answer, Error};
use crate::conf::{OnError, Policy};
use crate::decision::{Decision, Source, Status};
use crate::lease::Granted;
use crate::lease::table::Outcome;
use crate::local::{LocalCharges, Mode};
use crate::rate::MILLISECOND;

pub use conclusion::Decisions;
pub use evaluated::{ConfiguredLimit, Evaluated, OwnQuota, Renewal};
pub use machine::{Machine, Submission};
pub use unusable::{Remaining, Unevaluated};

/// The next step of a request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is decided: it passes, is delayed or is rejected.
    Decided,
    /// It is submitted to the client of its store.
    Submit,
}

/// The limits of a request that decide in one phase, and their decision.
pub struct LimitedRequest<'a, M: Machine> {
    policy: &'a Policy,
    /// The limits that apply to the request; none if all keys were empty.
    limits: &'a [Evaluated<'a, M::Limit>],
    /// The request at the client of its store, from its submission until it is decided.
    submission: Cell<Option<M::Submission>>,
    /// The submission by which Redis has charged what is to be settled, once that is decided.
    reserved: Cell<Option<M::Submission>>,
    /// Whether the limits have decided: in Redis, by leases, in the deny cache or locally.
    is_decided: Cell<bool>,
    /// Whether the submission is the second one.
    is_second: Cell<bool>,
    /// The charges that were made locally.
    local: Cell<Option<LocalCharges<'a>>>,
    /// When the limits were evaluated, in µs of the monotonic clock.
    started: u64,
    /// The status of the request, once it is decided.
    status: Cell<Option<Status>>,
    /// The decision, once there is one: see [`decision`](Self::decision).
    decision: Cell<Option<Decision<'a>>>,
    /// Whether the request has ended.
    has_ended: Cell<bool>,
}

impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// A request whose limits were evaluated at `started`, in µs of the monotonic clock.
    pub fn new(policy: &'a Policy, limits: &'a [Evaluated<'a, M::Limit>], started: u64) -> Self {
        Self {
            policy,
            limits,
            submission: Cell::new(None),
            reserved: Cell::new(None),
            is_decided: Cell::new(false),
            is_second: Cell::new(false),
            local: Cell::new(None),
            started,
            status: Cell::new(None),
            decision: Cell::new(None),
            has_ended: Cell::new(false),
        }
    }

    /// Decides the request, if this machine can.
    pub fn begin(&self, machine: &M) -> Progress {
        if self.limits.is_empty() {
            self.end_undecided(machine, Status::Bypassed);
        } else if self.is_denied(machine) {
            self.decide(machine, Source::Cache);
        } else if self.is_rejected_locally(machine) {
            self.decide(machine, Source::Local);
        } else if self.has_leases() && self.spend_leases(machine, self.started) {
            self.join_local(machine);
            self.decide(machine, Source::Lease);
        } else {
            return Progress::Submit;
        }
        Progress::Decided
    }
}

/// Leases.
impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// Whether every limit can have a lease.
    fn has_leases(&self) -> bool {
        self.policy.lease > 0 && self.limits.iter().all(|limit| limit.line.has_leases())
    }

    /// Spends units of the leases, if there are enough of each: the verdicts are set then.
    fn spend_leases(&self, machine: &M, now: u64) -> bool {
        machine.spend(self.limits, now, &mut |index, verdict| {
            if let Some(limit) = self.limits.get(index) {
                limit.verdict.set(Some(verdict));
            }
        })
    }

    /// How long leases last, in µs; 0: there are none.
    fn lease_span(&self) -> u64 {
        self.policy.lease.saturating_mul(MILLISECOND)
    }

    /// Takes the leases of the limits out of the table at `now`, before the request is submitted. If every limit can
    /// have a lease, the command for the request renews them; otherwise it only reports them, as they could not be
    /// spent. `keep` keeps what was taken as long as the request lives; `None` if there is no memory for it.
    pub fn take_leases(
        &self,
        machine: &M,
        now: u64,
        keep: impl Fn(Renewal) -> Option<&'a Renewal>,
    ) -> Option<()> {
        let span = self.lease_span();
        if span == 0 {
            return Some(());
        }
        let until = now.saturating_add(self.timeout());
        // A command of cost 0 brings no lease.
        let may_spend = |limit: &Evaluated<'_, M::Limit>| {
            let has_lease = || machine.holding(limit).is_some_and(|it| it.is_living(now));
            limit.line.has_leases() && (limit.charge.cost > 0 || has_lease())
        };
        let spends = self.limits.iter().all(may_spend);
        for limit in self.limits.iter().filter(|limit| limit.line.has_leases()) {
            let taken = machine.take_lease(limit, now, until);
            let lease = match spends {
                true => taken.lease(limit.charge.quota, span, now),
                false => taken.report(limit.charge.quota, span, now),
            };
            limit.renewal.set(Some(keep(Renewal { taken, lease })?));
        }
        Some(())
    }

    /// Takes note of what came of the leases that were to be renewed.
    #[inline]
    fn renew_leases(&self, machine: &M) {
        if self.policy.lease > 0 {
            self.renew(machine);
        }
    }

    fn renew(&self, machine: &M) {
        for (index, limit) in self.limits.iter().enumerate() {
            if let Some(renewal) = limit.renewal.take() {
                let granted = |submission: M::Submission| submission.granted(index);
                let outcome = Outcome {
                    may_have_run: limit.may_have_run(),
                    is_charged: limit.is_charged(),
                    is_rejected: limit.is_violated(),
                    granted: self.submission.get().map_or(Granted::default(), granted),
                    is_other_quota: limit.has_other_quota(),
                    span: self.lease_span(),
                    // The second submission was later. Its lease ends so much earlier, and what is spent of it counts
                    // as spent so much later: that takes something, and lets nothing more pass.
                    submitted: self.started,
                };
                machine.renew_lease(limit, renewal.taken, &outcome);
                limit.look(|| Some((machine.holding(limit)?, machine.now())));
            }
        }
    }
}

/// Redis.
impl<M: Machine> LimitedRequest<'_, M> {
    /// How long the submission may take, in µs.
    pub fn time_limit(&self) -> u64 {
        if self.is_second.get() { self.timeout() / 2 } else { self.timeout() }
    }

    /// How long the request may wait for its decision, in µs.
    fn timeout(&self) -> u64 {
        self.policy.timeout.saturating_mul(MILLISECOND)
    }

    /// The request was submitted to the client of its store.
    pub fn on_submitted(&self, submission: M::Submission) {
        self.submission.set(Some(submission));
    }

    /// Whether it is at the client of its store.
    pub fn is_submitted(&self) -> bool {
        self.submission.get().is_some()
    }

    /// The outcome of the submission, once that is known; the answers of Redis are taken over then. Where the second
    /// one is not decided, a rejection by the first one stands.
    pub fn take_reply(&self) -> Option<Result<(), Error>> {
        let outcome = self.submission.get()?.take_outcome(|answers| self.take(answers))?;
        let stands = self.is_second.get() && self.is_violated();
        Some(if stands { Ok(()) } else { outcome })
    }

    fn take(&self, answers: &[Answer]) {
        for (limit, answer) in self.limits.iter().zip(answers) {
            let first = limit.verdict().filter(|_| self.is_second.get());
            limit.take(answer);
            limit.verdict.set(answer.verdict.or(first));
        }
    }

    /// Takes note of the quotas that clients have of their own, as this submission was charged by them. What was not
    /// answered says nothing, though a rejection by the first submission may stand.
    fn note_overrides(&self, machine: &M) {
        let may_have_own = self.limits.iter().any(Evaluated::may_have_own);
        let Some(submission) = self.submission.get().filter(|_| may_have_own) else { return };
        submission.with_answers(|answers| {
            for (index, (limit, answer)) in self.limits.iter().zip(answers).enumerate() {
                if limit.may_have_own() && answer.verdict.is_some() {
                    let own = submission.own(index);
                    limit.set_own(own);
                    machine.note_override(limit, own, answer.now);
                }
            }
        });
    }

    /// Takes note of which clients are blocked, for an outage of Redis.
    fn note_blocks(&self, machine: &M) {
        for limit in self.limits {
            if let Some(verdict) = limit.verdict() {
                machine.note_block(limit, verdict.block());
            }
        }
    }

    /// Acts on the outcome of the submission.
    pub fn on_reply(&self, machine: &M, outcome: Result<(), Error>) -> Progress {
        self.note_overrides(machine);
        self.renew_leases(machine);
        if outcome.is_err() {
            self.on_undecided(machine);
        } else if self.is_rejected_beside_leases()
            && let Some(progress) = self.try_leases(machine)
        {
            return progress;
        } else {
            self.on_decided(machine);
        }
        Progress::Decided
    }

    /// Whether Redis has rejected the request and charged none of its limits, and each limit can have a lease.
    fn is_rejected_beside_leases(&self) -> bool {
        self.policy.lease > 0
            && self.is_violated()
            && self.has_leases()
            && !self.limits.iter().any(Evaluated::is_charged)
    }

    /// Redis has rejected the request, but units that it counts as spent may lie in a lease which another command
    /// has brought meanwhile, or is bringing. The request spends them, or is charged once more, by a command that
    /// gives them back. `None` if there are none.
    #[cold]
    fn try_leases(&self, machine: &M) -> Option<Progress> {
        let now = machine.now();
        if self.spend_leases(machine, now) {
            self.join_local(machine);
            self.decide(machine, Source::Lease);
            return Some(Progress::Decided);
        }
        self.is_charged_again(machine, now).then_some(Progress::Submit)
    }

    /// Whether the request is to be charged once more at `now`, as units lie in leases of this machine by then, or
    /// a command in flight may bring some. The first submission ends with that. There are two at most: the second
    /// one has half of the time, and begins before the other half is over.
    fn is_charged_again(&self, machine: &M, now: u64) -> bool {
        let is_helped = |limit: &Evaluated<'_, M::Limit>| {
            let has_units = machine.holding(limit).is_some_and(|it| it.left(now) > 0);
            has_units || machine.awaits_units(limit, now)
        };
        let is_late = now.saturating_sub(self.started) > self.timeout() / 2;
        if self.is_second.get() || is_late || !self.rejecting().all(is_helped) {
            return false;
        }
        self.is_second.set(true);
        if let Some(submission) = self.submission.take() {
            submission.release(false, None);
        }
        true
    }

    /// Redis has decided.
    fn on_decided(&self, machine: &M) {
        if self.is_local() {
            self.note_blocks(machine);
        }
        self.give_back_if_rejected();
        if self.is_local() {
            self.join_local(machine);
        }
        self.decide(machine, Source::Redis);
        self.cache_denial(machine);
    }

    /// Redis has not decided: the policy says what happens to the request.
    fn on_undecided(&self, machine: &M) {
        if self.is_local() {
            if let Some(mut local) = self.local.take() {
                local::give_back(machine, &mut local);
            }
            if let Some(local) = self.decide_locally(machine, Mode::Outage) {
                self.decide(machine, Source::Local);
                if !self.is_rejected() {
                    self.local.set(Some(local));
                }
                return;
            }
        }
        let is_enforced = self.limits.iter().any(|it| it.charge.effect == Effect::Enforced);
        let effect = if is_enforced { Effect::Enforced } else { Effect::DryRun };
        let rejects = self.policy.on_error == OnError::Closed;
        self.end_undecided(machine, self.undecided(effect, rejects));
    }

    /// The status of a request that limits of this effect do not decide, where the policy for that rejects it
    /// or not. A dry run rejects nothing, whatever the reason.
    fn undecided(&self, effect: Effect, rejects: bool) -> Status {
        match effect {
            Effect::Enforced if rejects && !self.policy.dry_run => Status::ErrorRejected,
            Effect::Enforced | Effect::DryRun => Status::ErrorPassed,
        }
    }

    /// Gives back what Redis has charged the request, if a limit rejects it. The verdicts are then those
    /// without these charges.
    fn give_back_if_rejected(&self) {
        let Some(submission) = self.submission.get().filter(|_| self.is_violated()) else { return };
        for (index, limit) in self.limits.iter().enumerate().filter(|(_, it)| it.is_charged()) {
            refund(submission, limit);
            limit.verdict.set(submission.unspent(index).or(limit.verdict()));
        }
    }

    /// Releases the request from the client. If it does not pass, or if a limit has `settle` and Redis has not decided
    /// in time, its charges are refunded, also those still in flight. Where Redis has not decided in time the client refunds one
    /// after the other, as that adds to the load of a server that is slow.
    fn release(&self, machine: &M, status: Status, source: Source, wait: u64) {
        let Some(submission) = self.submission.take() else { return };
        self.end_denials(machine);
        let is_decided = source == Source::Redis;
        let is_rejected = status.is_rejection();
        let has_reservations = self.has_reservations();
        // Where a lease has decided after all, no reply may charge it besides.
        let refunds = is_rejected || has_reservations || source == Source::Lease;
        submission.release(refunds, is_decided.then_some(wait));
        let is_unsettled = !is_decided && has_reservations;
        if is_rejected || is_unsettled {
            let charged = self.limits.iter().filter(|limit| limit.is_charged());
            charged.for_each(|limit| refund(submission, limit));
        }
    }

    /// The request goes, perhaps while it waits. Without a machine its submission is released, and nothing else.
    /// `machine` is called only if the request may have left anything.
    pub fn abandon<'m>(&self, machine: impl FnOnce() -> Option<&'m M>)
    where
        M: 'm,
    {
        drop(self.local.take());
        let has_renewal = |limit: &Evaluated<'_, M::Limit>| limit.renewal.get().is_some();
        if !self.is_submitted() && !self.limits.iter().any(has_renewal) {
            return;
        }
        if let Some(submission) = self.submission.get() {
            submission.with_answers(|answers| self.take(answers));
        }
        match machine() {
            Some(machine) => {
                self.renew_leases(machine);
                self.release(machine, Status::ErrorPassed, Source::None, 0);
            }
            None => {
                if let Some(submission) = self.submission.take() {
                    submission.release(false, None);
                }
            }
        }
    }
}

/// Gives back what a limit has charged in Redis.
#[cold]
fn refund<L: ConfiguredLimit>(submission: impl Submission, limit: &Evaluated<'_, L>) {
    submission.refund(&limit.of_line(), limit.regained_from(limit.charge.cost));
    // Nothing of it is settled when the request ends.
    limit.is_charged.set(false);
}
