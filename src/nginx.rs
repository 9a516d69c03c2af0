//! The border to NGINX: what it passes to callbacks, as types with safe methods. One is made at the start of a
//! callback, and the code behind it needs no `unsafe` to use it.

mod address;
mod bits;
pub(crate) mod cleanup;
pub(crate) mod conf;
pub(crate) mod event;
mod request;

pub(crate) use address::ip_address;
pub(crate) use conf::Conf;
pub(crate) use request::{OutOfMemory, Request, Step, bytes};
