//! The file of a password, as a worker reads it.

use std::io::{Error, ErrorKind, Result};

use ngx::ffi::NGX_LOG_ERR;
use rate_limit_core::conf::store::password;

use crate::log::{cycle_log, log};
use crate::secret_file;

/// The file of a password. The master process has read it first, perhaps as root. A worker reads it before it logs in on a
/// connection: to connect takes longer.
pub(crate) struct PasswordFile {
    path: String,
    /// Whether this worker has ever read it.
    was_read: bool,
    /// Whether it was logged that it cannot be read, and it has not been read since.
    is_logged: bool,
}

impl PasswordFile {
    /// The file at `path`.
    pub(crate) fn new(path: String) -> Self {
        Self { path, was_read: false, is_logged: false }
    }

    /// The password in it. If it cannot be read that is logged, until it can, and the one before stays in use. A
    /// file that the worker may not read, and never could, is one for the master process alone.
    pub(crate) fn read(&mut self) -> Option<String> {
        match read(&self.path) {
            Ok(password) => {
                (self.was_read, self.is_logged) = (true, false);
                Some(password)
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !self.was_read => None,
            Err(error) => {
                if !std::mem::replace(&mut self.is_logged, true) {
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

fn read(path: &str) -> Result<String> {
    let none = || Error::new(ErrorKind::InvalidData, "there is no password in its first line");
    password(&secret_file::read_text(path)?).map(str::to_owned).ok_or_else(none)
}
