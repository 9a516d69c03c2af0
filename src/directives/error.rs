//! Errors of the configuration.

use rate_limit_core::conf::limit::LimitError;
use rate_limit_core::conf::store::StoreError;
use rate_limit_core::conf::{DirectiveError, UrlError};

use crate::conf::{BindError, CompileError};

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
    #[error("cannot read \"{path}\" of \"{line}\": {error}")]
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
    #[error("the shared memory zone cannot be added")]
    NoZone,
    /// NGINX has no configuration of the level that the directive belongs to.
    #[error("no {0}")]
    NoConf(&'static str),
    #[error("out of memory")]
    OutOfMemory,
}
