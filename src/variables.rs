//! The variables of the module.

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_VAR_NOCACHEABLE, ngx_conf_t, ngx_http_add_variable, ngx_http_request_t,
    ngx_http_variable_value_t, ngx_int_t, ngx_str_t, ngx_uint_t,
};
use rate_limit_core::client_key;
use rate_limit_core::conf::Policy;
use rate_limit_core::decision::seconds;

use crate::context;
use crate::machine::Decisions;
use crate::nginx::{Address, OutOfMemory, Request};

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

type Get = unsafe extern "C" fn(
    *mut ngx_http_request_t,
    *mut ngx_http_variable_value_t,
    usize,
) -> ngx_int_t;

/// Registers the variables.
///
/// Safe to call with the context that NGINX passes to a module's preconfiguration.
pub(crate) fn register(cf: *mut ngx_conf_t) -> Status {
    let decision =
        VARIABLES.iter().enumerate().map(|(index, (name, _))| (*name, get as Get, index));
    for (name, get, index) in decision.chain([(CLIENT, get_client as Get, 0)]) {
        let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        // SAFETY: NGINX copies the name, and reads the rest when the variable is used.
        unsafe {
            let flags = NGX_HTTP_VAR_NOCACHEABLE as ngx_uint_t;
            let Some(variable) = ngx_http_add_variable(cf, &mut name, flags).as_mut() else {
                return Status::NGX_ERROR;
            };
            variable.get_handler = Some(get);
            variable.data = index;
        }
    }
    Status::NGX_OK
}

unsafe extern "C" fn get(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    index: usize,
) -> ngx_int_t {
    let text = |r: Request<'_>| VARIABLES.get(index)?.1(&context::decisions(r)?);
    // SAFETY: NGINX passes a request, and a value of it to be filled in.
    unsafe { Request::within(r, |r| set(&mut *value, r, text(r))) }
}

unsafe extern "C" fn get_client(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    _index: usize,
) -> ngx_int_t {
    // SAFETY: as above.
    unsafe { Request::within(r, |r| set_client(&mut *value, r)) }
}

fn set_client(value: &mut ngx_http_variable_value_t, r: Request<'_>) -> ngx_int_t {
    match r.address() {
        Address::V4(text) => fill(value, r, text),
        Address::V6(address) => {
            let default = || Policy::default().ipv6_prefix;
            let prefix = r.location_conf().map_or_else(default, |conf| conf.policy().ipv6_prefix);
            return set(value, r, Some(client_key::key(address, prefix)));
        }
        // A client of a unix socket may choose the path that is its address.
        Address::Other => fill(value, r, UNIX),
    }
    Status::NGX_OK.0
}

/// Makes a copy of `text` the value of a variable of a request.
fn set(value: &mut ngx_http_variable_value_t, r: Request<'_>, text: Option<String>) -> ngx_int_t {
    let Some(text) = text else {
        value.set_not_found(1);
        return Status::NGX_OK.0;
    };
    match r.copy(text.as_bytes()) {
        Ok(copy) => fill(value, r, copy),
        Err(OutOfMemory) => return Status::NGX_ERROR.0,
    }
    Status::NGX_OK.0
}

/// Makes `text` the value of a variable of a request, which it must outlive.
fn fill<'r>(value: &mut ngx_http_variable_value_t, _r: Request<'r>, text: &'r [u8]) {
    value.data = text.as_ptr().cast_mut();
    value.set_len(text.len() as u32);
    value.set_valid(1);
    value.set_no_cacheable(0);
    value.set_not_found(0);
}
