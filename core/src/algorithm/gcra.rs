//! The generic cell rate algorithm (ITU-T I.371, as virtual scheduling), with the numbers of
//! redis-cell's `CL.THROTTLE`.
//!
//! The state is one theoretical arrival time, TAT: the moment at which all that was spent is
//! regained. A request of cost c moves it c emission intervals on. The request passes unless the
//! TAT would then be more than `limit` intervals (the delay variation tolerance and one more) ahead
//! of the present. With a debt it is further ahead; the debt is stored with it.
//!
//! In any window of time t at most `limit + t × rate` passes, with `limit = burst + 1`.

use super::lua::Lua;
use super::moment::{self, Moment};
use super::settled::{self, Settled};
use super::{AlgorithmRow, BurstParameter, Held, Leases, Regain, State, Stored, at_any_time};
use crate::decision::{Retry, Verdict};
use crate::limit::Quota;

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "gcra",
    burst: BurstParameter::Burst,
    own_parameters: "\"burst=\"",
    counts_months: false,
    terms: moment::terms,
    function: "gcra",
    lua: Lua(&[include_str!("gcra.lua"), include_str!("settled_continuous.lua")]),
    state: &["tat", "part"],
    stores_itself: false,
    read,
    decide,
    decide_each: None,
    charge,
    give_back,
    regained_from: moment::regained_from,
    is_one_refund: at_any_time,
    regain: Regain::Continuous,
    delay: None,
    leases: Some(|_| Leases::AreHeld(Held { touch, computed: |plain, _, _| read(plain) })),
    settled: Some(Settled { missing_without, returned: settled::returned_continuously }),
};

fn read([micros, part, _]: [u64; 3]) -> Option<State> {
    Some(State::Arrival(Moment { micros, part }))
}

pub(super) fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let (limit, interval) = (quota.limit(), quota.interval());
    let Arrival { tat, latest, debt, corrected } = arrival(stored, now, quota);
    let next = tat.plus(interval, cost);
    let allowed = next <= latest || cost == 0;
    let tat = if allowed { next } else { tat };
    // Until no more than `most` is held, and what is above it is regained.
    let held = |most: u64| {
        let regained = |at, units| Moment::at(at).plus(interval, units).ceil();
        stored.extra.holds.until(now, limit, most, regained).saturating_sub(now)
    };
    let reset = tat.ceil().saturating_sub(now).max(held(0));
    let retry = Retry::of(allowed, cost, limit, || span(latest, next).max(held(limit - cost)));

    if allowed && cost > 0 || corrected {
        write(stored, now, quota, tat, debt);
    }
    Verdict { allowed, blocked: 0, remaining: tat.intervals_until(latest, interval), reset, retry }
}

fn charge(stored: &mut Stored, now: u64, quota: &Quota, amount: u64) {
    let interval = quota.interval();
    let Arrival { tat, debt, corrected, .. } = arrival(stored, now, quota);
    let furthest = Moment::at(now).plus(interval, quota.max_spent());
    let later = tat.plus(interval, amount).min(furthest);
    if later > tat || corrected {
        write(stored, now, quota, later, debt.saturating_add(amount).min(quota.max_debt()));
    }
}

/// Moves the arrival time back, but not for the time that it would have stood still since.
fn give_back(stored: &mut Stored, now: u64, quota: &Quota, amount: u64, since: Option<u64>) {
    let Arrival { tat, debt, corrected, .. } = arrival(stored, now, quota);
    let (interval, held) = (quota.interval(), stored.extra.holds.lasting(now).units(quota.limit()));
    let late = since.map_or(0, |since| now.saturating_sub(since));
    let earlier = tat.minus(interval, amount).later(late).min(tat);
    let earlier = earlier.max(Moment::at(now).plus(interval, held));
    if earlier < tat || corrected {
        write(stored, now, quota, earlier, debt);
    }
}

/// How far the arrival time is ahead, without `spent`.
fn missing_without(stored: &Stored, now: u64, quota: &Quota, spent: u64) -> u64 {
    let tat = arrival(stored, now, quota).tat.minus(quota.interval(), spent);
    tat.micros.saturating_sub(now)
}

/// Stores the arrival time as it is at `now`.
fn touch(stored: &mut Stored, now: u64, quota: &Quota) {
    let Arrival { tat, debt, .. } = arrival(stored, now, quota);
    write(stored, now, quota, tat, debt);
}

/// In how many µs all that was spent is regained, if nothing of it is held.
pub(super) fn regained_in(stored: &Stored, now: u64, quota: &Quota) -> u64 {
    arrival(stored, now, quota).tat.ceil().saturating_sub(now)
}

/// The arrival time at `now`.
struct Arrival {
    tat: Moment,
    /// The latest that it may be for a request to pass.
    latest: Moment,
    /// How many intervals later than that it may be.
    debt: u64,
    /// The stored time was too late, and is corrected. The correction is stored even if nothing is
    /// spent: otherwise nothing would pass until the clock has caught up.
    corrected: bool,
}

/// The arrival time is not before now, as an idle client saves nothing up. It is not after the
/// latest plus the debt: a clock that stepped back, or a limit that was lowered, locks a client out
/// for no longer than it takes to regain that.
fn arrival(stored: &Stored, now: u64, quota: &Quota) -> Arrival {
    let (interval, present) = (quota.interval(), Moment::at(now));
    let latest = present.plus(interval, quota.limit());
    let tat = match stored.state {
        Some(State::Arrival(tat)) => tat.clamped(interval),
        Some(_) | None => present,
    };
    let debt = if tat > latest { stored.debt(quota) } else { 0 };
    let furthest = present.plus(interval, quota.limit().saturating_add(debt));
    let (mut tat, corrected) = (tat.clamp(present, furthest), tat > furthest);
    stored.extra.holds.each_floor(now, quota.limit(), |at, held| {
        tat = tat.max(Moment::at(at).plus(interval, held));
    });
    Arrival { tat, latest, debt, corrected }
}

fn write(stored: &mut Stored, now: u64, quota: &Quota, tat: Moment, debt: u64) {
    let latest = Moment::at(now).plus(quota.interval(), quota.limit());
    stored.write(now, State::Arrival(tat), if tat > latest { debt } else { 0 });
}

/// µs from `from` to `to`, rounded up.
fn span(from: Moment, to: Moment) -> u64 {
    let micros = to.micros.saturating_sub(from.micros);
    if to.part > from.part { micros.saturating_add(1) } else { micros }
}
