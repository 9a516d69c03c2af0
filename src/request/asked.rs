//! What a request is charged by one limit, and what came of it.

use std::cell::Cell;
use std::rc::Rc;

use rate_limit_core::algorithm::leaky_bucket;
use rate_limit_core::client::{Charge, Definition};
use rate_limit_core::decision::{Shown, Verdict};
use rate_limit_core::redis::script::Question;

use crate::conf::Limit;

/// A limit that applies to a request.
pub(crate) struct Asked {
    /// The line of the configuration.
    pub(crate) limit: &'static Limit,
    pub(super) definition: &'static Rc<Definition>,
    /// Key, quota and cost. They lie in the memory of the request and of the configuration.
    pub(crate) question: Question<'static>,
    /// Stands for key, limit and quota, in this machine's memory: high and low words. NGINX's pools are
    /// not aligned for a `u128`.
    pub(super) digest: [u64; 2],
    /// What the limit says, once that is known.
    pub(crate) verdict: Cell<Option<Verdict>>,
    /// Whether it was charged in Redis.
    pub(super) is_charged: Cell<bool>,
}

impl Asked {
    /// As the client takes it.
    pub(super) fn charge(&self) -> Charge<'static> {
        let Question { key, quota, cost, .. } = self.question;
        Charge { definition: self.definition, key, quota, cost, digest: self.digest() as u64 }
    }

    /// Stands for key, limit and quota, in this machine's memory.
    pub(super) fn digest(&self) -> u128 {
        let [high, low] = self.digest;
        (u128::from(high) << u64::BITS) | u128::from(low)
    }

    /// Whether the limit does not allow the request.
    pub(crate) fn is_violated(&self) -> bool {
        self.verdict.get().is_some_and(|verdict| !verdict.allowed)
    }

    /// How long the limit makes an allowed request wait for its turn, in µs.
    pub(crate) fn delay(&self) -> u64 {
        match (self.verdict.get(), self.limit.undelayed()) {
            (Some(verdict), Some(undelayed)) => {
                leaky_bucket::delay(&verdict, &self.question.quota, self.question.cost, undelayed)
            }
            _ => 0,
        }
    }

    /// The limit and its verdict, as they are shown.
    pub(crate) fn show(&self) -> Option<Shown<'static>> {
        let verdict = self.verdict.get()?;
        Some(Shown { name: self.limit.name(), quota: self.question.quota, verdict })
    }
}
