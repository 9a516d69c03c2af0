//! The content security policy of a page for a browser.

use sha2::{Digest as _, Sha256};

/// The `Content-Security-Policy` of `page`: it may use its own script and style, and connect to its own server. No
/// other page may embed it.
pub fn policy(page: &str) -> String {
    let (script, style) = (source(page, "script"), source(page, "style"));
    format!(
        "default-src 'none'; connect-src 'self'; script-src {script}; style-src {style}; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The content of the only element of this name, as a source expression of a policy.
fn source(page: &str, element: &str) -> String {
    let content = page
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")))
        .map_or("", |(content, _)| content);
    format!("'sha256-{}'", base64(&Sha256::digest(content)))
}

/// RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| DIGITS.get(bits as usize & 63).copied().map_or('=', char::from);
    let group = |chunk: &[u8]| {
        let byte = |at| chunk.get(at).copied().map_or(0, u32::from);
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digits = [18, 12, 6, 0].map(|shift| digit(bits >> shift));
        let filled = chunk.len().saturating_add(1);
        digits.into_iter().enumerate().map(move |(at, it)| if at < filled { it } else { '=' })
    };
    bytes.chunks(3).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{admin, metrics};

    /// The test vectors of RFC 4648.
    #[test]
    fn digits_are_those_of_base64() {
        let encoded = ["", "f", "fo", "foo", "foob", "fooba", "foobar", "\u{3f}\u{3f}\u{3e}"]
            .map(|text| base64(text.as_bytes()));
        let expected = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "Pz8+"];
        assert_eq!(encoded, expected);
    }

    #[test]
    fn only_what_stands_in_the_page_is_allowed() {
        let empty = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='";
        for page in [metrics::HTML, admin::HTML] {
            assert!(!policy(page).contains("unsafe"));
            assert_eq!(source(page, "nothing"), empty);
            assert!(!policy(page).contains(empty));
        }
    }

    /// A page loads nothing from other hosts, and writes nothing into its own markup. Its one script and its one style
    /// can be allowed by their digests.
    #[test]
    fn the_pages_stand_alone() {
        for page in [metrics::HTML, admin::HTML] {
            assert_eq!(page.matches("<script").count(), 1);
            assert_eq!(page.matches("<style").count(), 1);
            let page = page.replace("http://www.w3.org/2000/svg", "");
            for foreign in [
                "://",
                "src=",
                "@import",
                "url(",
                "innerHTML",
                "document.write",
                "eval(",
                " style=",
                " onclick=",
                "alert(",
                "confirm(",
            ] {
                assert!(!page.contains(foreign), "the page has {foreign}");
            }
        }
    }
}
