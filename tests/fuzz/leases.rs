//! The leases of a machine in memory of any words, some of which change between operations: no operation hangs, and
//! none spends or returns more units than there were.

use std::rc::Rc;

use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::key::Head;
use rate_limit_core::lease::Granted;
use rate_limit_core::lease::table::{LeaseBucket, LeaseTable, Outcome, Taken};
use rate_limit_core::rate::MAX_EXACT;

use crate::input::Input;
use crate::quota::quota;
use crate::shared::Shared;

/// The process whose worker runs; one of any other number lives if the number is even.
const PROCESS: u32 = 1;

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let Some(quota) = quota(&mut input) else { return };
    let memory = Shared::new::<LeaseBucket>(input.below(3));
    let table = LeaseTable::new(memory.buckets(), PROCESS, |process| process % 2 == 0);
    let template = Rc::new(Template::new(Head::new("rl:", "a").expect("a name"), None));
    let charge = |digest: u128, cost| Charge {
        digest: digest.into(),
        ..Charge::new(&template, b"", &quota, cost)
    };
    let mut taken = Vec::new();
    while !input.is_empty() {
        let (digest, now) = (input.digest(), input.number());
        match input.below(6) {
            0 | 1 => memory.corrupt(&mut input),
            2 => spend(&table, &charge(digest, input.number()), now),
            3 => {
                let charge = charge(digest, input.number());
                taken.push((digest, take(&mut input, &table, &charge, now)));
            }
            4 => look(&table, digest, now),
            _ => {
                let (digest, taken) = taken.pop().unwrap_or((digest, Taken::Nothing));
                let charge = charge(digest, input.number());
                renew(&mut input, &table, &charge, taken, now);
            }
        }
    }
}

/// Units that are spent were there, and are gone; where nothing is spent nothing changes.
fn spend(table: &LeaseTable<'_>, charge: &Charge<'_>, now: u64) {
    let Charge { quota, cost, .. } = *charge;
    let digest = charge.digest.number();
    let before = table.holding(digest);
    let mut verdicts = Vec::new();
    let is_spent = table.spend(std::iter::once(charge), now, &mut |_, it| verdicts.push(it));
    assert_eq!(is_spent, verdicts.iter().any(|verdict| verdict.allowed));
    let after = table.holding(digest);
    if is_spent {
        let (before, after) = (before.expect("a lease"), after.expect("a lease"));
        assert!(before.is_living(now) && before.left(now) >= cost);
        assert_eq!(after.units(), before.units() - cost);
        assert!(verdicts[0].remaining <= quota.limit());
    } else {
        let lapsed = before.is_some() && after.is_none();
        assert!(lapsed || before == after, "{before:?} {after:?}");
    }
}

/// The lease that is taken is the one that was held, and no other worker finds units of it any more.
fn take(input: &mut Input<'_>, table: &LeaseTable<'_>, charge: &Charge<'_>, now: u64) -> Taken {
    let digest = charge.digest.number();
    let before = table.holding(digest);
    let taken = table.take(charge, now, input.number());
    if let Taken::Holding(holding) = taken {
        assert_eq!(Some(holding), before);
        assert_eq!(table.holding(digest).map_or(0, |after| after.units()), 0);
    }
    taken
}

fn look(table: &LeaseTable<'_>, digest: u128, now: u64) {
    let awaits = table.awaits_units(digest, now);
    assert!(!awaits || table.holding(digest).is_some());
}

/// Units are returned or lapse only if they were taken out or lay in a bucket, and those of a lease were granted.
fn renew(
    input: &mut Input<'_>,
    table: &LeaseTable<'_>,
    charge: &Charge<'_>,
    taken: Taken,
    now: u64,
) {
    let digest = charge.digest.number();
    if let Some(lease) = taken.lease(charge.quota, input.number(), now) {
        assert!(!lease.is_none() && lease.report.unused <= lease.report.of, "{lease:?}");
    }
    let outcome = outcome(input);
    let before = table.holding(digest).map_or(0, |holding| holding.units());
    let renewed = table.renew(charge, 3, taken, &outcome, now);
    let held = if let Taken::Holding(holding) = taken { holding.units() } else { 0 };
    let of_other = if outcome.is_other_quota { outcome.granted.units } else { 0 };
    assert!(renewed.lapsed <= held.saturating_add(of_other), "{renewed:?} of {taken:?}");
    assert!(
        renewed.granted <= outcome.granted.units && renewed.returned <= outcome.granted.returned
    );
    let after = table.holding(digest).map_or(0, |holding| holding.units());
    let most = before.saturating_add(held).saturating_add(outcome.granted.units);
    assert!(after <= most, "{after} of {before}, {held} and {:?}", outcome.granted);
    if let Some(evicted) = renewed.evicted {
        assert!(evicted.units > 0);
    }
}

/// The outcome of a command, as the replies of a script may say it.
fn outcome(input: &mut Input<'_>) -> Outcome {
    let (units, returned, held) = (input.number(), input.number(), input.number());
    let time = |input: &mut Input<'_>| input.number().min(MAX_EXACT);
    let (now, ends, charged) = (time(input), time(input), input.number());
    let plain = [(); 3].map(|()| input.number());
    Outcome {
        may_have_run: input.flag(),
        is_charged: input.flag(),
        is_rejected: input.flag(),
        granted: Granted { units, returned, now, ends, plain, held, charged },
        span: input.number(),
        submitted: input.number(),
        is_other_quota: input.flag(),
    }
}
