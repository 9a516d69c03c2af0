//! The configuration that NGINX is reading, in a callback.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;
use std::ptr::{self, NonNull};

use ngx::core::{NGX_CONF_OK, Status};
use ngx::ffi::{
    NGX_HTTP_MODULE, NGX_HTTP_VAR_NOCACHEABLE, NGX_LOG_EMERG, NGX_LOG_NOTICE, NGX_LOG_WARN,
    ngx_addr_t, ngx_array_push, ngx_command_t, ngx_conf_full_name, ngx_conf_include,
    ngx_conf_parse, ngx_conf_t, ngx_hash_key_t, ngx_http_add_variable,
    ngx_http_compile_complex_value, ngx_http_compile_complex_value_t, ngx_http_complex_value_t,
    ngx_http_core_loc_conf_t, ngx_http_core_main_conf_t, ngx_http_core_srv_conf_t,
    ngx_http_get_variable_index, ngx_http_handler_pt, ngx_http_location_queue_t, ngx_http_phases,
    ngx_http_request_t, ngx_http_variable_t, ngx_http_variable_value_t, ngx_int_t, ngx_palloc,
    ngx_parse_url, ngx_pool_t, ngx_str_t, ngx_uint_t, ngx_url_t,
};
use ngx::http::{
    HttpModule as _, HttpModuleConfExt as _, HttpModuleLocationConf, HttpModuleMainConf,
    HttpModuleServerConf, NgxHttpCoreModule,
};

use super::cleanup;
use super::request::bytes;
use crate::Module;
use crate::conf::{MainConf, ServerConf};
use crate::log::Log;

/// The context in which NGINX reads a directive, or completes what it has read. It has one thread, and nobody else uses
/// it while a callback runs, but for the functions of NGINX that the callback calls.
#[repr(transparent)]
pub(crate) struct Conf(ngx_conf_t);

/// A function that NGINX calls with each directive of a block.
pub(crate) type LineHandler =
    unsafe extern "C" fn(*mut ngx_conf_t, *mut ngx_command_t, *mut c_void) -> *mut c_char;

/// A function that NGINX calls to evaluate a variable.
pub(crate) type VariableHandler = unsafe extern "C" fn(
    *mut ngx_http_request_t,
    *mut ngx_http_variable_value_t,
    usize,
) -> ngx_int_t;

/// A function that NGINX calls with a request in a phase.
pub(crate) type PhaseHandler = unsafe extern "C" fn(*mut ngx_http_request_t) -> ngx_int_t;

impl Conf {
    /// The context, as it is passed to a callback.
    ///
    /// # Safety
    /// `cf` must be what NGINX passes to the callback, and be used by nobody else as long as this is.
    pub(crate) unsafe fn new<'c>(cf: *mut ngx_conf_t) -> &'c mut Self {
        // SAFETY: passed on; the types have one layout.
        unsafe { &mut *cf.cast::<Self>() }
    }

    /// The context for functions of NGINX.
    pub(crate) fn as_ptr(&mut self) -> *mut ngx_conf_t {
        &raw mut self.0
    }

    /// The words of the directive that is being read. They live as long as the configuration.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static [u8]> {
        // SAFETY: while a directive is read its words are an array of strings, in the pool of the cycle, which lives
        // longer than all that refers to them.
        unsafe { (*self.0.args).as_slice::<ngx_str_t>().iter().map(|word| bytes(*word)) }
    }

    /// Where the directive stands: file and line.
    pub(crate) fn place(&self) -> String {
        // SAFETY: the file's description is valid while its directives are read; it is absent for
        // what comes from the command line.
        match unsafe { self.0.conf_file.as_ref() } {
            Some(file) => format!("{}:{}", file.file.name, file.line),
            None => "the command line".to_owned(),
        }
    }

    /// The log of the configuration.
    pub(crate) fn log(&self) -> Log<'_> {
        // SAFETY: NGINX reads a configuration with a log, which it keeps until that is read.
        unsafe { Log::new(self.0.log) }
    }

    /// Logs a line with the place that is being read.
    pub(crate) fn fail(&mut self, error: impl Display) {
        ngx::ngx_conf_log_error!(NGX_LOG_EMERG, self.as_ptr(), "{error}");
    }

    /// Logs a warning with the place that is being read.
    pub(crate) fn warn(&mut self, message: impl Display) {
        ngx::ngx_conf_log_error!(NGX_LOG_WARN, self.as_ptr(), "{message}");
    }

    /// Logs something to be noted, with the place that is being read.
    pub(crate) fn note(&mut self, message: impl Display) {
        ngx::ngx_conf_log_error!(NGX_LOG_NOTICE, self.as_ptr(), "{message}");
    }
}

