//! The configuration of a location.

use std::rc::Rc;

use ngx::ffi::{NGX_LOG_ERR, NGX_LOG_INFO, ngx_int_t, ngx_msec_t, ngx_random, ngx_uint_t};
use rate_limit_core::decision::jitter;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::text::fields::{Forms, Reset};
use rate_limit_core::text::{body, metrics};

use super::http::MainConf;
use super::limit::{Limit, Phase};
use crate::client::Driver;

/// The policy for requests that Redis does not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnError {
    /// Pass the request.
    #[default]
    Open,
    /// Reject the request.
    Closed,
    /// Decide locally, in the shared memory.
    Local,
}

/// The policy for requests with a rate, capacity, burst or cost that is unusable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnInvalid {
    /// Reject the request.
    #[default]
    Reject,
    /// Pass the request.
    Pass,
}

/// The configuration of a location, or of the levels above it; `None` where a level sets nothing.
#[derive(Default)]
pub(crate) struct LocationConf {
    /// Ordered by phase; `Some` and empty for `rate_limit_redis off`.
    pub(crate) limits: Option<Vec<Rc<Limit>>>,
    pub(crate) pass: Option<Pass>,
    pub(crate) timeout: Option<ngx_msec_t>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) on_invalid: Option<OnInvalid>,
    pub(crate) status: Option<ngx_int_t>,
    pub(crate) error_status: Option<ngx_int_t>,
    pub(crate) forms: Option<Forms>,
    pub(crate) body: Option<body::Form>,
    pub(crate) dry_run: Option<bool>,
    pub(crate) log: Option<LogLimit>,
    pub(crate) retry_jitter: Option<ngx_msec_t>,
    pub(crate) ipv6_prefix: Option<u32>,
    pub(crate) deny_cache: Option<bool>,
    /// In ms; 0: off.
    pub(crate) lease: Option<ngx_msec_t>,
    /// The form of the metrics page; `Some(None)` if the client chooses it.
    pub(crate) metrics: Option<Option<metrics::Form>>,
}

/// How rejections and delays are logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogLimit {
    /// The level of rejections.
    pub(crate) level: ngx_uint_t,
    /// How many lines a worker writes in a second.
    pub(crate) rate: u64,
}

/// The store of `rate_limit_redis_pass`.
#[derive(Clone)]
pub(crate) enum Pass {
    /// The index of the store among all.
    Store(usize),
    /// The name of a block, which may come later in the configuration, and the place of the directive.
    Named(&'static str, String),
}

const DEFAULT_TIMEOUT: ngx_msec_t = 20;
const DEFAULT_FORMS: Forms =
    Forms { x_ratelimit: Some(Reset::Seconds), ratelimit: false, ietf: false };

/// How many lines about rejections and delays a worker writes in a second.
pub(crate) const DEFAULT_LOG_RATE: u64 = 1_000;

/// The time of `rate_limit_redis_lease on`, in ms.
pub(crate) const DEFAULT_LEASE: ngx_msec_t = 1_000;

/// How much of an IPv6 address stands for a client, in bits.
pub(crate) const DEFAULT_IPV6_PREFIX: u32 = 64;

impl LocationConf {
    /// The limits that decide in `phase`, in the order of the configuration.
    pub(crate) fn limits(&self, phase: Phase) -> &[Rc<Limit>] {
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
        self.timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// The policy for requests that Redis does not decide.
    pub(crate) fn on_error(&self) -> OnError {
        self.on_error.unwrap_or_default()
    }

    /// The policy for requests with a value that is unusable.
    pub(crate) fn on_invalid(&self) -> OnInvalid {
        self.on_invalid.unwrap_or_default()
    }

    /// The status of a rejection.
    pub(crate) fn status(&self) -> ngx_int_t {
        self.status.unwrap_or(429)
    }

    /// The status of a rejection for want of a decision.
    pub(crate) fn error_status(&self) -> ngx_int_t {
        self.error_status.unwrap_or(503)
    }

    /// The forms of the header fields.
    pub(crate) fn forms(&self) -> Forms {
        self.forms.unwrap_or(DEFAULT_FORMS)
    }

    /// The form of the body of a rejection.
    pub(crate) fn body(&self) -> body::Form {
        self.body.unwrap_or_default()
    }

    /// Whether requests are only counted and logged, not rejected or delayed.
    pub(crate) fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    /// The random time that is added to `Retry-After`, in µs: a new one for each request.
    pub(crate) fn jitter(&self) -> u64 {
        match self.retry_jitter {
            None | Some(0) => 0,
            // NGINX's random numbers have 31 bits.
            Some(most) => {
                jitter((most as u64).saturating_mul(MILLISECOND), (ngx_random() as u32) << 1)
            }
        }
    }

    /// Whether the deny cache is used.
    pub(crate) fn deny_cache(&self) -> bool {
        self.deny_cache.unwrap_or(true)
    }

    /// How long this machine may hold units that it has taken ahead, in µs; 0: it takes none.
    pub(crate) fn lease(&self) -> u64 {
        (self.lease.unwrap_or(0) as u64).saturating_mul(MILLISECOND)
    }

    /// How much of an IPv6 address stands for a client, in bits.
    pub(crate) fn ipv6_prefix(&self) -> u32 {
        self.ipv6_prefix.unwrap_or(DEFAULT_IPV6_PREFIX)
    }

    /// The form of the metrics page, unless the client chooses it.
    pub(crate) fn metrics(&self) -> Option<metrics::Form> {
        self.metrics.flatten()
    }

    /// The level at which rejections are logged.
    pub(crate) fn log_level(&self) -> ngx_uint_t {
        self.log.map_or(NGX_LOG_ERR as ngx_uint_t, |log| log.level)
    }

    /// The level at which delays are logged: one lower, as with `limit_req`.
    pub(crate) fn delay_log_level(&self) -> ngx_uint_t {
        self.log_level().saturating_add(1).min(NGX_LOG_INFO as ngx_uint_t)
    }

    /// How many lines about rejections and delays a worker writes in a second.
    pub(crate) fn log_rate(&self) -> u64 {
        self.log.map_or(DEFAULT_LOG_RATE, |log| log.rate)
    }

    /// Takes from the level above what this level does not set.
    pub(crate) fn inherit(&mut self, previous: &Self) {
        self.limits = self.limits.take().or_else(|| previous.limits.clone());
        self.pass = self.pass.take().or_else(|| previous.pass.clone());
        self.timeout = self.timeout.or(previous.timeout);
        self.on_error = self.on_error.or(previous.on_error);
        self.on_invalid = self.on_invalid.or(previous.on_invalid);
        self.status = self.status.or(previous.status);
        self.error_status = self.error_status.or(previous.error_status);
        self.forms = self.forms.or(previous.forms);
        self.body = self.body.or(previous.body);
        self.dry_run = self.dry_run.or(previous.dry_run);
        self.log = self.log.or(previous.log);
        self.retry_jitter = self.retry_jitter.or(previous.retry_jitter);
        self.ipv6_prefix = self.ipv6_prefix.or(previous.ipv6_prefix);
        self.deny_cache = self.deny_cache.or(previous.deny_cache);
        self.lease = self.lease.or(previous.lease);
        // For the blocks in a location that have no handler of their own, such as `if`.
        self.metrics = self.metrics.or(previous.metrics);
    }
}
