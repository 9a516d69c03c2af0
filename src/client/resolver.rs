//! Host names, resolved by NGINX's `resolver` without blocking the worker.

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use ngx::core::Status;
use ngx::ffi::{
    ngx_cycle, ngx_http_conf_ctx_t, ngx_http_module, ngx_msec_t, ngx_resolve_name,
    ngx_resolve_name_done, ngx_resolve_start, ngx_resolver_ctx_t, ngx_resolver_t, ngx_str_t,
};
use ngx::http::{HttpModuleLocationConf, NgxHttpCoreModule};
use rate_limit_core::client::Target;

use crate::nginx::ip_address;

/// A host name that is being resolved. NGINX refers to it, so it is in an `Rc`: to move a `Box` would assert that nothing
/// else does.
pub(super) struct Resolution {
    /// NGINX turns it into lower case.
    _name: Vec<u8>,
    port: u16,
    context: Cell<Option<NonNull<ngx_resolver_ctx_t>>>,
    /// The addresses, once the outcome is known; none if there is no such name.
    found: RefCell<Option<Vec<Target>>>,
    /// Called when the outcome is known.
    done: Box<dyn Fn()>,
}

impl Resolution {
    /// Starts to resolve `name`, and calls `done` when [`take`](Self::take) has the outcome, which
    /// may be before this returns. `None` if no `resolver` is configured for `http`.
    pub(super) fn start(
        name: &str,
        port: u16,
        timeout: ngx_msec_t,
        done: impl Fn() + 'static,
    ) -> Option<Rc<Self>> {
        let resolver = resolver()?;
        let mut name = name.as_bytes().to_vec();
        let text = ngx_str_t { data: name.as_mut_ptr(), len: name.len() };
        let resolution = Rc::new(Self {
            _name: name,
            port,
            context: Cell::new(None),
            found: RefCell::new(None),
            done: Box::new(done),
        });
        // SAFETY: the resolver is that of the configuration. What is returned may be -1, for a
        // resolver without servers, and must not be dereferenced then. The name and the data stay
        // where they are until the context is done, which is when this is dropped at the latest.
        unsafe {
            let context = ngx_resolve_start(resolver, ptr::null_mut());
            if context.is_null() || context.addr() == usize::MAX {
                return None;
            }
            (*context).name = text;
            (*context).handler = Some(on_resolved);
            (*context).data = Rc::as_ptr(&resolution).cast_mut().cast();
            (*context).timeout = timeout;
            (*context).set_cancelable(1);
            resolution.context.set(NonNull::new(context));
            if ngx_resolve_name(context) != Status::NGX_OK.0 {
                // The context is gone.
                resolution.context.set(None);
                resolution.found.replace(Some(Vec::new()));
                (resolution.done)();
            }
        }
        Some(resolution)
    }

    /// The addresses, if the outcome is known; none if there is no such name.
    pub(super) fn take(&self) -> Option<Vec<Target>> {
        self.found.take()
    }
}

impl Drop for Resolution {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            // SAFETY: the context is not done yet.
            unsafe { ngx_resolve_name_done(context.as_ptr()) };
        }
    }
}

unsafe extern "C" fn on_resolved(context: *mut ngx_resolver_ctx_t) {
    // SAFETY: the data is what `start` gave, which lives until the context is done. NGINX's
    // addresses are valid until then.
    unsafe {
        let resolution = &*(*context).data.cast::<Resolution>();
        let mut found = Vec::new();
        if (*context).state == Status::NGX_OK.0 && !(*context).addrs.is_null() {
            for index in 0..(*context).naddrs {
                if let Some(mut address) = ip_address((*(*context).addrs.add(index)).sockaddr) {
                    address.set_port(resolution.port);
                    found.push(Target::Ip(address));
                }
            }
        }
        resolution.context.set(None);
        ngx_resolve_name_done(context);
        resolution.found.replace(Some(found));
        (resolution.done)();
    }
}

/// The resolver that is configured for all of `http`.
fn resolver() -> Option<*mut ngx_resolver_t> {
    // SAFETY: a running worker has a cycle, whose table has the configuration of each module; that
    // of the http module is this structure, if there is an http block.
    unsafe {
        let http = *(*ngx_cycle).conf_ctx.add(ngx_http_module.index);
        let core = NgxHttpCoreModule::location_conf(http.cast::<ngx_http_conf_ctx_t>().as_ref()?)?;
        (!core.resolver.is_null()).then_some(core.resolver)
    }
}
