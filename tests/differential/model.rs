//! The replies and calls that the scripts should have, by the references.

use std::collections::BTreeMap;

use rate_limit_core::algorithm::{State, Stored};
use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::lease::{Granted, Lease, Report};
use rate_limit_core::limit::{Algorithm, Quota};

use crate::lab::{Charge, Kept, Step};

/// The stored state of every key.
#[derive(Default)]
pub struct Model {
    states: BTreeMap<String, Stored>,
    last: BTreeMap<String, Last>,
    /// How many units of its last lease each limit of a step has given back.
    returned: Vec<u64>,
}

/// The keys that are written: for which quota, and for how long.
type Writes = BTreeMap<String, (Quota, Kept)>;

/// The last write to a key.
struct Last {
    quota: Quota,
    /// When the key is gone, in µs.
    expiry: u64,
}

/// The reply and the writes that a script should have.
#[derive(Debug)]
pub struct Expected {
    /// One for each limit, or for each request about the only one.
    pub verdicts: Vec<Verdict>,
    /// The units that should be set aside, beside each verdict.
    pub grants: Vec<Granted>,
    /// The keys that should be written.
    pub writes: BTreeMap<String, Written>,
    /// How many entries the log of each limit has then.
    pub lengths: Vec<usize>,
    /// The verdict of each limit, of the last of repeated requests, if what it is charged is given back; none
    /// for a step that does not pass, or does something else.
    pub unspent: Vec<Verdict>,
}

/// A value that should be written to a key.
#[derive(Debug)]
pub struct Written {
    pub algorithm: Algorithm,
    /// How long the quota of a bucket takes to come back, at most, in µs.
    pub refill: u64,
    pub stored: Stored,
    pub kept: Kept,
}

impl Model {
    /// Puts a state where no decision has.
    pub fn store(&mut self, key: &str, stored: Stored) {
        self.forget(key);
        self.states.insert(key.to_owned(), stored);
    }

    /// Whether the key would be gone by now. One whose quota was changed since is left out: how
    /// long it is kept is no longer how long it takes to become whole. So is one of which a block is
    /// written: that leaves the state as it is, even if it is as good as none.
    pub fn may_expire(&self, charge: &Charge, now: u64) -> bool {
        let expired = |last: &Last| last.quota == charge.quota && now >= last.expiry;
        charge.quota.block() == 0 && self.last.get(&charge.key).is_some_and(expired)
    }

    /// Decides all or nothing, as `several.lua` does, which for one limit is as `single.lua` does;
    /// or gives all back, or settles. Repeated requests are decided one by one.
    ///
    /// A key that expires at this step is still known here: that must make no difference.
    pub fn decide(&mut self, step: &Step) -> Expected {
        // The first time has the report of a lease, the last one sets units aside.
        let lease = step.lease(0);
        let (wanted, reported) =
            (Lease { report: Report::default(), ..lease }, Lease { want: 0, ..lease });
        let first = Step { leases: vec![reported], ..step.clone() };
        let again = Step { expire: Vec::new(), leases: Vec::new(), ..step.clone() };
        let last = Step { leases: vec![wanted], ..again.clone() };
        let mut expected = self.decide_once(if step.times == 1 { step } else { &first });
        for time in 1..step.times {
            let is_last = time + 1 == step.times;
            let next = self.decide_once(if is_last { &last } else { &again });
            expected.verdicts.extend(next.verdicts);
            expected.unspent = next.unspent;
            expected.writes.extend(next.writes);
            expected.grants.extend(next.grants);
        }
        if let (Some(last), true) = (expected.grants.len().checked_sub(1), step.times > 1) {
            let returned = std::mem::take(&mut expected.grants[0].returned);
            expected.grants[last].returned = returned;
        }
        expected
    }

