//! Local decisions: those of this machine alone, during an outage of Redis and for a while after
//! it.
//!
//! In an **outage** a client is charged locally, by the same algorithm, and starts with a whole
//! quota. On the **return** of Redis, which does not know of these charges, a client that was
//! charged locally must pass both locally and in Redis, and is charged in both, until its local
//! quota is whole again. Any other client is checked in Redis alone.
//!
//! So from the start of an outage one machine lets no more through than one bucket, window or log
//! of the algorithm would, even if Redis returns empty:
//!
//! - `token_bucket`, `gcra`, `leaky_bucket`: in any time t at most `limit + t × rate`;
//! - `token_bucket` with intervals of n: from the first request on `limit + n × (t / period + 1)`,
//!   and in any time one n more, as local refills and those in Redis are at different moments;
//! - `sliding_window`, `fixed_window`: in any aligned period at most `limit`;
//! - `sliding_log`: in any period at most `limit`.
//!
//! While a client is checked locally, all that passes is charged locally. When its local quota is
//! whole, none of that counts any more, and only what Redis lets through from then on does. It is
//! not enough to check until the charges of the outage alone are regained: a client that keeps
//! spending at the rate would then find a whole bucket in Redis.
//!
//! A **block** that an operator has set stands in Redis. In an outage it holds as far as the machine knows of it: see
//! [`ManagedTable`](crate::manage::table::ManagedTable). It is not stored here, as on the return of Redis that decides again.
//!
//! The bounds hold if the table has room for all clients. A client that is evicted starts anew, as
//! every client does with the next outage.

use std::ops::Deref;

use crate::algorithm::Stored;
use crate::charge::{Charge, Charged};
use crate::decision::{Retry, Verdict};
use crate::limit::Quota;
use crate::manage::{Change, ClientState};
use crate::overrides::{Applied, Override};
use crate::table::Table;
use crate::transaction::{self, Pending};

/// Whether Redis is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Redis cannot decide: all limits are checked.
    Outage,
    /// Redis is back: only those limits are checked of which the client has local charges that it
    /// has not regained.
    Return,
}

/// A charge, and its outcome.
#[derive(Debug)]
pub struct LocalCharge<'a> {
    charge: Charge<'a>,
    /// For how long the client is blocked, as far as the machine knows, in µs; 0: it is not.
    blocked_for: u64,
    answer: LocalAnswer,
    /// If it was charged, and not given back.
    charged: Option<Charged>,
}

/// The charges of all limits to a request, none of them with a lease. They hold the memory that a decision needs, so
/// that none is allocated while others wait for the table. Only the log of a `sliding_log`, and the steps of a limit
/// that is settled, are allocated then: how many they are is known to the table alone.
#[derive(Debug)]
pub struct LocalCharges<'a> {
    charges: Box<[LocalCharge<'a>]>,
    entries: Vec<Option<Pending<'a>>>,
}

/// The outcome for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAnswer {
    /// It was not checked.
    Unchecked,
    /// Its new state does not fit into the table: nothing was charged.
    NoRoom,
    /// It was checked.
    Verdict(Verdict),
}

/// Decides one request. If all limits that are checked allow it, all are charged. If one rejects
/// it, none is, and the other verdicts show what their limits hold. Charges may share a key: the
/// second one sees what the first one spends. A client keeps its state when its quota changes, as it does in Redis.
///
/// `now` is the Unix time in µs. When the [quotas](LocalCharge::reset) of all clients of a limit are whole again, nothing of it
/// is checked in [`Mode::Return`].
pub fn decide(table: &mut Table<'_>, now: u64, mode: Mode, charges: &mut LocalCharges<'_>) {
    let LocalCharges { charges, entries } = charges;
    entries.extend(charges.iter().map(|charge| charge.entry(table, now, mode)));
    let passes = transaction::decide(entries, now, true);
    for (charge, entry) in charges.iter_mut().zip(entries.drain(..)) {
        charge.store(table, now, entry, passes);
    }
    if !passes && charges.iter().any(|charge| is_too_much(charges, charge)) {
        charges.iter_mut().for_each(LocalCharge::never_passes);
    }
}

