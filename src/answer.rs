//! What the client is told: header fields on every answer of a limited location.

use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    ngx_http_output_header_filter_pt, ngx_http_request_t, ngx_http_top_header_filter, ngx_int_t,
    ngx_list_push, ngx_str_t, ngx_table_elt_t,
};
use rate_limit_core::text::fields::{Field, retry_after, x_ratelimit};

use crate::request::Context;

/// The header filter that stood first before ours.
static mut NEXT: ngx_http_output_header_filter_pt = None;

/// Puts our header filter before all others. NGINX makes the chain anew for each configuration.
pub(crate) fn register() {
    // SAFETY: NGINX reads the configuration in one thread, and serves requests in one.
    unsafe {
        NEXT = ngx_http_top_header_filter;
        ngx_http_top_header_filter = Some(header_filter);
    }
}

unsafe extern "C" fn header_filter(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request.
    unsafe {
        if ptr::eq(r, (*r).main)
            && let Some(context) = Context::find(r)
            && add_fields(r, context).is_none()
        {
            return Status::NGX_ERROR.0;
        }
        match NEXT {
            Some(next) => next(r),
            None => Status::NGX_OK.0,
        }
    }
}

/// Adds what the decision says; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
unsafe fn add_fields(r: *mut ngx_http_request_t, context: &Context) -> Option<()> {
    let Some(decision) = context.decision() else { return Some(()) };
    let shown = decision.shown.filter(|_| context.conf().x_ratelimit());
    let fields = shown.iter().flat_map(x_ratelimit);
    for field in fields.chain(decision.retry_after().map(retry_after)) {
        // SAFETY: passed on.
        unsafe { set_field(r, &field)? };
    }
    Some(())
}

/// Sets a header field in place of any of the same name, such as an upstream's.
///
/// # Safety
/// `r` must be valid.
unsafe fn set_field(r: *mut ngx_http_request_t, (name, value): &Field) -> Option<()> {
    // SAFETY: the request is valid, and so are the elements of its list of header fields. Names
    // are static; values are copied into the pool of the request.
    unsafe {
        let headers = &raw mut (*r).headers_out.headers;
        let mut part = &raw mut (*headers).part;
        while !part.is_null() {
            let elements = (*part).elts.cast::<ngx_table_elt_t>();
            for index in 0..(*part).nelts {
                let field = elements.add(index);
                if (*field).key.as_bytes().eq_ignore_ascii_case(name.as_bytes()) {
                    (*field).hash = 0;
                }
            }
            part = (*part).next;
        }
        let value = ngx_str_t::from_bytes((*r).pool, value.as_bytes())?;
        let lower = ngx_str_t::from_bytes((*r).pool, name.to_ascii_lowercase().as_bytes())?;
        let field = ngx_list_push(headers).cast::<ngx_table_elt_t>().as_mut()?;
        field.hash = 1;
        field.key = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        field.value = value;
        field.lowcase_key = lower.data;
        #[cfg(nginx_header_next)]
        {
            field.next = ptr::null_mut();
        }
    }
    Some(())
}
