//! The address of a client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Request;
use super::request::bytes;

/// The address of a client, as variables show it.
pub(crate) enum Address<'r> {
    /// An IP address, and its text.
    Ip(IpAddr, &'r [u8]),
    /// The address of a unix socket.
    Other,
}

impl<'r> Request<'r> {
    /// The address of the client.
    pub(crate) fn address(self) -> Address<'r> {
        // SAFETY: the connection of a request has an address of the family that it names, and a text of it, which
        // lives as long as the request.
        unsafe {
            let connection = (*self.as_ptr()).connection;
            let address = (*connection).sockaddr;
            let text = bytes((*connection).addr_text);
            match libc::c_int::from((*address).sa_family) {
                libc::AF_INET => {
                    let bits = (*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                    Address::Ip(Ipv4Addr::from(bits.to_ne_bytes()).into(), text)
                }
                libc::AF_INET6 => {
                    let bytes = (*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                    Address::Ip(Ipv6Addr::from(bytes).into(), text)
                }
                _ => Address::Other,
            }
        }
    }
}
