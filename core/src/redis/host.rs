//! The hosts that servers announce.

/// The longest host name, in bytes (RFC 1035, section 2.3.4).
const LONGEST: usize = 255;

/// Whether a server may announce this as a host: an address, with or without a zone, or a name. Anything
/// else could reach logs, the resolver and TLS as something that it is not.
pub(super) fn is_host(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_or_a_name() {
        for host in
            ["10.0.0.1", "::1", "fe80::1%eth0", "redis-1.example", "redis_1", &"a".repeat(255)]
        {
            assert!(is_host(host), "{host}");
        }
        for other in ["", "a b", "a\nb", "a\x1bb", "é", "a/b", "a]:1 is", &"a".repeat(256)] {
            assert!(!is_host(other), "{other}");
        }
    }
}
