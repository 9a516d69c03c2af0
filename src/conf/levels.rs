//! The configuration of `http`, of a server and of a location.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::rc::Rc;

use ngx::ffi::{
    NGX_LOG_WARN, ngx_http_core_loc_conf_t, ngx_http_core_srv_conf_t, ngx_http_handler_pt,
};
use rate_limit_core::admin::ManagedLimit;
use rate_limit_core::conf::limit::{BoundLine, Definitions, LimitLine, NameError, Phase};
use rate_limit_core::conf::{DEFAULT_MEMORY, Policy, PolicyLevel};
use rate_limit_core::redis::script::Scripts;
use rate_limit_core::request::ConfiguredLimit;
use rate_limit_core::text::fields::Values;

use super::limit::LimitConf;
use super::store::Store;
use super::{BindError, ComplexValue};
use crate::client::Driver;
use crate::log::{self, cycle_log, log};
use crate::shm::{Shared, TopZone, worker_number};

/// The configuration of `http`, and the worker's objects that belong to it.
#[derive(Default)]
pub(crate) struct MainConf {
    stores: Vec<Store>,
    definitions: Definitions<'static, Rc<LimitConf>>,
    /// The scripts of the module. They go with the configuration: a static would stay where the module is unloaded.
    scripts: Scripts,
    /// The limits of servers that have a `location /`.
    outside: Vec<Outside>,
    /// Whether any limit decides in the precontent phase.
    pub(crate) has_precontent: bool,
    /// Whether any limit settles what requests have cost.
    pub(crate) has_settlements: bool,
    /// The size of the shared memory in bytes.
    pub(crate) memory_size: Option<usize>,
    /// How many keys of each limit are kept as those that were rejected most.
    pub(crate) top_keys: Option<usize>,
    /// Whether a notice was logged that leases do not apply to some limit.
    pub(crate) is_unleased_noted: bool,
    /// Whether a warning was logged that limits may have been skipped: see `request/error_page.rs`.
    pub(crate) is_unclear_noted: Cell<bool>,
    /// The names of the blocks of stores, and the place of each.
    pub(crate) blocks: Vec<(&'static str, String)>,
    /// The names that any `rate_limit_redis_pass` has.
    pub(crate) passes: HashSet<&'static str>,
    /// The locations that are the admin interface.
    pub(crate) admins: Vec<AdminLocation>,
    /// The memory that the workers of this machine share, once it is mapped: in a worker it always is.
    pub(crate) shared: OnceCell<Shared>,
    /// The keys that were rejected most, if they are kept, once their memory is mapped.
    pub(crate) top: OnceCell<TopZone>,
    /// The values of the fields of the previous answer.
    pub(crate) values: RefCell<Values>,
}

/// Limits of a server that only apply outside of any location.
struct Outside {
    limits: Vec<Rc<LimitConf>>,
    /// The index of the store that is configured there.
    store: usize,
    /// Whether leases are configured there.
    has_leases: bool,
}

/// A location that is the admin interface.
pub(crate) struct AdminLocation {
    /// NGINX's own configuration of the location.
    pub(crate) location: NonNull<ngx_http_core_loc_conf_t>,
    /// NGINX's own configuration of its server.
    pub(crate) server: NonNull<ngx_http_core_srv_conf_t>,
    /// The place of the directive: file and line.
    pub(crate) place: String,
}

/// For workers.
impl MainConf {
    /// Connects to every store that requests will use.
    pub(crate) fn connect(&'static self) {
        for store in self.stores.iter().filter(|store| store.is_used) {
            if let Some(driver) = self.driver_of(store) {
                driver.start();
            }
        }
    }

    /// Closes every connection, counts as lost what this worker has not settled, and logs what has been held back of lines
    /// that refer to this configuration.
    pub(crate) fn disconnect(&self) {
        log::flush();
        self.stores.iter().for_each(Store::disconnect);
        self.shared.get().into_iter().for_each(Shared::give_up);
    }

    /// This worker's client of the store of this index.
    pub(crate) fn driver(&'static self, store: usize) -> Option<&'static Driver> {
        self.driver_of(self.stores.get(store)?)
    }

    fn driver_of(&'static self, store: &'static Store) -> Option<&'static Driver> {
        // Without memory there is no limit.
        self.shared.get().map(|shared| store.driver(&self.scripts, shared))
    }

    /// The limits that apply to requests.
    pub(crate) fn managed(&self) -> Vec<ManagedLimit<'_>> {
        let managed = |(definition, store): (_, usize)| {
            Some(ManagedLimit { definition, store: self.stores.get(store)?.shown() })
        };
        self.definitions.bound().filter_map(managed).collect()
    }

    /// One of these limits.
    pub(crate) fn limit(&self, name: &str) -> Option<&LimitConf> {
        self.definitions.first(name).map(|first| &*first.line)
    }

    /// Registers this worker in the shared memory, and every limit, even if it has no requests yet.
    pub(crate) fn register(&self) {
        if let Some(shared) = self.shared.get() {
            shared.set_worker();
            let missing = shared.register(self.definitions.names());
            if let Some(name) = missing.first().filter(|_| worker_number() == 0) {
                log!(
                    NGX_LOG_WARN,
                    cycle_log(),
                    "limits that are not in the metrics, as \"rate_limit_redis_shared_memory\" has no \
                     room for more: {}, such as \"{name}\"",
                    missing.len()
                );
            }
            shared.give_up();
            shared.count_lost();
        }
        if let Some(top) = self.top.get() {
            top.register(self.definitions.names());
        }
    }
}

