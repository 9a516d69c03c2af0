//! Replies: where they end, and what they mean.
//!
//! Replies are RESP2: the connection never sends `HELLO 3`. A frame is found and bounded before it
//! is parsed, so a server can neither make the parser wait for a petabyte nor recurse without end.
//! The reply of a script is read in place, without an allocation and in some 30 ns, where the
//! `redis` crate's parser takes 1.4 µs. Errors go to that parser, and so may other replies.

use redis::Value;

use super::RawValue;
use super::refusal::Refusal;
use crate::decision::Verdict;
use crate::overrides::Override;
use crate::rate::{MAX_EXACT, SECOND};

/// The longest reply, in bytes, but for the map of a cluster.
pub(crate) const MAX_REPLY: usize = 1024 * 1024;

/// The longest map of a cluster, in bytes: it has some 300 for each range of slots, of which there may be
/// 16,384.
pub(crate) const MAX_MAP: usize = 16 * 1024 * 1024;

/// The longest line of a reply, in bytes. The longest that is expected is an error with its text.
const MAX_LINE: usize = 64 * 1024;

/// No expected number has more digits, and no number of so many digits overflows.
const MAX_DIGITS: usize = 18;

/// How deep arrays may nest.
const MAX_DEPTH: usize = 8;

/// A reply, parsed.
#[derive(Debug, PartialEq)]
pub enum Reply<'a> {
    /// The reply of a script.
    Script(ScriptReply<'a>),
    /// An error.
    Error(Refusal),
    /// Anything else.
    Other(RawValue<'a>),
}

/// The bytes are not RESP2, or exceed a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not RESP2.
    #[error("the server does not speak RESP2")]
    Garbage,
    /// Longer than such a reply may be, or nested too deep.
    #[error("the server sent too large a reply")]
    TooLarge,
    /// A reply without a command.
    #[error("the server sent a reply to no command")]
    Unexpected,
    /// More messages of a channel than may come in a second.
    #[error("the server sent too many messages")]
    Flood,
}

/// Finds the ends of replies. A reply may come in any number of pieces. Only a line or a string
/// that was incomplete is scanned again.
#[derive(Clone, Debug, Default)]
pub struct Framer {
    /// The reply is complete up to this position.
    position: usize,
    /// How many elements each open array lacks, the outermost first.
    open: [usize; MAX_DEPTH],
    depth: usize,
}

impl Framer {
    /// The length of the first reply in `bytes`, which has so many at `most`, or `None` if it is incomplete;
    /// the next call must then start with the same bytes.
    pub fn next(&mut self, bytes: &[u8], most: usize) -> Result<Option<usize>, ProtocolError> {
        if self.position == 0
            && let Some(length) = short_string(bytes)
        {
            return Ok(Some(length));
        }
        loop {
            let Some((elements, after)) = value(bytes, self.position)? else {
                return if bytes.len() > most { Err(ProtocolError::TooLarge) } else { Ok(None) };
            };
            self.position = after;
            if elements > 0 {
                *self.open.get_mut(self.depth).ok_or(ProtocolError::TooLarge)? = elements;
                self.depth = self.depth.saturating_add(1);
            } else if self.complete_value() {
                let length = std::mem::take(&mut self.position);
                return if length > most { Err(ProtocolError::TooLarge) } else { Ok(Some(length)) };
            }
        }
    }

    /// Counts a value, and every array that it completes. Returns whether the reply is complete.
    fn complete_value(&mut self) -> bool {
        while let Some(last) = self.depth.checked_sub(1) {
            if let Some(lacking) = self.open.get_mut(last) {
                *lacking = lacking.saturating_sub(1);
                if *lacking > 0 {
                    return false;
                }
            }
            self.depth = last;
        }
        true
    }
}

