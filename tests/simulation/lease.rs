//! The leases of a machine, which all of its workers share, as the module has them in shared memory; and
//! what they may spend.

use std::collections::HashMap;

use rate_limit_core::client::Answer;
use rate_limit_core::lease::table::{LeaseBucket, LeaseTable, Outcome, Taken};
use rate_limit_core::lease::{Granted, Report};

use crate::script::Charge;
use crate::traffic::{Part, Plan};

/// How many machines there are. The workers are on them in turn.
pub const MACHINES: usize = 2;

/// How many buckets the memory has: so few that leases must go for others.
const BUCKETS: usize = 16;

/// The memory of a machine, and the account of what was set aside for it.
#[derive(Debug)]
pub struct Machine {
    buckets: Vec<LeaseBucket>,
    accounts: HashMap<Box<[u8]>, Account>,
    pub hits: u64,
}

/// The units of a key that were set aside.
#[derive(Debug, Default)]
struct Account {
    /// The units of leases that were not reported, by the name of the hold or the end of the window.
    /// Leases that share it may be reported as one.
    open: HashMap<u64, u64>,
    set_aside: u64,
    given_back: u64,
    spent: u64,
    /// When the last lease ends.
    ends: u64,
}

impl Machine {
    pub fn new() -> Self {
        let buckets = std::iter::repeat_with(LeaseBucket::default).take(BUCKETS).collect();
        Self { buckets, accounts: HashMap::new(), hits: 0 }
    }

    fn table(&self, worker: usize) -> LeaseTable<'_> {
        LeaseTable::new(&self.buckets, worker as u32 + 1, |_| true)
    }

    /// Spends for a request that each of its limits has a lease for, if that is so.
    pub fn spend(&mut self, worker: usize, plan: &Plan, now: u64) -> bool {
        let parts = plan.parts.iter();
        let charges: Vec<_> = parts.clone().map(|part| part.charge(None)).collect();
        let passes = plan.span > 0
            && self.table(worker).spend(charges.iter(), now, &mut |_, verdict| {
                assert!(verdict.allowed, "a lease rejects request {}", plan.id);
            });
        if passes {
            self.hits += 1;
            for part in parts {
                let key = part.redis_key().into();
                self.accounts.entry(key).or_default().spend(part.cost, now);
            }
        }
        passes
    }

    /// Takes out the leases of a request that Redis is to decide.
    pub fn take(&self, worker: usize, plan: &Plan, now: u64) -> Vec<Taken> {
        let take = |part: &Part| match plan.span > 0 && part.has_leases() {
            true => {
                let until = now + plan.timeout;
                self.table(worker).take(&part.charge(None), now, until)
            }
            false => Taken::Busy,
        };
        plan.parts.iter().map(take).collect()
    }

    /// Takes note of what came of that.
    pub fn renew(
        &self,
        worker: usize,
        plan: &Plan,
        taken: &[Taken],
        (answers, grants): (&[Answer], &[Granted]),
        (submitted, now): (u64, u64),
    ) {
        let answers = answers.iter().zip(grants);
        for ((part, taken), (answer, granted)) in plan.parts.iter().zip(taken).zip(answers) {
            let outcome = Outcome {
                may_have_run: answer.may_have_run,
                is_charged: answer.is_charged,
                is_rejected: answer.verdict.is_some_and(|verdict| !verdict.allowed),
                granted: *granted,
                is_other_quota: false,
                span: plan.span,
                submitted,
            };
            self.table(worker).renew(&part.charge(None), 0, *taken, &outcome, now);
        }
    }

    /// A server has charged for this machine at `now`.
    pub fn execute(&mut self, charge: &Charge, now: u64) {
        let account = self.accounts.entry(charge.key.clone()).or_default();
        let Report { of, unused, ends, .. } = charge.lease.report;
        if of > 0 {
            let open = account.open.entry(ends).or_default();
            assert!(of <= *open, "reported, but not open: {charge:?} {open}");
            *open -= of;
            account.given_back += unused;
            account.check();
        }
        let granted = charge.granted;
        if granted.units > 0 {
            *account.open.entry(granted.ends).or_default() += granted.units;
            account.set_aside += granted.units;
            let span = charge.lease.span.min(granted.ends - granted.now);
            account.ends = account.ends.max(now + span);
        }
    }
}

impl Account {
    fn spend(&mut self, cost: u64, now: u64) {
        self.spent += cost;
        assert!(now < self.ends, "spent at {now}, after the end of the last lease: {self:?}");
        self.check();
    }

    fn check(&self) {
        let has = self.set_aside - self.given_back;
        assert!(self.spent <= has, "more is spent than was set aside: {self:?}");
    }
}
