//! A worker that is leaving. It stays as long as requests wait, and for a moment for what settles or
//! refunds charges: nobody waits for that.

use super::Client;
use super::timers::Due;
use crate::rate::MILLISECOND;

/// How long a worker stays for settlements, from the latest one on, in µs.
const GRACE: u64 = 1_000 * MILLISECOND;

/// Until when a worker that is leaving stays for settlements.
#[derive(Debug, Default)]
pub(super) struct Grace {
    end: Option<u64>,
    /// When the worker is to have left, if that is limited.
    limit: Option<u64>,
}

impl Grace {
    /// When it ends, if it has not ended.
    pub(super) fn end(&self) -> Option<u64> {
        self.end
    }

    fn extend(&mut self, now: u64) {
        let end = now.saturating_add(GRACE);
        self.end = Some(self.limit.map_or(end, |limit| limit.min(end)));
        self.on_timer(now);
    }

    pub(super) fn on_timer(&mut self, now: u64) {
        self.end = self.end.filter(|end| *end > now);
    }
}

impl Client {
    /// The worker is leaving, and is to have left at `limit`, if there is one: what is not needed any
    /// more is closed. Requests are still served.
    pub fn leave(&mut self, limit: Option<u64>, now: u64) {
        self.is_leaving = true;
        self.grace.limit = limit;
        self.extend_grace(now);
        let keys: Vec<_> = self.connections.keys().collect();
        for key in keys {
            if let Some(mut link) = self.link(key) {
                link.close_if_quiet();
            }
        }
    }

    /// Whether a worker that is leaving stays: for requests that were submitted and not released, and
    /// for a moment for settlements, and for replies that may lead to a refund.
    pub fn keeps_worker(&self) -> bool {
        let waiting = self.requests.len().saturating_sub(self.released);
        let unsettled = self.settling.saturating_add(self.released);
        waiting > 0 || unsettled > 0 && (!self.is_leaving || self.grace.end.is_some())
    }

    /// A settlement has begun.
    pub(super) fn extend_grace(&mut self, now: u64) {
        if self.is_leaving {
            self.grace.extend(now);
            self.grace.end.into_iter().for_each(|end| self.agenda.advance_to(Due::Leaving, end));
        }
    }
}
