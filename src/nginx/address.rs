//! The address of a client.

use std::net::Ipv6Addr;

use super::Request;
use super::request::bytes;

/// The address of a client, as variables show it.
pub(crate) enum Address<'r> {
    /// The text of an IPv4 address.
    V4(&'r [u8]),
    V6(Ipv6Addr),
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
            match libc::c_int::from((*address).sa_family) {
                libc::AF_INET => Address::V4(bytes((*connection).addr_text)),
                libc::AF_INET6 => {
                    Address::V6((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr.into())
                }
                _ => Address::Other,
            }
        }
    }
}
