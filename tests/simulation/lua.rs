//! The scripts of the module, run by Lua 5.1, with the calls of Redis that they use.
//!
//! A server runs each script twice: here, and by the references of the algorithms. Both must give one
//! reply, and leave the same under each key.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use mlua::{Function, Lua, LuaOptions, LuaString, StdLib, Variadic};
use rate_limit_core::algorithm::{self, State};
use rate_limit_core::rate::{MILLISECOND, SECOND};

use crate::database::{Database, Key, List, Stored, Value};
use crate::resp::{self, Command, number};
use crate::script::{self, Effects, PROGRAMS, WrongType};

/// The reply of Redis where a key holds a value of another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// `_G` as it is in Redis: closed.
const CLOSE_GLOBALS: &str = "
    local function refuse(_, name) error('no global variable: ' .. tostring(name)) end
    setmetatable(_G, {__index = refuse, __newindex = refuse})
";

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("an interpreter of Lua");
}

/// Runs the script of this index among [`PROGRAMS`] at `now`, the Unix time of the server in µs, and
/// compares what it does with `result` and `reply`, those of the references. What is written is what the
/// script writes.
pub fn check(
    index: usize,
    command: &Command<'_>,
    database: &Database,
    now: u64,
    result: &mut Result<Effects, WrongType>,
    reply: &[u8],
) {
    let program = &PROGRAMS[index].0;
    let keys = script::keys(command).map(|key| (key.into(), database.stored(key, now).cloned()));
    let keyspace = Keyspace { now, keys: keys.collect() };
    let run = INTERPRETER.with(|interpreter| interpreter.run(index, command, keyspace));
    let (effects, own_reply, left) = match (result, run) {
        (Err(WrongType), Err(error)) if error.to_string().contains(WRONG_TYPE) => return,
        (Ok(effects), Ok((reply, left))) => (effects, reply, left),
        (result, run) => {
            panic!("the script: {run:?}, its reference: {result:?}, {}", shown(command))
        }
    };
    assert!(
        own_reply == reply,
        "the replies of a script and of its reference: {}, {}: {}",
        own_reply.escape_ascii(),
        reply.escape_ascii(),
        shown(command)
    );
    for (key, stored) in left {
        let write = effects.writes.iter_mut().find(|write| write.key == key);
        let expected = match &write {
            Some(write) => write.stored.as_ref(),
            None => database.stored(&key, now),
        };
        let is_same = match (&stored, expected) {
            (Some(stored), Some(expected)) => {
                is_same_value(&stored.value, &expected.value)
                    && script::is_kept(program, command, now, &key, stored, expected)
            }
            (stored, expected) => stored.is_none() && expected.is_none(),
        };
        assert!(is_same, "a script leaves {stored:?}, not {expected:?}: {}", shown(command));
        if let Some(write) = write {
            write.stored = stored.map(|stored| with_log(stored, write.stored.take()));
        }
    }
}

