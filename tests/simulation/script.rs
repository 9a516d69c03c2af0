//! The scripts of the module, run by the Rust references of the algorithms.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::LazyLock;

use harness::reply;
use rate_limit_core::algorithm::{self, Holds, Regain, State};
use rate_limit_core::decision::{Retry, Verdict};
use rate_limit_core::lease::{Granted, Lease, Report};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::rate::{MILLISECOND, Rate, SECOND};
use rate_limit_core::redis::script::{Script, Scripts, Variant};

use crate::database::{Database, Key, List, Stored, Value, Write};
use crate::resp::{self, Command, number};
use crate::traffic::LONGEST_SPAN;

/// The kind of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Decides one limit of this variant.
    Single(Variant),
    /// Decides several limits, all or nothing.
    Several,
    /// Decides limits of these algorithms, all or nothing.
    List(Vec<Algorithm>),
}

/// The scripts that the module may load: those of lists for up to three limits, none of which is settled.
pub static PROGRAMS: LazyLock<Vec<(Program, Script)>> = LazyLock::new(|| {
    let scripts = Scripts::new();
    let single = |variant| Some((Program::Single(variant), scripts.single(variant)?.clone()));
    let variants = [false, true]
        .map(|is_settled| Algorithm::ALL.map(|algorithm| Variant::new(algorithm, is_settled)));
    let mut programs: Vec<_> = variants.into_iter().flatten().filter_map(single).collect();
    programs.dedup_by(|(_, one), (_, other)| one == other);
    programs.push((Program::Several, scripts.several().clone()));
    programs.push((Program::Several, scripts.several_settled().clone()));
    let list = |list: Vec<_>| {
        let scripts = scripts.with_lists([&list[..]]);
        let script = scripts.loaded().last().expect("a script").clone();
        (Program::List(list), script)
    };
    programs.extend(lists().into_iter().map(list));
    programs
});

/// All lists of two or three algorithms that have scripts of their own.
fn lists() -> Vec<Vec<Algorithm>> {
    let algorithms = Algorithm::ALL.map(|algorithm| [algorithm]);
    let longer = |lists: &[Vec<Algorithm>]| -> Vec<Vec<Algorithm>> {
        let last = algorithms.iter().filter(|[last]| !last.stores_itself());
        last.flat_map(|last| lists.iter().map(move |list| [list, &last[..]].concat())).collect()
    };
    let pairs = longer(&longer(&[Vec::new()]));
    [longer(&pairs), pairs].concat()
}

/// The outcome of one limit of a script command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub key: Key,
    pub algorithm: Algorithm,
    /// Whether the cost was given back and not spent.
    pub gives_back: bool,
    pub cost: u64,
    /// How many requests were decided.
    pub times: u32,
    /// How many of them passed, and so spent the cost. What is given back always passes.
    pub passed: u32,
    /// The verdicts, in turn.
    pub verdicts: Vec<Verdict>,
    /// The leases of the command, and what was granted.
    pub lease: Lease,
    pub granted: Granted,
}

/// The effects of a script: its reply has been written.
#[derive(Debug, Default)]
pub struct Effects {
    pub charges: Vec<Charge>,
    pub writes: Vec<Write>,
}

/// The key holds a value of another type; the script has done nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongType;

/// The keys of an `EVALSHA` or `EVAL` command.
pub fn keys<'a>(command: &Command<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    command.words(3).take(command.number(2) as usize)
}

/// Runs a script at `now`, the Unix time of the server in µs. The writes are not applied yet.
pub fn run(
    program: &Program,
    command: &Command<'_>,
    database: &Database,
    now: u64,
    out: &mut Vec<u8>,
) -> Result<Effects, WrongType> {
    match program {
        Program::Single(variant) => single(&Limit::single(*variant, command), database, now, out),
        Program::Several => several(&Limit::several(command), database, now, out, several_reply),
        Program::List(list) => several(&Limit::list(list, command), database, now, out, list_reply),
    }
}

