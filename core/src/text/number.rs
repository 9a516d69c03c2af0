//! Numbers as text, without the machinery of formatting.

/// The most digits that a number has.
const MAX_DIGITS: usize = 20;

/// Appends a number in decimal.
pub fn push(out: &mut Vec<u8>, number: u64) {
    // As most are.
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [b'0'; MAX_DIGITS];
    let mut rest = number;
    let mut length = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        length += 1;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(MAX_DIGITS - length..).unwrap_or_default());
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
