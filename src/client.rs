//! The Redis client on NGINX's own event loop.
//!
//! Its logic is in [`rate_limit_core::client`]; here are NGINX's sockets, timers, TLS and resolver.

use once_cell::sync::Lazy;
use rate_limit_core::redis::script::Scripts;

mod driver;
mod password;
mod resolver;
mod socket;
#[cfg_attr(not(ngx_feature = "ssl"), path = "client/no_tls.rs")]
pub(crate) mod tls;

pub(crate) use driver::Driver;
pub(crate) use password::PasswordFile;
pub(crate) use socket::{SocketAddress, target};

/// The scripts of the module that do not depend on the configuration.
pub(crate) static SCRIPTS: Lazy<Scripts> = Lazy::new(Scripts::new);
