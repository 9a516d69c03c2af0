//! The directives of the module: their table, and what each sets.

use std::ffi::{c_char, c_void};
use std::ptr;

use ngx::ffi::{
    NGX_CONF_1MORE, NGX_CONF_BLOCK, NGX_CONF_NOARGS, NGX_CONF_TAKE1, NGX_CONF_TAKE12,
    NGX_HTTP_LOC_CONF, NGX_HTTP_LOC_CONF_OFFSET, NGX_HTTP_MAIN_CONF, NGX_HTTP_MAIN_CONF_OFFSET,
    NGX_HTTP_SRV_CONF, NGX_LOG_ERR, NGX_LOG_INFO, NGX_LOG_NOTICE, NGX_LOG_WARN, ngx_command_t,
    ngx_conf_t, ngx_int_t, ngx_uint_t,
};
use ngx::http::{HttpModuleLocationConf, NgxHttpCoreModule};
use ngx::ngx_string;
use rate_limit_core::limit::is_name;
use rate_limit_core::rate;
use rate_limit_core::text::fields::{Forms, Reset};
use rate_limit_core::text::{body, metrics};

use crate::conf::{
    DEFAULT_LEASE, DEFAULT_LOG_RATE, LocationConf, LogLimit, MainConf, OnError, OnInvalid, Pass,
};
use crate::shm;

mod directive;
mod error;
mod limit;
mod merge;
mod server;
mod store;
mod tls;

use directive::{Directive, command};
use error::ConfError;
pub(crate) use merge::{complete, merge_location};

const EVERYWHERE: ngx_uint_t =
    (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF) as ngx_uint_t;
const TAKE1: ngx_uint_t = EVERYWHERE | NGX_CONF_TAKE1 as ngx_uint_t;
const TAKE12: ngx_uint_t = EVERYWHERE | NGX_CONF_TAKE12 as ngx_uint_t;
const LOCATION: ngx_uint_t = (NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS | NGX_CONF_TAKE1) as ngx_uint_t;
const ONE_OR_MORE: ngx_uint_t = EVERYWHERE | NGX_CONF_1MORE as ngx_uint_t;

/// Every directive of the module.
pub(crate) static mut COMMANDS: [ngx_command_t; 19] = [
    command!("rate_limit_redis", ONE_OR_MORE, limit::add),
    command!("rate_limit_redis_pass", TAKE1, set_store),
    command!("rate_limit_redis_timeout", TAKE1, set_timeout),
    command!("rate_limit_redis_on_error", TAKE1, set_on_error),
    command!("rate_limit_redis_on_invalid", TAKE1, set_on_invalid),
    command!("rate_limit_redis_status", TAKE1, set_status),
    command!("rate_limit_redis_error_status", TAKE1, set_error_status),
    command!("rate_limit_redis_headers", ONE_OR_MORE, set_headers),
    command!("rate_limit_redis_body", TAKE1, set_body),
    command!("rate_limit_redis_dry_run", TAKE1, set_dry_run),
    command!("rate_limit_redis_log_level", TAKE12, set_log_level),
    command!("rate_limit_redis_retry_jitter", TAKE1, set_retry_jitter),
    command!("rate_limit_redis_ipv6_prefix", TAKE1, set_ipv6_prefix),
    command!("rate_limit_redis_deny_cache", TAKE1, set_deny_cache),
    command!("rate_limit_redis_lease", TAKE1, set_lease),
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
        set: Some(store::set_block),
        conf: NGX_HTTP_MAIN_CONF_OFFSET,
        offset: 0,
        post: ptr::null_mut(),
    },
    ngx_command_t::empty(),
];

fn set_store(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let reference = directive.value()?;
    let pass = match is_name(reference) {
        true => Pass::Named(reference, directive.place()),
        // Now, so that errors name this line.
        false => Pass::Store(store::at(directive.main()?, directive.cf, reference)?),
    };
    directive.once(&mut conf.pass, pass)
}

fn set_timeout(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let timeout = directive.time()?;
    directive.once(&mut conf.timeout, timeout)?;
    if timeout > 1_000 {
        let (value, seconds) = (directive.value()?, timeout as f64 / 1_000.0);
        directive.warn(&format!(
            "\"rate_limit_redis_timeout {value}\" lets a request wait {seconds} s for its decision, and a \
             number without a unit is one of seconds"
        ));
    }
    Ok(())
}

