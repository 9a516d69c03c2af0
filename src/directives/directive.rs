//! A directive as it is read, and the step from NGINX's callbacks to typed setters.

use std::ffi::c_char;

use ngx::core::{NGX_CONF_ERROR, NGX_CONF_OK};
use ngx::ffi::{
    NGX_LOG_EMERG, NGX_LOG_WARN, ngx_conf_t, ngx_msec_t, ngx_parse_size, ngx_parse_time, ngx_str_t,
};
use ngx::http::HttpModuleMainConf;
use rate_limit_core::rate;

use super::error::ConfError;
use crate::Module;
use crate::conf::MainConf;

/// A directive of all levels that a setter reads, a function of a `LocationConf` and
/// a [`Directive`].
macro_rules! command {
    ($name:literal, $type:expr, $setter:path) => {{
        unsafe extern "C" fn set(
            cf: *mut ngx_conf_t,
            _command: *mut ngx_command_t,
            conf: *mut c_void,
        ) -> *mut c_char {
            // SAFETY: NGINX passes its configuration context, and the configuration that
            // create_loc_conf made for the level at which the directive stands.
            unsafe {
                $crate::directives::directive::run(
                    $setter,
                    &mut *cf,
                    &mut *conf.cast::<LocationConf>(),
                )
            }
        }
        ngx_command_t {
            name: ngx_string!($name),
            type_: $type,
            set: Some(set),
            conf: NGX_HTTP_LOC_CONF_OFFSET,
            offset: 0,
            post: ptr::null_mut(),
        }
    }};
}

pub(super) use command;

/// Runs a setter and logs its error with file and line.
pub(super) fn run<T>(
    setter: impl FnOnce(&mut T, &mut Directive<'_>) -> Result<(), ConfError>,
    cf: &mut ngx_conf_t,
    conf: &mut T,
) -> *mut c_char {
    match setter(conf, &mut Directive { cf }) {
        Ok(()) => NGX_CONF_OK,
        Err(error) => fail(cf, &error),
    }
}

/// Logs an error at the place that is being read.
pub(super) fn fail(cf: &mut ngx_conf_t, error: &ConfError) -> *mut c_char {
    ngx::ngx_conf_log_error!(NGX_LOG_EMERG, cf, "{error}");
    NGX_CONF_ERROR
}

/// The directive that is being read.
pub(super) struct Directive<'a> {
    pub(super) cf: &'a mut ngx_conf_t,
}

