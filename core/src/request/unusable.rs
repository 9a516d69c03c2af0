//! Limits that have an unusable value for a request.
//!
//! Limits of a dry run are left out, as long as any others remain, which decide. If an enforced one has an unusable value,
//! or none remains, no limit is charged, and the policy for unusable values decides.

use std::ptr;

use super::{ConfiguredLimit, LimitedRequest, Machine};
use crate::charge::Effect;
use crate::conf::OnInvalid;
use crate::decision::{Decision, Status};

/// Why a limit is not evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unevaluated {
    /// It has this effect, and a variable of it has a value that cannot be used.
    Unusable(Effect),
    /// The machine could not do it.
    Failed,
}

/// Which limits of a request remain, while one after the other is evaluated: the effect of those that are left out, if any
/// are.
#[derive(Debug, Default)]
pub struct Remaining(Option<Effect>);

impl Remaining {
    /// The limit, if it remains; an error ends the evaluation. A limit that does not apply to the request is `None`.
    #[inline]
    pub fn keep<T>(
        &mut self,
        evaluated: Result<Option<T>, Unevaluated>,
    ) -> Option<Result<T, Unevaluated>> {
        if let Err(Unevaluated::Unusable(Effect::DryRun)) = evaluated {
            self.0 = Some(Effect::DryRun);
            return None;
        }
        evaluated.transpose()
    }

    /// The limits to charge, and the effect of those that are left out, if any are, where the evaluation has ended with
    /// these.
    #[inline]
    pub fn conclude<T>(
        self,
        kept: Result<&[T], Unevaluated>,
    ) -> Result<(&[T], Option<Effect>), Unevaluated> {
        match kept {
            Ok(limits) => Ok((limits, self.0)),
            Err(Unevaluated::Unusable(effect)) => Ok((&[], Some(effect))),
            Err(failed) => Err(failed),
        }
    }
}

impl<'a, M: Machine> LimitedRequest<'a, M> {
    /// Limits of this effect are left out, as they have unusable values: those of `lines` are counted that are not
    /// evaluated, where `lines` are all that apply to the request. Returns whether it is decided, as no limits remain.
    #[cold]
    pub fn leave_out(
        &self,
        machine: &M,
        effect: Effect,
        lines: impl Iterator<Item = &'a M::Limit>,
    ) -> bool {
        let decides = self.limits.is_empty();
        let status = if decides { self.end_invalid(machine, effect) } else { Status::ErrorPassed };
        let remains = |line: &M::Limit| self.limits.iter().any(|it| ptr::eq(it.line, line));
        for line in lines.filter(|line| !remains(line)) {
            let status = match line.effect() {
                Effect::Enforced => status,
                Effect::DryRun => Status::ErrorPassed,
            };
            machine.count(line, None, Some(status));
        }
        decides
    }

    /// Decides a request that has an unusable value, in a limit of this effect.
    fn end_invalid(&self, machine: &M, effect: Effect) -> Status {
        let status = self.undecided(effect, self.policy.on_invalid == OnInvalid::Reject);
        machine.count_wait(0);
        self.end_undecided(machine, status);
        let invalid = |decision| Decision { is_invalid: true, ..decision };
        self.decision.set(self.decision.get().map(invalid));
        status
    }
}
