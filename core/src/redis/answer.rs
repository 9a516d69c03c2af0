//! From the reply of a script to verdicts.
//!
//! A script replies with the time and with what was stored. The reference decides the same from
//! that, so Redis, which all workers share, need not compute the verdict. Only the script of a
//! limit that stores itself replies with its verdict. The script for operators replies with the state of a client.

use super::reply::{Entry, ScriptReply};
use crate::algorithm::Stored;
use crate::charge::Charge;
use crate::decision::Verdict;
use crate::lease::Granted;
use crate::manage::ClientState;
use crate::overrides::{Applied, Override};
use crate::transaction::{self, Pending};

/// Up to so many limits are decided without an allocation.
const FEW: usize = 8;

/// Calls `each` with the index and the verdict of each of `charges`, which are one transaction, and
/// with what came with it, if anything did. `false`, without any call, if this is no reply to them.
#[inline(never)]
pub fn verdicts<'q>(
    found: ScriptReply<'_>,
    charges: impl Iterator<Item = Charge<'q>> + Clone,
    mut each: impl FnMut(usize, Verdict, Option<&Beside>),
) -> bool {
    let mut first = charges.clone();
    if let (Some(charge), None) = (first.next(), first.next()) {
        return repeated(found, &charge, 1, |verdict, beside| each(0, verdict, beside));
    }
    if !are_answered(&found, charges.clone()) {
        return false;
    }
    let (now, answered) = (found.now(), charges.zip(found));
    let lets_pass =
        |it: Answered<'_, '_>| own_verdict(it).is_none_or(|own| it.0.effect.lets_pass(&own));
    let others_allow = answered.clone().all(lets_pass);
    decide(answered, now, others_allow, |index, answered, entry| {
        let decided = entry.and_then(|it| it.verdict);
        let granted = entry.filter(|_| answered.0.lease.is_some()).map(|it| it.granted);
        let own = entry.map_or_else(|| own_of(answered), |it| it.applied.own);
        if let Some(verdict) = decided.or_else(|| own_verdict(answered)) {
            each(index, verdict, Beside { granted, own }.unless_empty().as_ref());
        }
    });
    true
}

/// Calls `each` with the index of each of `charges`, which are one transaction that has charged all of them,
/// and its verdict without these charges, which are given back. A single one may have been charged by one
/// command for several requests, one after the other: `earlier` is how many of them came before. Nothing is
/// called if this is no reply to them.
#[inline(never)]
pub fn unspent<'q>(
    found: ScriptReply<'_>,
    charges: impl Iterator<Item = Charge<'q>> + Clone,
    earlier: u32,
    mut each: impl FnMut(usize, Verdict),
) {
    if !are_answered(&found, charges.clone()) {
        return;
    }
    let (now, answered) = (found.now(), charges.zip(found));
    let mut first = answered.clone();
    if let (Some(only), None) = (first.next(), first.next())
        && let (Charge { quota, cost, .. }, Entry::Stored(_)) = only
    {
        let (Applied { mut stored, quota, .. }, algorithm) =
            (applied(only, now), quota.algorithm());
        algorithm.decide_each(&mut stored, now, &quota, cost, earlier, |_| {});
        return each(0, algorithm.decide(&mut stored, now, &quota, 0));
    }
    let all = answered.clone();
    decide(answered, now, false, |index, answered, entry| {
        let own = || own_unspent(answered, all.clone().take(index.saturating_add(1)));
        if let Some(verdict) = entry.map_or_else(own, |it| it.verdict) {
            each(index, verdict);
        }
    });
}

/// Whether the entries are those that belong to the charges.
fn are_answered<'q>(
    found: &ScriptReply<'_>,
    charges: impl Iterator<Item = Charge<'q>> + Clone,
) -> bool {
    let mut answered = charges.clone().zip(found.clone());
    charges.count() == found.clone().count() && answered.all(is_answered)
}

