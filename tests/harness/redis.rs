//! A Redis server.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, Connection, ConnectionInfo, FromRedisValue, IntoConnectionInfo as _};
use tempfile::TempDir;

use crate::lag::Lag;
use crate::library::Library;
use crate::netns::Namespace;
use crate::process::{Process, append, mortal, wrapped};
use crate::tls::{Authority, Identity};
use crate::{PATIENCE, holds_within, port, run, wait_until};

/// How a server is started.
#[derive(Clone)]
pub(crate) struct Setup {
    /// The program, of Redis or of what speaks as Redis does.
    pub binary: PathBuf,
    /// The command that starts it, such as `taskset` with its options; it is in its place then.
    pub wrapper: Vec<String>,
    /// Words after the name of the configuration.
    pub arguments: Vec<String>,
    /// The library that is preloaded into it.
    pub preload: Option<Arc<Library>>,
    /// The delay of what it sends to others, and gets from them.
    pub lag: Option<Arc<Lag>>,
    /// The address on which it listens.
    pub address: IpAddr,
    /// The machine on which it runs, if not on this one.
    pub namespace: Option<Namespace>,
    /// Where it lives, if not in a temp directory and on a port that nobody chooses.
    pub home: Option<Home>,
    /// More lines of the configuration, in which `{port}`, `{tls}` and `{dir}` are replaced.
    pub lines: Vec<String>,
}

impl Setup {
    pub fn new(lines: &[impl AsRef<str>]) -> Self {
        Self {
            binary: default_binary(),
            wrapper: Vec::new(),
            arguments: Vec::new(),
            preload: None,
            lag: None,
            address: Ipv4Addr::LOCALHOST.into(),
            namespace: None,
            home: None,
            lines: lines.iter().map(|line| line.as_ref().to_owned()).collect(),
        }
    }

    /// Speaks TLS too, on the port `{tls}`, and asks nobody for a certificate, unless other lines
    /// overrule that.
    pub fn secure(&mut self, authority: &Authority, identity: &Identity) {
        let lines = [
            "tls-port {tls}",
            &format!("tls-ca-cert-file {}", authority.certificate()),
            &format!("tls-cert-file {}", identity.certificate),
            &format!("tls-key-file {}", identity.key),
            "tls-auth-clients no",
        ];
        self.lines.splice(0..0, lines.map(str::to_owned));
    }

    /// The text behind `directive`, on the first line that starts with it.
    fn value(&self, directive: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.strip_prefix(directive)?.strip_prefix(' '))
    }

    /// A port for this server. A member of a cluster takes another one with it, for the bus.
    fn port(&self) -> u16 {
        match (&self.home, self.value("cluster-enabled")) {
            (Some(home), _) => home.port,
            (None, Some("yes")) => port::free_with_bus(),
            (None, _) => port::free(),
        }
    }

    /// The user and password of the test itself, if it does not use the default user.
    pub fn login(&self) -> Option<(&str, &str)> {
        match (self.value("user default"), self.value("requirepass")) {
            (Some(_), _) => Some((HARNESS, HARNESS)),
            (None, password) => Some(("default", password?)),
        }
    }
}

/// Where a server lives that is there for more than a test.
#[derive(Clone)]
pub struct Home {
    dir: PathBuf,
    port: u16,
    is_of_root: bool,
}

impl Home {
    /// Makes this directory, which is not removed, for a server on this port; on port 0 it listens on its unix socket alone.
    ///
    /// A server that root starts here runs as nobody: who may use it could have it write any file.
    pub fn make(dir: impl Into<PathBuf>, port: u16) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir(&dir)?;
        let is_of_root = fs::metadata(&dir)?.uid() == 0;
        if is_of_root {
            run("chown", &["nobody", &dir.display().to_string()]);
        }
        Ok(Self { dir, port, is_of_root })
    }

    /// `command`, for the server that lives here.
    fn enter(&self, command: Command) -> Command {
        if !self.is_of_root {
            return command;
        }
        let mut outer = Command::new("setpriv");
        outer.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
        append(&mut outer, &command);
        outer
    }
}

