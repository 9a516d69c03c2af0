/* Bit fields of a request, where the C compiler puts them: see bits.rs. */

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


ngx_uint_t
rate_limit_redis_internal(ngx_http_request_t *r)
{
    return r->internal;
}


ngx_uint_t
rate_limit_redis_filter_finalize(ngx_http_request_t *r)
{
    return r->filter_finalize;
}


ngx_uint_t
rate_limit_redis_error_page(ngx_http_request_t *r)
{
    return r->error_page;
}


ngx_uint_t
rate_limit_redis_uri_changes(ngx_http_request_t *r)
{
    return r->uri_changes;
}


ngx_uint_t
rate_limit_redis_post_action(ngx_http_request_t *r)
{
    return r->main->post_action;
}


ngx_uint_t
rate_limit_redis_discard_body(ngx_http_request_t *r)
{
    return r->discard_body;
}


void
rate_limit_redis_set_expect_tested(ngx_http_request_t *r)
{
    r->expect_tested = 1;
}


void
rate_limit_redis_disable_not_modified(ngx_http_request_t *r)
{
    r->disable_not_modified = 1;
}


void
rate_limit_redis_hold(ngx_http_request_t *r)
{
    r->main->count++;
}