    fn decide_once(&mut self, step: &Step) -> Expected {
        let mut grants = Vec::new();
        let before = self.states.clone();
        let (mut verdicts, mut writes) = self.charge_all(step, None);
        let mut decided = step.charges.iter().zip(&verdicts);
        let passes = decided.all(|(charge, verdict)| charge.dry_run || verdict.allowed);
        let is_plain = step.leases.is_empty() && !step.gives_back && step.since == 0;
        let unspent = |(charge, verdict): (&Charge, &Verdict)| {
            let mut stored = before.get(&charge.key).cloned().unwrap_or_default();
            let (algorithm, quota) = (charge.quota.algorithm(), &charge.quota);
            let Verdict { allowed, retry, .. } = *verdict;
            Verdict { allowed, retry, ..algorithm.decide(&mut stored, step.now, quota, 0) }
        };
        let charged = step.charges.iter().zip(&verdicts).filter(|_| passes && is_plain);
        let unspent = charged.map(unspent).collect();
        if !passes {
            // Nothing is charged, and all verdicts show what the limits hold.
            self.states = before;
            let (held, kept) = self.charge_all(step, Some(&verdicts));
            writes = kept;
            for (verdict, held) in verdicts.iter_mut().zip(held) {
                *verdict = Verdict { allowed: verdict.allowed, retry: verdict.retry, ..held };
            }
            let retries: Vec<_> = (0..verdicts.len())
                .map(|index| self.shared_retry(step, index, &verdicts))
                .collect();
            for (verdict, retry) in verdicts.iter_mut().zip(retries) {
                verdict.retry = retry.unwrap_or(verdict.retry);
            }
        } else if !step.gives_back {
            grants = self.grant(step, &verdicts, &mut writes);
        }
        for key in step.expire.iter().filter(|key| !writes.contains_key(*key)) {
            self.forget(key);
        }
        for (key, (quota, kept)) in &writes {
            let last = Last { quota: *quota, expiry: expiry(*kept, step.now) };
            self.last.insert(key.clone(), last);
        }
        grants.resize(verdicts.len(), Granted { now: step.now, ..Granted::default() });
        for (granted, returned) in grants.iter_mut().zip(&self.returned) {
            granted.returned = *returned;
        }
        Expected {
            verdicts,
            grants,
            writes: writes.into_iter().map(|(key, write)| self.written(key, write)).collect(),
            lengths: step.charges.iter().map(|charge| self.length(&charge.key)).collect(),
            unspent,
        }
    }

    /// Checks every limit in turn, with its cost, or with none if the request was rejected with
    /// the verdicts `first`. Beside the verdicts come the keys that are to be
    /// written, with the quota of the last limit to do so, and for how long: that of a request that spends or
    /// gives back, and one where the state did not fit the time or the limit.
    ///
    /// An algorithm that writes for itself does not see what those before it are about to spend or give back: for all
    /// that share its key it is as one.
    fn charge_all(&mut self, step: &Step, first: Option<&[Verdict]>) -> (Vec<Verdict>, Writes) {
        let (mut writes, mut pending) = (Writes::new(), BTreeMap::new());
        let found = self.states.clone();
        self.returned.clear();
        let decide = |(index, charge): (usize, &Charge)| {
            let algorithm = charge.quota.algorithm();
            let state = self.states.entry(charge.key.clone()).or_default();
            let mut cost = if first.is_some() { 0 } else { charge.cost };
            let earlier = state.clone();
            if algorithm.stores_itself() {
                *state = found.get(&charge.key).cloned().unwrap_or_default();
                cost = cost.saturating_add(*pending.get(&charge.key).unwrap_or(&0));
            }
            let before = state.clone();
            let report = step.lease(index).report;
            self.returned.push(algorithm.report(state, step.now, &charge.quota, &report));
            let (now, quota) = (step.now, &charge.quota);
            let verdict = match (first, step.since, step.gives_back) {
                (Some(first), ..) => {
                    let rejects = matches!(first[index].retry, Retry::After(_));
                    algorithm.decline(state, now, quota, rejects)
                }
                (_, 0, _) => algorithm.decide(state, now, quota, cost),
                (_, since, is_less) => {
                    let change = cost as i64;
                    let change = if is_less { -change } else { change };
                    algorithm.settle(state, now, quota, since, change);
                    algorithm.decide(state, now, quota, 0)
                }
            };
            let counts = verdict.allowed && cost > 0;
            let spends = counts && step.since == 0;
            let is_blocked = state.extra.blocked_until != before.extra.blocked_until;
            let is_pending = algorithm.stores_itself() && writes.contains_key(&charge.key);
            if counts {
                pending.insert(charge.key.clone(), cost);
            }
            if is_pending && !counts && !is_blocked {
                // The state that one before it is about to write stays as it is.
                *state = earlier;
            } else if spends || *state != before {
                writes.insert(charge.key.clone(), (charge.quota, kept(state, step.now, &verdict)));
            }
            verdict
        };
        (step.charges.iter().enumerate().map(decide).collect(), writes)
    }

