//! Values that may contain variables.

use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    ngx_conf_t, ngx_http_compile_complex_value, ngx_http_compile_complex_value_t,
    ngx_http_complex_value, ngx_http_complex_value_t, ngx_http_get_flushed_variable,
    ngx_http_get_variable_index, ngx_http_request_t, ngx_palloc, ngx_str_t, ngx_uint_t,
};
use rate_limit_core::conf::limit::LimitError;
use rate_limit_core::conf::{Setting, variable};

use super::error::{CompileError, EvaluateError};

/// A text of the configuration that may contain variables.
#[derive(Clone, Copy)]
pub(crate) enum ComplexValue {
    /// A variable and nothing else, as most are: its value need not be copied.
    Variable(ngx_uint_t),
    /// Anything else.
    Script(NonNull<ngx_http_complex_value_t>),
}

impl ComplexValue {
    /// Compiles `text`; NGINX has logged the error if there is one.
    pub(crate) fn compile(cf: &mut ngx_conf_t, text: &'static str) -> Result<Self, CompileError> {
        let invalid = || CompileError::Invalid(text);
        if let Some(name) = variable(text) {
            let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
            // SAFETY: NGINX copies the name.
            let index = unsafe { ngx_http_get_variable_index(cf, &mut name) };
            return ngx_uint_t::try_from(index).map(Self::Variable).map_err(|_| invalid());
        }
        let mut value = ngx_str_t { data: text.as_ptr().cast_mut(), len: text.len() };
        // SAFETY: the value is made in the pool of the configuration, and lives as long as it
        // does. The text is only read, and is of the same pool.
        unsafe {
            let complex = ngx_palloc(cf.pool, size_of::<ngx_http_complex_value_t>()).cast();
            let complex = NonNull::new(complex).ok_or(CompileError::OutOfMemory)?;
            let mut compile: ngx_http_compile_complex_value_t = std::mem::zeroed();
            compile.cf = ptr::from_mut(cf);
            compile.value = &mut value;
            compile.complex_value = complex.as_ptr();
            if ngx_http_compile_complex_value(&mut compile) != Status::NGX_OK.0 {
                return Err(invalid());
            }
            Ok(Self::Script(complex))
        }
    }

    /// The value for a request; `None` if NGINX is out of memory.
    pub(crate) fn evaluate(self, r: &mut ngx_http_request_t) -> Option<&[u8]> {
        // SAFETY: the request is valid. The result is in its pool, or in the configuration's for a
        // literal. A variable's value lies in the memory of the request, its connection or the
        // configuration.
        unsafe {
            let (data, len) = match self {
                Self::Variable(index) => match ngx_http_get_flushed_variable(r, index).as_ref() {
                    Some(value) if value.not_found() == 0 => (value.data, value.len() as usize),
                    _ => return Some(b""),
                },
                Self::Script(complex) => {
                    let mut value = ngx_str_t::empty();
                    let status = ngx_http_complex_value(r, complex.as_ptr(), &mut value);
                    if status != Status::NGX_OK.0 {
                        return None;
                    }
                    (value.data, value.len)
                }
            };
            match len {
                0 => Some(b""),
                len => Some(std::slice::from_raw_parts(data, len)),
            }
        }
    }
}

/// The value of a line for a request: the literal, or what `read` makes of the variable's text.
pub(super) fn evaluate<T: Copy>(
    setting: &Setting<T, ComplexValue>,
    r: &mut ngx_http_request_t,
    read: impl FnOnce(&str) -> Result<T, LimitError>,
) -> Result<T, EvaluateError> {
    match setting {
        Setting::Literal(value) => Ok(*value),
        Setting::Variable(value) => {
            let bytes = value.evaluate(r).ok_or(EvaluateError::OutOfMemory)?;
            Ok(read(&String::from_utf8_lossy(bytes))?)
        }
    }
}
