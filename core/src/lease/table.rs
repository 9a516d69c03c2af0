//! The leases of a machine, in memory that its workers share.
//!
//! A table of buckets of a few entries. A digest belongs to one bucket, and may be in any entry of it.
//! A worker locks an entry while it reads or changes it; a worker that does not get the lock has Redis decide. What a worker
//! that dies leaves locked is of no use until another one empties it: the units lapse.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Granted, Holding, Lease};
use crate::charge::Charge;
use crate::decision::Verdict;
use crate::key;
use crate::limit::Quota;
use crate::lock::{ProcessGuard, ProcessLock};
use crate::word::split;

/// Entries in a bucket.
const WAYS: usize = 4;

/// Entries side by side.
pub type LeaseBucket = [LeaseEntry; WAYS];

/// A place for a lease: two lines of the processor's cache. All zeroes is an empty one.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct LeaseEntry {
    lock: ProcessLock,
    /// Stands for the limit, its quota and the client; 0: the entry is empty.
    digest: [AtomicU64; 2],
    /// Until when a command is expected to bring a new lease, in µs.
    taken_until: AtomicU64,
    /// The limit, as the owner of the table numbers them.
    limit: AtomicU64,
    holding: [AtomicU64; Holding::WORDS],
}

/// A table of leases, as one process uses it.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTable<'a> {
    buckets: &'a [LeaseBucket],
    process: u32,
    is_living: fn(u32) -> bool,
}

/// The lease, if there is one, that a command takes out of the table to renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Another command renews it, or another worker has it at this moment, or the command does not report
    /// it: it is to be left alone.
    Busy,
    /// Nothing is known of the client.
    Nothing,
    /// The record of the client, which no other worker finds any more.
    Holding(Holding),
}

impl Taken {
    /// The lease arguments of a command about this quota at the monotonic time `now`, where leases last `span` µs;
    /// `None` if there is nothing to say.
    pub fn lease(&self, quota: &Quota, span: u64, now: u64) -> Option<Lease> {
        match self {
            Self::Holding(holding) => {
                Some(holding.lease(quota, span, now)).filter(|lease| !lease.is_none())
            }
            Self::Nothing | Self::Busy => None,
        }
    }

    /// The report of what became of the last lease, if there was one; nothing is taken.
    pub fn report(&self, quota: &Quota, span: u64, now: u64) -> Option<Lease> {
        let lease = Lease { want: 0, ..self.lease(quota, span, now)? };
        (!lease.is_none()).then_some(lease)
    }
}

/// The outcome of a command with lease arguments.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Whether it may have run: it was sent, and not refused as a whole.
    pub may_have_run: bool,
    /// Whether it has charged the request.
    pub is_charged: bool,
    /// Whether the limit has rejected the request.
    pub is_rejected: bool,
    /// The lease that it has set aside.
    pub granted: Granted,
    /// Whether Redis counts by another quota than that of the charge.
    pub is_other_quota: bool,
    /// How long leases last, in µs.
    pub span: u64,
    /// The monotonic time at which it was submitted.
    pub submitted: u64,
}

/// The numbers of units that a renewal has set aside, given back or lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// How many were set aside for the limit.
    pub granted: u64,
    /// How many of the limit went back to Redis.
    pub returned: u64,
    /// How many of the limit are lost.
    pub lapsed: u64,
    /// The units that are lost with an entry, of any limit.
    pub evicted: Option<Lapsed>,
}

/// Units that lapse, and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// The limit.
    pub limit: u64,
    /// At least 1.
    pub units: u64,
}

/// An entry while it is locked.
#[derive(Debug)]
struct Locked<'a> {
    entry: &'a LeaseEntry,
    _guard: ProcessGuard<'a>,
}

/// The clients whose leases a request has locked, the latest one first.
struct Spending<'h> {
    digest: u128,
    before: Option<&'h Self>,
}

impl<'a> LeaseTable<'a> {
    /// A table in these buckets, for the process of this number, which is not 0. `is_living` returns
    /// whether there is a process of a number.
    pub fn new(buckets: &'a [LeaseBucket], process: u32, is_living: fn(u32) -> bool) -> Self {
        Self { buckets, process, is_living }
    }

