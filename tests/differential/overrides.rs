//! Clients with quotas of their own, and what operators change: script and reference after each step of a random history.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::rc::Rc;

use fastrand::Rng;
use harness::Redis;
use rate_limit_core::algorithm::{State, Stored};
use rate_limit_core::charge::{Charge, Template};
use rate_limit_core::key::Head;
use rate_limit_core::limit::{Algorithm, Quota};
use rate_limit_core::manage::{Change, ClientState};
use rate_limit_core::overrides::{Applied, Override};
use rate_limit_core::rate::Rate;
use rate_limit_core::redis::answer;
use rate_limit_core::redis::answer::managed;
use rate_limit_core::redis::reply::{self, Reply, ScriptReply};
use rate_limit_core::redis::script::{By, Scripts, Variant};
use redis::{Connection, Value};

use crate::agreement::{length, seed};
use crate::lab::{encode, wrap};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// The bytes of the record of a quota of a client's own.
const RECORD: usize = 50;

/// The rates of lines and of clients.
const RATES: [&str; 8] =
    ["1r/s", "3r/s", "10r/m", "7r/10s", "100r/m", "1000r/h", "20r/h", "5r/100ms"];

#[test]
fn one_client_is_counted_alike() {
    let mut rng = Rng::with_seed(seed());
    let mut world = World::new();
    for algorithm in Algorithm::ALL {
        for is_settled in [false, true] {
            for (has_override, is_mixed) in [(true, false), (true, true), (false, false)] {
                for _ in 0..(length() / 1_000).max(2) {
                    let Some(quota) = quota(&mut rng, algorithm, is_settled) else { continue };
                    let mut client = Client::new(rng.fork(), quota, world.next_key());
                    client.is_mixed = is_mixed;
                    if has_override {
                        client.quota = quota.with_override();
                    }
                    (0..60).for_each(|_| client.step(&mut world));
                }
            }
        }
    }
}

/// Units that were spent before a limit was lowered are owed under the limit of the line.
#[test]
fn a_key_lives_for_what_a_lowered_limit_leaves() {
    let mut world = World::new();
    for algorithm in Algorithm::ALL {
        let quota = Quota::new(algorithm, "1000r/h".parse().unwrap(), 6).unwrap();
        let mut client = Client::new(Rng::new(), quota, world.next_key());
        client.quota = quota.with_override();
        let rate: Rate = "100r/m".parse().unwrap();
        let raised = Change::SetOverride { rate, limit: 58, lasts: None };
        let lowered = Change::SetOverride { rate, limit: 14, lasts: NonZeroU64::new(5 * SECOND) };
        client.change(&mut world, raised);
        client.request_of(&mut world, 53);
        client.change(&mut world, lowered);
        client.request_of(&mut world, 0);
    }
}

/// A quota of the algorithm, if a random rate suits it.
fn quota(rng: &mut Rng, algorithm: Algorithm, is_settled: bool) -> Option<Quota> {
    let rate = RATES[rng.usize(0..RATES.len())].parse().unwrap();
    let quota = Quota::new(algorithm, rate, rng.u64(1..=30)).ok()?;
    let quota = if rng.u8(0..4) == 0 { quota.with_block(rng.u64(1..=20) * SECOND) } else { quota };
    Some(if is_settled { quota.with_settle() } else { quota })
}

/// A Redis under the test's clock.
struct World {
    connection: Connection,
    scripts: Scripts,
    loaded: HashMap<String, String>,
    keys: u64,
    _redis: Redis,
}

impl World {
    fn new() -> Self {
        let redis = Redis::start();
        let (connection, loaded) = (redis.client(), HashMap::new());
        Self { connection, scripts: Scripts::new(), loaded, keys: 0, _redis: redis }
    }

    fn next_key(&mut self) -> String {
        self.keys += 1;
        format!("client{}", self.keys)
    }

    /// Runs a command at this time, and returns the reply and the calls that the script made.
    fn run(&mut self, quota: &Quota, command: &[u8], now: u64) -> (Vec<u8>, Vec<Vec<Vec<u8>>>) {
        let words = redis::parse_redis_value(command).expect("a command");
        let mut words: Vec<Vec<u8>> = redis::from_redis_value(words).expect("its words");
        assert_eq!(words.remove(0), b"EVALSHA");
        let sha = String::from_utf8(words[0].clone()).unwrap();
        words[0] = self.wrapped(quota, &sha).into_bytes();
        words.extend([now / SECOND, now % SECOND].map(|number| number.to_string().into_bytes()));
        let answer: (Value, Vec<Vec<Vec<u8>>>, Vec<usize>) =
            redis::cmd("EVALSHA").arg(words).query(&mut self.connection).expect("an answer");
        let mut frame = Vec::new();
        encode(&mut frame, &answer.0);
        (frame, answer.1)
    }

