//! The handshake: the commands that are sent first on a new connection.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::redis::cluster::Redirect;
use crate::redis::endpoint::Endpoint;
use crate::redis::refusal::{Refusal, RefusalKind};
use crate::redis::reply::Reply;
use crate::redis::script::Script;

/// Where a server begins to repeat arguments, of which long ones are cut.
const ARGUMENTS: &str = ", with args";

/// How many bytes of scripts a connection loads at most. A command with one that the server does not have
/// is sent again, with the source.
const MAX_LOADED: usize = 39 * 1024;

/// How many passwords are kept out of the log: a connection may have logged in with several, and a server repeat any.
const MAX_SECRETS: usize = 8;

/// `PING`, packed.
pub(super) const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The commands of a handshake, and what their replies mean.
///
/// `AUTH` and `SELECT` if the endpoint has an account or a database; then `CLIENT SETNAME`, so that
/// an administrator finds the connection in `CLIENT LIST`; then `SCRIPT EXISTS`, and `SCRIPT LOAD` for
/// each script that the server does not have. What a server does not understand is left out: see
/// [`Abilities`]. As long as that is not known, and if nothing else is left, a `PING` comes first: a
/// server that answers it, and then ends the connection, does so because of what follows.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The commands of an account and a database.
    login: Vec<(Step, Vec<u8>)>,
    set_name: Vec<u8>,
    find_scripts: Vec<u8>,
    /// The commands that load the scripts, the shortest first.
    loads: Vec<Vec<u8>>,
    /// The passwords that must not appear in a log: that of the account, and those that it had before.
    secrets: Vec<String>,
}

/// One command of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `AUTH`.
    Auth,
    /// `SELECT`.
    Select,
    /// `CLIENT SETNAME`.
    SetName,
    /// `SCRIPT EXISTS`.
    FindScripts,
    /// `SCRIPT LOAD`.
    LoadScript,
    /// `PING`.
    Ping,
}

/// Whether a server can do a step that may be left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ability {
    #[default]
    Unknown,
    /// It has accepted the step.
    Proven,
    /// It has refused the step, or ended the first connection with it.
    Missing,
}

/// The steps that a server can do without, and what it has made of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    set_name: Ability,
    find_scripts: Ability,
    load_scripts: Ability,
}

