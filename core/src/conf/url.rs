//! The URL of a server, in a directive.

use crate::redis::endpoint::{Endpoint, redacted};

/// Why the URL of a server is refused. The password is not shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL \"{url}\" in \"{directive}\" directive: {reason}")]
pub struct UrlError {
    directive: &'static str,
    url: String,
    reason: String,
}

impl UrlError {
    /// The error that `url` in `directive` cannot be used.
    pub fn new(directive: &'static str, url: &str, reason: String) -> Self {
        Self { directive, url: redacted(url), reason }
    }
}

/// Reads the URL of a server in `directive`.
pub fn endpoint(directive: &'static str, url: &str) -> Result<Endpoint, UrlError> {
    url.parse().map_err(|error| UrlError::new(directive, url, format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        endpoint("rate_limit_redis_pass", url).expect_err(url).to_string()
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let right = "must be redis://[user[:password]@]host[:port][/database], the same with rediss:// for \
                     TLS, or redis+unix:///path[?db=database]";
        let fragment = "it cannot have a fragment; a \"#\" in a password or path is written %23";
        let (host, port) = ("the host is missing", "the port must be a number between 1 and 65535");
        let database = "the database must be a number";
        for (url, reason) in [
            ("", right),
            ("127.0.0.1:6379", right),
            ("http://127.0.0.1:6379", right),
            ("REDIS://127.0.0.1", right),
            ("redis:127.0.0.1", right),
            ("unix:/run/redis.sock", right),
            ("redis://", host),
            ("redis://:6379", host),
            ("redis:///0", host),
            ("redis://127.0.0.1:abc", port),
            ("redis://127.0.0.1:99999", port),
            ("redis://127.0.0.1:0", port),
            ("redis://127.0.0.1:-1", port),
            ("redis://127.0.0.1/x", database),
            ("redis://127.0.0.1/-1", database),
            ("rediss://127.0.0.1#insecure", fragment),
            ("redis+unix://", "the path of the socket is missing"),
            ("redis://$host", "it cannot contain variables"),
        ] {
            let expected =
                format!("invalid URL \"{url}\" in \"rate_limit_redis_pass\" directive: {reason}");
            assert_eq!(error(url), expected);
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "redis://:s3cret@127.0.0.1:99999",
            "redis://bob:s3cret@127.0.0.1:6379/x",
            "redis://bob:s3cret@",
            "redis://bob:s3cret@:6379",
            "redis://:s3cret/word@127.0.0.1/x",
            "redis://:s3cret@word@127.0.0.1/x",
            "rediss://bob:s3cret@127.0.0.1/x",
            "rediss://bob:s3cret@127.0.0.1#insecure",
            "redis://bob:s3cret#@127.0.0.1",
            "http://bob:s3cret@127.0.0.1",
            "bob:s3cret@127.0.0.1",
            "redis+unix:///tmp/redis.sock?db=x&pass=s3cret",
            "redis+unix:///tmp/redis.sock?pass=s3cret&db=x",
            "redis://127.0.0.1/x?password=s3cret",
            "redis://127.0.0.1:99999?password=s3cret",
        ] {
            assert!(!error(url).contains("s3cret"), "{url}");
        }
    }

    #[test]
    fn good_urls() {
        for url in [
            "redis://127.0.0.1",
            "redis://127.0.0.1:6380",
            "redis://127.0.0.1/",
            "redis://127.0.0.1:6379/15",
            "redis://localhost:6379",
            "redis://[::1]:6379/1",
            "redis://:secret@127.0.0.1",
            "redis://bob:p%40ss%2Fw%3Ard@127.0.0.1:6379/3",
            "redis+unix:///run/redis/redis.sock",
            "redis+unix:///run/redis/redis.sock?db=2",
        ] {
            assert!(endpoint("server", url).is_ok(), "{url}");
        }
    }
}
