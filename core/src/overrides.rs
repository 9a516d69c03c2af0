//! The rate and capacity that a client has of its own, in place of those of the line.
//!
//! An override is kept with the state of its client, under the same key, and read by the script that decides. It
//! stands behind the state: six numbers of eight bytes each, the lowest byte first, and two bytes that tell such a value
//! from others.
//!
//! Spent units stay spent. Where an override begins or ends, as many units are missing afterwards as were before: what
//! is more than the new quota is owed, as a debt is, up to ten times that quota (but a log forgets its entries as before). A part of a unit that was about to come is
//! lost, and a window counts what was spent in the window before as spent in this one: so no change lets more through
//! than the quota that it leads to.

use std::num::NonZeroU64;

use crate::algorithm::Stored;
use crate::limit::{Algorithm, Quota};
use crate::rate::{MAX_EXACT, Rate, SECOND};

/// The rate and capacity of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The rate.
    pub rate: Rate,
    /// The most that can be spent at once.
    pub limit: u64,
    /// When it ends, in µs; `None`: when it is removed. In Redis and its replies this is by Redis's clock, in the memory of a
    /// machine by its monotonic clock: see [`by_clock`](Self::by_clock).
    pub ends: Option<NonZeroU64>,
}

/// The record that is stored of a client, as it counts at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The state.
    pub stored: Stored,
    /// The quota that it counts by.
    pub quota: Quota,
    /// The override that this quota is from.
    pub own: Option<Override>,
}

/// The numbers of a record.
const NUMBERS: usize = 6;

/// The end of a record.
const MARK: &[u8] = b"o\x01";

impl Override {
    /// How many bytes a record takes.
    pub(crate) const LEN: usize = NUMBERS * size_of::<u64>() + MARK.len();

    /// Whether it has ended at `now`.
    pub fn is_over(&self, now: u64) -> bool {
        self.ends.is_some_and(|ends| ends.get() <= now)
    }

    /// This override of Redis with its end by a clock that shows `there` when the clock of Redis shows `now`.
    #[must_use]
    pub fn by_clock(self, now: u64, there: u64) -> Self {
        let moved = |ends: NonZeroU64| {
            let rest = ends.get().saturating_sub(now);
            NonZeroU64::MIN.saturating_add(there.saturating_add(rest).saturating_sub(1))
        };
        Self { ends: self.ends.map(moved), ..self }
    }

    /// Whether both are the same, apart from the time that a reply took, by which a machine may know the end wrongly.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let ends_with = match (self.ends, other.ends) {
            (Some(one), Some(other)) => one.get().abs_diff(other.get()) < SECOND,
            (one, other) => one == other,
        };
        ends_with && (self.rate, self.limit) == (other.rate, other.limit)
    }

    /// The quota of its client, where that of the line is `quota`; `None` if the algorithm cannot count it.
    pub fn quota(&self, quota: &Quota) -> Option<Quota> {
        let own = Quota::new(quota.algorithm(), self.rate, self.limit).ok()?;
        quota.with_terms_of(&own)
    }

    /// Limit, period and count as scripts take them, the end or 0, and the two numbers of the rate.
    pub(crate) fn numbers(&self, quota: &Quota) -> [u64; NUMBERS] {
        let ((period, count), [n, rate_period]) = (quota.terms(), self.rate.to_numbers());
        let ends = self.ends.map_or(0, NonZeroU64::get);
        [self.limit, period, count, ends, n, rate_period]
    }

    /// The override of these numbers; `None` if any of them is out of bounds.
    pub(crate) fn from_numbers(numbers: [u64; NUMBERS]) -> Option<Self> {
        let [limit, period, count, ends, n, rate_period] = numbers;
        let is_in_bounds =
            limit.min(count) > 0 && limit.max(period).max(count).max(ends) <= MAX_EXACT;
        if !is_in_bounds {
            return None;
        }
        Self::from_parts(limit, ends, [n, rate_period])
    }

    /// The override of this limit, end or 0, and numbers of a rate; `None` if there is no such rate.
    pub(crate) fn from_parts(limit: u64, ends: u64, rate: [u64; 2]) -> Option<Self> {
        Some(Self { rate: Rate::from_numbers(rate)?, limit, ends: NonZeroU64::new(ends) })
    }

    /// The limit, the end or 0, and the two numbers of the rate.
    pub(crate) fn to_parts(self) -> [u64; 4] {
        let [n, period] = self.rate.to_numbers();
        [self.limit, self.ends.map_or(0, NonZeroU64::get), n, period]
    }

    /// The stored bytes without the record, and the override, if there is a record. One that is out of bounds is no
    /// override.
    pub(crate) fn split(bytes: &[u8]) -> (&[u8], Option<Self>) {
        let is_record = matches!(bytes.len() % size_of::<u64>(), 2 | 3) && bytes.ends_with(MARK);
        let start = bytes.len().checked_sub(Self::LEN).filter(|_| is_record);
        let Some((state, record)) = start.and_then(|start| bytes.split_at_checked(start)) else {
            return (bytes, None);
        };
        let (numbers, _) = record.as_chunks();
        let mut read = numbers.iter().map(|number| u64::from_le_bytes(*number));
        (state, Self::from_numbers(std::array::from_fn(|_| read.next().unwrap_or_default())))
    }
}

