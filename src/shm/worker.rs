//! The processes of workers, and how a worker sees a node, in one word.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use ngx::ffi::{ngx_pid, ngx_worker};
use rate_limit_core::client::{NodeState, View};

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

/// The number of this worker.
pub(crate) fn worker_number() -> usize {
    // SAFETY: NGINX sets it before it runs any hook of a process.
    unsafe { ngx_worker }
}

/// The number of this process.
pub(super) fn process_id() -> u32 {
    // SAFETY: NGINX sets it before it runs any hook of a process.
    u32::try_from(unsafe { ngx_pid }).unwrap_or(u32::MAX)
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

/// A worker has at most 64 connections to a node: either count has 7 bits.
const LARGEST_COUNT: u32 = 0x7f;

/// How the worker of this process sees a node, as a word: `process: 16 | ready: 7 | connecting: 7 | state: 2`. A node that is
/// none of its store has only the process, of whose ID the lower half is enough to distinguish a worker from the one that it
/// has replaced.
pub(super) fn to_word(pid: u32, view: Option<View>) -> u32 {
    let Some(View { ready, connecting, state }) = view else { return pid << 16 };
    let count = |count| u32::try_from(count).unwrap_or(u32::MAX).min(LARGEST_COUNT);
    let state = match state {
        NodeState::Up => 1,
        NodeState::Slow => 2,
        NodeState::Open => 3,
    };
    pid << 16 | count(ready) << 9 | count(connecting) << 2 | state
}

/// Whether the word is one of this process.
pub(super) fn is_of(word: u32, pid: u32) -> bool {
    word >> 16 == pid & 0xffff
}

/// How this process sees the node, if the word is one of it, and the node one of its store.
pub(super) fn of_word(word: u32, pid: u32) -> Option<View> {
    let state = match word & 3 {
        1 => NodeState::Up,
        2 => NodeState::Slow,
        3 => NodeState::Open,
        _ => return None,
    };
    let count = |shift| (word >> shift & LARGEST_COUNT) as usize;
    is_of(word, pid).then(|| View { ready: count(9), connecting: count(2), state })
}
