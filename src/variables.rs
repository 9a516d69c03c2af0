//! The variables of the module.

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_VAR_NOCACHEABLE, ngx_conf_t, ngx_http_add_variable, ngx_http_request_t,
    ngx_http_variable_value_t, ngx_int_t, ngx_str_t, ngx_uint_t,
};
use ngx::http::HttpModuleLocationConf;
use rate_limit_core::client_key;
use rate_limit_core::conf::Policy;
use rate_limit_core::decision::seconds;

use crate::Module;
use crate::context;
use crate::machine::Decisions;

/// A variable's name and its value; empty where there is none.
type Variable = (&'static str, fn(&Decisions) -> Option<String>);

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
static UNIX: [u8; 5] = *b"unix:";

/// The limits that reject the request, or would; else the one that is shown.
fn names(decisions: &Decisions) -> Option<String> {
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
    // SAFETY: NGINX passes a valid request, and a value to be filled in.
    unsafe {
        let text = context::decisions(r).and_then(|decisions| VARIABLES.get(index)?.1(&decisions));
        set(r, value, text)
    }
}

unsafe extern "C" fn get_client(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    _index: usize,
) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request, whose connection has an address of the family that it
    // names, with a text that lives as long as the request, and a value to be filled in.
    unsafe {
        let connection = (*r).connection;
        let address = (*connection).sockaddr;
        match libc::c_int::from((*address).sa_family) {
            libc::AF_INET => fill(value, (*connection).addr_text),
            libc::AF_INET6 => {
                let address = (*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                let conf = Module::location_conf(&*r.cast::<ngx::http::Request>());
                let default = || Policy::default().ipv6_prefix;
                let prefix = conf.map_or_else(default, |conf| conf.policy().ipv6_prefix);
                return set(r, value, Some(client_key::key(address.into(), prefix)));
            }
            // A client of a unix socket may choose the path that is its address.
            _ => fill(value, ngx_str_t { data: UNIX.as_ptr().cast_mut(), len: UNIX.len() }),
        }
        Status::NGX_OK.0
    }
}

/// Fills in the value of a variable.
///
/// # Safety
/// `r` and `value` must be valid.
unsafe fn set(
    r: *mut ngx_http_request_t,
    value: *mut ngx_http_variable_value_t,
    text: Option<String>,
) -> ngx_int_t {
    // SAFETY: passed on.
    unsafe {
        let Some(text) = text else {
            (*value).set_not_found(1);
            return Status::NGX_OK.0;
        };
        let Some(copy) = ngx_str_t::from_bytes((*r).pool, text.as_bytes()) else {
            return Status::NGX_ERROR.0;
        };
        fill(value, copy);
    }
    Status::NGX_OK.0
}

/// Makes `text` the value of a variable.
///
/// # Safety
/// `value` must be valid, and `text` live as long as it.
unsafe fn fill(value: *mut ngx_http_variable_value_t, text: ngx_str_t) {
    // SAFETY: the value is valid.
    unsafe {
        (*value).data = text.data;
        (*value).set_len(text.len as u32);
        (*value).set_valid(1);
        (*value).set_no_cacheable(0);
        (*value).set_not_found(0);
    }
}
