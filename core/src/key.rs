//! Where a client's state lives in Redis: `<prefix><name>:<key>`.
//!
//! Nothing of the process or the machine is part of it, so every NGINX that shares the store and
//! the limit's name shares the budget.

mod hmac;

use std::ops::Deref;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::limit::is_name;

pub use hmac::KeyHmac;

/// A client key longer than this many bytes is replaced by a digest of it.
const MAX_KEY: usize = 512;

/// The first part of the Redis key, which all clients of a limit have in common: `<prefix><name>:`.
///
/// Every command takes a `Head`, and [`Head::new`] is the only way to make one. So whatever a
/// client sends as its key, the key in Redis belongs to this limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head(Vec<u8>);

impl Head {
    /// The head of the limit of this name; `None` if the name is invalid.
    pub fn new(prefix: &str, name: &str) -> Option<Self> {
        is_name(name).then(|| Self(format!("{prefix}{name}:").into_bytes()))
    }
}

impl Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A Redis key in its two parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RedisKey<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) key: &'a [u8],
}

impl<'a> RedisKey<'a> {
    /// The bytes of the whole key.
    pub(crate) fn bytes(self) -> impl Iterator<Item = u8> + 'a {
        self.head.iter().chain(self.key).copied()
    }
}

impl PartialEq for RedisKey<'_> {
    /// Wherever the two parts meet.
    fn eq(&self, other: &Self) -> bool {
        match self.head.len() == other.head.len() {
            true => self.head == other.head && self.key == other.key,
            false => self.bytes().eq(other.bytes()),
        }
    }
}

/// A digest in this machine's memory: it is uniformly distributed.
///
/// In two words, as the memory of a request is not aligned for a `u128`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    high: u64,
    low: u64,
}

impl Digest {
    /// The digest as a number.
    pub fn number(self) -> u128 {
        (u128::from(self.high) << u64::BITS) | u128::from(self.low)
    }

    /// A part of the digest.
    pub(crate) fn low(self) -> u64 {
        self.low
    }
}

impl From<u128> for Digest {
    fn from(number: u128) -> Self {
        Self { high: (number >> u64::BITS) as u64, low: number as u64 }
    }
}

/// The digest that replaces a key over 512 bytes: `sha1:` and its SHA-1 in hexadecimal. It
/// keeps a client from filling Redis with long keys. `None` for a shorter key.
pub fn digest(key: &[u8]) -> Option<String> {
    (key.len() > MAX_KEY).then(|| format!("sha1:{}", sha1_smol::Sha1::from(key).digest()))
}

/// The text in Redis in place of a client's key: its digest if it is long; where there is an HMAC, the HMAC of that
/// digest or of the key. `None` if Redis has the key itself.
#[inline]
pub fn replacement(key: &[u8], hmac: Option<&KeyHmac>) -> Option<String> {
    // Most keys are short, and most stores have no HMAC.
    if hmac.is_none() && key.len() <= MAX_KEY { None } else { replaced(key, hmac) }
}

#[cold]
fn replaced(key: &[u8], hmac: Option<&KeyHmac>) -> Option<String> {
    let digest = digest(key);
    match hmac {
        None => digest,
        Some(hmac) => Some(hmac.hex(digest.as_ref().map_or(key, String::as_bytes))),
    }
}

/// The digest of a client's key in this machine's memory. The seed differs for each limit; if a
/// part of it is secret, a client cannot choose keys that share a digest.
pub fn memory_digest(seed: u64, key: &[u8]) -> u128 {
    xxh3_128_with_seed(key, seed)
}

/// The place of a digest among so many: as far along them as the digest is along all digests.
pub fn place(digest: u128, places: usize) -> usize {
    ((u128::from(digest as u64) * places as u128) >> u64::BITS) as usize
}

/// The part of such a seed that identifies a limit: a hash of its `head`.
pub fn fingerprint(head: &[u8]) -> u64 {
    xxh3_64(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_prefix_and_name() {
        let head = |prefix, name| Head::new(prefix, name).map(|head| head.to_vec());
        assert_eq!(head("rl:", "default"), Some(b"rl:default:".to_vec()));
        assert_eq!(head("", "x"), Some(b"x:".to_vec()));
        assert_eq!((head("rl:", ""), head("rl:", "a:b")), (None, None));
    }

    #[test]
    fn a_digest_is_of_the_whole_key_and_the_seed() {
        let digests = [(1, b"x"), (2, b"x"), (1, b"y")].map(|(seed, key)| memory_digest(seed, key));
        assert!(digests[0] != digests[1] && digests[0] != digests[2]);
        assert_ne!(fingerprint(b"rl:a:"), fingerprint(b"rl:b:"));
    }

    #[test]
    fn a_long_key_is_digested() {
        assert_eq!(digest(&[b'x'; MAX_KEY]), None);
        let long = digest(&[b'x'; MAX_KEY + 1]).unwrap();
        assert_eq!(long.len(), "sha1:".len() + 40);
        assert_ne!(Some(long), digest(&[b'x'; MAX_KEY + 2]));
    }

    #[test]
    fn an_hmac_is_of_what_would_stand_there_without_it() {
        let (hmac, long) = (KeyHmac::new(b"0123456789abcdef"), [b'x'; MAX_KEY + 1]);
        let digest = digest(&long).unwrap();
        assert_eq!(
            (replacement(b"a", None), replacement(&long, None)),
            (None, Some(digest.clone()))
        );
        assert_eq!(replacement(b"a", Some(&hmac)), Some(hmac.hex(b"a")));
        assert_eq!(replacement(&long, Some(&hmac)), replacement(digest.as_bytes(), Some(&hmac)));
        assert_eq!(replacement(&long, Some(&hmac)), Some(hmac.hex(digest.as_bytes())));
    }
}