/// Whether a limit was not checked, and its lines together cost more than the client's quota, whatever is known of the client:
/// then the request can never pass.
fn is_too_much(charges: &[LocalCharge<'_>], one: &LocalCharge<'_>) -> bool {
    let quota = one.charge.quota;
    // The client may have a larger quota of its own, of which this machine does not know.
    if one.answer != LocalAnswer::Unchecked || quota.has_override() {
        return false;
    }
    let lines = charges.iter().map(|it| &it.charge);
    let alike = lines.filter(|it| it.client() == one.charge.client());
    transaction::needed(alike.map(|it| (it.cost, it.effect)), 0, quota.limit()).is_none()
}

/// Gives back what a request was charged locally, if Redis rejects it or does not decide. What was
/// not charged stays. The answers then show what the limits hold without it.
pub fn give_back(table: &mut Table<'_>, now: u64, charges: &mut LocalCharges<'_>) {
    for charge in &mut charges.charges {
        if let Some(charged) = charge.charged.take() {
            charge.give_back(table, now, charged);
        }
    }
    charges.charges.iter_mut().for_each(|charge| charge.refresh(table, now));
}

/// Settles what a request was charged locally: see [`Algorithm::settle`](crate::limit::Algorithm::settle).
/// Returns in how many µs the quota is whole again; `None` for what was not charged.
pub fn settle(
    table: &mut Table<'_>,
    now: u64,
    charge: &LocalCharge<'_>,
    change: i64,
) -> Option<u64> {
    let LocalCharge { charge: Charge { quota, .. }, charged, .. } = charge;
    let (mut stored, algorithm) = (charge.stored(table), quota.algorithm());
    let since = algorithm.regained_from(quota, (*charged)?, change.unsigned_abs());
    algorithm.settle(&mut stored, now, quota, since, change);
    charge.set_stored(table, Some(&stored));
    Some(algorithm.decide(&mut stored, now, quota, 0).reset)
}

/// Changes what a client has locally, as an operator has changed it in Redis: so the change holds on this machine at once.
/// `quota` is that of the line, and `known` the override that the machine knew of; `state` is what the client has in Redis,
/// whose quota counts from now on. Returns what it has on this machine: of both the stricter one.
pub fn change(
    table: &mut Table<'_>,
    client: u128,
    now: u64,
    change: &Change,
    (quota, known): (&Quota, Option<Override>),
    state: ClientState,
) -> ClientState {
    let Some(stored) = table.get(client).map(Stored::from_words) else { return state };
    let mut applied = Applied::new(stored.clone(), known, now, quota);
    match change {
        Change::Look | Change::Block(1..) => {}
        Change::Reset => applied.stored = quota.algorithm().whole(),
        Change::Block(0)
        | Change::GiveBack(_)
        | Change::SetOverride { .. }
        | Change::RemoveOverride => change.apply(&mut applied, now, quota),
    }
    if applied.stored != stored {
        table.set(client, &applied.stored.to_words());
    }
    let counted = Applied { quota: state.quota, own: state.own, ..applied };
    state.stricter(&ClientState::new(&counted, now))
}

impl<'a> FromIterator<(Charge<'a>, u64)> for LocalCharges<'a> {
    /// From each charge, and for how long its client is blocked as far as the machine knows, in µs; 0: it is not.
    fn from_iter<I: IntoIterator<Item = (Charge<'a>, u64)>>(charges: I) -> Self {
        let charges = charges.into_iter();
        let charges: Box<[_]> =
            charges.map(|(it, blocked)| LocalCharge::new(it, blocked)).collect();
        let entries = Vec::with_capacity(charges.len());
        Self { charges, entries }
    }
}

impl<'a> Deref for LocalCharges<'a> {
    type Target = [LocalCharge<'a>];

    fn deref(&self) -> &[LocalCharge<'a>] {
        &self.charges
    }
}

impl<'a> LocalCharge<'a> {
    fn new(charge: Charge<'a>, blocked_for: u64) -> Self {
        Self { charge, blocked_for, answer: LocalAnswer::Unchecked, charged: None }
    }

    /// The outcome of the last decision.
    pub fn answer(&self) -> LocalAnswer {
        self.answer
    }

    /// In how many µs the client's quota is whole again, by what the table keeps; 0 if the limit was not checked. A block that
    /// the machine knows of is not kept there: when Redis is back, no request is to look for it until it ends.
    pub fn reset(&self) -> u64 {
        match self.answer {
            LocalAnswer::Verdict(verdict) if self.blocked_for == 0 => verdict.reset,
            LocalAnswer::Verdict(_) | LocalAnswer::Unchecked | LocalAnswer::NoRoom => 0,
        }
    }

