//! Directives to typed configuration.

use std::cell::OnceCell;
use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use ngx::core::{NGX_CONF_ERROR, NGX_CONF_OK};
use ngx::ffi::{
    NGX_CONF_1MORE, NGX_CONF_TAKE1, NGX_HTTP_LOC_CONF, NGX_HTTP_LOC_CONF_OFFSET,
    NGX_HTTP_MAIN_CONF, NGX_HTTP_SRV_CONF, NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN,
    ngx_command_t, ngx_conf_t, ngx_int_t, ngx_msec_t, ngx_parse_time, ngx_str_t, ngx_uint_t,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf, NgxHttpCoreModule};
use ngx::ngx_string;

use crate::Module;
use crate::redis::Node;

mod definition;
mod directive;
mod limit;
mod store;
mod value;

use definition::Definitions;
use directive::{Directive, command};
pub(crate) use limit::{Limit, Unusable};
pub(crate) use store::Store;

/// What a location does when nobody can decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnError {
    /// Pass the request.
    #[default]
    Open,
    /// Reject the request.
    Closed,
}

/// What is configured for all of `http`.
#[derive(Default)]
pub(crate) struct MainConf {
    stores: Vec<Store>,
    definitions: Definitions,
    /// One for each of the stores that are used; made in the worker that uses them.
    nodes: OnceCell<Vec<NonNull<Node>>>,
}

impl MainConf {
    /// This worker's connections to Redis, one for each store that is used.
    pub(crate) fn nodes(&self) -> &[NonNull<Node>] {
        self.nodes.get_or_init(|| self.stores.iter().map(Node::new).collect())
    }

