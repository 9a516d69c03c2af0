//! A limit, evaluated for a request.

use std::cell::{Cell, OnceCell};

use crate::algorithm::Undelayed;
use crate::charge::{Charge, Charged, Effect};
use crate::client::Answer;
use crate::decision::{self, Shown, Status, Verdict};
use crate::deny_cache;
use crate::key::Digest;
use crate::lease::table::Taken;
use crate::lease::{Holding, Lease};
use crate::limit::Quota;
use crate::overrides::Override;

/// A line `rate_limit_redis` of the configuration, as requests need it.
pub trait ConfiguredLimit {
    /// The name of the limit.
    fn name(&self) -> &str;
    /// The effect of its verdict on a request.
    fn effect(&self) -> Effect;
    /// Whether a machine can take units of it ahead.
    fn has_leases(&self) -> bool;
    /// Whether what it charges may be given back, so that a rejection may end early.
    fn is_refundable(&self) -> bool;
    /// Whether what this line charges is settled when the request has ended.
    fn settles(&self) -> bool;
    /// The part of the excess that a leaky bucket does not delay.
    fn undelayed(&self) -> Option<Undelayed>;
    /// The quota of the client, if it is the same for all requests.
    fn known_quota(&self) -> Option<&Quota>;
}

/// A limit that was evaluated for a request: its charge, and its verdict.
#[derive(Debug)]
pub struct Evaluated<'a, L> {
    /// The line of the configuration.
    pub line: &'a L,
    /// The charge, without a lease. Its quota is the client's own, if this machine knows of one.
    pub charge: Charge<'a>,
    /// Where clients may have quotas of their own.
    own: Option<&'a OwnQuota<'a>>,
    pub(super) verdict: Cell<Option<Verdict>>,
    /// Whether it was charged in Redis.
    pub(super) is_charged: Cell<bool>,
    /// Its charge in Redis.
    charged: Cell<Charged>,
    /// Whether a command about it may have run.
    may_have_run: Cell<bool>,
    /// The lease that the command renews, if it does.
    pub(super) renewal: Cell<Option<&'a Renewal>>,
}

/// The quota of a line whose clients may have quotas of their own.
#[derive(Debug)]
pub struct OwnQuota<'a> {
    /// The quota of the line, and the digest with it: Redis is given these, and applies what it knows of the client.
    line: &'a Quota,
    digest: Digest,
    /// The quota by which Redis has charged the client, where it is another one than this machine knew.
    applied: OnceCell<Quota>,
}

impl<'a> OwnQuota<'a> {
    /// The quota of a line, and the digest of a client with it.
    pub fn new(line: &'a Quota, digest: Digest) -> Self {
        Self { line, digest, applied: OnceCell::new() }
    }
}

/// A lease that a command renews.
#[derive(Debug)]
pub struct Renewal {
    /// The lease as it was taken out of the table.
    pub(super) taken: Taken,
    /// The lease arguments of the command, if it has any.
    pub(super) lease: Option<Lease>,
}

impl<'a, L: ConfiguredLimit> Evaluated<'a, L> {
    /// A limit that is to be charged, and the quota of its line if its clients may have quotas of their own: that of the
    /// charge may be one.
    pub fn new(line: &'a L, charge: Charge<'a>, own: Option<&'a OwnQuota<'a>>) -> Self {
        Self {
            line,
            charge,
            own,
            verdict: Cell::new(None),
            is_charged: Cell::new(false),
            charged: Cell::new(Charged::default()),
            may_have_run: Cell::new(false),
            renewal: Cell::new(None),
        }
    }