    /// The limit's entry in the transaction, if it is to be checked.
    fn entry(&self, table: &mut Table<'_>, now: u64, mode: Mode) -> Option<Pending<'a>> {
        let mut stored = self.stored(table);
        self.shorten_block(table, &mut stored, now);
        let is_checked = match mode {
            Mode::Outage => {
                self.block(&mut stored, now);
                true
            }
            Mode::Return => stored.state.is_some() && self.look(&mut stored.clone(), now).reset > 0,
        };
        let quota = *self.charge.quota;
        is_checked.then(|| Pending::new(self.charge, Applied { stored, quota, own: None }))
    }

    /// Ends a block when one that begins now would end, should the clock have stepped back. Also where clients have quotas
    /// of their own: a longer block of an operator is not stored here.
    fn shorten_block(&self, table: &mut Table<'_>, stored: &mut Stored, now: u64) {
        let (quota, longest) = (self.charge.quota, self.charge.quota.block());
        if longest > 0 && blocked_for(stored, now, quota) > longest {
            quota.algorithm().set_block(stored, now, quota, longest);
            self.set_stored(table, Some(stored));
        }
    }

    /// Blocks the client for as long as the machine knows that it is blocked.
    fn block(&self, stored: &mut Stored, now: u64) {
        let quota = self.charge.quota;
        if self.blocked_for > 0 && self.blocked_for > blocked_for(stored, now, quota) {
            quota.algorithm().set_block(stored, now, quota, self.blocked_for);
        }
    }

    /// Keeps the outcome, and stores what the decision has changed.
    fn store(&mut self, table: &mut Table<'_>, now: u64, entry: Option<Pending<'_>>, passes: bool) {
        (self.answer, self.charged) = (LocalAnswer::Unchecked, None);
        let Some(entry) = entry else { return };
        let Some(verdict) = entry.verdict else { return };
        self.charged = (passes && verdict.allowed).then(|| Charged::new(now, &verdict));
        self.answer = LocalAnswer::Verdict(verdict);
        // A client that is blocked was charged nothing, and the block is not one of this table.
        if self.blocked_for == 0 && !self.set_stored(table, entry.change()) {
            (self.answer, self.charged) = (LocalAnswer::NoRoom, None);
        }
    }

    /// No limit that rejects the request promises when it passes.
    fn never_passes(&mut self) {
        if let LocalAnswer::Verdict(verdict) = &mut self.answer
            && !self.charge.effect.lets_pass(verdict)
        {
            verdict.retry = Retry::Never;
        }
    }

    /// Shows what the limit holds now, if it was checked.
    fn refresh(&mut self, table: &mut Table<'_>, now: u64) {
        if let LocalAnswer::Verdict(Verdict { allowed, retry, .. }) = self.answer {
            let held = self.look(&mut self.stored(table), now);
            self.answer = LocalAnswer::Verdict(Verdict { allowed, retry, ..held });
        }
    }

    fn give_back(&self, table: &mut Table<'_>, now: u64, charged: Charged) {
        let Charge { quota, cost, .. } = self.charge;
        if cost == 0 {
            return;
        }
        let (mut stored, algorithm) = (self.stored(table), quota.algorithm());
        let since = algorithm.regained_from(quota, charged, cost);
        algorithm.give_back(&mut stored, now, quota, cost, since);
        self.set_stored(table, Some(&stored));
    }

    /// The verdict on a request of cost 0.
    fn look(&self, stored: &mut Stored, now: u64) -> Verdict {
        let quota = self.charge.quota;
        quota.algorithm().decide(stored, now, quota, 0)
    }

    fn stored(&self, table: &mut Table<'_>) -> Stored {
        table.get(self.charge.client()).map(Stored::from_words).unwrap_or_default()
    }

    /// Stores a state that has changed. `false` if it is too long for the table.
    fn set_stored(&self, table: &mut Table<'_>, change: Option<&Stored>) -> bool {
        let change = change.filter(|stored| stored.state.is_some());
        change.is_none_or(|stored| table.set(self.charge.client(), &stored.to_words()))
    }
}

/// For how long a state blocks its client, in µs. It is not corrected here: a decision stores only what it changes itself.
fn blocked_for(stored: &Stored, now: u64, quota: &Quota) -> u64 {
    stored.clone().correct(now, quota)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::BurstParameter;
    use crate::charge::Effect;
    use crate::charge::tests::template;
    use crate::key::Digest;
    use crate::limit::{Algorithm, Quota};
    use crate::rate::Rate;
    use crate::window::Window;

    const START: u64 = 1_700_000_000_000_000;

    fn quota(algorithm: Algorithm, rate: &str, limit: u64) -> Quota {
        Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap()
    }

    /// A quota of each algorithm at this rate, and of a month.
    fn all_quotas(rate: &str, limit: u64) -> impl Iterator<Item = Quota> {
        let month = quota(Algorithm::FixedWindow, "5r/month", limit);
        Algorithm::ALL.map(|algorithm| quota(algorithm, rate, limit)).into_iter().chain([month])
    }

    fn digest(number: u8) -> u128 {
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    /// The charge of the client of this number.
    fn charge(number: u8, quota: &Quota, cost: u64) -> Charge<'_> {
        static NUMBERS: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let key = std::slice::from_ref(&NUMBERS[usize::from(number)]);
        let digest = Digest::new(digest(number), quota);
        Charge { digest, ..Charge::new(template(), key, quota, cost) }
    }

    fn charges<'a>(charges: impl IntoIterator<Item = Charge<'a>>) -> LocalCharges<'a> {
        charges.into_iter().map(|charge| (charge, 0)).collect()
    }

    /// Decides for a single limit.
    fn request(
        table: &mut Table<'_>,
        now: u64,
        mode: Mode,
        quota: Quota,
        cost: u64,
    ) -> LocalAnswer {
        let mut only = charges([charge(1, &quota, cost)]);
        decide(table, now, mode, &mut only);
        only[0].answer()
    }

    fn rejects(charge: &LocalCharge<'_>) -> bool {
        matches!(charge.answer(), LocalAnswer::Verdict(Verdict { allowed: false, .. }))
    }

    fn verdict(answer: LocalAnswer) -> Verdict {
        match answer {
            LocalAnswer::Verdict(verdict) => verdict,
            other => panic!("{other:?}"),
        }
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        let algorithms = proptest::sample::select(&Algorithm::ALL[..]);
        (algorithms, any::<bool>(), 1..20_u64, 1_000..1_000_000_u64, 1..40_u64).prop_map(
            |(algorithm, is_monthly, count, period, limit)| {
                let own = algorithm.burst_parameter() == BurstParameter::None;
                let rate = match is_monthly && algorithm.counts_months() {
                    true => Rate::monthly(count),
                    false => Rate::new(count, period),
                };
                let rate = rate.unwrap();
                Quota::new(algorithm, rate, if own { count } else { limit }).unwrap()
            },
        )
    }

    /// The states and verdicts of the references.
    #[derive(Clone, Default)]
    struct References(BTreeMap<u128, Stored>);

    impl References {
        fn request(&mut self, now: u64, (digest, quota, cost): (u128, Quota, u64)) -> Verdict {
            let stored = self.0.entry(digest).or_default();
            quota.algorithm().decide(stored, now, &quota, cost)
        }

