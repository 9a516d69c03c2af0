//! Directives to typed configuration.

use std::cell::OnceCell;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::rc::Rc;

use ngx::core::{NGX_CONF_OK, Status};
use ngx::ffi::{
    NGX_CONF_1MORE, NGX_CONF_BLOCK, NGX_CONF_NOARGS, NGX_CONF_TAKE1, NGX_HTTP_LOC_CONF,
    NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_MAIN_CONF, NGX_HTTP_MAIN_CONF_OFFSET, NGX_HTTP_SRV_CONF,
    NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN, ngx_command_t, ngx_conf_parse,
    ngx_conf_t, ngx_http_location_queue_t, ngx_int_t, ngx_msec_t, ngx_uint_t, ngx_worker,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf, NgxHttpCoreModule};
use ngx::ngx_string;

use rate_limit_core::limit::is_name;
use rate_limit_core::text::fields::{Forms, Reset};
use rate_limit_core::text::{body, metrics};

use crate::Module;
use crate::client::Driver;
use crate::shm::{self, Shared};

mod definition;
mod directive;
mod limit;
mod store;
mod tls;
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
    /// Decide in this machine's shared memory.
    Local,
}

/// What is configured for all of `http`.
#[derive(Default)]
pub(crate) struct MainConf {
    /// Connections refer to them, but are only made when all are there.
    stores: Vec<Store>,
    definitions: Definitions,
    /// The limits of servers that have a `location /`, and the store that is configured there.
    outside: Vec<(Vec<Rc<Limit>>, usize)>,
    /// The size of the shared memory in bytes.
    memory_size: Option<usize>,
    /// The shared memory, once it is mapped.
    shared: OnceCell<Shared>,
}

impl MainConf {
    /// Connects to every store that is sure to be used.
    pub(crate) fn connect(&'static self) {
        for store in self.stores.iter().filter(|store| store.is_used()) {
            if let Some(driver) = self.driver_of(store) {
                driver.start();
            }
        }
    }

    /// This worker's client of a store.
    fn driver_of(&self, store: &'static Store) -> Option<&'static Driver> {
        // Without memory there is no limit.
        self.shared().map(|_| store.driver())
    }

    /// What the workers of this machine share: in a worker it is always there.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.get()
    }

    /// Makes this worker known to all, and every limit, also one that nobody has asked yet.
    pub(crate) fn register(&self) {
        if let Some(shared) = self.shared() {
            // SAFETY: set by NGINX before it runs any hook of a process.
            shared.set_worker(unsafe { ngx_worker }, std::process::id());
            for name in self.definitions.names() {
                shared.limit(name);
            }
        }
    }

    /// Adds what the workers are to share, if anything is to be limited.
    pub(crate) fn add_zone(&'static self, cf: &mut ngx_conf_t) -> Result<(), String> {
        match self.definitions.are_bound() {
            true => {
                let size = self.memory_size.unwrap_or(shm::DEFAULT_SIZE);
                shm::add_zone(cf, size, &self.shared)
            }
            false => Ok(()),
        }
    }

    /// Closes every connection.
    pub(crate) fn disconnect(&mut self) {
        self.stores.iter_mut().for_each(Store::disconnect);
    }

    /// The index of the store at `url`, which is added if it is new.
    fn store(&mut self, cf: &mut ngx_conf_t, url: &str) -> Result<usize, String> {
        if let Some(index) = self.find(url) {
            return Ok(index);
        }
        self.stores.push(Store::at(cf, url)?);
        Ok(self.stores.len().saturating_sub(1))
    }

    /// Adds the store that a block describes.
    fn add_store(
        &mut self,
        cf: &mut ngx_conf_t,
        name: &str,
        builder: store::Builder,
    ) -> Result<(), String> {
        if !is_name(name) {
            return Err(format!(
                "invalid name \"{name}\" of \"rate_limit_redis_store\": it must be 1 to 64 of \
                 A-Z a-z 0-9 _ - ."
            ));
        }
        if self.find(name).is_some() {
            return Err(format!("duplicate \"rate_limit_redis_store\" \"{name}\""));
        }
        let wrong = |reason| format!("in \"rate_limit_redis_store\" \"{name}\": {reason}");
        self.stores.push(builder.build(cf, name.to_owned()).map_err(wrong)?);
        Ok(())
    }

    /// Says which store the limits of one level keep their counters in, the one of this index.
    fn bind(&mut self, limits: &[Rc<Limit>], index: usize) -> Result<(), String> {
        let store = self.stores.get(index).ok_or("no such store")?;
        for limit in limits {
            self.definitions.bind(limit, store)?;
            limit.bind(index, store)?;
        }
        Ok(())
    }

    /// Binds the limits that only apply outside of any location, once all others are bound: a name
    /// stands for one store, and it is the locations that say which.
    fn bind_outside(&mut self) -> Result<(), String> {
        for (limits, configured) in std::mem::take(&mut self.outside) {
            let mut known = limits.iter().filter_map(|limit| self.definitions.store(limit.name()));
            let index = known.next().and_then(|store| self.find(store)).unwrap_or(configured);
            self.bind(&limits, index)?;
        }
        Ok(())
    }

