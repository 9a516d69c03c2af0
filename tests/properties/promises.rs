//! The promises of a verdict hold.

use harness::reply;
use proptest::prelude::*;
use rate_limit_core::algorithm::Stored;
use rate_limit_core::decision::{Retry, Shown, Verdict, seconds};
use rate_limit_core::rate::SECOND;
use rate_limit_core::text::fields::{FieldValue, Fields, Forms, Name, Values};

use crate::history::{Client, clients, refill, troubled_clients};

/// The `t` of the `RateLimit` field.
fn until_more(client: &Client, verdict: Verdict) -> u64 {
    let shown = Shown { name: "a", quota: &client.quota, verdict };
    let (forms, all) = (Forms { ietf: true, ..Forms::default() }, std::iter::once(shown));
    let (now, is_rejected) = (client.now, false);
    let fields = Fields { forms, shown: Some(shown), all, now, is_rejected, retry_after: None };
    let mut last = String::new();
    let note = |_: &Name, value: FieldValue<'_>| {
        last = String::from_utf8(value.text().to_vec())?;
        Ok::<_, std::string::FromUtf8Error>(())
    };
    fields.write(&mut Values::default(), note).unwrap();
    last.rsplit(";t=").next().unwrap().parse().unwrap()
}

proptest! {
    #[test]
    fn there_is_more_when_the_field_says_so(
        mut client in troubled_clients(),
        share in 0.0..1.2,
        debt in prop_oneof![Just(0.0), 0.0..3.0],
        block in prop_oneof![Just(0), 1..100_000_000_u64],
    ) {
        let limit = client.quota.limit();
        if client.quota.check_settle().is_ok() {
            client.settle(client.now, (debt * limit as f64) as i64);
        }
        client.quota = client.quota.with_block(block);
        let verdict = client.request(1 + (share * (limit - 1) as f64) as u64);
        let t = until_more(&client, verdict);
        if verdict.remaining == 0 {
            prop_assert!(client.request_in(t * SECOND, 0).remaining > 0, "{verdict:?} {t}");
        }
    }

    #[test]
    fn more_comes_no_later_than_a_single_unit(client in troubled_clients()) {
        let (mut client, rate) = (client.clone(), client.quota.rate());
        let verdict = client.request(1);
        if let Retry::After(micros) = verdict.retry && client.quota.algorithm().is_continuous() {
            let interval = rate.period().div_ceil(rate.count());
            prop_assert!(until_more(&client, verdict) <= seconds(micros.max(interval)));
        }
    }

    #[test]
    fn remaining_can_be_spent_and_no_more(client in troubled_clients()) {
        let remaining = client.request_in(0, 0).remaining;
        prop_assert!(remaining <= client.quota.limit());
        prop_assert!(client.request_in(0, remaining).allowed);
        prop_assert!(!client.request_in(0, remaining + 1).allowed);
        prop_assert_eq!(client.request_in(0, remaining).remaining, 0);
    }

    #[test]
    fn who_waits_for_the_retry_passes_and_who_is_earlier_does_not(
        mut client in troubled_clients(),
        share in 0.0..1.0,
    ) {
        let limit = client.quota.limit();
        let cost = 1 + (share * (limit - 1) as f64) as u64;
        match client.request(cost).retry {
            Retry::No => (),
            Retry::After(micros) => {
                prop_assert!((1..=refill(client.quota)).contains(&micros));
                prop_assert!(client.request_in(micros, cost).allowed);
                let early = client.request_in(micros - 1, cost);
                prop_assert_eq!((early.allowed, early.retry), (false, Retry::After(1)));
            }
            Retry::Never => prop_assert!(false, "{cost} of {limit} can pass"),
        }
    }

    #[test]
    fn a_cost_beyond_the_limit_never_passes(client in troubled_clients(), more in 1..=u64::from(u32::MAX)) {
        let verdict = client.request_in(0, client.quota.limit() + more);
        prop_assert_eq!((verdict.allowed, verdict.retry), (false, Retry::Never));
    }

    #[test]
    fn reset_is_when_all_is_as_new(mut client in troubled_clients(), share in 0.0..=1.0) {
        let reset = client.request(0).reset;
        prop_assert!(reset <= refill(client.quota));
        if reset > 0 {
            prop_assert!(client.request_in(reset - 1, 0).remaining < client.quota.limit());
        }
        let mut old = Client { now: client.now + reset, ..client };
        let mut new = Client { stored: Stored::default(), ..old.clone() };
        let cost = (share * old.quota.limit() as f64) as u64;
        prop_assert_eq!(old.request(0), new.request(0));
        prop_assert_eq!(old.request(cost), new.request(cost));
        if cost > 0 {
            prop_assert_eq!(old.stored, new.stored);
        }
    }

    #[test]
    fn who_spends_nothing_changes_nothing(client in clients()) {
        for cost in [0, client.request_in(0, 0).remaining + 1, client.quota.limit() + 1] {
            let mut asking = client.clone();
            asking.request(cost);
            prop_assert_eq!(&asking.stored, &client.stored);
        }
        prop_assert!(client.request_in(0, 0).allowed);
    }

    #[test]
    fn verdicts_survive_the_wire(client in clients(), share in 0.0..1.2) {
        let verdict = client.request_in(0, (share * client.quota.limit() as f64) as u64);
        prop_assert_eq!(Verdict::from_reply(reply::verdict(verdict)), Some(verdict));
    }
}