fn default_binary() -> PathBuf {
    std::env::var_os("RATE_LIMIT_REDIS_SERVER").unwrap_or_else(|| "redis-server".into()).into()
}

/// The name of the test's own connections, and of its user, where the default one is restricted.
const HARNESS: &str = "harness";

/// A Redis server of the test's own, on a TCP port and a unix socket, that keeps nothing.
pub struct Redis {
    dir: PathBuf,
    _temp_dir: Option<TempDir>,
    setup: Setup,
    port: u16,
    tls_port: u16,
    process: Option<Process>,
    stopped: bool,
}

impl Redis {
    /// Starts a server that anyone may use.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more lines in its configuration, such as `requirepass secret`, or
    /// `user limiter on >secret ~rl:* +@all`. In them `{port}` is its port, `{tls}` a second one,
    /// and `{dir}` its directory.
    pub fn start_with(lines: &[&str]) -> Self {
        Self::start_as(Setup::new(lines))
    }

    /// Starts a server whose clock stands still: times in its replies do not depend on how long
    /// a test takes.
    pub fn start_with_stopped_clock() -> Self {
        let preload = Some(Library::compile("stopped_clock"));
        Self::start_as(Setup { preload, ..Setup::new(&[""; 0]) })
    }

    /// Moves the clock of a server that has a stopped one.
    pub fn advance_clock(&self, by: Duration) {
        let path = self.clock();
        let moved = fs::read(&path).expect("the clock");
        let moved = i64::from_ne_bytes(moved.try_into().expect("a number of µs"));
        let moved = moved + i64::try_from(by.as_micros()).expect("a number of µs");
        // In its place, as the server has mapped it.
        let clock = fs::OpenOptions::new().write(true).open(&path).expect("the clock");
        clock.write_all_at(&moved.to_ne_bytes(), 0).expect("a write to the clock");
    }

    /// How far a stopped clock was moved, in µs.
    fn clock(&self) -> PathBuf {
        self.dir.join("clock")
    }

    /// Starts a server that also speaks TLS, and asks nobody for a certificate unless the lines say
    /// so.
    pub fn start_tls(authority: &Authority, identity: &Identity, lines: &[&str]) -> Self {
        let mut setup = Setup::new(lines);
        setup.secure(authority, identity);
        Self::start_as(setup)
    }

    /// Starts `binary`, a server of another version or make.
    pub fn start_binary(binary: impl AsRef<Path>, lines: &[&str]) -> Self {
        Self::start_as(Setup { binary: binary.as_ref().to_owned(), ..Setup::new(lines) })
    }

    /// Starts a server by this command: see [`Conf::wrapper`](crate::Conf::wrapper).
    pub fn start_wrapped(words: &[&str], lines: &[&str]) -> Self {
        let wrapper = words.iter().map(|&word| word.to_owned()).collect();
        Self::start_as(Setup { wrapper, ..Setup::new(lines) })
    }

    /// Starts a server that lives here.
    pub fn start_at(home: Home) -> Self {
        Self::start_as(Setup { home: Some(home), ..Setup::new(&[""; 0]) })
    }

