//! No change of what a client has lets more through than the quota that it leads to.

use std::num::NonZeroU64;

use proptest::prelude::*;
use rate_limit_core::algorithm::Stored;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::overrides::{Applied, Override};
use rate_limit_core::rate::Rate;

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// An event after some time, in µs.
#[derive(Clone, Debug)]
enum Event {
    Request(u64),
    Change(Change),
}

fn rates() -> impl Strategy<Value = Rate> {
    const RATES: [&str; 6] = ["1r/s", "10r/s", "100r/m", "7r/10s", "1000r/h", "3r/m"];
    proptest::sample::select(&RATES[..]).prop_map(|rate| rate.parse().unwrap())
}

fn changes() -> impl Strategy<Value = Change> {
    let lasts = prop_oneof![Just(None), (1..100 * SECOND).prop_map(NonZeroU64::new)];
    prop_oneof![
        1 => Just(Change::Reset),
        2 => (1..50_u64).prop_map(Change::GiveBack),
        1 => (0..10 * SECOND).prop_map(Change::Block),
        4 => (rates(), 1..60_u64, lasts)
            .prop_map(|(rate, limit, lasts)| Change::SetOverride { rate, limit, lasts }),
        2 => Just(Change::RemoveOverride),
    ]
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        4 => (0..10_u64).prop_map(Event::Request),
        1 => changes().prop_map(Event::Change),
    ];
    let spans = prop_oneof![Just(0), 0..SECOND, 0..100 * SECOND];
    proptest::collection::vec((spans, event), 1..80)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
    (algorithms, rates(), 1..40_u64, any::<bool>()).prop_filter_map(
        "it cannot be counted",
        |(algorithm, rate, limit, is_settled)| {
            let quota = Quota::new(algorithm, rate, limit).ok()?.with_override();
            Some(if is_settled { quota.with_settle() } else { quota })
        },
    )
}

/// A client whose quota may change.
struct Client {
    line: Quota,
    stored: Stored,
    own: Option<Override>,
    now: u64,
}

impl Client {
    fn applied(&self) -> Applied {
        Applied::new(self.stored.clone(), self.own, self.now, &self.line)
    }

    fn keep(&mut self, applied: Applied) {
        (self.stored, self.own) = (applied.stored, applied.own);
    }

    fn state(&self) -> ClientState {
        ClientState::new(&self.applied(), self.now)
    }
}

/// The units that a client has left after a change, by its state before and after it.
fn remaining_after(change: &Change, before: &ClientState, after: &ClientState) -> u64 {
    let limit = before.quota.limit();
    match *change {
        Change::Reset => limit,
        Change::GiveBack(units) => {
            limit.min((before.remaining + units).saturating_sub(before.debt))
        }
        Change::SetOverride { .. } | Change::RemoveOverride => {
            let spent = limit - before.remaining + before.debt;
            after.quota.limit().saturating_sub(spent)
        }
        Change::Block(_) | Change::Look => before.remaining,
    }
}

proptest! {
    /// No quota has more left than the whole; spent units stay spent; and no more is given back than was missing.
    #[test]
    fn changes_keep_what_was_spent(line in quotas(), events in events()) {
        let mut client = Client { line, stored: Stored::default(), own: None, now: START };
        for (span, event) in events {
            client.now += span;
            let before = client.state();
            let mut applied = client.applied();
            match event {
                Event::Request(cost) => {
                    let quota = applied.quota;
                    let verdict = quota.algorithm().decide(&mut applied.stored, client.now, &quota, cost);
                    prop_assert!(!verdict.allowed || cost <= before.remaining);
                    client.keep(applied);
                }
                Event::Change(change) => {
                    let is_usable = match change {
                        Change::SetOverride { rate, limit, .. } => {
                            Override { rate, limit, ends: None }.quota(&line).is_some()
                        }
                        _ => true,
                    };
                    if !is_usable {
                        continue;
                    }
                    change.apply(&mut applied, client.now, &line);
                    client.keep(applied);
                    let after = client.state();
                    let remaining = remaining_after(&change, &before, &after);
                    match line.algorithm() {
                        // Only a part counts of what was spent in the window before, and so it does of what is given
                        // back of it.
                        Algorithm::SlidingWindow if matches!(change, Change::GiveBack(_)) => {
                            prop_assert!((before.remaining..=remaining).contains(&after.remaining));
                        }
                        // A log may hold more than a limit that was lowered, beside a debt.
                        Algorithm::SlidingLog if before.remaining == 0 || before.debt > 0 => {
                            continue;
                        }
                        Algorithm::TokenBucket
                        | Algorithm::IntervalBucket
                        | Algorithm::Gcra
                        | Algorithm::LeakyBucket
                        | Algorithm::SlidingWindow
                        | Algorithm::SlidingLog
                        | Algorithm::FixedWindow => {
                            prop_assert_eq!(after.remaining, remaining, "{:?} {:?}", change, before);
                        }
                    }
                }
            }
            let state = client.state();
            prop_assert!(state.remaining <= state.quota.limit());
        }
    }

    /// However often the quota of a client changes, no more passes than the largest of them, and what the fastest regains.
    #[test]
    fn no_more_passes_than_the_largest_quota_allows(line in quotas(), events in events()) {
        let mut client = Client { line, stored: Stored::default(), own: None, now: START };
        let (mut most, mut fastest, mut longest, mut passed) = (line.limit(), line, line.rate().period(), 0);
        for (span, event) in events {
            client.now += span;
            let mut applied = client.applied();
            match event {
                Event::Request(cost) => {
                    let quota = applied.quota;
                    let verdict = quota.algorithm().decide(&mut applied.stored, client.now, &quota, cost);
                    passed += if verdict.allowed { cost } else { 0 };
                    client.keep(applied);
                }
                Event::Change(change @ Change::SetOverride { rate, limit, .. }) => {
                    let own = Override { rate, limit, ends: None };
                    let Some(its) = own.quota(&line) else { continue };
                    change.apply(&mut applied, client.now, &line);
                    client.keep(applied);
                    most = most.max(limit);
                    longest = longest.max(rate.period());
                    // The rate at which windows regain is their limit in each period.
                    let speed = |quota: &Quota| {
                        let units = quota.rate().count().max(quota.limit());
                        units as f64 / quota.rate().period() as f64
                    };
                    fastest = if speed(&its) > speed(&fastest) { its } else { fastest };
                }
                Event::Change(_) => {}
            }
            let units = fastest.rate().count().max(fastest.limit()) as f64;
            let regained = units * (client.now - START) as f64 / fastest.rate().period() as f64;
            // Windows begin and end: two more of them may be touched.
            let bound = 3 * most + regained.ceil() as u64;
            prop_assert!(passed <= bound, "{} of {}", passed, bound);
        }
    }
}
