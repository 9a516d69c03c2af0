//! Changes of a state by an operator: the reference of `script/manage.lua`.

use super::{Algorithm, State, Stored, sliding_log};
use crate::limit::Quota;

impl Algorithm {
    /// Gives so many units back, or as many as are missing. What was missing before is no longer known, so that no earlier
    /// charge can be corrected to less any more; and a machine that holds units does not take over a state without these.
    pub(crate) fn grant_back(self, stored: &mut Stored, now: u64, quota: &Quota, units: u64) {
        let units = match stored.state {
            Some(State::Log(..)) => sliding_log::pay(stored, now, quota, units),
            Some(_) | None => units,
        };
        self.add_back(stored, now, quota, units, None);
        stored.minima.clear();
        stored.extra.holds = stored.extra.holds.lasting(now);
        stored.extra.holds.count(units);
    }

    /// The state of a client that has a whole quota.
    pub(crate) fn whole(self) -> Stored {
        Stored { state: (self.row().read)([0; 3]), ..Stored::default() }
    }

    /// Blocks a client for `span` µs from now on; 0: no longer.
    pub(crate) fn set_block(self, stored: &mut Stored, now: u64, quota: &Quota, span: u64) {
        if span == 0 {
            stored.extra.blocked_until = 0;
            return;
        }
        stored.state = stored.state.take().or_else(|| self.whole().state);
        stored.extra.blocked_until = now.saturating_add(span.min(quota.longest_block()));
    }
}
