//! Errors of requests to the admin interface.

use crate::client::Error;
use crate::conf::limit::UnusableValue;
use crate::manage::Change;

/// Why a request is refused, or has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The method is not one of [`METHODS`](super::METHODS).
    #[error("the method must be one of {}", super::METHODS)]
    Method,
    /// There is no such argument.
    #[error("there is no argument \"{0}\"")]
    Unknown(String),
    /// An argument is there twice.
    #[error("\"{0}\" is there twice")]
    Repeated(&'static str),
    /// Two arguments exclude each other.
    #[error("\"{0}\" and \"{1}\" exclude each other")]
    Exclusive(&'static str, &'static str),
    /// An argument is not for this request.
    #[error("\"{0}\" does not apply to this request")]
    Unexpected(&'static str),
    /// A value is not percent-encoded.
    #[error("\"{0}\" has a percent sign without two hexadecimal digits")]
    Encoding(&'static str),
    /// A value is no text.
    #[error("\"{0}\" is not UTF-8")]
    NotUtf8(&'static str),
    /// An argument has a value, and takes none.
    #[error("\"{0}\" takes no value")]
    Value(&'static str),
    /// An argument is not there.
    #[error("\"{0}\" is missing")]
    Missing(&'static str),
    /// The name of the limit is empty: no limit has such a name.
    #[error("\"limit\" is empty: it must be the name of a limit")]
    EmptyLimit,
    /// The key is empty: a request with such a key is not limited.
    #[error("\"key\" is empty, and a client with an empty key is not limited")]
    EmptyKey,
    /// A value cannot be used.
    #[error(transparent)]
    Unusable(#[from] UnusableValue),
    /// The line of the limit blocks clients for less long, and its scripts know no longer block.
    #[error(
        "the limit \"{0}\" has \"block=\", and blocks no client for longer than that: add \"override\" to its \
         \"rate_limit_redis\" line"
    )]
    Block(String),
    /// The limit has variables, and the request does not say what they would be.
    #[error(
        "the limit has a variable in \"{parameter}\": add \"{argument}\" with its value for this client"
    )]
    Variable {
        /// The parameter of the line.
        parameter: &'static str,
        /// The argument that is missing.
        argument: &'static str,
    },
    /// There is no such limit.
    #[error("there is no limit \"{0}\"")]
    UnknownLimit(String),
    /// The clients of the limit have no overrides.
    #[error(
        "the limit \"{0}\" has no overrides: add \"override\" to its \"rate_limit_redis\" line"
    )]
    NoOverride(String),
    /// A subrequest cannot wait for Redis.
    #[error("a subrequest cannot look a client up")]
    Subrequest,
    /// Redis has not done it.
    #[error("{}{}", reason(*.0), effect(*.0))]
    Redis(Error),
    /// Redis has not answered a lookup.
    #[error("{}", reason(*.0))]
    Lookup(Error),
}

impl AdminError {
    /// The status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Method => 405,
            Self::UnknownLimit(_) => 404,
            Self::NoOverride(_) | Self::Block(_) => 409,
            Self::Redis(_) | Self::Lookup(_) => 503,
            _ => 400,
        }
    }

    /// The error that Redis has not done what a request of this change needs.
    pub fn of_redis(error: Error, change: Change) -> Self {
        match change {
            Change::Look => Self::Lookup(error),
            _ => Self::Redis(error),
        }
    }

    /// The error that the value of an argument is not what it must be.
    pub(super) fn invalid(name: &'static str, value: &str, reason: &str) -> Self {
        UnusableValue::invalid(name, value, reason.to_owned()).into()
    }
}

/// Why a command has no reply.
fn reason(error: Error) -> &'static str {
    match error {
        Error::Down => "Redis is down",
        Error::Overload => "too many requests wait for Redis",
        Error::Refused => "Redis has refused it, see the error log",
        Error::Timeout => "Redis has not replied in time",
        Error::Lost => "the connection to Redis was lost",
    }
}

/// The effect of a command without a reply that was to change something.
fn effect(error: Error) -> &'static str {
    match error {
        Error::Down | Error::Overload => ", nothing was changed",
        Error::Refused => ": nothing was changed, unless a script has failed halfway",
        Error::Timeout => ": a change may have been made, or is yet to be made",
        Error::Lost => ": a change may have been made",
    }
}
