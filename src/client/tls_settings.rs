//! How TLS is to be spoken to the servers of a store.

use ngx::ffi::ngx_uint_t;

/// What a configuration says; `None` where it says nothing.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// The file of the certificates that are trusted, instead of the system's.
    pub(crate) trusted_certificate: Option<&'static str>,
    /// Whether the server must prove who it is.
    pub(crate) verify: Option<bool>,
    /// The name that its certificate must hold, instead of the host's.
    pub(crate) name: Option<&'static str>,
    /// The file of our certificate.
    pub(crate) certificate: Option<&'static str>,
    /// The file of its key.
    pub(crate) certificate_key: Option<&'static str>,
    /// The file of the certificates that are revoked.
    pub(crate) crl: Option<&'static str>,
    /// NGINX's bits for the versions that are spoken.
    pub(crate) protocols: Option<ngx_uint_t>,
    /// The ciphers up to TLS 1.2, in OpenSSL's notation.
    pub(crate) ciphers: Option<&'static str>,
}

impl TlsSettings {
    /// Whether the configuration says anything.
    pub(crate) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the server must prove who it is.
    pub(crate) fn verifies(&self) -> bool {
        self.verify.unwrap_or(true)
    }

    /// Says which of them do not go together.
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