/// The length of the first reply in `bytes` if it is a whole string of 10 to 99 bytes, as that of nearly every script
/// is.
fn short_string(bytes: &[u8]) -> Option<usize> {
    let [b'$', tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', rest @ ..] = bytes else {
        return None;
    };
    let size = usize::from(tens - b'0') * 10 + usize::from(ones - b'0');
    let is_whole = matches!(rest.get(size..), Some([b'\r', b'\n', ..]));
    is_whole.then(|| size.saturating_add(b"$10\r\n\r\n".len()))
}

/// Reads one whole `frame`.
pub fn parse(frame: &[u8]) -> Result<Reply<'_>, ProtocolError> {
    match ScriptReply::new(frame) {
        Some(found) => Ok(Reply::Script(found)),
        None => parse_other(frame),
    }
}

/// Reads one whole `frame`, which is no reply of a script, though it may look like one.
#[cold]
pub fn parse_other(frame: &[u8]) -> Result<Reply<'_>, ProtocolError> {
    if frame.first() != Some(&b'-') {
        return Ok(Reply::Other(RawValue::new(frame)));
    }
    // The text of an error may hold words of the command, and be cut within a character.
    match redis::parse_redis_value(String::from_utf8_lossy(frame).as_bytes()) {
        Ok(Value::ServerError(error)) => Ok(Reply::Error(Refusal::new(&error))),
        _ => Err(ProtocolError::Garbage),
    }
}

/// The value at `start`: the number of its elements, if it is an array, and the position after it,
/// or after the head of the array. `None` if it is incomplete.
pub(super) fn value(bytes: &[u8], start: usize) -> Result<Option<(usize, usize)>, ProtocolError> {
    let Some((&kind, rest)) = bytes.get(start..).and_then(<[u8]>::split_first) else {
        return Ok(None);
    };
    if !b"+-:$*".contains(&kind) {
        return Err(ProtocolError::Garbage);
    }
    let bounded = rest.get(..MAX_LINE).unwrap_or(rest);
    let Some(length) = bounded.iter().position(|byte| *byte == b'\r') else {
        return if bounded.len() < MAX_LINE { Ok(None) } else { Err(ProtocolError::TooLarge) };
    };
    let (line, tail) = rest.split_at(length);
    match tail.get(1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(ProtocolError::Garbage),
    }
    let after = start.saturating_add(length).saturating_add(3);
    match kind {
        b'+' | b'-' => Ok(Some((0, after))),
        b':' => integer(line).map(|_| Some((0, after))).ok_or(ProtocolError::Garbage),
        b'$' => {
            let Some(size) = size(line)? else { return Ok(Some((0, after))) };
            let close = after.saturating_add(size);
            match bytes.get(close..close.saturating_add(2)) {
                None => Ok(None),
                Some(b"\r\n") => Ok(Some((0, close.saturating_add(2)))),
                Some(_) => Err(ProtocolError::Garbage),
            }
        }
        _ => Ok(Some((size(line)?.unwrap_or(0), after))),
    }
}

/// The length of a bulk string or array; `None` for the null ones.
fn size(line: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match integer(line) {
        Some(-1) => Ok(None),
        Some(size @ 0..) if size as usize <= MAX_REPLY => Ok(Some(size as usize)),
        Some(0..) => Err(ProtocolError::TooLarge),
        Some(_) | None => Err(ProtocolError::Garbage),
    }
}

/// The number that a line is.
pub(super) fn integer(line: &[u8]) -> Option<i64> {
    let (number, rest) = take_integer(line)?;
    rest.is_empty().then_some(number)
}

/// The number that `bytes` start with, and what comes after its digits.
fn take_integer(bytes: &[u8]) -> Option<(i64, &[u8])> {
    match bytes.strip_prefix(b"-") {
        Some(digits) => take_digits(digits).map(|(number, rest)| (-number, rest)),
        None => take_digits(bytes),
    }
}

