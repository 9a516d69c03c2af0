//! The border to NGINX: what it passes to callbacks, as types with safe methods. One is made at the start of a
//! callback, and the code behind it needs no `unsafe` to use it.

mod address;
mod bits;
mod content;
pub(crate) mod event;
mod fields;
mod request;

pub(crate) use address::Address;
pub(crate) use request::{OutOfMemory, Request, Step, bytes};
