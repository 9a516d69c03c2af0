//! A client that exceeds a limit with a block is rejected until its end, and no longer.

use proptest::prelude::*;
use rate_limit_core::decision::Retry;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{Rate, SECOND};

use crate::history::{Client, START, YEAR, events, troubled_clients};

/// A client that was rejected just now, for the first time since a block was configured, and for how
/// long it is blocked.
fn blocked() -> impl Strategy<Value = (Client, u64)> {
    let blocks = prop_oneof![1..1_000_u64, 1..86_400_000_000_u64, 1..YEAR];
    (troubled_clients(), blocks).prop_map(|(mut client, block)| {
        client.quota = client.quota.with_block(block);
        client.request(client.request_in(0, 0).remaining);
        assert!(matches!(client.request(1).retry, Retry::After(_)));
        (client, block)
    })
}

/// A client of which these numbers are stored, as a script reads them, with the longest time that one request may keep it
/// from passing: a block, the largest debt, and a hold.
fn strange() -> impl Strategy<Value = (Client, u64)> {
    let algorithms: Vec<_> =
        Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.stores_itself()).collect();
    let quotas = (proptest::sample::select(algorithms), 1..100_u64, 1..86_400_u64, 1..100_u64);
    let number = prop_oneof![0..200_u64, START - YEAR..START + YEAR, any::<u64>()];
    let numbers = proptest::collection::vec(number, 10);
    let sizes = proptest::sample::select(vec![3, 9, 10]);
    (quotas, 1..YEAR, numbers, sizes).prop_filter_map(
        "no quota",
        |(quota, block, numbers, size)| {
            let (algorithm, count, seconds, limit) = quota;
            let rate = Rate::new(count, seconds * SECOND).ok()?;
            let limit = if algorithm.burst_parameter().name().is_some() { limit } else { count };
            let quota = Quota::new(algorithm, rate, limit).ok()?.with_block(block);
            let bytes: Vec<_> = numbers[..size].iter().flat_map(|it| it.to_le_bytes()).collect();
            let client = Client { stored: algorithm.read(&bytes), ..Client::new(quota) };
            let whole = limit.div_ceil(count) * rate.period();
            Some((client, block + 14 * whole + 128 * SECOND))
        },
    )
}

proptest! {
    /// Whatever is stored: so an operator cannot block a client of such a line for longer, but by a script of another line.
    #[test]
    fn no_state_blocks_for_much_longer_than_the_line((mut client, longest) in strange()) {
        client.request(1);
        let verdict = client.request_in(longest, 1);
        prop_assert!(verdict.allowed, "{:?} {:?}", verdict, client);
    }

    #[test]
    fn nothing_passes_in_a_block((client, block) in blocked(), share in 0.0..1.2, at in 0.0..1.0) {
        let micros = (at * block as f64) as u64;
        let cost = 1 + (share * client.quota.limit() as f64) as u64;
        let verdict = client.request_in(micros, cost);
        prop_assert!(!verdict.allowed && verdict.remaining == 0, "{:?}", verdict);
        prop_assert!(verdict.reset >= block - micros);
        match verdict.retry {
            Retry::Never => prop_assert!(cost > client.quota.limit()),
            Retry::After(retry) => prop_assert!(retry >= block - micros),
            Retry::No => prop_assert!(false),
        }
        prop_assert!(client.request_in(micros, 0).allowed);
    }

    /// However often a client tries, gets back or is settled meanwhile.
    #[test]
    fn a_block_ends_when_it_was_said_to(
        (mut client, block) in blocked(),
        attempts in proptest::collection::vec((0.0..1.0, events()), 0..20),
        change in -100..100_i64,
    ) {
        let begun = client.now;
        let mut shares: Vec<_> = attempts.iter().map(|(share, _)| *share).collect();
        shares.sort_by(f64::total_cmp);
        for (share, (_, event)) in shares.into_iter().zip(&attempts) {
            client.now = begun + (share * (block - 1) as f64) as u64;
            let verdict = client.request(event.cost(client.quota));
            prop_assert!(!verdict.allowed || event.cost(client.quota) == 0);
            if client.quota.check_settle().is_ok() {
                client.settle(client.now, change);
            }
        }
        client.now = begun + block - 1;
        prop_assert!(!client.request_in(0, 1).allowed);
        let verdict = client.request_in(1, 0);
        let alike = Client { quota: client.quota.with_block(0), ..client.clone() };
        prop_assert_eq!(verdict, alike.request_in(1, 0));
    }

    #[test]
    fn who_waits_for_the_retry_passes((client, _) in blocked(), share in 0.0..1.0) {
        let cost = 1 + (share * (client.quota.limit() - 1) as f64) as u64;
        let Retry::After(micros) = client.request_in(0, cost).retry else { panic!("no retry") };
        prop_assert!(client.request_in(micros, cost).allowed);
        prop_assert!(!client.request_in(micros - 1, cost).allowed);
    }

    /// A cost that can never pass is no attempt.
    #[test]
    fn a_request_beyond_the_limit_is_not_blocked(
        client in troubled_clients(),
        block in 1..YEAR,
        more in 1..1_000_u64,
    ) {
        let mut client = Client { quota: client.quota.with_block(block), ..client };
        let before = client.request_in(0, 0);
        prop_assert_eq!(client.request(client.quota.limit() + more).retry, Retry::Never);
        prop_assert_eq!(client.request_in(0, 0), before);
    }

    #[test]
    fn no_block_is_longer_after_a_clock_that_stepped_back((client, block) in blocked(), step in 0..YEAR) {
        let mut client = client;
        client.now -= step;
        let verdict = client.request(0);
        prop_assert!(verdict.reset >= 1 && verdict.remaining == 0);
        let end = Client { now: client.now + block, ..client.clone() };
        let alike = Client { quota: client.quota.with_block(0), ..end.clone() };
        prop_assert_eq!(end.request_in(0, 0), alike.request_in(0, 0));
    }
}
