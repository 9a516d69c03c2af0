//! The configuration of a location.

use std::rc::Rc;

use ngx::ffi::{
    NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN, ngx_int_t, ngx_msec_t, ngx_random,
    ngx_uint_t,
};
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::conf::{LogLevel, OnError, OnInvalid, Policy, PolicyLevel};
use rate_limit_core::decision::jitter;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::text::fields::Forms;
use rate_limit_core::text::{body, metrics};

use super::http::MainConf;
use super::limit::LimitConf;
use crate::client::Driver;

/// The configuration of a location, or of a level above it.
#[derive(Default)]
pub(crate) struct LocationConf {
    /// Ordered by phase; `Some` and empty for `rate_limit_redis off`, `None` where a level has no line.
    pub(crate) limits: Option<Vec<Rc<LimitConf>>>,
    pub(crate) pass: Option<Pass>,
    /// What the directives of this level set.
    pub(crate) level: PolicyLevel,
    /// What applies, once it is known what the levels above set.
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

    /// This worker's client of the store. Limits of one level have one store.
    pub(crate) fn driver(&self, main: &'static MainConf) -> Option<&'static Driver> {
        main.driver(self.limits.as_ref()?.first()?.store()?)
    }

    /// How long a request may wait for its decision, in ms.
    pub(crate) fn timeout(&self) -> ngx_msec_t {
        self.policy.timeout as ngx_msec_t
    }

    /// The policy for requests that Redis does not decide.
    pub(crate) fn on_error(&self) -> OnError {
        self.policy.on_error
    }

    /// The policy for requests with a value that is unusable.
    pub(crate) fn on_invalid(&self) -> OnInvalid {
        self.policy.on_invalid
    }

    /// The status of a rejection.
    pub(crate) fn status(&self) -> ngx_int_t {
        self.policy.status as ngx_int_t
    }

    /// The status of a rejection for want of a decision.
    pub(crate) fn error_status(&self) -> ngx_int_t {
        self.policy.error_status as ngx_int_t
    }

    /// The forms of the header fields.
    pub(crate) fn forms(&self) -> Forms {
        self.policy.forms
    }

    /// The form of the body of a rejection.
    pub(crate) fn body(&self) -> body::BodyForm {
        self.policy.body
    }

    /// Whether requests are only counted and logged, not rejected or delayed.
    pub(crate) fn dry_run(&self) -> bool {
        self.policy.dry_run
    }

    /// The random time that is added to `Retry-After`, in µs: a new one for each request.
    pub(crate) fn jitter(&self) -> u64 {
        match self.policy.retry_jitter {
            0 => 0,
            // NGINX's random numbers have 31 bits.
            most => jitter(most.saturating_mul(MILLISECOND), (ngx_random() as u32) << 1),
        }
    }

    /// Whether the deny cache is used.
    pub(crate) fn deny_cache(&self) -> bool {
        self.policy.deny_cache
    }

    /// How long this machine may hold units that it has taken ahead, in µs; 0: it takes none.
    pub(crate) fn lease(&self) -> u64 {
        self.policy.lease.saturating_mul(MILLISECOND)
    }

    /// How much of an IPv6 address stands for a client, in bits.
    pub(crate) fn ipv6_prefix(&self) -> u32 {
        self.policy.ipv6_prefix
    }

    /// The form of the metrics page, unless the client chooses it.
    pub(crate) fn metrics(&self) -> Option<metrics::PageForm> {
        self.policy.page
    }

    /// The level at which rejections are logged.
    pub(crate) fn log_level(&self) -> ngx_uint_t {
        let level = match self.policy.log.level {
            LogLevel::Info => NGX_LOG_INFO,
            LogLevel::Notice => NGX_LOG_NOTICE,
            LogLevel::Warn => NGX_LOG_WARN,
            LogLevel::Error => NGX_LOG_ERR,
        };
        level as ngx_uint_t
    }

    /// The level at which delays are logged: one lower, as with `limit_req`.
    pub(crate) fn delay_log_level(&self) -> ngx_uint_t {
        self.log_level().saturating_add(1).min(NGX_LOG_INFO as ngx_uint_t)
    }

    /// How many lines about rejections and delays a worker writes in a second.
    pub(crate) fn log_rate(&self) -> u64 {
        self.policy.log.rate
    }

    /// Takes from the level above what this level does not set.
    pub(crate) fn inherit(&mut self, above: &Self) {
        self.limits = self.limits.take().or_else(|| above.limits.clone());
        self.pass = self.pass.take().or_else(|| above.pass.clone());
        self.level.inherit(&above.level);
        self.policy = self.level.policy();
    }
}
