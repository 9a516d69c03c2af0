//! The options of `scripts/run`.

const USAGE: &str =
    "usage: scripts/run [--once] [--cluster | --redis URL] [--port N], or scripts/run --help";

/// The options that the user has given.
pub struct Options {
    /// End after the burst.
    pub once: bool,
    /// The Redis.
    pub store: Kind,
    /// The port of the first nginx.
    pub port: Option<u16>,
}

/// Which Redis the nginx share.
#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    /// A server of the demo.
    Single,
    /// Six servers of the demo.
    Cluster,
    /// The user's own server at this URL.
    Own(String),
}

impl Options {
    /// Parses arguments; the error is a message.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut once, mut cluster, mut own, mut port) = (false, false, None, None);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--once" => once = true,
                "--cluster" => cluster = true,
                "--redis" => own = Some(url(arguments.next().unwrap_or_default())?),
                "--port" => port = Some(port_number(&arguments.next().unwrap_or_default())?),
                _ => return Err(format!("unknown option {argument}; {USAGE}")),
            }
        }
        let store = match (cluster, own) {
            (false, None) => Kind::Single,
            (true, None) => Kind::Cluster,
            (false, Some(url)) => Kind::Own(url),
            (true, Some(_)) => return Err("--cluster and --redis exclude each other".to_owned()),
        };
        Ok(Self { once, store, port })
    }
}

/// A URL without anything that ends a word of nginx.conf: it has such characters percent-encoded.
fn url(text: String) -> Result<String, String> {
    let schemes = ["redis://", "rediss://", "redis+unix://"];
    let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_plain = |c: char| !c.is_whitespace() && !"\"';{}$\\".contains(c);
    if rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_plain)) {
        return Ok(text);
    }
    Err(format!(
        "--redis needs redis://host[:port], rediss://host[:port] or redis+unix:///path, not '{text}'"
    ))
}

fn port_number(text: &str) -> Result<u16, String> {
    let is_plain = text.starts_with(|c| ('1'..='9').contains(&c));
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| format!("--port needs a number from 1 to 65535, not '{text}'"))
}
