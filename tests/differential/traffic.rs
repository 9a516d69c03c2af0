//! Random traffic, with a liking for the edges.

use fastrand::Rng;
use rate_limit_core::algorithm::Stored;
use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::lease::{Granted, Holding, Lease, Report};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MAX_EXACT, MAX_TIME, Rate, SATURATED};
use rate_limit_core::redis::script::Variant;

use crate::lab::{Charge, Step};
use crate::model::Model;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
const YEAR: u64 = 365 * DAY;

/// The dates of the test, about 2001 to 2128.
const TIMES: std::ops::RangeInclusive<u64> = 1_000_000 * 1_000_000_000..=5_000_000 * 1_000_000_000;

/// When the traffic starts.
const START: u64 = 1_700_000_000 * SECOND;

/// Rates as they are configured, most with an emission interval that is not whole µs.
const RATES: [&str; 15] = [
    "1r/s",
    "3r/s",
    "10r/s",
    "7r/10s",
    "100r/m",
    "1000r/1d",
    "1r/52w",
    "9r/1w",
    "100000r/10w",
    "1234567r/1d",
    "999983r/h",
    "1000000r/s",
    "4000000r/s",
    "999983r/s",
    "1r/1ms",
];

/// A stream of random steps.
pub struct Traffic {
    rng: Rng,
    now: u64,
    clients: Vec<Client>,
    /// How many keys there have been.
    keys: u64,
    /// Whether there are settlements, blocks and dry runs.
    is_extended: bool,
    last: Option<(Charge, Verdict)>,
    /// Leases that were not reported, each with its key and quota.
    leases: Vec<(String, Quota, Lease, Granted)>,
}

/// A key, and its limit at present.
struct Client {
    key: String,
    quota: Quota,
}

impl Traffic {
    /// Traffic of one client for each of `algorithms`; with settlements, blocks and dry runs, if it
    /// `is_extended`.
    pub fn new(rng: Rng, algorithms: &[Algorithm], is_extended: bool) -> Self {
        let (now, clients, leases) = (START, Vec::new(), Vec::new());
        let mut traffic = Self { rng, now, clients, keys: 0, is_extended, last: None, leases };
        for algorithm in algorithms {
            let is_settled = is_extended && traffic.rng.bool();
            let client = traffic.client(*algorithm, is_settled);
            traffic.clients.push(client);
        }
        traffic
    }

    /// How the limits of the clients are counted.
    pub fn variants(&self) -> Vec<Variant> {
        self.clients.iter().map(|client| Variant::from(&client.quota)).collect()
    }

    /// The next step, with `limits` limits.
    pub fn step(&mut self, limits: usize, model: &mut Model) -> Step {
        let count = self.clients.len();
        let clients: Vec<_> = (0..limits).map(|_| self.rng.usize(0..count)).collect();
        self.step_of(&clients, false, model)
    }

    /// The next step, which asks for all clients in turn: every other time plainly, so that it is one
    /// for the script of the list.
    pub fn step_of_all(&mut self, model: &mut Model) -> Step {
        let clients: Vec<_> = (0..self.clients.len()).collect();
        let is_plain = self.rng.bool();
        self.step_of(&clients, is_plain, model)
    }

    /// A step that `is_plain` charges, with neither blocks nor dry runs nor leases.
    fn step_of(&mut self, clients: &[usize], is_plain: bool, model: &mut Model) -> Step {
        self.now = self.next_time();
        self.change_clients(model);
        let mut charges: Vec<Charge> = clients.iter().map(|client| self.charge(*client)).collect();
        if is_plain {
            charges.iter_mut().for_each(Charge::make_plain);
        }
        let since = match &charges[..] {
            [charge] if !is_plain => self.since(charge.quota.rate().period()),
            _ => 0,
        };
        let gives_back = since > 0 && (!self.is_extended || self.rng.bool());
        let times = if since > 0 { 1 } else { self.times(&charges) };
        let is_settled = charges.iter().any(|charge| charge.quota.is_settled());
        let leases = match !is_plain && since == 0 && !is_settled && self.rng.bool() {
            true => charges.iter().map(|charge| self.lease(charge)).collect(),
            false => Vec::new(),
        };
        let step = Step { gives_back, since, times, leases, ..Step::charge(self.now, charges) };
        let expire = self.clients.iter().map(|client| client.key.clone());
        let gone = |key: &String| {
            let mut charges = step.charges.iter().filter(|charge| charge.key == *key).peekable();
            charges.peek().is_some() && charges.all(|charge| model.may_expire(charge, step.now))
        };
        // A report of a machine is not about a key that is gone.
        let may = step.leases.is_empty();
        let expire = expire.filter(gone).filter(|_| may && self.rng.bool()).collect();
        Step { expire, ..step }
    }

