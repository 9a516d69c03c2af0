//! The actions of a client, which its owner carries out.

use super::key::{ConnectionKey, NodeKey, RequestKey};
use super::node::Target;
use crate::metrics::{AttemptResult, QueryResult};

/// An action for the owner of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call [`Client::on_turn_end`](super::Client::on_turn_end) after the events of this turn.
    EndTurn,
    /// Find the addresses of a host, and call [`Client::on_resolved`](super::Client::on_resolved).
    Resolve {
        /// The connection that needs them.
        connection: ConnectionKey,
        /// The host name.
        host: String,
        /// The port.
        port: u16,
    },
    /// Connect, and call [`Client::on_connected`](super::Client::on_connected) or
    /// [`Client::on_lost`](super::Client::on_lost).
    Connect(ConnectionKey, Target),
    /// Send the [output](super::Client::output).
    Send(ConnectionKey),
    /// Close the connection, or give up connecting or resolving. There may be none.
    Close(ConnectionKey),
    /// The request has an [outcome](super::Client::outcome).
    Complete(RequestKey),
    /// A [settlement](super::Client::settle) with this `tag` has ended.
    Settled {
        /// The tag of the settlement.
        tag: u64,
        /// Whether it was settled; otherwise it may be lost.
        is_settled: bool,
    },
    /// Connections are to log in again: read the password of the store again if it is in a file, call
    /// [`Client::set_password`](super::Client::set_password) if that could be read, and
    /// [`Client::login`](super::Client::login) in any case.
    Login,
    /// Take the [counts](super::Client::take_counts) of the node.
    Count(NodeKey),
    /// An attempt to connect to the node has ended: count it.
    Attempted(NodeKey, AttemptResult),
    /// A query of the node for the topology has ended: count it.
    Queried(NodeKey, QueryResult),
    /// The [view](super::Node::view) of the node has changed.
    View(NodeKey),
    /// The node was removed, and its key names nothing any more.
    Remove(NodeKey),
    /// The client has found the node down, for this reason.
    Down(NodeKey, String),
    /// The client has found the node up again.
    Up(NodeKey),
    /// The node is up, but has not answered a command for so long, in µs.
    Slow(NodeKey, u64),
    /// The node owes no reply for so long any more.
    Prompt(NodeKey),
    /// A fault of a node that is up. It is to be logged, but not for each request.
    Warn(NodeKey, String),
    /// Log a line.
    Log(Level, String),
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something is wrong.
    Error,
    /// Nothing is wrong, but something has changed.
    Notice,
}
