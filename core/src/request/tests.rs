//! Every kind of decision, on a machine of real tables.

mod end;
mod unusable;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::local::verdicts;
use super::*;
use crate::algorithm::Undelayed;
use crate::charge::{Charge, Template};
use crate::conf::limit::Phase;
use crate::decision::{Retry, Verdict};
use crate::deny_cache::Denial;
use crate::key::Head;
use crate::lease::Holding;
use crate::lease::table::{LeaseBucket, LeaseTable, Taken};
use crate::limit::{Algorithm, Quota};
use crate::metrics::SettlementResult;
use crate::overrides::Override;
use crate::rate::SECOND;
use crate::table::Table;

/// The monotonic time at which requests begin, in µs.
const START: u64 = 1_000 * SECOND;
/// Room in the local table, in words.
const ROOM: usize = 1 << 12;
/// The digest of the first limit. The second one has twice as much, and so on.
const DIGEST: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

struct TestLine {
    name: String,
    effect: Effect,
    settles: bool,
    quota: Quota,
}

impl ConfiguredLimit for TestLine {
    fn name(&self) -> &str {
        &self.name
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn is_refundable(&self) -> bool {
        false
    }

    fn settles(&self) -> bool {
        self.settles
    }

    fn undelayed(&self) -> Option<Undelayed> {
        None
    }

    fn known_quota(&self) -> Option<&Quota> {
        Some(&self.quota)
    }
}

type TestLimit = Evaluated<'static, TestLine>;
/// Where the verdict of a limit came from, and what became of the request.
type Counted = (Option<Source>, Option<Status>);
type TestRequest = LimitedRequest<'static, TestMachine>;

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A limit of 10 requests a second, the one of this number.
fn limit(number: u128, effect: Effect, settles: bool) -> TestLimit {
    let name = format!("limit{number}");
    let head = Head::new("p:", &name).unwrap();
    let quota = Quota::new(Algorithm::TokenBucket, "10r/s".parse().unwrap(), 10).unwrap();
    let line = leak(TestLine { name, effect, settles, quota });
    let template = leak(Rc::new(Template::new(head, None)));
    let digest = DIGEST.wrapping_mul(number).into();
    let charge = Charge { effect, digest, ..Charge::new(template, b"client", &line.quota, 1) };
    Evaluated::new(line, charge, None)
}

fn limits(effects: &[Effect]) -> &'static [TestLimit] {
    let numbered = (1..).zip(effects);
    leak(numbered.map(|(number, effect)| limit(number, *effect, false)).collect::<Vec<_>>())
}

/// Evaluates these limits; those of these indexes have an unusable value.
fn evaluate(
    limits: &'static [TestLimit],
    unusable: &[usize],
) -> Result<(&'static [TestLimit], Option<Effect>), Unevaluated> {
    let mut remaining = Remaining::default();
    let each = limits.iter().enumerate().filter_map(|(index, it)| {
        remaining.keep(match unusable.contains(&index) {
            true => Err(Unevaluated::Unusable(it.charge.effect)),
            false => Ok(Some(Evaluated::new(it.line, it.charge, None))),
        })
    });
    let kept: Result<Vec<_>, _> = each.collect();
    remaining.conclude(kept.map(|kept| leak(kept).as_slice()))
}

fn policy(change: impl FnOnce(&mut Policy)) -> &'static Policy {
    let mut policy = Policy::default();
    change(&mut policy);
    leak(policy)
}

/// A machine with one worker, whose tables are real but for that of the deny cache.
struct TestMachine {
    now: Cell<u64>,
    denials: RefCell<HashMap<u128, Denial>>,
    leases: Vec<LeaseBucket>,
    local: RefCell<Vec<u64>>,
    /// When all that was spent locally of a limit is regained, by name.
    whole: RefCell<HashMap<String, u64>>,
    /// How often the local table was used.
    local_uses: Cell<usize>,
    /// Requests whose states did not fit into it.
    no_room: Cell<usize>,
    /// The counts of limits, in this order.
    counts: RefCell<Vec<Counted>>,
    waits: Cell<usize>,
    reservations: Cell<usize>,
    /// The reservations that have ended on this machine.
    ended: RefCell<Vec<Option<SettlementResult>>>,
    /// The overrides of clients that were noted.
    overrides: RefCell<HashMap<u128, Option<Override>>>,
    /// For how long clients are blocked, as it was noted, in µs.
    blocks: RefCell<HashMap<u128, u64>>,
}

impl TestMachine {
    fn new(room: usize) -> Self {
        Self {
            now: Cell::new(START),
            denials: RefCell::default(),
            leases: std::iter::repeat_with(LeaseBucket::default).take(16).collect(),
            local: RefCell::new(vec![0; room]),
            whole: RefCell::default(),
            local_uses: Cell::new(0),
            no_room: Cell::new(0),
            counts: RefCell::default(),
            waits: Cell::new(0),
            reservations: Cell::new(0),
            ended: RefCell::default(),
            overrides: RefCell::default(),
            blocks: RefCell::default(),
        }
    }

