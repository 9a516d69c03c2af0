//! A clock that steps back, or a limit that is changed, gives no client more than a full quota, and
//! locks none out for longer than a refill.

use proptest::prelude::*;
use rate_limit_core::limit::Algorithm;

use crate::history::{
    Client, Event, YEAR, changed_clients, clients, events, histories, quotas, refill,
    troubled_clients,
};
use crate::window::exceeds;

/// Events, before some of which the clock steps back.
fn stumbles() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let step = prop_oneof![9 => Just(0), 1 => 1..1_000_u64, 1 => 1..YEAR];
    proptest::collection::vec((step, events()), 0..50)
}

proptest! {
    /// Except for the time of the window at that moment, which determines how much of the previous
    /// one counts.
    #[test]
    fn a_step_back_gives_nothing(client in clients(), step in 1..3 * YEAR) {
        let before = client.request_in(0, 0).remaining;
        let step = match client.quota.algorithm() {
            Algorithm::SlidingWindow => step.next_multiple_of(client.quota.rate().period()),
            Algorithm::TokenBucket
            | Algorithm::IntervalBucket
            | Algorithm::Gcra
            | Algorithm::LeakyBucket
            | Algorithm::SlidingLog
            | Algorithm::FixedWindow => step,
        };
        let client = Client { now: client.now - step, ..client };
        prop_assert!(client.request_in(0, 0).remaining <= before);
    }

    /// However many requests a client sends meanwhile.
    #[test]
    fn nothing_locks_anybody_out(mut client in troubled_clients(), requests in 1..20_u64) {
        let refill = refill(client.quota);
        let whole = client.now + refill;
        for _ in 0..requests {
            prop_assert!(!client.request(client.quota.limit() + 1).allowed);
            client.now += refill / requests;
        }
        client.now = whole;
        prop_assert!(client.request(client.quota.limit()).allowed);
    }

    #[test]
    fn a_refill_after_a_change_the_bound_is_the_new_one(
        mut client in changed_clients(),
        history in histories(),
    ) {
        client.now += refill(client.quota);
        let mut passed = Vec::new();
        for event in history {
            client.wait(event.gap(client.quota));
            let cost = event.cost(client.quota);
            if client.request(cost).allowed {
                passed.push((client.now, cost));
            }
        }
        prop_assert!(!exceeds(client.quota, &passed), "{passed:?}");
    }

    /// Between two steps the clock is like any other.
    #[test]
    fn no_window_between_two_steps_exceeds_the_limit(quota in quotas(), history in stumbles()) {
        let mut client = Client::new(quota);
        let mut passed = Vec::new();
        for (step, event) in history {
            if step > 0 {
                prop_assert!(!exceeds(quota, &passed), "{passed:?}");
                passed.clear();
            }
            client.now -= step;
            client.wait(event.gap(quota));
            let all = client.request(0).remaining;
            prop_assert!(client.request(all).allowed);
            passed.push((client.now, all));
        }
        prop_assert!(!exceeds(quota, &passed), "{passed:?}");
    }
}
