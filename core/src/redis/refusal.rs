//! Error replies, and what they mean to a limiter.

use redis::{ServerError, ServerErrorKind};

use crate::text::log::Escaped;

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its meaning to a limiter.
    pub kind: RefusalKind,
    /// The line, for a log: without what the server adds about its script.
    pub text: String,
}

/// The meaning of an error reply to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// NOSCRIPT: the script is not cached. It did not run, and can be sent as its source.
    NoScript,
    /// The server is not ready: loading, without its master, full, or in protected mode. The
    /// command did not run.
    NotReady,
    /// The server refuses to write: it is a replica (READONLY), has lost its replicas (NOREPLICAS), or
    /// cannot save (MISCONF). Nothing was written.
    ReadOnly,
    /// MOVED: another node of the cluster owns the slot. The command did not run.
    Moved,
    /// ASK: the slot is being migrated, and the key is not at this node any more. The command did
    /// not run.
    Ask,
    /// TRYAGAIN: the slot is being migrated, and the keys are at both nodes. The command did not
    /// run.
    TryAgain,
    /// CLUSTERDOWN: the slot has no owner, or the cluster is down. Nothing was written.
    ClusterDown,
    /// NOAUTH: the connection is not logged in. The command did not run.
    LoggedOut,
    /// The account is wrong, or lacks a permission.
    Auth,
    /// The command failed.
    Failed,
}

impl Refusal {
    /// The refusal that an error is.
    pub(super) fn new(error: &ServerError) -> Self {
        Self {
            kind: RefusalKind::of(error.kind(), error.code(), error.details()),
            text: match error.details() {
                Some(details) => cause(&format!("{} {details}", error.code())).to_owned(),
                None => error.code().to_owned(),
            },
        }
    }

    /// The line as a log shows it.
    pub fn shown(&self) -> Escaped<'_> {
        Escaped(self.text.as_bytes())
    }

    /// Whether the account is at fault, or that there is none.
    pub fn is_auth(&self) -> bool {
        matches!(self.kind, RefusalKind::LoggedOut | RefusalKind::Auth)
    }

    /// Whether it proves that nothing was written.
    pub fn has_no_effect(&self) -> bool {
        match self.kind {
            RefusalKind::NoScript
            | RefusalKind::NotReady
            | RefusalKind::ReadOnly
            | RefusalKind::Moved
            | RefusalKind::Ask
            | RefusalKind::TryAgain
            | RefusalKind::ClusterDown
            | RefusalKind::LoggedOut => true,
            // Within a script, OOM comes in place of its first write.
            RefusalKind::Auth | RefusalKind::Failed => self.has_code(&["NOPERM", "BUSY", "OOM"]),
        }
    }

    /// Whether the cause passes without a change of the server's configuration.
    pub fn is_passing(&self) -> bool {
        self.has_code(&["LOADING", "MASTERDOWN", "BUSY"])
    }

    fn has_code(&self, codes: &[&str]) -> bool {
        codes.contains(&self.text.split(' ').next().unwrap_or_default())
    }
}

