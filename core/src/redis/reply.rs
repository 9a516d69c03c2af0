//! Where a reply ends, and what it says.
//!
//! Replies are RESP2: the connection never asks for RESP3. A frame is found and bounded before it
//! is parsed, so a server can neither make the parser wait for a petabyte nor recurse for ever.
//! What a script answers is read in place: it costs no allocation, and some 20 ns where the `redis`
//! crate's parser takes 1.4 µs. Everything else is rare and goes to that parser.

use redis::{ServerErrorKind, Value};

use crate::decision::Verdict;
use crate::rate::MAX_EXACT;

/// The longest reply, in bytes. The longest that is expected is the map of a large cluster.
pub const MAX_REPLY: usize = 1024 * 1024;

/// The longest line of a reply, in bytes. The longest that is expected is an error with its text.
const MAX_LINE: usize = 64 * 1024;

/// How deep arrays may nest.
const MAX_DEPTH: usize = 8;

/// What a server said.
#[derive(Debug, PartialEq)]
pub enum Reply<'a> {
    /// The answer of a script.
    Found(Found<'a>),
    /// A refusal.
    Error(Refusal),
    /// Anything else.
    Other(Value),
}

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What it means to a limiter.
    pub kind: RefusalKind,
    /// The whole line, for a log.
    pub text: String,
}

/// What an error reply means to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The script is not cached: it did not run, and can be sent by its source.
    NoScript,
    /// The server is there but not ready for us: loading, without its master, full, or in
    /// protected mode. The command did not run.
    NotReady,
    /// The server is a replica: nothing was written.
    ReadOnly,
    /// Another node of the cluster owns the slot: the command did not run.
    Moved,
    /// The slot is on its way to another node, and the key is there already, if it is anywhere:
    /// the command did not run.
    Ask,
    /// The slot is on its way, and so are some of the keys: the command did not run.
    TryAgain,
    /// Nobody owns the slot, or the cluster is down: the command did not run.
    ClusterDown,
    /// The account is missing, wrong, or not allowed to do this.
    Auth,
    /// The command failed.
    Failed,
}

/// The bytes are not RESP2, or exceed a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not RESP2.
    #[error("the server does not speak RESP2")]
    Garbage,
    /// Longer than [`MAX_REPLY`] bytes, or nested too deep.
    #[error("the server sent too large a reply")]
    TooLarge,
    /// A reply that nothing was asked for.
    #[error("the server sent a reply to no command")]
    Unexpected,
}

/// The length of the first reply in `bytes`, or `None` if it is not all there yet.
pub fn frame(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match end(bytes, 0, 0)? {
        Some(end) if end > MAX_REPLY => Err(ProtocolError::TooLarge),
        None if bytes.len() > MAX_REPLY => Err(ProtocolError::TooLarge),
        end => Ok(end),
    }
}

/// Reads one whole `frame`.
pub fn parse(frame: &[u8]) -> Result<Reply<'_>, ProtocolError> {
    if let Some(found) = Found::new(frame) {
        return Ok(Reply::Found(found));
    }
    match redis::parse_redis_value(frame) {
        Ok(Value::ServerError(error)) => Ok(Reply::Error(Refusal {
            kind: RefusalKind::of(error.kind(), error.code(), error.details()),
            text: match error.details() {
                Some(details) => format!("{} {details}", error.code()),
                None => error.code().to_owned(),
            },
        })),
        Ok(value) => Ok(Reply::Other(value)),
        Err(_) => Err(ProtocolError::Garbage),
    }
}

impl RefusalKind {
    fn of(kind: Option<ServerErrorKind>, code: &str, details: Option<&str>) -> Self {
        match (kind, code) {
            (Some(ServerErrorKind::NoScript), _) => Self::NoScript,
            (Some(ServerErrorKind::Moved), _) => Self::Moved,
            (Some(ServerErrorKind::Ask), _) => Self::Ask,
            (Some(ServerErrorKind::TryAgain), _) => Self::TryAgain,
            (Some(ServerErrorKind::ClusterDown), _) => Self::ClusterDown,
            (Some(ServerErrorKind::ReadOnly), _) => Self::ReadOnly,
            (Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown), _)
            | (_, "DENIED") => Self::NotReady,
            (Some(ServerErrorKind::NoPerm), _) | (_, "NOAUTH" | "WRONGPASS") => Self::Auth,
            (_, "ERR") => Self::of_plain_error(details.unwrap_or_default()),
            _ => Self::Failed,
        }
    }

    /// What an error means that has no code of its own.
    fn of_plain_error(details: &str) -> Self {
        let unknown = details.strip_prefix("unknown command").map(str::to_ascii_uppercase);
        if details.starts_with("max number of clients") {
            Self::NotReady
        } else if unknown.is_some_and(|rest| rest.trim_start().get(1..8) == Some("EVALSHA")) {
            // Renamed: the source will do.
            Self::NoScript
        } else if details.contains(" -READONLY ") {
            // Before Redis 7 a script's error was wrapped in one about the script.
            Self::ReadOnly
        } else {
            Self::Failed
        }
    }
}