fn take_digits(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (mut number, mut rest) = match bytes.first_chunk() {
        Some(first) => {
            let (number, count) = leading_digits(*first);
            (number, bytes.get(count..)?)
        }
        None => (0, bytes),
    };
    while let [byte, after @ ..] = rest
        && byte.is_ascii_digit()
    {
        number = number.wrapping_mul(10).wrapping_add(i64::from(byte - b'0'));
        rest = after;
    }
    // If there are more, the number is wrong.
    let count = bytes.len().saturating_sub(rest.len());
    (1..=MAX_DIGITS).contains(&count).then_some((number, rest))
}

/// The number that the digits before anything else are, and how many they are. In each step neighbours are joined: digits to
/// pairs, pairs to fours, and fours to eight.
fn leading_digits(bytes: [u8; 8]) -> (i64, usize) {
    const HIGH: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    let digits = u64::from_le_bytes(bytes) ^ ZEROS;
    // Above 9 the high half changes if 6 is added. What that carries over changes only what comes later.
    let others = (digits | digits.wrapping_add(0x0606_0606_0606_0606)) & HIGH;
    let count = others.trailing_zeros() / u8::BITS;
    // Zeros come before fewer than eight.
    let digits = digits.checked_shl(u64::BITS - count * u8::BITS).unwrap_or(0);
    let pairs = (digits.wrapping_mul(10).wrapping_add(digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let eight = (fours.wrapping_mul(10_000).wrapping_add(fours >> 32)) & 0xffff_ffff;
    (eight.cast_signed(), count as usize)
}

/// The reply of a script, within a frame. For a single limit or a list of them it is a string that
/// starts with the time, else an array of the time and an element for each limit. It is an iterator
/// over the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptReply<'a> {
    now: u64,
    entries: Entries<'a>,
}

/// The rest of the iteration.
#[derive(Clone, Debug, PartialEq)]
enum Entries<'a> {
    One(Option<&'a [u8]>),
    List(&'a [u8]),
    Array(&'a [u8]),
}

/// The part of a script's reply that is about one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The stored value; empty if there was none.
    Stored(&'a [u8]),
    /// The verdict of a limit that stores itself, as integers; and the quota that the client has of its own.
    Integers([i64; Verdict::REPLY_LEN], Option<Override>),
}

impl<'a> ScriptReply<'a> {
    /// Reads `frame`; `None` if it is no reply of the module's scripts.
    fn new(frame: &'a [u8]) -> Option<Self> {
        let found = match frame.first()? {
            b'$' => Self::text(frame)?,
            _ => Self::array(frame)?,
        };
        (found.now <= MAX_EXACT).then_some(found)
    }

    /// The length in its first line is right: the frame was found by it.
    fn text(frame: &'a [u8]) -> Option<Self> {
        let text = match frame {
            // Most are short strings.
            [_, _, _, b'\r', b'\n', text @ ..] => text,
            _ => frame.get(frame.iter().position(|byte| *byte == b'\n')?.saturating_add(1)..)?,
        };
        let text = text.strip_suffix(b"\r\n")?;
        let (seconds, text) = take_digits(text)?;
        let (micros, text) = take_digits(text.strip_prefix(b" ")?)?;
        let now = seconds.checked_mul(SECOND as i64)?.checked_add(micros)?;
        let entries = match text.split_first()? {
            (b' ', stored) => Entries::One(Some(stored)),
            (b':', list) => Entries::List(whole_list(list)?),
            _ => return None,
        };
        Some(Self { now: now.unsigned_abs(), entries })
    }

    fn array(frame: &'a [u8]) -> Option<Self> {
        let (count, rest) = take_number(frame, b'*')?;
        let (now, mut rest) = take_number(rest, b':')?;
        let found = Self { now: u64::try_from(now).ok()?, entries: Entries::Array(rest) };
        for _ in 1..count {
            advance(&mut rest, take_entry)?;
        }
        rest.is_empty().then_some(found)
    }

    /// When the script ran: the Unix time of the server in µs, at most [`MAX_EXACT`].
    pub fn now(&self) -> u64 {
        self.now
    }
}

impl<'a> Iterator for ScriptReply<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        match &mut self.entries {
            Entries::One(stored) => stored.take().map(Entry::Stored),
            Entries::List(rest) => advance(rest, take_numbers),
            Entries::Array(rest) => advance(rest, take_entry),
        }
    }
}

