//! The deny cache: which rejections hold for a while, so that a client can be rejected without Redis.
//!
//! A rejection spends nothing, and what is regained comes at times that are known. So what rejects a
//! request of cost 1 rejects each until the first one could pass, whatever others of the same quota
//! spend meanwhile. Three things end that earlier, and so they end a [`Denial`]:
//!
//! - the end of a block: the next request that is rejected begins another one, which only Redis can;
//! - a request of another quota: it may leave a state that the first quota would not have;
//! - a refund: a limit that has any is not cached, unless its rejections block, which no refund ends.
//!
//! A settlement by this machine that charges more ends it too, before it is sent, as the client can pass later than the denial
//! says.
//!
//! So with the cache and without it the same requests pass; but what another machine does with another
//! quota, settles, or gives back of a lease, and what is given back of a request that was not decided in time, is noticed when
//! the denial ends by itself.
//!
//! The denials of a machine are [entries](crate::entry) in memory that its workers share. If the bucket of a client is full,
//! the entry that expires first is replaced.

use crate::decision::{Retry, Verdict};
use crate::entry::{self, ClientBucket, ClientEntry};
use crate::limit::Quota;
use crate::rate::SECOND;

/// The longest that a denial is used after the reply, in µs, even if the client cannot pass for longer: a
/// change in Redis, such as a deleted key, takes effect within this time.
const LONGEST_DENIAL: u64 = SECOND;

/// Whether rejections of requests of this cost are cached; `is_refundable`: what the limit charges may
/// be given back. Not where the cost is not 1: such a request finds ever more remaining while it waits,
/// and a denial only holds times.
pub fn is_cacheable(quota: &Quota, cost: u64, is_refundable: bool) -> bool {
    cost == 1 && (!is_refundable || quota.block() > 0)
}

/// A rejection of requests of one client, of one quota and of cost 1, in µs of this machine's monotonic
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The [`fingerprint`](Quota::fingerprint) of the quota.
    pub quota: u64,
    /// Until when all of them are rejected.
    pub until: u64,
    /// When the client can pass.
    pub passes: u64,
    /// When the quota is whole.
    pub whole: u64,
    /// Until when the client is sure to be blocked; 0 if it is not known to be.
    pub blocked: u64,
}

impl Denial {
    /// The denial that follows from a verdict of Redis on a request of this quota, if any does. The
    /// request was submitted at `submitted`, and the reply has come at `now`. Redis decided between the
    /// two: no request is rejected for longer than from the first one, and no `Retry-After` is
    /// shorter than from the second one.
    pub fn new(verdict: &Verdict, quota: &Quota, submitted: u64, now: u64) -> Option<Self> {
        let Retry::After(retry) = verdict.retry else { return None };
        let lasts = if quota.block() > 0 { verdict.blocked.into() } else { retry };
        let until = submitted.saturating_add(lasts).min(now.saturating_add(LONGEST_DENIAL));
        let (passes, whole) = (now.saturating_add(retry), now.saturating_add(verdict.reset));
        let blocked = match verdict.blocked {
            0 => 0,
            micros => submitted.saturating_add(micros.into()),
        };
        let quota = quota.fingerprint();
        (now < until).then_some(Self { quota, until, passes, whole, blocked })
    }

    fn of([until, quota, passes, whole, blocked]: [u64; entry::WORDS]) -> Self {
        Self { quota, until, passes, whole, blocked }
    }

    fn words(self) -> [u64; entry::WORDS] {
        [self.until, self.quota, self.passes, self.whole, self.blocked]
    }

    /// The verdict on a request at `now`, if it is rejected.
    pub fn verdict(&self, now: u64) -> Option<Verdict> {
        (now < self.until).then(|| Verdict {
            allowed: false,
            blocked: u32::try_from(self.blocked.saturating_sub(now)).unwrap_or(u32::MAX),
            remaining: 0,
            reset: self.whole.saturating_sub(now),
            retry: Retry::After(self.passes.saturating_sub(now).max(1)),
        })
    }
}

/// A table of denials. Clients are given by their digests.
#[derive(Clone, Copy, Debug)]
pub struct DenyTable<'a>(&'a [ClientBucket]);

impl<'a> DenyTable<'a> {
    /// The table in these buckets.
    pub fn new(buckets: &'a [ClientBucket]) -> Self {
        Self(buckets)
    }

    /// The verdict on a request of the client at the monotonic time `now`, in µs, if it is rejected. `quota` is
    /// the [`fingerprint`](crate::limit::Quota::fingerprint) of its quota.
    pub fn denied(&self, client: u128, quota: u64, now: u64) -> Option<Verdict> {
        let mut own = self.own(client).map(|(_, denial)| denial);
        own.find_map(|denial| denial.verdict(now).filter(|_| denial.quota == quota))
    }

