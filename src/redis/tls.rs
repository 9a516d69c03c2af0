//! TLS to a server, by NGINX's own wrappers of OpenSSL.
//!
//! Who the server is, is verified by OpenSSL within the handshake: a connection to the wrong one
//! never comes to be, and it gets no byte of ours but those of the handshake.

use std::ptr::{self, NonNull};

use ngx::core::Status;
use ngx::ffi::{
    NGX_LOG_EMERG, NGX_SSL_SSLv2, NGX_SSL_SSLv3, NGX_SSL_TLSv1, NGX_SSL_TLSv1_1, NGX_SSL_TLSv1_2,
    NGX_SSL_TLSv1_3, SSL_CTX_set_default_verify_paths, SSL_CTX_set_verify, SSL_VERIFY_PEER,
    ngx_conf_t, ngx_int_t, ngx_pcalloc, ngx_pnalloc, ngx_ssl_certificate, ngx_ssl_ciphers,
    ngx_ssl_cleanup_ctx, ngx_ssl_create, ngx_ssl_crl, ngx_ssl_error, ngx_ssl_t,
    ngx_ssl_trusted_certificate, ngx_str_t, ngx_uint_t,
};

use crate::conf::tls::Settings;

mod peer;
mod stream;

pub(crate) use peer::Peer;
pub(super) use stream::Stream;

/// The versions that a configuration can name.
pub(crate) const PROTOCOLS: [(&str, ngx_uint_t); 6] = [
    ("SSLv2", NGX_SSL_SSLv2 as ngx_uint_t),
    ("SSLv3", NGX_SSL_SSLv3 as ngx_uint_t),
    ("TLSv1", NGX_SSL_TLSv1 as ngx_uint_t),
    ("TLSv1.1", NGX_SSL_TLSv1_1 as ngx_uint_t),
    ("TLSv1.2", NGX_SSL_TLSv1_2 as ngx_uint_t),
    ("TLSv1.3", NGX_SSL_TLSv1_3 as ngx_uint_t),
];

const DEFAULT_PROTOCOLS: ngx_uint_t = (NGX_SSL_TLSv1_2 | NGX_SSL_TLSv1_3) as ngx_uint_t;

const DEFAULT_CIPHERS: &str = "DEFAULT";

/// How many certificates may stand between the server's and a trusted one: OpenSSL's own default.
/// That of `proxy_ssl_verify_depth`, 1, is too few for some public authorities.
const VERIFY_DEPTH: ngx_int_t = 100;

/// Whether this NGINX can speak TLS.
pub(crate) fn supported() -> Result<(), String> {
    Ok(())
}

/// How TLS is spoken to the servers of a store.
pub(crate) struct Tls {
    /// Lies in the pool of the configuration.
    context: NonNull<ngx_ssl_t>,
    verifies: bool,
    /// The name of every server, where that is not its host's.
    name: Option<&'static str>,
}

impl Tls {
    /// Loads what the settings name. It must go before the pool of the configuration does.
    pub(crate) fn new(cf: &mut ngx_conf_t, settings: &Settings) -> Result<Self, String> {
        settings.check()?;
        // SAFETY: the memory is zeroed, which is what NGINX itself starts from.
        let context = unsafe { ngx_pcalloc(cf.pool, size_of::<ngx_ssl_t>()).cast::<ngx_ssl_t>() };
        let context = NonNull::new(context).ok_or("out of memory")?;
        let protocols = settings.protocols.unwrap_or(DEFAULT_PROTOCOLS);
        // SAFETY: nobody else refers to the structure yet.
        let created = unsafe {
            (*context.as_ptr()).log = cf.log;
            let created = ngx_ssl_create(context.as_ptr(), protocols, ptr::null_mut());
            if (*context.as_ptr()).ctx.is_null() {
                return Err(FAILED.to_owned());
            }
            created
        };
        let tls = Self { context, verifies: settings.verifies(), name: settings.name };
        done(created)?;
        tls.set_ciphers(cf, settings.ciphers.unwrap_or(DEFAULT_CIPHERS))?;
        if let (Some(certificate), Some(key)) = (settings.certificate, settings.certificate_key) {
            tls.show(cf, certificate, key)?;
        }
        if tls.verifies {
            tls.trust(cf, settings.trusted_certificate)?;
            if let Some(crl) = settings.crl {
                tls.distrust(cf, crl)?;
            }
        }
        Ok(tls)
    }

