//! The configuration, as requests, variables and the metrics page read it.

mod definition;
mod error;
mod http;
mod limit;
mod location;
mod server;
mod store;
mod value;

pub(crate) use error::{BindError, CompileError, EvaluateError};
pub(crate) use http::{AdminLocation, MainConf};
pub(crate) use limit::LimitConf;
pub(crate) use location::{LocationConf, Pass};
pub(crate) use server::ServerConf;
pub(crate) use store::{Keys, Store};
pub(crate) use value::ComplexValue;
