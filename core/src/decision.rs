//! Verdicts of limits, and the decision on a request.

use crate::limit::Quota;
use crate::metrics::labels;
use crate::rate::SECOND;

labels! {
    /// The outcome of a request. Its name is the value of `$rate_limit_redis_status`.
    Status::COUNTED {
        /// Every limit allowed it.
        Passed = "PASSED",
        /// Every limit allowed it, after a while.
        Delayed = "DELAYED",
        /// A limit did not allow it.
        Rejected = "REJECTED",
        /// It would have been delayed.
        DelayedDryRun = "DELAYED_DRY_RUN",
        /// It would have been rejected.
        RejectedDryRun = "REJECTED_DRY_RUN",
        /// It was not decided, and the policy let it pass.
        ErrorPassed = "ERROR_PASSED",
        /// It was not decided, and the policy rejected it.
        ErrorRejected = "ERROR_REJECTED",
        ;
        /// Its keys were empty: it was not limited.
        Bypassed = "BYPASSED",
    }

    /// Where a decision was made. Its name is the value of `$rate_limit_redis_source`.
    Source::DECIDING {
        /// Redis.
        Redis = "redis",
        /// This machine, from units that Redis has set aside for it.
        Lease = "lease",
        /// The deny cache: Redis has rejected the client before.
        Cache = "cache",
        /// This machine alone, because Redis could not decide.
        Local = "local",
        ;
        /// Nowhere: the policy for errors applied, or the key was empty.
        None = "none",
    }
}

/// How a request was decided. Header fields, variables, bodies and logs are all written from it.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// The outcome of the request.
    pub status: Status,
    /// Where that was decided.
    pub source: Source,
    /// The limit to show, if any gave a verdict.
    pub shown: Option<Shown<'a>>,
    /// How long the request waited for the decision, in µs.
    pub wait: u64,
    /// How long the request is delayed before it passes, in µs.
    pub delay: u64,
    /// The time added to `Retry-After`, in µs.
    pub jitter: u64,
    /// Whether it could not be decided because a rate, capacity, burst or cost of the request is unusable.
    pub is_invalid: bool,
}

/// A limit and its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// The quota of the client.
    pub quota: &'a Quota,
    /// Its verdict.
    pub verdict: Verdict,
}

/// When a request that was rejected without a decision may be repeated, in µs.
const ERROR_RETRY_AFTER: u64 = SECOND;

impl Shown<'_> {
    /// This limit `micros` later: the quota is whole again so much sooner.
    pub fn after(mut self, micros: u64) -> Self {
        self.verdict.reset = self.verdict.reset.saturating_sub(micros);
        self
    }
}

impl Decision<'_> {
    /// Whether the request does not pass.
    pub fn is_rejected(&self) -> bool {
        matches!(self.status, Status::Rejected | Status::ErrorRejected)
    }

    /// The seconds for a `Retry-After` field, on a request that was rejected and may pass later.
    pub fn retry_after(&self) -> Option<u64> {
        let micros = match self.status {
            Status::Rejected => self.shown?.verdict.retry.after()?,
            Status::ErrorRejected if !self.is_invalid => ERROR_RETRY_AFTER,
            _ => return None,
        };
        Some(seconds(micros.saturating_add(self.jitter)).max(1))
    }
}

/// A random part of `most`; `random` is uniformly distributed.
pub fn jitter(most: u64, random: u32) -> u64 {
    let part = ((u128::from(most) + 1) * u128::from(random)) >> u32::BITS;
    u64::try_from(part).unwrap_or(most)
}

impl Status {
    /// The worse of two. A status that affects the request is worse than one of a dry run.
    pub fn worse(self, other: Self) -> Self {
        let rank = |status| match status {
            Self::Bypassed => 0,
            Self::Passed => 1,
            Self::DelayedDryRun => 2,
            Self::RejectedDryRun => 3,
            Self::ErrorPassed => 4,
            Self::Delayed => 5,
            Self::Rejected => 6,
            Self::ErrorRejected => 7,
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// Whether the request does not pass, or would not.
    pub fn is_rejection(self) -> bool {
        matches!(self, Self::Rejected | Self::RejectedDryRun | Self::ErrorRejected)
    }

    /// The status of a request that was decided: whether it is allowed, whether it is delayed, and
    /// whether this is a dry run.
    pub fn decided(allowed: bool, delayed: bool, dry_run: bool) -> Self {
        match (allowed, delayed, dry_run) {
            (true, false, _) => Self::Passed,
            (true, true, false) => Self::Delayed,
            (true, true, true) => Self::DelayedDryRun,
            (false, _, false) => Self::Rejected,
            (false, _, true) => Self::RejectedDryRun,
        }
    }
}

/// The result of checking one limit for one request, wherever it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this limit allows the request.
    pub allowed: bool,
    /// µs for which the client is sure to be blocked, whatever it regains; 0 if it is not known to be. Of a
    /// block of more than an hour only that much.
    pub blocked: u32,
    /// The units that the client may still spend at this moment.
    pub remaining: u64,
    /// µs until the quota is whole again, if nothing more is spent.
    pub reset: u64,
    /// When a rejected request could pass.
    pub retry: Retry,
}

/// When the same request could pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// It has passed.
    No,
    /// A request of this cost, alone on its key, passes after so many µs; at least 1.
    After(u64),
    /// The cost is more than the limit can ever hold.
    Never,
}

