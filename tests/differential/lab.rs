//! The production scripts, run in a real Redis under a clock that the test sets.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use harness::Redis;
use rate_limit_core::charge::{self, Effect, Template};
use rate_limit_core::decision::Verdict;
use rate_limit_core::key::Head;
use rate_limit_core::lease::{Granted, Lease};
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::redis::answer::{self, Beside};
use rate_limit_core::redis::reply::{self, Entry, Reply};
use rate_limit_core::redis::script::{By, Scripts, Variant};
use redis::{Connection, ConnectionLike as _, Pipeline, RedisResult, Value};

/// The input of one script: its limits, and the time.
#[derive(Clone, Debug)]
pub struct Step {
    pub now: u64,
    pub charges: Vec<Charge>,
    /// How many equal requests there are; if more than one, there is only one limit.
    pub times: u32,
    /// Whether the cost is not spent, but given back.
    pub gives_back: bool,
    /// Since when the charge that is corrected by this cost can have been regained; 0: none is corrected.
    pub since: u64,
    /// The keys that expire before the script runs.
    pub expire: Vec<String>,
    /// The leases of the first limits.
    pub leases: Vec<Lease>,
}

impl Step {
    pub fn charge(now: u64, charges: Vec<Charge>) -> Self {
        let (expire, leases) = (Vec::new(), Vec::new());
        Self { now, charges, times: 1, gives_back: false, since: 0, expire, leases }
    }

    pub fn charge_times(now: u64, charge: Charge, times: u32) -> Self {
        Self { times, ..Self::charge(now, vec![charge]) }
    }

    pub fn give_back(now: u64, charge: Charge, since: u64) -> Self {
        Self { gives_back: true, since, ..Self::charge(now, vec![charge]) }
    }

    /// The lease of the limit of this index.
    pub fn lease(&self, index: usize) -> Lease {
        self.leases.get(index).copied().unwrap_or_default()
    }

    fn charges(&self) -> impl ExactSizeIterator<Item = charge::Charge<'_>> + Clone {
        let lease = |(index, charge)| {
            let lease = self.leases.get(index).filter(|lease: &&Lease| !lease.is_none());
            charge::Charge { lease, ..charge }
        };
        self.charges.iter().map(Charge::borrow).enumerate().map(lease)
    }
}

thread_local! {
    /// The template that the commands of all limits share.
    static TEMPLATE: &'static Rc<Template> =
        Box::leak(Box::new(Rc::new(Template::new(Head::new("rl:", "default").unwrap(), None))));
}

/// One limit of a step.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: String,
    pub quota: Quota,
    pub cost: u64,
    pub dry_run: bool,
}

impl Charge {
    pub fn new(key: String, quota: Quota, cost: u64) -> Self {
        Self { key, quota, cost, dry_run: false }
    }

    /// Takes away the block and the dry run.
    pub fn make_plain(&mut self) {
        (self.quota, self.dry_run) = (self.quota.with_block(0), false);
    }

    fn borrow(&self) -> charge::Charge<'_> {
        let template = TEMPLATE.with(|template| *template);
        let key = self.key.as_bytes().strip_prefix(&template.head()[..]).expect("a key");
        let effect = if self.dry_run { Effect::DryRun } else { Effect::Enforced };
        charge::Charge { effect, ..charge::Charge::new(template, key, &self.quota, self.cost) }
    }
}

/// The reply of a script, and its calls.
#[derive(Debug)]
pub struct Outcome {
    /// See [`read`].
    pub verdicts: Vec<Option<Verdict>>,
    /// The units that were set aside, beside each verdict.
    pub grants: Vec<Granted>,
    /// The keys that it wrote.
    pub writes: BTreeMap<String, Write>,
    /// How many entries the log of each limit has then; 0 where there is none.
    pub lengths: Vec<usize>,
    /// The verdict of each limit, of the last of repeated requests, if what it charges is given back.
    pub unspent: Vec<Verdict>,
}

