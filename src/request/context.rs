//! What is known of a request, for as long as it lives.

use std::cell::Cell;
use std::ptr;
use std::time::Instant;

use ngx::ffi::{ngx_http_request_t, ngx_pool_cleanup_add};
use ngx::http::HttpModule;
use rate_limit_core::decision::{Decision, Source, Status, tightest};

use crate::Module;
use crate::conf::LocationConf;
use crate::redis::{Asked, Pending};

/// The context of a request: what it asked, and how it was decided.
///
/// It lies in the pool of the request as the data of a cleanup. An internal redirect clears the
/// table of contexts, but not the cleanups, so there it is found again: this is how a request is
/// charged once however often it is redirected.
pub(crate) struct Context {
    conf: &'static LocationConf,
    pending: Option<Pending>,
    started: Instant,
    decision: Cell<Option<Decision<'static>>>,
}

impl Context {
    /// Makes the context of a request. `None` if NGINX is out of memory.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(super) unsafe fn create(
        r: *mut ngx_http_request_t,
        conf: &'static LocationConf,
        pending: Option<Pending>,
    ) -> Option<&'static Self> {
        let context = Self { conf, pending, started: Instant::now(), decision: Cell::new(None) };
        // SAFETY: the request is valid. NGINX allocates the data of a cleanup as large as is
        // asked for, and aligned for any type of its own, which is enough for this one.
        unsafe {
            let cleanup = ngx_pool_cleanup_add((*r).pool, size_of::<Self>()).as_mut()?;
            let place = cleanup.data.cast::<Self>();
            place.write(context);
            cleanup.handler = Some(clean_up);
            *slot(r) = place;
            Some(&*place)
        }
    }

    /// The context of the client's request that `r` is a part of.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(crate) unsafe fn find(r: *mut ngx_http_request_t) -> Option<&'static Self> {
        // SAFETY: the main request of a valid request is valid. Data of a cleanup with our
        // handler is a context, and so is what we put into our slot.
        unsafe {
            let r = (*r).main;
            let context = *slot(r);
            if !context.is_null() {
                return Some(&*context);
            }
            // Nothing but these two clears the table.
            if (*r).internal() == 0 && (*r).filter_finalize() == 0 {
                return None;
            }
            let mut cleanup = (*(*r).pool).cleanup;
            while let Some(this) = cleanup.as_ref() {
                if this.handler.is_some_and(|handler| ptr::fn_addr_eq(handler, CLEAN_UP)) {
                    *slot(r) = this.data.cast();
                    return Some(&*this.data.cast());
                }
                cleanup = this.next;
            }
            None
        }
    }

    /// The configuration of the location whose limits were asked.
    pub(crate) fn conf(&self) -> &'static LocationConf {
        self.conf
    }

    /// What was asked, unless there was nothing to ask.
    pub(super) fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// How the request was decided, once it is.
    pub(crate) fn decision(&self) -> Option<Decision<'static>> {
        self.decision.get()
    }

    /// Writes down what became of the request.
    pub(super) fn decide(&self, status: Status) {
        let source = match status {
            Status::Passed | Status::Rejected => Source::Redis,
            Status::ErrorPassed | Status::ErrorRejected | Status::Bypassed => Source::None,
        };
        self.decision.set(Some(Decision {
            status,
            source,
            shown: self.shown().and_then(Asked::show),
            wait: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
        }));
    }

    /// The limit that stands for all that were asked, if they answered.
    pub(super) fn shown(&self) -> Option<&'static Asked> {
        let pending = self.pending.as_ref()?;
        pending.outcome()?.ok()?;
        let verdicts = pending
            .asked()
            .iter()
            .filter_map(|asked| Some((asked.question.quota.limit(), asked.verdict.get()?)));
        pending.asked().get(tightest(verdicts)?)
    }
}

/// Our place in the table of contexts.
///
/// # Safety
/// `r` must be valid.
unsafe fn slot(r: *mut ngx_http_request_t) -> *mut *mut Context {
    // SAFETY: the table of a valid request has a place for each module.
    unsafe { (*r).ctx.add(Module::module().ctx_index).cast() }
}

const CLEAN_UP: unsafe extern "C" fn(*mut std::ffi::c_void) = clean_up;

/// The request is gone, perhaps while it waited.
unsafe extern "C" fn clean_up(data: *mut std::ffi::c_void) {
    // SAFETY: the data is the context, which NGINX drops with the pool after this. Requests are
    // freed by NGINX itself, never by a function of a node.
    unsafe {
        if let Some(pending) = &(*data.cast::<Context>()).pending {
            pending.cancel();
        }
    }
}