impl Verdict {
    /// How many integers a script replies for a limit that stores itself: see
    /// [`Verdict::from_reply`].
    pub const REPLY_LEN: usize = 4;

    /// How much of a longer block a verdict may show, in µs: an hour.
    const LONG_BLOCK: u32 = 3_600_000_000;

    /// The stricter of two verdicts in each value; each follows from a state of its own.
    pub fn stricter(self, other: Self) -> Self {
        Self {
            allowed: self.allowed && other.allowed,
            blocked: self.blocked.max(other.blocked),
            remaining: self.remaining.min(other.remaining),
            reset: self.reset.max(other.reset),
            retry: self.retry.max(other.retry),
        }
    }

    /// The verdict for a client that is blocked for `micros` more; 0: not blocked.
    pub(crate) fn blocked_for(self, micros: u64) -> Self {
        if micros == 0 {
            return self;
        }
        let (remaining, reset) = (0, self.reset.max(micros));
        let blocked = u32::try_from(micros).unwrap_or(u32::MAX);
        let retry = match self.retry {
            Retry::After(retry) => Retry::After(retry.max(micros)),
            Retry::No if !self.allowed => Retry::After(micros),
            retry => retry,
        };
        Self { blocked, remaining, reset, retry, ..self }
    }

    /// How long the client is still blocked, in µs; 0: it is not.
    pub(crate) fn block(&self) -> u64 {
        match self.retry {
            // The whole of a long block; missing units of the quota may take even longer to come back.
            Retry::After(retry) if self.blocked >= Self::LONG_BLOCK => retry,
            Retry::No | Retry::After(_) | Retry::Never => self.blocked.into(),
        }
    }

    /// Reads the reply of a script for a limit that stores itself: allowed (0 or 1), remaining (below
    /// zero: nothing, and for how many µs the client is blocked), µs until whole again, and µs until a
    /// retry passes (-1: never), or, if it is allowed, until whole again without this request. `None` for
    /// numbers that the script cannot reply.
    pub fn from_reply(reply: [i64; Self::REPLY_LEN]) -> Option<Self> {
        let [allowed, remaining, reset, retry] = reply;
        let retry = match (allowed, retry) {
            (1, 0..) => Retry::No,
            (0, -1) => Retry::Never,
            (0, 1..) => Retry::After(retry.unsigned_abs()),
            _ => return None,
        };
        Some(Self {
            allowed: allowed == 1,
            blocked: u32::try_from(remaining.min(0).unsigned_abs()).unwrap_or(u32::MAX),
            remaining: u64::try_from(remaining).unwrap_or(0),
            reset: u64::try_from(reset).ok()?,
            retry,
        })
    }
}

impl Retry {
    /// When a request of this cost could pass that is `allowed` or not, where `after` returns in how many µs one that `limit`
    /// can hold passes.
    #[inline(always)]
    pub(crate) fn of(allowed: bool, cost: u64, limit: u64, after: impl FnOnce() -> u64) -> Self {
        match allowed {
            true => Self::No,
            false if cost > limit => Self::Never,
            false => Self::After(after()),
        }
    }

    /// The time until the request could pass, in µs; `None` if it has passed or never will.
    pub fn after(self) -> Option<u64> {
        match self {
            Self::After(micros) => Some(micros),
            Self::No | Self::Never => None,
        }
    }
}

/// Whole seconds in `micros`, rounded up: a quota is never promised early.
pub fn seconds(micros: u64) -> u64 {
    micros.div_ceil(SECOND)
}

