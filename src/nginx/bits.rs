//! Bit fields of a request.
//!
//! bindgen 0.72 computes the places of bit fields as if the first of them began a unit of its type. After a member of 16
//! bits it does not: since NGINX 1.29.3 `port` is such a member, and bindgen's functions for what follows it in
//! `ngx_http_request_t` read and write other bits. So the C compiler, which built NGINX, compiles these.

use ngx::ffi::{ngx_http_request_t, ngx_uint_t};

use super::Request;

unsafe extern "C" {
    fn rate_limit_redis_internal(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_filter_finalize(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_error_page(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_uri_changes(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_post_action(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_discard_body(r: *mut ngx_http_request_t) -> ngx_uint_t;
    fn rate_limit_redis_set_expect_tested(r: *mut ngx_http_request_t);
    fn rate_limit_redis_disable_not_modified(r: *mut ngx_http_request_t);
    fn rate_limit_redis_hold(r: *mut ngx_http_request_t);
}

impl Request<'_> {
    /// Whether the request was redirected internally.
    pub(crate) fn is_internal(self) -> bool {
        // SAFETY: the function reads the request, which is valid.
        unsafe { rate_limit_redis_internal(self.as_ptr()) != 0 }
    }

    /// Whether the request is answered by the error page of a filter.
    pub(crate) fn is_finalized_by_filter(self) -> bool {
        // SAFETY: the function reads the request, which is valid.
        unsafe { rate_limit_redis_filter_finalize(self.as_ptr()) != 0 }
    }

    /// Whether the request has come to an error page after which there is no other one.
    pub(crate) fn is_last_error_page(self) -> bool {
        // SAFETY: the function reads the request, which is valid.
        unsafe { rate_limit_redis_error_page(self.as_ptr()) != 0 }
    }

    /// Whether NGINX redirects the request once more: it does so a limited number of times.
    pub(crate) fn may_be_redirected(self) -> bool {
        // SAFETY: the function reads the request, which is valid.
        unsafe { rate_limit_redis_uri_changes(self.as_ptr()) != 0 }
    }

    /// Whether the request has been answered, and runs its `post_action`.
    pub(crate) fn is_post_action(self) -> bool {
        // SAFETY: the function reads the main request of this one, which is valid.
        unsafe { rate_limit_redis_post_action(self.as_ptr()) != 0 }
    }

    /// Whether NGINX reads and discards the content of the request.
    pub(super) fn discards_body(self) -> bool {
        // SAFETY: the function reads the request, which is valid.
        unsafe { rate_limit_redis_discard_body(self.as_ptr()) != 0 }
    }

    /// Has NGINX not answer 304 or 412 by preconditions of the request, such as `If-Match`.
    pub(super) fn ignore_preconditions(self) {
        // SAFETY: the function writes to the request, which is valid, and whose events run on this thread alone.
        unsafe { rate_limit_redis_disable_not_modified(self.as_ptr()) };
    }

    /// Takes note that no "100 Continue" is to be sent any more.
    pub(crate) fn set_expect_tested(self) {
        // SAFETY: the function writes to the request, which is valid, and whose events run on this thread alone.
        unsafe { rate_limit_redis_set_expect_tested(self.as_ptr()) }
    }

    /// Keeps the request until it is finalized once more.
    pub(super) fn hold(self) {
        // SAFETY: the function writes to the main request of this one, which is valid, and whose events run on this
        // thread alone.
        unsafe { rate_limit_redis_hold(self.as_ptr()) }
    }
}
