//! The decisions on a request as one: header fields and variables are the same for both phases.

use super::evaluated::tightest;
use super::{Evaluated, LimitedRequest, Machine};
use crate::charge::Effect;
use crate::conf::Policy;
use crate::conf::limit::Phase;
use crate::decision::{Decision, Shown, Status};

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
