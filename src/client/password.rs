//! The file of a password, as a worker reads it.

use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use ngx::ffi::NGX_LOG_ERR;
use rate_limit_core::conf::store::password;

use crate::log::{cycle_log, log};

/// How much of a file is read: a password stands in its first line, and a token takes some KB.
const MOST: u64 = 64 << 10;

/// The file of a password. The master process has read it first, perhaps as root.
///
/// A worker reads it on its only thread. That is a few system calls for a page or two which lie in the page cache of
/// the kernel, some 20 µs: less than the connection costs for which it is read. A pipe, from which one could wait
/// for bytes, is no file here.
pub(crate) struct PasswordFile {
    path: String,
    /// Whether this worker has ever read it.
    was_read: bool,
    /// Whether it was told that it cannot be read, and that is so still.
    is_told: bool,
}

impl PasswordFile {
    /// The file at `path`.
    pub(crate) fn new(path: String) -> Self {
        Self { path, was_read: false, is_told: false }
    }

    /// The password in it. If it cannot be read that is logged, until it can, and the one before stays in use. A
    /// file that the worker may not read, and never could, is one for the master process alone.
    pub(crate) fn read(&mut self) -> Option<String> {
        match read(&self.path) {
            Ok(password) => {
                (self.was_read, self.is_told) = (true, false);
                Some(password)
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !self.was_read => None,
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    let path = &self.path;
                    log!(
                        NGX_LOG_ERR,
                        cycle_log(),
                        "cannot read \"{path}\" of \"password_file\": {error}; the password before stays in use"
                    );
                }
                None
            }
        }
    }
}

fn read(path: &str) -> io::Result<String> {
    let file = open(path)?;
    let mut content = String::new();
    file.take(MOST).read_to_string(&mut content)?;
    let none = || Error::new(ErrorKind::InvalidData, "there is no password in its first line");
    password(&content).map(str::to_owned).ok_or_else(none)
}

fn open(path: &str) -> io::Result<File> {
    // Without the flag a pipe that nobody writes to would be waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}
