//! Token bucket with continuous refill.
//!
//! The bucket starts with `limit` tokens and gains one each emission interval while it is not full. A
//! request takes as many tokens as it costs, or none if there are too few.
//!
//! A refill moves the moment of the last one on by whole emission intervals, so the rest of the time
//! is never lost and never rounded.
//!
//! In any window of time t at most `limit + t × rate` passes.

use super::bucket::{self, Bucket, Refill};
use super::lua::Lua;
use super::moment::{self, Moment};
use super::settled::{self, Settled};
use super::{AlgorithmRow, BurstParameter, Held, Leases, Regain, State, Stored, at_any_time};
use crate::limit::Quota;
use crate::rate::{Interval, MAX_EXACT};

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "token_bucket",
    burst: BurstParameter::Capacity,
    own_parameters: "\"capacity=\" and \"refill=\"",
    counts_months: false,
    terms: moment::terms,
    function: "token_bucket",
    lua: Lua(&[
        include_str!("token_bucket.lua"),
        include_str!("bucket.lua"),
        include_str!("settled_continuous.lua"),
    ]),
    state: &["tokens", "last", "part"],
    stores_itself: false,
    read,
    decide: bucket::decide::<Interval>,
    // The bucket is refilled once.
    decide_each: Some(bucket::decide_each::<Interval>),
    charge: bucket::charge::<Interval>,
    give_back: bucket::give_back::<Interval>,
    regained_from: moment::regained_from,
    is_one_refund: at_any_time,
    regain: Regain::Continuous,
    delay: None,
    leases: Some(|_| Leases::AreHeld(Held { touch: bucket::touch::<Interval>, computed })),
    settled: Some(Settled { missing_without, returned: settled::returned_continuously }),
};

fn read([tokens, micros, part]: [u64; 3]) -> Option<State> {
    Some(State::Bucket(tokens, Moment { micros, part }))
}

/// How long the bucket takes to be full, without `spent`.
fn missing_without(stored: &Stored, now: u64, quota: &Quota, spent: u64) -> u64 {
    bucket::full_without::<Interval>(stored, now, quota, spent).saturating_sub(now)
}

/// A bucket whose last refill is ahead is without the tokens that are still to come. `None` if the machine has spent
/// them.
fn computed(plain: [u64; 3], now: u64, quota: &Quota) -> Option<State> {
    let [tokens, micros, part] = plain;
    if micros < now {
        return read(plain);
    }
    let ((period, count), interval) = (quota.terms(), quota.interval());
    let last = Moment { micros, part }.clamped(interval);
    let parts = u128::from(micros - now) * u128::from(count) + u128::from(last.part);
    if parts + u128::from(period) >= u128::from(MAX_EXACT) {
        return None;
    }
    let early = Moment::at(now).intervals_until(last, interval) + 1;
    Some(State::Bucket(tokens.checked_sub(early)?, last.minus(interval, early)))
}

/// A token comes each emission interval.
impl Refill for Interval {
    fn of(quota: &Quota) -> Self {
        quota.interval()
    }

    fn moment(self, stored: Moment) -> Moment {
        stored.clamped(self)
    }

    fn gained(self, last: Moment, at: u64) -> u64 {
        last.intervals_until(Moment::at(at), self)
    }

    fn after(self, last: Moment, tokens: u64) -> Moment {
        last.plus(self, tokens)
    }

    /// Tokens that cannot have been regained since come back at once: all of them may be worth more time than there was
    /// since 1970. For the others the last refill was as much earlier, so that the next tokens are due as much sooner,
    /// less the time since.
    fn give_back_late(self, bucket: &mut Bucket, amount: u64, since: u64, now: u64) {
        let (late, micros) = (now.saturating_sub(since), self.period() / self.count());
        let others = if micros > 0 { late.div_ceil(micros).min(amount) } else { amount };
        bucket.missing = bucket.missing.saturating_sub(amount - others);
        bucket.last = bucket.last.minus(self, others).later(late).min(bucket.last);
    }
}
