//! The directives: one row for each.

use std::ffi::CStr;

use super::directive::{Directive, DirectiveError};
use super::policy::{
    self, LogKey, LogLevel, LogLimit, MOST_TOP_KEYS, OnError, OnInvalid, USUAL_LOG_RATE,
};
use crate::key::Prefixes;
use crate::text::fields::{Forms, Reset};
use crate::text::{body, metrics};

/// A directive of the module.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, as a text of C.
    pub name: &'static CStr,
    /// Where it may stand.
    pub contexts: Contexts,
    /// The arguments that may follow its name.
    pub arguments: Arguments,
    /// The values that it sets.
    pub sets: Sets,
}

/// Where a directive may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// In `http`, in a server and in a location.
    Everywhere,
    /// In `http`.
    Http,
    /// In a location.
    Location,
}

/// How many arguments a directive may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// None.
    None,
    /// None or one.
    AtMostOne,
    /// One.
    One,
    /// One or two.
    OneOrTwo,
    /// One or more.
    OneOrMore,
    /// One, and a block.
    OneAndBlock,
}

/// The values that a directive sets.
#[derive(Clone, Copy, Debug)]
pub enum Sets {
    /// A limit, or none for `off`. A level without any inherits those of the level above.
    Limit,
    /// The store of limits, by a URL or by the name of a block. It is inherited.
    Pass {
        /// The URL where no level has the directive.
        default: &'static str,
    },
    /// A store, by a block.
    Store,
    /// The size of the memory that workers share.
    Memory {
        /// Reads the size, in bytes.
        read: fn(&Directive<'_>) -> Result<u64, DirectiveError>,
        /// The size without the directive, in bytes.
        default: u64,
    },
    /// How many keys of each limit are kept as those that were rejected most.
    Top {
        /// Reads the number.
        read: fn(&Directive<'_>) -> Result<u64, DirectiveError>,
        /// The number without the directive.
        default: u64,
    },
    /// A value of the policy.
    Policy(SetPolicy),
    /// A value of the policy, and the metrics page as the handler of the location.
    Page(SetPolicy),
    /// The admin interface as the handler of the location.
    Admin,
}

/// Sets what a directive says. It returns what to warn of, if there is anything.
pub type SetPolicy = fn(&mut PolicyLevel, &Directive<'_>) -> Result<Option<String>, DirectiveError>;

/// Makes the table, and from the rows of the policy its types and the inheritance.
macro_rules! directives {
    (
        rows {$($row:literal, $row_contexts:ident, $row_arguments:ident, $row_sets:expr;)+}
        policy {$(
            $(#[$doc:meta])+
            $field:ident: $type:ty = $default:expr,
                $name:literal, $contexts:ident, $arguments:ident,
                $sets:ident by $read:path $(, warns of $doubt:path)?;
        )+}
    ) => {
        /// Every directive.
        pub const DIRECTIVES: &[Row] = &[
            $(Row {
                name: $row,
                contexts: Contexts::$row_contexts,
                arguments: Arguments::$row_arguments,
                sets: $row_sets,
            },)+
            $(Row {
                name: $name,
                contexts: Contexts::$contexts,
                arguments: Arguments::$arguments,
                sets: Sets::$sets(|level, line| {
                    let value = $read(line)?;
                    line.once(&mut level.$field, value)?;
                    Ok(None$(.or_else(|| $doubt(line, value)))?)
                }),
            },)+
        ];

        /// The values that apply to the requests of a location besides its limits and their store.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Policy {
            $($(#[$doc])+ pub $field: $type,)+
        }

        impl Default for Policy {
            /// The policy where no level has any of the directives.
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// The values that the directives of one level set; `None` where there is none.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PolicyLevel {
            $($field: Option<$type>,)+
        }

        impl PolicyLevel {
            /// Takes from the level above what this level does not set.
            pub fn inherit(&mut self, above: &Self) {
                $(self.$field = self.$field.or(above.$field);)+
            }

            /// The policy, with the default of what is not set.
            pub fn policy(&self) -> Policy {
                let default = Policy::default();
                Policy { $($field: self.$field.unwrap_or(default.$field),)+ }
            }
        }
    };
}

directives! {
    rows {
        c"rate_limit_redis", Everywhere, OneOrMore, Sets::Limit;
        c"rate_limit_redis_pass", Everywhere, One, Sets::Pass { default: DEFAULT_STORE };
        c"rate_limit_redis_store", Http, OneAndBlock, Sets::Store;
        c"rate_limit_redis_shared_memory", Http, One,
            Sets::Memory { read: |line| line.size(policy::LEAST_MEMORY), default: DEFAULT_MEMORY };
        c"rate_limit_redis_admin", Location, None, Sets::Admin;
        c"rate_limit_redis_top", Http, One,
            Sets::Top { read: |line| line.number::<0, { MOST_TOP_KEYS as u64 }>(), default: 0 };
    }
    policy {
        /// How long a request may wait for its decision, in ms.
        timeout: u64 = 20,
            c"rate_limit_redis_timeout", Everywhere, One,
            Policy by Directive::time, warns of policy::long_timeout;
        /// The treatment of requests that Redis does not decide.
        on_error: OnError = OnError::Open,
            c"rate_limit_redis_on_error", Everywhere, One, Policy by Directive::choice;
        /// The treatment of requests with a value that is unusable.
        on_invalid: OnInvalid = OnInvalid::Reject,
            c"rate_limit_redis_on_invalid", Everywhere, One, Policy by Directive::choice;
        /// The status of a rejection.
        status: u16 = 429,
            c"rate_limit_redis_status", Everywhere, One, Policy by policy::status;
        /// The status of a rejection for want of a decision.
        error_status: u16 = 503,
            c"rate_limit_redis_error_status", Everywhere, One, Policy by policy::status;
        /// The forms of the header fields.
        forms: Forms = Forms { x_ratelimit: Some(Reset::Seconds), ratelimit: false, ietf: false },
            c"rate_limit_redis_headers", Everywhere, OneOrMore, Policy by policy::header_forms;
        /// The form of the body of a rejection.
        body: body::BodyForm = body::BodyForm::Html,
            c"rate_limit_redis_body", Everywhere, One, Policy by Directive::choice;
        /// Whether requests are only counted and logged, not rejected or delayed.
        dry_run: bool = false,
            c"rate_limit_redis_dry_run", Everywhere, One, Policy by Directive::choice;
        /// How rejections and delays are logged.
        log: LogLimit = LogLimit { level: LogLevel::Error, rate: USUAL_LOG_RATE },
            c"rate_limit_redis_log_level", Everywhere, OneOrTwo, Policy by policy::log_limit;
        /// Whether lines about decisions show the key, and in which form.
        log_key: LogKey = LogKey::On,
            c"rate_limit_redis_log_key", Everywhere, One, Policy by Directive::choice;
        /// The most that is added to `Retry-After`, in ms.
        retry_jitter: u64 = 0,
            c"rate_limit_redis_retry_jitter", Everywhere, One, Policy by Directive::time_or_zero;
        /// How much of an IPv4 address stands for a client, in bits.
        ipv4_prefix: u32 = 32,
            c"rate_limit_redis_ipv4_prefix", Everywhere, One, Policy by policy::prefix::<32>;
        /// How much of an IPv6 address stands for a client, in bits.
        ipv6_prefix: u32 = 64,
            c"rate_limit_redis_ipv6_prefix", Everywhere, One, Policy by policy::prefix::<128>;
        /// Whether the deny cache is used.
        deny_cache: bool = true,
            c"rate_limit_redis_deny_cache", Everywhere, One, Policy by Directive::choice;
        /// How long this machine may hold units that it has taken ahead, in ms; 0: it takes none.
        lease: u64 = 0,
            c"rate_limit_redis_lease", Everywhere, One, Policy by policy::lease;
        /// The form of the metrics page, unless the client chooses it. The blocks in a location that have no
        /// handler of their own, such as `if`, inherit it.
        page: Option<metrics::PageForm> = None,
            c"rate_limit_redis_metrics", Location, AtMostOne, Page by policy::page_form;
    }
}

/// The store of limits without `rate_limit_redis_pass`.
pub const DEFAULT_STORE: &str = "redis://127.0.0.1:6379";

/// The size of the shared memory without `rate_limit_redis_shared_memory`, in bytes.
pub const DEFAULT_MEMORY: u64 = 8 << 20;

impl Policy {
    /// How much of an address stands for a client.
    pub fn prefixes(&self) -> Prefixes {
        Prefixes { ipv4: self.ipv4_prefix, ipv6: self.ipv6_prefix }
    }
}

impl Row {
    /// The row of the directive of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        DIRECTIVES.iter().find(|row| row.name.to_bytes() == name.as_bytes())
    }
}

#[cfg(test)]
mod tests;
