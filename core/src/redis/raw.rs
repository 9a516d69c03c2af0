//! Values of a reply that are read where they are, without an allocation.
//!
//! The map of a large cluster has some 400,000 values in 6 MB, and few of them matter. To build a tree of all of
//! them takes 60 ms, in which a worker serves no request; to step over them takes 5 ms.

use super::reply::{integer, value};

/// The bytes of one value of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawValue<'a>(&'a [u8]);

/// Values one behind the other: those of nested arrays can be read in one pass.
#[derive(Clone, Debug)]
pub(super) struct RawValues<'a>(&'a [u8]);

impl<'a> RawValue<'a> {
    /// The value that a whole frame is.
    pub fn new(frame: &'a [u8]) -> Self {
        Self(frame)
    }

    /// Its bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The elements, if it is an array.
    pub fn items(self) -> Option<impl Iterator<Item = Self> + Clone> {
        let mut values = self.values();
        let count = values.enter()?;
        Some(values.take(count))
    }

    /// It, and what is in it.
    pub(super) fn values(self) -> RawValues<'a> {
        RawValues(self.0)
    }

    /// The number, if it is one.
    pub fn integer(self) -> Option<i64> {
        integer(self.0.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
    }

    /// The text, if it is a string.
    pub fn text(self) -> Option<&'a str> {
        let text = match self.0.split_first()? {
            (b'+', text) => text,
            (b'$', text) => {
                text.get(text.iter().position(|byte| *byte == b'\n')?.checked_add(1)?..)?
            }
            _ => return None,
        };
        std::str::from_utf8(text.strip_suffix(b"\r\n")?).ok()
    }

    /// Whether there is no value.
    pub fn is_null(self) -> bool {
        matches!(self.0, b"*-1\r\n" | b"$-1\r\n")
    }
}

impl<'a> RawValues<'a> {
    /// Steps into the next value, if it is an array: the next one is its first element. Returns how many
    /// there are.
    pub(super) fn enter(&mut self) -> Option<usize> {
        let is_array = self.0.starts_with(b"*") && !self.0.starts_with(b"*-");
        let (count, start) = value(self.0, 0).ok()?.filter(|_| is_array)?;
        self.0 = self.0.get(start..)?;
        Some(count)
    }

    /// Steps over so many values. Returns their bytes.
    pub(super) fn step_over(&mut self, count: usize) -> Option<&'a [u8]> {
        let before = self.0;
        for _ in 0..count {
            self.next()?;
        }
        before.get(..before.len().checked_sub(self.0.len())?)
    }

    /// Steps over values with just these bytes, if they are next. Returns whether they are.
    pub(super) fn step_over_same(&mut self, bytes: &[u8]) -> bool {
        let rest = self.0.strip_prefix(bytes);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }
}

impl<'a> Iterator for RawValues<'a> {
    type Item = RawValue<'a>;

    fn next(&mut self) -> Option<RawValue<'a>> {
        let (mut missing, mut end) = (1_usize, 0);
        while missing > 0 {
            let (elements, after) = value(self.0, end).ok()??;
            missing = missing.saturating_sub(1).saturating_add(elements);
            end = after;
        }
        let (value, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        Some(RawValue(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_read_in_place() {
        let raw = RawValue::new(b"*3\r\n:-7\r\n*2\r\n$1\r\na\r\n$-1\r\n$3\r\nb\r\n\r\n");
        let mut items = raw.items().unwrap();
        assert_eq!(items.clone().count(), 3);
        assert_eq!(items.next().unwrap().integer(), Some(-7));
        let inner = items.next().unwrap();
        assert_eq!(inner.bytes(), b"*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(inner.integer(), None);
        let mut parts = inner.items().unwrap();
        assert_eq!(parts.next().unwrap().text(), Some("a"));
        let nothing = parts.next().unwrap();
        assert_eq!((nothing.text(), nothing.is_null()), (None, true));
        assert_eq!(items.next().unwrap().text(), Some("b\r\n"));
        assert_eq!(items.next(), None);
    }

    #[test]
    fn strings_have_a_text() {
        for (frame, text) in [
            ("+OK\r\n", Some("OK")),
            ("$0\r\n\r\n", Some("")),
            ("$2\r\nab\r\n", Some("ab")),
            ("$-1\r\n", None),
            (":1\r\n", None),
            ("*1\r\n:1\r\n", None),
            ("", None),
        ] {
            assert_eq!(RawValue::new(frame.as_bytes()).text(), text, "{frame}");
        }
        assert_eq!(RawValue::new(b"$1\r\n\xff\r\n").text(), None);
    }

    #[test]
    fn values_are_stepped_over() {
        let mut values = RawValue::new(b":1\r\n*1\r\n:2\r\n:3\r\n:1\r\n").values();
        assert_eq!(values.clone().step_over(5), None);
        let words = values.step_over(2).unwrap();
        assert_eq!(words, b":1\r\n*1\r\n:2\r\n");
        assert!(!values.step_over_same(words) && values.step_over_same(b":3\r\n"));
        assert_eq!(values.next().unwrap().integer(), Some(1));
        assert!(values.step_over_same(b"") && values.next().is_none());
    }

    #[test]
    fn other_values_have_no_elements() {
        for frame in ["*-1\r\n", "$-1\r\n", ":1\r\n", "+OK\r\n", "$1\r\n*\r\n", ""] {
            assert!(RawValue::new(frame.as_bytes()).items().is_none(), "{frame}");
        }
        assert_eq!(RawValue::new(b"*0\r\n").items().unwrap().count(), 0);
    }

    #[test]
    fn an_array_that_is_cut_has_fewer_elements_than_it_says() {
        assert_eq!(RawValue::new(b"*2\r\n:1\r\n").items().unwrap().count(), 1);
    }
}
