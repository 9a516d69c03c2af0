//! In place of `tls.rs` where NGINX is built without SSL: none of its types has a value.

use std::ptr::NonNull;
use std::rc::Rc;

use ngx::ffi::ngx_connection_t;
use rate_limit_core::conf::store::TlsSettings;

use crate::nginx::Conf;

const MISSING: &str = "TLS needs an NGINX that is built with SSL (--with-http_ssl_module)";

pub(crate) fn supported() -> Result<(), String> {
    Err(MISSING.to_owned())
}

pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn new(_: &mut Conf, _: &TlsSettings<'_>) -> Result<Self, String> {
        Err(MISSING.to_owned())
    }
}

pub(crate) enum Peer {}

impl Peer {
    pub(crate) fn new(tls: Rc<Tls>, _: &str) -> Self {
        match *tls {}
    }
}

pub(super) enum Stream {}

impl Stream {
    pub(super) unsafe fn new(peer: Rc<Peer>, _: NonNull<ngx_connection_t>) -> Self {
        match *peer {}
    }

    pub(super) fn handshake(&self) -> Result<bool, String> {
        match *self {}
    }

    pub(super) fn save_session(&self) {
        match *self {}
    }

    pub(super) fn reason(&self) -> String {
        match *self {}
    }
}
