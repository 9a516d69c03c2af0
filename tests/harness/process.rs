//! Child processes that cannot outlive the test.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::wait_until;

/// A child, and whatever it starts, in a process group of its own.
pub struct Process {
    child: Child,
    /// The thread that has forked it ends with this.
    _parent: Sender<()>,
}

impl Process {
    /// Starts a [`mortal`] command.
    ///
    /// The kernel ties a child's death signal to the thread that forked it, and a test's thread may end before its server:
    /// so each child has a thread that lives as long. It forks no other child: all signals are blocked meanwhile, and then
    /// the end of one that it has already would interrupt any other thread, in a system call that is not restarted.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        Self::spawn_leader(command)
    }

    /// Starts a [`mortal`] command that makes a process group of its own.
    fn spawn_leader(mut command: Command) -> io::Result<Self> {
        let (answer, spawned) = channel();
        let (parent, dropped) = channel();
        thread::spawn(move || {
            let _ = answer.send(command.spawn());
            let _ = dropped.recv();
        });
        Ok(Self { child: spawned.recv().expect("an answer")?, _parent: parent })
    }

    /// Starts a [`mortal`] command whose output goes to this file.
    pub fn spawn_logged(mut command: Command, log: File) -> io::Result<Self> {
        command.stdout(log.try_clone()?).stderr(log);
        Self::spawn(command)
    }

    /// Starts a [`mortal`] command whose output goes to this file, in a session of its own and without input: it has no
    /// access to the terminal of this process, whose user may be another one.
    pub fn spawn_apart(command: &Command, log: File) -> io::Result<Self> {
        let mut session = Command::new("setsid");
        append(&mut session, command);
        session.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Self::spawn_leader(session)
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
        // Its group may not be there yet.
        kill(self.id() as i32, libc::SIGKILL);
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

/// `command`, which gets `signal`, such as `KILL`, if this process ends first. Its streams are still to be set.
///
/// The program `setpriv` sees to that. A function that ran between fork and exec would cost a copy of the tables of all
/// memory of the tests, for each of some ten thousand processes. One that `setpriv` has not come to yet when this process
/// ends outlives it.
pub fn mortal(command: &Command, signal: &str) -> Command {
    let mut mortal = Command::new("setpriv");
    mortal.args(["--pdeathsig", signal]);
    append(&mut mortal, command);
    mortal
}

/// The command that starts a program by the words of another one, if there are any.
pub(crate) fn wrapped(wrapper: &[String], program: impl AsRef<OsStr>) -> Command {
    let Some((outer, words)) = wrapper.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(outer);
    command.args(words).arg(program);
    command
}

/// Adds a command, with its environment, to the words of another one, which runs it.
pub(crate) fn append(outer: &mut Command, command: &Command) {
    outer.arg(command.get_program()).args(command.get_args());
    outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
}
