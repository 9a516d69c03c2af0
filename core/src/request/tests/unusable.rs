//! Limits with unusable values.

use super::*;
use crate::conf::OnInvalid;

const TWO_DRY_RUNS: &[Effect] = &[Effect::DryRun, Effect::DryRun];
const DRY_RUN_FIRST: &[Effect] = &[Effect::DryRun, Effect::Enforced];

/// A request with limits of these effects, of which those of these indexes have an unusable value. Returns its status,
/// `None` if the others decide, and what was counted until then.
fn outcome(
    policy: &'static Policy,
    effects: &[Effect],
    unusable: &[usize],
) -> (Option<Status>, Vec<Status>) {
    let machine = TestMachine::new(ROOM);
    let all = limits(effects);
    let (limits, effect) = evaluate(all, unusable).unwrap();
    let request: TestRequest = LimitedRequest::new(policy, limits, START);
    let lines = all.iter().map(|limit| limit.line);
    let decides = request.leave_out(&machine, effect.unwrap(), lines);
    assert_eq!(decides, limits.is_empty());
    assert_eq!(machine.waits.get(), usize::from(decides));
    let counted = machine.counted().into_iter();
    let counted = counted.map(|(source, status)| {
        assert_eq!(source, None);
        status.unwrap()
    });
    if decides {
        assert!(request.decision().unwrap().is_invalid && !request.is_bypassed());
    }
    (request.decision().map(|decision| decision.status), counted.collect())
}

#[test]
fn limits_of_a_dry_run_are_left_out_as_long_as_others_remain() {
    use Status::{ErrorPassed, ErrorRejected};
    let rejected = Some(ErrorRejected);
    for (effects, unusable, status, counted) in [
        (DRY_RUN, &[0][..], Some(ErrorPassed), &[ErrorPassed][..]),
        (TWO_DRY_RUNS, &[0, 1], Some(ErrorPassed), &[ErrorPassed, ErrorPassed]),
        (TWO_DRY_RUNS, &[0], None, &[ErrorPassed]),
        (TWO_DRY_RUNS, &[1], None, &[ErrorPassed]),
        (MIXED, &[1], None, &[ErrorPassed]),
        (DRY_RUN_FIRST, &[0], None, &[ErrorPassed]),
        (ENFORCED, &[0], rejected, &[ErrorRejected]),
        (MIXED, &[0], rejected, &[ErrorRejected, ErrorPassed]),
        (MIXED, &[0, 1], rejected, &[ErrorRejected, ErrorPassed]),
        (DRY_RUN_FIRST, &[1], rejected, &[ErrorPassed, ErrorRejected]),
        (DRY_RUN_FIRST, &[0, 1], rejected, &[ErrorPassed, ErrorRejected]),
    ] {
        let expected = (status, counted.to_vec());
        assert_eq!(
            outcome(policy(|_| ()), effects, unusable),
            expected,
            "{effects:?} {unusable:?}"
        );
    }
}

#[test]
fn the_policy_for_unusable_values_applies() {
    let pass = policy(|policy| policy.on_invalid = OnInvalid::Pass);
    let dry_run = policy(|policy| policy.dry_run = true);
    for policy in [pass, dry_run] {
        let passed = (Some(Status::ErrorPassed), vec![Status::ErrorPassed; 2]);
        assert_eq!(outcome(policy, MIXED, &[0]), passed);
    }
}

#[test]
fn the_others_decide_as_if_they_were_alone() {
    let machine = TestMachine::new(ROOM);
    let all = limits(MIXED);
    let (limits, _) = evaluate(all, &[1]).unwrap();
    let request: TestRequest = LimitedRequest::new(policy(|_| ()), limits, START);
    assert!(!request.leave_out(&machine, Effect::DryRun, all.iter().map(|limit| limit.line)));
    assert_eq!(request.begin(&machine), Progress::Submit);
    let to = submit(&request, &machine);
    assert_eq!(reply(&request, &machine, to, &[answer(false, false)]), Progress::Decided);
    assert_eq!(status_and_source(&request), (Status::Rejected, Source::Redis));
    assert!(!request.decision().unwrap().is_invalid);
    let redis = (Some(Source::Redis), Some(Status::Rejected));
    assert_eq!(machine.counted(), [(None, Some(Status::ErrorPassed)), redis]);
}

/// Those whose keys are empty do not apply: neither do they remain, nor are they counted.
#[test]
fn an_evaluation_ends_at_an_error() {
    let error = |effect| Err(Unevaluated::Unusable(effect));
    let failed = Err(Unevaluated::Failed);
    let evaluate = |each: &[Result<Option<u8>, Unevaluated>]| {
        let mut remaining = Remaining::default();
        let mut each = each.iter();
        let kept: Result<Vec<_>, _> = each.by_ref().filter_map(|it| remaining.keep(*it)).collect();
        let (left, kept) = (each.len(), kept.map(|kept| leak(kept).as_slice()));
        (remaining.conclude(kept), left)
    };
    let [dry_run, enforced] = [Effect::DryRun, Effect::Enforced];
    assert_eq!(evaluate(&[Ok(None), Ok(Some(1))]), (Ok((&[1][..], None)), 0));
    assert_eq!(evaluate(&[error(dry_run), Ok(Some(1))]), (Ok((&[1][..], Some(dry_run))), 0));
    assert_eq!(evaluate(&[error(dry_run), Ok(None)]), (Ok((&[][..], Some(dry_run))), 0));
    assert_eq!(
        evaluate(&[Ok(Some(1)), error(enforced), Ok(Some(2))]),
        (Ok((&[][..], Some(enforced))), 1)
    );
    assert_eq!(evaluate(&[error(dry_run), failed, Ok(None)]), (Err(Unevaluated::Failed), 1));
}
