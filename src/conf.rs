//! The configuration, as requests, variables and the metrics page read it; and errors of limits that are not those of a line.

use rate_limit_core::conf::limit::LimitError;

use crate::nginx::OutOfMemory;

mod definition;
mod levels;
mod limit;
mod store;
mod value;

pub(crate) use levels::{AdminLocation, LocationConf, MainConf, Pass, ServerConf};
pub(crate) use limit::{Bound, LimitConf};
pub(crate) use store::{Keys, Store};
pub(crate) use value::ComplexValue;

/// Why a limit cannot have its name or its store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error(
        "the limit \"{name}\" cannot be \"{written}\", as it is already defined as \"{first}\" in \
         {place}; add \"name=\" to give this one a name, and a budget, of its own"
    )]
    Redefined { name: &'static str, written: String, first: String, place: String },
    #[error(
        "the limit \"{name}\" of {place} has another store, {store}, than {other} in {first}; add \"name=\" \
         to give it a name of its own, or set \"rate_limit_redis_pass\" at the level of the limit"
    )]
    Rebound { name: &'static str, place: String, store: String, other: String, first: String },
    #[error(transparent)]
    Name(#[from] LimitError),
    #[error("no such store")]
    NoStore,
}

/// A text cannot be a part of a line: NGINX does not compile it, and has logged why unless it is out of memory.
#[derive(Debug, thiserror::Error)]
#[error("invalid value \"{0}\" in \"rate_limit_redis\" directive")]
pub(crate) struct CompileError(&'static str);

/// Why a limit has no values for a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvaluateError {
    /// A variable has a value that cannot be used.
    #[error(transparent)]
    Unusable(#[from] LimitError),
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}
