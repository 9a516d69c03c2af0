//! The outages of a server, as the workers of a machine log them together.
//!
//! An outage has a line when it begins and one when it ends. Of a server that goes down again and again, as on a path that
//! loses packets, only some have: a few that may be logged at once, and those that last. The others are counted, and logged
//! together. Times are Unix times in ms; a clock that was set back delays no line for long.

use std::sync::atomic::{AtomicU64, Ordering};

/// So many outages in a row are logged at once.
const AT_ONCE: u64 = 5;

/// The time after which one more may be, and the shortest one between two lines about those that had none, in ms.
const EVERY: u64 = 10_000;

/// The longest time ahead at which one more may be logged at once, in ms.
const LATEST: u64 = (AT_ONCE - 1) * EVERY;

/// How long any other outage lasts before it is logged, in ms.
pub const LASTING: u64 = 1_000;

/// The outages of a server, in memory that processes share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Outages {
    /// Twice the time since which it is down, and 1 more if a line says so; 0 if it is up. One word, so that the line of the end
    /// comes if, and only if, that of the beginning came.
    current: AtomicU64,
    /// Requests that it did not decide since its last answer.
    undecided: AtomicU64,
    /// The time until which no outage would be logged at once if one could be at a time.
    spent_until: AtomicU64,
    /// When the first of the outages began that have ended without a line; 0 if there is none.
    unlogged_since: AtomicU64,
    /// The number of them.
    unlogged: AtomicU64,
    /// Requests that it did not decide meanwhile.
    unlogged_undecided: AtomicU64,
}

/// Outages that have ended without a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlogged {
    /// How many.
    pub number: u64,
    /// The time since the first of them began, in ms.
    pub span: u64,
    /// Requests that were not decided meanwhile.
    pub undecided: u64,
}

impl Outages {
    /// Whether it is down.
    pub fn is_down(&self) -> bool {
        self.current.load(Ordering::Relaxed) != 0
    }

    /// Whether it is down, and a line says so.
    pub fn is_logged(&self) -> bool {
        is_logged(self.current.load(Ordering::Relaxed))
    }

    /// Whether it is down, and no line says so yet.
    pub fn awaits_line(&self) -> bool {
        awaits_line(self.current.load(Ordering::Relaxed))
    }

    /// Whether outages have ended without a line.
    pub fn has_unlogged(&self) -> bool {
        self.unlogged_since.load(Ordering::Relaxed) != 0
    }

    /// It is down at `now`. Returns whether it was not before. If it is so `again`, another worker may have found it up meanwhile:
    /// that begins another outage only if one may be logged at once, as two workers may disagree for long.
    pub fn begin(&self, now: u64, again: bool) -> bool {
        (!again || self.ahead(now) <= LATEST) && replace(&self.current, 0, now << 1)
    }

    /// Whether the caller is to log that it is down: no line says so, and the outage lasts, or `is_new` and may be logged at
    /// once.
    pub fn admits_line(&self, now: u64, is_new: bool) -> bool {
        let current = self.current.load(Ordering::Relaxed);
        let lasts = now.abs_diff(current >> 1) >= LASTING;
        awaits_line(current)
            && (lasts || is_new && self.spend(now))
            && replace(&self.current, current, current | 1)
    }

    /// Whether an outage may be logged at once, which leaves room for one less.
    fn spend(&self, now: u64) -> bool {
        let ahead = self.ahead(now);
        let has_room = ahead <= LATEST;
        if has_room {
            self.spent_until.store(now + ahead + EVERY, Ordering::Relaxed);
        }
        has_room
    }

    /// In how many ms no outage that was logged at once will count any more.
    fn ahead(&self, now: u64) -> u64 {
        let ahead = self.spent_until.load(Ordering::Relaxed).saturating_sub(now);
        // A clock that was set back by more than that.
        if ahead > AT_ONCE * EVERY { 0 } else { ahead }
    }

    /// Counts requests that it did not decide.
    pub fn count_undecided(&self, number: u64) {
        self.undecided.fetch_add(number, Ordering::Relaxed);
    }