    fn find(&self, reference: &str) -> Option<usize> {
        self.stores.iter().position(|store| store.reference() == reference)
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
    pass: Option<Pass>,
    timeout: Option<ngx_msec_t>,
    on_error: Option<OnError>,
    status: Option<ngx_int_t>,
    error_status: Option<ngx_int_t>,
    forms: Option<Forms>,
    body: Option<body::Form>,
    dry_run: Option<bool>,
    log_level: Option<ngx_uint_t>,
    ipv6_prefix: Option<u32>,
    deny_cache: Option<bool>,
    /// For the metrics page, the form that it has, or `Some(None)` if the client chooses.
    metrics: Option<Option<metrics::Form>>,
}

/// What `rate_limit_redis_pass` says.
#[derive(Clone)]
enum Pass {
    /// The index of the store among all.
    Store(usize),
    /// The name of a block, which may come later in the configuration, and where that was said.
    Named(&'static str, String),
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

    /// This worker's client of the store. Limits of one level have one store.
    pub(crate) fn driver(&self, main: &'static MainConf) -> Option<&'static Driver> {
        main.driver_of(main.stores.get(self.limits().first()?.store()?)?)
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

    /// Whether it is remembered until when clients cannot pass.
    pub(crate) fn deny_cache(&self) -> bool {
        self.deny_cache.unwrap_or(true)
    }

    /// How much of an IPv6 address stands for a client, in bits.
    pub(crate) fn ipv6_prefix(&self) -> u32 {
        self.ipv6_prefix.unwrap_or(DEFAULT_IPV6_PREFIX)
    }

    /// The form of the metrics page, if it is not the client that chooses.
    pub(crate) fn metrics(&self) -> Option<metrics::Form> {
        self.metrics.flatten()
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
        self.pass = self.pass.take().or_else(|| previous.pass.clone());
        self.timeout = self.timeout.or(previous.timeout);
        self.on_error = self.on_error.or(previous.on_error);
        self.status = self.status.or(previous.status);
        self.error_status = self.error_status.or(previous.error_status);
        self.forms = self.forms.or(previous.forms);
        self.body = self.body.or(previous.body);
        self.dry_run = self.dry_run.or(previous.dry_run);
        self.log_level = self.log_level.or(previous.log_level);
        self.ipv6_prefix = self.ipv6_prefix.or(previous.ipv6_prefix);
        self.deny_cache = self.deny_cache.or(previous.deny_cache);
        // For the blocks in a location that have no handler of their own, such as `if`.
        self.metrics = self.metrics.or(previous.metrics);
    }
}

const EVERYWHERE: ngx_uint_t =
    (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF) as ngx_uint_t;
const TAKE1: ngx_uint_t = EVERYWHERE | NGX_CONF_TAKE1 as ngx_uint_t;
const LOCATION: ngx_uint_t = (NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS | NGX_CONF_TAKE1) as ngx_uint_t;
const ONE_OR_MORE: ngx_uint_t = EVERYWHERE | NGX_CONF_1MORE as ngx_uint_t;

/// Every directive of the module.
pub(crate) static mut COMMANDS: [ngx_command_t; 16] = [
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
    command!("rate_limit_redis_deny_cache", TAKE1, set_deny_cache),
    command!("rate_limit_redis_metrics", LOCATION, set_metrics),
    ngx_command_t {
        name: ngx_string!("rate_limit_redis_shared_memory"),
        type_: (NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE1) as ngx_uint_t,
        set: Some(set_shared_memory),
        conf: NGX_HTTP_MAIN_CONF_OFFSET,
        offset: 0,
        post: ptr::null_mut(),
    },
    ngx_command_t {
        name: ngx_string!("rate_limit_redis_store"),
        type_: (NGX_HTTP_MAIN_CONF | NGX_CONF_BLOCK | NGX_CONF_TAKE1) as ngx_uint_t,
        set: Some(set_store_block),
        conf: NGX_HTTP_MAIN_CONF_OFFSET,
        offset: 0,
        post: ptr::null_mut(),
    },
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

unsafe extern "C" fn set_shared_memory(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    conf: *mut c_void,
) -> *mut c_char {
    let set = |main: &mut MainConf, directive: &mut Directive<'_>| {
        let size = directive.size(shm::LEAST_SIZE)?;
        directive.once(&mut main.memory_size, size)
    };
    // SAFETY: NGINX passes its configuration context and the configuration that create_main_conf
    // made.
    unsafe { directive::run(set, &mut *cf, &mut *conf.cast::<MainConf>()) }
}

/// Begins a block. NGINX hands its lines to [`read_store_line`].
unsafe extern "C" fn set_store_block(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    conf: *mut c_void,
) -> *mut c_char {
    let mut builder = store::Builder::default();
    // SAFETY: NGINX passes its configuration context and the configuration that create_main_conf
    // made. While the block is read the context calls our function, with our builder, and then it
    // is as it was.
    unsafe {
        let cf = &mut *cf;
        let name = match (Directive { cf }).value() {
            Ok(name) => name,
            Err(message) => return directive::fail(cf, &message),
        };
        let (handler, handler_conf) = (cf.handler, cf.handler_conf);
        cf.handler = Some(read_store_line);
        cf.handler_conf = ptr::from_mut(&mut builder).cast();
        let result = ngx_conf_parse(cf, ptr::null_mut());
        (cf.handler, cf.handler_conf) = (handler, handler_conf);
        if result != NGX_CONF_OK {
            return result;
        }
        let added = (*conf.cast::<MainConf>()).add_store(cf, name, builder);
        match added {
            Ok(()) => NGX_CONF_OK,
            Err(message) => directive::fail(cf, &message),
        }
    }
}

unsafe extern "C" fn read_store_line(
    cf: *mut ngx_conf_t,
    _command: *mut ngx_command_t,
    builder: *mut c_void,
) -> *mut c_char {
    // SAFETY: NGINX passes its configuration context, and what `set_store_block` gave to it.
    unsafe {
        directive::run(store::Builder::read, &mut *cf, &mut *builder.cast::<store::Builder>())
    }
}

fn set_store(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let reference = directive.value()?;
    let pass = match is_name(reference) {
        true => Pass::Named(reference, directive.place()),
        // Now, while errors are told of this line.
        false => Pass::Store(directive.main()?.store(directive.cf(), reference)?),
    };
    directive.once(&mut conf.pass, pass)
}

fn set_timeout(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let timeout = directive.time()?;
    directive.once(&mut conf.timeout, timeout)
}

fn set_on_error(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    let policies =
        [("open", OnError::Open), ("closed", OnError::Closed), ("local", OnError::Local)];
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
    let prefix = directive.number(1, 128)?;
    directive.once(&mut conf.ipv6_prefix, prefix as u32)
}

fn set_deny_cache(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    directive.choose(&mut conf.deny_cache, &[("on", true), ("off", false)])
}

/// Makes the location the metrics page.
fn set_metrics(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), String> {
    match directive.arguments().next() {
        None => directive.once(&mut conf.metrics, None)?,
        Some(_) => {
            let forms = metrics::Form::ALL.map(|form| (form.name(), Some(form)));
            directive.choose(&mut conf.metrics, &forms)?;
        }
    }
    let core = NgxHttpCoreModule::location_conf_mut(directive.cf());
    core.ok_or("no location")?.handler = Some(crate::metrics::handle);
    Ok(())
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

/// Binds the last limits, and adds what the workers are to share, now that all is read.
pub(crate) fn complete(cf: &mut ngx_conf_t) -> Status {
    let bound = Module::main_conf_mut(cf).map_or(Ok(()), MainConf::bind_outside);
    let main: Option<&'static MainConf> = Module::main_conf(cf);
    match bound.and_then(|()| main.map_or(Ok(()), |main| main.add_zone(cf))) {
        Ok(()) => Status::NGX_OK,
        Err(message) => {
            directive::fail(cf, &message);
            Status::NGX_ERROR
        }
    }
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
    match find_store(cf, conf).and_then(|()| bind_limits(cf, conf)) {
        Ok(()) => NGX_CONF_OK,
        Err(message) => directive::fail(cf, &message),
    }
}

/// Finds the store that is named: all blocks have been read by now.
fn find_store(cf: &mut ngx_conf_t, conf: &mut LocationConf) -> Result<(), String> {
    let Some(Pass::Named(name, place)) = &conf.pass else { return Ok(()) };
    let main = Module::main_conf_mut(cf).ok_or("no main configuration")?;
    let index = main.find(name).ok_or_else(|| {
        format!(
            "\"{name}\" in \"rate_limit_redis_pass\" directive in {place} is neither a URL, such as \
             redis://127.0.0.1:6379, nor the name of a \"rate_limit_redis_store\""
        )
    })?;
    conf.pass = Some(Pass::Store(index));
    Ok(())
}

/// Binds the limits of a location to their store.
fn bind_limits(cf: &mut ngx_conf_t, conf: &mut LocationConf) -> Result<(), String> {
    if conf.limits().is_empty() {
        return Ok(());
    }
    let main = Module::main_conf_mut(cf).ok_or("no main configuration")?;
    let index = match conf.pass {
        Some(Pass::Store(index)) => index,
        _ => main.store(cf, DEFAULT_STORE)?,
    };
    conf.pass = Some(Pass::Store(index));
    let store = main.stores.get_mut(index).ok_or("no such store")?;
    store.set_timeout(conf.timeout());
    if only_passes_on(cf) {
        main.outside.push((conf.limits().to_vec(), index));
        return Ok(());
    }
    store.will_be_used();
    main.bind(conf.limits(), index)
}

/// Whether this is the level of a server with a `location /`. Its limits are there for locations to
/// inherit, and for the few requests that no location matches: those whose URI does not begin with
/// a slash, as after `rewrite ^ foo` or `X-Accel-Redirect: foo`.
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