/// For directives.
impl MainConf {
    /// Whether any limit is bound to a store.
    fn has_limits(&self) -> bool {
        self.definitions.bound().next().is_some()
    }

    /// The size of the shared memory in bytes, if there is any limit.
    pub(crate) fn zone_size(&self) -> Option<usize> {
        let size = self.memory_size.unwrap_or(DEFAULT_MEMORY as usize);
        self.has_limits().then_some(size)
    }

    /// How many keys of each limit are kept as those that were rejected most, and of how many limits, if any are.
    pub(crate) fn top_size(&self) -> Option<(usize, usize)> {
        let n = self.top_keys.filter(|n| *n > 0 && self.has_limits())?;
        Some((n, self.definitions.names().count()))
    }

    /// The index of the store of this URL or name.
    pub(crate) fn find(&self, reference: &str) -> Option<usize> {
        self.stores.iter().position(|store| store.reference == reference)
    }

    /// Adds a store; its index.
    pub(crate) fn add_store(&mut self, store: Store) -> usize {
        let index = self.stores.len();
        self.stores.push(store);
        index
    }

    /// The store of this index.
    pub(crate) fn store_mut(&mut self, index: usize) -> Option<&mut Store> {
        self.stores.get_mut(index)
    }

    /// The line at this place, with the definition that all lines of its limit share: they must define the same.
    pub(crate) fn define(
        &mut self,
        line: LimitLine<'static, ComplexValue>,
        place: &str,
    ) -> Result<LimitLine<'static, ComplexValue>, NameError> {
        self.has_precontent |= line.phase == Phase::Precontent;
        self.has_settlements |= line.settle.is_some();
        self.definitions.add(line, place)
    }

    /// Binds limits that decide together, with or without leases, to the store of this index.
    pub(crate) fn bind(
        &mut self,
        limits: &[Rc<LimitConf>],
        index: usize,
        has_leases: bool,
    ) -> Result<(), BindError> {
        let store = self.stores.get(index).ok_or(BindError::NoStore)?;
        for limit in limits {
            let line =
                BoundLine { line: Rc::clone(limit), place: limit.place.clone(), store: index };
            let shown = |index: usize| self.stores.get(index).map_or("", Store::shown).to_owned();
            self.definitions.bind(limit.name(), line, shown)?;
            if limit.settles() || (store.is_cluster() && limits.len() > 1) {
                limit.line.definition.is_refundable.set(true);
            }
            limit.bind(index, store, &self.scripts)?;
        }
        let store = self.stores.get_mut(index).ok_or(BindError::NoStore)?;
        store.add_limits(limits, has_leases);
        Ok(())
    }

    /// Leaves the limits of a server to [`bind_outside`](Self::bind_outside).
    pub(crate) fn add_outside(&mut self, limits: &[Rc<LimitConf>], store: usize, has_leases: bool) {
        self.outside.push(Outside { limits: limits.to_vec(), store, has_leases });
    }

    /// Binds the limits that only apply outside of any location, after all others: a name belongs to
    /// one store, and the locations determine which.
    pub(crate) fn bind_outside(&mut self) -> Result<(), BindError> {
        for Outside { limits, store, has_leases } in std::mem::take(&mut self.outside) {
            let mut known = limits.iter().filter_map(|limit| self.definitions.first(limit.name()));
            let index = known.next().map_or(store, |first| first.store);
            self.bind(&limits, index, has_leases)?;
        }
        Ok(())
    }
}

/// The configuration of a server.
#[derive(Default)]
pub(crate) struct ServerConf {
    /// Whether any limit decides in the precontent phase.
    pub(crate) has_precontent: Cell<bool>,
}

/// The configuration of a location, or of a level above it.
#[derive(Default)]
pub(crate) struct LocationConf {
    /// Ordered by phase; `Some` and empty for `rate_limit_redis off`, `None` where a level has no line.
    pub(crate) limits: Option<Vec<Rc<LimitConf>>>,
    pub(crate) pass: Option<Pass>,
    /// The handler of the location's requests, if it is one of this module. It is not inherited.
    pub(crate) page: ngx_http_handler_pt,
    /// The policy values that the directives of this level set.
    pub(crate) level: PolicyLevel,
    /// The policy that applies to requests besides their limits and the store, once the values of the levels above are
    /// known.
    pub(crate) policy: Policy,
}

/// The store of `rate_limit_redis_pass`.
#[derive(Clone)]
pub(crate) enum Pass {
    /// The index of the store among all.
    Store(usize),
    /// The name of a block, which may come later in the configuration, and the place of the directive.
    Named(&'static str, String),
}

impl LocationConf {
    /// The limits that decide in `phase`, in the order of the configuration.
    pub(crate) fn limits(&self, phase: Phase) -> &[Rc<LimitConf>] {
        let limits = self.limits.as_deref().unwrap_or_default();
        let (access, precontent) =
            limits.split_at(limits.partition_point(|limit| limit.line.phase == Phase::Access));
        match phase {
            Phase::Access => access,
            Phase::Precontent => precontent,
        }
    }

    /// Whether any limit applies.
    pub(crate) fn has_limits(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| !limits.is_empty())
    }

    /// Takes from the level above what this level does not set.
    pub(crate) fn inherit(&mut self, above: &Self) {
        self.limits = self.limits.take().or_else(|| above.limits.clone());
        self.pass = self.pass.take().or_else(|| above.pass.clone());
        self.level.inherit(&above.level);
        self.policy = self.level.policy();
    }
}