/// The position after the value that starts at `start`.
fn end(bytes: &[u8], start: usize, depth: usize) -> Result<Option<usize>, ProtocolError> {
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
        b'+' | b'-' => Ok(Some(after)),
        b':' => integer(line).map(|_| Some(after)).ok_or(ProtocolError::Garbage),
        b'$' => {
            let Some(size) = size(line)? else { return Ok(Some(after)) };
            let close = after.saturating_add(size);
            match bytes.get(close..close.saturating_add(2)) {
                None => Ok(None),
                Some(b"\r\n") => Ok(Some(close.saturating_add(2))),
                Some(_) => Err(ProtocolError::Garbage),
            }
        }
        _ => {
            if depth == MAX_DEPTH {
                return Err(ProtocolError::TooLarge);
            }
            let mut position = after;
            for _ in 0..size(line)?.unwrap_or(0) {
                match end(bytes, position, depth.saturating_add(1))? {
                    Some(next) => position = next,
                    None => return Ok(None),
                }
            }
            Ok(Some(position))
        }
    }
}

/// The length of a bulk string or array; `None` for the null ones.
fn size(line: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match integer(line) {
        Some(-1) => Ok(None),
        Some(size) => match usize::try_from(size) {
            Ok(size) if size <= MAX_REPLY => Ok(Some(size)),
            Ok(_) => Err(ProtocolError::TooLarge),
            Err(_) => Err(ProtocolError::Garbage),
        },
        None => Err(ProtocolError::Garbage),
    }
}

fn integer(line: &[u8]) -> Option<i64> {
    let (sign, digits) = match line.split_first()? {
        (b'-', digits) => (-1, digits),
        _ => (1, line),
    };
    if digits.is_empty() || digits.len() > 18 {
        // No number of ours has more digits.
        return None;
    }
    digits.iter().try_fold(0i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(i64::from(digit).checked_mul(sign)?)
    })
}

/// What a script found: an array inside a frame, of an integer and then an [`Entry`] for each
/// limit that was asked. It iterates over the entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<'a> {
    now: u64,
    rest: &'a [u8],
}

/// What a script found of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// What was stored, if anything was.
    Stored(Option<&'a [u8]>),
    /// Of a limit that stores itself: the integers that stand for its verdict.
    Integers([i64; Verdict::REPLY_LEN]),
}

impl<'a> Found<'a> {
    /// What the script found, if `frame` is an answer of ours.
    fn new(frame: &'a [u8]) -> Option<Self> {
        let (count, rest) = take_number(frame, b'*')?;
        let (now, rest) = take_number(rest, b':')?;
        let now = u64::try_from(now).ok().filter(|now| *now <= MAX_EXACT)?;
        let found = Self { now, rest };
        let mut entries = found.clone();
        let read = i64::try_from(entries.by_ref().count()).ok()?;
        (read.checked_add(1)? == count && entries.rest.is_empty()).then_some(found)
    }

    /// When the script ran: the Unix time of the server in µs, at most [`MAX_EXACT`].
    pub fn now(&self) -> u64 {
        self.now
    }
}

impl<'a> Iterator for Found<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (entry, rest) = match self.rest.first()? {
            b'$' => stored(self.rest)?,
            _ => integers(self.rest)?,
        };
        self.rest = rest;
        Some(entry)
    }
}

