//! One Redis server: its connections, its databases and what it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rate_limit_core::redis::cluster::slot;

use crate::cost;
use crate::database::{Database, Write};
use crate::journal::{Execution, Journal};
use crate::lua;
use crate::network::ConnectionId;
use crate::resp::{self, Command, Input};
use crate::script::{self, PROGRAMS, WrongType};
use crate::slots::{Member, Route};

/// The index of a server in its deployment.
pub type ServerId = usize;

/// The Unix time at which every simulation starts, in µs.
pub const EPOCH: u64 = 1_763_683_200_000_000;

/// The channel on which sentinels announce new masters.
const SWITCH_MASTER: &[u8] = b"+switch-master";

/// The number of databases of a Redis that is not configured otherwise.
const DATABASES: usize = 16;

/// The most clients of a Redis that is not configured otherwise.
const MAX_CLIENTS: usize = 10_000;

/// The reply to one more client.
pub const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// A Redis server or a sentinel.
#[derive(Debug)]
pub struct Server {
    pub id: ServerId,
    pub address: SocketAddr,
    pub process: Process,
    pub role: Role,
    /// The server's part in a cluster.
    pub member: Option<Member>,
    /// The password that `AUTH` must give, if any.
    pub password: Option<String>,
    /// Why it executes no scripts for now.
    pub unfit: Option<Unfit>,
    /// How far its clock is ahead of the simulation's, in µs.
    pub skew: i64,
    /// How many clients it takes.
    pub max_clients: usize,
    /// Its work since this was last taken.
    pub work: Work,
    /// Whether it runs scripts in Lua, beside the references.
    pub runs_lua: bool,
    /// Whether its writes are to be replicated.
    pub replicates: bool,
    pub databases: Vec<Database>,
    /// Which scripts are in its cache, by their index.
    cached: Vec<bool>,
    sessions: BTreeMap<ConnectionId, Session>,
    writes: Vec<(usize, Write)>,
}

/// The work of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How long it took, in ns of the server's core.
    pub time: u64,
    /// How many queries for the topology were answered.
    pub queries: u64,
    /// How many commands were executed that run a script.
    pub scripts: u64,
}

/// The state of the server's process in the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    Running,
    /// Stopped by a signal: connections are accepted by the kernel, but nothing is processed.
    Hung,
    Dead,
}

/// The role of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Master,
    Replica {
        of: ServerId,
    },
    /// A sentinel, and the address of the master that it knows by this name.
    Sentinel {
        name: &'static str,
        master: SocketAddr,
    },
}

/// Why a server executes no scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Loading,
    /// A replica that has lost its master, and that does not serve stale data.
    MasterDown,
    /// A master that has too few replicas to write.
    NoReplicas,
    OutOfMemory,
    Failing,
}

/// One connection at the server.
#[derive(Debug, Default)]
struct Session {
    input: Input,
    authenticated: bool,
    database: usize,
    asking: bool,
    /// The slot of the last command after `ASKING`, if its script was missing.
    lacks_script: Option<u16>,
    channels: BTreeSet<Vec<u8>>,
    /// How many bytes the server has sent.
    sent: u64,
}

/// The things that a command needs to be executed, beside the server.
struct Turn<'a> {
    now: u64,
    connection: ConnectionId,
    session: Session,
    journal: &'a mut Journal,
    out: &'a mut Vec<u8>,
}

