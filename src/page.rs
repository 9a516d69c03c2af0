//! The common parts of the answers of pages.

use ngx::ffi::{NGX_HTTP_GET, NGX_HTTP_HEAD, ngx_int_t, ngx_uint_t};
use rate_limit_core::text::fields::Name;
use rate_limit_core::text::metrics::PageForm;

use crate::nginx::{OutOfMemory, Request};

pub(crate) static ALLOW: Name = Name { text: "Allow", lower: "allow" };
static CACHE_CONTROL: Name = Name { text: "Cache-Control", lower: "cache-control" };
static CONTENT_SECURITY_POLICY: Name =
    Name { text: "Content-Security-Policy", lower: "content-security-policy" };
static CONTENT_TYPE_OPTIONS: Name =
    Name { text: "X-Content-Type-Options", lower: "x-content-type-options" };

/// Sends a page, which is not to be cached; `policy` is the content security policy of one for a browser. What is
/// returned ends the request.
pub(crate) fn send(
    r: Request<'_>,
    status: u16,
    form: PageForm,
    policy: &'static str,
    text: &str,
) -> Result<ngx_int_t, OutOfMemory> {
    r.set_field(&CACHE_CONTROL, "no-store")?;
    // The name of a limit or a server must not be taken for markup.
    r.set_field(&CONTENT_TYPE_OPTIONS, "nosniff")?;
    if form == PageForm::Html {
        r.set_field(&CONTENT_SECURITY_POLICY, policy)?;
    }
    r.send(status.into(), form.content_type(), text)
}

/// Whether a request only reads.
pub(crate) fn is_read(r: Request<'_>) -> bool {
    r.method() & (NGX_HTTP_GET | NGX_HTTP_HEAD) as ngx_uint_t != 0
}

/// The fields `Accept` of a request as one list.
pub(crate) fn accept(r: Request<'_>) -> String {
    r.header_fields("accept").map(|value| value + ",").collect()
}