/// Whether a script that runs at `now` keeps what it has stored under a key as long as its reference does; or,
/// as its sums of holds are rough, until the client's quota is whole again, and no longer than twice as long and
/// a period.
pub fn is_kept(
    program: &Program,
    command: &Command<'_>,
    now: u64,
    key: &[u8],
    stored: &Stored,
    reference: &Stored,
) -> bool {
    let bytes = match &stored.value {
        _ if stored.gone_at == reference.gone_at => return true,
        Value::Packed(bytes) => bytes,
        Value::Log(..) => return false,
    };
    let limits = match program {
        Program::Single(variant) => vec![Limit::single(*variant, command)],
        Program::Several => Limit::several(command),
        Program::List(list) => Limit::list(list, command),
    };
    let is_kept = |limit: &Limit<'_>| {
        let mut state = limit.algorithm().read(bytes);
        let at_end = limit.algorithm().decide(&mut state, stored.gone_at, &limit.quota, 0);
        let longest = 2 * (reference.gone_at - now) + limit.quota.rate().period();
        at_end.reset == 0 && stored.gone_at - now <= longest
    };
    limits.iter().filter(|limit| limit.key == key).any(is_kept)
}

/// One limit, as the arguments of a script give it.
#[derive(Debug)]
struct Limit<'a> {
    key: &'a [u8],
    quota: Quota,
    gives_back: bool,
    cost: u64,
    /// The time of the charge that is settled; 0: this is no settlement.
    since: u64,
    dry_run: bool,
    /// How many requests are decided, if that is an argument beside the leases.
    times: u32,
    lease: Lease,
}

impl<'a> Limit<'a> {
    /// `KEYS`: one. `ARGV`: limit, period, count, times, cost, block, since, dry_run; those at the end
    /// that are 1, and of the last three 0, may be missing.
    fn single(variant: Variant, command: &Command<'a>) -> Self {
        assert!((6..=12).contains(&command.len()) && command.number(2) == 1, "{command:?}");
        let argument = |index| match index {
            _ if index < command.len() => command.word(index),
            ..9 => b"1",
            _ => b"0",
        };
        let [limit, period, count, times, block, since] =
            [4, 5, 6, 7, 9, 10].map(|index| number(argument(index)));
        let (gives_back, cost) = signed(argument(8));
        let algorithm = variant.algorithm();
        let quota = quota(algorithm, limit, period, count).with_block(block);
        let quota = if variant.is_settled() { quota.with_settle() } else { quota };
        assert!(times == 1 || !gives_back && !algorithm.stores_itself(), "{command:?}");
        assert!(times == 1 || since == 0, "{command:?}");
        let (key, times, lease) = (command.word(3), times as u32, Lease::default());
        Self { key, quota, gives_back, cost, since, dry_run: false, times, lease }
    }

    /// `ARGV`, five for each of `KEYS`: algorithm, cost, limit, period, count; or for each three more:
    /// block, since, dry_run; or eleven more: times, hold, want, keep, and of the last lease its units,
    /// those unused, the end, the plain state, and what was charged.
    fn several(command: &Command<'a>) -> Vec<Self> {
        let keys = command.number(2) as usize;
        let width = (command.len() - 3) / keys - 1;
        assert!(matches!(width, 5 | 8 | 19), "{command:?}");
        assert_eq!(command.len(), 3 + (1 + width) * keys, "{command:?}");
        let limit = |index: usize| {
            let first = 3 + keys + width * index;
            let name = command.word(first);
            let plain = name.strip_suffix(b"_settled");
            let (name, is_settled) = (plain.unwrap_or(name), plain.is_some());
            let is_it = |algorithm: &Algorithm| algorithm.function().as_bytes() == name;
            let algorithm = Algorithm::ALL.into_iter().find(is_it).expect("an algorithm");
            let (gives_back, cost) = signed(command.word(first + 1));
            let [limit, period, count] = [2, 3, 4].map(|offset| command.number(first + offset));
            let more = |offset| if width > 5 { command.number(first + offset) } else { 0 };
            let quota = quota(algorithm, limit, period, count).with_block(more(5));
            let quota = if is_settled { quota.with_settle() } else { quota };
            let more = |offset| if offset < width { more(offset) } else { 0 };
            let report = Report {
                of: more(12),
                unused: more(13),
                ends: more(14),
                plain: [15, 16, 17].map(more),
                charged: more(18),
            };
            // The time for which units are held beyond that for which the machine spends them: a sixteenth of it. A
            // command about a lease that ends with a window has no time of it.
            let span = match more(9) {
                0 => LONGEST_SPAN,
                hold => hold / 17 * 16,
            };
            let lease = Lease { span, want: more(10), keep: more(11), report };
            let (key, since, dry_run) = (command.word(3 + index), more(6), more(7) == 1);
            let times = more(8).max(1) as u32;
            assert!(times == 1 || keys == 1, "{command:?}");
            Self { key, quota, gives_back, cost, since, dry_run, times, lease }
        };
        (0..keys).map(limit).collect()
    }