impl Server {
    /// A running server with empty databases.
    pub fn new(id: ServerId, address: SocketAddr, role: Role) -> Self {
        Self {
            id,
            address,
            process: Process::Running,
            role,
            member: None,
            password: None,
            unfit: None,
            skew: 0,
            max_clients: MAX_CLIENTS,
            work: Work::default(),
            runs_lua: false,
            replicates: false,
            databases: vec![Database::default(); DATABASES],
            cached: vec![false; PROGRAMS.len()],
            sessions: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    /// The server's Unix time in µs.
    pub fn time(&self, now: u64) -> u64 {
        (EPOCH + now).saturating_add_signed(self.skew)
    }

    /// Accepts a connection, unless there are too many.
    pub fn accept(&mut self, connection: ConnectionId) -> bool {
        let is_taken = self.sessions.len() < self.max_clients;
        self.work.time += if is_taken { cost::ACCEPT } else { cost::REFUSE };
        if is_taken {
            let authenticated = self.password.is_none();
            self.sessions.insert(connection, Session { authenticated, ..Session::default() });
        }
        is_taken
    }

    /// How many connections are open at the server.
    pub fn connections(&self) -> usize {
        self.sessions.len()
    }

    /// Takes what the server has done.
    pub fn take_work(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Whether the connection is open at the server.
    pub fn has(&self, connection: ConnectionId) -> bool {
        self.sessions.contains_key(&connection)
    }

    pub fn drop_connection(&mut self, connection: ConnectionId) {
        self.sessions.remove(&connection);
    }

    /// Drops all connections, and returns what they were.
    pub fn drop_connections(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.sessions).into_keys().collect()
    }

    pub fn flush_scripts(&mut self) {
        self.cached.fill(false);
    }

    /// The writes since the last call that are to be replicated, with their databases.
    pub fn take_writes(&mut self) -> Vec<(usize, Write)> {
        std::mem::take(&mut self.writes)
    }

    /// Executes the commands that are complete with these bytes, and appends the replies to `out`.
    pub fn receive(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        now: u64,
        journal: &mut Journal,
        out: &mut Vec<u8>,
    ) {
        let Some(session) = self.sessions.get_mut(&connection) else { return };
        let session = std::mem::take(session);
        self.work.time += cost::received(bytes.len());
        let mut turn = Turn { now, connection, session, journal, out };
        let mut input = std::mem::take(&mut turn.session.input);
        input.push(bytes);
        while let Some(command) = input.next() {
            let start = turn.out.len();
            self.execute(&command, &mut turn);
            turn.session.sent += (turn.out.len() - start) as u64;
        }
        turn.session.input = input.without_memory();
        self.sessions.insert(connection, turn.session);
    }

    /// Announces a new master to the subscribers: the connections, and the message.
    pub fn publish(&mut self, message: &str) -> (Vec<ConnectionId>, Vec<u8>) {
        let mut out = Vec::new();
        resp::array(&mut out, 3);
        [&b"message"[..], SWITCH_MASTER, message.as_bytes()]
            .iter()
            .for_each(|word| resp::bulk(&mut out, word));
        let subscribed =
            |(_, session): &(_, &mut Session)| session.channels.contains(SWITCH_MASTER);
        let subscribers = self.sessions.iter_mut().filter(subscribed).map(|(id, session)| {
            session.sent += out.len() as u64;
            *id
        });
        (subscribers.collect(), out)
    }

    fn execute(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) {
        if command.is(0, "AUTH") {
            return self.auth(command, turn);
        }
        if !turn.session.authenticated {
            return resp::error(turn.out, "NOAUTH Authentication required.");
        }
        let asking = std::mem::replace(&mut turn.session.asking, command.is(0, "ASKING"));
        let is_script = command.is(0, "EVALSHA") || command.is(0, "EVAL");
        if is_script && !self.is_sentinel() {
            self.work.scripts += 1;
            self.work.time += cost::SCRIPT;
            return self.run_script(command, asking, turn);
        }
        self.work.time += cost::COMMAND;
        match self.control(command, turn) {
            Ok(()) => {}
            Err(error) => resp::error(turn.out, &error),
        }
    }

    fn is_sentinel(&self) -> bool {
        matches!(self.role, Role::Sentinel { .. })
    }

    fn auth(&self, command: &Command<'_>, turn: &mut Turn<'_>) {
        let given = command.word(command.len() - 1);
        match &self.password {
            None => resp::error(
                turn.out,
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ),
            Some(password) if password.as_bytes() == given => {
                turn.session.authenticated = true;
                resp::simple(turn.out, "OK");
            }
            Some(_) => resp::error(
                turn.out,
                "WRONGPASS invalid username-password pair or user is disabled.",
            ),
        }
    }

    /// Everything but scripts.
    fn control(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) -> Result<(), String> {
        let name = String::from_utf8_lossy(command.word(0)).to_ascii_uppercase();
        let subscribed = !turn.session.channels.is_empty();
        if subscribed && !["SUBSCRIBE", "UNSUBSCRIBE", "PING"].contains(&name.as_str()) {
            let name = name.to_ascii_lowercase();
            return Err(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
                 RESET are allowed in this context"
            ));
        }
        match (name.as_str(), &self.role) {
            ("PING" | "ASKING" | "SCRIPT", _) if self.unfit == Some(Unfit::Loading) => {
                return Err(Unfit::Loading.error().to_owned());
            }
            ("PING", _) if subscribed => {
                resp::array(turn.out, 2);
                resp::bulk(turn.out, b"pong");
                resp::bulk(turn.out, b"");
            }
            ("PING", _) => resp::simple(turn.out, "PONG"),
            ("ASKING", _) if self.member.is_some() => resp::simple(turn.out, "OK"),
            ("CLIENT", _) if command.is(1, "SETNAME") => resp::simple(turn.out, "OK"),
            ("SUBSCRIBE", _) => subscribe(command, turn, true),
            ("UNSUBSCRIBE", _) => subscribe(command, turn, false),
            ("SENTINEL", Role::Sentinel { name, master }) => {
                assert!(command.is(1, "GET-MASTER-ADDR-BY-NAME"), "{command:?}");
                self.work.queries += 1;
                write_master(turn.out, (command.word(2) == name.as_bytes()).then_some(*master));
            }
            ("SELECT", Role::Master | Role::Replica { .. }) => self.select(command, turn)?,
            ("SCRIPT", Role::Master | Role::Replica { .. }) if command.is(1, "LOAD") => {
                self.load_script(command, turn);
            }
            ("SCRIPT", Role::Master | Role::Replica { .. }) if command.is(1, "EXISTS") => {
                self.find_scripts(command, turn.out);
            }
            ("CLUSTER", _) if command.is(1, "SLOTS") => match &self.member {
                Some(member) => {
                    self.work.queries += 1;
                    self.work.time += cost::map(member.view.ranges());
                    turn.out.extend_from_slice(member.view.reply());
                }
                None => return Err("ERR This instance has cluster support disabled".to_owned()),
            },
            _ => return Err(format!("ERR unknown command '{name}', with args beginning with: ")),
        }
        Ok(())
    }

    fn select(&self, command: &Command<'_>, turn: &mut Turn<'_>) -> Result<(), String> {
        let database = command.number(1) as usize;
        if database >= DATABASES {
            return Err("ERR DB index is out of range".to_owned());
        }
        if self.member.is_some() && database > 0 {
            return Err("ERR SELECT is not allowed in cluster mode".to_owned());
        }
        turn.session.database = database;
        resp::simple(turn.out, "OK");
        Ok(())
    }

    fn find_scripts(&self, command: &Command<'_>, out: &mut Vec<u8>) {
        resp::array(out, command.len() - 2);
        for index in 2..command.len() {
            let sha = command.word(index);
            let found = PROGRAMS.iter().position(|(_, script)| script.sha().as_bytes() == sha);
            let found = found.is_some_and(|index| self.cached[index]);
            out.extend_from_slice(format!(":{}\r\n", u8::from(found)).as_bytes());
        }
    }

    fn load_script(&mut self, command: &Command<'_>, turn: &mut Turn<'_>) {
        let index = index_of_source(command.word(2));
        self.cache(index);
        resp::bulk(turn.out, PROGRAMS[index].1.sha().as_bytes());
    }

    /// Puts a script into the cache.
    fn cache(&mut self, index: usize) {
        if !std::mem::replace(&mut self.cached[index], true) {
            self.work.time += cost::compiled(PROGRAMS[index].1.source().len());
        }
    }

    /// In the order in which Redis looks for reasons not to execute a command.
    fn run_script(&mut self, command: &Command<'_>, asking: bool, turn: &mut Turn<'_>) {
        if let Err(error) = self.try_script(command, asking, turn) {
            resp::error(turn.out, &error);
        }
    }

    fn try_script(
        &mut self,
        command: &Command<'_>,
        asking: bool,
        turn: &mut Turn<'_>,
    ) -> Result<(), String> {
        let now = self.time(turn.now);
        self.check_asking(command, asking, &turn.session);
        self.route(command, asking, now)?;
        if let Some(unfit) = self.unfit {
            return Err(unfit.error().to_owned());
        }
        let found = self.find_script(command);
        if asking {
            let slot = script::keys(command).next().map(|key| slot(b"", key));
            turn.session.lacks_script = slot.filter(|_| found.is_err());
        }
        let index = found?;
        let (start, database) = (turn.out.len(), &mut self.databases[turn.session.database]);
        let mut result = script::run(&PROGRAMS[index].0, command, database, now, turn.out);
        if self.runs_lua {
            lua::check(index, command, database, now, &mut result, &turn.out[start..]);
        }
        let effects = result.map_err(|WrongType| lua::WRONG_TYPE.to_owned())?;
        if !effects.writes.is_empty() && self.role != Role::Master {
            turn.out.truncate(start);
            return Err("READONLY You can't write against a read only replica.".to_owned());
        }
        for write in effects.writes {
            if self.replicates {
                self.writes.push((turn.session.database, write.clone()));
            }
            database.apply(write);
        }
        turn.journal.executions.push(Execution {
            at: turn.now,
            server: self.id,
            connection: turn.connection,
            database: turn.session.database,
            charges: effects.charges,
            reply_ends: turn.session.sent + (turn.out.len() - start) as u64,
        });
        Ok(())
    }

    /// A command that was sent with `ASKING` needs that again when it is sent with its source.
    fn check_asking(&self, command: &Command<'_>, asking: bool, session: &Session) {
        let Some(member) = self.member.as_ref().filter(|_| command.is(0, "EVAL") && !asking) else {
            return;
        };
        let slot = script::keys(command).next().map(|key| slot(b"", key));
        let is_imported = slot.is_some_and(|slot| member.importing.contains(&slot));
        assert!(!is_imported || session.lacks_script != slot, "sent without ASKING: {command:?}");
    }

    /// Whether the keys of a command are served here, if this is a node of a cluster.
    fn route(&self, command: &Command<'_>, asking: bool, now: u64) -> Result<(), String> {
        let Some(member) = &self.member else { return Ok(()) };
        let mut slots = script::keys(command).map(|key| slot(b"", key));
        let slot = slots.next().expect("a script has a key");
        if slots.any(|other| other != slot) {
            return Err("CROSSSLOT Keys in request don't hash to the same slot".to_owned());
        }
        let is_missing = |key: &&[u8]| self.databases[0].get(key, now).is_none();
        // Only where the slot is moving does it matter which keys are here.
        let is_moving = member.migrating.contains_key(&slot) || member.importing.contains(&slot);
        let missing = if is_moving { script::keys(command).filter(is_missing).count() } else { 0 };
        match member.route(self.id, slot, (script::keys(command).count(), missing), asking) {
            Route::Serve => Ok(()),
            Route::Moved(address) => Err(format!("MOVED {slot} {address}")),
            Route::Ask(address) => Err(format!("ASK {slot} {address}")),
            Route::TryAgain => {
                Err("TRYAGAIN Multiple keys request during rehashing of slot".to_owned())
            }
            Route::Unserved => Err("CLUSTERDOWN Hash slot not served".to_owned()),
            Route::Down => Err("CLUSTERDOWN The cluster is down".to_owned()),
        }
    }

    /// The script of the command, which `EVAL` puts into the cache.
    fn find_script(&mut self, command: &Command<'_>) -> Result<usize, String> {
        if command.is(0, "EVAL") {
            let index = index_of_source(command.word(1));
            self.cache(index);
            return Ok(index);
        }
        let is_it = |sha: &str| sha.as_bytes() == command.word(1);
        let index = PROGRAMS.iter().position(|(_, script)| is_it(script.sha()));
        let index = index.expect("the SHA-1 of a script of the module");
        match self.cached[index] {
            true => Ok(index),
            false => Err("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
        }
    }
}

impl Unfit {
    fn error(self) -> &'static str {
        match self {
            Self::Loading => "LOADING Redis is loading the dataset in memory",
            Self::MasterDown => {
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
            }
            Self::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::Failing => "ERR internal error",
        }
    }
}

fn index_of_source(source: &[u8]) -> usize {
    let is_it = |own: &str| own.as_bytes() == source;
    let index = PROGRAMS.iter().position(|(_, script)| is_it(script.source()));
    index.expect("the source of a script of the module")
}

/// Subscribes to channels, or unsubscribes from them.
fn subscribe(command: &Command<'_>, turn: &mut Turn<'_>, begins: bool) {
    assert!(command.len() > 1, "{command:?}");
    for channel in command.words(1) {
        match begins {
            true => drop(turn.session.channels.insert(channel.to_vec())),
            false => drop(turn.session.channels.remove(channel)),
        }
        resp::array(turn.out, 3);
        resp::bulk(turn.out, if begins { b"subscribe" } else { b"unsubscribe" });
        resp::bulk(turn.out, channel);
        resp::integer(turn.out, turn.session.channels.len() as i64);
    }
}

fn write_master(out: &mut Vec<u8>, master: Option<SocketAddr>) {
    let Some(address) = master else { return out.extend_from_slice(b"*-1\r\n") };
    resp::array(out, 2);
    resp::bulk(out, address.ip().to_string().as_bytes());
    resp::bulk(out, address.port().to_string().as_bytes());
}

#[cfg(test)]
pub mod tests {
    use std::rc::Rc;
    use std::sync::LazyLock;

