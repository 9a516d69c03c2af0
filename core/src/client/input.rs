//! The bytes that a connection has received and not read yet: a part of a reply, or nothing.

use crate::redis::reply::{Framer, MAX_MAP, MAX_REPLY, ProtocolError};

/// How much is received at once, in bytes.
const RECEIVE: usize = 16 * 1024;

/// An empty buffer that is larger is given back.
const LARGE: usize = 4 * RECEIVE;

/// The input of a connection. It has a buffer of its own only while a part of a reply has come; otherwise bytes are
/// received into a buffer that all connections share.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    framer: Framer,
}

impl Input {
    /// Where to put received bytes; never empty. It is behind the part of a reply that has come, or in the
    /// `shared` buffer.
    pub(super) fn space<'a>(&'a mut self, shared: &'a mut Vec<u8>) -> &'a mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end = self.end.saturating_sub(self.start);
            self.start = 0;
        }
        let bytes = if self.bytes.is_empty() { shared } else { &mut self.bytes };
        let wanted = self.end.saturating_add(RECEIVE);
        if bytes.len() < wanted {
            bytes.resize(wanted, 0);
        }
        bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// `count` bytes were put into the [`space`](Self::space). Takes the bytes out, which must be [put
    /// back](Self::put_back) when their replies were read.
    pub(super) fn take(&mut self, count: usize, shared: &mut Vec<u8>) -> Vec<u8> {
        if self.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, shared);
        }
        self.end = self.end.saturating_add(count).min(self.bytes.len());
        std::mem::take(&mut self.bytes)
    }

    /// Puts the bytes back. They are kept only if there is a part of a reply in them.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>, shared: &mut Vec<u8>) {
        if self.start < self.end {
            self.bytes = bytes;
            return;
        }
        self.start = 0;
        self.end = 0;
        if bytes.len() <= LARGE {
            *shared = bytes;
        }
    }

    /// The next reply of the `bytes` that were taken, if it is complete. It may be as long as a map of a
    /// cluster, if that `is_map`.
    pub(super) fn next_frame<'a>(
        &mut self,
        bytes: &'a [u8],
        is_map: impl FnOnce() -> bool,
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        let bytes = bytes.get(self.start..self.end).unwrap_or_default();
        let most = if bytes.len() > MAX_REPLY && is_map() { MAX_MAP } else { MAX_REPLY };
        let Some(length) = self.framer.next(bytes, most)? else { return Ok(None) };
        self.start = self.start.saturating_add(length);
        Ok(bytes.get(..length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives bytes. Returns the replies, and how large the own and the shared buffer are then.
    fn receive(
        input: &mut Input,
        shared: &mut Vec<u8>,
        bytes: &[u8],
    ) -> (Vec<String>, usize, usize) {
        input.space(shared)[..bytes.len()].copy_from_slice(bytes);
        let taken = input.take(bytes.len(), shared);
        let mut frames = Vec::new();
        while let Some(frame) = input.next_frame(&taken, || false).unwrap() {
            frames.push(String::from_utf8(frame.to_vec()).unwrap());
        }
        input.put_back(taken, shared);
        (frames, input.bytes.len(), shared.len())
    }

    #[test]
    fn only_a_part_of_a_reply_is_kept() {
        let (mut input, mut shared) = (Input::default(), Vec::new());
        let mut receive = |bytes: &[u8]| receive(&mut input, &mut shared, bytes);
        assert_eq!(receive(b"+ONE\r\n"), (vec!["+ONE\r\n".to_owned()], 0, RECEIVE));
        assert_eq!(receive(b"+ONE\r\n+T"), (vec!["+ONE\r\n".to_owned()], RECEIVE, 0));
        let (frames, own, shared) = receive(b"WO\r\n");
        assert_eq!((frames, own), (vec!["+TWO\r\n".to_owned()], 0));
        assert!(shared >= RECEIVE);
    }

    #[test]
    fn a_large_buffer_is_not_shared() {
        let (mut input, mut shared) = (Input::default(), Vec::new());
        let head = format!("${LARGE}\r\n");
        receive(&mut input, &mut shared, head.as_bytes());
        for _ in 0..LARGE / RECEIVE {
            let (frames, ..) = receive(&mut input, &mut shared, &[b'x'; RECEIVE]);
            assert!(frames.is_empty());
        }
        let (frames, own, shared) = receive(&mut input, &mut shared, b"\r\n");
        assert_eq!((frames.len(), own, shared), (1, 0, 0));
    }

    #[test]
    fn only_a_map_may_be_long() {
        let bytes = format!("${}\r\n{}\r\n", MAX_REPLY, "x".repeat(MAX_REPLY)).into_bytes();
        let received = || Input { end: bytes.len(), ..Input::default() };
        assert_eq!(received().next_frame(&bytes, || false), Err(ProtocolError::TooLarge));
        assert_eq!(received().next_frame(&bytes, || true), Ok(Some(&bytes[..])));
    }
}
