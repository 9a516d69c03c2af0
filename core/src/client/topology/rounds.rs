//! Rounds of queries for the topology: who is queried, how long a reply may take, and when the next round
//! begins. Times are in µs.
//!
//! ```text
//!            begin                         end, with a topology or without
//!   (pause) ───────▶ under way: a node ─────────────────────────────────▶ (pause)
//!                    is queried, then others
//! ```
//!
//! Rounds that lead to nothing follow each other ever more rarely, down to two queries a second: what is
//! wrong may last, and all workers of a fleet query the same nodes.

use crate::client::fault::doubled;
use crate::client::slab::NodeKey;
use crate::rate::{MILLISECOND, SECOND};

/// The topology is queried at most this often, for each query of the round before.
const LEAST_INTERVAL: u64 = 100 * MILLISECOND;

/// It is queried this often while a master is missing, for each query of the round before; twice as rarely
/// after each round in a row that led to nothing.
const URGENT_INTERVAL: u64 = 250 * MILLISECOND;

/// The longest interval while a master is missing, for each query of the round before.
const LONGEST_INTERVAL: u64 = 670 * MILLISECOND;

/// So many queries may follow each other sooner, and so many announced masters. After that each one has to wait for
/// [`LONGEST_INTERVAL`], whatever the reason and the outcome: two nodes may redirect to each other for ever,
/// two sentinels report a master each, and one announce two in turn.
const BURST: u64 = 10;

/// How long a node may take for the map of a large cluster; twice as long
/// after each query that has timed out, until as many have not.
const LEAST_PATIENCE: u64 = SECOND;

/// So many doublings lead to the longest patience.
const PATIENCE_DOUBLINGS: u32 = 3;

/// Otherwise it is queried this often.
const USUAL_INTERVAL: u64 = 10 * SECOND;

/// The rounds of queries.
#[derive(Debug, Default)]
pub(in crate::client) struct Rounds {
    /// The number of the latest query.
    number: u32,
    /// The number of the first query that may still be answered: of the replies to those before it, one was
    /// applied.
    oldest: u32,
    /// How many queries this round, or the last one, has taken.
    queries: usize,
    /// How many rounds in a row have led to nothing.
    fruitless: u32,
    /// How many more queries have timed out than were answered in time since; at most
    /// [`PATIENCE_DOUBLINGS`].
    timeouts: u32,
    /// When the next round may begin.
    free_at: u64,
    /// How many queries there may be.
    queried: Budget,
    /// How many announced masters may be followed.
    followed: Budget,
    is_under_way: bool,
    is_wanted: bool,
    /// Which node is queried first.
    first: usize,
    /// The nodes of this round, in the order in which they are queried.
    nodes: Vec<NodeKey>,
    /// How many of them were.
    tried: usize,
    /// The queries that are to be answered in time, and whom they went to.
    open: Vec<(u32, NodeKey)>,
    /// When the next round begins, or the next node is queried.
    at: Option<u64>,
}

/// A budget of [`BURST`] things in a row, and then one in each [`LONGEST_INTERVAL`].
#[derive(Debug, Default)]
struct Budget {
    /// When all of them so far have had their interval, as the theoretical arrival time of GCRA.
    paid_at: u64,
}

impl Budget {
    fn spend(&mut self, now: u64) {
        self.paid_at = self.paid_at.max(now).saturating_add(LONGEST_INTERVAL);
    }

    /// When the next one may be.
    fn free_at(&self) -> u64 {
        self.paid_at.saturating_sub(BURST * LONGEST_INTERVAL)
    }
}

impl Rounds {
    /// No round has begun. `random` is any number that differs between processes.
    pub(in crate::client) fn new(random: u64) -> Self {
        // Not all workers query the same node.
        Self { oldest: 1, first: random as usize, ..Self::default() }
    }

    /// When something is to be done.
    pub(in crate::client) fn at(&self) -> Option<u64> {
        self.at
    }

    pub(in crate::client) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Whether the next round is wanted, and not only usual.
    pub(in crate::client) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// How long a node may take to reply to a query.
    pub(in crate::client) fn patience(&self) -> u64 {
        LEAST_PATIENCE << self.timeouts
    }

    /// Whether a reply to a later query than this one was applied.
    pub(in crate::client) fn is_late(&self, number: u32) -> bool {
        number < self.oldest
    }
}

