//! Token bucket that is refilled at intervals.
//!
//! The bucket starts with `limit` tokens and gains the n of the rate at each whole period since its
//! last refill, as far as they fit. This is the bucket of the classic Redis guides.
//!
//! In any window of time t at most `limit + n × (t / period + 1)` passes, the division rounded down.

use super::bucket::{self, Bucket, Refill};
use super::lua::Lua;
use super::minima::{Correction, Minimum};
use super::moment::Moment;
use super::settled::{Returned, Settled};
use super::{
    AlgorithmRow, BurstParameter, Held, Leases, Regain, State, Stored, Terms, at_any_time,
    token_bucket,
};
use crate::charge::Charged;
use crate::limit::{Quota, QuotaError};
use crate::rate::{MAX_TIME, Rate};

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "token_bucket",
    burst: BurstParameter::Capacity,
    own_parameters: token_bucket::ROW.own_parameters,
    counts_months: false,
    terms,
    function: "interval_bucket",
    lua: Lua(&[include_str!("interval_bucket.lua"), include_str!("bucket.lua")]),
    state: &["tokens", "last"],
    stores_itself: false,
    read,
    decide: bucket::decide::<Portions>,
    decide_each: Some(bucket::decide_each::<Portions>),
    charge: bucket::charge::<Portions>,
    give_back: bucket::give_back::<Portions>,
    regained_from,
    is_one_refund: at_any_time,
    regain: Regain::AtRefills,
    delay: None,
    leases: Some(leases),
    settled: Some(Settled { missing_without, returned }),
};

/// Where each refill fills the bucket, leases end with it.
fn leases(quota: &Quota) -> Leases {
    let (_, count) = quota.terms();
    match quota.limit() <= count {
        true => Leases::EndWithWindows { end: window_end, keeps_share: true },
        false => Leases::AreHeld(Held { touch: bucket::touch::<Portions>, computed }),
    }
}

/// When the next refill comes. A bucket without a state begins at this moment.
fn window_end(state: Option<&State>, now: u64, quota: &Quota) -> u64 {
    let last = match state {
        Some(State::Bucket(_, last)) => last.micros,
        Some(_) | None => now,
    };
    last.saturating_add(Portions::of(quota).period)
}

/// The terms: the period in µs, and the tokens that come in it.
fn terms(rate: Rate, limit: u64) -> Result<Terms, QuotaError> {
    let refills = limit.div_ceil(rate.count());
    if u128::from(refills) * u128::from(rate.period()) > u128::from(MAX_TIME) {
        return Err(QuotaError::TooSlow);
    }
    Ok((rate.period(), rate.count()))
}

fn read([tokens, last, _]: [u64; 3]) -> Option<State> {
    Some(State::Bucket(tokens, Moment::at(last)))
}

/// When the bucket would have been full without `amount` of a charge.
fn regained_from(quota: &Quota, charged: Charged, amount: u64) -> u64 {
    let Portions { period, count } = Portions::of(quota);
    let missing = quota.limit().saturating_sub(charged.remaining);
    let time = |tokens: u64| tokens.div_ceil(count).saturating_mul(period);
    // The reset counts units that machines have set aside, which are not missing for longer.
    let whole_in = charged.reset.min(time(missing));
    let sooner = time(missing) - time(missing.saturating_sub(amount));
    charged.at.saturating_add(whole_in.saturating_sub(sooner))
}

/// The tokens that are missing, without `spent`.
fn missing_without(stored: &Stored, now: u64, quota: &Quota, spent: u64) -> u64 {
    bucket::missing::<Portions>(stored, now, quota).saturating_sub(spent)
}

/// A bucket that would have been full without these units, at the time of the lowest step, would have been refilled a
/// period after that: so as much as has come by one refill more is taken off, and the next one comes a period from now.
fn returned(
    stored: &Stored,
    now: u64,
    quota: &Quota,
    units: u64,
    correction: Correction,
) -> Returned {
    let (Some(Minimum { at, missing }), Some(State::Bucket(_, last))) =
        (correction.lowest.filter(|lowest| lowest.missing <= units), &stored.state)
    else {
        return Returned { units, since: now, back: units };
    };
    let Portions { period, count } = Portions::of(quota);
    let elapsed = now.saturating_sub(last.micros) % period;
    let refills = now.saturating_sub(elapsed).saturating_sub(at).div_ceil(period);
    let later = refills.saturating_sub(now.saturating_sub(at) / period);
    let units = missing.saturating_sub(later.saturating_mul(count));
    let since = if elapsed > 0 { now - 1 } else { now };
    Returned { units, since, back: units }
}

/// A refill that is still to come cannot be taken off: the machine may have spent of it.
fn computed(plain: [u64; 3], now: u64, _quota: &Quota) -> Option<State> {
    let [_, last, _] = plain;
    if last < now { read(plain) } else { None }
}

/// `count` tokens come each `period` µs.
#[derive(Clone, Copy)]
struct Portions {
    period: u64,
    count: u64,
}

impl Refill for Portions {
    fn of(quota: &Quota) -> Self {
        let (period, count) = quota.terms();
        Self { period, count }
    }

    fn moment(self, stored: Moment) -> Moment {
        Moment::at(stored.micros)
    }

    fn gained(self, last: Moment, at: u64) -> u64 {
        let refills = at.saturating_sub(last.micros) / self.period;
        refills.saturating_mul(self.count)
    }

    fn after(self, last: Moment, tokens: u64) -> Moment {
        let time = tokens.div_ceil(self.count).saturating_mul(self.period);
        Moment::at(last.micros.saturating_add(time))
    }

    /// Units that refills may have brought back do not come back. They are a period apart at least. If the
    /// bucket was full in between, the next refill comes a period after the next request.
    fn give_back_late(self, bucket: &mut Bucket, amount: u64, since: u64, now: u64) {
        let refills = bucket.last.micros.saturating_sub(since).div_ceil(self.period);
        let amount = amount.saturating_sub(refills.saturating_mul(self.count));
        if amount > 0 {
            bucket.missing = bucket.missing.saturating_sub(amount);
            bucket.last = Moment::at(now);
        }
    }
}