    fn table(&self) -> LeaseTable<'_> {
        LeaseTable::new(&self.leases, 1, |_| true)
    }

    /// Puts a lease of 5 units of this limit into the table.
    fn put_lease(&self, limit: &TestLimit) {
        let plain = [9, START, 0];
        let ends = 2 * START;
        let granted = Granted { units: 5, now: START, ends, plain, ..Granted::default() };
        let outcome = Outcome {
            may_have_run: true,
            is_charged: true,
            is_rejected: false,
            granted,
            is_other_quota: false,
            span: SECOND,
            submitted: START,
        };
        self.table().renew(&limit.charge, 0, Taken::Nothing, &outcome, START);
    }

    /// Decides about another request of the client of these limits, in an outage.
    fn decide_locally(&self, limits: &[TestLimit]) -> LocalCharges<'static> {
        let others = limits.iter().map(|it| Evaluated::new(it.line, it.charge, None));
        let others = leak(others.collect::<Vec<_>>());
        let request: TestRequest = LimitedRequest::new(policy(|_| ()), others, self.now());
        request.decide_locally(self, Mode::Outage).unwrap()
    }

    /// Charges the client of these limits locally until it is rejected.
    fn exhaust(&self, limits: &[TestLimit]) {
        (0..10).for_each(|_| drop(self.decide_locally(limits)));
    }

    fn counted(&self) -> Vec<Counted> {
        self.counts.take()
    }
}

impl Machine for TestMachine {
    type Limit = TestLine;
    type Submission = Sent;

    fn now(&self) -> u64 {
        self.now.get()
    }

    fn random(&self) -> u32 {
        1 << 31
    }

    fn denied(&self, limit: &Evaluated<'_, TestLine>, now: u64) -> Option<Verdict> {
        self.denials.borrow().get(&limit.charge.client())?.verdict(now)
    }

    fn deny(&self, limit: &Evaluated<'_, TestLine>, denial: Denial) {
        self.denials.borrow_mut().insert(limit.charge.client(), denial);
    }

