//! The block `rate_limit_redis_store`, and the URL of a store without one.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::rc::Rc;

use ngx::core::{NGX_CONF_OK, Status};
use ngx::ffi::{
    NGX_LOG_WARN, ngx_command_t, ngx_conf_full_name, ngx_conf_include, ngx_conf_parse, ngx_conf_t,
    ngx_msec_t, ngx_str_t,
};
use rate_limit_core::client::{Config, Kind, Server};
use rate_limit_core::limit::is_name;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::redis::endpoint::{Address, Endpoint, redacted};

use super::directive::{self, Directive, text};
use super::error::{ConfError, StoreError};
use super::{server, tls};
use crate::client::TlsSettings;
use crate::client::tls::Tls;
use crate::conf::{MainConf, Store};
use crate::log::log;

/// The prefix of every Redis key, unless the store has one of its own.
const DEFAULT_PREFIX: &str = "rl:";

/// How long connecting may take, with the handshake, in ms.
const DEFAULT_CONNECT_TIMEOUT: ngx_msec_t = 250;

const DEFAULT_MAX_FAILS: usize = 3;

/// In ms.
const DEFAULT_FAIL_TIMEOUT: ngx_msec_t = 1_000;

/// The default port of Redis.
const REDIS_PORT: u16 = 6379;

/// The most connections a worker may have to a node: more would only make its batches smaller.
const MAX_CONNECTIONS: u64 = 64;

/// The most failures that can be configured: the time of each is kept.
const MAX_FAILS: u64 = 1_000;

/// The index of the store at `url`, which is added if it is new.
pub(super) fn at(main: &mut MainConf, cf: &mut ngx_conf_t, url: &str) -> Result<usize, ConfError> {
    if let Some(index) = main.find(url) {
        return Ok(index);
    }
    let server = server::read(cf, url, "rate_limit_redis_pass")?;
    let builder = Builder { servers: vec![server], ..Builder::default() };
    Ok(main.add_store(builder.build(cf, url.to_owned())?))
}

/// Reads the block `rate_limit_redis_store`: NGINX passes its lines to [`read_line`].
pub(super) unsafe extern "C" fn set_block(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    conf: *mut c_void,
) -> *mut c_char {
    let mut builder = Builder::default();
    // SAFETY: NGINX passes its configuration context and the configuration that create_main_conf
    // made. While the block is read the context calls our function, with our builder, and then it
    // is as it was.
    unsafe {
        let cf = &mut *cf;
        let name = match (Directive { cf }).value() {
            Ok(name) => name,
            Err(error) => return directive::fail(cf, &error),
        };
        let (handler, handler_conf) = (cf.handler, cf.handler_conf);
        cf.handler = Some(read_line);
        cf.handler_conf = ptr::from_mut(&mut builder).cast();
        let result = ngx_conf_parse(cf, ptr::null_mut());
        (cf.handler, cf.handler_conf) = (handler, handler_conf);
        if result != NGX_CONF_OK {
            return result;
        }
        match add_block(&mut *conf.cast::<MainConf>(), cf, name, builder) {
            Ok(()) => NGX_CONF_OK,
            Err(error) => directive::fail(cf, &error),
        }
    }
}

unsafe extern "C" fn read_line(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    builder: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context, and the builder of `set_block`. Nothing refers to
    // the builder while the lines of another file are passed to this function. `include` uses neither
    // a command nor a configuration, and has its argument.
    unsafe {
        let cf = &mut *cf;
        let is_include = is_include(&Directive { cf });
        match is_include {
            Ok(true) => ngx_conf_include(cf, ptr::null_mut(), ptr::null_mut()),
            Ok(false) => directive::run(Builder::read, cf, &mut *builder.cast::<Builder>()),
            Err(error) => directive::fail(cf, &error),
        }
    }
}

