//! How a request was decided: the decision, who had a part in it, and what is counted and put into the deny cache; and
//! the decisions of both phases as one, as header fields and variables show it.

use std::iter;

use super::evaluated::{judge, tightest};
use super::{ConfiguredLimit, Evaluated, LimitedRequest, Machine};
use crate::charge::Effect;
use crate::conf::Policy;
use crate::conf::limit::Phase;
use crate::decision::{Decision, Shown, Source, Status, jitter};
use crate::deny_cache::Denial;
use crate::limit::Quota;
use crate::rate::MILLISECOND;

impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// Decides the request by the verdicts of its limits, which come from `source`.
    pub(super) fn decide(&self, machine: &M, source: Source) {
        self.is_decided.set(true);
        let (status, delay) = self.judge(Effect::Enforced);
        // A status that affects the request is worse than one of a dry run.
        let is_dry_run = |limit: &Evaluated<'_, M::Limit>| limit.charge.effect == Effect::DryRun;
        let shown_status = match self.limits.iter().any(is_dry_run) {
            true => status.worse(self.judge(Effect::DryRun).0),
            false => status,
        };
        self.conclude(machine, status, shown_status, source, delay);
    }

    /// Ends a request that no limit decided.
    pub(super) fn end_undecided(&self, machine: &M, status: Status) {
        self.conclude(machine, status, status, Source::None, 0);
    }

    #[inline(always)]
    fn conclude(
        &self,
        machine: &M,
        status: Status,
        shown_status: Status,
        source: Source,
        delay: u64,
    ) {
        let wait = match source {
            // The request did not wait.
            Source::Lease | Source::Cache if !self.is_submitted() => 0,
            _ => machine.now().saturating_sub(self.started),
        };
        let submission = self.submission.get();
        self.release(machine, status, source, wait);
        self.status.set(Some(status));
        self.decision.set(Some(Decision {
            status: shown_status,
            source,
            shown: self.shown(),
            wait,
            delay,
            jitter: self.jitter(machine),
            is_invalid: false,
        }));
        self.count(machine, status, source, wait);
        self.reserve(machine, submission);
    }

    /// The limit to show, if any has a verdict.
    fn shown(&self) -> Option<Shown<'a>> {
        match self.decided() {
            [limit] => limit.show(),
            _ => self.tightest(Effect::Enforced).or_else(|| self.tightest(Effect::DryRun))?.show(),
        }
    }

    /// The random time that is added to `Retry-After`, in µs.
    fn jitter(&self, machine: &M) -> u64 {
        match self.policy.retry_jitter {
            0 => 0,
            most => jitter(most.saturating_mul(MILLISECOND), machine.random()),
        }
    }

    /// Counts the request for each limit that had a part in its decision: a limit that allowed what
    /// another rejected had none.
    #[inline(always)]
    fn count(&self, machine: &M, status: Status, source: Source, wait: u64) {
        if self.limits.is_empty() {
            return;
        }
        // Requests that the deny cache rejects did not wait: their decisions are counted, which is enough.
        if source != Source::Cache {
            machine.count_wait(wait);
        }
        for limit in self.limits {
            let has_decided = self.is_decided.get() && limit.verdict().is_some();
            let source = has_decided.then_some(source);
            machine.count(limit.line, source, self.status_of(limit, status));
        }
    }

    /// The result to count for a limit, where `status` is that of the request.
    fn status_of(&self, limit: &'a Evaluated<'a, M::Limit>, status: Status) -> Option<Status> {
        let has_part = !self.is_decided.get() || limit.is_violated() || !status.is_rejection();
        match limit.charge.effect {
            Effect::Enforced | Effect::DryRun if !has_part => None,
            Effect::Enforced => Some(status),
            Effect::DryRun if self.is_decided.get() && limit.verdict().is_some() => {
                Some(judge(iter::once(limit), true).0)
            }
            Effect::DryRun => Some(Status::ErrorPassed),
        }
    }
}