    fn set_ciphers(&self, cf: &mut ngx_conf_t, ciphers: &str) -> Result<(), String> {
        let mut ciphers = c_string(cf, ciphers)?;
        // SAFETY: the context is whole, and the text ends with a zero.
        done(unsafe { ngx_ssl_ciphers(cf, self.context.as_ptr(), &mut ciphers, 0) })
    }

    /// Shows a certificate to servers that ask who we are.
    fn show(&self, cf: &mut ngx_conf_t, certificate: &str, key: &str) -> Result<(), String> {
        let (mut certificate, mut key) = (c_string(cf, certificate)?, c_string(cf, key)?);
        let (certificate, key, no_passwords) = (&mut certificate, &mut key, ptr::null_mut());
        // SAFETY: the context is whole. The names end with a zero, and live as long as it does.
        done(unsafe {
            ngx_ssl_certificate(cf, self.context.as_ptr(), certificate, key, no_passwords)
        })
    }

    /// Has OpenSSL end the handshake with a server that nobody trusted speaks for.
    fn trust(&self, cf: &mut ngx_conf_t, file: Option<&str>) -> Result<(), String> {
        let context = self.context.as_ptr();
        // SAFETY: the context is whole, and the name ends with a zero.
        unsafe {
            match file {
                Some(file) => {
                    let mut file = c_string(cf, file)?;
                    done(ngx_ssl_trusted_certificate(cf, context, &mut file, VERIFY_DEPTH))?;
                }
                None if SSL_CTX_set_default_verify_paths((*context).ctx) == 1 => (),
                None => {
                    let failed = c"SSL_CTX_set_default_verify_paths() failed".as_ptr();
                    ngx_ssl_error(NGX_LOG_EMERG as ngx_uint_t, cf.log, 0, failed.cast_mut());
                    return Err(FAILED.to_owned());
                }
            }
            // Without the callback that NGINX may have set: it lets everybody pass, to be looked
            // at later.
            SSL_CTX_set_verify((*context).ctx, SSL_VERIFY_PEER as libc::c_int, None);
        }
        Ok(())
    }

    /// Takes no certificate that is on a list of revoked ones, or has no such list.
    fn distrust(&self, cf: &mut ngx_conf_t, crl: &str) -> Result<(), String> {
        let mut crl = c_string(cf, crl)?;
        // SAFETY: the context is whole, and the name ends with a zero.
        done(unsafe { ngx_ssl_crl(cf, self.context.as_ptr(), &mut crl) })
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        // SAFETY: the context is whole. Connections that still use it have a share of it.
        unsafe { ngx_ssl_cleanup_ctx(self.context.as_ptr().cast()) };
    }
}

/// NGINX has logged the reason.
const FAILED: &str = "TLS cannot be set up";

fn done(status: ngx_int_t) -> Result<(), String> {
    if status == Status::NGX_OK.0 { Ok(()) } else { Err(FAILED.to_owned()) }
}

/// A copy of `text` in the pool of the configuration, with the zero at its end that OpenSSL wants.
fn c_string(cf: &mut ngx_conf_t, text: &str) -> Result<ngx_str_t, String> {
    // SAFETY: the memory is as large as is said, and nobody else has it.
    unsafe {
        let data = ngx_pnalloc(cf.pool, text.len().saturating_add(1)).cast::<u8>();
        if data.is_null() {
            return Err("out of memory".to_owned());
        }
        ptr::copy_nonoverlapping(text.as_ptr(), data, text.len());
        data.add(text.len()).write(0);
        Ok(ngx_str_t { data, len: text.len() })
    }
}