impl Handshake {
    /// The handshake for `endpoint`, under the connection name `name` (no spaces), which loads
    /// `scripts`.
    pub fn new<'a>(
        endpoint: &Endpoint,
        name: &str,
        scripts: impl IntoIterator<Item = &'a Script>,
    ) -> Self {
        let mut scripts: Vec<_> = scripts.into_iter().collect();
        scripts.sort_by_key(|script| script.source().len());
        let shas: Vec<_> = scripts.iter().map(|script| script.sha()).collect();
        let load = |script: &&Script| {
            redis::cmd("SCRIPT").arg("LOAD").arg(script.source()).get_packed_command()
        };
        Self {
            login: login(endpoint),
            set_name: redis::cmd("CLIENT").arg("SETNAME").arg(name).get_packed_command(),
            find_scripts: redis::cmd("SCRIPT").arg("EXISTS").arg(shas).get_packed_command(),
            loads: scripts.iter().map(load).collect(),
            secrets: endpoint.password.iter().cloned().collect(),
        }
    }

    /// The handshake for another account.
    pub(super) fn with_account(&self, endpoint: &Endpoint) -> Self {
        let secrets = endpoint.password.iter().chain(&self.secrets);
        let secrets = secrets.take(MAX_SECRETS).cloned().collect();
        Self { login: login(endpoint), secrets, ..self.clone() }
    }

    /// `AUTH`, packed, if there is an account.
    pub(super) fn auth(&self) -> Option<&[u8]> {
        let auth = self.login.iter().find(|(step, _)| *step == Step::Auth);
        auth.map(|(_, bytes)| bytes.as_slice())
    }

    /// Appends the commands that a server with these abilities is sent first to `out`. Returns them in the
    /// order in which they are answered.
    pub(super) fn begin(&self, abilities: &Abilities, out: &mut Vec<u8>) -> VecDeque<Step> {
        let mut steps = VecDeque::new();
        let mut push = |step, bytes: &[u8]| {
            out.extend_from_slice(bytes);
            steps.push_back(step);
        };
        for (step, bytes) in &self.login {
            push(*step, bytes);
        }
        if self.login.is_empty() && !abilities.are_proven(!self.loads.is_empty()) {
            push(Step::Ping, PING);
        }
        if abilities.may(Step::SetName) {
            push(Step::SetName, &self.set_name);
        }
        if abilities.may(Step::FindScripts) && !self.loads.is_empty() {
            push(Step::FindScripts, &self.find_scripts);
        } else {
            steps.extend(self.load(abilities, &[], out));
        }
        steps
    }

    /// Appends the commands that load the scripts which a server does not have to `out`: `found` is what
    /// it has replied of each. Returns them in the order in which they are answered.
    fn load(&self, abilities: &Abilities, found: &[bool], out: &mut Vec<u8>) -> Vec<Step> {
        if !abilities.may(Step::LoadScript) {
            return Vec::new();
        }
        let (mut steps, mut room) = (Vec::new(), MAX_LOADED);
        for (index, load) in self.loads.iter().enumerate() {
            if found.get(index) == Some(&true) || load.len() > room {
                continue;
            }
            room = room.saturating_sub(load.len());
            out.extend_from_slice(load);
            steps.push(Step::LoadScript);
        }
        steps
    }

    /// Whether the connection can be used after this reply to `step`, and which steps follow, whose
    /// commands are appended to `out`.
    pub(super) fn on_reply(
        &self,
        step: Step,
        reply: &Reply<'_>,
        abilities: &Abilities,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Step>, Refusal> {
        step.check(reply)?;
        Ok(match (step, reply) {
            (Step::FindScripts, Reply::Other(found)) => {
                let found = found.items().into_iter().flatten();
                let found: Vec<_> = found.map(|it| it.integer() == Some(1)).collect();
                self.load(abilities, &found, out)
            }
            (Step::FindScripts, _) => self.load(abilities, &[], out),
            _ => Vec::new(),
        })
    }

    /// Removes the passwords of this handshake and of another one from a refusal: a server may repeat one, or its
    /// beginning. A redirection is left with what it is followed by, as a host may be called like a password.
    pub(super) fn hide_secrets(&self, other: &Self, refusal: &mut Refusal) {
        let secrets = self.secrets.iter().chain(&other.secrets).filter(|it| !it.is_empty());
        let mut secrets: Vec<_> = secrets.collect();
        if secrets.is_empty() {
            return;
        }
        // One may be a part of the other.
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        let code = match refusal.kind {
            RefusalKind::Moved => Some("MOVED"),
            RefusalKind::Ask => Some("ASK"),
            _ => None,
        };
        refusal.text = match code.zip(Redirect::parse(&refusal.text)) {
            Some((code, Redirect { slot, host, port })) => format!("{code} {slot} {host}:{port}"),
            None => {
                let text = refusal.text.split(ARGUMENTS).next().unwrap_or_default().to_owned();
                secrets.iter().fold(text, |text, it| text.replace(it.as_str(), "***"))
            }
        };
    }
}

/// The commands for the account and the database of an endpoint.
fn login(endpoint: &Endpoint) -> Vec<(Step, Vec<u8>)> {
    let mut login = Vec::new();
    if endpoint.user.is_some() || endpoint.password.is_some() {
        let mut auth = redis::cmd("AUTH");
        if let Some(user) = &endpoint.user {
            auth.arg(user);
        }
        // A user that needs no password takes any.
        auth.arg(endpoint.password.as_deref().unwrap_or_default());
        login.push((Step::Auth, auth.get_packed_command()));
    }
    if endpoint.database != 0 {
        let select = redis::cmd("SELECT").arg(endpoint.database).get_packed_command();
        login.push((Step::Select, select));
    }
    login
}