    fn end_denials_of_others(&self, _: &Evaluated<'_, TestLine>, _: u64) {}

    fn end_denials_of(&self, limit: &Evaluated<'_, TestLine>) {
        self.denials.borrow_mut().remove(&limit.charge.client());
    }

    fn spend(
        &self,
        limits: &[Evaluated<'_, TestLine>],
        now: u64,
        act: &mut impl FnMut(usize, Verdict),
    ) -> bool {
        self.table().spend(limits.iter().map(|limit| &limit.charge), now, act)
    }

    fn holding(&self, limit: &Evaluated<'_, TestLine>) -> Option<Holding> {
        self.table().holding(limit.charge.digest.number())
    }

    fn awaits_units(&self, limit: &Evaluated<'_, TestLine>, now: u64) -> bool {
        self.table().awaits_units(limit.charge.digest.number(), now)
    }

    fn take_lease(&self, limit: &Evaluated<'_, TestLine>, now: u64, until: u64) -> Taken {
        self.table().take(&limit.charge, now, until)
    }

    fn renew_lease(&self, limit: &Evaluated<'_, TestLine>, taken: Taken, outcome: &Outcome) {
        self.table().renew(&limit.charge, 0, taken, outcome, self.now());
    }

    fn has_charges(&self, limit: &Evaluated<'_, TestLine>, now: u64) -> bool {
        self.whole.borrow().get(limit.line.name()).is_some_and(|whole| now < *whole)
    }

    fn note_charges(&self, limit: &Evaluated<'_, TestLine>, reset: u64) {
        let mut known = self.whole.borrow_mut();
        let whole = known.entry(limit.line.name().to_owned()).or_default();
        *whole = (*whole).max(self.now() + reset);
    }

    fn with_local_table<T>(&self, act: impl FnOnce(&mut Table<'_>, u64) -> T) -> T {
        self.local_uses.set(self.local_uses.get() + 1);
        act(&mut Table::open(&mut self.local.borrow_mut()), self.now())
    }

    fn count_no_room(&self) {
        self.no_room.set(self.no_room.get() + 1);
    }

    fn note_override(&self, limit: &Evaluated<'_, TestLine>, own: Option<Override>, _: u64) {
        self.overrides.borrow_mut().insert(limit.charge.client(), own);
    }

    fn note_block(&self, limit: &Evaluated<'_, TestLine>, span: u64) {
        self.blocks.borrow_mut().insert(limit.charge.client(), span);
    }

    fn blocked_for(&self, limit: &Evaluated<'_, TestLine>) -> u64 {
        self.blocks.borrow().get(&limit.charge.client()).copied().unwrap_or(0)
    }

    fn count_wait(&self, _: u64) {
        self.waits.set(self.waits.get() + 1);
    }

    fn count(&self, _: &TestLine, source: Option<Source>, status: Option<Status>) {
        self.counts.borrow_mut().push((source, status));
    }

    fn add_reservation(&self, _: &TestLine) {
        self.reservations.set(self.reservations.get() + 1);
    }

    fn end_reservation(&self, _: &TestLine, result: Option<SettlementResult>) {
        self.ended.borrow_mut().push(result);
    }

    fn settle(&self, _: &Evaluated<'_, TestLine>, at: Sent, since: u64, change: i64) {
        at.0.settled.borrow_mut().push((since, change));
    }
}

/// A submission whose outcome is what a test says.
#[derive(Clone, Copy)]
struct Sent(&'static Reply);

#[derive(Default)]
struct Reply {
    outcome: Cell<Option<Result<(), Error>>>,
    answers: RefCell<Vec<Answer>>,
    unspent: Cell<Option<Verdict>>,
    own: Cell<Option<Override>>,
    released: Cell<Option<(bool, Option<u64>)>>,
    /// How many charges were refunded.
    refunds: Cell<usize>,
    /// How many charges are reservations.
    reservations: Cell<usize>,
    /// How many of them stand.
    standing: Cell<usize>,
    /// Since when settlements can have been regained, and how much more they charge.
    settled: RefCell<Vec<(u64, i64)>>,
}

impl Submission for Sent {
    fn take_outcome(&self, take: impl FnOnce(&[Answer])) -> Option<Result<(), Error>> {
        let outcome = self.0.outcome.get()?;
        take(&self.0.answers.borrow());
        Some(outcome)
    }

    fn with_answers(&self, act: impl FnOnce(&[Answer])) {
        act(&self.0.answers.borrow());
    }

    fn granted(&self, _: usize) -> Granted {
        Granted::default()
    }

    fn own(&self, _: usize) -> Option<Override> {
        self.0.own.get()
    }

    fn unspent(&self, _: usize) -> Option<Verdict> {
        self.0.unspent.get()
    }

    fn reserve(&self) {
        assert!(self.0.released.get().is_some(), "it is decided");
        self.0.reservations.set(self.0.reservations.get() + 1);
    }

    fn stand(&self) {
        self.0.standing.set(self.0.standing.get() + 1);
    }

    fn release(&self, refund: bool, wait: Option<u64>) {
        assert_eq!(self.0.released.replace(Some((refund, wait))), None, "released once");
    }

    fn refund(&self, _: &Charge<'_>, _: u64) {
        self.0.refunds.set(self.0.refunds.get() + 1);
    }
}

fn verdict(allowed: bool) -> Verdict {
    let retry = if allowed { Retry::No } else { Retry::After(SECOND / 10) };
    Verdict { allowed, blocked: 0, remaining: 0, reset: SECOND, retry }
}

/// The answer of Redis to a charge that its limit allows, or does not; `passes`: no other limit of its command
/// rejects it.
fn answer(allowed: bool, passes: bool) -> Answer {
    let verdict = Some(verdict(allowed));
    Answer { verdict, is_charged: allowed && passes, now: START, ..Answer::default() }
}

fn submit(request: &TestRequest, machine: &TestMachine) -> &'static Reply {
    request.take_leases(machine, machine.now(), |renewal| Some(leak(renewal))).unwrap();
    let reply = leak(Reply::default());
    request.on_submitted(Sent(reply));
    reply
}

/// Redis answers, 1 ms after the request began.
fn reply(request: &TestRequest, machine: &TestMachine, to: &Reply, answers: &[Answer]) -> Progress {
    to.answers.replace(answers.to_vec());
    finish(request, machine, to, Ok(()))
}

fn finish(
    request: &TestRequest,
    machine: &TestMachine,
    to: &Reply,
    outcome: Result<(), Error>,
) -> Progress {
    assert_eq!(request.take_reply(), None, "it is still waiting");
    to.outcome.set(Some(outcome));
    machine.now.set(machine.now() + 1_000);
    let outcome = request.take_reply().expect("it is complete");
    request.on_reply(machine, outcome)
}

fn status_and_source(request: &TestRequest) -> (Status, Source) {
    let decision = request.decision().expect("it is decided");
    (decision.status, decision.source)
}

/// The replies of limits and store to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Allowed,
    Rejected,
    Undecided,
    Unusable,
}

const ENFORCED: &[Effect] = &[Effect::Enforced];
const DRY_RUN: &[Effect] = &[Effect::DryRun];
const MIXED: &[Effect] = &[Effect::Enforced, Effect::DryRun];

/// A kind of request, the parts that could decide it, and its decision.
type Row = (Says, &'static [Effect], Source, Status, Source);

/// A lease never rejects, and the deny cache never allows, nor decides for several limits: Redis is asked then. What
/// fails in Redis is rejected by the policy of these requests, unless they are decided locally.
const ROWS: [Row; 48] = {
    use Says::*;
    use Source::*;
    use Status::{ErrorPassed, ErrorRejected, Passed, RejectedDryRun};
    const REJECTED: Status = Status::Rejected;
    [
        (Allowed, ENFORCED, Redis, Passed, Redis),
        (Allowed, ENFORCED, Lease, Passed, Lease),
        (Allowed, ENFORCED, Cache, Passed, Redis),
        (Allowed, ENFORCED, Local, Passed, Local),
        (Allowed, DRY_RUN, Redis, Passed, Redis),
        (Allowed, DRY_RUN, Lease, Passed, Lease),
        (Allowed, DRY_RUN, Cache, Passed, Redis),
        (Allowed, DRY_RUN, Local, Passed, Local),
        (Allowed, MIXED, Redis, Passed, Redis),
        (Allowed, MIXED, Lease, Passed, Lease),
        (Allowed, MIXED, Cache, Passed, Redis),
        (Allowed, MIXED, Local, Passed, Local),
        (Rejected, ENFORCED, Redis, REJECTED, Redis),
        (Rejected, ENFORCED, Lease, REJECTED, Redis),
        (Rejected, ENFORCED, Cache, REJECTED, Cache),
        (Rejected, ENFORCED, Local, REJECTED, Local),
        (Rejected, DRY_RUN, Redis, RejectedDryRun, Redis),
        (Rejected, DRY_RUN, Lease, RejectedDryRun, Redis),
        (Rejected, DRY_RUN, Cache, RejectedDryRun, Cache),
        (Rejected, DRY_RUN, Local, RejectedDryRun, Local),
        (Rejected, MIXED, Redis, REJECTED, Redis),
        (Rejected, MIXED, Lease, REJECTED, Redis),
        (Rejected, MIXED, Cache, REJECTED, Redis),
        (Rejected, MIXED, Local, REJECTED, Local),
        (Undecided, ENFORCED, Redis, ErrorRejected, None),
        (Undecided, ENFORCED, Lease, ErrorRejected, None),
        (Undecided, ENFORCED, Cache, ErrorRejected, None),
        (Undecided, ENFORCED, Local, ErrorPassed, None),
        (Undecided, DRY_RUN, Redis, ErrorPassed, None),
        (Undecided, DRY_RUN, Lease, ErrorPassed, None),
        (Undecided, DRY_RUN, Cache, ErrorPassed, None),
        (Undecided, DRY_RUN, Local, ErrorPassed, None),
        (Undecided, MIXED, Redis, ErrorRejected, None),
        (Undecided, MIXED, Lease, ErrorRejected, None),
        (Undecided, MIXED, Cache, ErrorRejected, None),
        (Undecided, MIXED, Local, ErrorPassed, None),
        (Unusable, ENFORCED, Redis, ErrorRejected, None),
        (Unusable, ENFORCED, Lease, ErrorRejected, None),
        (Unusable, ENFORCED, Cache, ErrorRejected, None),
        (Unusable, ENFORCED, Local, ErrorRejected, None),
        (Unusable, DRY_RUN, Redis, ErrorPassed, None),
        (Unusable, DRY_RUN, Lease, ErrorPassed, None),
        (Unusable, DRY_RUN, Cache, ErrorPassed, None),
        (Unusable, DRY_RUN, Local, ErrorPassed, None),
        (Unusable, MIXED, Redis, ErrorRejected, None),
        (Unusable, MIXED, Lease, ErrorRejected, None),
        (Unusable, MIXED, Cache, ErrorRejected, None),
        (Unusable, MIXED, Local, ErrorRejected, None),
    ]
};

/// Sets up the machine of a row, and runs its request.
fn run((says, effects, source, ..): Row) -> (&'static TestRequest, TestMachine) {
    let room = if (says, source) == (Says::Undecided, Source::Local) { 0 } else { ROOM };
    let machine = TestMachine::new(room);
    let on_error = if source == Source::Local { OnError::Local } else { OnError::Closed };
    let policy = policy(|policy| {
        policy.on_error = on_error;
        policy.lease = if source == Source::Lease { 1_000 } else { 0 };
    });
    let all = limits(effects);
    // The first one of several limits is enforced.
    let unusable: &[_] = if says == Says::Unusable { &[0] } else { &[] };
    let (limits, unusable) = evaluate(all, unusable).unwrap();
    let request: &TestRequest = leak(LimitedRequest::new(policy, limits, START));
    match (source, says) {
        (Source::Lease, Says::Allowed | Says::Unusable) => {
            all.iter().for_each(|it| machine.put_lease(it));
        }
        (Source::Cache, Says::Rejected | Says::Unusable) => {
            let quota = all[0].charge.quota;
            machine.deny(&all[0], Denial::new(&verdict(false), quota, START, START).unwrap());
        }
        (Source::Local, Says::Rejected | Says::Unusable) => machine.exhaust(all),
        _ => {}
    }
    if let Some(effect) = unusable {
        let uses = machine.local_uses.get();
        assert!(request.leave_out(&machine, effect, all.iter().map(|limit| limit.line)));
        assert_eq!(machine.local_uses.get(), uses, "none of them is queried");
        assert!(all.iter().filter_map(|it| machine.holding(it)).all(|it| it.units() == 5));
        return (request, machine);
    }
    // Redis does not know of what was spent locally, and is not asked again before it fails.
    if source == Source::Local {
        machine.whole.take();
    }
    if request.begin(&machine) == Progress::Submit {
        let to = submit(request, &machine);
        let progress = match (source, says) {
            (Source::Local, _) | (_, Says::Undecided) => {
                finish(request, &machine, to, Err(Error::Timeout))
            }
            (_, Says::Allowed) => {
                reply(request, &machine, to, &vec![answer(true, true); limits.len()])
            }
            _ => reply(request, &machine, to, &vec![answer(false, false); limits.len()]),
        };
        assert_eq!(progress, Progress::Decided);
        assert!(to.released.get().is_some() && !request.is_submitted());
    }
    (request, machine)
}

#[test]
fn rows_are_all_that_there_are() {
    let says = [Says::Allowed, Says::Rejected, Says::Undecided, Says::Unusable];
    let effects = [ENFORCED, DRY_RUN, MIXED];
    let mut rows = ROWS.iter();
    for says in says {
        for effects in effects {
            for source in [Source::Redis, Source::Lease, Source::Cache, Source::Local] {
                let row = rows.next().unwrap();
                assert_eq!((row.0, row.1, row.2), (says, effects, source));
            }
        }
    }
    assert!(rows.next().is_none());
}

#[test]
fn one_phase_decides() {
    for row in ROWS {
        let (says, effects, _, status, source) = row;
        let (request, machine) = run(row);
        assert_eq!(status_and_source(request), (status, source), "{row:?}");
        let refused = matches!(status, Status::Rejected | Status::ErrorRejected);
        assert_eq!(request.is_refused(), refused, "{row:?}");
        let decision = request.decision().unwrap();
        assert_eq!(decision.is_invalid, says == Says::Unusable, "{row:?}");
        assert_eq!(decision.shown.is_some(), source != Source::None, "{row:?}");
        let waited = u64::from(!matches!(source, Source::Lease | Source::Cache)) * 1_000;
        assert_eq!(decision.wait, if says == Says::Unusable { 0 } else { waited }, "{row:?}");
        // The effect that a limit of a dry run would have had is its own.
        let dry_run = match says {
            Says::Allowed => Status::Passed,
            Says::Rejected => Status::RejectedDryRun,
            Says::Undecided | Says::Unusable => Status::ErrorPassed,
        };
        let counted = |effect: &Effect| match effect {
            Effect::Enforced => status,
            Effect::DryRun => dry_run,
        };
        let source = (source != Source::None).then_some(source);
        let expected = effects.iter().map(|effect| (source, Some(counted(effect))));
        assert_eq!(machine.counted(), expected.collect::<Vec<_>>(), "{row:?}");
        let is_cached = decision.source == Source::Cache;
        assert_eq!(machine.waits.get(), usize::from(!is_cached), "{row:?}");
    }
}

/// Each status of a row, the worse one later.
const RANKED: [Status; 5] = [
    Status::Passed,
    Status::RejectedDryRun,
    Status::ErrorPassed,
    Status::Rejected,
    Status::ErrorRejected,
];

/// How many limits of this effect do not allow a request of this kind.
fn violated((says, effects, ..): Row, effect: Effect) -> usize {
    let violated = effects.iter().filter(|it| says == Says::Rejected && **it == effect);
    violated.count()
}

/// Any kind of request in one phase, and any in the other one.
#[test]
fn both_phases_decide_as_one() {
    let all = ROWS.map(|row| (row, run(row).0));
    for (one, first) in all {
        for (other, second) in all {
            let phases = [first, second];
            assert_eq!(phases.len(), Phase::ALL.len());
            let both = Decisions::of_all(phases.map(Some), START + 1_000).unwrap();
            let waits = phases.map(|request| request.decision().unwrap().wait);
            assert_eq!(both.decision.wait, waits[0] + waits[1], "{one:?}, {other:?}");
            check_both([one, other], &both);
        }
        let alone = Decisions::of_one(first, START + 1_000).unwrap();
        assert_eq!(alone.decision.status, one.3, "{one:?}");
    }
}

fn check_both(rows: [Row; 2], both: &Decisions<'_, TestMachine>) {
    // The second one of two equal ones.
    let rank = |row: &Row| RANKED.iter().position(|status| *status == row.3);
    let (says, _, _, status, source) = rows.into_iter().max_by_key(rank).unwrap();
    assert_eq!((both.decision.status, both.decision.source), (status, source), "{rows:?}");
    assert_eq!(both.decision.is_invalid, says == Says::Unusable, "{rows:?}");
    let of_both = |number: fn(Row) -> usize| rows.map(number).iter().sum::<usize>();
    let decided = of_both(|(_, effects, .., source)| match source {
        Source::None => 0,
        _ => effects.len(),
    });
    // No limit is shown if none has decided that.
    let (shown, expected) = match status {
        Status::ErrorRejected => (0, 0),
        Status::Rejected => (decided, of_both(|row| violated(row, Effect::Enforced))),
        _ => (decided, of_both(|row| violated(row, Effect::DryRun))),
    };
    assert_eq!(both.violated().count(), expected, "{rows:?}");
    assert_eq!(both.all().count(), shown, "{rows:?}");
    assert_eq!(both.shown().is_some(), shown > 0, "{rows:?}");
    if let Some(limit) = both.shown().filter(|_| status == Status::Rejected) {
        assert!(!limit.verdict.allowed, "{rows:?}");
    }
}

#[test]
fn an_enforced_limit_and_one_of_a_dry_run_may_disagree() {
    let redis = Some(Source::Redis);
    for (enforced, dry_run, status, counted) in [
        (true, false, Status::RejectedDryRun, [Some(Status::Passed), Some(Status::RejectedDryRun)]),
        // A limit that allows a request that another one rejects is not counted.
        (false, true, Status::Rejected, [Some(Status::Rejected), None]),
    ] {
        let machine = TestMachine::new(ROOM);
        let request: TestRequest = LimitedRequest::new(policy(|_| ()), limits(MIXED), START);
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        let answers = [answer(enforced, true), answer(dry_run, enforced)];
        assert_eq!(reply(&request, &machine, to, &answers), Progress::Decided);
        assert_eq!(status_and_source(&request), (status, Source::Redis));
        assert_eq!(request.is_refused(), !enforced);
        assert_eq!(machine.counted(), counted.map(|status| (redis, status)));
        assert!(machine.denials.borrow().is_empty(), "of several limits none is cached");
    }
}

#[test]
fn a_request_without_limits_is_bypassed() {
    let machine = TestMachine::new(ROOM);
    let request: TestRequest = LimitedRequest::new(policy(|_| ()), &[], START);
    assert!(request.is_bypassed());
    assert_eq!(request.begin(&machine), Progress::Decided);
    assert!(request.is_bypassed() && machine.counted().is_empty());
    assert_eq!(status_and_source(&request), (Status::Bypassed, Source::None));
}

#[test]
fn the_policy_for_errors_applies() {
    for (on_error, dry_run, status) in [
        (OnError::Open, false, Status::ErrorPassed),
        (OnError::Closed, false, Status::ErrorRejected),
        (OnError::Closed, true, Status::ErrorPassed),
    ] {
        let machine = TestMachine::new(ROOM);
        let policy = policy(|policy| (policy.on_error, policy.dry_run) = (on_error, dry_run));
        let request: TestRequest = LimitedRequest::new(policy, limits(ENFORCED), START);
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        assert_eq!(finish(&request, &machine, to, Err(Error::Down)), Progress::Decided);
        assert_eq!(status_and_source(&request), (status, Source::None));
        // A late reply's charge is given back where the request does not pass.
        let is_rejected = status == Status::ErrorRejected;
        assert_eq!(to.released.get(), Some((is_rejected, None)));
    }
}

#[test]
fn a_dry_run_of_the_location_rejects_nothing() {
    let machine = TestMachine::new(ROOM);
    let policy = policy(|policy| policy.dry_run = true);
    let request: TestRequest = LimitedRequest::new(policy, limits(ENFORCED), START);
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    assert_eq!(reply(&request, &machine, to, &[answer(false, false)]), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::RejectedDryRun, Source::Redis));
    assert!(!request.is_refused());
}

#[test]
fn a_rejection_is_cached_and_holds_for_the_next_request() {
    let (_, machine) =
        run((Says::Rejected, ENFORCED, Source::Redis, Status::Rejected, Source::Redis));
    let limits = limits(ENFORCED);
    let next: TestRequest = LimitedRequest::new(policy(|_| ()), limits, machine.now());
    assert_eq!(next.begin(&machine), Progress::Decided);
    assert_eq!(status_and_source(&next), (Status::Rejected, Source::Cache));
    // While this machine has units, Redis rejects others for want of them.
    machine.put_lease(&limits[0]);
    let leased = policy(|policy| policy.lease = 1_000);
    let next: TestRequest = LimitedRequest::new(leased, limits, machine.now());
    assert_eq!(next.begin(&machine), Progress::Decided);
    assert_eq!(status_and_source(&next), (Status::Passed, Source::Lease));
}

#[test]
fn what_others_have_charged_a_rejected_request_is_refunded() {
    let machine = TestMachine::new(ROOM);
    let limits = limits(&[Effect::Enforced, Effect::Enforced]);
    let request: TestRequest = LimitedRequest::new(policy(|_| ()), limits, START);
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    let without = Verdict { remaining: 7, ..verdict(true) };
    to.unspent.set(Some(without));
    // They lie in different slots.
    let answers = [answer(true, true), answer(false, false)];
    assert_eq!(reply(&request, &machine, to, &answers), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::Rejected, Source::Redis));
    assert_eq!((to.refunds.get(), to.released.get()), (1, Some((true, Some(1_000)))));
    assert_eq!(limits[0].verdict(), Some(without));
    assert!(!limits[0].is_charged());
    // A limit that has allowed what another one rejects had no part in it.
    let redis = Some(Source::Redis);
    assert_eq!(machine.counted(), [(redis, None), (redis, Some(Status::Rejected))]);
}

#[test]
fn a_request_that_goes_while_it_waits_is_released() {
    for settles in [false, true] {
        let machine = TestMachine::new(ROOM);
        let limits = leak([limit(1, Effect::Enforced, settles)]);
        let request: TestRequest = LimitedRequest::new(policy(|_| ()), limits, START);
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        to.answers.replace(vec![answer(true, true)]);
        request.abandon(|| Some(&machine));
        // Nobody will settle what it was charged.
        assert_eq!(to.released.get(), Some((settles, None)));
        assert_eq!(to.refunds.get(), usize::from(settles));
        assert!(machine.counted().is_empty() && !request.is_submitted());
    }
}

/// A request that Redis has rejected, while another command brings a lease.
fn rejected_beside_leases() -> (TestRequest, TestMachine, Progress, &'static Reply) {
    let machine = TestMachine::new(ROOM);
    let (policy, limits) = (policy(|policy| policy.lease = 1_000), limits(ENFORCED));
    let request: TestRequest = LimitedRequest::new(policy, limits, START);
    // Another request has taken it out.
    machine.put_lease(&limits[0]);
    let taken = machine.take_lease(&limits[0], START, START + SECOND);
    assert!(matches!(taken, Taken::Holding(_)));
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    let progress = reply(&request, &machine, to, &[answer(false, false)]);
    (request, machine, progress, to)
}

#[test]
fn what_redis_rejects_is_charged_once_more_if_units_are_on_their_way() {
    let (request, machine, progress, first) = rejected_beside_leases();
    assert_eq!(progress, Progress::Submit);
    assert_eq!(first.released.get(), Some((false, None)));
    assert_eq!(request.time_limit(), 10_000, "half of the time");
    let second = submit(&request, &machine);
    assert_eq!(reply(&request, &machine, second, &[answer(true, true)]), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::Passed, Source::Redis));
}

