//! Machines with leases let nothing through that one limit would not, and little less.
//!
//! A world of machines and a Redis, request by request: commands and replies take their time, some are
//! lost, and machines die with all that they hold. What passes is noted by the clock of Redis.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use fastrand::Rng;
use proptest::prelude::*;
use rate_limit_core::algorithm::{Regain, Stored};
use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::key::Head;
use rate_limit_core::lease::table::{LeaseBucket, LeaseTable, Outcome, Taken};
use rate_limit_core::lease::{Granted, Lease};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::manage::ClientState;
use rate_limit_core::overrides::Applied;
use rate_limit_core::rate::{Rate, SECOND};

use crate::history::{START, own_limit};
use crate::window::exceeds_in;

/// The algorithms with leases.
fn leased() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.has_leases())
}

/// The parameters of a world.
#[derive(Clone, Debug)]
struct Plan {
    quota: Quota,
    machines: usize,
    /// How long leases last; 0: there are none.
    span: u64,
    /// Requests a second, of all machines.
    demand: f64,
    /// How many requests come one after the other, to one machine.
    burst: usize,
    /// Whether those of a burst come at the same time.
    at_once: bool,
    /// How many requests are under way or about to come at once: each of as many users makes the next one some time
    /// after the reply to the last one. 0: requests come whatever becomes of others.
    users: usize,
    /// For how long a load balancer sends all requests to one machine, in µs; 0: it chooses one for each burst.
    stay: u64,
    /// The highest cost.
    cost: u64,
    /// The longest time that a command or a reply takes, in µs.
    delay: u64,
    /// How many of a thousand commands, replies and machines are lost.
    losses: u32,
    /// How many of a thousand requests come after a step of the clock of Redis.
    steps: u32,
    requests: usize,
    seed: u64,
}

struct World {
    plan: Plan,
    rng: Rng,
    /// The true time, and how far the clock of Redis is ahead.
    now: u64,
    ahead: i64,
    redis: Stored,
    /// A limit without leases under the same requests, and what it lets through.
    plain: Stored,
    plainly: u64,
    /// The least that remained of it.
    least: u64,
    machines: Vec<Machine>,
    /// The one that has the requests of the present burst, and until when a load balancer stays with it.
    machine: usize,
    moves_at: u64,
    /// When each user makes the next request, and the user of the present one.
    ready: Vec<u64>,
    user: usize,
    events: BinaryHeap<Reverse<(u64, usize)>>,
    commands: Vec<Command>,
    passed: Vec<Passed>,
    /// How many units were set aside and not spent at the steps of the clock.
    astray: u64,
    requested: usize,
    sent: usize,
}

/// The digest of the only client.
const DIGEST: u128 = 1;

thread_local! {
    static TEMPLATE: &'static Rc<Template> =
        Box::leak(Box::new(Rc::new(Template::new(Head::new("rl:", "a").unwrap(), None))));
}

/// A charge of the only client.
fn charge(quota: &Quota, cost: u64) -> Charge<'_> {
    let charge = TEMPLATE.with(|template| Charge::new(template, b"", quota, cost));
    Charge { digest: DIGEST.into(), ..charge }
}

#[derive(Default)]
struct Machine {
    leases: [LeaseBucket; 1],
    /// How far its monotonic clock is ahead.
    ahead: u64,
}

#[derive(Clone)]
struct Command {
    machine: usize,
    user: usize,
    cost: u64,
    taken: Taken,
    lease: Lease,
    submitted: u64,
    /// Whether it charges a request once more that Redis has rejected.
    is_second: bool,
    /// The reply of Redis, once it has come.
    granted: Option<(bool, Granted)>,
}

impl Machine {
    fn leases(&self) -> LeaseTable<'_> {
        LeaseTable::new(&self.leases, 1, |_| true)
    }
}

