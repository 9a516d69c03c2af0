//! Text for log lines.

use std::{fmt, io};

use crate::charge::Charge;
use crate::decision::{Retry, Verdict};

/// How much of a text is shown, in bytes.
const SHOWN: usize = 128;

/// Shows bytes from outside. Control characters, quotes, backslashes and non-ASCII bytes become
/// `\xNN`, so that no client can forge a line; the text is cut after 128 bytes.
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

/// Shows an error of the system as NGINX does: `(2: No such file or directory)`; any other one after a colon.
#[derive(Debug)]
pub struct SystemError<'a>(pub &'a io::Error);

impl fmt::Display for SystemError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match (self.0.raw_os_error(), text.split_once(" (os error")) {
            (Some(number), Some((text, _))) => write!(f, " ({number}: {text})"),
            _ => write!(f, ": {text}"),
        }
    }
}

/// How much of an HMAC is shown, in digits: enough to tell clients apart, and to find their keys in Redis.
const SHOWN_OF_HMAC: usize = 16;

/// The part of a line that shows the key of a client: `, key: "192.0.2.1"`.
#[derive(Clone, Copy, Debug)]
pub enum ShownKey<'a> {
    /// The key, [escaped](Escaped).
    Own(&'a [u8]),
    /// The beginning of its HMAC.
    Hmac(&'a [u8]),
    /// Nothing.
    Hidden,
}

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(key) => write!(f, ", key: \"{}\"", Escaped(key)),
            Self::Hmac(hmac) => write!(f, ", key: \"{}\"", shortened_hmac(hmac)),
            Self::Hidden => Ok(()),
        }
    }
}

/// The beginning of an HMAC, which is enough to recognize a client by.
pub fn shortened_hmac(hmac: &[u8]) -> impl fmt::Display {
    let shown = hmac.get(..SHOWN_OF_HMAC).unwrap_or(hmac);
    format!("{}...", Escaped(shown))
}

/// Shows a number with a comma between its thousands.
#[derive(Clone, Copy, Debug)]
pub struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 1_000, self.0 % 1_000) {
            (0, rest) => write!(f, "{rest}"),
            (thousands, rest) => write!(f, "{},{rest:03}", Self(thousands)),
        }
    }
}

/// By how many units a request is too much, in thousandths, as `limit_req` logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess(u128);

impl Excess {
    /// The units that a request with this verdict lacks, or is delayed for. If quota comes back continuously,
    /// this is the time until the request may pass, in units of the rate; but not with a block, which
    /// lasts whatever comes back.
    pub fn of(verdict: &Verdict, charge: &Charge<'_>, delay: u64) -> Self {
        let quota = charge.quota;
        let is_blocked = quota.block() > 0 || verdict.blocked > 0;
        let wait = match verdict.retry {
            Retry::No => delay,
            Retry::After(micros) if quota.algorithm().is_continuous() && !is_blocked => micros,
            Retry::After(_) | Retry::Never => {
                let lacking = charge.cost.saturating_sub(verdict.remaining);
                return Self(u128::from(lacking) * 1_000);
            }
        };
        let units = u128::from(wait) * u128::from(quota.rate().count()) * 1_000;
        Self(units / u128::from(quota.rate().period()))
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::tests::template;
    use crate::limit::{Algorithm, Quota};

    #[test]
    fn errors_of_the_system() {
        let missing = io::Error::from_raw_os_error(2);
        assert_eq!(SystemError(&missing).to_string(), " (2: No such file or directory)");
        let other = io::Error::new(io::ErrorKind::InvalidData, "no text (os error 2)");
        assert_eq!(SystemError(&other).to_string(), ": no text (os error 2)");
    }

    #[test]
    fn excess_is_in_units_of_the_rate() {
        let quota = Quota::new(Algorithm::Gcra, "2r/s".parse().unwrap(), 5).unwrap();
        let charge = Charge::new(template(), b"", &quota, 7);
        let excess = |retry, delay| {
            let verdict = Verdict { allowed: false, blocked: 0, remaining: 0, reset: 0, retry };
            Excess::of(&verdict, &charge, delay).to_string()
        };
        assert_eq!(excess(Retry::After(499_000), 0), "0.998");
        assert_eq!(excess(Retry::No, 1_500_000), "3.000");
        assert_eq!(excess(Retry::Never, 0), "7.000");
        let charge = Charge { quota: &quota.with_block(3_600_000_000), cost: 2, ..charge };
        let retry = Retry::After(3_600_000_000);
        let verdict =
            Verdict { allowed: false, blocked: 0, remaining: 0, reset: 3_600_000_000, retry };
        assert_eq!(Excess::of(&verdict, &charge, 0).to_string(), "2.000");
        let charge = Charge { quota: &quota, ..charge };
        let verdict = Verdict { blocked: u32::MAX, ..verdict };
        assert_eq!(Excess::of(&verdict, &charge, 0).to_string(), "2.000", "by an operator");
    }

    #[test]
    fn thousands_are_grouped() {
        let shown = [0, 999, 1_000, 12_345, 1_002_003].map(|number| Grouped(number).to_string());
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,002,003"]);
    }

    #[test]
    fn a_key_is_shown_hidden_or_in_short() {
        let hmac = b"0123456789abcdef0123456789abcdef";
        assert_eq!(ShownKey::Own(b"a\n").to_string(), ", key: \"a\\x0A\"");
        assert_eq!(ShownKey::Hmac(hmac).to_string(), ", key: \"0123456789abcdef...\"");
        assert_eq!(ShownKey::Hidden.to_string(), "");
    }

    #[test]
    fn no_line_can_be_forged() {
        let shown = Escaped(b"a b\"\\\n\x1b[0m\xc3\xa4").to_string();
        assert_eq!(shown, "a b\\x22\\x5C\\x0A\\x1B[0m\\xC3\\xA4");
        assert_eq!(Escaped(&[b'x'; 200]).to_string().len(), 131);
    }
}
