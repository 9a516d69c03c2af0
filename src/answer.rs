//! Header fields on every answer of a limited location, and rejections.

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_BAD_REQUEST, NGX_HTTP_CLIENT_CLOSED_REQUEST, NGX_HTTP_CLOSE,
    NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_REQUEST_TIME_OUT, ngx_http_output_header_filter_pt,
    ngx_http_request_t, ngx_http_top_header_filter, ngx_int_t, ngx_uint_t,
};
use rate_limit_core::decision;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::text::body::{self, BodyForm};
use rate_limit_core::text::fields::{FieldValue, Fields};

use crate::clock::unix_ms;
use crate::context::Context;
use crate::machine::LimitedRequest;
use crate::nginx::{OutOfMemory, Request, Step};

/// The status of a rejection for an unusable value.
const BAD_REQUEST: u16 = NGX_HTTP_BAD_REQUEST as u16;

/// The next header filter.
static mut NEXT: ngx_http_output_header_filter_pt = None;

/// Installs the header filter. NGINX builds the chain anew for each configuration.
pub(crate) fn register() {
    // SAFETY: NGINX reads the configuration in one thread, and serves requests in one.
    unsafe {
        NEXT = ngx_http_top_header_filter;
        ngx_http_top_header_filter = Some(header_filter);
    }
}

unsafe extern "C" fn header_filter(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request, with which the next filter is to be called. The chain was built before any.
    unsafe {
        match (Request::within(r, add_fields), NEXT) {
            (Err(OutOfMemory), _) => Status::NGX_ERROR.0,
            (Ok(()), Some(next)) => next(r),
            (Ok(()), None) => Status::NGX_OK.0,
        }
    }
}

/// Adds the fields of the decision, if there is one.
fn add_fields(r: Request<'_>) -> Result<(), OutOfMemory> {
    if !r.is_main() {
        return Ok(());
    }
    let Some(latest) = Context::find(r) else { return Ok(()) };
    let Some(decisions) = &latest.decisions() else { return Ok(()) };
    let Some(main) = r.main_conf() else { return Ok(()) };
    let fields = Fields {
        forms: decisions.policy.forms,
        shown: decisions.shown(),
        all: decisions.all(),
        now: unix_ms().saturating_mul(MILLISECOND),
        is_rejected: decisions.decision.is_rejected(),
        retry_after: decisions.decision.retry_after(),
    };
    r.remove_fields(|name| fields.has(name));
    fields.write(&mut main.values.borrow_mut(), |name, value| {
        let value = match value {
            FieldValue::Number(digits) => match digits.single() {
                Some(digit) => Some(digit),
                None => r.copy(digits.padded())?.get(..digits.length()),
            },
            FieldValue::List(list) => Some(r.copy(list)?),
        };
        r.push_field(name, value.unwrap_or_default())
    })
}

/// Ends the request with its rejection in a phase. An `error_page` for the status takes precedence over the body.
pub(crate) fn reject(r: Request<'_>, rejected: &LimitedRequest<'_>) -> Step {
    let policy = rejected.policy();
    let code = match rejected.decision() {
        Some(it) if it.status == decision::Status::Rejected => policy.status,
        Some(it) if it.is_invalid => BAD_REQUEST,
        _ => policy.error_status,
    };
    let status = code as ngx_int_t;
    Step::End(match body(r, policy.body, code) {
        Some((kind, text)) if !has_page(r, status) => send(r, status, kind, &text),
        _ => status,
    })
}

/// The media type and the text of a rejection, unless it is NGINX's own page.
fn body(r: Request<'_>, form: BodyForm, code: u16) -> Option<(&'static str, String)> {
    match form {
        BodyForm::Html => None,
        BodyForm::Json | BodyForm::Problem => {
            let decisions = Context::find(r)?.decisions()?;
            body::rejection(form, code, &decisions.decision, decisions.violated())
        }
    }
}

/// Statuses that NGINX does not answer: it closes the connection.
const CLOSING: [ngx_int_t; 3] = [
    NGX_HTTP_REQUEST_TIME_OUT as ngx_int_t,
    NGX_HTTP_CLOSE as ngx_int_t,
    NGX_HTTP_CLIENT_CLOSED_REQUEST as ngx_int_t,
];

/// Whether NGINX will answer this status with something other than a page of its own: an
/// `error_page`, or nothing.
fn has_page(r: Request<'_>, status: ngx_int_t) -> bool {
    if CLOSING.contains(&status) {
        return true;
    }
    // From one error page NGINX goes to another only where they may recur, and it redirects
    // a limited number of times.
    !r.is_last_error_page()
        && r.may_be_redirected()
        && r.error_pages().iter().any(|page| page.status == status)
}

/// Sends the body; what is returned ends the request.
fn send(r: Request<'_>, status: ngx_int_t, kind: &'static str, text: &str) -> ngx_int_t {
    // NGINX does so before it answers with an error: no "100 Continue" is sent.
    r.set_expect_tested();
    // In an error page the status would be that of the error.
    r.set_error_status(status as ngx_uint_t);
    let sent = r.send(status as ngx_uint_t, kind, text);
    sent.unwrap_or(NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t)
}
