//! The admin interface: from a request of HTTP to its operation.
//!
//! A request has a method and arguments in its query string, and no content. [`Operation::read`] makes an
//! [`Operation`] of them, or an [`AdminError`] with the status and the sentence of the answer. What the answers look
//! like is in [`text::admin`](crate::text::admin).

mod error;
mod limit;
mod query_string;
#[cfg(test)]
mod tests;

pub use error::AdminError;
pub use limit::ManagedLimit;

use query_string::QueryString;

use std::num::NonZeroU64;

use crate::conf::limit::parameter::{micros, number};
use crate::key;
use crate::limit::Quota;
use crate::manage::Change;
use crate::rate::whole;
use crate::text::log::Escaped;

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The limits.
    List,
    /// The clients of a limit that were rejected most.
    Top(&'a ManagedLimit<'a>),
    /// A client of a limit, which may be changed before.
    Client(Management<'a>),
}

/// A look at a client of a limit, or a change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management<'a> {
    /// The limit.
    pub limit: &'a ManagedLimit<'a>,
    /// The key of the client; a digest of it if it is too long.
    pub key: Vec<u8>,
    /// The quota of a client of the limit that has no override.
    pub quota: Quota,
    /// The change.
    pub change: Change,
}

/// A method, and what the arguments of the request may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Put,
    Patch,
    Delete,
}

/// The methods, as `Allow` lists them.
pub const METHODS: &str = "GET, HEAD, PUT, PATCH, DELETE";

impl Method {
    fn from_name(name: &[u8]) -> Result<Self, AdminError> {
        match name {
            b"GET" | b"HEAD" => Ok(Self::Get),
            b"PUT" => Ok(Self::Put),
            b"PATCH" => Ok(Self::Patch),
            b"DELETE" => Ok(Self::Delete),
            _ => Err(AdminError::Method),
        }
    }
}

impl<'a> Operation<'a> {
    /// Reads a request with this method and query string, which is about one of `limits` or about all of them.
    pub fn read(
        method: &[u8],
        text: &[u8],
        limits: &'a [ManagedLimit<'a>],
    ) -> Result<Self, AdminError> {
        let method = Method::from_name(method)?;
        let mut query = QueryString::read(text)?;
        if method == Method::Get && query.is_empty() {
            return Ok(Self::List);
        }
        let name = query.text("limit")?.ok_or(AdminError::Missing("limit"))?;
        if name.is_empty() {
            return Err(AdminError::EmptyLimit);
        }
        let limit = limits.iter().find(|limit| limit.definition.name == name);
        let unknown = || AdminError::UnknownLimit(Escaped(name.as_bytes()).to_string());
        let limit = limit.ok_or_else(unknown)?;
        let operation = match method == Method::Get && query.flag("top")? {
            true => Self::Top(limit),
            false => Self::Client(Management::read(method, &mut query, limit)?),
        };
        query.finish().map(|()| operation)
    }
}

impl<'a> Management<'a> {
    fn read(
        method: Method,
        query: &mut QueryString,
        limit: &'a ManagedLimit<'a>,
    ) -> Result<Self, AdminError> {
        let key = read_key(query)?;
        let quota = limit.quota(query)?;
        let change = match method {
            Method::Get => Change::Look,
            Method::Put => override_of(query, limit)?,
            Method::Patch => patch(query, limit)?,
            Method::Delete => deletion(query, limit)?,
        };
        Ok(Self { limit, key, quota, change })
    }
}

/// The key of a client. A long one is replaced as that of a request is. One that looks like a digest is not: it is what an
/// operator was shown of a long one.
fn read_key(query: &mut QueryString) -> Result<Vec<u8>, AdminError> {
    let key = query.take("key").ok_or(AdminError::Missing("key"))?;
    if key.is_empty() {
        return Err(AdminError::EmptyKey);
    }
    if key::is_digest(&key) {
        return Ok(key);
    }
    Ok(key::digest(&key).map_or(key, String::into_bytes))
}

/// An override, which replaces any other.
fn override_of(query: &mut QueryString, limit: &ManagedLimit<'_>) -> Result<Change, AdminError> {
    let own = limit.override_of(query)?;
    let expected = "it must be a time above 0 and up to 36500d, such as 30d";
    let lasts = query.text("for")?.map(|text| {
        let time = micros(&text).and_then(NonZeroU64::new);
        time.ok_or_else(|| AdminError::invalid("for", &text, expected))
    });
    Ok(Change::SetOverride { rate: own.rate(), limit: own.limit(), lasts: lasts.transpose()? })
}

/// Either `grant` or `block`.
fn patch(query: &mut QueryString, limit: &ManagedLimit<'_>) -> Result<Change, AdminError> {
    match (query.text("grant")?, query.text("block")?) {
        (Some(text), None) => Ok(Change::GiveBack(number("grant", &text, 1, whole)?)),
        (None, Some(text)) => {
            let expected = "it must be a time up to 36500d, such as 15m, or 0";
            let time = micros(&text).ok_or_else(|| AdminError::invalid("block", &text, expected));
            let span = time?;
            limit.check_block(span).map(|()| Change::Block(span))
        }
        (None, None) => Err(AdminError::Missing("grant\" or \"block")),
        (Some(_), Some(_)) => Err(AdminError::Exclusive("grant", "block")),
    }
}

/// The end of an override, or of all else that a client has.
fn deletion(query: &mut QueryString, limit: &ManagedLimit<'_>) -> Result<Change, AdminError> {
    match query.flag("override")? {
        true => limit.check_override().map(|()| Change::RemoveOverride),
        false => Ok(Change::Reset),
    }
}
