//! The configuration, as requests, variables and the metrics page read it.

mod definition;
mod error;
mod http;
mod limit;
mod location;
pub(crate) mod parameter;
mod store;
mod value;

pub(crate) use error::LimitError;
pub(crate) use http::MainConf;
pub(crate) use limit::{Effect, Limit, Parameters, Phase};
pub(crate) use location::{
    DEFAULT_IPV6_PREFIX, DEFAULT_LEASE, DEFAULT_LOG_RATE, LocationConf, LogLimit, OnError,
    OnInvalid, Pass,
};
pub(crate) use store::Store;
pub(crate) use value::{ComplexValue, Setting, has_variable, variable};
