//! `scripts/run` and other scripts, as a user starts them.

use std::fs;
use std::io::PipeWriter;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::process::{Process, mortal};
use crate::wait_until;

/// The module may have to be built first.
const PATIENCE: Duration = Duration::from_secs(900);

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/run");

/// A run of a script, and its output so far.
pub struct ScriptRun {
    /// The script, or the terminal around it.
    pub process: Process,
    output: NamedTempFile,
}

impl ScriptRun {
    /// `scripts/run` without a terminal.
    pub fn demo(arguments: &[&str]) -> Self {
        let mut command = Command::new(SCRIPT);
        command.args(arguments);
        Self::of(command)
    }

    /// `scripts/run` in a terminal: what is written to the pipe is what its keys send.
    pub fn demo_in_terminal(arguments: &str) -> (Self, PipeWriter) {
        let (terminal, keys) = std::io::pipe().expect("a pipe");
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--flush", "--command"]);
        // A job in the background of a shell ignores these, and so would all that the tests start.
        let signals = "env --default-signal=INT,QUIT";
        command.arg(format!("exec {signals} {SCRIPT} {arguments}")).arg("/dev/null");
        (Self::with_input(command, terminal.into()), keys)
    }

    /// A script without input.
    pub fn of(command: Command) -> Self {
        Self::with_input(command, Stdio::null())
    }

    fn with_input(command: Command, input: Stdio) -> Self {
        let output = NamedTempFile::new().expect("a file");
        let mut command = mortal(&command, "TERM");
        command.stdin(input);
        let file = fs::File::options().append(true).open(output.path()).expect("open the file");
        command.stdout(file.try_clone().expect("a second handle")).stderr(file);
        Self { process: Process::spawn(command).expect("run it"), output }
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.output.path()).expect("read its output")
    }

    /// Waits until it has written `text` so many times; panics if it ends before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str, times: usize) {
        let mut ended = false;
        let is_written = || {
            ended = self.process.ended().is_some();
            ended || self.output().matches(text).count() >= times
        };
        wait_until(PATIENCE, is_written, text);
        assert!(!ended, "it ended before {text}:\n{}", self.output());
    }

    /// Where the nginx of the demo are, once it is ready.
    pub fn machines(&mut self) -> Vec<SocketAddr> {
        self.wait_for("Ctrl-C ends", 1);
        let output = self.output();
        let (_, rest) = output.split_once("three nginx serve ").expect("where they are");
        let urls = rest.lines().next().expect("a line").split_whitespace();
        urls.map(|url| url.trim_start_matches("http://").parse().expect("an address")).collect()
    }

    /// Waits for its end: the status, 143 if it was terminated, and all of its output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.ended() {
                return (status.code(), self.output());
            }
            assert!(start.elapsed() < PATIENCE, "it does not end:\n{}", self.output());
            thread::sleep(Duration::from_millis(10));
        }
    }
}
