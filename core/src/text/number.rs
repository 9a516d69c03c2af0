//! Numbers as text, without the machinery of formatting.

/// Appends a number in decimal.
pub fn push(out: &mut Vec<u8>, number: u64) {
    // As most are.
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn text(number: u64) -> String {
        let mut out = Vec::new();
        super::push(&mut out, number);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_edges() {
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(text(number), number.to_string());
        }
    }

    proptest! {
        #[test]
        fn as_formatted(number: u64) {
            prop_assert_eq!(text(number), number.to_string());
        }
    }
}