    pub(crate) fn start_as(setup: Setup) -> Self {
        let (dir, temp_dir, attempts) = match &setup.home {
            Some(home) => (home.dir.clone(), None, 1),
            None => {
                let dir = server_dir();
                (dir.path().to_owned(), Some(dir), 10)
            }
        };
        let (process, stopped) = (None, false);
        let mut redis =
            Self { dir, _temp_dir: temp_dir, setup, port: 0, tls_port: 0, process, stopped };
        for _ in 0..attempts {
            redis.port = redis.setup.port();
            redis.tls_port = redis.setup.port();
            redis.write_conf();
            if redis.try_start() {
                redis.setup.lag.iter().for_each(|lag| lag.add(&redis));
                return redis;
            }
        }
        // Its log follows, as it is dropped.
        panic!("{} did not start", redis.setup.binary.display());
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

    /// Starts the server again with more lines in its configuration.
    pub fn restart_with(&mut self, lines: &[&str]) {
        self.setup.lines.extend(lines.iter().map(|&line| line.to_owned()));
        self.write_conf();
        self.restart();
    }

    /// Stops the server without closing anything: it accepts, and answers nothing.
    pub fn stop_signal(&mut self) {
        self.signal(libc::SIGSTOP);
        self.stopped = true;
    }

    /// Lets a stopped server go on.
    pub fn cont(&mut self) {
        self.signal(libc::SIGCONT);
        self.stopped = false;
    }

    /// Whether it is neither killed nor stopped.
    pub fn runs(&self) -> bool {
        self.process.is_some() && !self.stopped
    }

    /// Whether it has neither been killed nor ended by itself.
    pub fn lives(&mut self) -> bool {
        let process = self.process.as_mut();
        if process.is_some_and(|process| process.ended().is_some()) {
            self.process = None;
        }
        self.process.is_some()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("Redis is killed").id()
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port that `{tls}` stands for in the lines of [`start_with`](Self::start_with).
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The TCP address.
    pub fn addr(&self) -> SocketAddr {
        (self.setup.address, self.port).into()
    }

    /// The address for other servers, which may be bound to use TLS.
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        let tls =
            |line: &String| ["tls-cluster yes", "tls-replication yes"].contains(&line.as_str());
        let port = if self.setup.lines.iter().any(tls) { self.tls_port } else { self.port };
        (self.setup.address, port).into()
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// `redis+unix:///path`.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A connection over the unix socket, as a user who may do everything.
    pub fn client(&self) -> Connection {
        self.connect().expect("connect to Redis")
    }

    /// How often `command`, in lower case, was called since the server started.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.command::<String>(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number of calls"))
    }

    /// One field of `INFO`, such as `role`; empty if there is none.
    pub fn info(&self, field: &str) -> String {
        // Sentinels close all connections to a server that gets another role.
        let info =
            self.try_command(&["INFO"]).unwrap_or_else(|_| self.command::<String>(&["INFO"]));
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    }

    /// The lines of `CLIENT LIST`, without the connections of the test itself.
    pub fn clients(&self) -> Vec<String> {
        let list = self.command::<String>(&["CLIENT", "LIST"]);
        list.lines().filter(|line| !line.contains("name=harness")).map(str::to_owned).collect()
    }

    /// Sends one command and returns its answer.
    #[track_caller]
    pub fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The reply to a command that the server may refuse.
    pub fn try_command<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        assert!(!self.stopped, "a command for a stopped server: {words:?}");
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut self.connect()?)
    }

    /// The log of the server.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// The file of this kind. It is beside the directory of a home, where another user may put what this one should not open.
    fn file(&self, kind: &str) -> PathBuf {
        match &self.setup.home {
            Some(home) => home.dir.with_extension(kind),
            None => self.dir.join("redis").with_extension(kind),
        }
    }

    fn signal(&mut self, signal: i32) {
        self.process.as_mut().expect("Redis is killed").signal(signal);
    }

    /// The path of its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("redis.sock")
    }

    fn connect(&self) -> redis::RedisResult<Connection> {
        let mut info: ConnectionInfo = self.unix_url().into_connection_info()?;
        if let Some((user, password)) = self.setup.login() {
            let login = info.redis_settings().clone().set_username(user).set_password(password);
            info = info.set_redis_settings(login);
        }
        // Without a time limit: a read that has one ends with EINTR when a child ends while another one is forked.
        let mut connection = Client::open(info)?.get_connection()?;
        redis::cmd("CLIENT").arg("SETNAME").arg(HARNESS).exec(&mut connection)?;
        Ok(connection)
    }

    fn write_conf(&self) {
        let dir = self.dir.display();
        let mut conf = format!(
            "bind {}\nport {}\nunixsocket {}\nunixsocketperm 777\n\
             dir {dir}\nsave \"\"\nappendonly no\n{}\n",
            self.setup.address,
            self.port,
            self.socket().display(),
            self.setup.lines.join("\n"),
        );
        if let Some((HARNESS, password)) = self.setup.login() {
            conf += &format!("user {HARNESS} on >{password} ~* &* +@all\n");
        }
        let conf = conf
            .replace("{port}", &self.port.to_string())
            .replace("{tls}", &self.tls_port.to_string())
            .replace("{dir}", &dir.to_string());
        fs::write(self.file("conf"), conf).expect("write redis.conf");
    }

    /// Starts the server and returns whether it serves; it does not if the port is taken.
    pub fn try_start(&mut self) -> bool {
        let log = File::options().append(true).create(true).open(self.file("log"));
        let log = log.expect("create redis.log");
        let binary = &self.setup.binary;
        let mut command = wrapped(&self.setup.wrapper, binary);
        command.arg(self.file("conf")).args(&self.setup.arguments);
        let mut command = mortal(&command, "KILL");
        if let Some(home) = &self.setup.home {
            command = home.enter(command);
        }
        if let Some(namespace) = &self.setup.namespace {
            namespace.enter(&mut command);
        }
        self.setup.lag.iter().for_each(|lag| lag.enter(&mut command));
        if let Some(library) = &self.setup.preload {
            fs::write(self.clock(), 0_i64.to_ne_bytes()).expect("a clock");
            command.env("LD_PRELOAD", library.path()).env("STOPPED_CLOCK", self.clock());
        }
        let spawned = match self.setup.home {
            Some(_) => Process::spawn_apart(&command, log),
            None => Process::spawn_logged(command, log),
        };
        let mut process =
            spawned.unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));

        // A socket that answers is that of a server that has also got its port.
        let mut serves = false;
        let settled = || {
            serves = self.connect().is_ok();
            serves || process.ended().is_some()
        };
        holds_within(PATIENCE, settled);
        self.process = serves.then_some(process);
        self.stopped = false;
        serves
    }
}

