//! Asynchronous replication: what a master has written reaches its replicas a little later.

use std::collections::{BTreeSet, VecDeque};

use fastrand::Rng;

use crate::database::{Key, Write};
use crate::server::Server;

/// The longest that a write takes to a replica, in µs.
const MAX_LAG: u64 = 30_000;

/// The writes that are on their way to a replica, in order.
#[derive(Debug, Default)]
pub struct Backlog {
    writes: VecDeque<Pending>,
}

#[derive(Debug)]
struct Pending {
    due: u64,
    database: usize,
    write: Write,
}

impl Backlog {
    pub fn push(&mut self, database: usize, write: Write, now: u64, rng: &mut Rng) {
        let earliest = self.writes.back().map_or(now, |last| last.due);
        let due = earliest.max(now + rng.u64(0..MAX_LAG));
        self.writes.push_back(Pending { due, database, write });
    }

    /// Applies the writes that have arrived.
    pub fn apply(&mut self, replica: &mut Server, now: u64) {
        while self.writes.front().is_some_and(|pending| pending.due <= now)
            && let Some(pending) = self.writes.pop_front()
        {
            replica.databases[pending.database].apply(pending.write);
        }
    }

    /// Drops the writes that have not arrived, and returns their keys.
    pub fn lose(&mut self) -> BTreeSet<Key> {
        self.writes.drain(..).map(|pending| pending.write.key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Stored, Value};
    use crate::server::Role;

    #[test]
    fn writes_arrive_in_order_and_late() {
        let mut replica = Server::new(1, ([10, 0, 0, 2], 1).into(), Role::Replica { of: 0 });
        let (mut backlog, mut rng) = (Backlog::default(), Rng::with_seed(7));
        for number in 1..=50 {
            let stored = Stored { value: Value::Packed([number; 24].into()), gone_at: u64::MAX };
            let write = Write { key: b"k".as_slice().into(), stored: Some(stored) };
            backlog.push(0, write, u64::from(number) * 1_000, &mut rng);
        }
        let read = |replica: &Server| match replica.databases[0].get(b"k", 0) {
            Some(Value::Packed(bytes)) => bytes[0],
            _ => 0,
        };
        let mut last = 0;
        for now in (0..40_000).step_by(1_000) {
            backlog.apply(&mut replica, now);
            let number = read(&replica);
            assert!(number >= last && u64::from(number) * 1_000 <= now);
            last = number;
        }
        assert!((1..50).contains(&last));
        assert_eq!(backlog.lose().len(), 1);
        backlog.apply(&mut replica, u64::MAX);
        assert_eq!(read(&replica), last);
    }
}