/// A bulk string, or the null one.
fn stored(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (length, rest) = take_number(bytes, b'$')?;
    if length == -1 {
        return Some((Entry::Stored(None), rest));
    }
    let (text, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((Entry::Stored(Some(text)), rest.strip_prefix(b"\r\n")?))
}

/// An array of integers.
fn integers(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let mut array = [0; Verdict::REPLY_LEN];
    let (length, mut rest) = take_number(bytes, b'*')?;
    if usize::try_from(length) != Ok(array.len()) {
        return None;
    }
    for slot in &mut array {
        (*slot, rest) = take_number(rest, b':')?;
    }
    Some((Entry::Integers(array), rest))
}

/// The number of a line that starts with `kind`, and what comes after the line.
fn take_number(bytes: &[u8], kind: u8) -> Option<(i64, &[u8])> {
    let (line, rest) = split_line(bytes.strip_prefix(&[kind])?)?;
    Some((integer(line)?, rest))
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes.iter().position(|byte| *byte == b'\r')?;
    let (line, rest) = bytes.split_at_checked(length)?;
    Some((line, rest.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRESH: &[u8] = b"*2\r\n:1763683200000000\r\n$-1\r\n";
    const SEVERAL: &[u8] =
        b"*4\r\n:1763683200000000\r\n$19\r\n99 1763683200000000\r\n*4\r\n:1\r\n:99\r\n:600000\r\n:-1\r\n$-1\r\n";

    fn refusal(line: &[u8]) -> Refusal {
        match parse(line).unwrap() {
            Reply::Error(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn found(frame: &[u8]) -> Option<(u64, Vec<Entry<'_>>)> {
        match parse(frame).unwrap() {
            Reply::Found(found) => Some((found.now(), found.collect())),
            Reply::Other(_) => None,
            Reply::Error(refusal) => panic!("{refusal:?}"),
        }
    }

    #[test]
    fn what_was_found_is_read_in_place() {
        let now = 1_763_683_200_000_000;
        assert_eq!(found(FRESH), Some((now, vec![Entry::Stored(None)])));
        let stored = Entry::Stored(Some(b"99 1763683200000000"));
        let log = Entry::Integers([1, 99, 600_000, -1]);
        assert_eq!(found(SEVERAL), Some((now, vec![stored, log, Entry::Stored(None)])));
        assert_eq!(found(b"*1\r\n:0\r\n"), Some((0, vec![])));
        let empty = found(b"*2\r\n:0\r\n$0\r\n\r\n");
        assert_eq!(empty, Some((0, vec![Entry::Stored(Some(b""))])));
        let lines = found(b"*2\r\n:0\r\n$4\r\n\r\n\r\n\r\n");
        assert_eq!(lines, Some((0, vec![Entry::Stored(Some(b"\r\n\r\n"))])));
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
            b":1\r\n",
            b"$-1\r\n",
        ] {
            assert_eq!(found(frame), None, "{:?}", String::from_utf8_lossy(frame));
        }
    }

    #[test]
    fn a_frame_ends_where_it_ends() {
        for reply in [
            FRESH,
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
    fn bounds() {
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

    #[test]
    fn refusals() {
        let kind = |line: &[u8]| refusal(line).kind;
        assert_eq!(kind(b"-NOSCRIPT No matching script.\r\n"), RefusalKind::NoScript);
        assert_eq!(kind(b"-LOADING Redis is loading\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-MASTERDOWN Link is down\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-DENIED Redis is running in protected mode\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-ERR max number of clients reached\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-READONLY You can't write.\r\n"), RefusalKind::ReadOnly);
        assert_eq!(
            kind(b"-ERR Error running script (call to f_1): @user_script:2: -READONLY No\r\n"),
            RefusalKind::ReadOnly
        );
        assert_eq!(kind(b"-MOVED 1 127.0.0.1:1\r\n"), RefusalKind::Moved);
        assert_eq!(kind(b"-ASK 1 127.0.0.1:1\r\n"), RefusalKind::Ask);
        assert_eq!(kind(b"-TRYAGAIN later\r\n"), RefusalKind::TryAgain);
        assert_eq!(kind(b"-CLUSTERDOWN no\r\n"), RefusalKind::ClusterDown);
        for renamed in ["`EVALSHA`, with", "'EVALSHA', with", "'evalsha'"] {
            let line = format!("-ERR unknown command {renamed}\r\n");
            assert_eq!(kind(line.as_bytes()), RefusalKind::NoScript);
        }
        assert_eq!(kind(b"-ERR unknown command 'EVAL'\r\n"), RefusalKind::Failed);
        assert_eq!(kind(b"-NOAUTH Authentication required.\r\n"), RefusalKind::Auth);
        assert_eq!(kind(b"-WRONGPASS invalid\r\n"), RefusalKind::Auth);
        assert_eq!(kind(b"-NOPERM no\r\n"), RefusalKind::Auth);
        assert_eq!(refusal(b"-ERR what a pity\r\n").text, "ERR what a pity");
        assert_eq!(refusal(b"-OOM\r\n"), Refusal { kind: RefusalKind::Failed, text: "OOM".into() });
    }

    proptest! {
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