fn shown(command: &Command<'_>) -> String {
    command.words(0).map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// Whether a script leaves the value that its reference leaves.
fn is_same_value(own: &Value, expected: &Value) -> bool {
    match (own, expected) {
        (Value::Packed(own), Value::Packed(expected)) => own == expected,
        (Value::Log(_, list), Value::Log(log, _)) => is_log(list, log),
        _ => false,
    }
}

/// Whether the entries of a list are those of a log.
fn is_log(list: &List, log: &algorithm::Stored) -> bool {
    let Some(State::Log(entries, since)) = &log.state else { return false };
    let head = list.first().filter(|entry| entry.starts_with(b"x "));
    let [_, debt, made, blocked_until] = head.map_or([0; 4], |head| numbers::<4>(head));
    let mut total = None;
    let own: VecDeque<_> = list
        .iter()
        .skip(usize::from(head.is_some()))
        .map(|entry| {
            let [time, reached, cost] = numbers(entry);
            assert_eq!(reached, total.unwrap_or(reached - cost) + cost, "the total of an entry");
            total = Some(reached);
            (time, cost)
        })
        .collect();
    own == *entries
        && debt == log.extra.debt
        && (debt == 0 || made == *since)
        && blocked_until == log.extra.blocked_until
}

/// The numbers of an entry; 0 for the mark of a head.
fn numbers<const N: usize>(entry: &[u8]) -> [u64; N] {
    let words = entry.split(|byte| *byte == b' ');
    let numbers: Vec<_> = words.map(|word| if word == b"x" { 0 } else { number(word) }).collect();
    numbers.try_into().expect("an entry of a log")
}

/// The state that a script has written, with the log of its reference.
fn with_log(stored: Stored, reference: Option<Stored>) -> Stored {
    match (stored.value, reference.map(|reference| reference.value)) {
        (Value::Log(_, list), Some(Value::Log(log, _))) => {
            Stored { value: Value::Log(log, list), ..stored }
        }
        (value, _) => Stored { value, ..stored },
    }
}

/// Lua, and the scripts that it has compiled.
struct Interpreter {
    lua: Lua,
    scripts: RefCell<BTreeMap<usize, Function>>,
    keyspace: Rc<RefCell<Keyspace>>,
}

impl Interpreter {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::MATH | StdLib::STRING | StdLib::TABLE;
        let lua = Lua::new_with(libraries, LuaOptions::new())?;
        let keyspace = Rc::new(RefCell::new(Keyspace::default()));
        let redis = lua.create_table()?;
        redis.set("call", {
            let keyspace = Rc::clone(&keyspace);
            lua.create_function(move |lua, (name, words): (LuaString, Variadic<mlua::Value>)| {
                keyspace.borrow_mut().call(lua, &name.as_bytes(), &words)
            })?
        })?;
        let structs = lua.create_table()?;
        structs.set("pack", lua.create_function(pack)?)?;
        structs.set("unpack", lua.create_function(unpack)?)?;
        lua.globals().set("redis", redis)?;
        lua.globals().set("struct", structs)?;
        lua.load(CLOSE_GLOBALS).exec()?;
        Ok(Self { lua, scripts: RefCell::default(), keyspace })
    }

    /// The reply, and what is under the keys then.
    fn run(
        &self,
        index: usize,
        command: &Command<'_>,
        keyspace: Keyspace,
    ) -> mlua::Result<(Vec<u8>, Keys)> {
        *self.keyspace.borrow_mut() = keyspace;
        let keys = command.number(2) as usize;
        let strings = |from: usize, count| {
            let words = command.words(from).take(count).map(|word| self.lua.create_string(word));
            self.lua.create_sequence_from(words.collect::<mlua::Result<Vec<_>>>()?)
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", strings(3, keys)?)?;
        globals.raw_set("ARGV", strings(3 + keys, usize::MAX)?)?;
        let mut reply = Vec::new();
        write_reply(&mut reply, self.script(index)?.call(())?)?;
        Ok((reply, self.keyspace.take().keys))
    }

    fn script(&self, index: usize) -> mlua::Result<Function> {
        let mut scripts = self.scripts.borrow_mut();
        if let Some(script) = scripts.get(&index) {
            return Ok(script.clone());
        }
        let script = self.lua.load(PROGRAMS[index].1.source()).into_function()?;
        scripts.insert(index, script.clone());
        Ok(script)
    }
}

/// The keys as a script has left them.
type Keys = BTreeMap<Key, Option<Stored>>;

/// The keys of a command, at the time of the server that runs it.
#[derive(Default)]
struct Keyspace {
    now: u64,
    keys: Keys,
}

impl Keyspace {
    /// `redis.call`.
    fn call(&mut self, lua: &Lua, name: &[u8], words: &[mlua::Value]) -> mlua::Result<mlua::Value> {
        let integer = |value: usize| Ok(mlua::Value::Number(value as f64));
        if name == b"TIME" {
            let (seconds, micros) = (self.now / SECOND, self.now % SECOND);
            let time = [seconds, micros].map(|number| number.to_string());
            return lua.create_sequence_from(time).map(mlua::Value::Table);
        }
        let words: Vec<_> = words.iter().map(word).collect::<mlua::Result<_>>()?;
        let [key, arguments @ ..] = &words[..] else { return Err(unknown(name)) };
        match (name, arguments) {
            (b"GET", []) => text(lua, self.string(key)?),
            (b"SET", [value, option, at]) if option == b"PXAT" => {
                let gone_at = number(at) * MILLISECOND;
                let value = Value::Packed(value.as_slice().into());
                *self.find(key)? = Some(Stored { value, gone_at });
                Ok(mlua::Value::Boolean(true))
            }
            (b"DEL", []) => integer(usize::from(self.find(key)?.take().is_some())),
            (b"PEXPIRE", [time]) => {
                let gone_at = (self.now / MILLISECOND + number(time)) * MILLISECOND;
                let stored = self.find(key)?.as_mut();
                integer(usize::from(stored.map(|stored| stored.gone_at = gone_at).is_some()))
            }
            (b"LLEN", []) => integer(self.list(key)?.len()),
            (b"LINDEX", [index]) => {
                let list = self.list(key)?;
                text(lua, position(index, list.len()).and_then(|index| list.get(index)))
            }
            (b"LPOP", []) => {
                let first = self.list(key)?.first().cloned();
                self.change(key, |list| drop(list.drain(..list.len().min(1))))?;
                text(lua, first.as_ref())
            }
            (b"LPUSH", [entry]) => integer(self.change(key, |list| list.insert(0, entry.clone()))?),
            (b"RPUSH", [entry]) => integer(self.change(key, |list| list.push(entry.clone()))?),
            (b"LTRIM", [first, last]) => {
                self.change(key, |list| {
                    let first = position(first, list.len()).unwrap_or(0);
                    let past = position(last, list.len()).map_or(0, |last| last + 1);
                    list.truncate(past);
                    list.drain(..first.min(list.len()));
                })?;
                Ok(mlua::Value::Boolean(true))
            }
            _ => Err(unknown(name)),
        }
    }

    /// The place of a key, which must be one of the command.
    fn find(&mut self, key: &[u8]) -> mlua::Result<&mut Option<Stored>> {
        self.keys.get_mut(key).ok_or_else(|| mlua::Error::runtime("not a key of the command"))
    }

    fn string(&mut self, key: &[u8]) -> mlua::Result<Option<&[u8]>> {
        match self.find(key)?.as_ref().map(|stored| &stored.value) {
            None => Ok(None),
            Some(Value::Packed(bytes)) => Ok(Some(bytes)),
            Some(Value::Log(..)) => Err(mlua::Error::runtime(WRONG_TYPE)),
        }
    }

    fn list(&mut self, key: &[u8]) -> mlua::Result<List> {
        match self.find(key)?.as_ref().map(|stored| &stored.value) {
            None => Ok(List::default()),
            Some(Value::Log(_, list)) => Ok(Rc::clone(list)),
            Some(Value::Packed(_)) => Err(mlua::Error::runtime(WRONG_TYPE)),
        }
    }

    /// Changes a list, whose key goes with its last entry. Returns how many entries there are.
    fn change(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Vec<Vec<u8>>),
    ) -> mlua::Result<usize> {
        let mut list = self.list(key)?;
        let place = self.find(key)?;
        let gone_at = place.take().map_or(u64::MAX, |stored| stored.gone_at);
        change(Rc::make_mut(&mut list));
        let length = list.len();
        if length > 0 {
            *place =
                Some(Stored { value: Value::Log(algorithm::Stored::default(), list), gone_at });
        }
        Ok(length)
    }
}

