//! Changes of one client of one limit by an operator, and the state of the client then.

pub mod table;

use std::num::NonZeroU64;

use crate::algorithm::Stored;
use crate::lease;
use crate::limit::Quota;
use crate::overrides::{Applied, Override};
use crate::rate::{MAX_EXACT, MAX_TIME, Rate};

/// A change of what a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// None: it is only looked at.
    Look,
    /// The quota is whole, and a block and a debt end. An override stays.
    Reset,
    /// So many units are given back, or as many as are missing; a debt is paid first.
    GiveBack(u64),
    /// The client is blocked for so long, in µs; 0: no longer.
    Block(u64),
    /// The client has a rate and capacity of its own.
    SetOverride {
        /// The rate.
        rate: Rate,
        /// The most that can be spent at once.
        limit: u64,
        /// For how long, in µs; `None`: until it is removed.
        lasts: Option<NonZeroU64>,
    },
    /// The client has the rate and capacity of the line.
    RemoveOverride,
}

/// The state of a client of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// The time of Redis, in µs.
    pub now: u64,
    /// The quota that applies to the client.
    pub quota: Quota,
    /// The units that remain.
    pub remaining: u64,
    /// When the quota is whole again, in µs from now.
    pub reset: u64,
    /// When a request of cost 1 can pass, in µs from now.
    pub retry_after: u64,
    /// For how long the client is still blocked, in µs.
    pub blocked_for: u64,
    /// The units that were charged beyond what there was.
    pub debt: u64,
    /// The units that Redis counts as set aside for machines: all that they may still spend, and what is left of leases that
    /// have ended and were not reported.
    pub held: u64,
    /// How long Redis counts them so, or those that were set aside before a change, in µs from now.
    pub held_for: u64,
    /// The override of the client.
    pub own: Option<Override>,
}

impl Change {
    /// The name by which the script knows it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Reset => "reset",
            Self::GiveBack(_) => "give_back",
            Self::Block(_) => "block",
            Self::SetOverride { .. } => "set_override",
            Self::RemoveOverride => "remove_override",
        }
    }

    /// The arguments of the script, behind the quota of the line.
    pub(crate) fn arguments(&self, quota: &Quota) -> Vec<u64> {
        match *self {
            Self::Look | Self::Reset | Self::RemoveOverride => Vec::new(),
            Self::GiveBack(units) => vec![units.min(MAX_EXACT)],
            Self::Block(span) => vec![span.min(quota.longest_block())],
            Self::SetOverride { lasts, .. } => {
                let own = self.own(0).and_then(|own| Some((own, own.quota(quota)?)));
                own.map_or_else(Vec::new, |(own, its)| {
                    let [limit, period, count, _, n, rate_period] = own.numbers(&its);
                    let lasts = lasts.map_or(0, NonZeroU64::get).min(MAX_TIME);
                    vec![limit, period, count, lasts, n, rate_period]
                })
            }
        }
    }

    /// The override that it sets at `now`, by Redis's clock in µs.
    fn own(&self, now: u64) -> Option<Override> {
        let Self::SetOverride { rate, limit, lasts } = *self else { return None };
        let ends = lasts.map(|lasts| lasts.saturating_add(now));
        Some(Override { rate, limit, ends })
    }

    /// Changes what is stored of a client at `now`, where `quota` is that of the line, as the script does.
    pub fn apply(&self, applied: &mut Applied, now: u64, quota: &Quota) {
        let (algorithm, its) = (quota.algorithm(), applied.quota);
        let stored = &mut applied.stored;
        match *self {
            Self::Look => {}
            Self::Reset => *stored = Stored::default(),
            Self::GiveBack(units) => algorithm.grant_back(stored, now, &its, units),
            Self::Block(span) => algorithm.set_block(stored, now, &its, span),
            Self::SetOverride { .. } | Self::RemoveOverride => {
                let own = self.own(now);
                let next = own.and_then(|own| own.quota(quota)).unwrap_or(*quota);
                let stored = algorithm.carry_over(std::mem::take(stored), now, &its, &next);
                *applied = Applied { stored, quota: next, own };
            }
        }
    }
}

impl ClientState {
    /// The state of a client at `now`, by Redis's clock in µs.
    pub fn new(applied: &Applied, now: u64) -> Self {
        let Applied { stored, quota, own } = applied;
        let algorithm = quota.algorithm();
        let mut stored = stored.clone();
        let blocked_for = stored.correct(now, quota);
        // A request that is rejected may begin a block; a look does not.
        let retry = algorithm.decide(&mut stored.clone(), now, &quota.with_block(0), 1).retry;
        let debt = algorithm.debt_at(&stored, now, quota);
        let holds = stored.extra.holds.lasting(now);
        let verdict = algorithm.decide(&mut stored.unblocked(), now, quota, 0);
        Self {
            now,
            quota: *quota,
            remaining: verdict.remaining,
            reset: verdict.reset.max(blocked_for),
            retry_after: retry.after().unwrap_or(0),
            blocked_for,
            debt,
            held: holds.units(quota.limit()),
            held_for: holds.ends().saturating_sub(now),
            own: *own,
        }
    }

    /// The state of a client on a machine that also decides for it by itself, where it has this `local` state: of both
    /// the stricter one.
    #[must_use]
    pub fn stricter(self, local: &Self) -> Self {
        Self {
            remaining: self.remaining.min(local.remaining),
            reset: self.reset.max(local.reset),
            retry_after: self.retry_after.max(local.retry_after),
            blocked_for: self.blocked_for.max(local.blocked_for),
            debt: self.debt.max(local.debt),
            ..self
        }
    }

    /// How many units of leases machines may still spend at most. `None` where the client may have leases and Redis does
    /// not remember them, as they end with a window.
    pub fn leased(&self, may_have_leases: bool) -> Option<u64> {
        let is_forgotten = self.quota.algorithm().leases_end_with_windows(&self.quota);
        (!may_have_leases || !is_forgotten).then_some(self.held)
    }

    /// When the last lease ends that a machine may have, in µs from now, where leases last `span` µs at most. It does not
    /// count what Redis remembers: that is nothing after a reset. Only where this machine has no leases, and `span` is 0,
    /// it tells whether other machines have some.
    pub fn leases_end_in(&self, span: u64) -> u64 {
        match span {
            0 => self.held_for.min(lease::remembered(lease::MAX_SPAN)),
            1.. => lease::remembered(span),
        }
    }
}
