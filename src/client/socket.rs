//! A non-blocking socket with NGINX's events, and addresses as the system takes them.

use std::ffi::c_void;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use ngx::core::Status;
use ngx::ffi::{
    NGX_AGAIN, ngx_close_connection, ngx_connection_log_error_e_NGX_ERROR_INFO, ngx_connection_t,
    ngx_cycle, ngx_event_connect_peer, ngx_event_get_peer, ngx_event_handler_pt,
    ngx_handle_read_event, ngx_handle_write_event, ngx_log_t, ngx_peer_connection_t,
    ngx_post_event, ngx_posted_events, ngx_str_t, ngx_tcp_nodelay,
};
use rate_limit_core::client::Target;
use socket2::{Domain, SockAddr, SockRef, TcpKeepalive, Type};

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
        let address = socket_address(target)?;
        if address.is_ipv6() && !*HAS_IPV6 {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let mut name = ngx_str_t { data: c"redis".as_ptr().cast_mut().cast(), len: 5 };
        // SAFETY: all zeroes is what NGINX starts from. Address and name outlive the call, the
        // only use of `peer`, and are only read.
        unsafe {
            let mut peer: ngx_peer_connection_t = std::mem::zeroed();
            peer.sockaddr = address.as_ptr().cast_mut().cast();
            peer.socklen = address.len();
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
                socket.keep_alive();
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
        match SockRef::from(&self.fd()).take_error()? {
            Some(error) => Err(error),
            None => Ok(true),
        }
    }

    /// Has the system probe the connection while it is idle. A firewall or a load balancer that drops idle connections
    /// silently is thus noticed before a request is, and mostly does not drop this one. If it fails
    /// there are no probes, and requests notice it.
    fn keep_alive(&self) {
        // Some firewalls wait for no more than a few minutes.
        let (time, interval) = (Duration::from_secs(60), Duration::from_secs(10));
        let probes = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(3);
        SockRef::from(&self.fd()).set_tcp_keepalive(&probes).ok();
    }

    /// Continues the TLS handshake, once the socket is connected; whether it is complete.
    pub(super) fn secure(&mut self, peer: Rc<Peer>) -> io::Result<bool> {
        // SAFETY: the connection is open, and NGINX gives it no pool. It is closed when the stream has been dropped.
        let stream = || unsafe { Stream::new(peer, self.connection) };
        self.tls.get_or_insert_with(stream).handshake().map_err(io::Error::other)
    }

    /// Whether the TLS handshake has been started.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Saves the TLS session for the next connection to the server, after something was read.
    pub(super) fn save_session(&self) {
        if let Some(tls) = &self.tls {
            tls.save_session();
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
        let (raw, fd) = (self.raw(), self.fd().as_raw_fd());
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

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the connection is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }

    /// The connection. It is open as long as `self` lives.
    fn raw(&self) -> *mut ngx_connection_t {
        self.connection.as_ptr()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.tls = None;
        // SAFETY: the connection is open. NGINX removes its events, also those already posted.
        unsafe { ngx_close_connection(self.connection.as_ptr()) };
    }
}

/// Whether this system has sockets for IPv6: NGINX logs an alert for each that it cannot open.
static HAS_IPV6: LazyLock<bool> = LazyLock::new(|| {
    let error = socket2::Socket::new(Domain::IPV6, Type::STREAM, None).err();
    error.and_then(|error| error.raw_os_error()) != Some(libc::EAFNOSUPPORT)
});

/// The longest path of a unix socket. A zero follows it.
const LONGEST_PATH: usize =
    size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path) - 1;

/// The address of a target, as the system takes it. Fails if the path of a unix socket is too long.
pub(crate) fn socket_address(target: &Target) -> io::Result<SockAddr> {
    match target {
        Target::Ip(address) => Ok((*address).into()),
        Target::Unix(path) => SockAddr::unix(path).map_err(|_| {
            let text = format!("the path of the socket is longer than {LONGEST_PATH} bytes");
            io::Error::other(text)
        }),
    }
}
