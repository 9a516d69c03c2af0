//! The server of a connection.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_long, c_uchar};
use std::net::IpAddr;
use std::ptr::NonNull;
use std::rc::Rc;

use ngx::ffi::{
    ERR_clear_error, SSL, SSL_CTRL_SET_TLSEXT_HOSTNAME, SSL_SESSION, SSL_SESSION_free,
    SSL_SESSION_get0_peer, SSL_ctrl, SSL_get0_param, TLSEXT_NAMETYPE_host_name,
    X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH, X509_VERIFY_PARAM_set1_host,
    X509_VERIFY_PARAM_set1_ip, X509_cmp_current_time, X509_get0_notAfter,
    X509_verify_cert_error_string,
};

use super::Tls;

/// The name that the server's certificate must hold, and the session to resume.
pub(crate) struct Peer {
    pub(super) tls: Rc<Tls>,
    name: String,
    pub(super) session: RefCell<Option<Session>>,
}

impl Peer {
    /// The server on `host`, a name or an address without brackets.
    pub(crate) fn new(tls: Rc<Tls>, host: &str) -> Self {
        let name = tls.name.unwrap_or(host).to_owned();
        Self { tls, name, session: RefCell::default() }
    }

    /// Sets the name for OpenSSL.
    ///
    /// # Safety
    /// `ssl` must be a connection of OpenSSL.
    pub(super) unsafe fn expect(&self, ssl: *mut SSL) -> Result<(), String> {
        let address = self.name.parse().ok();
        // SAFETY: passed on. The last function is always callable.
        unsafe {
            let checked = !self.tls.verifies || self.check(ssl, address);
            // The extension is for names, not for addresses.
            if checked && (address.is_some() || self.name(ssl)) {
                return Ok(());
            }
            // An error that is left in the queue would be taken for a later one.
            ERR_clear_error();
        }
        Err(format!("\"{}\" cannot be the name of a server", self.name))
    }

    /// Lets OpenSSL check the certificate for the name.
    ///
    /// # Safety
    /// `ssl` must be a connection of OpenSSL.
    unsafe fn check(&self, ssl: *mut SSL, address: Option<IpAddr>) -> bool {
        let ip = |bytes: &[c_uchar]| {
            // SAFETY: the connection has parameters, and OpenSSL copies the bytes.
            unsafe { X509_VERIFY_PARAM_set1_ip(SSL_get0_param(ssl), bytes.as_ptr(), bytes.len()) }
        };
        let set = match address {
            Some(IpAddr::V4(address)) => ip(&address.octets()),
            Some(IpAddr::V6(address)) => ip(&address.octets()),
            // OpenSSL would accept any name.
            None if self.name.is_empty() => 0,
            // SAFETY: OpenSSL copies the name, of this length, into the parameters.
            None => unsafe {
                let (name, length) = (self.name.as_ptr().cast(), self.name.len());
                X509_VERIFY_PARAM_set1_host(SSL_get0_param(ssl), name, length)
            },
        };
        set == 1
    }

    /// Sends the name to the server (SNI).
    ///
    /// # Safety
    /// `ssl` must be a connection of OpenSSL.
    unsafe fn name(&self, ssl: *mut SSL) -> bool {
        let Ok(name) = CString::new(self.name.as_str()) else { return false };
        let control = SSL_CTRL_SET_TLSEXT_HOSTNAME as libc::c_int;
        let kind = c_long::from(TLSEXT_NAMETYPE_host_name);
        // SAFETY: OpenSSL copies the name.
        unsafe { SSL_ctrl(ssl, control, kind, name.as_ptr().cast_mut().cast()) == 1 }
    }

    /// Why the certificate was refused.
    pub(super) fn objection(&self, result: c_long) -> String {
        match u32::try_from(result) {
            Ok(X509_V_ERR_HOSTNAME_MISMATCH | X509_V_ERR_IP_ADDRESS_MISMATCH) => {
                format!("SSL certificate does not match \"{}\"", self.name)
            }
            _ => {
                // SAFETY: OpenSSL has a text for every number.
                let text = unsafe { CStr::from_ptr(X509_verify_cert_error_string(result)) };
                format!("SSL certificate verify error: ({result}:{})", text.to_string_lossy())
            }
        }
    }
}

/// A session that may be resumed.
pub(super) struct Session(pub(super) NonNull<SSL_SESSION>);

impl Session {
    /// Whether the server's certificate has expired: OpenSSL does not verify it again when it resumes the session, and with
    /// TLS 1.3 each session makes another.
    pub(super) fn has_expired(&self) -> bool {
        // SAFETY: the session is a share of our own, and the certificate and its time are parts of it.
        unsafe {
            let certificate = SSL_SESSION_get0_peer(self.0.as_ptr());
            !certificate.is_null() && X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: it is a share of our own.
        unsafe { SSL_SESSION_free(self.0.as_ptr()) };
    }
}
