//! Values of directives and parameters: times and sizes as NGINX reads them, in `ngx_parse_time` and `ngx_parse_size`, values
//! that may be variables, and URLs of servers.

use crate::redis::endpoint::{Endpoint, redacted};

/// The longest time, in ms, and the largest size, in bytes.
const MAX: u64 = i64::MAX as u64;

/// A unit that may follow a number.
struct Unit {
    name: &'static str,
    /// In ms.
    length: u64,
    /// The unit cannot follow one of this rank, or of a higher one.
    bound: u8,
    /// Longer units have lower ranks.
    rank: u8,
}

/// A second in ms.
const SECOND_MS: u64 = 1_000;

/// The units of times in ms, where years and months are none. A space makes a number one of seconds.
const UNITS: [Unit; 7] = [
    Unit { name: "w", length: 7 * 24 * 3_600 * SECOND_MS, bound: 1, rank: 1 },
    Unit { name: "d", length: 24 * 3_600 * SECOND_MS, bound: 2, rank: 2 },
    Unit { name: "h", length: 3_600 * SECOND_MS, bound: 3, rank: 3 },
    Unit { name: "ms", length: 1, bound: 6, rank: 6 },
    Unit { name: "m", length: 60 * SECOND_MS, bound: 4, rank: 4 },
    Unit { name: "s", length: SECOND_MS, bound: 5, rank: 5 },
    Unit { name: " ", length: SECOND_MS, bound: 5, rank: 7 },
];

/// Reads a time in ms, such as `20ms`, `90` (seconds) or `1h 30m`: numbers with units from the longest to the
/// shortest. `None` if it is none, or too long.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    if !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (mut rest, mut total, mut rank) = (text, 0, 0);
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        // A unit without a number is one of 0.
        let number = if number.is_empty() { 0 } else { number.parse().ok()? };
        if after.is_empty() {
            return sum(total, number, SECOND_MS);
        }
        let unit = UNITS.iter().find(|unit| after.starts_with(unit.name))?;
        if rank >= unit.bound {
            return None;
        }
        total = sum(total, number, unit.length)?;
        rank = unit.rank;
        rest = after.strip_prefix(unit.name)?.trim_start_matches(' ');
    }
}

fn sum(total: u64, number: u64, length: u64) -> Option<u64> {
    let time = number.checked_mul(length).filter(|time| *time <= MAX)?;
    total.checked_add(time).filter(|total| *total <= MAX)
}

/// Reads a size in bytes, such as `8m`, `256k` or `4096`. `None` if it is none, or too large.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.split_at_checked(text.len().checked_sub(1)?) {
        Some((digits, "k" | "K")) => (digits, 1 << 10),
        Some((digits, "m" | "M")) => (digits, 1 << 20),
        _ => (text, 1),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(unit).filter(|size| *size <= MAX)
}

/// A value of a line: a literal, which is read with the line, or a text with variables, which is read for each
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting<T, V> {
    /// The value.
    Literal(T),
    /// The text, compiled.
    Variable(V),
}

impl<T: Copy, V> Setting<T, V> {
    /// Reads `text` now if it is a literal, and compiles it if it is not.
    pub(super) fn new<'a, E: From<R>, R>(
        text: &'a str,
        read: impl FnOnce(&str) -> Result<T, R>,
        compile: &mut impl FnMut(&'a str) -> Result<V, E>,
    ) -> Result<Self, E> {
        match is_literal(text) {
            true => Ok(Self::Literal(read(text)?)),
            false => compile(text).map(Self::Variable),
        }
    }

    /// The literal, if it is one.
    pub fn literal(&self) -> Option<T> {
        match self {
            Self::Literal(value) => Some(*value),
            Self::Variable(_) => None,
        }
    }
}

/// Whether NGINX finds no variable in `text`, whether or not there is one of that name.
pub(crate) fn is_literal(text: &str) -> bool {
    !text.contains('$')
}

/// The name of the variable if `text` is one and nothing else, `$name` or `${name}`. `$1` is not: it is a
/// capture of a regular expression.
pub fn variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let braced = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    let name = braced.unwrap_or(name);
    let starts = name.starts_with(|first: char| !first.is_ascii_digit());
    (starts && name.chars().all(is_of_name)).then_some(name)
}

