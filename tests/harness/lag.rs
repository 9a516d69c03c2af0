//! Replicas that are behind their master.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;

use crate::library::Library;
use crate::proxy::{Mode, Proxy};
use crate::redis::{Redis, world_readable_dir};

/// A delay of what servers send to each other, which is lost if its sender dies meanwhile. They know nothing of it:
/// each reports the others by their own ports, and clients, sentinels and the bus of a cluster reach them at once.
pub struct Lag {
    library: Arc<Library>,
    dir: TempDir,
    delay: Duration,
    proxies: Mutex<Vec<Proxy>>,
}

impl Lag {
    pub fn new(delay: Duration) -> Self {
        let (library, dir) = (Library::compile("redirect"), world_readable_dir("lag-"));
        fs::write(dir.path().join("ports"), "").expect("create a file");
        Self { library, dir, delay, proxies: Mutex::default() }
    }

    /// Has a server that is started by `command` reach others late.
    pub fn enter(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.library.path()).env("REDIRECTED", self.ports());
    }

    /// Has others reach this server late, also after a restart.
    pub fn add(&self, redis: &Redis) {
        let proxy = Proxy::to(redis);
        proxy.set(Mode::Far(self.delay));
        let mut ports = File::options().append(true).open(self.ports()).expect("the ports");
        let line = format!("{} {}\n", redis.port(), proxy.port());
        ports.write_all(line.as_bytes()).expect("a line of ports");
        self.proxies.lock().unwrap().push(proxy);
    }

    fn ports(&self) -> std::path::PathBuf {
        self.dir.path().join("ports")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::redis::Setup;
    use crate::{PATIENCE, wait_until};

    #[test]
    fn what_is_under_way_is_lost_with_the_master() {
        let lag = Arc::new(Lag::new(Duration::from_secs(2)));
        let start = |lines: &[String]| {
            Redis::start_as(Setup { lag: Some(lag.clone()), ..Setup::new(lines) })
        };
        let mut master = start(&["repl-diskless-sync-delay 0".to_owned()]);
        let replica = start(&[format!("replicaof 127.0.0.1 {}", master.port())]);
        assert_eq!(replica.info("master_port"), master.port().to_string());
        wait_until(PATIENCE, || replica.info("master_link_status") == "up", "a replica in sync");
        master.command::<()>(&["SET", "a", "1"]);
        let replicated = |key| replica.command::<Option<u32>>(&["GET", key]) == Some(1);
        assert!(!replicated("a"));
        wait_until(PATIENCE, || replicated("a"), "replication");
        master.command::<()>(&["SET", "b", "1"]);
        master.kill9();
        wait_until(PATIENCE, || replica.info("master_link_status") == "down", "a lost link");
        assert!(!replicated("b"));
    }
}
