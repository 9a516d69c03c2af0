//! The URL of a server.

use std::ptr;

use ngx::core::Status;
use ngx::ffi::{ngx_conf_t, ngx_parse_url, ngx_str_t, ngx_url_t};
use rate_limit_core::client::{Server, Target};
use rate_limit_core::conf::{UrlError, endpoint};
use rate_limit_core::redis::endpoint::Address;

use super::reader::ConfError;
use crate::client::target;
use crate::client::tls::supported;

/// Reads the URL of a server.
pub(super) fn read(
    cf: &mut ngx_conf_t,
    url: &str,
    directive: &'static str,
) -> Result<Server, ConfError> {
    let endpoint = endpoint(directive, url)?;
    let invalid = |reason| UrlError::new(directive, url, reason);
    if endpoint.tls {
        supported().map_err(invalid)?;
    }
    let targets = resolve(cf, &endpoint.address).map_err(invalid)?;
    Ok(Server { endpoint, targets })
}

/// The addresses of a host. Resolving may block, as it may while a configuration is read.
fn resolve(cf: &mut ngx_conf_t, address: &Address) -> Result<Vec<Target>, String> {
    if let Address::Unix(path) = address {
        return Ok(vec![Target::Unix(path.clone())]);
    }
    // SAFETY: all zeroes is what NGINX itself starts from. The text is copied into the pool of the
    // configuration, because NGINX keeps pointers into it; the addresses it finds lie there too.
    unsafe {
        let mut parsed: ngx_url_t = std::mem::zeroed();
        parsed.url = ngx_str_t::from_bytes(cf.pool, address.to_string().as_bytes())
            .ok_or("out of memory")?;
        if ngx_parse_url(cf.pool, &mut parsed) != Status::NGX_OK.0 || parsed.naddrs == 0 {
            return Err(match parsed.err.is_null() {
                true => "no address".to_owned(),
                false => std::ffi::CStr::from_ptr(parsed.err).to_string_lossy().into_owned(),
            });
        }
        let addresses = &*ptr::slice_from_raw_parts(parsed.addrs, parsed.naddrs);
        Ok(addresses.iter().filter_map(|address| target(address, None)).collect())
    }
}