/// Configurations.
impl Conf {
    /// The configuration of `http`. It is borrowed with the context, so that there is one reference to it at a time.
    pub(crate) fn main(&mut self) -> Option<&mut MainConf> {
        Module::main_conf_mut(&self.0)
    }

    /// A pointer to the configuration of `http`, for later: a reference would assert that nobody else uses it meanwhile.
    pub(crate) fn main_pointer(&self) -> Option<NonNull<MainConf>> {
        // SAFETY: a configuration of this module is of this type.
        unsafe { self.0.http_main_conf_unchecked(Module::module()) }
    }

    /// A pointer to NGINX's own configuration of the server, for later.
    pub(crate) fn core_server_pointer(&self) -> Option<NonNull<ngx_http_core_srv_conf_t>> {
        // SAFETY: a configuration of NGINX's core module is of this type.
        unsafe { self.0.http_server_conf_unchecked(NgxHttpCoreModule::module()) }
    }

    /// A pointer to NGINX's own configuration of the location, for later.
    pub(crate) fn core_location_pointer(&self) -> Option<NonNull<ngx_http_core_loc_conf_t>> {
        // SAFETY: a configuration of NGINX's core module is of this type.
        unsafe { self.0.http_location_conf_unchecked(NgxHttpCoreModule::module()) }
    }

    /// The configuration of the server.
    pub(crate) fn server(&self) -> Option<&ServerConf> {
        Module::server_conf(&self.0)
    }

    /// NGINX's own configuration of `http`.
    pub(crate) fn core_main(&self) -> Option<&ngx_http_core_main_conf_t> {
        NgxHttpCoreModule::main_conf(&self.0)
    }

    /// NGINX's own configuration of the location.
    pub(crate) fn core_location(&mut self) -> Option<&mut ngx_http_core_loc_conf_t> {
        NgxHttpCoreModule::location_conf_mut(&self.0)
    }

    /// NGINX's own configuration of the location, if this is a `limit_except` in it.
    pub(crate) fn core_limit_except(&mut self) -> Option<&mut ngx_http_core_loc_conf_t> {
        self.core_location().filter(|core| core.lmt_excpt() != 0)
    }

    /// Whether this is an `if` of a server, in whose level no request ever is.
    pub(crate) fn is_if_of_server(&self) -> bool {
        let core = NgxHttpCoreModule::location_conf(&self.0);
        core.is_some_and(|core| core.name.len == 0 && core.noname() != 0)
    }

    /// Whether this is the level of a server with a `location /`. Its limits are inherited by locations;
    /// they apply to no request but the few that no location matches: those whose URI does not begin
    /// with a slash, as after `rewrite ^ foo` or `X-Accel-Redirect: foo`.
    pub(crate) fn only_passes_on(&self) -> bool {
        let core = NgxHttpCoreModule::location_conf(&self.0);
        let Some(core) = core.filter(|core| core.name.len == 0 && !core.locations.is_null()) else {
            return false;
        };
        // SAFETY: until they are sorted, after all modules have merged their configurations, the
        // locations of a server are a queue of this type, whose head is no element.
        unsafe {
            let mut next = (*core.locations).next;
            while next != core.locations {
                let location = &*next.cast::<ngx_http_location_queue_t>();
                if location.inclusive.as_ref().is_some_and(|it| it.name.as_bytes() == b"/") {
                    return true;
                }
                next = (*next).next;
            }
        }
        false
    }

