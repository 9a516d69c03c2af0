//! Values that may be variables.

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
    text.split('$').skip(1).any(|rest| {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let other = rest.split(|character| !is_of_name(character)).next();
        other.is_some_and(|other| other.eq_ignore_ascii_case(name))
    })
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
