//! A master, its replicas, and the sentinels that watch over them.

use std::net::Ipv6Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::lag::Lag;
use crate::redis::{Redis, Setup};
use crate::tls::{Authority, Identity};
use crate::wait_until;

/// The name of the master for the sentinels.
pub const MASTER_NAME: &str = "mymaster";

/// A failover may have to be tried again.
const SENTINEL_PATIENCE: Duration = Duration::from_secs(60);

/// How much later than the one before it a sentinel takes a server for dead.
const STAGGER: Duration = Duration::from_millis(300);

/// Servers and sentinels that are being configured.
#[derive(Clone)]
pub struct SentinelConf {
    replicas: usize,
    sentinels: usize,
    server: Setup,
    sentinel: Setup,
    down_after: Duration,
    hostnames: bool,
}

impl SentinelConf {
    /// A master with so many replicas, and three sentinels.
    pub fn new(replicas: usize) -> Self {
        let server = Setup::new(&["repl-diskless-sync yes", "repl-diskless-sync-delay 0"]);
        let arguments = vec!["--sentinel".to_owned()];
        let sentinel = Setup { arguments, ..Setup::new(&[] as &[&str]) };
        let down_after = Duration::from_millis(500);
        Self { replicas, sentinels: 3, server, sentinel, down_after, hostnames: false }
    }

    /// So many sentinels.
    pub fn sentinels(mut self, number: usize) -> Self {
        self.sentinels = number;
        self
    }

    /// Adds a line to the configuration of the master and the replicas, as with
    /// [`Redis::start_with`].
    pub fn line(mut self, line: &str) -> Self {
        self.server.lines.push(line.to_owned());
        self
    }

    /// Adds a line to the configuration of the sentinels, such as `requirepass secret`.
    pub fn sentinel_line(mut self, line: &str) -> Self {
        self.sentinel.lines.push(line.to_owned());
        self
    }

    /// All run `binary`, a server of another version or make.
    pub fn binary(mut self, binary: impl AsRef<Path>) -> Self {
        self.server.binary = binary.as_ref().to_owned();
        self.sentinel.binary = binary.as_ref().to_owned();
        self
    }

    /// Replicas are so far behind their master, and lose what is under way when it dies.
    pub fn lag(mut self, delay: Duration) -> Self {
        self.server.lag = Some(Arc::new(Lag::new(delay)));
        self
    }

    /// All listen on `::1`, and the sentinels report that address.
    pub fn ipv6(mut self) -> Self {
        self.server.address = Ipv6Addr::LOCALHOST.into();
        self.sentinel.address = Ipv6Addr::LOCALHOST.into();
        self
    }

    /// The sentinels report the master as `localhost`, not by an address.
    pub fn hostnames(mut self) -> Self {
        self.hostnames = true;
        self
    }

    /// All speak TLS with each other and with clients, as `identity`.
    pub fn secured(mut self, authority: &Authority, identity: &Identity) -> Self {
        self.server.secure(authority, identity);
        self.sentinel.secure(authority, identity);
        self.line("tls-replication yes").sentinel_line("tls-replication yes")
    }

    /// How long a server must be silent for the first sentinel to take it for dead; half a second, if
    /// this is not called.
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// Starts the servers, then the sentinels, and waits until they know each other.
    pub fn start(&self) -> Sentinels {
        let master = self.start_server(None);
        let replicas: Vec<_> =
            (0..self.replicas).map(|_| self.start_server(Some(&master))).collect();
        let sentinels = (0..self.sentinels).map(|n| self.start_sentinel(n, &master)).collect();
        let servers = [master].into_iter().chain(replicas).collect();
        let sentinels = Sentinels { conf: self.clone(), servers, sentinels };
        sentinels.wait_settled();
        sentinels
    }

    fn start_server(&self, master: Option<&Redis>) -> Redis {
        let mut setup = self.server.clone();
        if let Some((user, password)) = self.server.login() {
            setup.lines.push(format!("masteruser {user}\nmasterauth {password}"));
        }
        if self.hostnames {
            setup.lines.push("replica-announce-ip localhost".to_owned());
        }
        if let Some(master) = master {
            let (host, port) = self.host_and_port(master);
            setup.lines.push(format!("replicaof {host} {port}"));
        }
        Redis::start_as(setup)
    }