    /// `ARGV`: one string of limit, period, count and cost of each of `KEYS`, eight bytes each.
    fn list(algorithms: &[Algorithm], command: &Command<'a>) -> Vec<Self> {
        let keys = algorithms.len();
        assert!(command.number(2) as usize == keys && command.len() == 4 + keys, "{command:?}");
        let (arguments, rest) = command.word(3 + keys).as_chunks::<32>();
        assert!(arguments.len() == keys && rest.is_empty(), "{command:?}");
        let limit = |((index, algorithm), arguments): ((usize, &Algorithm), &[u8; 32])| {
            let (numbers, _) = arguments.as_chunks();
            let [limit, period, count, cost] =
                [0, 1, 2, 3].map(|index| u64::from_le_bytes(numbers[index]));
            let quota = quota(*algorithm, limit, period, count);
            let (key, lease) = (command.word(3 + index), Lease::default());
            let (gives_back, since, dry_run, times) = (false, 0, false, 1);
            Self { key, quota, gives_back, cost, since, dry_run, times, lease }
        };
        let limits: Vec<_> = algorithms.iter().enumerate().zip(arguments).map(limit).collect();
        let keys: BTreeSet<_> = limits.iter().map(|limit| limit.key).collect();
        assert_eq!(keys.len(), limits.len(), "{command:?}");
        limits
    }

    fn algorithm(&self) -> Algorithm {
        self.quota.algorithm()
    }

    /// The state that a database holds under its key. A string that is no state is as good as none.
    fn stored(&self, database: &Database, now: u64) -> Result<algorithm::Stored, WrongType> {
        match (database.get(self.key, now), self.algorithm().stores_itself()) {
            (None, _) => Ok(algorithm::Stored::default()),
            (Some(Value::Packed(bytes)), false) => Ok(self.algorithm().read(bytes)),
            (Some(Value::Log(log, _)), true) => Ok(log.clone()),
            _ => Err(WrongType),
        }
    }

    /// Spends `cost`, gives it back, or settles it. Nothing is rejected but what is to be spent.
    fn decide(&self, stored: &mut algorithm::Stored, now: u64, cost: u64) -> Verdict {
        let algorithm = self.algorithm();
        match (self.since, self.gives_back) {
            (0, _) => return algorithm.decide(stored, now, &self.quota, cost),
            (since, is_less) => {
                let change = i64::try_from(cost).unwrap_or(i64::MAX);
                let change = if is_less { -change } else { change };
                algorithm.settle(stored, now, &self.quota, since, change);
            }
        }
        algorithm.decide(&mut stored.clone(), now, &self.quota, 0)
    }

    fn write(&self, found: &algorithm::Stored, now: u64) -> Write {
        let whole_in = self.algorithm().decide(&mut found.clone(), now, &self.quota, 0).reset;
        Write { key: self.key.into(), stored: stored(self.algorithm(), found, now, whole_in) }
    }

