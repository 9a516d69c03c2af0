//! Where the counters are: the block `rate_limit_redis_store`, or a URL that stands for one.

use std::cell::OnceCell;
use std::ptr;
use std::rc::Rc;

use ngx::core::Status;
use ngx::ffi::{ngx_conf_full_name, ngx_conf_t, ngx_msec_t, ngx_parse_url, ngx_str_t, ngx_url_t};
use rate_limit_core::client::{Config, Kind, Server, Target};
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::endpoint::{Address, Endpoint, redacted};

use super::directive::{Directive, text};
use super::tls;
use crate::client::tls::{Tls, supported};
use crate::client::{Driver, TlsSettings, target};

/// The prefix of every Redis key, unless the store has one of its own.
const DEFAULT_PREFIX: &str = "rl:";

/// How long connecting and greeting may take, in ms.
const DEFAULT_CONNECT_TIMEOUT: ngx_msec_t = 250;

const DEFAULT_MAX_FAILS: usize = 3;

/// In ms.
const DEFAULT_FAIL_TIMEOUT: ngx_msec_t = 1_000;

/// The most connections a worker may have to a node: more would only make its batches smaller.
const MAX_CONNECTIONS: u64 = 64;

/// The most failures that may be asked for: each is remembered.
const MAX_FAILS: u64 = 1_000;

/// A Redis deployment as it was configured, its addresses resolved.
pub(crate) struct Store {
    /// What `rate_limit_redis_pass` calls it: the URL, or the name of the block.
    reference: String,
    kind: Kind,
    /// The servers that were named; at least one.
    servers: Vec<Server>,
    /// The account and the database of the servers that decide, at the first server's address.
    account: Endpoint,
    /// How TLS is spoken to all of them, if it is.
    tls: Option<Rc<Tls>>,
    prefix: String,
    connect_timeout: ngx_msec_t,
    connections: usize,
    max_fails: usize,
    fail_timeout: ngx_msec_t,
    /// Whether requests are sure to need it.
    used: bool,
    /// The longest that any request may wait for it, in ms.
    longest_timeout: ngx_msec_t,
    /// This worker's client, made when it is first needed.
    driver: OnceCell<Box<Driver>>,
}

impl Store {
    /// The store that a URL stands for.
    pub(super) fn at(cf: &mut ngx_conf_t, url: &str) -> Result<Self, String> {
        let server = read_server(cf, url, "rate_limit_redis_pass")?;
        Builder { servers: vec![server], ..Builder::default() }.build(cf, url.to_owned())
    }

    /// As `rate_limit_redis_pass` calls it. A URL may hold a password.
    pub(crate) fn reference(&self) -> &str {
        &self.reference
    }

    /// As it may be shown.
    pub(crate) fn shown(&self) -> String {
        redacted(&self.reference)
    }

    /// What every Redis key starts with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether requests are sure to need it.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }

    /// Says that requests are sure to need it.
    pub(super) fn will_be_used(&mut self) {
        self.used = true;
    }

    /// Requests may wait for it for so many ms.
    pub(super) fn set_timeout(&mut self, timeout: ngx_msec_t) {
        self.longest_timeout = self.longest_timeout.max(timeout);
    }

