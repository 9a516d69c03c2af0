//! Reservations, and what becomes of them.

use super::*;

/// Limits of these effects, which settle or do not.
fn settling(limits: &[(Effect, bool)]) -> &'static [TestLimit] {
    let numbered = (1..).zip(limits);
    leak(
        numbered
            .map(|(number, (effect, settles))| limit(number, *effect, *settles))
            .collect::<Vec<_>>(),
    )
}

const SETTLING: &[(Effect, bool)] = &[(Effect::Enforced, true)];

/// A request that Redis has decided with these answers.
fn decided_by_redis(
    machine: &TestMachine,
    policy: &'static Policy,
    limits: &'static [TestLimit],
    answers: &[Answer],
) -> (TestRequest, &'static Reply) {
    let request: TestRequest = LimitedRequest::new(policy, limits, machine.now());
    assert_eq!(request.begin(machine), Progress::Submit);
    let to = submit(&request, machine);
    assert_eq!(reply(&request, machine, to, answers), Progress::Decided);
    (request, to)
}

/// The quota that the client of a limit has left locally.
fn left(machine: &TestMachine, limit: &TestLimit) -> u64 {
    let look = leak([Evaluated::new(limit.line, Charge { cost: 0, ..limit.charge }, None)]);
    let local = machine.decide_locally(look);
    verdicts(&local).next().flatten().unwrap().remaining
}

#[test]
fn reservations_are_those_of_a_request_that_passes() {
    for allowed in [true, false] {
        let machine = TestMachine::new(ROOM);
        let answers = [answer(allowed, allowed)];
        let (request, to) =
            decided_by_redis(&machine, policy(|_| ()), settling(SETTLING), &answers);
        let number = usize::from(allowed);
        assert_eq!((request.reservations().count(), machine.reservations.get()), (number, number));
        assert_eq!(to.reservations.get(), number);
        request.end(&machine, |_| Some(3));
        assert_eq!(to.settled.borrow().len(), number);
    }
}

#[test]
fn what_redis_has_charged_is_settled_there_once() {
    for (cost, change) in
        [(None, None), (Some(0), Some(-1)), (Some(1), Some(0)), (Some(4), Some(3))]
    {
        let machine = TestMachine::new(ROOM);
        let limits = settling(SETTLING);
        let (request, to) =
            decided_by_redis(&machine, policy(|_| ()), limits, &[answer(true, true)]);
        request.end(&machine, |_| cost);
        request.end(&machine, |_| panic!("it has ended"));
        let since = |change: i64| (limits[0].regained_from(change.unsigned_abs()), change);
        let settled = change.map(since);
        assert_eq!(*to.settled.borrow(), Vec::from_iter(settled), "{cost:?}");
        // A request that Redis settles ends with the reply.
        let stands = usize::from(cost.is_none());
        assert_eq!((machine.ended.take(), to.standing.get()), (vec![None; stands], stands));
    }
}

#[test]
fn denials_end_where_a_settlement_charges_more() {
    for (cost, is_denied) in [(None, true), (Some(0), true), (Some(1), true), (Some(2), false)] {
        let machine = TestMachine::new(ROOM);
        let limits = settling(SETTLING);
        let (request, _) =
            decided_by_redis(&machine, policy(|_| ()), limits, &[answer(true, true)]);
        // Another request is rejected meanwhile.
        let denial = Denial::new(&verdict(false), limits[0].charge.quota, START, START).unwrap();
        machine.deny(&limits[0], denial);
        request.end(&machine, |_| cost);
        assert_eq!(!machine.denials.borrow().is_empty(), is_denied, "{cost:?}");
    }
}

#[test]
fn what_was_charged_locally_alone_is_settled_locally() {
    let settled = Some(SettlementResult::Settled);
    for (cost, ended, expected) in [(None, None, 9), (Some(0), settled, 10), (Some(4), settled, 6)]
    {
        let machine = TestMachine::new(ROOM);
        let limits = settling(SETTLING);
        let policy = policy(|it| it.on_error = OnError::Local);
        let request: TestRequest = LimitedRequest::new(policy, limits, START);
        assert_eq!(request.begin(&machine), Progress::Submit);
        let to = submit(&request, &machine);
        assert_eq!(finish(&request, &machine, to, Err(Error::Down)), Progress::Decided);
        assert_eq!(status_and_source(&request), (Status::Passed, Source::Local));
        assert_eq!((machine.reservations.get(), to.reservations.get()), (1, 0));
        request.end(&machine, |_| cost);
        // All that was spent is regained then; what is given back may take as long.
        let whole = machine.whole.borrow()["limit1"] - machine.now();
        assert_eq!(whole, cost.unwrap_or(0).max(1) * SECOND / 10);
        assert_eq!((machine.ended.take(), left(&machine, &limits[0])), (vec![ended], expected));
        assert_eq!((to.settled.borrow().len(), to.standing.get()), (0, 0));
    }
}

/// Each by its own cost, and each charge of this machine by that of its limit.
#[test]
fn several_limits_that_were_charged_twice_are_settled_twice() {
    let machine = TestMachine::new(ROOM);
    let limits = settling(&[
        (Effect::Enforced, false),
        (Effect::Enforced, true),
        (Effect::DryRun, true),
        (Effect::DryRun, true),
    ]);
    machine.exhaust(&limits[3..]);
    drop(machine.decide_locally(&limits[..3]));
    let policy = policy(|it| it.on_error = OnError::Local);
    let answers = [[answer(true, true); 3].as_slice(), &[answer(false, true)]].concat();
    let (request, to) = decided_by_redis(&machine, policy, limits, &answers);
    assert_eq!(status_and_source(&request), (Status::RejectedDryRun, Source::Redis));
    assert_eq!((machine.reservations.get(), to.reservations.get()), (2, 2));
    assert_eq!([0, 1, 2, 3].map(|index| left(&machine, &limits[index])), [8, 8, 8, 0]);
    request.end(&machine, |limit| Some(if limit.name() == "limit2" { 3 } else { 0 }));
    let changes: Vec<_> = to.settled.borrow().iter().map(|(_, change)| *change).collect();
    assert_eq!((changes, machine.ended.take()), (vec![2, -1], vec![]));
    assert_eq!([0, 1, 2, 3].map(|index| left(&machine, &limits[index])), [8, 6, 9, 0]);
}
