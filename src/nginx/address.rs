//! Addresses of sockets.

use std::net::{SocketAddr, SocketAddrV6};

use ngx::ffi::sockaddr;

/// An IP address and its port; `None` for an address of another family.
///
/// # Safety
/// The address must be as long as its family says, and aligned for it, as NGINX's are.
pub(crate) unsafe fn ip_address(address: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match libc::c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let raw = &*address.cast::<libc::sockaddr_in>();
                let ip = raw.sin_addr.s_addr.to_ne_bytes();
                Some((ip, u16::from_be(raw.sin_port)).into())
            }
            libc::AF_INET6 => {
                let raw = &*address.cast::<libc::sockaddr_in6>();
                let (ip, port) = (raw.sin6_addr.s6_addr.into(), u16::from_be(raw.sin6_port));
                Some(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}