/// A value that a script wrote to a key.
#[derive(Debug)]
pub struct Write {
    /// The value, or the last element of a log that was written; nothing where it deleted the log.
    pub state: Vec<u8>,
    pub kept: Kept,
}

/// How long a key is kept, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A state: until so long after the epoch.
    Until(u64),
    /// A log: for so long.
    For(u64),
    /// A log that is deleted.
    Gone,
}

/// A Redis of the test's own.
pub struct Lab {
    connection: Connection,
    scripts: Scripts,
    /// The SHA-1 of each script, and that of the same under the test's clock.
    wrapped: HashMap<String, String>,
    /// How often each script has run.
    runs: HashMap<String, usize>,
    _redis: Redis,
}

type Call = Vec<Vec<u8>>;

/// The reply of a wrapped script: that of the production script, its calls, and the lengths of logs.
type Answer = (Value, Vec<Call>, Vec<usize>);

impl Lab {
    pub fn new() -> Self {
        Self::start(Redis::start(), Scripts::new())
    }

    /// A lab that has scripts for these lists of algorithms, in this Redis.
    pub fn with_lists<'a, V: Copy + Into<Variant> + 'a>(
        redis: Redis,
        lists: impl IntoIterator<Item = &'a [V]>,
    ) -> Self {
        Self::start(redis, Scripts::new().with_lists(lists))
    }

    fn start(redis: Redis, scripts: Scripts) -> Self {
        let mut connection = redis.client();
        let mut load = |source: String| -> String {
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).unwrap()
        };
        let settled = Algorithm::ALL.map(|algorithm| Variant::new(algorithm, true));
        let settled = scripts.loading(&settled, false);
        let scripts_run =
            scripts.loaded().chain(settled.loaded()).chain([scripts.several_settled()]);
        let wrapped = scripts_run.map(|s| (s.sha().to_owned(), load(wrap(s.source())))).collect();
        Self { connection, scripts, wrapped, runs: HashMap::new(), _redis: redis }
    }

    /// How often a script for a list of algorithms has run.
    pub fn runs_of_lists(&self) -> usize {
        let lists: Vec<_> = self.scripts.loaded().skip(Scripts::new().loaded().count()).collect();
        let is_list = |sha: &str| lists.iter().any(|script| script.sha() == sha);
        self.runs.iter().filter(|(sha, _)| is_list(sha)).map(|(_, runs)| runs).sum()
    }

    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs the steps, one after the other but all in one round trip.
    pub fn run(&mut self, steps: &[Step]) -> Vec<Outcome> {
        self.try_run(steps).expect("answers of the scripts")
    }

    /// Does the same as [`run`](Self::run), where a script may fail.
    pub fn try_run(&mut self, steps: &[Step]) -> RedisResult<Vec<Outcome>> {
        let mut pipeline = Pipeline::new();
        for step in steps {
            for key in &step.expire {
                pipeline.cmd("DEL").arg(key).ignore();
            }
            pipeline.cmd("EVALSHA").arg(self.arguments(step));
        }
        let answers: Vec<Answer> = pipeline.query(&mut self.connection)?;
        Ok(steps.iter().zip(answers).map(|(step, answer)| outcome(step, answer)).collect())
    }

    /// Runs the steps without a look at what comes of them, which takes most of the time.
    pub fn run_unseen(&mut self, steps: &[Step]) {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLIENT").arg("REPLY").arg("OFF");
        for step in steps {
            pipeline.cmd("EVALSHA").arg(self.arguments(step));
        }
        pipeline.cmd("CLIENT").arg("REPLY").arg("ON");
        self.connection.req_packed_commands(&pipeline.get_packed_pipeline(), 0, 1).expect("an OK");
    }

    /// The arguments of the production command, for the wrapped script and with the time.
    fn arguments(&mut self, step: &Step) -> Vec<Vec<u8>> {
        let mut words = words(&self.scripts, By::Sha, step);
        assert_eq!(words.remove(0), b"EVALSHA");
        let sha = text(&words[0]).to_owned();
        words[0] = self.wrapped[&sha].clone().into_bytes();
        *self.runs.entry(sha).or_default() += 1;
        let time = [step.now / 1_000_000, step.now % 1_000_000];
        words.extend(time.map(|number| number.to_string().into_bytes()));
        words
    }
}

