//! The processes of workers, and how a worker sees a node, in one word.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many workers have a view of a node: half of the processes that NGINX can have. The connections
/// of any more are not counted.
const WORKERS: usize = 512;

/// A number for each worker.
#[repr(transparent)]
pub(super) struct PerWorker([AtomicU32; WORKERS]);

impl PerWorker {
    /// The number of a worker.
    pub(super) fn of(&self, worker: usize) -> Option<&AtomicU32> {
        self.0.get(worker)
    }

    /// Where the numbers are processes: those that still run, by worker.
    pub(super) fn living(&self) -> Vec<(usize, u32)> {
        let pids = self.0.iter().map(|pid| pid.load(Ordering::Relaxed));
        pids.enumerate().filter(|(_, pid)| is_living(*pid)).collect()
    }
}

impl Default for PerWorker {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; WORKERS])
    }
}

/// Whether there is such a process. One of another user is none of our workers.
pub(super) fn is_living(pid: u32) -> bool {
    pid > 0 && probe(pid).is_ok()
}

/// Whether there may be such a process, of whatever user.
pub(super) fn may_be_living(pid: u32) -> bool {
    !matches!(probe(pid), Err(error) if error.raw_os_error() == Some(libc::ESRCH))
}

fn probe(pid: u32) -> io::Result<()> {
    let Ok(pid) = i32::try_from(pid) else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: no signal is sent.
    match unsafe { libc::kill(pid, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How a worker sees a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The worker's process.
    pub(crate) pid: u32,
    /// The state of the node, as the worker sees it.
    pub(crate) state: NodeState,
    /// How many of its connections can be used.
    pub(crate) ready: u8,
    /// How many are being made.
    pub(crate) connecting: u8,
}

/// The state of a node, as a worker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// None of its store.
    #[default]
    Unknown,
    /// The node is sent requests.
    Up,
    /// The node is sent requests, but owes replies for too long.
    Slow,
    /// The node is sent no requests.
    Open,
}

impl View {
    /// The lower half of the process ID is enough to distinguish a worker from the one that it has
    /// replaced.
    pub(super) fn to_word(self) -> u32 {
        let [low, high, ..] = self.pid.to_le_bytes();
        let with = |count: u8, flag| count.min(LARGEST_COUNT) | if flag { FLAG } else { 0 };
        let (first, second) = match self.state {
            NodeState::Unknown => (false, false),
            NodeState::Up => (true, false),
            NodeState::Slow => (false, true),
            NodeState::Open => (true, true),
        };
        let [ready, connecting] = [with(self.ready, first), with(self.connecting, second)];
        u32::from_le_bytes([low, high, ready, connecting])
    }

    /// The view of this process, if the word is one of it.
    pub(super) fn of_word(word: u32, pid: u32) -> Option<Self> {
        let [_, _, ready, connecting] = word.to_le_bytes();
        let state = match (ready & FLAG != 0, connecting & FLAG != 0) {
            (false, false) => NodeState::Unknown,
            (true, false) => NodeState::Up,
            (false, true) => NodeState::Slow,
            (true, true) => NodeState::Open,
        };
        let [ready, connecting] = [ready, connecting].map(|byte| byte & LARGEST_COUNT);
        let view = Self { pid, state, ready, connecting };
        (view.to_word() == word).then_some(view)
    }
}

/// A worker has at most 64 connections to a node, so there is a bit left in the byte of a count: the
/// state has two.
const LARGEST_COUNT: u8 = 0x7f;
const FLAG: u8 = 0x80;
