//! What is counted, and the names of the metrics' labels.

/// The upper bounds of both histograms, in µs: how long requests wait for a decision, and how
/// long replies and deadlines wait for the worker.
pub const BUCKETS: [u64; 13] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// What becomes of the units of leases.
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

    /// As the label `result`.
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
pub enum Command {
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

impl Command {
    /// Every command.
    pub const ALL: [Self; 6] =
        [Self::Evalsha, Self::Eval, Self::Asking, Self::Ping, Self::Cluster, Self::Sentinel];

    /// As the label `command`.
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

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The difference was charged or given back.
    Settled,
    /// It may not have been.
    Lost,
}

impl Settlement {
    /// Every result.
    pub const ALL: [Self; 2] = [Self::Settled, Self::Lost];

    /// As the label `result`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Lost => "lost",
        }
    }
}

/// What goes wrong with a node.
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

    /// As the label `kind`.
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