/// The servers that scripts/test has found, of other versions and makes too: what they call
/// themselves, such as `7.0.15` or `valkey-8.1.1`, and the programs. Just the one that tests use if
/// a test is run in another way.
pub fn servers() -> Vec<(String, PathBuf)> {
    let Ok(words) = std::env::var("RATE_LIMIT_REDIS_SERVERS") else {
        return vec![("default".to_owned(), default_binary())];
    };
    let server = |word: &str| {
        let (version, binary) = word.split_once('=').expect("VERSION=BINARY");
        (version.to_owned(), binary.into())
    };
    words.split_whitespace().map(server).collect()
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
    temp_dir_in(std::env::temp_dir(), prefix).expect("create a temp directory")
}

/// The directory of a server: in memory, if there is a file system for that. Sentinels and the nodes
/// of a cluster stand still while what they know is written to the disk, for seconds if that is busy.
fn server_dir() -> TempDir {
    const PREFIX: &str = "redis-";
    temp_dir_in("/dev/shm", PREFIX).unwrap_or_else(|_| world_readable_dir(PREFIX))
}

fn temp_dir_in(parent: impl AsRef<Path>, prefix: &str) -> io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = fs::Permissions::from_mode(0o755);
    tempfile::Builder::new().prefix(prefix).permissions(permissions).tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_server_of_this_name() {
        for (version, binary) in servers() {
            let redis = Redis::start_binary(binary, &["requirepass secret"]);
            let (field, number) = match version.strip_prefix("valkey-") {
                Some(number) => ("valkey_version", number),
                None => ("redis_version", version.as_str()),
            };
            assert!([redis.info(field).as_str(), "default"].contains(&number), "{version}");
            assert_eq!(redis.command::<u32>(&["INCR", "n"]), 1);
        }
    }
}