    /// The name of the limit.
    pub fn name(&self) -> &'a str {
        self.line.name()
    }

    /// The charge as the client of the store takes it, with the lease that it renews.
    pub fn with_lease(&self) -> Charge<'a> {
        let lease = self.renewal.get().and_then(|renewal| renewal.lease.as_ref());
        Charge { lease, ..self.of_line() }
    }

    /// The charge as the client of the store takes it, without a lease.
    pub fn of_line(&self) -> Charge<'a> {
        match self.own {
            Some(&OwnQuota { line: quota, digest, .. }) => Charge { quota, digest, ..self.charge },
            None => self.charge,
        }
    }

    /// The quota by which the client is charged.
    pub fn quota(&self) -> &Quota {
        self.own.and_then(|own| own.applied.get()).unwrap_or(self.charge.quota)
    }

    /// The charge with the quota by which the client is charged, as it is shown.
    pub fn shown_charge(&self) -> Charge<'_> {
        Charge { quota: self.quota(), ..self.charge }
    }

    /// Whether Redis has charged the client by another quota than this machine knew of.
    pub(super) fn has_other_quota(&self) -> bool {
        self.own.is_some_and(|own| own.applied.get().is_some())
    }

    /// Takes note of the quota of its own by which Redis has charged the client, if it has one.
    pub(super) fn set_own(&self, of_client: Option<Override>) {
        let Some(own) = self.own else { return };
        let quota = of_client.and_then(|it| it.quota(own.line)).unwrap_or(*own.line);
        if quota != *self.quota() {
            // The quota of the first reply stays, should there be two replies.
            let _ = own.applied.set(quota);
        }
    }

    /// Whether the client may have a quota of its own.
    pub(super) fn may_have_own(&self) -> bool {
        self.own.is_some()
    }

    /// Since when so much of its charge in Redis can have been regained, by Redis's clock.
    pub(super) fn regained_from(&self, amount: u64) -> u64 {
        let quota = self.quota();
        quota.algorithm().regained_from(quota, self.charged.get(), amount)
    }

    /// The verdict, once there is one.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict.get()
    }

    /// Whether it was charged in Redis, and that was not given back.
    pub fn is_charged(&self) -> bool {
        self.is_charged.get()
    }

    /// Whether a command about it may have run.
    pub fn may_have_run(&self) -> bool {
        self.may_have_run.get()
    }

    /// Takes over the answer of Redis.
    pub(super) fn take(&self, answer: &Answer) {
        self.verdict.set(answer.verdict);
        self.is_charged.set(answer.is_charged);
        if let Some(verdict) = &answer.verdict {
            self.charged.set(Charged::new(answer.now, verdict));
        }
        self.may_have_run.set(answer.may_have_run);
    }

    /// Shows a request of cost 0, which takes no lease out, what remains: Redis counts all of a lease as spent, but what is
    /// left of it is here, at that time. What others have spent since it began Redis alone knows.
    pub(super) fn look(&self, lease: impl FnOnce() -> Option<(Holding, u64)>) {
        let Charge { quota, cost, .. } = self.charge;
        if cost == 0
            && let Some(redis) = self.verdict().filter(|it| it.allowed && it.blocked == 0)
            && !self.has_other_quota()
            && let Some((mut holding, now)) = lease()
            && let Some(own) = holding.spend(quota, 0, now)
        {
            let remaining = redis.remaining.saturating_add(holding.left(now));
            let is_alone = own.remaining <= remaining;
            self.verdict.set(Some(if is_alone { own } else { Verdict { remaining, ..redis } }));
        }
    }

    /// Whether a rejection may come from the deny cache.
    pub(super) fn is_cacheable(&self) -> bool {
        let Charge { quota, cost, .. } = self.charge;
        deny_cache::is_cacheable(quota, cost, self.line.is_refundable())
    }

    /// Whether the limit does not allow the request.
    pub fn is_violated(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| !verdict.allowed)
    }

    /// Whether the limit rejects the request: it does not allow it, and is enforced.
    pub(super) fn rejects(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| !self.charge.effect.lets_pass(&verdict))
    }

    /// Whether the limit allows the request.
    pub(super) fn allows(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| verdict.allowed)
    }

    /// How long the limit delays a request that it allows, in µs.
    pub fn delay(&self) -> u64 {
        let Some(undelayed) = self.line.undelayed() else { return 0 };
        let (quota, cost) = (self.quota(), self.charge.cost);
        let delay = |verdict| quota.algorithm().delay(&verdict, quota, cost, undelayed);
        self.verdict.get().map_or(0, delay)
    }

    /// The limit and its verdict, as they are shown.
    pub(super) fn show(&'a self) -> Option<Shown<'a>> {
        let verdict = self.verdict.get()?;
        Some(Shown { name: self.name(), quota: self.quota(), verdict })
    }
}

/// The tightest of these limits that have a verdict.
pub(super) fn tightest<'a, L: ConfiguredLimit + 'a>(
    limits: impl Iterator<Item = &'a Evaluated<'a, L>> + Clone,
) -> Option<&'a Evaluated<'a, L>> {
    let mut decided = limits.filter_map(|limit| Some((limit, limit.verdict()?)));
    let verdicts = decided.clone().map(|(limit, it)| (limit.quota().limit(), it));
    decided.nth(decision::tightest(verdicts)?).map(|(limit, _)| limit)
}

/// The effect of limits together on a request, in a dry run the one that they would have, and the delay in µs.
pub(super) fn judge<'a, L: ConfiguredLimit + 'a>(
    limits: impl Iterator<Item = &'a Evaluated<'a, L>>,
    is_dry_run: bool,
) -> (Status, u64) {
    let (mut allowed, mut delay) = (true, 0);
    for limit in limits {
        allowed &= !limit.is_violated();
        delay = limit.delay().max(delay);
    }
    let delay = if allowed { delay } else { 0 };
    (Status::decided(allowed, delay > 0, is_dry_run), delay)
}
