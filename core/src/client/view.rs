//! A node for the metrics: its state, and its counts since they were taken last.

use crate::metrics::{CommandKind, ErrorKind};

/// The state of a node, as the metrics show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// How many connections can be used.
    pub ready: usize,
    /// How many are being made.
    pub connecting: usize,
    /// Whether requests are sent to it, and answered.
    pub state: NodeState,
}

/// Whether requests are sent to a node, and answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It is sent requests.
    #[default]
    Up,
    /// It is sent requests, but owes replies for too long.
    Slow,
    /// It is sent no requests.
    Open,
}

/// The counts of a node since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands that were sent, in the order of [`CommandKind::ALL`].
    pub commands: [u32; CommandKind::ALL.len()],
    /// Errors, in the order of [`ErrorKind::ALL`].
    pub errors: [u32; ErrorKind::ALL.len()],
    /// Requests that it did not decide.
    pub undecided: u32,
    /// Whether it has answered a command after those.
    pub has_answered: bool,
}
