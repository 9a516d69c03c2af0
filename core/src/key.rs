//! Where a client's state lives in Redis: `<prefix><name>:<key>`; and two kinds of keys, a client's address and an HMAC.
//!
//! Nothing of the process or the machine is part of it, so every NGINX that shares the store and
//! the limit's name shares the budget.

use std::fmt;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::limit::{Quota, is_name};
use crate::word::{join, split};

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
pub struct Digest([u64; 2]);

impl Digest {
    /// The digest of a client, by [its own](crate::charge::Charge::client), and its quota.
    pub fn new(client: u128, quota: &Quota) -> Self {
        (client ^ u128::from(quota.fingerprint())).into()
    }

    /// The digest as a number.
    pub fn number(self) -> u128 {
        join(self.0)
    }

    /// A part of the digest.
    pub(crate) fn low(self) -> u64 {
        self.0[0]
    }
}

impl From<u128> for Digest {
    fn from(number: u128) -> Self {
        Self(split(number))
    }
}

/// The beginning of a digest of a key.
const DIGEST: &[u8] = b"sha1:";

/// The digest that replaces a key over 512 bytes: `sha1:` and its SHA-1 in hexadecimal. It
/// keeps a client from filling Redis with long keys. A key that looks like a digest is replaced by its own one as well:
/// it would be that of the client whose long key the digest stands for. `None` for any other key.
pub fn digest(key: &[u8]) -> Option<String> {
    let is_replaced = key.len() > MAX_KEY || is_digest(key);
    is_replaced.then(|| format!("sha1:{}", sha1_smol::Sha1::from(key).digest()))
}

/// Whether a key looks like a [`digest`].
pub fn is_digest(key: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = key.strip_prefix(DIGEST);
    digits.is_some_and(|it| it.len() == sha1_smol::DIGEST_LENGTH * 2 && it.iter().all(is_digit))
}

/// The text in Redis in place of a client's key: its [`digest`], if it has one; where there is an HMAC, the HMAC of that
/// digest or of the key. `None` if Redis has the key itself.
#[inline]
pub fn replacement(key: &[u8], hmac: Option<&KeyHmac>) -> Option<String> {
    // Most keys are short and no digests, and most stores have no HMAC.
    let is_usual = hmac.is_none() && key.len() <= MAX_KEY && !key.starts_with(DIGEST);
    if is_usual { None } else { replaced(key, hmac) }
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

/// The length of a block of SHA-256 in bytes: to that a secret is padded.
const BLOCK: usize = 64;

/// The HMAC-SHA-256 with a secret (RFC 2104).
///
/// The two halves of it begin with the padded secret. Their states behind that are kept, so that a short key takes one
/// block of SHA-256 for each half.
#[derive(Clone)]
pub struct KeyHmac {
    inner: Sha256,
    outer: Sha256,
}

impl KeyHmac {
    /// The HMAC with this secret.
    pub fn new(secret: &[u8]) -> Self {
        let hashed;
        let secret = match secret.len() {
            0..=BLOCK => secret,
            _ => {
                hashed = Sha256::digest(secret);
                &hashed[..]
            }
        };
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK];
            block.iter_mut().zip(secret).for_each(|(byte, secret)| *byte ^= secret);
            Sha256::new_with_prefix(block)
        };
        Self { inner: padded(0x36), outer: padded(0x5c) }
    }

    /// The HMAC of a key, in lower-case hexadecimal.
    pub fn hex(&self, key: &[u8]) -> String {
        let inner = self.inner.clone().chain_update(key).finalize();
        let outer = self.outer.clone().chain_update(inner).finalize();
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
        outer.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(digit).collect()
    }
}

impl fmt::Debug for KeyHmac {
    /// Without the states: they are as good as the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHmac").finish_non_exhaustive()
    }
}

/// How much of an address stands for a client, in bits. The address itself does for an IPv4 one of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// The bits of an IPv4 address.
    pub ipv4: u32,
    /// The bits of an IPv6 address.
    pub ipv6: u32,
}

impl Prefixes {
    /// Whether an IPv4 address is kept whole.
    pub fn keep_ipv4(self) -> bool {
        self.ipv4 >= Ipv4Addr::BITS
    }

