//! The events that are counted, and the names of the metrics' labels.

/// The upper bounds of both histograms, in µs: how long requests wait for a decision, and how
/// long replies and deadlines wait for the worker.
pub const BUCKETS: [u64; 13] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// Makes an enum of the values of a label: each with the text that metrics show, in the order of `ALL`, which is that of
/// the counters.
macro_rules! labels {
    ($($(#[$about:meta])+ $name:ident { $($(#[$of:meta])+ $value:ident = $text:literal,)+ })+) => {$(
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])+ $value,)+
        }

        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The value of the label.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }
    )+};
}

labels! {
    /// The fate of a lease's units.
    LeaseUnits {
        /// A request has spent them.
        Used = "used",
        /// They were given back to Redis in time.
        Returned = "returned",
        /// Their time was over, or they were lost with a command or for want of memory.
        Lapsed = "lapsed",
    }

    /// A command that is sent to a node.
    CommandKind {
        /// A script, by its SHA-1.
        Evalsha = "evalsha",
        /// A script, by its source.
        Eval = "eval",
        /// `ASKING`, before a command for a slot that the node is importing.
        Asking = "asking",
        /// A probe.
        Ping = "ping",
        /// `CLUSTER SLOTS`.
        Cluster = "cluster",
        /// `SENTINEL GET-MASTER-ADDR-BY-NAME`.
        Sentinel = "sentinel",
    }

    /// The result of an attempt to connect to a node.
    AttemptResult {
        /// The node has answered the handshake: commands can be sent.
        Ready = "ready",
        /// The node could not be reached, or the TLS handshake has failed.
        Refused = "refused",
        /// It was neither ready nor refused in time.
        Timeout = "timeout",
        /// The node has accepted the connection and then refused the handshake, or closed the connection.
        Rejected = "rejected",
    }

    /// The result of a query for the topology.
    QueryResult {
        /// The reply has changed the topology in use.
        Used = "used",
        /// The reply came in time, and changed nothing.
        Unchanged = "unchanged",
        /// The reply came after the patience, or after that of another node, and changed nothing.
        Late = "late",
        /// The reply is an error or not usable, or there is none.
        Failed = "failed",
    }

    /// The result of a settlement.
    SettlementResult {
        /// The difference was charged or given back.
        Settled = "settled",
        /// It may not have been.
        Lost = "lost",
    }

    /// The kind of an error of a node.
    ErrorKind {
        /// Connecting failed.
        Connect = "connect",
        /// A command was not answered in time.
        Timeout = "timeout",
        /// Its reply was invalid.
        Protocol = "protocol",
        /// It does not accept the account, or the account lacks a permission.
        Auth = "auth",
        /// A script failed.
        Script = "script",
        /// Too many requests waited for it.
        Overload = "overload",
        /// A connection was lost.
        Lost = "lost",
        /// It could not decide: it was loading, or a replica, or its cluster was down.
        Unfit = "unfit",
        /// A request was refused at once, because the node was down.
        Down = "down",
    }
}