/// Whether a line is NGINX's `include`, with its argument: in a block that has a function of its own
/// NGINX leaves that to the function.
fn is_include(line: &Directive<'_>) -> Result<bool, ConfError> {
    let is_include = line.name()? == "include";
    if is_include {
        line.value()?;
    }
    Ok(is_include)
}

/// Adds the store of a block.
fn add_block(
    main: &mut MainConf,
    cf: &mut ngx_conf_t,
    name: &str,
    builder: Builder,
) -> Result<(), ConfError> {
    if !is_name(name) {
        return Err(StoreError::Name(name.to_owned()).into());
    }
    if main.find(name).is_some() {
        return Err(StoreError::Duplicate(name.to_owned()).into());
    }
    let wrong = |error| ConfError::Block { name: name.to_owned(), error };
    main.add_store(builder.build(cf, name.to_owned()).map_err(wrong)?);
    Ok(())
}

/// A block that is being read.
#[derive(Default)]
struct Builder {
    servers: Vec<Server>,
    /// Where the lines of the servers are: file and number.
    places: Vec<String>,
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
    fn read(&mut self, line: &mut Directive<'_>) -> Result<(), ConfError> {
        let name = line.name()?;
        match name {
            "server" => {
                let url = line.value()?;
                let server = server::read(line.cf, url, name)?;
                self.servers.push(server);
                self.places.push(line.place());
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
                    return Err(StoreError::EmptyPassword.into());
                }
                Ok(self.set_password(password)?)
            }
            "password_file" => {
                let password = read_password(line)?;
                Ok(self.set_password(password)?)
            }
            "database" => {
                let database = line.number(0, u64::from(u32::MAX))?;
                line.once(&mut self.database, u32::try_from(database).unwrap_or(u32::MAX))
            }
            "prefix" => {
                let prefix = line.value()?;
                if prefix.contains('$') {
                    return Err(line.invalid(prefix, "a text without variables"));
                }
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
            _ => Err(StoreError::Unknown(name.to_owned()).into()),
        }
    }

    fn set_password(&mut self, password: String) -> Result<(), StoreError> {
        match self.password.replace(password) {
            None => Ok(()),
            Some(_) => Err(StoreError::PasswordTwice),
        }
    }

