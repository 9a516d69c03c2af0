//! Values that may contain variables.

use std::ptr::NonNull;

use ngx::core::Status;
use ngx::ffi::{
    ngx_http_complex_value, ngx_http_complex_value_t, ngx_http_get_flushed_variable, ngx_str_t,
    ngx_uint_t,
};
use rate_limit_core::conf::limit::LimitError;
use rate_limit_core::conf::{Setting, variable};

use super::{CompileError, EvaluateError};
use crate::nginx::{Conf, OutOfMemory, Request, bytes};

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
    pub(crate) fn compile(cf: &mut Conf, text: &'static str) -> Result<Self, CompileError> {
        let compiled = match variable(text) {
            Some(name) => cf.variable_index(name).map(Self::Variable),
            None => cf.compile(text).map(Self::Script),
        };
        compiled.ok_or(CompileError(text))
    }

    /// The value for a request.
    #[inline]
    pub(crate) fn evaluate(self, r: Request<'_>) -> Result<&[u8], OutOfMemory> {
        // SAFETY: the result is in the pool of the request, or in the configuration's for a literal. A variable's value
        // lies in the memory of the request, its connection or the configuration.
        unsafe {
            match self {
                Self::Variable(index) => {
                    let value = ngx_http_get_flushed_variable(r.as_ptr(), index).as_ref();
                    Ok(match value.filter(|value| value.not_found() == 0) {
                        Some(value) => {
                            bytes(ngx_str_t { data: value.data, len: value.len() as usize })
                        }
                        None => b"",
                    })
                }
                Self::Script(complex) => {
                    let mut value = ngx_str_t::empty();
                    let status = ngx_http_complex_value(r.as_ptr(), complex.as_ptr(), &mut value);
                    if status == Status::NGX_OK.0 { Ok(bytes(value)) } else { Err(OutOfMemory) }
                }
            }
        }
    }
}

/// The value of a line for a request: the literal, or what `read` makes of the variable's text.
pub(super) fn evaluate<T: Copy>(
    setting: &Setting<T, ComplexValue>,
    r: Request<'_>,
    read: impl FnOnce(&str) -> Result<T, LimitError>,
) -> Result<T, EvaluateError> {
    match setting {
        Setting::Literal(value) => Ok(*value),
        Setting::Variable(value) => {
            let bytes = value.evaluate(r)?;
            Ok(read(&String::from_utf8_lossy(bytes))?)
        }
    }
}
