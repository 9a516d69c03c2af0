//! A store: the lines of a block `rate_limit_redis_store`, or the one server of a URL without a block.

use super::Directive;
use crate::client::{Config, Kind, Server};
use crate::conf::DirectiveError;
use crate::key::KeyHmac;
use crate::rate::MILLISECOND;
use crate::redis::endpoint::{Address, Endpoint, redacted};

mod line;
#[cfg(test)]
mod tests;
mod tls;

pub use line::{LINES, StoreLine, StoreSets, line_doubt};
pub use tls::{TlsSettings, TlsVersion};

/// The prefix of every Redis key, unless the store has one of its own.
const DEFAULT_PREFIX: &str = "rl:";

/// How long connecting may take, with the handshake, in ms.
const DEFAULT_CONNECT_TIMEOUT: u64 = 250;

const DEFAULT_CONNECTIONS: u64 = 1;

const DEFAULT_MAX_FAILS: u64 = 3;

/// In ms.
const DEFAULT_FAIL_TIMEOUT: u64 = 1_000;

/// The default port of Redis.
const REDIS_PORT: u16 = 6379;

/// The default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;

/// The lines of a store.
#[derive(Default)]
pub struct StoreLines<'a> {
    servers: Vec<Server>,
    /// Where the lines of the servers are: file and number.
    places: Vec<String>,
    cluster: Option<bool>,
    sentinel: Option<&'a str>,
    user: Option<&'a str>,
    password: Option<String>,
    /// The path of the file that has it.
    password_file: Option<String>,
    /// In ms.
    auth_interval: Option<u64>,
    database: Option<u64>,
    prefix: Option<&'a str>,
    key_hmac: Option<KeyHmac>,
    /// In ms.
    connect_timeout: Option<u64>,
    connections: Option<u64>,
    max_fails: Option<u64>,
    /// In ms.
    fail_timeout: Option<u64>,
    tls: TlsSettings<'a>,
}

/// The password in a file of this content: its first line.
pub fn password(content: &str) -> Option<&str> {
    // Some editors begin a file with a byte order mark.
    let line = content.trim_start_matches('\u{feff}').lines().next();
    line.filter(|password| !password.is_empty())
}

/// The least length of the secret of `key_hmac`, in bytes.
const LEAST_SECRET: usize = 16;

impl<'a> StoreLines<'a> {
    /// The store of a URL.
    pub fn of(server: Server) -> Self {
        Self { servers: vec![server], ..Self::default() }
    }

    /// Adds a server, and the place of its line: file and number.
    pub fn add_server(&mut self, server: Server, place: String) {
        self.servers.push(server);
        self.places.push(place);
    }

    /// Sets the password, which may be set once.
    fn set_password(&mut self, password: String) -> Result<(), StoreError> {
        match self.password.replace(password) {
            None => Ok(()),
            Some(_) => Err(StoreError::PasswordTwice),
        }
    }

    /// Sets the password, which is that in the file at `path`.
    pub fn set_password_file(&mut self, path: &str, password: String) -> Result<(), StoreError> {
        self.password_file = Some(path.to_owned());
        self.set_password(password)
    }

    /// The path of the file that has the password, if one has.
    pub fn password_file(&self) -> Option<&str> {
        self.password_file.as_deref()
    }

    /// Sets the secret of `key_hmac`: the content of the file at `path`, without a newline at its end.
    pub fn set_key_hmac(
        &mut self,
        line: &Directive<'a>,
        path: &str,
        content: &[u8],
    ) -> Result<(), StoreError> {
        let secret = content.strip_suffix(b"\n").unwrap_or(content);
        if secret.len() < LEAST_SECRET {
            return Err(StoreError::ShortSecret { path: path.to_owned(), length: secret.len() });
        }
        Ok(line.once(&mut self.key_hmac, KeyHmac::new(secret))?)
    }

    /// The HMAC of clients' keys, if `key_hmac` is given.
    pub fn key_hmac(&self) -> Option<&KeyHmac> {
        self.key_hmac.as_ref()
    }