        fn decide(&mut self, now: u64, charged: &[(u128, Quota, u64)]) -> Vec<Verdict> {
            let before = self.clone();
            let spent: Vec<Verdict> = charged.iter().map(|one| self.request(now, *one)).collect();
            if spent.iter().all(|verdict| verdict.allowed) {
                return spent;
            }
            *self = before;
            let held =
                charged.iter().map(|(digest, quota, _)| self.request(now, (*digest, *quota, 0)));
            let held: Vec<Verdict> = held.collect();
            let merge = |((spent, held), (digest, quota, _)): ((&Verdict, Verdict), &_)| {
                // Charges of one key are spent together.
                let sharers = charged.iter().filter(|(other, ..)| other == digest);
                let cost = sharers.map(|(_, _, cost)| cost).sum();
                let retry = match spent.allowed {
                    true => Retry::No,
                    false => self.clone().request(now, (*digest, *quota, cost)).retry,
                };
                Verdict { allowed: spent.allowed, retry, ..held }
            };
            spent.iter().zip(held).zip(charged).map(merge).collect()
        }
    }

    /// A request: µs since the one before, µs that the clock steps back, and which limits it is to
    /// be charged to, with what share of each.
    type Request = (u64, u64, Vec<(usize, f64)>);

    fn requests(limits: usize) -> impl Strategy<Value = Vec<Request>> {
        let gaps = prop_oneof![Just(0), 0..1_000_u64, 0..1_000_000_u64];
        let steps = prop_oneof![19 => Just(0), 1 => 0..3_000_000_u64];
        let costs = prop_oneof![Just(0.0), 0.0..0.3, 0.0..1.2];
        vec((gaps, steps, vec((0..limits, costs), 1..5)), 0..60)
    }

    /// A block that a machine knows of holds in an outage, and nothing of it is stored.
    #[test]
    fn a_block_that_is_known_holds_in_an_outage_alone() {
        for quota in all_quotas("5r/h", 5) {
            for spent in [0, 3] {
                let mut words = vec![0; 4_000];
                let mut table = Table::open(&mut words);
                if spent > 0 {
                    request(&mut table, START, Mode::Outage, quota, spent);
                }
                let before = table.usage();
                let mut blocked: LocalCharges<'_> =
                    [(charge(1, &quota, 1), 7_000)].into_iter().collect();
                decide(&mut table, START + 1, Mode::Outage, &mut blocked);
                assert_eq!(
                    blocked[0].reset(),
                    0,
                    "nothing is to be looked for until the block ends"
                );
                let rejection = verdict(blocked[0].answer());
                assert!(!rejection.allowed && rejection.block() == 7_000, "{quota:?}");
                assert_eq!(rejection.retry, Retry::After(7_000), "{quota:?}");
                give_back(&mut table, START + 1, &mut blocked);
                assert_eq!(table.usage(), before, "{quota:?}");
                let next = request(&mut table, START + 2, Mode::Outage, quota, 1);
                let Verdict { allowed, remaining, .. } = verdict(next);
                assert_eq!((allowed, remaining), (true, quota.limit() - spent - 1), "{quota:?}");
            }
        }
    }

    /// The state in Redis of a client that has spent nothing, after a change.
    fn whole_after(line: &Quota, change: &Change) -> ClientState {
        let mut applied = Applied::new(Stored::default(), None, START, line);
        change.apply(&mut applied, START, line);
        ClientState::new(&applied, START)
    }

    /// The units that `change` leaves of a quota of 5 of which 4 were spent; the client has an override of 8 in the end, or not.
    fn left_after(line: &Quota, change: Change) -> u64 {
        let mut words = vec![0; 4_000];
        let mut table = Table::open(&mut words);
        let client = charge(1, line, 0).client();
        let redis = whole_after(line, &change);
        assert_eq!(super::change(&mut table, client, START, &change, (line, None), redis), redis);
        request(&mut table, START, Mode::Outage, *line, 4);
        let state = super::change(&mut table, client, START, &change, (line, None), redis);
        let shown = verdict(request(&mut table, START, Mode::Outage, state.quota, 0));
        assert_eq!((state.remaining, state.reset), (shown.remaining, shown.reset), "{line:?}");
        let returned = request(&mut table, START, Mode::Return, state.quota, 0);
        assert_eq!(returned == LocalAnswer::Unchecked, state.reset == 0, "{line:?}");
        state.remaining
    }

    #[test]
    fn a_change_holds_locally() {
        for line in all_quotas("5r/h", 5).map(Quota::with_override) {
            assert_eq!(left_after(&line, Change::Look), 1, "{line:?}");
            assert_eq!(left_after(&line, Change::Reset), 5, "{line:?}");
            assert_eq!(left_after(&line, Change::GiveBack(2)), 3, "{line:?}");
            assert_eq!(left_after(&line, Change::GiveBack(9)), 5, "{line:?}");
            assert_eq!(left_after(&line, Change::RemoveOverride), 1, "{line:?}");
            let rate = if line.rate().is_monthly() { "8r/month" } else { "8r/h" };
            let rate = rate.parse().unwrap();
            let own = Change::SetOverride { rate, limit: 8, lasts: None };
            assert_eq!(left_after(&line, own), 4, "{line:?}");
        }
    }

    /// An override that the machine learns of by a look counts from then on.
    #[test]
    fn an_override_that_was_not_known_is_shown() {
        for line in all_quotas("5r/h", 5).map(Quota::with_override) {
            let mut words = vec![0; 4_000];
            let mut table = Table::open(&mut words);
            let client = charge(1, &line, 0).client();
            request(&mut table, START, Mode::Outage, line, 4);
            let rate = if line.rate().is_monthly() { "8r/month" } else { "8r/h" };
            let rate = rate.parse().unwrap();
            let redis = whole_after(&line, &Change::SetOverride { rate, limit: 8, lasts: None });
            let state =
                super::change(&mut table, client, START, &Change::Look, (&line, None), redis);
            let shown = verdict(request(&mut table, START, Mode::Outage, redis.quota, 0));
            assert_eq!((state.remaining, state.reset), (shown.remaining, shown.reset), "{line:?}");
        }
    }

