//! The inputs of a client over HTTP/1.1: a limited location answers each as its control does.

use std::time::Duration;

use super::site::{
    Pace, Site, TRIES, both, by_clients, connect, essence, names, pair, received, rounds, send,
};

/// `{path}` is that of the location, `{get}` and `{post}` the first two lines of a request.
const SHORT: &[(&str, &[u8])] = &[
    ("a request", b"{get}\r\n"),
    ("HTTP/1.0", b"GET {path} HTTP/1.0\r\n\r\n"),
    ("HTTP/0.9", b"GET {path}\r\n"),
    ("a later minor version", b"GET {path} HTTP/1.9\r\nHost: a\r\n\r\n"),
    ("a later major version", b"GET {path} HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("a version that is none", b"GET {path} HTTQ/1.1\r\nHost: a\r\n\r\n"),
    ("a method that nobody knows", b"BREW {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a method in lower case", b"get {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("HEAD", b"HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("OPTIONS", b"OPTIONS {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("OPTIONS of all", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("TRACE", b"TRACE {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CONNECT", b"CONNECT {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("DELETE", b"DELETE {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an absolute URI", b"GET http://a{path}?k HTTP/1.1\r\nHost: b\r\n\r\n"),
    ("empty lines first", b"\r\n\r\n{get}\r\n"),
    ("lines without CR", b"GET {path} HTTP/1.1\nHost: a\n\n"),
    ("lines without LF", b"GET {path} HTTP/1.1\rHost: a\r\r"),
    ("spaces between the words", b"GET   {path}   HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a tab between the words", b"GET\t{path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a space in the URI", b"GET {path}?a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a fragment", b"GET {path}?k=1#x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("NUL in the URI", b"GET {path}?\x00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("NUL in the URI, encoded", b"GET {path}%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("NUL in the query, encoded", b"GET {path}?k=%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("control characters in the URI", b"GET {path}?\x01\x1b\x7f HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CR LF in the URI, encoded", b"GET {path}?k=%0d%0aX-A:%20b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CR LF in the path, encoded", b"GET {path}%0d%0aforged%22 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("bytes that are no UTF-8", b"GET {path}?k=\xff\xfe\xc0\xaf HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("bytes that are no UTF-8, encoded", b"GET {path}%ff%fe%c0%af HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("half of an encoding", b"GET {path}%f HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an encoding that is none", b"GET {path}%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("out of the root", b"GET {path}/../../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("dots", b"GET {path}/./x/.. HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("slashes", b"GET /{path}//// HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("only a question mark", b"GET {path}? HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("no host", b"GET {path} HTTP/1.1\r\n\r\n"),
    ("two hosts", b"{get}Host: b\r\n\r\n"),
    ("a host that is none", b"GET {path} HTTP/1.1\r\nHost: a/b\x01\r\n\r\n"),
    ("an empty host", b"GET {path} HTTP/1.1\r\nHost:\r\n\r\n"),
    ("a key of bytes", b"{get}X-Key: \x01\x02\x1b[31m\x7f\x80\xff\"\\\r\n\r\n"),
    ("a key with NUL", b"{get}X-Key: a\x00b\r\n\r\n"),
    ("a key with CR", b"{get}X-Key: a\rb\r\n\r\n"),
    ("a key over two lines", b"{get}X-Key: a\r\n b\r\n\r\n"),
    ("a key like a command of Redis", b"{get}X-Key: \\r\\n*1\\r\\n$8\\r\\nFLUSHALL\\r\\n\r\n\r\n"),
    ("a key like a format", b"{get}X-Key: %s%n%V{}$uri${uri}\r\n\r\n"),
    ("a key of spaces", b"{get}X-Key:    \t  \r\n\r\n"),
    ("two keys", b"{get}X-Key: a\r\nX-Key: b\r\n\r\n"),
    ("a field without a colon", b"{get}nonsense\r\n\r\n"),
    ("a field without a name", b"{get}: nonsense\r\n\r\n"),
    ("a space before the colon", b"{get}X-Key : a\r\n\r\n"),
    ("a name of bytes", b"{get}X-\xff\x01: a\r\n\r\n"),
    ("a name with an underscore", b"{get}x_key: a\r\n\r\n"),
    ("fields of the answer", b"{get}Retry-After: 1\r\nX-RateLimit-Limit: 9\r\n\r\n"),
    ("a range", b"{get}Range: bytes=0-1\r\n\r\n"),
    ("overlapping ranges", b"{get}Range: bytes=0-,0-,0-,0-,1-3\r\n\r\n"),
    ("a range that is none", b"{get}Range: bytes=9-1\r\n\r\n"),
    ("conditions", b"{get}If-Modified-Since: x\r\nIf-None-Match: *\r\nIf-Match: \"y\"\r\n\r\n"),
    ("an upgrade to HTTP/2", b"{get}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"),
    ("an upgrade to a web socket", b"{get}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
    ("an authorization that is none", b"{get}Authorization: Basic \xff\x00\r\n\r\n"),
    ("a body that nobody asked for", b"{get}Content-Length: 5\r\n\r\nhello"),
    ("a body", b"{post}Content-Length: 5\r\n\r\nhello"),
    ("a body and another request", b"{post}Content-Length: 5\r\n\r\nhello{get}\r\n"),
    ("a body that is longer than it says", b"{post}Content-Length: 5\r\n\r\nhello world"),
    ("a body that never ends", b"{post}Content-Length: 50\r\n\r\nhello"),
    ("a body that never begins", b"{post}Content-Length: 50\r\n\r\n"),
    ("a length below zero", b"{post}Content-Length: -1\r\n\r\n"),
    ("a length with a sign", b"{post}Content-Length: +5\r\n\r\nhello"),
    ("a length of 2^64", b"{post}Content-Length: 18446744073709551616\r\n\r\n"),
    ("a length that is too large", b"{post}Content-Length: 1000000000\r\n\r\nhello"),
    ("two lengths", b"{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    ("a length and chunks", b"{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a coding that nobody knows", b"{post}Transfer-Encoding: gzip\r\n\r\n"),
    ("two codings", b"{post}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("chunks of HTTP/1.0", b"POST {path} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("chunks", b"{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{get}\r\n"),
    ("chunks with extensions", b"{post}Transfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhello\r\n0\r\n\r\n"),
    ("chunks with trailers", b"{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Key: b\r\n\r\n"),
    ("a chunk of no size", b"{post}Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
    ("a chunk below zero", b"{post}Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n"),
    ("a chunk of 2^64", b"{post}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nhello\r\n"),
    ("a chunk of 2^63", b"{post}Transfer-Encoding: chunked\r\n\r\n8000000000000000\r\nhello\r\n"),
    ("a chunk that is too large", b"{post}Transfer-Encoding: chunked\r\n\r\nfffffff\r\nhello\r\n"),
    ("a chunk that is longer than it says", b"{post}Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n"),
    ("a chunk that never ends", b"{post}Transfer-Encoding: chunked\r\n\r\n50\r\nhello"),
    ("chunks that never end", b"{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    ("garbage after the chunks", b"{post}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\ngarbage\r\n\r\n"),
    ("100-continue", b"{post}Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"),
    ("100-continue, and no body", b"{post}Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"),
    ("100-continue of chunks", b"{post}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    ("100-continue without a length", b"{get}Expect: 100-continue\r\n\r\n"),
    ("something else is expected", b"{post}Expect: the unexpected\r\nContent-Length: 5\r\n\r\nhello"),
    ("a request in part", b"{get}X-Ke"),
    ("a request line in part", b"GET {path}"),
    ("a request and another in part", b"{get}\r\n{get}X-Key"),
    ("a request and garbage", b"{get}\r\n\x00\xff garbage \r\n\r\n"),
    ("bodies in a row", b"{post}Content-Length: 5\r\n\r\nhello{post}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n{post}Content-Length: 1\r\n\r\nb{get}\r\n"),
    ("nothing but line ends", b"\r\n\r\n\r\n"),
    ("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    ("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("a command of Redis", b"*1\r\n$4\r\nPING\r\n"),
    ("the PROXY protocol", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n{get}\r\n"),
    ("zeroes", b"\x00\x00\x00\x00\r\n\r\n"),
];

/// An input by its name: what comes before, what is repeated so often, and what comes after.
type Long = (&'static str, &'static [u8], &'static [u8], usize, &'static [u8]);

/// Texts that are long or often repeated.
const LONG: &[Long] = &[
    ("a long key", b"{get}X-Key: ", b"k", 600, b"\r\n\r\n"),
    ("a key of 64 KiB", b"{get}X-Key: ", b"k", 1 << 16, b"\r\n\r\n"),
    ("a key of 64 KiB of bytes", b"{get}X-Key: ", b"\xff\x01\x80\x1b", 1 << 14, b"\r\n\r\n"),
    ("a key of 200 KiB", b"{get}X-Key: ", b"k", 200 << 10, b"\r\n\r\n"),
    ("a name of 64 KiB", b"{get}", b"n", 1 << 16, b": v\r\n\r\n"),
    ("a query of 7 KiB", b"GET {path}?", b"q", 7 << 10, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a query of 64 KiB", b"GET {path}?", b"%ff%00", 11 << 10, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a query of 200 KiB", b"GET {path}?", b"q", 200 << 10, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a path of 7 KiB", b"GET {path}", b"/p", 3500, b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a method of 8 KiB", b"", b"M", 1 << 13, b" {path} HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("500 fields", b"{get}", b"X-Key: k\r\n", 500, b"\r\n"),
    ("100,000 fields", b"{get}", b"X-Key: k\r\n", 100_000, b"\r\n"),
    ("a cookie of 32 KiB", b"{get}Cookie: ", b"a=b; ", 6500, b"\r\n\r\n"),
    ("a thousand ranges", b"{get}Range: bytes=0-0", b",1-1", 1_000, b"\r\n\r\n"),
    ("100 requests", b"", b"{get}\r\n", 100, b""),
    ("100 requests, and half of one", b"", b"{get}\r\n", 100, b"{get}X"),
    ("100 bodies", b"", b"{post}Content-Length: 5\r\n\r\nhello", 100, b""),
    ("100 bodies that nobody asked for", b"", b"{get}Content-Length: 5\r\n\r\nhello", 100, b""),
    ("a body of 150 KiB", b"{post}Content-Length: 153600\r\n\r\n", b"b", 153_600, b""),
    ("a body of 300 KiB", b"{post}Content-Length: 307200\r\n\r\n", b"b", 307_200, b""),
    (
        "chunks of one byte",
        b"{post}Transfer-Encoding: chunked\r\n\r\n",
        b"1\r\na\r\n",
        10_000,
        b"0\r\n\r\n",
    ),
    (
        "chunks that are too large together",
        b"{post}Transfer-Encoding: chunked\r\n\r\n",
        b"1000\r\n{4k}\r\n",
        100,
        b"0\r\n\r\n",
    ),
    (
        "a long extension of a chunk",
        b"{post}Transfer-Encoding: chunked\r\n\r\n1;",
        b"x",
        1 << 16,
        b"\r\na\r\n0\r\n\r\n",
    ),
    (
        "a size with 64 KiB of zeroes",
        b"{post}Transfer-Encoding: chunked\r\n\r\n",
        b"0",
        1 << 16,
        b"1\r\na\r\n0\r\n\r\n",
    ),
    (
        "trailers of 64 KiB",
        b"{post}Transfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-T: t\r\n",
        9_000,
        b"\r\n",
    ),
    ("64 KiB of bytes", b"", b"\xff\x00\x80\r", 1 << 14, b"\r\n\r\n"),
    ("64 KiB of line ends", b"", b"\r\n", 1 << 15, b"{get}\r\n"),
];

/// Every input, by its name.
fn inputs() -> Vec<(&'static str, Vec<u8>)> {
    let short = SHORT.iter().map(|(name, bytes)| (*name, bytes.to_vec()));
    let long = LONG.iter().map(|(name, before, unit, times, after)| {
        (*name, [before, &unit.repeat(*times)[..], after].concat())
    });
    short.chain(long).collect()
}

/// The bytes of a template about this path.
fn filled_in(template: &[u8], path: &str) -> Vec<u8> {
    let request = |method: &str| format!("{method} {path} HTTP/1.1\r\nHost: a\r\n");
    let values = [
        ("{get}", request("GET")),
        ("{post}", request("POST")),
        ("{path}", path.to_owned()),
        ("{4k}", "x".repeat(1 << 12)),
    ];
    let mut bytes = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.iter().position(|byte| *byte == b'{') {
        let (before, after) = rest.split_at(at);
        bytes.extend(before);
        let named = |(name, _): &&(&str, String)| after.starts_with(name.as_bytes());
        let (name, value) =
            values.iter().find(named).map_or(("{", "{"), |(name, value)| (name, value));
        bytes.extend(value.as_bytes());
        rest = &after[name.len()..];
    }
    bytes.extend(rest);
    bytes
}

/// The answer of a location to a client that was in time.
fn answer(site: &Site, template: &[u8], path: &str, pace: Pace) -> String {
    let attempt = |_| {
        let mut stream = connect(site.nginx.addr());
        let is_in_time = send(&mut stream, &filled_in(template, path), pace);
        received(&mut stream).filter(|_| is_in_time).map(|bytes| essence(&bytes))
    };
    (0..TRIES).find_map(attempt).unwrap_or_else(|| "none, or a late client".to_owned())
}

/// Whether an answer is that of the control, which may keep its connection no longer.
fn is_as(limited: &str, control: &str) -> bool {
    limited == control
        || limited.replace("\nConnection: keep-alive\r", "\nConnection: close\r") == control
}

#[test]
fn are_answered_as_by_the_control() {
    let site = Site::start(Duration::ZERO);
    let inputs = inputs();
    for _ in 0..rounds() {
        let cases = inputs.iter().flat_map(|input| names().map(move |name| (input, name)));
        let cases = cases.flat_map(|(input, name)| {
            let paces: &[_] = match input.1.len() {
                ..400 => &[Pace::AtOnce, Pace::Trickling],
                _ => &[Pace::AtOnce],
            };
            paces.iter().map(move |pace| (input, name, *pace))
        });
        by_clients(cases, |((what, template), name, pace)| {
            let [limited, control] = pair(name);
            let [limited, first] =
                both(|path| answer(&site, template, path, pace), [&limited, &control]);
            // While a request waits, bytes come that the control did not wait for.
            let paces = [Pace::AtOnce, pace].into_iter().cycle().take(TRIES);
            let mut others = paces.map(|pace| answer(&site, template, &control, pace));
            let is_same =
                is_as(&limited, &first) || others.any(|control| is_as(&limited, &control));
            assert!(is_same, "{what}, {name}, {pace:?}: {limited:?}\ncontrol: {first:?}");
        });
    }
    site.is_well();
    let of_limits = ["limiting requests", "delaying request"];
    let unlike: Vec<_> = site.complaints().into_iter().collect();
    let unlike: Vec<_> = unlike
        .iter()
        .filter(|text| !of_limits.iter().any(|start| text.starts_with(start)))
        .collect();
    assert!(unlike.is_empty(), "{unlike:#?}");
}
