//! The URL of a Redis server: its address, and the account to use there; and the hosts that servers announce.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};

/// A Redis server and the account to use there.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// How to reach it.
    pub address: Address,
    /// Whether it uses TLS.
    pub tls: bool,
    /// The ACL user, if any.
    pub user: Option<String>,
    /// The password, if any.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
}

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// Why a text is no [`Endpoint`]. The text itself is left out, as it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Another scheme, or none.
    #[error(
        "must be redis://[user[:password]@]host[:port][/database], the same with rediss:// for \
         TLS, or redis+unix:///path[?db=database]"
    )]
    Scheme,
    /// A `#`, which begins a fragment. Other clients do not verify the certificate if it is
    /// `#insecure`.
    #[error("it cannot have a fragment; a \"#\" in a password or path is written %23")]
    Fragment,
    /// A parameter that would be ignored, or a password that is cut there.
    #[error(
        "it cannot have such a parameter: the database is written redis://host/3, or \
         redis+unix:///path?db=3, and a \"?\" in a password %3F"
    )]
    Parameter,
    /// No host.
    #[error("the host is missing")]
    Host,
    /// A `/` in a user or password, which ends the host.
    #[error("it cannot have a \"/\" before the host; in a user or password it is written %2F")]
    Slash,
    /// No path of a unix socket.
    #[error(
        "the path of the socket is missing: it is absolute, with three slashes, as in \
         redis+unix:///run/redis.sock"
    )]
    Path,
    /// A variable: the URL is read once.
    #[error("it cannot contain variables")]
    Variable,
    /// The address that stands for all of a machine's own.
    #[error(
        "the host cannot be an address that stands for all; the own one of this machine is 127.0.0.1 or ::1"
    )]
    Wildcard,
    /// The port is not valid.
    #[error("the port must be a number between 1 and 65535")]
    Port,
    /// The database is no number.
    #[error("the database must be a number")]
    Database,
    /// Anything else that the URL parser objects to.
    #[error("it is not a valid URL")]
    Url,
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Self, EndpointError> {
        // The `redis` crate refuses TLS where it is not to do it itself.
        let (tls, url) = match url.strip_prefix("rediss://") {
            Some(rest) => (true, Cow::Owned(format!("redis://{rest}"))),
            None => (false, Cow::Borrowed(url)),
        };
        let url = url.as_ref();
        if !["redis://", "redis+unix://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(EndpointError::Scheme);
        }
        if url.contains('#') {
            return Err(EndpointError::Fragment);
        }
        if !url.split_once('?').is_none_or(|(path, query)| has_meaning(path, query)) {
            return Err(EndpointError::Parameter);
        }
        let info = url.into_connection_info().map_err(|_| objection(url))?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, _) if host.contains('$') => {
                return Err(EndpointError::Variable);
            }
            ConnectionAddr::Tcp(_, 0) => return Err(EndpointError::Port),
            ConnectionAddr::Tcp(host, port) => Address::Tcp(host.clone(), *port),
            ConnectionAddr::Unix(path) if path.as_os_str().is_empty() => {
                return Err(EndpointError::Path);
            }
            ConnectionAddr::Unix(path) if path.as_os_str().as_bytes().contains(&0) => {
                return Err(EndpointError::Url);
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(EndpointError::Scheme),
        };
        let settings = info.redis_settings();
        Ok(Self {
            address,
            tls,
            user: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            database: u32::try_from(settings.db()).map_err(|_| EndpointError::Database)?,
        })
    }
}

/// Whether the `redis` crate reads all parameters of this query: it ignores others.
fn has_meaning(path: &str, query: &str) -> bool {
    let is_known = |parameter: &str| {
        let name = parameter.split('=').next();
        name.is_some_and(|name| ["db", "user", "pass"].contains(&name))
    };
    path.starts_with("redis+unix://") && query.split('&').all(is_known)
}

