//! Directives from an input: each line is one, and spaces are between its words.

use rate_limit_core::conf::Directive;

/// The words of a line. A word is what NGINX has made of it: quoted ones hold spaces, here written as zeros.
pub fn words(line: &[u8]) -> Vec<Vec<u8>> {
    let space = |byte: &u8| if *byte == 0 { b' ' } else { *byte };
    line.split(|byte| *byte == b' ').map(|word| word.iter().map(space).collect()).collect()
}

/// The lines of an input.
pub fn lines(data: &[u8]) -> Vec<Vec<Vec<u8>>> {
    data.split(|byte| *byte == b'\n').map(words).collect()
}

/// The directive of these words.
pub fn directive(words: &[Vec<u8>]) -> Directive<'_> {
    Directive::new(words.iter().map(Vec::as_slice))
}
