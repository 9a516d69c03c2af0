//! Where a client's state lives in Redis: `<prefix><name>:<key>`.
//!
//! Nothing of the process or the machine is part of it, so every NGINX that shares the store and
//! the limit's name shares the budget.

use xxhash_rust::xxh3::Xxh3;

/// A client key longer than this many bytes is replaced by a digest of it.
pub const MAX_KEY: usize = 512;

/// The part of the Redis key that all clients of a limit have in common: `<prefix><name>:`.
pub fn head(prefix: &str, name: &str) -> Vec<u8> {
    format!("{prefix}{name}:").into_bytes()
}

/// What stands for a key over [`MAX_KEY`] bytes, so that what a client sends cannot fill Redis:
/// `sha1:` and its SHA-1 in hexadecimal. `None` for a key that stands for itself.
pub fn digest(key: &[u8]) -> Option<String> {
    (key.len() > MAX_KEY).then(|| format!("sha1:{}", sha1_smol::Sha1::from(key).digest()))
}

/// What stands for the key `head` + `key` in this machine's memory. With a seed that nobody knows,
/// nobody can choose keys that share a digest.
pub fn memory_digest(seed: u64, head: &[u8], key: &[u8]) -> u128 {
    let mut hasher = Xxh3::with_seed(seed);
    hasher.update(head);
    hasher.update(key);
    hasher.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_prefix_and_name() {
        assert_eq!(head("rl:", "default"), b"rl:default:");
    }

    #[test]
    fn a_digest_is_of_the_whole_key_and_the_seed() {
        let digest = memory_digest(1, b"rl:a:", b"x");
        assert_eq!(memory_digest(1, b"rl:", b"a:x"), digest);
        let others = [memory_digest(2, b"rl:a:", b"x"), memory_digest(1, b"rl:a:", b"y")];
        assert!(!others.contains(&digest));
    }

    #[test]
    fn a_long_key_is_digested() {
        assert_eq!(digest(&[b'x'; MAX_KEY]), None);
        let long = digest(&[b'x'; MAX_KEY + 1]).unwrap();
        assert_eq!(long.len(), "sha1:".len() + 40);
        assert_ne!(Some(long), digest(&[b'x'; MAX_KEY + 2]));
    }
}