/// Why the parser of the `redis` crate has refused the URL; it does not report that.
fn objection(url: &str) -> EndpointError {
    let Some(authority) = url.strip_prefix("redis://") else {
        return match url.starts_with("redis+unix:///") {
            true => EndpointError::Database,
            false => EndpointError::Path,
        };
    };
    let (authority, path) = authority.split_once('/').unwrap_or((authority, ""));
    if path.contains('@') {
        return EndpointError::Slash;
    }
    let authority = authority.split('?').next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.rsplit_once(':') {
        Some(("", _)) => EndpointError::Host,
        None if host.is_empty() => EndpointError::Host,
        Some((_, port)) if !host.ends_with(']') && port.parse::<u16>().is_err() => {
            EndpointError::Port
        }
        _ if is_wildcard(host) => EndpointError::Wildcard,
        _ if redis::parse_redis_url(url).is_some() => EndpointError::Database,
        _ => EndpointError::Url,
    }
}

/// Whether a host, perhaps with a port, is the address that a server listens on to listen on all.
fn is_wildcard(host: &str) -> bool {
    let address = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    address.is_some_and(|it| it.parse().is_ok_and(|it: IpAddr| it.is_unspecified()))
}

/// `url` for logs: without what may be an account, or hold a password.
pub fn redacted(url: &str) -> String {
    let (url, query) = match url.split_once('?') {
        // The first one may be in the password.
        Some((url, rest)) if rest.contains('@') => {
            return url.split_once("://").map_or("***".to_owned(), |(it, _)| format!("{it}://***"));
        }
        Some((url, _)) => (url, "?***"),
        None => (url, ""),
    };
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}{query}"),
        (None, Some(_)) => "***".to_owned(),
        _ => format!("{url}{query}"),
    }
}

impl fmt::Display for Address {
    /// The form in logs: `host:port`, with brackets around an IPv6 address, or
    /// `unix:/path`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Debug for Endpoint {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({} db {} user {:?})", self.address, self.database, self.user)
    }
}

/// The longest host name, in bytes (RFC 1035, section 2.3.4).
const LONGEST_HOST: usize = 255;

