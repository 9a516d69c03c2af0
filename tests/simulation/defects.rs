//! The search for known defects: patches in the folder beside this file, each of which makes the client wrong.
//!
//! It happens in a copy of the sources, so that nothing of a defect can stay behind. All of them share a directory of what is
//! built.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::stop::{self, Stop};
use harness::{Process, mortal};
use tempfile::TempDir;

const FOLDER: &str = "tests/simulation/defects";

/// The files and folders that the simulation is built from.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "build.rs", "core", "src", "tests"];

/// How much of a panic is shown, in characters.
const SHOWN: usize = 90;

/// How often it is looked whether a program has ended or a signal has come.
const TURN: Duration = Duration::from_millis(20);

/// The outcome of the search for a defect.
enum Outcome {
    Found {
        after: Duration,
        /// The first line of the panic.
        panic: String,
    },
    NotFound,
    /// The simulation failed, and no promise did.
    Broken,
    DoesNotApply,
    DoesNotCompile,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Self::Found { after, panic } => {
                write!(f, "found in {:>2} s: {panic}", after.as_secs())
            }
            Self::NotFound => f.write_str("NOT FOUND"),
            Self::Broken => f.write_str("fails without a panic"),
            Self::DoesNotApply => f.write_str("does not apply"),
            Self::DoesNotCompile => f.write_str("does not compile"),
        }
    }
}

/// Looks for the defects of these names, or for all of them if there are none. What is built for that is in `target`.
pub fn find(names: &[String], target: &Path) -> Result<(), Stop> {
    let names = chosen(names)?;
    let root = std::env::current_dir().expect("the root of the checkout");
    let copy = TempDir::new().expect("a directory for a copy of the sources");
    let search = Search { root: &root, copy: copy.path(), target };
    let mut missed = 0;
    for name in names {
        let outcome = search.outcome(&name)?;
        println!("{name:<36} {outcome}");
        missed += usize::from(!matches!(outcome, Outcome::Found { .. }));
    }
    match missed {
        0 => Ok(()),
        _ => Err(Stop::Failure(format!("{missed} defects were not found"))),
    }
}

/// The names of the defects to be found, in the order of the alphabet.
fn chosen(names: &[String]) -> Result<Vec<String>, String> {
    let folder = fs::read_dir(FOLDER).expect(FOLDER);
    let files = folder.map(|entry| entry.expect(FOLDER).file_name());
    let mut known: Vec<_> =
        files.filter_map(|file| Some(file.to_str()?.strip_suffix(".patch")?.to_owned())).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("no defect '{name}': --defects takes names of patches in {FOLDER}"));
    }
    known.retain(|name| names.is_empty() || names.contains(name));
    known.sort();
    Ok(known)
}

struct Search<'a> {
    /// The directory of the sources as they are.
    root: &'a Path,
    /// The directory of their copy and of the log.
    copy: &'a Path,
    /// The directory of what is built.
    target: &'a Path,
}

impl Search<'_> {
    fn outcome(&self, name: &str) -> Result<Outcome, Stop> {
        self.copy_sources()?;
        let patch = self.root.join(FOLDER).join(format!("{name}.patch"));
        let mut command = Command::new("patch");
        if !self.succeeds(command.args(["--quiet", "--strip=1", "--input"]).arg(patch))? {
            self.show_log();
            return Ok(Outcome::DoesNotApply);
        }
        if !self.cargo("build", &["--all-targets"])? {
            self.show_log();
            return Ok(Outcome::DoesNotCompile);
        }
        let started = Instant::now();
        let is_found = !self.cargo("test", &["fleet::quality", "--", "--nocapture"])?
            || !self.cargo("run", &["--", "--seed", "1", "--minutes", "1"])?;
        let after = started.elapsed();
        Ok(match (is_found, self.panic()) {
            (true, Some(panic)) => Outcome::Found { after, panic },
            (true, None) => {
                self.show_log();
                Outcome::Broken
            }
            (false, _) => Outcome::NotFound,
        })
    }

    /// Files as new as this, or cargo would take what is built of another defect.
    fn copy_sources(&self) -> Result<(), Stop> {
        let folder = self.sources();
        if folder.exists() {
            fs::remove_dir_all(&folder).expect("remove the copy before");
        }
        fs::create_dir(&folder).expect("a directory for a copy of the sources");
        let mut command = Command::new("cp");
        command.args(["--recursive", "--target-directory=."]);
        command.args(SOURCES.map(|name| self.root.join(name)));
        match self.succeeds(&mut command)? {
            true => Ok(()),
            false => Err(Stop::Failure(format!("the sources are not copied: {}", self.log()))),
        }
    }

    fn cargo(&self, what: &str, words: &[&str]) -> Result<bool, Stop> {
        let mut command = Command::new("cargo");
        command.args([what, "--locked", "--quiet", "--package", "rate-limit-simulation"]);
        command.env("CARGO_TARGET_DIR", self.target).env("RUST_BACKTRACE", "0");
        self.succeeds(command.args(words))
    }

    /// Whether a program succeeds in the copy. Its messages are in the log.
    fn succeeds(&self, command: &mut Command) -> Result<bool, Stop> {
        let mut command = mortal(command, "KILL");
        command.current_dir(self.sources());
        let log = File::create(self.log_file()).expect("a log");
        // It ends with this, and all that it has started.
        let mut process = Process::spawn_logged(command, log).expect("start a program");
        loop {
            stop::check()?;
            if let Some(status) = process.ended() {
                return Ok(status.success());
            }
            thread::sleep(TURN);
        }
    }

    fn sources(&self) -> PathBuf {
        self.copy.join("sources")
    }

    fn log_file(&self) -> PathBuf {
        self.copy.join("log")
    }

    fn log(&self) -> String {
        let log = fs::read(self.log_file()).expect("the log");
        String::from_utf8_lossy(&log).into_owned()
    }

    fn show_log(&self) {
        eprint!("{}", self.log());
    }

    /// The first line of the first panic in the log, if there is one.
    fn panic(&self) -> Option<String> {
        let log = self.log();
        let mut lines = log.lines();
        lines.find(|line| line.starts_with("thread ") && line.contains(" panicked at "))?;
        Some(lines.next()?.chars().take(SHOWN).collect())
    }
}
