//! Merges the directives of all levels into the configuration of each location.

use std::ffi::{c_char, c_void};

use ngx::core::{NGX_CONF_OK, Status};
use ngx::ffi::ngx_conf_t;
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::conf::{DEFAULT_STORE, LogKey};

use super::reader::ConfError;
use super::{access, reader, store};
use crate::conf::{BindError, LocationConf, Pass, Store};
use crate::nginx::Conf;
use crate::shm;

/// Completes the configuration of `http` after all others.
pub(crate) fn complete(cf: &mut Conf) -> Status {
    let completed = bind_outside(cf)
        .and_then(|()| store::warn_of_unnamed(cf))
        .and_then(|()| access::warn_of_admins(cf));
    match completed {
        Ok(()) => Status::NGX_OK,
        Err(error) => {
            reader::fail(cf, &error);
            Status::NGX_ERROR
        }
    }
}

/// Binds the last limits, and adds the shared memory.
fn bind_outside(cf: &mut Conf) -> Result<(), ConfError> {
    let main = reader::main(cf)?;
    main.bind_outside()?;
    let (size, top) = (main.zone_size(), main.top_size());
    if let Some(size) = size {
        shm::add_zone(cf, size).ok_or(ConfError::NoZone)?;
    }
    if let Some((n, limits)) = top {
        shm::top::add_zone(cf, n, limits).ok_or(ConfError::NoZone)?;
    }
    Ok(())
}

/// Completes a server's or a location's configuration from the level above it.
pub(crate) unsafe extern "C" fn merge_location(
    cf: *mut ngx_conf_t,
    previous: *mut c_void,
    conf: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context and two configurations that create_loc_conf
    // made, of different levels.
    let (cf, previous, conf) = unsafe {
        (Conf::new(cf), &*previous.cast::<LocationConf>(), &mut *conf.cast::<LocationConf>())
    };
    conf.inherit(previous);
    answer_excepted(cf, previous);
    match find_store(cf, conf).and_then(|()| bind_limits(cf, conf)) {
        Ok(()) => NGX_CONF_OK,
        Err(error) => reader::fail(cf, &error),
    }
}

/// Has requests of the methods that a `limit_except` is about answered as those of others are: NGINX takes the handler from
/// the block.
fn answer_excepted(cf: &mut Conf, location: &LocationConf) {
    if let Some(core) = cf.core_limit_except() {
        core.handler = core.handler.or(location.page);
    }
}

/// Finds the store of a name: all blocks have been read by now.
fn find_store(cf: &mut Conf, conf: &mut LocationConf) -> Result<(), ConfError> {
    let Some(Pass::Named(name, place)) = &conf.pass else { return Ok(()) };
    let unknown = || ConfError::NoStore { name, place: place.clone() };
    let index = reader::main(cf)?.find(name).ok_or_else(unknown)?;
    conf.pass = Some(Pass::Store(index));
    Ok(())
}

/// Binds the limits of a location to their store.
fn bind_limits(cf: &mut Conf, conf: &mut LocationConf) -> Result<(), ConfError> {
    if !conf.has_limits() || cf.is_if_of_server() {
        return Ok(());
    }
    let index = match conf.pass {
        Some(Pass::Store(index)) => index,
        _ => store::at(cf, DEFAULT_STORE)?,
    };
    conf.pass = Some(Pass::Store(index));
    note_precontent(cf, conf);
    let is_outside = cf.only_passes_on();
    let main = reader::main(cf)?;
    let store = main.store_mut(index).ok_or(BindError::NoStore)?;
    store.allow_timeout(conf.policy.timeout);
    if !is_outside {
        store.is_used = true;
        check_log_key(conf, store)?;
    }
    let has_leases = conf.policy.lease > 0;
    for limits in Phase::ALL.map(|phase| conf.limits(phase)) {
        limits.iter().for_each(|limit| limit.line.definition.note_policy(&conf.policy));
        match is_outside {
            true => main.add_outside(limits, index, has_leases),
            false => main.bind(limits, index, has_leases)?,
        }
    }
    note_unleased(cf, conf)
}

/// Refuses to log HMACs of keys where the store has none.
fn check_log_key(conf: &LocationConf, store: &Store) -> Result<(), ConfError> {
    match conf.limits.iter().flatten().next() {
        Some(limit) if conf.policy.log_key == LogKey::Hmac && store.keys.hmac.is_none() => {
            let (place, store) = (limit.place.clone(), store.shown().to_owned());
            Err(ConfError::NoKeyHmac { limit: limit.name(), place, store })
        }
        _ => Ok(()),
    }
}

/// Takes note in the configuration of the server that limits decide in the precontent phase.
fn note_precontent(cf: &Conf, conf: &LocationConf) {
    if !conf.limits(Phase::Precontent).is_empty()
        && let Some(server) = cf.server()
    {
        server.has_precontent.set(true);
    }
}

/// Logs, once for a configuration, that leases do not apply to a limit.
fn note_unleased(cf: &mut Conf, conf: &LocationConf) -> Result<(), ConfError> {
    let unleased = conf
        .limits
        .iter()
        .flatten()
        .find(|limit| conf.policy.lease > 0 && !limit.line.definition.algorithm.has_leases());
    let Some(limit) = unleased else { return Ok(()) };
    if !std::mem::replace(&mut reader::main(cf)?.is_unleased_noted, true) {
        let (name, algorithm) = (limit.name(), limit.line.definition.algorithm.name());
        cf.note(format_args!(
            "\"rate_limit_redis_lease\" does not apply to limits of the algorithm \"{algorithm}\", \
             such as \"{name}\""
        ));
    }
    Ok(())
}
