//! The handshake: the commands that are sent first on a new connection.

use redis::Cmd;

use crate::redis::endpoint::Endpoint;
use crate::redis::reply::{Refusal, RefusalKind, Reply};
use crate::redis::script::Script;

/// Where a server begins to repeat arguments, of which long ones are cut.
const ARGUMENTS: &str = ", with args";

/// The commands of a handshake, and what their replies mean.
///
/// `AUTH` and `SELECT` if the endpoint has an account or a database; then `CLIENT SETNAME`, so that
/// an administrator finds the connection in `CLIENT LIST`; then `SCRIPT LOAD` for each script.
#[derive(Clone, Debug)]
pub struct Handshake {
    bytes: Vec<u8>,
    steps: Vec<Step>,
    /// What must not appear in a log.
    secret: Option<String>,
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
    /// `SCRIPT LOAD`.
    LoadScript,
}

impl Handshake {
    /// The handshake for `endpoint`, under the connection name `name` (no spaces), which loads
    /// `scripts`.
    pub fn new<'a>(
        endpoint: &Endpoint,
        name: &str,
        scripts: impl IntoIterator<Item = &'a Script>,
    ) -> Self {
        let secret = endpoint.password.clone();
        let mut handshake = Self { bytes: Vec::new(), steps: Vec::new(), secret };
        if endpoint.user.is_some() || endpoint.password.is_some() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = &endpoint.user {
                auth.arg(user);
            }
            // A user that needs no password takes any.
            handshake.push(Step::Auth, auth.arg(endpoint.password.as_deref().unwrap_or_default()));
        }
        if endpoint.database != 0 {
            handshake.push(Step::Select, redis::cmd("SELECT").arg(endpoint.database));
        }
        handshake.push(Step::SetName, redis::cmd("CLIENT").arg("SETNAME").arg(name));
        for script in scripts {
            let mut load = redis::cmd("SCRIPT");
            handshake.push(Step::LoadScript, load.arg("LOAD").arg(script.source()));
        }
        handshake
    }

    /// The packed commands.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The commands, in the order in which they are answered.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether the connection can be used after this reply to `step`. A server may repeat the
    /// password in an error, or its beginning: that is removed from the refusal.
    pub fn check(&self, step: Step, reply: &Reply<'_>) -> Result<(), Refusal> {
        step.check(reply).map_err(|refusal| match &self.secret {
            Some(secret) if !secret.is_empty() => {
                let text = refusal.text.split(ARGUMENTS).next().unwrap_or_default();
                Refusal { text: text.replace(secret.as_str(), "***"), ..refusal }
            }
            _ => refusal,
        })
    }

    fn push(&mut self, step: Step, command: &Cmd) {
        command.write_packed_command(&mut self.bytes);
        self.steps.push(step);
    }
}

impl Step {
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Auth => "AUTH",
            Self::Select => "SELECT",
            Self::SetName => "CLIENT SETNAME",
            Self::LoadScript => "SCRIPT LOAD",
        }
    }

    /// Whether the connection can be used after this reply.
    ///
    /// A server that refuses the name or does not load scripts can still run them by their source.
    /// One that refuses the account or the database cannot be used.
    fn check(self, reply: &Reply<'_>) -> Result<(), Refusal> {
        match (self, reply) {
            (Self::Auth | Self::Select, Reply::Error(refusal)) => Err(refusal.clone()),
            (_, Reply::Error(refusal)) if refusal.kind == RefusalKind::NotReady => {
                Err(refusal.clone())
            }
            (_, Reply::Error(refusal)) if refusal.text.starts_with("NOAUTH") => {
                Err(refusal.clone())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::reply::parse;
    use crate::redis::script::Scripts;

    fn handshake(url: &str) -> (Vec<Step>, String) {
        let handshake = Handshake::new(&url.parse().unwrap(), "nginx", Scripts::new().loaded());
        (handshake.steps().to_vec(), String::from_utf8(handshake.bytes().to_vec()).unwrap())
    }

    #[test]
    fn an_error_names_what_is_needed() {
        let scripts = Scripts::new().loaded().count();
        let (steps, bytes) = handshake("redis://127.0.0.1");
        assert_eq!(steps.len(), 1 + scripts);
        assert!(bytes.starts_with("*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$5\r\nnginx\r\n"));
        let (steps, bytes) = handshake("redis://u:p@127.0.0.1/5");
        assert_eq!(steps[..3], [Step::Auth, Step::Select, Step::SetName]);
        assert!(bytes.starts_with("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n*2\r\n$6\r\nSELECT"));
        let (steps, bytes) = handshake("redis://u@127.0.0.1");
        assert_eq!(steps[0], Step::Auth);
        assert!(bytes.starts_with("*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$0\r\n\r\n"));
    }

    #[test]
    fn a_password_is_not_repeated() {
        let endpoint = "redis://:s3cret@127.0.0.1".parse().unwrap();
        let handshake = Handshake::new(&endpoint, "nginx", Scripts::new().loaded());
        let shown =
            |line: &[u8]| handshake.check(Step::Auth, &parse(line).unwrap()).unwrap_err().text;
        assert_eq!(shown(b"-ERR not 's3cret'\r\n"), "ERR not '***'");
        let unknown = b"-ERR unknown command 'AUTH', with args beginning with: 's3c\r\n";
        assert_eq!(shown(unknown), "ERR unknown command 'AUTH'");
    }

    #[test]
    fn knows_which_refusals_matter() {
        let check = |step: Step, reply: &[u8]| step.check(&parse(reply).unwrap()).is_ok();
        assert!(check(Step::Auth, b"+OK\r\n"));
        assert!(!check(Step::Auth, b"-WRONGPASS invalid username-password pair\r\n"));
        assert!(!check(Step::Auth, b"-ERR AUTH called without any password configured\r\n"));
        assert!(!check(Step::Select, b"-ERR DB index is out of range\r\n"));
        assert!(check(Step::SetName, b"-ERR unknown command 'CLIENT'\r\n"));
        assert!(!check(Step::SetName, b"-NOAUTH Authentication required.\r\n"));
        assert!(check(Step::LoadScript, b"-NOPERM no permissions to run 'script|load'\r\n"));
        assert!(!check(Step::LoadScript, b"-LOADING Redis is loading the dataset\r\n"));
    }
}
