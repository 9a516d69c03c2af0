//! Error pages of requests that did not pass the access checks: limits of the precontent phase are not
//! charged for them.

use std::ptr;

use ngx::ffi::{ngx_http_err_page_t, ngx_http_request_t};
use ngx::http::{HttpModuleLocationConf, NgxHttpCoreModule};

use crate::Module;
use crate::clock::monotonic_micros;
use crate::conf::Phase;
use crate::context::{Ahead, Context, Stage};

/// Makes the context of the precontent phase when the access phase begins: should the request not pass
/// the access checks, its error page is not charged under an unverified name. `None` if NGINX is out
/// of memory.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn expect_precontent(r: *mut ngx_http_request_t) -> Option<()> {
    // SAFETY: passed on, and configurations live as long as requests.
    unsafe {
        let latest = Context::find(r);
        let of = |phase| latest.and_then(|latest| latest.of(phase));
        let is_resumed = of(Phase::Access).is_some_and(|context| !context.has_left());
        if !ptr::eq(r, (*r).main) || is_resumed || latest.is_some_and(Context::is_refused) {
            return Some(());
        }
        match of(Phase::Precontent) {
            Some(context) => expect_again(r, context),
            None => {
                let conf = Module::location_conf(&*r.cast::<ngx::http::Request>());
                let Some(conf) = conf else { return Some(()) };
                let now = monotonic_micros();
                Context::create(r, Phase::Precontent, conf, &[], now)?.expect(ahead(r));
            }
        }
    }
    Some(())
}

/// The access phase begins again. If the precontent phase is still to come, the request has left the
/// access phase without passing it: for an error page, or, which is no failure, by a redirect of another
/// module. If it has passed the phase without a limit, another location may have one.
///
/// # Safety
/// `r` must be valid.
unsafe fn expect_again(r: *mut ngx_http_request_t, context: &Context) {
    // SAFETY: passed on.
    let now = unsafe { ahead(r) };
    match context.stage() {
        Stage::Ahead(before) if before.hides_errors || before.error_page != now.error_page => {
            context.fail();
        }
        Stage::Ahead(_) => context.expect(now),
        Stage::Done if context.is_bypassed() => context.expect(now),
        _ => {}
    }
}

/// What the request shows of error pages.
///
/// # Safety
/// `r` must be valid.
unsafe fn ahead(r: *mut ngx_http_request_t) -> Ahead {
    // SAFETY: the request is valid.
    unsafe {
        let status = u16::try_from((*r).err_status).unwrap_or(u16::MAX);
        Ahead { error_page: ((*r).error_page() != 0, status), hides_errors: hides_errors(r) }
    }
}

/// Whether an error page of the request's location may not show: `error_page … =` leaves no status, and
/// `recursive_error_pages on` no mark.
///
/// # Safety
/// `r` must be valid.
unsafe fn hides_errors(r: *mut ngx_http_request_t) -> bool {
    // SAFETY: the request is valid, and has a location, whose error pages are an array, if there are any.
    unsafe {
        let core = NgxHttpCoreModule::location_conf(&*r.cast::<ngx::http::Request>());
        let Some(core) = core.filter(|core| core.recursive_error_pages != 0) else { return false };
        let Some(pages) = core.error_pages.as_ref() else { return false };
        pages.as_slice::<ngx_http_err_page_t>().iter().any(|page| page.overwrite == 0)
    }
}