    /// The place of the configurations of the HTTP module of this name.
    pub(crate) fn module_index(&self, name: &CStr) -> Option<usize> {
        // SAFETY: a cycle has a list of modules, which null ends, and each of them has a name.
        unsafe {
            let mut modules = (*self.0.cycle).modules;
            while let Some(module) = (*modules).as_ref() {
                let is_http = module.type_ == NGX_HTTP_MODULE as ngx_uint_t;
                if is_http && CStr::from_ptr(module.name) == name {
                    return Some(module.ctx_index);
                }
                modules = modules.add(1);
            }
        }
        None
    }

    /// Adds a handler to a phase in a module's postconfiguration; `None` if NGINX is out of memory. Of the handlers of a
    /// phase NGINX runs the one that was added last first. Its own modules add theirs before any that is loaded: so ours
    /// come before `try_files` and `mirror`.
    pub(crate) fn add_handler(
        &mut self,
        phase: ngx_http_phases,
        handler: PhaseHandler,
    ) -> Option<()> {
        let core = NgxHttpCoreModule::main_conf_mut(&self.0)?;
        let phase = core.phases.get_mut(phase as usize)?;
        // SAFETY: the handlers of phases are arrays of this type, and exist before any module's postconfiguration.
        unsafe {
            let place = ngx_array_push(&mut phase.handlers).cast::<ngx_http_handler_pt>();
            *place.as_mut()? = Some(handler);
        }
        Some(())
    }
}

/// Makes a configuration in the pool of the one that is being read, which drops it; null if NGINX is out of memory.
///
/// The functions of `ngx` that do this write to what NGINX returns where it is out of memory.
pub(crate) unsafe extern "C" fn create<T: Default>(cf: *mut ngx_conf_t) -> *mut c_void {
    // SAFETY: NGINX passes its configuration context, which has a pool.
    let conf = unsafe { cleanup::add((*cf).pool, T::default(), drop_conf::<T>) };
    conf.map_or(ptr::null_mut(), |conf| conf.as_ptr().cast())
}

unsafe extern "C" fn drop_conf<T>(conf: *mut c_void) {
    // SAFETY: `create` has made it. NGINX calls this once, before it frees the memory.
    unsafe { conf.cast::<T>().drop_in_place() };
}

/// Texts and variables.
impl Conf {
    /// The pool of the configuration.
    pub(crate) fn pool(&mut self) -> *mut ngx_pool_t {
        self.0.pool
    }

