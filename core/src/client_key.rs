//! The key of a client, made from its address.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv6 address as a key: cut to its first `prefix` bits, with the length of the prefix behind it. An
/// IPv4-mapped one is its IPv4 address.
///
/// An IPv6 subscriber has 2^64 addresses or more, and must not have as many budgets.
pub fn key(address: Ipv6Addr, prefix: u32) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let prefix = prefix.min(128);
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix)).unwrap_or(0);
            let network = Ipv6Addr::from_bits(address.to_bits() & mask);
            format!("{network}/{prefix}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(address: &str, prefix: u32) -> String {
        key(address.parse().unwrap(), prefix)
    }

    #[test]
    fn ipv4_is_whole() {
        assert_eq!(cut("::ffff:192.0.2.1", 64), "192.0.2.1");
    }

    #[test]
    fn ipv6_is_cut() {
        let address = "2001:db8:1:2:3:4:5:6";
        assert_eq!(cut(address, 64), "2001:db8:1:2::/64");
        assert_eq!(cut(address, 48), "2001:db8:1::/48");
        assert_eq!(cut(address, 56), "2001:db8:1::/56");
        assert_eq!(cut(address, 128), "2001:db8:1:2:3:4:5:6/128");
        assert_eq!(cut(address, 1), "::/1");
        assert_eq!(cut(address, 0), "::/0");
        assert_eq!(cut("::1", 64), "::/64");
    }
}
