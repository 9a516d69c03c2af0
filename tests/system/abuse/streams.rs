//! The streams of a client over HTTP/2: a limited location answers each as its control does.

use std::collections::BTreeMap;
use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::time::Duration;

use harness::frames::kind::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE,
};
use harness::frames::{END_HEADERS, END_STREAM, Frame, Frames, block, field};

use super::site::{Site, TRIES, both, by_clients, names, pair, rounds};

/// Both flags of a request without a body that fits in one frame.
const WHOLE: u8 = END_HEADERS | END_STREAM;

/// A request with these fields after its own.
fn with_fields(path: &str, fields: &[u8]) -> Vec<Frame> {
    let block = [block("GET", path), fields.to_vec()].concat();
    let mut parts = block.chunks(16_384).map(<[u8]>::to_vec);
    let first = parts.next().expect("a part");
    let mut frames = vec![Frame::new(HEADERS, END_STREAM, 1, first)];
    frames.extend(parts.map(|part| Frame::new(CONTINUATION, 0, 1, part)));
    frames.last_mut().expect("a frame").flags |= END_HEADERS;
    frames
}

/// Fields of a request, and their names.
const FIELDS: [(&str, &[u8], &[u8]); 16] = [
    ("a key of bytes", b"x-key", b"\x01\x02\x1b[31m\x7f\x80\xff\"\\"),
    ("a key with NUL", b"x-key", b"a\x00b"),
    ("a key with CR LF", b"x-key", b"a\r\nforged: b"),
    ("a name in capitals", b"X-Key", b"a"),
    ("a name of bytes", b"x-\xff\x00", b"a"),
    ("an empty name", b"", b"a"),
    ("a second path", b":path", b"/"),
    ("a pseudo-header that nobody knows", b":nonsense", b"a"),
    ("a host that differs", b"host", b"b"),
    ("a host that is none", b"host", b"a/b"),
    ("a field of a connection", b"connection", b"close"),
    ("chunks", b"transfer-encoding", b"chunked"),
    ("a length without a body", b"content-length", b"5"),
    ("a length below zero", b"content-length", b"-1"),
    ("100-continue", b"expect", b"100-continue"),
    ("fields of the answer", b"x-ratelimit-remaining", b"9"),
];

/// Header blocks that are none.
const BLOCKS: [(&str, &[u8]); 6] = [
    ("an empty block", b""),
    ("an index that is none", b"\xff\xff\xff\xff\x0f"),
    ("an index of zero", b"\x80"),
    ("a length beyond the block", b"\x00\x05:path\x7f\xff\xff"),
    ("a code of Huffman that is none", b"\x00\x81\xff\x81\xff"),
    ("a table that is too large", b"\x3f\xff\xff\xff\x7f"),
];

