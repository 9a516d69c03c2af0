//! A store: a Redis deployment, and this worker's client of it.

use std::cell::OnceCell;
use std::rc::Rc;

use rate_limit_core::client::{Config, Kind};
use rate_limit_core::key::KeyHmac;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::script::{Scripts, Variant};

use super::limit::LimitConf;
use crate::client::tls::Tls;
use crate::client::{Driver, PasswordFile};
use crate::shm::Shared;

/// A Redis deployment as it was configured, its addresses resolved.
pub(crate) struct Store {
    /// The value of `rate_limit_redis_pass`: the URL, which may hold a password, or the name of the block.
    pub(super) reference: String,
    /// The form of clients' keys in Redis.
    pub(crate) keys: Keys,
    config: Config,
    /// The settings of TLS, if the servers are at `rediss://`.
    tls: Option<Rc<Tls>>,
    /// The path of the file that has the password, if one has.
    password_file: Option<String>,
    /// Whether requests will use it.
    pub(crate) is_used: bool,
    /// How its limits are counted.
    variants: Vec<Variant>,
    /// Whether any command may be about several limits, or about leases.
    has_several: bool,
    /// The algorithms of limits that are charged together and have a script of their own.
    lists: Vec<Vec<Variant>>,
    /// This worker's client, made when it is first used.
    driver: OnceCell<Rc<Driver>>,
}

/// The form of clients' keys in Redis.
pub(crate) struct Keys {
    /// The beginning of every Redis key.
    pub(crate) prefix: String,
    /// The HMAC of the keys, if there is one.
    pub(crate) hmac: Option<Rc<KeyHmac>>,
}

impl Store {
    /// A store that no limit uses yet.
    pub(crate) fn new(
        reference: String,
        keys: Keys,
        config: Config,
        tls: Option<Rc<Tls>>,
        password_file: Option<String>,
    ) -> Self {
        Self {
            reference,
            keys,
            config,
            tls,
            password_file,
            is_used: false,
            variants: Vec::new(),
            has_several: false,
            lists: Vec::new(),
            driver: OnceCell::new(),
        }
    }

    /// The reference without the password.
    pub(crate) fn shown(&self) -> &str {
        &self.config.store
    }

    /// Whether it is a Redis Cluster.
    pub(super) fn is_cluster(&self) -> bool {
        self.config.kind == Kind::Cluster
    }

    /// Lets requests wait for the store for `timeout` ms.
    pub(crate) fn allow_timeout(&mut self, timeout: u64) {
        let timeout = timeout.saturating_mul(MILLISECOND);
        self.config.longest_timeout = self.config.longest_timeout.max(timeout);
    }

    /// Has the scripts for limits that are charged together, with or without leases.
    pub(super) fn add_limits(&mut self, limits: &[Rc<LimitConf>], has_leases: bool) {
        let list: Vec<_> = limits.iter().map(|limit| limit.variant()).collect();
        self.variants.extend(&list);
        self.has_several |= list.len() > 1 || (has_leases && !list.is_empty());
        if limits.iter().all(|limit| limit.line.is_plain()) && !self.lists.contains(&list) {
            self.lists.push(list);
        }
    }

    /// This worker's client, with those of the scripts that the store needs.
    pub(super) fn driver(&'static self, scripts: &Scripts, shared: &Shared) -> &'static Driver {
        self.driver.get_or_init(|| {
            let (config, reference) = (self.config.clone(), self.reference.clone());
            let lists = self.lists.iter().map(Vec::as_slice);
            let scripts = scripts.loading(&self.variants, self.has_several).with_lists(lists);
            let password_file = self.password_file.clone().map(PasswordFile::new);
            Driver::new(config, scripts, reference, self.tls.clone(), password_file, *shared)
        })
    }

    /// Closes the connections.
    pub(super) fn disconnect(&self) {
        self.driver.get().into_iter().for_each(|driver| driver.disconnect());
    }
}
