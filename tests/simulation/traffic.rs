//! The requests: their limits, locations, keys and costs, drawn from the seed.

use std::fmt;
use std::rc::Rc;

use fastrand::Rng;
use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::key::{Digest, Head};
use rate_limit_core::lease::Lease;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MILLISECOND, Rate, SECOND};
use rate_limit_core::redis::script::Scripts;

use crate::ledger::{Class, RequestId};
use crate::network::ClientId;

/// The longest timeout of any location, in µs.
pub const LONGEST_TIMEOUT: u64 = SECOND;

/// The timeouts of locations, in µs.
const TIMEOUTS: [u64; 3] = [5 * MILLISECOND, 20 * MILLISECOND, LONGEST_TIMEOUT];

/// How long leases last, in µs: whole sixteenths, as the scripts get a sixteenth more.
const SPANS: [u64; 4] = [0, 1 << 16, 1 << 18, LONGEST_SPAN];

/// How long the longest ones last.
pub const LONGEST_SPAN: u64 = 1 << 20;

/// Everything that requests are drawn from.
#[derive(Debug)]
pub struct Traffic {
    limits: Vec<Limit>,
    locations: Vec<Location>,
    drawn: RequestId,
}

/// A line of the configuration.
#[derive(Debug)]
struct Limit {
    template: Rc<Template>,
    quotas: Vec<Quota>,
    costs: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Location {
    limits: Vec<usize>,
    timeout: u64,
    /// A request that was not decided does not pass.
    is_closed: bool,
    /// How long leases last, in µs; 0: there are none.
    span: u64,
}

/// A request.
#[derive(Debug)]
pub struct Plan {
    pub id: RequestId,
    pub parts: Vec<Part>,
    pub timeout: u64,
    pub is_closed: bool,
    /// How long leases last, in µs; 0: there are none.
    pub span: u64,
    /// No other request has its keys.
    pub is_alone: bool,
}

/// The charge of one limit for a request.
pub struct Part {
    template: Rc<Template>,
    key: Vec<u8>,
    pub quota: Quota,
    pub cost: u64,
}

impl Traffic {
    pub fn draw(rng: &mut Rng) -> Self {
        let scripts = Scripts::new();
        let count = rng.usize(2..9);
        let limits: Vec<_> = (0..count).map(|index| Limit::draw(index, &scripts, rng)).collect();
        let locations = (0..rng.usize(3..8))
            .map(|_| {
                let count = [1, 1, 1, 2, 3][rng.usize(0..5)];
                Location {
                    limits: rng.choose_multiple(0..limits.len(), count),
                    timeout: TIMEOUTS[rng.usize(0..3)],
                    is_closed: rng.bool(),
                    span: SPANS[rng.usize(0..SPANS.len())],
                }
            })
            .collect();
        Self { limits, locations, drawn: 0 }
    }

    /// The scripts of a worker with these locations.
    pub fn scripts(&self) -> Scripts {
        let algorithm = |limit: &usize| self.limits[*limit].quotas[0].algorithm();
        let list = |location: &Location| location.limits.iter().map(algorithm).collect();
        let is_settled = |limit: &usize| self.limits[*limit].quotas[0].is_settled();
        let plain = |location: &&Location| !location.limits.iter().any(is_settled);
        let lists: Vec<Vec<_>> = self.locations.iter().filter(plain).map(list).collect();
        Scripts::new().with_lists(lists.iter().map(Vec::as_slice))
    }

    pub fn next(&mut self, rng: &mut Rng) -> Plan {
        self.drawn += 1;
        let Location { limits, timeout, is_closed, span } =
            self.locations[rng.usize(0..self.locations.len())].clone();
        // Leases are for clients that come again.
        let most = if span > 0 { 2 } else { 4 };
        let (name, is_alone) = match rng.u32(0..most) {
            0 => (format!("hot{}", rng.u32(0..3)), false),
            1 => (format!("some{}", rng.u32(0..100)), false),
            _ => (format!("only{}", self.drawn), true),
        };
        // With braces all its keys are in one slot of a cluster.
        let name = if rng.bool() { format!("{{{name}}}") } else { name };
        let part = |index: usize| self.limits[index].part(name.as_bytes(), rng);
        let parts = limits.into_iter().map(part).collect();
        Plan { id: self.drawn, parts, timeout, is_closed, span, is_alone }
    }
}

impl Limit {
    fn draw(index: usize, scripts: &Scripts, rng: &mut Rng) -> Self {
        let head = Head::new("rl:", &format!("l{index}")).expect("a name");
        let is_constant = rng.bool();
        let algorithm = Algorithm::ALL[rng.usize(0..Algorithm::ALL.len())];
        // One of the lines has `settle` in effect.
        let is_settled = index % 3 == 2;
        let quotas: Vec<_> = (0..if is_constant { 1 } else { 2 })
            .map(|_| {
                let (limit, seconds) = (1 << rng.u64(0..11), 1 << rng.u64(0..6));
                let rate = match algorithm.counts_months() && rng.bool() {
                    true => Rate::monthly(limit),
                    false => Rate::new(limit, seconds * SECOND),
                };
                let quota = Quota::new(algorithm, rate.expect("a rate"), limit).expect("a quota");
                if is_settled { quota.with_settle() } else { quota }
            })
            .collect();
        let costs = if is_constant { vec![rng.u64(1..3)] } else { (0..5).collect() };
        let known = is_constant.then(|| (&quotas[0], costs[0]));
        Self { template: Rc::new(scripts.template(head, known)), quotas, costs }
    }

    fn part(&self, key: &[u8], rng: &mut Rng) -> Part {
        Part {
            template: Rc::clone(&self.template),
            key: key.to_vec(),
            quota: self.quotas[rng.usize(0..self.quotas.len())],
            cost: self.costs[rng.usize(0..self.costs.len())],
        }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { template, key, quota, cost } = self;
        let [head, key] = [&template.head()[..], key].map(String::from_utf8_lossy);
        write!(f, "{head}{key} {:?} {} for {cost}", quota.algorithm(), quota.limit())
    }
}

impl Part {
    pub fn charge<'a>(&'a self, lease: Option<&'a Lease>) -> Charge<'a> {
        let Self { template, key, quota, cost } = self;
        Charge { digest: self.digest(), lease, ..Charge::new(template, key, quota, *cost) }
    }

    pub fn has_leases(&self) -> bool {
        self.quota.algorithm().has_leases() && !self.quota.is_settled()
    }

    fn digest(&self) -> Digest {
        let mut digest = self.quota.fingerprint();
        for byte in self.redis_key() {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        (u128::from(digest) | u128::from(digest) << 64).into()
    }

    pub fn class(&self, worker: ClientId) -> Class {
        (worker, self.redis_key().into(), self.cost)
    }

    pub fn redis_key(&self) -> Vec<u8> {
        [&self.template.head()[..], &self.key].concat()
    }
}
