//! A non-blocking socket with NGINX's events, and addresses as the system takes them.

use std::ffi::c_void;
use std::io;
use std::mem::{offset_of, zeroed};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    NGX_AGAIN, ngx_close_connection, ngx_connection_log_error_e_NGX_ERROR_INFO, ngx_connection_t,
    ngx_cycle, ngx_event_connect_peer, ngx_event_get_peer, ngx_event_handler_pt,
    ngx_handle_read_event, ngx_handle_write_event, ngx_log_t, ngx_peer_connection_t,
    ngx_post_event, ngx_posted_events, ngx_socket_t, ngx_str_t, ngx_tcp_nodelay,
};
use rate_limit_core::client::Target;

use super::tls::{Peer, Stream};

/// An open socket; closed when it is dropped.
///
/// NGINX and OpenSSL have pointers of their own to the connection, and use them when they are called. So no reference to
/// it is made here.
pub(super) struct Socket {
    connection: NonNull<ngx_connection_t>,
    tls: Option<Stream>,
}

/// The outcome of a read or a write.
pub(super) enum Transfer {
    /// The number of bytes that were moved.
    Moved(usize),
    /// Nothing can be moved before the next event.
    Later,
}

impl Socket {
    /// Starts to connect to `target`. Events call `on_event` with `data` as their connection's
    /// data: the first one that is ready to be written ends the attempt.
    ///
    /// # Safety
    /// `log`, and what `on_event` makes of `data`, must be valid for as long as the socket is.
    pub(super) unsafe fn connect(
        target: &Target,
        log: *mut ngx_log_t,
        on_event: ngx_event_handler_pt,
        data: *mut c_void,
    ) -> io::Result<Self> {
        let address = SocketAddress::new(target)?;
        let (sockaddr, length) = address.raw();
        let mut name = ngx_str_t { data: c"redis".as_ptr().cast_mut().cast(), len: 5 };
        // SAFETY: all zeroes is what NGINX starts from. Address and name outlive the call, the
        // only use of `peer`, and are only read.
        unsafe {
            let mut peer: ngx_peer_connection_t = std::mem::zeroed();
            peer.sockaddr = sockaddr.cast_mut().cast();
            peer.socklen = length;
            peer.name = &mut name;
            peer.get = Some(ngx_event_get_peer);
            peer.log = log;
            // A failed attempt is logged elsewhere, once for all workers, with the reason.
            peer.set_log_error(ngx_connection_log_error_e_NGX_ERROR_INFO);
            let status = Status(ngx_event_connect_peer(&mut peer));
            let error = io::Error::last_os_error();
            let connection = match NonNull::new(peer.connection) {
                Some(connection) if status == Status::NGX_OK || status == Status::NGX_AGAIN => {
                    connection
                }
                // NGINX got a socket, but no connection for it: that is no error of the system.
                _ if (*ngx_cycle).free_connections.is_null() => {
                    return Err(io::Error::other(
                        "no free connection: all worker_connections are in use",
                    ));
                }
                _ => return Err(error),
            };
            let socket = Self { connection, tls: None };
            let raw = socket.raw();
            (*raw).data = data;
            // NGINX sends an event to idle connections when a worker shuts down.
            (*raw).set_idle(1);
            (*(*raw).read).handler = on_event;
            (*(*raw).write).handler = on_event;
            if matches!(target, Target::Ip(_)) {
                // If it fails it costs latency, and NGINX has logged it.
                ngx_tcp_nodelay(raw);
                keep_alive((*raw).fd);
            }
            if status == Status::NGX_OK {
                // Connected at once: not every event method reports that.
                ngx_post_event((*raw).write, &raw mut ngx_posted_events);
            }
            Ok(socket)
        }
    }

    /// Takes the result of the attempt to connect, if it is over; its error, if it failed.
    pub(super) fn test_connect(&self) -> io::Result<bool> {
        // Before the socket can be written it has no error, and is not connected either.
        // SAFETY: the connection is open, and its events are valid.
        if unsafe { (*(*self.raw()).write).ready() } == 0 {
            return Ok(false);
        }
        let mut error: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open, and the buffers are of the given size.
        let status = unsafe {
            libc::getsockopt(
                (*self.raw()).fd,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                ptr::from_mut(&mut error).cast(),
                &mut length,
            )
        };
        if status == -1 {
            return Err(io::Error::last_os_error());
        }
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(true)
    }

    /// Continues the TLS handshake, once the socket is connected; whether it is complete.
    pub(super) fn secure(&mut self, peer: &Peer) -> io::Result<bool> {
        let connection = self.connection;
        // SAFETY: the connection is open. The stream is kept until it is closed, and closed before it.
        unsafe {
            let tls = self.tls.get_or_insert_with(|| peer.stream(connection));
            tls.handshake(connection, peer).map_err(io::Error::other)
        }
    }

