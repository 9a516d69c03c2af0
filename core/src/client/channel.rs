//! The channel that a connection to a sentinel is subscribed to.
//!
//! No more replies can come than are owed, but messages come unasked. A bound keeps a sentinel from having a worker read
//! them and do nothing else: beyond it the connection is lost, as upon any breach of the protocol.

use crate::rate::SECOND;
use crate::redis::reply::{ProtocolError, Reply};

/// For how long messages are counted together, in µs.
const PERIOD: u64 = SECOND;

/// How many bytes of messages may come in a period: more than a sentinel sends when a thousand masters with host names fail over
/// at once.
const MOST: usize = 256 * 1024;

/// The subscription of a connection.
#[derive(Debug, Default)]
pub(super) struct Channel {
    is_subscribed: bool,
    /// When the period began, in µs.
    began: u64,
    /// How many bytes have come in it.
    bytes: usize,
}

impl Channel {
    /// From now on messages may come.
    pub(super) fn subscribe(&mut self) {
        self.is_subscribed = true;
    }

    /// Something has come at `now`. Returns whether it is a message, and no reply. Fails if there are too many.
    pub(super) fn on_reply(&mut self, reply: &Reply<'_>, now: u64) -> Result<bool, ProtocolError> {
        let length = match reply {
            Reply::Other(value) if self.is_subscribed && is_message(value.bytes()) => {
                value.bytes().len()
            }
            _ => return Ok(false),
        };
        if now.saturating_sub(self.began) >= PERIOD {
            (self.began, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(length);
        if self.bytes > MOST { Err(ProtocolError::Flood) } else { Ok(true) }
    }
}

/// No reply to a command that a sentinel is sent looks like one.
fn is_message(bytes: &[u8]) -> bool {
    bytes.starts_with(b"*3\r\n$7\r\nmessage\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::reply;

    const MESSAGE: &[u8] = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n";

    #[test]
    fn a_message_is_one_only_of_a_channel() {
        let mut channel = Channel::default();
        let [message, other] = [MESSAGE, b"+OK\r\n"].map(|bytes| reply::parse(bytes).unwrap());
        assert_eq!(channel.on_reply(&message, 0), Ok(false));
        channel.subscribe();
        assert_eq!([&message, &other].map(|it| channel.on_reply(it, 0)), [Ok(true), Ok(false)]);
    }

    #[test]
    fn so_many_a_period() {
        let mut channel = Channel::default();
        channel.subscribe();
        let message = reply::parse(MESSAGE).unwrap();
        let most = MOST / MESSAGE.len();
        for now in [PERIOD, 2 * PERIOD] {
            assert!((0..most).all(|_| channel.on_reply(&message, now) == Ok(true)));
            let last = channel.on_reply(&message, now + PERIOD - 1);
            assert_eq!(last, Err(ProtocolError::Flood));
        }
    }
}
