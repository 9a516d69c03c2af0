//! The form in untyped memory: a sequence of words.
//!
//! The first word of a state has its kind in the top byte and a number in the rest, so that a state
//! with three numbers takes three words. If there is an [`Extra`], seven more come before it, in the
//! same way; and before these [`Minima`]: how many steps there are, and two numbers for each.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::hold::{Hold, Holds};
use super::minima::{Minima, Minimum};
use super::moment::Moment;
use super::state::{Extra, State, Stored};

/// Every number of a state is below 2^56, with room for sums of a few of them in a word.
const NUMBER_BITS: u32 = 56;
const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;

const BUCKET: u64 = 1;
const ARRIVAL: u64 = 2;
const WINDOW: u64 = 3;
const LOG: u64 = 4;
const EXTRA: u64 = 5;
const MINIMA: u64 = 6;

/// The words of a state: seldom more than seven for an [`Extra`], and three.
type Words = SmallVec<[u64; 10]>;

impl Stored {
    /// The stored minima, extra numbers and state, as words.
    pub(crate) fn to_words(&self) -> Words {
        let mut words = Words::new();
        if !self.minima.is_empty() {
            self.minima.push_to(&mut words);
        }
        if !self.extra.is_none() {
            self.extra.push_to(&mut words);
        }
        if let Some(state) = &self.state {
            state.push_to(&mut words);
        }
        words
    }

    /// Reads words; words that no decision can have left read as nothing.
    pub(crate) fn from_words(words: impl Iterator<Item = u64>) -> Self {
        let mut words = words.peekable();
        let mut read = || {
            let minima = match words.peek().map(|word| word >> NUMBER_BITS) {
                Some(MINIMA) => Minima::from_words(&mut words)?,
                Some(_) | None => Minima::default(),
            };
            let extra = match words.peek().map(|word| word >> NUMBER_BITS) {
                Some(EXTRA) => Extra::from_words(&mut words)?,
                Some(_) | None => Extra::default(),
            };
            Some(Self { state: Some(State::from_words(&mut words)?), extra, minima })
        };
        read().unwrap_or_default()
    }
}

/// The first word of a kind.
fn first(kind: u64, number: u64) -> u64 {
    (kind << NUMBER_BITS) | number.min(MAX_NUMBER)
}

impl Minima {
    fn push_to(&self, words: &mut Words) {
        words.push(first(MINIMA, self.steps().len() as u64));
        let numbers = self.steps().iter().flat_map(|step| [step.at, step.missing]);
        words.extend(numbers.map(|number| number.min(MAX_NUMBER)));
    }

    fn from_words(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let count = words.next()? & MAX_NUMBER;
        let mut next = || words.next().filter(|word| *word <= MAX_NUMBER);
        let step = |_| Some(Minimum { at: next()?, missing: next()? });
        let is_known = (1..=Self::MOST as u64).contains(&count);
        is_known.then(|| (0..count).map(step).collect::<Option<Vec<_>>>())?.map(Self::new)
    }
}

impl Extra {
    fn push_to(&self, words: &mut Words) {
        let Holds { older, newer, charged } = self.holds;
        let holds = [older.units, older.until, newer.units, newer.until];
        let numbers = holds.into_iter().chain([charged, self.blocked_until]);
        words.push(first(EXTRA, self.debt));
        words.extend(numbers.map(|number| number.min(MAX_NUMBER)));
    }

    fn from_words(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let mut next = || words.next().map(|word| word & MAX_NUMBER);
        let debt = next()?;
        let mut hold = || Some(Hold { units: next()?, until: next()? });
        let (older, newer) = (hold()?, hold()?);
        let holds = Holds { older, newer, charged: next()? };
        Some(Self { holds, debt, blocked_until: next()? })
    }
}

impl State {
    fn push_to(&self, words: &mut Words) {
        match self {
            Self::Bucket(tokens, Moment { micros, part }) => {
                words.extend([first(BUCKET, *tokens), *micros, *part]);
            }
            Self::Arrival(Moment { micros, part }) => {
                words.extend([first(ARRIVAL, *micros), *part])
            }
            Self::Window(window, current, previous) => {
                words.extend([first(WINDOW, *window), *current, *previous]);
            }
            Self::Log(log, since) => {
                words.push(first(LOG, *since));
                words.extend(log.iter().flat_map(|(time, cost)| [*time, *cost]));
            }
        }
    }