    /// Spends for a request at the monotonic time `now`, in µs, if each of its limits has a lease with
    /// enough units left: then `act` gets, for each charge, its index and its verdict. Charges that share a digest
    /// cannot both have its lease.
    pub fn spend<'q>(
        &self,
        charges: impl Iterator<Item = &'q Charge<'q>>,
        now: u64,
        act: &mut impl FnMut(usize, Verdict),
    ) -> bool {
        self.spend_rest(&mut charges.enumerate(), None, now, act)
    }

    /// All entries are locked before the first is changed, and none twice.
    fn spend_rest<'q>(
        &self,
        charges: &mut impl Iterator<Item = (usize, &'q Charge<'q>)>,
        before: Option<&Spending<'_>>,
        now: u64,
        act: &mut impl FnMut(usize, Verdict),
    ) -> bool {
        let Some((index, charge)) = charges.next() else { return true };
        let digest = charge.digest.number();
        if before.is_some_and(|it| it.has(digest)) {
            return false;
        }
        let Some(locked) = self.lock(digest) else { return false };
        let mut holding = locked.holding();
        let Some(verdict) = holding.spend(charge.quota, charge.cost, now) else { return false };
        if !self.spend_rest(charges, Some(&Spending { digest, before }), now, act) {
            return false;
        }
        locked.set(&holding);
        act(index, verdict);
        true
    }

    /// The record of a digest at this moment. Another worker may be about to change it.
    pub fn holding(&self, digest: u128) -> Option<Holding> {
        self.find(digest).map(LeaseEntry::holding)
    }

    /// Whether a command is in flight at the monotonic time `now` that gives units of a digest back, or may bring
    /// some.
    pub fn awaits_units(&self, digest: u128, now: u64) -> bool {
        self.find(digest).is_some_and(|it| it.is_taken(now) && it.holding().awaits_units())
    }

    /// The lease of a digest, locked; `None` if there is none, or another worker has it.
    fn lock(&self, digest: u128) -> Option<Locked<'a>> {
        // Until it is locked another client's lease may take its place.
        self.lock_entry(self.find(digest)?).filter(|locked| locked.is_of(digest))
    }

    /// Takes out the lease of a client, for a command with this charge that is to renew it until then, in
    /// µs. A command of cost 0 takes no units: it only reports what has ended.
    pub fn take(&self, charge: &Charge<'_>, now: u64, until: u64) -> Taken {
        let (digest, cost) = (charge.digest.number(), charge.cost);
        if cost > 0 && self.find(digest).is_none() {
            return Taken::Nothing;
        }
        let has_use = |locked: &Locked<'_>| cost > 0 || locked.holding().is_left_over(now);
        match self.lock(digest) {
            Some(locked) if !locked.is_taken(now) && has_use(&locked) => {
                Taken::Holding(locked.take(now, until))
            }
            _ => Taken::Busy,
        }
    }

    /// Takes note of what came of a command, for a charge about which it had `taken` the lease out: a new
    /// lease takes its place, or it goes back if nothing can have run. `limit` is the number of the limit, as the owner of
    /// the table numbers them. Answers what became of units.
    pub fn renew(
        &self,
        charge: &Charge<'_>,
        limit: u64,
        taken: Taken,
        outcome: &Outcome,
        now: u64,
    ) -> Renewed {
        if outcome.is_other_quota {
            return self.forget(charge, taken, &outcome.granted);
        }
        let Outcome { may_have_run, is_charged, is_rejected, granted, span, submitted, .. } =
            *outcome;
        let (before, is_renewal) = match taken {
            Taken::Busy => {
                if let Some(locked) = self.lock(charge.digest.number()) {
                    let mut holding = locked.holding();
                    match (is_charged, is_rejected) {
                        (true, _) => holding.charge(charge.quota, charge.cost, granted.now, now),
                        (_, true) => holding.allowed = 0,
                        (false, false) => {}
                    }
                    locked.set(&holding);
                }
                return Renewed::default();
            }
            Taken::Nothing => (Holding::UNKNOWN, false),
            Taken::Holding(holding) => (holding, true),
        };
        let put = |holding| self.put(charge, limit, holding, is_renewal, now);
        if is_renewal && !may_have_run {
            return Renewed { evicted: put(before), ..Renewed::default() };
        }
        let returned = granted.returned;
        let lapsed = before.units().saturating_sub(returned);
        let holding = |cost| Holding::new(charge.quota, span, &granted, cost, submitted);
        let evicted = if is_charged {
            put(holding(charge.cost).after(&before))
        } else if is_rejected {
            put(holding(0).after_rejection(&before))
        } else if is_renewal {
            put(before.reported())
        } else {
            None
        };
        Renewed { granted: granted.units, returned, lapsed, evicted }
    }

    /// Ends a lease that was taken out, and the one that a command has set aside in its place. Their quota is not the one
    /// that they are kept for: the next command with this charge asks for none.
    fn forget(&self, charge: &Charge<'_>, taken: Taken, granted: &Granted) -> Renewed {
        let Taken::Holding(before) = taken else { return Renewed::default() };
        let &Granted { units: granted, returned, .. } = granted;
        let lapsed = before.units().saturating_sub(returned).saturating_add(granted);
        let evicted = self.lock(charge.digest.number()).and_then(|locked| {
            let lapsed = Lapsed::of(locked.limit(), &locked.holding());
            locked.clear();
            lapsed
        });
        Renewed { granted, returned, lapsed, evicted }
    }

    /// Keeps a lease, with what others have brought meanwhile. Where there is no room, the entry with the
    /// fewest units goes. Answers what is lost.
    fn put(
        &self,
        charge: &Charge<'_>,
        limit: u64,
        holding: Holding,
        is_renewal: bool,
        now: u64,
    ) -> Option<Lapsed> {
        let digest = charge.digest.number();
        let is_known = self.find(digest).is_some();
        let locked = match is_known {
            true => self.lock(digest),
            false => self.room(digest, holding.units(), now),
        };
        match locked {
            // The command that renews a lease has the size for the client's demand.
            Some(locked) if !is_renewal && locked.is_taken(now) => Lapsed::of(limit, &holding),
            Some(locked) if is_known => locked.join(holding, charge.quota, now),
            Some(locked) => locked.replace(digest, limit, &holding),
            None => Lapsed::of(limit, &holding),
        }
    }

    /// An entry that may be replaced by one of so many units: a free one, or else the one with the
    /// fewest units, of which the oldest, unless those are more. What has ended counts as empty.
    fn room(&self, digest: u128, units: u64, now: u64) -> Option<Locked<'a>> {
        let value = |locked: &Locked<'_>| {
            let holding = locked.holding();
            (holding.left(now), holding.submitted)
        };
        let entries = self.bucket(digest)?.iter().filter_map(|entry| self.lock_entry(entry));
        let worst = entries.min_by_key(value)?;
        (worst.holding().left(now) <= units).then_some(worst)
    }

    fn find(&self, digest: u128) -> Option<&'a LeaseEntry> {
        self.bucket(digest)?.iter().find(|entry| entry.is_of(digest))
    }

    fn bucket(&self, digest: u128) -> Option<&'a LeaseBucket> {
        self.buckets.get(key::place(digest, self.buckets.len()))
    }

    fn lock_entry(&self, entry: &'a LeaseEntry) -> Option<Locked<'a>> {
        let guard = entry.lock.lock(self.process, self.is_living)?;
        if guard.was_left() {
            entry.clear();
        }
        Some(Locked { entry, _guard: guard })
    }
}

