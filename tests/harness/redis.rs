//! A Redis server.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use redis::{Client, Connection};
use tempfile::TempDir;

use crate::process::Process;
use crate::tls::{Authority, Identity};
use crate::{PATIENCE, port, wait_until};

/// A Redis server of the test's own, on a TCP port and a unix socket, that keeps nothing.
pub struct Redis {
    dir: TempDir,
    port: u16,
    tls_port: Option<u16>,
    password: Option<String>,
    process: Option<Process>,
}

impl Redis {
    /// Starts a server that anyone may use.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more lines in its configuration, such as `requirepass secret`, or
    /// `user limiter on >secret ~rl:* +@all`.
    pub fn start_with(lines: &[&str]) -> Self {
        Self::start_on(false, lines)
    }

    /// Starts a server that also speaks TLS, on a port of its own, and asks nobody for a
    /// certificate unless the lines say so.
    pub fn start_tls(authority: &Authority, identity: &Identity, lines: &[&str]) -> Self {
        let Identity { certificate, key } = identity;
        let tls = [
            format!("tls-ca-cert-file {}", authority.certificate()),
            format!("tls-cert-file {certificate}"),
            format!("tls-key-file {key}"),
            "tls-auth-clients no".to_owned(),
        ];
        let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
        Self::start_on(true, &[&tls, lines].concat())
    }

    fn start_on(tls: bool, lines: &[&str]) -> Self {
        let password = lines.iter().find_map(|line| line.strip_prefix("requirepass "));
        let mut redis = Self {
            dir: world_readable_dir("redis-"),
            port: 0,
            tls_port: None,
            password: password.map(str::to_owned),
            process: None,
        };
        for _ in 0..10 {
            redis.port = port::free();
            redis.tls_port = tls.then(port::free);
            redis.write_conf(lines);
            if redis.try_start() {
                return redis;
            }
        }
        panic!("redis-server does not start:\n{}", redis.log());
    }

    /// Kills the server, as `kill -9`.
    pub fn kill9(&mut self) {
        self.process = None;
    }

    /// Starts the server again, on the same port and empty; kills it first if it runs.
    pub fn restart(&mut self) {
        self.kill9();
        wait_until(PATIENCE, || self.try_start(), "restart of Redis");
    }

    /// Stops the server without closing anything: it accepts, and answers nothing.
    pub fn stop_signal(&mut self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets a stopped server go on.
    pub fn cont(&mut self) {
        self.signal(libc::SIGCONT);
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port on which TLS is spoken.
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("Redis does not speak TLS")
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `redis+unix:///path`.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A connection, as the default user, over the unix socket.
    pub fn client(&self) -> Connection {
        self.connect().expect("connect to Redis")
    }

    /// How often `command`, in lower case, was called since the server started.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.ask::<String>(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number of calls"))
    }

    /// The lines of `CLIENT LIST`, without the connections of the test itself.
    pub fn clients(&self) -> Vec<String> {
        let list = self.ask::<String>(&["CLIENT", "LIST"]);
        list.lines().filter(|line| !line.contains("name=harness")).map(str::to_owned).collect()
    }

    /// Sends one command and returns its answer.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut self.client()).expect("an answer of Redis")
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default()
    }

    fn signal(&mut self, signal: i32) {
        self.process.as_mut().expect("Redis is killed").signal(signal);
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn connect(&self) -> redis::RedisResult<Connection> {
        let query = self.password.as_ref().map_or(String::new(), |p| format!("?pass={p}"));
        let client = Client::open(format!("{}{query}", self.unix_url()))?;
        let mut connection = client.get_connection()?;
        redis::cmd("CLIENT").arg("SETNAME").arg("harness").exec(&mut connection)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn write_conf(&self, lines: &[&str]) {
        let conf = format!(
            "bind 127.0.0.1\nport {}\nunixsocket {}\nunixsocketperm 777\n\
             dir {}\nsave \"\"\nappendonly no\n{}\n{}\n",
            self.port,
            self.socket().display(),
            self.dir.path().display(),
            self.tls_port.map_or(String::new(), |port| format!("tls-port {port}")),
            lines.join("\n"),
        );
        fs::write(self.dir.path().join("redis.conf"), conf).expect("write redis.conf");
    }

    /// Starts the server and says whether it serves; it does not if the port is taken.
    fn try_start(&mut self) -> bool {
        let log = File::options().append(true).create(true).open(self.dir.path().join("redis.log"));
        let log = log.expect("create redis.log");
        let server = std::env::var("RATE_LIMIT_REDIS_SERVER");
        let server = server.unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(&server);
        command.arg(self.dir.path().join("redis.conf"));
        command.stderr(log.try_clone().expect("a second handle")).stdout(log);
        let mut process = Process::spawn(command, libc::SIGKILL)
            .unwrap_or_else(|error| panic!("cannot run {server}: {error}"));

        // A socket that answers is that of a server that has also got its port.
        let mut serves = false;
        let settled = || {
            serves = self.connect().is_ok();
            serves || process.ended().is_some()
        };
        wait_until(PATIENCE, settled, "start of Redis");
        self.process = serves.then_some(process);
        serves
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of Redis, port {}\n{}", self.port, crate::nginx::tail(&self.log()));
        }
    }
}

/// A temp directory that workers of nginx may enter, which run as another user.
pub(crate) fn world_readable_dir(prefix: &str) -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .expect("create a temp directory")
}
