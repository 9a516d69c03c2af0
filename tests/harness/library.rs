//! Libraries that change what a server gets from the system: see `LD_PRELOAD` in ld.so(8).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

use crate::load::run;
use crate::redis::world_readable_dir;

/// A library that a server is started with. The file goes with the last value that has it.
pub struct Library {
    path: String,
    _dir: TempDir,
}

/// The libraries that tests use now, by their names.
static COMPILED: Mutex<BTreeMap<String, Weak<Library>>> = Mutex::new(BTreeMap::new());

impl Library {
    /// The library whose source of this name, such as `slow_send`, lies beside this file. It is compiled, unless another
    /// test has it.
    pub fn compile(name: &str) -> Arc<Self> {
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = compiled.get(name).and_then(Weak::upgrade) {
            return library;
        }
        let dir = world_readable_dir("library-");
        let path = dir.path().join(name).with_extension("so").display().to_string();
        let source = format!("{}/harness/{name}.c", env!("CARGO_MANIFEST_DIR"));
        run("cc", &["-shared", "-fPIC", "-O2", "-o", &path, &source]);
        let library = Arc::new(Self { path, _dir: dir });
        compiled.insert(name.to_owned(), Arc::downgrade(&library));
        library
    }

    /// The value of `LD_PRELOAD`.
    pub fn path(&self) -> &str {
        &self.path
    }
}
