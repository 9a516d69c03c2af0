//! Child processes that cannot outlive the test.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::{LazyLock, Mutex, mpsc};
use std::time::Duration;

use crate::wait_until;

/// A child, and whatever it starts, in a process group of its own.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`; it gets `signal` if this process ends first.
    pub fn spawn(command: Command, signal: i32) -> io::Result<Self> {
        let (answer, spawned) = mpsc::channel();
        let job = Job { command, signal, answer };
        SPAWNER.lock().unwrap().send(job).expect("the spawner never ends");
        Ok(Self { child: spawned.recv().expect("the spawner never ends")? })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child")
    }

    /// Sends `signal`, unless the process has ended.
    pub fn signal(&mut self, signal: i32) {
        if self.ended().is_none() {
            kill(self.id() as i32, signal);
        }
    }

    /// Waits until the process has ended; panics if that takes longer than `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let what = format!("end of process {}", self.id());
        wait_until(timeout, || self.ended().is_some(), &what);
        self.ended().expect("it has ended")
    }

    /// Ends the process and its whole group at once.
    pub fn kill(&mut self) {
        kill(-(self.id() as i32), libc::SIGKILL);
        self.child.wait().expect("wait for a child");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends `signal` to the process `id`, or to a whole group by its negative id.
pub fn kill(id: i32, signal: i32) {
    // SAFETY: takes no pointers; a process that is gone is an error, which is ignored.
    unsafe { libc::kill(id, signal) };
}

struct Job {
    command: Command,
    signal: i32,
    answer: mpsc::Sender<io::Result<Child>>,
}

/// The kernel ties a child's death signal to the thread that forked it, and a test's thread may
/// end before its server: so one thread, which lives as long as the process, forks them all.
static SPAWNER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (jobs, queue) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        for Job { mut command, signal, answer } in queue {
            command.process_group(0);
            die_with_parent(&mut command, signal);
            // The caller may be gone; then the answer is dropped.
            let _ = answer.send(command.spawn());
        }
    });
    Mutex::new(jobs)
});

fn die_with_parent(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    let bind = move || {
        // SAFETY: a system call without pointers.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before the signal was set.
        if std::os::unix::process::parent_id() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec, `bind` makes two system calls and neither allocates nor locks.
    unsafe { command.pre_exec(bind) };
}
