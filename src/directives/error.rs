//! Errors of the configuration.

use crate::conf::LimitError;

/// Why a configuration is refused. NGINX adds file and line.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfError {
    #[error("\"{0}\" directive is duplicate")]
    Duplicate(String),
    #[error("invalid value \"{value}\" in \"{directive}\" directive, it must be {expected}")]
    Invalid { directive: String, value: String, expected: String },
    #[error("invalid number of arguments in \"{directive}\" directive: {count}")]
    Arguments { directive: String, count: usize },
    #[error("\"{0}\" is not UTF-8")]
    NotUtf8(String),
    #[error("empty directive")]
    Empty,
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A block as a whole, not one of its lines.
    #[error("in \"rate_limit_redis_store\" \"{name}\": {error}")]
    Block { name: String, error: StoreError },
    #[error("invalid URL \"{url}\" in \"{directive}\" directive: {reason}")]
    Url { directive: &'static str, url: String, reason: String },
    #[error(
        "\"{name}\" in \"rate_limit_redis_pass\" directive in {place} is neither a URL, such as \
         redis://127.0.0.1:6379, nor the name of a \"rate_limit_redis_store\""
    )]
    NoStore { name: &'static str, place: String },
    #[error("the shared memory zone cannot be added")]
    NoZone,
    /// NGINX has no configuration of the level that the directive belongs to.
    #[error("no {0}")]
    NoConf(&'static str),
    #[error("out of memory")]
    OutOfMemory,
}

/// Why a store is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error(
        "invalid name \"{0}\" of \"rate_limit_redis_store\": it must be 1 to 64 of A-Z a-z 0-9 _ - ."
    )]
    Name(String),
    #[error("duplicate \"rate_limit_redis_store\" \"{0}\"")]
    Duplicate(String),
    #[error("unknown directive \"{0}\" in \"rate_limit_redis_store\"")]
    Unknown(String),
    #[error("\"cluster on\" and \"sentinel\" exclude each other")]
    ClusterAndSentinel,
    #[error("there must be a \"server\", such as redis://127.0.0.1:6379")]
    NoServer,
    #[error(
        "several servers must be the nodes of a cluster, with \"cluster on\", or sentinels, with \
         \"sentinel\" and the name of the master"
    )]
    SeveralServers,
    #[error("TLS is used for all servers of a store, or for none")]
    PartlyTls,
    #[error("a cluster or a sentinel cannot be at a unix socket")]
    UnixSocket,
    #[error("the URL of a cluster's node or of a sentinel has no database")]
    DatabaseInUrl,
    #[error("a cluster has only the database 0")]
    DatabaseOfCluster,
    #[error("the database is set in the URL and by \"database\"")]
    DatabaseTwice,
    #[error("the servers of a cluster have one account, but their URLs differ in it")]
    Accounts,
    #[error("user and password are set in the URL and by directives")]
    AccountTwice,
    #[error("the value of \"password\" must not be empty")]
    EmptyPassword,
    #[error("\"password\" or \"password_file\" directive is duplicate")]
    PasswordTwice,
    #[error("cannot read \"{path}\" of \"password_file\": {error}")]
    PasswordFile { path: String, error: std::io::Error },
    #[error("there is no password in the first line of \"{0}\"")]
    NoPassword(String),
    #[error("the \"ssl_\" directives set up TLS, and no server is at rediss://")]
    TlsUnused,
    #[error("{0}")]
    Tls(String),
}