/// Decides on all limits that do not store themselves as one transaction, and calls `each` with the index
/// of each limit, and with its entry if it has one.
fn decide<'q, 'f>(
    answered: impl Iterator<Item = Answered<'q, 'f>> + Clone,
    now: u64,
    others_allow: bool,
    mut each: impl FnMut(usize, Answered<'q, 'f>, Option<&Pending<'q>>),
) {
    let pending_entry = |answered| pending_entry(answered, now);
    let mut pending = answered.clone().map(pending_entry);
    let mut few: [_; FEW] = std::array::from_fn(|_| pending.next().flatten());
    let mut many: Vec<_>;
    let pending = if answered.clone().nth(FEW).is_none() {
        &mut few[..]
    } else {
        many = answered.clone().map(pending_entry).collect();
        &mut many[..]
    };
    transaction::decide(pending, now, others_allow);
    for (index, (answered, entry)) in answered.zip(pending).enumerate() {
        each(index, answered, entry.as_ref());
    }
}

/// The parts of a reply that come with a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The lease that was granted, if the charge has lease arguments.
    pub granted: Option<Granted>,
    /// The quota of its own by which the client was charged, if it has one.
    pub own: Option<Override>,
}

impl Beside {
    fn unless_empty(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// Calls `each` with the verdict of each of `times` equal requests, which one command has charged, and with what came
/// with it: of its lease with the last one. `false`, without any call, if this is no
/// reply to it. For a limit that stores itself `times` is 1.
pub fn repeated(
    found: ScriptReply<'_>,
    charge: &Charge<'_>,
    times: u32,
    mut each: impl FnMut(Verdict, Option<&Beside>),
) -> bool {
    let mut entries = found.clone();
    let (Some(entry), None) = (entries.next(), entries.next()) else { return false };
    let answered = (*charge, entry);
    match own_verdict(answered) {
        _ if !is_answered(answered) => return false,
        Some(_) if times != 1 => return false,
        Some(verdict) => {
            let own = own_of(answered);
            each(verdict, Beside { granted: None, own }.unless_empty().as_ref());
        }
        // Most commands are this.
        None if charge.lease.is_none() && !charge.quota.has_override() => {
            let Charge { quota, cost, .. } = *charge;
            let mut stored = stored(answered);
            let note = |verdict| each(verdict, None);
            quota.algorithm().decide_each(&mut stored, found.now(), quota, cost, times, note);
        }
        None => {
            let (Charge { cost, lease, .. }, now) = (*charge, found.now());
            let Applied { mut stored, ref quota, own } = applied(answered, now);
            let algorithm = quota.algorithm();
            let returned =
                lease.map_or(0, |lease| algorithm.report(&mut stored, now, quota, &lease.report));
            let before_last = if lease.is_some() { times.saturating_sub(1) } else { times };
            let beside = Beside { granted: None, own }.unless_empty();
            let mut note = |verdict| each(verdict, beside.as_ref());
            algorithm.decide_each(&mut stored, now, quota, cost, before_last, &mut note);
            if let Some(lease) = lease {
                let verdict = algorithm.decide(&mut stored, now, quota, cost);
                let remaining = if verdict.allowed && cost > 0 { verdict.remaining } else { 0 };
                let granted = algorithm.grant(&mut stored, now, quota, lease, remaining);
                let granted = Some(Granted { returned, ..granted });
                each(verdict, Some(&Beside { granted, own }));
            }
        }
    }
    true
}

/// A charge, and what the script has replied to it.
type Answered<'q, 'f> = (Charge<'q>, Entry<'f>);

/// Whether the entry is of the kind that belongs to the charge.
fn is_answered((charge, entry): Answered<'_, '_>) -> bool {
    let stores_itself = charge.quota.algorithm().stores_itself();
    match entry {
        Entry::Stored(_) => !stores_itself,
        Entry::Integers(..) => stores_itself && own_verdict((charge, entry)).is_some(),
    }
}

/// The verdict of a limit that stores itself.
fn own_verdict((_, entry): Answered<'_, '_>) -> Option<Verdict> {
    match entry {
        Entry::Stored(_) => None,
        Entry::Integers(integers, _) => Verdict::from_reply(integers),
    }
}

/// The quota that the client of such a limit has of its own, if its line allows that.
fn own_of((charge, entry): Answered<'_, '_>) -> Option<Override> {
    match entry {
        Entry::Stored(_) => None,
        Entry::Integers(_, own) => own.filter(|_| charge.quota.has_override()),
    }
}

/// The verdict of such a limit without what was spent by it and by those before it that share its key, which
/// are in `until`.
fn own_unspent<'q, 'f>(
    answered: Answered<'q, 'f>,
    until: impl Iterator<Item = Answered<'q, 'f>>,
) -> Option<Verdict> {
    let Entry::Integers([.., reset], _) = answered.1 else { return None };
    let verdict = own_verdict(answered)?;
    let is_sharer = |other: &Answered<'_, '_>| other.0.redis_key() == answered.0.redis_key();
    let has_spent = |it: &Answered<'_, '_>| own_verdict(*it).is_some_and(|it| it.allowed);
    let spent = until.filter(is_sharer).filter(has_spent);
    let spent = spent.fold(0, |sum: u64, (other, _)| sum.saturating_add(other.cost));
    let (remaining, reset) =
        (verdict.remaining.saturating_add(spent), u64::try_from(reset).unwrap_or(0));
    Some(Verdict { remaining, reset, ..verdict })
}

/// The stored record of any other limit.
fn stored((charge, entry): Answered<'_, '_>) -> Stored {
    match entry {
        // A quota of the client's own is only kept by a line without overrides.
        Entry::Stored(bytes) => charge.quota.algorithm().read(Override::split(bytes).0),
        Entry::Integers(..) => Stored::default(),
    }
}

/// The stored record of any other limit, as it counts at `now`.
fn applied((charge, entry): Answered<'_, '_>, now: u64) -> Applied {
    match entry {
        Entry::Stored(bytes) => charge.quota.algorithm().read_applied(bytes, now, charge.quota),
        Entry::Integers(..) => Applied::new(Stored::default(), None, now, charge.quota),
    }
}

/// The entry in the transaction of a limit that does not store itself.
fn pending_entry<'q>(answered: Answered<'q, '_>, now: u64) -> Option<Pending<'q>> {
    matches!(answered.1, Entry::Stored(_)).then(|| Pending::new(answered.0, applied(answered, now)))
}

/// How many numbers the script of a limit that stores itself replies with.
const NUMBERS: usize = 9;

/// The state of the client of `charge`; `None` if this is no reply about it.
pub fn managed(mut found: ScriptReply<'_>, charge: &Charge<'_>) -> Option<ClientState> {
    let (now, quota) = (found.now(), charge.quota);
    let (Some(Entry::Stored(bytes)), None) = (found.next(), found.next()) else { return None };
    if !quota.algorithm().stores_itself() {
        let (held_until, bytes) = bytes.split_first_chunk()?;
        let applied = quota.algorithm().read_applied(bytes, now, quota);
        let state = ClientState::new(&applied, now);
        let held_for = u64::from_le_bytes(*held_until).saturating_sub(now);
        return Some(ClientState { held_for: state.held_for.max(held_for), ..state });
    }
    let (words, []) = bytes.as_chunks() else { return None };
    let numbers: [_; NUMBERS] = words.try_into().ok()?;
    let [remaining, reset, retry_after, blocked_until, debt, limit, ends, n, rate_period] =
        numbers.map(u64::from_le_bytes);
    let own = Override::from_parts(limit, ends, [n, rate_period]);
    let Applied { quota, own, .. } = Applied::new(Stored::default(), own, now, quota);
    Some(ClientState {
        now,
        quota,
        remaining,
        reset,
        retry_after,
        blocked_for: blocked_until.saturating_sub(now),
        debt,
        held: 0,
        held_for: 0,
        own,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::tests::template;
    use crate::charge::{Effect, Template};
    use crate::decision::Retry;
    use crate::key::Head;
    use crate::limit::{Algorithm, Quota};
    use crate::redis::reply::{self, Reply};
    use std::rc::Rc;
    use std::sync::LazyLock;

    const NOW: u64 = 1_763_683_200_000_000;
    const MINUTE: u64 = 60_000_000;

    /// Three at once, at one a minute.
    static QUOTAS: LazyLock<[Quota; Algorithm::ALL.len()]> = LazyLock::new(|| {
        Algorithm::ALL.map(|algorithm| Quota::new(algorithm, "1r/m".parse().unwrap(), 3).unwrap())
    });

    fn charge(algorithm: Algorithm, key: &'static [u8], cost: u64) -> Charge<'static> {
        let quota = QUOTAS.iter().find(|quota| quota.algorithm() == algorithm).unwrap();
        Charge::new(template(), key, quota, cost)
    }

    fn bucket(key: &'static [u8], cost: u64) -> Charge<'static> {
        charge(Algorithm::TokenBucket, key, cost)
    }

    fn log(cost: u64) -> Charge<'static> {
        charge(Algorithm::SlidingLog, b"log", cost)
    }

    /// The reply of a script at [`NOW`].
    fn answer(entries: &[&[u8]]) -> Vec<u8> {
        let head = format!("*{}\r\n:{NOW}\r\n", entries.len() + 1);
        [head.as_bytes(), &entries.concat()].concat()
    }

    const NONE: &[u8] = b"$-1\r\n";
    /// A bucket of one token, filled at [`NOW`].
    const ONE_LEFT: &[u8] = b"$24\r\n\x01\0\0\0\0\0\0\0\0\xe0\xa1~\x0fD\x06\0\0\0\0\0\0\0\0\0\r\n";
    const LOG_ALLOWS: &[u8] = b"*4\r\n:1\r\n:2\r\n:60000000\r\n:0\r\n";
    const LOG_REJECTS: &[u8] = b"*4\r\n:0\r\n:0\r\n:60000000\r\n:5\r\n";

    fn found(answer: &[u8]) -> ScriptReply<'_> {
        match reply::parse(answer).unwrap() {
            Reply::Script(found) => found,
            other => panic!("{other:?}"),
        }
    }

    /// The verdicts, or `None` if it is no reply to the charges.
    fn read(entries: &[&[u8]], charges: &[Charge<'_>]) -> Option<Vec<Verdict>> {
        let (answer, mut decided) = (answer(entries), Vec::new());
        let is_answer = verdicts(found(&answer), charges.iter().copied(), |index, verdict, _| {
            assert_eq!(index, decided.len());
            decided.push(verdict);
        });
        assert!(is_answer || decided.is_empty());
        is_answer.then_some(decided)
    }

    fn read_repeated(entry: &[u8], check: Charge<'_>, times: u32) -> Option<Vec<Verdict>> {
        let (answer, mut decided) = (answer(&[entry]), Vec::new());
        let is_answer = repeated(found(&answer), &check, times, |verdict, _| {
            decided.push(verdict);
        });
        assert!(is_answer || decided.is_empty());
        is_answer.then_some(decided)
    }

    fn remaining(decided: &[Verdict]) -> Vec<(bool, u64)> {
        decided.iter().map(|verdict| (verdict.allowed, verdict.remaining)).collect()
    }

    /// The reply about a single limit is a string.
    #[test]
    fn one_of_a_string() {
        let text = [b"$37\r\n1763683200 7 ", &ONE_LEFT[5..]].concat();
        let mut decided = Vec::new();
        let charges = [bucket(b"k", 1)].into_iter();
        assert!(verdicts(found(&text), charges.clone(), |_, verdict, _| decided.push(verdict)));
        assert_eq!((remaining(&decided), decided[0].reset), (vec![(true, 0)], 3 * MINUTE - 7));
        assert!(!verdicts(found(&text), charges.chain([log(1)]), |_, _, _| panic!()));
        assert!(!verdicts(found(&text), [log(1)].into_iter(), |_, _, _| panic!()));
    }

    #[test]
    fn one_limit_decides() {
        let decided = read(&[NONE], &[bucket(b"k", 1)]).unwrap();
        let passed =
            Verdict { allowed: true, blocked: 0, remaining: 2, reset: MINUTE, retry: Retry::No };
        assert_eq!(decided, [passed]);
        let decided = read(&[ONE_LEFT], &[bucket(b"k", 2)]).unwrap();
        let retry = Retry::After(MINUTE);
        let rejected =
            Verdict { allowed: false, blocked: 0, remaining: 1, reset: 2 * MINUTE, retry };
        assert_eq!(decided, [rejected]);
        let decided = read(&[LOG_REJECTS], &[log(1)]).unwrap();
        let retry = Retry::After(5);
        assert_eq!(
            decided,
            [Verdict { allowed: false, blocked: 0, remaining: 0, reset: MINUTE, retry }]
        );
    }

    #[test]
    fn all_or_nothing() {
        let charges = [bucket(b"a", 1), log(1), bucket(b"b", 2)];
        let decided = read(&[NONE, LOG_ALLOWS, NONE], &charges).unwrap();
        assert_eq!(remaining(&decided), [(true, 2), (true, 2), (true, 1)]);
        let decided = read(&[NONE, LOG_ALLOWS, ONE_LEFT], &charges).unwrap();
        assert_eq!(remaining(&decided), [(true, 3), (true, 2), (false, 1)]);
        let decided = read(&[NONE, LOG_REJECTS, NONE], &charges).unwrap();
        assert_eq!(remaining(&decided), [(true, 3), (false, 0), (true, 3)]);
    }

    #[test]
    fn a_dry_run_keeps_nothing_from_the_others() {
        let planned = Charge { effect: Effect::DryRun, ..log(1) };
        let decided = read(&[NONE, LOG_REJECTS], &[bucket(b"a", 1), planned]).unwrap();
        assert_eq!(remaining(&decided), [(true, 2), (false, 0)]);
    }

    /// The second one of a key cannot pass before both can.
    #[test]
    fn those_of_one_key_pass_together_or_never() {
        let retries = |stored, costs: [u64; 2]| {
            let decided = read(&[stored; 2], &costs.map(|cost| bucket(b"k", cost))).unwrap();
            decided.iter().map(|verdict| verdict.retry).collect::<Vec<_>>()
        };
        assert_eq!(retries(NONE, [2, 2]), [Retry::No, Retry::Never]);
        assert_eq!(retries(ONE_LEFT, [1, 1]), [Retry::No, Retry::After(MINUTE)]);
        // The first one alone could pass earlier.
        assert_eq!(retries(ONE_LEFT, [2, 1]), [Retry::After(2 * MINUTE), Retry::No]);
        let dry_run = Charge { effect: Effect::DryRun, ..bucket(b"k", 2) };
        let decided = read(&[ONE_LEFT; 2], &[dry_run, bucket(b"k", 2)]).unwrap();
        assert_eq!(decided[1].retry, Retry::Never, "the dry run spends before it");
        let decided = read(&[ONE_LEFT; 2], &[bucket(b"k", 2), dry_run]).unwrap();
        assert_eq!(decided[0].retry, Retry::After(MINUTE));
    }

    #[test]
    fn what_is_given_back_is_as_never_spent() {
        let unspent = |entries: &[&[u8]], charges: &[Charge<'_>], earlier| {
            let (answer, mut verdicts) = (answer(entries), Vec::new());
            super::unspent(found(&answer), charges.iter().copied(), earlier, |index, verdict| {
                assert_eq!(index, verdicts.len());
                verdicts.push((verdict.allowed, verdict.remaining, verdict.reset));
            });
            verdicts
        };
        assert_eq!(unspent(&[NONE], &[bucket(b"k", 2)], 0), [(true, 3, 0)]);
        assert_eq!(unspent(&[NONE], &[bucket(b"k", 1)], 2), [(true, 1, 2 * MINUTE)]);
        assert_eq!(unspent(&[ONE_LEFT], &[bucket(b"k", 1)], 0), [(true, 1, 2 * MINUTE)]);
        let first = b"*4\r\n:1\r\n:1\r\n:60000000\r\n:7\r\n";
        assert_eq!(unspent(&[first], &[log(1)], 0), [(true, 2, 7)]);
        let [first, second] = [LOG_ALLOWS, b"*4\r\n:1\r\n:0\r\n:60000000\r\n:0\r\n"];
        let both = unspent(&[first, NONE, second], &[log(1), bucket(b"k", 3), log(2)], 0);
        assert_eq!(both, [(true, 3, 0); 3]);
        assert!(unspent(&[NONE], &[log(1)], 0).is_empty());
    }

    #[test]
    fn those_of_one_key_spend_together() {
        let longer = Rc::new(Template::new(Head::new("rl:a:", "k").unwrap(), None));
        let cut = |cost| Charge { template: &longer, ..bucket(b"x", cost) };
        let decided = read(&[NONE; 3], &[bucket(b"k:x", 1), bucket(b"l", 1), cut(2)]);
        assert_eq!(remaining(&decided.unwrap()), [(true, 2), (true, 2), (true, 0)]);
        let decided = read(&[NONE; 2], &[bucket(b"k:x", 2), cut(2)]);
        assert_eq!(remaining(&decided.unwrap()), [(true, 3), (false, 3)]);
    }

    /// Checks of all algorithms, the first and the last of one key.
    #[test]
    fn many_limits_decide_together() {
        for others in 0..20 {
            let last = bucket(b"shared", 2);
            let charges: Vec<_> = std::iter::once(bucket(b"shared", 1))
                .chain(std::iter::repeat_n(charge(Algorithm::Gcra, b"other", 0), others))
                .chain([last])
                .collect();
            let decided = read(&vec![NONE; charges.len()], &charges).unwrap();
            assert_eq!(decided.len(), charges.len());
            assert_eq!((decided[0].remaining, decided.last().unwrap().remaining), (2, 0));
        }
    }

    #[test]
    fn repeated_requests_are_decided_in_turn() {
        let decided = read_repeated(NONE, bucket(b"k", 1), 5).unwrap();
        let expected = [(true, 2), (true, 1), (true, 0), (false, 0), (false, 0)];
        assert_eq!(remaining(&decided), expected);
        let decided = read_repeated(ONE_LEFT, bucket(b"k", 0), 2).unwrap();
        assert_eq!(remaining(&decided), [(true, 1); 2]);
        assert_eq!(read_repeated(LOG_ALLOWS, log(1), 1), read(&[LOG_ALLOWS], &[log(1)]));
        assert_eq!(read_repeated(LOG_ALLOWS, log(1), 2), None);
    }

    #[test]
    fn invalid_replies_decide_nothing() {
        let nonsense = b"*4\r\n:2\r\n:2\r\n:60000000\r\n:0\r\n";
        for (entries, check) in [
            (&[][..], bucket(b"k", 1)),
            (&[NONE, NONE], bucket(b"k", 1)),
            (&[LOG_ALLOWS], bucket(b"k", 1)),
            (&[NONE], log(1)),
            (&[ONE_LEFT], log(1)),
            (&[&nonsense[..]], log(1)),
        ] {
            assert_eq!(read(entries, &[check]), None, "{entries:?}");
            if let [entry] = entries {
                assert_eq!(read_repeated(entry, check, 1), None, "{entries:?}");
            }
        }
        assert_eq!(read(&[NONE], &[bucket(b"a", 1), bucket(b"b", 1)]), None);
        assert_eq!(read(&[NONE, NONE], &[bucket(b"a", 1), log(1)]), None);
    }

    /// A value that the algorithm does not take for a state.
    #[test]
    fn what_is_not_ours_is_as_good_as_nothing() {
        let decided = read(&[b"$18\r\n1 1763683200000000\r\n"], &[bucket(b"k", 1)]).unwrap();
        assert_eq!(Some(decided), read(&[NONE], &[bucket(b"k", 1)]));
    }
}
