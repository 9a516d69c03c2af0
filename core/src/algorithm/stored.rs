//! States as they are stored in Redis: three numbers of eight bytes each, the lowest byte first, of
//! which the last may mean nothing.
//!
//! Redis packs and unpacks them faster than it writes and reads decimal ones. What is found there
//! may be anybody's: of the right length, any bytes are numbers. A number that is no whole one as a
//! double of the scripts is above every bound that it is compared with.

/// As `struct.unpack` of the scripts; `None` for what has another length.
pub(super) fn numbers(bytes: &[u8]) -> Option<[u64; 3]> {
    let (words, rest) = bytes.as_chunks();
    let words: [[u8; 8]; 3] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::super::moment::Moment;
    use crate::algorithm::{Algorithm, State};

    #[test]
    fn states() {
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
            (SlidingWindow, &[9, 8, 7, 6], None),
            (FixedWindow, &[9, 8, 0], Some(State::Window(9, 8, 0))),
            (FixedWindow, &[], None),
            (SlidingLog, &[9, 8, 7], None),
        ] {
            let mut bytes: Vec<u8> =
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            assert_eq!(algorithm.read(&bytes), state, "{algorithm:?} {numbers:?}");
            bytes.push(0);
            assert_eq!(algorithm.read(&bytes), None, "{algorithm:?} {numbers:?} and a byte");
        }
    }
}