    use rate_limit_core::charge::{Charge, Template};
    use rate_limit_core::key::Head;
    use rate_limit_core::limit::{Algorithm, Quota};
    use rate_limit_core::redis::script::{By, Scripts};

    use super::*;

    pub const CLIENT: ConnectionId = 1;

    thread_local! {
        static TEMPLATE: &'static Rc<Template> =
            Box::leak(Box::new(Rc::new(Template::new(Head::new("rl:", "a").unwrap(), None))));
    }

    pub fn template() -> &'static Rc<Template> {
        TEMPLATE.with(|template| *template)
    }

    /// Three at once, and one more each minute.
    static QUOTA: LazyLock<Quota> =
        LazyLock::new(|| Quota::new(Algorithm::Gcra, "1r/m".parse().unwrap(), 3).unwrap());

    pub fn charge_of(key: &[u8]) -> Charge<'_> {
        Charge::new(template(), key, &QUOTA, 1)
    }

    /// The command that decides a limit for each of these keys.
    pub fn charge(by: By, keys: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let charges = keys.iter().map(|key| charge_of(key.as_bytes()));
        Scripts::new().encode_charges(&mut bytes, by, charges);
        bytes
    }

    pub fn words(words: &[&str]) -> Vec<u8> {
        redis::Cmd::new().arg(words).get_packed_command()
    }

    fn server() -> Server {
        let mut server = Server::new(0, ([10, 0, 0, 1], 6_379).into(), Role::Master);
        server.runs_lua = true;
        server
    }

    /// The replies of a server, as text.
    fn send(server: &mut Server, bytes: &[u8]) -> String {
        let (mut journal, mut out) = (Journal::default(), Vec::new());
        server.receive(CLIENT, bytes, 0, &mut journal, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    fn connected(mut server: Server) -> impl FnMut(&[u8]) -> String {
        server.accept(CLIENT);
        move |bytes| send(&mut server, bytes)
    }

    #[test]
    fn a_session_is_answered_as_by_redis() {
        let mut server = server();
        server.password = Some("secret".to_owned());
        let mut send = connected(server);
        assert!(send(&words(&["PING"])).starts_with("-NOAUTH"));
        assert!(send(&words(&["AUTH", "wrong"])).starts_with("-WRONGPASS"));
        assert_eq!(send(&words(&["AUTH", "default", "secret"])), "+OK\r\n");
        assert_eq!(send(&words(&["SELECT", "5"])), "+OK\r\n");
        assert!(send(&words(&["SELECT", "16"])).starts_with("-ERR DB index"));
        assert_eq!(send(&words(&["CLIENT", "SETNAME", "nginx"])), "+OK\r\n");
        assert!(send(&charge(By::Sha, &["k"])).starts_with("-NOSCRIPT"));
        let scripts = Scripts::new();
        let script = scripts.single(Algorithm::Gcra).unwrap();
        assert_eq!(send(&words(&["SCRIPT", "EXISTS", script.sha()])), "*1\r\n:0\r\n");
        let loaded = send(&words(&["SCRIPT", "LOAD", script.source()]));
        assert_eq!(send(&words(&["SCRIPT", "EXISTS", "0", script.sha()])), "*2\r\n:0\r\n:1\r\n");
        assert_eq!(loaded, format!("$40\r\n{}\r\n", script.sha()));
        assert_eq!(send(&charge(By::Sha, &["k"])), "$13\r\n1763683200 0 \r\n");
        assert!(send(&charge(By::Sha, &["k"])).starts_with("$37\r\n1763683200 0 "));
        assert!(send(&charge(By::Sha, &["a", "b"])).starts_with("-NOSCRIPT"));
        let several = send(&charge(By::Source, &["a", "b"]));
        assert_eq!(several, "*3\r\n:1763683200000000\r\n$-1\r\n$-1\r\n");
        assert_eq!(send(&charge(By::Sha, &["a", "b"])).matches("$24").count(), 2);
    }

    #[test]
    fn replies_do_not_depend_on_where_bytes_are_cut() {
        let bytes =
            [charge(By::Source, &["k"]), words(&["PING"]), charge(By::Sha, &["k"])].concat();
        let whole = connected(server())(&bytes);
        assert!(whole.contains("+PONG\r\n"));
        for cut in (0..bytes.len()).step_by(7) {
            let mut send = connected(server());
            assert_eq!(send(&bytes[..cut]) + &send(&bytes[cut..]), whole);
        }
    }

    #[test]
    fn executions_are_noted() {
        let (mut server, mut journal, mut out) = (server(), Journal::default(), Vec::new());
        server.accept(CLIENT);
        let bytes = [words(&["SELECT", "3"]), charge(By::Source, &["a", "b"])].concat();
        server.receive(CLIENT, &bytes, 77, &mut journal, &mut out);
        let [execution] = &journal.executions[..] else { panic!("{journal:?}") };
        assert_eq!((execution.at, execution.server), (77, 0));
        assert_eq!((execution.connection, execution.database), (CLIENT, 3));
        assert_eq!(execution.reply_ends, out.len() as u64);
        let keys: Vec<_> = execution.charges.iter().map(|charge| &*charge.key).collect();
        assert_eq!(keys, [&b"rl:a:a"[..], b"rl:a:b"]);
        assert!(execution.charges.iter().all(|charge| (charge.times, charge.passed) == (1, 1)));
    }

    #[test]
    fn a_replica_only_rejects() {
        let mut replica = server();
        replica.role = Role::Replica { of: 1 };
        let mut send = connected(replica);
        assert!(send(&charge(By::Source, &["k"])).starts_with("-READONLY"));
        let mut bytes = Vec::new();
        let costly = Charge { cost: 9, ..charge_of(b"k") };
        Scripts::new().encode_charges(&mut bytes, By::Sha, std::iter::once(costly));
        assert_eq!(send(&bytes), "$13\r\n1763683200 0 \r\n");
    }

    #[test]
    fn an_unfit_server_executes_no_scripts() {
        for (unfit, error) in [
            (Unfit::Loading, "-LOADING"),
            (Unfit::MasterDown, "-MASTERDOWN"),
            (Unfit::NoReplicas, "-NOREPLICAS"),
            (Unfit::OutOfMemory, "-OOM"),
            (Unfit::Failing, "-ERR"),
        ] {
            let mut server = server();
            server.unfit = Some(unfit);
            let mut send = connected(server);
            assert!(send(&charge(By::Source, &["k"])).starts_with(error));
            assert_eq!(send(&words(&["PING"])).starts_with('-'), unfit == Unfit::Loading);
        }
    }

    #[test]
    fn a_subscribed_connection_takes_no_other_commands() {
        let mut sentinel = server();
        let master = ([10, 0, 0, 9], 1).into();
        sentinel.role = Role::Sentinel { name: "limits", master };
        sentinel.accept(CLIENT);
        let query = words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"]);
        assert_eq!(send(&mut sentinel, &query), "*2\r\n$8\r\n10.0.0.9\r\n$1\r\n1\r\n");
        assert!(sentinel.publish("m").0.is_empty());
        let subscribe = words(&["SUBSCRIBE", "+switch-master"]);
        assert!(send(&mut sentinel, &subscribe).ends_with(":1\r\n"));
        assert!(send(&mut sentinel, &query).starts_with("-ERR Can't execute"));
        assert_eq!(sentinel.publish("m").0, [CLIENT]);
        let unsubscribe = words(&["UNSUBSCRIBE", "+switch-master"]);
        assert!(send(&mut sentinel, &unsubscribe).ends_with(":0\r\n"));
        let other = words(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "other"]);
        assert_eq!(send(&mut sentinel, &other), "*-1\r\n");
    }
}
