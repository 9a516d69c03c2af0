//! The processes of workers.

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
