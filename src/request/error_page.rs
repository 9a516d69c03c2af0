//! Error pages of requests that did not pass the access checks: limits of the precontent phase are not
//! charged for them, as the user's name is unverified.
//!
//! NGINX does not say why the access phase of a request begins again. If the precontent phase has not come
//! in between, an access check has failed, and this is its error page; or another module has redirected the
//! request, which is no failure. An error page leaves a trace: with `recursive_error_pages off` a mark,
//! after which there is no other one, and else a status, which `error_page … =` may change, or remove.

use std::ptr;

use ngx::ffi::{
    NGX_LOG_WARN, ngx_http_core_loc_conf_t, ngx_http_err_page_t, ngx_http_request_t, ngx_int_t,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf, NgxHttpCoreModule};
use rate_limit_core::conf::limit::Phase;

use super::log_of;
use crate::Module;
use crate::bits;
use crate::clock::monotonic_micros;
use crate::context::{Ahead, Context, Stage};
use crate::log::log;

/// The statuses of access checks that fail: 407 is that of a proxy, and 500 of a check that has no result.
const FAILED_CHECKS: [ngx_int_t; 4] = [401, 403, 407, 500];

/// Why the access phase begins again.
enum Redirect {
    /// To the error page of a failed access check.
    ErrorPage,
    /// To such a page, of this status, or by a module.
    Unclear(u16),
    /// By a module.
    Other,
}

/// Makes the context of the precontent phase when the access phase begins, if an error page may follow.
/// `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn expect_precontent(r: *mut ngx_http_request_t) -> Option<()> {
    // SAFETY: passed on, and configurations live as long as requests.
    unsafe {
        let latest = Context::find(r);
        let of = |phase| latest.and_then(|latest| latest.of(phase));
        let is_resumed = of(Phase::Access).is_some_and(|context| !context.has_left());
        if !ptr::eq(r, (*r).main) || is_resumed || latest.is_some_and(|it| it.request.is_refused())
        {
            return Some(());
        }
        match of(Phase::Precontent) {
            Some(context) => expect_again(context, ahead(r)),
            None if may_see_error_page(r) => {
                let conf = Module::location_conf(&*r.cast::<ngx::http::Request>());
                let Some(conf) = conf else { return Some(()) };
                let now = monotonic_micros();
                Context::create(r, Phase::Precontent, conf.policy(), &[], now)?.expect(ahead(r));
            }
            None => {}
        }
    }
    Some(())
}

/// Whether an error in this location leads to an error page.
///
/// # Safety
/// `r` must be valid.
unsafe fn may_see_error_page(r: *mut ngx_http_request_t) -> bool {
    // SAFETY: passed on.
    unsafe {
        !bits::is_last_error_page(r)
            && location(r).is_some_and(|core| !error_pages(core).is_empty())
    }
}

/// The access phase begins again. If the request has passed the precontent phase without a limit, another
/// location may have one.
fn expect_again(context: &Context, now: Ahead) {
    match context.stage() {
        Stage::Ahead(before) => match redirect(before, now) {
            Redirect::ErrorPage => context.fail(),
            Redirect::Unclear(status) => context.doubt(status),
            Redirect::Other => context.expect(now),
        },
        Stage::Done if context.request.is_bypassed() => context.expect(now),
        _ => {}
    }
}

fn redirect(before: Ahead, now: Ahead) -> Redirect {
    match before.untraceable {
        _ if before.is_last => Redirect::Other,
        _ if now.is_last || before.status != now.status => Redirect::ErrorPage,
        Some(status) => Redirect::Unclear(status),
        None => Redirect::Other,
    }
}

/// What the request shows of error pages.
///
/// # Safety
/// `r` must be valid.
unsafe fn ahead(r: *mut ngx_http_request_t) -> Ahead {
    // SAFETY: the request is valid.
    unsafe {
        let status = (*r).err_status as ngx_int_t;
        let untraceable = untraceable(r, status).map(|page| narrow(page.status));
        Ahead { is_last: bits::is_last_error_page(r), status: narrow(status), untraceable }
    }
}

/// The error page of an access check that leaves this status, and no mark.
///
/// # Safety
/// `r` must be valid.
unsafe fn untraceable(
    r: *mut ngx_http_request_t,
    status: ngx_int_t,
) -> Option<&'static ngx_http_err_page_t> {
    // SAFETY: passed on.
    let core = unsafe { location(r) }.filter(|core| core.recursive_error_pages != 0)?;
    let left = |page: &ngx_http_err_page_t| match page.overwrite {
        ..0 => page.status,
        overwrite => overwrite,
    };
    let is_untraceable =
        |page: &&ngx_http_err_page_t| FAILED_CHECKS.contains(&page.status) && left(page) == status;
    error_pages(core).iter().find(is_untraceable)
}

fn error_pages(core: &ngx_http_core_loc_conf_t) -> &[ngx_http_err_page_t] {
    // SAFETY: if a location has error pages, they are the elements of this array.
    unsafe { core.error_pages.as_ref().map_or(&[], |pages| pages.as_slice()) }
}

/// The location of the request, as NGINX has it.
///
/// # Safety
/// `r` must be valid.
unsafe fn location(r: *mut ngx_http_request_t) -> Option<&'static ngx_http_core_loc_conf_t> {
    // SAFETY: the request is valid, and configurations live as long as requests.
    NgxHttpCoreModule::location_conf(unsafe { &*r.cast::<ngx::http::Request>() })
}

fn narrow(status: ngx_int_t) -> u16 {
    u16::try_from(status).unwrap_or(u16::MAX)
}

/// Logs, once in a worker, that limits of the location do not apply as the page of this status may be why
/// the request has come to it.
///
/// # Safety
/// `r` must be valid.
pub(super) unsafe fn warn_of(r: *mut ngx_http_request_t, status: u16) {
    // SAFETY: the request is valid, and configurations live as long as requests.
    let (conf, main) = unsafe {
        let request = &*r.cast::<ngx::http::Request>();
        (Module::location_conf(request), Module::main_conf(request))
    };
    let is_limited = conf.is_some_and(|conf| !conf.limits(Phase::Precontent).is_empty());
    if is_limited && main.is_some_and(|main| !main.is_unclear_noted.replace(true)) {
        // SAFETY: passed on.
        let log = unsafe { log_of(r) };
        log!(
            NGX_LOG_WARN,
            log,
            "limits with \"after=auth\" are skipped: the request was redirected in the access phase by a \
             module, or by a failed check, whose \"error_page {status}\" leaves no trace with \
             \"recursive_error_pages on\""
        );
    }
}