    /// The beginning of every Redis key.
    pub fn prefix(&self) -> &'a str {
        self.prefix.unwrap_or(DEFAULT_PREFIX)
    }

    /// The configuration of the client of this store, which `rate_limit_redis_pass` calls `reference`.
    pub fn config(&self, reference: &str) -> Result<Config, StoreError> {
        let kind = self.kind()?;
        self.check(&kind)?;
        let account = self.account(&kind)?;
        let micros = |time: u64| time.saturating_mul(MILLISECOND);
        Ok(Config {
            kind,
            servers: self.servers.clone(),
            account,
            store: redacted(reference),
            auth_interval: micros(self.auth_interval.unwrap_or(0)),
            connect_timeout: micros(self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT)),
            connections: self.connections.unwrap_or(DEFAULT_CONNECTIONS) as usize,
            max_fails: self.max_fails.unwrap_or(DEFAULT_MAX_FAILS) as usize,
            fail_timeout: micros(self.fail_timeout.unwrap_or(DEFAULT_FAIL_TIMEOUT)),
            // The locations set it: as long as their requests may wait.
            longest_timeout: 0,
            // The worker sets both.
            client_name: String::new(),
            seed: 0,
        })
    }

    /// The settings of TLS, if the servers are at `rediss://`.
    pub fn tls(&self) -> Result<Option<&TlsSettings<'a>>, StoreError> {
        match self.servers.iter().any(|server| server.endpoint.tls) {
            true => self.tls.check().map(|()| Some(&self.tls)),
            false if self.tls != TlsSettings::default() => Err(StoreError::TlsUnused),
            false => Ok(None),
        }
    }

    /// The warnings: one for each sentinel at the default port of Redis, and for each other server at that of a
    /// sentinel.
    pub fn doubts(&self) -> impl Iterator<Item = String> {
        let servers = self.servers.iter().zip(&self.places);
        servers.filter_map(|(server, place)| {
            let address = &server.endpoint.address;
            match (address, self.sentinel) {
                (Address::Tcp(_, REDIS_PORT), Some(_)) => Some(format!(
                    "the sentinel {address} is at the default port of Redis, not of a sentinel (26379) in \
                     {place}"
                )),
                (Address::Tcp(_, SENTINEL_PORT), None) => Some(format!(
                    "the server {address} is at the default port of a sentinel, and there is no \
                     \"sentinel\" with the name of the master in {place}"
                )),
                _ => None,
            }
        })
    }

    fn kind(&self) -> Result<Kind, StoreError> {
        match (self.sentinel, self.cluster) {
            (None, None | Some(false)) => Ok(Kind::Single),
            (None, Some(true)) => Ok(Kind::Cluster),
            (Some(name), None | Some(false)) => Ok(Kind::Sentinel(name.to_owned())),
            (Some(_), Some(true)) => Err(StoreError::ClusterAndSentinel),
        }
    }

    /// Refuses servers that cannot be one store.
    fn check(&self, kind: &Kind) -> Result<(), StoreError> {
        let endpoints = || self.servers.iter().map(|server| &server.endpoint);
        if self.servers.is_empty() {
            return Err(StoreError::NoServer);
        }
        if endpoints().any(|endpoint| endpoint.tls) != endpoints().all(|endpoint| endpoint.tls) {
            return Err(StoreError::PartlyTls);
        }
        if *kind == Kind::Single {
            return match self.servers.len() {
                1 => Ok(()),
                _ => Err(StoreError::SeveralServers),
            };
        }
        if endpoints().any(|endpoint| matches!(endpoint.address, Address::Unix(_))) {
            return Err(StoreError::UnixSocket);
        }
        if endpoints().any(|endpoint| endpoint.database != 0) {
            return Err(StoreError::DatabaseInUrl);
        }
        let account = |endpoint: &Endpoint| (endpoint.user.clone(), endpoint.password.clone());
        let mut accounts = endpoints().map(account);
        let first = accounts.next();
        if *kind == Kind::Cluster && accounts.any(|other| Some(other) != first) {
            return Err(StoreError::Accounts);
        }
        if *kind == Kind::Cluster && self.database.is_some_and(|database| database != 0) {
            return Err(StoreError::DatabaseOfCluster);
        }
        Ok(())
    }

    /// The account at the servers that run scripts. The account in the URL of a sentinel is the
    /// sentinel's; in any other URL it replaces the directives.
    fn account(&self, kind: &Kind) -> Result<Endpoint, StoreError> {
        let Some(first) = self.servers.first() else { return Err(StoreError::NoServer) };
        let mut account = first.endpoint.clone();
        if matches!(kind, Kind::Sentinel(_)) {
            (account.user, account.password) = (None, None);
        }
        let in_url = account.user.is_some() || account.password.is_some();
        if in_url && (self.user.is_some() || self.password.is_some()) {
            return Err(StoreError::AccountTwice);
        }
        if account.database != 0 && self.database.is_some() {
            return Err(StoreError::DatabaseTwice);
        }
        if !in_url {
            account.user = self.user.map(str::to_owned);
            account.password.clone_from(&self.password);
        }
        if self.auth_interval.is_some() && account.password.is_none() {
            return Err(StoreError::NothingToRenew);
        }
        account.database = self.database.map_or(account.database, |number| number as u32);
        Ok(account)
    }
}

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
