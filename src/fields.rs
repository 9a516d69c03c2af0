//! Header fields of an answer.

use ngx::ffi::{ngx_http_request_t, ngx_list_push, ngx_str_t, ngx_table_elt_t};
use rate_limit_core::text::fields::Name;

/// Sets a header field in place of any of the same name; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
pub(crate) unsafe fn set(
    r: *mut ngx_http_request_t,
    name: &'static Name,
    value: &'static str,
) -> Option<()> {
    // SAFETY: passed on.
    unsafe {
        remove(r, |other| other.eq_ignore_ascii_case(name.lower.as_bytes()));
        push(r, name, ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() })
    }
}

/// Removes header fields of these names, which an upstream may have sent.
///
/// # Safety
/// `r` must be valid.
pub(crate) unsafe fn remove(r: *mut ngx_http_request_t, is_such: impl Fn(&[u8]) -> bool) {
    // SAFETY: the request is valid, and so are the elements of its list of header fields.
    unsafe {
        let mut part = &raw mut (*r).headers_out.headers.part;
        while !part.is_null() {
            let elements = (*part).elts.cast::<ngx_table_elt_t>();
            for index in 0..(*part).nelts {
                let field = elements.add(index);
                if is_such((*field).key.as_bytes()) {
                    (*field).hash = 0;
                }
            }
            part = (*part).next;
        }
    }
}

/// Adds a header field; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid, and `value` live as long.
pub(crate) unsafe fn push(
    r: *mut ngx_http_request_t,
    name: &'static Name,
    value: ngx_str_t,
) -> Option<()> {
    // SAFETY: the request is valid. Names are static.
    unsafe {
        let headers = &raw mut (*r).headers_out.headers;
        let field = ngx_list_push(headers).cast::<ngx_table_elt_t>().as_mut()?;
        field.hash = 1;
        field.key = ngx_str_t { data: name.text.as_ptr().cast_mut(), len: name.text.len() };
        field.value = value;
        field.lowcase_key = name.lower.as_ptr().cast_mut();
        #[cfg(nginx_header_next)]
        {
            field.next = std::ptr::null_mut();
        }
    }
    Some(())
}