/// The decision.
impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// The policy that applies to the request besides its limits.
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The decision, once there is one. Its status is that of the request, or what a dry run would have done to it.
    pub fn decision(&self) -> Option<Decision<'a>> {
        self.decision.get()
    }

    /// How long before `now` the decision was made, in µs, once there is one.
    pub(super) fn age(&self, now: u64) -> Option<u64> {
        let decided = self.started.saturating_add(self.decision.get()?.wait);
        Some(now.saturating_sub(decided))
    }

    /// Whether no limit applied to the request, as far as is known.
    pub fn is_bypassed(&self) -> bool {
        self.status.get().is_none_or(|status| status == Status::Bypassed)
    }

    /// Whether the request is rejected, or would be without the dry run.
    pub(super) fn is_rejected(&self) -> bool {
        self.status.get().is_some_and(Status::is_rejection)
    }

    /// Whether the request is rejected, and not only in a dry run.
    pub fn is_refused(&self) -> bool {
        matches!(self.status.get(), Some(Status::Rejected | Status::ErrorRejected))
    }
}

/// Its limits.
impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// All limits that apply to the request.
    pub fn limits(&self) -> &'a [Evaluated<'a, M::Limit>] {
        self.limits
    }

    /// The limits, if they have decided.
    pub(super) fn decided(&self) -> &'a [Evaluated<'a, M::Limit>] {
        if self.is_decided.get() { self.limits } else { &[] }
    }

    /// Whether an enforced limit does not allow the request.
    pub(super) fn is_violated(&self) -> bool {
        self.rejecting().next().is_some()
    }

    /// The enforced limits that do not allow the request, decided or not.
    pub(super) fn rejecting(
        &self,
    ) -> impl Iterator<Item = &'a Evaluated<'a, M::Limit>> + use<'a, M> {
        self.limits.iter().filter(|limit| limit.rejects())
    }

    /// The limits that have decided and have this effect.
    pub fn group(
        &self,
        effect: Effect,
    ) -> impl Iterator<Item = &'a Evaluated<'a, M::Limit>> + Clone + use<'a, M> {
        self.decided().iter().filter(move |limit| limit.charge.effect == effect)
    }

    /// The effect of these limits on the request, in a dry run the one that they would have, and the delay in µs.
    pub fn judge(&self, effect: Effect) -> (Status, u64) {
        judge(self.group(effect), effect == Effect::DryRun || self.policy.dry_run)
    }

    /// The tightest of these limits that have a verdict.
    pub fn tightest(&self, effect: Effect) -> Option<&'a Evaluated<'a, M::Limit>> {
        tightest(self.group(effect))
    }
}

/// The decisions on a request, as one.
pub struct Decisions<'a, M: Machine> {
    /// The request in each phase, in their order.
    phases: [Option<&'a LimitedRequest<'a, M>>; Phase::ALL.len()],
    /// The time, in µs of the monotonic clock.
    now: u64,
    /// The policy of the location whose limits made the worse one.
    pub policy: &'a Policy,
    /// Both as one.
    pub decision: Decision<'a>,
}

impl<'a, M: Machine> Decisions<'a, M> {
    /// The decision on a request with limits in one phase, as it is shown at `now`, in µs of the monotonic
    /// clock.
    pub fn of_one(request: &'a LimitedRequest<'a, M>, now: u64) -> Option<Self> {
        let (policy, decision) = (request.policy(), request.decision()?);
        Some(Self { phases: [Some(request), None], now, policy, decision })
    }

    /// The decisions on a request, in the order of the phases, as they are shown at `now`.
    #[inline(never)]
    pub fn of_all(
        phases: [Option<&'a LimitedRequest<'a, M>>; Phase::ALL.len()],
        now: u64,
    ) -> Option<Self> {
        let requests = phases.iter().flatten();
        let decisions = requests.filter_map(|it| Some((it.policy(), it.decision()?)));
        let (policy, decision) = decisions.reduce(worse)?;
        let mut all = Self { phases, now, policy, decision };
        match all.decision.status {
            Status::Rejected => {}
            // No limit has decided that.
            Status::ErrorRejected => all.phases = [None; Phase::ALL.len()],
            Status::Passed
            | Status::Delayed
            | Status::DelayedDryRun
            | Status::RejectedDryRun
            | Status::ErrorPassed
            | Status::Bypassed => {
                if all.phases.iter().flatten().count() > 1 {
                    all.decision.shown = all.tightest().and_then(Evaluated::show);
                }
            }
        }
        Some(all)
    }

