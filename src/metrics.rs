//! The metrics page.

use std::borrow::Cow;

use ngx::ffi::{
    NGINX_VERSION, NGX_HTTP_BAD_REQUEST, NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_NOT_ALLOWED,
    NGX_HTTP_OK, NGX_LOG_INFO, ngx_http_request_t, ngx_int_t,
};
use once_cell::sync::Lazy;
use rate_limit_core::text::metrics::{HTML, PageForm, Snapshot};
use rate_limit_core::text::policy;

use crate::conf::LocationConf;
use crate::log::log;
use crate::nginx::{OutOfMemory, Request};
use crate::page;

/// The content security policy of the HTML page.
static POLICY: Lazy<String> = Lazy::new(|| policy(HTML));

/// The content handler of the metrics page.
pub(crate) unsafe extern "C" fn handle(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request.
    let status = unsafe { Request::within(r, respond) };
    status.unwrap_or(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t)
}

/// Sends the page, or refuses the method and names those that are allowed.
fn respond(r: Request<'_>) -> Result<ngx_int_t, OutOfMemory> {
    if !page::is_read(r) {
        r.set_field(&page::ALLOW, "GET, HEAD")?;
        return Ok(NGX_HTTP_NOT_ALLOWED as ngx_int_t);
    }
    let Some(form) = r.location_conf().and_then(|conf| form(r, conf)) else {
        log!(NGX_LOG_INFO, r.log(), "invalid \"format\": it must be prometheus, json or html");
        return Ok(NGX_HTTP_BAD_REQUEST as ngx_int_t);
    };
    let text: Cow<'_, str> = match form {
        PageForm::Prometheus => snapshot(r).prometheus().into(),
        PageForm::Json => snapshot(r).json().into(),
        PageForm::Html => HTML.into(),
    };
    page::send(r, NGX_HTTP_OK as u16, form, &POLICY, &text)
}

/// The form of the page: the configured one, else that of `?format=`, else one that the client
/// accepts. The HTML page loads its numbers from its own address, so if that is configured JSON is
/// available too. `None` if `?format=` names no form.
fn form(r: Request<'_>, conf: &LocationConf) -> Option<PageForm> {
    let requested = r.argument("format").map(PageForm::from_name);
    match (conf.policy.page, requested) {
        (Some(PageForm::Html), Some(Some(PageForm::Json))) => Some(PageForm::Json),
        (Some(fixed), _) => Some(fixed),
        (None, Some(requested)) => requested,
        (None, None) => Some(PageForm::accepted(&PageForm::ALL, &page::accept(r))),
    }
}

/// All counters; empty if there is no limit.
fn snapshot(r: Request<'_>) -> Snapshot {
    let shared = r.main_conf().and_then(|main| main.shared.get());
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        nginx: NGINX_VERSION.to_str().unwrap_or_default(),
        ..shared.map(|shared| shared.snapshot()).unwrap_or_default()
    }
}
