//! Where the counters are.

use std::cell::OnceCell;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use ngx::core::Status;
use ngx::ffi::{ngx_addr_t, ngx_conf_t, ngx_parse_url, ngx_str_t, ngx_url_t};
use rate_limit_core::redis::endpoint::{Address, Endpoint, redacted};

use super::tls::Settings;
use crate::redis::Node;
use crate::redis::tls::{Peer, Tls};

/// A Redis, its addresses resolved.
pub(crate) struct Store {
    url: String,
    endpoint: Endpoint,
    /// Lies in the pool of the configuration, as do the addresses; never empty.
    addresses: &'static [ngx_addr_t],
    tls: Option<Rc<Tls>>,
    used: bool,
    /// This worker's connection, made when it is first needed.
    node: OnceCell<NonNull<Node>>,
}

impl Store {
    /// Reads `url` and resolves its host.
    pub(super) fn new(cf: &mut ngx_conf_t, url: &str) -> Result<Self, String> {
        let endpoint: Endpoint = url.parse().map_err(|error| invalid(url, &format!("{error}")))?;
        let tls = match endpoint.tls {
            true => Some(Tls::new(cf, &Settings::default()).map_err(|error| invalid(url, &error))?),
            false => None,
        };
        let address = endpoint.address.to_string();
        // SAFETY: all zeroes is what NGINX itself starts from. The URL is copied into the pool of
        // the configuration, because NGINX keeps pointers into it. Resolving may block, which is
        // fine while the configuration is read.
        unsafe {
            let mut parsed: ngx_url_t = std::mem::zeroed();
            parsed.url =
                ngx_str_t::from_bytes(cf.pool, address.as_bytes()).ok_or("out of memory")?;
            if ngx_parse_url(cf.pool, &mut parsed) != Status::NGX_OK.0 || parsed.naddrs == 0 {
                let reason = match parsed.err.is_null() {
                    true => "no address".into(),
                    false => std::ffi::CStr::from_ptr(parsed.err).to_string_lossy(),
                };
                return Err(invalid(url, &reason));
            }
            let addresses = ptr::slice_from_raw_parts(parsed.addrs, parsed.naddrs);
            let (url, addresses) = (url.to_owned(), &*addresses);
            let (tls, node) = (tls.map(Rc::new), OnceCell::new());
            Ok(Self { url, endpoint, addresses, tls, used: false, node })
        }
    }

    /// The URL as configured. It may hold a password.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether any limit keeps its counters here.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// Says that a limit keeps its counters here.
    pub(super) fn will_be_used(&mut self) {
        self.used = true;
    }

    /// This worker's connection.
    pub(super) fn node(&self) -> NonNull<Node> {
        *self.node.get_or_init(|| Node::new(self))
    }

    /// Closes the connection.
    pub(super) fn disconnect(&mut self) {
        if let Some(node) = self.node.take() {
            // SAFETY: `Node::new` made it, and nothing else owns it.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }

    /// The account, and the address as it may be shown.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The server as TLS knows it, where TLS is spoken.
    pub(crate) fn peer(&self) -> Option<Peer> {
        let host = match &self.endpoint.address {
            Address::Tcp(host, _) => host,
            Address::Unix(_) => "",
        };
        self.tls.as_ref().map(|tls| Peer::new(Rc::clone(tls), host))
    }

    /// Where to connect to.
    pub(crate) fn addresses(&self) -> &'static [ngx_addr_t] {
        self.addresses
    }
}

fn invalid(url: &str, reason: &str) -> String {
    let shown = redacted(url);
    format!("invalid URL \"{shown}\" in \"rate_limit_redis_pass\" directive: {reason}")
}