impl Spending<'_> {
    fn has(&self, digest: u128) -> bool {
        self.digest == digest || self.before.is_some_and(|before| before.has(digest))
    }
}

impl LeaseEntry {
    fn is_of(&self, digest: u128) -> bool {
        self.digest.iter().zip(split(digest)).all(|(own, word)| own.load(Ordering::Relaxed) == word)
    }

    fn set_digest(&self, digest: u128) {
        let words = self.digest.iter().zip(split(digest));
        words.for_each(|(own, word)| own.store(word, Ordering::Relaxed));
    }

    fn is_taken(&self, now: u64) -> bool {
        now < self.taken_until.load(Ordering::Relaxed)
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.set_digest(0);
        self.taken_until.store(0, Ordering::Relaxed);
        self.set_words([0; Holding::WORDS]);
    }

    fn holding(&self) -> Holding {
        Holding::from_words(self.holding.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    fn set_words(&self, words: [u64; Holding::WORDS]) {
        self.holding.iter().zip(words).for_each(|(own, word)| own.store(word, Ordering::Relaxed));
    }
}

impl Deref for Locked<'_> {
    type Target = LeaseEntry;

    fn deref(&self) -> &LeaseEntry {
        self.entry
    }
}

impl Lapsed {
    fn of(limit: u64, holding: &Holding) -> Option<Self> {
        let units = holding.units();
        (units > 0).then_some(Self { limit, units })
    }
}

impl Locked<'_> {
    fn set(&self, holding: &Holding) {
        self.set_words(holding.to_words());
    }

    fn take(&self, now: u64, until: u64) -> Holding {
        let holding = self.holding();
        self.set(&holding.taken(now));
        self.taken_until.store(until, Ordering::Relaxed);
        holding
    }