/// The index of a list of this length that is meant; those below zero count from its end.
fn position(index: &[u8], length: usize) -> Option<usize> {
    match index.strip_prefix(b"-") {
        Some(from_end) => length.checked_sub(number(from_end) as usize),
        None => Some(number(index) as usize),
    }
}

fn unknown(name: &[u8]) -> mlua::Error {
    mlua::Error::runtime(format!("unknown call: {}", String::from_utf8_lossy(name)))
}

/// An argument of a call, as Redis makes a string of it.
fn word(value: &mlua::Value) -> mlua::Result<Vec<u8>> {
    match value {
        mlua::Value::String(text) => Ok(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Ok(number.to_string().into_bytes()),
        mlua::Value::Number(number) if number.fract() == 0.0 => {
            Ok(format!("{number:.0}").into_bytes())
        }
        other => Err(mlua::Error::runtime(format!("no argument of a call: {other:?}"))),
    }
}

/// A string as a call returns it, or `false`.
fn text(lua: &Lua, bytes: Option<impl AsRef<[u8]>>) -> mlua::Result<mlua::Value> {
    match bytes {
        Some(bytes) => lua.create_string(bytes).map(mlua::Value::String),
        None => Ok(mlua::Value::Boolean(false)),
    }
}

/// How many unsigned numbers of eight bytes, little-endian, this format has: the scripts use no other.
fn width(format: &LuaString) -> mlua::Result<usize> {
    let numbers = format.as_bytes().strip_prefix(b"<").map(<[u8]>::to_vec).unwrap_or_default();
    match !numbers.is_empty() && numbers.iter().all(|letter| *letter == b'L') {
        true => Ok(numbers.len()),
        false => Err(mlua::Error::runtime(format!("unknown format: {format:?}"))),
    }
}

/// `struct.pack`.
fn pack(lua: &Lua, (format, numbers): (LuaString, Variadic<f64>)) -> mlua::Result<LuaString> {
    if numbers.len() < width(&format)? {
        return Err(mlua::Error::runtime("a number is missing"));
    }
    let unsigned = |number: f64| if number < 0.0 { number as i64 as u64 } else { number as u64 };
    let numbers = numbers.iter().take(width(&format)?).map(|number| unsigned(*number));
    lua.create_string(numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
}

/// `struct.unpack`: the numbers from a position on, and the position after them.
fn unpack(
    _: &Lua,
    (format, bytes, start): (LuaString, LuaString, Option<usize>),
) -> mlua::Result<Variadic<f64>> {
    let (width, start) = (width(&format)?, start.unwrap_or(1));
    let bytes = bytes.as_bytes();
    let (numbers, _) = bytes.get(start - 1..).unwrap_or_default().as_chunks();
    if numbers.len() < width {
        return Err(mlua::Error::runtime("data string too short"));
    }
    let numbers = numbers.iter().take(width).map(|number| u64::from_le_bytes(*number) as f64);
    Ok(numbers.chain([(start + 8 * width) as f64]).collect())
}

/// Appends what a script returns, as Redis does.
fn write_reply(out: &mut Vec<u8>, value: mlua::Value) -> mlua::Result<()> {
    match value {
        mlua::Value::String(text) => resp::bulk(out, &text.as_bytes()),
        mlua::Value::Integer(number) => resp::integer(out, number),
        mlua::Value::Number(number) => resp::integer(out, number as i64),
        mlua::Value::Nil | mlua::Value::Boolean(false) => resp::nil(out),
        mlua::Value::Table(table) => {
            let values: Vec<mlua::Value> = table.sequence_values().collect::<mlua::Result<_>>()?;
            resp::array(out, values.len());
            return values.into_iter().try_for_each(|value| write_reply(out, value));
        }
        other => return Err(mlua::Error::runtime(format!("no reply: {other:?}"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rate_limit_core::redis::script::By;

    use super::*;
    use crate::resp::Input;
    use crate::server::tests::charge;

    const NOW: u64 = 1_763_683_200_123_456;

    /// Compares a command with a reference that is off by so much.
    fn compare(by: u64, change: impl FnOnce(&mut Effects)) {
        let (mut input, mut out) = (Input::default(), Vec::new());
        input.push(&charge(By::Sha, &["k"]));
        let command = input.next().unwrap();
        let sha = command.word(1);
        let index = PROGRAMS.iter().position(|(_, script)| script.sha().as_bytes() == sha).unwrap();
        let database = Database::default();
        let mut result = script::run(&PROGRAMS[index].0, &command, &database, NOW + by, &mut out);
        change(result.as_mut().unwrap());
        check(index, &command, &database, NOW, &mut result, &out);
    }

    #[test]
    fn a_reference_that_does_the_same_passes() {
        compare(0, |_| {});
    }

    #[test]
    #[should_panic(expected = "the replies of a script")]
    fn a_reference_with_another_reply_is_noticed() {
        compare(1, |_| {});
    }

    #[test]
    #[should_panic(expected = "a script leaves Some")]
    fn a_reference_that_writes_nothing_is_noticed() {
        compare(0, |effects| effects.writes.clear());
    }
}
