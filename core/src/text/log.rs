//! Text that is safe to put into a log.

use std::fmt;

/// How much of a text is shown, in bytes.
const SHOWN: usize = 128;

/// Shows bytes that came from outside: control characters, quotes, backslashes and what is not
/// ASCII as `\xNN`, so that no client can forge a line; cut after 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take(SHOWN) {
            match byte {
                b'"' | b'\\' => write!(f, "\\x{byte:02X}")?,
                b' '..=b'~' => write!(f, "{}", char::from(*byte))?,
                _ => write!(f, "\\x{byte:02X}")?,
            }
        }
        if self.0.len() > SHOWN { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_can_be_forged() {
        let shown = Escaped(b"a b\"\\\n\x1b[0m\xc3\xa4").to_string();
        assert_eq!(shown, "a b\\x22\\x5C\\x0A\\x1B[0m\\xC3\\xA4");
        assert_eq!(Escaped(&[b'x'; 200]).to_string().len(), 131);
    }
}