impl Algorithm {
    /// Reads what is stored of a client of a limit, as it counts at `now`, in µs.
    pub fn read_applied(self, bytes: &[u8], now: u64, quota: &Quota) -> Applied {
        let (state, own) = Override::split(bytes);
        if !quota.has_override() {
            return Applied { stored: self.read(state), quota: *quota, own: None };
        }
        Applied::new(self.read(state), own, now, quota)
    }
}

impl Applied {
    /// This state of a client with this override, if it has one, as it counts at `now`.
    pub fn new(stored: Stored, own: Option<Override>, now: u64, quota: &Quota) -> Self {
        let its = own.and_then(|own| Some((own, own.quota(quota)?)));
        match its {
            None => Self { stored, quota: *quota, own: None },
            Some((own, its)) => match own.ends {
                Some(ends) if own.is_over(now) => {
                    let stored = quota.algorithm().carry_over(stored, ends.get(), &its, quota);
                    Self { stored, quota: *quota, own: None }
                }
                Some(_) | None => Self { stored, quota: its, own: Some(own) },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Verdict;

    const NOW: u64 = 1_700_000_000 * SECOND;

    fn quota() -> Quota {
        Quota::new(Algorithm::TokenBucket, "10r/s".parse().unwrap(), 10).unwrap().with_override()
    }

    fn own(limit: u64, ends: u64) -> Override {
        Override { rate: "3r/s".parse().unwrap(), limit, ends: NonZeroU64::new(ends) }
    }

    /// The bytes that a script stores behind a state.
    fn record(own: &Override) -> Vec<u8> {
        let numbers = own.numbers(&own.quota(&quota()).unwrap());
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        bytes.chain(MARK.iter().copied()).collect()
    }

    #[test]
    fn a_record_stands_behind_any_state() {
        for length in [0, 24, 72, 80, 24 + 16 + 1, 80 + 32 + 1] {
            let state = vec![7; length];
            let value = [&state[..], &record(&own(5, NOW))].concat();
            assert_eq!(Override::split(&value), (&state[..], Some(own(5, NOW))), "{length}");
            assert_eq!(Override::split(&state), (&state[..], None), "{length}");
        }
    }

    #[test]
    fn a_record_out_of_bounds_is_no_override() {
        for word in [0, 2, 4] {
            let mut value = record(&own(5, 0));
            value[8 * word..8 * word + 8].fill(0);
            assert_eq!(Override::split(&value), (&[][..], None), "{word}");
            value[8 * word..8 * word + 8].fill(0xff);
            assert_eq!(Override::split(&value), (&[][..], None), "{word}");
        }
        let mut value = record(&own(5, 0));
        value.pop();
        assert_eq!(Override::split(&value), (&value[..], None));
    }

    #[test]
    fn a_line_without_override_counts_by_its_own_quota() {
        let with_override = quota();
        let line = Quota::new(Algorithm::TokenBucket, with_override.rate(), 10).unwrap();
        let state = [3, NOW, 0].map(u64::to_le_bytes).concat();
        let stored = Algorithm::TokenBucket.read(&state);
        assert_ne!(stored, Stored::default());
        let value = [&state[..], &record(&own(5, 0))].concat();
        let applied = Algorithm::TokenBucket.read_applied(&value, NOW, &line);
        assert_eq!(applied, Applied { stored, quota: line, own: None });
        let applied = Algorithm::TokenBucket.read_applied(&value, NOW, &with_override);
        assert_eq!((applied.quota.limit(), applied.own), (5, Some(own(5, 0))));
    }

    #[test]
    fn an_override_ends_at_its_time() {
        let (ends, quota) = (NOW + SECOND, quota());
        let limit =
            |now| Applied::new(Stored::default(), Some(own(5, ends)), now, &quota).quota.limit();
        assert_eq!([limit(NOW), limit(ends - 1), limit(ends)], [5, 5, 10]);
    }

    #[test]
    fn a_machine_has_the_end_by_its_own_clock() {
        let ends = |own: Override| own.ends.map(NonZeroU64::get);
        let own = own(5, NOW + 3 * SECOND);
        assert_eq!(ends(own.by_clock(NOW, 100)), Some(100 + 3 * SECOND));
        assert_eq!(ends(own.by_clock(NOW + 9 * SECOND, 100)), Some(100));
        let (known, later) = (own.by_clock(NOW, 100), own.by_clock(NOW, 100 + SECOND / 2));
        assert!(known.is_like(&later) && later.is_like(&known));
        assert!(!known.is_like(&own.by_clock(NOW, 100 + SECOND)));
        assert!(!known.is_like(&Override { limit: 6, ..known }));
        let endless = Override { ends: None, ..own };
        assert!(endless.is_like(&endless.by_clock(NOW, 100)) && !endless.is_like(&known));
    }

    #[test]
    fn what_was_spent_stays_spent() {
        let (line, mut stored) = (quota(), Stored::default());
        line.algorithm().decide(&mut stored, NOW, &line, 7);
        for (limit, remaining) in [(20, 13), (10, 3), (7, 0), (5, 0)] {
            let its = own(limit, 0).quota(&line).unwrap();
            let mut carried = line.algorithm().carry_over(stored.clone(), NOW, &line, &its);
            let Verdict { remaining: found, .. } =
                line.algorithm().decide(&mut carried, NOW, &its, 0);
            assert_eq!(found, remaining, "{limit}");
            // Back at the quota of the line as much is missing as before.
            let mut back = line.algorithm().carry_over(carried, NOW, &its, &line);
            let verdict = line.algorithm().decide(&mut back, NOW, &line, 0);
            assert_eq!(verdict.remaining, 3, "{limit}");
        }
    }
}