fn set_retry_jitter(
    conf: &mut LocationConf,
    directive: &mut Directive<'_>,
) -> Result<(), ConfError> {
    let jitter = directive.time_or_zero()?;
    directive.once(&mut conf.retry_jitter, jitter)
}

fn set_on_error(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let policies =
        [("open", OnError::Open), ("closed", OnError::Closed), ("local", OnError::Local)];
    directive.choose(&mut conf.on_error, &policies)
}

fn set_on_invalid(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let policies = [("reject", OnInvalid::Reject), ("pass", OnInvalid::Pass)];
    directive.choose(&mut conf.on_invalid, &policies)
}

fn set_status(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let status = status(directive)?;
    directive.once(&mut conf.status, status)
}

fn set_error_status(
    conf: &mut LocationConf,
    directive: &mut Directive<'_>,
) -> Result<(), ConfError> {
    let status = status(directive)?;
    directive.once(&mut conf.error_status, status)
}

fn status(directive: &Directive<'_>) -> Result<ngx_int_t, ConfError> {
    let value = directive.value()?;
    match value.parse() {
        Ok(status @ (400..=493 | 498..=599)) if value.len() == 3 => Ok(status),
        _ => Err(directive.invalid(value, STATUSES)),
    }
}

/// NGINX has 494 to 497 for errors of its own, for which it answers 400.
const STATUSES: &str = "a number between 400 and 599, but not 494 to 497";

fn set_headers(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
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

fn set_body(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let forms =
        [("html", body::Form::Html), ("json", body::Form::Json), ("problem", body::Form::Problem)];
    directive.choose(&mut conf.body, &forms)
}

fn set_dry_run(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    directive.choose(&mut conf.dry_run, &[("on", true), ("off", false)])
}

fn set_ipv6_prefix(
    conf: &mut LocationConf,
    directive: &mut Directive<'_>,
) -> Result<(), ConfError> {
    let prefix = directive.number(1, 128)?;
    directive.once(&mut conf.ipv6_prefix, prefix as u32)
}

fn set_deny_cache(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    directive.choose(&mut conf.deny_cache, &[("on", true), ("off", false)])
}

fn set_lease(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let expected = "\"off\", \"on\" or a time between 10ms and 1m";
    let lease = match directive.value()? {
        "off" => 0,
        "on" => DEFAULT_LEASE,
        value => match directive::milliseconds(value) {
            Some(time @ 10..=60_000) => time,
            _ => return Err(directive.invalid(value, expected)),
        },
    };
    directive.once(&mut conf.lease, lease)
}

/// Makes the location the metrics page.
fn set_metrics(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    match directive.arguments().next() {
        None => directive.once(&mut conf.metrics, None)?,
        Some(_) => {
            let forms = metrics::Form::ALL.map(|form| (form.name(), Some(form)));
            directive.choose(&mut conf.metrics, &forms)?;
        }
    }
    let core = NgxHttpCoreModule::location_conf_mut(directive.cf);
    core.ok_or(ConfError::NoConf("location"))?.handler = Some(crate::metrics::handle);
    Ok(())
}

fn set_log_level(conf: &mut LocationConf, directive: &mut Directive<'_>) -> Result<(), ConfError> {
    let levels = [
        ("info", NGX_LOG_INFO as ngx_uint_t),
        ("notice", NGX_LOG_NOTICE as ngx_uint_t),
        ("warn", NGX_LOG_WARN as ngx_uint_t),
        ("error", NGX_LOG_ERR as ngx_uint_t),
    ];
    let mut words = directive.arguments();
    let level = words.next().map_or(Err(ConfError::Empty), directive::text)?;
    let level = directive.choice(level, &levels)?;
    let rate = match words.next() {
        Some(word) => log_rate(directive, directive::text(word)?)?,
        None => DEFAULT_LOG_RATE,
    };
    directive.once(&mut conf.log, LogLimit { level, rate })
}

/// `rate=`: how many lines a worker writes in a second.
fn log_rate(directive: &Directive<'_>, word: &str) -> Result<u64, ConfError> {
    let lines = word.strip_prefix("rate=").and_then(|rate| rate.strip_suffix("r/s"));
    match lines.map(rate::whole) {
        Some(Ok(lines @ 1..)) => Ok(lines),
        _ => Err(directive.invalid(word, "\"rate=<n>r/s\" with n from 1, such as rate=1000r/s")),
    }
}

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
