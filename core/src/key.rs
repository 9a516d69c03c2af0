//! Where a client's state lives in Redis.

/// A client key longer than this many bytes is replaced by a digest of it.
pub const MAX_KEY: usize = 512;

/// Appends the Redis key `<prefix><name>:<key>` to `out`.
///
/// A key over [`MAX_KEY`] bytes appears as `sha1:` and its SHA-1 in hexadecimal, so that what a
/// client sends cannot fill Redis. Nothing of the process or the machine is part of the key:
/// every NGINX that shares the store and the limit's name shares the budget.
pub fn write(out: &mut Vec<u8>, prefix: &[u8], name: &str, key: &[u8]) {
    out.extend_from_slice(prefix);
    out.extend_from_slice(name.as_bytes());
    out.push(b':');
    if key.len() <= MAX_KEY {
        out.extend_from_slice(key);
    } else {
        out.extend_from_slice(b"sha1:");
        out.extend_from_slice(sha1_smol::Sha1::from(key).digest().to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, key: &[u8]) -> String {
        let mut out = Vec::new();
        write(&mut out, b"rl:", name, key);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn is_prefix_name_and_key() {
        assert_eq!(key("default", b"192.0.2.1"), "rl:default:192.0.2.1");
    }

    #[test]
    fn a_long_key_is_digested() {
        assert_eq!(key("a", &[b'x'; MAX_KEY]).len(), "rl:a:".len() + MAX_KEY);
        let long = key("a", &[b'x'; MAX_KEY + 1]);
        assert_eq!(long.len(), "rl:a:sha1:".len() + 40);
        assert_ne!(long, key("a", &[b'x'; MAX_KEY + 2]));
    }
}
