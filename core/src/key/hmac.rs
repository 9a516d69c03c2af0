//! Keys that do not show what they stand for.

use std::fmt;

use sha2::{Digest as _, Sha256};

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
    /// The length of what [`hex`](Self::hex) gives, in bytes.
    pub const LEN: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = KeyHmac::new(secret).hex(key);
            assert_eq!((found.as_str(), found.len()), (expected, KeyHmac::LEN));
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        assert_eq!(format!("{:?}", KeyHmac::new(b"secret")), "KeyHmac { .. }");
    }
}
