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
//! So with the cache and without it the same requests pass; but what another machine does with another
//! quota, or gives back of a lease, is noticed when the denial ends by itself.

pub mod table;

use crate::decision::{Retry, Verdict};
use crate::limit::Quota;
use crate::rate::SECOND;

/// The longest that a denial is used after the reply, in µs, even if the client cannot pass for longer: a
/// change in Redis, such as a deleted key, takes effect within this time.
const LONGEST: u64 = SECOND;

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
}

impl Denial {
    /// The denial that follows from a verdict of Redis on a request of this quota, if any does. The
    /// request was submitted at `submitted`, and the reply has come at `now`. Redis decided between the
    /// two: no request is rejected for longer than from the first one, and no client is told to come
    /// back earlier than from the second one.
    pub fn new(verdict: &Verdict, quota: &Quota, submitted: u64, now: u64) -> Option<Self> {
        let Retry::After(retry) = verdict.retry else { return None };
        let lasts = if quota.block() > 0 { verdict.blocked.into() } else { retry };
        let until = submitted.saturating_add(lasts).min(now.saturating_add(LONGEST));
        let (passes, whole) = (now.saturating_add(retry), now.saturating_add(verdict.reset));
        (now < until).then_some(Self { quota: quota.fingerprint(), until, passes, whole })
    }

    /// The verdict on a request at `now`, if it is rejected.
    pub fn verdict(&self, now: u64) -> Option<Verdict> {
        (now < self.until).then(|| Verdict {
            allowed: false,
            blocked: 0,
            remaining: 0,
            reset: self.whole.saturating_sub(now),
            retry: Retry::After(self.passes.saturating_sub(now).max(1)),
        })
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
}