    fn start_sentinel(&self, n: usize, master: &Redis) -> Redis {
        let mut setup = self.sentinel.clone();
        let mut line = |line: String| setup.lines.push(format!("sentinel {line}"));
        if self.hostnames {
            line("resolve-hostnames yes".to_owned());
            line("announce-hostnames yes".to_owned());
        }
        let (host, port) = self.host_and_port(master);
        let quorum = self.sentinels / 2 + 1;
        line(format!("monitor {MASTER_NAME} {host} {port} {quorum}"));
        // Were all to see it at the same time, each would stand for election, and nobody win.
        let down_after = self.down_after + STAGGER * n as u32;
        line(format!("down-after-milliseconds {MASTER_NAME} {}", down_after.as_millis()));
        // Half as long as sentinels wait between two attempts.
        line(format!("failover-timeout {MASTER_NAME} 2000"));
        line(format!("parallel-syncs {MASTER_NAME} 9"));
        if let Some((user, password)) = self.server.login() {
            line(format!("auth-user {MASTER_NAME} {user}"));
            line(format!("auth-pass {MASTER_NAME} {password}"));
        }
        if let Some((user, password)) = self.sentinel.login() {
            line(format!("sentinel-user {user}"));
            line(format!("sentinel-pass {password}"));
        }
        let sentinel = Redis::start_as(setup);
        hurry(&sentinel);
        sentinel
    }

    fn host_and_port(&self, server: &Redis) -> (String, u16) {
        let addr = server.peer_addr();
        let host = if self.hostnames { "localhost".to_owned() } else { addr.ip().to_string() };
        (host, addr.port())
    }
}

/// Has a sentinel do in a fraction of a second what it takes its time for, up to ten. (One before
/// Redis 7 cannot be hurried.) Not too small a fraction: while a master is down, replicas are looked
/// at once a second, and what is older than five pings makes a replica unfit to be promoted; and a
/// promotion that a sentinel does not see within four times PUBLISH, it undoes.
fn hurry(sentinel: &Redis) {
    for (what, milliseconds) in
        [("INFO", "300"), ("PING", "300"), ("ASK", "100"), ("PUBLISH", "500")]
    {
        let what = format!("{what}-PERIOD");
        let _ = sentinel.try_command::<()>(&["SENTINEL", "DEBUG", &what, milliseconds]);
    }
}

/// A master, its replicas and their sentinels, of the test's own. The servers are numbered: first
/// the one that is the master at the start. So are the sentinels.
pub struct Sentinels {
    conf: SentinelConf,
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Starts a master with so many replicas, and three sentinels, that anyone may use.
    pub fn start(replicas: usize) -> Self {
        SentinelConf::new(replicas).start()
    }

    /// A server: master or replica.
    pub fn server(&self, n: usize) -> &Redis {
        &self.servers[n]
    }

    /// A server that is to be killed, stopped, or restarted. One that was the master comes back as
    /// one, until the sentinels see it.
    pub fn server_mut(&mut self, n: usize) -> &mut Redis {
        &mut self.servers[n]
    }

    /// A sentinel. It counts no [`calls`](Redis::calls).
    pub fn sentinel(&self, n: usize) -> &Redis {
        &self.sentinels[n]
    }

    /// A sentinel that is to be killed, stopped, or restarted. A new start takes it longer to know
    /// what the others know.
    pub fn sentinel_mut(&mut self, n: usize) -> &mut Redis {
        &mut self.sentinels[n]
    }

