//! Error pages of requests that did not pass the access checks: limits of the precontent phase are not
//! charged for them, as the user's name is unverified.
//!
//! NGINX does not say why the access phase of a request begins again. If the precontent phase has not come
//! in between, an access check has failed, and this is its error page; or another module has redirected the
//! request, which is no failure. An error page leaves a trace: with `recursive_error_pages off` a mark,
//! after which there is no other one, and else a status, which `error_page … =` may change, or remove.

use ngx::ffi::{NGX_LOG_WARN, ngx_http_err_page_t, ngx_int_t};
use rate_limit_core::conf::limit::Phase;

use crate::clock::monotonic_micros;
use crate::context::{Ahead, Context, Stage};
use crate::log::log;
use crate::nginx::{OutOfMemory, Request};

/// The statuses of access checks that fail: 407 is that of a proxy, and 500 of a check that has no result.
const FAILED_CHECKS: [ngx_int_t; 4] = [401, 403, 407, 500];

/// Makes the context of the precontent phase when the access phase begins, if an error page may follow in a server
/// where limits decide in that phase.
pub(super) fn expect_precontent(r: Request<'_>) -> Result<(), OutOfMemory> {
    if !r.is_main() || !r.server_conf().is_some_and(|server| server.has_precontent.get()) {
        return Ok(());
    }
    let latest = Context::find(r);
    let of = |phase| latest.and_then(|latest| latest.of(phase));
    let is_resumed = of(Phase::Access).is_some_and(|context| !context.has_left());
    if is_resumed || latest.is_some_and(|it| it.request.is_refused()) {
        return Ok(());
    }
    match of(Phase::Precontent) {
        Some(context) => expect_again(context, ahead(r)),
        None if may_see_error_page(r) => {
            let Some(conf) = r.location_conf() else { return Ok(()) };
            let now = monotonic_micros();
            let context = Context::create(r, Phase::Precontent, &conf.policy, &[], now)?;
            context.enter(Stage::Ahead(ahead(r)));
        }
        None => {}
    }
    Ok(())
}

/// Whether an error in this location leads to an error page.
fn may_see_error_page(r: Request<'_>) -> bool {
    !r.is_last_error_page() && !r.error_pages().is_empty()
}

/// The access phase begins again. If the request has passed the precontent phase without a limit, another
/// location may have one.
fn expect_again(context: &Context<'_>, now: Ahead) {
    match context.stage() {
        Stage::Ahead(before) => context.enter(stage_after(before, now)),
        Stage::Done if context.request.is_bypassed() => context.enter(Stage::Ahead(now)),
        _ => {}
    }
}

/// The stage of a request whose access phase begins again: after a failed access check, perhaps after one, or after another
/// module has redirected it.
fn stage_after(before: Ahead, now: Ahead) -> Stage {
    match before.untraceable {
        _ if before.is_last => Stage::Ahead(now),
        _ if now.is_last || before.status != now.status => Stage::Failed,
        Some(status) => Stage::Unclear(status),
        None => Stage::Ahead(now),
    }
}

/// The signs of error pages in the request.
fn ahead(r: Request<'_>) -> Ahead {
    let status = r.error_status();
    let untraceable = untraceable(r, status).map(|page| narrow(page.status));
    Ahead { is_last: r.is_last_error_page(), status: narrow(status), untraceable }
}

/// The error page of an access check that leaves this status, and no mark.
fn untraceable(r: Request<'_>, status: ngx_int_t) -> Option<&'static ngx_http_err_page_t> {
    r.location().filter(|location| location.recursive_error_pages != 0)?;
    let left = |page: &ngx_http_err_page_t| match page.overwrite {
        ..0 => page.status,
        overwrite => overwrite,
    };
    let is_untraceable =
        |page: &&ngx_http_err_page_t| FAILED_CHECKS.contains(&page.status) && left(page) == status;
    r.error_pages().iter().find(is_untraceable)
}

fn narrow(status: ngx_int_t) -> u16 {
    u16::try_from(status).unwrap_or(u16::MAX)
}

/// Logs, once in a worker, that limits of the location do not apply as the page of this status may be why
/// the request has come to it.
pub(super) fn warn_of(r: Request<'_>, status: u16) {
    let is_limited =
        r.location_conf().is_some_and(|conf| !conf.limits(Phase::Precontent).is_empty());
    if is_limited && r.main_conf().is_some_and(|main| !main.is_unclear_noted.replace(true)) {
        log!(
            NGX_LOG_WARN,
            r.log(),
            "limits with \"after=auth\" are skipped: the request was redirected in the access phase by a \
             module, or by a failed check, whose \"error_page {status}\" leaves no trace with \
             \"recursive_error_pages on\""
        );
    }
}