    /// Keeps both, and returns what is lost with one that has ended.
    fn join(&self, holding: Holding, quota: &Quota, now: u64) -> Option<Lapsed> {
        let before = self.holding();
        let kept = holding.join_to(before, quota, now);
        self.taken_until.store(0, Ordering::Relaxed);
        self.set(&kept);
        let units = (before.units().saturating_add(holding.units())).saturating_sub(kept.units());
        (units > 0).then(|| Lapsed { limit: self.limit(), units })
    }

    /// Keeps this instead, and returns what is lost.
    fn replace(&self, digest: u128, limit: u64, holding: &Holding) -> Option<Lapsed> {
        let lapsed = Lapsed::of(self.limit(), &self.holding());
        self.set_digest(digest);
        self.taken_until.store(0, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.set(holding);
        lapsed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Holds, Stored};
    use crate::charge::tests::template;
    use crate::limit::Algorithm;

    const SPAN: u64 = 1_000_000;
    /// By Redis's clock at the start of the monotonic one.
    const START: u64 = 1_700_000_000_000_000;

    fn buckets(count: usize) -> Vec<LeaseBucket> {
        std::iter::repeat_with(LeaseBucket::default).take(count).collect()
    }

    fn table(buckets: &[LeaseBucket]) -> LeaseTable<'_> {
        LeaseTable::new(buckets, 1, |_| true)
    }

    static QUOTA: LazyLock<Quota> = LazyLock::new(|| {
        Quota::new(Algorithm::TokenBucket, "1000r/s".parse().unwrap(), 1_000).unwrap()
    });

    fn quota() -> Quota {
        *QUOTA
    }

