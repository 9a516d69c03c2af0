//! A worker that is leaving. It stays as long as requests wait, and for a moment for what settles or
//! refunds charges: nobody waits for that.

use super::Action;
use super::agenda::{Agenda, Due};
use super::requests::Requests;
use crate::rate::MILLISECOND;

/// How long a worker stays for settlements, from the latest one on, in µs.
const GRACE: u64 = 1_000 * MILLISECOND;

/// Whether the worker is leaving, and what keeps it. Times are in µs.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    has_begun: bool,
    /// Until when settlements keep it.
    grace: Option<u64>,
    /// When the worker is to have left, if that is limited.
    limit: Option<u64>,
    /// How many settlements have not ended.
    settling: usize,
}

impl Leaving {
    /// Whether connections that are not needed are closed.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// When the grace ends, if it has not ended.
    pub(super) fn grace(&self) -> Option<u64> {
        self.grace
    }

    /// Whether a worker stays: for requests that were submitted and not released, and for a moment for
    /// settlements, for replies that may lead to a refund, and where it `sends_late` refunds one after the other.
    pub(super) fn keeps_worker(&self, requests: &Requests, sends_late: bool) -> bool {
        let unsettled = self.settling.saturating_add(requests.released());
        let unsettled = unsettled.saturating_add(sends_late.into());
        let waits_for_them = !self.has_begun || self.grace.is_some();
        requests.unreleased() > 0 || unsettled > 0 && waits_for_them
    }

    /// The worker is leaving, and is to have left at `limit`, if there is one.
    pub(super) fn begin(&mut self, limit: Option<u64>, now: u64, agenda: &mut Agenda) {
        self.has_begun = true;
        self.limit = limit;
        self.extend(now, agenda);
    }

    /// A settlement has begun.
    pub(super) fn on_settling(&mut self, now: u64, agenda: &mut Agenda) {
        self.settling = self.settling.saturating_add(1);
        self.extend(now, agenda);
    }

    /// A settlement has ended.
    pub(super) fn on_settled(&mut self, tag: u64, is_settled: bool, agenda: &mut Agenda) {
        self.settling = self.settling.saturating_sub(1);
        agenda.push(Action::Settled { tag, is_settled });
    }

    /// The grace of a worker that is leaving starts over.
    fn extend(&mut self, now: u64, agenda: &mut Agenda) {
        if !self.has_begun {
            return;
        }
        let end = now.saturating_add(GRACE);
        self.grace = Some(self.limit.map_or(end, |limit| limit.min(end)));
        self.on_timer(now);
        if let Some(end) = self.grace {
            agenda.advance_to(Due::Leaving, end);
        }
    }

    pub(super) fn on_timer(&mut self, now: u64) {
        self.grace = self.grace.filter(|end| *end > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settlements_keep_a_worker_that_is_leaving_for_a_moment_and_not_beyond_its_limit() {
        let requests = Requests::new();
        let mut agenda = Agenda::default();
        let mut leaving = Leaving::default();
        assert!(!leaving.keeps_worker(&requests, false));
        leaving.on_settling(0, &mut agenda);
        assert!(leaving.keeps_worker(&requests, false) && agenda.timers.earliest().is_none());
        leaving.begin(Some(GRACE + 5), 0, &mut agenda);
        assert_eq!((leaving.grace(), agenda.timers.earliest()), (Some(GRACE), Some(GRACE)));
        leaving.on_settling(GRACE / 2, &mut agenda);
        assert_eq!(leaving.grace(), Some(GRACE + 5));
        leaving.on_timer(GRACE + 4);
        assert!(leaving.keeps_worker(&requests, false));
        leaving.on_timer(GRACE + 5);
        assert!(!leaving.keeps_worker(&requests, false), "the settlements have taken too long");
    }

    #[test]
    fn a_worker_need_not_stay_when_all_is_settled() {
        let requests = Requests::new();
        let mut agenda = Agenda::default();
        let mut leaving = Leaving::default();
        leaving.begin(None, 0, &mut agenda);
        leaving.on_settling(0, &mut agenda);
        assert!(leaving.keeps_worker(&requests, false));
        leaving.on_settled(7, true, &mut agenda);
        assert!(!leaving.keeps_worker(&requests, false));
        assert_eq!(agenda.poll(), Some(Action::Settled { tag: 7, is_settled: true }));
    }
}
