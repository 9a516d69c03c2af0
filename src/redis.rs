//! Redis on NGINX's own event loop.
//!
//! A [`Deployment`] is a store as one worker knows it: its [`Node`](node::Node)s, and which of them
//! decides what. A node is a server, with its [`Connection`](connection::Connection)s, each of which
//! lends NGINX's events to a [`Link`](rate_limit_core::redis::link::Link) of the pure crate: it
//! connects, receives, sends once a turn of the event loop, and keeps the timers. A [`Pending`] is
//! what one request asks; each [`Part`](part::Part) of it is one command.

use ngx::ffi::{ngx_current_msec, ngx_cycle, ngx_log_t};

mod address;
mod chain;
mod connection;
mod deployment;
mod gift;
mod node;
mod part;
mod pending;
mod recent;
mod resolve;
mod socket;
#[cfg_attr(not(ngx_feature = "ssl"), path = "redis/no_tls.rs")]
pub(crate) mod tls;
mod waiter;

pub(crate) use address::SocketAddress;
pub(crate) use deployment::Deployment;
pub(crate) use pending::{Asked, Pending};
pub(crate) use waiter::SCRIPTS;

/// The time of this turn of the event loop, in ms.
fn now() -> u64 {
    // SAFETY: only NGINX writes it, in this thread.
    unsafe { ngx_current_msec as u64 }
}

fn cycle_log() -> *mut ngx_log_t {
    // SAFETY: a process that runs modules has a cycle, and a cycle has a log.
    unsafe { (*ngx_cycle).log }
}
