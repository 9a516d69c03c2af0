//! The configuration of a location.

use std::rc::Rc;

use rate_limit_core::conf::limit::Phase;
use rate_limit_core::conf::{Policy, PolicyLevel};

use super::limit::LimitConf;

/// The configuration of a location, or of a level above it.
#[derive(Default)]
pub(crate) struct LocationConf {
    /// Ordered by phase; `Some` and empty for `rate_limit_redis off`, `None` where a level has no line.
    pub(crate) limits: Option<Vec<Rc<LimitConf>>>,
    pub(crate) pass: Option<Pass>,
    /// The policy values that the directives of this level set.
    pub(crate) level: PolicyLevel,
    /// The policy that applies, once the values of the levels above are known.
    policy: Policy,
}

/// The store of `rate_limit_redis_pass`.
#[derive(Clone)]
pub(crate) enum Pass {
    /// The index of the store among all.
    Store(usize),
    /// The name of a block, which may come later in the configuration, and the place of the directive.
    Named(&'static str, String),
}

impl LocationConf {
    /// The limits that decide in `phase`, in the order of the configuration.
    pub(crate) fn limits(&self, phase: Phase) -> &[Rc<LimitConf>] {
        let limits = self.limits.as_deref().unwrap_or_default();
        let (access, precontent) =
            limits.split_at(limits.partition_point(|limit| limit.phase() == Phase::Access));
        match phase {
            Phase::Access => access,
            Phase::Precontent => precontent,
        }
    }

    /// Whether any limit applies.
    pub(crate) fn has_limits(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| !limits.is_empty())
    }

    /// The policy that applies to requests besides their limits and the store.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes from the level above what this level does not set.
    pub(crate) fn inherit(&mut self, above: &Self) {
        self.limits = self.limits.take().or_else(|| above.limits.clone());
        self.pass = self.pass.take().or_else(|| above.pass.clone());
        self.level.inherit(&above.level);
        self.policy = self.level.policy();
    }
}
