//! Several limits in one transaction: all of them are charged, or none.

use crate::algorithm::Stored;
use crate::charge::{Charge, Effect};
use crate::decision::{Retry, Verdict};
use crate::lease::{Granted, Lease};
use crate::overrides::Applied;

/// A limit in a transaction: its charge, what is stored under its key, and what is to be stored.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    charge: Charge<'a>,
    /// The stored state, and the quota that the client is charged by.
    pub(crate) applied: Applied,
    after: Stored,
    /// The verdict, once the transaction is decided.
    pub(crate) verdict: Option<Verdict>,
    /// The lease that was set aside, once the transaction is decided.
    pub(crate) granted: Granted,
}

/// Decides at `now`, and returns whether the request passes. If all limits allow it, all are
/// charged. If one rejects it, or `others_allow` is false, none is charged, and each verdict shows
/// what its limit holds. A limit of a dry run rejects nothing: if it does not allow the request, it
/// alone is not charged. Entries may share a key: the second one sees what the first one spends.
pub(crate) fn decide(entries: &mut [Option<Pending<'_>>], now: u64, others_allow: bool) -> bool {
    each(entries, |entry, earlier| entry.spend(earlier, now));
    let passes = others_allow && entries.iter().flatten().all(Pending::lets_pass);
    match passes {
        true => grant(entries, now),
        false => {
            each(entries, |entry, earlier| entry.spend_nothing(earlier, now));
            correct_retries(entries, now);
        }
    }
    passes
}

/// Enforced entries that share a key must be able to spend at once: a rejection of one of them lasts until
/// then.
fn correct_retries(entries: &mut [Option<Pending<'_>>], now: u64) {
    for index in 0..entries.len() {
        if let Some(Some(entry)) = entries.get(index)
            && let Some(retry) = entry.shared_retry(entries, now)
            && let Some(Some(entry)) = entries.get_mut(index)
        {
            entry.verdict = entry.verdict.map(|verdict| Verdict { retry, ..verdict });
        }
    }
}

/// How much must be left for costs to be spent one after the other, more than `left`, which is too
/// little; `None` if that is more than `limit`. A cost of a dry run is not spent if it does not fit.
pub(crate) fn needed(
    costs: impl Iterator<Item = (u64, Effect)> + Clone,
    mut left: u64,
    limit: u64,
) -> Option<u64> {
    while left <= limit {
        let mut rest = left;
        let missing = costs.clone().find_map(|(cost, effect)| {
            let missing = cost.saturating_sub(rest);
            rest = if missing == 0 { rest.saturating_sub(cost) } else { rest };
            (missing > 0 && effect == Effect::Enforced).then_some(missing)
        });
        match missing {
            None => return Some(left),
            Some(missing) => left = left.saturating_add(missing),
        }
    }
    None
}

/// Calls `act` with each entry and the entries before it.
fn each<'a>(
    entries: &mut [Option<Pending<'a>>],
    act: impl Fn(&mut Pending<'a>, &[Option<Pending<'a>>]),
) {
    for index in 0..entries.len() {
        let (earlier, later) = entries.split_at_mut(index);
        if let Some(Some(entry)) = later.first_mut() {
            act(entry, earlier);
        }
    }
}

/// Sets units aside for leases, after all costs are charged. Of entries that share a key only the
/// last one gets any.
fn grant(entries: &mut [Option<Pending<'_>>], now: u64) {
    for index in 0..entries.len() {
        let (before, later) = entries.split_at_mut(index.saturating_add(1));
        if let Some(Some(entry)) = before.last_mut()
            && !later.iter().flatten().any(|other| other.shares_key_with(entry))
        {
            entry.grant(now);
        }
    }
}

impl<'a> Pending<'a> {
    /// A limit to be charged, and what is stored under its key.
    pub(crate) fn new(charge: Charge<'a>, applied: Applied) -> Self {
        let (after, granted) = (Stored::default(), Granted::default());
        Self { charge, applied, after, verdict: None, granted }
    }

    /// The record to store, if it has changed.
    pub(crate) fn change(&self) -> Option<&Stored> {
        (self.after != self.applied.stored).then_some(&self.after)
    }

    fn lets_pass(&self) -> bool {
        self.verdict.is_some_and(|verdict| self.charge.effect.lets_pass(&verdict))
    }

    fn shares_key_with(&self, other: &Self) -> bool {
        self.charge.redis_key() == other.charge.redis_key()
    }

    fn spend(&mut self, earlier: &[Option<Self>], now: u64) {
        self.load(earlier, now);
        let (quota, cost) = (&self.applied.quota, self.charge.cost);
        self.verdict = Some(quota.algorithm().decide(&mut self.after, now, quota, cost));
    }

    fn grant(&mut self, now: u64) {
        let Charge { cost, lease: Some(lease), .. } = self.charge else { return };
        let quota = &self.applied.quota;
        let remaining = match self.verdict {
            Some(verdict) if verdict.allowed && cost > 0 => verdict.remaining,
            Some(_) | None => 0,
        };
        let granted = quota.algorithm().grant(&mut self.after, now, quota, lease, remaining);
        self.granted = Granted { returned: self.granted.returned, ..granted };
    }

    /// Charges nothing. The verdict then shows what the limit holds, and a rejection keeps its
    /// retry.
    fn spend_nothing(&mut self, earlier: &[Option<Self>], now: u64) {
        self.load(earlier, now);
        if let Some(Verdict { allowed, retry, .. }) = self.verdict {
            let (quota, rejects) = (&self.applied.quota, matches!(retry, Retry::After(_)));
            let unspent = quota.algorithm().decline(&mut self.after, now, quota, rejects);
            self.verdict = Some(Verdict { allowed, retry, ..unspent });
        }
    }

    /// When a request could pass that this limit rejects, if others of `entries` share its key.
    fn shared_retry(&self, entries: &[Option<Self>], now: u64) -> Option<Retry> {
        let (quota, effect) = (&self.applied.quota, self.charge.effect);
        let rejection = self.verdict.filter(|verdict| !effect.lets_pass(verdict))?;
        let sharers = entries.iter().flatten().filter(|other| other.shares_key_with(self));
        if sharers.clone().count() == 1 {
            return None;
        }
        let mut stored = sharers.clone().next_back()?.after.clone();
        let costs = sharers.map(|other| (other.charge.cost, other.charge.effect));
        let retry = match needed(costs, rejection.remaining, quota.limit()) {
            Some(cost) => quota.algorithm().decide(&mut stored, now, quota, cost).retry,
            None => Retry::Never,
        };
        // If their quotas differ, so may what is left for each; and a later one may report a lease.
        (retry != Retry::No).then_some(retry)
    }

    /// Starts from what is stored, or from what an earlier entry of the same key is to store.
    fn load(&mut self, earlier: &[Option<Self>], now: u64) {
        let sharer = earlier.iter().flatten().rfind(|other| other.shares_key_with(self));
        self.after.clone_from(sharer.map_or(&self.applied.stored, |sharer| &sharer.after));
        let quota = &self.applied.quota;
        let report =
            |lease: &Lease| quota.algorithm().report(&mut self.after, now, quota, &lease.report);
        let returned = self.charge.lease.map_or(0, report);
        self.granted = Granted { returned, ..Granted::nothing(now) };
    }
}