/// A request that has passed: when by the clock of Redis, at what cost, and how many steps of it before.
#[derive(Clone, Copy, Debug)]
struct Passed {
    at: u64,
    cost: u64,
    astray: u64,
    era: usize,
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::with_seed(plan.seed);
        let machine = |_| Machine { ahead: rng.u64(0..SECOND << 20), ..Machine::default() };
        let machines = (0..plan.machines).map(machine).collect();
        Self {
            plan,
            rng,
            now: START,
            ahead: 0,
            redis: Stored::default(),
            plain: Stored::default(),
            plainly: 0,
            least: u64::MAX,
            machines,
            machine: 0,
            moves_at: 0,
            ready: Vec::new(),
            user: 0,
            events: BinaryHeap::new(),
            commands: Vec::new(),
            passed: Vec::new(),
            astray: 0,
            requested: 0,
            sent: 0,
        }
    }

    fn clock(&self) -> u64 {
        self.now.saturating_add_signed(self.ahead)
    }

    fn chance(&mut self, of_a_thousand: u32) -> bool {
        self.rng.u32(0..1_000) < of_a_thousand
    }

    fn run(&mut self) {
        if self.plan.users > 0 {
            return self.run_users();
        }
        let mut era = 0;
        for request in 0..self.plan.requests {
            let next = self.now + self.gap(request);
            self.deliver(next, era);
            self.now = next;
            if self.chance(self.plan.steps) {
                self.step();
                era += 1;
            }
            self.request(era);
        }
        self.deliver(u64::MAX, era);
    }

    /// Each user makes a request, and the next one some time after its reply.
    fn run_users(&mut self) {
        for _ in 0..self.plan.users {
            let ready = self.now + self.pause();
            self.ready.push(ready);
        }
        while self.requested < self.plan.requests {
            let users = self.ready.iter().copied().enumerate();
            let (user, next) = users.min_by_key(|(_, ready)| *ready).expect("a user");
            if self.deliver_next(next, 0) {
                continue;
            }
            if next == u64::MAX {
                // Each of them waits for something that is lost.
                break;
            }
            (self.now, self.user) = (next, user);
            self.ready[user] = u64::MAX;
            self.choose_machine();
            self.request(0);
        }
        self.deliver(u64::MAX, 0);
    }

    /// The time between the requests of a user.
    fn pause(&mut self) -> u64 {
        let mean = (SECOND * self.plan.users as u64) as f64 / self.plan.demand;
        (-(1.0 - self.rng.f64()).ln() * mean) as u64
    }

    /// The request of a user is answered.
    fn on_answer(&mut self, user: usize) {
        if self.plan.users > 0 {
            self.ready[user] = self.now + self.pause();
        }
    }

    /// The time before a request. In a burst it comes when the one before has been answered, or at once.
    fn gap(&mut self, request: usize) -> u64 {
        let Plan { burst, at_once, demand, delay, .. } = self.plan;
        if !request.is_multiple_of(burst) {
            return if at_once { 0 } else { 2 * delay + 1 };
        }
        self.choose_machine();
        (-(1.0 - self.rng.f64()).ln() * (SECOND * burst as u64) as f64 / demand) as u64
    }

    /// Chooses the machine of a burst.
    fn choose_machine(&mut self) {
        if self.plan.stay == 0 || self.now >= self.moves_at {
            self.machine = self.rng.usize(0..self.machines.len());
            self.moves_at = self.now + self.plan.stay;
        }
    }

    /// The clock of Redis steps, mostly by less than a minute.
    fn step(&mut self) {
        let most = if self.rng.bool() { 3 * self.plan.span.max(SECOND) } else { 60 * SECOND };
        let micros = self.rng.i64(0..most as i64);
        self.ahead += if self.rng.bool() { micros } else { -micros };
        let units = |machine: &Machine| {
            machine.leases().holding(DIGEST).map_or(0, |holding| holding.units())
        };
        let held: u64 = self.machines.iter().map(units).sum();
        // A lease that is on its way, to be reported by a command or granted by a reply, is held as well.
        let under_way = |Reverse((_, index)): &Reverse<(u64, usize)>| {
            let Command { taken, granted, .. } = &self.commands[*index];
            match (granted, taken) {
                (Some((_, granted)), _) => granted.units,
                (None, Taken::Holding(holding)) => holding.units(),
                (None, _) => 0,
            }
        };
        self.astray += held + self.events.iter().map(under_way).sum::<u64>();
    }

    /// The bounds that the admin interface shows of leases are at least what machines have and are about to get.
    fn check_shown(&self) {
        let Plan { quota, span, steps, .. } = self.plan;
        if span == 0 || steps > 0 {
            return;
        }
        let applied = Applied { stored: self.redis.clone(), quota, own: None };
        let state = ClientState::new(&applied, self.clock());
        let ends = state.leases_end_in(span);
        let mut units = 0;
        for (index, machine) in self.machines.iter().enumerate() {
            let (mono, holding) = (self.mono(index), machine.leases().holding(DIGEST));
            units += holding.map_or(0, |holding| holding.left(mono));
            assert_eq!(holding.map_or(0, |holding| holding.left(mono + ends)), 0, "{state:?}");
        }
        for Reverse((_, index)) in &self.events {
            let Command { machine, submitted, granted, .. } = &self.commands[*index];
            let is_living = self.mono(*machine) < submitted + span;
            units += granted.map_or(0, |(_, granted)| if is_living { granted.units } else { 0 });
        }
        assert!(state.leased(true).is_none_or(|leased| leased >= units), "{units} {state:?}");
    }

    fn request(&mut self, era: usize) {
        self.check_shown();
        let (machine, cost) = (self.machine, self.rng.u64(1..=self.plan.cost));
        self.requested += 1;
        let (now, quota) = (self.clock(), self.plan.quota);
        let verdict = quota.algorithm().decide(&mut self.plain, now, &quota, cost);
        self.plainly += if verdict.allowed { cost } else { 0 };
        self.least = self.least.min(if verdict.allowed { verdict.remaining } else { 0 });
        if self.chance(self.plan.losses) {
            // It died, and another one takes its place.
            self.machines[machine].leases = Default::default();
        }
        if self.spend(machine, cost, era) {
            self.on_answer(self.user);
        } else {
            self.submit(machine, cost, false);
        }
    }

    /// The monotonic time of a machine.
    fn mono(&self, machine: usize) -> u64 {
        self.now - START + self.machines[machine].ahead
    }

    /// Whether a request is spent from a lease of its machine.
    fn spend(&mut self, machine: usize, cost: u64, era: usize) -> bool {
        let (quota, mono) = (self.plan.quota, self.mono(machine));
        let (leases, charge) = (self.machines[machine].leases(), charge(&quota, cost));
        let spends = leases.spend([charge].iter(), mono, &mut |_, it| assert!(it.allowed));
        if spends {
            self.pass(cost, era);
        }
        spends
    }

    fn submit(&mut self, machine: usize, cost: u64, is_second: bool) {
        let (quota, submitted) = (self.plan.quota, self.mono(machine));
        let leases = self.machines[machine].leases();
        let taken = leases.take(&charge(&quota, cost), submitted, submitted + self.plan.delay);
        let lease = taken.lease(&quota, self.plan.span, submitted).unwrap_or_default();
        self.sent += 1;
        let granted = None;
        let user = self.user;
        let command = Command { machine, user, cost, taken, lease, submitted, is_second, granted };
        self.commands.push(command);
        self.send(self.commands.len() - 1);
    }

    fn pass(&mut self, cost: u64, era: usize) {
        let (at, astray) = (self.clock(), self.astray);
        self.passed.push(Passed { at, cost, astray, era });
    }

    /// A command or a reply is on its way, if it is not lost.
    fn send(&mut self, command: usize) {
        if !self.chance(self.plan.losses) {
            let delay = self.rng.u64(0..=self.plan.delay);
            self.events.push(Reverse((self.now + delay, command)));
        }
    }

    /// Everything arrives that does before `until`.
    fn deliver(&mut self, until: u64, era: usize) {
        while self.deliver_next(until, era) {}
    }

    /// The first thing arrives that does before `until`. Returns whether there was any.
    fn deliver_next(&mut self, until: u64, era: usize) -> bool {
        let next = self.events.peek().copied().filter(|Reverse((at, _))| *at < until);
        let Some(Reverse((at, index))) = next else { return false };
        self.events.pop();
        self.now = at;
        match self.commands[index].granted {
            None => self.execute(index, era),
            Some((is_charged, granted)) => {
                self.renew(index, is_charged, granted);
                if is_charged || !self.retry(index, era) {
                    self.on_answer(self.commands[index].user);
                }
            }
        }
        true
    }

    /// A request that Redis has rejected is spent from a lease that has come meanwhile, or charged once more if
    /// its machine has units, or awaits some. Returns whether it is under way again.
    fn retry(&mut self, index: usize, era: usize) -> bool {
        let Command { machine, user, cost, is_second, .. } = self.commands[index];
        if self.spend(machine, cost, era) || is_second {
            return false;
        }
        let (leases, mono) = (self.machines[machine].leases(), self.mono(machine));
        let has_units = leases.holding(DIGEST).is_some_and(|holding| holding.left(mono) > 0);
        let is_again = has_units || leases.awaits_units(DIGEST, mono);
        if is_again {
            self.user = user;
            self.submit(machine, cost, true);
        }
        is_again
    }

    /// A machine takes note of what came of a command.
    fn renew(&mut self, index: usize, is_charged: bool, granted: Granted) {
        let (quota, span) = (self.plan.quota, self.plan.span);
        let Command { machine, cost, taken, submitted, .. } = self.commands[index];
        self.commands[index].granted = None;
        let (machine, may_have_run) = (&self.machines[machine], true);
        let charge = charge(&quota, cost);
        let is_rejected = !is_charged;
        let is_other_quota = false;
        let outcome = Outcome {
            may_have_run,
            is_charged,
            is_rejected,
            granted,
            is_other_quota,
            span,
            submitted,
        };
        machine.leases().renew(&charge, 0, taken, &outcome, self.now - START + machine.ahead);
    }

    fn execute(&mut self, index: usize, era: usize) {
        let Command { cost, lease, .. } = self.commands[index];
        let (now, quota, algorithm) = (self.clock(), self.plan.quota, self.plan.quota.algorithm());
        algorithm.report(&mut self.redis, now, &quota, &lease.report);
        let verdict = algorithm.decide(&mut self.redis, now, &quota, cost);
        let mut granted = Granted { now, ..Granted::default() };
        if verdict.allowed {
            self.pass(cost, era);
            granted = algorithm.grant(&mut self.redis, now, &quota, &lease, verdict.remaining);
        }
        self.commands[index].granted = Some((verdict.allowed, granted));
        self.send(index);
    }

    /// The requests that one limit without leases lets through, one after the other.
    fn conforming(&self) -> usize {
        let (quota, mut state) = (self.plan.quota, Stored::default());
        let passes = |passed: &&Passed| {
            let now = passed.at;
            quota.algorithm().decide(&mut state, now, &quota, passed.cost).allowed
        };
        self.passed.iter().filter(passes).count()
    }

    /// Whether more passes in any window than the algorithm's bound. Steps of the clock begin anew,
    /// with what machines have then, and what they had at the steps before.
    fn exceeds(&self) -> bool {
        (0..self.passed.len()).any(|first| {
            let Passed { at: from, era, astray, .. } = self.passed[first];
            let mut spent = 0;
            self.passed[first..].iter().take_while(|passed| passed.era == era).any(|passed| {
                spent += passed.cost;
                exceeds_in(self.plan.quota, from, passed.at, spent - spent.min(astray))
            })
        })
    }
}