    /// This worker's client.
    pub(super) fn driver(&'static self) -> &'static Driver {
        self.driver.get_or_init(|| {
            let (config, reference) = (self.client_config(), self.reference.clone());
            Driver::new(config, reference, self.tls.clone())
        })
    }

    /// Closes the connections.
    pub(super) fn disconnect(&mut self) {
        self.driver.take();
    }

    /// What a client has to know. Its name and its seed are the worker's.
    fn client_config(&self) -> Config {
        let micros = |time: ngx_msec_t| (time as u64).saturating_mul(MILLISECOND);
        Config {
            kind: self.kind.clone(),
            servers: self.servers.clone(),
            account: self.account.clone(),
            store: self.shown(),
            client_name: String::new(),
            connect_timeout: micros(self.connect_timeout),
            connections: self.connections,
            max_fails: self.max_fails,
            fail_timeout: micros(self.fail_timeout),
            patience: micros(self.longest_timeout),
            seed: 0,
        }
    }
}

/// Reads the URL of a server.
fn read_server(cf: &mut ngx_conf_t, url: &str, directive: &str) -> Result<Server, String> {
    let invalid = |reason: &str| {
        format!("invalid URL \"{}\" in \"{directive}\" directive: {reason}", redacted(url))
    };
    let endpoint: Endpoint = url.parse().map_err(|error| invalid(&format!("{error}")))?;
    if endpoint.tls {
        supported().map_err(|reason| invalid(&reason))?;
    }
    let targets = resolve(cf, &endpoint.address).map_err(|reason| invalid(&reason))?;
    Ok(Server { endpoint, targets })
}

/// The addresses of a host. This may block, which is fine while the configuration is read.
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

/// A block that is being read.
#[derive(Default)]
pub(super) struct Builder {
    servers: Vec<Server>,
    cluster: Option<bool>,
    sentinel: Option<&'static str>,
    user: Option<&'static str>,
    password: Option<String>,
    database: Option<u32>,
    prefix: Option<&'static str>,
    connect_timeout: Option<ngx_msec_t>,
    connections: Option<usize>,
    max_fails: Option<usize>,
    fail_timeout: Option<ngx_msec_t>,
    tls: TlsSettings,
}

impl Builder {
    /// Reads one line of the block.
    pub(super) fn read(&mut self, line: &mut Directive<'_>) -> Result<(), String> {
        let name = line.name()?;
        match name {
            "server" => {
                let url = line.value()?;
                let server = read_server(line.cf(), url, name)?;
                self.servers.push(server);
                Ok(())
            }
            "cluster" => line.choose(&mut self.cluster, &[("on", true), ("off", false)]),
            "sentinel" => {
                let master = read_name(line)?;
                line.once(&mut self.sentinel, master)
            }
            "user" => {
                let user = read_name(line)?;
                line.once(&mut self.user, user)
            }
            "password" => {
                let password = line.value()?.to_owned();
                if password.is_empty() {
                    return Err("the value of \"password\" must not be empty".to_owned());
                }
                self.set_password(password)
            }
            "password_file" => {
                let password = read_password(line)?;
                self.set_password(password)
            }
            "database" => {
                let database = line.number(0, u64::from(u32::MAX))?;
                line.once(&mut self.database, u32::try_from(database).unwrap_or(u32::MAX))
            }
            "prefix" => {
                let prefix = line.value()?;
                line.once(&mut self.prefix, prefix)
            }
            "connect_timeout" => {
                let time = line.time()?;
                line.once(&mut self.connect_timeout, time)
            }
            "connections" => {
                let connections = line.number(1, MAX_CONNECTIONS)?;
                line.once(&mut self.connections, connections as usize)
            }
            "max_fails" => {
                let fails = line.number(0, MAX_FAILS)?;
                line.once(&mut self.max_fails, fails as usize)
            }
            "fail_timeout" => {
                let time = line.time()?;
                line.once(&mut self.fail_timeout, time)
            }
            _ if name.starts_with("ssl_") => tls::read(&mut self.tls, line),
            _ => Err(format!("unknown directive \"{name}\" in \"rate_limit_redis_store\"")),
        }
    }

    fn set_password(&mut self, password: String) -> Result<(), String> {
        match self.password.replace(password) {
            None => Ok(()),
            Some(_) => Err("\"password\" or \"password_file\" directive is duplicate".to_owned()),
        }
    }

    /// The store that all the lines make.
    pub(super) fn build(self, cf: &mut ngx_conf_t, reference: String) -> Result<Store, String> {
        let kind = self.kind()?;
        self.check(&kind)?;
        let account = self.account(&kind)?;
        let tls = self.tls(cf)?;
        Ok(Store {
            reference,
            kind,
            account,
            tls,
            servers: self.servers,
            prefix: self.prefix.unwrap_or(DEFAULT_PREFIX).to_owned(),
            connect_timeout: self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
            connections: self.connections.unwrap_or(1),
            max_fails: self.max_fails.unwrap_or(DEFAULT_MAX_FAILS),
            fail_timeout: self.fail_timeout.unwrap_or(DEFAULT_FAIL_TIMEOUT),
            used: false,
            longest_timeout: 0,
            driver: OnceCell::new(),
        })
    }

