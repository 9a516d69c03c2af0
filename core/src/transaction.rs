//! Several limits in one transaction: all of them are charged, or none.

use crate::algorithm::Stored;
use crate::decision::{Retry, Verdict};
use crate::lease::{Granted, Lease};
use crate::limit::Quota;

/// A limit in a transaction: what is stored under its key, and what is to be stored.
#[derive(Debug)]
pub(crate) struct Pending<K> {
    key: K,
    quota: Quota,
    cost: u64,
    dry_run: bool,
    before: Stored,
    after: Stored,
    verdict: Option<Verdict>,
    lease: Lease,
    granted: Granted,
}

/// Decides at `now`, and returns whether the request passes. If all limits allow it, all are
/// charged. If one rejects it, or `others_allow` is false, none is charged, and each verdict shows
/// what its limit holds. A limit of a dry run rejects nothing: if it does not allow the request, it
/// alone is not charged. Entries may share a key: the second one sees what the first one spends.
pub(crate) fn decide<K: PartialEq>(
    entries: &mut [Option<Pending<K>>],
    now: u64,
    others_allow: bool,
) -> bool {
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
fn correct_retries<K: PartialEq>(entries: &mut [Option<Pending<K>>], now: u64) {
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
fn needed(
    costs: impl Iterator<Item = (u64, bool)> + Clone,
    mut left: u64,
    limit: u64,
) -> Option<u64> {
    while left <= limit {
        let mut rest = left;
        let missing = costs.clone().find_map(|(cost, dry_run)| {
            let missing = cost.saturating_sub(rest);
            rest = if missing == 0 { rest.saturating_sub(cost) } else { rest };
            (missing > 0 && !dry_run).then_some(missing)
        });
        match missing {
            None => return Some(left),
            Some(missing) => left = left.saturating_add(missing),
        }
    }
    None
}

/// Calls `act` with each entry and the entries before it.
fn each<K>(
    entries: &mut [Option<Pending<K>>],
    act: impl Fn(&mut Pending<K>, &[Option<Pending<K>>]),
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
fn grant<K: PartialEq>(entries: &mut [Option<Pending<K>>], now: u64) {
    for index in 0..entries.len() {
        let (before, later) = entries.split_at_mut(index.saturating_add(1));
        if let Some(Some(entry)) = before.last_mut()
            && !later.iter().flatten().any(|other| other.key == entry.key)
        {
            entry.grant(now);
        }
    }
}

impl<K: PartialEq> Pending<K> {
    /// A limit to be charged `cost`; `stored` is what is stored under `key`.
    pub(crate) fn new(key: K, quota: Quota, cost: u64, dry_run: bool, stored: Stored) -> Self {
        let (before, after) = (stored, Stored::default());
        let (lease, granted) = (Lease::NONE, Granted::default());
        Self { key, quota, cost, dry_run, before, after, verdict: None, lease, granted }
    }

    /// This entry, with a lease to report or to take.
    pub(crate) fn with_lease(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }

    /// What was set aside, once the transaction is decided.
    pub(crate) fn granted(&self) -> Granted {
        self.granted
    }

    /// The verdict, once the transaction is decided.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// What is to be stored, if it has changed.
    pub(crate) fn change(&self) -> Option<&Stored> {
        (self.after != self.before).then_some(&self.after)
    }

    fn lets_pass(&self) -> bool {
        self.dry_run || self.verdict.is_some_and(|verdict| verdict.allowed)
    }

    fn spend(&mut self, earlier: &[Option<Self>], now: u64) {
        self.load(earlier, now);
        let verdict = self.quota.algorithm().decide(&mut self.after, now, &self.quota, self.cost);
        self.verdict = Some(verdict);
    }

    fn grant(&mut self, now: u64) {
        let remaining = match self.verdict {
            Some(verdict) if verdict.allowed && self.cost > 0 => verdict.remaining,
            _ => 0,
        };
        let (algorithm, returned) = (self.quota.algorithm(), self.granted.returned);
        let granted = algorithm.grant(&mut self.after, now, &self.quota, &self.lease, remaining);
        self.granted = Granted { returned, ..granted };
    }

    /// Charges nothing. The verdict then shows what the limit holds, and a rejection keeps its
    /// retry.
    fn spend_nothing(&mut self, earlier: &[Option<Self>], now: u64) {
        self.load(earlier, now);
        if let Some(Verdict { allowed, retry, .. }) = self.verdict {
            let (algorithm, rejects) = (self.quota.algorithm(), matches!(retry, Retry::After(_)));
            let unspent = algorithm.decline(&mut self.after, now, &self.quota, rejects);
            self.verdict = Some(Verdict { allowed, retry, ..unspent });
        }
    }

    /// When a request could pass that this limit rejects, if others of `entries` share its key.
    fn shared_retry(&self, entries: &[Option<Self>], now: u64) -> Option<Retry> {
        let rejection = self.verdict.filter(|verdict| !verdict.allowed && !self.dry_run)?;
        let sharers = entries.iter().flatten().filter(|other| other.key == self.key);
        if sharers.clone().count() == 1 {
            return None;
        }
        let mut stored = sharers.clone().last()?.after.clone();
        let (quota, algorithm) = (&self.quota, self.quota.algorithm());
        let costs = sharers.map(|other| (other.cost, other.dry_run));
        let retry = match needed(costs, rejection.remaining, quota.limit()) {
            Some(cost) => algorithm.decide(&mut stored, now, quota, cost).retry,
            None => Retry::Never,
        };
        // If their quotas differ, so may what is left for each; and a later one may report a lease.
        (retry != Retry::No).then_some(retry)
    }

    /// Starts from what is stored, or from what an earlier entry of the same key is to store.
    fn load(&mut self, earlier: &[Option<Self>], now: u64) {
        let sharer = earlier.iter().flatten().rfind(|other| other.key == self.key);
        self.after.clone_from(sharer.map_or(&self.before, |sharer| &sharer.after));
        let (algorithm, report) = (self.quota.algorithm(), &self.lease.report);
        let returned = algorithm.report(&mut self.after, now, &self.quota, report);
        self.granted = Granted { returned, ..Granted::nothing(now) };
    }
}
