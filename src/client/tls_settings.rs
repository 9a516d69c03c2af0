//! The settings of TLS of a store.

use ngx::ffi::ngx_uint_t;

/// The lines `ssl_…` of a store; `None` for one that is not there.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// The file of the certificates that are trusted, instead of the system's.
    pub(crate) trusted_certificate: Option<&'static str>,
    /// Whether the server's certificate is verified.
    pub(crate) verify: Option<bool>,
    /// The name that the certificate must hold, instead of the host's.
    pub(crate) name: Option<&'static str>,
    /// The file of the client certificate.
    pub(crate) certificate: Option<&'static str>,
    /// The file of its key.
    pub(crate) certificate_key: Option<&'static str>,
    /// The file of the certificates that are revoked.
    pub(crate) crl: Option<&'static str>,
    /// The versions, as NGINX's bits.
    pub(crate) protocols: Option<ngx_uint_t>,
    /// The ciphers up to TLS 1.2, in OpenSSL's notation.
    pub(crate) ciphers: Option<&'static str>,
}

impl TlsSettings {
    /// Whether there is any line.
    pub(crate) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the server's certificate is verified.
    pub(crate) fn verifies(&self) -> bool {
        self.verify.unwrap_or(true)
    }

    /// Refuses lines that exclude each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.certificate, self.certificate_key) {
            (Some(certificate), None) => {
                return Err(format!(
                    "no \"ssl_certificate_key\" is defined for certificate \"{certificate}\""
                ));
            }
            (None, Some(key)) => {
                return Err(format!(
                    "no \"ssl_certificate\" is defined for certificate key \"{key}\""
                ));
            }
            _ => (),
        }
        if self.crl.is_some() && !self.verifies() {
            return Err("\"ssl_crl\" cannot be checked with \"ssl_verify off\"".to_owned());
        }
        Ok(())
    }
}