    /// Takes note of what a step was answered, to aim at its edges.
    pub fn learn(&mut self, step: &Step, verdicts: &[Verdict], grants: &[Granted]) {
        for (index, (charge, granted)) in step.charges.iter().zip(grants).enumerate() {
            if granted.units > 0 {
                let lease = step.lease(index);
                self.leases.push((charge.key.clone(), charge.quota, lease, *granted));
            }
        }
        let index = self.rng.usize(0..step.charges.len());
        let verdict = if step.times == 1 { verdicts[index] } else { verdicts[verdicts.len() - 1] };
        self.last = Some((step.charges[index].clone(), verdict));
    }

    fn client(&mut self, algorithm: Algorithm, is_settled: bool) -> Client {
        self.keys += 1;
        let (key, quota) = (format!("rl:default:{}", self.keys), self.quota(algorithm));
        Client { key, quota: if is_settled { quota.with_settle() } else { quota } }
    }

    /// Now and then a client is a new one, or its limit is changed.
    fn change_clients(&mut self, model: &mut Model) {
        let index = self.rng.usize(0..self.clients.len());
        let algorithm = self.clients[index].quota.algorithm();
        match self.rng.u32(0..100) {
            0 => {
                model.forget(&self.clients[index].key);
                // A list of algorithms stays the one that its script is for.
                let is_settled = self.clients[index].quota.is_settled();
                self.clients[index] = self.client(algorithm, is_settled);
            }
            1..5 => {
                let quota = self.quota(algorithm);
                let client = &mut self.clients[index].quota;
                *client = if client.is_settled() { quota.with_settle() } else { quota };
            }
            6..10 if self.is_extended => {
                let block = if self.rng.bool() { magnitude(&mut self.rng, DAY) } else { 0 };
                self.clients[index].quota = self.clients[index].quota.with_block(block);
            }
            5 => self.clients[index].quota = self.another_limit(self.clients[index].quota),
            _ => (),
        }
    }

    fn charge(&mut self, client: usize) -> Charge {
        let client = &self.clients[client];
        let (key, mut quota) = (client.key.clone(), client.quota);
        // A fleet may be between two configurations.
        if quota.is_settled() && self.rng.u32(0..50) == 0 {
            quota = unsettled(quota);
        }
        let dry_run = self.is_extended && quota.block() == 0 && self.rng.u32(0..100) < 20;
        Charge { dry_run, ..Charge::new(key, quota, self.cost(quota.limit())) }
    }

    /// Now and then a charge is corrected: since when it can have been regained, which is now, a moment ago,
    /// long ago, or only later. Else 0.
    fn since(&mut self, period: u64) -> u64 {
        match self.rng.u32(0..100) {
            0..10 => self.now,
            10..20 => self.now - magnitude(&mut self.rng, period.min(self.now / 2)),
            20..25 => self.now + magnitude(&mut self.rng, period),
            25..28 => self.now - magnitude(&mut self.rng, self.now / 2),
            28..31 => self.now - self.rng.u64(0..2 * DAY),
            _ => 0,
        }
    }

