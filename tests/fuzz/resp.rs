//! Replies in RESP2 from an input.

use crate::input::Input;

/// How deep arrays nest at most: one more than a client accepts.
const DEEPEST: usize = 9;

pub fn bulk(text: &[u8]) -> Vec<u8> {
    let mut value = format!("${}\r\n", text.len()).into_bytes();
    value.extend_from_slice(text);
    value.extend_from_slice(b"\r\n");
    value
}

pub fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub fn array(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<_> = items.into_iter().collect();
    let mut value = format!("*{}\r\n", items.len()).into_bytes();
    value.extend(items.into_iter().flatten());
    value
}

/// Any value.
pub fn value(input: &mut Input<'_>) -> Vec<u8> {
    nested(input, 0)
}

fn nested(input: &mut Input<'_>, depth: usize) -> Vec<u8> {
    match input.below(7) {
        0 => bulk(input.bytes()),
        1 => integer(input.number() as i64),
        2 => line(b'+', input.bytes()),
        3 => line(b'-', input.bytes()),
        4 => b"$-1\r\n".to_vec(),
        5 => b"*-1\r\n".to_vec(),
        _ if depth == DEEPEST => integer(0),
        _ => {
            let count = input.below(9);
            array((0..count).map(|_| nested(input, depth + 1)).collect::<Vec<_>>())
        }
    }
}

/// A line of this kind. A line break in it would end it.
pub fn line(kind: u8, text: &[u8]) -> Vec<u8> {
    let text = text.iter().filter(|byte| !b"\r\n".contains(byte));
    [kind].iter().chain(text).chain(b"\r\n").copied().collect()
}

/// Whether a server may announce this as a host.
pub fn is_host(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(is_plain)
}
