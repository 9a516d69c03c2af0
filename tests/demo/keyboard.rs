//! Keys that are pressed in the terminal.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::mem::MaybeUninit;

/// The terminal at the input, if there is one: keys are read as they are pressed, and not echoed.
pub struct Keyboard {
    is_there: bool,
    /// The settings that the terminal had.
    before: Option<libc::termios>,
}

impl Keyboard {
    /// The keyboard, where there is something that keys are for.
    pub fn find(is_wanted: bool) -> Self {
        Self { is_there: is_wanted && io::stdin().is_terminal(), before: None }
    }

    /// Whether keys can be pressed.
    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// The keys that have been pressed. It does not wait for them: this may not be the job in the foreground any more then.
    pub fn pressed(&mut self) -> Vec<u8> {
        let mut keys = [0; 16];
        let mut number = 0;
        if self.is_there && is_foreground() {
            self.prepare();
            if has_input() {
                number = io::stdin().read(&mut keys).unwrap_or(0);
            }
        }
        keys[..number].to_vec()
    }

    /// Has the terminal hand out each key at once. A shell may have set it to something else since.
    fn prepare(&mut self) {
        let Some(mut settings) = settings() else { return };
        if settings.c_lflag & libc::ICANON == 0 {
            return;
        }
        self.before = Some(settings);
        settings.c_lflag &= !(libc::ICANON | libc::ECHO);
        set(&settings);
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        if let Some(before) = self.before.filter(|_| is_foreground()) {
            set(&before);
        }
    }
}

/// Whether the terminal is this job's at the moment. Were it another one's, using it would stop this one.
fn is_foreground() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name: the state, the parent, the group, the session, the terminal and its group, if it has one.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let fields: Vec<_> = fields.collect();
    let [_, _, group, _, _, foreground, ..] = fields[..] else { return false };
    group == foreground || foreground.starts_with(['-', '0'])
}

/// Whether there is something to read, or the terminal is gone.
fn has_input() -> bool {
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: it points to one structure of this type. It does not wait.
    unsafe { libc::poll(&mut input, 1, 0) > 0 }
}

/// The settings of the terminal.
fn settings() -> Option<libc::termios> {
    let mut settings = MaybeUninit::uninit();
    // SAFETY: it points to memory of this type, which is written unless the call fails.
    let result = unsafe { libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) };
    // SAFETY: it is written.
    (result == 0).then(|| unsafe { settings.assume_init() })
}

/// Sets the terminal, once it has put out what it has.
fn set(settings: &libc::termios) {
    // SAFETY: it points to settings that the terminal had, but for some flags and times.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, settings) };
}
