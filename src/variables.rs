//! What is known of the decision, as variables.

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_VAR_NOCACHEABLE, ngx_conf_t, ngx_http_add_variable, ngx_http_request_t,
    ngx_http_variable_value_t, ngx_int_t, ngx_str_t, ngx_uint_t,
};
use rate_limit_core::decision::{Decision, seconds};

use crate::request::Context;

/// A variable's name and its value; empty where there is none.
type Variable = (&'static str, fn(&Decision<'_>) -> Option<String>);

static VARIABLES: [Variable; 8] = [
    ("rate_limit_redis_status", |decision| Some(decision.status.name().to_owned())),
    ("rate_limit_redis_name", |decision| Some(decision.shown?.name.to_owned())),
    ("rate_limit_redis_limit", |decision| Some(decision.shown?.limit.to_string())),
    ("rate_limit_redis_remaining", |decision| Some(decision.shown?.verdict.remaining.to_string())),
    ("rate_limit_redis_reset", |decision| Some(seconds(decision.shown?.verdict.reset).to_string())),
    ("rate_limit_redis_retry_after", |decision| Some(decision.retry_after()?.to_string())),
    ("rate_limit_redis_source", |decision| Some(decision.source.name().to_owned())),
    ("rate_limit_redis_time", |decision| {
        let (seconds, micros) = (decision.wait / 1_000_000, decision.wait % 1_000_000);
        Some(format!("{seconds}.{micros:06}"))
    }),
];

/// Makes the variables known to NGINX.
///
/// Safe to call with the context that NGINX passes to a module's preconfiguration.
pub(crate) fn register(cf: *mut ngx_conf_t) -> Status {
    for (index, (name, _)) in VARIABLES.iter().enumerate() {
        let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        // SAFETY: NGINX copies the name, and reads the rest when a request asks for the variable.
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
        let decision = Context::find(r).and_then(Context::decision);
        let text = decision
            .as_ref()
            .zip(VARIABLES.get(index))
            .and_then(|(decision, (_, show))| show(decision));
        let Some(text) = text else {
            (*value).set_not_found(1);
            return Status::NGX_OK.0;
        };
        let Some(copy) = ngx_str_t::from_bytes((*r).pool, text.as_bytes()) else {
            return Status::NGX_ERROR.0;
        };
        (*value).data = copy.data;
        (*value).set_len(copy.len as u32);
        (*value).set_valid(1);
        (*value).set_no_cacheable(0);
        (*value).set_not_found(0);
    }
    Status::NGX_OK.0
}
