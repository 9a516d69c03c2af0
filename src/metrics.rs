//! The metrics page.

use std::borrow::Cow;

use ngx::ffi::{
    NGINX_VERSION, NGX_HTTP_BAD_REQUEST, NGX_HTTP_GET, NGX_HTTP_HEAD,
    NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_NOT_ALLOWED, NGX_HTTP_OK, ngx_http_request_t,
    ngx_int_t, ngx_uint_t,
};
use once_cell::sync::Lazy;
use rate_limit_core::text::fields::Name;
use rate_limit_core::text::metrics::{HTML, PageForm, Snapshot};
use rate_limit_core::text::policy;

use crate::conf::LocationConf;
use crate::nginx::{OutOfMemory, Request};

static ALLOW: Name = Name { text: "Allow", lower: "allow" };
static CACHE_CONTROL: Name = Name { text: "Cache-Control", lower: "cache-control" };
static CONTENT_SECURITY_POLICY: Name =
    Name { text: "Content-Security-Policy", lower: "content-security-policy" };

static CONTENT_TYPE_OPTIONS: Name =
    Name { text: "X-Content-Type-Options", lower: "x-content-type-options" };

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
    if r.method() & (NGX_HTTP_GET | NGX_HTTP_HEAD) as ngx_uint_t == 0 {
        r.set_field(&ALLOW, "GET, HEAD")?;
        return Ok(NGX_HTTP_NOT_ALLOWED as ngx_int_t);
    }
    let Some(form) = r.location_conf().and_then(|conf| form(r, conf)) else {
        return Ok(NGX_HTTP_BAD_REQUEST as ngx_int_t);
    };
    let text: Cow<'_, str> = match form {
        PageForm::Prometheus => snapshot(r).prometheus().into(),
        PageForm::Json => snapshot(r).json().into(),
        PageForm::Html => HTML.into(),
    };
    r.set_field(&CACHE_CONTROL, "no-store")?;
    // The name of a limit or a server must not be taken for markup.
    r.set_field(&CONTENT_TYPE_OPTIONS, "nosniff")?;
    if form == PageForm::Html {
        r.set_field(&CONTENT_SECURITY_POLICY, &POLICY)?;
    }
    r.send(NGX_HTTP_OK as ngx_uint_t, form.content_type(), &text)
}

/// The form of the page: the configured one, else that of `?format=`, else one that the client
/// accepts. The HTML page loads its numbers from its own address, so if that is configured JSON is
/// available too. `None` if `?format=` names no form.
fn form(r: Request<'_>, conf: &LocationConf) -> Option<PageForm> {
    let requested = r.argument("format").map(PageForm::from_name);
    match (conf.policy().page, requested) {
        (Some(PageForm::Html), Some(Some(PageForm::Json))) => Some(PageForm::Json),
        (Some(fixed), _) => Some(fixed),
        (None, Some(requested)) => requested,
        (None, None) => Some(PageForm::accepted(&PageForm::ALL, &accept(r))),
    }
}

/// The fields `Accept` of the request as one list.
fn accept(r: Request<'_>) -> String {
    r.header_fields("accept").map(|value| value + ",").collect()
}

/// All counters; empty if there is no limit.
fn snapshot(r: Request<'_>) -> Snapshot {
    let shared = r.main_conf().and_then(|main| main.shared());
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        nginx: NGINX_VERSION.to_str().unwrap_or_default(),
        ..shared.map(|shared| shared.snapshot()).unwrap_or_default()
    }
}