/// Beginning.
impl Rounds {
    /// A round is wanted, as the topology may have changed.
    pub(in crate::client) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// A round begins at `at`, or before, unless one is under way.
    pub(in crate::client) fn begin_at(&mut self, at: u64) {
        if !self.is_under_way {
            self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// Whether a round may begin so soon after the last one.
    pub(in crate::client) fn may_begin(&self, now: u64) -> bool {
        self.free_at <= now
    }

    /// The next round begins as soon as it may. Returns when.
    pub(in crate::client) fn pause(&mut self) -> u64 {
        self.at = Some(self.free_at);
        self.free_at
    }

    /// Whether the time has come at which a round begins, or the open queries of the one under way have timed out. It comes
    /// once.
    pub(in crate::client) fn take_due(&mut self, now: u64) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// A round of these nodes begins: first with those after the last ones of the round before, so that the load
    /// is shared, and of them first with those of the lowest rank.
    pub(in crate::client) fn begin<R: Ord>(
        &mut self,
        mut nodes: Vec<NodeKey>,
        rank: impl Fn(&NodeKey) -> R,
    ) {
        let first = self.first.checked_rem(nodes.len()).unwrap_or(0);
        nodes.rotate_left(first);
        nodes.sort_by_key(rank);
        self.nodes = nodes;
        self.is_wanted = false;
        self.is_under_way = true;
        self.queries = 0;
        self.tried = 0;
    }
}

/// Queries.
impl Rounds {
    /// The next node to be queried, if one is: so many `at_once`, and so many at `most`.
    pub(in crate::client) fn next_node(&mut self, at_once: usize, most: usize) -> Option<NodeKey> {
        if !self.is_under_way || self.open.len() >= at_once || self.queries >= most {
            return None;
        }
        let node = *self.nodes.get(self.tried)?;
        self.tried = self.tried.saturating_add(1);
        Some(node)
    }

    /// A node of the round is queried. Returns the number of the query, and when it will have timed out. A busy
    /// worker sends it later, and a connection that is silent for so long is to end first.
    pub(in crate::client) fn open(&mut self, node: NodeKey, now: u64) -> (u32, u64) {
        self.queries = self.queries.saturating_add(1);
        let number = self.next_number(now);
        self.open.push((number, node));
        let patience = self.patience();
        let at = now.saturating_add(patience.saturating_add(patience / 4));
        self.at = Some(at);
        (number, at)
    }

    /// The number of the next query, which is sent now.
    pub(in crate::client) fn next_number(&mut self, now: u64) -> u32 {
        self.queried.spend(now);
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// A query was answered. Returns whether it was open.
    pub(in crate::client) fn on_reply(&mut self, number: u32) -> bool {
        let was_open = self.close(number);
        if was_open {
            self.timeouts = self.timeouts.saturating_sub(1);
        }
        was_open
    }

    /// A query has ended. Returns whether it was open.
    pub(in crate::client) fn close(&mut self, number: u32) -> bool {
        let position = self.open.iter().position(|(open, _)| *open == number);
        position.map(|index| self.open.swap_remove(index)).is_some()
    }

    /// Takes the nodes whose queries are open.
    pub(in crate::client) fn take_open(&mut self) -> Vec<NodeKey> {
        std::mem::take(&mut self.open).into_iter().map(|(_, node)| node).collect()
    }

    /// Queries have timed out: the next ones get more time.
    pub(in crate::client) fn on_timeout(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1).min(PATIENCE_DOUBLINGS);
    }
}

/// Announcements.
impl Rounds {
    /// A new master was announced between rounds. Returns whether it is followed at once, or a round has to confirm it: to
    /// follow each one of many in turn is much work, and lines in the log.
    pub(in crate::client) fn on_announced(&mut self, now: u64) -> bool {
        let is_free = self.followed.free_at() <= now;
        if is_free {
            self.followed.spend(now);
        }
        is_free
    }
}

/// Ending.
impl Rounds {
    /// Whether every node of the round was queried, and no reply is to come.
    pub(in crate::client) fn is_over(&self) -> bool {
        self.is_under_way && self.open.is_empty()
    }

    pub(in crate::client) fn on_applied(&mut self) {
        self.oldest = self.number.wrapping_add(1);
    }

    /// The next round begins with the node after the last one.
    pub(in crate::client) fn turn_nodes(&mut self) {
        self.first = self.first.wrapping_add(self.tried);
    }

    pub(in crate::client) fn end(&mut self, is_fruitless: bool, random: u64, now: u64) {
        self.is_under_way = false;
        self.open.clear();
        self.fruitless = if is_fruitless { self.fruitless.saturating_add(1) } else { 0 };
        self.free_at = now.saturating_add(self.interval(random)).max(self.queried.free_at());
    }

    /// Sets when the next round begins, unless one is wanted: after the usual interval, or a shorter one if it is
    /// urgent. Returns that, or `None` if one is wanted.
    pub(in crate::client) fn set_next(
        &mut self,
        is_urgent: bool,
        random: impl FnOnce() -> u64,
        now: u64,
    ) -> Option<u64> {
        let interval = if is_urgent { URGENT_INTERVAL } else { jittered(USUAL_INTERVAL, random()) };
        self.at = match self.is_wanted {
            true => None,
            false => Some(now.saturating_add(interval).max(self.free_at)),
        };
        self.at
    }

    /// The least time between the last round and the next one.
    fn interval(&self, random: u64) -> u64 {
        let each = match self.fruitless {
            0 => LEAST_INTERVAL,
            rounds => doubled(URGENT_INTERVAL, rounds, LONGEST_INTERVAL),
        };
        jittered(each.saturating_mul(self.queries.max(1) as u64), random)
    }
}

/// Gives or takes up to a quarter of an interval, so that workers do not query in step.
fn jittered(interval: u64, random: u64) -> u64 {
    let jitter = random % (interval / 2).saturating_add(1);
    interval.saturating_sub(interval / 4).saturating_add(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With it an interval is as long as it is usually.
    fn middle(interval: u64) -> u64 {
        interval / 4
    }

    fn nodes() -> [NodeKey; 3] {
        [0, 1, 2].map(|index| NodeKey::new(index, 1))
    }

    fn begun() -> Rounds {
        let mut rounds = Rounds::new(0);
        rounds.begin(nodes().to_vec(), |_| ());
        rounds
    }

    #[test]
    fn nodes_are_queried_in_turn_and_those_of_a_higher_rank_last() {
        let mut rounds = begun();
        let [first, second, third] = nodes();
        assert_eq!(rounds.next_node(1, 2), Some(first));
        let (number, at) = rounds.open(first, 0);
        assert_eq!((number, at, rounds.at()), (1, SECOND + SECOND / 4, Some(at)));
        assert_eq!(rounds.next_node(1, 2), None, "one at a time");
        assert!(rounds.on_reply(number) && !rounds.on_reply(number));
        assert_eq!(rounds.next_node(1, 2), Some(second));
        rounds.open(second, 0);
        assert_eq!(rounds.next_node(2, 2), None, "no more than two");
        rounds.turn_nodes();
        rounds.end(false, 0, 0);
        rounds.begin(nodes().to_vec(), |node| *node == first);
        let order = [(); 4].map(|()| rounds.next_node(9, 9));
        assert_eq!(order, [Some(third), Some(second), Some(first), None]);
    }

    #[test]
    fn a_round_is_over_when_no_query_is_open() {
        let mut rounds = begun();
        let (number, at) = rounds.open(nodes()[0], 0);
        assert!(!rounds.is_over());
        assert_eq!((rounds.take_due(at - 1), rounds.take_due(at)), (false, true));
        assert_eq!(rounds.take_open(), [nodes()[0]]);
        assert!(rounds.is_over() && !rounds.on_reply(number), "it came too late");
    }

    #[test]
    fn patience_grows_with_timeouts_and_shrinks_with_replies_in_time() {
        let mut rounds = begun();
        let patience = [(); 5].map(|()| {
            rounds.on_timeout();
            rounds.patience() / SECOND
        });
        assert_eq!(patience, [2, 4, 8, 8, 8]);
        let (number, _) = rounds.open(nodes()[0], 0);
        rounds.on_reply(number);
        assert_eq!(rounds.patience(), 4 * SECOND);
    }

    #[test]
    fn rounds_that_lead_to_nothing_are_ever_rarer() {
        let mut rounds = begun();
        let pause = |rounds: &mut Rounds, is_fruitless, interval| {
            rounds.end(is_fruitless, middle(interval), 0);
            rounds.pause() == interval
        };
        for interval in [2 * URGENT_INTERVAL, LONGEST_INTERVAL, LONGEST_INTERVAL] {
            assert!(pause(&mut rounds, true, interval), "{interval}");
        }
        assert!(pause(&mut rounds, false, LEAST_INTERVAL));
        rounds.begin(nodes().to_vec(), |_| ());
        assert_eq!(nodes().map(|node| rounds.open(node, 0).0), [1, 2, 3]);
        assert!(pause(&mut rounds, false, 3 * LEAST_INTERVAL));
    }

    #[test]
    fn a_round_that_is_wanted_begins_when_it_may() {
        let mut rounds = begun();
        rounds.want();
        rounds.begin_at(5);
        assert_eq!(rounds.at(), None, "one is under way");
        rounds.end(false, 0, 5);
        assert_eq!(rounds.set_next(false, || 0, 5), None);
        let free_at = rounds.pause();
        assert!(!rounds.may_begin(free_at - 1) && rounds.may_begin(free_at));
        assert!(rounds.take_due(free_at) && rounds.is_wanted());
        rounds.begin(nodes().to_vec(), |_| ());
        rounds.end(false, 0, 10);
        let usual = middle(USUAL_INTERVAL);
        assert_eq!(rounds.set_next(false, || usual, 10), Some(10 + USUAL_INTERVAL));
        assert_eq!(rounds.set_next(true, || usual, 10), Some(10 + URGENT_INTERVAL));
        let later = rounds.at().unwrap();
        assert!(rounds.take_due(later) && !rounds.is_wanted());
    }

    #[test]
    fn a_few_announced_masters_are_followed_in_a_row() {
        let mut rounds = begun();
        let mut followed = |now| (0..99).filter(|_| rounds.on_announced(now)).count() as u64;
        assert_eq!([followed(5), followed(4 + LONGEST_INTERVAL)], [BURST + 1, 0]);
        assert_eq!([followed(5 + LONGEST_INTERVAL), followed(60 * SECOND)], [1, BURST + 1]);
    }

    #[test]
    fn a_reply_is_late_when_a_later_one_was_applied() {
        let mut rounds = begun();
        let numbers = nodes().map(|node| rounds.open(node, 0).0);
        rounds.on_applied();
        let later = rounds.next_number(0);
        assert_eq!(numbers.map(|number| rounds.is_late(number)), [true; 3]);
        assert!(!rounds.is_late(later));
    }
}