    /// The URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::url).collect()
    }

    /// The server that is the master, as the first sentinel that runs reports.
    pub fn master(&self) -> usize {
        let sentinel = self.sentinels.iter().find(|s| s.runs()).expect("a sentinel that runs");
        self.master_by(sentinel)
    }

    /// Kills the master, as `kill -9`; returns which it was.
    pub fn kill9_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill9();
        master
    }

    /// Has the sentinels replace a master that is well, and waits until all know the new one, which
    /// it returns.
    pub fn failover(&self) -> usize {
        let old = self.master();
        let sentinel = self.sentinels.iter().find(|s| s.runs()).expect("a sentinel that runs");
        let replaced = || {
            let replaced = self.master() != old;
            if !replaced {
                // Refused while one is under way. One is given up if no replica seems fit.
                let _ = sentinel.try_command::<()>(&["SENTINEL", "FAILOVER", MASTER_NAME]);
            }
            replaced
        };
        wait_until(SENTINEL_PATIENCE, replaced, "another master");
        self.wait_for_failover(old)
    }

    /// Waits until another server than `old` is the master, as after the end of that one, and all
    /// know it; returns it.
    pub fn wait_for_failover(&self, old: usize) -> usize {
        wait_until(SENTINEL_PATIENCE, || self.master() != old, "another master");
        self.wait_settled();
        self.master()
    }

    /// Makes a server the replica of another, which becomes a master, behind the back of the
    /// sentinels. They will not leave it at that.
    pub fn demote(&self, n: usize, new_master: usize) {
        let (host, port) = self.conf.host_and_port(&self.servers[new_master]);
        self.servers[new_master].command::<()>(&["REPLICAOF", "NO", "ONE"]);
        self.servers[n].command::<()>(&["REPLICAOF", &host, &port.to_string()]);
    }

    /// Waits until all sentinels that run agree on the master and know all others, and all servers
    /// that run are what they should be.
    pub fn wait_settled(&self) {
        let settled = || {
            let master = self.master();
            let mut sentinels = self.sentinels.iter().filter(|s| s.runs());
            sentinels.all(|s| self.master_by(s) == master && self.knows_all(s))
                && (0..self.servers.len())
                    .filter(|n| self.servers[*n].runs())
                    .all(|n| if n == master { self.leads(n) } else { self.follows(n, master) })
        };
        wait_until(SENTINEL_PATIENCE, settled, "servers and sentinels that have settled");
    }

    fn master_by(&self, sentinel: &Redis) -> usize {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
        let (_, port): (String, u16) = sentinel.command(&words);
        let of_port = |server: &Redis| server.peer_addr().port() == port;
        self.servers.iter().position(of_port).expect("a server of this test")
    }

    /// Whether a sentinel has found the other sentinels and the replicas, and nothing to complain of
    /// in the master.
    fn knows_all(&self, sentinel: &Redis) -> bool {
        let master: std::collections::HashMap<String, String> =
            sentinel.command(&["SENTINEL", "MASTER", MASTER_NAME]);
        master["flags"] == "master"
            && master["num-slaves"] == self.conf.replicas.to_string()
            && master["num-other-sentinels"] == (self.conf.sentinels - 1).to_string()
    }

    fn leads(&self, n: usize) -> bool {
        self.servers[n].info("role") == "master"
    }

    fn follows(&self, n: usize, master: usize) -> bool {
        let (server, port) = (&self.servers[n], self.servers[master].peer_addr().port());
        server.info("master_port") == port.to_string() && server.info("master_link_status") == "up"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn replaces_a_dead_master() {
        let mut sentinels = Sentinels::start(1);
        assert_eq!((sentinels.master(), sentinels.urls().len()), (0, 3));
        let start = Instant::now();
        assert_eq!(sentinels.kill9_master(), 0);
        assert_eq!(sentinels.wait_for_failover(0), 1);
        assert!(start.elapsed() > Duration::from_millis(300));
        sentinels.server_mut(0).restart();
        assert_eq!(sentinels.server(0).info("role"), "master");
        sentinels.wait_settled();
        assert_eq!(sentinels.server(0).info("role"), "slave");
        let error = sentinels.server(0).try_command::<()>(&["SET", "a", "1"]).unwrap_err();
        assert_eq!(error.code(), Some("READONLY"));
    }

    #[test]
    fn has_passwords_and_host_names() {
        let sentinels = SentinelConf::new(1)
            .hostnames()
            .line("user default off")
            .line("user limiter on >secret ~rl:* +@all")
            .sentinel_line("requirepass guarded")
            .start();
        let addr: (String, u16) =
            sentinels.sentinel(2).command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]);
        assert_eq!(addr, ("localhost".to_owned(), sentinels.server(0).port()));
        let stranger = redis::Client::open(sentinels.sentinel(0).unix_url()).unwrap();
        let error = redis::cmd("PING").exec(&mut stranger.get_connection().unwrap()).unwrap_err();
        assert_eq!(error.code(), Some("NOAUTH"));
        assert_eq!(sentinels.failover(), 1);
        // They may make it a replica again at once.
        let is_demoted = || {
            sentinels.demote(1, 0);
            sentinels.server(0).info("role") == "master"
        };
        wait_until(SENTINEL_PATIENCE, is_demoted, "another master");
    }
}
