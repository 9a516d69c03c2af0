//! `gcra` has the numbers of redis-cell: the table of its own test, of at most 5 at once and one a
//! second.

use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::limit::{Algorithm, Quota};

use crate::history::{Client, START};

const NEVER: i64 = -1;

/// Time, cost; allowed, remaining, reset, retry. All times in ms.
const TABLE: [(u64, u64, bool, u64, u64, i64); 15] = [
    // more than could ever be spent
    (0, 6, false, 5, 0, NEVER),
    // one after the other, until nothing is left
    (0, 1, true, 4, 1_000, 0),
    (0, 1, true, 3, 2_000, 0),
    (0, 1, true, 2, 3_000, 0),
    (0, 1, true, 1, 4_000, 0),
    (0, 1, true, 0, 5_000, 0),
    (0, 1, false, 0, 5_000, 1_000),
    // some time later
    (3_000, 1, true, 2, 3_000, 0),
    (3_100, 1, true, 1, 3_900, 0),
    (4_000, 1, true, 1, 4_000, 0),
    (8_000, 1, true, 4, 1_000, 0),
    (9_500, 1, true, 4, 1_000, 0),
    // a look at it
    (9_500, 0, true, 4, 1_000, 0),
    // several at once
    (9_500, 2, true, 2, 3_000, 0),
    (9_500, 5, false, 2, 3_000, 3_000),
];

#[test]
fn answers_as_redis_cell() {
    let mut client = Client::new(Quota::new(Algorithm::Gcra, "1r/s".parse().unwrap(), 5).unwrap());
    for (index, (time, cost, allowed, remaining, reset, retry)) in TABLE.into_iter().enumerate() {
        client.now = START + time * 1_000;
        let retry = match retry {
            NEVER => Retry::Never,
            0 => Retry::No,
            ms => Retry::After(ms.unsigned_abs() * 1_000),
        };
        let expected = Verdict { allowed, blocked: 0, remaining, reset: reset * 1_000, retry };
        assert_eq!(client.request(cost), expected, "row {index}");
    }
}