#[test]
fn the_first_rejection_stands_if_the_second_submission_fails() {
    let (request, machine, progress, _) = rejected_beside_leases();
    assert_eq!(progress, Progress::Submit);
    let second = submit(&request, &machine);
    second.answers.replace(vec![Answer::default()]);
    let progress = finish(&request, &machine, second, Err(Error::Timeout));
    assert_eq!(progress, Progress::Decided, "there is no third one");
    assert_eq!(status_and_source(&request), (Status::Rejected, Source::Redis));
}

#[test]
fn what_redis_rejects_is_spent_from_a_lease_that_has_come() {
    let machine = TestMachine::new(ROOM);
    let (policy, limits) = (policy(|policy| policy.lease = 1_000), limits(ENFORCED));
    let request: TestRequest = LimitedRequest::new(policy, limits, START);
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    machine.put_lease(&limits[0]);
    assert_eq!(reply(&request, &machine, to, &[answer(false, false)]), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::Passed, Source::Lease));
    assert_eq!(to.released.get(), Some((true, None)), "no reply may charge it besides");
}

/// The other limit has no lease, so that Redis decides. It counts the lease as spent, and alone knows what others have
/// spent, and of a block.
#[test]
fn a_look_shows_what_is_left_of_a_lease() {
    for (in_redis, blocked, left) in [(4, 0, 9), (1, 0, 6), (0, 0, 5), (0, 1, 0)] {
        let machine = TestMachine::new(ROOM);
        let mut limits = [1, 2].map(|number| limit(number, Effect::Enforced, false));
        limits[0].charge.cost = 0;
        let limits = leak(limits);
        let lease = policy(|policy| policy.lease = 1_000);
        let request: TestRequest = LimitedRequest::new(lease, limits, START);
        machine.put_lease(&limit(1, Effect::Enforced, false));
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        let verdict = Verdict { remaining: in_redis, blocked, ..verdict(true) };
        let look = Answer { verdict: Some(verdict), ..answer(true, true) };
        let _ = reply(&request, &machine, to, &[look, answer(true, true)]);
        assert_eq!(status_and_source(&request), (Status::Passed, Source::Redis));
        assert_eq!(limits[0].verdict().unwrap().remaining, left);
        assert_eq!(machine.holding(&limits[0]).unwrap().units(), 5, "it goes on");
    }
}