    fn charge(digest: u128, cost: u64) -> Charge<'static> {
        Charge { digest: digest.into(), ..Charge::new(template(), b"", &QUOTA, cost) }
    }

    /// So many units until [`SPAN`] after `now`.
    fn holding(units: u64, now: u64) -> Holding {
        let at = START.saturating_add(now);
        let ends = at.saturating_add(SPAN);
        let granted =
            Granted { units, now: at, ends, plain: [1_000 - 1, at, 0], ..Granted::default() };
        Holding::new(&quota(), SPAN, &granted, 1, now)
    }

    fn spend(table: &LeaseTable<'_>, digest: u128, now: u64) -> bool {
        table.spend([charge(digest, 1)].iter(), now, &mut |_, _| ())
    }

    fn put(
        table: &LeaseTable<'_>,
        digest: u128,
        number: u64,
        holding: Holding,
        is_renewal: bool,
        now: u64,
    ) -> Option<Lapsed> {
        table.put(&charge(digest, 1), number, holding, is_renewal, now)
    }

    /// The limits and the units of all leases that have not ended.
    fn units(table: &LeaseTable<'_>, now: u64) -> Vec<(u64, u64)> {
        let used = table.buckets.iter().flatten().filter(|entry| !entry.is_of(0));
        let locked = used.filter_map(|entry| table.lock_entry(entry));
        let all = locked.map(|locked| (locked.limit(), locked.entry.holding()));
        let left = all.filter(|(_, holding)| holding.units() > 0 && !holding.has_ended(now));
        let mut left: Vec<_> = left.map(|(limit, holding)| (limit, holding.units())).collect();
        left.sort_unstable();
        left
    }

    /// Its machine's clock may be slower than that of Redis, by one part of a thousand.
    #[test]
    fn a_lease_ends_before_its_window() {
        let window = 60_000_000;
        let (now, ends, plain) = (START, START + window, [0; 3]);
        let granted = Granted { units: 5, now, ends, plain, ..Granted::default() };
        let holding = Holding::new(&quota(), window, &granted, 1, 0);
        assert!(!holding.has_ended(window - window / 1_000));
        assert!(holding.has_ended(window - window / 1_100));
    }

    #[test]
    fn a_lease_is_spent_and_no_more() {
        let buckets = buckets(8);
        let table = table(&buckets);
        assert!(!spend(&table, 7, 0));
        assert_eq!(put(&table, 7, 3, holding(2, 0), false, 0), None);
        assert_eq!(units(&table, 0), [(3, 2)]);
        assert_eq!([1, 2, 3].map(|now| spend(&table, 7, now)), [true, true, false]);
        assert_eq!(units(&table, 3), []);
    }

    #[test]
    fn nothing_is_spent_after_its_end() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(2, 0), false, 0);
        assert!(!spend(&table, 7, SPAN) && units(&table, SPAN).is_empty());
    }

    /// Commands that were in flight at once have brought them. In one hold they are one lease; of two holds the later
    /// one is kept.
    #[test]
    fn of_two_leases() {
        let later = SPAN / 2;
        for (ends, kept) in [(START + 2 * SPAN, 7), (START + 3 * SPAN, 4)] {
            let buckets = buckets(1);
            let table = table(&buckets);
            let first = Holding { ends: START + 2 * SPAN, ..holding(3, 0) };
            put(&table, 7, 3, first, false, 0);
            let lapsed = put(&table, 7, 3, Holding { ends, ..holding(4, later) }, false, later);
            assert_eq!(lapsed, (kept == 4).then_some(Lapsed { limit: 3, units: 3 }));
            let end = later + SPAN;
            assert_eq!(units(&table, end - SPAN / 500), [(3, kept)]);
            assert!(!spend(&table, 7, end) && units(&table, end).is_empty());
            let Taken::Holding(taken) = table.take(&charge(7, 1), end, end + 10) else { panic!() };
            let report = taken.lease(&quota(), SPAN, end).report;
            assert_eq!((report.of, report.unused, report.ends), (kept, kept, ends));
        }
    }

    /// Charges of commands beside a lease are spent by the machine, but not those that came before the lease.
    #[test]
    fn what_is_charged_beside_a_lease() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(5, 10), false, 10);
        for (at, tokens, charged) in [(9, 999, 0), (10, 999, 0), (11, 997, 2)] {
            let granted = Granted::nothing(START + at);
            let (may_have_run, is_charged, is_rejected) = (true, true, false);
            let (span, submitted) = (SPAN, 0);
            let is_other_quota = false;
            let outcome = Outcome {
                may_have_run,
                is_charged,
                is_rejected,
                granted,
                is_other_quota,
                span,
                submitted,
            };
            table.renew(&charge(7, 2), 0, Taken::Busy, &outcome, 12);
            let report = table.holding(7).unwrap().lease(&quota(), SPAN, 12).report;
            assert_eq!((report.plain[0], report.charged), (tokens, charged), "{at}");
        }
    }

    /// The oldest lease without units gives way: else no more clients would be known.
    #[test]
    fn there_is_room_for_another_client_without_units() {
        let buckets = buckets(1);
        let table = table(&buckets);
        let all = 1..=WAYS as u64 + 1;
        for now in all.clone() {
            assert_eq!(put(&table, now.into(), 3, holding(0, now), false, now), None);
        }
        let known = all.filter(|digest| table.holding((*digest).into()).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    /// The demand is that of the last time of a lease: what was spent before counts less and less.
    #[test]
    fn what_was_in_demand_is_taken_again() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(9, 0), false, 0);
        (0..7).for_each(|_| assert!(spend(&table, 7, 1)));
        let want = |now| table.holding(7).unwrap().lease(&quota(), SPAN, now).want;
        assert_eq!([2, SPAN, 2 * SPAN, 8 * SPAN, 9 * SPAN].map(want), [8, 8, 4, 1, 0]);
        let Taken::Holding(taken) = table.take(&charge(7, 1), SPAN, SPAN + 10) else { panic!() };
        put(&table, 7, 3, holding(0, SPAN).after(&taken), true, SPAN);
        let want = |now| table.holding(7).unwrap().lease(&quota(), SPAN, now).want;
        assert_eq!([0, SPAN / 2, SPAN].map(|late| want(SPAN + late)), [9, 5, 1]);
    }

    /// After a rejection leases begin with small ones, also if it comes while another command renews the lease.
    #[test]
    fn a_rejection_makes_leases_small() {
        let buckets = buckets(1);
        let table = table(&buckets);
        let limit = charge(7, 1);
        let outcome = |is_charged, submitted, units| Outcome {
            may_have_run: true,
            is_charged,
            is_rejected: !is_charged,
            granted: Granted { units, ends: START + submitted + SPAN, ..Granted::nothing(START) },
            is_other_quota: false,
            span: SPAN,
            submitted,
        };
        let want = |now| table.holding(7).unwrap().lease(&quota(), SPAN, now).want;
        let charge_times = |times| {
            for _ in 0..times {
                let taken = table.take(&charge(7, 1), 1, 10);
                table.renew(&limit, 0, taken, &outcome(true, 1, 0), 1);
            }
        };
        charge_times(300);
        assert_eq!(want(1), 300);
        let taken = table.take(&charge(7, 1), 1, 10);
        table.renew(&limit, 0, taken, &outcome(false, 1, 0), 1);
        assert_eq!(want(1), 0);
        charge_times(399);
        assert_eq!(want(1), 1);
        charge_times(1);
        assert_eq!(want(1), 2);
        let taken = table.take(&charge(7, 1), 1, 10);
        let other = table.take(&charge(7, 1), 1, 10);
        assert_eq!(other, Taken::Busy);
        table.renew(&limit, 0, other, &outcome(false, 1, 0), 1);
        table.renew(&limit, 0, taken, &outcome(true, 1, 0), 1);
        assert_eq!(want(1), 0);
        // One that neither charges nor rejects, as where another limit rejects the request, changes nothing.
        let taken = table.take(&charge(7, 1), 1, 10);
        let none = Outcome { is_rejected: false, ..outcome(false, 1, 0) };
        table.renew(&limit, 0, taken, &none, 1);
        charge_times(199);
        assert_eq!(want(1), 1);
    }

    /// While one command renews a lease, others leave it alone, and know nothing better.
    #[test]
    fn a_lease_is_taken_once() {
        let buckets = buckets(1);
        let table = table(&buckets);
        assert_eq!(table.take(&charge(7, 1), 0, 10), Taken::Nothing);
        put(&table, 7, 3, holding(5, 0), false, 0);
        let Taken::Holding(taken) = table.take(&charge(7, 1), 1, 10) else { panic!() };
        assert_eq!(taken.units(), 5);
        assert!(!spend(&table, 7, 2));
        assert_eq!(table.take(&charge(7, 1), 2, 12), Taken::Busy);
        assert_eq!(put(&table, 7, 3, holding(0, 2), false, 2), None);
        assert!(!spend(&table, 7, 2), "kept what is no renewal");
        let lapsed = Some(Lapsed { limit: 3, units: 2 });
        assert_eq!(put(&table, 7, 3, holding(2, 2), false, 2), lapsed);
        assert_eq!(
            table.take(&charge(7, 1), 2, 12),
            Taken::Busy,
            "it is taken until its command is answered"
        );
        put(&table, 7, 3, holding(4, 3), true, 3);
        assert_eq!(units(&table, 3), [(3, 4)]);
        // A command that brings nothing does not keep others from it for ever.
        assert!(matches!(table.take(&charge(7, 1), 4, 10), Taken::Holding(_)));
        assert!(matches!(table.take(&charge(7, 1), 9, 20), Taken::Busy));
        let Taken::Holding(nothing) = table.take(&charge(7, 1), 10, 20) else { panic!() };
        assert_eq!((nothing.units(), nothing.lease(&quota(), SPAN, 10).is_none()), (0, true));
    }

    /// Redis counts a client by another quota than the machine: what it sets aside cannot be spent, and no more is asked for.
    #[test]
    fn a_lease_of_another_quota_lapses_once() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(5, 0), false, 0);
        let outcome = |granted| Outcome {
            may_have_run: true,
            is_charged: true,
            is_rejected: false,
            granted,
            is_other_quota: true,
            span: SPAN,
            submitted: 1,
        };
        let taken = table.take(&charge(7, 1), 1, 10);
        assert!(matches!(taken, Taken::Holding(_)));
        let granted = Granted { units: 8, returned: 4, ends: 2 * START, ..Granted::nothing(START) };
        let changes = table.renew(&charge(7, 1), 3, taken, &outcome(granted), 2);
        let lapsed = Renewed { granted: 8, returned: 4, lapsed: 9, evicted: None };
        assert_eq!(changes, lapsed);
        let taken = table.take(&charge(7, 1), 3, 10);
        assert_eq!(taken, Taken::Nothing);
        let changes = table.renew(&charge(7, 1), 3, taken, &outcome(Granted::nothing(START)), 4);
        assert_eq!((changes, table.holding(7)), (Renewed::default(), None));
    }

    /// It reports a lease that has ended, and leaves the demand as it was.
    #[test]
    fn a_command_of_cost_0() {
        let (buckets, end) = (buckets(1), SPAN);
        let table = table(&buckets);
        put(&table, 7, 0, holding(5, 0), false, 0);
        assert!(spend(&table, 7, 1));
        assert_eq!(table.take(&charge(7, 0), 1, 10), Taken::Busy, "it lasts");
        assert_eq!(table.take(&charge(8, 0), 1, 10), Taken::Busy, "there is none");
        let taken = table.take(&charge(7, 0), end, end + 10);
        let lease = taken.report(&quota(), SPAN, end).unwrap();
        assert_eq!((lease.want, lease.report.of, lease.report.unused), (0, 5, 4));
        let granted = Granted { returned: 4, ..Granted::nothing(START + end) };
        let (may_have_run, is_charged, span, submitted) = (true, true, SPAN, end);
        let (is_rejected, is_other_quota) = (false, false);
        let outcome = Outcome {
            may_have_run,
            is_charged,
            is_rejected,
            granted,
            is_other_quota,
            span,
            submitted,
        };
        let changes = table.renew(&charge(7, 0), 0, taken, &outcome, end);
        assert_eq!(changes, Renewed { returned: 4, ..Renewed::default() });
        assert_eq!(table.take(&charge(7, 0), end, end + 10), Taken::Busy, "all is reported");
        let Taken::Holding(holding) = table.take(&charge(7, 1), end, end + 10) else { panic!() };
        assert_eq!(holding.lease(&quota(), SPAN, end).want, 2);
    }

    /// All is spent of two leases that come at the same time, and each is shown what remains with both.
    #[test]
    fn leases_that_overlap_are_joined() {
        let buckets = buckets(1);
        let table = table(&buckets);
        let quota = quota();
        let mut redis = Stored::default();
        let mut grant = |now: u64, want| {
            let lease = Lease { span: SPAN, want, ..Lease::default() };
            let at = START + now;
            let verdict = quota.algorithm().decide(&mut redis, at, &quota, 1);
            let granted =
                quota.algorithm().grant(&mut redis, at, &quota, &lease, verdict.remaining);
            assert_eq!(granted.units, want);
            Holding::new(&quota, SPAN, &granted, 1, now)
        };
        let (first, last) = (grant(0, 3), grant(1, 2));
        // The replies come in any order.
        put(&table, 7, 3, last, false, 2);
        assert_eq!(put(&table, 7, 3, first, false, 2), None);
        assert_eq!(units(&table, 2), [(3, 5)]);
        let mut remaining = Vec::new();
        while table
            .spend([charge(7, 1)].iter(), 2, &mut |_, verdict| remaining.push(verdict.remaining))
        {
        }
        assert_eq!(remaining, [997, 996, 995, 994, 993]);
        // One report ends the hold of both.
        let Taken::Holding(taken) = table.take(&charge(7, 1), 3, 10) else { panic!() };
        let report = taken.lease(&quota, SPAN, 3).report;
        assert_eq!((report.of, report.unused), (5, 0));
        quota.algorithm().report(&mut redis, START + 3, &quota, &report);
        assert_eq!(redis.extra.holds, Holds::default());
    }

    #[test]
    fn what_has_fewest_units_goes_where_there_is_no_room() {
        let buckets = buckets(1);
        let table = table(&buckets);
        for digest in 1..=4 {
            assert_eq!(put(&table, digest, 3, holding(digest as u64 + 1, 0), false, 0), None);
        }
        // A lease with fewer units than any in the bucket finds no room.
        assert_eq!(put(&table, 5, 4, holding(0, 1), false, 1), None);
        let lapsed = Some(Lapsed { limit: 4, units: 1 });
        assert_eq!(put(&table, 5, 4, holding(1, 1), false, 1), lapsed);
        assert_eq!(units(&table, 1), [(3, 2), (3, 3), (3, 4), (3, 5)]);
        let lapsed = put(&table, 5, 4, holding(9, 1), false, 1);
        assert_eq!(lapsed, Some(Lapsed { limit: 3, units: 2 }));
        assert_eq!(units(&table, 1), [(3, 3), (3, 4), (3, 5), (4, 9)]);
        // A lease that is over goes first, however many units it has.
        let later = SPAN * 3;
        assert!(put(&table, 6, 4, holding(1, later), false, later).is_some());
        assert_eq!(units(&table, later), [(4, 1)]);
    }

    /// A worker dies while it changes an entry: nothing is spent from what it leaves, and another one
    /// empties the entry as soon as the process is gone.
    #[test]
    fn what_a_dead_worker_leaves_is_of_no_use() {
        static IS_LIVING: AtomicBool = AtomicBool::new(true);
        let buckets = buckets(1);
        let dying = LeaseTable::new(&buckets, 9, |_| true);
        let other = LeaseTable::new(&buckets, 1, |process| {
            assert_eq!(process, 9);
            IS_LIVING.load(Ordering::Relaxed)
        });
        put(&dying, 7, 3, holding(5, 0), false, 0);
        let locked = dying.lock(7).unwrap();
        let mut torn = holding(100, 0).to_words();
        torn[Holding::WORDS / 2..].fill(u64::MAX);
        locked.entry.set_words(torn);
        std::mem::forget(locked);

        assert!(!spend(&other, 7, 1));
        assert_eq!(other.take(&charge(7, 1), 1, 2), Taken::Busy);
        let lapsed = Some(Lapsed { limit: 3, units: 1 });
        assert_eq!(put(&other, 7, 3, holding(1, 1), true, 1), lapsed);
        assert!(!spend(&other, 7, 1), "an entry of a living process was used");
        IS_LIVING.store(false, Ordering::Relaxed);
        assert!(!spend(&other, 7, 1));
        assert_eq!(other.take(&charge(7, 1), 1, 2), Taken::Nothing);
        put(&other, 7, 3, holding(1, 1), false, 1);
        assert_eq!(units(&other, 1), [(3, 1)]);
    }

    /// A worker gets the process ID of one that has died while it changed an entry: the entry is as if of any dead one.
    #[test]
    fn what_a_dead_worker_of_the_same_process_id_leaves_is_of_no_use() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(5, 0), false, 0);
        std::mem::forget(table.lock(7).unwrap());

        assert!(!spend(&table, 7, 1));
        assert_eq!(table.take(&charge(7, 1), 1, 2), Taken::Nothing);
        put(&table, 7, 3, holding(1, 1), false, 1);
        assert_eq!(units(&table, 1), [(3, 1)]);
    }

    /// Limits of one request that share a client: the lease is for one of them, so Redis decides.
    #[test]
    fn charges_that_share_a_digest_leave_its_lease_alone() {
        let buckets = buckets(1);
        let table = table(&buckets);
        put(&table, 7, 3, holding(5, 0), false, 0);
        put(&table, 8, 3, holding(5, 0), false, 0);
        let before = table.holding(7);
        for charges in [vec![7, 7], vec![7, 8, 7]] {
            let charges: Vec<_> = charges.into_iter().map(|digest| charge(digest, 1)).collect();
            assert!(!table.spend(charges.iter(), 1, &mut |_, _| panic!("it has spent")));
        }
        assert_eq!(table.holding(7), before);
        assert_eq!(units(&table, 1), [(3, 5), (3, 5)]);
    }

    /// Whatever the memory holds.
    #[test]
    fn any_words_are_harmless() {
        proptest!(|(words: [u64; Holding::WORDS], now: u64, until: u64)| {
            let buckets = buckets(1);
            let table = table(&buckets);
            put(&table, 7, 3, holding(5, 0), false, 0);
            buckets.iter().flatten().find(|entry| entry.is_of(7)).unwrap().set_words(words);
            spend(&table, 7, now);
            units(&table, now);
            table.take(&charge(7, 1), now, until);
            put(&table, 7, 3, holding(5, now), true, now);
        });
    }

    /// Four workers on a few clients. Each unit is spent once, or lapses, or is left.
    #[test]
    fn workers_spend_each_unit_once() {
        const CLIENTS: u64 = 6;
        const UNITS: u64 = 10;
        const ROUNDS: u64 = 40_000;
        let buckets = buckets(1);
        // By client: the units of one are never another's.
        let counters = || [const { AtomicU64::new(0) }; CLIENTS as usize];
        let (granted, spent, lapsed) = (counters(), counters(), counters());
        let count = |counters: &[AtomicU64], client: u64, units| {
            counters[client as usize].fetch_add(units, Ordering::Relaxed);
        };
        let work = |process| {
            let table = LeaseTable::new(&buckets, process, |_| true);
            for round in 0..ROUNDS {
                let client = round % CLIENTS;
                let digest = u128::from(client) + 1;
                if spend(&table, digest, 1) {
                    count(&spent, client, 1);
                }
                let renewed = match table.take(&charge(digest, 1), 1, 2) {
                    Taken::Holding(holding) => holding,
                    Taken::Nothing => {
                        count(&granted, client, UNITS);
                        holding(UNITS, 0)
                    }
                    Taken::Busy => continue,
                };
                // So that others find the lease taken out. On a busy machine each time takes some ms.
                if round % 16 == 0 {
                    std::thread::yield_now();
                }
                if let Some(lost) = put(&table, digest, client, renewed, true, 1) {
                    count(&lapsed, lost.limit, lost.units);
                }
            }
        };
        let work = &work;
        std::thread::scope(|scope| {
            (1..=4).for_each(|process| drop(scope.spawn(move || work(process))));
        });
        let left = units(&table(&buckets), 1);
        for client in 0..CLIENTS {
            let of = |counters: &[AtomicU64]| counters[client as usize].load(Ordering::Relaxed);
            let own = left.iter().filter(|(limit, _)| *limit == client);
            let left: u64 = own.map(|(_, units)| units).sum();
            assert_eq!(of(&spent) + of(&lapsed) + left, of(&granted), "client {client}");
        }
        assert!(spent.iter().any(|spent| spent.load(Ordering::Relaxed) > 0));
    }
}
