//! The directory of the demo.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Removes a directory when its input ends, and tries until the servers that write to it have ended.
const JANITOR: &str = "cat; until rm -rf \"$1\"; do sleep 0.1; done";

/// A directory for all servers, which goes with this process, however that ends.
pub struct Directory {
    directory: TempDir,
    /// The process that removes it should this one be killed: its input ends with this.
    _janitor: Child,
}

impl Directory {
    /// Makes the directory. It is not below `TMPDIR`: the path of a unix socket is short, and nginx's workers must get here.
    pub fn make() -> Self {
        // SAFETY: takes no pointers. Workers read what is in the directory.
        unsafe { libc::umask(0o022) };
        // When root starts nginx its workers run as another user. They may traverse the directory, but not list it.
        let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let permissions = Permissions::from_mode(if is_root { 0o711 } else { 0o700 });
        let mut builder = tempfile::Builder::new();
        builder.prefix("rate-limit-redis.").rand_bytes(6).permissions(permissions);
        let directory = builder.tempdir_in("/tmp").expect("create a directory");
        let janitor = start_janitor(directory.path());
        Self { directory, _janitor: janitor }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Starts the janitor, in a group of its own, which the signals of the terminal do not get to.
fn start_janitor(directory: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", JANITOR, "janitor"]).arg(directory).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("start sh")
}