    /// Any lease: of a machine that has held one for this key, of one that reports nonsense, or of
    /// a new one.
    fn lease(&mut self, charge: &Charge) -> Lease {
        if !charge.quota.algorithm().has_leases() {
            return Lease::default();
        }
        let span = magnitude(&mut self.rng, 60 * SECOND);
        let want = magnitude(&mut self.rng, charge.quota.limit());
        let of_key = |lease: &(String, Quota, Lease, Granted)| lease.0 == charge.key;
        let report = match self.leases.iter().rposition(of_key) {
            _ if self.rng.u32(0..20) == 0 => self.nonsense(),
            Some(index) if self.rng.u32(0..8) > 0 => {
                let (_, quota, lease, granted) = self.leases.swap_remove(index);
                self.report(&quota, &lease, &granted)
            }
            _ => Report::default(),
        };
        let keep = magnitude(&mut self.rng, charge.quota.limit());
        Lease { span, want, keep, report }
    }

    /// The rest of a lease after some time and some requests. The clock of the machine may be ahead.
    fn report(&mut self, quota: &Quota, lease: &Lease, granted: &Granted) -> Report {
        let mut holding = Holding::new(quota, lease.span, granted, 1, 0);
        let ahead = if self.rng.bool() { magnitude(&mut self.rng, lease.span) } else { 0 };
        let elapsed = self.now.saturating_sub(granted.now).saturating_add(ahead);
        let elapsed = elapsed.min(lease.span.saturating_sub(1));
        for _ in 0..self.rng.u32(0..4) {
            let (cost, now) = (self.rng.u64(0..=holding.units()), self.rng.u64(0..=elapsed));
            holding.spend(quota, cost, now);
        }
        holding.lease(quota, lease.span, elapsed).report
    }

    fn nonsense(&mut self) -> Report {
        let number = |rng: &mut Rng| match rng.u32(0..3) {
            0 => START + rng.u64(0..YEAR),
            _ => magnitude(rng, MAX_EXACT),
        };
        let rng = &mut self.rng;
        let plain = [number(rng), number(rng), number(rng)];
        Report {
            of: number(rng),
            unused: number(rng),
            ends: number(rng),
            plain,
            charged: number(rng),
        }
    }

    /// Some requests are repeated.
    fn times(&mut self, charges: &[Charge]) -> u32 {
        let may = charges.len() == 1 && !charges[0].quota.algorithm().stores_itself();
        if may && self.rng.u32(0..100) < 20 { magnitude(&mut self.rng, 100) as u32 } else { 1 }
    }

    fn cost(&mut self, limit: u64) -> u64 {
        let remaining = self.last.as_ref().map_or(1, |(_, verdict)| verdict.remaining);
        match self.rng.u32(0..100) {
            0..10 => 0,
            10..50 => 1,
            50..65 => self.rng.u64(0..=limit),
            65..75 => self.rng.u64(1..=limit.div_ceil(10)),
            75..82 => remaining,
            82..87 => (remaining + 1).min(MAX_EXACT),
            87..92 => limit,
            92..96 => (limit + 1).min(MAX_EXACT),
            96 => SATURATED,
            _ => magnitude(&mut self.rng, MAX_EXACT),
        }
    }

    fn next_time(&mut self) -> u64 {
        let gap = self.gap();
        let back = self.rng.u32(0..20) == 0;
        let time = if back { self.now.saturating_sub(gap) } else { self.now + gap };
        // Where time is at its end it starts anew: one more step back.
        if TIMES.contains(&time) { time } else { START }
    }

    fn gap(&mut self) -> u64 {
        match self.rng.u32(0..100) {
            0..30 => 0,
            30..35 => self.rng.u64(0..10),
            35..75 => self.gap_to_an_edge(),
            75..90 => magnitude(&mut self.rng, DAY),
            90..98 => self.rng.u64(0..SECOND),
            _ => self.rng.u64(0..3 * YEAR),
        }
    }

    /// A gap to just before, at, or just after a moment at which something changes.
    fn gap_to_an_edge(&mut self) -> u64 {
        let Some((charge, verdict)) = &self.last else { return 0 };
        let (period, count) = (charge.quota.rate().period(), charge.quota.rate().count());
        let edge = match (self.rng.u32(0..6), verdict.retry) {
            (0, _) => verdict.reset,
            (1, _) => verdict.reset.div_ceil(1_000) * 1_000,
            (2, Retry::After(retry)) => retry,
            (3, _) => self.rng.u64(1..3) * period,
            (4, _) => self.gap_to_the_next_window(charge.quota),
            _ => self.rng.u64(1..4) * period / count,
        };
        (edge + self.rng.u64(0..3)).saturating_sub(1)
    }

