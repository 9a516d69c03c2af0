//! The decisions on a request as one: header fields and variables are the same for both phases.

use ngx::ffi::ngx_http_request_t;
use rate_limit_core::conf::limit::{Effect, Phase};
use rate_limit_core::decision::{Decision, Shown, Status};

use crate::conf::LocationConf;
use crate::context::Context;
use crate::evaluated::{Evaluated, tightest};

/// The decisions on a request, as one.
pub(crate) struct Report {
    /// The decisions, in the order of the phases.
    contexts: [Option<&'static Context>; Phase::ALL.len()],
    /// The configuration of the location whose limits made the worse one.
    pub(crate) conf: &'static LocationConf,
    pub(crate) decision: Decision<'static>,
}

impl Report {
    /// The report on the client's request that `r` is a part of, once there is a decision.
    ///
    /// # Safety
    /// `r` must be valid. What is returned lives as long as the request does.
    pub(crate) unsafe fn on(r: *mut ngx_http_request_t) -> Option<Self> {
        // SAFETY: passed on.
        let latest = unsafe { Context::find(r) }?;
        if !latest.is_only() {
            return Self::of_all(latest);
        }
        let (conf, decision) = (latest.conf(), latest.decision()?);
        Some(Self { contexts: [Some(latest), None], conf, decision })
    }

    /// The report on the latest context and those before it.
    #[inline(never)]
    fn of_all(latest: &'static Context) -> Option<Self> {
        let contexts = Phase::ALL.map(|phase| latest.of(phase));
        let decisions = contexts.iter().flatten();
        let decisions = decisions.filter_map(|it| Some((it.conf(), it.decision()?)));
        let (conf, decision) = decisions.reduce(worse)?;
        let mut report = Self { contexts, conf, decision };
        match report.decision.status {
            Status::Rejected => {}
            // No limit has decided that.
            Status::ErrorRejected => report.contexts = [None; Phase::ALL.len()],
            _ if report.contexts.iter().flatten().count() > 1 => {
                report.decision.shown = report.tightest().and_then(Evaluated::show);
            }
            _ => {}
        }
        Some(report)
    }

    /// The limits that have decided.
    fn limits(&self) -> impl Iterator<Item = &'static Evaluated> + Clone + use<'_> {
        self.contexts.iter().flatten().flat_map(|context| context.decided())
    }

    /// The limit of the single-valued fields, as it is now.
    pub(crate) fn shown(&self) -> Option<Shown<'static>> {
        Some(self.decision.shown?.after(self.age()))
    }

    /// All limits that have decided, as they are now.
    pub(crate) fn all(&self) -> impl Iterator<Item = Shown<'static>> + Clone + use<'_> {
        self.limits().filter_map(|limit| Some(limit.show()?.after(self.age())))
    }

    /// How long ago the latest of the decisions was made, in µs. A rejection was made just now, however
    /// long its error page took, or else its `Retry-After` would be later than the reset.
    fn age(&self) -> u64 {
        if self.decision.status == Status::Rejected {
            return 0;
        }
        self.contexts.iter().flatten().filter_map(|context| context.age()).min().unwrap_or(0)
    }

    /// The names of the limits that rejected the request, or would have.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &'static str> + use<'_> {
        let is_rejected = self.decision.status == Status::Rejected;
        let has_part = move |limit: &&Evaluated| !is_rejected || limit.effect() == Effect::Enforced;
        self.limits().filter(|limit| limit.is_violated()).filter(has_part).map(Evaluated::name)
    }

    fn tightest(&self) -> Option<&'static Evaluated> {
        let of = |effect| tightest(self.limits().filter(move |limit| limit.effect() == effect));
        of(Effect::Enforced).or_else(|| of(Effect::DryRun))
    }
}

type Concluded = (&'static LocationConf, Decision<'static>);

/// The worse of two decisions; the request has waited for both.
fn worse(one: Concluded, other: Concluded) -> Concluded {
    let wait = one.1.wait.saturating_add(other.1.wait);
    let is_other = one.1.status.worse(other.1.status) == other.1.status;
    let (conf, decision) = if is_other { other } else { one };
    (conf, Decision { wait, ..decision })
}