    fn wrapped(&mut self, quota: &Quota, sha: &str) -> String {
        if let Some(wrapped) = self.loaded.get(sha) {
            return wrapped.clone();
        }
        let variant = Variant::from(quota);
        let scripts = [self.scripts.single(variant), self.scripts.manage(variant)];
        let several = [
            self.scripts.several(),
            self.scripts.several_settled(),
            self.scripts.several_override(),
        ];
        let mut scripts = scripts.into_iter().flatten().chain(several);
        let script = scripts.find(|script| script.sha() == sha).expect("a script");
        let wrapped: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(wrap(script.source()))
            .query(&mut self.connection)
            .unwrap();
        self.loaded.insert(sha.to_owned(), wrapped.clone());
        wrapped
    }
}

/// A client, and what the references know of it.
struct Client {
    rng: Rng,
    quota: Quota,
    /// The line without `override`, and whether another machine has that.
    plain: Quota,
    is_mixed: bool,
    key: String,
    now: u64,
    stored: Stored,
    own: Option<Override>,
    /// The steps, for a failure.
    history: Vec<String>,
}

impl Client {
    fn new(rng: Rng, quota: Quota, key: String) -> Self {
        let (stored, own, history) = (Stored::default(), None, Vec::new());
        Self { rng, quota, plain: quota, is_mixed: false, key, now: START, stored, own, history }
    }

    fn step(&mut self, world: &mut World) {
        self.pass_time();
        if self.is_mixed {
            self.read_stored(world);
        }
        match self.rng.u8(0..12) {
            0..=5 => self.request(world),
            6 => self.correct(world),
            7 if self.is_mixed => self.request_without_override(world),
            8 if self.is_mixed => self.change_without_override(world),
            _ => {
                let change = self.random_change();
                self.change(world, change);
            }
        }
        self.look(world);
    }

    fn pass_time(&mut self) {
        let most = [0, 1, 1_000, SECOND, 10 * SECOND, 100 * SECOND, 4_000 * SECOND];
        let most = most[self.rng.usize(0..most.len())];
        self.now += self.rng.u64(0..=most);
        if let (Some(Override { ends: Some(ends), .. }), 0) = (self.own, self.rng.u8(0..6)) {
            // At the very end, and just before it.
            self.now = self.now.max(ends.get() - self.rng.u64(0..=1));
        }
    }

    fn applied(&self) -> Applied {
        Applied::new(self.stored.clone(), self.own, self.now, &self.quota)
    }

    fn charge<'a>(&'a self, template: &'a Rc<Template>, cost: u64) -> Charge<'a> {
        Charge::new(template, self.key.as_bytes(), &self.quota, cost)
    }

    fn request(&mut self, world: &mut World) {
        let cost = self.rng.u64(0..=self.applied().quota.limit() / 3 + 1);
        self.request_of(world, cost);
    }

    /// Requests of one client, by the script for one limit or that for several.
    fn request_of(&mut self, world: &mut World, cost: u64) {
        let template = template();
        let times = match self.quota.algorithm().name() {
            "sliding_log" => 1,
            _ => self.rng.u32(1..=3),
        };
        self.note(format!("{times} requests of {cost}"));
        let mut command = Vec::new();
        let is_several = self.quota.has_override() && times == 1 && self.rng.bool();
        let charge = self.charge(&template, cost);
        match is_several {
            true => {
                let other = Charge { key: b"other", cost: 0, ..charge };
                world.scripts.encode_charges(&mut command, By::Sha, [charge, other].into_iter());
            }
            false => world.scripts.encode_repeated(&mut command, By::Sha, charge, times),
        }
        let (frame, calls) = world.run(&self.quota, &command, self.now);
        let Applied { mut stored, quota, own } = self.applied();
        let mut expected = Vec::new();
        for _ in 0..times {
            expected.push(quota.algorithm().decide(&mut stored, self.now, &quota, cost));
        }
        let mut found = Vec::new();
        let reply = reply_of(&frame);
        match is_several {
            true => {
                let other = Charge { key: b"other", cost: 0, ..charge };
                let charges = [charge, other].into_iter();
                let read = answer::verdicts(reply, charges, |index, verdict, beside| {
                    let own = beside.and_then(|beside| beside.own);
                    found.extend((index == 0).then_some((verdict, own)));
                });
                assert!(read, "{frame:?}");
            }
            false => {
                let read = answer::repeated(reply, &charge, times, |verdict, beside| {
                    found.push((verdict, beside.and_then(|beside| beside.own)));
                });
                assert!(read, "{frame:?}");
            }
        }
        let expected: Vec<_> = expected.into_iter().map(|verdict| (verdict, own)).collect();
        assert_eq!(found, expected, "{:#?}", self.history);
        if self.is_written(&stored, &calls) {
            (self.stored, self.own) = (stored, own);
        }
        self.check_expiry(&calls);
    }

