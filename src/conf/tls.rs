//! How TLS is spoken to a store: the lines `ssl_…` of its block, named as those of `proxy_ssl_…`.

use ngx::ffi::ngx_uint_t;

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
    /// Takes the line `name values…;`.
    pub(super) fn set(&mut self, name: &str, values: &[&'static str]) -> Result<(), String> {
        tls::supported()?;
        match name {
            "ssl_verify" => once(name, &mut self.verify, flag(name, values)?),
            "ssl_protocols" => once(name, &mut self.protocols, protocols(name, values)?),
            _ => {
                let slot = match name {
                    "ssl_trusted_certificate" => &mut self.trusted_certificate,
                    "ssl_name" => &mut self.name,
                    "ssl_certificate" => &mut self.certificate,
                    "ssl_certificate_key" => &mut self.certificate_key,
                    "ssl_crl" => &mut self.crl,
                    "ssl_ciphers" => &mut self.ciphers,
                    _ => return Err(format!("unknown directive \"{name}\"")),
                };
                once(name, slot, literal(name, values)?)
            }
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

fn once<T>(name: &str, slot: &mut Option<T>, value: T) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("\"{name}\" directive is duplicate")),
    }
}

fn single(name: &str, values: &[&'static str]) -> Result<&'static str, String> {
    match values {
        [value] => Ok(value),
        _ => Err(format!("invalid number of arguments in \"{name}\" directive: {}", values.len())),
    }
}

fn flag(name: &str, values: &[&'static str]) -> Result<bool, String> {
    match single(name, values)? {
        "on" => Ok(true),
        "off" => Ok(false),
        value => Err(invalid(name, value, "\"on\" or \"off\"")),
    }
}

fn literal(name: &str, values: &[&'static str]) -> Result<&'static str, String> {
    match single(name, values)? {
        "" => Err(invalid(name, "", "not empty")),
        value if value.contains('$') => Err(invalid(name, value, "without variables")),
        value => Ok(value),
    }
}

fn protocols(name: &str, values: &[&'static str]) -> Result<ngx_uint_t, String> {
    let mut bits = 0;
    for value in values {
        match tls::PROTOCOLS.iter().find(|(protocol, _)| protocol == value) {
            Some((_, bit)) => bits |= bit,
            None => {
                let names = tls::PROTOCOLS.map(|(protocol, _)| format!("\"{protocol}\""));
                return Err(invalid(name, value, &format!("any of {}", names.join(", "))));
            }
        }
    }
    match bits {
        0 => Err(format!("invalid number of arguments in \"{name}\" directive: 0")),
        bits => Ok(bits),
    }
}

fn invalid(name: &str, value: &str, expected: &str) -> String {
    format!("invalid value \"{value}\" in \"{name}\" directive, it must be {expected}")
}