#[test]
fn after_an_outage_both_this_machine_and_redis_must_allow() {
    for (spent, redis, expected, used) in [
        (10, true, (Status::Rejected, Source::Local), 10),
        (3, true, (Status::Passed, Source::Redis), 4),
        (3, false, (Status::Rejected, Source::Redis), 3),
    ] {
        let machine = TestMachine::new(ROOM);
        let (policy, limits) = (policy(|it| it.on_error = OnError::Local), limits(ENFORCED));
        (0..spent).for_each(|_| drop(machine.decide_locally(limits)));
        let request: TestRequest = LimitedRequest::new(policy, limits, START);
        if request.begin(&machine) == Progress::Submit {
            let to = submit(&request, &machine);
            let _ = reply(&request, &machine, to, &[answer(redis, redis)]);
        }
        assert_eq!(status_and_source(&request), expected);
        let next = (0..20).take_while(|_| {
            let local = machine.decide_locally(limits);
            verdicts(&local).all(|verdict| verdict.unwrap().allowed)
        });
        assert_eq!(10 - next.count(), used, "what was rejected is given back");
    }
}

/// A block that a reply has shown holds in an outage as well, until a reply shows that it is over.
#[test]
fn a_block_is_known_in_an_outage() {
    let machine = TestMachine::new(ROOM);
    let policy = policy(|it| (it.on_error, it.deny_cache) = (OnError::Local, false));
    let limits = limits(ENFORCED);
    let request = |told: Result<Verdict, Error>| {
        let request: TestRequest = LimitedRequest::new(policy, limits, START);
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        let _ = match told {
            Ok(verdict) => {
                let answer = Answer { verdict: Some(verdict), ..answer(false, false) };
                reply(&request, &machine, to, &[answer])
            }
            Err(error) => finish(&request, &machine, to, Err(error)),
        };
        // Redis forgets nothing here, and what passes locally does not count.
        machine.whole.take();
        limits[0].verdict().map(|verdict| (verdict.allowed, verdict.retry))
    };
    let away = || request(Err(Error::Down));
    let rejection = verdict(false);
    assert_eq!(away(), Some((true, Retry::No)));
    let spent = request(Ok(rejection));
    assert_eq!(spent, Some((false, rejection.retry)));
    assert_eq!(away(), Some((true, Retry::No)), "that the quota is spent is no block");
    let blocked = rejection.blocked_for(9 * SECOND);
    assert_eq!(request(Ok(blocked)), Some((false, Retry::After(9 * SECOND))));
    assert_eq!(away(), Some((false, Retry::After(9 * SECOND))));
    request(Ok(rejection));
    assert_eq!(away(), Some((true, Retry::No)), "the block is over");
    let long = rejection.blocked_for(9_000 * SECOND);
    request(Ok(long));
    assert_eq!(away(), Some((false, Retry::After(9_000 * SECOND))));
    assert_eq!(request(Ok(verdict(true))), Some((true, Retry::No)));
    assert_eq!(away(), Some((true, Retry::No)), "unblocked");
}