/// Whether `text` contains the variable of this name.
pub(super) fn has_variable(text: &str, name: &str) -> bool {
    variables(text).any(|other| other.eq_ignore_ascii_case(name))
}

/// The names of the variables in `text`.
pub(super) fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        rest.split(|character| !is_of_name(character)).next()
    })
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Why the URL of a server is refused. The password is not shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL \"{url}\" in \"{directive}\" directive: {reason}")]
pub struct UrlError {
    directive: &'static str,
    url: String,
    reason: String,
}

impl UrlError {
    /// The error that `url` in `directive` cannot be used.
    pub fn new(directive: &'static str, url: &str, reason: String) -> Self {
        Self { directive, url: redacted(url), reason }
    }
}

/// Reads the URL of a server in `directive`.
pub fn endpoint(directive: &'static str, url: &str) -> Result<Endpoint, UrlError> {
    url.parse().map_err(|error| UrlError::new(directive, url, format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_units() {
        for (text, time) in [
            ("0", 0),
            ("20", 20_000),
            ("20ms", 20),
            ("20s", 20_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1w", 604_800_000),
            ("007s", 7_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text}");
        }
    }

    #[test]
    fn several_numbers_from_the_longest_unit_to_the_shortest() {
        for (text, time) in [
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1h   30m", 5_400_000),
            ("1d 12h", 129_600_000),
            ("1w1d1h1m1s1ms", 694_861_001),
            // A last number without a unit is one of seconds, whatever was before.
            ("1h30", 3_630_000),
            ("1ms2", 2_001),
            ("1s2", 3_000),
            ("5 6", 11_000),
            ("90 ", 90_000),
            (" 5", 5_000),
            ("5s ", 5_000),
            // A unit without a number counts nothing.
            ("m5", 5_000),
            ("1hm", 3_600_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text:?}");
        }
        for text in ["30m1h", "1s1m", "1ms1s", "1m1m", "1s 1s", "1ms1ms", "1 s", "5 6 7", "1 2m"] {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_time() {
        for text in
            ["", " ", "s", "ms", "-1", "-1s", "+1s", "1.5s", "0.5s", "20us", "soon", "1H", "1S"]
        {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
        // Years and months are not for times in ms.
        for text in ["1y", "1M", "$arg_a", "10r/s", "1\u{e4}", "1s\t2s"] {
            assert_eq!(milliseconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn times_that_are_too_long() {
        for (text, time) in [
            ("9223372036854775807ms", i64::MAX as u64),
            ("9223372036854775s807ms", i64::MAX as u64),
            ("9223372036854775", 9_223_372_036_854_775_000),
        ] {
            assert_eq!(milliseconds(text), Some(time), "{text}");
        }
        for text in [
            "9223372036854775808ms",
            "9223372036854775s808ms",
            "9223372036854776",
            "9223372036854776s",
            "15250284453w",
            "18446744073709551616ms",
            "99999999999999999999s",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_with_units() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4_096),
            ("256k", 256 << 10),
            ("256K", 256 << 10),
            ("8m", 8 << 20),
            ("8M", 8 << 20),
            ("008m", 8 << 20),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size() {
        for text in [
            "", "k", "m", "-1", "+1", "1.5m", "1g", "1G", "1kb", "8 m", " 8m", "1mm", "\u{e4}",
            "8\u{e4}",
        ] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_that_are_too_large() {
        assert_eq!(bytes("9223372036854775807"), Some(MAX));
        assert_eq!(bytes("8796093022207m"), Some(8_796_093_022_207 << 20));
        for text in
            ["9223372036854775808", "8796093022208m", "9007199254740992k", "99999999999999999999"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_variable_and_nothing_else() {
        assert_eq!(variable("$arg_a"), Some("arg_a"));
        assert_eq!(variable("${arg_a}"), Some("arg_a"));
        for text in ["", "$", "${}", "arg_a", "$1", "${1a}", "$a$b", "$a ", "x$a", "${a", "$a}"] {
            assert_eq!(variable(text), None, "{text}");
        }
    }

    #[test]
    fn a_variable_in_a_text() {
        for text in ["$a", "${a}", "$A", "x$a", "$b$a", "${b}${a}x", "$a.b", "$"] {
            assert_eq!(has_variable(text, "a"), text != "$", "{text}");
        }
        for text in ["a", "$ab", "${ab}", "$b", "\\a", "$b a"] {
            assert!(!has_variable(text, "a"), "{text}");
        }
    }

    fn url_error(url: &str) -> String {
        endpoint("rate_limit_redis_pass", url).expect_err(url).to_string()
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let right = "must be redis://[user[:password]@]host[:port][/database], the same with rediss:// for \
                     TLS, or redis+unix:///path[?db=database]";
        let fragment = "it cannot have a fragment; a \"#\" in a password or path is written %23";
        let (host, port) = ("the host is missing", "the port must be a number between 1 and 65535");
        let database = "the database must be a number";
        let path = "the path of the socket is missing: it is absolute, with three slashes, as in \
                    redis+unix:///run/redis.sock";
        for (url, reason) in [
            ("", right),
            ("127.0.0.1:6379", right),
            ("http://127.0.0.1:6379", right),
            ("REDIS://127.0.0.1", right),
            ("redis:127.0.0.1", right),
            ("unix:/run/redis.sock", right),
            ("redis://", host),
            ("redis://:6379", host),
            ("redis:///0", host),
            ("redis://127.0.0.1:abc", port),
            ("redis://127.0.0.1:99999", port),
            ("redis://127.0.0.1:0", port),
            ("redis://127.0.0.1:-1", port),
            ("redis://127.0.0.1/x", database),
            ("redis://127.0.0.1/-1", database),
            ("rediss://127.0.0.1#insecure", fragment),
            ("redis+unix://", path),
            ("redis+unix://run/redis.sock", path),
            ("redis://$host", "it cannot contain variables"),
        ] {
            let expected =
                format!("invalid URL \"{url}\" in \"rate_limit_redis_pass\" directive: {reason}");
            assert_eq!(url_error(url), expected);
        }
    }

    #[test]
    fn a_slash_in_a_password() {
        let expected = "invalid URL \"redis://***@127.0.0.1:6379\" in \"rate_limit_redis_pass\" directive: it cannot \
                        have a \"/\" before the host; in a user or password it is written %2F";
        assert_eq!(url_error("redis://:pa/ss@127.0.0.1:6379"), expected);
    }

    #[test]
    fn a_password_is_never_shown() {
        for url in [
            "redis://:s3cret@127.0.0.1:99999",
            "redis://bob:s3cret@127.0.0.1:6379/x",
            "redis://bob:s3cret@",
            "redis://bob:s3cret@:6379",
            "redis://:s3cret/word@127.0.0.1/x",
            "redis://:s3cret@word@127.0.0.1/x",
            "rediss://bob:s3cret@127.0.0.1/x",
            "rediss://bob:s3cret@127.0.0.1#insecure",
            "redis://bob:s3cret#@127.0.0.1",
            "http://bob:s3cret@127.0.0.1",
            "bob:s3cret@127.0.0.1",
            "redis+unix:///tmp/redis.sock?db=x&pass=s3cret",
            "redis+unix:///tmp/redis.sock?pass=s3cret&db=x",
            "redis://127.0.0.1/x?password=s3cret",
            "redis://127.0.0.1:99999?password=s3cret",
        ] {
            assert!(!url_error(url).contains("s3cret"), "{url}");
        }
    }

    #[test]
    fn good_urls_are_read() {
        for url in [
            "redis://127.0.0.1",
            "redis://127.0.0.1:6380",
            "redis://127.0.0.1/",
            "redis://127.0.0.1:6379/15",
            "redis://localhost:6379",
            "redis://[::1]:6379/1",
            "redis://:secret@127.0.0.1",
            "redis://bob:p%40ss%2Fw%3Ard@127.0.0.1:6379/3",
            "redis+unix:///run/redis/redis.sock",
            "redis+unix:///run/redis/redis.sock?db=2",
        ] {
            assert!(endpoint("server", url).is_ok(), "{url}");
        }
    }
}