    /// Sets units aside, after all that is spent.
    fn grant(&mut self, step: &Step, verdicts: &[Verdict], writes: &mut Writes) -> Vec<Granted> {
        let grant = |(index, (charge, verdict)): (usize, (&Charge, &Verdict))| {
            let state = self.states.entry(charge.key.clone()).or_default();
            let (quota, algorithm) = (&charge.quota, charge.quota.algorithm());
            let is_last = step.charges[index + 1..].iter().all(|other| other.key != charge.key);
            let may = charge.cost > 0 && verdict.allowed && is_last;
            let remaining = if may { verdict.remaining } else { 0 };
            let granted = algorithm.grant(state, step.now, quota, &step.lease(index), remaining);
            if granted.units > 0 {
                let verdict = algorithm.decide(&mut state.clone(), step.now, quota, 0);
                writes.insert(charge.key.clone(), (*quota, kept(state, step.now, &verdict)));
            }
            granted
        };
        step.charges.iter().zip(verdicts).enumerate().map(grant).collect()
    }

    /// When a request could pass that the limit of this index rejects, if others share its key: when so much
    /// is left that all of them can spend. That is the sum of some of their costs.
    fn shared_retry(&self, step: &Step, index: usize, verdicts: &[Verdict]) -> Option<Retry> {
        let (charge, verdict) = (&step.charges[index], &verdicts[index]);
        let sharers: Vec<_> = step.charges.iter().filter(|other| other.key == charge.key).collect();
        if verdict.allowed || charge.dry_run || sharers.len() == 1 {
            return None;
        }
        let passes = |left: &u64| {
            let mut left = *left;
            sharers.iter().all(|sharer| match left.checked_sub(sharer.cost) {
                None => sharer.dry_run,
                Some(rest) => {
                    left = rest;
                    true
                }
            })
        };
        // A later limit may report enough of its lease.
        if passes(&verdict.remaining) {
            return None;
        }
        let sum = |chosen: usize| {
            let chosen = sharers.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1);
            chosen.fold(0_u64, |sum, (_, sharer)| sum.saturating_add(sharer.cost))
        };
        let sums = (0..1 << sharers.len()).map(sum).filter(|sum| *sum > verdict.remaining);
        let needed = sums.filter(|sum| *sum <= charge.quota.limit()).filter(passes).min();
        let mut state = self.states.get(&charge.key).cloned().unwrap_or_default();
        let mut decide =
            |cost| charge.quota.algorithm().decide(&mut state, step.now, &charge.quota, cost).retry;
        Some(needed.map_or(Retry::Never, &mut decide)).filter(|retry| *retry != Retry::No)
    }

    fn written(&self, key: String, (quota, kept): (Quota, Kept)) -> (String, Written) {
        let stored = self.states.get(&key).cloned().unwrap_or_default();
        let (period, count) = quota.terms();
        let refill = quota.limit().div_ceil(count).saturating_mul(period);
        (key, Written { algorithm: quota.algorithm(), refill, stored, kept })
    }

    fn length(&self, key: &str) -> usize {
        match self.states.get(key).and_then(|stored| stored.state.as_ref()) {
            Some(State::Log(log, _)) => log.len(),
            _ => 0,
        }
    }

    /// Forgets a key, as Redis has.
    pub fn forget(&mut self, key: &str) {
        self.states.remove(key);
        self.last.remove(key);
    }
}

/// How long a state is to be kept: until the quota is whole again, and not only in this millisecond. Some servers delete a
/// key at the start of the millisecond at which it is to go.
fn kept(stored: &Stored, now: u64, verdict: &Verdict) -> Kept {
    match &stored.state {
        Some(State::Log(log, _)) if log.is_empty() && verdict.reset == 0 => Kept::Gone,
        Some(State::Log(..)) => Kept::For((now % 1_000 + verdict.reset).div_ceil(1_000)),
        _ => Kept::Until((now + verdict.reset.max(1)).div_ceil(1_000)),
    }
}

/// When a key is gone that was written at `now`, in µs.
fn expiry(kept: Kept, now: u64) -> u64 {
    match kept {
        Kept::Until(time) => time * 1_000,
        Kept::For(time) => (now / 1_000 + time) * 1_000,
        Kept::Gone => now,
    }
}
