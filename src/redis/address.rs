//! Where a server listens.

use std::net::IpAddr;

use ngx::ffi::ngx_addr_t;

/// An address of a socket.
#[derive(Clone)]
pub(crate) struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    /// An address that NGINX has made.
    pub(crate) fn from_nginx(address: &ngx_addr_t) -> Self {
        // SAFETY: NGINX's addresses are as long as they say.
        unsafe { Self::copy(address.sockaddr.cast(), address.socklen as usize) }
    }

    /// The address of `port` at `ip`.
    pub(crate) fn new(ip: IpAddr, port: u16) -> Self {
        match ip {
            IpAddr::V4(ip) => {
                // SAFETY: all zeroes is an address of no family.
                let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                address.sin_family = libc::AF_INET as libc::sa_family_t;
                address.sin_port = port.to_be();
                address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
                // SAFETY: the address is as long as its type.
                unsafe { Self::copy((&raw const address).cast(), size_of_val(&address)) }
            }
            IpAddr::V6(ip) => {
                // SAFETY: as above.
                let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                address.sin6_port = port.to_be();
                address.sin6_addr.s6_addr = ip.octets();
                // SAFETY: as above.
                unsafe { Self::copy((&raw const address).cast(), size_of_val(&address)) }
            }
        }
    }

    /// The same address with another port, if it has one.
    pub(super) fn with_port(mut self, port: u16) -> Self {
        // SAFETY: the storage is large and aligned enough for an address of either family.
        unsafe {
            match libc::c_int::from(self.storage.ss_family) {
                libc::AF_INET => {
                    (*(&raw mut self.storage).cast::<libc::sockaddr_in>()).sin_port = port.to_be();
                }
                libc::AF_INET6 => {
                    let address = (&raw mut self.storage).cast::<libc::sockaddr_in6>();
                    (*address).sin6_port = port.to_be();
                }
                _ => {}
            }
        }
        self
    }

    /// The address as the system wants it, and how long it is.
    pub(super) fn raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.length)
    }

    /// Whether it is that of a unix socket.
    pub(super) fn is_unix(&self) -> bool {
        libc::c_int::from(self.storage.ss_family) == libc::AF_UNIX
    }

    /// # Safety
    /// There must be `length` bytes at `address`.
    unsafe fn copy(address: *const u8, length: usize) -> Self {
        // SAFETY: all zeroes is an address of no family.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        // No address is longer than the storage, which is made for any.
        let length = length.min(size_of_val(&storage));
        // SAFETY: both are that long, and the storage is a new one.
        unsafe {
            std::ptr::copy_nonoverlapping(address, (&raw mut storage).cast::<u8>(), length);
        }
        Self { storage, length: length as libc::socklen_t }
    }
}
