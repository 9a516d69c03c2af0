//! The Redis client on NGINX's own event loop.
//!
//! Its logic is in [`rate_limit_core::client`]; here are NGINX's sockets, timers, TLS and resolver.

mod driver;
mod password;
mod resolver;
mod socket;
#[cfg_attr(not(ngx_feature = "ssl"), path = "client/no_tls.rs")]
pub(crate) mod tls;

pub(crate) use driver::Driver;
pub(crate) use password::PasswordFile;
pub(crate) use socket::socket_address;