    /// It has answered a command: requests that it did not decide before are no outage.
    pub fn on_answered(&self) {
        if self.undecided.load(Ordering::Relaxed) != 0 && !self.is_down() {
            self.undecided.store(0, Ordering::Relaxed);
        }
    }

    /// It is up. If a line says that it was down: since when, and how many requests it did not decide.
    pub fn end(&self) -> Option<(u64, u64)> {
        let current = self.current.swap(0, Ordering::Relaxed);
        if current == 0 {
            return None;
        }
        let (since, undecided) = (current >> 1, self.undecided.swap(0, Ordering::Relaxed));
        if is_logged(current) {
            return Some((since, undecided));
        }
        self.unlogged_undecided.fetch_add(undecided, Ordering::SeqCst);
        self.unlogged.fetch_add(1, Ordering::SeqCst);
        // Set last here, and taken first below: what is counted meanwhile is taken, or leaves this set.
        replace(&self.unlogged_since, 0, since);
        None
    }

    /// Takes the outages that are to be logged together, if it is time for that, or `at_once`.
    pub fn take_unlogged(&self, now: u64, at_once: bool) -> Option<Unlogged> {
        let since = self.unlogged_since.load(Ordering::Relaxed);
        let span = now.abs_diff(since);
        if since == 0 || (span < EVERY && !at_once) || !replace(&self.unlogged_since, since, 0) {
            return None;
        }
        // The requests of an outage are counted before it, and taken after it, if any is.
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::SeqCst);
        let number = Some(take(&self.unlogged)).filter(|number| *number > 0)?;
        Some(Unlogged { number, span, undecided: take(&self.unlogged_undecided) })
    }

    /// Forgets all outages.
    pub fn clear(&self) {
        let unlogged = [&self.unlogged_since, &self.unlogged, &self.unlogged_undecided];
        let words = [&self.current, &self.undecided, &self.spent_until].into_iter().chain(unlogged);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

fn is_logged(current: u64) -> bool {
    current & 1 == 1
}

fn awaits_line(current: u64) -> bool {
    current != 0 && !is_logged(current)
}

/// Replaces a word if it is `old`. Returns whether it was.
fn replace(word: &AtomicU64, old: u64, new: u64) -> bool {
    word.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Any time but 0, which stands for none.
    const START: u64 = 1_000_000;

    /// The server is down for `span` ms, and a worker looks when it goes down and when it is up. Whether the outage has lines.
    fn outage(outages: &Outages, begin: u64, span: u64) -> bool {
        assert!(outages.begin(begin, false) && !outages.begin(begin, false), "once");
        outages.count_undecided(2);
        let is_logged =
            outages.admits_line(begin, true) || outages.admits_line(begin + span, false);
        assert!(outages.is_down() && !outages.admits_line(begin + span, false), "once");
        assert_eq!((outages.is_logged(), outages.awaits_line()), (is_logged, !is_logged));
        assert_eq!(outages.end(), is_logged.then_some((begin, 2)));
        assert!(!outages.is_down() && outages.end().is_none(), "it is up");
        is_logged
    }

    /// More than are logged.
    fn series(outages: &Outages, begin: u64) {
        (0..9).for_each(|number| {
            outage(outages, begin + number, 5);
        });
    }

    #[test]
    fn a_few_are_logged_at_once_and_one_more_from_time_to_time() {
        let outages = Outages::default();
        let mut at = |at| outage(&outages, START + at, 5);
        assert_eq!([0, 10, 20, 30, 40, 50].map(&mut at), [true, true, true, true, true, false]);
        assert_eq!([9_999, 10_000, 10_010].map(&mut at), [false, true, false]);
        assert_eq!([60_000, 60_010, 60_020].map(&mut at), [true; 3], "it was up for long");
    }

    #[test]
    fn one_that_lasts_is_logged_whatever_was_before() {
        let outages = Outages::default();
        for number in 0..20 {
            let span = if number % 2 == 0 { LASTING } else { LASTING - 1 };
            let is_logged = outage(&outages, START + number * 2_000, span);
            assert_eq!(is_logged, number < 5 || span == LASTING || number == 5 || number == 15);
        }
    }

    #[test]
    fn it_is_down_once_more_if_that_may_be_logged_at_once() {
        let outages = Outages::default();
        let begins = |at| {
            let begins = outages.begin(at, true);
            assert_eq!(outages.admits_line(at, begins), begins);
            assert!(!outages.begin(at, true), "once");
            outages.end();
            begins
        };
        let numbers = (0..60_000).step_by(500).filter(|at| begins(START + at)).count();
        assert_eq!(numbers, 5 + 5);
    }

    #[test]
    fn the_others_are_logged_together() {
        let outages = Outages::default();
        let logged = (0..9).filter(|number| outage(&outages, START + number * 100, 5)).count();
        assert_eq!((logged, outages.has_unlogged()), (5, true));
        let first = START + 500;
        assert_eq!(outages.take_unlogged(first + EVERY - 1, false), None);
        let unlogged = |span| Some(Unlogged { number: 4, span, undecided: 8 });
        assert_eq!(outages.take_unlogged(first + EVERY, false), unlogged(EVERY));
        assert_eq!((outages.has_unlogged(), outages.take_unlogged(u64::MAX, true)), (false, None));
        series(&outages, START + 600);
        assert_eq!(
            outages.take_unlogged(START + 700, true).map(|unlogged| unlogged.number),
            Some(9)
        );
    }

    #[test]
    fn what_was_not_decided_before_an_answer_is_no_outage() {
        let outages = Outages::default();
        outages.count_undecided(7);
        outages.on_answered();
        assert!(outages.begin(START, false) && outages.admits_line(START, true));
        outages.count_undecided(3);
        outages.on_answered();
        assert_eq!(outages.end(), Some((START, 3)));
    }

    #[test]
    fn a_clock_that_was_set_back_delays_no_line_for_long() {
        let outages = Outages::default();
        series(&outages, 9 * START);
        assert!(outages.take_unlogged(START, false).is_some());
        assert!(outage(&outages, START, 5));
        assert!(outages.begin(9 * START, false) && outages.admits_line(START, false));
    }

    #[test]
    fn nothing_is_left_of_a_server_that_is_forgotten() {
        let outages = Outages::default();
        series(&outages, START);
        assert!(outages.begin(START, false));
        outages.clear();
        assert!(!outages.is_down() && !outages.has_unlogged() && outage(&outages, START, 5));
    }

    /// Workers that interrupt each other anywhere: each request is reported once, and each line of an end follows one of a beginning.
    #[test]
    fn nothing_is_lost_or_reported_twice() {
        const ROUNDS: u64 = 20_000;
        let outages = Outages::default();
        let work = |worker: u64| {
            let (mut lines, mut requests) = (0, 0);
            for now in START..START + ROUNDS {
                outages.count_undecided(1);
                let is_new = outages.begin(now, false);
                lines += i64::from(outages.admits_line(now, is_new));
                if let Some((_, undecided)) = outages.end() {
                    (lines, requests) = (lines - 1, requests + undecided);
                }
                let unlogged = outages.take_unlogged(now, (now + worker).is_multiple_of(3));
                requests += unlogged.map_or(0, |unlogged| unlogged.undecided);
            }
            (lines, requests)
        };
        let told = thread::scope(|scope| {
            let workers = [0, 1, 2, 3].map(|worker| scope.spawn(move || work(worker)));
            workers.map(|worker| worker.join().unwrap())
        });
        assert_eq!(told.iter().map(|(lines, _)| lines).sum::<i64>(), 0);
        let rest = outages.take_unlogged(START + 2 * ROUNDS, true).map_or(0, |it| it.undecided);
        let told = told.iter().map(|(_, requests)| requests).sum::<u64>() + rest;
        assert_eq!(told + outages.undecided.load(Ordering::Relaxed), 4 * ROUNDS);
    }
}
