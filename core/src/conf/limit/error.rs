//! Errors of a limit.

use crate::conf::DirectiveError;
use crate::limit::{Algorithm, QuotaError};
use crate::text::log::Escaped;

/// Why a `rate_limit_redis` line is refused, or the value of a variable in it.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// There is no key.
    #[error("\"rate_limit_redis\" must have a key before its parameters, such as $remote_addr")]
    NoKey,
    /// There is no rate.
    #[error("\"rate_limit_redis\" must have the \"rate=\" parameter, such as rate=10r/s")]
    NoRate,
    /// `off` and more.
    #[error("\"rate_limit_redis off\" takes no parameters")]
    OffWithParameters,
    /// `off` and another line at one level.
    #[error(
        "\"rate_limit_redis off\" cannot stand beside another \"rate_limit_redis\" of the same level"
    )]
    OffBesideAnother,
    /// A parameter is there twice.
    #[error("duplicate \"{0}\" in \"rate_limit_redis\" directive")]
    Duplicate(String),
    /// There is no such parameter.
    #[error("invalid parameter \"{0}\" in \"rate_limit_redis\" directive")]
    Unknown(String),
    /// `delay=` and `nodelay`.
    #[error("\"delay=\" and \"nodelay\" of the \"rate_limit_redis\" directive exclude each other")]
    DelayAndNodelay,
    /// `block=` and `dry_run`.
    #[error("\"block=\" and \"dry_run\" of the \"rate_limit_redis\" directive exclude each other")]
    BlockAndDryRun,
    /// `override` where the rate or the capacity is a variable.
    #[error(
        "\"override\" of the \"rate_limit_redis\" directive needs a rate, and a capacity or burst, without variables"
    )]
    OverrideAndVariable,
    /// Another algorithm has the parameter.
    #[error(
        "\"{parameter}\" in \"rate_limit_redis\" directive is no parameter of algorithm={}, which has {}",
        algorithm.name(), algorithm.own_parameters()
    )]
    Foreign {
        /// The parameter as it is written.
        parameter: String,
        /// The algorithm of the line.
        algorithm: Algorithm,
    },
    /// The value of a parameter is not what it must be.
    #[error(
        "invalid {parameter} \"{}\" in \"rate_limit_redis\" directive: {reason}",
        Escaped(value.as_bytes())
    )]
    Invalid {
        /// The name of the parameter.
        parameter: &'static str,
        /// The value.
        value: String,
        /// Why.
        reason: String,
    },
    /// The values of rate and burst are valid, but no quota together.
    #[error("\"{parameter}={value}\" in \"rate_limit_redis\" directive {error}")]
    Quota {
        /// The name of the parameter that is too much.
        parameter: &'static str,
        /// The value.
        value: String,
        /// Why.
        error: QuotaError,
    },
    /// A word is no text.
    #[error(transparent)]
    Word(#[from] DirectiveError),
}

impl LimitError {
    /// The error that the value of a parameter is not what it must be.
    pub(super) fn invalid(parameter: &'static str, value: &str, expected: &str) -> Self {
        let reason = format!("it must be {expected}");
        Self::Invalid { parameter, value: value.to_owned(), reason }
    }

    /// The error that the name of a limit is none.
    pub fn name(name: &str) -> Self {
        Self::invalid("name", name, "1 to 64 of A-Z a-z 0-9 _ - .")
    }

    /// The error that `name=value` is no parameter of the algorithm.
    pub(super) fn foreign(name: &str, value: &str, algorithm: Algorithm) -> Self {
        Self::Foreign { parameter: format!("{name}={value}"), algorithm }
    }
}
