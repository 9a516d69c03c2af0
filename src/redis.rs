//! Redis on NGINX's own event loop.
//!
//! A [`Node`] is a worker's connection to one server. It lends NGINX's events to the
//! [`Link`](rate_limit_core::redis::link::Link) of the pure crate: it connects, receives, sends
//! once a turn of the event loop, and keeps the timers. A [`Pending`] is one request's question
//! to it.

mod node;
mod pending;
mod socket;
#[cfg_attr(not(ngx_feature = "ssl"), path = "redis/no_tls.rs")]
pub(crate) mod tls;

pub(crate) use node::Node;
pub(crate) use pending::{Asked, Pending};
