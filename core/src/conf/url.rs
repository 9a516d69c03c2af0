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
