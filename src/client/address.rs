//! Addresses as the system takes them.

use std::io;
use std::mem::{offset_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ngx::ffi::ngx_addr_t;
use rate_limit_core::client::Target;

/// An address of a socket.
pub(super) struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    /// The address of a target. The path of a unix socket may be too long.
    pub(super) fn new(target: &Target) -> io::Result<Self> {
        match target {
            Target::Ip(SocketAddr::V4(address)) => {
                // SAFETY: all zeroes is an address of no family.
                let mut raw: libc::sockaddr_in = unsafe { zeroed() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = address.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                Ok(Self::copy(&raw, size_of_val(&raw)))
            }
            Target::Ip(SocketAddr::V6(address)) => {
                // SAFETY: as above.
                let mut raw: libc::sockaddr_in6 = unsafe { zeroed() };
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = address.port().to_be();
                raw.sin6_addr.s6_addr = address.ip().octets();
                raw.sin6_scope_id = address.scope_id();
                Ok(Self::copy(&raw, size_of_val(&raw)))
            }
            Target::Unix(path) => Self::unix(path),
        }
    }

    fn unix(path: &Path) -> io::Result<Self> {
        // SAFETY: all zeroes is an address of no family.
        let mut raw: libc::sockaddr_un = unsafe { zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = path.as_os_str().as_bytes();
        // A zero follows the path.
        if path.len() >= raw.sun_path.len() {
            return Err(io::Error::other("the path of the socket is too long"));
        }
        for (to, from) in raw.sun_path.iter_mut().zip(path) {
            *to = *from as libc::c_char;
        }
        let length = offset_of!(libc::sockaddr_un, sun_path).saturating_add(path.len());
        Ok(Self::copy(&raw, length.saturating_add(1)))
    }

    /// The address as the system takes it, and its length.
    pub(super) fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.length)
    }

    /// Copies an address of any family, of which `length` bytes are used.
    fn copy<T>(address: &T, length: usize) -> Self {
        // SAFETY: all zeroes is an address of no family.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let size = size_of::<T>().min(size_of_val(&storage));
        // SAFETY: both are that long, and the storage is a new one.
        unsafe {
            let (from, to) = (std::ptr::from_ref(address).cast::<u8>(), (&raw mut storage).cast());
            std::ptr::copy_nonoverlapping(from, to, size);
        }
        Self { storage, length: length.min(size) as libc::socklen_t }
    }
}

/// The target of an address of NGINX, with `port`, if given, instead of its own; `None` for an address
/// of another family.
///
/// # Safety
/// The address must be as long as its family says, and aligned for it, as NGINX's are.
pub(crate) unsafe fn target(address: &ngx_addr_t, port: Option<u16>) -> Option<Target> {
    let raw = address.sockaddr.cast::<libc::sockaddr>();
    // SAFETY: the caller guarantees it.
    unsafe {
        match libc::c_int::from((*raw).sa_family) {
            libc::AF_INET => {
                let raw = &*raw.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                let port = port.unwrap_or(u16::from_be(raw.sin_port));
                Some(Target::Ip(SocketAddr::new(IpAddr::V4(ip), port)))
            }
            libc::AF_INET6 => {
                let raw = &*raw.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = port.unwrap_or(u16::from_be(raw.sin6_port));
                Some(Target::Ip(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id))))
            }
            _ => None,
        }
    }
}