impl Directive<'_> {
    /// The configuration of `http`.
    pub(super) fn main(&mut self) -> Result<&'static mut MainConf, ConfError> {
        main(self.cf)
    }

    /// Where it stands: file and line.
    pub(super) fn place(&self) -> String {
        // SAFETY: the file's description is valid while its directives are read; it is absent for
        // what comes from the command line.
        match unsafe { self.cf.conf_file.as_ref() } {
            Some(file) => format!("{}:{}", file.file.name, file.line),
            None => "the command line".to_owned(),
        }
    }

    /// Its name.
    pub(super) fn name(&self) -> Result<&'static str, ConfError> {
        self.words().first().map_or(Err(ConfError::Empty), text)
    }

    /// Its name and all that follows it.
    fn words(&self) -> &[ngx_str_t] {
        // SAFETY: while a directive is read its words are an array of strings.
        unsafe { (*self.cf.args).as_slice() }
    }

    /// What follows its name.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &ngx_str_t> {
        self.words().iter().skip(1)
    }

    /// The only argument.
    pub(super) fn value(&self) -> Result<&'static str, ConfError> {
        match (self.words(), self.arguments().count()) {
            ([_, value], _) => text(value),
            ([directive, ..], count) => {
                Err(ConfError::Arguments { directive: directive.to_string(), count })
            }
            ([], _) => Err(ConfError::Empty),
        }
    }

    /// The only argument, as a number.
    pub(super) fn number(&self, least: u64, most: u64) -> Result<u64, ConfError> {
        let value = self.value()?;
        match rate::whole(value) {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(self.invalid(value, &format!("a number between {least} and {most}"))),
        }
    }

    /// The only argument, as a time in ms.
    pub(super) fn time(&self) -> Result<ngx_msec_t, ConfError> {
        let value = self.value()?;
        let time = milliseconds(value).filter(|time| *time > 0);
        time.ok_or_else(|| self.invalid(value, "a time above 0, such as 20ms"))
    }

    /// The only argument, as a time in ms that may be 0.
    pub(super) fn time_or_zero(&self) -> Result<ngx_msec_t, ConfError> {
        let value = self.value()?;
        milliseconds(value).ok_or_else(|| self.invalid(value, "a time, such as 10s"))
    }

    /// The only argument, as a size in bytes.
    pub(super) fn size(&self, least: usize) -> Result<usize, ConfError> {
        let value = self.value()?;
        let mut text = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
        // SAFETY: the text is valid, and only read.
        let size = unsafe { ngx_parse_size(&mut text) };
        match usize::try_from(size) {
            Ok(size) if size >= least => Ok(size),
            _ => {
                let expected = format!("a size of at least {}k, such as 8m", least >> 10);
                Err(self.invalid(value, &expected))
            }
        }
    }

    /// Logs a warning with file and line.
    pub(super) fn warn(&mut self, message: &str) {
        ngx::ngx_conf_log_error!(NGX_LOG_WARN, self.cf, "{message}");
    }

    /// The error that a value is not what it must be.
    pub(super) fn invalid(&self, value: &str, expected: &str) -> ConfError {
        let (value, expected) = (value.to_owned(), expected.to_owned());
        ConfError::Invalid { directive: self.shown(), value, expected }
    }

    /// Its name, for an error.
    fn shown(&self) -> String {
        self.words().first().map(ToString::to_string).unwrap_or_default()
    }

    /// Sets `slot`, unless this level has set it before.
    pub(super) fn once<T>(&self, slot: &mut Option<T>, value: T) -> Result<(), ConfError> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(ConfError::Duplicate(self.shown())),
        }
    }

    /// Sets `slot` to one of a few named values.
    pub(super) fn choose<T: Copy>(
        &self,
        slot: &mut Option<T>,
        choices: &[(&str, T)],
    ) -> Result<(), ConfError> {
        let choice = self.choice(self.value()?, choices)?;
        self.once(slot, choice)
    }

    /// The one of a few named values that `value` names.
    pub(super) fn choice<T: Copy>(
        &self,
        value: &str,
        choices: &[(&str, T)],
    ) -> Result<T, ConfError> {
        match choices.iter().find(|(name, _)| *name == value) {
            Some((_, choice)) => Ok(*choice),
            None => {
                let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                Err(self.invalid(value, &names.join(" or ")))
            }
        }
    }
}

/// A time as NGINX reads it, in ms.
pub(super) fn milliseconds(value: &str) -> Option<ngx_msec_t> {
    let mut text = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
    // SAFETY: the text is valid, and only read.
    let time = unsafe { ngx_parse_time(&mut text, 0) };
    ngx_msec_t::try_from(time).ok()
}

/// The configuration of `http`.
pub(super) fn main(cf: &mut ngx_conf_t) -> Result<&'static mut MainConf, ConfError> {
    Module::main_conf_mut(cf).ok_or(ConfError::NoConf("main configuration"))
}

/// A word of the configuration as text. It lives as long as the configuration does, which is longer
/// than all that refers to it.
pub(super) fn text(word: &ngx_str_t) -> Result<&'static str, ConfError> {
    let bytes: &'static [u8] = match word.len {
        0 => b"",
        // SAFETY: the words of the configuration lie in the pool of the cycle.
        len => unsafe { std::slice::from_raw_parts(word.data, len) },
    };
    std::str::from_utf8(bytes).map_err(|_| ConfError::NotUtf8(word.to_string()))
}
