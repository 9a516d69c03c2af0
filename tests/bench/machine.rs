//! The machine: its cores and who runs on which, and the CPU time that a process has used.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use harness::run;
use harness::stop::{self, Stop};

/// The kernel's unit of CPU time, a hundredth of a second on every machine that runs Linux today.
const TICKS: f64 = 100.0;

/// Which cores whom, as taskset takes them.
#[derive(Clone)]
pub struct Pinning {
    pub nginx: String,
    pub redis: String,
    pub load: String,
    /// Every core, for loads that one is not enough for.
    pub all: String,
}

impl Pinning {
    /// The worker gets a core of its own, so that nothing takes time from what is measured. Where there are only two,
    /// Redis and the load share the other: that slows what asks Redis, and nothing else, which favours `limit_req`.
    pub fn of_this_machine() -> Self {
        let cores = cores();
        let core = |n: usize| cores[n.min(cores.len() - 1)].to_string();
        Self { nginx: core(0), redis: core(1), load: core(2), ..Self::none() }
    }

    /// Everybody everywhere.
    pub fn none() -> Self {
        let all = cores().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        Self { nginx: all.clone(), redis: all.clone(), load: all.clone(), all }
    }
}

/// Binds this process, in which clients and proxies run, to where the load is. From then on it does not see other cores.
pub fn bind(pinning: &Pinning) {
    run("taskset", &["--all-tasks", "-cp", &pinning.load, &std::process::id().to_string()]);
}

/// The command that binds another one to these cores.
pub fn on(cores: &str) -> [&str; 3] {
    ["taskset", "-c", cores]
}

/// The cores that this process may use.
fn cores() -> Vec<u32> {
    let list = field("/proc/self/status", "Cpus_allowed_list:").expect("a list of cores");
    let number = |text: &str| text.parse::<u32>().expect("the number of a core");
    let range = |range: &str| match range.split_once('-') {
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(range)],
    };
    list.split(',').flat_map(range).collect()
}

/// The time that the scheduler has given to the main threads of these processes until now, in s.
pub fn cpu_seconds(pids: &[u32]) -> f64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("a process");
        let nanos = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        nanos.expect("a number of ns") as f64 / 1e9
    };
    pids.iter().map(of).sum()
}

/// The time that all cores have worked until now, for any process, and that the host has taken from them, in s.
pub fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").expect("the times of the cores");
    let times = stat.split_whitespace().skip(1).take(8).map(|n| n.parse::<f64>().unwrap());
    // The fourth and fifth are those in which nothing ran.
    times.enumerate().filter(|(i, _)| ![3, 4].contains(i)).map(|(_, ticks)| ticks / TICKS).sum()
}

/// Waits until a process has used no more than this share of a core for half a second.
pub fn wait_until_idle(pid: u32, share: f64) -> Result<(), Stop> {
    let (mut used, mut quiet) = (cpu_seconds(&[pid]), 0);
    while quiet < 5 {
        stop::check()?;
        sleep(Duration::from_millis(100));
        let now = cpu_seconds(&[pid]);
        quiet = if now - used < share * 0.1 { quiet + 1 } else { 0 };
        used = now;
    }
    Ok(())
}

/// The bytes of memory that a process has for itself, without what it shares.
pub fn private_memory(pid: u32) -> u64 {
    bytes(&format!("/proc/{pid}/status"), "RssAnon:")
}

/// The bytes of memory that can still be had.
pub fn available_memory() -> u64 {
    bytes("/proc/meminfo", "MemAvailable:")
}

/// How many files a process may open.
pub fn open_files() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").expect("the limits of this process");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    // No number is no limit.
    soft.expect("a limit of open files").parse().unwrap_or(1 << 20)
}

/// A field of a file whose unit is kB, in bytes.
fn bytes(file: &str, name: &str) -> u64 {
    let value = field(file, name).unwrap_or_else(|| panic!("this kernel has no {name} in {file}"));
    value.trim_end_matches(" kB").parse::<u64>().expect("a number of kB") * 1024
}

/// The value behind a name, at the beginning of a line of a file.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
}

/// The facts that a reader of the results has to know of where they were made.
pub fn describe(pinning: &Pinning) -> Vec<(&'static str, String)> {
    let Pinning { nginx, redis, load, .. } = pinning;
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_default();
    vec![
        ("cores", format!("{} of {}", cores().len(), cpu.trim_start_matches([':', ' ']))),
        ("kernel", first_line("uname", &["-r"])),
        ("nginx", behind(&first_line(&program("NGINX", "nginx"), &["-v"]), "/")),
        (
            "redis",
            behind(&first_line(&program("REDIS_SERVER", "redis-server"), &["--version"]), "v="),
        ),
        ("wrk", first_line("wrk", &["-v"]).split('[').next().unwrap_or_default().trim().to_owned()),
        (
            "lua module",
            first_line("dpkg-query", &["-W", "-f", "${Version}", "libnginx-mod-http-lua"]),
        ),
        ("module", commit()),
        ("rustc", first_line("rustc", &["--version"])),
        ("pinning", format!("nginx on {nginx}, redis on {redis}, load on {load}")),
        ("load average at the start", load_average()),
    ]
}

/// The program that the harness starts.
fn program(variable: &str, default: &str) -> String {
    std::env::var(format!("RATE_LIMIT_{variable}")).unwrap_or_else(|_| default.to_owned())
}

/// The word behind the last of these.
fn behind(text: &str, mark: &str) -> String {
    let rest = text.rsplit(mark).next().unwrap_or_default();
    rest.split(' ').next().unwrap_or_default().to_owned()
}

/// The commit of the module. A checkout that was changed is none: only what belongs to the module counts.
fn commit() -> String {
    let changed = first_line("git", &["status", "--porcelain", "--", "src", "core", "Cargo.lock"])
        != "unknown";
    let commit = first_line("git", &["rev-parse", "--short", "HEAD"]);
    if changed { commit + " and changes" } else { commit }
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The first line that a command prints.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map_or(String::new(), |output| {
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    });
    text.trim().lines().next().unwrap_or("unknown").to_owned()
}