/// A frame after a request on stream 1: its type, flags, stream and payload.
const AFTER: [(&str, u8, u8, u32, &[u8]); 21] = [
    ("a body after a request", DATA, END_STREAM, 1, b"hello"),
    ("a body of stream zero", DATA, 0, 0, b"hello"),
    ("a body of no stream", DATA, 0, 9, b"hello"),
    ("a continuation of nothing", CONTINUATION, END_HEADERS, 1, b""),
    ("a reset", RST_STREAM, 0, 1, b"\x00\x00\x00\x08"),
    ("a reset of no stream", RST_STREAM, 0, 9, b"\x00\x00\x00\x08"),
    ("a reset of stream zero", RST_STREAM, 0, 0, b"\x00\x00\x00\x08"),
    ("a reset in part", RST_STREAM, 0, 1, b"\x00"),
    ("a window of zero", WINDOW_UPDATE, 0, 1, b"\x00\x00\x00\x00"),
    ("a window beyond 2^31", WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
    ("a window in part", WINDOW_UPDATE, 0, 0, b"\x01"),
    ("a priority over itself", PRIORITY, 0, 1, b"\x00\x00\x00\x01\x09"),
    ("a priority in part", PRIORITY, 0, 1, b"\x01"),
    ("settings in part", SETTINGS, 0, 0, b"\x01"),
    ("settings of a stream", SETTINGS, 0, 1, b""),
    ("a setting that is too large", SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"),
    ("a ping in part", PING, 0, 0, b"\x00"),
    ("a farewell", GOAWAY, 0, 0, b"\x00\x00\x00\x00\x00\x00\x00\x00"),
    ("a promise", PUSH_PROMISE, END_HEADERS, 1, b"\x00\x00\x00\x02"),
    ("a frame of no type", 0xee, 0xff, 1, b"nonsense"),
    ("a request line of HTTP/1.1", b'G', b'E', 0x5420_2f20, b" HTTP/1.1\r\n\r\n"),
];

type Input = (&'static str, Vec<Frame>);

/// Every input, about this path.
fn inputs(path: &str) -> Vec<Input> {
    let mut inputs = [requests(path), bodies(path), headers(path)].concat();
    inputs.extend(FIELDS.map(|(what, name, value)| (what, with_fields(path, &field(name, value)))));
    inputs.extend(BLOCKS.map(|(what, block)| (what, vec![Frame::new(HEADERS, WHOLE, 1, block)])));
    inputs.extend(AFTER.map(|(what, kind, flags, stream, payload)| {
        (what, vec![Frame::get(1, path), Frame::new(kind, flags, stream, payload)])
    }));
    inputs
}

/// Requests without a body.
fn requests(path: &str) -> Vec<Input> {
    let get = |stream| Frame::get(stream, path);
    let many = |frame| [vec![get(1)], vec![frame; 200]].concat();
    let no_window = Frame::new(SETTINGS, 0, 0, [0, 4, 0, 0, 0, 0]);
    vec![
        ("a request", vec![get(1)]),
        ("a hundred requests", (0..100).map(|n| get(2 * n + 1)).collect()),
        ("a stream twice", vec![get(1), get(1)]),
        ("a stream before it", vec![get(3), get(1)]),
        ("an even stream", vec![get(2)]),
        ("stream zero", vec![get(0)]),
        ("no window for a response", vec![no_window, get(1)]),
        ("many settings", many(Frame::new(SETTINGS, 0, 0, []))),
        ("many pings", many(Frame::new(PING, 0, 0, [0; 8]))),
        ("a path of 7 KiB", vec![Frame::get(1, &(path.to_owned() + &"/p".repeat(3_500)))]),
        ("a path without a slash", vec![Frame::get(1, "nonsense")]),
        ("an empty path", vec![Frame::get(1, "")]),
        ("a path of bytes", vec![Frame::get(1, &format!("{path}?\u{1}\u{7f}\u{fffd}"))]),
        ("a method of bytes", vec![Frame::new(HEADERS, WHOLE, 1, block("G\r\nT", path))]),
        ("no path", vec![Frame::new(HEADERS, WHOLE, 1, field(b":method", b"GET"))]),
    ]
}

/// A request with a body.
fn bodies(path: &str) -> Vec<Input> {
    let of = |frames: Vec<Frame>| [vec![Frame::post(1, path)], frames].concat();
    let data = |flags, bytes: &[u8]| Frame::data(1, flags, bytes);
    let end = || data(END_STREAM, b"hello");
    let padded = |padding: u8| {
        of(vec![Frame::new(DATA, END_STREAM | 8, 1, [&[padding][..], b"hello"].concat())])
    };
    let trailers = Frame::new(HEADERS, WHOLE, 1, field(b"x-key", b"b"));
    vec![
        ("a body", of(vec![data(0, b"he"), end()])),
        ("a body of empty frames", of([vec![data(0, b""); 100], vec![end()]].concat())),
        ("a body of 60 KiB", of([vec![data(0, &[0; 15 << 10]); 4], vec![end()]].concat())),
        ("a body that never ends", of(vec![data(0, b"hello")])),
        ("a body that never begins", of(Vec::new())),
        ("a body after its end", of(vec![end(), end()])),
        ("a body with padding", padded(2)),
        ("a body that is all padding", padded(5)),
        ("more padding than body", padded(9)),
        ("trailers", of(vec![data(0, b"hello"), trailers])),
        ("a reset of a body", of(vec![data(0, b"he"), Frame::cancel(1)])),
    ]
}

/// Blocks of header fields, in one frame or more.
fn headers(path: &str) -> Vec<Input> {
    let block = block("GET", path);
    let first = |length| Frame::new(HEADERS, END_STREAM, 1, &block[..length]);
    let open = || first(block.len());
    let rest = Frame::new(CONTINUATION, END_HEADERS, 1, &block[9..]);
    let empty = vec![Frame::new(CONTINUATION, 0, 1, []); 1_000];
    vec![
        ("a header in two parts", vec![first(9), rest]),
        ("a header that is interrupted", vec![open(), Frame::new(PING, 0, 0, [0; 8])]),
        ("a header that never ends", vec![open()]),
        ("empty continuations", [vec![open()], empty].concat()),
        ("a key of 64 KiB", with_fields(path, &field(b"x-key", &[b'k'; 1 << 16]))),
        ("a key of 200 KiB", with_fields(path, &field(b"x-key", &[b'k'; 200 << 10]))),
        ("500 fields", with_fields(path, &field(b"x-key", b"k").repeat(500))),
    ]
}

/// The outcome: the statuses of each stream, or the code that ended it, and with which code the connection ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub streams: BTreeMap<u32, Vec<String>>,
    pub goaway: Option<u32>,
}

impl Outcome {
    /// Reads until the server closes the connection.
    pub fn of(frames: &mut Frames) -> Self {
        let mut outcome = Self::default();
        loop {
            match frames.read() {
                Ok(frame) => outcome.add(&frame),
                Err(error) if [UnexpectedEof, ConnectionReset].contains(&error.kind()) => break,
                Err(error) => panic!("{error} after {outcome:?}"),
            }
        }
        outcome
    }

    fn add(&mut self, frame: &Frame) {
        let number = |at: usize| {
            let bytes = frame.payload.get(at..at + 4).expect("four bytes");
            u32::from_be_bytes(bytes.try_into().expect("four bytes"))
        };
        let ends = frame.flags & END_STREAM != 0;
        let event = match frame.kind {
            HEADERS if ends => format!("{:?} end", frame.status()),
            HEADERS => format!("{:?}", frame.status()),
            DATA if ends => "end".to_owned(),
            // Without an error: the rest of a body is not needed any more.
            RST_STREAM if number(0) != 0 => format!("reset {}", number(0)),
            GOAWAY => return self.goaway = Some(number(4)),
            _ => return,
        };
        self.streams.entry(frame.stream).or_default().push(event);
    }

    /// Whether a client sees nothing worse than of the control. Where the client has broken the protocol the connection
    /// ends at once, and a request that waits then has no response yet.
    fn is_as(&self, control: &Self) -> bool {
        let is_broken = self.goaway.is_some_and(|code| code != 0);
        let begins_so = || {
            self.streams.iter().all(|(stream, events)| {
                control.streams.get(stream).is_some_and(|all| all.starts_with(events))
            })
        };
        self == control || (is_broken && self.goaway == control.goaway && begins_so())
    }
}

#[test]
fn are_answered_as_by_the_control() {
    let site = Site::start(Duration::ZERO);
    let outcome = |n: usize, path: &str| {
        let mut frames = Frames::connect(site.nginx.h2_addr());
        let bytes: Vec<u8> = inputs(path)[n].1.iter().flat_map(Frame::bytes).collect();
        // The server may close the connection before it has all.
        let _ = frames.write(&bytes);
        Outcome::of(&mut frames)
    };
    for _ in 0..rounds() {
        let cases = inputs("/").into_iter().enumerate().map(|(n, (what, _))| (n, what));
        let cases = cases.flat_map(|case| names().map(move |name| (case, name)));
        by_clients(cases, |((n, what), name)| {
            let [limited, control] = pair(name);
            let [limited, first] = both(|path| outcome(n, path), [&limited, &control]);
            // The events after a request meet one that still waits, as they would for an application.
            let controls = [control, pair("body")[1].clone()].into_iter().cycle().take(TRIES);
            let mut others = controls.map(|control| outcome(n, &control));
            let is_same = limited.is_as(&first) || others.any(|control| limited.is_as(&control));
            assert!(is_same, "{what}, {name}: {limited:?}, control: {first:?}");
        });
    }
    site.is_well();
}
