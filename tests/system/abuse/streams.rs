//! What a client may send over HTTP/2: a limited location answers each as its control does.

use std::collections::BTreeMap;
use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
use std::time::Duration;

use harness::frames::kind::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use harness::frames::{END_HEADERS, END_STREAM, Frame, Frames, block, field};

use super::site::{Site, by_clients, names, pair, rounds};

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

/// Frames beside a request on stream 1.
fn inputs(path: &str) -> Vec<(&'static str, Vec<Frame>)> {
    let get = || Frame::get(1, path);
    let post = || Frame::post(1, path);
    let data = |flags, bytes: &[u8]| Frame::data(1, flags, bytes);
    let number = |number: u32| number.to_be_bytes();
    let padded =
        |padding: u8| Frame::new(DATA, END_STREAM | 8, 1, [&[padding][..], b"hello"].concat());
    let mut inputs = vec![
        ("a request", vec![get()]),
        ("a hundred requests", (0..100).map(|n| Frame::get(2 * n + 1, path)).collect()),
        ("a body", vec![post(), data(0, b"he"), data(END_STREAM, b"llo")]),
        (
            "a body of empty frames",
            [vec![post()], vec![data(0, b""); 100], vec![data(END_STREAM, b"")]].concat(),
        ),
        (
            "a body of 60 KiB",
            [vec![post()], vec![data(0, &[0; 15 << 10]); 4], vec![data(END_STREAM, b"")]].concat(),
        ),
        ("a body that never ends", vec![post(), data(0, b"hello")]),
        ("a body that never begins", vec![post()]),
        (
            "a body after its end",
            vec![post(), data(END_STREAM, b"hello"), data(END_STREAM, b"hello")],
        ),
        ("a body after a request", vec![get(), data(END_STREAM, b"hello")]),
        ("a body with padding", vec![post(), padded(2)]),
        ("a body that is all padding", vec![post(), padded(5)]),
        ("more padding than body", vec![post(), padded(9)]),
        (
            "trailers",
            vec![post(), data(0, b"hello"), Frame::new(HEADERS, WHOLE, 1, field(b"x-key", b"b"))],
        ),
        ("a stream twice", vec![get(), get()]),
        ("a stream before it", vec![Frame::get(3, path), get()]),
        ("an even stream", vec![Frame::get(2, path)]),
        ("stream zero", vec![Frame::get(0, path)]),
        ("a body of stream zero", vec![get(), Frame::data(0, 0, b"hello")]),
        ("a body of no stream", vec![get(), Frame::data(9, 0, b"hello")]),
        ("a header in two parts", {
            let block = block("GET", path);
            let (first, second) = block.split_at(9);
            vec![
                Frame::new(HEADERS, END_STREAM, 1, first),
                Frame::new(CONTINUATION, END_HEADERS, 1, second),
            ]
        }),
        (
            "a header that is interrupted",
            vec![
                Frame::new(HEADERS, END_STREAM, 1, block("GET", path)),
                Frame::new(PING, 0, 0, [0; 8]),
            ],
        ),
        ("a header that never ends", vec![Frame::new(HEADERS, END_STREAM, 1, block("GET", path))]),
        ("a continuation of nothing", vec![get(), Frame::new(CONTINUATION, END_HEADERS, 1, [])]),
        (
            "empty continuations",
            [
                vec![Frame::new(HEADERS, END_STREAM, 1, block("GET", path))],
                vec![Frame::new(CONTINUATION, 0, 1, []); 1_000],
            ]
            .concat(),
        ),
        ("a reset", vec![get(), Frame::cancel(1)]),
        ("a reset of a body", vec![post(), data(0, b"he"), Frame::cancel(1)]),
        ("a reset of no stream", vec![get(), Frame::cancel(9)]),
        ("a reset of stream zero", vec![get(), Frame::new(RST_STREAM, 0, 0, number(8))]),
        ("a reset in part", vec![get(), Frame::new(RST_STREAM, 0, 1, [0])]),
        ("a window of zero", vec![get(), Frame::new(WINDOW_UPDATE, 0, 1, number(0))]),
        ("a window beyond 2^31", vec![get(), Frame::new(WINDOW_UPDATE, 0, 0, number(0x7fff_ffff))]),
        ("a window in part", vec![get(), Frame::new(WINDOW_UPDATE, 0, 0, [1])]),
        (
            "a priority over itself",
            vec![get(), Frame::new(PRIORITY, 0, 1, [&number(1)[..], &[9]].concat())],
        ),
        ("a priority in part", vec![get(), Frame::new(PRIORITY, 0, 1, [1])]),
        (
            "no window for a response",
            vec![Frame::new(SETTINGS, 0, 0, [&[0, 4][..], &number(0)].concat()), get()],
        ),
        (
            "a setting that is too large",
            vec![Frame::new(SETTINGS, 0, 0, [&[0, 4][..], &number(u32::MAX)].concat()), get()],
        ),
        ("settings in part", vec![get(), Frame::new(SETTINGS, 0, 0, [1])]),
        ("settings of a stream", vec![get(), Frame::new(SETTINGS, 0, 1, [])]),
        ("many settings", [vec![get()], vec![Frame::new(SETTINGS, 0, 0, []); 200]].concat()),
        ("many pings", [vec![get()], vec![Frame::new(PING, 0, 0, [0; 8]); 200]].concat()),
        ("a ping in part", vec![get(), Frame::new(PING, 0, 0, [0])]),
        ("a farewell", vec![get(), Frame::new(GOAWAY, 0, 0, [0; 8])]),
        ("a promise", vec![get(), Frame::new(5, END_HEADERS, 1, number(2))]),
        ("a frame of no type", vec![get(), Frame::new(0xee, 0xff, 1, b"nonsense".to_vec())]),
        (
            "a request line of HTTP/1.1",
            vec![get(), Frame::new(b'G', b'E', 0x5420_2f20, b" HTTP/1.1\r\n\r\n".to_vec())],
        ),
        ("a key of 64 KiB", with_fields(path, &field(b"x-key", &[b'k'; 1 << 16]))),
        ("a key of 200 KiB", with_fields(path, &field(b"x-key", &[b'k'; 200 << 10]))),
        ("500 fields", with_fields(path, &field(b"x-key", b"k").repeat(500))),
        ("a path of 7 KiB", vec![Frame::get(1, &(path.to_owned() + &"/p".repeat(3_500)))]),
        ("a path without a slash", vec![Frame::get(1, "nonsense")]),
        ("an empty path", vec![Frame::get(1, "")]),
        ("a path of bytes", vec![Frame::get(1, &format!("{path}?\u{1}\u{7f}\u{fffd}"))]),
        ("a method of bytes", vec![Frame::new(HEADERS, WHOLE, 1, block("G\r\nT", path))]),
        ("no path", vec![Frame::new(HEADERS, WHOLE, 1, field(b":method", b"GET"))]),
    ];
    inputs.extend(FIELDS.map(|(what, name, value)| (what, with_fields(path, &field(name, value)))));
    inputs.extend(BLOCKS.map(|(what, block)| (what, vec![Frame::new(HEADERS, WHOLE, 1, block)])));
    inputs
}

/// What came back: the statuses of each stream, or the code that ended it, and with which code the connection ended.
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

/// How often something is tried whose outcome depends on the moment at which frames come.
const TRIES: usize = 10;

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
            let limited = outcome(n, &limited);
            // What a client does after a request meets one that still waits, as it would for an application.
            let controls = [control, pair("body")[1].clone()].into_iter().cycle().take(TRIES);
            let mut controls = controls.map(|control| outcome(n, &control));
            let first = controls.next().expect("an outcome");
            let is_same = limited.is_as(&first) || controls.any(|control| limited.is_as(&control));
            assert!(is_same, "{what}, {name}: {limited:?}, control: {first:?}");
        });
    }
    site.is_well();
}
