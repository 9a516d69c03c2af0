//! The lines `ssl_…` of a store, named as the directives `proxy_ssl_…`.

use super::directive::{Directive, text};
use super::error::{ConfError, StoreError};
use crate::client::TlsSettings;
use crate::client::tls;

/// Reads one line.
pub(super) fn read(settings: &mut TlsSettings, line: &mut Directive<'_>) -> Result<(), ConfError> {
    tls::supported().map_err(StoreError::Tls)?;
    let name = line.name()?;
    let slot = match name {
        "ssl_verify" => return line.choose(&mut settings.verify, &[("on", true), ("off", false)]),
        "ssl_protocols" => return read_protocols(settings, line),
        "ssl_trusted_certificate" => &mut settings.trusted_certificate,
        "ssl_name" => &mut settings.name,
        "ssl_certificate" => &mut settings.certificate,
        "ssl_certificate_key" => &mut settings.certificate_key,
        "ssl_crl" => &mut settings.crl,
        "ssl_ciphers" => &mut settings.ciphers,
        _ => return Err(StoreError::Unknown(name.to_owned()).into()),
    };
    match line.value()? {
        "" => Err(line.invalid("", "not empty")),
        value if value.contains('$') => Err(line.invalid(value, "without variables")),
        value => line.once(slot, value),
    }
}

fn read_protocols(settings: &mut TlsSettings, line: &mut Directive<'_>) -> Result<(), ConfError> {
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
        // There is no argument, which is an error.
        0 => line.value().map(|_| ()),
        bits => line.once(&mut settings.protocols, bits),
    }
}
