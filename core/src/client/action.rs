//! What a client asks of its owner.

use super::key::{ConnectionKey, NodeKey, RequestKey};
use super::node::Target;

/// What the owner of a client has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call [`Client::on_turn_end`](super::Client::on_turn_end) when the events of this turn have been dealt with.
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
    /// Connect, and call [`Client::on_connected`](super::Client::on_connected) or [`Client::on_lost`](super::Client::on_lost).
    Connect(ConnectionKey, Target),
    /// Send the [output](super::Client::output).
    Send(ConnectionKey),
    /// Close the connection, or give up connecting or resolving. There may be none.
    Close(ConnectionKey),
    /// The request has an [outcome](super::Client::outcome).
    Complete(RequestKey),
    /// A [settlement](super::Client::settle) with this `tag` has ended.
    Settled {
        /// That of the settlement.
        tag: u64,
        /// Whether it was settled; else it may be lost.
        is_settled: bool,
    },
    /// Take the [counts](super::Client::take_counts) of the node.
    Count(NodeKey),
    /// The [view](super::Node::view) of the node has changed.
    View(NodeKey),
    /// The node is gone; nothing names it any more.
    Remove(NodeKey),
    /// The node is down, for this reason, as far as this client can tell.
    Down(NodeKey, String),
    /// The node is up again, as far as this client can tell.
    Up(NodeKey),
    /// Something is wrong with a node that is there: worth a line in a log, but not for each request.
    Complain(NodeKey, String),
    /// Log a line.
    Log(Level, String),
}

/// How important a line of a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// An administrator should know.
    Error,
    /// All is well, but something has changed.
    Notice,
}
