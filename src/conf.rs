//! Directives to typed configuration.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use ngx::core::{NGX_CONF_ERROR, NGX_CONF_OK};
use ngx::ffi::{
    NGX_CONF_1MORE, NGX_CONF_TAKE1, NGX_HTTP_LOC_CONF, NGX_HTTP_LOC_CONF_OFFSET,
    NGX_HTTP_MAIN_CONF, NGX_HTTP_SRV_CONF, NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN,
    ngx_command_t, ngx_conf_t, ngx_http_location_queue_t, ngx_int_t, ngx_msec_t, ngx_parse_time,
    ngx_str_t, ngx_uint_t,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf, NgxHttpCoreModule};
use ngx::ngx_string;

use rate_limit_core::text::body;
use rate_limit_core::text::fields::{Forms, Reset};

use crate::Module;
use crate::redis::Node;

mod definition;
mod directive;
mod limit;
mod store;
pub(crate) mod tls;
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
}

impl MainConf {
    /// Connects to every store that is sure to be used.
    pub(crate) fn connect(&self) {
        for store in self.stores.iter().filter(|store| store.is_used()) {
            // SAFETY: the worker has just started, and nothing else uses the node yet.
            unsafe { (*store.node().as_ptr()).connect() };
        }
    }

    /// Closes every connection.
    pub(crate) fn disconnect(&mut self) {
        self.stores.iter_mut().for_each(Store::disconnect);
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
    /// The index of the store among all.
    store: Option<usize>,
    timeout: Option<ngx_msec_t>,
    on_error: Option<OnError>,
    status: Option<ngx_int_t>,
    error_status: Option<ngx_int_t>,
    forms: Option<Forms>,
    body: Option<body::Form>,
    dry_run: Option<bool>,
    log_level: Option<ngx_uint_t>,
    ipv6_prefix: Option<u32>,
}

const DEFAULT_STORE: &str = "redis://127.0.0.1:6379";
const DEFAULT_TIMEOUT: ngx_msec_t = 20;
const DEFAULT_FORMS: Forms =
    Forms { x_ratelimit: Some(Reset::Seconds), ratelimit: false, ietf: false };

/// How much of an IPv6 address stands for a client, in bits.
pub(crate) const DEFAULT_IPV6_PREFIX: u32 = 64;

impl LocationConf {
    /// The limits that apply, in the order of the configuration.
    pub(crate) fn limits(&self) -> &[Rc<Limit>] {
        self.limits.as_deref().unwrap_or_default()
    }

