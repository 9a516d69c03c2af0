//! A directive as it is written.

use std::fmt::Write as _;

use super::value;
use crate::metrics::Named;
use crate::rate;

/// The name of a directive, and the words that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive<'a> {
    words: Vec<&'a [u8]>,
}

/// Why a directive is refused for one of its words, or for their number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectiveError {
    /// The level has the directive already.
    #[error("\"{0}\" directive is duplicate")]
    Duplicate(String),
    /// A value is not what it must be.
    #[error("invalid value \"{value}\" in \"{directive}\" directive, it must be {expected}")]
    Invalid {
        /// The name of the directive.
        directive: String,
        /// The value.
        value: String,
        /// The values that are valid.
        expected: String,
    },
    /// More arguments than one, or none.
    #[error("invalid number of arguments in \"{directive}\" directive: {count}")]
    Arguments {
        /// The name of the directive.
        directive: String,
        /// How many arguments there are.
        count: usize,
    },
    /// A word is no text.
    #[error("\"{0}\" is not UTF-8")]
    NotUtf8(String),
    /// The only argument is no text. It is not shown: it may be a password, or a URL with one.
    #[error("the value of \"{0}\" directive is not UTF-8")]
    ValueNotUtf8(String),
    /// There is no word.
    #[error("empty directive")]
    Empty,
}

impl<'a> Directive<'a> {
    /// A directive of these words, of which the first one is its name.
    pub fn new(words: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self { words: words.into_iter().collect() }
    }

    /// The name.
    pub fn name(&self) -> Result<&'a str, DirectiveError> {
        self.words.first().map_or(Err(DirectiveError::Empty), |word| text(word))
    }

    /// The arguments, as bytes.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &'a [u8]> {
        self.words.iter().skip(1).copied()
    }

    /// The arguments, as texts.
    pub(super) fn texts(&self) -> impl Iterator<Item = Result<&'a str, DirectiveError>> {
        self.arguments().map(text)
    }

    /// The only argument.
    pub fn value(&self) -> Result<&'a str, DirectiveError> {
        match self.words.as_slice() {
            [_, value] => text(value).map_err(|_| DirectiveError::ValueNotUtf8(self.shown())),
            [] => Err(DirectiveError::Empty),
            [_, arguments @ ..] => {
                Err(DirectiveError::Arguments { directive: self.shown(), count: arguments.len() })
            }
        }
    }

    /// The only argument, which is not empty.
    pub fn nonempty_value(&self) -> Result<&'a str, DirectiveError> {
        match self.value()? {
            "" => Err(self.invalid("", "not empty")),
            value => Ok(value),
        }
    }

    /// The only argument, as a number.
    pub(super) fn number<const LEAST: u64, const MOST: u64>(&self) -> Result<u64, DirectiveError> {
        let value = self.value()?;
        match rate::whole(value) {
            Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
            _ => Err(self.invalid(value, &format!("a number between {LEAST} and {MOST}"))),
        }
    }

    /// The only argument, as a time in ms.
    pub(super) fn time(&self) -> Result<u64, DirectiveError> {
        let value = self.value()?;
        let time = value::milliseconds(value).filter(|time| *time > 0);
        time.ok_or_else(|| self.invalid(value, "a time above 0, such as 250ms or 1s"))
    }

    /// The only argument, as a time in ms that may be 0.
    pub(super) fn time_or_zero(&self) -> Result<u64, DirectiveError> {
        let value = self.value()?;
        value::milliseconds(value).ok_or_else(|| self.invalid(value, "a time, such as 10s"))
    }

    /// The only argument, as a size in bytes.
    pub(super) fn size(&self, least: u64) -> Result<u64, DirectiveError> {
        let value = self.value()?;
        value::bytes(value).filter(|size| *size >= least).ok_or_else(|| {
            self.invalid(
                value,
                &format!("a size of at least {}k, such as 8m or 1024m", least >> 10),
            )
        })
    }

    /// The choice that the only argument names, such as `on` or `off`.
    pub(super) fn choice<T: Named>(&self) -> Result<T, DirectiveError> {
        self.choose(self.value()?)
    }

    /// The choice that `value` names.
    pub(super) fn choose<T: Named>(&self, value: &str) -> Result<T, DirectiveError> {
        match T::CHOICES.iter().find(|(name, _)| *name == value) {
            Some((_, choice)) => Ok(*choice),
            None => Err(self.invalid(value, &quoted(T::CHOICES.iter().map(|it| it.0), " or "))),
        }
    }

    /// The error that a value is not what it must be.
    pub(super) fn invalid(&self, value: &str, expected: &str) -> DirectiveError {
        let (value, expected) = (value.to_owned(), expected.to_owned());
        DirectiveError::Invalid { directive: self.shown(), value, expected }
    }

    /// Sets `slot`, which the directive must not have set before.
    pub fn once<T>(&self, slot: &mut Option<T>, value: T) -> Result<(), DirectiveError> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(DirectiveError::Duplicate(self.shown())),
        }
    }

    /// The name, for an error.
    fn shown(&self) -> String {
        self.words.first().map(|word| escaped(word)).unwrap_or_default()
    }
}

