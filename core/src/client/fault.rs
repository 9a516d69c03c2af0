//! Why a connection was lost.

use super::handshake::Step;
use crate::rate::MILLISECOND;
use crate::redis::reply::{ProtocolError, Refusal};
use crate::text::log::Escaped;

/// Why a connection was lost or never made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The system could not connect, or the TLS handshake failed: the reason, as text.
    #[error("{0}")]
    Connect(String),
    /// Neither connected nor ready in time.
    #[error("timed out while connecting")]
    ConnectTimeout,
    /// The TLS handshake was not complete in time.
    #[error("timed out while SSL handshaking")]
    SecureTimeout,
    /// Reading or writing failed, or the server closed the connection.
    #[error("{0}")]
    Closed(String),
    /// The server owed replies for too long: how long that is, in µs.
    #[error("no reply for {} ms", .0 / MILLISECOND)]
    Silent(u64),
    /// The server does not speak the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The server refused a step of the handshake.
    #[error("{} was refused: \"{}\"", .0.command(), Escaped(.1.text.as_bytes()))]
    Handshake(Step, Refusal),
    /// The server answers, but cannot run scripts for now: it is loading, or a replica, or wants the client to
    /// log in again.
    #[error("it cannot decide: \"{}\"", Escaped(.0.as_bytes()))]
    Unfit(String),
    /// The server names its own address as that of another one (MOVED): behind the address is not the
    /// server that was meant, or not only that one.
    #[error("the node redirects to itself")]
    Misplaced,
}