    /// The store of all lines.
    fn build(self, cf: &mut ngx_conf_t, reference: String) -> Result<Store, StoreError> {
        let kind = self.kind()?;
        self.check(&kind)?;
        let account = self.account(&kind)?;
        let tls = self.tls(cf)?;
        if matches!(kind, Kind::Sentinel(_)) {
            self.warn_of_ports(cf);
        }
        let micros = |time: ngx_msec_t| (time as u64).saturating_mul(MILLISECOND);
        let config = Config {
            kind,
            servers: self.servers,
            account,
            store: redacted(&reference),
            connect_timeout: micros(self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT)),
            connections: self.connections.unwrap_or(1),
            max_fails: self.max_fails.unwrap_or(DEFAULT_MAX_FAILS),
            fail_timeout: micros(self.fail_timeout.unwrap_or(DEFAULT_FAIL_TIMEOUT)),
            // Set by the locations: as long as their requests may wait.
            patience: 0,
            // Set by the worker.
            client_name: String::new(),
            seed: 0,
        };
        let prefix = self.prefix.unwrap_or(DEFAULT_PREFIX).to_owned();
        Ok(Store::new(reference, prefix, config, tls))
    }

    fn kind(&self) -> Result<Kind, StoreError> {
        match (self.sentinel, self.cluster) {
            (None, None | Some(false)) => Ok(Kind::Single),
            (None, Some(true)) => Ok(Kind::Cluster),
            (Some(name), None | Some(false)) => Ok(Kind::Sentinel(name.to_owned())),
            (Some(_), Some(true)) => Err(StoreError::ClusterAndSentinel),
        }
    }

    /// Refuses servers that cannot be one store.
    fn check(&self, kind: &Kind) -> Result<(), StoreError> {
        let endpoints = || self.servers.iter().map(|server| &server.endpoint);
        if self.servers.is_empty() {
            return Err(StoreError::NoServer);
        }
        if endpoints().any(|endpoint| endpoint.tls) != endpoints().all(|endpoint| endpoint.tls) {
            return Err(StoreError::PartlyTls);
        }
        if *kind == Kind::Single {
            return match self.servers.len() {
                1 => Ok(()),
                _ => Err(StoreError::SeveralServers),
            };
        }
        if endpoints().any(|endpoint| matches!(endpoint.address, Address::Unix(_))) {
            return Err(StoreError::UnixSocket);
        }
        if endpoints().any(|endpoint| endpoint.database != 0) {
            return Err(StoreError::DatabaseInUrl);
        }
        let account = |endpoint: &Endpoint| (endpoint.user.clone(), endpoint.password.clone());
        let mut accounts = endpoints().map(account);
        let first = accounts.next();
        if *kind == Kind::Cluster && accounts.any(|other| Some(other) != first) {
            return Err(StoreError::Accounts);
        }
        if *kind == Kind::Cluster && self.database.is_some_and(|database| database != 0) {
            return Err(StoreError::DatabaseOfCluster);
        }
        Ok(())
    }

    /// Warns of each sentinel at the default port of Redis.
    fn warn_of_ports(&self, cf: &ngx_conf_t) {
        for (server, place) in self.servers.iter().zip(&self.places) {
            if let address @ Address::Tcp(_, REDIS_PORT) = &server.endpoint.address {
                log!(
                    NGX_LOG_WARN,
                    cf.log,
                    "the sentinel {address} is at the default port of Redis, not of a sentinel \
                     (26379) in {place}"
                );
            }
        }
    }

    /// The settings of TLS, if the servers are at `rediss://`.
    fn tls(&self, cf: &mut ngx_conf_t) -> Result<Option<Rc<Tls>>, StoreError> {
        match self.servers.iter().any(|server| server.endpoint.tls) {
            true => Ok(Some(Rc::new(Tls::new(cf, &self.tls).map_err(StoreError::Tls)?))),
            false if self.tls.is_given() => Err(StoreError::TlsUnused),
            false => Ok(None),
        }
    }

    /// The account at the servers that run scripts. The account in the URL of a sentinel is the
    /// sentinel's; in any other URL it replaces the directives.
    fn account(&self, kind: &Kind) -> Result<Endpoint, StoreError> {
        let Some(first) = self.servers.first() else { return Err(StoreError::NoServer) };
        let mut account = first.endpoint.clone();
        if matches!(kind, Kind::Sentinel(_)) {
            (account.user, account.password) = (None, None);
        }
        let in_url = account.user.is_some() || account.password.is_some();
        if in_url && (self.user.is_some() || self.password.is_some()) {
            return Err(StoreError::AccountTwice);
        }
        if account.database != 0 && self.database.is_some() {
            return Err(StoreError::DatabaseTwice);
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
fn read_name(line: &Directive<'_>) -> Result<&'static str, ConfError> {
    match line.value()? {
        "" => Err(line.invalid("", "a name")),
        name => Ok(name),
    }
}

/// Reads a password from the first line of a file. The path is relative to the configuration.
fn read_password(line: &mut Directive<'_>) -> Result<String, ConfError> {
    let value = line.value()?;
    let cf = &mut *line.cf;
    let mut path = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
    // SAFETY: the text is only read; NGINX puts the full path into the pool of the configuration.
    if unsafe { ngx_conf_full_name(cf.cycle, &mut path, 1) } != Status::NGX_OK.0 {
        return Err(ConfError::OutOfMemory);
    }
    let path = text(&path)?;
    let content = std::fs::read_to_string(path)
        .map_err(|error| StoreError::PasswordFile { path: path.to_owned(), error })?;
    // Some editors begin a file with a byte order mark.
    match content.trim_start_matches('\u{feff}').lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(StoreError::NoPassword(path.to_owned()).into()),
    }
}
