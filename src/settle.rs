//! The handler of the log phase: it settles what a request has really cost.
//!
//! It runs once for each request, when the response was sent or given up, so that variables of the
//! response can be used. The difference from the reservation is charged or given back in the
//! background.

use ngx::core::Status;
use ngx::ffi::{ngx_http_request_t, ngx_int_t};
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::metrics::SettlementResult;

use crate::context::Context;
use crate::log::{debug, unusable};
use crate::machine::LimitedRequest;
use crate::nginx::Request;
use crate::shm::Shared;

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
        contexts.for_each(|context| settle_phase(r, &context.request, shared));
    }
}

fn settle_phase(r: Request<'_>, request: &LimitedRequest<'_>, shared: &Shared) {
    if !request.on_end() {
        return;
    }
    let local = request.take_local();
    for limit in request.reservations() {
        let reservations = limit.limit.reservations(shared);
        let cost = match limit.limit.real_cost(r) {
            Ok(Some(cost)) => cost,
            Ok(None) => {
                reservations.stand();
                continue;
            }
            Err(error) => {
                unusable(r.log(), &error, limit.name());
                reservations.stand();
                continue;
            }
        };
        debug!(r.log(), "settle limit {}: {cost} instead of {}", limit.name(), limit.charge.cost);
        // Both are up to 2^54.
        let change = cost as i64 - limit.charge.cost as i64;
        if let Some(local) = &local
            && let Some(index) = request.limits().iter().position(|it| std::ptr::eq(it, limit))
            && let Some(charge) = local.get(index)
        {
            shared.settle(limit, charge, change);
        }
        match r.main_conf().and_then(|main| main.driver(limit.limit.store()?)) {
            Some(driver) if limit.is_charged() => {
                if change > 0 {
                    shared.end_denials_of(limit);
                }
                let since = limit.regained_from(change.unsigned_abs());
                driver.settle(&limit.of_line(), since, change, reservations);
            }
            _ => reservations.end(SettlementResult::Settled),
        }
    }
}
