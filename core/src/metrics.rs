//! The events that are counted, and the names of the metrics' labels.

/// The upper bounds of both histograms, in µs: how long requests wait for a decision, and how
/// long replies and deadlines wait for the worker.
pub const BUCKETS: [u64; 13] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// Values that have names and can be chosen by them.
pub(crate) trait Named: Copy + 'static {
    /// Every value that can be chosen, and its name.
    const CHOICES: &'static [(&'static str, Self)];
}

/// Makes an enum of values that have names, such as those of a label or an argument; and the list of those that are counted or
/// chosen, in the order of the counters: of all but what comes after the `;`.
macro_rules! labels {
    ($($(#[$about:meta])+ $name:ident::$counted:ident {
        $($(#[$of:meta])+ $value:ident = $text:literal,)+
        $(; $(#[$of_other:meta])+ $other:ident = $other_text:literal,)?
    })+) => {$(
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])+ $value,)+
            $($(#[$of_other])+ $other,)?
        }

        impl $name {
            /// Every value that is counted or chosen, in the order of the counters.
            pub const $counted: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                    $(Self::$other => $other_text,)?
                }
            }
        }

        impl $crate::metrics::Named for $name {
            const CHOICES: &'static [(&'static str, Self)] = &[$(($text, Self::$value)),+];
        }
    )+};
}
pub(crate) use labels;

labels! {
    /// The fate of a lease's units.
    LeaseUnits::ALL {
        /// A request has spent them.
        Used = "used",
        /// They were given back to Redis in time.
        Returned = "returned",
        /// Their time was over, or they were lost with a command or for want of memory.
        Lapsed = "lapsed",
    }

    /// A command that is sent to a node.
    CommandKind::ALL {
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
    AttemptResult::ALL {
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
    QueryResult::ALL {
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
    SettlementResult::ALL {
        /// The difference was charged or given back.
        Settled = "settled",
        /// It may not have been.
        Lost = "lost",
    }

    /// The kind of an error of a node.
    ErrorKind::ALL {
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
