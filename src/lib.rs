//! An NGINX module that limits requests across a fleet through Redis, without blocking a worker.
//!
//! This crate has everything that touches NGINX, and all `unsafe` of the project. Everything else
//! is in the crate `rate_limit_core`.

use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_MODULE, NGX_PROCESS_SINGLE, NGX_PROCESS_WORKER, ngx_conf_t, ngx_cycle_t,
    ngx_http_module_t, ngx_http_phases_NGX_HTTP_ACCESS_PHASE, ngx_http_phases_NGX_HTTP_LOG_PHASE,
    ngx_http_phases_NGX_HTTP_PRECONTENT_PHASE, ngx_int_t, ngx_module_t, ngx_process, ngx_uint_t,
};
use ngx::http::{HttpModule, HttpModuleLocationConf, HttpModuleMainConf, HttpModuleServerConf};

mod admin;
mod answer;
mod client;
mod clock;
mod conf;
mod context;
mod directives;
mod log;
mod machine;
mod metrics;
mod nginx;
mod page;
mod request;
mod secret_file;
mod settle;
mod shm;
mod variables;

use conf::{LocationConf, MainConf, ServerConf};
use nginx::conf::{Conf, PhaseHandler};

/// The module, as NGINX knows it.
struct Module;

static MODULE_CONTEXT: ngx_http_module_t = ngx_http_module_t {
    preconfiguration: Some(Module::preconfiguration),
    postconfiguration: Some(Module::postconfiguration),
    create_main_conf: Some(nginx::conf::create::<MainConf>),
    init_main_conf: None,
    create_srv_conf: Some(nginx::conf::create::<ServerConf>),
    merge_srv_conf: None,
    create_loc_conf: Some(nginx::conf::create::<LocationConf>),
    merge_loc_conf: Some(directives::merge_location),
};

ngx::ngx_modules!(ngx_http_rate_limit_redis_module);

/// The module's entry in NGINX's table. NGINX writes its indexes into it when it loads it.
#[used]
#[allow(non_upper_case_globals)]
pub static mut ngx_http_rate_limit_redis_module: ngx_module_t = ngx_module_t {
    ctx: ptr::addr_of!(MODULE_CONTEXT).cast_mut().cast(),
    commands: ptr::addr_of!(directives::COMMANDS).cast_mut().cast(),
    type_: NGX_HTTP_MODULE as ngx_uint_t,
    init_process: Some(init_process),
    exit_process: Some(exit_process),
    ..ngx_module_t::default()
};

impl HttpModule for Module {
    fn module() -> &'static ngx_module_t {
        // SAFETY: NGINX writes to the static only while it loads modules, before any of their
        // functions can be called.
        unsafe { &*ptr::addr_of!(ngx_http_rate_limit_redis_module) }
    }

    unsafe extern "C" fn preconfiguration(cf: *mut ngx_conf_t) -> ngx_int_t {
        // SAFETY: NGINX passes its configuration context.
        let registered = variables::register(unsafe { Conf::new(cf) });
        registered.map_or(Status::NGX_ERROR, |()| Status::NGX_OK).0
    }

    unsafe extern "C" fn postconfiguration(cf: *mut ngx_conf_t) -> ngx_int_t {
        answer::register();
        // SAFETY: NGINX passes its configuration context.
        let cf = unsafe { Conf::new(cf) };
        match add_handlers(cf) {
            Some(()) => directives::complete(cf).0,
            None => Status::NGX_ERROR.0,
        }
    }
}

/// Adds the handlers that the configuration needs; `None` if NGINX is out of memory.
fn add_handlers(cf: &mut Conf) -> Option<()> {
    let main = cf.main()?;
    let (has_precontent, has_settlements) = (main.has_precontent, main.has_settlements);
    let access: PhaseHandler = if has_precontent { request::access_first } else { request::access };
    cf.add_handler(ngx_http_phases_NGX_HTTP_ACCESS_PHASE, access)?;
    if has_precontent {
        cf.add_handler(ngx_http_phases_NGX_HTTP_PRECONTENT_PHASE, request::precontent)?;
    }
    if has_settlements {
        cf.add_handler(ngx_http_phases_NGX_HTTP_LOG_PHASE, settle::log)?;
    }
    Some(())
}

// SAFETY: the type is the one that `create_main_conf` of `MODULE_CONTEXT` makes.
unsafe impl HttpModuleMainConf for Module {
    type MainConf = MainConf;
}

// SAFETY: the type is the one that `create_srv_conf` of `MODULE_CONTEXT` makes.
unsafe impl HttpModuleServerConf for Module {
    type ServerConf = ServerConf;
}

// SAFETY: the type is the one that `create_loc_conf` of `MODULE_CONTEXT` makes.
unsafe impl HttpModuleLocationConf for Module {
    type LocationConf = LocationConf;
}

/// A worker starts, and connects before the first request.
unsafe extern "C" fn init_process(cycle: *mut ngx_cycle_t) -> ngx_int_t {
    // SAFETY: set by NGINX before it runs any hook of a process.
    let process = unsafe { ngx_process };
    if process != NGX_PROCESS_WORKER as usize && process != NGX_PROCESS_SINGLE as usize {
        return Status::NGX_OK.0;
    }
    // Reading a large configuration may have taken longer than connecting may: timers must not start
    // from before.
    clock::update();
    // SAFETY: NGINX passes the cycle that the process will run.
    if let Some(conf) = Module::main_conf(unsafe { &*cycle }) {
        conf.register();
        conf.connect();
    }
    Status::NGX_OK.0
}

/// A worker exits. NGINX would report sockets that are still open.
unsafe extern "C" fn exit_process(cycle: *mut ngx_cycle_t) {
    // SAFETY: NGINX passes the cycle that the process ran.
    if let Some(conf) = Module::main_conf(unsafe { &*cycle }) {
        conf.disconnect();
    }
}
