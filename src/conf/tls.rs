//! How TLS is spoken to a store: the lines `ssl_…` of its block, named as those of `proxy_ssl_…`.

use ngx::ffi::ngx_uint_t;

use super::directive::{Directive, text};
use crate::redis::tls;

/// What the lines say; `None` where there is none.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Settings {
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

impl Settings {
    /// Reads one line.
    pub(super) fn read(&mut self, line: &mut Directive<'_>) -> Result<(), String> {
        tls::supported()?;
        let name = line.name()?;
        let slot = match name {
            "ssl_verify" => return line.choose(&mut self.verify, &[("on", true), ("off", false)]),
            "ssl_protocols" => return self.read_protocols(line),
            "ssl_trusted_certificate" => &mut self.trusted_certificate,
            "ssl_name" => &mut self.name,
            "ssl_certificate" => &mut self.certificate,
            "ssl_certificate_key" => &mut self.certificate_key,
            "ssl_crl" => &mut self.crl,
            "ssl_ciphers" => &mut self.ciphers,
            _ => {
                return Err(format!("unknown directive \"{name}\" in \"rate_limit_redis_store\""));
            }
        };
        match line.value()? {
            "" => Err(line.invalid("", "not empty")),
            value if value.contains('$') => Err(line.invalid(value, "without variables")),
            value => line.once(slot, value),
        }
    }

    fn read_protocols(&mut self, line: &mut Directive<'_>) -> Result<(), String> {
        let mut bits = 0;
        for word in line.arguments() {
            let word = text(word)?;
            match tls::PROTOCOLS.iter().find(|(protocol, _)| *protocol == word) {
                Some((_, bit)) => bits |= bit,
                None => {
                    let names = tls::PROTOCOLS.map(|(protocol, _)| format!("\"{protocol}\""));
                    return Err(line.invalid(word, &format!("any of {}", names.join(", "))));
                }
            }
        }
        match bits {
            // There was no argument, to which this objects.
            0 => line.value().map(|_| ()),
            bits => line.once(&mut self.protocols, bits),
        }
    }

    /// Whether there was any line.
    pub(super) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the server must prove who it is.
    pub(crate) fn verifies(&self) -> bool {
        self.verify.unwrap_or(true)
    }

    /// Says which lines do not go together.
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