    /// A request at a machine whose line has no `override`: it counts by the line, and what the client has of its own stays.
    fn request_without_override(&mut self, world: &mut World) {
        let (template, cost) = (template(), self.rng.u64(0..=self.plain.limit() / 3 + 1));
        self.note(format!("a request of {cost} without override"));
        let charge = Charge::new(&template, self.key.as_bytes(), &self.plain, cost);
        // Beside another limit with or without override, or alone.
        let other = [None, Some(&self.plain), Some(&self.quota)][self.rng.usize(0..3)];
        let other = other.map(|quota| Charge { key: b"other", quota, cost: 0, ..charge });
        let mut command = Vec::new();
        let charges: Vec<_> = [Some(charge), other].into_iter().flatten().collect();
        world.scripts.encode_charges(&mut command, By::Sha, charges.iter().copied());
        let (frame, calls) = world.run(&self.plain, &command, self.now);
        let mut stored = self.stored.clone();
        let expected = self.plain.algorithm().decide(&mut stored, self.now, &self.plain, cost);
        let mut found = Vec::new();
        let read =
            answer::verdicts(reply_of(&frame), charges.into_iter(), |index, verdict, beside| {
                let own = beside.and_then(|beside| beside.own);
                found.extend((index == 0).then_some((verdict, own)));
            });
        assert!(read, "{frame:?}");
        assert_eq!(found, [(expected, None)], "{:#?}", self.history);
        self.keep(world, stored);
        self.check_own(&calls);
    }

    /// A change by a machine whose line has no `override`.
    fn change_without_override(&mut self, world: &mut World) {
        let changes =
            [Change::Reset, Change::GiveBack(3), Change::Block(9 * SECOND), Change::Block(0)];
        let change = changes[self.rng.usize(0..changes.len())];
        self.note(format!("{change:?} without override"));
        let template = template();
        let charge = Charge::new(&template, self.key.as_bytes(), &self.plain, 0);
        let mut command = Vec::new();
        world.scripts.encode_change(&mut command, By::Sha, &charge, &change);
        let (frame, calls) = world.run(&self.plain, &command, self.now);
        let found = managed(reply_of(&frame), &charge).expect("what the client has");
        let mut applied = Applied::new(self.stored.clone(), None, self.now, &self.plain);
        change.apply(&mut applied, self.now, &self.plain);
        assert_eq!(found, ClientState::new(&applied, self.now), "{:#?}", self.history);
        self.keep(world, applied.stored);
        self.check_own(&calls);
    }

    /// Takes over what is stored: a state that means the same to one line may mean something else to another.
    fn read_stored(&mut self, world: &mut World) {
        let key = format!("rl:own:{}", self.key);
        let has_record = match self.plain.algorithm().stores_itself() {
            true => {
                let mut command = redis::cmd("LRANGE");
                self.read_log(command.arg(key).arg(0).arg(-1).query(&mut world.connection).unwrap())
            }
            false => {
                let value: Vec<u8> =
                    redis::cmd("GET").arg(key).query(&mut world.connection).unwrap();
                let has_record = matches!(value.len() % 8, 2 | 3) && value.ends_with(b"o\x01");
                let state = &value[..value.len() - if has_record { RECORD } else { 0 }];
                self.stored = self.plain.algorithm().read(state);
                has_record
            }
        };
        let own = self.own.filter(|own| !own.is_over(self.now));
        assert!(own.is_none() || has_record, "{:#?}", self.history);
        self.own = self.own.filter(|_| has_record);
    }

