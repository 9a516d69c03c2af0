//! A limit, evaluated for a request.

use std::cell::Cell;
use std::rc::Rc;

use rate_limit_core::algorithm::leaky_bucket;
use rate_limit_core::client::{Answer, Charge, Template};
use rate_limit_core::conf::limit::Effect;
use rate_limit_core::decision::{self, Charged, Shown, Verdict};
use rate_limit_core::deny_cache;
use rate_limit_core::lease::Lease;
use rate_limit_core::lease::table::Taken;
use rate_limit_core::redis::script::Check;

use crate::conf::LimitConf;

/// What a limit charges a request, and its verdict.
pub(crate) struct Evaluated {
    /// The line of the configuration.
    pub(crate) limit: &'static LimitConf,
    /// What the commands of the limit have in common.
    template: &'static Rc<Template>,
    /// Key, quota and cost. They lie in the memory of the request and of the configuration.
    pub(crate) check: Check<'static>,
    /// High and low words: NGINX's pools are not aligned for a `u128`.
    digest: [u64; 2],
    /// The verdict, once there is one.
    pub(crate) verdict: Cell<Option<Verdict>>,
    /// Whether it was charged in Redis.
    pub(crate) is_charged: Cell<bool>,
    /// That charge.
    charged: Cell<Charged>,
    /// Whether a command about it was sent.
    pub(crate) is_sent: Cell<bool>,
    /// The lease that the command renews, if it does.
    pub(crate) renewal: Cell<Option<&'static Renewal>>,
}

/// A lease that a command renews.
pub(crate) struct Renewal {
    /// What there was of it.
    pub(crate) taken: Taken,
    /// The lease arguments of the command, if it has any.
    pub(crate) lease: Option<Lease>,
}

impl Evaluated {
    /// `digest` identifies key, limit and quota in the memory of this machine.
    pub(crate) fn new(
        limit: &'static LimitConf,
        template: &'static Rc<Template>,
        check: Check<'static>,
        digest: u128,
    ) -> Self {
        Self {
            limit,
            template,
            check,
            digest: [(digest >> u64::BITS) as u64, digest as u64],
            verdict: Cell::new(None),
            is_charged: Cell::new(false),
            charged: Cell::new(Charged::default()),
            is_sent: Cell::new(false),
            renewal: Cell::new(None),
        }
    }

    /// The name of the limit.
    pub(crate) fn name(&self) -> &'static str {
        self.limit.name()
    }

    /// The charge as the client takes it.
    pub(crate) fn charge(&self, lease: Option<&'static Lease>) -> Charge<'static> {
        let Check { key, quota, cost, dry_run, .. } = self.check;
        let (template, digest) = (self.template, self.digest() as u64);
        Charge { template, key, quota, cost, dry_run, digest, lease }
    }

    /// Whether a machine can take units of it ahead.
    pub(crate) fn has_leases(&self) -> bool {
        self.limit.has_leases()
    }

    /// The lease arguments of the command.
    pub(crate) fn lease(&self) -> Option<&'static Lease> {
        self.renewal.get()?.lease.as_ref()
    }

    /// Takes over the answer of Redis.
    pub(crate) fn take(&self, answer: &Answer) {
        self.verdict.set(answer.verdict);
        self.is_charged.set(answer.is_charged);
        if let Some(verdict) = &answer.verdict {
            self.charged.set(Charged::new(answer.now, verdict));
        }
        self.is_sent.set(answer.node.is_some());
    }

    /// Since when so much of its charge in Redis can have been regained, by Redis's clock.
    pub(crate) fn regained_from(&self, amount: u64) -> u64 {
        let quota = self.check.quota;
        quota.algorithm().regained_from(quota, self.charged.get(), amount)
    }

    /// Identifies key, limit and quota in the memory of this machine.
    pub(crate) fn digest(&self) -> u128 {
        let [high, low] = self.digest;
        (u128::from(high) << u64::BITS) | u128::from(low)
    }

    /// Identifies key and limit in the memory of this machine, whatever the quota is.
    pub(crate) fn client(&self) -> u128 {
        self.digest() ^ u128::from(self.check.quota.fingerprint())
    }

    /// Whether a rejection may come from the deny cache.
    pub(crate) fn is_cacheable(&self) -> bool {
        let Check { quota, cost, .. } = self.check;
        deny_cache::is_cacheable(quota, cost, self.limit.is_refundable())
    }

    /// What a verdict of the limit does to the request.
    pub(crate) fn effect(&self) -> Effect {
        self.limit.effect()
    }

    /// Whether the limit does not allow the request.
    pub(crate) fn is_violated(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| !verdict.allowed)
    }

    /// Whether the limit allows the request.
    pub(crate) fn allows(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| verdict.allowed)
    }

    /// How long the limit delays a request that it allows, in µs.
    pub(crate) fn delay(&self) -> u64 {
        let Some(undelayed) = self.limit.undelayed() else { return 0 };
        let verdict = self.verdict.get();
        verdict.map_or(0, |verdict| {
            leaky_bucket::delay(&verdict, self.check.quota, self.check.cost, undelayed)
        })
    }

    /// The limit and its verdict, as they are shown.
    pub(crate) fn show(&'static self) -> Option<Shown<'static>> {
        let verdict = self.verdict.get()?;
        Some(Shown { name: self.name(), quota: self.check.quota, verdict })
    }
}

/// The tightest of these limits that have a verdict.
pub(crate) fn tightest(
    limits: impl Iterator<Item = &'static Evaluated> + Clone,
) -> Option<&'static Evaluated> {
    let mut decided = limits.filter_map(|limit| Some((limit, limit.verdict.get()?)));
    let verdicts = decided.clone().map(|(limit, it)| (limit.check.quota.limit(), it));
    decided.nth(decision::tightest(verdicts)?).map(|(limit, _)| limit)
}
