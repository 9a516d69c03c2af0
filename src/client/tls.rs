//! TLS to a server, by NGINX's own wrappers of OpenSSL.
//!
//! OpenSSL verifies the server's certificate within the handshake: a server without a valid one gets
//! nothing but the handshake.

use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    NGX_SSL_SSLv2, NGX_SSL_SSLv3, NGX_SSL_TLSv1, NGX_SSL_TLSv1_1, NGX_SSL_TLSv1_2, NGX_SSL_TLSv1_3,
    SSL_CTX_set_default_verify_paths, SSL_CTX_set_verify, SSL_VERIFY_PEER, ngx_int_t, ngx_pcalloc,
    ngx_pnalloc, ngx_ssl_certificate, ngx_ssl_ciphers, ngx_ssl_cleanup_ctx, ngx_ssl_create,
    ngx_ssl_crl, ngx_ssl_t, ngx_ssl_trusted_certificate, ngx_str_t, ngx_uint_t,
};
use rate_limit_core::conf::store::{TlsSettings, TlsVersion};

use crate::log::capture::Capture;
use crate::nginx::Conf;

mod peer;
mod stream;

pub(crate) use peer::Peer;
pub(super) use stream::Stream;

/// The most certificates between the server's and a trusted one: OpenSSL's own default.
/// The depth of `proxy_ssl_verify_depth`, 1, is too little for some public authorities.
const VERIFY_DEPTH: ngx_int_t = 100;

/// Whether this NGINX can speak TLS.
pub(crate) fn supported() -> Result<(), String> {
    Ok(())
}

/// The TLS context of a store.
pub(crate) struct Tls {
    /// In the pool of the configuration.
    context: NonNull<ngx_ssl_t>,
    verifies: bool,
    /// The name of every server, if it is not that of the host.
    name: Option<&'static str>,
}

impl Tls {
    /// Loads the files of the settings. It must be dropped before the pool of the configuration.
    pub(crate) fn new(cf: &mut Conf, settings: &TlsSettings<'static>) -> Result<Self, String> {
        // SAFETY: the log of the configuration is valid.
        let messages = unsafe { Capture::instead_of(cf.log().as_ptr()) };
        let context = messages.during(|| create(cf, &messages, settings.versions()));
        let context = context.ok_or_else(|| failed("SSL", &messages))?;
        let tls = Self { context, verifies: settings.verifies(), name: settings.name };
        let loaded = messages.during(|| tls.load(cf, settings));
        // SAFETY: the context is complete; it outlives the captured log.
        unsafe { (*context.as_ptr()).log = cf.log().as_ptr() };
        loaded.map_err(|directive| failed(directive, &messages)).map(|()| tls)
    }