    /// Reads the elements of a list; whether there is the record of a quota among them.
    fn read_log(&mut self, elements: Vec<String>) -> bool {
        let numbers = |element: &str| -> Vec<u64> {
            element.split(' ').filter_map(|word| word.parse().ok()).collect()
        };
        let (heads, entries): (Vec<_>, Vec<_>) =
            elements.iter().partition(|element| element.starts_with('x'));
        let head = heads.first().map_or_else(Vec::new, |head| numbers(head));
        let number = |index: usize| head.get(index).copied().unwrap_or(0);
        let entries = entries.iter().map(|entry| match numbers(entry)[..] {
            [time, _, cost] => (time, cost),
            _ => panic!("{elements:?}"),
        });
        self.stored = Stored::default();
        self.stored.extra.debt = number(0);
        self.stored.extra.blocked_until = number(2);
        let is_empty = elements.is_empty();
        self.stored.state = (!is_empty).then(|| State::Log(entries.collect(), number(1)));
        head.len() == 8
    }

    /// Takes over a state that a line without override has written, which must be this one as that line sees it.
    fn keep(&mut self, world: &mut World, stored: Stored) {
        let state_of = |client: &Self| {
            let applied = Applied::new(client.stored.clone(), None, client.now, &client.plain);
            ClientState::new(&applied, client.now)
        };
        self.stored = stored;
        let expected = state_of(self);
        self.read_stored(world);
        assert_eq!(state_of(self), expected, "{:?} {:#?}", self.stored, self.history);
    }

    /// A key of a client with a quota of its own is kept until that ends.
    fn check_own(&self, calls: &[Vec<Vec<u8>>]) {
        let (Some(own), Some(at)) = (self.own, self.expiry(calls)) else { return };
        assert!(own.ends.is_some_and(|ends| ends.get() <= at), "{at} {:#?}", self.history);
    }

    /// A state that the reference has written, the script has written.
    fn is_written(&self, stored: &Stored, calls: &[Vec<Vec<u8>>]) -> bool {
        let is_new = *stored != self.applied().stored;
        let writes = ["SET", "DEL", "RPUSH", "LPUSH", "LTRIM"];
        let is_write = |call: &Vec<Vec<u8>>| {
            writes.iter().any(|write| call[0] == write.as_bytes())
                && call.get(1).is_some_and(|key| key.ends_with(self.key.as_bytes()))
        };
        // The script may only correct what it reads of a state that another line has written.
        let is_written = calls.iter().any(is_write) || self.is_mixed;
        assert!(!is_new || is_written, "{:#?} {stored:?}", self.history);
        is_new
    }

    /// A correction of a charge that was made at this moment.
    fn correct(&mut self, world: &mut World) {
        let template = template();
        let (amount, is_less) = (self.rng.u64(1..=5), self.rng.bool());
        let since = self.now - self.rng.u64(0..=2 * SECOND);
        self.note(format!("correction by {amount}, less: {is_less}, since {since}"));
        let mut command = Vec::new();
        let charge = self.charge(&template, amount);
        world.scripts.encode_correction(&mut command, By::Sha, charge, since, is_less);
        let (_, calls) = world.run(&self.quota, &command, self.now);
        let Applied { mut stored, quota, own } = self.applied();
        let change = i64::try_from(amount).unwrap() * if is_less { -1 } else { 1 };
        quota.algorithm().settle(&mut stored, self.now, &quota, since, change);
        if self.is_written(&stored, &calls) {
            (self.stored, self.own) = (stored, own);
        }
        self.check_expiry(&calls);
    }

    fn change(&mut self, world: &mut World, change: Change) {
        self.note(format!("{change:?}"));
        let mut applied = self.applied();
        let found = self.manage(world, change);
        change.apply(&mut applied, self.now, &self.quota);
        (self.stored, self.own) = (applied.stored.clone(), applied.own);
        assert_eq!(found, ClientState::new(&applied, self.now), "{:#?}", self.history);
    }

    fn random_change(&mut self) -> Change {
        let rng = &mut self.rng;
        match rng.u8(0..if self.quota.has_override() { 8 } else { 4 }) {
            0 => Change::Reset,
            1 => Change::GiveBack(rng.u64(1..=20)),
            // A line without override ends a longer block than its own.
            2 if self.is_mixed && self.plain.block() > 0 => Change::Block(self.plain.block()),
            2 => Change::Block(rng.u64(1..=100) * SECOND),
            3 => Change::Block(0),
            4 => Change::RemoveOverride,
            _ => loop {
                let rate: Rate = RATES[rng.usize(0..RATES.len())].parse().unwrap();
                let lasts = NonZeroU64::new(rng.u64(0..=3) * rng.u64(1..=60 * SECOND));
                let limit = rng.u64(1..=60);
                let own = Override { rate, limit, ends: lasts };
                if own.quota(&self.quota).is_some() {
                    return Change::SetOverride { rate, limit, lasts };
                }
            },
        }
    }

