//! A server, as far as an input plays one: which commands it has got, and what it may reply.

use rate_limit_core::rate::SECOND;
use rate_limit_core::redis::RawValue;
use rate_limit_core::redis::reply::Framer;

use crate::input::Input;
use crate::resp::{self, array, bulk, integer, line};
use crate::slots;

/// The replies that a server may send to any command.
const ERRORS: [&[u8]; 14] = [
    b"NOSCRIPT No matching script.",
    b"MOVED 0 10.0.0.2:7000",
    b"MOVED 9000 :7001",
    b"ASK 0 10.0.0.2:7000",
    b"TRYAGAIN Multiple keys request during rehashing of slot",
    b"CLUSTERDOWN Hash slot not served",
    b"LOADING Redis is loading the dataset in memory",
    b"READONLY You can't write against a read only replica.",
    b"NOAUTH Authentication required.",
    b"WRONGPASS invalid username-password pair or user is disabled.",
    b"OOM command not allowed when used memory > 'maxmemory'.",
    b"MISCONF Redis is configured to save RDB snapshots",
    b"BUSY Redis is busy running a script.",
    b"ERR unknown command",
];

/// Takes the commands that are complete.
pub fn take_commands(sent: &mut Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    while let Some(length) = Framer::default().next(sent, usize::MAX).expect("commands") {
        let frame: Vec<_> = sent.drain(..length).collect();
        let words = RawValue::new(&frame).items().expect("a command");
        commands.push(words.map(|word| payload(word.bytes())).collect());
    }
    commands
}

/// The bytes of a string.
fn payload(value: &[u8]) -> Vec<u8> {
    let start = value.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    value[start..value.len() - 2].to_vec()
}

/// The reply to a command: most often one that fits.
pub fn reply(input: &mut Input<'_>, command: &[Vec<u8>], now: u64) -> Vec<u8> {
    match input.below(8) {
        0 => line(b'-', ERRORS[input.below(ERRORS.len())]),
        1 => resp::value(input),
        2 => line(b'-', input.bytes()),
        _ => fitting(input, command, now),
    }
}

fn fitting(input: &mut Input<'_>, command: &[Vec<u8>], now: u64) -> Vec<u8> {
    let word = |at: usize| command.get(at).map_or(&b""[..], Vec::as_slice);
    match (word(0), word(1)) {
        (b"SCRIPT", b"EXISTS") => {
            let count = command.len() - 2;
            array((0..count).map(|_| integer(i64::from(input.below(4) != 1))))
        }
        // Whatever it says, the password does not come into a log.
        (b"AUTH", password) if input.flag() => line(b'-', &[b"ERR wrong: ", password].concat()),
        (b"SCRIPT", _) => bulk(&[b'0'; 40]),
        (b"CLUSTER", _) => slots::map(input),
        (b"SENTINEL", _) => array([bulk(b"10.0.0.2"), bulk(b"7000")]),
        (b"SUBSCRIBE" | b"UNSUBSCRIBE", channel) => {
            array([bulk(word(0)), bulk(channel), integer(1)])
        }
        (b"EVALSHA" | b"EVAL", _) => {
            let keys = String::from_utf8_lossy(word(2)).parse().unwrap_or(1);
            decided(input, keys, now)
        }
        _ => line(b'+', if word(0) == b"PING" { b"PONG" } else { b"OK" }),
    }
}

/// The reply of a script about so many keys: what was stored under each, or a verdict.
fn decided(input: &mut Input<'_>, keys: usize, now: u64) -> Vec<u8> {
    let (seconds, micros) = (1_763_683_200 + now / SECOND, now % SECOND);
    let time = format!("{seconds} {micros}");
    let stored = |input: &mut Input<'_>| {
        let words = [0, 0, 3, 9][input.below(4)];
        (0..words).flat_map(|_| input.number().to_le_bytes()).collect::<Vec<_>>()
    };
    let entry = |input: &mut Input<'_>| match input.below(3) {
        0 => array([(); 4].map(|()| integer(input.number() as i64))),
        1 => array([1, 3, 1_000_000, 0].map(integer)),
        _ => bulk(&stored(input)),
    };
    match input.below(3) {
        0 => {
            let entries = (0..keys).map(|_| entry(input));
            array([integer((seconds * SECOND + micros) as i64)].into_iter().chain(entries))
        }
        1 => bulk(format!("{time}:{}", "3 1 2 3".repeat(keys)).as_bytes()),
        _ => bulk(&[format!("{time} ").as_bytes(), &stored(input)].concat()),
    }
}
