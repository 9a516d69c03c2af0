//! The events that are counted, and the names of the metrics' labels.

/// The upper bounds of both histograms, in µs: how long requests wait for a decision, and how
/// long replies and deadlines wait for the worker.
pub const BUCKETS: [u64; 13] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// The fate of a lease's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseUnits {
    /// A request has spent them.
    Used,
    /// They were given back to Redis in time.
    Returned,
    /// Their time was over, or they were lost with a command or for want of memory.
    Lapsed,
}

impl LeaseUnits {
    /// Every result.
    pub const ALL: [Self; 3] = [Self::Used, Self::Returned, Self::Lapsed];

    /// The value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Returned => "returned",
            Self::Lapsed => "lapsed",
        }
    }
}

/// A command that is sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// A script, by its SHA-1.
    Evalsha,
    /// A script, by its source.
    Eval,
    /// `ASKING`, before a command for a slot that the node is importing.
    Asking,
    /// A probe.
    Ping,
    /// `CLUSTER SLOTS`.
    Cluster,
    /// `SENTINEL GET-MASTER-ADDR-BY-NAME`.
    Sentinel,
}

impl CommandKind {
    /// Every command.
    pub const ALL: [Self; 6] =
        [Self::Evalsha, Self::Eval, Self::Asking, Self::Ping, Self::Cluster, Self::Sentinel];

    /// The value of the label `command`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evalsha => "evalsha",
            Self::Eval => "eval",
            Self::Asking => "asking",
            Self::Ping => "ping",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
        }
    }
}

/// The result of an attempt to connect to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The node has answered the handshake: commands can be sent.
    Ready,
    /// The node could not be reached, or the TLS handshake has failed.
    Refused,
    /// It was neither ready nor refused in time.
    Timeout,
    /// The node has accepted the connection and then refused the handshake, or closed the connection.
    Rejected,
}

impl AttemptResult {
    /// Every result.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Refused, Self::Timeout, Self::Rejected];

    /// Value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
        }
    }
}

/// The result of a query for the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryResult {
    /// The reply has changed the topology in use.
    Used,
    /// The reply came in time, and changed nothing.
    Unchanged,
    /// The reply came after the patience, or after that of another node, and changed nothing.
    Late,
    /// The reply is an error or not usable, or there is none.
    Failed,
}

impl QueryResult {
    /// Every result.
    pub const ALL: [Self; 4] = [Self::Used, Self::Unchanged, Self::Late, Self::Failed];

    /// Value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Unchanged => "unchanged",
            Self::Late => "late",
            Self::Failed => "failed",
        }
    }
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementResult {
    /// The difference was charged or given back.
    Settled,
    /// It may not have been.
    Lost,
}

impl SettlementResult {
    /// Every result.
    pub const ALL: [Self; 2] = [Self::Settled, Self::Lost];

    /// The value of the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Lost => "lost",
        }
    }
}

/// The kind of an error of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Connecting failed.
    Connect,
    /// A command was not answered in time.
    Timeout,
    /// Its reply was invalid.
    Protocol,
    /// It does not accept the account, or the account lacks a permission.
    Auth,
    /// A script failed.
    Script,
    /// Too many requests waited for it.
    Overload,
    /// A connection was lost.
    Lost,
    /// It could not decide: it was loading, or a replica, or its cluster was down.
    Unfit,
    /// A request was refused at once, because the node was down.
    Down,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Connect,
        Self::Timeout,
        Self::Protocol,
        Self::Auth,
        Self::Script,
        Self::Overload,
        Self::Lost,
        Self::Unfit,
        Self::Down,
    ];

    /// The value of the label `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Auth => "auth",
            Self::Script => "script",
            Self::Overload => "overload",
            Self::Lost => "lost",
            Self::Unfit => "unfit",
            Self::Down => "down",
        }
    }
}
