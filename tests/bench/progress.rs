//! How far a run is: one line that changes on a terminal, plain lines elsewhere.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Instant;

/// Counts the seconds of work that are planned, and guesses those that are left from how long they really take.
pub struct Progress {
    planned: f64,
    done: f64,
    started: Instant,
    is_terminal: bool,
}

impl Progress {
    /// Begins work that should take so many seconds.
    pub fn of(planned: f64) -> Self {
        let is_terminal = stderr().is_terminal();
        Self { planned, done: 0.0, started: Instant::now(), is_terminal }
    }

    /// Says what begins now, and that it should take so long.
    pub fn step(&mut self, what: &str, seconds: f64) {
        let passed = self.started.elapsed().as_secs_f64();
        let pace = if self.done > 5.0 { passed / self.done } else { 1.0 };
        let left = ((self.planned - self.done).max(0.0) * pace.max(1.0)) as u64;
        let share = (100.0 * self.done / self.planned).min(99.0) as u64;
        let line = format!("[{share:2} %, {}:{:02} left] {what}", left / 60, left % 60);
        let line = match self.is_terminal {
            true => format!("\r\x1b[K{line:.110}"),
            false => line + "\n",
        };
        let _ = stderr().write_all(line.as_bytes());
        self.done += seconds;
    }

    /// Takes the line away.
    pub fn end(&self) {
        if self.is_terminal {
            let _ = stderr().write_all(b"\r\x1b[K");
        }
    }
}
