//! Commands as a server reads them from a stream of bytes, and the replies that it writes (RESP2).

use std::io::Write as _;
use std::ops::Range;

/// The bytes that one connection has sent and that are no complete command yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    words: Vec<Range<usize>>,
}

/// A complete command.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    bytes: &'a [u8],
    words: &'a [Range<usize>],
}

impl Input {
    /// Appends received bytes, which may end anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// A parser without memory: if nothing is left of what was received, its memory is given back, as a server may
    /// have many connections.
    pub fn without_memory(self) -> Self {
        if self.start == self.bytes.len() { Self::default() } else { self }
    }

    /// Takes the next command if all of it has arrived. Panics on what is no command: the client
    /// sends nothing else.
    pub fn next(&mut self) -> Option<Command<'_>> {
        self.words.clear();
        let mut cursor = Cursor { bytes: &self.bytes, at: self.start };
        for _ in 0..cursor.length(b'*')? {
            let length = cursor.length(b'$')?;
            self.words.push(cursor.word(length)?);
        }
        self.start = cursor.at;
        Some(Command { bytes: &self.bytes, words: &self.words })
    }
}

impl<'a> Command<'a> {
    /// The number of words, with the name of the command.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// The word at this index; nothing where there is none.
    pub fn word(&self, index: usize) -> &'a [u8] {
        self.words.get(index).map_or(b"", |range| &self.bytes[range.clone()])
    }

    /// The words from this index on.
    pub fn words(&self, from: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Self { bytes, words } = *self;
        words.iter().skip(from).map(move |range| &bytes[range.clone()])
    }

    /// Whether the word at this index is `name`, in upper or lower case.
    pub fn is(&self, index: usize, name: &str) -> bool {
        self.word(index).eq_ignore_ascii_case(name.as_bytes())
    }

    /// The word at this index, a number.
    pub fn number(&self, index: usize) -> u64 {
        number(self.word(index))
    }
}

/// Reads decimal digits. Panics on anything else.
pub fn number(digits: &[u8]) -> u64 {
    let text = str::from_utf8(digits).ok();
    text.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no number: {:?}", String::from_utf8_lossy(digits)))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// The number of a line that starts with `kind`.
    fn length(&mut self, kind: u8) -> Option<usize> {
        let rest = &self.bytes[self.at..];
        assert!(rest.first().is_none_or(|first| *first == kind), "no command: {rest:?}");
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        self.at += end + 1;
        Some(number(&rest[1..end - 1]) as usize)
    }

    /// A word of this length, and the end of its line.
    fn word(&mut self, length: usize) -> Option<Range<usize>> {
        let word = self.at..self.at + length;
        let end = self.bytes.get(word.end..word.end + 2)?;
        assert_eq!(end, b"\r\n", "the end of a word");
        self.at = word.end + 2;
        Some(word)
    }
}

pub fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, '+', text);
}

pub fn error(out: &mut Vec<u8>, text: &str) {
    line(out, '-', text);
}

pub fn integer(out: &mut Vec<u8>, value: i64) {
    line(out, ':', value);
}

/// The head of an array of so many elements.
pub fn array(out: &mut Vec<u8>, length: usize) {
    line(out, '*', length);
}

pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    line(out, '$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub fn nil(out: &mut Vec<u8>) {
    out.extend_from_slice(b"$-1\r\n");
}

fn line(out: &mut Vec<u8>, kind: char, value: impl std::fmt::Display) {
    write!(out, "{kind}{value}\r\n").expect("memory takes any bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n*1\r\n$4\r\nping\r\n";

    fn commands(input: &mut Input) -> Vec<Vec<Vec<u8>>> {
        let mut commands = Vec::new();
        while let Some(command) = input.next() {
            commands.push(command.words(0).map(<[u8]>::to_vec).collect());
        }
        commands
    }

    #[test]
    fn bytes_may_be_cut_anywhere() {
        let expected = [vec![b"GET".to_vec(), b"\r\n\r\n".to_vec()], vec![b"ping".to_vec()]];
        for cut in 0..=TWO.len() {
            let (mut input, mut found) = (Input::default(), Vec::new());
            for piece in [&TWO[..cut], &TWO[cut..]] {
                input.push(piece);
                found.extend(commands(&mut input));
            }
            assert_eq!(found, expected, "cut at {cut}");
        }
        let mut input = Input::default();
        let one_by_one = |byte| {
            input.push(std::slice::from_ref(byte));
            commands(&mut input)
        };
        assert_eq!(TWO.iter().flat_map(one_by_one).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn names_have_no_case() {
        let mut input = Input::default();
        input.push(b"*2\r\n$4\r\nPing\r\n$2\r\n42\r\n");
        let command = input.next().unwrap();
        assert!(command.is(0, "PING") && !command.is(0, "PIN") && !command.is(2, "PING"));
        assert_eq!((command.len(), command.number(1)), (2, 42));
    }

    #[test]
    #[should_panic(expected = "no command")]
    fn anything_else_is_no_command() {
        let mut input = Input::default();
        input.push(b"PING\r\n");
        input.next();
    }
}
