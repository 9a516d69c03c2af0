//! The lines of a store: one row for each.

use super::{DEFAULT_PREFIX, StoreError, StoreLines, tls};
use crate::conf::{Directive, DirectiveError, policy};

/// A line that a block may have.
#[derive(Clone, Copy, Debug)]
pub struct StoreLine {
    /// The name.
    pub name: &'static str,
    /// The value without the line, as it would be written, if there is one.
    pub default: Option<&'static str>,
    /// The value that it sets.
    pub sets: StoreSets,
}

/// The value that a line sets.
#[derive(Clone, Copy, Debug)]
pub enum StoreSets {
    /// A server, with the addresses of its host: see [`StoreLines::add_server`].
    Server,
    /// The password in a file: see [`StoreLines::set_password_file`].
    PasswordFile,
    /// The secret in a file: see [`StoreLines::set_key_hmac`].
    KeyHmac,
    /// A value that words alone make.
    Value(ReadLine),
}

/// Reads a line of a name into its place.
type ReadLine = for<'a> fn(&mut StoreLines<'a>, &Directive<'a>) -> Result<(), StoreError>;

/// The most connections a worker may have to a node: more would only make its batches smaller.
const MAX_CONNECTIONS: u64 = 64;

/// The largest number of a database.
const MAX_DATABASE: u64 = u32::MAX as u64;

/// The most failures that can be configured: the time of each is kept.
const MAX_FAILS: u64 = 1_000;

/// Makes the table.
macro_rules! lines {
    (
        rows {$($row:literal, $sets:expr;)+}
        values {$($name:literal to $($place:ident).+ by $read:path $(, or $default:expr)?;)+}
    ) => {
        /// Every line.
        pub const LINES: &[StoreLine] = &[
            $(StoreLine { name: $row, default: None, sets: $sets },)+
            $(StoreLine {
                name: $name,
                default: [$(Some($default),)? None][0],
                sets: StoreSets::Value(|store, line| {
                    let value = $read(line)?;
                    Ok(line.once(&mut store.$($place).+, value)?)
                }),
            },)+
        ];
    };
}

lines! {
    rows {
        "server", StoreSets::Server;
        "password", StoreSets::Value(password);
        "password_file", StoreSets::PasswordFile;
        "key_hmac", StoreSets::KeyHmac;
    }
    values {
        "cluster" to cluster by Directive::choice, or "off";
        "sentinel" to sentinel by name;
        "user" to user by name;
        "auth_interval" to auth_interval by Directive::time;
        "database" to database by Directive::number::<0, MAX_DATABASE>, or "0";
        "prefix" to prefix by prefix, or DEFAULT_PREFIX;
        "connect_timeout" to connect_timeout by Directive::time, or "250ms";
        "connections" to connections by Directive::number::<1, MAX_CONNECTIONS>, or "1";
        "max_fails" to max_fails by Directive::number::<0, MAX_FAILS>, or "3";
        "fail_timeout" to fail_timeout by Directive::time, or "1s";
        "ssl_trusted_certificate" to tls.trusted_certificate by tls::text;
        "ssl_verify" to tls.verify by Directive::choice, or "on";
        "ssl_name" to tls.name by tls::text;
        "ssl_certificate" to tls.certificate by tls::text;
        "ssl_certificate_key" to tls.certificate_key by tls::text;
        "ssl_crl" to tls.crl by tls::text;
        "ssl_protocols" to tls.versions by tls::versions, or "TLSv1.2 TLSv1.3";
        "ssl_ciphers" to tls.ciphers by tls::text, or tls::DEFAULT_CIPHERS;
    }
}

impl StoreLine {
    /// The row of the line of this name.
    pub fn find(name: &str) -> Result<&'static Self, StoreError> {
        let row = LINES.iter().find(|row| row.name == name);
        row.ok_or_else(|| StoreError::Unknown(name.to_owned()))
    }
}

/// The name of an account or of a master.
fn name<'a>(line: &Directive<'a>) -> Result<&'a str, DirectiveError> {
    match line.value()? {
        "" => Err(line.invalid("", "a name")),
        name => Ok(name),
    }
}

fn password<'a>(store: &mut StoreLines<'a>, line: &Directive<'a>) -> Result<(), StoreError> {
    match line.value()? {
        "" => Err(StoreError::EmptyPassword),
        password => store.set_password(password.to_owned()),
    }
}

fn prefix<'a>(line: &Directive<'a>) -> Result<&'a str, DirectiveError> {
    match line.value()? {
        prefix if prefix.contains('$') => Err(line.invalid(prefix, "a text without variables")),
        prefix => Ok(prefix),
    }
}

/// The longest time to connect without a unit and without a warning, in ms.
const LONG_CONNECT_TIMEOUT: u64 = 10_000;

/// The warning of a line: a password that may be meant as a variable, or a time to connect that may have lost its unit.
pub fn line_doubt(line: &Directive<'_>) -> Option<String> {
    if line.name() == Ok("password") && line.value().is_ok_and(|it| it.starts_with('$')) {
        return Some(
            "\"password\" begins with \"$\", and is taken as it is written: it has no variables"
                .to_owned(),
        );
    }
    let value = line.value().ok().filter(|_| line.name() == Ok("connect_timeout"))?;
    let is_bare = value.bytes().all(|byte| byte.is_ascii_digit());
    let time = line.time().ok().filter(|time| is_bare && *time > LONG_CONNECT_TIMEOUT)?;
    policy::seconds(line, time, |seconds| format!("lets connecting take {seconds} s"))
}
