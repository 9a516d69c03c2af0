//! JSON (RFC 8259), as it is written.

use std::fmt::{Display, Write as _};

/// An object that is being written.
pub(super) struct Object<'a> {
    text: &'a mut String,
    is_empty: bool,
}

/// Writes an object with what `fill` puts into it.
pub(super) fn object(text: &mut String, fill: impl FnOnce(&mut Object<'_>)) {
    text.push('{');
    fill(&mut Object { text, is_empty: true });
    text.push('}');
}

impl Object<'_> {
    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.text.push(',');
        }
        string(self.text, name);
        self.text.push(':');
    }

    pub(super) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
        self.name(name);
        object(self.text, fill);
    }

    /// Adds an array of an object for each of `items`.
    pub(super) fn objects<T>(
        &mut self,
        name: &str,
        items: &[T],
        fill: impl Fn(&mut Object<'_>, &T),
    ) {
        self.name(name);
        self.text.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            object(self.text, |members| fill(members, item));
        }
        self.text.push(']');
    }

    /// Adds a value that needs no quotes.
    pub(super) fn value(&mut self, name: &str, value: impl Display) {
        self.name(name);
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{value}");
    }

    pub(super) fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        string(self.text, value);
    }

    pub(super) fn all(&mut self, values: impl IntoIterator<Item = (impl AsRef<str>, u64)>) {
        values.into_iter().for_each(|(name, value)| self.value(name.as_ref(), value));
    }
}

/// Writes a string (RFC 8259, section 7).
fn string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            // Writing to a string cannot fail.
            '\0'..='\x1f' => drop(write!(text, "\\u{:04x}", u32::from(character))),
            _ => text.push(character),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut text = String::new();
        string(&mut text, "unix:/a \"b\"\\\n\0\x1f\x7fä</script>");
        assert_eq!(text, "\"unix:/a \\\"b\\\"\\\\\\u000a\\u0000\\u001f\x7fä</script>\"");
    }
}
