//! The form in Redis: numbers of eight bytes each, the lowest byte first. Three are the state, the
//! last of which may be unused; six more follow if there is an [`Extra`], and one more if something was charged
//! while units are held. If there are [`Minima`], two numbers for each step come behind the first three, or behind all
//! ten, and a byte that tells such a value from others.
//!
//! Redis packs and unpacks them faster than it writes and reads decimal ones. Any bytes of the
//! right length read as numbers, also those of other programs. A number that is not exact in the doubles of
//! the scripts is above every bound that it is compared with.

use super::hold::{Hold, Holds};
use super::minima::{Minima, Minimum};
use super::state::Extra;

/// Reads the bytes as `struct.unpack` of the scripts does; `None` if they have another length.
pub(super) fn numbers(bytes: &[u8]) -> Option<([u64; 3], Extra, Minima)> {
    let (words, rest) = bytes.as_chunks();
    let (state, more) = words.split_first_chunk()?;
    let (extra, steps) = match rest {
        [] => (more, &[][..]),
        // An even number of words is behind three, else behind ten.
        [_] if more.len().is_multiple_of(2) => (&[][..], more),
        [_] => more.split_at_checked(EXTRA)?,
        [..] => return None,
    };
    let is_whole = rest.is_empty() || !steps.is_empty() && words.len() <= MAX_NUMBERS;
    let (steps, []) = steps.as_chunks() else { return None };
    let step = |[at, missing]: &[_; 2]| Minimum { at: number(at), missing: number(missing) };
    let minima = Minima::new(steps.iter().map(step).collect::<Vec<_>>());
    is_whole.then_some((state.each_ref().map(number), extra_of(extra)?, minima))
}

/// How many numbers an [`Extra`] has at most.
const EXTRA: usize = 7;

/// How many numbers there are at most.
const MAX_NUMBERS: usize = 3 + EXTRA + 2 * Minima::MOST;

fn extra_of(words: &[[u8; 8]]) -> Option<Extra> {
    let [older, older_until, newer, newer_until, debt, blocked_until, charged @ ..] = words else {
        return words.is_empty().then(Extra::default);
    };
    let charged = match charged {
        [] => 0,
        [charged] => number(charged),
        [..] => return None,
    };
    let hold = |units, until| Hold { units: number(units), until: number(until) };
    let (older, newer) = (hold(older, older_until), hold(newer, newer_until));
    let holds = Holds { older, newer, charged };
    Some(Extra { holds, debt: number(debt), blocked_until: number(blocked_until) })
}

fn number(word: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*word)
}

#[cfg(test)]
mod tests {
    use super::super::moment::Moment;
    use crate::algorithm::{Extra, Hold, Holds, Minima, Minimum, State, Stored};
    use crate::limit::Algorithm;

    #[test]
    fn states_are_read() {
        use Algorithm::{
            FixedWindow, Gcra, IntervalBucket, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
        };
        const MOST: u64 = u64::MAX;
        let moment = |micros, part| Moment { micros, part };
        for (algorithm, numbers, state) in [
            (TokenBucket, &[9, 8, 7][..], Some(State::Bucket(9, moment(8, 7)))),
            (TokenBucket, &[MOST; 3], Some(State::Bucket(MOST, moment(MOST, MOST)))),
            (TokenBucket, &[9, 8], None),
            (IntervalBucket, &[9, 8, 0], Some(State::Bucket(9, moment(8, 0)))),
            (IntervalBucket, &[9, 8], None),
            (
                Gcra,
                &[1_763_683_200_123_456, 1, 0],
                Some(State::Arrival(moment(1_763_683_200_123_456, 1))),
            ),
            (LeakyBucket, &[9, 8, 7], Some(State::Arrival(moment(9, 8)))),
            (Gcra, &[9], None),
            (SlidingWindow, &[9, 8, 7], Some(State::Window(9, 8, 7))),
            (SlidingWindow, &[9, 8, 7, 6, 5], None),
            (FixedWindow, &[9, 8, 0], Some(State::Window(9, 8, 0))),
            (FixedWindow, &[], None),
            (SlidingLog, &[9, 8, 7], Some(State::Log([].into(), 0))),
        ] {
            let mut bytes: Vec<u8> =
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let plain = Stored { state: state.clone(), ..Stored::default() };
            assert_eq!(algorithm.read(&bytes), plain, "{algorithm:?} {numbers:?}");
            bytes.extend([6_u64, 5, 4, 3, 2, 1].iter().flat_map(|number| number.to_le_bytes()));
            let (older, newer) = (Hold { units: 6, until: 5 }, Hold { units: 4, until: 3 });
            let holds = Holds { older, newer, charged: 0 };
            let extra = Extra { holds, debt: 2, blocked_until: 1 };
            let extended =
                state.map(|state| Stored { state: Some(state), extra, ..Stored::default() });
            let extended = extended.unwrap_or_default();
            assert_eq!(algorithm.read(&bytes), extended, "{algorithm:?} {numbers:?}");
            bytes.extend([0, 0]);
            let nothing = Stored::default();
            assert_eq!(algorithm.read(&bytes), nothing, "{algorithm:?} {numbers:?} and two bytes");
        }
    }

    #[test]
    fn what_was_charged_while_units_are_held() {
        let bytes: Vec<u8> = (1..=10_u64).flat_map(u64::to_le_bytes).collect();
        let (older, newer) = (Hold { units: 4, until: 5 }, Hold { units: 6, until: 7 });
        let holds = Holds { older, newer, charged: 10 };
        let extra = Extra { holds, debt: 8, blocked_until: 9 };
        let state = Some(State::Bucket(1, Moment { micros: 2, part: 3 }));
        assert_eq!(
            Algorithm::TokenBucket.read(&bytes),
            Stored { state, extra, ..Stored::default() }
        );
    }

    /// Behind three numbers, or behind ten, with a byte at the end: of algorithms that keep any.
    #[test]
    fn steps_are_read() {
        let read = |algorithm: Algorithm, numbers: u64| {
            let numbers = (1..=numbers).flat_map(u64::to_le_bytes);
            algorithm.read(&numbers.chain([1]).collect::<Vec<u8>>())
        };
        let plain = |algorithm: Algorithm, numbers: u64| {
            algorithm.read(&(1..=numbers).flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
        };
        let step = |at| Minimum { at, missing: at + 1 };
        let stored = |minima, numbers| Stored { minima, ..plain(Algorithm::Gcra, numbers) };
        assert_eq!(read(Algorithm::Gcra, 5), stored(Minima::new([step(4)]), 3));
        assert_eq!(read(Algorithm::Gcra, 14), stored(Minima::new([step(11), step(13)]), 10));
        assert_eq!(read(Algorithm::FixedWindow, 5), plain(Algorithm::FixedWindow, 3));
        assert_eq!(read(Algorithm::FixedWindow, 14), plain(Algorithm::FixedWindow, 10));
        let most = 10 + 2 * Minima::MOST as u64;
        assert_eq!(read(Algorithm::TokenBucket, most).minima.steps().len(), Minima::MOST);
        for numbers in [0, 2, 3, 4, 6, 8, 10, most + 1, most + 2] {
            assert_eq!(read(Algorithm::TokenBucket, numbers), Stored::default(), "{numbers}");
        }
    }
}
