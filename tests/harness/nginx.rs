//! A running nginx.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::conf::{Conf, PORTS, Site};
use crate::http::{Http, Response};
use crate::journal::Journal;
use crate::load::run;
use crate::process::{Process, append, kill, mortal};
use crate::{PATIENCE, holds_within, wait_until};

/// Texts that an error log must not have after a test.
const BAD_SIGNS: [&str; 6] =
    ["[alert]", "[emerg]", "[crit]", "panic", "exited on signal", "open socket"];

/// A running nginx. Dropping it quits it gracefully and fails the test if it does not quit, or if
/// its error log shows that something went badly wrong.
pub struct Nginx {
    site: Site,
    /// The master, or the namespace of a daemon, which ends with it.
    process: Process,
    workers: usize,
    allowed: Vec<String>,
}

impl Nginx {
    /// Starts nginx and waits for its workers; the error is its log.
    pub(crate) fn try_start(site: Site, workers: usize) -> Result<Self, String> {
        let output = File::create(site.path("stderr.log")).expect("create stderr.log");
        let mut command = site.command();
        command.arg("-e").arg(site.path("error.log"));
        let mut signal = "TERM";
        if site.daemon {
            (command, signal) = (in_namespace(&command), "KILL");
        }
        let process = Process::spawn_logged(mortal(&command, signal), output).expect("run nginx");

        let mut nginx = Self { site, process, workers, allowed: Vec::new() };
        let mut failed = false;
        let settled = || {
            let serves = nginx.serves();
            // nginx tries for a while to get a port that is taken; the caller has others.
            let taken = nginx.error_log().contains("Address already in use");
            failed = taken || nginx.process.ended().is_some();
            failed || serves
        };
        wait_until(PATIENCE, settled, "start of nginx");
        if failed {
            // It may not have come to listen to signals.
            nginx.process.kill();
            // The log is the caller's now, not something to fail for.
            nginx.allowed.push(String::new());
            return Err(nginx.site.read("stderr.log") + &nginx.error_log());
        }
        Ok(nginx)
    }

    /// The port of the server block of [`Conf::server`].
    pub fn port(&self) -> u16 {
        self.site.ports[0]
    }