    /// The limits that have decided.
    fn limits(&self) -> impl Iterator<Item = &'a Evaluated<'a, M::Limit>> + Clone + use<'a, '_, M> {
        self.phases.iter().flatten().flat_map(|request| request.decided())
    }

    /// The limit of the single-valued fields, as it is now.
    pub fn shown(&self) -> Option<Shown<'a>> {
        Some(self.decision.shown?.after(self.age()))
    }

    /// All limits that have decided, as they are now.
    pub fn all(&self) -> impl Iterator<Item = Shown<'a>> + Clone + use<'a, '_, M> {
        self.limits().filter_map(|limit| Some(limit.show()?.after(self.age())))
    }

    /// How long ago the latest of the decisions was made, in µs. A rejection was made just now, however
    /// long its error page took, or else its `Retry-After` would be later than the reset.
    fn age(&self) -> u64 {
        if self.decision.status == Status::Rejected {
            return 0;
        }
        self.phases.iter().flatten().filter_map(|request| request.age(self.now)).min().unwrap_or(0)
    }

    /// The names of the limits that rejected the request, or would have.
    pub fn violated(&self) -> impl Iterator<Item = &'a str> + use<'a, '_, M> {
        let is_rejected = self.decision.status == Status::Rejected;
        let has_part = move |limit: &&Evaluated<'_, M::Limit>| {
            !is_rejected || limit.charge.effect == Effect::Enforced
        };
        self.limits().filter(|limit| limit.is_violated()).filter(has_part).map(Evaluated::name)
    }

    fn tightest(&self) -> Option<&'a Evaluated<'a, M::Limit>> {
        let of =
            |effect| tightest(self.limits().filter(move |limit| limit.charge.effect == effect));
        of(Effect::Enforced).or_else(|| of(Effect::DryRun))
    }
}

type Concluded<'a> = (&'a Policy, Decision<'a>);

/// The worse of two decisions; the request has waited for both.
fn worse<'a>(one: Concluded<'a>, other: Concluded<'a>) -> Concluded<'a> {
    let wait = one.1.wait.saturating_add(other.1.wait);
    let is_other = one.1.status.worse(other.1.status) == other.1.status;
    let (policy, decision) = if is_other { other } else { one };
    (policy, Decision { wait, ..decision })
}

impl<M: Machine> LimitedRequest<'_, M> {
    /// Whether the deny cache holds that the request cannot pass. With several limits Redis must decide: the
    /// cache has no verdicts of the others. While this machine has units that Redis has set aside, and so rejects
    /// others, the request is not rejected.
    pub(super) fn is_denied(&self, machine: &M) -> bool {
        let [limit] = self.limits else { return false };
        if !self.policy.deny_cache || !limit.is_cacheable() {
            return false;
        }
        let now = self.started;
        let may_lease = self.policy.lease > 0;
        let has_units = || may_lease && machine.holding(limit).is_some_and(|it| it.left(now) > 0);
        let verdict = machine.denied(limit, now);
        let is_denied = verdict.is_some() && !has_units();
        if is_denied {
            limit.verdict.set(verdict);
        }
        is_denied
    }

    /// Caches that Redis has rejected the request.
    pub(super) fn cache_denial(&self, machine: &M) {
        if let [limit] = self.decided()
            && self.policy.deny_cache
            && limit.is_violated()
            && limit.is_cacheable()
            && !limit.has_other_quota()
            && let Some(verdict) = limit.verdict()
            && let Some(denial) =
                Denial::new(&verdict, limit.charge.quota, self.started, machine.now())
        {
            machine.deny(limit, denial);
        }
    }

    /// Ends what the deny cache holds for other quotas of its clients: Redis may have changed their states.
    pub(super) fn end_denials(&self, machine: &M) {
        let varies = |quota: Option<&Quota>| quota.is_none_or(Quota::has_override);
        for limit in self.limits.iter().filter(|limit| varies(limit.line.known_quota())) {
            machine.end_denials_of_others(limit, machine.now());
        }
    }
}