    /// An address as a key: cut to its prefix, with the length of that behind it, but an IPv4 address that is kept whole as
    /// it is. An IPv4-mapped address is its IPv4 address.
    ///
    /// An IPv6 subscriber has 2^64 addresses or more, and must not have as many budgets.
    pub fn key(self, address: IpAddr) -> AddressKey {
        let mut key = AddressKey::new();
        // To write there does not fail.
        let _ = match address.to_canonical() {
            IpAddr::V4(address) if self.keep_ipv4() => write!(key, "{address}"),
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(u32::BITS.saturating_sub(self.ipv4)).unwrap_or(0);
                write!(key, "{}/{}", Ipv4Addr::from_bits(address.to_bits() & mask), self.ipv4)
            }
            IpAddr::V6(address) => {
                let prefix = self.ipv6.min(u128::BITS);
                let mask = u128::MAX.checked_shl(u128::BITS.saturating_sub(prefix)).unwrap_or(0);
                write!(key, "{}/{prefix}", Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        key
    }
}

/// An address as a key. The longest need no memory on the heap.
pub type AddressKey = SmallVec<[u8; 48]>;

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
        assert_eq!(replacement(&long, Some(&hmac)), Some(hmac.hex(digest.as_bytes())));
    }

    #[test]
    fn a_digest_as_a_key_is_another_client() {
        let (hmac, long) = (KeyHmac::new(b"0123456789abcdef"), [b'x'; MAX_KEY + 1]);
        let digest = digest(&long).unwrap();
        for hmac in [None, Some(&hmac)] {
            let of_digest = replacement(digest.as_bytes(), hmac).unwrap();
            assert_ne!(Some(&of_digest), replacement(&long, hmac).as_ref());
            // Nor is the digest of the digest a way to it.
            assert_ne!(replacement(of_digest.as_bytes(), hmac), Some(of_digest));
        }
        let short = &digest[..digest.len() - 1];
        for other in [short, &format!("{short}A"), &format!("{digest}0"), &digest[1..], "sha1:"] {
            assert_eq!(replacement(other.as_bytes(), None), None, "{other}");
        }
    }

    /// The test cases 1 to 3, 6 and 7 of RFC 4231.
    #[test]
    fn the_vectors_of_the_standard() {
        let long = "This is a test using a larger than block-size key and a larger than block-size data. The key \
                    needs to be hashed before being used by the HMAC algorithm.";
        for (secret, key, expected) in [
            (
                &[0x0b; 20][..],
                &b"Hi There"[..],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 20],
                &[0xdd; 50],
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
            (
                &[0xaa; 131],
                long.as_bytes(),
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
            ),
        ] {
            assert_eq!(KeyHmac::new(secret).hex(key), expected);
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", KeyHmac::new(b"secret")), "KeyHmac { .. }");
    }

    fn cut(address: &str, ipv4: u32, ipv6: u32) -> String {
        let key = Prefixes { ipv4, ipv6 }.key(address.parse().unwrap());
        String::from_utf8(key.into_vec()).unwrap()
    }

    #[test]
    fn ipv4_is_whole_or_cut() {
        for address in ["192.0.2.129", "::ffff:192.0.2.129"] {
            assert_eq!(cut(address, 32, 64), "192.0.2.129");
            assert_eq!(cut(address, 33, 64), "192.0.2.129");
            assert_eq!(cut(address, 31, 64), "192.0.2.128/31");
            assert_eq!(cut(address, 25, 64), "192.0.2.128/25");
            assert_eq!(cut(address, 24, 64), "192.0.2.0/24");
            assert_eq!(cut(address, 1, 64), "128.0.0.0/1");
            assert_eq!(cut(address, 0, 64), "0.0.0.0/0");
        }
    }

    #[test]
    fn ipv6_is_cut() {
        let address = "2001:db8:1:2:3:4:5:6";
        assert_eq!(cut(address, 8, 64), "2001:db8:1:2::/64");
        assert_eq!(cut(address, 32, 48), "2001:db8:1::/48");
        assert_eq!(cut(address, 32, 56), "2001:db8:1::/56");
        assert_eq!(cut(address, 32, 128), "2001:db8:1:2:3:4:5:6/128");
        assert_eq!(cut(address, 32, 1), "::/1");
        assert_eq!(cut(address, 32, 0), "::/0");
        assert_eq!(cut("::1", 32, 64), "::/64");
    }
}
