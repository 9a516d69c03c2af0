//! Equal requests at one moment spend as one that costs as much as all that pass.

use proptest::prelude::*;

use crate::history::{Client, troubled_clients};

/// A client of an algorithm of which one command can charge several requests.
fn clients() -> impl Strategy<Value = Client> {
    let own = |client: &Client| client.quota.algorithm().stores_itself();
    troubled_clients().prop_filter("a log keeps every request", move |client| !own(client))
}

/// A cost as a share of the limit; rounded up.
fn shares() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1e-9), 0.0..0.1, 0.0..1.1]
}

proptest! {
    /// The first ones pass, as many as fit, and the script need not decide them one by one.
    #[test]
    fn many_are_as_one(client in clients(), share in shares(), times in 1..50_u64) {
        let cost = (share * client.quota.limit() as f64).ceil() as u64;
        let fit = client.request_in(0, 0).remaining.checked_div(cost).unwrap_or(times).min(times);
        let (mut many, mut one) = (client.clone(), client);
        for number in 0..times {
            prop_assert_eq!(many.request(cost).allowed, number < fit, "{} of {}", number, fit);
        }
        prop_assert!(one.request(fit * cost).allowed);
        prop_assert_eq!(many.stored, one.stored);
    }
}