impl RefusalKind {
    fn of(kind: Option<ServerErrorKind>, code: &str, details: Option<&str>) -> Self {
        match (kind, code) {
            (Some(ServerErrorKind::NoScript), _) => Self::NoScript,
            (Some(ServerErrorKind::Moved), _) => Self::Moved,
            (Some(ServerErrorKind::Ask), _) => Self::Ask,
            (Some(ServerErrorKind::TryAgain), _) => Self::TryAgain,
            (Some(ServerErrorKind::ClusterDown), _) => Self::ClusterDown,
            (Some(ServerErrorKind::ReadOnly), _) | (_, "NOREPLICAS" | "MISCONF") => Self::ReadOnly,
            (Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown), _)
            | (_, "DENIED") => Self::NotReady,
            (_, "NOAUTH") => Self::LoggedOut,
            (Some(ServerErrorKind::NoPerm), _) | (_, "WRONGPASS") => Self::Auth,
            (_, "ERR") => Self::of_plain_error(details.unwrap_or_default()),
            _ => Self::Failed,
        }
    }

    /// The meaning of an error with the generic code `ERR`.
    fn of_plain_error(details: &str) -> Self {
        let has_any = |texts: &[&str]| texts.iter().any(|text| details.contains(text));
        let unknown = details.strip_prefix("unknown command").map(str::to_ascii_uppercase);
        if details.starts_with("max number of clients") {
            Self::NotReady
        } else if unknown.is_some_and(|rest| rest.trim_start().get(1..8) == Some("EVALSHA")) {
            // The command is renamed: the source can be sent instead.
            Self::NoScript
        } else if details.contains("while the cluster is down") {
            // A master that its cluster has lost, with cluster-allow-reads-when-down. It refuses the first
            // write, so none was done.
            Self::ClusterDown
        } else if has_any(&["The user executing the script can't ", "ACL failure in script"]) {
            // The account may run scripts, but not what this one calls.
            Self::Auth
        } else if has_any(&[" -READONLY ", " -NOREPLICAS ", " -MISCONF "]) {
            // Before Redis 7 an error within a script was wrapped in one about the script.
            Self::ReadOnly
        } else {
            Self::Failed
        }
    }
}

