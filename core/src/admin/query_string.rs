//! A query string.

use super::AdminError;
use crate::text::log::Escaped;

/// Every argument that a request may have.
const NAMES: [&str; 13] = [
    "limit",
    "key",
    "top",
    "base_rate",
    "base_capacity",
    "base_burst",
    "rate",
    "capacity",
    "burst",
    "for",
    "grant",
    "block",
    "override",
];

/// A query string: the arguments of it that were not taken yet, each once.
#[derive(Debug, Default)]
pub(super) struct QueryString(Vec<(&'static str, Vec<u8>)>);

impl QueryString {
    /// Reads a query string. Values are percent-encoded, and a plus sign is one.
    pub(super) fn read(query: &[u8]) -> Result<Self, AdminError> {
        let mut read = Self::default();
        for part in query.split(|byte| *byte == b'&').filter(|part| !part.is_empty()) {
            let (name, value) = split(part);
            let known = NAMES.into_iter().find(|known| known.as_bytes() == name);
            let name = known.ok_or_else(|| AdminError::Unknown(Escaped(name).to_string()))?;
            if read.0.iter().any(|(other, _)| *other == name) {
                return Err(AdminError::Repeated(name));
            }
            read.0.push((name, decoded(value).ok_or(AdminError::Encoding(name))?));
        }
        Ok(read)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the value of an argument, if it is there.
    pub(super) fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes the value of an argument that is a text.
    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, AdminError> {
        let value = self.take(name).map(String::from_utf8).transpose();
        value.map_err(|_| AdminError::NotUtf8(name))
    }

    /// Takes an argument that has no value, and returns whether it was there.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, AdminError> {
        match self.take(name) {
            None => Ok(false),
            Some(value) if value.is_empty() => Ok(true),
            Some(_) => Err(AdminError::Value(name)),
        }
    }

    /// All are taken.
    pub(super) fn finish(self) -> Result<(), AdminError> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(AdminError::Unexpected(name)),
        }
    }
}

/// The name of an argument, and its value.
fn split(part: &[u8]) -> (&[u8], &[u8]) {
    let mut halves = part.splitn(2, |byte| *byte == b'=');
    (halves.next().unwrap_or_default(), halves.next().unwrap_or_default())
}

/// The bytes that are percent-encoded in `value` (RFC 3986, section 2.1); `None` if digits are missing.
fn decoded(value: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value);
    while let Some((first, after)) = rest.split_first() {
        let (byte, left) = match (first, after) {
            (b'%', [high, low, left @ ..]) => (digit(*high)? << 4 | digit(*low)?, left),
            (b'%', _) => return None,
            (other, left) => (*other, left),
        };
        bytes.push(byte);
        rest = left;
    }
    Some(bytes)
}

/// The value of a hexadecimal digit.
fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| digit.try_into().ok())
}
