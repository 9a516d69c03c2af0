//! Leaky bucket, as NGINX's `limit_req`: a request that comes too early is delayed.
//!
//! It stores and decides as [gcra](super::Algorithm::Gcra) does, and they share a script. What
//! `limit_req` calls excess is how far the theoretical arrival time is ahead of the present, in
//! emission intervals, and a request is rejected if that is more than `burst`. Unlike with gcra, a
//! request that passes with some excess is delayed until there is none, or no more than `delay`.
//!
//! In any window of time t at most `burst + 1 + t × rate` is accepted, and without `delay` or
//! `nodelay` at most `cost + t × rate` passes, with the largest cost of a request.

use super::moment::Moment;
use super::{AlgorithmRow, Stored, gcra};
use crate::decision::Verdict;
use crate::limit::Quota;

pub(super) const ROW: AlgorithmRow = AlgorithmRow {
    name: "leaky_bucket",
    own_parameters: "\"burst=\", \"delay=\" and \"nodelay\"",
    delay: Some(delay),
    // The delays of requests follow from what all machines have let pass.
    leases: None,
    decide,
    ..gcra::ROW
};

/// Which part of the excess is not delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelayed {
    /// So much; 0 by default.
    UpTo(u64),
    /// All of it: `nodelay`.
    All,
}

/// Decides as gcra does. Units that a line of gcra has set aside as leases, under the same name, are spent: a request is
/// delayed by what they are worth, and not until the leases end.
fn decide(stored: &mut Stored, now: u64, quota: &Quota, cost: u64) -> Verdict {
    let verdict = gcra::decide(stored, now, quota, cost);
    Verdict { reset: gcra::regained_in(stored, now, quota), ..verdict }
}

fn delay(verdict: &Verdict, quota: &Quota, cost: u64, undelayed: Undelayed) -> u64 {
    let Undelayed::UpTo(undelayed) = undelayed else { return 0 };
    if !verdict.allowed || cost == 0 {
        return 0;
    }
    // The arrival time before this request, less the part that is not delayed. Both spans are
    // rounded up, so that they cancel if nothing was spent before.
    let counted = undelayed.saturating_add(cost).min(quota.limit().saturating_add(cost));
    let span = Moment::at(0).plus(quota.interval(), counted);
    verdict.reset.saturating_sub(span.ceil())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Retry;
    use crate::limit::Algorithm;

    fn delays(burst: u64, undelayed: Undelayed) -> Vec<Option<u64>> {
        let quota = Quota::new(Algorithm::LeakyBucket, "2r/s".parse().unwrap(), burst + 1).unwrap();
        let mut stored = Stored::default();
        let decide = |_| {
            let verdict = Algorithm::LeakyBucket.decide(&mut stored, 1_000_000, &quota, 1);
            verdict.allowed.then(|| delay(&verdict, &quota, 1, undelayed))
        };
        (0..6).map(decide).collect()
    }

    #[test]
    fn delays_what_limit_req_delays() {
        let ms = |ms: u64| Some(ms * 1_000);
        let all = delays(3, Undelayed::UpTo(0));
        assert_eq!(all, [ms(0), ms(500), ms(1_000), ms(1_500), None, None]);
        let some = delays(3, Undelayed::UpTo(2));
        assert_eq!(some, [ms(0), ms(0), ms(0), ms(500), None, None]);
        let none = delays(3, Undelayed::All);
        assert_eq!(none, [ms(0), ms(0), ms(0), ms(0), None, None]);
        assert_eq!(delays(0, Undelayed::UpTo(0)), [ms(0), None, None, None, None, None]);
    }

    /// Until a moment ago the line was one of gcra with leases.
    #[test]
    fn leases_of_another_line_delay_nothing_for_longer() {
        const NOW: u64 = 1_700_000_000_000_000;
        let quota = Quota::new(Algorithm::LeakyBucket, "10r/s".parse().unwrap(), 21).unwrap();
        let second = 1_000_000;
        for (held, delayed) in [(1, 100_000), (20, 2_000_000)] {
            let numbers = [NOW, 0, 0, 0, 0, held, NOW + 100 * second, 0, 0];
            let mut stored = Algorithm::LeakyBucket.read(&numbers.map(u64::to_le_bytes).concat());
            let verdict = Algorithm::LeakyBucket.decide(&mut stored, NOW, &quota, 1);
            assert!(verdict.allowed);
            assert_eq!(delay(&verdict, &quota, 1, Undelayed::UpTo(0)), delayed, "{held}");
        }
    }

    #[test]
    fn what_takes_no_turn_is_not_delayed() {
        let quota = Quota::new(Algorithm::LeakyBucket, "2r/s".parse().unwrap(), 1).unwrap();
        let rejected = Verdict {
            allowed: false,
            blocked: 0,
            remaining: 0,
            reset: 900_000,
            retry: Retry::After(500_000),
        };
        assert_eq!(delay(&rejected, &quota, 1, Undelayed::UpTo(0)), 0);
        let free = Verdict { allowed: true, retry: Retry::No, ..rejected };
        assert_eq!(delay(&free, &quota, 0, Undelayed::UpTo(0)), 0);
    }
}
