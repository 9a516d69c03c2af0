//! Failures and signals of the user, which end a tool before its time.

use std::io::{self, Write as _};
use std::panic::{self, UnwindSafe, resume_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::holds_within;

/// How long a signal waits for what is under way.
const GRACE: Duration = Duration::from_secs(5);

/// How often it is looked whether a signal has come: rarely, as what is measured may have the same core.
const TURN: Duration = Duration::from_millis(50);

/// Why a tool ends.
pub enum Stop {
    /// A failure, with its message.
    Failure(String),
    /// Something that the user knows, with this exit status.
    Silent(u8),
}

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Failure(message)
    }
}

/// Runs a tool of this name, and returns its status. Failures and panics, as of a server that does not start, become
/// messages on stderr.
pub fn run_tool(
    name: &'static str,
    tool: impl FnOnce() -> Result<ExitCode, Stop> + UnwindSafe,
) -> ExitCode {
    panic::set_hook(Box::new(move |panic| {
        fail(name, panic.payload_as_str().unwrap_or("unexpected error"));
    }));
    // The hook has shown a panic.
    panic::catch_unwind(tool).map_or(ExitCode::FAILURE, |result| status(name, result))
}

/// The status of a tool of this name that ends so. A failure becomes a message on stderr.
pub fn status(name: &str, result: Result<ExitCode, Stop>) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(Stop::Silent(status)) => ExitCode::from(status),
        Err(Stop::Failure(message)) => {
            fail(name, &message);
            ExitCode::FAILURE
        }
    }
}

fn fail(name: &str, message: &str) {
    let _ = writeln!(io::stderr(), "{name}: {message}");
}

/// The first signal that has come, or 0. Another one does not end half-way what the first one began.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: i32) {
    let _ = SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
}

/// Has the signals by which a user ends a tool seen by [`check`].
pub fn catch_signals() {
    let handler: extern "C" fn(i32) = on_signal;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does nothing but access an atomic.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        // A signal stays ignored if it was, with nohup or in the background of a script.
        if before == libc::SIG_IGN {
            // SAFETY: no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// Fails once a signal has come.
pub fn check() -> Result<(), Stop> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        libc::SIGINT => Err(Stop::Silent(130)),
        _ => Err(Stop::Silent(143)),
    }
}

/// Sleeps for so long, unless a signal comes.
pub fn sleep(time: Duration) -> Result<(), Stop> {
    let start = Instant::now();
    while start.elapsed() < time {
        check()?;
        thread::sleep(TURN.min(time.saturating_sub(start.elapsed())));
    }
    Ok(())
}

/// Does what may take a while. After a signal it has a grace, so that what it has started ends in order; else that ends with
/// this process.
pub fn unless_stopped<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stop> {
    let worker = thread::spawn(work);
    while !worker.is_finished() && check().is_ok() {
        thread::sleep(TURN);
    }
    let is_done = holds_within(GRACE, || worker.is_finished());
    let result = is_done.then(|| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
    check()?;
    Ok(result.expect("no end without a signal"))
}