/// The index of the verdict to show of several: a rejection before any other (of several, the one
/// with the longest wait), else the one with the smallest share left. The first of equals wins.
/// `None` if there are no verdicts.
pub fn tightest(verdicts: impl IntoIterator<Item = (u64, Verdict)>) -> Option<usize> {
    let wait = |verdict: &Verdict| match verdict.retry {
        Retry::No => 0,
        Retry::After(micros) => micros,
        Retry::Never => u64::MAX,
    };
    // Compares the shares, remaining / limit, without a division.
    let product = |limit: u64, verdict: &Verdict| u128::from(verdict.remaining) * u128::from(limit);
    let compare = |(limit, verdict): &(u64, Verdict), (other, its): &(u64, Verdict)| {
        (verdict.allowed.cmp(&its.allowed))
            .then_with(|| wait(its).cmp(&wait(verdict)))
            .then_with(|| product(*other, verdict).cmp(&product(*limit, its)))
    };
    verdicts
        .into_iter()
        .enumerate()
        .min_by(|(_, one), (_, other)| compare(one, other))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn allowed(remaining: u64) -> Verdict {
        Verdict { allowed: true, blocked: 0, remaining, reset: 0, retry: Retry::No }
    }

    fn rejected(retry: Retry) -> Verdict {
        Verdict { allowed: false, blocked: 0, remaining: 0, reset: 0, retry }
    }

    #[test]
    fn what_is_counted_is_in_the_order_of_the_counters() {
        assert!(Status::COUNTED.into_iter().map(|it| it as usize).eq(0..Status::COUNTED.len()));
        assert_eq!(Status::Bypassed as usize, Status::COUNTED.len());
        assert!(Source::DECIDING.into_iter().map(|it| it as usize).eq(0..Source::DECIDING.len()));
        assert_eq!(Source::None as usize, Source::DECIDING.len());
    }

    #[test]
    fn a_reply_is_a_verdict() {
        let read = |reply| Verdict::from_reply(reply).unwrap();
        assert_eq!(read([1, 9, 600_000, 0]), Verdict { reset: 600_000, ..allowed(9) });
        assert_eq!(read([1, 0, 0, 0]), allowed(0));
        let late = rejected(Retry::After(1));
        assert_eq!(read([0, 0, 6_000_000, 1]), Verdict { reset: 6_000_000, ..late });
        let never = rejected(Retry::Never);
        assert_eq!(read([0, 3, 5, -1]), Verdict { remaining: 3, reset: 5, ..never });
        let blocked = |micros: i64| {
            let verdict = Verdict::from_reply([0, -micros, micros, micros]).unwrap();
            (verdict.remaining, verdict.blocked)
        };
        assert_eq!((blocked(1), blocked(i64::MAX)), ((0, 1), (0, u32::MAX)));
    }

    #[test]
    fn nonsense_is_no_verdict() {
        for reply in [[2, 0, 0, 0], [1, 0, -1, 0], [0, 0, 0, 0], [1, 0, 0, -1], [0, 0, 0, -2]] {
            assert_eq!(Verdict::from_reply(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn retry_after_is_never_early_and_never_zero() {
        let retry_after = |status, verdict, jitter| {
            let quota = Quota::new(Algorithm::Gcra, "1r/s".parse().unwrap(), 1).unwrap();
            let shown = Some(Shown { name: "a", quota: &quota, verdict });
            let (source, is_invalid) = (Source::Redis, false);
            Decision { status, source, shown, wait: 0, delay: 0, jitter, is_invalid }.retry_after()
        };
        let of = |retry| retry_after(Status::Rejected, rejected(retry), 0);
        assert_eq!(of(Retry::After(1)), Some(1));
        assert_eq!(of(Retry::After(1_000_000)), Some(1));
        assert_eq!(of(Retry::After(1_000_001)), Some(2));
        assert_eq!(of(Retry::Never), None);
        assert_eq!(retry_after(Status::Passed, allowed(1), 9_000_000), None);
        let later = |retry| retry_after(Status::Rejected, rejected(retry), 2_000_000);
        assert_eq!([later(Retry::After(1)), later(Retry::After(1_000_000))], [Some(3); 2]);
        assert_eq!(later(Retry::Never), None);
        assert_eq!(retry_after(Status::ErrorRejected, allowed(1), 1), Some(2));
    }

    #[test]
    fn jitter_is_between_nothing_and_the_most() {
        for most in [0, 1, 999, 3_600_000_000, u64::MAX] {
            assert_eq!((jitter(most, 0), jitter(most, u32::MAX)), (0, most - most / (1 << 32)));
        }
        assert_eq!(jitter(10_000_000, 1 << 31), 5_000_000);
    }

    #[test]
    fn the_tightest_is_shown() {
        assert_eq!(tightest([]), None);
        assert_eq!(tightest([(10, allowed(5)), (100, allowed(49))]), Some(1));
        assert_eq!(tightest([(100, allowed(49)), (10, allowed(5))]), Some(0));
        assert_eq!(tightest([(10, allowed(5)), (10, allowed(5))]), Some(0));
        assert_eq!(tightest([(10, allowed(5)), (20, allowed(10))]), Some(0));
        assert_eq!(tightest([(10, allowed(0)), (10, rejected(Retry::After(1)))]), Some(1));
        assert_eq!(
            tightest([(9, rejected(Retry::After(7))), (9, rejected(Retry::After(8)))]),
            Some(1)
        );
        assert_eq!(
            tightest([(9, rejected(Retry::Never)), (9, rejected(Retry::After(8)))]),
            Some(0)
        );
    }
}
