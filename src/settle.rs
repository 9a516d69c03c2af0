//! The handler of the log phase: it settles what a request has really cost.
//!
//! It runs once for each request, when the response was sent or given up, so that variables of the
//! response can be used. The difference from the reservation is charged or given back in the
//! background.

use ngx::core::Status;
use ngx::ffi::{ngx_http_request_t, ngx_int_t};
use rate_limit_core::conf::limit::Phase;

use crate::context::Context;
use crate::log::{debug, unusable};
use crate::machine::Evaluated;
use crate::nginx::Request;

/// The handler of the log phase.
pub(crate) unsafe extern "C" fn log(r: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: NGINX passes a request.
    unsafe { Request::within(r, settle) };
    Status::NGX_OK.0
}

/// Settles what the limits of all phases have charged.
fn settle(r: Request<'_>) {
    if r.is_main()
        && let Some(latest) = Context::find(r)
        && let Some(shared) = r.memory()
    {
        let contexts = Phase::ALL.into_iter().filter_map(|phase| latest.of(phase));
        contexts.for_each(|context| context.request.end(shared, |limit| real_cost(r, limit)));
    }
}

/// The real cost of a request; `None` if its reservation stands.
fn real_cost(r: Request<'_>, limit: &Evaluated<'_>) -> Option<u64> {
    let cost = limit.line.real_cost(r).unwrap_or_else(|error| {
        unusable(r.log(), &error, limit.name());
        None
    })?;
    debug!(r.log(), "settle limit {}: {cost} instead of {}", limit.name(), limit.charge.cost);
    Some(cost)
}
