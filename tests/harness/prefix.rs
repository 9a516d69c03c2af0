//! An nginx that is there for more than a test.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Process, mortal};
use crate::{PATIENCE, holds_within};

/// The nginx of the `PATH`, in a directory that somebody else has laid out. It fails nothing when it is dropped.
pub struct Prefix {
    dir: PathBuf,
    process: Process,
}

impl Prefix {
    /// Starts nginx with the `nginx.conf` in this directory, which has it write `nginx.pid`. Messages from before it has
    /// logs go to `stderr.log`.
    pub fn start(dir: &Path) -> io::Result<Self> {
        Ok(Self { dir: dir.to_owned(), process: spawn(dir)? })
    }

    /// Starts nginx again; ends it first if it runs, and whatever an end of its master has left.
    pub fn restart(&mut self) -> io::Result<()> {
        self.process.kill();
        // One that was killed leaves it.
        let _ = fs::remove_file(self.dir.join("nginx.pid"));
        self.process = spawn(&self.dir)?;
        Ok(())
    }

    /// Whether it has its ports: it writes its pid file then.
    pub fn serves(&self) -> bool {
        fs::metadata(self.dir.join("nginx.pid")).is_ok_and(|file| file.len() > 0)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.ended().is_some()
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        // Again and again: a signal is lost on one that has not come to listen to it.
        let process = &mut self.process;
        holds_within(PATIENCE, || {
            process.signal(libc::SIGTERM);
            process.ended().is_some()
        });
    }
}

fn spawn(dir: &Path) -> io::Result<Process> {
    let log = File::create(dir.join("stderr.log"))?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(dir).args(["-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"]);
    Process::spawn_apart(&mortal(&command, "TERM"), log)
}
