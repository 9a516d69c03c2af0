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
            _ if is_control(character) => drop(write!(text, "\\u{:04x}", u32::from(character))),
            _ => text.push(character),
        }
    }
    text.push('"');
}

/// Whether a character controls a terminal, or the direction of the text around it. JSON forces only some of them to be
/// escaped, but a client may have chosen the text, and an operator's terminal shows the JSON as it is.
fn is_control(character: char) -> bool {
    let is_of_direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || is_of_direction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut text = String::new();
        string(&mut text, "unix:/a \"b\"\\\n\0\x1f\x7fä</script>");
        assert_eq!(text, "\"unix:/a \\\"b\\\"\\\\\\u000a\\u0000\\u001f\\u007fä</script>\"");
    }

    #[test]
    fn nothing_controls_a_terminal() {
        let escaped = ['\x7f'..='\u{9f}', '\u{61c}'..='\u{61c}', '\u{200e}'..='\u{200f}'];
        let escaped = escaped.into_iter().chain(['\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}']);
        for character in escaped.flatten() {
            let mut text = String::new();
            string(&mut text, &character.to_string());
            assert_eq!(text, format!("\"\\u{:04x}\"", u32::from(character)));
        }
        let others = "\u{a0}\u{61b}\u{200d}\u{2010}\u{2029}\u{206a}\u{1f600}";
        let mut text = String::new();
        string(&mut text, others);
        assert_eq!(text, format!("\"{others}\""));
    }
}
