//! An NGINX module that limits requests across a fleet through Redis, without blocking a worker.
//!
//! This crate has everything that touches NGINX, and all `unsafe` of the project. Everything else
//! is in the crate `rate_limit_core`.

use std::ffi::c_void;
use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_MODULE, NGX_PROCESS_SINGLE, NGX_PROCESS_WORKER, ngx_array_push, ngx_conf_t,
    ngx_cycle_t, ngx_http_handler_pt, ngx_http_module_t, ngx_http_phases_NGX_HTTP_ACCESS_PHASE,
    ngx_http_phases_NGX_HTTP_LOG_PHASE, ngx_http_phases_NGX_HTTP_PRECONTENT_PHASE,
    ngx_http_request_t, ngx_int_t, ngx_module_t, ngx_pool_cleanup_add, ngx_process, ngx_uint_t,
};
use ngx::http::{
    HttpModule, HttpModuleLocationConf, HttpModuleMainConf, HttpModuleServerConf, NgxHttpCoreModule,
};

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
mod settle;
mod shm;
mod variables;

use conf::{LocationConf, MainConf, ServerConf};

/// The module, as NGINX knows it.
struct Module;

static MODULE_CONTEXT: ngx_http_module_t = ngx_http_module_t {
    preconfiguration: Some(Module::preconfiguration),
    postconfiguration: Some(Module::postconfiguration),
    create_main_conf: Some(Module::create_main_conf),
    init_main_conf: None,
    create_srv_conf: Some(Module::create_srv_conf),
    merge_srv_conf: None,
    create_loc_conf: Some(Module::create_loc_conf),
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

    unsafe extern "C" fn create_main_conf(cf: *mut ngx_conf_t) -> *mut c_void {
        // SAFETY: NGINX passes its configuration context.
        unsafe { create::<MainConf>(cf) }
    }

    unsafe extern "C" fn create_srv_conf(cf: *mut ngx_conf_t) -> *mut c_void {
        // SAFETY: as above.
        unsafe { create::<ServerConf>(cf) }
    }

    unsafe extern "C" fn create_loc_conf(cf: *mut ngx_conf_t) -> *mut c_void {
        // SAFETY: as above.
        unsafe { create::<LocationConf>(cf) }
    }

    unsafe extern "C" fn preconfiguration(cf: *mut ngx_conf_t) -> ngx_int_t {
        // SAFETY: NGINX passes its configuration context.
        unsafe { variables::register(cf).0 }
    }

    unsafe extern "C" fn postconfiguration(cf: *mut ngx_conf_t) -> ngx_int_t {
        answer::register();
        // SAFETY: NGINX passes a valid configuration context.
        unsafe {
            let Some(main) = Self::main_conf(&*cf) else { return Status::NGX_ERROR.0 };
            let access = if main.has_precontent { request::access_first } else { request::access };
            let handlers: [(_, Handler, _); 3] = [
                (ngx_http_phases_NGX_HTTP_ACCESS_PHASE, access, true),
                (
                    ngx_http_phases_NGX_HTTP_PRECONTENT_PHASE,
                    request::precontent,
                    main.has_precontent,
                ),
                (ngx_http_phases_NGX_HTTP_LOG_PHASE, settle::log, main.has_settlements),
            ];
            for (phase, handler, _) in handlers.into_iter().filter(|(_, _, is_used)| *is_used) {
                if add_handler(&*cf, phase as usize, handler).is_none() {
                    return Status::NGX_ERROR.0;
                }
            }
            directives::complete(&mut *cf).0
        }
    }
}

/// Makes a configuration in the pool of the one that is being read, which drops it.
///
/// The functions of the same name in `ngx` write to what NGINX returns where it is out of memory.
///
/// # Safety
/// `cf` must be valid.
unsafe fn create<T: Default>(cf: *mut ngx_conf_t) -> *mut c_void {
    const { assert!(align_of::<T>() <= align_of::<usize>()) };
    // SAFETY: the pool is that of the configuration. What NGINX allocates as the data of a cleanup is as large as is
    // requested, aligned for a word, and nobody else's.
    unsafe {
        let cleanup = ngx_pool_cleanup_add((*cf).pool, size_of::<T>());
        if cleanup.is_null() {
            return ptr::null_mut();
        }
        (*cleanup).data.cast::<T>().write(T::default());
        (*cleanup).handler = Some(drop_conf::<T>);
        (*cleanup).data
    }
}

unsafe extern "C" fn drop_conf<T>(conf: *mut c_void) {
    // SAFETY: `create` has made it. NGINX calls this once, before it frees the memory.
    unsafe { conf.cast::<T>().drop_in_place() };
}

type Handler = unsafe extern "C" fn(*mut ngx_http_request_t) -> ngx_int_t;

/// Adds a handler to a phase; `None` if NGINX is out of memory. Of the handlers of a phase NGINX runs the
/// one that was added last first. Its own modules add theirs before any that is loaded: so ours come
/// before `try_files` and `mirror`.
///
/// # Safety
/// `cf` must be valid, and a module's postconfiguration run.
unsafe fn add_handler(cf: &ngx_conf_t, phase: usize, handler: Handler) -> Option<()> {
    // SAFETY: the main configuration of the core module, and the handlers of its phases, exist before
    // any module's postconfiguration.
    unsafe {
        let core = NgxHttpCoreModule::main_conf_mut(cf)?;
        let phase = core.phases.get_mut(phase)?;
        let place = ngx_array_push(&mut phase.handlers).cast::<ngx_http_handler_pt>();
        *place.as_mut()? = Some(handler);
    }
    Some(())
}

// SAFETY: the type is the one that create_main_conf makes.
unsafe impl HttpModuleMainConf for Module {
    type MainConf = MainConf;
}

// SAFETY: the type is the one that create_srv_conf makes.
unsafe impl HttpModuleServerConf for Module {
    type ServerConf = ServerConf;
}

// SAFETY: the type is the one that create_loc_conf makes.
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
        conf.give_up();
    }
}