impl Named for bool {
    const CHOICES: &'static [(&'static str, Self)] = &[("on", true), ("off", false)];
}

/// Names in quotes, with `between` between them.
pub(super) fn quoted<'a>(names: impl Iterator<Item = &'a str>, between: &str) -> String {
    names.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(between)
}

/// A word as text.
pub fn text(word: &[u8]) -> Result<&str, DirectiveError> {
    std::str::from_utf8(word).map_err(|_| DirectiveError::NotUtf8(escaped(word)))
}

/// A word for an error: bytes that are no text become `\xnn`.
fn escaped(word: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in word.utf8_chunks() {
        shown += chunk.valid();
        for byte in chunk.invalid() {
            // A String takes all that is written.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The directive of a line: its words are separated by spaces, or stand in single quotes.
    pub(in crate::conf) fn directive(line: &str) -> Directive<'_> {
        let (mut words, mut rest) = (Vec::new(), line.trim_start());
        while !rest.is_empty() {
            let (word, after) = match rest.strip_prefix('\'') {
                Some(quoted) => quoted.split_once('\'').expect("the end of a quoted word"),
                None => rest.split_once(' ').unwrap_or((rest, "")),
            };
            words.push(word.as_bytes());
            rest = after.trim_start();
        }
        Directive::new(words)
    }

    #[test]
    fn words_of_a_line() {
        let line = directive("a 'b c' '' d=$e");
        assert_eq!(line.words, [&b"a"[..], b"b c", b"", b"d=$e"]);
    }

    #[test]
    fn one_argument_is_read() {
        assert_eq!(directive("a b").value(), Ok("b"));
        assert_eq!(directive("a ''").value(), Ok(""));
        let error = |line| directive(line).value().unwrap_err().to_string();
        assert_eq!(error("a"), "invalid number of arguments in \"a\" directive: 0");
        assert_eq!(error("a b c"), "invalid number of arguments in \"a\" directive: 2");
        assert_eq!(error(""), "empty directive");
    }

    #[test]
    fn words_that_are_no_text() {
        let line = Directive::new([&b"a\xff"[..], b"x\xc3\xa4\xfe"]);
        assert_eq!(line.name().unwrap_err().to_string(), "\"a\\xff\" is not UTF-8");
        let error = line.value().unwrap_err().to_string();
        assert_eq!(error, "the value of \"a\\xff\" directive is not UTF-8");
        let error = line.once(&mut Some(1), 2).unwrap_err().to_string();
        assert_eq!(error, "\"a\\xff\" directive is duplicate");
    }

    #[test]
    fn a_slot_is_set_once() {
        let (line, mut slot) = (directive("a b"), None);
        assert_eq!(line.once(&mut slot, 1), Ok(()));
        assert_eq!(line.once(&mut slot, 1), Err(DirectiveError::Duplicate("a".to_owned())));
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(directive("a 256k").size(256 << 10), Ok(256 << 10));
        for value in ["255k", "", "soon", "-1", "1g"] {
            let line = format!("a '{value}'");
            let error = directive(&line).size(256 << 10).unwrap_err().to_string();
            let expected = "it must be a size of at least 256k, such as 8m or 1024m";
            assert_eq!(error, format!("invalid value \"{value}\" in \"a\" directive, {expected}"));
        }
    }
}
