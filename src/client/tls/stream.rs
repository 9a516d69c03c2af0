//! TLS on one connection.

use std::ffi::c_long;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use ngx::core::Status;
use ngx::ffi::{
    NGX_SSL_CLIENT, SSL_CTRL_MODE, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, SSL_ctrl,
    SSL_get_peer_cert_chain, SSL_get_verify_result, X509_V_OK, ngx_connection_t, ngx_create_pool,
    ngx_destroy_pool, ngx_ssl_create_connection, ngx_ssl_get_session, ngx_ssl_get0_session,
    ngx_ssl_handshake, ngx_ssl_set_session, ngx_ssl_shutdown, ngx_uint_t,
};

use super::peer::{Peer, Session};
use crate::log::capture::Capture;

/// The size in bytes of the pool for what NGINX keeps of TLS on a connection.
const POOL: usize = 256;

/// TLS on an open connection, from before the handshake until it is dropped. OpenSSL has a pointer to the connection, which
/// NGINX uses when OpenSSL calls it: so no reference to it is made here.
pub(in crate::client) struct Stream {
    connection: NonNull<ngx_connection_t>,
    peer: Rc<Peer>,
    /// NGINX's messages about the connection.
    messages: Rc<Capture>,
}

impl Stream {
    /// Prepares an open connection to the server.
    ///
    /// # Safety
    /// The connection must have no pool yet, and be open until the stream is dropped.
    pub(in crate::client) unsafe fn new(
        peer: Rc<Peer>,
        connection: NonNull<ngx_connection_t>,
    ) -> Self {
        let c = connection.as_ptr();
        // SAFETY: the log of an open connection is valid. That which takes its place lives as long as the stream, and so
        // as the pool.
        unsafe {
            let messages = Capture::before((*c).log);
            (*c).log = messages.log();
            (*c).pool = ngx_create_pool(POOL, (*c).log);
            Self { connection, peer, messages }
        }
    }

    /// Continues the handshake as far as possible; whether it is complete.
    pub(in crate::client) fn handshake(&self) -> Result<bool, String> {
        let (c, peer) = (self.connection.as_ptr(), &*self.peer);
        // SAFETY: the connection is open, its events are valid, and TLS has been started on it.
        unsafe {
            if (*c).ssl.is_null() {
                self.start()?;
            }
            let (read, write) = ((*c).read, (*c).write);
            let handlers = ((*read).handler, (*write).handler);
            let status = Status(ngx_ssl_handshake(c));
            // NGINX has set its own, which would continue without us.
            ((*read).handler, (*write).handler) = handlers;
            let ssl = (*(*c).ssl).connection;
            let result = SSL_get_verify_result(ssl);
            match status {
                _ if peer.tls.verifies && result != c_long::from(X509_V_OK) => {
                    Err(peer.objection(result))
                }
                // With anonymous ciphers there is no certificate that OpenSSL could have verified.
                Status::NGX_OK if peer.tls.verifies && SSL_get_peer_cert_chain(ssl).is_null() => {
                    Err("SSL certificate is missing".to_owned())
                }
                Status::NGX_OK => Ok(true),
                Status::NGX_AGAIN => Ok(false),
                _ => Err(self.reason()),
            }
        }
    }

    /// Starts TLS.
    fn start(&self) -> Result<(), String> {
        let (c, peer) = (self.connection.as_ptr(), &self.peer);
        let session = peer.session.borrow();
        let session = session.as_ref().filter(|session| !session.has_expired());
        let session = session.map_or(ptr::null_mut(), |session| session.0.as_ptr());
        // SAFETY: the connection is open, and has its pool; OpenSSL takes shares of the context
        // and of the session.
        unsafe {
            if (*c).pool.is_null() {
                return Err("out of memory".to_owned());
            }
            let flags = NGX_SSL_CLIENT as ngx_uint_t;
            let created = ngx_ssl_create_connection(peer.tls.context.as_ptr(), c, flags);
            if created != Status::NGX_OK.0 {
                return Err(self.reason());
            }
            let ssl = (*(*c).ssl).connection;
            // Bytes that could not be sent may lie elsewhere when they are sent again.
            let mode = c_long::from(SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
            SSL_ctrl(ssl, SSL_CTRL_MODE as libc::c_int, mode, ptr::null_mut());
            peer.expect(ssl)?;
            match ngx_ssl_set_session(c, session) == Status::NGX_OK.0 {
                true => Ok(()),
                false => Err(self.reason()),
            }
        }
    }

    /// Saves the session for the next connection to the server. With TLS 1.3 a server sends its tickets
    /// only after the handshake, before any other data.
    pub(in crate::client) fn save_session(&self) {
        let (c, saved) = (self.connection.as_ptr(), &self.peer.session);
        let is_saved = |session| saved.borrow().as_ref().is_some_and(|it| it.0.as_ptr() == session);
        // SAFETY: the connection is open, and the functions need its part for TLS. Only the second returns a share of our own.
        unsafe {
            // A ticket makes another session.
            if !(*c).ssl.is_null() && !is_saved(ngx_ssl_get0_session(c)) {
                saved.replace(NonNull::new(ngx_ssl_get_session(c)).map(Session));
            }
        }
    }

    /// Why NGINX's last operation failed.
    pub(in crate::client) fn reason(&self) -> String {
        self.messages.take().unwrap_or_else(|| "TLS failed".to_owned())
    }
}

impl Drop for Stream {
    /// Sends `close_notify`, without waiting for the server's, and frees what NGINX keeps of TLS.
    fn drop(&mut self) {
        let c = self.connection.as_ptr();
        // SAFETY: the connection is open. Nothing of what is freed is used after this, as the connection gets its own log
        // back, which is valid as long as it.
        unsafe {
            if !(*c).ssl.is_null() {
                (*(*c).ssl).set_no_wait_shutdown(1);
                if ngx_ssl_shutdown(c) == Status::NGX_AGAIN.0 {
                    // The socket takes no more: on a connection in error nothing is sent.
                    (*c).set_error(1);
                    ngx_ssl_shutdown(c);
                }
            }
            if !(*c).pool.is_null() {
                ngx_destroy_pool(ptr::replace(&raw mut (*c).pool, ptr::null_mut()));
            }
            (*c).log = (*self.messages.log()).next;
        }
    }
}
