//! A store: a Redis deployment, and this worker's client of it.

use std::cell::OnceCell;
use std::rc::Rc;

use ngx::ffi::ngx_msec_t;
use rate_limit_core::client::{Config, Kind};
use rate_limit_core::limit::Algorithm;
use rate_limit_core::rate::MILLISECOND;

use crate::client::tls::Tls;
use crate::client::{Driver, SCRIPTS};

/// A Redis deployment as it was configured, its addresses resolved.
pub(crate) struct Store {
    /// The value of `rate_limit_redis_pass`: the URL, or the name of the block.
    reference: String,
    /// The beginning of every Redis key.
    prefix: String,
    config: Config,
    /// The settings of TLS, if the servers are at `rediss://`.
    tls: Option<Rc<Tls>>,
    /// Whether requests will use it.
    is_used: bool,
    /// The algorithms of limits that are charged together.
    lists: Vec<Vec<Algorithm>>,
    /// This worker's client, made when it is first used.
    driver: OnceCell<Box<Driver>>,
}

impl Store {
    /// A store that no limit uses yet.
    pub(crate) fn new(
        reference: String,
        prefix: String,
        config: Config,
        tls: Option<Rc<Tls>>,
    ) -> Self {
        let (lists, driver) = (Vec::new(), OnceCell::new());
        Self { reference, prefix, config, tls, is_used: false, lists, driver }
    }

    /// The value of `rate_limit_redis_pass`. A URL may hold a password.
    pub(super) fn reference(&self) -> &str {
        &self.reference
    }

    /// The reference without the password.
    pub(super) fn shown(&self) -> &str {
        &self.config.store
    }

    /// The beginning of every Redis key.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether it is a Redis Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.config.kind == Kind::Cluster
    }

    /// Whether requests will use it.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Marks the store as one that requests will use.
    pub(crate) fn mark_used(&mut self) {
        self.is_used = true;
    }

    /// Lets requests wait for the store for `timeout` ms.
    pub(crate) fn allow_timeout(&mut self, timeout: ngx_msec_t) {
        let timeout = (timeout as u64).saturating_mul(MILLISECOND);
        self.config.patience = self.config.patience.max(timeout);
    }

    /// Has a script of their own for limits of these algorithms, which are charged together.
    pub(super) fn add_list(&mut self, list: Vec<Algorithm>) {
        if !self.lists.contains(&list) {
            self.lists.push(list);
        }
    }

    /// This worker's client.
    pub(super) fn driver(&'static self) -> &'static Driver {
        self.driver.get_or_init(|| {
            let (config, reference) = (self.config.clone(), self.reference.clone());
            let scripts = SCRIPTS.with_lists(self.lists.iter().map(Vec::as_slice));
            Driver::new(config, scripts, reference, self.tls.clone())
        })
    }

    /// Closes the connections.
    pub(super) fn disconnect(&mut self) {
        self.driver.take();
    }
}