    /// The state that these words are; `None` for words that no decision has left.
    fn from_words(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let first = words.next()?;
        let (kind, number) = (first >> NUMBER_BITS, first & MAX_NUMBER);
        let mut numbers = words.map(|word| (word <= MAX_NUMBER).then_some(word));
        let mut next = || numbers.next()?;
        let state = match kind {
            BUCKET => Self::Bucket(number, Moment { micros: next()?, part: next()? }),
            ARRIVAL => Self::Arrival(Moment { micros: number, part: next()? }),
            WINDOW => Self::Window(number, next()?, next()?),
            LOG => Self::Log(entries(&mut numbers)?, number),
            0 | EXTRA.. => return None,
        };
        numbers.next().is_none().then_some(state)
    }
}

fn entries(numbers: &mut impl Iterator<Item = Option<u64>>) -> Option<VecDeque<(u64, u64)>> {
    let mut log = VecDeque::with_capacity(numbers.size_hint().0 / 2);
    let mut total = 0;
    while let Some(time) = numbers.next() {
        let cost = numbers.next()??;
        total += cost;
        if total > MAX_NUMBER {
            return None;
        }
        log.push_back((time?, cost));
    }
    Some(log)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::limit::{Algorithm, Quota};
    use crate::rate::{MAX_EXACT, Rate};

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![0..10_u64, 0..=MAX_EXACT, Just(MAX_NUMBER)]
    }

    fn states() -> impl Strategy<Value = State> {
        let moments = || (numbers(), numbers()).prop_map(|(micros, part)| Moment { micros, part });
        let entries = vec((numbers(), 0..1_000_u64), 0..20);
        prop_oneof![
            (numbers(), moments()).prop_map(|(tokens, moment)| State::Bucket(tokens, moment)),
            moments().prop_map(State::Arrival),
            (numbers(), numbers(), numbers()).prop_map(|(n, a, b)| State::Window(n, a, b)),
            (entries, numbers()).prop_map(|(log, since)| State::Log(log.into(), since)),
        ]
    }

    fn stored() -> impl Strategy<Value = Stored> {
        let hold = || (numbers(), numbers()).prop_map(|(units, until)| Hold { units, until });
        let holds = (hold(), hold(), numbers());
        let holds = holds.prop_map(|(older, newer, charged)| Holds { older, newer, charged });
        let extra = (holds, numbers(), numbers()).prop_map(|(holds, debt, blocked_until)| Extra {
            holds,
            debt,
            blocked_until,
        });
        let extra = prop_oneof![Just(Extra::default()), extra];
        let step = (numbers(), numbers()).prop_map(|(at, missing)| Minimum { at, missing });
        let minima = vec(step, 0..=Minima::MOST).prop_map(Minima::new);
        (states(), extra, minima).prop_map(|(state, extra, minima)| Stored {
            state: Some(state),
            extra,
            minima,
        })
    }

    /// Words of a state that were changed, or just words.
    fn words() -> impl Strategy<Value = Vec<u64>> {
        let kinds = (0..7_u64, numbers()).prop_map(|(kind, number)| (kind << NUMBER_BITS) | number);
        let word = || prop_oneof![8 => numbers(), 1 => any::<u64>()];
        (kinds, vec(word(), 0..12)).prop_map(|(first, rest)| [vec![first], rest].concat())
    }

    proptest! {
        #[test]
        fn what_is_stored_survives_the_round_trip(stored in stored()) {
            prop_assert_eq!(Stored::from_words(stored.to_words().into_iter()), stored);
        }

        /// Not even where numbers that overflow would.
        #[test]
        fn no_words_make_a_decision_panic(
            words in words(),
            now in numbers(),
            cost in 0..=MAX_EXACT,
            count in 1..1_000_u64,
            period in 1..1_000_000_u64,
        ) {
            let now = now.min(MAX_EXACT);
            let stored = Stored::from_words(words.into_iter());
            for algorithm in Algorithm::ALL {
                let quota = Quota::new(algorithm, Rate::new(count, period).unwrap(), count).unwrap();
                for cost in [cost, 0, 1] {
                    let verdict = algorithm.decide(&mut stored.clone(), now, &quota, cost);
                    prop_assert!(verdict.remaining <= quota.limit());
                }
            }
        }
    }

    #[test]
    fn cut_or_joined_words_are_no_state() {
        let log = State::Log([(1, 2), (3, 4)].into(), 0);
        for state in [State::Bucket(1, Moment::at(2)), State::Window(1, 2, 3), log] {
            for extra in [Extra::default(), Extra { debt: 1, ..Extra::default() }] {
                let words = Stored { state: Some(state.clone()), extra, ..Stored::default() };
                let words = words.to_words();
                let (_, cut) = words.split_last().unwrap();
                let read = |words: &[u64]| Stored::from_words(words.iter().copied());
                assert_eq!(read(cut), Stored::default(), "{state:?}");
                assert_eq!(read(&[&words[..], &[1]].concat()), Stored::default(), "{state:?}");
            }
        }
        assert_eq!(Stored::from_words([].into_iter()), Stored::default());
    }
}