    /// Script and reference agree about what the client has.
    fn look(&mut self, world: &mut World) {
        let found = self.manage(world, Change::Look);
        let expected = ClientState::new(&self.applied(), self.now);
        assert_eq!(found, expected, "{:#?}\n{:?}", self.history, self.stored);
    }

    fn manage(&mut self, world: &mut World, change: Change) -> ClientState {
        let (template, mut command) = (template(), Vec::new());
        let charge = self.charge(&template, 0);
        world.scripts.encode_change(&mut command, By::Sha, &charge, &change);
        let (frame, calls) = world.run(&self.quota, &command, self.now);
        let found = managed(reply_of(&frame), &charge).expect("what the client has");
        if change != Change::Look {
            self.check_expiry_of(&calls, &change);
        }
        found
    }

    fn check_expiry_of(&self, calls: &[Vec<Vec<u8>>], change: &Change) {
        let mut applied = self.applied();
        change.apply(&mut applied, self.now, &self.quota);
        self.check_whole(calls, &applied.stored, applied.own);
    }

    fn check_expiry(&self, calls: &[Vec<Vec<u8>>]) {
        self.check_whole(calls, &self.stored, self.own);
    }

    /// A key expires when the quota is whole and the override is over, and not before.
    fn check_whole(&self, calls: &[Vec<Vec<u8>>], stored: &Stored, own: Option<Override>) {
        let Some(at) = self.expiry(calls) else {
            let is_kept = own.is_some_and(|own| own.ends.is_none());
            assert!(is_kept || !self.is_set(calls), "{:#?}", self.history);
            return;
        };
        let applied = Applied::new(stored.clone(), own, at, &self.quota);
        let then = ClientState::new(&applied, at);
        // A state that another line has written may mean more to this one.
        let is_whole = then.remaining == then.quota.limit() && then.blocked_for == 0;
        let is_whole = is_whole || self.is_mixed;
        assert!(is_whole && then.own.is_none(), "{then:?} {calls:?} {:#?}", self.history);
    }

    /// Whether a command has set when the key expires, or that it does not.
    fn is_set(&self, calls: &[Vec<Vec<u8>>]) -> bool {
        self.last_of(calls, &["SET", "PEXPIRE", "PERSIST"]).is_some()
    }

    /// When the key is gone at the latest, in µs, if a command has set that: that of a state is up to a millisecond before.
    fn expiry(&self, calls: &[Vec<Vec<u8>>]) -> Option<u64> {
        let call = self.last_of(calls, &["SET", "PEXPIRE", "PERSIST"])?;
        // Some servers take no -0, which this does not read either.
        let number =
            |index: usize| -> u64 { String::from_utf8_lossy(&call[index]).parse().unwrap() };
        match (&call[0][..], call.len()) {
            (b"SET", 5) => Some(number(4) * 1_000 + 1_000),
            (b"PEXPIRE", _) => Some(self.now + number(2) * 1_000 + 1_000),
            _ => None,
        }
    }

    /// The last call of one of these commands for the key.
    fn last_of<'a>(&self, calls: &'a [Vec<Vec<u8>>], names: &[&str]) -> Option<&'a Vec<Vec<u8>>> {
        calls.iter().rfind(|call| {
            names.iter().any(|name| call[0] == name.as_bytes())
                && call[1].ends_with(self.key.as_bytes())
        })
    }

    fn note(&mut self, step: String) {
        let Self { now, quota, own, stored, .. } = self;
        if self.history.is_empty() {
            self.history.push(format!("{quota:?}"));
        }
        self.history.push(format!("{now}: {step} ({own:?}, {stored:?})"));
    }
}

fn template() -> Rc<Template> {
    Rc::new(Template::new(Head::new("rl:", "own").expect("a name"), None))
}

fn reply_of(frame: &[u8]) -> ScriptReply<'_> {
    match reply::parse(frame) {
        Ok(Reply::Script(found)) => found,
        other => panic!("{other:?}"),
    }
}