/// An error, without what the server adds about the script that has met it.
fn cause(text: &str) -> &str {
    // Since Redis 7: `READONLY You can't write … script: 8fa3…, on @user_script:2.`
    let is_of_script = |rest: &str| rest.contains("user_script:");
    let text = match text.rsplit_once(" script: ") {
        Some((cause, rest)) if is_of_script(rest) => cause,
        _ => text,
    };
    // Before: `ERR Error running script (call to f_8fa3…): @user_script:2: @user_script: 2: -READONLY You can't write …`
    let wrapped = text.strip_prefix("ERR Error running script ");
    let cause = wrapped.and_then(|rest| rest.rsplit_once("@user_script"));
    let is_place = |it: char| it.is_ascii_digit() || [':', ' ', '-'].contains(&it);
    cause.map_or(text, |(_, cause)| cause.trim_start_matches(is_place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::reply::{Reply, parse};

    fn refusal(line: &[u8]) -> Refusal {
        match parse(line).unwrap() {
            Reply::Error(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_text_of_a_refusal_is_its_cause() {
        let cause = |line: &str| refusal(format!("-{line}\r\n").as_bytes()).text;
        let read_only = "READONLY You can't write against a read only replica.";
        for (line, expected) in [
            // Redis 7.0, Valkey 9, Redis 6.2 in two forms.
            (format!("{read_only} script: 8fa3, on @user_script:2."), read_only),
            (format!("{read_only} script: 8fa3, on user_script:2."), read_only),
            (format!("ERR Error running script (call to f_8fa3): @user_script:2: @user_script: 2: -{read_only}"), read_only),
            (format!("ERR Error running script (call to f_8fa3): @user_script:2: -{read_only}"), read_only),
            (
                "ERR Error running script (call to f_8fa3): @user_script:2: @user_script: 2: The user executing it".into(),
                "The user executing it",
            ),
            ("ERR no script: none".into(), "ERR no script: none"),
            ("ERR Error running script without a place".into(), "ERR Error running script without a place"),
            ("NOSCRIPT".into(), "NOSCRIPT"),
        ] {
            assert_eq!(cause(&line), expected, "{line}");
        }
    }

    #[test]
    fn some_refusals_prove_that_nothing_was_written() {
        let has_no_effect = |line: &str| refusal(format!("-{line}\r\n").as_bytes()).has_no_effect();
        let oom = "OOM command not allowed when used memory > 'maxmemory'.";
        for line in [
            "NOSCRIPT no",
            "LOADING Redis is loading",
            "MISCONF no",
            "TRYAGAIN later",
            "NOAUTH Authentication required.",
            "NOPERM User a has no permissions to run the 'evalsha' command",
            "BUSY Redis is busy running a script.",
            &format!("{oom} script: 8fa3, on @user_script:1."),
            &format!(
                "ERR Error running script (call to f_8fa3): @user_script:1: @user_script: 1: -{oom}"
            ),
        ] {
            assert!(has_no_effect(line), "{line}");
        }
        for line in [
            "ERR ACL failure in script: User a has no permissions to run the 'rpush' command script: 8fa3, on @user_script:1.",
            "WRONGTYPE Operation against a key script: 8fa3, on @user_script:1.",
            "ERR what a pity",
        ] {
            assert!(!has_no_effect(line), "{line}");
        }
    }

    #[test]
    fn refusals_have_their_kinds() {
        let kind = |line: &[u8]| refusal(line).kind;
        assert_eq!(kind(b"-NOSCRIPT No matching script.\r\n"), RefusalKind::NoScript);
        let unknown =
            b"-ERR unknown command 'EVALSHA', with args beginning with: '1' 'rl:a:\xff\r\n";
        assert_eq!(kind(unknown), RefusalKind::NoScript);
        assert_eq!(kind(b"-LOADING Redis is loading\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-MASTERDOWN Link is down\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-DENIED Redis is running in protected mode\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-ERR max number of clients reached\r\n"), RefusalKind::NotReady);
        assert_eq!(kind(b"-READONLY You can't write.\r\n"), RefusalKind::ReadOnly);
        assert_eq!(
            kind(b"-ERR Error running script (call to f_1): @user_script:2: -READONLY No\r\n"),
            RefusalKind::ReadOnly
        );
        for code in ["NOREPLICAS", "MISCONF"] {
            assert_eq!(kind(format!("-{code} no\r\n").as_bytes()), RefusalKind::ReadOnly);
            let wrapped = format!("-ERR Error running script (call to f_1): @1: -{code} no\r\n");
            assert_eq!(kind(wrapped.as_bytes()), RefusalKind::ReadOnly);
        }
        assert_eq!(kind(b"-MOVED 1 127.0.0.1:1\r\n"), RefusalKind::Moved);
        assert_eq!(kind(b"-ASK 1 127.0.0.1:1\r\n"), RefusalKind::Ask);
        assert_eq!(kind(b"-TRYAGAIN later\r\n"), RefusalKind::TryAgain);
        assert_eq!(kind(b"-CLUSTERDOWN no\r\n"), RefusalKind::ClusterDown);
        let of_script = "-ERR Error running script (call to f_1): @user_script:1: Lua script attempted to \
            execute a write command while the cluster is down and readonly\r\n";
        assert_eq!(kind(of_script.as_bytes()), RefusalKind::ClusterDown);
        for renamed in ["`EVALSHA`, with", "'EVALSHA', with", "'evalsha'"] {
            let line = format!("-ERR unknown command {renamed}\r\n");
            assert_eq!(kind(line.as_bytes()), RefusalKind::NoScript);
        }
        assert_eq!(kind(b"-ERR unknown command 'EVAL'\r\n"), RefusalKind::Failed);
        assert_eq!(kind(b"-NOAUTH Authentication required.\r\n"), RefusalKind::LoggedOut);
        assert_eq!(kind(b"-WRONGPASS invalid\r\n"), RefusalKind::Auth);
        assert_eq!(kind(b"-NOPERM no\r\n"), RefusalKind::Auth);
        for error in [
            "ERR The user executing the script can't run this command or subcommand script: 1",
            "ERR Error running script (call to f_1): @user_script:2: The user executing the script can't run",
            "ERR ACL failure in script: User a has no permissions to run the 'set' command script: 1",
        ] {
            assert_eq!(kind(format!("-{error}\r\n").as_bytes()), RefusalKind::Auth, "{error}");
        }
        assert_eq!(refusal(b"-ERR what a pity\r\n").text, "ERR what a pity");
        assert_eq!(refusal(b"-OOM\r\n"), Refusal { kind: RefusalKind::Failed, text: "OOM".into() });
    }
}
