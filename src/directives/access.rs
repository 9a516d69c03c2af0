//! The admin interface as the handler of a location, and whether anything checks who uses it.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use ngx::ffi::{
    NGX_LOG_WARN, ngx_array_t, ngx_http_complex_value_t, ngx_http_conf_addr_t,
    ngx_http_conf_port_t, ngx_http_core_srv_conf_t, ngx_http_request_t, ngx_int_t, ngx_str_t,
    ngx_uint_t, sockaddr,
};
use rate_limit_core::conf::DirectiveError;

use super::reader::{self, ConfError, Reader};
use crate::conf::{AdminLocation, LocationConf};
use crate::log::log;
use crate::nginx::{Conf, ip_address};

/// The handler of the admin interface. A function may have several addresses, a static one value.
static HANDLER: unsafe extern "C" fn(*mut ngx_http_request_t) -> ngx_int_t = crate::admin::handle;

/// Makes the location the admin interface.
pub(super) fn set_admin(conf: &mut LocationConf, reader: &mut Reader<'_>) -> Result<(), ConfError> {
    let location = reader.location()?;
    if location.handler.is_some_and(|other| ptr::fn_addr_eq(other, HANDLER)) {
        return Err(DirectiveError::Duplicate(reader.line.name()?.to_owned()).into());
    }
    if conf.page.is_some() {
        let directive = reader.line.name()?;
        return Err(ConfError::SecondPage { directive, other: "rate_limit_redis_metrics" });
    }
    conf.page = Some(HANDLER);
    location.handler = conf.page;
    let location = reader.cf.core_location_pointer().ok_or(ConfError::NoConf("location"))?;
    let server = reader.cf.core_server_pointer().ok_or(ConfError::NoConf("server"))?;
    let place = reader.cf.place();
    reader.main()?.admins.push(AdminLocation { location, server, place });
    Ok(())
}

/// Warns of each location that is the admin interface and has no access check that can be seen. All modules have merged
/// their configurations.
pub(super) fn warn_of_admins(cf: &mut Conf) -> Result<(), ConfError> {
    for admin in std::mem::take(&mut reader::main(cf)?.admins) {
        if !is_checked(cf, &admin) && !is_local(cf, admin.server) {
            // The place of the directive: NGINX has read on, and would name another one.
            log!(
                NGX_LOG_WARN,
                cf.log(),
                "anybody may use \"rate_limit_redis_admin\": its location has none of \"deny\", \
                 \"auth_basic\", \"auth_request\", \"ssl_verify_client on\" and \"internal\", in {}",
                admin.place
            );
        }
    }
    Ok(())
}

/// Whether a module checks access in its configuration of the location. `conf` points to it.
type Checks = unsafe fn(conf: *const c_void) -> bool;

/// NGINX's modules that check access. Their types are their own, but for the first field.
const MODULES: [(&CStr, Checks); 3] = [
    (c"ngx_http_access_module", denies),
    (c"ngx_http_auth_basic_module", has_realm),
    (c"ngx_http_auth_request_module", has_uri),
];

/// Whether anything checks access to a location.
fn is_checked(cf: &Conf, admin: &AdminLocation) -> bool {
    // SAFETY: both configurations are of the cycle that is being read, and are not written to meanwhile. Every module
    // has one of each location, at its index.
    unsafe {
        let (location, server) = (admin.location.as_ref(), admin.server.as_ref());
        let is_checked = |(name, checks): &(&CStr, Checks)| {
            cf.module_index(name).is_some_and(|index| checks(*location.loc_conf.add(index)))
        };
        location.internal == 1 || verifies_clients(cf, server) || MODULES.iter().any(is_checked)
    }
}

/// Whether `ngx_http_access_module` denies access to anybody: its first field points to the rules for IPv4 addresses, or
/// is null. Without such a rule it lets everybody in.
///
/// # Safety
/// `conf` must be its configuration of a location.
unsafe fn denies(conf: *const c_void) -> bool {
    // SAFETY: passed on; the rules are an array of this type, as their size confirms.
    unsafe {
        let Some(rules) = (*conf.cast::<*const ngx_array_t>()).as_ref() else { return false };
        rules.size != size_of::<AccessRule>()
            || rules.as_slice::<AccessRule>().iter().any(|rule| rule.deny != 0)
    }
}

/// A rule of `ngx_http_access_module` for IPv4 addresses.
#[repr(C)]
struct AccessRule {
    _mask: u32,
    _address: u32,
    deny: ngx_uint_t,
}

/// Whether `ngx_http_auth_basic_module` has a realm: its first field points to a complex value, or is null.
///
/// # Safety
/// `conf` must be its configuration of a location.
unsafe fn has_realm(conf: *const c_void) -> bool {
    // SAFETY: passed on.
    let realm = unsafe { (*conf.cast::<*const ngx_http_complex_value_t>()).as_ref() };
    realm.is_some_and(|realm| realm.value.as_bytes() != b"off")
}

/// Whether `ngx_http_auth_request_module` has a URI: its first field is the text of it, which may be empty.
///
/// # Safety
/// `conf` must be its configuration of a location.
unsafe fn has_uri(conf: *const c_void) -> bool {
    // SAFETY: passed on.
    unsafe { (*conf.cast::<ngx_str_t>()).len > 0 }
}

/// Whether a server requires certificates of its clients.
#[cfg(ngx_feature = "http_ssl")]
fn verifies_clients(cf: &Conf, server: &ngx_http_core_srv_conf_t) -> bool {
    let Some(index) = cf.module_index(c"ngx_http_ssl_module") else { return false };
    // SAFETY: a server has configurations of all modules, and that of this one is of this type.
    unsafe { (**(*server.ctx).srv_conf.add(index).cast::<*const SslConf>()).verify == 1 }
}

#[cfg(ngx_feature = "http_ssl")]
use ngx::ffi::ngx_http_ssl_srv_conf_t as SslConf;

/// Whether a server requires certificates of its clients.
#[cfg(not(ngx_feature = "http_ssl"))]
fn verifies_clients(_cf: &Conf, _server: &ngx_http_core_srv_conf_t) -> bool {
    false
}

/// Whether a server listens for clients of this machine alone.
fn is_local(cf: &Conf, server: NonNull<ngx_http_core_srv_conf_t>) -> bool {
    let ports = cf.core_main().map_or(ptr::null(), |core| core.ports.cast_const());
    // SAFETY: until the configuration has been read these are arrays of these types.
    unsafe {
        let Some(ports) = ports.as_ref() else { return false };
        let addresses = ports
            .as_slice::<ngx_http_conf_port_t>()
            .iter()
            .flat_map(|port| port.addrs.as_slice::<ngx_http_conf_addr_t>());
        let mut own = addresses.filter(|address| {
            address.servers.as_slice::<NonNull<ngx_http_core_srv_conf_t>>().contains(&server)
        });
        own.all(|address| is_loopback(address.opt.sockaddr.cast()))
    }
}

/// Whether only this machine can connect to an address.
///
/// # Safety
/// It must be that of a server that listens.
unsafe fn is_loopback(address: *const sockaddr) -> bool {
    // SAFETY: an address is of the type of its family.
    let (ip, family) = unsafe { (ip_address(address), (*address).sa_family) };
    let is_unix = libc::c_int::from(family) == libc::AF_UNIX;
    ip.map_or(is_unix, |address| address.ip().to_canonical().is_loopback())
}