/// The words of the command that asks what `step` asks.
pub fn words(scripts: &Scripts, by: By, step: &Step) -> Vec<Vec<u8>> {
    let (mut command, mut charges) = (Vec::new(), step.charges());
    match step.times {
        _ if step.since > 0 => {
            let charge = step.charges[0].borrow();
            scripts.encode_correction(&mut command, by, charge, step.since, step.gives_back);
        }
        1 => scripts.encode_charges(&mut command, by, charges),
        times => {
            let charge = charges.next().expect("a charge");
            scripts.encode_repeated(&mut command, by, charge, times);
        }
    }
    let words = redis::parse_redis_value(&command).expect("a command");
    redis::from_redis_value(words).expect("its words")
}

/// Runs a production script with a `redis` of the test's own: TIME is given by the last two
/// arguments, and every call is recorded and returned beside the reply. As the test's time is not
/// that of Redis, nothing expires by itself.
pub fn wrap(source: &str) -> String {
    format!(
        "
local real, calls, micros, seconds = redis, {{}}, table.remove(ARGV), table.remove(ARGV)
local redis = {{call = function(...)
  local words = {{}}
  for i, word in ipairs({{...}}) do
    words[i] = type(word) == 'number' and string.format('%.17g', word) or word
  end
  calls[#calls + 1] = words
  if words[1] == 'TIME' then
    return {{seconds, micros}}
  elseif words[1] == 'PEXPIRE' or words[1] == 'PEXPIREAT' or words[1] == 'PERSIST' then
    return 1
  elseif words[1] == 'SET' then
    return real.call('SET', words[2], words[3])
  end
  return real.call(...)
end}}
local function production()
{source}
end
local reply, lengths = production(), {{}}
for i, key in ipairs(KEYS) do
  lengths[i] = 0
  if real.call('TYPE', key).ok == 'list' then
    local heads = string.sub(real.call('LINDEX', key, 0), 1, 1) == 'x' and 1 or 0
    lengths[i] = real.call('LLEN', key) - heads
  end
end
return {{reply, calls, lengths}}"
    )
}

fn outcome(step: &Step, (reply, calls, lengths): Answer) -> Outcome {
    let (verdicts, grants) = read_grants(step, &reply);
    let unspent = read_unspent(step, &reply);
    Outcome { verdicts, grants, writes: writes(&calls, step.now), lengths, unspent }
}

/// The verdicts that the production code reads in the reply to a step: one for each limit, or for each request about
/// the only one. Of limits that give back only those that store themselves have one.
pub fn read(step: &Step, value: &Value) -> Vec<Option<Verdict>> {
    read_grants(step, value).0
}

/// The verdicts of [`read`], and the units that were set aside.
fn read_grants(step: &Step, value: &Value) -> (Vec<Option<Verdict>>, Vec<Granted>) {
    let mut frame = Vec::new();
    encode(&mut frame, value);
    let Ok(Reply::Script(found)) = reply::parse(&frame) else { panic!("no answer: {value:?}") };
    if step.since > 0 {
        let own = |entry| match entry {
            Entry::Integers(integers, _) => Some(Verdict::from_reply(integers).expect("a verdict")),
            Entry::Stored(_) => None,
        };
        return (found.map(own).collect(), Vec::new());
    }
    let (mut verdicts, mut grants) = (Vec::new(), Vec::new());
    let now = found.now();
    let mut note = |index, verdict, beside: Option<&Beside>| {
        let granted = beside.and_then(|beside| beside.granted);
        assert_eq!(index, verdicts.len());
        verdicts.push(Some(verdict));
        grants.push(granted.unwrap_or(Granted::nothing(now)));
    };
    let mut charges = step.charges();
    let is_answer = match step.times {
        1 => answer::verdicts(found, charges, note),
        times => {
            let charge = charges.next().expect("a charge");
            let mut index = 0..;
            answer::repeated(found, &charge, times, |verdict, beside| {
                note(index.next().expect("an index"), verdict, beside);
            })
        }
    };
    assert!(is_answer, "no answer to {step:?}: {value:?}");
    (verdicts, grants)
}

/// The verdicts that the production code reads in the reply to a step whose charges are given back.
fn read_unspent(step: &Step, value: &Value) -> Vec<Verdict> {
    let (mut frame, mut verdicts) = (Vec::new(), Vec::new());
    encode(&mut frame, value);
    let Ok(Reply::Script(found)) = reply::parse(&frame) else { panic!("no answer: {value:?}") };
    answer::unspent(found, step.charges(), step.times - 1, |index, verdict| {
        assert_eq!(index, verdicts.len());
        verdicts.push(verdict);
    });
    verdicts
}

/// Puts a reply back into the form in which it came.
pub fn encode(frame: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Nil => frame.extend(b"$-1\r\n"),
        Value::Int(number) => frame.extend(format!(":{number}\r\n").bytes()),
        Value::BulkString(bytes) => {
            frame.extend(format!("${}\r\n", bytes.len()).bytes());
            frame.extend(bytes);
            frame.extend(b"\r\n");
        }
        Value::Array(values) => {
            frame.extend(format!("*{}\r\n", values.len()).bytes());
            values.iter().for_each(|value| encode(frame, value));
        }
        other => panic!("not what a script answers: {other:?}"),
    }
}

