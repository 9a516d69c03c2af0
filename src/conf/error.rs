//! Errors of a limit.

use rate_limit_core::limit::{Algorithm, QuotaError};
use rate_limit_core::text::log::Escaped;

/// Why a `rate_limit_redis` line is refused, or the value of a variable in it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error("\"rate_limit_redis\" must have a key before its parameters, such as $remote_addr")]
    NoKey,
    #[error("\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s")]
    NoRate,
    #[error("\"rate_limit_redis off\" takes no parameters")]
    OffWithParameters,
    #[error(
        "\"rate_limit_redis off\" cannot stand beside another \"rate_limit_redis\" of the same level"
    )]
    OffBesideAnother,
    #[error("duplicate \"{0}\" in \"rate_limit_redis\" directive")]
    Duplicate(String),
    #[error("invalid parameter \"{0}\" in \"rate_limit_redis\" directive")]
    Unknown(String),
    #[error("\"delay=\" and \"nodelay\" of the \"rate_limit_redis\" directive exclude each other")]
    DelayAndNodelay,
    #[error("\"block=\" and \"dry_run\" of the \"rate_limit_redis\" directive exclude each other")]
    BlockAndDryRun,
    #[error(
        "\"{parameter}\" in \"rate_limit_redis\" directive is no parameter of algorithm={}, which has {}",
        algorithm.name(), own_parameters(*algorithm)
    )]
    Foreign { parameter: String, algorithm: Algorithm },
    #[error(
        "invalid {parameter} \"{}\" in \"rate_limit_redis\" directive: {reason}",
        Escaped(value.as_bytes())
    )]
    Invalid { parameter: &'static str, value: String, reason: String },
    /// A value that NGINX does not compile; it has logged why.
    #[error("invalid value \"{0}\" in \"rate_limit_redis\" directive")]
    Uncompiled(&'static str),
    #[error("\"{parameter}={value}\" in \"rate_limit_redis\" directive {error}")]
    Quota { parameter: &'static str, value: String, error: QuotaError },
    #[error(
        "the limit \"{name}\" cannot be \"{written}\", as it is already defined as \"{first}\" in \
         {place}; add \"name=\" to give this one a name of its own"
    )]
    Redefined { name: &'static str, written: String, first: String, place: String },
    #[error(
        "the limit \"{name}\" of {place} has another store, {store}, than {other} in {first}; add \"name=\" \
         to give it a name of its own, or set \"rate_limit_redis_pass\" at the level of the limit"
    )]
    Rebound { name: &'static str, place: String, store: String, other: String, first: String },
    #[error("no such store")]
    NoStore,
    #[error("out of memory")]
    OutOfMemory,
}

impl LimitError {
    /// The value of a parameter is invalid.
    pub(crate) fn invalid(parameter: &'static str, value: &str, expected: &str) -> Self {
        let reason = format!("it must be {expected}");
        Self::Invalid { parameter, value: value.to_owned(), reason }
    }

    /// The name of a limit is invalid.
    pub(crate) fn name(name: &str) -> Self {
        Self::invalid("name", name, "1 to 64 of A-Z a-z 0-9 _ - .")
    }
}

/// The parameters that not every algorithm has.
fn own_parameters(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::IntervalBucket => "\"capacity=\" and \"refill=\"",
        Algorithm::Gcra => "\"burst=\"",
        Algorithm::LeakyBucket => "\"burst=\", \"delay=\" and \"nodelay\"",
        Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::FixedWindow
        | Algorithm::CalendarWindow => "none of its own",
    }
}