    /// Keeps a denial of the client. Returns whether there is a place for it.
    pub fn deny(&self, client: u128, denial: Denial) -> bool {
        let until = |entry: &&ClientEntry| Denial::of(entry.words()).until;
        let own = self.own(client).next().map(|(entry, _)| entry);
        let entry = own.or_else(|| entry::bucket(self.0, client)?.iter().min_by_key(until));
        entry.inspect(|entry| entry.write(client, denial.words())).is_some()
    }

    /// Ends the denials of the client that are not of this quota.
    pub fn end_others(&self, client: u128, quota: u64) {
        let others = self.own(client).filter(|(_, denial)| denial.quota != quota);
        others.for_each(|(entry, _)| entry.write(client, [0; entry::WORDS]));
    }

    /// Ends all denials of the client.
    pub fn end(&self, client: u128) {
        self.own(client).for_each(|(entry, _)| entry.write(client, [0; entry::WORDS]));
    }

    /// The denials of the client, and their entries.
    fn own(&self, client: u128) -> impl Iterator<Item = (&'a ClientEntry, Denial)> {
        let entries = entry::bucket(self.0, client).into_iter().flatten();
        entries.filter_map(move |entry| Some((entry, Denial::of(entry.read(client)?))))
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::limit::Algorithm;

    const START: u64 = 1_000 * SECOND;

    /// A path of a second does not use up the time for which the denial is used.
    #[test]
    fn is_used_for_a_second_after_the_reply_however_long_that_took() {
        let quota = Quota::new(Algorithm::Gcra, "1r/6s".parse().unwrap(), 1).unwrap();
        let (retry, reset) = (Retry::After(5 * SECOND), 5 * SECOND);
        let verdict = Verdict { allowed: false, blocked: 0, remaining: 0, reset, retry };
        let denial = |replied| Denial::new(&verdict, &quota, START, START + replied);
        let until = |replied| denial(replied).map(|denial| denial.until - START);
        assert_eq!(until(SECOND), Some(2 * SECOND));
        assert_eq!(until(4 * SECOND + SECOND / 2), Some(5 * SECOND), "Redis may let it pass then");
        assert_eq!(until(5 * SECOND), None);
    }

    /// Header fields and log lines of a client that is blocked tell the end of the block.
    #[test]
    fn knows_a_block() {
        let quota = Quota::new(Algorithm::Gcra, "1r/6s".parse().unwrap(), 1).unwrap();
        let (retry, reset) = (Retry::After(60 * SECOND), 60 * SECOND);
        let verdict = Verdict { allowed: false, blocked: 60_000_000, remaining: 0, reset, retry };
        let denial = Denial::new(&verdict, &quota, START, START + 1_000).unwrap();
        let table = [ClientBucket::default()];
        assert!(DenyTable::new(&table).deny(CLIENT, denial));
        let cached = |now| DenyTable::new(&table).denied(CLIENT, quota.fingerprint(), START + now);
        let blocked = |now| cached(now).map(|verdict| verdict.blocked);
        assert_eq!((blocked(2_000), blocked(1_000_000)), (Some(59_998_000), Some(59_000_000)));
        assert_eq!(cached(2_000).unwrap().retry, Retry::After(59_999_000));
    }

    const CLIENT: u128 = 7 << 64 | 7;

    fn denial(quota: u64, until: u64) -> Denial {
        Denial { quota, until, passes: until, whole: until, blocked: 0 }
    }

    #[test]
    fn a_client_has_one_denial() {
        let buckets = [ClientBucket::default()];
        let table = DenyTable::new(&buckets);
        assert_eq!(table.denied(CLIENT, 1, 0), None);
        assert!(table.deny(CLIENT, denial(1, 10)) && table.deny(CLIENT, denial(1, 20)));
        assert!(table.denied(CLIENT, 1, 19).is_some());
        let none = [(CLIENT, 1, 20), (CLIENT, 2, 0), (CLIENT + 1, 1, 0)];
        assert!(
            none.iter().all(|(client, quota, now)| table.denied(*client, *quota, *now).is_none())
        );
        table.end_others(CLIENT, 1);
        assert!(table.denied(CLIENT, 1, 19).is_some());
        table.end_others(CLIENT, 2);
        assert_eq!(table.denied(CLIENT, 1, 0), None);
        assert!(table.deny(CLIENT, denial(1, 10)));
        table.end(CLIENT + 1);
        assert!(table.denied(CLIENT, 1, 9).is_some());
        table.end(CLIENT);
        assert_eq!(table.denied(CLIENT, 1, 9), None);
    }

    #[test]
    fn what_expires_first_is_replaced() {
        let buckets = [ClientBucket::default()];
        let table = DenyTable::new(&buckets);
        let clients: Vec<_> = (0..5).map(|client| CLIENT + client).collect();
        for (client, until) in clients.iter().zip([30, 10, 40, 20, 50]) {
            assert!(table.deny(*client, denial(1, until)));
        }
        let denied = clients.iter().map(|client| table.denied(*client, 1, 0).is_some());
        assert!(denied.eq([true, false, true, true, true]));
        assert!(!DenyTable::new(&[]).deny(CLIENT, denial(1, 10)));
    }
}