/// Redis knows of it itself; what passes is charged here as well.
#[test]
fn a_block_is_not_looked_for_when_redis_is_back() {
    let machine = TestMachine::new(ROOM);
    let (policy, limits) = (policy(|it| it.on_error = OnError::Local), limits(ENFORCED));
    (0..3).for_each(|_| drop(machine.decide_locally(limits)));
    machine.note_block(&limits[0], 9 * SECOND);
    let request: TestRequest = LimitedRequest::new(policy, limits, START);
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    assert_eq!(reply(&request, &machine, to, &[answer(true, true)]), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::Passed, Source::Redis));
    machine.note_block(&limits[0], 0);
    let next = verdicts(&machine.decide_locally(limits)).next().flatten().unwrap();
    assert_eq!((next.allowed, next.remaining), (true, 5), "this is the fifth");
}

/// The local table is locked for all workers of the machine, and what was spent of one limit may take a month to be regained.
#[test]
fn after_an_outage_the_local_table_is_used_for_the_limits_that_were_charged_alone() {
    let machine = TestMachine::new(ROOM);
    let policy = policy(|it| it.on_error = OnError::Local);
    let charged = || limit(1, Effect::Enforced, false);
    let other = || limit(2, Effect::Enforced, false);
    machine.exhaust(leak([charged()]));
    machine.local_uses.set(0);
    let is_used = |limits: Vec<TestLimit>| {
        let request: TestRequest = LimitedRequest::new(policy, leak(limits), machine.now());
        let progress = request.begin(&machine);
        (progress, machine.local_uses.take())
    };
    assert_eq!(is_used(vec![other()]), (Progress::Submit, 0));
    assert_eq!(is_used(vec![charged()]), (Progress::Decided, 1));
    assert_eq!(is_used(vec![other(), charged()]), (Progress::Decided, 1));
    machine.now.set(START + SECOND);
    assert_eq!(is_used(vec![charged()]), (Progress::Submit, 0), "all is regained");
}

