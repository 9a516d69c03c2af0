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
    /// How many reservations are still to be settled.
    reserved: usize,
    /// How many settlements have not ended.
    settling: usize,
}

impl Leaving {
    /// Whether the worker is leaving.
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

    /// Whether a worker is leaving, and nothing will come any more that needs a connection. Settlements are still to come of
    /// requests that are under way: each would make a connection of its own, and may be lost where Redis is slow.
    pub(super) fn is_done(&self, requests: &Requests, sends_late: bool) -> bool {
        self.has_begun && self.reserved == 0 && !self.keeps_worker(requests, sends_late)
    }

    /// The worker is leaving, and is to have left at `limit`, if there is one.
    pub(super) fn begin(&mut self, limit: Option<u64>, now: u64, agenda: &mut Agenda) {
        self.has_begun = true;
        self.limit = limit;
        self.extend(now, agenda);
    }

    pub(super) fn on_reserved(&mut self) {
        self.reserved = self.reserved.saturating_add(1);
    }

    /// A reservation has ended: it is settled now, or stands.
    pub(super) fn on_reservation_ended(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    pub(super) fn on_settling(&mut self, now: u64, agenda: &mut Agenda) {
        self.on_reservation_ended();
        self.settling = self.settling.saturating_add(1);
        self.extend(now, agenda);
    }

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
    fn connections_are_needed_until_all_is_settled() {
        let requests = Requests::new();
        let mut agenda = Agenda::default();
        let mut leaving = Leaving::default();
        assert!(!leaving.is_done(&requests, false), "it is not leaving");
        (0..2).for_each(|_| leaving.on_reserved());
        leaving.begin(None, 0, &mut agenda);
        assert!(!leaving.keeps_worker(&requests, false), "NGINX waits for the requests");
        leaving.on_reservation_ended();
        assert!(!leaving.is_done(&requests, false));
        leaving.on_settling(0, &mut agenda);
        assert!(!leaving.is_done(&requests, false));
        leaving.on_settled(7, true, &mut agenda);
        assert!(leaving.is_done(&requests, false));
        leaving.on_settling(0, &mut agenda);
        leaving.on_timer(GRACE);
        assert!(leaving.is_done(&requests, false), "it is not waited for any longer");
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