    /// Decides all requests. If one does not pass, the rest does not either.
    fn decide_all(&self, stored: &mut algorithm::Stored, now: u64, cost: u64) -> Vec<Verdict> {
        let mut verdict = self.decide(stored, now, cost);
        let mut verdicts = vec![verdict];
        while verdict.allowed && verdicts.len() < self.times as usize {
            verdict = self.decide(stored, now, cost);
            verdicts.push(verdict);
        }
        verdicts.resize(self.times as usize, verdict);
        verdicts
    }

    fn charge(&self, passed: u32, verdicts: Vec<Verdict>) -> Charge {
        let Self { key, quota, gives_back, cost, times, lease, .. } = *self;
        let (key, algorithm, granted) = (key.into(), quota.algorithm(), Granted::default());
        Charge { key, algorithm, gives_back, cost, times, passed, verdicts, lease, granted }
    }
}

/// The quota of which these are the arguments: see [`Quota::terms`].
fn quota(algorithm: Algorithm, limit: u64, period: u64, count: u64) -> Quota {
    let rate = match algorithm.regain() {
        Regain::AtOnce if period == 0 => Rate::monthly(limit),
        Regain::AtOnce => Rate::new(limit, period * count),
        Regain::Continuous | Regain::AtRefills => Rate::new(count, period),
    };
    let quota = Quota::new(algorithm, rate.expect("a rate"), limit).expect("a quota");
    assert_eq!(quota.terms(), (period, count), "{quota:?}");
    quota
}

/// A cost, and whether it is below zero.
fn signed(word: &[u8]) -> (bool, u64) {
    match word.strip_prefix(b"-") {
        Some(digits) => (true, number(digits)),
        None => (false, number(word)),
    }
}

/// A state as it is stored. A key is kept until its quota is whole again, rounded up to whole milliseconds: it is gone at
/// the start of the last one.
fn stored(
    algorithm: Algorithm,
    found: &algorithm::Stored,
    now: u64,
    whole_in: u64,
) -> Option<Stored> {
    let (value, gone_at) = match found.state.as_ref()? {
        State::Log(log, _) if log.is_empty() && whole_in == 0 => return None,
        State::Log(..) => (Value::Log(found.clone(), List::default()), now + whole_in),
        state => {
            // Units that are set aside are not forgotten before their end.
            let held = found.extra.holds.newer.until.saturating_sub(now);
            (Value::Packed(packed(algorithm, state, found)), now + held + whole_in.max(1))
        }
    };
    Some(Stored { value, gone_at: gone_at.next_multiple_of(MILLISECOND) })
}

/// The bytes of `struct.pack('<LLL', …)` of the scripts, and, if there is an extra, `'<LLLLLL'`, and, if something
/// was charged while units are held, `'<L'`. If there are steps, `'<LL'` for each, behind three numbers or all ten,
/// and a byte.
fn packed(algorithm: Algorithm, state: &State, found: &algorithm::Stored) -> Box<[u8]> {
    let state = match state {
        State::Bucket(tokens, last) => [*tokens, last.micros, last.part],
        State::Arrival(tat) => [tat.micros, tat.part, 0],
        State::Window(window, current, previous) => [*window, *current, *previous],
        State::Log(..) => panic!("{algorithm:?} keeps no log"),
    };
    let algorithm::Stored { extra, minima, .. } = found;
    let algorithm::Extra { holds: Holds { older, newer, charged }, debt, blocked_until } = *extra;
    let [older, newer] = [older, newer].map(|hold| [hold.units, hold.until]);
    let extra = match [older[0], older[1], newer[0], newer[1], debt, blocked_until] {
        [0, 0, 0, 0, 0, 0] => Vec::new(),
        extra => extra.to_vec(),
    };
    let has_steps = !minima.is_empty();
    let charged = (charged > 0 || has_steps && !extra.is_empty()).then_some(charged);
    let steps = minima.steps().iter().flat_map(|step| [step.at, step.missing]);
    let numbers = state.into_iter().chain(extra).chain(charged).chain(steps);
    numbers.flat_map(u64::to_le_bytes).chain(has_steps.then_some(1)).collect()
}

/// The stored state, without steps.
fn without_steps(bytes: &[u8]) -> &[u8] {
    match bytes.len() % 16 {
        9 => &bytes[..24],
        1 => &bytes[..80],
        _ => bytes,
    }
}

