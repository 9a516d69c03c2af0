//! Header fields of a response.

use ngx::ffi::{ngx_list_push, ngx_str_t, ngx_table_elt_t};
use rate_limit_core::text::fields::Name;

use super::{OutOfMemory, Request};

impl<'r> Request<'r> {
    /// Sets a header field in place of any of the same name.
    pub(crate) fn set_field(
        self,
        name: &'static Name,
        value: &'static str,
    ) -> Result<(), OutOfMemory> {
        self.remove_fields(|other| other.eq_ignore_ascii_case(name.lower.as_bytes()));
        self.push_field(name, value.as_bytes())
    }

    /// Removes header fields of these names, which an upstream may have sent.
    pub(crate) fn remove_fields(self, is_such: impl Fn(&[u8]) -> bool) {
        // SAFETY: the request is valid, and so are the elements of its list of header fields.
        unsafe {
            let mut part = &raw mut (*self.as_ptr()).headers_out.headers.part;
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

    /// Adds a header field.
    pub(crate) fn push_field(
        self,
        name: &'static Name,
        value: &'r [u8],
    ) -> Result<(), OutOfMemory> {
        // SAFETY: the request is valid, and the element is a new one, which nothing has been written to: so no reference
        // to it is made. Names are static, and the value lives as long as the request. NGINX writes to neither.
        unsafe {
            let headers = &raw mut (*self.as_ptr()).headers_out.headers;
            let field = ngx_list_push(headers).cast::<ngx_table_elt_t>();
            if field.is_null() {
                return Err(OutOfMemory);
            }
            (*field).hash = 1;
            (*field).key = ngx_str_t { data: name.text.as_ptr().cast_mut(), len: name.text.len() };
            (*field).value = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
            (*field).lowcase_key = name.lower.as_ptr().cast_mut();
            #[cfg(nginx_header_next)]
            {
                (*field).next = std::ptr::null_mut();
            }
        }
        Ok(())
    }
}
