//! Libraries that change what a server gets from the system: see `LD_PRELOAD` in ld.so(8).

use tempfile::TempDir;

use crate::load::run;
use crate::redis::world_readable_dir;

/// A library that a server is started with. The file goes with the value.
pub struct Library {
    path: String,
    _dir: TempDir,
}

impl Library {
    /// Compiles the source of this name, such as `slow_send`, that lies beside this file.
    pub fn compile(name: &str) -> Self {
        let dir = world_readable_dir("library-");
        let path = dir.path().join(name).with_extension("so").display().to_string();
        let source = format!("{}/harness/{name}.c", env!("CARGO_MANIFEST_DIR"));
        run("cc", &["-shared", "-fPIC", "-O2", "-o", &path, &source]);
        Self { path, _dir: dir }
    }

    /// The value of `LD_PRELOAD`.
    pub fn path(&self) -> &str {
        &self.path
    }
}
