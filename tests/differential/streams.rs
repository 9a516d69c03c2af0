//! Requests under way of the same keys, whose charges are corrected.

use fastrand::Rng;
use harness::Redis;
use rate_limit_core::lease::Lease;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::redis::script::Variant;

use crate::agreement::{BATCH, KEY, NOW, check, length, seed};
use crate::lab::{Charge, Lab, Step};
use crate::model::Model;
use crate::traffic;

/// Charges of many streams, each of which is corrected later, in any order: so steps are many, and are joined. Some
/// requests have another limit too, whose machine takes a lease.
#[test]
fn streams_whose_charges_are_corrected_are_decided_alike() {
    let mut rng = Rng::with_seed(seed());
    let rounds = (length() / BATCH).max(4);
    let (mut most, mut round) = (0, 0);
    // One history in seven has as many steps as there can be.
    while round < rounds || most < 16 && round < 10 * rounds {
        most = most.max(Streams::new(&mut rng).run());
        round += 1;
    }
    assert_eq!(most, 16, "the steps were never many");
}

/// Streams of requests about two settled limits and one that is not.
struct Streams<'r> {
    rng: &'r mut Rng,
    quotas: [Quota; 3],
    now: u64,
    /// How long the first bucket takes to come back, in µs.
    full: u64,
    /// The greatest share of a limit that a request reserves.
    share: f64,
    /// The limit, the time and the cost of each charge that is not corrected yet.
    under_way: Vec<(usize, u64, u64)>,
}

impl<'r> Streams<'r> {
    fn new(rng: &'r mut Rng) -> Self {
        let algorithms = |is_chosen: fn(Algorithm) -> bool| -> Vec<_> {
            Algorithm::ALL.into_iter().filter(|algorithm| is_chosen(*algorithm)).collect()
        };
        let settled = algorithms(|algorithm| Variant::new(algorithm, true).is_settled());
        let leased = algorithms(Algorithm::has_leases);
        let mut quota = |algorithms: &[Algorithm]| loop {
            let algorithm = algorithms[rng.usize(0..algorithms.len())];
            let quota = traffic::quota(rng, algorithm);
            if quota.check_settle().is_ok() {
                return quota;
            }
        };
        let [first, second] = [&settled, &settled].map(|of| quota(of).with_settle());
        let quotas = [first, second, quota(&leased)];
        let (period, count) = quotas[0].terms();
        let full = quotas[0].limit().div_ceil(count).saturating_mul(period).min(NOW / 100);
        let share = [0.04, 0.4][rng.usize(0..2)];
        Self { rng, quotas, now: NOW, full, share, under_way: Vec::new() }
    }

    /// Checks a history. Returns how many steps a state has had at most.
    fn run(mut self) -> usize {
        let list = [0, 1].map(|index| Variant::from(&self.quotas[index]));
        let mut lab = Lab::with_lists(Redis::start(), [&list[..]]);
        let (mut model, mut history, mut most) = (Model::default(), Vec::new(), 0);
        for _ in 0..BATCH {
            self.wait();
            let step = self.step();
            let expected = model.decide(&step);
            if step.since == 0 && expected.verdicts.iter().all(|verdict| verdict.allowed) {
                self.note(&step);
            }
            let steps = expected.writes.values().map(|write| write.stored.minima.steps().len());
            most = steps.fold(most, usize::max);
            history.push((step, expected));
        }
        check(&mut lab, history);
        most
    }

    /// Lets time go by, or, rarely, back.
    fn wait(&mut self) {
        let share = [0.0, 0.001, 0.01, 0.05, 0.3][self.rng.usize(0..5)];
        let gap = (self.rng.f64() * share * self.full as f64) as u64;
        self.now = if self.rng.u32(0..60) == 0 { self.now - gap } else { self.now + gap };
    }

    fn note(&mut self, step: &Step) {
        let settled = [0, 1].map(|index| (index, key(index)));
        for (index, key) in &settled {
            let charges = step.charges.iter().filter(|charge| charge.key == *key);
            self.under_way.extend(charges.map(|charge| (*index, self.now, charge.cost)));
        }
    }

    fn charge(&mut self, index: usize) -> Charge {
        let quota = self.quotas[index];
        let cost = (self.rng.f64() * self.share * quota.limit() as f64).ceil() as u64;
        Charge::new(key(index), quota, cost)
    }

    fn charges(&mut self, indexes: &[usize]) -> Vec<Charge> {
        indexes.iter().map(|index| self.charge(*index)).collect()
    }

    fn step(&mut self) -> Step {
        let (now, index) = (self.now, self.rng.usize(0..2));
        match self.rng.u32(0..12) {
            0..=3 => Step::charge(now, self.charges(&[index])),
            4 => Step::charge_times(now, self.charge(index), self.rng.u32(2..5)),
            5 => Step::charge(now, self.charges(&[0, 1])),
            6 => {
                let mut charges = self.charges(&[0, 2, 0]);
                charges[2].dry_run = self.rng.bool();
                charges[0].quota = charges[0].quota.with_block(self.full / 9);
                Step::charge(now, charges)
            }
            7 => {
                let lease = Lease { span: 1_000_000, want: self.rng.u64(0..9), ..Lease::default() };
                let leases = vec![lease, Lease::default()];
                Step { leases, ..Step::charge(now, self.charges(&[2, index])) }
            }
            _ => self.correction(),
        }
    }

    /// Gives some of a charge back, or charges more.
    fn correction(&mut self) -> Step {
        if self.under_way.is_empty() {
            return Step::charge(self.now, self.charges(&[0]));
        }
        let (index, since, cost) =
            self.under_way.swap_remove(self.rng.usize(0..self.under_way.len()));
        let (times, gives_back) = ([1, 3, 50][self.rng.usize(0..3)], self.rng.u32(0..6) > 0);
        let change = self.rng.u64(0..=cost.max(1)) * if gives_back { 1 } else { times };
        let charge = Charge::new(key(index), self.quotas[index], change);
        Step { gives_back, ..Step::give_back(self.now, charge, since) }
    }
}

fn key(index: usize) -> String {
    format!("{KEY}{index}")
}
