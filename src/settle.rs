//! The handler of the log phase: it settles what a request has really cost.
//!
//! It runs once for each request, when the response was sent or given up, so that variables of the
//! response can be used. The difference from the reservation is charged or given back in the
//! background.

use ngx::core::Status;
use ngx::ffi::{ngx_http_request_t, ngx_int_t};
use rate_limit_core::conf::limit::Phase;
use rate_limit_core::metrics::SettlementResult;

use crate::client::Driver;
use crate::context::Context;
use crate::log::{debug, unusable};
use crate::machine::{Evaluated, LimitedRequest};
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
        let reservations = limit.line.reservations(shared);
        let driver = driver_of(r, limit);
        let Some(cost) = real_cost(r, limit) else {
            reservations.stand();
            if let Some(driver) = driver {
                driver.stand();
            }
            continue;
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
        match driver {
            Some(driver) => {
                if change > 0 {
                    shared.end_denials_of(limit);
                }
                let since = limit.regained_from(change.unsigned_abs());
                driver.settle(&limit.of_line(), since, change, reservations);
            }
            None => reservations.end(SettlementResult::Settled),
        }
    }
}

/// The client of the store in which a limit was charged, if it was.
fn driver_of(r: Request<'_>, limit: &Evaluated<'_>) -> Option<&'static Driver> {
    let store = limit.line.store().filter(|_| limit.is_charged())?;
    r.main_conf()?.driver(store)
}

/// The real cost of a request; `None` if its reservation stands.
fn real_cost(r: Request<'_>, limit: &Evaluated<'_>) -> Option<u64> {
    let cost = limit.line.real_cost(r);
    cost.unwrap_or_else(|error| {
        unusable(r.log(), &error, limit.name());
        None
    })
}
