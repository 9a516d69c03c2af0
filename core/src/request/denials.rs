//! The deny cache, as requests use it.

use super::{ConfiguredLimit as _, LimitedRequest, Machine};
use crate::deny_cache::Denial;
use crate::limit::Quota;

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
        let has_units = || self.policy.lease > 0 && machine.has_units(limit, now);
        let verdict = machine.denied(limit, now).filter(|_| !has_units());
        limit.set_verdict(verdict);
        verdict.is_some()
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
        for limit in self.limits.iter().filter(|limit| varies(limit.limit.known_quota())) {
            machine.end_denials_of_others(limit, machine.now());
        }
    }
}
