//! The key of a client, made from its address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
    pub fn key(self, address: IpAddr) -> String {
        match address.to_canonical() {
            IpAddr::V4(address) if self.keep_ipv4() => address.to_string(),
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(u32::BITS.saturating_sub(self.ipv4)).unwrap_or(0);
                format!("{}/{}", Ipv4Addr::from_bits(address.to_bits() & mask), self.ipv4)
            }
            IpAddr::V6(address) => {
                let prefix = self.ipv6.min(u128::BITS);
                let mask = u128::MAX.checked_shl(u128::BITS.saturating_sub(prefix)).unwrap_or(0);
                format!("{}/{prefix}", Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(address: &str, ipv4: u32, ipv6: u32) -> String {
        Prefixes { ipv4, ipv6 }.key(address.parse().unwrap())
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