    fn kind(&self) -> Result<Kind, String> {
        match (self.sentinel, self.cluster) {
            (None, None | Some(false)) => Ok(Kind::Single),
            (None, Some(true)) => Ok(Kind::Cluster),
            (Some(name), None | Some(false)) => Ok(Kind::Sentinel(name.to_owned())),
            (Some(_), Some(true)) => {
                Err("\"cluster on\" and \"sentinel\" exclude each other".to_owned())
            }
        }
    }

    /// Refuses what cannot be together.
    fn check(&self, kind: &Kind) -> Result<(), String> {
        let endpoints = || self.servers.iter().map(|server| &server.endpoint);
        if self.servers.is_empty() {
            return Err("there must be a \"server\", such as redis://127.0.0.1:6379".to_owned());
        }
        if endpoints().any(|endpoint| endpoint.tls) != endpoints().all(|endpoint| endpoint.tls) {
            return Err("TLS is spoken to all servers of a store, or to none".to_owned());
        }
        if *kind == Kind::Single {
            return match self.servers.len() {
                1 => Ok(()),
                _ => {
                    Err("several servers must be the nodes of a cluster, with \"cluster on\", or \
                          sentinels, with \"sentinel\" and the name of the master"
                        .to_owned())
                }
            };
        }
        if endpoints().any(|endpoint| matches!(endpoint.address, Address::Unix(_))) {
            return Err("a cluster or a sentinel cannot be at a unix socket".to_owned());
        }
        if endpoints().any(|endpoint| endpoint.database != 0) {
            return Err("the URL of a cluster's node or of a sentinel has no database".to_owned());
        }
        let account = |endpoint: &Endpoint| (endpoint.user.clone(), endpoint.password.clone());
        let mut accounts = endpoints().map(account);
        let first = accounts.next();
        if *kind == Kind::Cluster && accounts.any(|other| Some(other) != first) {
            return Err(
                "the servers of a cluster have one account, but their URLs differ in it".to_owned()
            );
        }
        if *kind == Kind::Cluster && self.database.is_some_and(|database| database != 0) {
            return Err("a cluster has only the database 0".to_owned());
        }
        Ok(())
    }

    /// How TLS is spoken, if the URLs say that it is.
    fn tls(&self, cf: &mut ngx_conf_t) -> Result<Option<Rc<Tls>>, String> {
        match self.servers.iter().any(|server| server.endpoint.tls) {
            true => Tls::new(cf, &self.tls).map(Rc::new).map(Some),
            false if self.tls.is_given() => {
                Err("what is said of TLS is for servers at rediss://, and there is none".to_owned())
            }
            false => Ok(None),
        }
    }

    /// The account at the servers that decide. What stands in the URL of a sentinel is the
    /// sentinel's; in any other URL it stands for the directives.
    fn account(&self, kind: &Kind) -> Result<Endpoint, String> {
        let Some(first) = self.servers.first() else { return Err("no server".to_owned()) };
        let mut account = first.endpoint.clone();
        if matches!(kind, Kind::Sentinel(_)) {
            (account.user, account.password) = (None, None);
        }
        let in_url = account.user.is_some() || account.password.is_some();
        if in_url && (self.user.is_some() || self.password.is_some()) {
            return Err("user and password are given in the URL and again".to_owned());
        }
        if account.database != 0 && self.database.is_some() {
            return Err("the database is given in the URL and again".to_owned());
        }
        if !in_url {
            account.user = self.user.map(str::to_owned);
            account.password.clone_from(&self.password);
        }
        account.database = self.database.unwrap_or(account.database);
        Ok(account)
    }
}

/// Reads the name of an account or of a master.
fn read_name(line: &Directive<'_>) -> Result<&'static str, String> {
    match line.value()? {
        "" => Err(line.invalid("", "a name")),
        name => Ok(name),
    }
}

/// Reads a password from the first line of a file. The path is relative to the configuration.
fn read_password(line: &mut Directive<'_>) -> Result<String, String> {
    let value = line.value()?;
    let cf = line.cf();
    let mut path = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
    // SAFETY: the text is only read; NGINX puts the full path into the pool of the configuration.
    if unsafe { ngx_conf_full_name(cf.cycle, &mut path, 1) } != Status::NGX_OK.0 {
        return Err("out of memory".to_owned());
    }
    let path = text(&path)?;
    let content = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read \"{path}\" of \"password_file\": {error}"))?;
    match content.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(format!("there is no password in the first line of \"{path}\"")),
    }
}