    fn gap_to_the_next_window(&mut self, quota: Quota) -> u64 {
        // The windows of all algorithms are those of a fixed_window.
        let fixed = Quota::new(Algorithm::FixedWindow, quota.rate(), 1).expect("a quota");
        let rest = fixed.algorithm().decide(&mut Stored::default(), self.now, &fixed, 1).reset;
        rest + self.rng.u64(0..2) * quota.rate().period()
    }

    fn another_limit(&mut self, quota: Quota) -> Quota {
        let limit = self.rng.u64(1..=quota.limit() * 2).min(MAX_EXACT);
        let other = Quota::new(quota.algorithm(), quota.rate(), limit);
        let other = other.ok().filter(|other| self.is_possible(other));
        let other = other.map_or(quota, |other| other.with_block(quota.block()));
        if quota.is_settled() { other.with_settle() } else { other }
    }

    fn quota(&mut self, algorithm: Algorithm) -> Quota {
        loop {
            let quota = quota(&mut self.rng, algorithm);
            if self.is_possible(&quota) {
                return quota;
            }
        }
    }

    fn is_possible(&self, quota: &Quota) -> bool {
        !self.is_extended || quota.check_settle().is_ok()
    }
}

/// The quota of a line without `settle`, of whose name no line has it.
fn unsettled(quota: Quota) -> Quota {
    let plain = Quota::new(quota.algorithm(), quota.rate(), quota.limit()).expect("a quota");
    plain.with_block(quota.block())
}

/// Any quota, most of them such as are configured.
pub fn quota(rng: &mut Rng, algorithm: Algorithm) -> Quota {
    loop {
        let rate = rate(rng, algorithm);
        let limit = match rng.u32(0..4) {
            0 => rate.count(),
            1 => rng.u64(1..20),
            _ => magnitude(rng, MAX_EXACT),
        };
        if let Ok(quota) = Quota::new(algorithm, rate, limit) {
            return quota;
        }
    }
}

fn rate(rng: &mut Rng, algorithm: Algorithm) -> Rate {
    if algorithm.counts_months() && rng.u32(0..3) == 0 {
        return Rate::monthly(magnitude(rng, 10_000_000)).expect("a rate");
    }
    if rng.bool() {
        return RATES[rng.usize(0..RATES.len())].parse().expect("a rate");
    }
    Rate::new(magnitude(rng, 10_000_000), magnitude(rng, YEAR)).expect("a rate")
}

/// A quota whose numbers are near the end of what the algorithm takes, or their product is: limit
/// × period, which for the continuous ones is even beyond what a double can hold.
pub fn large_quota(rng: &mut Rng, algorithm: Algorithm) -> Quota {
    let least = if algorithm.is_continuous() { MAX_EXACT } else { MAX_EXACT >> 5 };
    loop {
        let period = magnitude(rng, 1 << 50).next_multiple_of(1_000).min(MAX_TIME);
        let is_monthly = algorithm.counts_months() && rng.bool();
        let rate = match is_monthly {
            true => Rate::monthly(magnitude(rng, 1 << 24)),
            false => Rate::new(magnitude(rng, 1 << 24), period),
        };
        let rate = rate.expect("a rate");
        let quota = Quota::new(algorithm, rate, magnitude(rng, 1 << 45));
        let is_large = |quota: &Quota| {
            if is_monthly {
                return true;
            }
            let parts = u128::from(quota.limit()) * u128::from(quota.terms().0);
            parts > u128::from(least)
        };
        if let Some(quota) = quota.ok().filter(is_large) {
            return quota;
        }
    }
}

/// A number from 1 to `most`, of any length.
pub fn magnitude(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.u32(0..=most.ilog2());
    rng.u64(1 << bits..=(1 << bits) * 2 - 1).min(most)
}