type Take = fn(&[u8]) -> Option<(Entry<'_>, &[u8])>;

/// The next entry.
fn advance<'a>(rest: &mut &'a [u8], take: Take) -> Option<Entry<'a>> {
    let (entry, after) = take(rest)?;
    *rest = after;
    Some(entry)
}

/// The list, if it ends with an entry.
fn whole_list(list: &[u8]) -> Option<&[u8]> {
    let mut rest = list;
    while !rest.is_empty() {
        advance(&mut rest, take_numbers)?;
    }
    Some(list)
}

/// The first entry of the rest of a list: how many numbers there are, one digit or a colon for 10, and these.
fn take_numbers(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (digit, rest) = bytes.split_first()?;
    let count = digit.checked_sub(b'0').map(usize::from).filter(|count| *count <= 10)?;
    let (stored, rest) = rest.split_at_checked(count.saturating_mul(size_of::<u64>()))?;
    Some((Entry::Stored(stored), rest))
}

/// The first element of the rest of an array.
fn take_entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    match bytes.strip_prefix(b"$-1\r\n") {
        Some(rest) => Some((Entry::Stored(b""), rest)),
        None if bytes.starts_with(b"$") => {
            take_text(bytes).map(|(text, rest)| (Entry::Stored(text), rest))
        }
        None => integers(bytes),
    }
}

/// A bulk string.
fn take_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = take_number(bytes, b'$')?;
    let (text, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((text, rest.strip_prefix(b"\r\n")?))
}

/// An array of integers.
fn integers(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    const OWN: usize = 4;
    const WITH_OWN: usize = Verdict::REPLY_LEN + OWN;
    let (mut verdict, mut own) = ([0; Verdict::REPLY_LEN], [0; OWN]);
    let (length, mut rest) = take_number(bytes, b'*')?;
    let has_own = match usize::try_from(length).ok()? {
        Verdict::REPLY_LEN => false,
        WITH_OWN => true,
        _ => return None,
    };
    for slot in &mut verdict {
        (*slot, rest) = take_number(rest, b':')?;
    }
    for slot in own.iter_mut().filter(|_| has_own) {
        (*slot, rest) = take_number(rest, b':')?;
    }
    let [limit, ends, n, period] = own.map(i64::unsigned_abs);
    Some((Entry::Integers(verdict, Override::from_parts(limit, ends, [n, period])), rest))
}

