//! The URL of a server.

use ngx::ffi::ngx_addr_t;
use rate_limit_core::client::{Server, Target};
use rate_limit_core::conf::{UrlError, endpoint};
use rate_limit_core::redis::endpoint::Address;

use super::reader::ConfError;
use crate::client::socket_address;
use crate::client::tls::supported;
use crate::nginx::{Conf, ip_address};

/// Reads the URL of a server.
pub(super) fn read(cf: &mut Conf, url: &str, directive: &'static str) -> Result<Server, ConfError> {
    let endpoint = endpoint(directive, url)?;
    let invalid = |reason| UrlError::new(directive, url, reason);
    if endpoint.tls {
        supported().map_err(invalid)?;
    }
    let targets = resolve(cf, &endpoint.address).map_err(invalid)?;
    Ok(Server { endpoint, targets })
}

/// The addresses of a host. Resolving may block, as it may while a configuration is read.
fn resolve(cf: &mut Conf, address: &Address) -> Result<Vec<Target>, String> {
    if let Address::Unix(path) = address {
        let target = Target::Unix(path.clone());
        socket_address(&target).map_err(|error| error.to_string())?;
        return Ok(vec![target]);
    }
    cf.resolve(&address.to_string(), |found| {
        // SAFETY: the addresses are NGINX's.
        let ip = |address: &ngx_addr_t| unsafe { ip_address(address.sockaddr) };
        found.iter().filter_map(ip).map(Target::Ip).collect()
    })
}
