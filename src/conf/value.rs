//! Values that may contain variables.

use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    ngx_conf_t, ngx_http_compile_complex_value, ngx_http_compile_complex_value_t,
    ngx_http_complex_value, ngx_http_complex_value_t, ngx_http_get_flushed_variable,
    ngx_http_get_variable_index, ngx_http_request_t, ngx_palloc, ngx_str_t, ngx_uint_t,
};

use super::error::LimitError;

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
    pub(crate) fn compile(cf: &mut ngx_conf_t, text: &'static str) -> Result<Self, LimitError> {
        let invalid = || LimitError::Uncompiled(text);
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
            let complex = NonNull::new(complex).ok_or(LimitError::OutOfMemory)?;
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

    /// Whether it contains no variables.
    pub(crate) fn is_literal(self) -> bool {
        match self {
            Self::Variable(_) => false,
            // SAFETY: see `compile`.
            Self::Script(complex) => unsafe { complex.as_ref().lengths.is_null() },
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

/// The name of the variable if `text` is one and nothing else, `$name` or `${name}`. `$1` is not: it is a
/// capture of a regular expression.
pub(crate) fn variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let braced = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    let name = braced.unwrap_or(name);
    let starts = name.starts_with(|first: char| !first.is_ascii_digit());
    (starts && name.chars().all(is_of_name)).then_some(name)
}

/// Whether `text` contains the variable of this name.
pub(crate) fn has_variable(text: &str, name: &str) -> bool {
    text.split('$').skip(1).any(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let other = rest.split(|character| !is_of_name(character)).next();
        other.is_some_and(|other| other.eq_ignore_ascii_case(name))
    })
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// A number or the like: a literal that was read once, or a variable that is read for each
/// request.
pub(crate) enum Setting<T> {
    Literal(T),
    Variable(ComplexValue),
}

impl<T: Copy> Setting<T> {
    /// Reads `text` now if it is a literal.
    pub(crate) fn compile(
        cf: &mut ngx_conf_t,
        text: &'static str,
        read: impl FnOnce(&str) -> Result<T, LimitError>,
    ) -> Result<Self, LimitError> {
        let value = ComplexValue::compile(cf, text)?;
        if value.is_literal() { read(text).map(Self::Literal) } else { Ok(Self::Variable(value)) }
    }

    /// The literal, if it is one.
    pub(crate) fn literal(&self) -> Option<T> {
        match self {
            Self::Literal(value) => Some(*value),
            Self::Variable(_) => None,
        }
    }

    /// The value for a request.
    pub(crate) fn get(
        &self,
        r: &mut ngx_http_request_t,
        read: impl FnOnce(&str) -> Result<T, LimitError>,
    ) -> Result<T, LimitError> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Variable(value) => {
                let bytes = value.evaluate(r).ok_or(LimitError::OutOfMemory)?;
                read(&String::from_utf8_lossy(bytes))
            }
        }
    }
}