/// The number of a line that starts with `kind`, and what comes after the line.
fn take_number(bytes: &[u8], kind: u8) -> Option<(i64, &[u8])> {
    let (number, rest) = take_integer(bytes.strip_prefix(&[kind])?)?;
    Some((number, rest.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRESH: &[u8] = b"$18\r\n1763683200 123456 \r\n";
    const SPENT: &[u8] = b"$32\r\n1763683200 7 99 1763683200000000\r\n";
    const SEVERAL: &[u8] = b"*4\r\n:1763683200123456\r\n$4\r\n99 1\r\n\
        *4\r\n:1\r\n:99\r\n:600000\r\n:-1\r\n$-1\r\n";

    /// The length of the first reply in `bytes`, or `None` if it is incomplete.
    fn frame(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        Framer::default().next(bytes, MAX_REPLY)
    }

    fn found(frame: &[u8]) -> Option<(u64, Vec<Entry<'_>>)> {
        match parse(frame).unwrap() {
            Reply::Script(found) => Some((found.now(), found.collect())),
            Reply::Other(_) => None,
            Reply::Error(refusal) => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn what_was_found_is_read_in_place() {
        let (now, none) = (1_763_683_200_123_456, Entry::Stored(b""));
        assert_eq!(found(FRESH), Some((now, vec![none])));
        let stored = Entry::Stored(b"99 1763683200000000");
        assert_eq!(found(SPENT), Some((1_763_683_200_000_007, vec![stored])));
        let log = Entry::Integers([1, 99, 600_000, -1], None);
        assert_eq!(found(SEVERAL), Some((now, vec![Entry::Stored(b"99 1"), log, none])));
        assert_eq!(found(b"*1\r\n:0\r\n"), Some((0, vec![])));
        assert_eq!(found(b"*2\r\n:0\r\n$0\r\n\r\n"), Some((0, vec![none])));
        let lines = Entry::Stored(b"\r\n\r\n");
        assert_eq!(found(b"*2\r\n:0\r\n$4\r\n\r\n\r\n\r\n"), Some((0, vec![lines])));
        assert_eq!(found(b"$8\r\n0 0 \r\n\r\n\r\n"), Some((0, vec![lines])));
    }

    #[test]
    fn a_list_is_read_in_place() {
        let text = |list: &str| {
            let text = format!("1763683200 7:{list}");
            format!("${}\r\n{text}\r\n", text.len())
        };
        let read = |list: &str| Some(found(text(list).as_bytes())?.1.len());
        let frame = text("01a\r\n4567821234567812345678");
        let entries = ["", "a\r\n45678", "1234567812345678"].map(|it| Entry::Stored(it.as_bytes()));
        assert_eq!(found(frame.as_bytes()), Some((1_763_683_200_000_007, entries.to_vec())));
        assert_eq!((read(""), read("000"), read("112345678")), (Some(0), Some(3), Some(1)));
        for nonsense in ["x", "-", " 0", "11234567", "1123456789", "012345678"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn what_no_script_finds_is_another_reply() {
        for frame in [
            &b"*0\r\n"[..],
            b"*-1\r\n",
            b"*1\r\n:-1\r\n",
            b"*1\r\n$1\r\n1\r\n",
            b"*2\r\n:1\r\n:2\r\n",
            b"*2\r\n:1\r\n+OK\r\n",
            b"*2\r\n:1\r\n*-1\r\n",
            b"*2\r\n:1\r\n*3\r\n:1\r\n:2\r\n:3\r\n",
            b"*2\r\n:1\r\n*5\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n",
            b"*2\r\n:1\r\n*4\r\n:1\r\n:2\r\n:3\r\n$1\r\n4\r\n",
            b"*2\r\n:99999999999999999\r\n$-1\r\n",
            b":1\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$3\r\n1 2\r\n",
            b"$5\r\n1 x 3\r\n",
            b"$5\r\n1 2;0\r\n",
            b"$5\r\n-1 2 \r\n",
            b"$5\r\n1  2 \r\n",
            b"$15\r\n99999999999 0 1\r\n",
            b"$22\r\n999999999999999999 0 1\r\n",
        ] {
            assert_eq!(found(frame), None, "{:?}", String::from_utf8_lossy(frame));
        }
    }

    #[test]
    fn a_frame_ends_where_it_ends() {
        for reply in [
            FRESH,
            SPENT,
            SEVERAL,
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-5\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n\r\n\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n*1\r\n$1\r\na\r\n:1\r\n",
        ] {
            let two = [reply, b"+next\r\n"].concat();
            assert_eq!(frame(&two), Ok(Some(reply.len())), "{reply:?}");
            for cut in 0..reply.len() {
                assert_eq!(frame(&reply[..cut]), Ok(None), "{:?}", &reply[..cut]);
            }
            assert!(parse(reply).is_ok());
        }
    }

    #[test]
    fn replies_out_of_bounds_are_refused() {
        use ProtocolError::{Garbage, TooLarge};
        for (bytes, error) in [
            (&b"HTTP/1.1 400"[..], Garbage),
            (b"%1\r\n", Garbage),
            (b"*x\r\n", Garbage),
            (b":\r\n", Garbage),
            (b":99999999999999999999\r\n", Garbage),
            (b"*9223372036854775807\r\n", Garbage),
            (b"*999999999999999999\r\n", TooLarge),
            (b"$2000000\r\n", TooLarge),
            (b"$-2\r\n", Garbage),
            (b"$1\r\nabc", Garbage),
            (b"+a\rb", Garbage),
            (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", TooLarge),
        ] {
            assert_eq!(frame(bytes), Err(error), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(frame(&[b'+'; MAX_LINE + 1]), Err(TooLarge));
        assert_eq!(frame(b"*60000\r\n:1\r\n"), Ok(None));
    }

    /// Replies as scripts and others send them.
    fn replies() -> impl Strategy<Value = String> {
        let text = |text: String| format!("${}\r\n{text}\r\n", text.len());
        let entry = prop_oneof![
            "[0-9 ]{0,5}".prop_map(text),
            Just("$-1\r\n".to_owned()),
            Just("*4\r\n:1\r\n:2\r\n:3\r\n:-1\r\n".to_owned()),
            "(:-?[0-9]{1,3}|\\+OK|\\*0|\\*2\r\n:1\r\n:1)\r\n",
        ];
        let array = (0..4_usize, prop::collection::vec(entry, 0..4)).prop_map(|(more, entries)| {
            format!("*{}\r\n:5\r\n{}", more + entries.len(), entries.concat())
        });
        prop_oneof!["[0-9]{1,3} [0-9]{1,3} ?[0-9 ]{0,5}".prop_map(text), array]
    }

    /// The result of [`found`], computed with the `redis` crate.
    fn found_slowly(value: Value) -> Option<(u64, Vec<String>)> {
        let values = match value {
            Value::BulkString(text) => {
                let text = String::from_utf8(text).unwrap();
                let mut words = text.splitn(3, ' ').map(str::to_owned);
                let mut number = || words.next()?.parse::<u64>().ok();
                let now = number()? * 1_000_000 + number()?;
                return Some((now, vec![words.next()?]));
            }
            Value::Array(values) => values,
            _ => return None,
        };
        let (Value::Int(now), entries) = values.split_first()? else { return None };
        let entry = |entry: &Value| match entry {
            Value::Nil => Some(String::new()),
            Value::BulkString(text) => Some(String::from_utf8(text.clone()).unwrap()),
            Value::Array(array) if array.len() == 4 => Some("integers".to_owned()),
            _ => None,
        };
        Some((u64::try_from(*now).ok()?, entries.iter().map(entry).collect::<Option<_>>()?))
    }

    proptest! {
        #[test]
        fn what_was_found_is_read_as_by_a_parser(reply in replies()) {
            if let Ok(Some(length)) = frame(reply.as_bytes()) {
                let frame = &reply.as_bytes()[..length];
                let text = |entry: &Entry<'_>| match entry {
                    Entry::Stored(text) => String::from_utf8(text.to_vec()).unwrap(),
                    Entry::Integers(..) => "integers".to_owned(),
                };
                let quickly = found(frame)
                    .map(|(now, entries)| (now, entries.iter().map(text).collect::<Vec<_>>()));
                prop_assert_eq!(quickly, found_slowly(redis::parse_redis_value(frame).unwrap()));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(length)) = frame(&bytes) {
                let _ = parse(&bytes[..length]);
            }
        }

        #[test]
        fn no_resp_like_bytes_panic(text in "([*$:+-][0-9a-]{0,4}\r\n){0,12}") {
            let bytes = text.as_bytes();
            if let Ok(Some(length)) = frame(bytes) {
                prop_assert!(length <= bytes.len());
                let _ = parse(&bytes[..length]);
            }
        }
    }
}