    /// Whether the TLS handshake has been started.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Saves the session in `peer`, after something was read.
    pub(super) fn save_session(&self, peer: &Peer) {
        if let Some(tls) = &self.tls {
            // SAFETY: the connection is open, and TLS is spoken on it.
            unsafe { tls.save_session(self.connection, peer) };
        }
    }

    /// Whether there may be something to read.
    pub(super) fn is_readable(&self) -> bool {
        // SAFETY: the connection is open, and its events are valid.
        unsafe { (*(*self.raw()).read).ready() != 0 }
    }

    /// Reads into `space`; an end of the stream is an error.
    pub(super) fn receive(&self, space: &mut [u8]) -> io::Result<Transfer> {
        // SAFETY: the connection is open, and the space is as large as its slice.
        let count = unsafe {
            let raw = self.raw();
            let Some(receive) = (*raw).recv else { return Err(io::ErrorKind::NotConnected.into()) };
            receive(raw, space.as_mut_ptr(), space.len())
        };
        match usize::try_from(count) {
            Ok(0) => Err(io::Error::other("the server closed the connection")),
            Ok(count) => Ok(Transfer::Moved(count)),
            Err(_) if count == NGX_AGAIN as isize => Ok(Transfer::Later),
            Err(_) => Err(self.error()),
        }
    }

    /// Writes from `bytes`. After `Later` the same bytes must come first again.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<Transfer> {
        // SAFETY: the connection is open, and NGINX only reads the bytes.
        let count = unsafe {
            let raw = self.raw();
            let Some(send) = (*raw).send else { return Err(io::ErrorKind::NotConnected.into()) };
            send(raw, bytes.as_ptr().cast_mut(), bytes.len())
        };
        match usize::try_from(count) {
            Ok(count) => Ok(Transfer::Moved(count)),
            Err(_) if count == NGX_AGAIN as isize => Ok(Transfer::Later),
            Err(_) => Err(self.error()),
        }
    }

    /// Updates the state of the socket's events from the socket itself: after a long turn the events
    /// that NGINX has processed are out of date.
    pub(super) fn refresh_events(&self) {
        let raw = self.raw();
        // SAFETY: the connection is open.
        let fd = unsafe { (*raw).fd };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: there is one structure, and it is valid; with no timeout this returns at once.
        let count = unsafe { libc::poll(&mut poll, 1, 0) };
        if count < 1 {
            return;
        }
        let (failed, is) = (libc::POLLERR | libc::POLLHUP, |bits| poll.revents & bits != 0);
        // SAFETY: the connection is open, and its events are valid. An event that is marked as ready
        // without need costs one more system call.
        unsafe {
            if is(libc::POLLIN | failed) {
                (*(*raw).read).set_ready(1);
                (*(*raw).read).available = -1;
            }
            if is(libc::POLLOUT | failed) {
                (*(*raw).write).set_ready(1);
            }
        }
    }

    /// Registers for the events that are needed before more can be moved, and for no others: select and poll
    /// would report a socket that can be written to in each turn.
    pub(super) fn watch(&self) -> io::Result<()> {
        let raw = self.raw();
        // SAFETY: the events of an open connection are valid.
        let watched = unsafe {
            ngx_handle_read_event((*raw).read, 0) == Status::NGX_OK.0
                && ngx_handle_write_event((*raw).write, 0) == Status::NGX_OK.0
        };
        if watched { Ok(()) } else { Err(io::Error::other("the event could not be registered")) }
    }

    /// Why the last read or write failed.
    fn error(&self) -> io::Error {
        match &self.tls {
            Some(tls) => io::Error::other(tls.reason()),
            None => io::Error::last_os_error(),
        }
    }

    /// The connection. It is open as long as `self` lives.
    fn raw(&self) -> *mut ngx_connection_t {
        self.connection.as_ptr()
    }
}

/// Has the system probe an idle connection. A firewall or a load balancer that drops idle connections
/// silently is thus noticed before a request is, and mostly does not drop this one. If it fails
/// there are no probes, and requests notice it.
fn keep_alive(fd: ngx_socket_t) {
    // In seconds: some firewalls wait for no more than a few minutes.
    const OPTIONS: [(libc::c_int, libc::c_int, libc::c_int); 4] = [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ];
    for (level, option, value) in OPTIONS {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the value has the type of these options, and is only read.
        unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) };
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(tls) = &self.tls {
            // SAFETY: the connection is open, and TLS is not used on it any more.
            unsafe { tls.close(self.connection) };
        }
        // SAFETY: the connection is open. NGINX removes its events, also those already posted.
        unsafe { ngx_close_connection(self.connection.as_ptr()) };
    }
}

/// An address of a socket.
pub(crate) struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    /// The address of a target. Fails if the path of a unix socket is too long.
    pub(crate) fn new(target: &Target) -> io::Result<Self> {
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
            let most = raw.sun_path.len() - 1;
            let text = format!("the path of the socket is longer than {most} bytes");
            return Err(io::Error::other(text));
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
