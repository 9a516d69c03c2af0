//! An HTTP/2 client that sends exactly the frames that a test gives it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::PATIENCE;

/// Types of frames, RFC 9113 section 6.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// The flag of `DATA` and `HEADERS` that ends a stream.
pub const END_STREAM: u8 = 1;
/// The flag of `HEADERS` and `CONTINUATION` that ends a block of header fields.
pub const END_HEADERS: u8 = 4;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind, one of [`kind`] or any other number.
    pub kind: u8,
    /// The flags of its type.
    pub flags: u8,
    /// The stream, 0 for the connection.
    pub stream: u32,
    /// The bytes behind its head.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame of these parts.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// A request without a body.
    pub fn get(stream: u32, path: &str) -> Self {
        Self::request("GET", END_STREAM, stream, path)
    }

    /// A request whose body is still to come.
    pub fn post(stream: u32, path: &str) -> Self {
        Self::request("POST", 0, stream, path)
    }

    fn request(method: &str, flags: u8, stream: u32, path: &str) -> Self {
        Self::new(kind::HEADERS, flags | END_HEADERS, stream, block(method, path))
    }

    /// A part of a body.
    pub fn data(stream: u32, flags: u8, bytes: &[u8]) -> Self {
        Self::new(kind::DATA, flags, stream, bytes)
    }

    /// Cancels a request.
    pub fn cancel(stream: u32) -> Self {
        Self::new(kind::RST_STREAM, 0, stream, 8u32.to_be_bytes())
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a short frame").to_be_bytes();
        let head = [&length[1..], &[self.kind, self.flags], &self.stream.to_be_bytes()].concat();
        [head, self.payload.clone()].concat()
    }

    /// The status of a response, if this frame begins one: NGINX sends it first, unless it changes its table.
    pub fn status(&self) -> Option<u16> {
        const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
        let is_update = |byte: &&u8| **byte & 0xe0 == 0x20;
        let skipped = self.payload.iter().take_while(is_update).count();
        match (self.kind, &self.payload[skipped..]) {
            (kind::HEADERS, [index @ 0x88..=0x8e, ..]) => Some(INDEXED[usize::from(index - 0x88)]),
            (kind::HEADERS, [0x08 | 0x48, 3, digits @ ..]) => {
                std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok()
            }
            _ => None,
        }
    }
}

/// The header block of a request.
pub fn block(method: &str, path: &str) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a")];
    fields.iter().flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes())).collect()
}

/// A header field as a literal without indexing.
pub fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0][..], &length(name.len()), name, &length(value.len()), value].concat()
}

/// A length of seven bits and more, RFC 7541 section 5.1.
fn length(number: usize) -> Vec<u8> {
    let Some(mut rest) = number.checked_sub(127) else { return vec![number as u8] };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A connection. Nothing waits longer than [`PATIENCE`].
pub struct Frames {
    stream: TcpStream,
}

impl Frames {
    /// Connects, and sends the preface with settings that change nothing.
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("connect");
        stream.set_nodelay(true).expect("send at once");
        stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("set a timeout");
        let mut frames = Self { stream };
        frames.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("send a preface");
        frames.send(&Frame::new(kind::SETTINGS, 0, 0, []));
        frames
    }

    /// Sends these bytes, to a server that may have closed the connection.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.write(&frame.bytes()).expect("send a frame");
    }

    /// Reads a frame; the error is of kind `UnexpectedEof` if the server has closed the connection.
    pub fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Reads until the response on `stream` is over.
    pub fn wait_for_end(&mut self, stream: u32) {
        let ends = |frame: &Frame| {
            [kind::DATA, kind::HEADERS].contains(&frame.kind)
                && frame.flags & END_STREAM != 0
                && frame.stream == stream
        };
        while !ends(&self.read().expect("a frame")) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_the_rfc_says() {
        let bytes = Frame::data(3, END_STREAM, b"ab").bytes();
        assert_eq!(bytes, [0, 0, 2, kind::DATA, END_STREAM, 0, 0, 0, 3, b'a', b'b']);
        assert_eq!(length(126), [126]);
        // RFC 7541, appendix C.1.2, with a prefix of seven bits.
        assert_eq!(length(1_337), [127, 186, 9]);
        assert_eq!(field(b"a", b"bc"), [0, 1, b'a', 2, b'b', b'c']);
    }

    #[test]
    fn a_status_is_found() {
        let response = |block: &[u8]| Frame::new(kind::HEADERS, END_HEADERS, 1, block).status();
        assert_eq!(response(&[0x88]), Some(200));
        assert_eq!(response(&[0x20, 0x8d]), Some(404));
        assert_eq!([b"\x08\x03429", b"\x48\x03429"].map(|block| response(block)), [Some(429); 2]);
        assert_eq!(Frame::data(1, 0, &[0x88]).status(), None);
    }
}
