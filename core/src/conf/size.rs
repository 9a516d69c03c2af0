//! Sizes as NGINX reads them, in `ngx_parse_size`.

/// The largest size, in bytes.
const MAX: u64 = i64::MAX as u64;

/// Reads a size in bytes, such as `8m`, `256k` or `4096`. `None` if it is none, or too large.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.split_at_checked(text.len().checked_sub(1)?) {
        Some((digits, "k" | "K")) => (digits, 1 << 10),
        Some((digits, "m" | "M")) => (digits, 1 << 20),
        _ => (text, 1),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(unit).filter(|size| *size <= MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4_096),
            ("256k", 256 << 10),
            ("256K", 256 << 10),
            ("8m", 8 << 20),
            ("8M", 8 << 20),
            ("008m", 8 << 20),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
    }

    #[test]
    fn what_is_no_size() {
        for text in [
            "", "k", "m", "-1", "+1", "1.5m", "1g", "1G", "1kb", "8 m", " 8m", "1mm", "\u{e4}",
            "8\u{e4}",
        ] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_that_are_too_large() {
        assert_eq!(bytes("9223372036854775807"), Some(MAX));
        assert_eq!(bytes("8796093022207m"), Some(8_796_093_022_207 << 20));
        for text in
            ["9223372036854775808", "8796093022208m", "9007199254740992k", "99999999999999999999"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
