//! A location without a limit, beside one that has some: what the load on both comes to.

use harness::{Load, Nginx, Tally};

/// A location without a limit, whose requests are not in the journal.
pub(super) const CONTROL: &str =
    "location = /control { rate_limit_redis off; access_log off; try_files /index.html =404; }";

/// Requests to `/`, which has a limit, and to [`CONTROL`].
pub(super) struct ControlledLoad {
    limited: Load,
    control: Load,
}

impl ControlledLoad {
    /// Eight connections to the one and four to the other.
    pub(super) fn start(nginx: &Nginx) -> Self {
        let load = |path, connections| Load::start(nginx.addr(), path, connections);
        Self { limited: load("/", 8), control: load("/control", 4) }
    }

    /// See [`Load::wait_for_each`].
    #[track_caller]
    pub(super) fn wait_for_each(&self, more: u64) {
        self.limited.wait_for_each(more);
        self.control.wait_for_each(more);
    }

    /// Ends the requests and returns the results of those with a limit. Panics if one of either kind has failed.
    #[track_caller]
    pub(super) fn stop(self) -> Tally {
        let (tally, control) = (self.limited.stop(), self.control.stop());
        assert!(control.failures.is_empty(), "of the control: {control:?}");
        assert!(control.of(200) > 0 && control.of(200) == control.total(), "{control:?}");
        assert!(tally.failures.is_empty(), "{tally:?}");
        assert_eq!(tally.of(200) + tally.of(429), tally.total(), "{tally:?}");
        tally
    }
}