/// Whether a server may announce this as a host: an address, with or without a zone, or a name. Anything
/// else could reach logs, the resolver and TLS as something that it is not.
pub(super) fn is_host(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    (1..=LONGEST_HOST).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Endpoint, EndpointError> {
        url.parse()
    }

    #[test]
    fn hosts_are_shown_with_their_ports() {
        let shown = |url| read(url).unwrap().address.to_string();
        assert_eq!(shown("redis://127.0.0.1:6380"), "127.0.0.1:6380");
        assert_eq!(shown("redis://localhost"), "localhost:6379");
        assert_eq!(shown("redis://[::1]:7000/3"), "[::1]:7000");
        assert_eq!(shown("redis+unix:///run/redis.sock?db=2"), "unix:/run/redis.sock");
    }

    #[test]
    fn tls_by_scheme() {
        assert!(!read("redis://127.0.0.1").unwrap().tls);
        assert!(!read("redis+unix:///s").unwrap().tls);
        let endpoint = read("rediss://u:p%23@redis.internal/3").unwrap();
        assert!(endpoint.tls);
        assert_eq!(endpoint.address.to_string(), "redis.internal:6379");
        assert_eq!((endpoint.password.as_deref(), endpoint.database), (Some("p#"), 3));
        assert_eq!(read("rediss://[::1]:1").unwrap().address.to_string(), "[::1]:1");
    }

    #[test]
    fn accounts_are_read() {
        let endpoint = read("redis://limiter:p%40ss%2Fword@127.0.0.1/7").unwrap();
        assert_eq!(endpoint.user.as_deref(), Some("limiter"));
        assert_eq!(endpoint.password.as_deref(), Some("p@ss/word"));
        assert_eq!(endpoint.database, 7);
        let endpoint = read("redis://:secret@127.0.0.1").unwrap();
        assert_eq!((endpoint.user, endpoint.password.as_deref()), (None, Some("secret")));
        assert_eq!(read("redis+unix:///s?db=2&pass=x").unwrap().database, 2);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (url, error) in [
            ("redis://", EndpointError::Host),
            ("redis://:6379", EndpointError::Host),
            ("redis:///0", EndpointError::Host),
            ("redis://u:p@", EndpointError::Host),
            ("redis://127.0.0.1:abc", EndpointError::Port),
            ("redis://127.0.0.1:99999", EndpointError::Port),
            ("redis://127.0.0.1:0", EndpointError::Port),
            ("redis://127.0.0.1:-1", EndpointError::Port),
            ("redis://127.0.0.1/x", EndpointError::Database),
            ("redis://[::1]/-1", EndpointError::Database),
            ("redis+unix://", EndpointError::Path),
            ("redis+unix://run/redis.sock", EndpointError::Path),
            ("redis+unix://run/redis.sock?db=2", EndpointError::Path),
            ("redis+unix:///s?db=x", EndpointError::Database),
            ("redis://:pa/ss@127.0.0.1:6379", EndpointError::Slash),
            ("redis://u:pa/ss@127.0.0.1", EndpointError::Slash),
            ("redis://u:12/34@127.0.0.1", EndpointError::Slash),
            ("rediss://u/v:p@127.0.0.1/3", EndpointError::Slash),
            ("redis://:p@/ss@127.0.0.1", EndpointError::Slash),
            ("redis://$host", EndpointError::Variable),
            ("rediss://", EndpointError::Host),
            ("rediss://127.0.0.1:0", EndpointError::Port),
            ("rediss://127.0.0.1/x", EndpointError::Database),
            ("redis://0.0.0.0", EndpointError::Wildcard),
            ("rediss://a:b@0.0.0.0:6379/1", EndpointError::Wildcard),
            ("redis://[::]:6379", EndpointError::Wildcard),
            ("redis+unix:///%00run/redis.sock", EndpointError::Url),
            ("rediss+unix:///s", EndpointError::Scheme),
            ("rediss:127.0.0.1", EndpointError::Scheme),
            ("rediss://127.0.0.1/#insecure", EndpointError::Fragment),
            ("rediss://127.0.0.1#insecure", EndpointError::Fragment),
            ("redis://:pass#word@127.0.0.1", EndpointError::Fragment),
            ("redis+unix:///s#x", EndpointError::Fragment),
            ("redis://127.0.0.1?db=3", EndpointError::Parameter),
            ("redis://127.0.0.1/3?db=4", EndpointError::Parameter),
            ("redis://127.0.0.1/?tls=true", EndpointError::Parameter),
            ("redis://u:p?ss@127.0.0.1", EndpointError::Parameter),
            ("rediss://127.0.0.1?timeout=5", EndpointError::Parameter),
            ("redis+unix:///s?database=3", EndpointError::Parameter),
            ("redis+unix:///s?db=3&timeout=5", EndpointError::Parameter),
        ] {
            assert_eq!(read(url), Err(error), "{url}");
        }
    }

    #[test]
    fn errors_do_not_show_the_password() {
        assert_eq!(read("127.0.0.1:6379"), Err(EndpointError::Scheme));
        assert_eq!(read("http://:secret@127.0.0.1"), Err(EndpointError::Scheme));
        for url in [
            "redis://:secret@127.0.0.1:port",
            "redis://:secret@127.0.0.1/secret",
            "redis://:secret@127.0.0.1/-1",
            "redis://:secret@",
            "redis://:secret/secret@127.0.0.1",
            "redis://",
            "redis://:secret@127.0.0.1/99999999999",
            "rediss://:secret@127.0.0.1:port",
            "rediss://:secret@127.0.0.1#secret",
        ] {
            let error = read(url).unwrap_err().to_string();
            assert!(!error.contains("secret") && !error.is_empty(), "{url}: {error}");
        }
        assert_eq!(redacted("redis://u:p@ss@host/secret"), "redis://***@host/secret");
        assert_eq!(redacted("u:p@host"), "***");
        assert_eq!(redacted("redis+unix:///s?pass=secret&db=1"), "redis+unix:///s?***");
        assert_eq!(redacted("redis+unix:///s?pass=sec@ret"), "redis+unix://***");
        assert_eq!(redacted("redis://u:sec?ret@host"), "redis://***");
        assert_eq!(redacted("u:sec?ret@host"), "***");
        assert_eq!(redacted("redis://host"), "redis://host");
        assert!(!format!("{:?}", read("redis://:secret@127.0.0.1").unwrap()).contains("secret"));
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        for host in
            ["10.0.0.1", "::1", "fe80::1%eth0", "redis-1.example", "redis_1", &"a".repeat(255)]
        {
            assert!(is_host(host), "{host}");
        }
        for other in ["", "a b", "a\nb", "a\x1bb", "é", "a/b", "a]:1 is", &"a".repeat(256)] {
            assert!(!is_host(other), "{other}");
        }
    }
}
