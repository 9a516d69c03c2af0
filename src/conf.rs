//! The configuration, as requests, variables and the metrics page read it; and errors of limits that are not those of a line.

use rate_limit_core::conf::limit::{LimitError, NameError};

use crate::nginx::OutOfMemory;

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
    #[error(transparent)]
    Definition(#[from] NameError),
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
