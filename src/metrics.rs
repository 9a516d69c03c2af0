//! The metrics page.

use std::borrow::Cow;

use ngx::core::Status;
use ngx::ffi::{
    NGINX_VERSION, NGX_HTTP_BAD_REQUEST, NGX_HTTP_GET, NGX_HTTP_HEAD,
    NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_NOT_ALLOWED, NGX_HTTP_OK, ngx_http_arg,
    ngx_http_complex_value_t, ngx_http_request_t, ngx_http_send_response, ngx_int_t, ngx_str_t,
    ngx_uint_t,
};
use ngx::http::{HttpModuleLocationConf, HttpModuleMainConf, Request};
use once_cell::sync::Lazy;
use rate_limit_core::text::fields::Name;
use rate_limit_core::text::metrics::{self, HTML, PageForm, Snapshot};

use crate::Module;
use crate::conf::LocationConf;
use crate::fields;

static ALLOW: Name = Name { text: "Allow", lower: "allow" };
static CACHE_CONTROL: Name = Name { text: "Cache-Control", lower: "cache-control" };
static CONTENT_SECURITY_POLICY: Name =
    Name { text: "Content-Security-Policy", lower: "content-security-policy" };

static CONTENT_TYPE_OPTIONS: Name =
    Name { text: "X-Content-Type-Options", lower: "x-content-type-options" };

/// The content security policy of the HTML page.
static POLICY: Lazy<String> = Lazy::new(metrics::policy);

/// The content handler of the metrics page.
pub(crate) unsafe extern "C" fn handle(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a valid request, and runs nothing else of it meanwhile.
    let status = unsafe {
        if (*r).method & (NGX_HTTP_GET | NGX_HTTP_HEAD) as ngx_uint_t == 0 {
            refuse(r)
        } else {
            answer(r)
        }
    };
    status.unwrap_or(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t)
}

/// Rejects the method, and names those that are allowed; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
unsafe fn refuse(r: *mut ngx_http_request_t) -> Option<ngx_int_t> {
    // SAFETY: passed on.
    unsafe { fields::set(r, &ALLOW, "GET, HEAD")? };
    Some(NGX_HTTP_NOT_ALLOWED as ngx_int_t)
}

/// Sends the page; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
unsafe fn answer(r: *mut ngx_http_request_t) -> Option<ngx_int_t> {
    // SAFETY: the request is valid, and configurations live as long as requests.
    unsafe {
        let conf = Module::location_conf(&*r.cast::<Request>())?;
        let Some(form) = form(r, conf) else { return Some(NGX_HTTP_BAD_REQUEST as ngx_int_t) };
        let text: Cow<'_, str> = match form {
            PageForm::Prometheus => snapshot(r).prometheus().into(),
            PageForm::Json => snapshot(r).json().into(),
            PageForm::Html => HTML.into(),
        };
        fields::set(r, &CACHE_CONTROL, "no-store")?;
        // The name of a limit or a server must not be taken for markup.
        fields::set(r, &CONTENT_TYPE_OPTIONS, "nosniff")?;
        if form == PageForm::Html {
            fields::set(r, &CONTENT_SECURITY_POLICY, &POLICY)?;
        }
        send(r, form, &text)
    }
}

/// The form of the page: the configured one, else that of `?format=`, else one that the client
/// accepts. The HTML page loads its numbers from its own address, so if that is configured JSON is
/// available too. `None` if `?format=` names no form.
///
/// # Safety
/// `r` must be valid.
unsafe fn form(r: *mut ngx_http_request_t, conf: &LocationConf) -> Option<PageForm> {
    // SAFETY: the request is valid.
    let requested = unsafe { argument(r, "format") }.map(PageForm::from_name);
    match (conf.policy().page, requested) {
        (Some(PageForm::Html), Some(Some(PageForm::Json))) => Some(PageForm::Json),
        (Some(fixed), _) => Some(fixed),
        (None, Some(requested)) => requested,
        // SAFETY: as above.
        (None, None) => Some(PageForm::accepted(&unsafe { accept(r) })),
    }
}

/// An argument of the request.
///
/// # Safety
/// `r` must be valid.
unsafe fn argument<'a>(r: *mut ngx_http_request_t, name: &str) -> Option<&'a [u8]> {
    let mut value = ngx_str_t::empty();
    // SAFETY: the request is valid, and the name is only read. The value lies in the request.
    unsafe {
        if ngx_http_arg(r, name.as_ptr().cast_mut(), name.len(), &mut value) != Status::NGX_OK.0 {
            return None;
        }
        Some(std::slice::from_raw_parts(value.data, value.len))
    }
}

/// The fields `Accept` of the request as one list.
///
/// # Safety
/// `r` must be valid.
unsafe fn accept(r: *mut ngx_http_request_t) -> String {
    // SAFETY: the request is valid, and so are its header fields.
    let fields = unsafe { &*r.cast::<Request>() }.headers_in_iterator();
    let accept = fields.filter(|(name, _)| name.as_bytes().eq_ignore_ascii_case(b"accept"));
    accept.map(|(_, value)| value.to_string_lossy() + ",").collect()
}

/// All counters; empty if there is no limit.
///
/// # Safety
/// `r` must be valid.
unsafe fn snapshot(r: *mut ngx_http_request_t) -> Snapshot {
    // SAFETY: the request is valid.
    let main = Module::main_conf(unsafe { &*r.cast::<Request>() });
    let shared = main.and_then(|main| main.shared());
    Snapshot {
        version: env!("CARGO_PKG_VERSION"),
        nginx: NGINX_VERSION.to_str().unwrap_or_default(),
        ..shared.map(|shared| shared.snapshot()).unwrap_or_default()
    }
}

/// Sends a text; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
unsafe fn send(r: *mut ngx_http_request_t, form: PageForm, text: &str) -> Option<ngx_int_t> {
    let content_type = form.content_type();
    // SAFETY: the request is valid. All zeroes but for the value is a complex value without
    // variables; the text is copied into the pool of the request, and the type is static. NGINX
    // takes a type that is set already, and compares what is before its parameters.
    unsafe {
        let out = &mut (*r).headers_out;
        out.content_type =
            ngx_str_t { data: content_type.as_ptr().cast_mut(), len: content_type.len() };
        out.content_type_len = content_type.find(';').unwrap_or(content_type.len());
        out.content_type_lowcase = std::ptr::null_mut();
        let mut complex: ngx_http_complex_value_t = std::mem::zeroed();
        complex.value = ngx_str_t::from_bytes((*r).pool, text.as_bytes())?;
        let status = NGX_HTTP_OK as ngx_uint_t;
        Some(ngx_http_send_response(r, status, std::ptr::null_mut(), &mut complex))
    }
}