    /// Closes every connection.
    pub(crate) fn disconnect(&mut self) {
        for node in self.nodes.take().into_iter().flatten() {
            // SAFETY: the nodes were made by `Node::new`, and nothing else owns them.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }

    /// The index of the store at `url`, which is added if it is new.
    fn store(&mut self, cf: &mut ngx_conf_t, url: &str) -> Result<usize, String> {
        if let Some(index) = self.stores.iter().position(|store| store.url() == url) {
            return Ok(index);
        }
        self.stores.push(Store::new(cf, url)?);
        Ok(self.stores.len().saturating_sub(1))
    }
}

impl Drop for MainConf {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// What is configured for a location, or for the levels above it.
#[derive(Default)]
pub(crate) struct LocationConf {
    /// `Some` and empty for `rate_limit_redis off`.
    limits: Option<Vec<Rc<Limit>>>,
    store: Option<String>,
    /// The index of the store among all, where there are limits.
    node: Option<usize>,
    timeout: Option<ngx_msec_t>,
    on_error: Option<OnError>,
    status: Option<ngx_int_t>,
    error_status: Option<ngx_int_t>,
    x_ratelimit: Option<bool>,
    log_level: Option<ngx_uint_t>,
}

const DEFAULT_STORE: &str = "redis://127.0.0.1:6379";
const DEFAULT_TIMEOUT: ngx_msec_t = 20;

impl LocationConf {
    /// The limits that apply, in the order of the configuration.
    pub(crate) fn limits(&self) -> &[Rc<Limit>] {
        self.limits.as_deref().unwrap_or_default()
    }

    /// The connection that decides.
    pub(crate) fn node(&self, main: &MainConf) -> Option<NonNull<Node>> {
        main.nodes().get(self.node?).copied()
    }

    /// How long a request may wait for its decision, in ms.
    pub(crate) fn timeout(&self) -> ngx_msec_t {
        self.timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// What to do when nobody can decide.
    pub(crate) fn on_error(&self) -> OnError {
        self.on_error.unwrap_or_default()
    }

    /// The status of a rejection.
    pub(crate) fn status(&self) -> ngx_int_t {
        self.status.unwrap_or(429)
    }

    /// The status of a rejection because nobody could decide.
    pub(crate) fn error_status(&self) -> ngx_int_t {
        self.error_status.unwrap_or(503)
    }

    /// Whether answers carry `X-RateLimit-*` fields.
    pub(crate) fn x_ratelimit(&self) -> bool {
        self.x_ratelimit.unwrap_or(true)
    }

    /// The level at which rejections are logged.
    pub(crate) fn log_level(&self) -> ngx_uint_t {
        self.log_level.unwrap_or(NGX_LOG_ERR as ngx_uint_t)
    }

    fn inherit(&mut self, previous: &Self) {
        self.limits = self.limits.take().or_else(|| previous.limits.clone());
        self.store = self.store.take().or_else(|| previous.store.clone());
        self.timeout = self.timeout.or(previous.timeout);
        self.on_error = self.on_error.or(previous.on_error);
        self.status = self.status.or(previous.status);
        self.error_status = self.error_status.or(previous.error_status);
        self.x_ratelimit = self.x_ratelimit.or(previous.x_ratelimit);
        self.log_level = self.log_level.or(previous.log_level);
    }
}

const EVERYWHERE: ngx_uint_t =
    (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF) as ngx_uint_t;
const TAKE1: ngx_uint_t = EVERYWHERE | NGX_CONF_TAKE1 as ngx_uint_t;
const ONE_OR_MORE: ngx_uint_t = EVERYWHERE | NGX_CONF_1MORE as ngx_uint_t;

/// Every directive of the module.
pub(crate) static mut COMMANDS: [ngx_command_t; 9] = [
    command!("rate_limit_redis", ONE_OR_MORE, add_limit),
    command!("rate_limit_redis_pass", TAKE1, set_store),
    command!("rate_limit_redis_timeout", TAKE1, set_timeout),
    command!("rate_limit_redis_on_error", TAKE1, set_on_error),
    command!("rate_limit_redis_status", TAKE1, set_status),
    command!("rate_limit_redis_error_status", TAKE1, set_error_status),
    command!("rate_limit_redis_headers", ONE_OR_MORE, set_headers),
    command!("rate_limit_redis_log_level", TAKE1, set_log_level),
    ngx_command_t::empty(),
];

fn add_limit(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    if directive.arguments().next().is_some_and(|first| first.as_bytes() == b"off") {
        if directive.arguments().count() > 1 {
            return Err("\"rate_limit_redis off\" takes no parameters".to_owned());
        }
        return match conf.limits.replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(OFF_BESIDE_ANOTHER.to_owned()),
        };
    }
    if conf.limits.as_ref().is_some_and(Vec::is_empty) {
        return Err(OFF_BESIDE_ANOTHER.to_owned());
    }
    let limit = Limit::parse(directive)?;
    let (file, line) = directive.position();
    directive.main()?.definitions.add(&limit, file, line)?;
    conf.limits.get_or_insert_default().push(Rc::new(limit));
    Ok(())
}

const OFF_BESIDE_ANOTHER: &str =
    "\"rate_limit_redis off\" cannot stand beside another \"rate_limit_redis\" of the same level";

fn set_store(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let url = directive.value()?.to_owned();
    store::check(&url)?;
    directive.once(&mut conf.store, url)
}

fn set_timeout(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let value = directive.value()?;
    let mut text = ngx_str_t { data: value.as_ptr().cast_mut(), len: value.len() };
    // SAFETY: the text is valid, and only read.
    let timeout = unsafe { ngx_parse_time(&mut text, 0) };
    match ngx_msec_t::try_from(timeout) {
        Ok(timeout @ 1..) => directive.once(&mut conf.timeout, timeout),
        _ => Err(directive.invalid(value, "a time above 0, such as 20ms")),
    }
}

fn set_on_error(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let policies = [("open", OnError::Open), ("closed", OnError::Closed)];
    directive.choose(&mut conf.on_error, &policies)
}

fn set_status(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let status = status(directive)?;
    directive.once(&mut conf.status, status)
}

fn set_error_status(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let status = status(directive)?;
    directive.once(&mut conf.error_status, status)
}

fn status(directive: &Directive<'_>) -> Result<ngx_int_t, String> {
    let value = directive.value()?;
    match value.parse() {
        Ok(status @ 400..=599) if value.len() == 3 => Ok(status),
        _ => Err(directive.invalid(value, "a number between 400 and 599")),
    }
}

fn set_headers(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    directive.choose(&mut conf.x_ratelimit, &[("x-ratelimit", true), ("off", false)])
}

fn set_log_level(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let levels = [
        ("info", NGX_LOG_INFO as ngx_uint_t),
        ("notice", NGX_LOG_NOTICE as ngx_uint_t),
        ("warn", NGX_LOG_WARN as ngx_uint_t),
        ("error", NGX_LOG_ERR as ngx_uint_t),
    ];
    directive.choose(&mut conf.log_level, &levels)
}

/// Completes a server's or a location's configuration from the level above it.
pub(crate) unsafe extern "C" fn merge_location(
    cf: *mut ngx_conf_t,
    previous: *mut c_void,
    conf: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context and two configurations that create_loc_conf
    // made, of different levels.
    let (cf, previous, conf) =
        unsafe { (&mut *cf, &*previous.cast::<LocationConf>(), &mut *conf.cast::<LocationConf>()) };
    conf.inherit(previous);
    if conf.limits().is_empty() || serves_nothing(cf) {
        return NGX_CONF_OK;
    }
    match connect_limits(cf, conf) {
        Ok(()) => NGX_CONF_OK,
        Err(message) => {
            directive::log_error(cf, &message);
            NGX_CONF_ERROR
        }
    }
}

/// Binds the limits of a location to their store.
fn connect_limits(cf: &mut ngx_conf_t, conf: &mut LocationConf) -> Result<(), String> {
    let main = Module::main_conf_mut(cf).ok_or("no main configuration")?;
    let index = main.store(cf, conf.store.as_deref().unwrap_or(DEFAULT_STORE))?;
    let url = main.stores.get(index).map(Store::url).unwrap_or_default();
    for limit in conf.limits() {
        main.definitions.bind(limit, url)?;
    }
    conf.node = Some(index);
    Ok(())
}

/// Whether this level only passes its settings on. A server with locations serves requests from
/// them; its own level is not a user of the store that it would have.
fn serves_nothing(cf: &ngx_conf_t) -> bool {
    NgxHttpCoreModule::location_conf(cf)
        .is_some_and(|core| core.name.len == 0 && !core.locations.is_null())
}