    /// The address of that server.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The URL of `path` on that server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr())
    }

    /// The address of the port of [`Conf::http2`].
    pub fn h2_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.site.h2).into()
    }

    /// The URL of `path` on that port.
    pub fn h2_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.h2_addr())
    }

    /// A connection to that server.
    pub fn http(&self) -> Http {
        Http::connect(self.addr())
    }

    /// `GET path` over a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        self.http().get(path)
    }

    /// The process id of the master.
    pub fn pid(&self) -> u32 {
        self.master().expect("a master")
    }

    /// The process id of the master; none of a daemon that has not left its parent yet.
    fn master(&self) -> Option<u32> {
        match self.site.daemon {
            true => children(self.init()?).into_iter().find(|pid| is_master(*pid)),
            false => Some(self.process.id()),
        }
    }

    /// The first process in the namespace of a daemon.
    fn init(&self) -> Option<u32> {
        children(self.process.id()).first().copied()
    }

    /// Has the next process in the namespace of a daemon get this id, as seen there.
    pub fn set_next_pid(&self, pid: u32) {
        let (init, last) = (self.init().expect("a namespace").to_string(), pid - 1);
        let write = format!("echo {last} >/proc/sys/kernel/ns_last_pid");
        run("nsenter", &["--target", &init, "--pid", "sh", "-c", &write]);
    }

    /// The processes that serve requests: the workers, or the master that is one.
    pub fn serving_pids(&self) -> Vec<u32> {
        if self.workers == 0 { vec![self.process.id()] } else { self.worker_pids() }
    }

    /// The workers that serve, without those that are shutting down.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.master().map_or(Vec::new(), |master| self.workers_of(master))
    }

    fn workers_of(&self, master: u32) -> Vec<u32> {
        children(master).into_iter().filter(|pid| self.is_serving(*pid)).collect()
    }

    /// Whether a process is a worker that is not shutting down.
    fn is_serving(&self, pid: u32) -> bool {
        match title(pid).as_deref() {
            Some("nginx: worker process") => true,
            // Valgrind does not show what the process calls itself.
            Some(title) if title.contains("valgrind") => {
                !self.error_log().contains(&format!(" {pid}#{pid}: gracefully shutting down"))
            }
            Some(_) | None => false,
        }
    }

    /// Runs `send` while the only worker is stopped: what it sends arrives in one turn of the event
    /// loop.
    pub fn in_one_turn(&self, send: impl FnOnce()) {
        self.while_stopped(self.worker_pids()[0], send);
    }

    /// Runs `act` while a worker is stopped, wherever it is.
    pub fn while_stopped<T>(&self, worker: u32, act: impl FnOnce() -> T) -> T {
        kill(worker as i32, libc::SIGSTOP);
        wait_until(PATIENCE, || state(worker) == Some('T'), "a worker that is stopped");
        let result = act();
        kill(worker as i32, libc::SIGCONT);
        result
    }

    /// Kills a worker, as `kill -9`, and waits until another one has taken its place.
    pub fn kill9_worker(&mut self, worker: u32) {
        self.kill9_worker_if(worker, || true);
    }

    /// Stops a worker, wherever it is, and kills it if this holds then; else it goes on. Returns whether it was killed.
    pub fn kill9_worker_if(&mut self, worker: u32, condition: impl FnOnce() -> bool) -> bool {
        let deaths = |nginx: &Self| nginx.logged("exited on signal 9").len();
        let before = deaths(self);
        let dies = self.while_stopped(worker, || {
            let dies = condition();
            if dies {
                kill(worker as i32, libc::SIGKILL);
            }
            dies
        });
        if dies {
            self.allow_log("exited on signal 9");
            // Not by the process id: the other one may have got the same.
            wait_until(PATIENCE, || deaths(self) > before, "end of a worker");
            wait_until(PATIENCE, || self.worker_pids().len() == self.workers, "a new worker");
        }
        dies
    }

    /// Waits until so many requests are being processed, and so many others have been sent in part. It
    /// needs [`Conf::status`].
    pub fn wait_for_requests(&self, processed: usize, in_part: usize) {
        // The connection of this request counts as well.
        let expected = format!("Reading: {in_part} Writing: {} ", processed + 1);
        let arrived = || self.status().contains(&expected);
        wait_until(PATIENCE, arrived, "requests that nginx processes");
    }

    /// The page of nginx about its connections and requests. It needs [`Conf::status`].
    pub fn status(&self) -> String {
        Http::connect(self.status_addr()).get("/").text().to_owned()
    }

    fn status_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.site.ports[PORTS - 1]).into()
    }

    /// Tells the master to reload its configuration and waits until only new workers serve. The
    /// old ones may still be shutting down: their ids are the answer.
    pub fn reload_signal(&mut self) -> Vec<u32> {
        let old = self.worker_pids();
        self.signal(libc::SIGHUP);
        let renewed = || {
            let new = self.worker_pids();
            new.len() == self.workers && new.iter().all(|pid| !old.contains(pid))
        };
        wait_until(PATIENCE, renewed, "new workers after a reload");
        old
    }

    /// Reloads the configuration and waits until the old workers have ended.
    pub fn reload(&mut self) {
        let old = self.reload_signal();
        let gone = || {
            let now = children(self.pid());
            old.iter().all(|pid| !now.contains(pid))
        };
        wait_until(PATIENCE, gone, "end of the old workers after a reload");
    }

    /// Replaces the configuration, on the same ports, and reloads it.
    pub fn reload_with(&mut self, conf: &Conf) {
        self.replace_conf(conf);
        self.reload();
    }

    /// Replaces the configuration, on the same ports, and tells the master to reload it, as
    /// [`reload_signal`](Self::reload_signal) does.
    pub fn reload_signal_with(&mut self, conf: &Conf) -> Vec<u32> {
        self.replace_conf(conf);
        self.reload_signal()
    }

    fn replace_conf(&mut self, conf: &Conf) {
        self.site.lay_out(conf);
        self.workers = conf.workers;
    }

    /// Replaces the configuration by one that nginx refuses, and tells the master to reload it.
    pub fn reload_in_vain(&mut self, conf: &Conf) {
        let refusals = |nginx: &Self| nginx.logged("[emerg]").len();
        let before = refusals(self);
        self.allow_log("[emerg]");
        self.site.lay_out(conf);
        self.signal(libc::SIGHUP);
        wait_until(PATIENCE, || refusals(self) > before, "a refused configuration");
    }

    /// Quits gracefully and waits for the end; drop still checks the log.
    pub fn quit(&mut self) {
        assert!(self.quits(), "nginx does not quit within {PATIENCE:?}");
    }

    /// Ends at once, without waiting for requests; drop still checks the log.
    pub fn terminate(&mut self) {
        self.signal(libc::SIGTERM);
        if self.workers == 0 {
            // It may have missed the signal: see [`wake`](Self::wake). A connection would wake it, and be counted by those
            // who count its work.
            while !holds_within(Duration::from_secs(1), || self.process.ended().is_some()) {
                self.signal(libc::SIGTERM);
            }
        }
        self.process.wait(PATIENCE);
    }

    /// Sends `signal` to the master.
    pub fn signal(&mut self, signal: i32) {
        match self.site.daemon {
            true => self.master().into_iter().for_each(|pid| kill(pid as i32, signal)),
            false => self.process.signal(signal),
        }
    }

    /// Upgrades the binary of a daemon, as nginx.org describes it: a new master starts beside the old one, whose
    /// workers then leave, and the old one quits.
    pub fn upgrade(&mut self) {
        let old = self.pid();
        self.signal(libc::SIGUSR2);
        let new = || children(old).into_iter().find(|pid| is_master(*pid));
        let serves = || new().is_some_and(|master| self.workers_of(master).len() == self.workers);
        wait_until(PATIENCE, serves, "workers of the new binary");
        self.signal(libc::SIGWINCH);
        let alone = || children(old).into_iter().all(is_master);
        wait_until(PATIENCE, alone, "end of the workers of the old binary");
        self.signal(libc::SIGQUIT);
        wait_until(
            PATIENCE,
            || self.master().is_some_and(|pid| pid != old),
            "end of the old master",
        );
    }

    /// Has an nginx without a master look at its signals. It does so after an event: a signal that comes
    /// right before it waits for the next event is seen with that.
    pub fn wake(&self) {
        if self.workers == 0 {
            drop(Http::try_connect(self.addr()));
        }
    }

    /// A path in nginx's prefix.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.site.path(name)
    }

    /// The error log.
    pub fn error_log(&self) -> String {
        self.site.read("error.log")
    }

    /// The access log. nginx writes a line of it only after the response is sent.
    pub fn access_log(&self) -> String {
        self.site.read("access.log")
    }

    /// The requests that nginx has logged so far, if [`Conf::journal`] asked for it.
    pub fn journal(&self) -> Journal {
        Journal::read(&self.read("journal.log"))
    }

    /// Waits until the journal has at least `number` entries, and returns it.
    pub fn wait_for_journal(&self, number: usize) -> Journal {
        let mut journal = self.journal();
        let written = || {
            journal = self.journal();
            journal.0.len() >= number
        };
        wait_until(PATIENCE, written, "entries in the journal");
        journal
    }

    /// The lines of the error log that hold `text`.
    pub fn logged(&self, text: &str) -> Vec<String> {
        self.error_log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Any other file in nginx's prefix, empty if there is none.
    pub fn read(&self, name: &str) -> String {
        self.site.read(name)
    }

    /// Waits until the error log holds `text`.
    pub fn wait_for_error_log(&self, text: &str) {
        wait_until(PATIENCE, || self.error_log().contains(text), &format!("{text:?} in the log"));
    }

    /// Waits until the access log has `number` lines, and returns it.
    pub fn wait_for_access_log(&self, number: usize) -> String {
        let lines = || self.access_log().lines().count() >= number;
        wait_until(PATIENCE, lines, "lines in the access log");
        self.access_log()
    }

    /// Lets the error log hold lines with `text`, whatever bad sign is in them.
    pub fn allow_log(&mut self, text: &str) {
        self.allowed.push(text.to_owned());
    }

    /// Whether every worker runs, or, where the master is the worker, whether it listens.
    fn serves(&self) -> bool {
        match self.workers {
            0 => Http::try_connect(self.addr()).is_ok(),
            workers => self.worker_pids().len() == workers,
        }
    }

    /// The lines of the error log that no test may leave behind.
    fn bad_lines(&self) -> Vec<String> {
        let bad = |line: &&str| {
            BAD_SIGNS.iter().any(|sign| line.contains(sign))
                && !self.allowed.iter().any(|text| line.contains(text))
        };
        self.error_log().lines().filter(bad).map(str::to_owned).collect()
    }

    /// Quits, and returns whether that succeeded.
    fn quits(&mut self) -> bool {
        self.signal(libc::SIGQUIT);
        let start = std::time::Instant::now();
        while self.process.ended().is_none() {
            if start.elapsed() > PATIENCE {
                return false;
            }
            self.wake();
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    fn print_logs(&self) {
        let conf = fs::read_to_string(self.site.path("nginx.conf")).unwrap_or_default();
        let (errors, requests) = (self.error_log(), self.access_log());
        eprintln!("--- nginx.conf\n{conf}");
        let important = |line: &&str| !line.contains("[info]") && !line.contains("[debug]");
        let important: Vec<_> = errors.lines().filter(important).collect();
        eprintln!(
            "--- error log of nginx, without [info] and [debug]\n{}",
            tail(&important.join("\n"))
        );
        eprintln!("--- error log of nginx\n{}", tail(&errors));
        eprintln!("--- access log of nginx\n{}", tail(&requests));
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
            return;
        }
        let quits = self.quits();
        let bad = self.bad_lines();
        if !quits || !bad.is_empty() {
            self.print_logs();
            assert!(quits, "nginx does not quit within {PATIENCE:?}");
            panic!("the error log of nginx holds:\n{}", bad.join("\n"));
        }
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Whether this user may make PID namespaces.
pub fn has_pid_namespaces() -> bool {
    let made = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    made.is_ok_and(|output| output.status.success())
}

/// Runs a command that leaves its parent in a PID namespace of its own. The first process there is a shell, which adopts
/// what has lost its parent, and ends when it is alone. With it all others end.
fn in_namespace(command: &Command) -> Command {
    const INIT: &str = "\"$@\"; while kill -0 -1 2>/dev/null; do sleep 0.1; done";
    let mut inner = Command::new("unshare");
    inner.args(["--pid", "--fork", "--kill-child", "sh", "-c", INIT, "sh"]);
    append(&mut inner, command);
    inner
}

fn is_master(pid: u32) -> bool {
    title(pid).is_some_and(|title| title.starts_with("nginx: master process"))
}

/// The children of the process `parent`, which has one thread. The kernel may leave out some where one ends while it
/// lists them, so two lists have to agree.
fn children(parent: u32) -> Vec<u32> {
    let list = || fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let mut listed = list().unwrap_or_default();
    loop {
        let again = list().unwrap_or_default();
        if again == listed {
            return again.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        }
        listed = again;
    }
}

/// The state of a process, such as `S` or `T`.
pub fn state(pid: u32) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("State:"))?.trim().chars().next()
}

/// The title of a process.
fn title(pid: u32) -> Option<String> {
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8(title).ok()?;
    Some(text.trim_end_matches('\0').to_owned())
}