    /// The path of a file relative to the configuration, whose name is one of its words; nothing without a name or memory.
    pub(crate) fn full_path(&mut self, name: &'static str) -> Option<&'static [u8]> {
        if name.is_empty() {
            return None;
        }
        let mut path = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        // SAFETY: the text is only read, its first byte whatever the length is; NGINX puts the full path into the pool of the
        // configuration.
        unsafe {
            let status = ngx_conf_full_name(self.0.cycle, &mut path, 1);
            (status == Status::NGX_OK.0).then(|| bytes(path))
        }
    }

    /// Finds the addresses of a host and port, which may block, and passes them to `act`.
    pub(crate) fn resolve<T>(
        &mut self,
        address: &str,
        act: impl FnOnce(&[ngx_addr_t]) -> T,
    ) -> Result<T, String> {
        // SAFETY: all zeroes is what NGINX itself starts from. The text is copied into the pool of the
        // configuration, because NGINX keeps pointers into it; the addresses it finds lie there too.
        unsafe {
            let mut parsed: ngx_url_t = std::mem::zeroed();
            parsed.url =
                ngx_str_t::from_bytes(self.pool(), address.as_bytes()).ok_or("out of memory")?;
            let status = ngx_parse_url(self.pool(), &mut parsed);
            if status != Status::NGX_OK.0 || parsed.naddrs == 0 {
                return Err(match parsed.err.is_null() {
                    true => "no address".to_owned(),
                    false => CStr::from_ptr(parsed.err).to_string_lossy().into_owned(),
                });
            }
            Ok(act(&*ptr::slice_from_raw_parts(parsed.addrs, parsed.naddrs)))
        }
    }

    /// Compiles a text of the configuration that may contain variables; `None` if NGINX does not, and has logged why.
    pub(crate) fn compile(
        &mut self,
        text: &'static str,
    ) -> Option<NonNull<ngx_http_complex_value_t>> {
        let mut value = ngx_str_t { data: text.as_ptr().cast_mut(), len: text.len() };
        // SAFETY: the value is made in the pool of the configuration, and lives as long as it
        // does. The text is only read, and is of the same pool.
        unsafe {
            let complex = ngx_palloc(self.pool(), size_of::<ngx_http_complex_value_t>()).cast();
            let complex = NonNull::new(complex)?;
            let mut compile: ngx_http_compile_complex_value_t = std::mem::zeroed();
            compile.cf = self.as_ptr();
            compile.value = &mut value;
            compile.complex_value = complex.as_ptr();
            let status = ngx_http_compile_complex_value(&mut compile);
            (status == Status::NGX_OK.0).then_some(complex)
        }
    }

    /// The index of the variable of this name.
    pub(crate) fn variable_index(&mut self, name: &str) -> Option<ngx_uint_t> {
        let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        // SAFETY: NGINX copies the name.
        let index = unsafe { ngx_http_get_variable_index(self.as_ptr(), &mut name) };
        ngx_uint_t::try_from(index).ok()
    }

    /// Whether a variable of this name is known at this point of the configuration.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        let Some(core) = self.core_main() else { return false };
        let name = name.as_bytes();
        // SAFETY: while a configuration is read its variables are arrays of these types, of which the first
        // one lies in a table that is freed later.
        unsafe {
            let prefixes = core.prefix_variables.as_slice::<ngx_http_variable_t>();
            let whole = core.variables_keys.as_ref().map(|it| it.keys.as_slice::<ngx_hash_key_t>());
            whole.is_some_and(|keys| keys.iter().any(|it| it.key.as_bytes() == name))
                || prefixes.iter().any(|it| name.starts_with(it.name.as_bytes()))
        }
    }

    /// Adds a variable, which is evaluated each time, in a module's preconfiguration; `None` if NGINX cannot add it. `get`
    /// is called with `data`.
    pub(crate) fn add_variable(
        &mut self,
        name: &str,
        get: VariableHandler,
        data: usize,
    ) -> Option<()> {
        let mut name = ngx_str_t { data: name.as_ptr().cast_mut(), len: name.len() };
        let flags = NGX_HTTP_VAR_NOCACHEABLE as ngx_uint_t;
        // SAFETY: NGINX copies the name, and reads the rest when the variable is used.
        let variable = unsafe { ngx_http_add_variable(self.as_ptr(), &mut name, flags).as_mut() }?;
        variable.get_handler = Some(get);
        variable.data = data;
        Some(())
    }
}

/// Blocks.
impl Conf {
    /// Reads the block that begins here: NGINX calls `handler` with each of its directives, and with `lines`. `None` if
    /// it cannot, and has logged why.
    pub(crate) fn read_block<T>(&mut self, handler: LineHandler, lines: &mut T) -> Option<()> {
        let before = (self.0.handler, self.0.handler_conf);
        self.0.handler = Some(handler);
        self.0.handler_conf = ptr::from_mut(lines).cast();
        // SAFETY: while the block is read the context calls this function, with these lines.
        let result = unsafe { ngx_conf_parse(self.as_ptr(), ptr::null_mut()) };
        (self.0.handler, self.0.handler_conf) = before;
        (result == NGX_CONF_OK).then_some(())
    }

    /// Reads the files of a directive `include`, which has its argument. `None` if NGINX cannot, and has logged why.
    pub(crate) fn include(&mut self) -> Option<()> {
        // SAFETY: `include` uses neither a command nor a configuration.
        let result = unsafe { ngx_conf_include(self.as_ptr(), ptr::null_mut(), ptr::null_mut()) };
        (result == NGX_CONF_OK).then_some(())
    }
}
