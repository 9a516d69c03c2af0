//! Errors of a store.

use crate::conf::DirectiveError;

/// Why a store is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A store that cannot be called so.
    #[error(
        "invalid name \"{0}\" of \"rate_limit_redis_store\": it must be 1 to 64 of A-Z a-z 0-9 _ - ."
    )]
    Name(String),
    /// There is a store of this name.
    #[error("duplicate \"rate_limit_redis_store\" \"{0}\"")]
    Duplicate(String),
    /// There is no such line.
    #[error("unknown directive \"{0}\" in \"rate_limit_redis_store\"")]
    Unknown(String),
    /// The words of a line are wrong.
    #[error(transparent)]
    Line(#[from] DirectiveError),
    /// Two kinds of a store.
    #[error("\"cluster on\" and \"sentinel\" exclude each other")]
    ClusterAndSentinel,
    /// A store without a server.
    #[error("there must be a \"server\", such as redis://127.0.0.1:6379")]
    NoServer,
    /// Several servers that do not know of each other.
    #[error(
        "several servers must be the nodes of a cluster, with \"cluster on\", or sentinels, with \
         \"sentinel\" and the name of the master"
    )]
    SeveralServers,
    /// Servers with and without TLS.
    #[error("TLS is used for all servers of a store, or for none")]
    PartlyTls,
    /// A kind of store whose servers must be at addresses.
    #[error("a cluster or a sentinel cannot be at a unix socket")]
    UnixSocket,
    /// A database where there is none to choose.
    #[error("the URL of a cluster's node or of a sentinel has no database")]
    DatabaseInUrl,
    /// A database of a cluster but 0.
    #[error("a cluster has only the database 0")]
    DatabaseOfCluster,
    /// Two databases.
    #[error("the database is set in the URL and by \"database\"")]
    DatabaseTwice,
    /// Several accounts of a cluster.
    #[error("the servers of a cluster have one account, but their URLs differ in it")]
    Accounts,
    /// Two accounts.
    #[error("user and password are set in the URL and by directives")]
    AccountTwice,
    /// Connections are to log in again, and there is nothing to log in with.
    #[error(
        "\"auth_interval\" needs a password to log in with: \"password_file\", \"password\" or one in the URL"
    )]
    NothingToRenew,
    /// A password that is none.
    #[error("the value of \"password\" must not be empty")]
    EmptyPassword,
    /// Two passwords.
    #[error("\"password\" or \"password_file\" directive is duplicate")]
    PasswordTwice,
    /// A secret that can be guessed.
    #[error(
        "the secret in \"{path}\" of \"key_hmac\" has {length} bytes without a newline at its end, it must \
         have at least 16"
    )]
    ShortSecret {
        /// The path of the file.
        path: String,
        /// The length of the secret, in bytes.
        length: usize,
    },
    /// TLS is set up where it is not used.
    #[error("the \"ssl_\" directives set up TLS, and no server is at rediss://")]
    TlsUnused,
    /// A certificate without its key.
    #[error("no \"ssl_certificate_key\" is defined for certificate \"{0}\"")]
    NoCertificateKey(String),
    /// A key without its certificate.
    #[error("no \"ssl_certificate\" is defined for certificate key \"{0}\"")]
    NoCertificate(String),
    /// A list of revoked certificates where none is verified.
    #[error("\"ssl_crl\" cannot be checked with \"ssl_verify off\"")]
    CrlUnverified,
}
