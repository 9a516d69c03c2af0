//! The variables of the module.

use std::net::IpAddr;

use ngx::core::Status;
use ngx::ffi::{ngx_http_request_t, ngx_http_variable_value_t, ngx_int_t};
use rate_limit_core::conf::Policy;
use rate_limit_core::decision::seconds;

use crate::context::Context;
use crate::machine::Decisions;
use crate::nginx::{Conf, OutOfMemory, Request};

/// A variable's name and its value; empty where there is none.
type Variable = (&'static str, fn(&Decisions<'_>) -> Option<String>);

static VARIABLES: [Variable; 8] = [
    ("rate_limit_redis_status", |it| Some(it.decision.status.name().to_owned())),
    ("rate_limit_redis_name", names),
    ("rate_limit_redis_limit", |it| Some(it.decision.shown?.quota.limit().to_string())),
    ("rate_limit_redis_remaining", |it| Some(it.decision.shown?.verdict.remaining.to_string())),
    ("rate_limit_redis_reset", |it| Some(seconds(it.shown()?.verdict.reset).to_string())),
    ("rate_limit_redis_retry_after", |it| Some(it.decision.retry_after()?.to_string())),
    ("rate_limit_redis_source", |it| Some(it.decision.source.name().to_owned())),
    ("rate_limit_redis_time", |it| {
        let (seconds, micros) = (it.decision.wait / 1_000_000, it.decision.wait % 1_000_000);
        Some(format!("{seconds}.{micros:06}"))
    }),
];

const CLIENT: &str = "rate_limit_redis_client";

/// The key of every client of a unix socket.
const UNIX: &[u8] = b"unix:";

/// The limits that reject the request, or would; else the one that is shown.
fn names(decisions: &Decisions<'_>) -> Option<String> {
    let violated: Vec<_> = match decisions.decision.status.is_rejection() {
        true => decisions.violated().collect(),
        false => Vec::new(),
    };
    match violated.is_empty() {
        true => Some(decisions.decision.shown?.name.to_owned()),
        false => Some(violated.join(", ")),
    }
}

/// Registers the variables in the preconfiguration; `None` if NGINX cannot add one.
pub(crate) fn register(cf: &mut Conf) -> Option<()> {
    for (index, (name, _)) in VARIABLES.iter().enumerate() {
        cf.add_variable(name, get, index)?;
    }
    cf.add_variable(CLIENT, get_client, 0)
}

unsafe extern "C" fn get(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    index: usize,
) -> ngx_int_t {
    let text = |r: Request<'_>| VARIABLES.get(index)?.1(&Context::find(r)?.decisions()?);
    // SAFETY: NGINX passes a request, and a place for a value of it, which nothing refers to meanwhile.
    unsafe {
        Request::within(r, |r| {
            put(r, value, text(r).map(|text| r.copy(text.as_bytes())).transpose())
        })
    }
}

unsafe extern "C" fn get_client(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    _index: usize,
) -> ngx_int_t {
    // SAFETY: NGINX passes a request and a place, as to `get`.
    unsafe { Request::within(r, |r| put(r, value, client(r).map(Some))) }
}

/// The key of a client.
fn client(r: Request<'_>) -> Result<&[u8], OutOfMemory> {
    let default = || Policy::default().prefixes();
    let prefixes = r.location_conf().map_or_else(default, |conf| conf.policy.prefixes());
    match r.address() {
        Some((IpAddr::V4(_), text)) if prefixes.keep_ipv4() => Ok(text),
        Some((address, _)) => r.copy(&prefixes.key(address)),
        // A client of a unix socket may choose the path that is its address.
        None => Ok(UNIX),
    }
}

/// Puts the value of a variable of a request into its place; `None` is "not found". It is written as a whole: where NGINX
/// evaluates a variable by its name the place is memory that nothing has been written to.
///
/// # Safety
/// `place` must be one that NGINX passes to the function of a variable.
unsafe fn put<'r>(
    _r: Request<'r>,
    place: *mut ngx_http_variable_value_t,
    text: Result<Option<&'r [u8]>, OutOfMemory>,
) -> ngx_int_t {
    let Ok(text) = text else { return Status::NGX_ERROR.0 };
    let (valid, not_found) = (text.is_some().into(), text.is_none().into());
    let text = text.unwrap_or_default();
    let length = text.len() as u32;
    let (no_cacheable, escape) = (0, 0);
    let bits =
        ngx_http_variable_value_t::new_bitfield_1(length, valid, no_cacheable, not_found, escape);
    let value = ngx_http_variable_value_t {
        _bitfield_align_1: [],
        _bitfield_1: bits,
        data: text.as_ptr().cast_mut(),
    };
    // SAFETY: passed on.
    unsafe { place.write(value) };
    Status::NGX_OK.0
}
