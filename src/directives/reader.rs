//! The directive that NGINX is reading, the step from NGINX's callbacks to typed setters, and why a configuration is refused.

use std::ffi::c_char;
use std::path::PathBuf;

use ngx::core::{NGX_CONF_ERROR, NGX_CONF_OK};
use ngx::ffi::ngx_http_core_loc_conf_t;
use rate_limit_core::conf::limit::LimitError;
use rate_limit_core::conf::store::StoreError;
use rate_limit_core::conf::{Directive, DirectiveError, Row, UrlError};
use rate_limit_core::text::log::SystemError;

use crate::conf::{BindError, CompileError, MainConf};
use crate::nginx::Conf;

/// The directive that is being read, and where.
pub(super) struct Reader<'a> {
    pub(super) cf: &'a mut Conf,
    pub(super) line: Directive<'static>,
}

impl Reader<'_> {
    /// The row of the directive in the table.
    pub(super) fn row(&self) -> Result<&'static Row, ConfError> {
        Row::find(self.line.name()?).ok_or(ConfError::NoConf("such directive"))
    }

    /// The configuration of `http`.
    pub(super) fn main(&mut self) -> Result<&mut MainConf, ConfError> {
        main(self.cf)
    }

    /// NGINX's own configuration of the location.
    pub(super) fn location(&mut self) -> Result<&mut ngx_http_core_loc_conf_t, ConfError> {
        self.cf.core_location().ok_or(ConfError::NoConf("location"))
    }
}

/// Runs a setter and logs its error with file and line.
pub(super) fn run(
    cf: &mut Conf,
    setter: impl FnOnce(&mut Reader<'_>) -> Result<(), ConfError>,
) -> *mut c_char {
    let line = Directive::new(cf.words());
    match setter(&mut Reader { cf, line }) {
        Ok(()) => NGX_CONF_OK,
        Err(error) => fail(cf, &error),
    }
}

/// Logs an error at the place that is being read, unless NGINX has done so.
pub(super) fn fail(cf: &mut Conf, error: &ConfError) -> *mut c_char {
    if !matches!(error, ConfError::Logged) {
        cf.fail(error);
    }
    NGX_CONF_ERROR
}

/// The configuration of `http`.
pub(super) fn main(cf: &mut Conf) -> Result<&mut MainConf, ConfError> {
    cf.main().ok_or(ConfError::NoConf("main configuration"))
}

/// A path with that of the directory in which NGINX was started, if its prefix is relative to it.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Why a configuration is refused. NGINX adds file and line.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfError {
    #[error(transparent)]
    Directive(#[from] DirectiveError),
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A block as a whole, not one of its lines.
    #[error("in \"rate_limit_redis_store\" \"{name}\": {error}")]
    Block { name: String, error: Box<Self> },
    #[error("cannot read \"{}\" of \"{line}\"{}", absolute(path).display(), SystemError(error))]
    File { line: &'static str, path: String, error: std::io::Error },
    #[error("there is no password in the first line of \"{0}\"")]
    NoPassword(String),
    #[error(
        "\"rate_limit_redis_log_key hmac\" needs \"key_hmac\" in the \"rate_limit_redis_store\" of the limit \
         \"{limit}\" of {place}, and {store} has none"
    )]
    NoKeyHmac { limit: &'static str, place: String, store: String },
    /// NGINX or OpenSSL cannot do what the settings of TLS say.
    #[error("{0}")]
    Tls(String),
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(
        "\"{name}\" in \"rate_limit_redis_pass\" directive in {place} is neither a URL, such as \
         redis://127.0.0.1:6379, nor the name of a \"rate_limit_redis_store\""
    )]
    NoStore { name: &'static str, place: String },
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("\"{directive}\" directive cannot stand beside \"{other}\" of the same location")]
    SecondPage { directive: &'static str, other: &'static str },
    #[error("the shared memory zone cannot be added")]
    NoZone,
    /// NGINX has no configuration of the level that the directive belongs to.
    #[error("no {0}")]
    NoConf(&'static str),
    #[error("out of memory")]
    OutOfMemory,
    /// An error of which NGINX has logged more.
    #[error("invalid configuration")]
    Logged,
}