/// A table of eight blocks has room for a log of four entries.
#[test]
fn a_request_whose_states_do_not_fit_into_the_local_table_is_charged_nothing_there() {
    let machine = TestMachine::new(76);
    let policy = policy(|it| it.on_error = OnError::Local);
    let log = leak(Quota::new(Algorithm::SlidingLog, "10r/s".parse().unwrap(), 10).unwrap());
    let [bucket, logged] = [1, 2].map(|number| limit(number, Effect::Enforced, false));
    let logged = Evaluated::new(logged.line, Charge { quota: log, ..logged.charge }, None);
    let limits = leak([bucket, logged]);
    (0..4).for_each(|_| drop(machine.decide_locally(limits)));
    let request: TestRequest = LimitedRequest::new(policy, limits, START);
    machine.whole.take();
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    assert_eq!(finish(&request, &machine, to, Err(Error::Down)), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::ErrorPassed, Source::None));
    assert_eq!(machine.no_room.get(), 1);
    let bucket = verdicts(&machine.decide_locally(&limits[..1])).next().flatten();
    assert_eq!(bucket.map(|it| it.remaining), Some(5), "this is the fifth");
}

/// The quota of a client's own, as Redis has it, is shown and noted; units that were set aside by another one than this
/// machine knew of are not spent.
#[test]
fn a_quota_of_the_clients_own_is_followed() {
    let machine = TestMachine::new(ROOM);
    let plain = limit(1, Effect::Enforced, false);
    let quota = leak(plain.charge.quota.with_override());
    let charge = Charge { quota, ..plain.charge };
    let of_line = || Some(leak(OwnQuota::new(quota, charge.digest)));
    let limits = leak(vec![Evaluated::new(plain.line, charge, of_line())]);
    let request: TestRequest =
        LimitedRequest::new(policy(|policy| policy.lease = 1_000), limits, START);
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    let own = Override { rate: "7r/s".parse().unwrap(), limit: 70, ends: None };
    to.own.set(Some(own));
    assert_eq!(reply(&request, &machine, to, &[answer(true, true)]), Progress::Decided);
    let shown = request.decision().unwrap().shown.unwrap();
    assert_eq!((shown.quota.limit(), shown.quota.rate()), (70, own.rate));
    let limit = &limits[0];
    assert_eq!(machine.overrides.borrow()[&limit.charge.client()], Some(own));
    assert!(machine.holding(limit).is_none() && limit.has_other_quota());
    // The next request is evaluated with it, and Redis is given the quota of the line.
    let its = leak(own.quota(quota).unwrap());
    let its_charge = Charge { quota: its, digest: DIGEST.into(), ..charge };
    let next = Evaluated::new(plain.line, its_charge, of_line());
    assert_eq!((next.charge.quota, next.with_lease().quota), (its, quota));
    assert_eq!(next.charge.client(), DIGEST ^ u128::from(its.fingerprint()));
    next.set_own(Some(own));
    assert!(!next.has_other_quota());
    next.set_own(None);
    assert_eq!((next.has_other_quota(), next.quota()), (true, quota));
}