impl Step {
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Auth => "AUTH",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::FindScripts => "SCRIPT EXISTS",
            Self::LoadScript => "SCRIPT LOAD",
            Self::Ping => "PING",
        }
    }

    /// Whether the connection can be used after this reply.
    ///
    /// A server that refuses the name or does not load scripts can still run them by their source.
    /// One that refuses the account or the database cannot be used.
    fn check(self, reply: &Reply<'_>) -> Result<(), Refusal> {
        match (self, reply) {
            (Self::Auth | Self::Select, Reply::Error(refusal)) => Err(refusal.clone()),
            (_, Reply::Error(refusal))
                if [RefusalKind::NotReady, RefusalKind::LoggedOut].contains(&refusal.kind) =>
            {
                Err(refusal.clone())
            }
            _ => Ok(()),
        }
    }
}

impl Abilities {
    fn of(&mut self, step: Step) -> Option<&mut Ability> {
        match step {
            Step::SetName => Some(&mut self.set_name),
            Step::FindScripts => Some(&mut self.find_scripts),
            Step::LoadScript => Some(&mut self.load_scripts),
            Step::Auth | Step::Select | Step::Ping => None,
        }
    }

    /// Whether a step is worth while.
    fn may(mut self, step: Step) -> bool {
        self.of(step).is_none_or(|ability| *ability != Ability::Missing)
    }

    /// The server has replied to a step.
    pub(super) fn on_reply(&mut self, step: Step, reply: &Reply<'_>) {
        let Some(ability) = self.of(step) else { return };
        match reply {
            Reply::Error(refusal) if refusal.is_passing() => {}
            Reply::Error(_) => *ability = Ability::Missing,
            Reply::Script(_) | Reply::Other(_) => *ability = Ability::Proven,
        }
    }

    /// The server has answered a step, and ended the connection instead of a reply to this one. A proxy
    /// does so with commands that it does not know.
    pub(super) fn on_closed(&mut self, step: Step) {
        if let Some(ability) = self.of(step).filter(|ability| **ability == Ability::Unknown) {
            *ability = Ability::Missing;
        }
    }

    /// Whether the server is known to accept the name, or to find scripts if there are any: that is the
    /// first step then.
    fn are_proven(&self, has_scripts: bool) -> bool {
        match self.set_name {
            Ability::Proven => !has_scripts || self.find_scripts != Ability::Unknown,
            Ability::Unknown => false,
            Ability::Missing => has_scripts && self.find_scripts == Ability::Proven,
        }
    }

    /// The commands that are left out.
    pub(super) fn missing(self) -> Vec<&'static str> {
        let steps = [Step::SetName, Step::FindScripts, Step::LoadScript];
        steps.into_iter().filter(|step| !self.may(*step)).map(Step::command).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use super::*;
    use crate::limit::Algorithm;
    use crate::redis::reply::parse_other;
    use crate::redis::script::Scripts;

    fn begin(handshake: &Handshake, abilities: &Abilities) -> (Vec<Step>, String) {
        let mut out = Vec::new();
        let steps = handshake.begin(abilities, &mut out);
        (steps.into(), String::from_utf8(out).unwrap())
    }

    fn handshake(url: &str) -> (Vec<Step>, String) {
        let handshake = Handshake::new(&url.parse().unwrap(), "nginx", Scripts::new().loaded());
        begin(&handshake, &Abilities::default())
    }

    /// The steps that follow this reply to `SCRIPT EXISTS`, and how many bytes they take.
    fn follow(handshake: &Handshake, reply: &str) -> (usize, usize) {
        let (reply, mut out) = (parse_other(reply.as_bytes()).unwrap(), Vec::new());
        let abilities = Abilities::default();
        let steps = handshake.on_reply(Step::FindScripts, &reply, &abilities, &mut out).unwrap();
        assert!(steps.iter().all(|step| *step == Step::LoadScript));
        assert_eq!(
            steps.len(),
            String::from_utf8(out.clone()).unwrap().matches("LOAD\r\n").count()
        );
        (steps.len(), out.len())
    }

