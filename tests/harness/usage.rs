//! The resources of a process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use crate::library::Library;

/// Marks the counts in the memory of a process: see counted_blocks.c.
const MARK: &[u8; 16] = b"counted blocks:\0";

/// The resources of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its descriptors: how many of each kind, such as `socket` or the path of a file.
    pub descriptors: BTreeMap<String, usize>,
    /// The blocks of memory that it has taken and not freed.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
}

impl Usage {
    /// Usage of the process `pid`, which runs with [`Library::counted_blocks`].
    pub fn of(pid: u32) -> Self {
        let [blocks, bytes, _] = counts(pid).expect("a process that counts its blocks");
        Self { descriptors: descriptors(pid), blocks, bytes }
    }
}

impl Library {
    /// Has a process count the blocks of memory that it takes.
    pub fn counted_blocks() -> Arc<Self> {
        Self::compile("counted_blocks")
    }
}

/// The counts in the memory of the library, as the process has them.
fn counts(pid: u32) -> Option<[u64; 3]> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let is_own = |line: &&str| line.contains(" rw-p ") && line.ends_with("/counted_blocks.so");
    maps.lines().filter(is_own).find_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let (start, end) = (start.ok()?, end.ok()?);
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).ok()?;
        let at = bytes.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
        let word = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        Some([word(at)?, word(at + 8)?, word(at + 16)?])
    })
}

/// How often the process `pid`, which runs with [`Library::counted_blocks`], has taken a block of memory.
pub fn allocations(pid: u32) -> u64 {
    let [_, _, allocations] = counts(pid).expect("a process that counts its blocks");
    allocations
}

/// The CPU time of this process.
pub fn cpu_of_this() -> Duration {
    cpu_time(libc::RUSAGE_SELF)
}

/// The CPU time of the processes that this one has started, and that have ended.
pub fn cpu_of_children() -> Duration {
    cpu_time(libc::RUSAGE_CHILDREN)
}

fn cpu_time(who: i32) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, for which there is room.
    let result = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    assert_eq!(result, 0, "getrusage");
    // SAFETY: it consists of numbers, so that zeros are one too.
    let usage = unsafe { usage.assume_init() };
    let micros = |time: libc::timeval| (1_000_000 * time.tv_sec + time.tv_usec).unsigned_abs();
    Duration::from_micros(micros(usage.ru_utime) + micros(usage.ru_stime))
}

/// How often the process `pid` was woken since it has started.
pub fn wakes(pid: u32) -> u64 {
    field(pid, "voluntary_ctxt_switches")
}

fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors of a process");
    let mut kinds = BTreeMap::new();
    // One that was closed meanwhile has no target any more.
    for target in entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()) {
        // `socket:[12345]` has a number of its own.
        let target = target.display().to_string();
        let kind = target.split(":[").next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// A number in `/proc/PID/status`.
fn field(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the state of a process");
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = value.unwrap_or_else(|| panic!("no {name} of process {pid}"));
    value.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::{PATIENCE, Process, mortal, wait_until};

    #[test]
    fn is_counted_of_another_process() {
        let library = Library::counted_blocks();
        let mut command = Command::new("sh");
        // A shell keeps what is in a variable.
        command.args(["-c", "exec 9>/dev/null; a=$(head -c 100000 /dev/zero | tr '\\0' x); while :; do sleep 1; done"]);
        command.env("LD_PRELOAD", library.path());
        let mut command = mortal(&command, "KILL");
        command.stdout(Stdio::null());
        let process = Process::spawn(command).expect("run sh");
        let kept = || counts(process.id()).is_some_and(|[_, bytes, _]| bytes > 100_000);
        wait_until(PATIENCE, kept, "what the shell keeps");
        let usage = Usage::of(process.id());
        assert!(usage.blocks > 0 && usage.descriptors["/dev/null"] >= 2, "{usage:?}");
        assert!(allocations(process.id()) >= usage.blocks);
        assert!(wakes(process.id()) > 0);
    }
}
