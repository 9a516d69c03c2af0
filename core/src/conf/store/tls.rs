//! The lines `ssl_…` of a store, named as the directives `proxy_ssl_…`.

use super::StoreError;
use crate::conf::Directive;
use crate::conf::directive::{DirectiveError, quoted};
use crate::metrics::labels;

/// The settings of TLS of a store; `None` for a line that is not there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TlsSettings<'a> {
    /// The file of the certificates that are trusted, instead of the system's.
    pub trusted_certificate: Option<&'a str>,
    /// See [`verifies`](Self::verifies).
    pub verify: Option<bool>,
    /// The name that the certificate must hold, instead of the host's.
    pub name: Option<&'a str>,
    /// The file of the client certificate.
    pub certificate: Option<&'a str>,
    /// The file of its key.
    pub certificate_key: Option<&'a str>,
    /// The file of the certificates that are revoked.
    pub crl: Option<&'a str>,
    /// See [`versions`](Self::versions).
    pub versions: Option<Vec<TlsVersion>>,
    /// See [`ciphers`](Self::ciphers).
    pub ciphers: Option<&'a str>,
}

labels! {
    /// A version of TLS, or of its predecessor, by the name that a configuration has for it.
    TlsVersion::ALL {
        /// SSL 2.
        Ssl2 = "SSLv2",
        /// SSL 3.
        Ssl3 = "SSLv3",
        /// TLS 1.0.
        Tls10 = "TLSv1",
        /// TLS 1.1.
        Tls11 = "TLSv1.1",
        /// TLS 1.2.
        Tls12 = "TLSv1.2",
        /// TLS 1.3.
        Tls13 = "TLSv1.3",
    }
}

/// The versions without `ssl_protocols`.
const DEFAULT_VERSIONS: [TlsVersion; 2] = [TlsVersion::Tls12, TlsVersion::Tls13];

/// The ciphers without `ssl_ciphers`.
pub(super) const DEFAULT_CIPHERS: &str = "DEFAULT";

impl TlsSettings<'_> {
    /// Whether the server's certificate is verified.
    pub fn verifies(&self) -> bool {
        self.verify.unwrap_or(true)
    }

    /// The versions that may be used.
    pub fn versions(&self) -> &[TlsVersion] {
        self.versions.as_deref().unwrap_or(&DEFAULT_VERSIONS)
    }

    /// The ciphers up to TLS 1.2, in OpenSSL's notation.
    pub fn ciphers(&self) -> &str {
        self.ciphers.unwrap_or(DEFAULT_CIPHERS)
    }

    /// Refuses lines that exclude each other, or need another one.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match (self.certificate, self.certificate_key) {
            (Some(it), None) => Err(StoreError::NoCertificateKey(it.to_owned())),
            (None, Some(it)) => Err(StoreError::NoCertificate(it.to_owned())),
            _ if self.crl.is_some() && !self.verifies() => Err(StoreError::CrlUnverified),
            _ => Ok(()),
        }
    }
}

pub(super) fn text<'a>(line: &Directive<'a>) -> Result<&'a str, DirectiveError> {
    match line.nonempty_value()? {
        value if value.contains('$') => Err(line.invalid(value, "without variables")),
        value => Ok(value),
    }
}

pub(super) fn versions(line: &Directive<'_>) -> Result<Vec<TlsVersion>, DirectiveError> {
    let mut versions = Vec::new();
    for word in line.texts() {
        let word = word?;
        match TlsVersion::ALL.into_iter().find(|version| version.name() == word) {
            Some(version) => versions.push(version),
            None => {
                let names = quoted(TlsVersion::ALL.iter().map(|version| version.name()), ", ");
                return Err(line.invalid(word, &format!("any of {names}")));
            }
        }
    }
    if versions.is_empty() {
        // There is no argument, which is an error.
        line.value()?;
    }
    Ok(versions)
}