/// Requests of cost 1 for a minute, so many a second, with leases of a second, and nothing that goes wrong.
fn base(quota: Quota, machines: usize, demand: f64) -> Plan {
    Plan {
        quota,
        machines,
        span: SECOND,
        demand,
        burst: 1,
        at_once: false,
        users: 0,
        stay: 0,
        cost: 1,
        delay: 500,
        losses: 0,
        steps: 0,
        requests: (60.0 * demand) as usize,
        seed: 0,
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let algorithms: Vec<_> = leased().collect();
    let count = prop_oneof![3 => 1..200_u64, 1 => 500..2_000_u64];
    let quota = (proptest::sample::select(algorithms), count, 1..20_u64, 1..300_u64);
    let quota = quota.prop_filter_map("no quota", |(algorithm, count, period, limit)| {
        let rate = Rate::new(count, period * SECOND / 4).ok()?;
        Quota::new(algorithm, rate, own_limit(algorithm, rate).unwrap_or(limit)).ok()
    });
    let world = (1..=16_usize, prop_oneof![10_000..2 * SECOND, Just(SECOND)], 0.1..5.0_f64);
    let world = (world, prop_oneof![Just(1), 2..40_usize]);
    let trouble = (1..5_u64, prop_oneof![Just(0), 0..2_000_u64, 0..300_000_u64], 0..60_u32);
    (quota, world, trouble, any::<u64>()).prop_map(|(quota, world, trouble, seed)| {
        let ((machines, span, load), burst) = world;
        let (cost, delay, losses) = trouble;
        let rate = quota.rate().count() as f64 * SECOND as f64 / quota.rate().period() as f64;
        let demand = rate * load * 2.0 / (1 + cost) as f64;
        let plan = base(quota, machines, demand);
        let (requests, at_once) = (400, seed % 4 == 0);
        let users = if seed % 4 == 1 { burst } else { 0 };
        Plan { span, burst, at_once, users, cost, delay, losses, requests, seed, ..plan }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever is lost, and however long it takes.
    #[test]
    fn leases_let_nothing_through_that_one_limit_would_not(plan in plans()) {
        let mut world = World::new(plan);
        world.run();
        prop_assert!(!world.exceeds(), "{:?}", world.passed);
        // A bucket that is refilled at intervals may be refilled at other moments.
        if world.plan.quota.algorithm().regain() != Regain::AtRefills {
            prop_assert_eq!(world.conforming(), world.passed.len());
        }
    }

    /// A step of the clock of Redis adds to what may pass what machines had then.
    #[test]
    fn leases_let_no_more_through_after_a_step_of_the_clock_but_what_is_held(plan in plans(), steps in 1..40_u32) {
        let mut world = World::new(Plan { steps, ..plan });
        world.run();
        prop_assert!(!world.exceeds(), "{:?}", world.passed);
    }
}

/// Results of some histories.
#[derive(Default)]
struct Measured {
    /// How much passed, of what would have passed without leases.
    share: f64,
    /// Commands a request.
    commands: f64,
}

/// Over so many histories.
fn measure(plan: &Plan, histories: u64) -> Measured {
    let (mut passed, mut plainly, mut commands, mut requested) = (0, 0, 0, 0);
    for seed in 0..histories {
        let mut world = World::new(Plan { seed, ..plan.clone() });
        world.run();
        passed += world.passed.iter().map(|passed| passed.cost).sum::<u64>();
        plainly += world.plainly;
        commands += world.sent;
        requested += world.requested;
    }
    Measured { share: passed as f64 / plainly as f64, commands: commands as f64 / requested as f64 }
}

/// A client that makes `load` times as many requests as it may, for a minute.
fn plan(algorithm: Algorithm, rate: &str, limit: u64, machines: usize, load: f64) -> Plan {
    let quota = Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap();
    let rate = quota.rate().count() as f64 * SECOND as f64 / quota.rate().period() as f64;
    let demand = rate * load;
    base(quota, machines, demand)
}

/// Rates and limits, the latter of the algorithms that have one beside the rate as well.
const RATES: [(&str, u64); 9] = [
    ("60r/m", 60),
    ("5r/10s", 5),
    ("20r/s", 20),
    ("40r/s", 40),
    ("100r/s", 100),
    ("1000r/h", 1_000),
    ("10r/s", 100),
    ("1r/s", 10),
    ("10r/s", 3),
];

/// Each algorithm with each rate.
fn limits() -> impl Iterator<Item = (Algorithm, &'static str, u64)> {
    leased().flat_map(|algorithm| {
        let fits = move |(rate, limit): &(&str, u64)| {
            own_limit(algorithm, rate.parse().unwrap()).is_none_or(|own| own == *limit)
        };
        RATES.into_iter().filter(fits).map(move |(rate, limit)| (algorithm, rate, limit))
    })
}

/// Where each request comes to another machine; and where those of a burst come to the same one, and the next
/// burst to another.
#[test]
fn nearly_all_passes_that_would_without_leases() {
    for (algorithm, rate, limit) in limits() {
        for load in [0.5, 0.85, 0.95, 1.0, 1.1, 1.5, 2.0, 5.0] {
            for (machines, burst, span, least) in [
                (1, 1, SECOND, 0.99),
                (2, 1, 60 * SECOND, 0.99),
                (3, 1, SECOND, 0.99),
                (4, 1, SECOND, 0.99),
                (4, 12, 10_000, 0.985),
            ] {
                let plan = plan(algorithm, rate, limit, machines, load);
                let share = measure(&Plan { span, burst, requests: 3_000, ..plan }, 1).share;
                let case = format!("{algorithm:?} {rate} {limit} {machines} {burst} {load}");
                assert!(share >= least, "{case}: {share:.4}");
            }
        }
    }
}

/// Some of its requests are decided at once, in an order of their own: so a few units are to remain without leases.
#[test]
fn a_client_of_one_machine_is_never_rejected_below_its_limit() {
    let mut histories = 0;
    for (algorithm, rate, limit) in limits() {
        for (load, delay, span) in [
            (0.5, 500, SECOND),
            (0.8, 500, SECOND),
            (0.9, 500, 60 * SECOND),
            (0.8, 20_000, SECOND),
            (0.9, 20_000, 60 * SECOND),
        ] {
            for seed in 0..4 {
                let plan = plan(algorithm, rate, limit, 1, load);
                let mut world = World::new(Plan { delay, span, seed, requests: 500, ..plan });
                world.run();
                if world.least >= 2 + delay / 5_000 {
                    histories += 1;
                    let case = format!("{algorithm:?} {rate} {limit} {load} {delay} {span} {seed}");
                    assert_eq!(world.passed.len(), world.requested, "{case}");
                }
            }
        }
    }
    assert!(histories >= 100, "{histories}");
}

/// Bursts of all that a client may, at the same time: units that the first command sets aside reject the last ones,
/// which spend them when they have come.
#[test]
fn a_burst_of_the_whole_limit_passes() {
    for algorithm in leased() {
        for machines in [1, 2] {
            let sparse = plan(algorithm, "60r/s", 60, machines, 0.05);
            let (burst, at_once, span) = (60, true, 60 * SECOND);
            let share = measure(&Plan { burst, at_once, span, requests: 3_000, ..sparse }, 2).share;
            assert!(share >= 0.99, "{algorithm:?} {machines}: {share:.4}");
        }
    }
}

#[test]
fn at_half_the_rate_few_requests_are_commands() {
    for algorithm in leased() {
        for (rate, limit, machines, of_bucket, of_window) in [
            ("40r/s", 40, 1, 0.1, 0.25),
            ("40r/s", 40, 2, 0.25, 0.35),
            ("100r/s", 100, 1, 0.05, 0.12),
            ("100r/s", 100, 2, 0.11, 0.15),
            ("1000r/10s", 1_000, 1, 0.035, 0.035),
            ("1000r/10s", 1_000, 2, 0.06, 0.06),
        ] {
            let Measured { share, commands } =
                measure(&plan(algorithm, rate, limit, machines, 0.5), 4);
            let most = if algorithm.is_continuous() { of_bucket } else { of_window };
            let case = format!("{algorithm:?} {rate} {machines}");
            assert!(commands <= most && share == 1.0, "{case}: {share:.4} {commands:.3}");
        }
    }
}

/// A client that comes rarely gets no lease: it would be lost before the next request.
#[test]
fn who_comes_rarely_has_no_leases() {
    for algorithm in leased() {
        let Measured { share, commands } = measure(&plan(algorithm, "60r/m", 60, 4, 0.25), 4);
        assert!(share == 1.0 && commands >= 0.99, "{algorithm:?}: {share:.4} {commands:.3}");
    }
}

/// A client that comes in bursts, to one machine or another, leaves units there that it does not need. They
/// come back when it returns.
#[test]
fn what_a_burst_leaves_on_a_machine_comes_back() {
    for algorithm in leased() {
        for machines in [1, 2, 4] {
            let rate = match algorithm.regain() {
                // With more at once leases would end with the refills.
                Regain::AtRefills => "40r/h",
                Regain::Continuous | Regain::AtOnce => "1000r/d",
            };
            let whole = plan(algorithm, rate, 1_000, machines, 1.0);
            let bursts = Plan { demand: 4.0, burst: 12, requests: 2_000, ..whole };
            let share = measure(&bursts, 4).share;
            assert!(share >= 0.99, "{algorithm:?} {machines}: {share:.4}");
        }
    }
}

/// Requests one after the other, of which a fifth that reaches Redis takes long on the way: what the machine shows
/// is what remains without leases, but for what is regained on the way.
#[test]
fn a_slow_command_takes_nothing() {
    const SLOW: u64 = 5_000;
    for algorithm in leased() {
        let quota = Quota::new(algorithm, "1000r/s".parse().unwrap(), 1_000).unwrap();
        let machine = Machine { ahead: 7 * SECOND, ..Machine::default() };
        let (mut redis, mut plain) = (Stored::default(), Stored::default());
        let mut rng = Rng::with_seed(5);
        let (mut now, mut hits) = (START, 0);
        for request in 0..4_000 {
            now += rng.u64(100..2_000);
            let mono = now - START + machine.ahead;
            let mut shown = None;
            let charge = charge(&quota, 1);
            if machine
                .leases()
                .spend([charge].iter(), mono, &mut |_, verdict| shown = Some(verdict))
            {
                hits += 1;
            } else {
                let taken = machine.leases().take(&charge, mono, mono + SECOND);
                let lease = taken.lease(&quota, SECOND, mono).unwrap_or_default();
                now += if rng.u32(0..5) == 0 { SLOW } else { 50 };
                algorithm.report(&mut redis, now, &quota, &lease.report);
                let verdict = algorithm.decide(&mut redis, now, &quota, 1);
                let granted = algorithm.grant(&mut redis, now, &quota, &lease, verdict.remaining);
                now += 50;
                let (is_charged, may_have_run, span, submitted) = (true, true, SECOND, mono);
                let is_rejected = false;
                let outcome = Outcome {
                    may_have_run,
                    is_charged,
                    is_rejected,
                    granted,
                    is_other_quota: false,
                    span,
                    submitted,
                };
                machine.leases().renew(&charge, 0, taken, &outcome, now - START + machine.ahead);
                shown = Some(verdict);
            }
            let without = algorithm.decide(&mut plain, now, &quota, 1);
            let shown = shown.expect("a verdict").remaining;
            // Units that a command's way there and back may regain, and the machine's clock may be ahead.
            let regained = 2 * (SLOW + 100) * 1_000 / SECOND;
            let is_near = shown.abs_diff(without.remaining) <= regained;
            // A window may have begun meanwhile.
            let is_edge = shown.max(without.remaining) >= 990;
            assert!(
                is_near || is_edge,
                "{algorithm:?}, {request}: {shown} instead of {}",
                without.remaining
            );
        }
        assert!(hits >= 3_000, "{algorithm:?}: {hits}");
    }
}

/// Bursts of requests at the same time, and as many users: some are decided by Redis beside the lease. So as many are
/// to remain without leases as come at once.
#[test]
fn a_client_with_requests_under_way_is_never_rejected_below_its_limit() {
    let mut histories = 0;
    for (algorithm, rate, limit) in limits() {
        for (load, span) in [(0.7, SECOND), (0.85, 10 * SECOND), (0.95, SECOND)] {
            for (burst, users, delay) in [
                (1, 0, 50_000),
                (2, 0, 1_000),
                (4, 0, 5_000),
                (8, 0, 2_000),
                (1, 2, 100),
                (1, 8, 2_500),
            ] {
                for seed in 0..3 {
                    let at_once = true;
                    let plan = plan(algorithm, rate, limit, 1, load);
                    let plan = Plan { span, burst, at_once, users, delay, seed, ..plan };
                    let mut world = World::new(Plan { requests: 1_500, ..plan });
                    world.run();
                    if world.least >= (burst.max(users) as u64).max(2) {
                        histories += 1;
                        let case =
                            format!("{algorithm:?} {rate} {limit} {load} {burst} {users} {seed}");
                        assert_eq!(world.passed.len(), world.requested, "{case}");
                    }
                }
            }
        }
    }
    assert!(histories >= 300, "{histories}");
}

/// A load balancer moves the client every few seconds.
#[test]
fn nearly_all_passes_with_requests_under_way() {
    for (algorithm, rate, limit) in limits() {
        for load in [0.5, 0.85, 0.95, 1.1, 2.0] {
            for (machines, burst, users, stay, least) in [
                (1, 4, 0, 0, 0.99),
                (1, 1, 8, 0, 0.99),
                (2, 1, 4, 0, 0.985),
                (4, 1, 8, 0, 0.985),
                (2, 1, 0, 5 * SECOND, 0.985),
                (4, 1, 0, 3 * SECOND, 0.98),
            ] {
                let (at_once, delay) = (true, 1_000);
                let plan = plan(algorithm, rate, limit, machines, load);
                let plan = Plan { burst, at_once, users, stay, delay, requests: 3_000, ..plan };
                let share = measure(&plan, 1).share;
                let case =
                    format!("{algorithm:?} {rate} {limit} {machines} {burst} {users} {stay}");
                assert!(share >= least, "{case} {load}: {share:.4}");
            }
        }
    }
}