    /// The connection that decides.
    pub(crate) fn node(&self, main: &MainConf) -> Option<NonNull<Node>> {
        Some(main.stores.get(self.store?)?.node())
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

    /// In which forms answers tell the quota.
    pub(crate) fn forms(&self) -> Forms {
        self.forms.unwrap_or(DEFAULT_FORMS)
    }

    /// In which form rejections are told.
    pub(crate) fn body(&self) -> body::Form {
        self.body.unwrap_or_default()
    }

    /// Whether nothing is really rejected or delayed.
    pub(crate) fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    /// How much of an IPv6 address stands for a client, in bits.
    pub(crate) fn ipv6_prefix(&self) -> u32 {
        self.ipv6_prefix.unwrap_or(DEFAULT_IPV6_PREFIX)
    }

    /// The level at which rejections are logged.
    pub(crate) fn log_level(&self) -> ngx_uint_t {
        self.log_level.unwrap_or(NGX_LOG_ERR as ngx_uint_t)
    }

    /// The level at which delays are logged: one lower, as with `limit_req`.
    pub(crate) fn delay_log_level(&self) -> ngx_uint_t {
        self.log_level().saturating_add(1).min(NGX_LOG_INFO as ngx_uint_t)
    }

    fn inherit(&mut self, previous: &Self) {
        self.limits = self.limits.take().or_else(|| previous.limits.clone());
        self.store = self.store.or(previous.store);
        self.timeout = self.timeout.or(previous.timeout);
        self.on_error = self.on_error.or(previous.on_error);
        self.status = self.status.or(previous.status);
        self.error_status = self.error_status.or(previous.error_status);
        self.forms = self.forms.or(previous.forms);
        self.body = self.body.or(previous.body);
        self.dry_run = self.dry_run.or(previous.dry_run);
        self.log_level = self.log_level.or(previous.log_level);
        self.ipv6_prefix = self.ipv6_prefix.or(previous.ipv6_prefix);
    }
}

const EVERYWHERE: ngx_uint_t =
    (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF) as ngx_uint_t;
const TAKE1: ngx_uint_t = EVERYWHERE | NGX_CONF_TAKE1 as ngx_uint_t;
const ONE_OR_MORE: ngx_uint_t = EVERYWHERE | NGX_CONF_1MORE as ngx_uint_t;

/// Every directive of the module.
pub(crate) static mut COMMANDS: [ngx_command_t; 12] = [
    command!("rate_limit_redis", ONE_OR_MORE, add_limit),
    command!("rate_limit_redis_pass", TAKE1, set_store),
    command!("rate_limit_redis_timeout", TAKE1, set_timeout),
    command!("rate_limit_redis_on_error", TAKE1, set_on_error),
    command!("rate_limit_redis_status", TAKE1, set_status),
    command!("rate_limit_redis_error_status", TAKE1, set_error_status),
    command!("rate_limit_redis_headers", ONE_OR_MORE, set_headers),
    command!("rate_limit_redis_body", TAKE1, set_body),
    command!("rate_limit_redis_dry_run", TAKE1, set_dry_run),
    command!("rate_limit_redis_log_level", TAKE1, set_log_level),
    command!("rate_limit_redis_ipv6_prefix", TAKE1, set_ipv6_prefix),
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
    directive.main()?.definitions.add(&limit)?;
    conf.limits.get_or_insert_default().push(Rc::new(limit));
    Ok(())
}

const OFF_BESIDE_ANOTHER: &str =
    "\"rate_limit_redis off\" cannot stand beside another \"rate_limit_redis\" of the same level";

fn set_store(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let url = directive.value()?;
    let main = directive.main()?;
    let store = main.store(directive.cf(), url)?;
    directive.once(&mut conf.store, store)
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
    let mut forms = Forms::default();
    let names: Vec<_> = directive.arguments().map(directive::text).collect::<Result<_, _>>()?;
    if names != ["off"] {
        for name in names {
            let repeated = match name {
                "x-ratelimit" => forms.x_ratelimit.replace(Reset::Seconds).is_some(),
                "x-ratelimit-epoch" => forms.x_ratelimit.replace(Reset::Epoch).is_some(),
                "ratelimit" => std::mem::replace(&mut forms.ratelimit, true),
                "ietf" => std::mem::replace(&mut forms.ietf, true),
                _ => return Err(directive.invalid(name, HEADER_FORMS)),
            };
            if repeated {
                return Err(directive.invalid(name, HEADER_FORMS));
            }
        }
    }
    directive.once(&mut conf.forms, forms)
}

const HEADER_FORMS: &str = "\"off\", or any of \"x-ratelimit\" or \"x-ratelimit-epoch\", \
                            \"ratelimit\" and \"ietf\", each once";

fn set_body(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let forms =
        [("html", body::Form::Html), ("json", body::Form::Json), ("problem", body::Form::Problem)];
    directive.choose(&mut conf.body, &forms)
}

fn set_dry_run(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    directive.choose(&mut conf.dry_run, &[("on", true), ("off", false)])
}

fn set_ipv6_prefix(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let value = directive.value()?;
    match rate_limit_core::rate::whole(value).map(u32::try_from) {
        Ok(Ok(prefix @ 1..=128)) => directive.once(&mut conf.ipv6_prefix, prefix),
        _ => Err(directive.invalid(value, "a number between 1 and 128")),
    }
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
    if conf.limits().is_empty() {
        return NGX_CONF_OK;
    }
    match bind_limits(cf, conf) {
        Ok(()) => NGX_CONF_OK,
        Err(message) => {
            directive::log_error(cf, &message);
            NGX_CONF_ERROR
        }
    }
}

/// Binds the limits of a location to their store.
fn bind_limits(cf: &mut ngx_conf_t, conf: &mut LocationConf) -> Result<(), String> {
    let main = Module::main_conf_mut(cf).ok_or("no main configuration")?;
    let index = match conf.store {
        Some(index) => index,
        None => main.store(cf, DEFAULT_STORE)?,
    };
    conf.store = Some(index);
    if only_passes_on(cf) {
        return Ok(());
    }
    let store = main.stores.get_mut(index).ok_or("no such store")?;
    store.will_be_used();
    for limit in conf.limits() {
        main.definitions.bind(limit, store)?;
    }
    Ok(())
}

/// Whether this is the level of a server with a `location /`: all requests are served from
/// locations then, and what it would connect to may differ from what they do.
fn only_passes_on(cf: &ngx_conf_t) -> bool {
    let core = NgxHttpCoreModule::location_conf(cf);
    let Some(core) = core.filter(|core| core.name.len == 0 && !core.locations.is_null()) else {
        return false;
    };
    // SAFETY: until they are sorted, after all modules have merged their configurations, the
    // locations of a server are a queue of this type, whose head is no element.
    unsafe {
        let mut next = (*core.locations).next;
        while next != core.locations {
            let location = &*next.cast::<ngx_http_location_queue_t>();
            if location.inclusive.as_ref().is_some_and(|location| location.name.as_bytes() == b"/")
            {
                return true;
            }
            next = (*next).next;
        }
    }
    false
}