/// The writes of the calls. They must be one TIME, no more than one GET a limit, and then at most one SET a key. A
/// log is searched at any time, and written by itself: to correct it after a step of the clock, all of it; and at the
/// end, what was forgotten or given back, one entry, and what goes before them, if any is left.
fn writes(calls: &[Call], now: u64) -> BTreeMap<String, Write> {
    let words: Vec<Vec<&[u8]>> =
        calls.iter().map(|call| call.iter().map(Vec::as_slice).collect()).collect();
    let calls: Vec<&[&[u8]]> = words.iter().map(Vec::as_slice).collect();
    let [[b"TIME"], calls @ ..] = &calls[..] else { panic!("the first of {calls:?}") };
    let mut writes = BTreeMap::new();
    let (mut calls, mut ends) = (calls, false);
    while !calls.is_empty() {
        calls = match calls {
            [[b"GET", _], rest @ ..] if !ends => rest,
            [[b"LLEN", _] | [b"LINDEX", _, _], rest @ ..] if !ends => rest,
            [[b"SET", key, state, b"PXAT", time], rest @ ..] => {
                let before = note(&mut writes, key, state, until(number(time), now));
                assert!(before.is_none(), "{key:?} written twice");
                ends = true;
                rest
            }
            [[b"DEL" | b"LPOP", log] | [b"LTRIM", log, _, _], rest @ ..] => {
                note(&mut writes, log, b"", Kept::Gone);
                rest
            }
            [[b"RPUSH" | b"LPUSH", log, element], rest @ ..] => {
                note(&mut writes, log, element, Kept::Gone);
                rest
            }
            [[b"PEXPIRE", log, ttl], rest @ ..] => {
                let write = writes.get_mut(text(log)).expect("a change before");
                write.kept = Kept::For(number(ttl));
                rest
            }
            _ => panic!("the next of {calls:?}"),
        }
    }
    writes
}

fn note(
    writes: &mut BTreeMap<String, Write>,
    key: &[u8],
    state: &[u8],
    kept: Kept,
) -> Option<Write> {
    writes.insert(text(key).to_owned(), Write { state: state.to_owned(), kept })
}

/// The key of a quota that is whole again need not be kept, whatever its expiry in the past.
fn until(time: u64, now: u64) -> Kept {
    Kept::Until(time.max(now / 1_000 + 1))
}

/// Whole ms.
fn number(word: &[u8]) -> u64 {
    text(word).parse().expect("whole ms")
}

fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).expect("a text")
}
