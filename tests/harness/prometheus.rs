//! A Prometheus server.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::load::run;
use crate::process::{Process, mortal};
use crate::{PATIENCE, port, wait_until};

/// It looks for what to scrape only every five seconds.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(30);

/// A Prometheus of the test's own, which scrapes metrics pages.
pub struct Prometheus {
    dir: TempDir,
    port: u16,
    process: Option<Process>,
}

impl Prometheus {
    /// Starts one that scrapes `/metrics` of these servers, five times a second.
    pub fn start(targets: &[SocketAddr]) -> Self {
        let dir = TempDir::with_prefix("prometheus-").expect("create a temp directory");
        let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let conf = format!(
            "scrape_configs:\n- job_name: nginx\n  scrape_interval: 200ms\n  \
             scrape_timeout: 200ms\n  static_configs:\n  - targets: [{}]\n",
            targets.join(", ")
        );
        fs::write(dir.path().join("prometheus.yml"), conf).expect("write prometheus.yml");
        let mut prometheus = Self { dir, port: 0, process: None };
        for _ in 0..5 {
            prometheus.port = port::free();
            if prometheus.try_start() {
                return prometheus;
            }
        }
        panic!("Prometheus does not start:\n{}", prometheus.log());
    }

    /// The value of each series that the expression yields now.
    pub fn query(&self, expression: &str) -> Vec<f64> {
        let url = format!("http://{}", self.addr());
        let output = run("promtool", &["query", "instant", &url, expression]);
        let sample = |line: &str| {
            let (_, rest) = line.split_once(" => ").expect("a sample");
            let (value, _) = rest.split_once(" @[").expect("a time");
            value.parse().expect("a number")
        };
        output.lines().filter(|line| !line.is_empty()).map(sample).collect()
    }

    /// Waits until what the expression yields is as it should be.
    #[track_caller]
    pub fn wait_for(&self, expression: &str, mut holds: impl FnMut(&[f64]) -> bool) {
        wait_until(SCRAPE_PATIENCE, || holds(&self.query(expression)), expression);
    }

    fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("prometheus.log")).unwrap_or_default()
    }

    /// Starts the server and returns whether it serves; it does not if the port is taken.
    fn try_start(&mut self) -> bool {
        let log = File::create(self.dir.path().join("prometheus.log")).expect("create a log");
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", path("prometheus.yml")));
        command.arg(format!("--storage.tsdb.path={}", path("data")));
        command.arg(format!("--web.listen-address={}", self.addr()));
        let mut command = mortal(&command, "KILL");
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        let mut process = Process::spawn(command).expect("run prometheus");
        let mut ended = false;
        // Another process may listen on the port: the log is this server's own.
        let settled = || {
            ended = process.ended().is_some();
            ended || self.log().contains("Server is ready to receive web requests")
        };
        wait_until(PATIENCE, settled, "start of Prometheus");
        self.process = (!ended).then_some(process);
        !ended
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of Prometheus\n{}", crate::nginx::tail(&self.log()));
        }
    }
}