/// Does what `single.lua` and `single_own.lua` do.
fn single(
    limit: &Limit<'_>,
    database: &Database,
    now: u64,
    out: &mut Vec<u8>,
) -> Result<Effects, WrongType> {
    let before = limit.stored(database, now)?;
    let mut after = before.clone();
    let verdicts = limit.decide_all(&mut after, now, limit.cost);
    let passed = passed(&verdicts);
    if limit.algorithm().stores_itself() {
        resp::array(out, 2);
        resp::integer(out, now as i64);
        integers(out, limit, &before, now, verdicts[0]);
    } else {
        let mut text = Vec::with_capacity(48);
        write!(text, "{} {} ", now / SECOND, now % SECOND).expect("memory takes any bytes");
        if let Some(Value::Packed(bytes)) = database.get(limit.key, now) {
            text.extend_from_slice(without_steps(bytes));
        }
        resp::bulk(out, &text);
    }
    let writes = if after == before { Vec::new() } else { vec![limit.write(&after, now)] };
    Ok(Effects { charges: vec![limit.charge(passed, verdicts)], writes })
}

/// Replies with what is stored, or with verdicts.
type WriteReply = fn(&[Limit<'_>], &[Vec<Verdict>], &Database, u64, &mut Vec<u8>);

/// Does what `several.lua` does, or the script of a list, which replies in another form.
fn several(
    limits: &[Limit<'_>],
    database: &Database,
    now: u64,
    out: &mut Vec<u8>,
    reply: WriteReply,
) -> Result<Effects, WrongType> {
    let found: Vec<_> =
        limits.iter().map(|limit| limit.stored(database, now)).collect::<Result<_, _>>()?;
    let mut round = Round::decide(limits, &found, now, None);
    let allows = |(limit, verdicts): (&Limit<'_>, &Vec<Verdict>)| {
        limit.dry_run || verdicts.iter().all(|verdict| verdict.allowed)
    };
    let pass = limits.iter().zip(&round.verdicts).all(allows);
    let is_repeated = limits[0].times > 1;
    if pass {
        round.grant(limits, now);
    } else if !is_repeated {
        let first: Vec<Verdict> = round.verdicts.iter().map(|verdicts| verdicts[0]).collect();
        let held = Round::decide(limits, &found, now, Some(&first));
        for (verdicts, held) in round.verdicts.iter_mut().zip(held.verdicts) {
            let Verdict { allowed, retry, .. } = verdicts[0];
            verdicts[0] = Verdict { allowed, retry, ..held[0] };
        }
        round.changed = held.changed;
    }
    reply(limits, &round.verdicts, database, now, out);
    let writes = round.changed.values().map(|(limit, state)| limits[*limit].write(state, now));
    let writes = writes.collect();
    let mut charges = Vec::new();
    for ((limit, verdicts), granted) in limits.iter().zip(round.verdicts).zip(round.granted) {
        let passed = match is_repeated {
            true => passed(&verdicts),
            false => u32::from(pass && verdicts[0].allowed),
        };
        charges.push(Charge { granted, ..limit.charge(passed, verdicts) });
    }
    Ok(Effects { charges, writes })
}

/// An array of the time and what was stored of each limit, or the verdict of one that stores itself.
fn several_reply(
    limits: &[Limit<'_>],
    verdicts: &[Vec<Verdict>],
    database: &Database,
    now: u64,
    out: &mut Vec<u8>,
) {
    resp::array(out, limits.len() + 1);
    resp::integer(out, now as i64);
    for (limit, verdicts) in limits.iter().zip(verdicts) {
        match database.get(limit.key, now) {
            _ if limit.algorithm().stores_itself() => {
                let before = limit.stored(database, now).unwrap_or_default();
                integers(out, limit, &before, now, verdicts[0]);
            }
            Some(Value::Packed(bytes)) => resp::bulk(out, bytes),
            _ => resp::nil(out),
        }
    }
}

/// One string of the time and what was stored of each limit, after how many numbers that is.
fn list_reply(
    limits: &[Limit<'_>],
    _: &[Vec<Verdict>],
    database: &Database,
    now: u64,
    out: &mut Vec<u8>,
) {
    let mut text = format!("{} {}:", now / SECOND, now % SECOND).into_bytes();
    for limit in limits {
        let stored: &[u8] = match database.get(limit.key, now) {
            Some(Value::Packed(bytes)) => bytes,
            _ => b"",
        };
        text.push(b'0' + (stored.len() / size_of::<u64>()) as u8);
        text.extend_from_slice(stored);
    }
    resp::bulk(out, &text);
}

/// How many of some requests were allowed.
fn passed(verdicts: &[Verdict]) -> u32 {
    verdicts.iter().filter(|verdict| verdict.allowed).count() as u32
}

/// Appends the verdict of `sliding_log.lua`: if the request is allowed, with the reset without it; if it is
/// none, but corrects a charge, with 0.
fn integers(
    out: &mut Vec<u8>,
    limit: &Limit<'_>,
    before: &algorithm::Stored,
    now: u64,
    verdict: Verdict,
) {
    let unspent = limit.algorithm().decide(&mut before.clone(), now, &limit.quota, 0);
    let [allowed, remaining, reset, retry] = reply::verdict(verdict);
    let last = match verdict.allowed {
        _ if limit.gives_back || limit.since > 0 => 0,
        true => unspent.reset as i64,
        false => retry,
    };
    resp::array(out, Verdict::REPLY_LEN);
    [allowed, remaining, reset, last].into_iter().for_each(|value| resp::integer(out, value));
}

/// The decisions of several limits, in turn.
struct Round<'a> {
    verdicts: Vec<Vec<Verdict>>,
    /// The state under a key after that, by the last limit that has it.
    states: BTreeMap<&'a [u8], algorithm::Stored>,
    /// The states that are to be written, and for which limit.
    changed: BTreeMap<&'a [u8], (usize, algorithm::Stored)>,
    granted: Vec<Granted>,
}

impl<'a> Round<'a> {
    /// If the request was rejected with the verdicts `first`, they spend nothing.
    fn decide(
        limits: &[Limit<'a>],
        found: &[algorithm::Stored],
        now: u64,
        first: Option<&[Verdict]>,
    ) -> Self {
        let mut round = Self {
            verdicts: Vec::new(),
            states: BTreeMap::new(),
            changed: BTreeMap::new(),
            granted: Vec::new(),
        };
        // The units that limits of the same key have spent before.
        let mut spent: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (index, (limit, found)) in limits.iter().zip(found).enumerate() {
            let mut state = found.clone();
            let mut cost = if first.is_some() { 0 } else { limit.cost };
            if limit.algorithm().stores_itself() {
                // It does not see what is not written yet: both are spent as one.
                cost = cost.saturating_add(spent.get(limit.key).copied().unwrap_or(0));
            } else if let Some(sharer) = round.states.get(limit.key) {
                state.clone_from(sharer);
            }
            let before = state.clone();
            let report = &limit.lease.report;
            let returned = limit.algorithm().report(&mut state, now, &limit.quota, report);
            let verdicts = match first.map(|first| matches!(first[index].retry, Retry::After(_))) {
                None => limit.decide_all(&mut state, now, cost),
                Some(rejects) => {
                    vec![limit.algorithm().decline(&mut state, now, &limit.quota, rejects)]
                }
            };
            if verdicts[0].allowed && cost > 0 {
                spent.insert(limit.key, cost);
            }
            if state != before {
                round.changed.insert(limit.key, (index, state.clone()));
            }
            round.states.insert(limit.key, state);
            round.verdicts.push(verdicts);
            round.granted.push(Granted { now, returned, ..Granted::default() });
        }
        round
    }

    /// Sets aside what is wanted of what remains.
    fn grant(&mut self, limits: &[Limit<'a>], now: u64) {
        for (index, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.cost > 0) {
            let state = self.states.get_mut(limit.key).expect("a state");
            let verdict = self.verdicts[index].last().expect("a verdict");
            let is_last = limits[index + 1..].iter().all(|other| other.key != limit.key);
            let remaining = if verdict.allowed && is_last { verdict.remaining } else { 0 };
            let returned = self.granted[index].returned;
            let granted =
                limit.algorithm().grant(state, now, &limit.quota, &limit.lease, remaining);
            if granted.units > 0 {
                self.changed.insert(limit.key, (index, state.clone()));
            }
            self.granted[index] = Granted { returned, ..granted };
        }
    }
}

#[cfg(test)]
mod tests {
    use rate_limit_core::charge;
    use rate_limit_core::redis::answer;
    use rate_limit_core::redis::reply::{self, Reply};
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::resp::Input;
    use crate::server::tests::template;

    const NOW: u64 = 1_763_683_200_123_456;

    fn charge_of(
        algorithm: Algorithm,
        rate: &str,
        limit: u64,
        cost: u64,
    ) -> charge::Charge<'static> {
        let quota = Quota::new(algorithm, rate.parse().unwrap(), limit).unwrap();
        charge::Charge::new(template(), b"k", Box::leak(Box::new(quota)), cost)
    }

    /// Runs an encoded command and applies what it writes.
    fn run_encoded(bytes: &[u8], database: &mut Database, now: u64) -> (Vec<u8>, Vec<Charge>) {
        let (mut input, mut out) = (Input::default(), Vec::new());
        input.push(bytes);
        let command = input.next().unwrap();
        let sha = command.word(1);
        let (program, _) = PROGRAMS.iter().find(|(_, s)| s.sha().as_bytes() == sha).unwrap();
        let effects = run(program, &command, database, now, &mut out).unwrap();
        effects.writes.into_iter().for_each(|write| database.apply(write));
        (out, effects.charges)
    }

    fn verdicts(reply: &[u8], limits: &[charge::Charge<'_>]) -> Vec<Verdict> {
        let Ok(Reply::Script(found)) = reply::parse(reply) else { panic!("{reply:?}") };
        let mut verdicts = Vec::new();
        let limits = limits.iter().copied();
        assert!(answer::verdicts(found, limits, |_, verdict, _| verdicts.push(verdict)));
        verdicts
    }

    fn charge(limits: &[charge::Charge<'_>], database: &mut Database, now: u64) -> Vec<Verdict> {
        let mut bytes = Vec::new();
        Scripts::new().encode_charges(&mut bytes, By::Sha, limits.iter().copied());
        let (reply, charges) = run_encoded(&bytes, database, now);
        let verdicts = verdicts(&reply, limits);
        let pass = verdicts.iter().all(|verdict| verdict.allowed);
        assert!(charges.iter().all(|charge| (charge.passed == 1) == pass));
        verdicts
    }

    /// The client reads in the replies what the references decide.
    #[test]
    fn one_limit_is_decided_by_its_reference() {
        for algorithm in Algorithm::ALL {
            for (rate, limit) in [("3r/s", 3), ("7r/10s", 7), ("100r/m", 100)] {
                let (mut database, mut state) = (Database::default(), algorithm::Stored::default());
                for (step, cost) in [1, 2, 0, 1, 3, 1, 9, 1, 1].into_iter().enumerate() {
                    let now = NOW + 217_003 * step as u64;
                    let limit = charge_of(algorithm, rate, limit, cost);
                    let algorithm = limit.quota.algorithm();
                    let expected = algorithm.decide(&mut state, now, limit.quota, cost);
                    assert_eq!(charge(&[limit], &mut database, now), [expected], "{limit:?}");
                }
            }
        }
    }

    #[test]
    fn several_limits_spend_all_or_nothing() {
        let mut database = Database::default();
        let wide = charge_of(Algorithm::SlidingLog, "100r/m", 100, 1);
        let narrow =
            charge::Charge { key: b"other", ..charge_of(Algorithm::TokenBucket, "1r/m", 2, 1) };
        let remaining = |verdicts: Vec<Verdict>| verdicts.iter().map(|v| v.remaining).collect();
        let mut charge =
            |limits: &[_]| -> Vec<u64> { remaining(charge(limits, &mut database, NOW)) };
        assert_eq!(charge(&[wide, narrow]), [99, 1]);
        assert_eq!(charge(&[wide, narrow, narrow]), [99, 1, 1]);
        assert_eq!(charge(&[narrow, wide]), [0, 98]);
    }

    #[test]
    fn a_list_spends_all_or_nothing() {
        let mut database = Database::default();
        let wide = charge_of(Algorithm::TokenBucket, "100r/m", 100, 3);
        let narrow = charge::Charge { key: b"other", ..charge_of(Algorithm::Gcra, "1r/m", 1, 1) };
        let scripts =
            Scripts::new().with_lists([&[Algorithm::TokenBucket, Algorithm::LeakyBucket][..]]);
        let mut charge = || {
            let (mut bytes, limits) = (Vec::new(), [wide, narrow]);
            scripts.encode_charges(&mut bytes, By::Sha, limits.into_iter());
            let (reply, charges) = run_encoded(&bytes, &mut database, NOW);
            assert!(reply.starts_with(b"$"), "the reply of a list");
            let remaining: Vec<_> =
                verdicts(&reply, &limits).iter().map(|verdict| verdict.remaining).collect();
            (charges[0].passed, charges[1].passed, remaining)
        };
        assert_eq!(charge(), (1, 1, vec![97, 0]));
        assert_eq!(charge(), (0, 0, vec![97, 0]));
    }

    #[test]
    fn one_limit_is_decided_several_times() {
        let limit = charge_of(Algorithm::Gcra, "1r/m", 5, 2);
        let (mut bytes, mut database) = (Vec::new(), Database::default());
        Scripts::new().encode_repeated(&mut bytes, By::Sha, limit, 4);
        let (_, charges) = run_encoded(&bytes, &mut database, NOW);
        assert_eq!((charges[0].times, charges[0].passed, charges[0].cost), (4, 2, 2));
        assert_eq!(
            charge(&[charge::Charge { cost: 0, ..limit }], &mut database, NOW)[0].remaining,
            1
        );
    }

    #[test]
    fn what_is_given_back_can_be_spent_again() {
        for algorithm in Algorithm::ALL {
            let limit = charge_of(algorithm, "10r/d", 10, 4);
            let (mut bytes, mut database) = (Vec::new(), Database::default());
            charge(&[limit], &mut database, NOW);
            Scripts::new().encode_correction(&mut bytes, By::Sha, limit, NOW, true);
            let (_, charges) = run_encoded(&bytes, &mut database, NOW);
            assert!(charges[0].gives_back && charges[0].cost == 4);
            assert_eq!(charge(&[limit], &mut database, NOW)[0].remaining, 6, "{algorithm:?}");
        }
    }

    #[test]
    fn a_state_is_kept_until_the_quota_is_whole() {
        let limit = charge_of(Algorithm::TokenBucket, "1r/s", 2, 2);
        let mut database = Database::default();
        charge(&[limit], &mut database, NOW);
        let kept = |now| database.get(b"rl:a:k", now).is_some();
        assert!(kept(NOW + 2_000_000) && !kept(NOW + 2_001_000));
    }

    #[test]
    fn a_value_of_another_type_fails_the_script() {
        let mut database = Database::default();
        charge(&[charge_of(Algorithm::SlidingLog, "1r/m", 1, 1)], &mut database, NOW);
        let mut bytes = Vec::new();
        let other = charge_of(Algorithm::Gcra, "1r/m", 1, 1);
        Scripts::new().encode_charges(&mut bytes, By::Sha, std::iter::once(other));
        let mut input = Input::default();
        input.push(&bytes);
        let (command, mut out) = (input.next().unwrap(), Vec::new());
        let program = Program::Single(Algorithm::Gcra.into());
        assert_eq!(run(&program, &command, &database, NOW, &mut out).unwrap_err(), WrongType);
        assert!(out.is_empty());
    }
}