    /// The error is the directive that failed.
    fn load(&self, cf: &mut Conf, settings: &TlsSettings<'static>) -> Result<(), &'static str> {
        self.set_ciphers(cf, settings.ciphers()).ok_or("ssl_ciphers")?;
        if let (Some(certificate), Some(key)) = (settings.certificate, settings.certificate_key) {
            self.set_certificate(cf, certificate, key).ok_or("ssl_certificate")?;
        }
        if self.verifies {
            self.trust(cf, settings.trusted_certificate).ok_or("ssl_trusted_certificate")?;
            if let Some(crl) = settings.crl {
                self.set_crl(cf, crl).ok_or("ssl_crl")?;
            }
        }
        Ok(())
    }

    fn set_ciphers(&self, cf: &mut Conf, ciphers: &str) -> Option<()> {
        let mut ciphers = c_string(cf, ciphers)?;
        // SAFETY: the context is complete, and the text ends with a zero.
        done(unsafe { ngx_ssl_ciphers(cf.as_ptr(), self.context.as_ptr(), &mut ciphers, 0) })
    }

    /// Sets the certificate for servers that request one.
    fn set_certificate(&self, cf: &mut Conf, certificate: &str, key: &str) -> Option<()> {
        let (mut certificate, mut key) = (c_string(cf, certificate)?, c_string(cf, key)?);
        let (certificate, key, no_passwords) = (&mut certificate, &mut key, ptr::null_mut());
        // SAFETY: the context is complete. The names end with a zero, and live as long as it does.
        done(unsafe {
            ngx_ssl_certificate(cf.as_ptr(), self.context.as_ptr(), certificate, key, no_passwords)
        })
    }

    /// Lets OpenSSL end the handshake with a server whose certificate is not trusted.
    fn trust(&self, cf: &mut Conf, file: Option<&str>) -> Option<()> {
        let context = self.context.as_ptr();
        // SAFETY: the context is complete, and the name ends with a zero.
        unsafe {
            match file {
                Some(file) => {
                    let mut file = c_string(cf, file)?;
                    done(ngx_ssl_trusted_certificate(
                        cf.as_ptr(),
                        context,
                        &mut file,
                        VERIFY_DEPTH,
                    ))?;
                }
                None if SSL_CTX_set_default_verify_paths((*context).ctx) == 1 => (),
                None => return None,
            }
            // Without the callback that NGINX may have set: it accepts any certificate, to check it
            // later.
            SSL_CTX_set_verify((*context).ctx, SSL_VERIFY_PEER as libc::c_int, None);
        }
        Some(())
    }

    /// Lets OpenSSL refuse a revoked certificate, or one without a list of its issuer.
    fn set_crl(&self, cf: &mut Conf, crl: &str) -> Option<()> {
        let mut crl = c_string(cf, crl)?;
        // SAFETY: the context is complete, and the name ends with a zero.
        done(unsafe { ngx_ssl_crl(cf.as_ptr(), self.context.as_ptr(), &mut crl) })
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // SAFETY: the context is complete. Connections that still use it have a share of it.
        unsafe { ngx_ssl_cleanup_ctx(self.context.as_ptr().cast()) };
    }
}

/// The bit that stands for a version in NGINX.
fn bit(version: &TlsVersion) -> ngx_uint_t {
    let bit = match version {
        TlsVersion::Ssl2 => NGX_SSL_SSLv2,
        TlsVersion::Ssl3 => NGX_SSL_SSLv3,
        TlsVersion::Tls10 => NGX_SSL_TLSv1,
        TlsVersion::Tls11 => NGX_SSL_TLSv1_1,
        TlsVersion::Tls12 => NGX_SSL_TLSv1_2,
        TlsVersion::Tls13 => NGX_SSL_TLSv1_3,
    };
    bit as ngx_uint_t
}

/// A context for `versions`, with nothing loaded.
fn create(
    cf: &mut Conf,
    messages: &Capture,
    versions: &[TlsVersion],
) -> Option<NonNull<ngx_ssl_t>> {
    let protocols = versions.iter().map(bit).fold(0, |bits, bit| bits | bit);
    // SAFETY: zeroed memory is what NGINX itself starts from, and nothing else refers to it yet.
    unsafe {
        let context = NonNull::new(ngx_pcalloc(cf.pool(), size_of::<ngx_ssl_t>()))?.cast();
        let ssl: *mut ngx_ssl_t = context.as_ptr();
        (*ssl).log = messages.log();
        done(ngx_ssl_create(ssl, protocols, ptr::null_mut()))?;
        Some(context)
    }
}

fn failed(directive: &str, messages: &Capture) -> String {
    let reason = messages.take().unwrap_or_else(|| "out of memory".to_owned());
    format!("\"{directive}\": {reason}")
}

fn done(status: ngx_int_t) -> Option<()> {
    (status == Status::NGX_OK.0).then_some(())
}

/// A copy of `text` in the pool of the configuration, with the zero at its end that OpenSSL wants.
fn c_string(cf: &mut Conf, text: &str) -> Option<ngx_str_t> {
    // SAFETY: the memory is large enough, and nothing else refers to it.
    unsafe {
        let data = NonNull::new(ngx_pnalloc(cf.pool(), text.len().checked_add(1)?))?.cast::<u8>();
        data.copy_from_nonoverlapping(NonNull::from(text.as_bytes()).cast(), text.len());
        data.add(text.len()).write(0);
        Some(ngx_str_t { data: data.as_ptr(), len: text.len() })
    }
}
