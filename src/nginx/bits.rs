//! Bit fields of a request.
//!
//! bindgen 0.72 computes the places of bit fields as if the first of them began a unit of its type. After a member of 16
//! bits it does not: since NGINX 1.29.3 `port` is such a member, and bindgen's functions for what follows it in
//! `ngx_http_request_t` read and write other bits. So the C compiler, which built NGINX, compiles these.

use ngx::ffi::ngx_uint_t;

use super::Request;

// SAFETY: each is declared as C defines it. It reads or writes bits of a request that is valid, as a `Request` is, or
// of its main request; the events of both run on this thread alone.
unsafe extern "C" {
    safe fn rate_limit_redis_internal(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_filter_finalize(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_error_page(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_uri_changes(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_post_action(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_discard_body(r: Request<'_>) -> ngx_uint_t;
    safe fn rate_limit_redis_set_expect_tested(r: Request<'_>);
    safe fn rate_limit_redis_disable_not_modified(r: Request<'_>);
    safe fn rate_limit_redis_hold(r: Request<'_>);
}

impl Request<'_> {
    /// Whether the request was redirected internally.
    pub(crate) fn is_internal(self) -> bool {
        rate_limit_redis_internal(self) != 0
    }

    /// Whether the request is answered by the error page of a filter.
    pub(crate) fn is_finalized_by_filter(self) -> bool {
        rate_limit_redis_filter_finalize(self) != 0
    }

    /// Whether the request has come to an error page after which there is no other one.
    pub(crate) fn is_last_error_page(self) -> bool {
        rate_limit_redis_error_page(self) != 0
    }

    /// Whether NGINX redirects the request once more: it does so a limited number of times.
    pub(crate) fn may_be_redirected(self) -> bool {
        rate_limit_redis_uri_changes(self) != 0
    }

    /// Whether the request has been answered, and runs its `post_action`.
    pub(crate) fn is_post_action(self) -> bool {
        rate_limit_redis_post_action(self) != 0
    }

    /// Whether NGINX reads and discards the content of the request.
    pub(super) fn discards_body(self) -> bool {
        rate_limit_redis_discard_body(self) != 0
    }

    /// Has NGINX not answer 304 or 412 by preconditions of the request, such as `If-Match`.
    pub(super) fn ignore_preconditions(self) {
        rate_limit_redis_disable_not_modified(self);
    }

    /// Takes note that no "100 Continue" is to be sent any more.
    pub(crate) fn set_expect_tested(self) {
        rate_limit_redis_set_expect_tested(self);
    }

    /// Keeps the request until it is finalized once more.
    pub(super) fn hold(self) {
        rate_limit_redis_hold(self);
    }
}