    #[test]
    fn an_endpoint_names_what_is_needed() {
        let (steps, bytes) = handshake("redis://127.0.0.1");
        assert_eq!(steps, [Step::Ping, Step::SetName, Step::FindScripts]);
        assert!(bytes.contains("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$5\r\nnginx\r\n"));
        let (steps, bytes) = handshake("redis://u:p@127.0.0.1/5");
        assert_eq!(steps, [Step::Auth, Step::Select, Step::SetName, Step::FindScripts]);
        assert!(bytes.starts_with("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n*2\r\n$6\r\nSELECT"));
        let (steps, bytes) = handshake("redis://u@127.0.0.1");
        assert_eq!(steps[0], Step::Auth);
        assert!(bytes.starts_with("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$0\r\n\r\n"));
    }

    /// Five algorithms, several limits at once, and a list of two.
    #[test]
    fn it_is_small() {
        use Algorithm::{FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};
        let all = [TokenBucket, Gcra, SlidingWindow, SlidingLog, FixedWindow];
        let scripts = Scripts::new().loading(&all, true).with_lists([&[TokenBucket, Gcra][..]]);
        let endpoint = "redis://u:p@127.0.0.1/5".parse().unwrap();
        let handshake = Handshake::new(&endpoint, "nginx_rate_limit_redis:12345", scripts.loaded());
        let (_, bytes) = begin(&handshake, &Abilities::default());
        assert!(bytes.len() < 1_024, "{} bytes", bytes.len());
        let count = scripts.loaded().count();
        let known = |number: usize| {
            let found = (0..count).map(|index| format!(":{}\r\n", u8::from(index < number)));
            format!("*{count}\r\n{}", found.collect::<String>())
        };
        assert_eq!(follow(&handshake, &known(count)), (0, 0));
        assert_eq!(follow(&handshake, &known(count - 2)).0, 1, "the longest does not fit");
        for reply in [known(0), "+OK\r\n".to_owned(), "-NOPERM no\r\n".to_owned()] {
            let (steps, length) = follow(&handshake, &reply);
            assert!(steps >= 4 && bytes.len() + length <= 40 * 1_024, "{steps} take {length}");
        }
    }

