//! Header fields on every answer of a limited location, and rejections.

use std::cell::RefCell;
use std::ptr;

use ngx::core::Status;
use ngx::ffi::{
    NGX_HTTP_BAD_REQUEST, NGX_HTTP_CLIENT_CLOSED_REQUEST, NGX_HTTP_CLOSE,
    NGX_HTTP_INTERNAL_SERVER_ERROR, NGX_HTTP_REQUEST_TIME_OUT, ngx_http_complex_value_t,
    ngx_http_err_page_t, ngx_http_finalize_request, ngx_http_output_header_filter_pt,
    ngx_http_request_t, ngx_http_send_response, ngx_http_top_header_filter, ngx_int_t, ngx_str_t,
    ngx_uint_t,
};
use ngx::http::{HttpModuleLocationConf, NgxHttpCoreModule};
use rate_limit_core::decision;
use rate_limit_core::rate::MILLISECOND;
use rate_limit_core::text::body;
use rate_limit_core::text::fields::Fields;

use crate::bits;
use crate::clock::unix_ms;
use crate::machine::Decisions;
use crate::{context, fields};

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
    // SAFETY: NGINX passes a valid request.
    unsafe {
        if ptr::eq(r, (*r).main)
            && let Some(decisions) = &context::decisions(r)
            && add_fields(r, decisions).is_none()
        {
            return Status::NGX_ERROR.0;
        }
        match NEXT {
            Some(next) => next(r),
            None => Status::NGX_OK.0,
        }
    }
}

thread_local! {
    /// The fields of an answer, before they are copied for the request.
    static FIELDS: RefCell<Fields> = const { RefCell::new(Fields::new()) };
}

/// Adds the fields of the decision; `None` if NGINX is out of memory.
///
/// # Safety
/// `r` must be valid.
unsafe fn add_fields(r: *mut ngx_http_request_t, decisions: &Decisions) -> Option<()> {
    let (forms, wait) = (decisions.policy.forms, decisions.decision.retry_after());
    let now = unix_ms().saturating_mul(MILLISECOND);
    FIELDS.with_borrow_mut(|added| {
        added.fill(forms, decisions.shown().as_ref(), decisions.all(), now, wait);
        // SAFETY: passed on. The values are copied in one piece into the pool of the request, and
        // lie in it as they lie in the fields.
        unsafe {
            fields::remove(r, |name| added.has(name));
            let text = ngx_str_t::from_bytes((*r).pool, added.text())?;
            added.iter().try_for_each(|(name, value)| {
                let data = text.data.add(value.start);
                fields::push(r, name, ngx_str_t { data, len: value.len() })
            })
        }
    })
}

/// Ends the request with a rejection. An `error_page` for its status takes precedence over the
/// body.
///
/// It is ended here, not by returning the status: `satisfy any` would let another module overrule
/// a 401 or 403.
///
/// # Safety
/// `r` must be valid; it may be gone afterwards.
pub(crate) unsafe fn reject(r: *mut ngx_http_request_t, decisions: &Decisions) -> Status {
    let (policy, decision) = (decisions.policy, &decisions.decision);
    let code = match decision.status {
        decision::Status::ErrorRejected if decision.is_invalid => BAD_REQUEST,
        decision::Status::ErrorRejected => policy.error_status,
        _ => policy.status,
    };
    let status = code as ngx_int_t;
    // SAFETY: the request is valid. The phase engine ends requests in the same way, and does not
    // touch this one again after NGX_DONE.
    unsafe {
        let result = match body::rejection(policy.body, code, decision, decisions.violated()) {
            Some((kind, text)) if !has_page(r, status) => send(r, status, kind, &text),
            _ => status,
        };
        ngx_http_finalize_request(r, result);
    }
    Status::NGX_DONE
}

/// Statuses that NGINX does not answer: it closes the connection.
const CLOSING: [ngx_int_t; 3] = [
    NGX_HTTP_REQUEST_TIME_OUT as ngx_int_t,
    NGX_HTTP_CLOSE as ngx_int_t,
    NGX_HTTP_CLIENT_CLOSED_REQUEST as ngx_int_t,
];

/// Whether NGINX will answer this status with something other than a page of its own: an
/// `error_page`, or nothing.
///
/// # Safety
/// `r` must be valid.
unsafe fn has_page(r: *mut ngx_http_request_t, status: ngx_int_t) -> bool {
    // SAFETY: the request is valid, and so is the configuration of its location, whose error pages
    // are an array of this type.
    unsafe {
        if CLOSING.contains(&status) {
            return true;
        }
        // From one error page NGINX goes to another only where they may recur, and it redirects
        // a limited number of times.
        if bits::is_last_error_page(r) || !bits::may_be_redirected(r) {
            return false;
        }
        let core = NgxHttpCoreModule::location_conf(&*r.cast::<ngx::http::Request>());
        core.and_then(|core| core.error_pages.as_ref()).is_some_and(|pages| {
            let mut pages = pages.as_slice::<ngx_http_err_page_t>().iter();
            pages.any(|page| page.status == status)
        })
    }
}

/// Sends the body; what is returned ends the request.
///
/// # Safety
/// `r` must be valid.
unsafe fn send(
    r: *mut ngx_http_request_t,
    status: ngx_int_t,
    kind: &'static str,
    text: &str,
) -> ngx_int_t {
    // SAFETY: the request is valid. All zeroes but for the value is a complex value without
    // variables; the text is copied into the pool of the request.
    unsafe {
        let Some(value) = ngx_str_t::from_bytes((*r).pool, text.as_bytes()) else {
            return NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t;
        };
        let mut complex: ngx_http_complex_value_t = std::mem::zeroed();
        complex.value = value;
        // NGINX does so before it answers with an error: no "100 Continue" is sent.
        bits::set_expect_tested(r);
        // In an error page the status would be that of the error.
        (*r).err_status = status as ngx_uint_t;
        let mut kind = ngx_str_t { data: kind.as_ptr().cast_mut(), len: kind.len() };
        ngx_http_send_response(r, status as ngx_uint_t, &mut kind, &mut complex)
    }
}