    /// The block of a line, as it begins in an outage, ends where an operator ends it.
    #[test]
    fn a_local_block_ends() {
        let quota = quota(Algorithm::TokenBucket, "5r/h", 5).with_block(7_000_000);
        let mut words = vec![0; 4_000];
        let mut table = Table::open(&mut words);
        for spent in [5, 1] {
            request(&mut table, START, Mode::Outage, quota, spent);
        }
        let client = charge(1, &quota, 0).client();
        let change = |table: &mut Table<'_>, change| {
            let redis = whole_after(&quota, &Change::Look);
            super::change(table, client, START + 1, &change, (&quota, None), redis).blocked_for
        };
        assert_eq!(change(&mut table, Change::Look), 6_999_999);
        assert_eq!(change(&mut table, Change::Block(9_000_000)), 6_999_999);
        assert_eq!(change(&mut table, Change::Block(0)), 0);
        assert_eq!(change(&mut table, Change::Look), 0);
    }

    proptest! {
        #[test]
        fn an_outage_is_decided_as_by_the_references(
            limits in vec(quotas(), 4),
            requests in requests(4),
        ) {
            let (mut words, mut now) = (vec![0; 4_000], START);
            let mut table = Table::open(&mut words);
            let mut model = References::default();
            for (gap, step, shares) in requests {
                now = now + gap - step;
                let cost = |&(limit, share): &(usize, f64)| {
                    (limit, (share * limits[limit].limit() as f64).ceil() as u64)
                };
                let costs = shares.iter().map(cost);
                let charged: Vec<_> = costs
                    .clone()
                    .map(|(limit, cost)| (digest(limit as u8), limits[limit], cost))
                    .collect();
                let mut local =
                    charges(costs.map(|(limit, cost)| charge(limit as u8, &limits[limit], cost)));
                decide(&mut table, now, Mode::Outage, &mut local);
                let expected = model.decide(now, &charged);
                let resets = expected.iter().map(|verdict| verdict.reset);
                prop_assert!(local.iter().map(LocalCharge::reset).eq(resets));
                let answers: Vec<Verdict> =
                    local.iter().map(|charge| verdict(charge.answer())).collect();
                prop_assert_eq!(answers, expected);
            }
        }
    }

    /// A request of a client, so many emission intervals after the one before. It costs so much, or
    /// all that can be had.
    #[derive(Clone, Debug)]
    struct Event {
        intervals: f64,
        cost: Option<f64>,
    }

    fn one_event() -> impl Strategy<Value = Event> {
        let few = (0..4_u32).prop_map(f64::from);
        let intervals = prop_oneof![Just(0.0), few, 0.0..2.0, 0.0..40.0];
        let event = (intervals, prop::option::of(0.0..1.1));
        event.prop_map(|(intervals, cost)| Event { intervals, cost })
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        vec(one_event(), 0..60)
    }

    /// A client of this machine, and what of its requests passed: when, and what they spent.
    struct LocalClient<'a> {
        quota: Quota,
        now: u64,
        table: Table<'a>,
        redis: Stored,
        passed: Vec<(u64, u64)>,
        until: u64,
    }

    impl LocalClient<'_> {
        fn live(&mut self, mode: Mode, events: &[Event]) {
            let interval = self.quota.rate().period() as f64 / self.quota.rate().count() as f64;
            for event in events {
                self.now += (event.intervals * interval).round() as u64;
                let cost = match event.cost {
                    Some(share) => (share * self.quota.limit() as f64).ceil() as u64,
                    None => self.remaining(mode),
                };
                if self.request(mode, cost) {
                    self.passed.push((self.now, cost));
                }
            }
        }

        fn remaining(&mut self, mode: Mode) -> u64 {
            let local = match request(&mut self.table, self.now, mode, self.quota, 0) {
                LocalAnswer::Verdict(verdict) => verdict.remaining,
                _ => u64::MAX,
            };
            match mode {
                Mode::Outage => local,
                Mode::Return => local.min(self.charge_redis(0).remaining),
            }
        }

        /// Requests as the module does.
        fn request(&mut self, mode: Mode, cost: u64) -> bool {
            let quota = self.quota;
            let mut local = charges([charge(1, &quota, cost)]);
            if mode == Mode::Outage || self.now < self.until {
                decide(&mut self.table, self.now, mode, &mut local);
                self.until = self.until.max(self.now + local[0].reset());
            }
            if rejects(&local[0]) {
                return false;
            }
            let passes = mode == Mode::Outage || self.charge_redis(cost).allowed;
            if !passes {
                give_back(&mut self.table, self.now, &mut local);
            }
            passes
        }

        fn charge_redis(&mut self, cost: u64) -> Verdict {
            self.quota.algorithm().decide(&mut self.redis, self.now, &self.quota, cost)
        }

        /// Whether more passed in any time than the algorithm says.
        fn exceeds(&self) -> bool {
            (0..self.passed.len()).any(|first| {
                let mut spent = 0;
                self.passed[first..].iter().any(|(now, cost)| {
                    spent += cost;
                    self.exceeds_in(first, *now, spent)
                })
            })
        }

        fn exceeds_in(&self, first: usize, to: u64, spent: u64) -> bool {
            let (rate, limit) = (self.quota.rate(), self.quota.limit());
            let (period, count, from) = (rate.period(), rate.count(), self.passed[first].0);
            let time = to - from;
            match self.quota.algorithm() {
                Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                    spent.saturating_sub(limit) * period > time * count
                }
                Algorithm::IntervalBucket => {
                    let refills = time / period + 1 + u64::from(first > 0);
                    spent > limit + count * refills
                }
                Algorithm::SlidingWindow | Algorithm::FixedWindow
                    if !self.quota.rate().is_monthly() =>
                {
                    spent > limit * (to / period - from / period + 1)
                }
                Algorithm::SlidingWindow | Algorithm::FixedWindow => {
                    let month = |now| Window::month(now).number;
                    spent > limit * (month(to) - month(from) + 1)
                }
                Algorithm::SlidingLog => time < period && spent > limit,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 2_000 }))]

        /// Redis returns, and has forgotten everything.
        #[test]
        fn no_outage_lets_more_through_than_the_limit(
            quota in quotas(),
            start in START..START + 10_000_000,
            outage in events(),
            back in events(),
        ) {
            let mut words = vec![0; 4_000];
            let table = Table::open(&mut words);
            let mut client =
                LocalClient { quota, now: start, table, redis: Stored::default(), passed: Vec::new(), until: 0 };
            client.live(Mode::Outage, &outage);
            client.live(Mode::Return, &back);
            prop_assert!(!client.exceeds(), "{:?}", client.passed);
            // After the time that was returned nothing is checked.
            client.now = client.now.max(client.until);
            let answer = request(&mut client.table, client.now, Mode::Return, quota, 0);
            prop_assert_eq!(answer, LocalAnswer::Unchecked);
        }

        /// And what is given back is as if it had never been spent here.
        #[test]
        fn what_is_given_back_can_be_spent(quota in quotas(), outage in events(), cost in 0..30_u64) {
            let mut words = vec![0; 4_000];
            let table = Table::open(&mut words);
            let mut client =
                LocalClient { quota, now: START, table, redis: Stored::default(), passed: Vec::new(), until: 0 };
            client.live(Mode::Outage, &outage);
            let before = request(&mut client.table, client.now, Mode::Outage, quota, 0);
            let mut local = charges([charge(1, &quota, cost)]);
            decide(&mut client.table, client.now, Mode::Return, &mut local);
            // Twice is as good as once.
            give_back(&mut client.table, client.now, &mut local);
            give_back(&mut client.table, client.now, &mut local);
            if let (LocalAnswer::Verdict(shown), LocalAnswer::Verdict(held)) = (local[0].answer(), before) {
                prop_assert_eq!((shown.remaining, shown.reset), (held.remaining, held.reset));
            }
            let after = request(&mut client.table, client.now, Mode::Outage, quota, 0);
            prop_assert_eq!(after, before);
        }
    }

    /// A client of two tables, of which the second one is also charged beside a Redis that then does not decide.
    /// Some requests are settled.
    fn lives_alike(quota: Quota, history: &[(Event, Option<f64>)]) {
        let (mut words, mut now) = ([vec![0; 4_000], vec![0; 4_000]], START);
        let [alone, beside] = &mut words;
        let (mut alone, mut beside) = (Table::open(alone), Table::open(beside));
        let (interval, limit) =
            (quota.rate().period() as f64 / quota.rate().count() as f64, quota.limit() as f64);
        for (event, settles) in history {
            now += (event.intervals * interval).round() as u64;
            let cost = (event.cost.unwrap_or(0.0) * limit).ceil() as u64;
            let both = || charges([charge(1, &quota, cost)]);
            let (mut once, mut twice) = (both(), both());
            decide(&mut alone, now, Mode::Outage, &mut once);
            decide(&mut beside, now, Mode::Return, &mut twice);
            if !rejects(&twice[0]) {
                give_back(&mut beside, now, &mut twice);
                decide(&mut beside, now, Mode::Outage, &mut twice);
            }
            assert_eq!(once[0].answer(), twice[0].answer());
            if let Some(share) = settles {
                let change = (share * limit) as i64 - cost as i64;
                settle(&mut alone, now, &once[0], change);
                settle(&mut beside, now, &twice[0], change);
            }
        }
    }

    proptest! {
        #[test]
        fn what_redis_does_not_decide_is_charged_here_once(
            quota in quotas(),
            history in vec((one_event(), prop::option::weighted(0.3, 0.0..3.0)), 0..60),
        ) {
            lives_alike(quota, &history);
        }
    }

    /// One refill here, and one in Redis soon after: within little more than a period more passes
    /// than one bucket would let through, by less than what it gets in a period.
    #[test]
    fn refills_here_and_in_redis_are_not_at_the_same_moments() {
        let mut words = vec![0; 1_000];
        let mut client = LocalClient {
            quota: quota(Algorithm::IntervalBucket, "5r/s", 10),
            now: START,
            table: Table::open(&mut words),
            redis: Stored::default(),
            passed: Vec::new(),
            until: 0,
        };
        let mut pass = |after: u64, mode, cost| {
            client.now = START + after * 1_000;
            assert!(client.request(mode, cost), "{after} ms");
        };
        pass(0, Mode::Outage, 1);
        let costs = [8, 1, 9, 5];
        pass(999, Mode::Outage, costs[0]);
        pass(1_100, Mode::Return, costs[1]);
        pass(2_000, Mode::Return, costs[2]);
        pass(2_100, Mode::Return, costs[3]);
        let one_bucket = 10 + 5 * (1_101 / 1_000 + 1);
        assert_eq!(costs.iter().sum::<u64>(), one_bucket + 3);
    }

    #[test]
    fn on_return_only_clients_with_something_to_regain_are_checked() {
        let (mut words, quota) = (vec![0; 1_000], quota(Algorithm::TokenBucket, "1r/s", 2));
        let table = &mut Table::open(&mut words);
        let second = 1_000_000;

        assert_eq!(request(table, START, Mode::Return, quota, 1), LocalAnswer::Unchecked);
        assert_eq!(table.usage().entries, 0);

        assert_eq!(verdict(request(table, START, Mode::Outage, quota, 1)).remaining, 1);
        assert_eq!(verdict(request(table, START, Mode::Return, quota, 1)).remaining, 0);
        let rejected = verdict(request(table, START, Mode::Return, quota, 1));
        assert_eq!(rejected.retry, Retry::After(second));
        let last = verdict(request(table, START + 2 * second - 1, Mode::Return, quota, 0));
        assert_eq!((last.remaining, last.reset), (1, 1));
        assert_eq!(
            request(table, START + 2 * second, Mode::Return, quota, 1),
            LocalAnswer::Unchecked
        );
    }

    #[test]
    fn what_was_decided_here_is_settled_here() {
        for quota in all_quotas("5r/d", 5) {
            let mut words = vec![0; 1_000];
            let table = &mut Table::open(&mut words);
            let mut local = charges([charge(1, &quota, 3)]);
            decide(table, START, Mode::Outage, &mut local);
            let mut settled = |change| {
                settle(table, START, &local[0], change).unwrap();
                verdict(request(table, START, Mode::Outage, quota, 0)).remaining
            };
            assert_eq!([-2, 6, -3].map(&mut settled), [4, 0, 1], "{quota:?}");
        }
    }

    #[test]
    fn who_exceeds_a_limit_here_is_blocked_here() {
        for quota in all_quotas("2r/s", 2) {
            let mut words = vec![0; 1_000];
            let table = &mut Table::open(&mut words);
            let day = 86_400_000_000;
            let quota = quota.with_block(40 * day);
            verdict(request(table, START, Mode::Outage, quota, 2));
            assert!(!verdict(request(table, START, Mode::Outage, quota, 1)).allowed);
            let blocked = verdict(request(table, START + 39 * day, Mode::Outage, quota, 1));
            assert!(!blocked.allowed && blocked.retry == Retry::After(day), "{quota:?}");
            assert!(verdict(request(table, START + 40 * day, Mode::Outage, quota, 1)).allowed);
        }
    }

    /// Also where an operator could block a client for longer, and nothing but the block is of a time to come.
    #[test]
    fn a_clock_that_steps_back_prolongs_no_block() {
        let line = quota(Algorithm::Gcra, "1r/s", 1_000).with_block(3_000_000);
        for (quota, mode) in [line, line.with_override()]
            .into_iter()
            .flat_map(|quota| [Mode::Outage, Mode::Return].map(|mode| (quota, mode)))
        {
            let mut words = vec![0; 1_000];
            let table = &mut Table::open(&mut words);
            assert!(verdict(request(table, START, Mode::Outage, quota, 500)).allowed);
            assert!(!verdict(request(table, START, Mode::Outage, quota, 600)).allowed);
            let blocked = verdict(request(table, START - 25_000_000, mode, quota, 1));
            assert_eq!(blocked.block(), 3_000_000, "{quota:?}");
            let later = verdict(request(table, START - 21_000_000, mode, quota, 1));
            assert!(later.allowed, "{mode:?}, {quota:?}");
        }
    }

    #[test]
    fn a_dry_run_rejects_nothing_and_spends_alone() {
        let mut words = vec![0; 1_000];
        let table = &mut Table::open(&mut words);
        let (wide, narrow) =
            (quota(Algorithm::Gcra, "1r/h", 2), quota(Algorithm::TokenBucket, "1r/h", 1));
        let mut decide = |wide_cost| {
            let dry = Charge { effect: Effect::DryRun, ..charge(2, &narrow, 1) };
            let mut local = charges([charge(1, &wide, wide_cost), dry]);
            super::decide(table, START, Mode::Outage, &mut local);
            [0, 1]
                .map(|index: usize| verdict(local[index].answer()))
                .map(|verdict| (verdict.allowed, verdict.remaining))
        };
        // The one that is enforced rejects it: neither spends.
        assert_eq!(decide(3), [(false, 2), (true, 1)]);
        assert_eq!(decide(1), [(true, 1), (true, 0)]);
        assert_eq!(decide(1), [(true, 0), (false, 0)]);
        assert_eq!(decide(1), [(false, 0), (false, 0)]);
    }

    #[test]
    fn on_return_one_limit_may_be_checked_and_another_not() {
        let (mut words, quota) = (vec![0; 1_000], quota(Algorithm::Gcra, "1r/s", 1));
        let table = &mut Table::open(&mut words);
        verdict(request(table, START, Mode::Outage, quota, 1));

        let mut local = charges([2, 1].map(|number| charge(number, &quota, 1)));
        decide(table, START, Mode::Return, &mut local);
        assert_eq!(local[0].answer(), LocalAnswer::Unchecked);
        assert!(rejects(&local[1]));
        // Units that were not spent are not given back.
        give_back(table, START, &mut local);
        assert!(!verdict(request(table, START, Mode::Outage, quota, 1)).allowed);
        assert_eq!(table.usage().entries, 1);
    }

    #[test]
    fn on_return_a_cost_that_can_never_pass_leaves_no_time_to_come_back() {
        for algorithm in Algorithm::ALL {
            let (mut words, one) = (vec![0; 1_000], quota(algorithm, "1r/s", 1));
            let two = quota(algorithm, "2r/s", 2);
            let table = &mut Table::open(&mut words);
            verdict(request(table, START, Mode::Outage, one, 1));
            let mut retry = |first: Charge<'_>, others: &[Charge<'_>]| {
                let mut local = charges(std::iter::once(first).chain(others.iter().copied()));
                decide(table, START, Mode::Return, &mut local);
                assert!(local[1..].iter().all(|it| it.answer() == LocalAnswer::Unchecked));
                match local[0].answer() {
                    LocalAnswer::Verdict(verdict) => Some(verdict.retry == Retry::Never),
                    _ => None,
                }
            };
            let spent = charge(1, &one, 1);
            assert_eq!(retry(spent, &[charge(2, &two, 2)]), Some(false), "{algorithm:?}");
            assert_eq!(retry(spent, &[charge(2, &two, 3)]), Some(true), "{algorithm:?}");
            assert_eq!(retry(spent, &[charge(2, &two, 2), charge(2, &two, 1)]), Some(true));
            assert_eq!(retry(spent, &[charge(2, &two, 2), charge(3, &two, 1)]), Some(false));
            // The client may have a larger quota of its own, and a dry run rejects nothing.
            assert_eq!(retry(spent, &[charge(2, &two.with_override(), 3)]), Some(false));
            let dry = |cost| Charge { effect: Effect::DryRun, ..charge(2, &two, cost) };
            assert_eq!(retry(spent, &[dry(3)]), Some(false));
            // But it spends.
            assert_eq!(retry(spent, &[dry(1), charge(2, &two, 2)]), Some(true));
            // If no limit rejects the request here, Redis decides.
            assert_eq!(retry(charge(4, &one, 1), &[charge(2, &two, 3)]), None, "{algorithm:?}");
        }
    }

    #[test]
    fn who_spends_nothing_takes_no_room() {
        let mut words = vec![0; 1_000];
        let table = &mut Table::open(&mut words);
        for algorithm in Algorithm::ALL {
            let quota = quota(algorithm, "2r/s", 2);
            assert!(verdict(request(table, START, Mode::Outage, quota, 0)).allowed);
            assert!(!verdict(request(table, START, Mode::Outage, quota, 3)).allowed);
        }
        assert_eq!(table.usage().entries, 0);
    }

    #[test]
    fn a_state_of_another_kind_counts_as_none() {
        let kind = |algorithm: Algorithm| match algorithm {
            Algorithm::TokenBucket | Algorithm::IntervalBucket => 0,
            Algorithm::Gcra | Algorithm::LeakyBucket => 1,
            Algorithm::SlidingWindow | Algorithm::FixedWindow => 2,
            Algorithm::SlidingLog => 3,
        };
        for old in Algorithm::ALL {
            for new in Algorithm::ALL.into_iter().filter(|new| kind(*new) != kind(old)) {
                let mut words = vec![0; 1_000];
                let table = &mut Table::open(&mut words);
                let (old, new) = (quota(old, "2r/s", 2), quota(new, "2r/s", 2));
                assert!(verdict(request(table, START, Mode::Outage, old, 2)).allowed);
                assert_eq!(request(table, START, Mode::Return, new, 1), LocalAnswer::Unchecked);
                let first = verdict(request(table, START, Mode::Outage, new, 1));
                assert_eq!((first.allowed, first.remaining), (true, 1), "{old:?} {new:?}");
                let second = verdict(request(table, START, Mode::Outage, new, 1));
                assert_eq!((second.allowed, second.remaining), (true, 0), "{old:?} {new:?}");
            }
        }
    }

    #[test]
    fn who_was_evicted_starts_anew() {
        // A table of four blocks.
        let (mut words, quota) = (vec![0; 42], quota(Algorithm::TokenBucket, "1r/h", 1));
        let table = &mut Table::open(&mut words);
        let mut allowed = |number| {
            let mut local = charges([charge(number, &quota, 1)]);
            decide(table, START, Mode::Outage, &mut local);
            verdict(local[0].answer()).allowed
        };
        assert!((0..5).all(&mut allowed));
        assert!(!(1..5).any(&mut allowed));
        assert!(allowed(0));
        assert!(allowed(1));
        assert!(!allowed(0));
    }

    #[test]
    fn a_log_that_is_too_long_has_no_room() {
        // A table of eight blocks, so that a value may have ten words, which are four entries.
        let mut words = vec![0; 76];
        let table = &mut Table::open(&mut words);
        let log = quota(Algorithm::SlidingLog, "10r/s", 10);
        let bucket = quota(Algorithm::TokenBucket, "10r/s", 10);
        let mut decide = |now| {
            let mut both = charges([charge(1, &log, 1), charge(2, &bucket, 1)]);
            decide(table, now, Mode::Outage, &mut both);
            [0, 1].map(|index: usize| both[index].answer())
        };
        for remaining in (6..10).rev() {
            let both = decide(START).map(|answer| verdict(answer).remaining);
            assert_eq!(both, [remaining, remaining]);
        }
        for remaining in (3..6).rev() {
            let [log, bucket] = decide(START);
            assert_eq!((log, verdict(bucket).remaining), (LocalAnswer::NoRoom, remaining));
        }
        // A log without room spends nothing: a second later all is regained.
        assert_eq!(decide(START + 1_000_000).map(|answer| verdict(answer).remaining), [9, 9]);
    }
}