/// The override that Redis has told of stays known if the second submission is not answered.
#[test]
fn an_override_is_not_forgotten_if_the_second_submission_fails() {
    let machine = TestMachine::new(ROOM);
    let plain = limit(1, Effect::Enforced, false);
    let quota = leak(plain.charge.quota.with_override());
    let own = Override { rate: "7r/s".parse().unwrap(), limit: 70, ends: None };
    let its = leak(own.quota(quota).unwrap());
    let charge = Charge { quota: its, ..plain.charge };
    let of_line = Some(leak(OwnQuota::new(quota, charge.digest)));
    let limits = leak(vec![Evaluated::new(plain.line, charge, of_line)]);
    let request: TestRequest =
        LimitedRequest::new(policy(|policy| policy.lease = 1_000), limits, START);
    machine.put_lease(&limits[0]);
    assert!(matches!(machine.take_lease(&limits[0], START, START + SECOND), Taken::Holding(_)));
    assert_eq!(request.begin(&machine), Progress::Submit);
    let first = submit(&request, &machine);
    first.own.set(Some(own));
    assert_eq!(reply(&request, &machine, first, &[answer(false, false)]), Progress::Submit);
    let client = limits[0].charge.client();
    assert_eq!(machine.overrides.borrow()[&client], Some(own));
    let second = submit(&request, &machine);
    second.answers.replace(vec![Answer::default()]);
    let _ = finish(&request, &machine, second, Err(Error::Timeout));
    assert_eq!(machine.overrides.borrow()[&client], Some(own), "Redis has not said otherwise");
    assert_eq!(request.decision().unwrap().shown.unwrap().quota.limit(), 70);
}