    /// The text of a refusal on a connection that has logged in with the first password, by a node that has the others
    /// since.
    fn shown(passwords: &[&str], line: &str) -> String {
        let endpoint = |password: &&str| Endpoint {
            password: Some((*password).to_owned()),
            ..Endpoint::from_str("redis://127.0.0.1").unwrap()
        };
        let mut endpoints = passwords.iter().map(endpoint);
        let own = Handshake::new(&endpoints.next().unwrap(), "nginx", Scripts::new().loaded());
        let latest = endpoints.fold(own.clone(), |it, endpoint| it.with_account(&endpoint));
        match parse_other(format!("-{line}\r\n").as_bytes()).unwrap() {
            Reply::Error(mut refusal) => {
                own.hide_secrets(&latest, &mut refusal);
                refusal.text
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_password_is_not_repeated() {
        let shown = |line| shown(&["s3cret"], line);
        assert_eq!(shown("ERR not 's3cret'"), "ERR not '***'");
        assert_eq!(shown("s3cret"), "***");
        let unknown = "ERR unknown command 'AUTH', with args beginning with: 's3c";
        assert_eq!(shown(unknown), "ERR unknown command 'AUTH'");
    }

    /// The reply to an `AUTH` with the password before it may be still to come.
    #[test]
    fn nor_are_those_before_it() {
        let passwords = ["s3cret", "aaa", "another s3cret", "b"];
        let refusal = "ERR not 's3cret', nor 'aaa', nor 'another s3cret', nor 'b'";
        assert_eq!(shown(&passwords, refusal), "ERR not '***', nor '***', nor '***', nor '***'");
    }

    /// A host, and a part of a port, may be what a password is.
    #[test]
    fn a_redirection_can_be_followed() {
        let shown = |line| shown(&["redis", "63"], line);
        assert_eq!(shown("MOVED 63 redis-1:6379 redis"), "MOVED 63 redis-1:6379");
        assert_eq!(shown("ASK 63 ::1:6379"), "ASK 63 ::1:6379");
        assert_eq!(shown("MOVED redis"), "MOVED ***");
        assert_eq!(shown("ERR 63 redis:6379"), "ERR *** ***:***79");
    }

    #[test]
    fn knows_which_refusals_matter() {
        let check = |step: Step, reply: &[u8]| step.check(&parse_other(reply).unwrap()).is_ok();
        assert!(check(Step::Auth, b"+OK\r\n"));
        assert!(!check(Step::Auth, b"-WRONGPASS invalid username-password pair\r\n"));
        assert!(!check(Step::Auth, b"-ERR AUTH called without any password configured\r\n"));
        assert!(!check(Step::Select, b"-ERR DB index is out of range\r\n"));
        assert!(check(Step::SetName, b"-ERR unknown command 'CLIENT'\r\n"));
        assert!(!check(Step::SetName, b"-NOAUTH Authentication required.\r\n"));
        assert!(check(Step::FindScripts, b"-NOPERM no permissions to run 'script|exists'\r\n"));
        assert!(check(Step::LoadScript, b"-NOPERM no permissions to run 'script|load'\r\n"));
        assert!(!check(Step::LoadScript, b"-LOADING Redis is loading the dataset\r\n"));
    }

    #[test]
    fn what_is_refused_is_left_out() {
        let endpoint = "redis://127.0.0.1".parse().unwrap();
        let scripts = Scripts::new().loading(&[Algorithm::Gcra], false);
        let handshake = Handshake::new(&endpoint, "nginx", scripts.loaded());
        let mut abilities = Abilities::default();
        let mut steps_after = |step, reply: &[u8]| {
            abilities.on_reply(step, &parse_other(reply).unwrap());
            begin(&handshake, &abilities).0
        };
        let unchanged = steps_after(Step::FindScripts, b"-BUSY Redis is busy running a script\r\n");
        assert_eq!(unchanged, [Step::Ping, Step::SetName, Step::FindScripts]);
        let steps = steps_after(Step::FindScripts, b"-NOPERM no permissions\r\n");
        assert_eq!(steps, [Step::Ping, Step::SetName, Step::LoadScript]);
        let steps = steps_after(Step::SetName, b"-ERR unknown command 'CLIENT'\r\n");
        assert_eq!(steps, [Step::Ping, Step::LoadScript]);
        assert_eq!(steps_after(Step::LoadScript, b"-NOPERM no permissions\r\n"), [Step::Ping]);
        assert_eq!(abilities.missing(), ["CLIENT SETNAME", "SCRIPT EXISTS", "SCRIPT LOAD"]);
    }

    #[test]
    fn what_is_proven_needs_no_ping() {
        let endpoint = "redis://127.0.0.1".parse().unwrap();
        let scripts = Scripts::new().loading(&[Algorithm::Gcra], false);
        let handshake = Handshake::new(&endpoint, "nginx", scripts.loaded());
        let sentinel = Handshake::new(&endpoint, "nginx", []);
        let mut abilities = Abilities::default();
        abilities.on_reply(Step::SetName, &parse_other(b"+OK\r\n").unwrap());
        assert_eq!(begin(&sentinel, &abilities).0, [Step::SetName]);
        abilities.on_reply(Step::FindScripts, &parse_other(b"*1\r\n:1\r\n").unwrap());
        assert_eq!(begin(&handshake, &abilities).0, [Step::SetName, Step::FindScripts]);
        // The reply of one script is as good as that of many.
        assert_eq!(follow(&handshake, "*1\r\n:1\r\n"), (0, 0));
        assert_eq!(follow(&handshake, "*1\r\n:0\r\n").0, 1);
    }

    #[test]
    fn what_a_server_hangs_up_at_is_left_out_unless_it_has_accepted_it_before() {
        let mut abilities = Abilities::default();
        abilities.on_closed(Step::SetName);
        abilities.on_reply(Step::FindScripts, &parse_other(b"*1\r\n:1\r\n").unwrap());
        abilities.on_closed(Step::FindScripts);
        abilities.on_closed(Step::Ping);
        assert_eq!(abilities.missing(), ["CLIENT SETNAME"]);
    }
}
